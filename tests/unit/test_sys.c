/* Wrappers of the kernel, as far as they can be tried without a jail around them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "sys/caps.h"
#include "sys/cgroup.h"
#include "sys/filter.h"
#include "sys/helper.h"
#include "sys/landlock.h"
#include "sys/namespace.h"
#include "sys/process.h"

/* Runs body in a child and returns its exit code, or 128 plus the signal that killed it. */
static int in_child(int (*body)(void *data), void *data)
{
	pid_t pid = fork();
	int status = 0;

	assert_true(pid >= 0);
	if (pid == 0) {
		_exit(body(data));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void test_pidfd(void **state)
{
	_cleanup_close_ int pidfd = -EBADF;
	siginfo_t info;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
			pause();
		}
	}
	pidfd = sys_pidfd_open(pid);
	assert_true(pidfd >= 0);
	assert_true(fcntl(pidfd, F_GETFD) & FD_CLOEXEC);
	assert_false(sys_pidfd_ended(pidfd));
	assert_false(sys_pidfd_stopped(pidfd));
	assert_int_equal(sys_pidfd_signal(pidfd, SIGSTOP), 0);
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOWAIT), 0);
	/* As often as one likes. */
	assert_true(sys_pidfd_stopped(pidfd));
	assert_true(sys_pidfd_stopped(pidfd));
	assert_int_equal(sys_pidfd_signal(pidfd, SIGCONT), 0);
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WCONTINUED), 0);
	assert_false(sys_pidfd_stopped(pidfd));
	assert_int_equal(sys_pidfd_signal(pidfd, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	assert_true(sys_pidfd_stopped(pidfd));
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	/* Nobody's child any more, and still at its end. */
	assert_true(sys_pidfd_stopped(pidfd));
	assert_true(sys_pidfd_ended(pidfd));
	assert_int_equal(sys_pidfd_signal(pidfd, SIGKILL), -ESRCH);
	assert_int_equal(sys_pidfd_open(-1), -EINVAL);
}

static void test_fd_passing(void **state)
{
	int ends[2], pipe_ends[2], got_fd = 0;
	char data[8] = "";

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	assert_int_equal(pipe(pipe_ends), 0);
	assert_int_equal(sys_send_fd(ends[0], "abc", 3, pipe_ends[1]), 0);
	assert_int_equal(sys_receive_fd(ends[1], data, sizeof(data), &got_fd), 3);
	assert_memory_equal(data, "abc", 3);
	assert_true(got_fd >= 0 && got_fd != pipe_ends[1]);
	assert_true(fcntl(got_fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(write(got_fd, "x", 1), 1);
	assert_int_equal(read(pipe_ends[0], data, 1), 1);
	close(got_fd);
	assert_int_equal(sys_send_fd(ends[0], "d", 1, -EBADF), 0);
	assert_int_equal(sys_receive_fd(ends[1], data, sizeof(data), &got_fd), 1);
	assert_int_equal(got_fd, -EBADF);
	close(ends[0]);
	assert_int_equal(sys_receive_fd(ends[1], data, sizeof(data), &got_fd), 0);
	assert_int_equal(sys_send_fd(ends[1], "e", 1, -EBADF), -EPIPE);
	close(ends[1]);
	close(pipe_ends[0]);
	close(pipe_ends[1]);
}

static void test_data_in_part(void **state)
{
	static const char data[4 << 20];
	int ends[2];

	(void)state;
	/* More than a socket holds. */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends),
			 0);
	assert_int_equal(sys_send_fd(ends[0], data, sizeof(data), -EBADF), -EIO);
	assert_int_equal(sys_send_fd(ends[0], data, sizeof(data), -EBADF), -EAGAIN);
	close(ends[0]);
	close(ends[1]);
}

static int limits_body(void *data)
{
	struct rlimit limit;

	(void)data;
	if (sys_limit(RLIMIT_NOFILE, 40) < 0 || getrlimit(RLIMIT_NOFILE, &limit) < 0 ||
	    limit.rlim_cur != 40 || limit.rlim_max != 40) {
		return 1;
	}
	/* A higher wish leaves the lower hard limit. */
	if (sys_limit(RLIMIT_NOFILE, 1000) < 0 || getrlimit(RLIMIT_NOFILE, &limit) < 0 ||
	    limit.rlim_max != 40) {
		return 2;
	}
	if (sys_close_range(3, ~0U) < 0 || fcntl(3, F_GETFD) >= 0 || sys_close_range(9, 8) < 0) {
		return 3;
	}
	return fcntl(2, F_GETFD) < 0 ? 4 : 0;
}

static void test_limits(void **state)
{
	(void)state;
	assert_int_equal(in_child(limits_body, NULL), 0);
}

static int signals_body(void *data)
{
	struct sigaction action, ignore = {.sa_handler = SIG_IGN};
	sigset_t set;

	(void)data;
	if (sigaction(SIGUSR1, &ignore, NULL) < 0) {
		return 3;
	}
	sigfillset(&set);
	sigprocmask(SIG_SETMASK, &set, NULL);
	if (sys_reset_signals() < 0 || sigprocmask(SIG_SETMASK, NULL, &set) < 0 ||
	    sigismember(&set, SIGUSR1) || sigismember(&set, SIGTERM)) {
		return 1;
	}
	return sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_handler == SIG_DFL ? 0 : 2;
}

static void test_signals(void **state)
{
	(void)state;
	assert_int_equal(in_child(signals_body, NULL), 0);
}

struct map_wish {
	struct sys_id_map map;
	int deny;
	int rc;
};

/* A child in a user namespace of its own, with every ID map that is tried written by the parent. */
static void try_map(const struct map_wish *wish)
{
	_cleanup_close_ int pidfd = -EBADF;
	int ends[2], status;
	char byte;
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = sys_clone(CLONE_NEWUSER, -EBADF, &pidfd);
	assert_true(pid >= 0);
	if (pid == 0) {
		close(ends[1]);
		if (read(ends[0], &byte, 1) != 1) {
			_exit(9);
		}
		if (sys_set_ids(1000, 1000) < 0) {
			_exit(8);
		}
		_exit(getuid() == 1000 && getgid() == 1000 && sys_caps_drop_all() == 0 ? 0 : 7);
	}
	assert_int_equal(sys_write_id_maps(pid, &wish->map, &wish->map, wish->deny), wish->rc);
	assert_int_equal(write(ends[1], "", 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), wish->rc == 0 ? 0 : 8);
	close(ends[0]);
	close(ends[1]);
}

static void test_id_maps(void **state)
{
	const struct map_wish good = {.map = {{{1000, 4711, 1}}, 1}, .deny = 0, .rc = 0};
	const struct map_wish overlap = {
		.map = {{{1000, 4711, 1}, {1000, 4712, 1}}, 2}, .deny = 0, .rc = -EINVAL};

	(void)state;
	if (geteuid() != 0) {
		skip();
	}
	try_map(&good);
	try_map(&overlap);
}

static int caps_body(void *data)
{
	char status[4096];
	int fd = open("/proc/self/status", O_RDONLY);
	ssize_t got;

	(void)data;
	if (sys_caps_drop_all() < 0 || sys_no_new_privs() < 0) {
		return 1;
	}
	/* Locked: they cannot be changed back. */
	if (prctl(PR_SET_SECUREBITS, 0, 0, 0, 0) == 0) {
		return 2;
	}
	got = read(fd, status, sizeof(status) - 1);
	if (got <= 0) {
		return 3;
	}
	status[got] = '\0';
	return strstr(status, "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n"
			      "CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\n"
			      "CapAmb:\t0000000000000000\nNoNewPrivs:\t1\n")
		       ? 0
		       : 4;
}

static void test_caps(void **state)
{
	(void)state;
	if (geteuid() != 0) {
		skip();
	}
	assert_int_equal(in_child(caps_body, NULL), 0);
}

static int landlock_body(void *data)
{
	_cleanup_close_ int ruleset = -EBADF;
	_cleanup_close_ int usr = open("/usr", O_PATH | O_CLOEXEC);
	_cleanup_close_ int null_fd = open("/dev/null", O_PATH | O_CLOEXEC);

	(void)data;
	if (sys_landlock_new(false, &ruleset) < 0 || sys_landlock_allow(ruleset, usr, false) < 0 ||
	    sys_landlock_allow(ruleset, null_fd, true) < 0 || sys_no_new_privs() < 0 ||
	    sys_landlock_enter(ruleset) < 0) {
		return 1;
	}
	if (open("/usr/bin/env", O_RDONLY) < 0 || open("/dev/null", O_RDWR) < 0) {
		return 2;
	}
	if (open("/etc/passwd", O_RDONLY) >= 0 || errno != EACCES) {
		return 3;
	}
	if (open("/usr", O_RDONLY | O_DIRECTORY) >= 0 || open("/dev/zero", O_RDONLY) >= 0) {
		return 4;
	}
	return open("/tmp/box-landlock-test", O_WRONLY | O_CREAT, 0600) >= 0 ? 5 : 0;
}

static void test_landlock(void **state)
{
	(void)state;
	if (sys_landlock_abi() < 1) {
		skip();
	}
	assert_int_equal(in_child(landlock_body, NULL), 0);
}

/* mkdir(2) asks, getppid(2) kills, the rest is allowed. */
static const struct sock_filter asking_filter[] = {
	{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
	{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_mkdir},
	{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_USER_NOTIF},
	{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_getppid},
	{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
	{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
};

static int asking_body(void *data)
{
	int listener = -EBADF, fd;
	char byte = 0;

	if (sys_no_new_privs() < 0 ||
	    sys_filter_load(asking_filter, ARRAY_SIZE(asking_filter), &listener) < 0 ||
	    sys_send_fd(*(int *)data, "", 1, listener) < 0) {
		return 1;
	}
	close(listener);
	fd = (int)syscall(SYS_mkdir, "/x", 0700);
	if (fd < 0 || read(fd, &byte, 1) != 1 || byte != 'q') {
		return 2;
	}
	if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC)) {
		return 3;
	}
	if (syscall(SYS_mkdir, "/x", 0700) >= 0 || errno != EACCES) {
		return 4;
	}
	syscall(SYS_getppid);
	return 5;
}

/* Waits for the next notification. */
static void receive(int listener, struct sys_notification *notification)
{
	int rc;

	do {
		rc = sys_filter_receive(listener, notification);
		sched_yield();
	} while (rc == -EAGAIN);
	assert_int_equal(rc, 0);
	assert_int_equal(notification->number, SYS_mkdir);
	assert_int_equal(notification->arguments[1], 0700);
}

static void test_notifications(void **state)
{
	struct sys_notification notification;
	_cleanup_close_ int listener = -EBADF;
	int ends[2], pipe_ends[2], status;
	char byte;
	pid_t pid;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	assert_int_equal(pipe(pipe_ends), 0);
	assert_int_equal(write(pipe_ends[1], "q", 1), 1);
	pid = fork();
	if (pid == 0) {
		_exit(asking_body(&ends[1]));
	}
	assert_int_equal(sys_receive_fd(ends[0], &byte, 1, &listener), 1);
	assert_true(listener >= 0);
	receive(listener, &notification);
	assert_int_equal(sys_filter_receive(listener, &(struct sys_notification){0}), -EAGAIN);
	assert_int_equal(sys_filter_answer_fd(listener, notification.id, pipe_ends[0]), 0);
	assert_true(sys_filter_answer_fd(listener, notification.id, pipe_ends[0]) < 0);
	receive(listener, &notification);
	assert_int_equal(sys_filter_answer_error(listener, notification.id, EACCES), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGSYS);
	assert_int_equal(sys_filter_receive(listener, &notification), -ENOENT);
	close(ends[0]);
	close(ends[1]);
	close(pipe_ends[0]);
	close(pipe_ends[1]);
}

static void test_cgroup_nothing_wanted(void **state)
{
	struct sys_cgroup_limits limits = {0};
	struct sys_cgroup_way way;
	char paths[64] = "x", reason[64] = "x";

	(void)state;
	assert_int_equal(sys_cgroup_make("box-1-test", &limits, paths, sizeof(paths), reason,
					 sizeof(reason)),
			 0);
	assert_string_equal(paths, "");
	assert_string_equal(reason, "");
	assert_int_equal(sys_cgroup_open(paths, &way), 0);
	assert_int_equal(way.born_in_fd, -EBADF);
	assert_int_equal(way.self_count, 0);
	assert_int_equal(sys_cgroup_move_self(&way), 0);
	sys_cgroup_close(&way);
	assert_int_equal(sys_cgroup_remove(paths), 0);
}

/* Goes into the groups, and tries to be more processes than they permit. */
static int cgroup_body(void *data)
{
	struct sys_cgroup_way way;
	_cleanup_close_ int pidfd = -EBADF;
	pid_t pid;
	int status;

	if (sys_cgroup_open(data, &way) < 0) {
		return 1;
	}
	pid = sys_clone(0, way.born_in_fd, &pidfd);
	if (pid == 0) {
		/* A group of its own, to be killed as a whole. */
		if (setpgid(0, 0) < 0 || sys_cgroup_move_self(&way) < 0) {
			_exit(2);
		}
		for (int i = 0; i < 20; i++) {
			pid = fork();
			if (pid == 0) {
				pause();
			}
			if (pid < 0) {
				kill(0, SIGKILL);
			}
		}
		_exit(3);
	}
	sys_cgroup_close(&way);
	if (pid < 0 || waitpid(pid, &status, 0) < 0) {
		return 4;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static void test_cgroup_limits(void **state)
{
	struct sys_cgroup_limits limits = {.memory_bytes = 64U << 20, .pids = 9};
	char paths[1024], reason[128], name[64];

	(void)state;
	snprintf(name, sizeof(name), "box-%d-test", (int)getpid());
	if (sys_cgroup_make(name, &limits, paths, sizeof(paths), reason, sizeof(reason)) < 0) {
		assert_string_not_equal(reason, "");
		print_message("%s\n", reason);
		(void)sys_cgroup_remove(paths);
		skip();
	}
	assert_string_not_equal(paths, "");
	for (const char *path = paths; *path; path += strlen(path) + 1) {
		struct stat status;

		assert_non_null(strstr(path, name));
		assert_int_equal(stat(path, &status), 0);
		assert_true(S_ISDIR(status.st_mode));
	}
	/* Our own group, made by a living process. */
	(void)sys_cgroup_leftovers(true);
	assert_int_equal(access(paths, F_OK), 0);
	assert_int_equal(in_child(cgroup_body, paths), 0);
	assert_int_equal(sys_cgroup_remove(paths), 0);
	assert_int_not_equal(access(paths, F_OK), 0);
}

/*
 * A group of a maker that is dead is counted, and goes when that is wanted. A process is in it
 * meanwhile, so that no other sweep of this host takes it away.
 */
static void test_cgroup_of_a_dead_maker(void **state)
{
	struct sys_cgroup_limits limits = {.pids = 9};
	char paths[1024], reason[128], name[64], members[1100], number[16];
	pid_t dead = fork(), member;
	int fd;

	(void)state;
	if (dead == 0) {
		_exit(0);
	}
	assert_int_equal(waitpid(dead, NULL, 0), dead);
	snprintf(name, sizeof(name), "box-%d-gone", (int)dead);
	if (sys_cgroup_make(name, &limits, paths, sizeof(paths), reason, sizeof(reason)) < 0) {
		print_message("%s\n", reason);
		(void)sys_cgroup_remove(paths);
		skip();
	}
	member = fork();
	if (member == 0) {
		pause();
		_exit(0);
	}
	snprintf(members, sizeof(members), "%s/cgroup.procs", paths);
	snprintf(number, sizeof(number), "%d", (int)member);
	fd = open(members, O_WRONLY | O_CLOEXEC);
	assert_int_equal(write(fd, number, strlen(number)), strlen(number));
	close(fd);
	assert_true(sys_cgroup_leftovers(false) > 0);
	assert_int_equal(access(paths, F_OK), 0);
	kill(member, SIGKILL);
	assert_int_equal(waitpid(member, NULL, 0), member);
	(void)sys_cgroup_leftovers(true);
	assert_int_not_equal(access(paths, F_OK), 0);
}

/* A list without room for the path makes no group that nobody would remove. */
static void test_cgroup_small_list(void **state)
{
	struct sys_cgroup_limits limits = {.pids = 9};
	char paths[8], reason[128];

	(void)state;
	assert_true(sys_cgroup_make("box-1-small", &limits, paths, sizeof(paths), reason,
				    sizeof(reason)) < 0);
	assert_string_equal(paths, "");
	assert_string_not_equal(reason, "");
}

static void test_copied_fds(void **state)
{
	int ends[2], pidfd = sys_pidfd_open(getpid()), copy;
	struct stat ours, theirs;

	(void)state;
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(fstat(ends[0], &ours), 0);
	copy = sys_pidfd_copy_fd(pidfd, ends[0]);
	assert_true(copy >= 0 && copy != ends[0]);
	assert_int_equal(fstat(copy, &theirs), 0);
	assert_int_equal(ours.st_ino, theirs.st_ino);
	assert_int_equal(fcntl(copy, F_GETFD), FD_CLOEXEC);
	close(copy);
	assert_int_equal(sys_pidfd_copy_fd(pidfd, copy), -EBADF);
	close(ends[0]);
	close(ends[1]);
	close(pidfd);
}

/* Whatever the helpers think of it: no map is written that they refused, and they say why. */
static void test_refused_maps(void **state)
{
	struct sys_id_map map = {.ranges = {{0, 0xfffffff0, 1}}, .count = 1};
	char words[16] = "none";
	int rc = sys_write_id_maps_by_helpers(getpid(), &map, &map, words, sizeof(words));

	(void)state;
	if (rc == -ENOENT) {
		skip();
	}
	assert_int_equal(rc, -EPERM);
	assert_memory_equal(words, "new", 3);
	assert_int_equal(strlen(words), sizeof(words) - 1);
}

static void test_helpers(void **state)
{
	static const char *const well[] = {"/bin/sh", "-c", "env; echo one; echo two", NULL};
	static const char *const badly[] = {"/bin/sh", "-c", "echo no >&2; exit 3", NULL};
	static const char *const missing[] = {"/nowhere/at-all", NULL};
	static const char *const slow[] = {"/bin/sh", "-c", "exec sleep 1000", NULL};
	const char *const *argvs[SYS_HELPERS_MAX] = {well, well};
	char words[16];

	(void)state;
	assert_int_equal(sys_run_helpers(argvs, 2, 20000, words, sizeof(words)), 0);
	/* The shell itself sets this one. */
	assert_memory_equal(words, "PWD=", 4);
	argvs[1] = badly;
	assert_int_equal(sys_run_helpers(argvs, 2, 20000, words, sizeof(words)), -EPERM);
	argvs[0] = badly;
	assert_int_equal(sys_run_helpers(argvs, 1, 20000, words, sizeof(words)), -EPERM);
	assert_string_equal(words, "no");
	argvs[1] = missing;
	assert_int_equal(sys_run_helpers(argvs, 2, 20000, words, sizeof(words)), -ENOENT);
	argvs[0] = slow;
	assert_int_equal(sys_run_helpers(argvs, 1, 50, words, sizeof(words)), -ETIMEDOUT);
	assert_string_equal(words, "");
	assert_int_equal(waitpid(-1, NULL, 0), -1);
}

/* A scope is waited for and never removed: its owner would not hear of its end. */
static void test_scope_is_left_alone(void **state)
{
	char template[] = "/tmp/box-test-XXXXXX", paths[64] = "";
	const char *directory = mkdtemp(template);

	(void)state;
	assert_non_null(directory);
	snprintf(paths, sizeof(paths) - 1, "%s/box-1-a.scope", directory);
	assert_int_equal(mkdir(paths, 0700), 0);
	assert_int_equal(sys_cgroup_remove(paths), -EBUSY);
	assert_int_equal(rmdir(paths), 0);
	assert_int_equal(sys_cgroup_remove(paths), 0);
	assert_int_equal(rmdir(directory), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pidfd),
		cmocka_unit_test(test_fd_passing),
		cmocka_unit_test(test_data_in_part),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_id_maps),
		cmocka_unit_test(test_refused_maps),
		cmocka_unit_test(test_helpers),
		cmocka_unit_test(test_scope_is_left_alone),
		cmocka_unit_test(test_copied_fds),
		cmocka_unit_test(test_caps),
		cmocka_unit_test(test_landlock),
		cmocka_unit_test(test_notifications),
		cmocka_unit_test(test_cgroup_nothing_wanted),
		cmocka_unit_test(test_cgroup_limits),
		cmocka_unit_test(test_cgroup_of_a_dead_maker),
		cmocka_unit_test(test_cgroup_small_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
