/*
 * One connection of the guest, and its bytes.
 *
 * To the server: what the guest sends is written to the socket at once. What the socket does not
 * take waits in the stream's buffer, which holds NET_UP_WINDOW bytes; the guest has no credit for
 * more, so there is always room, and a server that does not read stops its own stream and no other.
 * The buffers are one mapping that was made at the start. Pages are real once they were needed, and
 * are given back when a stream has caught up: a thousand connections whose servers read cost none.
 *
 * To the guest: bytes are read from the socket straight into the port's room, and only as many as
 * the guest has given credit for. What cannot be read stays with the server.
 *
 * An end of bytes goes on behind them, either way. The server's is held back while bytes of a guest
 * that has ended too are on their way, because with the second end the stream's number is
 * the guest's again. Where the server's end came first that cannot be: such a stream lingers
 * without a number.
 *
 * What may never happen: bytes overtake each other; a stream that was cut looks like one that has
 * ended; more is buffered than was granted.
 */
#include "net/net.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"

/* A quarter: the other side has always most of a window, and a credit is not said for each byte. */
#define CREDIT_STEP (NET_UP_WINDOW / 4)
/* A buffer that was as full as that gives its pages back. */
#define GIVE_BACK 16384
/* Bytes that the kernel holds and has not sent: more would only be memory. */
#define UNSENT_MAX (int)NET_WINDOW
/* A server that has the end of a connection before it, and takes nothing more. */
#define LINGER_NS UINT64_C(120000000000)
/* A peer that is gone is noticed after 4 minutes. */
#define KEEPALIVE_IDLE_S 120
#define KEEPALIVE_STEP_S 30
#define KEEPALIVE_STEPS 4

struct stream *stream_find(struct net *net, uint32_t number)
{
	struct stream *stream = net->buckets[number % BUCKETS];

	while (stream && stream->number != number) {
		stream = stream->next_of_bucket;
	}
	return stream;
}

static void give_number(struct stream *stream, uint32_t number)
{
	struct stream **bucket = &stream->net->buckets[number % BUCKETS];

	stream->number = number;
	stream->next_of_bucket = *bucket;
	*bucket = stream;
	stream->net->numbered++;
}

static void take_number(struct stream *stream)
{
	struct stream **place = &stream->net->buckets[stream->number % BUCKETS];

	while (*place != stream) {
		place = &(*place)->next_of_bucket;
	}
	*place = stream->next_of_bucket;
	stream->number = 0;
	stream->net->numbered--;
}

static void say(struct stream *stream, enum say what)
{
	if (stream->says == 0) {
		TAILQ_INSERT_TAIL(&stream->net->says, stream, say_entry);
	}
	stream->says |= what;
}

static void say_nothing(struct stream *stream)
{
	if (stream->says != 0) {
		stream->says = 0;
		TAILQ_REMOVE(&stream->net->says, stream, say_entry);
	}
}

static void leave_reads(struct stream *stream)
{
	if (stream->in_reads) {
		stream->in_reads = false;
		TAILQ_REMOVE(&stream->net->reads, stream, read_entry);
	}
}

static void give_back_pages(struct stream *stream)
{
	if (stream->buffer_peak >= GIVE_BACK) {
		madvise(stream->buffer, NET_UP_WINDOW, MADV_DONTNEED);
	}
	stream->buffer_peak = stream->buffer_start = stream->buffer_size = 0;
}

/* Everything but the number, the state and what is to be said. */
static void let_go(struct stream *stream)
{
	struct net *net = stream->net;

	if (stream->state == STREAM_CONNECTING) {
		dial_stop(stream);
		TAILQ_REMOVE(&net->connecting, stream, state_entry);
	}
	if (stream->lookup) {
		resolver_release(stream->lookup);
		stream->lookup = NULL;
	}
	if (stream->fd >= 0) {
		if (stream->watched) {
			loop_remove(net->loop, stream->fd);
		}
		close_fd(&stream->fd);
	}
	leave_reads(stream);
	give_back_pages(stream);
	if (stream->hello_size > 0) {
		madvise(stream->hello, TLS_HELLO_MAX, MADV_DONTNEED);
	}
	if (stream->counted) {
		stream->counted = false;
		net->counted--;
	}
	if (stream->state == STREAM_WAITING) {
		TAILQ_REMOVE(&net->waiting, stream, state_entry);
	} else if (stream->state == STREAM_LINGERING) {
		TAILQ_REMOVE(&net->lingering, stream, state_entry);
	}
}

