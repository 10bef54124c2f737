/*
 * Whether this host has what box needs: one check after the other, each with what would mend it. A
 * check only looks; what --fix does is at the end of this file.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/io.h"
#include "base/program.h"
#include "base/text.h"
#include "cli/cli.h"
#include "client/state.h"
#include "engine/engine.h"
#include "engine/kernel.h"
#include "jail/jail.h"
#include "json/json.h"
#include "store/ids.h"
#include "store/subids.h"

#define QEMU "/usr/bin/qemu-system-x86_64"
/* Below this a Debian image and its snapshot do not fit. */
#define DISK_LOW_BYTES ((uint64_t)2 << 30)
/* Two of the smallest useful machines. */
#define MEMORY_LOW_BYTES ((uint64_t)512 << 20)

enum check_state {
	CHECK_OK,
	CHECK_WARNING,
	CHECK_FAILED,
};

struct check {
	enum check_state state;
	char text[512];
	char mend[512];
};

static void __attribute__((format(printf, 3, 4)))
report(struct check *check, enum check_state state, const char *format, ...)
{
	va_list args;

	check->state = state;
	va_start(args, format);
	vsnprintf(check->text, sizeof(check->text), format, args);
	va_end(args);
}

static void mend(struct check *check, const char *text)
{
	snprintf(check->mend, sizeof(check->mend), "%s", text);
}

static void report_err(struct check *check, enum check_state state, const struct err *err)
{
	report(check, state, "%s", err->text);
	mend(check, err->mend);
}

static void check_home(const struct store *store, const struct err *err, struct check *check)
{
	if (store->home) {
		report(check, CHECK_OK, "%s", store->home);
		return;
	}
	report_err(check, strcmp(err->code, "no-home") == 0 ? CHECK_WARNING : CHECK_FAILED, err);
}

/* The first line of what a program prints for --version; false when it cannot be run. */
static bool first_line(const char *program, char *ret_line, size_t size)
{
	int ends[2], status;
	ssize_t got;
	pid_t pid;

	if (access(program, X_OK) < 0 || pipe2(ends, O_CLOEXEC) < 0) {
		return false;
	}
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDOUT_FILENO);
		execl(program, program, "--version", (char *)NULL);
		_exit(EXIT_NOT_FOUND);
	}
	close(ends[1]);
	got = pid > 0 ? read_full(ends[0], ret_line, size - 1) : -1;
	close(ends[0]);
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0 || got <= 0) {
		return false;
	}
	ret_line[got] = '\0';
	ret_line[strcspn(ret_line, "\n")] = '\0';
	return true;
}

static void check_qemu(struct check *check)
{
	const char *missing = engine_missing_part();
	char line[2048];

	if (!missing && first_line(QEMU, line, sizeof(line))) {
		report(check, CHECK_OK, "%.200s", line);
		return;
	}
	report(check, CHECK_FAILED, "%s is missing or cannot be used", missing ? missing : QEMU);
	mend(check, "sudo apt-get install --reinstall qemu-system-x86 qemu-system-data seabios");
}

static void check_kernel(struct check *check)
{
	struct kernel_paths paths;
	struct err err = {0};
	char version[256];

	if (kernel_find(&paths, &err) < 0 ||
	    kernel_version(paths.kernel, version, sizeof(version), &err) < 0) {
		report_err(check, CHECK_FAILED, &err);
		return;
	}
	version[strcspn(version, " ")] = '\0';
	report(check, CHECK_OK, "%s (%.300s)", version, paths.kernel);
}

static void check_programs(struct check *check)
{
	static const char *const names[] = {"box-keeper", "box-image", "box-copy", "box-guest",
					    "tiny.tar"};
	char path[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (program_path(names[i], path, sizeof(path)) < 0 || access(path, R_OK) < 0) {
			report(check, CHECK_FAILED, "%s is missing", names[i]);
			mend(check, "run `make install` again");
			return;
		}
	}
	*strrchr(path, '/') = '\0';
	report(check, CHECK_OK, "complete in %.400s", path);
}

static void check_kvm(struct check *check)
{
	struct err err = {0};

	if (engine_probe_kvm(&err) > 0) {
		report(check, CHECK_OK, "/dev/kvm runs guest code at full speed");
		return;
	}
	report_err(check, CHECK_WARNING, &err);
	if (!check->mend[0]) {
		mend(check, "box works all the same, in software emulation, only slower");
	}
}

