/*
 * The keeper's end of the control port: frames in, frames out, over one socket that leads to the
 * guest. What comes in is hostile; a broken frame closes the port for good.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/loop.h"
#include "wire/frame.h"

struct control;

struct control_events {
	/* A whole frame has come; valid during the call. */
	void (*frame)(void *data, const struct wire_frame *frame);
	/* The guest sent what is no frame; nothing more is read. When the monitor closes the port
	 * there is no event here: its own end tells more. */
	void (*broken)(void *data);
	/* There is room again for bulk data. */
	void (*writable)(void *data);
	void *data;
};

/* Takes fd over. Returns 0 or a negative errno; then fd is still the caller's. */
int control_new(int fd, struct loop *loop, const struct control_events *events,
		struct control **ret_control);
void control_free(struct control *control);

/* Queues one frame. Returns 0, or -ENOBUFS when the guest has not read for too long. */
int control_send(struct control *control, uint8_t type, uint8_t channel, uint32_t stream,
		 const void *payload, size_t size);

/* Queues EXEC in as many frames as it takes. Returns 0 or -ENOBUFS; then nothing was queued. */
int control_send_exec(struct control *control, uint32_t stream, const uint8_t *payload,
		      size_t size);

/*
 * Holds back what is queued from now on: the guest keeps still and must hear nothing else.
 * control_go_on lets it go again, behind one frame of type without payload.
 */
void control_hold(struct control *control);
void control_go_on(struct control *control, uint8_t type);

/* Takes in what has come already, without waiting: at least all that was there at the call. */
void control_drain(struct control *control);

/* Whether a whole frame of bulk data may be queued now, leaving room for control messages. */
bool control_has_room(const struct control *control);