static void release(struct stream *stream)
{
	let_go(stream);
	say_nothing(stream);
	if (stream->number != 0) {
		take_number(stream);
	}
	stream->state = STREAM_FREE;
	TAILQ_INSERT_HEAD(&stream->net->free, stream, state_entry);
}

/* The guest has a number for it and must be told that it is over. */
static void let_guest_know(struct stream *stream)
{
	bool asked = stream->state != STREAM_OPEN || (stream->says & SAY_OPENED) != 0;

	let_go(stream);
	say_nothing(stream);
	stream->state = STREAM_OVER;
	say(stream, asked ? SAY_FAILED : SAY_RESET);
}

static void tell_end(struct stream *stream, enum ipc_net_end end, int error)
{
	stream->event.kind = IPC_NET_ENDED;
	stream->event.end = (uint8_t)end;
	stream->event.error = (uint32_t)error;
	report_event(stream->net, &stream->event, stream->began_ns);
}

/* The server gets a reset, not an end. */
static void reset_server(const struct stream *stream)
{
	const struct linger at_once = {.l_onoff = 1, .l_linger = 0};

	setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

/* Ends a stream that was connected, other than by both ends. */
static void cut(struct stream *stream, enum ipc_net_end end, int error)
{
	reset_server(stream);
	tell_end(stream, end, error);
	if (stream->state == STREAM_LINGERING) {
		release(stream);
	} else {
		stream->error = ECONNRESET;
		let_guest_know(stream);
	}
}

void stream_failed(struct stream *stream, int error)
{
	stream->event.kind = IPC_NET_CONNECTED;
	/* A refusal has no errno of the host's; the guest is told one all the same. */
	stream->event.error = stream->event.allowed ? (uint32_t)error : 0;
	report_event(stream->net, &stream->event, stream->began_ns);
	stream->error = error;
	let_guest_know(stream);
}

/* The guest has left it. */
static void drop(struct stream *stream, enum ipc_net_end end)
{
	if (stream->state == STREAM_OPEN) {
		reset_server(stream);
		tell_end(stream, end, 0);
	} else if (stream->state == STREAM_RESOLVING || stream->state == STREAM_CONNECTING) {
		stream->event.kind = IPC_NET_CONNECTED;
		stream->event.error = ECANCELED;
		report_event(stream->net, &stream->event, stream->began_ns);
	}
	release(stream);
}

static void on_stream(struct loop *loop, int fd, uint32_t events, void *data);

/* Watches the socket for what the stream can do something about. */
static void watch(struct stream *stream)
{
	struct loop *loop = stream->net->loop;
	bool reads = !stream->server_eof && stream->credit > 0 && !stream->in_reads;
	uint32_t events = (reads ? (uint32_t)EPOLLIN : 0) |
			  (stream->buffer_size > 0 ? (uint32_t)EPOLLOUT : 0);

	if (events == 0 && stream->mute) {
		if (stream->watched) {
			loop_remove(loop, stream->fd);
			stream->watched = false;
		}
		return;
	}
	if (events != 0) {
		stream->mute = false;
	}
	if (stream->watched) {
		(void)loop_modify(loop, stream->fd, events);
	} else {
		stream->watched = loop_add(loop, stream->fd, events, on_stream, stream) == 0;
	}
}

static void set_up_socket(int fd)
{
	static const struct {
		int level;
		int name;
		int value;
	} options[] = {
		{IPPROTO_TCP, TCP_NODELAY, 1},
		{IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_MAX},
		{IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
		{IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_STEP_S},
		{IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_STEPS},
		{SOL_SOCKET, SO_KEEPALIVE, 1},
	};

	/* Each is of a kernel older than any that box runs on. */
	for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
		setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
	}
}

void stream_connected(struct stream *stream, int fd, const struct policy_address *address)
{
	TAILQ_REMOVE(&stream->net->connecting, stream, state_entry);
	stream->state = STREAM_OPEN;
	stream->fd = fd;
	stream->guest_credit = NET_UP_WINDOW;
	stream->credit = NET_WINDOW;
	set_up_socket(fd);
	if (address) {
		stream->address = *address;
		policy_address_format(address, stream->event.address);
	}
	stream->event.kind = IPC_NET_CONNECTED;
	report_event(stream->net, &stream->event, stream->began_ns);
	say(stream, SAY_OPENED);
	watch(stream);
	if (!stream->watched) {
		cut(stream, IPC_NET_END_LIMIT, ENOSPC);
	}
}

/* What follows from the two ends. Returns false when the stream is gone. */
static bool look_at_ends(struct stream *stream)
{
	if (stream->guest_eof && !stream->shut && stream->buffer_size == 0) {
		shutdown(stream->fd, SHUT_WR);
		stream->shut = true;
	}
	if (!stream->server_eof) {
		return true;
	}
	if (!stream->eof_said) {
		if (!stream->guest_eof || stream->shut) {
			say(stream, SAY_EOF);
		}
		return true;
	}
	if (!stream->guest_eof) {
		return true;
	}
	if (stream->shut) {
		tell_end(stream, IPC_NET_END_BOTH, 0);
		release(stream);
		return false;
	}
	if (stream->state == STREAM_OPEN) {
		say_nothing(stream);
		take_number(stream);
		stream->state = STREAM_LINGERING;
		stream->deadline_ns = clock_monotonic_ns() + LINGER_NS;
		TAILQ_INSERT_TAIL(&stream->net->lingering, stream, state_entry);
		net_need_tick(stream->net);
	}
	return true;
}

/* Bytes went to the server: the guest may send as many more. */
static void pass_on(struct stream *stream, size_t size)
{
	stream->owed += (uint32_t)size;
	if (stream->owed >= CREDIT_STEP && !stream->guest_eof) {
		say(stream, SAY_CREDIT);
	}
}

/* How many bytes the socket took, or a negative errno. */
static ssize_t write_some(const struct stream *stream, const uint8_t *data, size_t size)
{
	ssize_t rc = send(stream->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (rc < 0) {
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	}
	return rc;
}

/*
 * The server takes no more. It may have said why before it closed, as one does that refuses a large
 * upload: that is still read, and what the guest sends meanwhile is dropped, as it would be on the
 * way. Returns false when the stream is gone.
 */
static bool write_failed(struct stream *stream, int error)
{
	if (stream->server_eof) {
		cut(stream, IPC_NET_END_SERVER, error);
		return false;
	}
	stream->broken = error;
	pass_on(stream, stream->buffer_size);
	give_back_pages(stream);
	return true;
}

/* Writes what waits. Returns false when the stream is gone. */
static bool write_buffer(struct stream *stream)
{
	while (stream->buffer_size > 0) {
		size_t part = MIN(stream->buffer_size, NET_UP_WINDOW - stream->buffer_start);
		ssize_t rc = write_some(stream, stream->buffer + stream->buffer_start, part);

		if (rc < 0) {
			return write_failed(stream, (int)-rc);
		}
		stream->buffer_start = (stream->buffer_start + (size_t)rc) % NET_UP_WINDOW;
		stream->buffer_size -= (size_t)rc;
		pass_on(stream, (size_t)rc);
		if ((size_t)rc < part) {
			return true;
		}
	}
	give_back_pages(stream);
	return look_at_ends(stream);
}

static void keep(struct stream *stream, const uint8_t *data, size_t size)
{
	ASSERT(size <= NET_UP_WINDOW - stream->buffer_size);
	while (size > 0) {
		size_t end = (stream->buffer_start + stream->buffer_size) % NET_UP_WINDOW;
		size_t part = MIN(size, NET_UP_WINDOW - end);

		memcpy(stream->buffer + end, data, part);
		data += part;
		size -= part;
		stream->buffer_size += part;
	}
	stream->buffer_peak = MAX(stream->buffer_peak, stream->buffer_size);
}

/* Bytes of the guest: written, or kept. */
static void send_on(struct stream *stream, const uint8_t *data, size_t size)
{
	ssize_t rc = 0;

	if (stream->broken == 0 && stream->buffer_size == 0) {
		rc = write_some(stream, data, size);
		if (rc < 0) {
			if (!write_failed(stream, (int)-rc)) {
				return;
			}
			rc = 0;
		}
	}
	if (stream->broken != 0) {
		pass_on(stream, size);
		return;
	}
	pass_on(stream, (size_t)rc);
	if ((size_t)rc < size) {
		keep(stream, data + rc, size - (size_t)rc);
		watch(stream);
	}
}

void stream_read(struct stream *stream)
{
	struct net *net = stream->net;
	uint8_t *payload;
	size_t size = port_room(net, &payload);
	uint64_t left = net_bytes_left(net);
	ssize_t got;

	leave_reads(stream);
	ASSERT(size > 0 && stream->credit > 0);
	size = MIN(size, (size_t)stream->credit);
	/* With nothing left one byte more tells whether it is the end or too much. */
	size = (size_t)MIN((uint64_t)size, MAX(left, (uint64_t)1));
	got = recv(stream->fd, payload, size, MSG_DONTWAIT);
	if (got < 0 && errno != EAGAIN && errno != EINTR) {
		cut(stream, IPC_NET_END_SERVER, errno);
		return;
	}
	if (got > 0) {
		if (!net_count_bytes(net, (uint64_t)got)) {
			net_over_bytes(net);
			return;
		}
		stream->event.bytes_down += (uint64_t)got;
		stream->credit -= (uint32_t)got;
		port_put_data(net, stream->number, (size_t)got);
	}
	if (got == 0 && stream->broken != 0) {
		cut(stream, IPC_NET_END_SERVER, stream->broken);
		return;
	}
	stream->server_eof = got == 0;
	if (!stream->server_eof || look_at_ends(stream)) {
		watch(stream);
	}
}

/* The server has bytes: now, or when it is its turn. */
static void want_read(struct stream *stream)
{
	struct net *net = stream->net;
	uint8_t *payload;

	if (!TAILQ_EMPTY(&net->says) || !TAILQ_EMPTY(&net->reads) ||
	    port_room(net, &payload) == 0) {
		stream->in_reads = true;
		TAILQ_INSERT_TAIL(&net->reads, stream, read_entry);
		watch(stream);
	} else {
		stream_read(stream);
	}
}

/* The connection is gone both ways, and there is nothing to be read, or no room for it yet. */
static void look_at_hang_up(struct stream *stream)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (stream->server_eof) {
		getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &error, &size);
	}
	if (error != 0) {
		cut(stream, IPC_NET_END_SERVER, error);
		return;
	}
	stream->mute = true;
	watch(stream);
}

