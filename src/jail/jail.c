/*
 * Theory of operation.
 *
 * In: a struct jail, written by box itself, and descriptors that the caller opened. Out: a process
 * that holds those descriptors and can reach nothing else, or an error that names the step.
 *
 * The parent (this file) checks the description, makes control groups, clones the child into new
 * namespaces, writes the child's ID maps and lets it go on. A normal user may map no ID but the
 * user's own: others are mapped by newuidmap(1) and newgidmap(1). Nor may one in a login session
 * make a control group: systemd is asked for it (groups.c). The child (enter.c) takes the steps and
 * executes the program. Between them is a SOCK_SEQPACKET pair: one byte down, reports up. The
 * child's end is close-on-exec, so the end of the stream is the proof that the program was started
 * with every step behind it.
 *
 * There are no optional steps. What a host may lack (landlock, a control group) is recorded in
 * struct jail_missing; anything else that fails ends the child.
 *
 * What may never happen: a program that runs with part of its confinement; a process of box that
 * keeps the host's user or group 0; a child that outlives its parent.
 */
#include "jail/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/mutant.h"
#include "jail/enter.h"
#include "jail/groups.h"
#include "sys/cgroup.h"
#include "sys/filter.h"
#include "sys/namespace.h"
#include "sys/process.h"

/* The cgroup namespace is made by the child, once it has joined its groups. */
#define NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS)
/* A host name has at most 64 bytes, and this one also goes into messages. */
#define NAME_BYTES_MAX 63
/* Seven numbers. */
#define STATM_BYTES_MAX 256
/* When a process that was told to stop is looked at: its threads take microseconds, and the
 * processor on which we wait. After so many looks it is killed instead. */
#define QUICK_LOOKS 20
#define QUICK_LOOK_US 10
#define LOOK_US 1000
#define STOP_LOOKS 100

static int refuse(const struct jail *jail, struct err *err, const char *why, const char *what)
{
	return err_set(err, -EINVAL, "jail", "jail of %s: bad description: %s%s%s",
		       jail->name ? jail->name : "?", why, what ? " " : "", what ? what : "");
}

static bool is_plain_path(const char *path)
{
	if (!path || path[0] != '/' || strlen(path) >= PATH_MAX) {
		return false;
	}
	for (const char *part = path; *part;) {
		size_t length = strcspn(part + 1, "/");

		if (length == 0 || (length == 1 && part[1] == '.') ||
		    (length == 2 && part[1] == '.' && part[2] == '.')) {
			return false;
		}
		part += length + 1;
	}
	return true;
}

static int check_files(const struct jail *jail, struct err *err)
{
	bool found = false;

	if (jail->bind_count > JAIL_BINDS_MAX || jail->fd_count > JAIL_FDS_MAX) {
		return refuse(jail, err, "too many files", NULL);
	}
	for (size_t i = 0; i < jail->bind_count; i++) {
		const struct jail_bind *bind = &jail->binds[i];

		if (!bind->host_path || !is_plain_path(bind->inside_path)) {
			return refuse(jail, err, "not a plain absolute path:", bind->inside_path);
		}
		found |= jail->program && strcmp(bind->inside_path, jail->program) == 0;
	}
	if (!found) {
		return refuse(jail, err, "the program is not among the files:", jail->program);
	}
	if (jail->tree.wanted &&
	    (jail->tree.fd < 0 || jail->tree.number < 0 || jail->tree.number >= ENTER_STAGE_FD)) {
		return refuse(jail, err, "its directory is out of range", NULL);
	}
	for (size_t i = 0; i < jail->fd_count; i++) {
		if (jail->tree.wanted && jail->tree.number == jail->fds[i].number) {
			return refuse(jail, err, "two descriptors have one number", NULL);
		}
		if (jail->fds[i].fd < 0 || jail->fds[i].number < 0 ||
		    jail->fds[i].number >= ENTER_STAGE_FD) {
			return refuse(jail, err, "a descriptor is out of range", NULL);
		}
		for (size_t k = 0; k < i; k++) {
			if (jail->fds[k].number == jail->fds[i].number) {
				return refuse(jail, err, "two descriptors have one number", NULL);
			}
		}
	}
	return 0;
}

