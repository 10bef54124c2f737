/*
 * box-net: the one process that makes a machine's connections.
 *
 * In: frames of the guest's agent (the port), policies of the keeper (the control socket), the
 * host's resolver set-up, and what servers send. Out: connections to addresses that the policy
 * allows, their bytes, and an event for all that was asked.
 *
 * Everything is made here, before the first byte of the guest is read: tables of fixed size, and
 * one mapping for the buffers of all streams. After that only a new policy of the keeper allocates.
 *
 * What may never happen: a name goes to a resolver, or an address is connected to, that the policy
 * in force has not just allowed; a guest makes the process grow, wait, or end.
 */
#include "net/net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"

#define TICK_MS 20
/* How often the keeper is asked to look at the host's files at most. */
#define LOOK_NS UINT64_C(1000000000)
/* A program that opens all that it may at once does not wait; one that goes through the addresses
 * of a network does. */
#define STREAMS_PER_SECOND 256
#define STREAMS_AT_ONCE NET_STREAMS_MAX
#define QUESTIONS_PER_SECOND 256
#define QUESTIONS_AT_ONCE 1024

static bool needs_tick(const struct net *net)
{
	return resolver_busy(net->resolver) || net->questions_waiting > 0 || stream_needs_tick(net);
}

static void on_tick(struct loop *loop, void *data)
{
	struct net *net = data;
	uint64_t now_ns = clock_monotonic_ns();

	(void)loop;
	net->tick_timer = 0;
	resolver_tick(net->resolver, now_ns);
	stream_tick(net, now_ns);
	question_begin_waiting(net);
	stream_begin_waiting(net);
	port_pump(net);
	if (needs_tick(net)) {
		net_need_tick(net);
	}
}

void net_need_tick(struct net *net)
{
	if (net->tick_timer == 0) {
		(void)loop_timer_add(net->loop, TICK_MS, on_tick, net, &net->tick_timer);
	}
}

bool net_may_begin(const struct net *net)
{
	return !net->stalled && net->port_fd >= 0;
}

uint64_t net_bytes_left(const struct net *net)
{
	if (!net->policy || net->policy->bytes_max == 0) {
		return UINT64_MAX - net->bytes;
	}
	return net->policy->bytes_max > net->bytes ? net->policy->bytes_max - net->bytes : 0;
}

bool net_count_bytes(struct net *net, uint64_t bytes)
{
	if (bytes > net_bytes_left(net)) {
		return false;
	}
	net->bytes += bytes;
	return true;
}

void net_over_bytes(struct net *net)
{
	if (!net->over_bytes) {
		net->over_bytes = true;
		report_limit(net, IPC_NET_LIMIT_BYTES, net->policy->bytes_max,
			     "limits.bytes is used up; the machine has no network any more");
	}
	stream_cut_all(net, IPC_NET_END_LIMIT);
}

static void on_lookup(struct lookup *lookup, void *data)
{
	struct net *net = data;

	question_lookup_done(net, lookup);
	stream_lookup_done(net, lookup);
	port_pump(net);
}

int net_read_file(int fd, size_t max, uint8_t **ret_data, size_t *ret_size)
{
	_cleanup_free_ uint8_t *data = NULL;
	struct stat status;
	size_t size;

	if (fstat(fd, &status) < 0) {
		return -errno;
	}
	if (!S_ISREG(status.st_mode) || status.st_size < 0 || status.st_size > (off_t)max) {
		return -EBADMSG;
	}
	size = (size_t)status.st_size;
	data = malloc(size + 1);
	if (!data) {
		return -ENOMEM;
	}
	for (size_t got = 0; got < size;) {
		ssize_t rc = pread(fd, data + got, size - got, (off_t)got);

		if (rc <= 0) {
			return rc < 0 ? -errno : -EBADMSG;
		}
		got += (size_t)rc;
	}
	*ret_data = TAKE_PTR(data);
	*ret_size = size;
	return 0;
}