static void on_stream(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct stream *stream = data;
	struct net *net = stream->net;
	bool there = true;

	(void)loop;
	(void)fd;
	if ((events & EPOLLOUT) != 0 && stream->buffer_size > 0) {
		there = write_buffer(stream);
		if (there) {
			watch(stream);
		}
	}
	if (there && (events & ~(uint32_t)EPOLLOUT) != 0) {
		if (!stream->server_eof && stream->credit > 0 && !stream->in_reads) {
			want_read(stream);
		} else if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
			look_at_hang_up(stream);
		}
	}
	port_pump(net);
}

size_t stream_take_says(struct stream *stream, uint8_t *out)
{
	unsigned says = stream->says;
	uint32_t number = stream->number;
	size_t size = 0;

	say_nothing(stream);
	if (says & SAY_OPENED) {
		wire_header_encode(out, NET_OPENED, 0, number, 0);
		size += WIRE_HEADER_SIZE;
	}
	if (says & SAY_FAILED) {
		int length = net_failed_encode(stream->error, out + size + WIRE_HEADER_SIZE);

		wire_header_encode(out + size, NET_FAILED, 0, number, (uint32_t)length);
		size += WIRE_HEADER_SIZE + (size_t)length;
	}
	if (says & SAY_CREDIT) {
		int length = net_credit_encode(stream->owed, out + size + WIRE_HEADER_SIZE);

		wire_header_encode(out + size, NET_CREDIT, 0, number, (uint32_t)length);
		size += WIRE_HEADER_SIZE + (size_t)length;
		stream->guest_credit += stream->owed;
		stream->owed = 0;
	}
	if (says & (SAY_EOF | SAY_RESET)) {
		wire_header_encode(out + size, says & SAY_EOF ? NET_EOF : NET_RESET, 0, number, 0);
		size += WIRE_HEADER_SIZE;
	}
	ASSERT(size <= STREAM_SAYS_SIZE);
	if (stream->state == STREAM_OVER) {
		release(stream);
	} else if (says & SAY_EOF) {
		stream->eof_said = true;
		(void)look_at_ends(stream);
	}
	return size;
}

