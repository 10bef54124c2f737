#include "guest/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"

union address {
	struct sockaddr any;
	struct sockaddr_in ipv4;
	struct sockaddr_in6 ipv6;
};

static socklen_t loopback(union address *address, uint16_t port, bool ipv6)
{
	memset(address, 0, sizeof(*address));
	if (ipv6) {
		address->ipv6.sin6_family = AF_INET6;
		address->ipv6.sin6_port = htons(port);
		address->ipv6.sin6_addr = in6addr_loopback;
		return sizeof(address->ipv6);
	}
	address->ipv4.sin_family = AF_INET;
	address->ipv4.sin_port = htons(port);
	address->ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return sizeof(address->ipv4);
}

/*
 * A connection to a free port may be given that very port as its own: it is then connected to
 * itself (RFC 9293, simultaneous open), and would echo. Nobody listens there.
 */
static bool is_own_peer(int fd)
{
	union address own, peer;
	socklen_t own_size = sizeof(own), peer_size = sizeof(peer);

	memset(&own, 0, sizeof(own));
	memset(&peer, 0, sizeof(peer));
	return getsockname(fd, &own.any, &own_size) == 0 &&
	       getpeername(fd, &peer.any, &peer_size) == 0 && own_size == peer_size &&
	       memcmp(&own, &peer, own_size) == 0;
}

int tcp_connect(uint16_t port, bool ipv6, int *ret_fd)
{
	static const int on = 1;
	_cleanup_close_ int fd = -EBADF;
	union address address;
	socklen_t size = loopback(&address, port, ipv6);
	int rc = 0;

	fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) < 0) {
		return -errno;
	}
	if (connect(fd, &address.any, size) < 0) {
		rc = -errno;
	} else if (is_own_peer(fd)) {
		rc = -ECONNREFUSED;
	}
	if (rc == 0 || rc == -EINPROGRESS) {
		*ret_fd = TAKE_FD(fd);
	}
	return rc;
}

int tcp_connected(int fd)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) {
		return -errno;
	}
	return error != 0 ? -error : (is_own_peer(fd) ? -ECONNREFUSED : 0);
}

void tcp_abort(int fd)
{
	static const struct linger none = {.l_onoff = 1, .l_linger = 0};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}
