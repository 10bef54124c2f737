/*
 * In: names that were allowed, and what servers answer. Out: lookups with addresses.
 *
 * A lookup has two queries, one for each kind of address. A query asks one server after the other,
 * each for so long as resolv.conf says, all of them as often as it says. An answer that is broken,
 * or a server's failure, is the next server's turn; a packet that answers another question is
 * passed over. A truncated answer is asked for again over TCP.
 *
 * Of a name of /etc/hosts no server is asked.
 *
 * What may never happen: an answer is taken from whom nobody asked; the memory grows with what is
 * asked or answered; a lookup ends inside resolver_ask, where nobody waits for it yet.
 */
#include "net/resolver.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "wire/dns.h"

/* All users with a name of their own, and some that are only remembered. */
#define LOOKUPS_MAX 2048
/* Sockets at once are twice as many. A host's resolver has hundreds of clients, not thousands. */
#define ASKING_MAX 96
/* Answers over TCP at once, 64 KiB each. Hardly any is needed. */
#define TCP_MAX 8
#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
/* How long one kind of address waits for the other. RFC 8305 says 50 ms; but a resolver that has to
 * go far for one of them should not lose it. */
#define GRACE_NS (200 * MS)
/* A name that moves is found within minutes, whatever its TTL says. */
#define KEEP_MAX_S 300
/* That there is none is kept for less: it is often about to change. */
#define KEEP_NONE_S 5
/* What is known of one kind only. */
#define KEEP_HALF_S 2
/* Wait for a place to receive an answer over TCP. */
#define TCP_WAIT_NS (50 * MS)

struct tcp_slot {
	bool taken;
	/* A length and a message (RFC 1035, 4.2.2). */
	uint8_t bytes[2 + DNS_MESSAGE_MAX];
};

struct resolver {
	struct loop *loop;
	const struct conf *conf;
	resolver_callback *callback;
	void *data;
	unsigned asking;
	unsigned queued;
	uint64_t last_number;
	struct dns_response response;
	uint8_t packet[DNS_UDP_SIZE + 1];
	struct tcp_slot tcp[TCP_MAX];
	struct lookup lookups[LOOKUPS_MAX];
};

int resolver_new(struct loop *loop, const struct conf *conf, resolver_callback *callback,
		 void *data, struct resolver **ret_resolver)
{
	/* Of its pages only those are real that were once used. */
	struct resolver *resolver = calloc(1, sizeof(*resolver));

	if (!resolver) {
		return -ENOMEM;
	}
	resolver->loop = loop;
	resolver->conf = conf;
	resolver->callback = callback;
	resolver->data = data;
	*ret_resolver = resolver;
	return 0;
}

static void close_query(struct query *query)
{
	if (query->fd >= 0) {
		loop_remove(query->resolver->loop, query->fd);
		close_fd(&query->fd);
	}
	if (query->tcp_slot >= 0) {
		query->resolver->tcp[query->tcp_slot].taken = false;
		query->tcp_slot = -1;
	}
}

/* The best that there is now of two kinds: when neither has an address, what failed counts. */
static void conclude(struct lookup *lookup, uint64_t now_ns)
{
	const struct query *queries = lookup->queries;
	bool found = lookup->address_count[0] + lookup->address_count[1] > 0;
	uint32_t keep_s = found ? KEEP_MAX_S : KEEP_NONE_S;

	for (int i = 0; i < 2; i++) {
		if (!queries[i].answered) {
			keep_s = found ? MIN(keep_s, (uint32_t)KEEP_HALF_S) : 0;
		} else if (lookup->address_count[i] > 0) {
			keep_s = MIN(keep_s, queries[i].ttl_s);
		}
	}
	if (found) {
		lookup->status = NET_OK;
	} else if (!queries[0].answered || !queries[1].answered) {
		lookup->status = NET_TEMPORARY;
	} else {
		lookup->status = queries[0].no_name && queries[1].no_name ? NET_NXDOMAIN : NET_OK;
	}
	lookup->expires_ns = now_ns + keep_s * SECOND;
}

static void start_queued(struct resolver *resolver);