static int wrong(struct net *net, const char *what)
{
	net->wrong = what;
	return -EBADMSG;
}

/* Numbers go up by one, and over those that are in use; a machine that has opened all there are
 * begins at 1 again. */
static bool is_next(const struct net *net, uint32_t number)
{
	uint32_t ahead = number - net->last_stream;

	if (number < net->last_stream) {
		/* There is no 0. */
		ahead--;
	}
	return ahead >= 1 && ahead <= NET_STREAMS_MAX;
}

int stream_open(struct net *net, uint32_t number, const struct net_open *open)
{
	struct stream *stream;

	if (stream_find(net, number)) {
		return wrong(net, "it opened a stream that there is");
	}
	if (!is_next(net, number)) {
		return wrong(net, "it opened a stream out of turn");
	}
	if (net->numbered >= NET_STREAMS_MAX) {
		return wrong(net, "it opened more streams than there may be");
	}
	net->last_stream = number;
	if (TAILQ_EMPTY(&net->free)) {
		cut(TAILQ_FIRST(&net->lingering), IPC_NET_END_LIMIT, 0);
	}
	stream = TAILQ_FIRST(&net->free);
	TAILQ_REMOVE(&net->free, stream, state_entry);
	*stream = (struct stream){
		.net = net,
		.state = STREAM_WAITING,
		.kind = open->kind,
		.fd = -EBADF,
		.buffer = stream->buffer,
		.hello = stream->hello,
		.began_ns = clock_monotonic_ns(),
		.event =
			{
				.kind = IPC_NET_CONNECTED,
				.port = open->port,
				.time_ns = clock_realtime_ns(),
			},
	};
	if (open->kind == NET_KIND_NAME) {
		ASSERT(strlen(open->name) < sizeof(stream->event.host));
		memcpy(stream->event.host, open->name, strlen(open->name) + 1);
	} else {
		stream->literal.family = open->kind;
		memcpy(stream->literal.bytes, open->address, sizeof(stream->literal.bytes));
		policy_address_format(&stream->literal, stream->event.host);
	}
	give_number(stream, number);
	TAILQ_INSERT_TAIL(&net->waiting, stream, state_entry);
	return 0;
}

