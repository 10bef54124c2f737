#include "ipc/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"

/* Connections that wait to be accepted; a browser opens six at once. */
#define BACKLOG 128

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/* Returns the size of what was filled, or -EINVAL. */
static int parse_address(const char *text, uint16_t port, union address *ret_address)
{
	memset(ret_address, 0, sizeof(*ret_address));
	if (inet_pton(AF_INET, text, &ret_address->v4.sin_addr) == 1) {
		ret_address->v4.sin_family = AF_INET;
		ret_address->v4.sin_port = htons(port);
		return (int)sizeof(ret_address->v4);
	}
	if (inet_pton(AF_INET6, text, &ret_address->v6.sin6_addr) == 1) {
		ret_address->v6.sin6_family = AF_INET6;
		ret_address->v6.sin6_port = htons(port);
		return (int)sizeof(ret_address->v6);
	}
	return -EINVAL;
}

static int fail(int rc, const char *address, uint16_t port, struct err *err)
{
	if (rc == -EADDRINUSE) {
		err_set(err, rc, "port-taken", "port %u of %s is taken by another program", port,
			address);
		err_mend(err, "choose another port, or end that program: `ss -ltnp` lists them");
		return rc;
	}
	err_set(err, rc, "port", "cannot listen on port %u of %s: %s", port, address,
		strerror(-rc));
	err_mend(err, rc == -EACCES ? "choose a port above 1023"
				    : "choose an address of this host, such as 127.0.0.1");
	return rc;
}

int ipc_tcp_listen(const char *address, uint16_t port, uint16_t *ret_port, struct err *err)
{
	_cleanup_close_ int fd = -EBADF;
	union address where;
	const int yes = 1;
	int size = parse_address(address, port, &where);
	socklen_t length = (socklen_t)size;

	if (size < 0) {
		return fail(size, address, port, err);
	}
	fd = socket(where.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		return fail(-errno, address, port, err);
	}
	/* Connections of an earlier life in TIME_WAIT do not keep the port. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (where.any.sa_family == AF_INET6) {
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes));
	}
	if (bind(fd, &where.any, length) < 0 || listen(fd, BACKLOG) < 0 ||
	    getsockname(fd, &where.any, &length) < 0) {
		return fail(-errno, address, port, err);
	}
	if (ret_port) {
		*ret_port = ntohs(where.any.sa_family == AF_INET ? where.v4.sin_port
								 : where.v6.sin6_port);
	}
	return TAKE_FD(fd);
}
