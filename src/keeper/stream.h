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

struct stream_events {
	/* The command has ended and its pipes are closed. The stream may be freed in the call. */
	void (*ended)(void *data, struct stream *stream);
	/* The guest did not end the command when told to. */
	void (*stuck)(void *data, struct stream *stream);
	void *data;
};

struct stream_config {
	uint32_t id;
	/* Taken over, also on failure; -EBADF where there is none. */
	int stdin_fd;
	int output_fds[2];
	uint32_t timeout_seconds;
};

/* Opens the stream; the caller sends EXEC. Returns 0 or a negative errno. */
int stream_new(const struct stream_config *config, struct control *control, struct loop *loop,
	       const struct stream_events *events, struct stream **ret_stream);
void stream_free(struct stream *stream);

/* The number that the client chose. */
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

/* What to tell the client, after ended. */
void stream_result(const struct stream *stream, struct ipc_message *ret_message);
