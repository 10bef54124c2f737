/*
 * Frames on their way to the host: one fixed buffer in front of the port.
 *
 * The port is never waited for while commands run. What does not fit stays where it came from: a
 * command's output in its pipe, everything else as a flag of its stream.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/frame.h"

/* A few whole frames: enough to keep the port busy, little enough to stay fair among streams. */
#define OUTBOX_BYTES (4 * WIRE_FRAME_MAX)
/* Beyond that, for urgent frames only: eight answers to TIME. */
#define OUTBOX_URGENT_BYTES (8 * (WIRE_HEADER_SIZE + 16))

struct outbox {
	size_t start;
	size_t end;
	/* Where the first frame begins of which nothing has gone out. */
	size_t unsent;
	uint8_t data[OUTBOX_BYTES + OUTBOX_URGENT_BYTES];
};

/* Whether everything that was put in has gone out. */
static inline bool outbox_empty(const struct outbox *outbox)
{
	return outbox->start == outbox->end;
}

/* How large a payload fits now; at most WIRE_PAYLOAD_MAX. */
size_t outbox_room(const struct outbox *outbox);

/* Appends a whole frame. Returns false, and does nothing, when there is no room. */
bool outbox_put(struct outbox *outbox, const struct wire_frame *frame);

/*
 * Puts a whole frame before all others of which nothing has gone out, but after those of its own
 * type. Returns false, and does
 * nothing, when there is no room for it either.
 */
bool outbox_put_urgent(struct outbox *outbox, const struct wire_frame *frame);

/* Where the payload of the next frame may be written: outbox_room() bytes, which are at least 1. */
uint8_t *outbox_payload(struct outbox *outbox);

/* Makes a frame of the header's fields and of frame->length bytes written at outbox_payload(). */
void outbox_commit(struct outbox *outbox, const struct wire_frame *frame);

/*
 * Writes what the non-blocking descriptor takes. Returns 0 (also when something is left) or a
 * negative errno.
 */
int outbox_flush(struct outbox *outbox, int fd);
