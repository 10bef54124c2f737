#include "guest/outbox.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"

size_t outbox_room(const struct outbox *outbox)
{
	size_t room = sizeof(outbox->data) - (outbox->end - outbox->start);

	return room <= WIRE_HEADER_SIZE ? 0 : MIN(room - WIRE_HEADER_SIZE, WIRE_PAYLOAD_MAX);
}

/* Moves what is waiting to the front when the end has no room for a largest frame. */
static void compact(struct outbox *outbox)
{
	if (outbox->start > 0 && sizeof(outbox->data) - outbox->end < WIRE_FRAME_MAX) {
		memmove(outbox->data, outbox->data + outbox->start, outbox->end - outbox->start);
		outbox->end -= outbox->start;
		outbox->start = 0;
	}
}

uint8_t *outbox_payload(struct outbox *outbox)
{
	compact(outbox);
	return outbox->data + outbox->end + WIRE_HEADER_SIZE;
}

void outbox_commit(struct outbox *outbox, const struct wire_frame *frame)
{
	ASSERT(frame->length <= outbox_room(outbox));
	wire_header_encode(outbox->data + outbox->end, frame->type, frame->channel, frame->stream,
			   frame->length);
	outbox->end += WIRE_HEADER_SIZE + frame->length;
}

bool outbox_put(struct outbox *outbox, const struct wire_frame *frame)
{
	/* A frame without payload needs room for its header all the same. */
	if (outbox_room(outbox) < MAX(frame->length, 1u)) {
		return false;
	}
	if (frame->length > 0) {
		memcpy(outbox_payload(outbox), frame->payload, frame->length);
	} else {
		compact(outbox);
	}
	outbox_commit(outbox, frame);
	return true;
}

int outbox_flush(struct outbox *outbox, int fd)
{
	while (outbox->start < outbox->end) {
		ssize_t written =
			write(fd, outbox->data + outbox->start, outbox->end - outbox->start);

		if (written < 0) {
			if (errno == EINTR) {
				continue;
			}
			return errno == EAGAIN ? 0 : -errno;
		}
		outbox->start += (size_t)written;
	}
	outbox->start = 0;
	outbox->end = 0;
	return 0;
}