static void check_userns(struct check *check)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		_exit(unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET) < 0);
	}
	if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0) {
		report(check, CHECK_OK, "can be made");
		return;
	}
	report(check, CHECK_FAILED, "cannot be made: the jail of the monitor needs them");
	mend(check,
	     "sudo sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000");
}

/* What the jail does with a system call: kill its caller, or ask the keeper. */
static void check_seccomp(struct check *check)
{
	static const uint32_t actions[] = {SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_USER_NOTIF};

	for (size_t i = 0; i < ARRAY_SIZE(actions); i++) {
		if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &actions[i]) < 0) {
			report(check, CHECK_FAILED,
			       "this kernel cannot confine system calls as the jail needs it: %s",
			       strerror(errno));
			mend(check, "boot Linux 5.10 or later with CONFIG_SECCOMP_FILTER=y");
			return;
		}
	}
	report(check, CHECK_OK, "filters and answered calls can be had");
}

/* What the default, `isolation: strict`, gives its sandboxes, and a Debian base is unpacked with.
 */
static void check_subids(struct store *store, struct check *check)
{
	size_t total = 0, taken = 0;
	struct subids ids;
	struct err err = {0};
	char user[256];
	int rc = subids_check_helpers(&err);

	if (rc < 0) {
		/* Root maps IDs without help, but mmdebstrap does not. */
		report_err(check, geteuid() == 0 ? CHECK_WARNING : CHECK_FAILED, &err);
		return;
	}
	rc = subids_read(&ids, &err);
	if (rc == 0) {
		rc = store_ids_count(store->home ? store : NULL, &total, &taken, &err);
	}
	if (rc < 0) {
		report_err(check, CHECK_FAILED, &err);
		return;
	}
	subids_user_name(user, sizeof(user));
	report(check, CHECK_OK, "%zu slots for sandboxes of %s, %zu of them taken, %zu free", total,
	       user, taken, total > taken ? total - taken : 0);
	if (total <= taken) {
		report(check, CHECK_FAILED,
		       total > 0
			       ? "all %zu slots for sandboxes of %s are taken"
			       : "%zu slots for sandboxes of %s: only `isolation: standard` can be "
				 "had",
		       total, user);
	} else if (!ids.enough && geteuid() != 0) {
		report(check, CHECK_WARNING,
		       "%zu slots for sandboxes of %s, but fewer than %u IDs: Debian bases cannot "
		       "be built",
		       total, user, SUBIDS_NEEDED);
	}
	subids_usermod(&ids, check->mend, sizeof(check->mend));
}

static void check_mmdebstrap(struct check *check)
{
	char line[2048];

	if (first_line("/usr/bin/mmdebstrap", line, sizeof(line))) {
		report(check, CHECK_OK, "%.200s", line);
		return;
	}
	report(check, CHECK_WARNING, "is missing; Debian bases cannot be built");
	mend(check, "sudo apt-get install mmdebstrap uidmap");
}

static void check_cgroups(struct check *check)
{
	char text[PATH_MAX];
	enum jail_groups found = jail_try_cgroups(text);

	if (found != JAIL_GROUPS_NONE) {
		report(check, CHECK_OK, "%.400s can be used%s", text,
		       found == JAIL_GROUPS_OF_SYSTEMD ? ", by scopes of your systemd" : "");
		return;
	}
	report(check, CHECK_WARNING,
	       "none can be had (%.200s); a machine and its box-net have limits of processes alone",
	       text);
	if (geteuid() == 0) {
		return;
	}
	if (jail_has_user_manager()) {
		mend(check, "run box below `systemd-run --user --scope -p Delegate=yes`");
	} else {
		mend(check, "log in as yourself (by ssh, not by su) on a host with systemd, "
			    "libpam-systemd and dbus-user-session");
	}
}

static void check_landlock(struct check *check)
{
	/* With this flag the call only tells the version, see landlock_create_ruleset(2). */
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

	if (abi > 0) {
		report(check, CHECK_OK, "version %ld", abi);
		return;
	}
	report(check, CHECK_WARNING,
	       "this kernel has none; the jails of a machine and its box-net go without");
	mend(check, "boot the kernel with lsm=landlock,... to have it");
}

