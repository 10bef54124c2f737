/*
 * Starting one command: user, descriptors, terminal, environment, process.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest/env.h"
#include "guest/user.h"
#include "wire/ctl.h"

/* Commands of this user cannot gain privileges: setuid programs run as the user itself. */
#define EXEC_CONFINED_USER "agent"
/* A candidate path on the stack, execve(2) and little else. */
#define EXEC_STACK_BYTES 65536
/* A sentence with a path in it. */
#define EXEC_REASON_MAX 512

/* Everything that a start needs, so that none allocates. Large: one per session. */
struct exec_context {
	/* Borrowed; the image's own files in a machine. */
	const char *passwd_path;
	const char *group_path;
	int null_fd;
	/* Our own program, for WIRE_EXEC_SELF: /proc/1/exe is closed to the users of commands. */
	int self_fd;
	/* Pipes made ahead: stdin, stdout, stderr; [0] is the read end. */
	int spare[3][2];
	/* The caller decodes an EXEC into these. */
	const char *argv[WIRE_ARGS_MAX + 1];
	const char *envp[WIRE_ARGS_MAX + ENV_DEFAULTS_MAX + 1];
	/* argv of /bin/sh when the command is a script that names no interpreter. */
	const char *shell_argv[WIRE_ARGS_MAX + 3];
	struct user user;
	struct env_defaults defaults;
	_Alignas(16) uint8_t stack[EXEC_STACK_BYTES];
};

/* A command that runs. The descriptors are non-blocking and belong to the caller. */
struct exec_started {
	pid_t pid;
	/* Write end of stdin, or -EBADF. */
	int input_fd;
	/* stdout and stderr, or the terminal and -EBADF. Input goes to the terminal as well. */
	int output_fd[2];
};

/* Passwd and group paths are borrowed. Opens nothing yet. */
void exec_init(struct exec_context *context, const char *passwd_path, const char *group_path);

/*
 * Makes the pipes of the next command, so that its start is shorter. Optional: exec_start makes
 * what is missing. Returns 0 or a negative errno.
 */
int exec_prepare(struct exec_context *context);

/*
 * Starts the command that context->argv and context->envp hold, as exec describes it, in the
 * control group cgroup_fd (or -EBADF). The command leads a session and process group of its own,
 * with default signals, umask 022 and no descriptor but 0, 1 and 2.
 *
 * Returns 0, or a negative errno with one line in reason (EXEC_REASON_MAX bytes) that names what
 * failed; nothing is left behind then. -EINVAL: the user does not exist in the image.
 */
int exec_start(struct exec_context *context, const struct wire_exec *exec, int cgroup_fd,
	       struct exec_started *ret_started, char *reason);

/* Closes the descriptors. */
void exec_close(struct exec_context *context);
