#include "guest/net_stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/net_agent.h"
#include "guest/net_packet.h"
#include "guest/net_pool.h"
#include "guest/tcp.h"

/* How long the handshake inside may take once the SYN has been let through. */
#define RELEASED_MS 10000u
/* How long a program goes on asking: with tcp_syn_retries at 4 it gives up after 31 s. */
#define TIMED_OUT_MS 35000u
/* The host is told of room in its window when so much has been passed on. */
#define CREDIT_STEP (NET_WINDOW / 4)
/* Connections taken in one turn, so that others get theirs. */
#define ACCEPTS_MAX 64
/* A container may vanish with its network and say nothing. Nobody waits for less. */
#define KEEPALIVE_S 60

static unsigned index_of(const struct net_agent *agent, const struct net_stream *stream)
{
	return (unsigned)(stream - agent->streams.table);
}

/* ---- Finding ---- */

static unsigned hash_tuple(const struct net_tuple *tuple)
{
	const uint8_t *bytes = (const uint8_t *)tuple;
	/* FNV-1a; the programs inside can only slow their own machine by collisions. */
	uint32_t hash = 2166136261u;

	for (size_t i = 0; i < sizeof(*tuple); i++) {
		hash = (hash ^ bytes[i]) * 16777619u;
	}
	return (hash ^ hash >> 16) % NET_STREAMS_MAX;
}

static struct net_stream *find_tuple(struct net_agent *agent, const struct net_tuple *tuple)
{
	struct net_streams *streams = &agent->streams;

	for (unsigned i = streams->by_tuple[hash_tuple(tuple)]; i != 0;
	     i = streams->table[i - 1].next_by_tuple) {
		if (memcmp(&streams->table[i - 1].syn.tuple, tuple, sizeof(*tuple)) == 0) {
			return &streams->table[i - 1];
		}
	}
	return NULL;
}

static struct net_stream *find_number(struct net_agent *agent, uint32_t number)
{
	struct net_streams *streams = &agent->streams;

	for (unsigned i = streams->by_number[number % NET_STREAMS_MAX]; i != 0;
	     i = streams->table[i - 1].next_by_number) {
		if (streams->table[i - 1].number == number) {
			return &streams->table[i - 1];
		}
	}
	return NULL;
}

/* Only streams without a connection are found by their tuple. */
static void unlink_tuple(struct net_agent *agent, const struct net_stream *stream)
{
	struct net_streams *streams = &agent->streams;
	uint16_t *link = &streams->by_tuple[hash_tuple(&stream->syn.tuple)];

	while (*link != 0) {
		struct net_stream *at = &streams->table[*link - 1];

		if (at == stream) {
			*link = at->next_by_tuple;
			return;
		}
		link = &at->next_by_tuple;
	}
}

static void unlink_number(struct net_agent *agent, const struct net_stream *stream)
{
	struct net_streams *streams = &agent->streams;
	uint16_t *link = &streams->by_number[stream->number % NET_STREAMS_MAX];

	while (*link != 0) {
		struct net_stream *at = &streams->table[*link - 1];

		if (at == stream) {
			*link = at->next_by_number;
			return;
		}
		link = &at->next_by_number;
	}
}

static void link_stream(struct net_agent *agent, struct net_stream *stream)
{
	struct net_streams *streams = &agent->streams;
	uint16_t *by_tuple = &streams->by_tuple[hash_tuple(&stream->syn.tuple)];
	uint16_t *by_number;

	do {
		streams->last_number++;
	} while (streams->last_number == 0 || find_number(agent, streams->last_number));
	stream->number = streams->last_number;
	by_number = &streams->by_number[stream->number % NET_STREAMS_MAX];
	stream->next_by_tuple = *by_tuple;
	*by_tuple = (uint16_t)(index_of(agent, stream) + 1);
	stream->next_by_number = *by_number;
	*by_number = (uint16_t)(index_of(agent, stream) + 1);
}

/* ---- Beginning and end ---- */

static void queue(struct net_agent *agent, struct net_stream *stream)
{
	struct net_streams *streams = &agent->streams;

	if (!stream->queued) {
		stream->queued = true;
		streams->queue[(streams->queue_start + streams->queue_count) % NET_STREAMS_MAX] =
			(uint16_t)index_of(agent, stream);
		streams->queue_count++;
	}
}

static void due(struct net_agent *agent, struct net_stream *stream, enum net_stream_due what)
{
	stream->due |= (uint8_t)what;
	queue(agent, stream);
}

