#include "guest/outbox.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "wire/bytes.h"

size_t outbox_room(const struct outbox *outbox)
{
	size_t waiting = outbox->end - outbox->start;
	size_t room = OUTBOX_BYTES - MIN(waiting, (size_t)OUTBOX_BYTES);

	return room <= WIRE_HEADER_SIZE ? 0 : MIN(room - WIRE_HEADER_SIZE, WIRE_PAYLOAD_MAX);
}

static void move_to_front(struct outbox *outbox)
{
	memmove(outbox->data, outbox->data + outbox->start, outbox->end - outbox->start);
	outbox->end -= outbox->start;
	outbox->unsent -= outbox->start;
	outbox->start = 0;
}

/* Moves what is waiting to the front when the end has no room for a largest frame. */
static void compact(struct outbox *outbox)
{
	if (outbox->start > 0 && sizeof(outbox->data) - outbox->end < WIRE_FRAME_MAX) {
		move_to_front(outbox);
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

/* The offset after the frame at an offset, and its type. */
static size_t next_frame(const struct outbox *outbox, size_t offset, uint8_t *ret_type)
{
	struct wire_reader header = wire_reader_over(outbox->data + offset, WIRE_HEADER_SIZE);
	uint32_t length = wire_get_u32(&header);

	*ret_type = wire_get_u8(&header);
	return offset + WIRE_HEADER_SIZE + length;
}

static size_t find_urgent_end(const struct outbox *outbox, uint8_t type)
{
	size_t offset = outbox->unsent;

	while (offset < outbox->end) {
		uint8_t found;
		size_t next = next_frame(outbox, offset, &found);

		if (found != type) {
			break;
		}
		offset = next;
	}
	return offset;
}

bool outbox_put_urgent(struct outbox *outbox, const struct wire_frame *frame)
{
	size_t size = WIRE_HEADER_SIZE + frame->length;
	size_t offset;
	uint8_t *target;

	if (sizeof(outbox->data) - (outbox->end - outbox->start) < size) {
		return false;
	}
	if (sizeof(outbox->data) - outbox->end < size) {
		move_to_front(outbox);
	}
	offset = find_urgent_end(outbox, frame->type);
	target = outbox->data + offset;
	memmove(target + size, target, outbox->end - offset);
	wire_header_encode(target, frame->type, frame->channel, frame->stream, frame->length);
	if (frame->length > 0) {
		memcpy(target + WIRE_HEADER_SIZE, frame->payload, frame->length);
	}
	outbox->end += size;
	return true;
}

/* Follows start to the next frame of which nothing has gone out. */
static void find_unsent(struct outbox *outbox)
{
	uint8_t ignored;

	while (outbox->unsent < outbox->start) {
		outbox->unsent = next_frame(outbox, outbox->unsent, &ignored);
	}
	ASSERT(outbox->unsent <= outbox->end);
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
		find_unsent(outbox);
	}
	outbox->start = 0;
	outbox->end = 0;
	outbox->unsent = 0;
	return 0;
}
