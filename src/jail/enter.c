/*
 * The child's side of jail_spawn.
 *
 * The child is a copy of its parent, possibly of one with threads, so nothing here allocates,
 * takes a lock or uses the C library's own idea of threads. It starts with every capability in
 * a new user namespace in which nothing but ID 1000 exists, uses them to build its root, and gives
 * them up. What it opens by host path is opened before it changes its ID, as the caller.
 *
 * The order matters. PR_SET_PDEATHSIG comes after the IDs, whose change clears it. Descriptors are
 * placed after everything that opens one. Landlock and seccomp come last, because they would forbid
 * the steps before them; seccomp is the very last, and the policies allow what is left to do.
 */
#include "jail/enter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <string.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/mutant.h"
#include "sys/caps.h"
#include "sys/filter.h"
#include "sys/landlock.h"
#include "sys/mounts.h"
#include "sys/namespace.h"
#include "sys/process.h"

/* The root holds names only, no data: a page for each is never needed, 64 KiB are plenty. */
#define ROOT_SIZE "65536"
/* A file and its directories for each bind: 160 files, and paths are rarely seven deep. */
#define ROOT_INODES "1024"
/* The root's mount itself needs neither programs nor devices: those are mounts of their own. */
#define ROOT_ATTRIBUTES (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)

struct entry {
	const struct enter_plan *plan;
	const struct jail *jail;
	int report_fd;
	/* Detached mounts of the binds, then the root. */
	int trees[JAIL_BINDS_MAX];
	int root_fd;
	/* Of the jail's directory, or -EBADF. */
	int tree_fd;
	/* Number of the bind that is worked on, or -1. */
	int bind;
};

/* The parent writes the ID maps, then sends one byte. */
static int wait_for_parent(struct entry *entry)
{
	char byte;
	ssize_t got = recv(entry->report_fd, &byte, sizeof(byte), 0);

	if (got < 0) {
		return -errno;
	}
	return got == 1 ? 0 : -ECANCELED;
}

static int tell(struct entry *entry, uint32_t kind, int error, int fd)
{
	struct enter_report report = {.kind = kind, .error = error, .bind = -1};

	return sys_send_fd(entry->report_fd, &report, sizeof(report), fd);
}

static int join_cgroups(struct entry *entry)
{
	int rc = MUTANT("cgroup") ? 0 : sys_cgroup_move_self(&entry->plan->cgroups);

	return rc < 0 ? tell(entry, ENTER_NO_CGROUP, rc, -EBADF) : 0;
}

static int leave_cgroup(struct entry *entry)
{
	(void)entry;
	return !MUTANT("namespace-cgroup") && unshare(CLONE_NEWCGROUP) < 0 ? -errno : 0;
}

static int open_binds(struct entry *entry)
{
	for (size_t i = 0; i < entry->jail->bind_count; i++) {
		const struct jail_bind *bind = &entry->jail->binds[i];
		uint64_t attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID;
		struct stat status;
		int rc;

		entry->bind = (int)i;
		attributes |= bind->device ? MOUNT_ATTR_NOEXEC : MOUNT_ATTR_NODEV;
		rc = sys_mount_clone(bind->host_path, attributes, &entry->trees[i]);
		if (rc < 0) {
			return rc;
		}
		if (fstat(entry->trees[i], &status) < 0) {
			return -errno;
		}
		/* A directory would bring in whatever lies or comes to lie in it. */
		if (bind->device ? !S_ISCHR(status.st_mode) : !S_ISREG(status.st_mode)) {
			return -EMEDIUMTYPE;
		}
	}
	entry->bind = -1;
	/* The keeper's others close by themselves when the program starts. */
	return MUTANT("descriptor") && open(getenv("BOX_HOME"), O_RDONLY | O_DIRECTORY) < 0 ? -errno
											    : 0;
}

