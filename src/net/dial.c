/*
 * Connecting to one of several addresses (RFC 8305, 5). Attempts begin one after the other, a
 * quarter of a second apart or as soon as one has failed, and go on side by side; the first that
 * succeeds is the connection, the others are closed. Only addresses that the policy was asked
 * about come here, and they are connected to as they are.
 */
#include "net/net.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define MS UINT64_C(1000000)
/* RFC 8305, 8: "Connection Attempt Delay". */
#define STAGGER_NS (250 * MS)
/* The kernel has sent its SYN five times by then. Many programs give up sooner. */
#define LIMIT_NS (30000 * MS)

/* How much an error tells about the server: that it refuses more than that one of our ways to it is
 * not there. */
static int rank(int error)
{
	static const int order[] = {ENETUNREACH, EHOSTUNREACH, ETIMEDOUT, ECONNRESET, ECONNREFUSED};

	for (size_t i = 0; i < ARRAY_SIZE(order); i++) {
		if (order[i] == error) {
			return (int)i + 1;
		}
	}
	return 0;
}

static void note_error(struct stream *stream, int error)
{
	if (stream->error == 0 || rank(error) > rank(stream->error)) {
		stream->error = error;
	}
}

static void end_attempt(struct attempt *attempt)
{
	if (attempt->fd >= 0) {
		loop_remove(attempt->stream->net->loop, attempt->fd);
		close_fd(&attempt->fd);
	}
}

void dial_stop(struct stream *stream)
{
	for (size_t i = 0; i < ATTEMPTS_MAX; i++) {
		end_attempt(&stream->attempts[i]);
	}
}

/* A connection of a socket to itself: TCP allows it when a port of our own choice is the one that
 * is asked for, and nobody listens there (RFC 793, 3.4). */
static bool is_own(int fd)
{
	struct sockaddr_storage local = {0}, peer = {0};
	socklen_t local_size = sizeof(local), peer_size = sizeof(peer);

	return getsockname(fd, (struct sockaddr *)&local, &local_size) == 0 &&
	       getpeername(fd, (struct sockaddr *)&peer, &peer_size) == 0 &&
	       local_size == peer_size && memcmp(&local, &peer, local_size) == 0;
}

static void start_next(struct stream *stream);

static void on_attempt(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct attempt *attempt = data;
	struct stream *stream = attempt->stream;
	struct net *net = stream->net;
	struct policy_address address = attempt->address;
	int error = 0;
	socklen_t size = sizeof(error);

	(void)events;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) {
		error = errno;
	}
	if (error == 0 && is_own(fd)) {
		error = ECONNREFUSED;
	}
	if (error == 0) {
		loop_remove(loop, fd);
		attempt->fd = -EBADF;
		dial_stop(stream);
		if (stream->by_proxy) {
			proxy_ask(stream, fd);
		} else {
			stream_connected(stream, fd, &address);
		}
	} else {
		end_attempt(attempt);
		note_error(stream, error);
		start_next(stream);
	}
	port_pump(net);
}

/* Returns 0, or an errno. */
static int start(struct attempt *attempt, uint16_t port)
{
	struct sockaddr_storage address;
	socklen_t size;
	int error = 0;

	conf_socket_address(&attempt->address, port, &address, &size);
	attempt->fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (attempt->fd < 0) {
		return errno;
	}
	if (connect(attempt->fd, (const struct sockaddr *)&address, size) < 0 &&
	    errno != EINPROGRESS) {
		error = errno;
	}
	if (error == 0) {
		error = -loop_add(attempt->stream->net->loop, attempt->fd, EPOLLOUT, on_attempt,
				  attempt);
	}
	if (error != 0) {
		close_fd(&attempt->fd);
	}
	return error;
}

/* Starts on the next candidate that can be started on. When none is left and nothing is under way,
 * the stream has failed. */
static void start_next(struct stream *stream)
{
	bool trying = false;

	for (size_t i = 0; i < ATTEMPTS_MAX; i++) {
		struct attempt *attempt = &stream->attempts[i];

		while (attempt->fd < 0 && stream->next_candidate < stream->candidate_count) {
			int error;

			attempt->address = stream->candidates[stream->next_candidate++];
			error = start(attempt, stream->by_proxy ? stream->net->proxy.port
								: stream->event.port);
			if (error == 0) {
				stream->next_attempt_ns = clock_monotonic_ns() + STAGGER_NS;
				return;
			}
			note_error(stream, error);
		}
		trying |= attempt->fd >= 0;
	}
	if (!trying) {
		stream_failed(stream, stream->error);
	}
}

void dial_begin(struct stream *stream)
{
	ASSERT(stream->candidate_count > 0);
	for (size_t i = 0; i < ATTEMPTS_MAX; i++) {
		stream->attempts[i] = (struct attempt){
			.stream = stream,
			.fd = -EBADF,
		};
	}
	stream->state = STREAM_CONNECTING;
	TAILQ_INSERT_TAIL(&stream->net->connecting, stream, state_entry);
	stream->deadline_ns = clock_monotonic_ns() + LIMIT_NS;
	net_need_tick(stream->net);
	start_next(stream);
}

void dial_tick(struct stream *stream, uint64_t now_ns)
{
	if (stream->deadline_ns <= now_ns) {
		dial_stop(stream);
		stream_failed(stream, ETIMEDOUT);
	} else if (stream->next_candidate < stream->candidate_count &&
		   stream->next_attempt_ns <= now_ns) {
		start_next(stream);
	}
}