static void finish_lookup(struct lookup *lookup)
{
	struct resolver *resolver = lookup->queries[0].resolver;

	for (int i = 0; i < 2; i++) {
		close_query(&lookup->queries[i]);
		lookup->queries[i].done = true;
	}
	conclude(lookup, clock_monotonic_ns());
	lookup->state = LOOKUP_DONE;
	resolver->asking--;
	resolver->callback(lookup, resolver->data);
	start_queued(resolver);
}

static void finish_query(struct query *query)
{
	struct lookup *lookup = query->lookup;
	const struct query *other = &lookup->queries[query == &lookup->queries[0]];

	close_query(query);
	query->done = true;
	if (other->done) {
		finish_lookup(lookup);
	} else if (lookup->address_count[query->type == DNS_TYPE_AAAA] > 0) {
		lookup->grace_ns = clock_monotonic_ns() + GRACE_NS;
	}
}

/* An answer that is one, to the end: takes its addresses. */
static void take_response(struct query *query)
{
	const struct dns_response *response = &query->resolver->response;
	struct lookup *lookup = query->lookup;
	int kind = query->type == DNS_TYPE_AAAA;
	size_t count = MIN(response->address_count, (size_t)RESOLVER_ADDRESSES);

	query->answered = true;
	query->no_name = response->rcode == DNS_NXDOMAIN;
	query->ttl_s = response->ttl_s;
	lookup->address_count[kind] = query->no_name ? 0 : count;
	for (size_t i = 0; i < lookup->address_count[kind]; i++) {
		lookup->addresses[kind][i].family = kind ? 6 : 4;
		memcpy(lookup->addresses[kind][i].bytes, response->addresses[i], 16);
	}
	finish_query(query);
}

/* Where the query is asked now. */
static const struct sockaddr_storage *find_server(const struct query *query)
{
	const struct conf *conf = query->resolver->conf;
	uint64_t first = conf->rotate ? query->lookup->number : 0;

	return &conf->servers[(first + query->tries) % conf->server_count];
}

static int connect_query(struct query *query, bool tcp)
{
	const struct sockaddr_storage *server = find_server(query);
	socklen_t size = server->ss_family == AF_INET ? sizeof(struct sockaddr_in)
						      : sizeof(struct sockaddr_in6);
	int type = (tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK | SOCK_CLOEXEC;

	query->fd = socket(server->ss_family, type, 0);
	if (query->fd < 0 || getrandom(&query->id, sizeof(query->id), 0) < 0) {
		return -errno;
	}
	if (connect(query->fd, (const struct sockaddr *)server, size) < 0 && errno != EINPROGRESS) {
		return -errno;
	}
	return 0;
}

static int encode(const struct query *query, uint8_t *out, size_t capacity)
{
	const struct dns_query question = {
		.id = query->id, .type = query->type, .name = query->lookup->name};

	return dns_query_encode(&question, out, capacity);
}

static void ask(struct query *query, bool tcp);

/* The server that is asked now is of no use: the next one's turn, or the end. */
static void try_next(struct query *query)
{
	const struct conf *conf = query->resolver->conf;

	close_query(query);
	query->tries++;
	if (query->tries >= conf->attempts * conf->server_count) {
		finish_query(query);
	} else {
		ask(query, conf->use_tcp);
	}
}

/* Says what a whole message means: taken, dropped, another way, or another server. */
static void judge(struct query *query, const uint8_t *message, size_t size)
{
	struct dns_response *response = &query->resolver->response;
	const struct dns_query question = {
		.id = query->id, .type = query->type, .name = query->lookup->name};
	int rc = dns_response_decode(message, size, &question, response);

	if (rc == -ENOMSG && !query->tcp) {
		return;
	}
	if (rc < 0) {
		try_next(query);
	} else if (response->truncated && !query->tcp) {
		close_query(query);
		ask(query, true);
	} else if (!response->truncated &&
		   (response->rcode == DNS_NOERROR || response->rcode == DNS_NXDOMAIN)) {
		take_response(query);
	} else {
		try_next(query);
	}
}

static void on_packet(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct query *query = data;
	uint8_t *packet = query->resolver->packet;
	ssize_t got = recv(fd, packet, sizeof(query->resolver->packet), MSG_DONTWAIT | MSG_TRUNC);

	(void)loop;
	(void)events;
	if (got < 0) {
		if (errno != EAGAIN && errno != EINTR) {
			/* Nobody is there: ICMP says so. */
			try_next(query);
		}
		return;
	}
	/* More than we said that we take is no answer to us. */
	if ((size_t)got <= DNS_UDP_SIZE) {
		judge(query, packet, (size_t)got);
	}
}

/* One short write into an empty socket buffer. */
static int send_tcp(struct query *query)
{
	uint8_t out[2 + DNS_UDP_MIN];
	int size = encode(query, out + 2, sizeof(out) - 2);

	ASSERT(size > 0);
	out[0] = (uint8_t)(size >> 8);
	out[1] = (uint8_t)size;
	size += 2;
	query->tcp_asked = true;
	return send(query->fd, out, (size_t)size, MSG_NOSIGNAL) == size ? 0 : -EIO;
}

static void on_tcp(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct query *query = data;
	uint8_t *bytes = query->resolver->tcp[query->tcp_slot].bytes;
	size_t wanted = 2;
	ssize_t got;

	(void)events;
	if (!query->tcp_asked) {
		if (send_tcp(query) < 0 || loop_modify(loop, fd, EPOLLIN) < 0) {
			try_next(query);
		}
		return;
	}
	if (query->tcp_got >= 2) {
		wanted += (size_t)bytes[0] << 8 | bytes[1];
	}
	got = recv(fd, bytes + query->tcp_got, wanted - query->tcp_got, MSG_DONTWAIT);
	if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
		return;
	}
	if (got <= 0) {
		try_next(query);
		return;
	}
	query->tcp_got += (size_t)got;
	if (query->tcp_got > 2 && query->tcp_got == wanted) {
		judge(query, bytes + 2, wanted - 2);
	}
}

