/*
 * The agent: the process in which the guest ends the connections of its programs and asks the host
 * for the real ones. Process 1 forks it at the start of every life, when all that it works on has
 * been made; it lives until it is killed, the port is lost, or the host breaks the protocol. Its
 * end closes its sockets, so that the kernel refuses connections from then on.
 *
 * This header is of the agent's own files, except for the configuration and net_agent_run.
 */
#pragma once

#include <stdint.h>

#include "guest/net_bpf.h"
#include "guest/net_dns.h"
#include "guest/net_port.h"
#include "guest/net_stream.h"

/* All borrowed. Sockets are non-blocking. */
struct net_agent_config {
	int port_fd;
	struct net_bpf bpf;
	struct net_ring ring;
	struct net_names *names;
	/* By enum net_socket. */
	int sockets[NET_SOCKETS];
	/* For whole packets of IPv4 and IPv6. */
	int raw_v4_fd;
	int raw_v6_fd;
	/* net_route_watch. */
	int watch_fd;
};

/* What a descriptor that epoll(7) tells of is for. The lower half of its key is an index. */
enum net_source {
	NET_SOURCE_PORT,
	NET_SOURCE_RING,
	NET_SOURCE_LISTENER,
	NET_SOURCE_DNS_LISTENER,
	NET_SOURCE_DNS_UDP,
	NET_SOURCE_WATCH,
	NET_SOURCE_STREAM,
	NET_SOURCE_DNS_TCP,
};

struct net_agent {
	struct net_agent_config config;
	int epoll_fd;
	/* When the port's other end was first found away, or 0. */
	uint64_t absent_ns;
	struct net_port port;
	struct net_streams streams;
	struct net_dns dns;
};

/* Runs until there is nothing left to do. Returns a negative errno that says why. */
int net_agent_run(const struct net_agent_config *config);

/* Watches a descriptor until it is closed. Returns 0 or a negative errno. */
int net_agent_watch(const struct net_agent *agent, int fd, uint32_t events, enum net_source source,
		    unsigned index);

/* Sends a whole packet to an address of 16 bytes. One that cannot be sent is lost like any. */
void net_agent_send(const struct net_agent *agent, const uint8_t *packet, size_t size,
		    const uint8_t *to);