static int check_arguments(const struct jail *jail, struct err *err)
{
	size_t count = 0;

	if (!jail->argv || !jail->argv[0]) {
		return refuse(jail, err, "no arguments", NULL);
	}
	while (jail->argv[count]) {
		if (++count > JAIL_ARGS_MAX) {
			return refuse(jail, err, "too many arguments", NULL);
		}
	}
	return 0;
}

static int check(const struct jail *jail, struct err *err)
{
	int rc;

	if (!jail->name || !jail->name[0] || strlen(jail->name) > NAME_BYTES_MAX) {
		return refuse(jail, err, "its name is missing or too long", NULL);
	}
	if (!jail->policy || !jail->policy->filter || jail->policy->count == 0) {
		return refuse(jail, err, "no list of system calls", NULL);
	}
	if (jail->open_files > ENTER_PROGRAM_FD) {
		return refuse(jail, err, "more than 4095 open files", NULL);
	}
	if ((jail->host_uid == 0 || jail->host_gid == 0) && !jail->may_be_root) {
		err_set(err, -EPERM, "jail", "jail of %s: it would run as root of the host",
			jail->name);
		err_mend(err, "give it an unprivileged user and group ID");
		return -EPERM;
	}
	rc = check_arguments(jail, err);
	return rc == 0 ? check_files(jail, err) : rc;
}

/* A normal user gives the process IDs that are not the user's own, which only a helper may map. */
static bool is_foreign(const struct jail *jail)
{
	return geteuid() != 0 && (jail->host_uid != geteuid() || jail->host_gid != getegid());
}

/*
 * A device node often belongs to a group, such as /dev/kvm to kvm. A normal user is in that group
 * or cannot use the device. When root starts a jail, the process gets that one group besides its
 * own, or else it could not open what it was given. Returns the group or 0.
 */
static gid_t device_group(const struct jail *jail)
{
	for (size_t i = 0; i < jail->bind_count; i++) {
		struct stat status;

		if (jail->binds[i].device && stat(jail->binds[i].host_path, &status) == 0 &&
		    (status.st_mode & 0060) == 0060 && (status.st_mode & 0006) != 0006 &&
		    status.st_gid != jail->host_gid) {
			return status.st_gid;
		}
	}
	return 0;
}

void jail_note_file(struct jail_process *process, uint64_t device, uint64_t inode)
{
	if (process->file_count < ARRAY_SIZE(process->files)) {
		process->files[process->file_count].device = device;
		process->files[process->file_count].inode = inode;
		process->file_count++;
	}
}

void jail_forget_file(struct jail_process *process, uint64_t device, uint64_t inode)
{
	for (size_t i = 0; i < process->file_count; i++) {
		if (process->files[i].device == device && process->files[i].inode == inode) {
			process->files[i] = process->files[--process->file_count];
			return;
		}
	}
}

static void note_open_file(int fd, struct jail_process *process)
{
	struct stat status;

	if (fstat(fd, &status) == 0) {
		jail_note_file(process, status.st_dev, status.st_ino);
	}
}

static void note_files(const struct jail *jail, struct jail_process *process)
{
	for (size_t i = 0; i < jail->fd_count; i++) {
		note_open_file(jail->fds[i].fd, process);
	}
	if (jail->tree.wanted) {
		note_open_file(jail->tree.fd, process);
	}
}

