/*
 * The jail of box-copy: what its one directory lets it do and what not. This program is its own
 * probe. Each forbidden act is tried behind the real list, behind one that allows everything (where
 * the rest of the jail must refuse it, unless only the list can), and outside of any jail, where it
 * must succeed, so that the check is known to be able to fail.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "jail/act.h"
#include "jail/allow.h"
#include "jail/jail.h"
#include "jail/tap.h"
#include "sys/landlock.h"

#define TREE_FD 3
/* An ID that no account of a Debian system has. */
#define USER_ID 1876544

static int open_new(const char *name)
{
	return openat(TREE_FD, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

static bool act_work(void)
{
	int fd = open_new("temporary");

	return fd >= 0 && pwrite(fd, "x", 1, 0) == 1 && ftruncate(fd, 100) == 0 &&
	       fchmod(fd, 01755) == 0 && renameat(TREE_FD, "temporary", TREE_FD, "file") == 0 &&
	       mkdirat(TREE_FD, "made", 0700) == 0 &&
	       linkat(TREE_FD, "file", TREE_FD, "made/again", 0) == 0 &&
	       symlinkat("/etc", TREE_FD, "made/link") == 0 &&
	       unlinkat(TREE_FD, "made/again", 0) == 0;
}

static bool act_read_above(void)
{
	return openat(TREE_FD, "../secret", O_RDONLY | O_CLOEXEC) >= 0;
}

/* ".." of the mount's root is that root itself. */
static bool is_below(const char *name)
{
	return openat(TREE_FD, name, O_RDONLY | O_CLOEXEC) >= 0;
}

static bool act_make_above(void)
{
	return open_new("../new") >= 0 && !is_below("new");
}

static bool act_link_above(void)
{
	return linkat(TREE_FD, "../secret", TREE_FD, "stolen", 0) == 0;
}

static bool act_rename_above(void)
{
	return renameat(TREE_FD, "old", TREE_FD, "../moved") == 0 && !is_below("moved");
}

static bool act_times_above(void)
{
	/* Landlock does not know of times: this one only the mount keeps in. */
	return utimensat(TREE_FD, "../secret", NULL, 0) == 0;
}

static bool act_truncate(void)
{
	return openat(TREE_FD, "old", O_WRONLY | O_TRUNC | O_CLOEXEC) >= 0;
}

static bool act_setuid(void)
{
	int fd = open_new("setuid");

	return fd >= 0 && fchmod(fd, 04755) == 0;
}

static bool act_make_fifo(void)
{
	return mknodat(TREE_FD, "fifo", S_IFIFO | 0600, 0) == 0;
}

static bool act_remove_directory(void)
{
	return unlinkat(TREE_FD, "empty", AT_REMOVEDIR) == 0;
}

static bool act_execute(void)
{
	static const char *const argv[] = {"program", "success", NULL};

	syscall(SYS_execveat, TREE_FD, "program", argv, NULL, 0);
	return false;
}

static bool act_socket(void)
{
	return socket(AF_INET, SOCK_STREAM, 0) >= 0;
}

static bool act_fork(void)
{
	return fork() >= 0;
}

static bool act_success(void)
{
	return true;
}

static const struct {
	const char *name;
	bool (*run)(void);
	bool list_only;
	bool landlock_only;
} acts[] = {
	{"read-above", act_read_above, false, false},
	{"make-above", act_make_above, false, false},
	{"link-above", act_link_above, false, false},
	{"rename-above", act_rename_above, false, false},
	{"times-above", act_times_above, false, false},
	{"truncate", act_truncate, true, false},
	{"setuid", act_setuid, true, false},
	{"make-fifo", act_make_fifo, false, true},
	{"remove-directory", act_remove_directory, false, true},
	{"execute", act_execute, false, false},
	{"socket", act_socket, true, false},
	{"fork", act_fork, true, false},
	{"work", act_work, false, false},
	{"success", act_success, false, false},
};

static int probe(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(acts); i++) {
		if (strcmp(acts[i].name, name) == 0) {
			return acts[i].run() ? 0 : 1;
		}
	}
	return 2;
}

static char top[64];

/* A directory above, with a secret, and the one that is given. Returns the latter. */
static int make_scene(const char *program, uid_t id)
{
	_cleanup_close_ int above = -EBADF;
	_cleanup_close_ int from = open(program, O_RDONLY | O_CLOEXEC);
	_cleanup_close_ int to = -EBADF;
	int dir;

	snprintf(top, sizeof(top), "/tmp/box-jail-copy-XXXXXX");
	if (!mkdtemp(top) || chmod(top, 0777) < 0) {
		return -errno;
	}
	above = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (write_file_at(above, "secret", "x", 1, 0666) < 0 || mkdirat(above, "dir", 0777) < 0) {
		return -errno;
	}
	dir = openat(above, "dir", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	to = openat(dir, "program", O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	if (dir < 0 || to < 0 || from < 0 || write_file_at(dir, "old", "old", 3, 0666) < 0 ||
	    mkdirat(dir, "empty", 0777) < 0 || copy_file_sparse(from, to) < 0 ||
	    fchownat(above, "secret", id, id, 0) < 0 || fchown(dir, id, id) < 0 ||
	    fchownat(dir, "old", id, id, 0) < 0 || fchownat(dir, "empty", id, id, 0) < 0) {
		return -errno;
	}
	return dir;
}

/* Returns the wait status, or -1. */
static int run_jailed(const char *program, const char *name, const struct jail_policy *policy,
		      int dir, uid_t id)
{
	const char *argv[] = {"probe", "--probe", name, NULL};
	struct jail jail = {.name = "copy", .policy = policy, .argv = argv};
	struct jail_process process;
	struct err err = {0};
	struct pollfd ended = {.events = POLLIN};
	int status = -1;

	jail.host_uid = id;
	jail.host_gid = id;
	jail.may_be_root = true;
	jail.open_files = 16;
	if (jail_add_program(&jail, program, &err) == 0) {
		jail.program = jail.binds[0].inside_path;
		(void)jail_add_fd(&jail, STDERR_FILENO, STDERR_FILENO, &err);
		(void)jail_add_tree(&jail, dir, TREE_FD, &err);
		if (jail_spawn(&jail, &process, &err) == 0) {
			ended.fd = process.pidfd;
			(void)poll(&ended, 1, 20000);
			status = jail_end(&process);
			close_fd(&process.pidfd);
		} else if (strstr(err.text, "killed it at its start")) {
			/* The list was faster than the look at whether it runs. */
			status = SIGSYS;
		} else {
			tap_note("%s", err.text);
		}
	}
	jail_clear(&jail);
	return status;
}

static int run_outside(const char *program, const char *name, int dir)
{
	pid_t pid = fork();
	int status = -1;

	if (pid == 0) {
		dup2(dir, TREE_FD);
		execl(program, "probe", "--probe", name, (char *)NULL);
		_exit(3);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
	}
	return status;
}

static void try_act(const char *program, size_t i, uid_t id)
{
	const struct jail_policy *policies[] = {&jail_policy_copy, &allow_everything};
	const char *name = acts[i].name;
	bool allowed = acts[i].run == act_work || acts[i].run == act_success;

	for (int k = 0; k < 3; k++) {
		_cleanup_close_ int dir = make_scene(program, id);
		int status = k < 2 ? run_jailed(program, name, policies[k], dir, id)
				   : run_outside(program, name, dir);
		bool forbidden = !allowed && (k == 0 || (k == 1 && !acts[i].list_only));

		if (k == 1 && acts[i].landlock_only && sys_landlock_abi() < 0) {
			tap_skip(name, "this kernel has no landlock");
		} else {
			tap(dir >= 0 && (forbidden ? refused(status) : succeeded(status)),
			    "as %u: %s %s %s", id, name, forbidden ? "is refused" : "succeeds",
			    k == 0   ? "in the jail"
			    : k == 1 ? "without the list"
				     : "outside");
		}
		(void)remove_tree_at(AT_FDCWD, top);
	}
}

int main(int argc, char **argv)
{
	char program[PATH_MAX];

	if (argc == 3 && strcmp(argv[1], "--probe") == 0) {
		return probe(argv[2]);
	}
	/* As the program of act_execute. */
	if (argc == 2 && strcmp(argv[1], "success") == 0) {
		return 0;
	}
	if (!realpath("/proc/self/exe", program)) {
		return 2;
	}
	for (size_t i = 0; i < ARRAY_SIZE(acts); i++) {
		try_act(program, i, geteuid());
		if (geteuid() == 0) {
			try_act(program, i, USER_ID);
		}
	}
	return tap_done();
}