/* By its path, since a mount of another namespace cannot be cloned; so it is looked at again. */
static int open_directory(struct entry *entry)
{
	uint64_t attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
	struct stat wanted, found;
	int rc;

	if (!entry->jail->tree.wanted) {
		return 0;
	}
	rc = sys_mount_clone_tree(entry->plan->tree_path, attributes, &entry->tree_fd);
	if (rc < 0) {
		return rc;
	}
	if (fstat(entry->jail->tree.fd, &wanted) < 0 || fstat(entry->tree_fd, &found) < 0) {
		return -errno;
	}
	return wanted.st_dev == found.st_dev && wanted.st_ino == found.st_ino ? 0 : -ESTALE;
}

static int take_ids(struct entry *entry)
{
	gid_t group = ENTER_DEVICE_GROUP_INSIDE;
	int rc = 0;

	if (entry->plan->replace_groups) {
		rc = sys_set_groups(&group, entry->plan->device_group ? 1 : 0);
	}
	if (rc == 0) {
		rc = sys_set_ids(ENTER_ID_INSIDE, ENTER_ID_INSIDE);
	}
	/* Until the program starts, this is a copy of the parent's memory. */
	if (rc == 0 && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) {
		rc = -errno;
	}
	return rc;
}

static int mount_root(struct entry *entry)
{
	int rc = sys_mount_make_private();

	if (rc == 0) {
		rc = sys_mount_tmpfs(ROOT_SIZE, ROOT_INODES, ROOT_ATTRIBUTES, &entry->root_fd);
	}
	/* On top of the old root: no directory of the host is needed as a mount point. */
	if (rc == 0) {
		rc = sys_mount_attach(entry->root_fd, AT_FDCWD, "/");
	}
	return rc;
}

/* Makes the directories above path and an empty file at it. path has no leading slash. */
static int make_place(int root_fd, const char *path)
{
	char part[PATH_MAX];
	int fd;

	for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		size_t length = (size_t)(slash - path);

		if (length >= sizeof(part)) {
			return -ENAMETOOLONG;
		}
		memcpy(part, path, length);
		part[length] = '\0';
		if (mkdirat(root_fd, part, 0755) < 0 && errno != EEXIST) {
			return -errno;
		}
	}
	fd = openat(root_fd, path, O_RDONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
	if (fd < 0) {
		return -errno;
	}
	close(fd);
	return 0;
}

static int attach_binds(struct entry *entry)
{
	umask(022);
	for (size_t i = 0; i < entry->jail->bind_count; i++) {
		const char *path = entry->jail->binds[i].inside_path + 1;
		int rc;

		entry->bind = (int)i;
		rc = make_place(entry->root_fd, path);
		if (rc == 0) {
			rc = sys_mount_attach(entry->trees[i], entry->root_fd, path);
		}
		if (rc < 0) {
			return rc;
		}
	}
	entry->bind = -1;
	umask(077);
	return 0;
}

static int change_root(struct entry *entry)
{
	return sys_mount_pivot(entry->root_fd);
}

static int seal_root(struct entry *entry)
{
	(void)entry;
	return sys_mount_seal_root();
}

static int set_host_name(struct entry *entry)
{
	const char *name = entry->jail->name;

	return !MUTANT("namespace-uts") && sethostname(name, strlen(name)) < 0 ? -errno : 0;
}

static int start_session(struct entry *entry)
{
	(void)entry;
	return setsid() < 0 ? -errno : 0;
}

static int die_with_parent(struct entry *entry)
{
	if (!MUTANT("outlive") && prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0) {
		return -errno;
	}
	/* The parent may have ended before that. */
	return sys_pidfd_ended(entry->plan->parent_pidfd) ? -ECANCELED : 0;
}

size_t jail_limits(const struct jail *jail, struct jail_limit *ret_limits)
{
	const struct jail_limit wanted[JAIL_LIMITS] = {
		{"Max core file size", RLIMIT_CORE, 0, true},
		{"Max open files", RLIMIT_NOFILE,
		 jail->open_files ? jail->open_files : ENTER_PROGRAM_FD, true},
		{"Max address space", RLIMIT_AS, jail->address_space_bytes, false},
		{"Max file size", RLIMIT_FSIZE, jail->file_size_bytes, false},
		{"Max processes", RLIMIT_NPROC, jail->processes, false},
	};
	size_t count = 0;

	for (size_t i = 0; i < JAIL_LIMITS; i++) {
		if (wanted[i].always || wanted[i].value) {
			ret_limits[count++] = wanted[i];
		}
	}
	return count;
}