static void check_memory(struct check *check)
{
	_cleanup_free_ char *text = NULL;
	unsigned long long available_kib = 0;
	char size[TEXT_BYTES_MAX];
	const char *line;

	if (read_file_at(AT_FDCWD, "/proc/meminfo", 1 << 16, &text, NULL) == 0 &&
	    (line = strstr(text, "MemAvailable:"))) {
		available_kib = strtoull(line + strlen("MemAvailable:"), NULL, 10);
	}
	text_format_bytes(available_kib * 1024, size, sizeof(size));
	if (available_kib * 1024 < MEMORY_LOW_BYTES) {
		report(check, CHECK_WARNING, "only %s are free", size);
		mend(check, "end other programs, or make ram_mib smaller");
		return;
	}
	report(check, CHECK_OK, "%s are free", size);
}

static void check_disk(const struct store *store, struct check *check)
{
	struct statvfs status;
	char size[TEXT_BYTES_MAX];
	uint64_t bytes;

	if (!store->home || fstatvfs(store->home_fd, &status) < 0) {
		report(check, CHECK_WARNING, "unknown before BOX_HOME is there");
		mend(check, "box doctor --fix");
		return;
	}
	bytes = (uint64_t)status.f_bavail * status.f_frsize;
	text_format_bytes(bytes, size, sizeof(size));
	if (bytes < DISK_LOW_BYTES) {
		report(check, CHECK_WARNING, "only %s are free for BOX_HOME", size);
		mend(check, "free some, or set BOX_HOME to a directory on another disk");
		return;
	}
	report(check, CHECK_OK, "%s are free for BOX_HOME", size);
}

