/*
 * Reads a live process back from /proc and holds it against its description.
 *
 * What the kernel does not show there (landlock, securebits) is not compared. What may not be read
 * counts as a difference: a report never takes silence for agreement.
 */
#include "jail/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "jail/enter.h"
#include "sys/process.h"

/* A jail has at most 160 mounts of some 300 bytes; every other file of /proc is smaller. */
#define PROC_BYTES_MAX ((size_t)256 << 10)

/* Of /proc/PID/stat, where the environment begins. */
#define ENVIRONMENT_FIELD 50

/* A number or "max". */
#define LIMIT_BYTES_MAX ((size_t)64)

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

/* A process with a device may have the device's group besides its own. */
static bool may_have_group(const struct jail *jail)
{
	for (size_t i = 0; i < jail->bind_count; i++) {
		if (jail->binds[i].device) {
			return true;
		}
	}
	return false;
}

/* What can be gained again from the bounding set needs root, and no_new_privs forbids it. */
static void compare_privileges(struct reading *reading, const char *status, const char *held,
			       bool with_bounding)
{
	const struct {
		const char *key;
		const char *value;
	} fixed[] = {
		{"CapBnd:", "0000000000000000"},
		{"CapInh:", "0000000000000000"},
		{"CapPrm:", held},
		{"CapEff:", held},
		{"CapAmb:", "0000000000000000"},
		{"NoNewPrivs:", "1"},
		{"Seccomp:", "2"},
	};

	for (size_t i = with_bounding ? 0 : 1; i < ARRAY_SIZE(fixed); i++) {
		compare_status_line(reading, status, fixed[i].key, fixed[i].value);
	}
}

static void compare_status(struct reading *reading)
{
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
	if (!jail_keeps_groups(jail) && !may_have_group(jail)) {
		compare_status_line(reading, status, "Groups:", "");
	}
	compare_privileges(reading, status, "0000000000000000", true);
}

static void compare_limit(struct reading *reading, const char *text, const char *name,
			  uint64_t value)
{
	const char *line = strstr(text, name);
	char soft[32], hard[32];

	if (!line || sscanf(line + strlen(name), "%31s %31s", soft, hard) != 2) {
		differ(reading, "%s is missing in its limits", name);
		return;
	}
	/* Lower is fine: the caller's own hard limit may have been lower. */
	if (strcmp(soft, "unlimited") == 0 || strcmp(hard, "unlimited") == 0 ||
	    strtoull(soft, NULL, 10) > value || strtoull(hard, NULL, 10) > value) {
		differ(reading, "%s is %s (hard %s), not %llu", name, soft, hard,
		       (unsigned long long)value);
	}
}

static void compare_limits(struct reading *reading)
{
	struct jail_limit limits[JAIL_LIMITS];
	size_t count = jail_limits(reading->jail, limits);
	_cleanup_free_ char *text = read_proc(reading, "limits");

	for (size_t i = 0; text && i < count; i++) {
		compare_limit(reading, text, limits[i].name, limits[i].value);
	}
}

static void compare_namespaces(struct reading *reading)
{
	static const char *const names[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		char name[32], path[PATH_MAX], its[64] = "", ours[64] = "";
		bool shared;

		snprintf(name, sizeof(name), "ns/%s", names[i]);
		proc_path(reading, name, path, sizeof(path));
		if (readlink(path, its, sizeof(its) - 1) < 0) {
			differ(reading, "%s cannot be read: %s", path, strerror(errno));
			continue;
		}
		snprintf(path, sizeof(path), "/proc/self/%s", name);
		shared = reading->jail->network && strcmp(names[i], "net") == 0;
		if (readlink(path, ours, sizeof(ours) - 1) < 0 ||
		    (strcmp(its, ours) == 0) != shared) {
			differ(reading, "it %s the host's %s namespace",
			       shared ? "does not share" : "shares", names[i]);
		}
	}
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

/* Whether it is a connection, or on its way to be one, of a program that is there to make some. */
static bool is_connection(const struct jail *jail, int fd)
{
	int domain = AF_UNSPEC;
	socklen_t size = sizeof(domain);

	return jail->network && getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
	       (domain == AF_INET || domain == AF_INET6);
}

/*
 * The program's own event descriptors have no name (anon_inode); it may duplicate those that it was
 * given. With notifications, jail_answer may have given it one regular file more, which answered
 * then is.
 */
static void compare_fd(struct reading *reading, int number, int fd, struct stat *answered)
{
	char path[64], target[PATH_MAX];
	struct stat status;
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, target, sizeof(target) - 1);
	if (length < 0 || fstat(fd, &status) < 0) {
		differ(reading, "its descriptor %d cannot be looked at: %s", number,
		       strerror(errno));
		return;
	}
	target[length] = '\0';
	if (strncmp(target, "anon_inode:", strlen("anon_inode:")) == 0 ||
	    is_described(reading, &status) || is_connection(reading->jail, fd)) {
		return;
	}
	if (reading->jail->notify && S_ISREG(status.st_mode) &&
	    (answered->st_ino == 0 || same_file(answered, &status))) {
		*answered = status;
		return;
	}
	differ(reading, "it holds descriptor %d: %s", number, target);
}

/*
 * Each is copied for a look: /proc/PID/fd is closed to a normal user whose process has another ID.
 * The copies are closed at once, and no lock of box is one that a close gives back (fcntl(2)).
 */
