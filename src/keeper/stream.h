/*
 * One command: its stream on the control port on one side, the client's pipes on the other.
 *
 * Output that the guest has sent and the pipe has not taken waits in a buffer of exactly the window
 * that the guest may send ahead. Credit is given back only for what the pipe took, so a slow
 * reader stops its own command and nothing else.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/loop.h"
#include "ipc/ipc.h"
#include "keeper/control.h"

struct stream;
struct record;

enum stream_kind {
	STREAM_COMMAND,
	/* A command that outlives its client: the end of stdin is not passed on, since it may only
	 * mean that the client is gone. */
	STREAM_SESSION,
	/* One TCP connection: stdin_fd is the socket, and output_fds are none. */
	STREAM_TCP,
};

struct stream_events {
	/* The command has ended and its pipes are closed. The stream may be freed in the call. */
	void (*ended)(void *data, struct stream *stream);
	/* The guest did not end the command when told to. Comes once; it may still do so. */
	void (*stuck)(void *data, struct stream *stream);
	void *data;
};

/* How far a stream has come, for the keeper of a copy of its machine. */
struct stream_state {
	uint32_t id;
	bool has_process;
	bool has_log;
	bool has_exit;
	struct wire_exit exit;
	bool stdin_eof;
	/* Of channels 1 and 2. */
	bool eof[2];
};

struct stream_config {
	uint32_t id;
	enum stream_kind kind;
	/* How long the guest may take to end what it was told to kill. */
	uint32_t grace_ms;
	/* Taken over, also on failure; -EBADF where there is none. */
	int stdin_fd;
	int output_fds[2];
	uint32_t timeout_seconds;
	/* Not NULL: the guest knows the stream already; windows are as in a new life (wire/ctl.h).
	 */
	const struct stream_state *state;
};

/* Opens the stream; the caller sends EXEC. Returns 0 or a negative errno. */
int stream_new(const struct stream_config *config, struct control *control, struct loop *loop,
	       const struct stream_events *events, struct stream **ret_stream);
void stream_free(struct stream *stream);

/* Where what the guest sends is kept as well, or NULL; borrowed. */
void stream_set_record(struct stream *stream, struct record *record);

/*
 * Gives the stream other descriptors (taken over, also on failure; -EBADF: none) in place of those
 * it has. Without any, output is dropped as it comes. The stream may end in the call. Returns 0 or
 * a negative errno; it then has none.
 */
int stream_attach(struct stream *stream, int stdin_fd, const int output_fds[2]);

/* Tells the guest to kill the command; `ended` comes as usual, or `stuck`. */
void stream_kill(struct stream *stream);

/* Fills *ret_state and returns true, or false when the guest knows the stream no more. */
bool stream_save(const struct stream *stream, struct stream_state *ret_state);

/* The number on the control port. */
uint32_t stream_id(const struct stream *stream);

/*
 * Takes a frame for this stream. Returns 0, or -EBADMSG when the guest may not send it now: more
 * than its credit, a second EXIT or STARTED, data after EOF. *ret_started is set by STARTED.
 */
int stream_frame(struct stream *stream, const struct wire_frame *frame, bool *ret_started);

/* Whether this is the first LOG of the stream; only that one is for the client. */
bool stream_first_log(struct stream *stream);

/* The control port has room again. */
void stream_writable(struct stream *stream);

/* What to tell the client, after ended. Before that the command counts as killed. */
void stream_result(const struct stream *stream, struct ipc_message *ret_message);