static int take_data(struct stream *stream, const struct wire_frame *frame)
{
	struct net *net = stream->net;

	if (stream->guest_eof) {
		return wrong(net, "it sent bytes after their end");
	}
	if (frame->length > stream->guest_credit) {
		return wrong(net, "it sent more bytes than it may");
	}
	if (!net_count_bytes(net, frame->length)) {
		net_over_bytes(net);
		return 0;
	}
	stream->guest_credit -= frame->length;
	stream->event.bytes_up += frame->length;
	stream_look_for_name(stream, frame->payload, frame->length);
	send_on(stream, frame->payload, frame->length);
	return 0;
}

static int take_credit(struct stream *stream, const struct wire_frame *frame)
{
	uint32_t bytes;

	if (net_credit_decode(frame->payload, frame->length, &bytes) < 0 ||
	    bytes > NET_WINDOW - stream->credit) {
		return wrong(stream->net, "it granted more than a window");
	}
	stream->credit += bytes;
	watch(stream);
	return 0;
}

int stream_frame(struct net *net, const struct wire_frame *frame)
{
	struct stream *stream = stream_find(net, frame->stream);

	/* It crossed with the end, of which the guest may not know yet. */
	if (!stream) {
		return 0;
	}
	if (frame->type == NET_RESET) {
		drop(stream, IPC_NET_END_GUEST);
		return 0;
	}
	if (stream->state == STREAM_OVER) {
		return 0;
	}
	if (stream->state != STREAM_OPEN || (stream->says & SAY_OPENED) != 0) {
		return wrong(net, "it used a stream that is not connected");
	}
	switch (frame->type) {
	case NET_DATA:
		return take_data(stream, frame);
	case NET_CREDIT:
		return take_credit(stream, frame);
	case NET_EOF:
		if (stream->guest_eof) {
			return wrong(net, "it ended a stream's bytes twice");
		}
		stream->guest_eof = true;
		(void)look_at_ends(stream);
		return 0;
	default:
		return wrong(net, "it sent a frame that is the host's");
	}
}

