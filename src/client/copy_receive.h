/*
 * box-copy: the program that writes what a guest has sent, in a jail of its own.
 */
#pragma once

#include "archive/target.h"
#include "base/err.h"
#include "jail/jail.h"

/* Messages are one line. */
#define COPY_MESSAGE_MAX 640

struct copy_receiver {
	struct jail_process process;
	/* Its messages. */
	int messages_fd;
	bool running;
};

/* An empty receiver, safe to give to copy_receive_end. */
#define COPY_RECEIVER_NONE                                                                         \
	{                                                                                          \
		.process = {.pid = -1, .pidfd = -EBADF, .notify_fd = -EBADF},                      \
		.messages_fd = -EBADF                                                              \
	}

/*
 * Starts box-copy, which reads an archive from stream_fd (borrowed) and writes it to target. It
 * runs as the caller, without capabilities, and can reach nothing but that directory. Returns 0 or
 * a negative errno with err filled.
 */
int copy_receive_start(const struct copy_target *target, int stream_fd,
		       struct copy_receiver *ret_receiver, struct err *err);

/*
 * Waits for its end, which comes soon after that of the stream; a signal on signal_fd (or -EBADF)
 * ends it at once. Returns 0, or a negative errno with its message in err.
 */
int copy_receive_end(struct copy_receiver *receiver, int signal_fd, struct err *err);

/*
 * The first line of a message that may have come from a guest, made harmless for a person's eyes
 * (names in it are in quotation marks already). ret_line gets at most size bytes and a NUL always.
 */
void copy_plain_line(const char *message, char *ret_line, size_t size);

/*
 * Where a program inside writes its messages: a memory file of COPY_MESSAGE_MAX bytes that cannot
 * become another size. A descriptor owned by the caller, or a negative errno.
 */
int copy_open_messages(void);
/* The first line of what was written there, as copy_plain_line; empty when nothing was. */
void copy_read_message(int messages_fd, char *ret_line, size_t size);

struct client_result;
/* How a program inside has ended, for the number that follows. */
const char *copy_exit_words(const struct client_result *result);
