/*
 * The control socket: policies of the keeper in, events out. Events wait in a row of fixed length,
 * and none is dropped: when the keeper is slow nothing new is begun, and the row has a place for
 * all that has been begun (REPORTS_MAX).
 */
#include "net/net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"

_Static_assert(IPC_NET_NAME_SIZE > DNS_NAME_MAX, "a name fits");
_Static_assert(IPC_NET_ADDRESS_SIZE >= POLICY_ADDRESS_TEXT, "an address fits");
_Static_assert(IPC_NET_RULE_SIZE >= POLICY_RULE_LINE, "a rule fits");

static void flush(struct net *net)
{
	int rc = 0;

	while (net->report_count > 0) {
		rc = ipc_net_send(net->control_fd, &net->reports[net->report_start], -EBADF);
		if (rc < 0) {
			break;
		}
		net->report_start = (net->report_start + 1) % REPORTS_MAX;
		net->report_count--;
	}
	if (rc < 0 && rc != -EAGAIN) {
		/* The keeper is gone. */
		loop_stop(net->loop, rc == -EPIPE ? 0 : rc);
		return;
	}
	/* It ends in on_control, which then sees to what was left lying. */
	net->stalled |= net->report_count > REPORTS_STALL;
	(void)loop_modify(net->loop, net->control_fd,
			  EPOLLIN |
				  (net->report_count > 0 || net->stalled ? (uint32_t)EPOLLOUT : 0));
}

static void report(struct net *net, const struct ipc_net_message *message)
{
	ASSERT(net->report_count < REPORTS_MAX);
	net->reports[(net->report_start + net->report_count) % REPORTS_MAX] = *message;
	net->report_count++;
	flush(net);
}

void report_event(struct net *net, struct ipc_net_event *event, uint64_t began_ns)
{
	struct ipc_net_message message = {.type = IPC_NET_EVENT};

	event->duration_ns = clock_monotonic_ns() - began_ns;
	message.event = *event;
	report(net, &message);
}

void report_look(struct net *net)
{
	const struct ipc_net_message message = {.type = IPC_NET_LOOK};

	report(net, &message);
}

void report_limit(struct net *net, enum ipc_net_limit_kind kind, uint64_t value, const char *text)
{
	struct ipc_net_message message = {
		.type = IPC_NET_LIMIT,
		.limit = {.kind = kind, .value = value},
	};

	snprintf(message.limit.text, sizeof(message.limit.text), "%s", text);
	report(net, &message);
}

void report_verdict(struct ipc_net_event *event, const struct policy_verdict *verdict)
{
	event->allowed = verdict->allowed;
	event->reason = verdict->reason;
	event->rule[0] = event->special[0] = '\0';
	if (verdict->rule) {
		policy_rule_describe(verdict->rule, event->rule);
	}
	if (verdict->special) {
		snprintf(event->special, sizeof(event->special), "%s", verdict->special->name);
	}
}

/* The keeper is trusted; still its bytes are read as any others are. */
static int read_policy(int fd, struct policy_network **ret_policy)
{
	_cleanup_free_ uint8_t *data = NULL;
	size_t size;
	int rc = net_read_file(fd, POLICY_ENCODED_MAX, &data, &size);

	return rc < 0 ? rc : policy_decode(data, size, ret_policy);
}

static int take_policy(struct net *net, int fd, uint32_t serial)
{
	struct ipc_net_message ready = {.type = IPC_NET_READY, .policy.serial = serial};
	struct policy_network *policy = NULL;
	int rc = read_policy(fd, &policy);

	if (rc < 0) {
		return rc;
	}
	/* Rules that verdicts point to go with the old one; no verdict is kept. */
	free(net->policy);
	net->policy = policy;
	net->over_bytes = policy->bytes_max != 0 && net->bytes >= policy->bytes_max;
	net->told_connections = false;
	stream_decide_again(net);
	report(net, &ready);
	return 0;
}

/* What the connections go through is told once, before any can be. */
static int take_proxy(struct net *net, int fd, const struct ipc_net_proxy *proxy)
{
	if (net->policy || net->proxy.port != 0) {
		return -EBADMSG;
	}
	net->proxy = *proxy;
	return read_policy(fd, &net->proxy_direct);
}

/* The host finds names in another way than before. */
static int take_host_file(struct net *net, int fd, uint32_t type)
{
	int rc = type == IPC_NET_RESOLVER ? net_take_resolver(net, fd) : net_take_hosts(net, fd);

	if (rc == 0) {
		resolver_conf_changed(net->resolver);
	}
	return rc;
}

static int take_message(struct net *net, const struct ipc_net_message *message, int fd)
{
	switch (message->type) {
	case IPC_NET_POLICY:
		return take_policy(net, fd, message->policy.serial);
	case IPC_NET_PROXY:
		return take_proxy(net, fd, &message->proxy);
	case IPC_NET_RESOLVER:
	case IPC_NET_HOSTS:
		return take_host_file(net, fd, message->type);
	default:
		return -EBADMSG;
	}
}

static void on_control(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct net *net = data;

	if (events & EPOLLOUT) {
		flush(net);
	}
	if (events & ~(uint32_t)EPOLLOUT) {
		struct ipc_net_message message;
		_cleanup_close_ int with_fd = -EBADF;
		int rc = ipc_net_receive(fd, &message, &with_fd);

		if (rc == 0) {
			loop_stop(loop, 0);
			return;
		}
		if (rc == 1) {
			rc = take_message(net, &message, with_fd);
		}
		if (rc < 0 && rc != -EAGAIN) {
			loop_stop(loop, rc);
			return;
		}
	}
	if (net->stalled && net->report_count == 0) {
		net->stalled = false;
		(void)loop_modify(loop, fd, EPOLLIN);
		port_resume(net);
	}
	port_pump(net);
}

int report_begin(struct net *net)
{
	return loop_add(net->loop, net->control_fd, EPOLLIN, on_control, net);
}