/* Where the jail's directory is, by which the child clones its mount. */
static int find_tree(const struct jail *jail, char *ret_path, size_t size)
{
	char link[64];
	ssize_t length;

	if (!jail->tree.wanted) {
		return 0;
	}
	snprintf(link, sizeof(link), "/proc/self/fd/%d", jail->tree.fd);
	length = readlink(link, ret_path, size);
	if (length < 0 || (size_t)length >= size) {
		return length < 0 ? -errno : -ENAMETOOLONG;
	}
	ret_path[length] = '\0';
	return 0;
}

static const char *mend_of_clone(int rc)
{
	if (rc == -ENOSPC || rc == -EUSERS) {
		return "raise the number of user namespaces: sysctl user.max_user_namespaces=10000";
	}
	if (rc == -EPERM || rc == -EACCES) {
		return "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian) "
		       "or kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); a chroot "
		       "never has them: leave it";
	}
	return NULL;
}

static int fail_parent(const struct jail *jail, int rc, const char *step, struct err *err)
{
	err_set(err, rc, "jail", "jail of %s: %s: %s", jail->name, step, strerror(-rc));
	return rc;
}

/* Turns the child's report into words. */
static int fail_child(const struct jail *jail, const struct enter_report *report, struct err *err)
{
	const char *step = enter_step_name(report->step);
	const char *reason = report->error == -EMEDIUMTYPE ? "not a regular file or device node"
							   : strerror(-report->error);
	int rc = report->error < 0 ? report->error : -EIO;

	if (report->bind >= 0 && (size_t)report->bind < jail->bind_count) {
		err_set(err, rc, "jail", "jail of %s: %s: %s: %s", jail->name, step,
			jail->binds[report->bind].host_path, reason);
	} else {
		err_set(err, rc, "jail", "jail of %s: %s: %s", jail->name, step, reason);
	}
	if (rc == -EMFILE) {
		err_mend(err, "raise the hard limit of open files to 4096 or more: ulimit -Hn");
	} else if ((rc == -EPERM || rc == -EACCES) && report->bind < 0) {
		err_mend(err, "%s", mend_of_clone(rc));
	}
	return rc;
}

bool jail_keeps_groups(const struct jail *jail)
{
	return geteuid() != 0 && (!is_foreign(jail) || device_group(jail) != 0);
}

static int fail_maps(const struct jail *jail, int rc, const char *words, struct err *err)
{
	static const char standard[] = "or put `isolation: standard` into the Boxfile";

	if (!is_foreign(jail)) {
		fail_parent(jail, rc, "write its ID maps", err);
		if (rc == -EACCES) {
			/* The files of a process that is not dumpable belong to root. */
			err_mend(err, "the process that starts jails must be dumpable");
		} else if (geteuid() == 0 && (rc == -EPERM || rc == -EINVAL)) {
			err_mend(err,
				 "root has no ID %u here (in a container?): give root IDs "
				 "that exist, in /etc/subuid and /etc/subgid",
				 jail->host_uid);
		}
		return rc;
	}
	err_set(err, rc, "jail", "jail of %s: give it the user ID %u: %s", jail->name,
		jail->host_uid, words[0] ? words : strerror(-rc));
	if (rc == -ENOENT) {
		err_mend(err, "sudo apt-get install uidmap, %s", standard);
	} else if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1) {
		err_mend(err,
			 "start box where programs may gain privileges (no_new_privs is on), %s",
			 standard);
	} else {
		err_mend(err, "see whether /etc/subuid and /etc/subgid have the ID for you, %s",
			 standard);
	}
	return rc;
}

static int write_maps(const struct jail *jail, pid_t pid, gid_t group, struct err *err)
{
	/* A line of a person's terminal or two. */
	char words[256] = "";
	struct sys_id_map uids = {
		.ranges = {{ENTER_ID_INSIDE, jail->host_uid + (MUTANT("id-map") ? 2 : 0), 1}},
		.count = 1,
	};
	struct sys_id_map gids = {
		.ranges = {{ENTER_ID_INSIDE, jail->host_gid, 1},
			   {ENTER_DEVICE_GROUP_INSIDE, group, 1}},
		.count = group ? 2 : 1,
	};
	int rc = is_foreign(jail)
			 ? sys_write_id_maps_by_helpers(pid, &uids, &gids, words, sizeof(words))
			 : sys_write_id_maps(pid, &uids, &gids, geteuid() != 0);

	return rc < 0 ? fail_maps(jail, rc, words, err) : 0;
}