int net_take_resolver(struct net *net, int fd)
{
	_cleanup_free_ uint8_t *text = NULL;
	size_t size;
	int rc = net_read_file(fd, IPC_NET_FILE_MAX, &text, &size);

	if (rc == 0) {
		conf_read_resolver(&net->conf, (const char *)text, size);
	}
	return rc;
}

int net_take_hosts(struct net *net, int fd)
{
	uint8_t *text;
	size_t size;
	int rc = net_read_file(fd, IPC_NET_FILE_MAX, &text, &size);

	if (rc == 0) {
		free(net->hosts);
		net->hosts = (char *)text;
		net->conf.hosts = net->hosts;
		net->conf.hosts_size = size;
	}
	return rc;
}

struct lookup *net_look_up(struct net *net, const char *name)
{
	uint64_t now_ns = clock_monotonic_ns();

	if (net->looked_ns == 0 || now_ns - net->looked_ns >= LOOK_NS) {
		net->looked_ns = now_ns;
		report_look(net);
	}
	return resolver_ask(net->resolver, name);
}

/* The buffers of all streams. Addresses only: pages come with use. */
static int map_buffers(struct net *net)
{
	const size_t each = NET_UP_WINDOW + TLS_HELLO_MAX;
	uint8_t *memory = mmap(NULL, SLOTS * each, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED) {
		return -errno;
	}
	for (size_t i = 0; i < SLOTS; i++) {
		net->streams[i].fd = -EBADF;
		net->streams[i].buffer = memory + i * each;
		net->streams[i].hello = memory + i * each + NET_UP_WINDOW;
		TAILQ_INSERT_TAIL(&net->free, &net->streams[i], state_entry);
	}
	return 0;
}

static int prepare(struct net *net, struct err *err)
{
	uint64_t now_ns = clock_monotonic_ns();
	int rc;

	TAILQ_INIT(&net->says);
	TAILQ_INIT(&net->reads);
	TAILQ_INIT(&net->waiting);
	TAILQ_INIT(&net->connecting);
	TAILQ_INIT(&net->lingering);
	TAILQ_INIT(&net->free);
	net->port_fd = IPC_NET_PORT_FD;
	net->control_fd = IPC_NET_CONTROL_FD;
	net->stream_pace = pace_make(STREAMS_PER_SECOND, STREAMS_AT_ONCE, now_ns);
	net->question_pace = pace_make(QUESTIONS_PER_SECOND, QUESTIONS_AT_ONCE, now_ns);
	wire_decoder_reset(&net->decoder);
	rc = map_buffers(net);
	if (rc < 0) {
		return err_context(err, rc, "the buffers of its connections");
	}
	rc = net_take_resolver(net, IPC_NET_RESOLVER_FD);
	if (rc < 0) {
		return err_context(err, rc, "resolv.conf as it was handed over");
	}
	rc = net_take_hosts(net, IPC_NET_HOSTS_FD);
	return rc < 0 ? err_context(err, rc, "the hosts file as it was handed over") : 0;
}

int net_run(struct err *err)
{
	_cleanup_(loop_freep) struct loop *loop = NULL;
	_cleanup_free_ struct net *net = calloc(1, sizeof(*net));
	_cleanup_free_ struct resolver *resolver = NULL;
	int rc = net ? loop_new(&loop) : -ENOMEM;

	if (rc < 0) {
		return err_context(err, rc, "its tables");
	}
	net->loop = loop;
	rc = prepare(net, err);
	if (rc < 0) {
		return rc;
	}
	rc = resolver_new(loop, &net->conf, on_lookup, net, &resolver);
	if (rc < 0) {
		return err_context(err, rc, "its table of names");
	}
	net->resolver = resolver;
	rc = set_nonblocking(net->control_fd, true);
	if (rc == 0) {
		rc = report_begin(net);
	}
	if (rc == 0) {
		rc = port_begin(net);
	}
	if (rc == 0) {
		rc = loop_run(loop);
	}
	free(net->policy);
	free(net->proxy_direct);
	free(net->hosts);
	return rc < 0 ? err_context(err, rc, "what the keeper sent, or the control socket") : 0;
}
