/*
 * Helper processes of a build: started, listened to, and ended together.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"
#include "jail/jail.h"

/* A line of a helper's output that is longer is cut into pieces of this size. */
#define TASK_LINE_MAX 1024
/* A producer and a consumer; nothing in a build has more. */
#define TASKS_MAX 2

struct task {
	/* For messages, such as "mmdebstrap". */
	const char *name;
	pid_t pid;
	int pidfd;
	/* The read end of its standard error (and output, where that is not a pipe to another). */
	int output_fd;
	/* Set for a process in a jail, which is ended by jail_end. */
	struct jail_process *jail;
	bool ended;
	/* We ended it, so that its status says nothing about itself. */
	bool killed;
	/* As of waitpid(2), once ended. */
	int status;
	char line[TASK_LINE_MAX];
	size_t filled;
	/* The line that most likely says why it failed, and the one that says what to do. */
	char last_line[TASK_LINE_MAX];
	char mend[TASK_LINE_MAX];
	bool reason_found;
	bool reason_named;
};

struct task_options {
	const char *name;
	/* Program and arguments; NULL: body is called in the child instead. */
	const char *const *argv;
	/* Becomes the standard output of the child; -EBADF: the same pipe as standard error. */
	int stdout_fd;
	/*
	 * Called in the child before the program, or as the whole of it. May fill err; a return
	 * below zero ends the child with the err's text as its last line.
	 */
	int (*body)(void *data, struct err *err);
	void *data;
};

struct task_watch {
	/* A signalfd: one signal from it ends everything. -EBADF: none. */
	int signal_fd;
	/* Called with each line of output, made printable. May be NULL. */
	void (*line)(void *data, const struct task *task, const char *line);
	void *data;
};

/* An empty task, safe to give to task_end. */
#define TASK_NONE                                                                                  \
	{                                                                                          \
		.pid = -1, .pidfd = -EBADF, .output_fd = -EBADF                                    \
	}

/*
 * Forks a child in a process group of its own, which gets SIGTERM when this process dies. *ret_task
 * is filled; give it to tasks_wait or task_end. Returns 0 or a negative errno with err filled.
 */
int task_start(const struct task_options *options, struct task *ret_task, struct err *err);

/*
 * Waits until all tasks have ended and been reaped. When one fails the others have a second to end
 * as well, then they are ended. Returns 0 when all exited with 0, -EINTR after a signal, else -EIO
 * with err naming each that failed and its last line (code "disk-full" and -ENOSPC when that says
 * so).
 */
int tasks_wait(struct task *tasks, size_t count, const struct task_watch *watch, struct err *err);

/* The error for a signal that ended a wait: -EINTR, code "interrupted", "terminated" or "hung-up".
 */
int task_interrupted(int number, struct err *err);

/* Ends a task that may still run, by SIGTERM and after ten seconds SIGKILL, and reaps it. */
void task_end(struct task *task);

/*
 * Spawns a described jail whose standard error is a pipe to us, and gives the description back in
 * every case. The program is called jail->name in messages. *ret_process and *ret_messages_fd are
 * the caller's. Returns 0 or a negative errno with err filled.
 */
int task_spawn_jail(struct jail *jail, struct jail_process *ret_process, int *ret_messages_fd,
		    struct err *err);