static int take_tcp_slot(struct resolver *resolver)
{
	for (int i = 0; i < TCP_MAX; i++) {
		if (!resolver->tcp[i].taken) {
			resolver->tcp[i].taken = true;
			return i;
		}
	}
	return -1;
}

/* Sends the question. What fails here is the next server's turn at the next tick, not now: nobody
 * may be waiting for the lookup yet. */
static void ask(struct query *query, bool tcp)
{
	struct resolver *resolver = query->resolver;
	uint64_t now_ns = clock_monotonic_ns();
	uint8_t out[DNS_UDP_MIN];
	int size, rc;

	query->tcp = tcp;
	query->tcp_asked = false;
	query->tcp_got = 0;
	if (tcp) {
		query->tcp_slot = take_tcp_slot(resolver);
		if (query->tcp_slot < 0) {
			query->deadline_ns = now_ns + TCP_WAIT_NS;
			return;
		}
	}
	query->deadline_ns = now_ns + resolver->conf->timeout_s * SECOND;
	rc = connect_query(query, tcp);
	if (rc == 0 && !tcp) {
		size = encode(query, out, sizeof(out));
		ASSERT(size > 0);
		rc = send(query->fd, out, (size_t)size, MSG_NOSIGNAL) == size ? 0 : -EIO;
	}
	if (rc == 0) {
		rc = loop_add(resolver->loop, query->fd, tcp ? EPOLLOUT : EPOLLIN,
			      tcp ? on_tcp : on_packet, query);
	}
	if (rc < 0) {
		query->deadline_ns = now_ns;
	}
}

static void start_lookup(struct lookup *lookup)
{
	struct resolver *resolver = lookup->queries[0].resolver;

	lookup->state = LOOKUP_ASKING;
	resolver->asking++;
	for (int i = 0; i < 2; i++) {
		ask(&lookup->queries[i], resolver->conf->use_tcp);
	}
}

static void start_queued(struct resolver *resolver)
{
	while (resolver->queued > 0 && resolver->asking < ASKING_MAX) {
		struct lookup *first = NULL;

		for (size_t i = 0; i < LOOKUPS_MAX; i++) {
			struct lookup *lookup = &resolver->lookups[i];

			if (lookup->state == LOOKUP_QUEUED &&
			    (!first || lookup->number < first->number)) {
				first = lookup;
			}
		}
		ASSERT(first);
		resolver->queued--;
		if (first->users == 0) {
			first->state = LOOKUP_FREE;
		} else {
			start_lookup(first);
		}
	}
}

/* One that is there and good, or the place for a new one. */
static struct lookup *find_lookup(struct resolver *resolver, const char *name, uint64_t now_ns)
{
	struct lookup *place = NULL;