static void compare_fds(struct reading *reading)
{
	struct stat answered = {0};

	if (reading->process->pidfd < 0) {
		differ(reading, "its descriptors cannot be read: there is no pidfd");
		return;
	}
	for (int number = 0; number <= ENTER_PROGRAM_FD; number++) {
		_cleanup_close_ int fd = sys_pidfd_copy_fd(reading->process->pidfd, number);

		if (fd >= 0) {
			compare_fd(reading, number, fd, &answered);
		} else if (fd != -EBADF) {
			differ(reading, "its descriptors cannot be read: %s", strerror(-fd));
			return;
		}
	}
}

/* Whether one of the files that a group of either version has holds the limit. */
static void compare_group_limit(struct reading *reading, const char *const *names, uint64_t wanted)
{
	_cleanup_free_ char *text = NULL;
	char path[PATH_MAX];

	for (const char *group = reading->process->cgroups; *group; group += strlen(group) + 1) {
		for (size_t i = 0; !text && names[i]; i++) {
			snprintf(path, sizeof(path), "%s/%s", group, names[i]);
			(void)read_file_at(AT_FDCWD, path, LIMIT_BYTES_MAX, &text, NULL);
		}
	}
	if (!text) {
		differ(reading, "its control groups have no %s", names[0]);
	} else if (strtoull(text, NULL, 10) != wanted) {
		differ(reading, "%s is %.*s and not %" PRIu64, path, (int)strcspn(text, "\n"), text,
		       wanted);
	}
}

static void compare_cgroups(struct reading *reading)
{
	static const char *const memory[] = {"memory.max", "memory.limit_in_bytes", NULL};
	static const char *const tasks[] = {"pids.max", NULL};
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
	if (reading->jail->cgroup_memory_bytes) {
		compare_group_limit(reading, memory, reading->jail->cgroup_memory_bytes);
	}
	if (reading->jail->cgroup_pids) {
		compare_group_limit(reading, tasks, reading->jail->cgroup_pids);
	}
}

/* Where it begins and ends is told (proc(5), /proc/PID/stat), also to a user of another ID. */
static void compare_environment(struct reading *reading)
{
	_cleanup_free_ char *text = read_proc(reading, "stat");
	const char *field = text ? strrchr(text, ')') : NULL;
	unsigned long long start, end;

	if (!text) {
		return;
	}
	/* Fields 50 and 51; the name, in brackets, is the second. */
	for (int i = 2; field && i < ENVIRONMENT_FIELD; i++) {
		field = strchr(field + 1, ' ');
	}
	if (!field || sscanf(field, "%llu %llu", &start, &end) != 2 || start == 0) {
		differ(reading, "its environment cannot be found");
	} else if (start != end) {
		differ(reading, "it has an environment of %llu bytes", end - start);
	}
}

static int begin(struct reading *reading, char **text, size_t *size)
{
	reading->out = open_memstream(text, size);
	return reading->out ? 0 : -ENOMEM;
}

/* Returns the number of differences, whose lines *ret_text then has, or -ENOMEM. */
static int finish(struct reading *reading, char **text, char **ret_text)
{
	bool failed = ferror(reading->out) != 0;

	if (fclose(reading->out) != 0 || failed) {
		free(*text);
		return -ENOMEM;
	}
	*ret_text = *text;
	return reading->count;
}

int jail_compare(const struct jail *jail, const struct jail_process *process, char **ret_text)
{
	struct reading reading = {.jail = jail, .process = process};
	char *text = NULL;
	size_t size = 0;
	int rc = begin(&reading, &text, &size);

	if (rc < 0) {
		return rc;
	}
	compare_status(&reading);
	compare_limits(&reading);
	compare_namespaces(&reading);
	compare_id_map(&reading, "uid_map", jail->host_uid, false);
	compare_id_map(&reading, "gid_map", jail->host_gid, may_have_group(jail));
	compare_mounts(&reading);
	compare_fds(&reading);
	compare_cgroups(&reading);
	compare_environment(&reading);
	return finish(&reading, &text, ret_text);
}

/*
 * A filter of somebody else, such as a container's, gives the same mode in /proc. Every list of box
 * answers an ioctl(2) that it does not know by itself, before the kernel looks at the descriptor.
 */
static bool list_answers(void)
{
	return ioctl(-1, _IO('b', 0)) < 0 && errno == ENOTTY;
}

int jail_compare_self(char **ret_text)
{
	const struct jail_process process = {.pid = getpid()};
	struct reading reading = {.process = &process};
	_cleanup_free_ char *status = NULL;
	_cleanup_free_ char *limits = NULL;
	char *text = NULL;
	size_t size = 0;
	int rc = begin(&reading, &text, &size);

	if (rc < 0) {
		return rc;
	}
	status = read_proc(&reading, "status");
	limits = read_proc(&reading, "limits");
	if (status) {
		bool root = geteuid() == 0;

		/* CAP_DAC_OVERRIDE is number 1. */
		compare_privileges(&reading, status, root ? "0000000000000002" : "0000000000000000",
				   root);
	}
	if (limits) {
		compare_limit(&reading, limits, "Max core file size", 0);
	}
	if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0) {
		differ(&reading, "other processes of its user may look into its memory");
	}
	if (!list_answers()) {
		differ(&reading, "its list of system calls is not in force");
	}
	return finish(&reading, &text, ret_text);
}
