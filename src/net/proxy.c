/*
 * The way through an HTTP proxy: CONNECT (RFC 9110, 9.3.6), then the connection is the stream's.
 *
 * The policy was asked about the name, or the address, before anybody comes here. What the name
 * leads to the proxy finds, and nobody here sees it. The proxy itself is the operator's choice: no
 * policy is asked about it, and no guest can name one.
 *
 * The proxy's first bytes are read to the end of its head and not one more: what follows is the
 * server's.
 */
#include "net/net.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "wire/http.h"

/* The host twice, a secret, and words. */
#define REQUEST_MAX (2 * (IPC_NET_NAME_SIZE + 16) + IPC_NET_SECRET_SIZE + 128)

bool proxy_is_for(const struct net *net, const char *host, const struct policy_address *address,
		  uint16_t port)
{
	struct policy_verdict verdict;

	if (net->proxy.port == 0) {
		return false;
	}
	verdict = address ? policy_decide_literal(net->proxy_direct, address, port)
			  : policy_decide_name(net->proxy_direct, host, port);
	return verdict.reason != POLICY_NO_DENIED;
}

/* What the guest is told when the proxy refuses. */
static int error_of(unsigned status)
{
	switch (status) {
	case 502:
	case 503:
		return EHOSTUNREACH;
	case 504:
		return ETIMEDOUT;
	default:
		return status / 100 == 4 ? EACCES : EPROTO;
	}
}

/* Takes what has come, to the end of the head at most. Returns 1 when that is there, 0 when it is
 * not yet, or a negative errno. */
static int read_head(struct stream *stream, int fd)
{
	uint8_t *place = stream->hello + stream->hello_size;
	size_t room = TLS_HELLO_MAX - stream->hello_size;
	ssize_t got = recv(fd, place, room, MSG_DONTWAIT | MSG_PEEK);
	unsigned status = 0;
	size_t part;
	int head;

	if (got <= 0) {
		return got == 0 ? -ECONNRESET : errno == EAGAIN || errno == EINTR ? 0 : -errno;
	}
	part = (size_t)got;
	head = http_response_head(stream->hello, stream->hello_size + part, &status);
	stream->event.proxy = status != 0 ? (uint16_t)status : IPC_NET_PROXY_SILENT;
	if (head < 0 || (status != 0 && status / 100 != 2)) {
		return head < 0 ? -EPROTO : -error_of(status);
	}
	if (head > 0) {
		part = (size_t)head - stream->hello_size;
	}
	/* They were there just now. */
	if (recv(fd, place, part, MSG_DONTWAIT) != (ssize_t)part) {
		return -EPROTO;
	}
	stream->hello_size += part;
	/* A head without an end. */
	return head > 0 ? 1 : stream->hello_size == TLS_HELLO_MAX ? -EPROTO : 0;
}

static void on_answer(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct stream *stream = data;
	struct net *net = stream->net;
	int rc = read_head(stream, fd);

	(void)events;
	if (rc < 0) {
		stream_failed(stream, -rc);
	} else if (rc > 0) {
		loop_remove(loop, fd);
		stream->watched = false;
		stream->fd = -EBADF;
		stream->hello_size = 0;
		madvise(stream->hello, TLS_HELLO_MAX, MADV_DONTNEED);
		stream_connected(stream, fd, NULL);
	}
	port_pump(net);
}

void proxy_ask(struct stream *stream, int fd)
{
	const struct ipc_net_proxy *proxy = &stream->net->proxy;
	const char *open = stream->kind == 6 ? "[" : "", *close = stream->kind == 6 ? "]" : "";
	char place[IPC_NET_NAME_SIZE + 16], request[REQUEST_MAX];
	int size;

	stream->fd = fd;
	/* The other addresses of the proxy are not wanted any more. */
	stream->next_candidate = stream->candidate_count;
	snprintf(place, sizeof(place), "%s%s%s:%u", open, stream->event.host, close,
		 (unsigned)stream->event.port);
	size = snprintf(request, sizeof(request), "CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s%s%s\r\n",
			place, place, proxy->authorization[0] ? "Proxy-Authorization: Basic " : "",
			proxy->authorization, proxy->authorization[0] ? "\r\n" : "");
	ASSERT(size > 0 && (size_t)size < sizeof(request));
	/* Nothing was sent on it before, so all of it has room. */
	if (send(fd, request, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL) == size) {
		stream->watched = loop_add(stream->net->loop, fd, EPOLLIN, on_answer, stream) == 0;
	}
	if (!stream->watched) {
		stream_failed(stream, ECONNRESET);
	}
}