/* Reads the child's reports until it runs the program or has failed. */
static int follow(const struct jail *jail, int socket_fd, struct jail_process *process,
		  struct err *err)
{
	for (;;) {
		struct enter_report report;
		_cleanup_close_ int fd = -EBADF;
		ssize_t got = sys_receive_fd(socket_fd, &report, sizeof(report), &fd);

		if (got < 0) {
			return fail_parent(jail, (int)got, "listen to the child", err);
		}
		if (got == 0) {
			break;
		}
		if (got != (ssize_t)sizeof(report)) {
			return fail_parent(jail, -EIO, "listen to the child", err);
		}
		if (report.kind == ENTER_FAILED) {
			return fail_child(jail, &report, err);
		}
		if (report.kind == ENTER_NO_CGROUP) {
			groups_miss(process, report.error);
		} else if (report.kind == ENTER_NO_LANDLOCK) {
			process->missing.landlock = true;
			snprintf(process->missing.landlock_reason,
				 sizeof(process->missing.landlock_reason),
				 "the kernel has none or it is not switched on (lsm=): %s",
				 strerror(-report.error));
		} else if (report.kind == ENTER_LISTENER && process->notify_fd < 0) {
			process->notify_fd = TAKE_FD(fd);
		}
	}
	if (jail->notify && process->notify_fd < 0) {
		return fail_parent(jail, -ECHILD, "the child ended before its program started",
				   err);
	}
	return 0;
}

/*
 * A child that its own filter killed also ends the stream. By then its memory is gone (proc(5),
 * statm); only in that case is it worth waiting for how it ended.
 */
static int check_started(const struct jail *jail, const struct jail_process *process,
			 struct err *err)
{
	_cleanup_free_ char *sizes = NULL;
	siginfo_t info = {0};
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/statm", (int)process->pid);
	if (read_file_at(AT_FDCWD, path, STATM_BYTES_MAX, &sizes, NULL) == 0 &&
	    strncmp(sizes, "0 ", 2) != 0) {
		return 0;
	}
	if (waitid(P_PIDFD, (id_t)process->pidfd, &info, WEXITED | WNOWAIT) == 0 &&
	    info.si_code != CLD_EXITED && info.si_status == SIGSYS) {
		return err_set(err, -EPERM, "jail",
			       "jail of %s: the list of system calls killed it at its start",
			       jail->name);
	}
	return 0;
}

struct channel {
	int parent_end;
	int child_end;
	int null_fd;
	int self_pidfd;
};

static void close_channel(struct channel *channel)
{
	close_fd(&channel->parent_end);
	close_fd(&channel->child_end);
	close_fd(&channel->null_fd);
	close_fd(&channel->self_pidfd);
}

static int open_channel(const struct jail *jail, struct channel *ret_channel, struct err *err)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
		return fail_parent(jail, -errno, "make a channel", err);
	}
	ret_channel->parent_end = ends[0];
	ret_channel->child_end = ends[1];
	ret_channel->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (ret_channel->null_fd < 0) {
		return fail_parent(jail, -errno, "open /dev/null", err);
	}
	ret_channel->self_pidfd = sys_pidfd_open(getpid());
	if (ret_channel->self_pidfd < 0) {
		return fail_parent(jail, ret_channel->self_pidfd, "open a pidfd", err);
	}
	return 0;
}