void stream_begin_waiting(struct net *net)
{
	while (!TAILQ_EMPTY(&net->waiting) && net_may_begin(net)) {
		struct stream *stream = TAILQ_FIRST(&net->waiting);

		if (!pace_take(&net->stream_pace, clock_monotonic_ns())) {
			net_need_tick(net);
			return;
		}
		TAILQ_REMOVE(&net->waiting, stream, state_entry);
		stream_start(stream);
	}
}

void stream_drop_all(struct net *net, enum ipc_net_end end)
{
	for (size_t i = 0; i < SLOTS; i++) {
		struct stream *stream = &net->streams[i];

		if (stream->state != STREAM_FREE && stream->state != STREAM_LINGERING) {
			drop(stream, end);
		}
	}
}

void stream_cut_all(struct net *net, enum ipc_net_end end)
{
	for (size_t i = 0; i < SLOTS; i++) {
		struct stream *stream = &net->streams[i];

		if (stream->state == STREAM_OPEN || stream->state == STREAM_LINGERING) {
			cut(stream, end, 0);
		} else if (stream->state == STREAM_RESOLVING ||
			   stream->state == STREAM_CONNECTING) {
			stream->event.reason = IPC_NET_NO_BYTES;
			stream_refuse(stream, ECONNREFUSED);
		}
	}
}

void stream_decide_again(struct net *net)
{
	for (size_t i = 0; i < SLOTS; i++) {
		struct stream *stream = &net->streams[i];
		struct ipc_net_event event;

		if (stream->state < STREAM_RESOLVING || stream->state > STREAM_LINGERING) {
			continue;
		}
		event = stream->event;
		if (stream_decide(stream, &event)) {
			continue;
		}
		if (stream->state == STREAM_OPEN || stream->state == STREAM_LINGERING) {
			cut(stream, IPC_NET_END_POLICY, 0);
		} else {
			stream->event = event;
			stream_refuse(stream, ECONNREFUSED);
		}
	}
}

void stream_tick(struct net *net, uint64_t now_ns)
{
	struct stream *stream, *next;

	for (stream = TAILQ_FIRST(&net->connecting); stream; stream = next) {
		next = TAILQ_NEXT(stream, state_entry);
		dial_tick(stream, now_ns);
	}
	while ((stream = TAILQ_FIRST(&net->lingering)) && stream->deadline_ns <= now_ns) {
		cut(stream, IPC_NET_END_SERVER, ETIMEDOUT);
	}
}

bool stream_needs_tick(const struct net *net)
{
	return !TAILQ_EMPTY(&net->waiting) || !TAILQ_EMPTY(&net->connecting) ||
	       !TAILQ_EMPTY(&net->lingering);
}
