/*
 * Theory of operation.
 *
 * The process is made by clone3(2) with CLONE_VM and CLONE_VFORK: it runs in our memory, on a stack
 * of its own, while we stand still until it has called execve(2) or ended. So nothing of process 1
 * is copied, and an error comes back through a plain variable. Until then the child calls only the
 * kernel and pure functions, and writes only to its stack, its struct child and shell_argv.
 *
 * A child that has changed its user ID still shares our memory. The kernel marks that memory as not
 * dumpable at the change, so the user's other processes cannot look into it.
 */
#include "guest/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "guest/processor.h"
#include "guest/spawn.h"

/* The child's frames are never left in order, which AddressSanitizer could not follow. */
#define CHILD_CODE __attribute__((no_sanitize("address")))

enum child_step {
	STEP_DESCRIPTORS,
	STEP_USER,
	STEP_DIRECTORY,
	STEP_EXECUTE,
};

struct child {
	struct exec_context *context;
	const struct wire_exec *exec;
	int fds[3];
	const char *path;
	/* Written by the child: a positive errno, and what it was doing. */
	int error;
	enum child_step step;
};

void exec_init(struct exec_context *context, const char *passwd_path, const char *group_path)
{
	context->passwd_path = passwd_path;
	context->group_path = group_path;
	context->null_fd = -EBADF;
	context->self_fd = -EBADF;
	for (size_t i = 0; i < ARRAY_SIZE(context->spare); i++) {
		context->spare[i][0] = -EBADF;
		context->spare[i][1] = -EBADF;
	}
}

