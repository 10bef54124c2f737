/*
 * Reads a live process back from /proc and holds it against its description.
 *
 * What the kernel does not show there (landlock, securebits) is not compared. What may not be read
 * counts as a difference: a report never takes silence for agreement.
 */
#include "jail/jail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "jail/enter.h"

/* A jail has at most 160 mounts of some 300 bytes; every other file of /proc is smaller. */
#define PROC_BYTES_MAX ((size_t)256 << 10)

struct reading {
	const struct jail *jail;
	const struct jail_process *process;
	FILE *out;
	int count;
};

static void differ(struct reading *reading, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void differ(struct reading *reading, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(reading->out, format, args);
	va_end(args);
	fputc('\n', reading->out);
	reading->count++;
}

/* A path below /proc/PID. */
static void proc_path(const struct reading *reading, const char *name, char *ret_path, size_t size)
{
	snprintf(ret_path, size, "/proc/%d/%s", (int)reading->process->pid, name);
}

/* NULL, with the difference noted, when it cannot be read. The caller frees it. */
static char *read_proc(struct reading *reading, const char *name)
{
	char path[PATH_MAX], *text = NULL;
	int rc;

	proc_path(reading, name, path, sizeof(path));
	rc = read_file_at(AT_FDCWD, path, PROC_BYTES_MAX, &text, NULL);
	if (rc < 0) {
		differ(reading, "%s cannot be read: %s", path, strerror(-rc));
		return NULL;
	}
	return text;
}

/* Compares the value of "Key:\tvalue" in /proc/PID/status. */
static void compare_status_line(struct reading *reading, const char *status, const char *key,
				const char *wanted)
{
	const char *line = status;
	size_t length;

	while (line && strncmp(line, key, strlen(key)) != 0) {
		line = strchr(line, '\n');
		line = line ? line + 1 : NULL;
	}
	if (!line) {
		differ(reading, "%s is missing in its status", key);
		return;
	}
	line += strlen(key);
	line += strspn(line, " \t");
	length = strcspn(line, "\n");
	while (length > 0 && line[length - 1] == ' ') {
		length--;
	}
	if (length != strlen(wanted) || strncmp(line, wanted, length) != 0) {
		differ(reading, "%s is %.*s, not %s", key, (int)length, line, wanted);
	}
}

static void compare_status(struct reading *reading)
{
	static const struct {
		const char *key;
		const char *value;
	} fixed[] = {
		{"CapInh:", "0000000000000000"},
		{"CapPrm:", "0000000000000000"},
		{"CapEff:", "0000000000000000"},
		{"CapBnd:", "0000000000000000"},
		{"CapAmb:", "0000000000000000"},
		{"NoNewPrivs:", "1"},
		{"Seccomp:", "2"},
	};
	_cleanup_free_ char *status = read_proc(reading, "status");
	const struct jail *jail = reading->jail;
	char wanted[64];

	if (!status) {
		return;
	}
	snprintf(wanted, sizeof(wanted), "%u\t%u\t%u\t%u", jail->host_uid, jail->host_uid,
		 jail->host_uid, jail->host_uid);
	compare_status_line(reading, status, "Uid:", wanted);
	snprintf(wanted, sizeof(wanted), "%u\t%u\t%u\t%u", jail->host_gid, jail->host_gid,
		 jail->host_gid, jail->host_gid);
	compare_status_line(reading, status, "Gid:", wanted);
	/* A process of its own PID namespace, and the first in it. */
	snprintf(wanted, sizeof(wanted), "%d\t1", (int)reading->process->pid);
	compare_status_line(reading, status, "NSpid:", wanted);
	for (size_t i = 0; i < ARRAY_SIZE(fixed); i++) {
		compare_status_line(reading, status, fixed[i].key, fixed[i].value);
	}
}

static void compare_limits(struct reading *reading)
{
	struct jail_limit limits[JAIL_LIMITS];
	size_t count = jail_limits(reading->jail, limits);
	_cleanup_free_ char *text = read_proc(reading, "limits");

	for (size_t i = 0; text && i < count; i++) {
		const char *line = strstr(text, limits[i].name);
		char soft[32], hard[32];

		if (!line || sscanf(line + strlen(limits[i].name), "%31s %31s", soft, hard) != 2) {
			differ(reading, "%s is missing in its limits", limits[i].name);
			continue;
		}
		/* Lower is fine: the caller's own hard limit may have been lower. */
		if (strcmp(soft, "unlimited") == 0 || strcmp(hard, "unlimited") == 0 ||
		    strtoull(soft, NULL, 10) > limits[i].value ||
		    strtoull(hard, NULL, 10) > limits[i].value) {
			differ(reading, "%s is %s (hard %s), not %llu", limits[i].name, soft, hard,
			       (unsigned long long)limits[i].value);
		}
	}
}

static void compare_namespaces(struct reading *reading)
{
	static const char *const names[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		char name[32], path[PATH_MAX], its[64] = "", ours[64] = "";

		snprintf(name, sizeof(name), "ns/%s", names[i]);
		proc_path(reading, name, path, sizeof(path));
		if (readlink(path, its, sizeof(its) - 1) < 0) {
			differ(reading, "%s cannot be read: %s", path, strerror(errno));
			continue;
		}
		snprintf(path, sizeof(path), "/proc/self/%s", name);
		if (readlink(path, ours, sizeof(ours) - 1) < 0 || strcmp(its, ours) == 0) {
			differ(reading, "it shares the host's %s namespace", names[i]);
		}
	}
}

/* A process with a device may have the device's group as a second line. */
static bool may_have_group(const struct jail *jail)
{
	for (size_t i = 0; i < jail->bind_count; i++) {
		if (jail->binds[i].device) {
			return true;
		}
	}
	return false;
}

static void compare_id_map(struct reading *reading, const char *name, unsigned outside, bool group)
{
	_cleanup_free_ char *text = read_proc(reading, name);
	char *state = NULL;
	unsigned wanted = ENTER_ID_INSIDE, lines = 0;

	for (char *line = text ? strtok_r(text, "\n", &state) : NULL; line;
	     line = strtok_r(NULL, "\n", &state)) {
		unsigned inside, mapped, count;

		if (sscanf(line, "%u %u %u", &inside, &mapped, &count) != 3 || inside != wanted ||
		    count != 1 || (lines == 0 && mapped != outside)) {
			differ(reading, "its %s has the line %s, not %u %u 1", name, line, wanted,
			       outside);
		}
		wanted = ENTER_DEVICE_GROUP_INSIDE;
		lines++;
	}
	if (text && lines != 1 && !(group && lines == 2)) {
		differ(reading, "its %s has %u lines", name, lines);
	}
}

/* Undoes the octal escapes of mountinfo (proc(5)), in place. */
static void unescape(char *text)
{
	char *out = text;

	for (const char *in = text; *in;) {
		if (in[0] == '\\' && in[1] >= '0' && in[1] <= '3' && in[2] >= '0' && in[2] <= '7' &&
		    in[3] >= '0' && in[3] <= '7') {
			*out++ = (char)((in[1] - '0') * 64 + (in[2] - '0') * 8 + (in[3] - '0'));
			in += 4;
		} else {
			*out++ = *in++;
		}
	}
	*out = '\0';
}

static bool has_option(const char *options, const char *option)
{
	size_t length = strlen(option);

	for (const char *at = options; *at;) {
		size_t span = strcspn(at, ",");

		if (span == length && strncmp(at, option, length) == 0) {
			return true;
		}
		at += span;
		at += *at == ',';
	}
	return false;
}

static void require_options(struct reading *reading, const char *point, const char *options,
			    const char *const *wanted)
{
	for (; *wanted; wanted++) {
		if (!has_option(options, *wanted)) {
			differ(reading, "%s is not mounted %s", point, *wanted);
		}
	}
}

static const struct jail_bind *find_bind(const struct jail *jail, const char *inside, bool *seen)
{
	for (size_t i = 0; i < jail->bind_count; i++) {
		if (strcmp(jail->binds[i].inside_path, inside) == 0) {
			seen[i] = true;
			return &jail->binds[i];
		}
	}
	return NULL;
}

static void compare_mount(struct reading *reading, char *line, bool *seen, bool *seen_root)
{
	static const char *const root_options[] = {"ro", "nosuid", "nodev", "noexec", NULL};
	static const char *const file_options[] = {"ro", "nosuid", "nodev", NULL};
	static const char *const device_options[] = {"ro", "nosuid", "noexec", NULL};
	const char *type = strstr(line, " - ");
	bool is_tmpfs = type && strncmp(type, " - tmpfs ", 9) == 0;
	const struct jail_bind *bind;
	char *state = NULL, *point = NULL, *options = NULL;

	/* "id parent device root point options ..." */
	for (int i = 0; i < 6; i++) {
		char *field = strtok_r(i ? NULL : line, " ", &state);

		point = i == 4 ? field : point;
		options = i == 5 ? field : options;
	}
	if (!point || !options) {
		differ(reading, "a mount cannot be understood");
		return;
	}
	unescape(point);
	if (strcmp(point, "/") == 0) {
		if (!is_tmpfs || *seen_root) {
			differ(reading, "its root is not one tmpfs");
		}
		*seen_root = true;
		require_options(reading, point, options, root_options);
		return;
	}
	bind = find_bind(reading->jail, point, seen);
	if (!bind) {
		differ(reading, "%s is mounted and not described", point);
		return;
	}
	require_options(reading, point, options, bind->device ? device_options : file_options);
}

static void compare_mounts(struct reading *reading)
{
	_cleanup_free_ char *text = read_proc(reading, "mountinfo");
	bool seen[JAIL_BINDS_MAX] = {false}, seen_root = false;
	char *state = NULL;

	if (!text) {
		return;
	}
	for (char *line = strtok_r(text, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
		compare_mount(reading, line, seen, &seen_root);
	}
	if (!seen_root) {
		differ(reading, "its root cannot be seen");
	}
	for (size_t i = 0; i < reading->jail->bind_count; i++) {
		if (!seen[i]) {
			differ(reading, "%s is not mounted", reading->jail->binds[i].inside_path);
		}
	}
}

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Is the open file one that the description gives it: /dev/null, a bound file, a listed one? */
static bool is_described(const struct reading *reading, const struct stat *status)
{
	const struct jail *jail = reading->jail;
	struct stat other;

	if (S_ISCHR(status->st_mode) && status->st_rdev == makedev(1, 3)) {
		return true;
	}
	for (size_t i = 0; i < reading->process->file_count; i++) {
		if (status->st_dev == reading->process->files[i].device &&
		    status->st_ino == reading->process->files[i].inode) {
			return true;
		}
	}
	for (size_t i = 0; i < jail->bind_count; i++) {
		if (stat(jail->binds[i].host_path, &other) == 0 && same_file(status, &other)) {
			return true;
		}
	}
	return false;
}

/*
 * The program's own event descriptors have no name (anon_inode); it may duplicate those that it was
 * given. With notifications, jail_answer_open may have given it one regular file more.
 */
static void compare_fds(struct reading *reading)
{
	struct stat answered = {0}, status;
	bool have_answered = false;
	char path[PATH_MAX], target[PATH_MAX];
	struct dirent *entry;
	DIR *directory;

	proc_path(reading, "fd", path, sizeof(path));
	directory = opendir(path);
	if (!directory) {
		differ(reading, "%s cannot be read: %s", path, strerror(errno));
		return;
	}
	while ((entry = readdir(directory))) {
		ssize_t length =
			readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1);

		if (entry->d_name[0] == '.' || length < 0) {
			continue;
		}
		target[length] = '\0';
		if (strncmp(target, "anon_inode:", strlen("anon_inode:")) == 0 ||
		    fstatat(dirfd(directory), entry->d_name, &status, 0) < 0 ||
		    is_described(reading, &status)) {
			continue;
		}
		if (reading->jail->notify && S_ISREG(status.st_mode) &&
		    (!have_answered || same_file(&answered, &status))) {
			answered = status;
			have_answered = true;
			continue;
		}
		differ(reading, "it holds descriptor %s: %s", entry->d_name, target);
	}
	closedir(directory);
}

static void compare_cgroups(struct reading *reading)
{
	_cleanup_free_ char *text = NULL;

	if (!reading->process->cgroups[0] || reading->process->missing.cgroup) {
		return;
	}
	text = read_proc(reading, "cgroup");
	for (const char *path = reading->process->cgroups; text && *path;
	     path += strlen(path) + 1) {
		if (!strstr(text, strrchr(path, '/'))) {
			differ(reading, "it is not in its control group %s", path);
		}
	}
}

int jail_compare(const struct jail *jail, const struct jail_process *process, char **ret_text)
{
	struct reading reading = {.jail = jail, .process = process};
	char *text = NULL;
	size_t size = 0;
	bool failed;

	reading.out = open_memstream(&text, &size);
	if (!reading.out) {
		return -ENOMEM;
	}
	compare_status(&reading);
	compare_limits(&reading);
	compare_namespaces(&reading);
	compare_id_map(&reading, "uid_map", jail->host_uid, false);
	compare_id_map(&reading, "gid_map", jail->host_gid, may_have_group(jail));
	compare_mounts(&reading);
	compare_fds(&reading);
	compare_cgroups(&reading);
	failed = ferror(reading.out) != 0;
	if (fclose(reading.out) != 0 || failed) {
		free(text);
		return -ENOMEM;
	}
	*ret_text = text;
	return reading.count;
}
