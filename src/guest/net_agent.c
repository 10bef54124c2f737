/*
 * Theory of operation.
 *
 * In flow SYNs from the ring buffer, connections from the listener, questions on UDP and TCP port
 * 53, and frames of the host; out flow frames, packets, and bytes on connections. One thread waits
 * for all of them with epoll(7). Whatever has something for the host stands in a queue, and gets
 * its turn while the port has room; so nothing waits and nothing grows.
 *
 * The process is forked from process 1, without exec. It gives up all capabilities but the one
 * that bpf(2) asks for: what it reads comes from any program inside, and from any server outside.
 */
#include "guest/net_agent.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/net_route.h"

#define EVENTS_MAX 128
#define TICK_MS 1000
/* How long the host's end may be away, such as before the host has opened it. */
#define ABSENCE_MS 5000u
#define ABSENCE_STEP_MS 20
/* Frames are taken in pieces of the decoder's size; after some of them others get their turn. */
#define RECEIVES_MAX 8

int net_agent_watch(const struct net_agent *agent, int fd, uint32_t events, enum net_source source,
		    unsigned index)
{
	struct epoll_event event = {
		.events = events,
		.data.u64 = (uint64_t)source << 32 | index,
	};

	return epoll_ctl(agent->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

void net_agent_send(const struct net_agent *agent, const uint8_t *packet, size_t size,
		    const uint8_t *to)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

	if (net_pool_is_v4(to)) {
		memcpy(&v4.sin_addr, to + 12, 4);
		(void)!sendto(agent->config.raw_v4_fd, packet, size, MSG_DONTWAIT,
			      (struct sockaddr *)&v4, sizeof(v4));
	} else {
		memcpy(&v6.sin6_addr, to, 16);
		(void)!sendto(agent->config.raw_v6_fd, packet, size, MSG_DONTWAIT,
			      (struct sockaddr *)&v6, sizeof(v6));
	}
}

static int handle_frame(struct net_agent *agent, const struct wire_frame *frame)
{
	return frame->type == NET_RESOLVED ? net_dns_resolved(agent, frame)
					   : net_streams_frame(agent, frame);
}

/* The host's end is away. Waits for it for a while. */
static int host_absent(struct net_agent *agent)
{
	uint64_t now = clock_monotonic_ns();

	if (agent->absent_ns == 0) {
		agent->absent_ns = now;
	}
	if (agent->port.open || now - agent->absent_ns >= ABSENCE_MS * UINT64_C(1000000)) {
		return -EPIPE;
	}
	poll(NULL, 0, ABSENCE_STEP_MS);
	return 0;
}

static int receive(struct net_agent *agent)
{
	struct wire_frame frame;
	int rc;

	for (int i = 0; i < RECEIVES_MAX; i++) {
		rc = net_port_receive(&agent->port);
		if (rc == -EPIPE) {
			return host_absent(agent);
		}
		if (rc <= 0) {
			return rc;
		}
		agent->absent_ns = 0;
		while ((rc = net_port_next(&agent->port, &frame)) > 0) {
			rc = handle_frame(agent, &frame);
			if (rc < 0) {
				return rc;
			}
		}
		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

/* Sends while there is something and the port takes it. */
static int emit(struct net_agent *agent)
{
	int rc;

	do {
		if (agent->port.greeted) {
			net_dns_emit(agent);
			net_streams_emit(agent);
		}
		if (!net_port_pending(&agent->port)) {
			return 0;
		}
		rc = net_port_flush(&agent->port);
	} while (rc == 0 && !net_port_pending(&agent->port));
	return rc;
}

static int handle_event(struct net_agent *agent, const struct epoll_event *event)
{
	unsigned index = (uint32_t)event->data.u64;

	switch ((enum net_source)(event->data.u64 >> 32)) {
	case NET_SOURCE_PORT:
		return event->events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? receive(agent) : 0;
	case NET_SOURCE_RING:
		net_streams_held(agent);
		return 0;
	case NET_SOURCE_LISTENER:
		net_streams_accept(agent);
		return 0;
	case NET_SOURCE_DNS_LISTENER:
		net_dns_accept(agent);
		return 0;
	case NET_SOURCE_DNS_UDP:
		net_dns_datagrams(agent);
		return 0;
	case NET_SOURCE_WATCH:
		net_route_changed(&agent->config.bpf, agent->config.watch_fd);
		return 0;
	case NET_SOURCE_STREAM:
		net_streams_event(agent, index, event->events);
		return 0;
	case NET_SOURCE_DNS_TCP:
		net_dns_event(agent, index);
		return 0;
	}
	return 0;
}

static int watch_all(const struct net_agent *agent)
{
	const struct net_agent_config *config = &agent->config;
	const struct {
		int fd;
		uint32_t events;
		enum net_source source;
	} watches[] = {
		/* Room is told once, when there is some again. */
		{config->port_fd, EPOLLIN, NET_SOURCE_PORT},
		{config->bpf.held_fd, EPOLLIN, NET_SOURCE_RING},
		{config->sockets[NET_SOCKET_TCP], EPOLLIN, NET_SOURCE_LISTENER},
		{config->sockets[NET_SOCKET_DNS], EPOLLIN, NET_SOURCE_DNS_LISTENER},
		{config->sockets[NET_SOCKET_UDP], EPOLLIN, NET_SOURCE_DNS_UDP},
		{config->watch_fd, EPOLLIN, NET_SOURCE_WATCH},
	};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(watches) / sizeof(watches[0]); i++) {
		rc = net_agent_watch(agent, watches[i].fd, watches[i].events, watches[i].source, 0);
	}
	return rc;
}

/* Asks to be told of room in the port only while something waits for it. */
static void watch_room(const struct net_agent *agent, uint32_t *events)
{
	uint32_t wanted = EPOLLIN | (net_port_pending(&agent->port) ? EPOLLOUT : 0u);
	struct epoll_event event = {
		.events = wanted,
		.data.u64 = (uint64_t)NET_SOURCE_PORT << 32,
	};

	if (wanted != *events &&
	    epoll_ctl(agent->epoll_fd, EPOLL_CTL_MOD, agent->config.port_fd, &event) == 0) {
		*events = wanted;
	}
}

static int serve(struct net_agent *agent)
{
	struct epoll_event events[EVENTS_MAX];
	uint32_t port_events = EPOLLIN;
	uint64_t ticked_ns = clock_monotonic_ns();
	int rc = watch_all(agent);

	while (rc == 0) {
		bool ticking = agent->streams.ticking || agent->dns.ticking;
		int count;

		rc = emit(agent);
		if (rc < 0) {
			break;
		}
		watch_room(agent, &port_events);
		count = epoll_wait(agent->epoll_fd, events, EVENTS_MAX, ticking ? TICK_MS : -1);
		if (count < 0 && errno != EINTR) {
			return -errno;
		}
		for (int i = 0; rc == 0 && i < count; i++) {
			rc = handle_event(agent, &events[i]);
		}
		if (ticking && clock_monotonic_ns() - ticked_ns >= TICK_MS * UINT64_C(1000000)) {
			ticked_ns = clock_monotonic_ns();
			net_streams_tick(agent, ticked_ns);
			net_dns_tick(agent, ticked_ns);
		}
	}
	return rc;
}

int net_agent_run(const struct net_agent_config *config)
{
	/* Some megabytes, of which most are never touched. */
	_cleanup_free_ struct net_agent *agent = calloc(1, sizeof(*agent));
	uint64_t token;
	int rc;

	if (!agent) {
		return -ENOMEM;
	}
	if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token)) {
		return -EIO;
	}
	agent->config = *config;
	agent->dns.names = config->names;
	net_port_init(&agent->port, config->port_fd, token);
	agent->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (agent->epoll_fd < 0) {
		return -errno;
	}
	rc = serve(agent);
	close_fd(&agent->epoll_fd);
	return rc;
}