/* Directories of builds that nobody works in any more. */
static size_t count_stages(int sandbox_fd)
{
	_cleanup_close_ int lock_fd = store_lock_build(sandbox_fd, false, NULL);
	int fd = openat(sandbox_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *directory = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	size_t count = 0;

	if (!directory) {
		close_fd(&fd);
		return 0;
	}
	while (lock_fd >= 0 && (entry = readdir(directory))) {
		count += strncmp(entry->d_name, "build-", 6) == 0;
	}
	closedir(directory);
	return count;
}

static void check_leftovers(struct store *store, struct check *check)
{
	_cleanup_free_ char **names = NULL;
	size_t count = 0, found = 0, stale = 0, things = 0, slots = 0;
	size_t groups = jail_count_leftover_cgroups();

	if (store->home && store_list(store, &names, &count, NULL) == 0) {
		for (size_t i = 0; i < count; i++) {
			_cleanup_close_ int fd = store_open_sandbox(store, names[i], NULL);

			found += fd >= 0 ? count_stages(fd) : 0;
			stale += fd >= 0 ? client_stale_sockets(store, names[i], fd, false) : 0;
		}
	}
	if (store->home) {
		things = store_count_leftovers(store);
		slots = store_ids_gone(store);
	}
	if (found + stale + things + slots + groups == 0) {
		report(check, CHECK_OK, "none");
		return;
	}
	report(check, CHECK_WARNING,
	       "%zu unfinished builds, %zu sockets and %zu control groups of machines that are "
	       "gone, %zu half made or half removed things, %zu slots of IDs without a sandbox",
	       found, stale, groups, things, slots);
	mend(check, "box doctor --fix");
}

static void fix(struct store *store)
{
	_cleanup_free_ char **names = NULL;
	size_t count = 0;

	if (!store->home) {
		return;
	}
	if (store_list(store, &names, &count, NULL) == 0) {
		for (size_t i = 0; i < count; i++) {
			_cleanup_close_ int fd = store_open_sandbox(store, names[i], NULL);

			if (fd >= 0) {
				client_build_sweep(fd);
				client_stale_sockets(store, names[i], fd, true);
			}
		}
	}
	store_sweep(store);
	jail_sweep_cgroups();
}

enum {
	DOCTOR_HOME,
	DOCTOR_PROGRAMS,
	DOCTOR_QEMU,
	DOCTOR_KERNEL,
	DOCTOR_KVM,
	DOCTOR_USERNS,
	DOCTOR_SECCOMP,
	DOCTOR_SUBIDS,
	DOCTOR_MMDEBSTRAP,
	DOCTOR_CGROUPS,
	DOCTOR_LANDLOCK,
	DOCTOR_MEMORY,
	DOCTOR_DISK,
	DOCTOR_LEFTOVERS,
	DOCTOR_COUNT,
};

static const char *const check_names[DOCTOR_COUNT] = {
	[DOCTOR_HOME] = "home",
	[DOCTOR_PROGRAMS] = "programs",
	[DOCTOR_QEMU] = "qemu",
	[DOCTOR_KERNEL] = "guest kernel",
	[DOCTOR_KVM] = "kvm",
	[DOCTOR_USERNS] = "user namespaces",
	[DOCTOR_SECCOMP] = "seccomp",
	[DOCTOR_SUBIDS] = "subordinate IDs",
	[DOCTOR_MMDEBSTRAP] = "mmdebstrap",
	[DOCTOR_CGROUPS] = "cgroups",
	[DOCTOR_LANDLOCK] = "landlock",
	[DOCTOR_MEMORY] = "memory",
	[DOCTOR_DISK] = "disk",
	[DOCTOR_LEFTOVERS] = "leftovers",
};

static const char *const state_names[] = {
	[CHECK_OK] = "ok",
	[CHECK_WARNING] = "warning",
	[CHECK_FAILED] = "failed",
};

/* The checks that need nothing but the host. */
static void (*const host_checks[DOCTOR_COUNT])(struct check *check) = {
	[DOCTOR_PROGRAMS] = check_programs,	[DOCTOR_QEMU] = check_qemu,
	[DOCTOR_KERNEL] = check_kernel,		[DOCTOR_KVM] = check_kvm,
	[DOCTOR_USERNS] = check_userns,		[DOCTOR_SECCOMP] = check_seccomp,
	[DOCTOR_MMDEBSTRAP] = check_mmdebstrap, [DOCTOR_CGROUPS] = check_cgroups,
	[DOCTOR_LANDLOCK] = check_landlock,	[DOCTOR_MEMORY] = check_memory,
};

static void print_checks(const struct check *checks)
{
	static const char *const colors[] = {"\033[32m", "\033[33m", "\033[31m"};
	bool color = cli_has_color(stdout);

	for (size_t i = 0; i < DOCTOR_COUNT; i++) {
		const struct check *check = &checks[i];

		printf("%s%-7s%s  %-16s %s\n", color ? colors[check->state] : "",
		       state_names[check->state], color ? "\033[0m" : "", check_names[i],
		       check->text);
		if (check->state != CHECK_OK && check->mend[0]) {
			printf("%-7s  %-16s mend: %s\n", "", "", check->mend);
		}
	}
}

static struct json *check_to_json(const char *name, const struct check *check)
{
	struct json *object = json_new_object();

	if (json_set_string(object, "name", name) < 0 ||
	    json_set_string(object, "state", state_names[check->state]) < 0 ||
	    json_set_string(object, "text", check->text) < 0 ||
	    json_set_string(object, "mend", check->state == CHECK_OK ? "" : check->mend) < 0) {
		json_free(object);
		return NULL;
	}
	return object;
}

static int print_checks_json(const struct check *checks, bool failed, struct err *err)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	struct json *list = json_new_array();
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < DOCTOR_COUNT; i++) {
		rc = json_append_child(list, check_to_json(check_names[i], &checks[i]));
	}
	if (rc < 0) {
		json_free(list);
		return err_context(err, rc, "JSON");
	}
	rc = json_set_child(object, "checks", list);
	if (rc == 0) {
		rc = json_set_boolean(object, "ok", !failed);
	}
	if (rc == 0) {
		rc = json_set_string(object, "version", BOX_VERSION);
	}
	return rc < 0 ? err_context(err, rc, "JSON") : cli_print_json(object, err);
}

int cli_doctor(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	struct check checks[DOCTOR_COUNT] = {0};
	struct err home_err = {0};
	bool failed = false;
	int rc;

	/* A home that is missing is one of the answers. */
	store_open(cli_has(args, "fix"), &store, &home_err);
	if (cli_has(args, "fix")) {
		fix(&store);
	}
	for (size_t i = 0; i < DOCTOR_COUNT; i++) {
		if (host_checks[i]) {
			host_checks[i](&checks[i]);
		}
	}
	check_home(&store, &home_err, &checks[DOCTOR_HOME]);
	check_disk(&store, &checks[DOCTOR_DISK]);
	check_subids(&store, &checks[DOCTOR_SUBIDS]);
	check_leftovers(&store, &checks[DOCTOR_LEFTOVERS]);
	for (size_t i = 0; i < DOCTOR_COUNT; i++) {
		failed = failed || checks[i].state == CHECK_FAILED;
	}
	if (!cli_has(args, "json")) {
		print_checks(checks);
		return failed ? EXIT_NEGATIVE : EXIT_OK;
	}
	rc = print_checks_json(checks, failed, err);
	return rc < 0 ? rc : failed ? EXIT_NEGATIVE : EXIT_OK;
}
