/*
 * The port box.net: frames of the guest's agent in, frames for it out. wire/net.h says which may
 * come when; whoever breaks the rules loses the port, and the keeper, which is told, ends the
 * machine.
 *
 * Out: nothing waits in a queue that a guest could make long. What must be said is a few bits of a
 * stream or a question until there is room; bytes stay in the sockets. So the port can always be
 * read, whatever the agent does, and two sides that both wait for the other cannot be.
 *
 * The one thing that stops reading is a keeper that does not take its events.
 */
#include "net/net.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "wire/bytes.h"

/* Less than that is not worth a frame of its own. */
#define ROOM_MIN 4096
/* Turns of filling and writing before other descriptors get theirs. */
#define TURNS_MAX 8

void port_close(struct net *net)
{
	if (net->port_fd < 0) {
		return;
	}
	loop_remove(net->loop, net->port_fd);
	close_fd(&net->port_fd);
	stream_drop_all(net, IPC_NET_END_PORT);
	question_drop_all(net);
}

static int take_hello(struct net *net, const struct wire_frame *frame)
{
	struct net_hello hello;

	if (net_hello_decode(frame->payload, frame->length, &hello) < 0) {
		net->wrong = "its HELLO is none";
		return -EBADMSG;
	}
	if (hello.version != NET_VERSION) {
		net->wrong = "its HELLO has another version";
		return -EBADMSG;
	}
	/* Perhaps another agent. It knows of nothing, and looks for our HELLO with its token. */
	stream_drop_all(net, IPC_NET_END_PORT);
	question_drop_all(net);
	net->out_end = net->out_start + net->out_begun;
	net->say_hello = true;
	net->token = hello.token;
	net->greeted = true;
	net->last_stream = 0;
	return 0;
}

static int take_frame(struct net *net, const struct wire_frame *frame)
{
	struct net_resolve resolve;
	struct net_open open;

	if (net_frame_check(frame, true) < 0) {
		net->wrong = "it sent a frame that the port does not have";
		return -EBADMSG;
	}
	if (frame->type == NET_HELLO) {
		return take_hello(net, frame);
	}
	if (!net->greeted) {
		net->wrong = "it did not begin with HELLO";
		return -EBADMSG;
	}
	if (frame->type == NET_RESOLVE) {
		if (net_resolve_decode(frame->payload, frame->length, &resolve) < 0) {
			net->wrong = "its question is none";
			return -EBADMSG;
		}
		return question_ask(net, &resolve);
	}
	if (frame->type == NET_OPEN) {
		if (net_open_decode(frame->payload, frame->length, &open) < 0) {
			net->wrong = "its OPEN is none";
			return -EBADMSG;
		}
		return stream_open(net, frame->stream, &open);
	}
	return stream_frame(net, frame);
}

static void take_frames(struct net *net)
{
	struct wire_frame frame;
	int rc = 0;

	while (!net->stalled && net->port_fd >= 0) {
		rc = wire_decoder_next(&net->decoder, &frame);
		if (rc == 0) {
			break;
		}
		if (rc < 0) {
			net->wrong = "what it sent is no frame";
		} else {
			rc = take_frame(net, &frame);
		}
		if (rc < 0) {
			report_limit(net, IPC_NET_LIMIT_PROTOCOL, 0, net->wrong);
			port_close(net);
			return;
		}
	}
	question_begin_waiting(net);
	stream_begin_waiting(net);
}

void port_resume(struct net *net)
{
	take_frames(net);
}

static void lose(struct net *net)
{
	report_limit(net, IPC_NET_LIMIT_CLOSED, 0, "the machine's end of the port is closed");
	port_close(net);
}

static void on_port(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct net *net = data;
	size_t size = 0;
	uint8_t *space;
	ssize_t got;

	(void)loop;
	if ((events & ~(uint32_t)EPOLLOUT) != 0) {
		space = net->stalled ? NULL : wire_decoder_space(&net->decoder, &size);
		got = size > 0 ? recv(fd, space, size, MSG_DONTWAIT) : -1;
		if (got > 0) {
			wire_decoder_filled(&net->decoder, (size_t)got);
			take_frames(net);
		} else if (got == 0 || (events & (EPOLLHUP | EPOLLERR)) != 0 ||
			   (size > 0 && errno != EAGAIN && errno != EINTR)) {
			lose(net);
			return;
		}
	}
	port_pump(net);
}

