#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "ipc/tcp.h"
#include "keeper/keeper.h"
#include "spec/spec.h"

static void on_connection(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct keeper *keeper = data;
	int peer = listen_accept(keeper, fd);

	(void)loop;
	(void)events;
	for (size_t i = 0; peer >= 0 && i < ARRAY_SIZE(keeper->port_fds); i++) {
		if (keeper->port_fds[i] != fd) {
			continue;
		}
		if (keeper->phase == KEEPER_RUNNING && !keeper->leaving) {
			command_tcp(keeper, NULL, 0, peer, keeper->ports[i]);
			return;
		}
	}
	close_fd(&peer);
}

int ports_open(struct keeper *keeper, struct err *err)
{
	const struct spec *spec = keeper->files.spec;

	for (size_t i = 0; i < MIN(spec->network_port_count, (size_t)KEEPER_PORTS_MAX); i++) {
		struct spec_port port;
		int rc = spec_parse_port(spec->network_ports[i], &port, err);

		if (rc == 0) {
			rc = ipc_tcp_listen(port.address, port.host, NULL, err);
		}
		if (rc < 0) {
			return rc;
		}
		keeper->port_fds[i] = rc;
		keeper->ports[i] = port.guest;
		rc = loop_add(keeper->loop, rc, EPOLLIN, on_connection, keeper);
		if (rc < 0) {
			return err_context(err, rc, "network.ports");
		}
	}
	return 0;
}

void ports_close(struct keeper *keeper)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->port_fds); i++) {
		if (keeper->port_fds[i] >= 0) {
			loop_remove(keeper->loop, keeper->port_fds[i]);
			close_fd(&keeper->port_fds[i]);
		}
	}
}