	for (size_t i = 0; i < LOOKUPS_MAX; i++) {
		struct lookup *lookup = &resolver->lookups[i];
		bool over = lookup->state == LOOKUP_DONE && lookup->expires_ns <= now_ns;

		if (lookup->state != LOOKUP_FREE && !over && strcmp(lookup->name, name) == 0) {
			return lookup;
		}
		if (lookup->state != LOOKUP_FREE &&
		    (lookup->state != LOOKUP_DONE || lookup->users > 0)) {
			continue;
		}
		/* A free one, or the oldest of those that are only remembered. */
		if (!place || (place->state != LOOKUP_FREE &&
			       (lookup->state == LOOKUP_FREE || lookup->number < place->number))) {
			place = lookup;
		}
	}
	if (place) {
		place->state = LOOKUP_FREE;
	}
	return place;
}

/* Whether hosts has the name: then the lookup is done. */
static bool take_from_hosts(struct lookup *lookup, const struct conf *conf)
{
	struct policy_address found[RESOLVER_ADDRESSES];
	size_t count = conf_find_host(conf, lookup->name, found, ARRAY_SIZE(found));

	for (size_t i = 0; i < count; i++) {
		int kind = found[i].family == 6;

		lookup->addresses[kind][lookup->address_count[kind]++] = found[i];
	}
	lookup->status = NET_OK;
	lookup->state = LOOKUP_DONE;
	return count > 0;
}

struct lookup *resolver_ask(struct resolver *resolver, const char *name)
{
	struct lookup *lookup = find_lookup(resolver, name, clock_monotonic_ns());

	ASSERT(strlen(name) <= DNS_NAME_MAX);
	if (!lookup) {
		return NULL;
	}
	if (lookup->state != LOOKUP_FREE) {
		lookup->users++;
		return lookup;
	}
	memset(lookup, 0, sizeof(*lookup));
	memcpy(lookup->name, name, strlen(name) + 1);
	lookup->users = 1;
	lookup->number = ++resolver->last_number;
	for (int i = 0; i < 2; i++) {
		lookup->queries[i] = (struct query){
			.resolver = resolver,
			.lookup = lookup,
			.fd = -EBADF,
			.type = i ? DNS_TYPE_AAAA : DNS_TYPE_A,
			.tcp_slot = -1,
		};
	}
	if (take_from_hosts(lookup, resolver->conf)) {
		return lookup;
	}
	if (resolver->asking < ASKING_MAX) {
		start_lookup(lookup);
	} else {
		lookup->state = LOOKUP_QUEUED;
		resolver->queued++;
	}
	return lookup;
}

void resolver_release(struct lookup *lookup)
{
	ASSERT(lookup->users > 0);
	lookup->users--;
}

void resolver_tick(struct resolver *resolver, uint64_t now_ns)
{
	for (size_t i = 0; resolver->asking > 0 && i < LOOKUPS_MAX; i++) {
		struct lookup *lookup = &resolver->lookups[i];

		if (lookup->state == LOOKUP_ASKING && lookup->grace_ns != 0 &&
		    lookup->grace_ns <= now_ns) {
			finish_lookup(lookup);
		}
		for (int k = 0; k < 2 && lookup->state == LOOKUP_ASKING; k++) {
			struct query *query = &lookup->queries[k];

			if (query->done || query->deadline_ns > now_ns) {
				continue;
			}
			if (query->tcp && query->tcp_slot < 0) {
				ask(query, true);
			} else {
				try_next(query);
			}
		}
	}
}

void resolver_conf_changed(struct resolver *resolver)
{
	for (size_t i = 0; i < LOOKUPS_MAX; i++) {
		struct lookup *lookup = &resolver->lookups[i];

		if (lookup->state == LOOKUP_DONE) {
			lookup->expires_ns = 0;
		}
		for (int k = 0; k < 2 && lookup->state == LOOKUP_ASKING; k++) {
			struct query *query = &lookup->queries[k];

			if (!query->done) {
				close_query(query);
				query->tries = 0;
				ask(query, resolver->conf->use_tcp);
			}
		}
	}
}

bool resolver_busy(const struct resolver *resolver)
{
	return resolver->asking > 0;
}