size_t port_room(struct net *net, uint8_t **ret_payload)
{
	size_t used = net->out_end - net->out_start;
	size_t room;

	if (used == 0 || (OUT_SIZE - net->out_end < WIRE_FRAME_MAX && net->out_start > 0)) {
		memmove(net->out, net->out + net->out_start, used);
		net->out_start = 0;
		net->out_end = used;
	}
	room = OUT_SIZE - net->out_end;
	if (room < WIRE_HEADER_SIZE + ROOM_MIN) {
		return 0;
	}
	*ret_payload = net->out + net->out_end + WIRE_HEADER_SIZE;
	return MIN(room - WIRE_HEADER_SIZE, (size_t)WIRE_PAYLOAD_MAX);
}

/* The payload is in its place already. */
static void put_frame(struct net *net, enum net_type type, uint32_t stream, size_t size)
{
	wire_header_encode(net->out + net->out_end, (uint8_t)type, 0, stream, (uint32_t)size);
	net->out_end += WIRE_HEADER_SIZE + size;
}

void port_put_data(struct net *net, uint32_t number, size_t size)
{
	put_frame(net, NET_DATA, number, size);
}

/* Puts as much as there is room for: what is short first, so that no credit waits behind bytes.
 * Returns whether something was left. */
static bool fill(struct net *net)
{
	uint8_t *payload;
	struct stream *stream;

	while (port_room(net, &payload) > 0) {
		size_t size = 0;

		if (net->say_hello) {
			const struct net_hello hello = {
				.magic = NET_MAGIC, .version = NET_VERSION, .token = net->token};

			net->say_hello = false;
			put_frame(net, NET_HELLO, 0, (size_t)net_hello_encode(&hello, payload));
			continue;
		}
		size = question_take_answer(net, payload);
		if (size > 0) {
			put_frame(net, NET_RESOLVED, 0, size);
			continue;
		}
		stream = TAILQ_FIRST(&net->says);
		if (stream) {
			net->out_end += stream_take_says(stream, payload - WIRE_HEADER_SIZE);
			continue;
		}
		stream = TAILQ_FIRST(&net->reads);
		if (!stream) {
			return false;
		}
		stream_read(stream);
	}
	return true;
}

/* size bytes of the row are gone; how much of the last frame of them is not? */
static void advance(struct net *net, size_t size)
{
	while (size > 0) {
		size_t part;

		if (net->out_begun == 0) {
			struct wire_reader reader =
				wire_reader_over(net->out + net->out_start, WIRE_HEADER_SIZE);

			net->out_begun = WIRE_HEADER_SIZE + wire_get_u32(&reader);
		}
		part = MIN(size, net->out_begun);
		net->out_start += part;
		net->out_begun -= part;
		size -= part;
	}
}

void port_pump(struct net *net)
{
	bool more = true;

	for (int turn = 0; turn < TURNS_MAX && more && net->port_fd >= 0; turn++) {
		ssize_t sent;

		more = fill(net);
		if (net->out_start == net->out_end) {
			break;
		}
		sent = send(net->port_fd, net->out + net->out_start, net->out_end - net->out_start,
			    MSG_DONTWAIT | MSG_NOSIGNAL);
		if (sent < 0 && errno != EAGAIN && errno != EINTR) {
			lose(net);
			return;
		}
		if (sent <= 0) {
			break;
		}
		advance(net, (size_t)sent);
	}
	if (net->port_fd >= 0) {
		bool waits = more || net->out_start < net->out_end;

		(void)loop_modify(net->loop, net->port_fd,
				  (net->stalled ? 0 : (uint32_t)EPOLLIN) |
					  (waits ? (uint32_t)EPOLLOUT : 0));
	}
}

int port_begin(struct net *net)
{
	return loop_add(net->loop, net->port_fd, EPOLLIN, on_port, net);
}