int exec_prepare(struct exec_context *context)
{
	if (context->self_fd < 0) {
		/* Without it only commands of WIRE_EXEC_SELF fail, with the errno of execveat(2).
		 */
		context->self_fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	}
	if (context->null_fd < 0) {
		context->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		if (context->null_fd < 0) {
			return -errno;
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(context->spare); i++) {
		int *spare = context->spare[i];

		if (spare[0] >= 0) {
			continue;
		}
		if (pipe2(spare, O_CLOEXEC) < 0) {
			spare[0] = -EBADF;
			spare[1] = -EBADF;
			return -errno;
		}
		/* Only our end: the command expects an ordinary, blocking pipe. */
		if (fcntl(spare[i == 0 ? 1 : 0], F_SETFL, O_NONBLOCK) < 0) {
			return -errno;
		}
	}
	return 0;
}

void exec_close(struct exec_context *context)
{
	close_fd(&context->null_fd);
	close_fd(&context->self_fd);
	for (size_t i = 0; i < ARRAY_SIZE(context->spare); i++) {
		close_fd(&context->spare[i][0]);
		close_fd(&context->spare[i][1]);
	}
}

/* execve(2) takes pointers to char that it does not write to. */
CHILD_CODE static int execute(const char *path, const char **argv, const char **envp)
{
	execve(path, (char **)(uintptr_t)argv, (char **)(uintptr_t)envp);
	return errno;
}

CHILD_CODE static int execute_or_shell(struct child *child, const char *path)
{
	struct exec_context *context = child->context;
	uint32_t argc = child->exec->argc;
	int error = execute(path, context->argv, context->envp);

	if (error != ENOEXEC) {
		return error;
	}
	/* As execvp(3): a file that the kernel cannot run is a script of the shell. */
	context->shell_argv[0] = "/bin/sh";
	context->shell_argv[1] = path;
	for (uint32_t i = 1; i <= argc; i++) {
		context->shell_argv[i + 1] = context->argv[i];
	}
	execute("/bin/sh", context->shell_argv, context->envp);
	return ENOEXEC;
}

/*
 * Tries the directories of PATH. access(2) comes first: a failing execve(2) prepares a whole
 * address space before it looks at the file.
 */
CHILD_CODE static int search_and_execute(struct child *child)
{
	const char *name = child->context->argv[0];
	const char *path = child->path;
	char candidate[4096];
	int result = ENOENT;
	int rc;

	if (strchr(name, '/')) {
		return execute_or_shell(child, name);
	}
	if (name[0] == '\0') {
		return ENOENT;
	}
	while ((rc = env_next_candidate(&path, name, candidate, sizeof(candidate))) != 0) {
		int error = 0;

		if (rc < 0) {
			continue;
		}
		if (access(candidate, X_OK) < 0) {
			error = errno;
		} else {
			error = execute_or_shell(child, candidate);
		}
		if (error == EACCES) {
			result = EACCES;
		} else if (error != ENOENT && error != ENOTDIR && error != ELOOP) {
			return error;
		}
	}
	return result;
}

/* The descriptor may be close-on-exec: only a script would need it once more. */
CHILD_CODE static int execute_self(const struct exec_context *context)
{
	syscall(SYS_execveat, context->self_fd, "", context->argv, context->envp, AT_EMPTY_PATH);
	return errno;
}

CHILD_CODE static bool take_descriptors(const struct child *child)
{
	bool terminal = child->exec->flags & WIRE_EXEC_TERMINAL;

	if (setsid() < 0 || (terminal && ioctl(child->fds[0], TIOCSCTTY, 0) < 0)) {
		return false;
	}
	for (int i = 0; i < 3; i++) {
		if (dup2(child->fds[i], i) < 0) {
			return false;
		}
	}
	return true;
}

/* The C library's own functions would speak to threads, so the kernel is asked directly. */
CHILD_CODE static bool take_user(const struct user *user)
{
	if (user->uid == 0 && user->gid == 0 && user->group_count == 1) {
		return true;
	}
	if (syscall(SYS_setgroups, user->group_count, user->groups) < 0 ||
	    syscall(SYS_setresgid, user->gid, user->gid, user->gid) < 0 ||
	    syscall(SYS_setresuid, user->uid, user->uid, user->uid) < 0) {
		return false;
	}
	return strcmp(user->name, EXEC_CONFINED_USER) != 0 ||
	       prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

CHILD_CODE static bool take_directory(const struct child *child)
{
	const char *directory = child->exec->directory;

	if (directory[0] != '\0') {
		return chdir(directory) == 0;
	}
	return chdir(child->context->user.home) == 0 || chdir("/") == 0;
}

CHILD_CODE static int child_try(struct child *child)
{
	sigset_t none;

	child->step = STEP_DESCRIPTORS;
	if (!take_descriptors(child)) {
		return errno;
	}
	child->step = STEP_USER;
	if (!take_user(&child->context->user)) {
		return errno;
	}
	child->step = STEP_DIRECTORY;
	if (!take_directory(child)) {
		return errno;
	}
	child->step = STEP_EXECUTE;
	sigemptyset(&none);
	if (sigprocmask(SIG_SETMASK, &none, NULL) < 0) {
		return errno;
	}
	return child->exec->flags & WIRE_EXEC_SELF ? execute_self(child->context)
						   : search_and_execute(child);
}

CHILD_CODE static void child_main(void *data)
{
	struct child *child = data;

	processor_spread();
	child->error = child_try(child);
	_exit(EXIT_FAILURE);
}

static long make_process(struct exec_context *context, struct child *child, int cgroup_fd)
{
	struct clone_args args = {
		.flags = CLONE_VM | CLONE_VFORK,
		.exit_signal = SIGCHLD,
		.stack = (uint64_t)(uintptr_t)context->stack,
		.stack_size = sizeof(context->stack),
	};
	long pid;

	if (cgroup_fd >= 0) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (unsigned)cgroup_fd;
		pid = spawn_clone(&args, child_main, child);
		if (pid > 0) {
			return pid;
		}
		/* A command may have removed the group. One without is better than none. */
		args.flags &= ~(uint64_t)CLONE_INTO_CGROUP;
		args.cgroup = 0;
	}
	return spawn_clone(&args, child_main, child);
}

static void explain(const struct child *child, char *reason)
{
	const char *why = strerrordesc_np(child->error);
	int limit = EXEC_REASON_MAX / 2;

	switch (child->step) {
	case STEP_DIRECTORY:
		snprintf(reason, EXEC_REASON_MAX, "directory %.*s: %s", limit,
			 child->exec->directory, why);
		break;
	case STEP_USER:
		snprintf(reason, EXEC_REASON_MAX, "cannot become user %.*s: %s", limit,
			 child->exec->user, why);
		break;
	case STEP_EXECUTE:
		/* The errno says it all; a reason is for what could not even be tried. */
		break;
	case STEP_DESCRIPTORS:
		snprintf(reason, EXEC_REASON_MAX, "cannot set up the command's descriptors: %s",
			 why);
		break;
	}
}

/* Starts the process on child->fds. Returns its ID, or a negative errno with the reason. */
static long launch(struct exec_context *context, struct child *child, int cgroup_fd, char *reason)
{
	long pid = make_process(context, child, cgroup_fd);

	if (pid < 0) {
		snprintf(reason, EXEC_REASON_MAX, "cannot make a process: %s",
			 strerrordesc_np((int)-pid));
		return pid;
	}
	if (child->error != 0) {
		while (waitpid((pid_t)pid, NULL, 0) < 0 && errno == EINTR) {
		}
		explain(child, reason);
		return -child->error;
	}
	return pid;
}

static int resource_failure(int rc, const char *what, char *reason)
{
	snprintf(reason, EXEC_REASON_MAX, "cannot make %s: %s", what, strerrordesc_np(-rc));
	return rc;
}

static int start_on_pipes(struct exec_context *context, struct child *child, int cgroup_fd,
			  struct exec_started *ret_started, char *reason)
{
	bool input = child->exec->flags & WIRE_EXEC_STDIN;
	int rc = exec_prepare(context);
	long pid;

	if (rc < 0) {
		return resource_failure(rc, "pipes", reason);
	}
	child->fds[0] = input ? context->spare[0][0] : context->null_fd;
	child->fds[1] = context->spare[1][1];
	child->fds[2] = context->spare[2][1];
	pid = launch(context, child, cgroup_fd, reason);
	if (pid < 0) {
		/* The pipes are as good as new: nothing was written, and the child's ends are gone.
		 */
		return (int)pid;
	}
	ret_started->pid = (pid_t)pid;
	ret_started->input_fd = -EBADF;
	if (input) {
		close_fd(&context->spare[0][0]);
		ret_started->input_fd = TAKE_FD(context->spare[0][1]);
	}
	for (int i = 0; i < 2; i++) {
		close_fd(&context->spare[i + 1][1]);
		ret_started->output_fd[i] = TAKE_FD(context->spare[i + 1][0]);
	}
	return 0;
}

/* Opens both ends of a new terminal (pty(7), ioctl_tty(2)). */
static int open_terminal(const struct wire_exec *exec, const struct user *user, int *ret_ours,
			 int *ret_theirs)
{
	struct winsize size = {.ws_row = exec->rows, .ws_col = exec->columns};
	_cleanup_close_ int ours = -EBADF;
	_cleanup_close_ int theirs = -EBADF;
	int unlocked = 0;

	ours = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
	if (ours < 0 || ioctl(ours, TIOCSPTLCK, &unlocked) < 0) {
		return -errno;
	}
	theirs = ioctl(ours, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (theirs < 0) {
		return -errno;
	}
	if (size.ws_row != 0 && size.ws_col != 0 && ioctl(ours, TIOCSWINSZ, &size) < 0) {
		return -errno;
	}
	/* So that programs may open it again by its name. */
	if (user->uid != 0 && fchown(theirs, user->uid, (gid_t)-1) < 0) {
		return -errno;
	}
	*ret_ours = TAKE_FD(ours);
	*ret_theirs = TAKE_FD(theirs);
	return 0;
}

static int start_on_terminal(struct exec_context *context, struct child *child, int cgroup_fd,
			     struct exec_started *ret_started, char *reason)
{
	_cleanup_close_ int ours = -EBADF;
	_cleanup_close_ int theirs = -EBADF;
	int rc = open_terminal(child->exec, &context->user, &ours, &theirs);
	long pid;

	if (rc < 0) {
		return resource_failure(rc, "a terminal", reason);
	}
	for (int i = 0; i < 3; i++) {
		child->fds[i] = theirs;
	}
	pid = launch(context, child, cgroup_fd, reason);
	if (pid < 0) {
		return (int)pid;
	}
	ret_started->pid = (pid_t)pid;
	ret_started->input_fd = -EBADF;
	ret_started->output_fd[0] = TAKE_FD(ours);
	ret_started->output_fd[1] = -EBADF;
	return 0;
}

int exec_start(struct exec_context *context, const struct wire_exec *exec, int cgroup_fd,
	       struct exec_started *ret_started, char *reason)
{
	bool terminal = exec->flags & WIRE_EXEC_TERMINAL;
	struct child child = {.context = context, .exec = exec};
	size_t envc;
	int rc;

	rc = user_resolve(context->passwd_path, context->group_path, exec->user, &context->user);
	if (rc == -ENOENT) {
		/* Not ENOENT, which means that there is no such command. */
		snprintf(reason, EXEC_REASON_MAX, "user %.*s does not exist in the image",
			 USER_NAME_MAX, exec->user);
		return -EINVAL;
	}
	if (rc < 0) {
		snprintf(reason, EXEC_REASON_MAX, "cannot read %s: %s", context->passwd_path,
			 strerrordesc_np(-rc));
		return rc;
	}
	envc = env_complete(context->envp, exec->envc, &context->user, terminal,
			    &context->defaults);
	child.path = env_get(context->envp, envc, "PATH");
	if (terminal) {
		return start_on_terminal(context, &child, cgroup_fd, ret_started, reason);
	}
	return start_on_pipes(context, &child, cgroup_fd, ret_started, reason);
}