/* Room for the numbers from ENTER_STAGE_FD on; the program gets its own limit later. */
static int raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0) {
		return -errno;
	}
	if (limit.rlim_max <= ENTER_PROGRAM_FD) {
		return -EMFILE;
	}
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? -errno : 0;
}

static int stage(int fd)
{
	int staged = fcntl(fd, F_DUPFD_CLOEXEC, ENTER_STAGE_FD);

	if (staged < 0) {
		return -errno;
	}
	return staged < ENTER_REPORT_FD ? staged : -EMFILE;
}

/*
 * Puts every listed descriptor at its number and closes all others. First all are moved up, out of
 * each other's way, then everything below is closed, then they come down.
 */
static int place_descriptors(struct entry *entry)
{
	const struct jail *jail = entry->jail;
	int staged[JAIL_FDS_MAX], null_fd, report_fd, program_fd, tree_fd = -EBADF;
	int rc = raise_descriptor_limit();

	if (rc < 0) {
		return rc;
	}
	for (size_t i = 0; i < jail->fd_count; i++) {
		staged[i] = stage(jail->fds[i].fd);
		if (staged[i] < 0) {
			return staged[i];
		}
	}
	if (entry->tree_fd >= 0) {
		tree_fd = stage(entry->tree_fd);
		if (tree_fd < 0) {
			return tree_fd;
		}
	}
	null_fd = stage(entry->plan->null_fd);
	report_fd = stage(entry->report_fd);
	program_fd = open(jail->program, O_PATH | O_CLOEXEC);
	if (null_fd < 0 || report_fd < 0 || program_fd < 0) {
		return null_fd < 0 ? null_fd : (report_fd < 0 ? report_fd : -errno);
	}
	if (dup3(program_fd, ENTER_PROGRAM_FD, O_CLOEXEC) < 0 ||
	    dup3(report_fd, ENTER_REPORT_FD, O_CLOEXEC) < 0) {
		return -errno;
	}
	entry->report_fd = ENTER_REPORT_FD;
	rc = MUTANT("descriptor") ? 0 : sys_close_range(0, ENTER_STAGE_FD - 1);
	for (int number = 0; number <= 2 && rc == 0; number++) {
		rc = dup2(null_fd, number) < 0 ? -errno : 0;
	}
	for (size_t i = 0; i < jail->fd_count && rc == 0; i++) {
		rc = dup2(staged[i], jail->fds[i].number) < 0 ? -errno : 0;
	}
	if (rc == 0 && tree_fd >= 0) {
		rc = dup2(tree_fd, jail->tree.number) < 0 ? -errno : 0;
	}
	if (rc == 0) {
		rc = sys_close_range(ENTER_STAGE_FD, ENTER_REPORT_FD - 1);
	}
	return rc == 0 ? sys_close_range(ENTER_PROGRAM_FD + 1, ~0U) : rc;
}

static int set_limits(struct entry *entry)
{
	struct jail_limit limits[JAIL_LIMITS];
	size_t count = MUTANT("limits") ? 0 : jail_limits(entry->jail, limits);
	int rc = 0;

	for (size_t i = 0; i < count && rc == 0; i++) {
		rc = sys_limit(limits[i].resource, limits[i].value);
	}
	return rc;
}

static int drop_capabilities(struct entry *entry)
{
	(void)entry;
	return MUTANT("capabilities") ? 0 : sys_caps_drop_all();
}

static int forbid_privileges(struct entry *entry)
{
	(void)entry;
	return MUTANT("no-new-privs") ? 0 : sys_no_new_privs();
}

static int allow_path(int ruleset_fd, const char *path, bool device)
{
	_cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);

	return fd < 0 ? -errno : sys_landlock_allow(ruleset_fd, fd, device);
}