/* Frees the place. The connection is closed as usual, or by a reset if abort is set. */
static void end(struct net_agent *agent, struct net_stream *stream, bool abort)
{
	bool queued = stream->queued;

	if (stream->state != NET_STREAM_CONNECTED) {
		unlink_tuple(agent, stream);
	}
	if (stream->state == NET_STREAM_RELEASED) {
		net_bpf_release(&agent->config.bpf, &stream->syn.tuple, false);
	}
	if (stream->state != NET_STREAM_TIMED_OUT) {
		unlink_number(agent, stream);
	}
	if (stream->fd >= 0 && abort) {
		tcp_abort(stream->fd);
	}
	close_fd(&stream->fd);
	free(stream->ring);
	*stream = (struct net_stream){.fd = -EBADF, .queued = queued};
}

/* The program's connection is broken, or never came: the host is told. */
static void reset(struct net_agent *agent, struct net_stream *stream)
{
	if (stream->fd >= 0) {
		tcp_abort(stream->fd);
		close_fd(&stream->fd);
	}
	stream->readable = false;
	stream->due = 0;
	due(agent, stream, NET_DUE_RESET);
}

/* Gives the program the error that the host saw. */
static void refuse(const struct net_agent *agent, const struct net_syn *syn, int error)
{
	uint8_t packet[NET_PACKET_MAX];
	size_t size;

	if (error == EHOSTUNREACH || error == ENETUNREACH) {
		size = net_packet_unreachable(syn, error, packet);
	} else {
		size = net_packet_refusal(syn, packet);
	}
	net_agent_send(agent, packet, size, syn->tuple.source);
}

static struct net_stream *find_free(struct net_agent *agent)
{
	struct net_streams *streams = &agent->streams;

	for (unsigned i = 0; i < NET_STREAMS_MAX; i++) {
		unsigned index = (streams->hint + i) % NET_STREAMS_MAX;

		if (streams->table[index].state == NET_STREAM_FREE) {
			streams->hint = index + 1;
			return &streams->table[index];
		}
	}
	return NULL;
}

static bool has_name(const struct net_agent *agent, const struct net_tuple *tuple)
{
	uint32_t number;

	return !net_pool_contains(tuple->destination, &number) ||
	       net_dns_name(&agent->dns, number) != NULL;
}

static void ask(struct net_agent *agent, const struct net_syn *syn)
{
	struct net_stream *stream = find_tuple(agent, &syn->tuple);
	const uint8_t *port = syn->tuple.destination_port;

	if (stream) {
		/* Repeated; or the program has begun again with another number. */
		stream->syn = *syn;
		return;
	}
	if ((port[0] == 0 && port[1] == 0) || !has_name(agent, &syn->tuple)) {
		refuse(agent, syn, ECONNREFUSED);
		return;
	}
	stream = find_free(agent);
	if (!stream) {
		/* The program repeats it after a second. */
		return;
	}
	*stream = (struct net_stream){
		.state = NET_STREAM_ASKED,
		.queued = stream->queued,
		.syn = *syn,
		.fd = -EBADF,
		.credit = NET_UP_WINDOW,
		.window = NET_WINDOW,
	};
	link_stream(agent, stream);
	due(agent, stream, NET_DUE_OPEN);
}

void net_streams_held(struct net_agent *agent)
{
	struct net_ring *ring = &agent->config.ring;
	struct net_syn syn;

	while (net_ring_next(ring, &syn)) {
		ask(agent, &syn);
	}
}

/* ---- To the program ---- */

static void passed_on(struct net_agent *agent, struct net_stream *stream, size_t size)
{
	stream->owed += (uint32_t)size;
	if (stream->owed >= CREDIT_STEP && !stream->eof_received) {
		due(agent, stream, NET_DUE_CREDIT);
	}
}