static uint64_t wanted_namespaces(const struct jail *jail)
{
	uint64_t namespaces = NAMESPACES | (jail->network ? 0 : CLONE_NEWNET);

	namespaces &= ~(uint64_t)(MUTANT("namespace-user") ? CLONE_NEWUSER : 0);
	namespaces &= ~(uint64_t)(MUTANT("namespace-mnt") ? CLONE_NEWNS : 0);
	namespaces &= ~(uint64_t)(MUTANT("namespace-pid") ? CLONE_NEWPID : 0);
	namespaces &= ~(uint64_t)(MUTANT("namespace-net") ? CLONE_NEWNET : 0);
	namespaces &= ~(uint64_t)(MUTANT("namespace-ipc") ? CLONE_NEWIPC : 0);
	namespaces &= ~(uint64_t)(MUTANT("namespace-uts") ? CLONE_NEWUTS : 0);
	return namespaces;
}

/* Clones the child. Signals are blocked over it, so that no handler of ours runs in the child. */
static pid_t clone_child(const struct enter_plan *plan, int parent_end, int *ret_pidfd)
{
	uint64_t namespaces = wanted_namespaces(plan->jail);
	sigset_t all, before;
	pid_t pid;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	pid = sys_clone(namespaces, plan->cgroups.born_in_fd, ret_pidfd);
	if (pid == 0) {
		/* Else it would never see the parent's end close. */
		close(parent_end);
		enter_jail(plan);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return pid;
}

/*
 * Clones with the way into its control groups. A version 2 group can refuse the child at its birth;
 * it then starts without, and that is noted.
 */
static pid_t clone_into_cgroups(struct enter_plan *plan, int parent_end,
				struct jail_process *process)
{
	int rc = sys_cgroup_open(process->cgroups, &plan->cgroups);
	pid_t pid;

	if (rc < 0) {
		groups_miss(process, rc);
		sys_cgroup_close(&plan->cgroups);
	}
	if (MUTANT("cgroup")) {
		close_fd(&plan->cgroups.born_in_fd);
	}
	pid = clone_child(plan, parent_end, &process->pidfd);
	if (pid < 0 && plan->cgroups.born_in_fd >= 0) {
		close_fd(&plan->cgroups.born_in_fd);
		rc = pid;
		pid = clone_child(plan, parent_end, &process->pidfd);
		if (pid > 0) {
			groups_miss(process, rc);
		}
	}
	sys_cgroup_close(&plan->cgroups);
	return pid;
}

static int start(const struct jail *jail, struct channel *channel, struct jail_process *process,
		 struct err *err)
{
	gid_t group = geteuid() == 0 ? device_group(jail) : 0;
	char tree_path[PATH_MAX];
	struct enter_plan plan = {
		.jail = jail,
		.report_fd = channel->child_end,
		.null_fd = channel->null_fd,
		.parent_pidfd = channel->self_pidfd,
		.replace_groups = !jail_keeps_groups(jail),
		.device_group = group != 0,
		.tree_path = tree_path,
	};
	int rc = find_tree(jail, tree_path, sizeof(tree_path));
	pid_t pid;

	if (rc < 0) {
		return fail_parent(jail, rc, "find its directory", err);
	}
	pid = clone_into_cgroups(&plan, channel->parent_end, process);
	if (pid < 0) {
		const char *mend = mend_of_clone(pid);

		fail_parent(jail, pid, "make its namespaces", err);
		if (mend) {
			err_mend(err, "%s", mend);
		}
		return pid;
	}
	process->pid = pid;
	close_fd(&channel->child_end);
	groups_ask_systemd(jail, process);
	rc = write_maps(jail, pid, group, err);
	if (rc < 0) {
		return rc;
	}
	if (send(channel->parent_end, "", 1, MSG_NOSIGNAL) < 0) {
		return fail_parent(jail, -errno, "let the child go on", err);
	}
	rc = follow(jail, channel->parent_end, process, err);
	return rc == 0 ? check_started(jail, process, err) : rc;
}

int jail_spawn(const struct jail *jail, struct jail_process *ret_process, struct err *err)
{
	_cleanup_(close_channel) struct channel channel = {-EBADF, -EBADF, -EBADF, -EBADF};
	struct jail_process process = {.pid = -1, .pidfd = -EBADF, .notify_fd = -EBADF};
	int rc = check(jail, err);

	if (rc < 0) {
		return rc;
	}
	rc = open_channel(jail, &channel, err);
	if (rc < 0) {
		return rc;
	}
	note_files(jail, &process);
	groups_make(jail, &process);
	rc = start(jail, &channel, &process, err);
	if (rc < 0) {
		(void)jail_end(&process);
		close_fd(&process.pidfd);
		close_fd(&process.notify_fd);
		return rc;
	}
	*ret_process = process;
	return 0;
}

void jail_begin_stop(const struct jail_process *process)
{
	if (process->pid > 0 && !MUTANT("spare")) {
		(void)sys_pidfd_signal(process->pidfd, SIGSTOP);
	}
}

void jail_stop(const struct jail_process *process)
{
	if (process->pid <= 0 || MUTANT("spare")) {
		return;
	}
	jail_begin_stop(process);
	/* A thread that waits for the host's disk takes longer than the others. */
	for (int looks = 0; !sys_pidfd_stopped(process->pidfd); looks++) {
		if (looks == STOP_LOOKS) {
			/* That comes in spite of all, also of somebody who traces it. */
			(void)sys_pidfd_signal(process->pidfd, SIGKILL);
		}
		usleep(looks < QUICK_LOOKS ? QUICK_LOOK_US : LOOK_US);
	}
}

int jail_end(struct jail_process *process)
{
	int status = 0;
	pid_t got;

	if (process->pid > 0 && !MUTANT("spare")) {
		(void)sys_pidfd_signal(process->pidfd, SIGKILL);
		do {
			got = waitpid(process->pid, &status, 0);
		} while (got < 0 && errno == EINTR);
		if (got < 0) {
			status = -errno;
		}
		process->pid = -1;
	}
	(void)sys_cgroup_remove(process->cgroups);
	process->cgroups[0] = '\0';
	return status;
}

/* Whether the descriptor that is asked about is the file that fd is. A jail with notifications is
 * one process: its list lets it start threads only. */
static bool asks_about(const struct jail_process *process,
		       const struct sys_notification *notification, int fd)
{
	_cleanup_close_ int its_fd =
		sys_pidfd_copy_fd(process->pidfd, (int)notification->arguments[0]);
	struct stat ours, theirs;

	return its_fd >= 0 && fstat(fd, &ours) == 0 && fstat(its_fd, &theirs) == 0 &&
	       ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

/*
 * A monitor gives memory back by a hole in the memory's file and then by dropping its own pages,
 * and stops when the first cannot be done. With a file that it may only read the hole never can,
 * and the pages alone are what is wanted. Where the look fails the call is made and fails: no file
 * is changed, and the memory stays in use.
 */
static int answer_fallocate(const struct jail_process *process,
			    const struct sys_notification *notification, int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY &&
	    asks_about(process, notification, fd)) {
		return sys_filter_answer_done(process->notify_fd, notification->id);
	}
	return sys_filter_answer_continue(process->notify_fd, notification->id);
}

int jail_answer(const struct jail_process *process, int fd)
{
	struct sys_notification notification;
	int notify_fd = process->notify_fd;
	int rc = sys_filter_receive(notify_fd, &notification);

	if (rc < 0) {
		return rc;
	}
	if (notification.number == SYS_fallocate) {
		return answer_fallocate(process, &notification, fd);
	}
	if (fd >= 0 && notification.number == SYS_openat &&
	    (notification.arguments[2] & O_ACCMODE)) {
		return sys_filter_answer_fd(notify_fd, notification.id, fd);
	}
	return sys_filter_answer_error(notify_fd, notification.id, EACCES);
}