static int enter_landlock(struct entry *entry)
{
	_cleanup_close_ int ruleset_fd = -EBADF;
	int rc = sys_landlock_new(entry->jail->network, &ruleset_fd);

	if (rc == -ENOSYS || rc == -EOPNOTSUPP) {
		return tell(entry, ENTER_NO_LANDLOCK, rc, -EBADF);
	}
	if (rc == 0) {
		rc = allow_path(ruleset_fd, "/", false);
	}
	for (size_t i = 0; i < entry->jail->bind_count && rc == 0; i++) {
		if (entry->jail->binds[i].device) {
			rc = allow_path(ruleset_fd, entry->jail->binds[i].inside_path, true);
		}
	}
	if (rc == 0 && entry->jail->tree.wanted) {
		rc = sys_landlock_allow_tree(ruleset_fd, entry->jail->tree.number);
	}
	return rc == 0 ? sys_landlock_enter(ruleset_fd) : rc;
}

static int enter_seccomp(struct entry *entry)
{
	const struct jail_policy *policy = entry->jail->policy;
	int listener = -EBADF, rc;

	/* A monitor does not start without its notifications. */
	if (MUTANT("seccomp") && !entry->jail->notify) {
		return 0;
	}
	rc = sys_filter_load(policy->filter, policy->count, entry->jail->notify ? &listener : NULL);
	if (rc == 0 && listener >= 0) {
		/* Close-on-exec takes the child's own copy away. */
		rc = tell(entry, ENTER_LISTENER, 0, listener);
	}
	return rc;
}

static int execute(struct entry *entry)
{
	static char *const none[] = {NULL};
	/* box-net knows of a mutant by it alone. */
	bool tells = MUTANT("environment") || MUTANT("reserved") || MUTANT("later-looks") ||
		     MUTANT("labels") || MUTANT("server-name");
	char *const *environment = tells ? MUTANT_ENVIRONMENT : none;

	syscall(SYS_execveat, ENTER_PROGRAM_FD, "", entry->jail->argv, environment, AT_EMPTY_PATH);
	return -errno;
}

static int reset_signals(struct entry *entry)
{
	(void)entry;
	return sys_reset_signals();
}

static const struct {
	const char *name;
	int (*run)(struct entry *entry);
} steps[] = {
	{"reset the signals", reset_signals},
	{"wait for the parent", wait_for_parent},
	{"join its control groups", join_cgroups},
	{"make a cgroup namespace", leave_cgroup},
	{"open the bound files", open_binds},
	{"open its directory", open_directory},
	{"take its IDs", take_ids},
	{"mount an empty root", mount_root},
	{"bind the files", attach_binds},
	{"change the root", change_root},
	{"make the root read-only", seal_root},
	{"set the host name", set_host_name},
	{"start a session", start_session},
	{"die with the parent", die_with_parent},
	{"place the descriptors", place_descriptors},
	{"set the limits", set_limits},
	{"drop all capabilities", drop_capabilities},
	{"set no_new_privs", forbid_privileges},
	{"enter landlock", enter_landlock},
	{"enter seccomp", enter_seccomp},
	{"execute the program", execute},
};

_Noreturn void enter_jail(const struct enter_plan *plan)
{
	struct entry entry = {
		.plan = plan,
		.jail = plan->jail,
		.report_fd = plan->report_fd,
		.root_fd = -EBADF,
		.tree_fd = -EBADF,
		.bind = -1,
	};

	for (uint32_t step = 0; step < ARRAY_SIZE(steps); step++) {
		int rc = steps[step].run(&entry);

		if (rc < 0) {
			struct enter_report report = {
				.kind = ENTER_FAILED,
				.step = step,
				.error = rc,
				.bind = entry.bind,
			};

			/* The policies allow write(2); a send may be forbidden by now. */
			if (write(entry.report_fd, &report, sizeof(report)) < 0) {
				_exit(126);
			}
			_exit(127);
		}
	}
	_exit(0);
}

const char *enter_step_name(uint32_t step)
{
	return step < ARRAY_SIZE(steps) ? steps[step].name : "unknown step";
}