/* Sends what the socket takes. Returns how much, or a negative errno when it is broken. */
static ssize_t send_some(struct net_stream *stream, const uint8_t *data, size_t size)
{
	ssize_t sent;

	do {
		sent = send(stream->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (sent < 0 && errno == EINTR);
	if (sent < 0 && errno != EAGAIN) {
		return -errno;
	}
	if (sent < (ssize_t)size) {
		stream->writable = false;
	}
	return MAX(sent, (ssize_t)0);
}

/* After all bytes: the host's EOF, and the end of a stream that has ended both ways. */
static void settle(struct net_agent *agent, struct net_stream *stream)
{
	if (stream->ring_filled > 0 || !stream->eof_received) {
		return;
	}
	if (!stream->shut) {
		stream->shut = true;
		shutdown(stream->fd, SHUT_WR);
	}
	if (stream->eof_sent) {
		end(agent, stream, false);
	}
}

static void drain(struct net_agent *agent, struct net_stream *stream)
{
	while (stream->ring_filled > 0 && stream->writable) {
		uint32_t piece = MIN(stream->ring_filled, NET_WINDOW - stream->ring_start);
		ssize_t sent = send_some(stream, stream->ring + stream->ring_start, piece);

		if (sent < 0) {
			reset(agent, stream);
			return;
		}
		stream->ring_start = (stream->ring_start + (uint32_t)sent) % NET_WINDOW;
		stream->ring_filled -= (uint32_t)sent;
		passed_on(agent, stream, (size_t)sent);
	}
	if (stream->ring_filled == 0) {
		free(TAKE_PTR(stream->ring));
		stream->ring_start = 0;
	}
	settle(agent, stream);
}

static int keep(struct net_stream *stream, const uint8_t *data, size_t size)
{
	uint32_t end_offset, piece;

	if (!stream->ring) {
		stream->ring = malloc(NET_WINDOW);
		if (!stream->ring) {
			return -ENOMEM;
		}
	}
	end_offset = (stream->ring_start + stream->ring_filled) % NET_WINDOW;
	piece = MIN((uint32_t)size, NET_WINDOW - end_offset);
	memcpy(stream->ring + end_offset, data, piece);
	memcpy(stream->ring, data + piece, size - piece);
	stream->ring_filled += (uint32_t)size;
	return 0;
}

static int on_data(struct net_agent *agent, struct net_stream *stream,
		   const struct wire_frame *frame)
{
	size_t sent = 0;

	if (frame->length > stream->window || stream->eof_received) {
		return -EBADMSG;
	}
	stream->window -= frame->length;
	if (stream->due & NET_DUE_RESET) {
		return 0;
	}
	if (stream->fd >= 0 && stream->writable && stream->ring_filled == 0) {
		ssize_t rc = send_some(stream, frame->payload, frame->length);

		if (rc < 0) {
			reset(agent, stream);
			return 0;
		}
		sent = (size_t)rc;
		passed_on(agent, stream, sent);
	}
	if (sent < frame->length && keep(stream, frame->payload + sent, frame->length - sent) < 0) {
		reset(agent, stream);
	}
	return 0;
}

static int on_eof(struct net_agent *agent, struct net_stream *stream)
{
	if (stream->eof_received) {
		return -EBADMSG;
	}
	stream->eof_received = true;
	if (stream->state == NET_STREAM_CONNECTED && !(stream->due & NET_DUE_RESET)) {
		settle(agent, stream);
	}
	return 0;
}

static int on_credit(struct net_agent *agent, struct net_stream *stream,
		     const struct wire_frame *frame)
{
	uint32_t bytes;

	if (net_credit_decode(frame->payload, frame->length, &bytes) < 0 ||
	    bytes > NET_UP_WINDOW - stream->credit) {
		return -EBADMSG;
	}
	stream->credit += bytes;
	if (stream->readable) {
		queue(agent, stream);
	}
	return 0;
}

static void on_reset(struct net_agent *agent, struct net_stream *stream)
{
	if (stream->state == NET_STREAM_RELEASED && stream->due == 0) {
		/* The program's connection is about to be there, and is then reset. */
		stream->reset_received = true;
		return;
	}
	end(agent, stream, true);
}

static int on_opened(struct net_agent *agent, struct net_stream *stream)
{
	uint8_t packet[NET_PACKET_MAX];
	size_t size;

	if (stream->state != NET_STREAM_ASKED || (stream->due & NET_DUE_OPEN)) {
		return -EBADMSG;
	}
	if (stream->due & NET_DUE_RESET) {
		return 0;
	}
	stream->state = NET_STREAM_RELEASED;
	stream->deadline_ns = clock_monotonic_ns() + RELEASED_MS * UINT64_C(1000000);
	agent->streams.ticking = true;
	if (net_bpf_release(&agent->config.bpf, &stream->syn.tuple, true) < 0) {
		refuse(agent, &stream->syn, ECONNREFUSED);
		reset(agent, stream);
		return 0;
	}
	size = net_packet_syn(&stream->syn, packet);
	net_agent_send(agent, packet, size, stream->syn.tuple.destination);
	return 0;
}

static int on_failed(struct net_agent *agent, struct net_stream *stream,
		     const struct wire_frame *frame)
{
	int error;

	if (stream->state != NET_STREAM_ASKED || (stream->due & NET_DUE_OPEN) ||
	    net_failed_decode(frame->payload, frame->length, &error) < 0) {
		return -EBADMSG;
	}
	if (error == ETIMEDOUT) {
		unlink_number(agent, stream);
		stream->state = NET_STREAM_TIMED_OUT;
		stream->due = 0;
		stream->deadline_ns = clock_monotonic_ns() + TIMED_OUT_MS * UINT64_C(1000000);
		agent->streams.ticking = true;
		return 0;
	}
	refuse(agent, &stream->syn, error);
	end(agent, stream, false);
	return 0;
}

int net_streams_frame(struct net_agent *agent, const struct wire_frame *frame)
{
	struct net_stream *stream = find_number(agent, frame->stream);

	/* What has ended is dropped without complaint: the two sides cross on the way. */
	if (!stream) {
		return 0;
	}
	if (frame->type == NET_OPENED) {
		return on_opened(agent, stream);
	}
	if (frame->type == NET_FAILED) {
		return on_failed(agent, stream, frame);
	}
	if (stream->state == NET_STREAM_ASKED) {
		return -EBADMSG;
	}
	switch (frame->type) {
	case NET_DATA:
		return on_data(agent, stream, frame);
	case NET_EOF:
		return on_eof(agent, stream);
	case NET_CREDIT:
		return on_credit(agent, stream, frame);
	case NET_RESET:
		on_reset(agent, stream);
		return 0;
	default:
		return -EBADMSG;
	}
}

/* ---- From the program ---- */

static void prepare(int fd)
{
	static const int on = 1, idle_s = KEEPALIVE_S;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	/* It has come from the listener, and is only needed there. */
	setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &on, sizeof(on));
}

static bool tuple_of(int fd, const struct sockaddr_in6 *peer, struct net_tuple *ret_tuple)
{
	struct sockaddr_in6 own;
	socklen_t size = sizeof(own);

	if (getsockname(fd, (struct sockaddr *)&own, &size) < 0) {
		return false;
	}
	memcpy(ret_tuple->source, &peer->sin6_addr, 16);
	memcpy(ret_tuple->source_port, &peer->sin6_port, 2);
	memcpy(ret_tuple->destination, &own.sin6_addr, 16);
	memcpy(ret_tuple->destination_port, &own.sin6_port, 2);
	return true;
}

/* Joins a connection with its stream. Returns false when there is none. */
static bool join(struct net_agent *agent, int fd, const struct sockaddr_in6 *peer)
{
	struct net_stream *stream;
	struct net_tuple tuple;

	stream = tuple_of(fd, peer, &tuple) ? find_tuple(agent, &tuple) : NULL;
	if (!stream || stream->state != NET_STREAM_RELEASED || stream->due != 0) {
		return false;
	}
	net_bpf_release(&agent->config.bpf, &tuple, false);
	if (net_agent_watch(agent, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, NET_SOURCE_STREAM,
			    index_of(agent, stream)) < 0) {
		reset(agent, stream);
		return false;
	}
	unlink_tuple(agent, stream);
	prepare(fd);
	stream->state = NET_STREAM_CONNECTED;
	stream->fd = fd;
	if (stream->reset_received) {
		end(agent, stream, true);
		return true;
	}
	stream->readable = true;
	stream->writable = true;
	queue(agent, stream);
	drain(agent, stream);
	return true;
}

void net_streams_accept(struct net_agent *agent)
{
	for (int i = 0; i < ACCEPTS_MAX; i++) {
		/* getpeername(2) does not know it any more when the program has reset already. */
		struct sockaddr_in6 peer;
		socklen_t size = sizeof(peer);
		_cleanup_close_ int fd =
			accept4(agent->config.sockets[NET_SOCKET_TCP], (struct sockaddr *)&peer,
				&size, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0) {
			return;
		}
		if (join(agent, fd, &peer)) {
			(void)TAKE_FD(fd);
		} else {
			tcp_abort(fd);
		}
	}
}

void net_streams_event(struct net_agent *agent, unsigned index, uint32_t events)
{
	struct net_stream *stream = &agent->streams.table[index];

	/* An event of a connection before, in the same batch, does no harm: all is tried anew. */
	if (stream->state != NET_STREAM_CONNECTED || stream->fd < 0) {
		return;
	}
	if (events & EPOLLERR) {
		int error = 0;
		socklen_t size = sizeof(error);

		/* A reset must be seen also while no credit lets us read. */
		if (getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error != 0) {
			reset(agent, stream);
			return;
		}
	}
	if (events & (EPOLLIN | EPOLLHUP | EPOLLRDHUP)) {
		stream->readable = true;
		queue(agent, stream);
	}
	if (events & EPOLLOUT) {
		stream->writable = true;
		drain(agent, stream);
	}
}

/* ---- To the host ---- */

static void put_open(struct net_agent *agent, struct net_stream *stream)
{
	const struct net_tuple *tuple = &stream->syn.tuple;
	struct net_open open = {
		.port = (uint16_t)(tuple->destination_port[0] << 8 | tuple->destination_port[1]),
	};
	uint32_t number;
	int size;

	if (net_pool_contains(tuple->destination, &number)) {
		open.kind = NET_KIND_NAME;
		open.name = net_dns_name(&agent->dns, number);
	} else if (net_pool_is_v4(tuple->destination)) {
		open.kind = NET_KIND_V4;
		memcpy(open.address, tuple->destination + 12, 4);
	} else {
		open.kind = NET_KIND_V6;
		memcpy(open.address, tuple->destination, 16);
	}
	size = net_open_encode(&open, net_port_payload(&agent->port));
	net_port_commit(&agent->port, NET_OPEN, stream->number, (size_t)size);
}

static void put_data(struct net_agent *agent, struct net_stream *stream)
{
	size_t room = MIN(net_port_room(&agent->port), (size_t)stream->credit);
	ssize_t got;

	if (room == 0) {
		return;
	}
	got = recv(stream->fd, net_port_payload(&agent->port), room, MSG_DONTWAIT);
	if (got > 0) {
		net_port_commit(&agent->port, NET_DATA, stream->number, (size_t)got);
		stream->credit -= (uint32_t)got;
	} else if (got == 0) {
		stream->readable = false;
		stream->due |= NET_DUE_EOF;
	} else if (errno == EAGAIN) {
		stream->readable = false;
	} else if (errno != EINTR) {
		reset(agent, stream);
	}
}

/* One turn of a stream. There are at least NET_PORT_ROOM_MIN bytes of room. */
static void emit(struct net_agent *agent, struct net_stream *stream)
{
	struct net_port *port = &agent->port;

	if (stream->due & NET_DUE_OPEN) {
		stream->due &= (uint8_t)~NET_DUE_OPEN;
		put_open(agent, stream);
	}
	if (stream->due & NET_DUE_CREDIT) {
		int size = net_credit_encode(stream->owed, net_port_payload(port));

		stream->due &= (uint8_t)~NET_DUE_CREDIT;
		net_port_commit(port, NET_CREDIT, stream->number, (size_t)size);
		stream->window += stream->owed;
		stream->owed = 0;
	}
	if (stream->readable && !stream->eof_sent) {
		put_data(agent, stream);
	}
	if (stream->due & NET_DUE_RESET) {
		net_port_commit(port, NET_RESET, stream->number, 0);
		end(agent, stream, true);
		return;
	}
	if ((stream->due & NET_DUE_EOF) && net_port_room(port) > 0) {
		stream->due &= (uint8_t)~NET_DUE_EOF;
		stream->eof_sent = true;
		net_port_commit(port, NET_EOF, stream->number, 0);
		settle(agent, stream);
		return;
	}
	if (stream->due != 0 || (stream->readable && stream->credit > 0 && !stream->eof_sent)) {
		queue(agent, stream);
	}
}

void net_streams_emit(struct net_agent *agent)
{
	struct net_streams *streams = &agent->streams;

	while (streams->queue_count > 0 && net_port_room(&agent->port) >= NET_PORT_ROOM_MIN) {
		struct net_stream *stream = &streams->table[streams->queue[streams->queue_start]];

		streams->queue_start = (streams->queue_start + 1) % NET_STREAMS_MAX;
		streams->queue_count--;
		stream->queued = false;
		if (stream->state != NET_STREAM_FREE && stream->state != NET_STREAM_TIMED_OUT) {
			emit(agent, stream);
		}
	}
}

void net_streams_tick(struct net_agent *agent, uint64_t now_ns)
{
	struct net_streams *streams = &agent->streams;

	if (!streams->ticking) {
		return;
	}
	streams->ticking = false;
	for (unsigned i = 0; i < NET_STREAMS_MAX; i++) {
		struct net_stream *stream = &streams->table[i];

		if (stream->state != NET_STREAM_RELEASED && stream->state != NET_STREAM_TIMED_OUT) {
			continue;
		}
		if (now_ns < stream->deadline_ns) {
			streams->ticking = true;
		} else if (stream->state == NET_STREAM_TIMED_OUT) {
			end(agent, stream, false);
		} else if (stream->reset_received) {
			end(agent, stream, true);
		} else if (stream->due == 0) {
			/* The program has gone meanwhile. */
			reset(agent, stream);
		}
	}
}
