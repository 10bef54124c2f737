#include "keeper/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "wire/ctl.h"

/* Bulk data stops at the first; the rest is for control messages and whole EXEC requests. */
#define OUT_BULK_MAX ((size_t)256 << 10)
#define OUT_MAX ((size_t)1 << 20)
/* What requests leave free, for orders and credit. */
#define OUT_RESERVE ((size_t)128 << 10)
/* Reads in one turn, so that a flood does not starve the other descriptors. */
#define READS_PER_TURN 64
/* Reads of what is left when the machine has ended: several times what a socket holds. */
#define READS_LEFT_MAX 64

struct control {
	int fd;
	struct loop *loop;
	struct control_events events;
	struct wire_decoder decoder;
	/* Set when an event freed us while we were working. */
	bool *freed;
	/* Bulk data was turned away, and nobody was told yet that there is room again. */
	bool starved;
	/* Only so many bytes may still go out. */
	bool held;
	size_t passing;
	size_t out_start;
	size_t out_size;
	/* The frame that ends a hold has room of its own. */
	uint8_t out[OUT_MAX + WIRE_HEADER_SIZE];
};

static size_t sendable(const struct control *control)
{
	return control->held ? control->passing : control->out_size;
}

static void flush(struct control *control)
{
	bool wanted;

	while (sendable(control) > 0) {
		ssize_t sent = send(control->fd, control->out + control->out_start,
				    sendable(control), MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent < 0) {
			break;
		}
		control->out_start += (size_t)sent;
		control->out_size -= (size_t)sent;
		control->passing -= control->held ? (size_t)sent : 0;
	}
	if (control->out_size == 0) {
		control->out_start = 0;
	}
	control->starved = control->starved || !control_has_room(control);
	wanted = sendable(control) > 0 || (control->starved && !control->held);
	loop_modify(control->loop, control->fd, wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Hands out the frames that are whole. False when the port is gone. */
static bool take_frames(struct control *control)
{
	bool freed = false;
	struct wire_frame frame;
	int rc;

	control->freed = &freed;
	while ((rc = wire_decoder_next(&control->decoder, &frame)) > 0) {
		control->events.frame(control->events.data, &frame);
		if (freed) {
			return false;
		}
	}
	control->freed = NULL;
	if (rc < 0) {
		loop_remove(control->loop, control->fd);
		control->events.broken(control->events.data);
		return false;
	}
	return true;
}

static bool read_some(struct control *control)
{
	size_t room;
	uint8_t *space = wire_decoder_space(&control->decoder, &room);
	ssize_t got = recv(control->fd, space, room, MSG_DONTWAIT);

	if (got < 0) {
		return false;
	}
	if (got == 0) {
		loop_remove(control->loop, control->fd);
		return false;
	}
	wire_decoder_filled(&control->decoder, (size_t)got);
	return take_frames(control);
}

static void on_event(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct control *control = data;

	(void)loop;
	(void)fd;
	if (events & EPOLLOUT) {
		bool freed = false;

		control->freed = &freed;
		control->starved = false;
		flush(control);
		if (!control->starved) {
			control->events.writable(control->events.data);
		}
		if (freed) {
			return;
		}
		control->freed = NULL;
	}
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		for (unsigned i = 0; i < READS_PER_TURN; i++) {
			if (!read_some(control)) {
				break;
			}
		}
	}
}

int control_new(int fd, struct loop *loop, const struct control_events *events,
		struct control **ret_control)
{
	struct control *control = calloc(1, sizeof(*control));
	int rc;

	if (!control) {
		return -ENOMEM;
	}
	control->fd = fd;
	control->loop = loop;
	control->events = *events;
	rc = loop_add(loop, fd, EPOLLIN, on_event, control);
	if (rc < 0) {
		free(control);
		return rc;
	}
	*ret_control = control;
	return 0;
}

void control_free(struct control *control)
{
	if (!control) {
		return;
	}
	if (control->freed) {
		*control->freed = true;
	}
	loop_remove(control->loop, control->fd);
	close(control->fd);
	free(control);
}

void control_drain(struct control *control)
{
	/* A monitor that only says it has ended may go on sending; it is not listened to for ever.
	 */
	for (unsigned i = 0; control && i < READS_LEFT_MAX && read_some(control); i++) {
	}
}

bool control_has_room(const struct control *control)
{
	return control->out_size + WIRE_FRAME_MAX <= OUT_BULK_MAX;
}

static void append(struct control *control, const void *data, size_t size)
{
	if (control->out_start + control->out_size + size > sizeof(control->out)) {
		memmove(control->out, control->out + control->out_start, control->out_size);
		control->out_start = 0;
	}
	if (size > 0) {
		memcpy(control->out + control->out_start + control->out_size, data, size);
		control->out_size += size;
	}
}

static int queue(struct control *control, uint8_t type, uint8_t channel, uint32_t stream,
		 const void *payload, size_t size)
{
	uint8_t header[WIRE_HEADER_SIZE];

	ASSERT(size <= WIRE_PAYLOAD_MAX);
	if (control->out_size + sizeof(header) + size > OUT_MAX) {
		return -ENOBUFS;
	}
	wire_header_encode(header, type, channel, stream, (uint32_t)size);
	append(control, header, sizeof(header));
	append(control, payload, size);
	return 0;
}

void control_hold(struct control *control)
{
	control->held = true;
	control->passing = control->out_size;
}

void control_go_on(struct control *control, uint8_t type)
{
	uint8_t *place;

	if (!control->held) {
		return;
	}
	if (control->out_start > 0) {
		memmove(control->out, control->out + control->out_start, control->out_size);
		control->out_start = 0;
	}
	place = control->out + control->passing;
	memmove(place + WIRE_HEADER_SIZE, place, control->out_size - control->passing);
	wire_header_encode(place, type, 0, 0, 0);
	control->out_size += WIRE_HEADER_SIZE;
	control->held = false;
	flush(control);
}

int control_send(struct control *control, uint8_t type, uint8_t channel, uint32_t stream,
		 const void *payload, size_t size)
{
	int rc = queue(control, type, channel, stream, payload, size);

	if (rc == 0) {
		flush(control);
	}
	return rc;
}

int control_send_exec(struct control *control, uint32_t stream, const uint8_t *payload, size_t size)
{
	size_t frames = size / WIRE_PAYLOAD_MAX + 1;

	if (control->out_size + size + frames * WIRE_HEADER_SIZE > OUT_MAX - OUT_RESERVE) {
		return -ENOBUFS;
	}
	while (size > WIRE_PAYLOAD_MAX) {
		queue(control, WIRE_EXEC, 1, stream, payload, WIRE_PAYLOAD_MAX);
		payload += WIRE_PAYLOAD_MAX;
		size -= WIRE_PAYLOAD_MAX;
	}
	queue(control, WIRE_EXEC, 0, stream, payload, size);
	flush(control);
	return 0;
}
