#include "guest/net_dns.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/net_agent.h"
#include "guest/net_packet.h"

/* RFC 1035, 3.2.3, and RFC 8482: "everything" is asked by nobody who needs it. */
#define TYPE_ANY 255
/* How long what the host said holds. Its policy may change meanwhile, and it decides again when a
 * connection is made; so this only saves questions. */
#define PRESENT_MS 30000u
#define ABSENT_MS 1000u
/* Programs keep an address as long; it stays the name's anyway. */
#define TTL_S 60
/* glibc and musl have gone after 10 s, dig after 15. */
#define WAITING_MS 20000u
#define CONNECTION_MS 20000u
/* Taken in one turn, so that others get theirs. */
#define DATAGRAMS_MAX 64
/* Of a datagram's control messages: one in6_pktinfo. */
#define CONTROL_MAX 128

static uint64_t after_ms(unsigned ms)
{
	return clock_monotonic_ns() + ms * UINT64_C(1000000);
}

/* ---- Names ---- */

static unsigned hash_name(const char *name)
{
	uint32_t hash = 2166136261u;

	for (; *name; name++) {
		hash = (hash ^ (uint8_t)*name) * 16777619u;
	}
	return (hash ^ hash >> 16) % NET_POOL_NAMES;
}

static struct net_dns_known *find_known(struct net_dns *dns, const char *name)
{
	for (uint32_t i = dns->names->by_name[hash_name(name)]; i != 0;
	     i = dns->names->known[i - 1].next) {
		if (strcmp(dns->names->known[i - 1].name, name) == 0) {
			return &dns->names->known[i - 1];
		}
	}
	return NULL;
}

/* NULL when all numbers are given. */
static struct net_dns_known *make_known(struct net_dns *dns, const char *name)
{
	struct net_dns_known *known;
	uint32_t *first = &dns->names->by_name[hash_name(name)];

	if (dns->names->known_count == NET_POOL_NAMES) {
		return NULL;
	}
	known = &dns->names->known[dns->names->known_count++];
	memcpy(known->name, name, strlen(name) + 1);
	known->next = *first;
	*first = dns->names->known_count;
	return known;
}

const char *net_dns_name(const struct net_dns *dns, uint32_t number)
{
	return number < dns->names->known_count ? dns->names->known[number].name : NULL;
}

/* What the host said about a name. */
struct verdict {
	uint8_t status;
	/* NET_OK, and it has no address of either kind. */
	bool empty;
};

/* Returns whether it is known what the host would say now. */
static bool look_up(struct net_dns *dns, const char *name, struct verdict *ret_verdict)
{
	struct net_dns_known *known = find_known(dns, name);
	uint64_t now = clock_monotonic_ns();

	if (known && now < known->fresh_until_ns) {
		*ret_verdict = (struct verdict){known->status, known->empty};
		return true;
	}
	for (unsigned i = 0; i < NET_DNS_ABSENT_MAX; i++) {
		struct net_dns_absent *absent = &dns->absent[i];

		if (now < absent->fresh_until_ns && strcmp(absent->name, name) == 0) {
			*ret_verdict = (struct verdict){absent->status, absent->empty};
			return true;
		}
	}
	return false;
}

/* Remembers it, and gives a name that can be connected to its number. */
static void remember(struct net_dns *dns, const char *name, struct verdict *verdict)
{
	bool usable = verdict->status == NET_OK && !verdict->empty;
	struct net_dns_known *known = find_known(dns, name);

	if (!known && usable) {
		known = make_known(dns, name);
		if (!known) {
			verdict->status = NET_TEMPORARY;
			usable = false;
		}
	}
	if (known) {
		known->status = verdict->status;
		known->empty = verdict->empty;
		known->fresh_until_ns = after_ms(usable ? PRESENT_MS : ABSENT_MS);
	} else if (verdict->status != NET_TEMPORARY) {
		struct net_dns_absent *absent = &dns->absent[dns->absent_next];

		dns->absent_next = (dns->absent_next + 1) % NET_DNS_ABSENT_MAX;
		memcpy(absent->name, name, strlen(name) + 1);
		absent->status = verdict->status;
		absent->empty = verdict->empty;
		absent->fresh_until_ns = after_ms(ABSENT_MS);
	}
}

/* ---- Answers ---- */

static void close_connection(struct net_agent *agent, unsigned index)
{
	struct net_dns *dns = &agent->dns;

	for (unsigned i = 0; i < NET_DNS_WAITING_MAX; i++) {
		if (dns->waiting[i].used && dns->waiting[i].connection == index + 1) {
			dns->waiting[i].used = false;
		}
	}
	close(dns->connections[index].fd);
	dns->connections[index].fd = 0;
}

static void send_answer(struct net_agent *agent, const struct net_dns_waiting *asker,
			const struct dns_answer *answer)
{
	/* Two addresses at most, or one name: far below what fits a datagram. */
	uint8_t buffer[NET_PACKET_HEADERS_MAX + DNS_UDP_SIZE];
	uint8_t *message = buffer + NET_PACKET_HEADERS_MAX;
	int size =
		dns_answer_encode(&asker->question, answer, message,
				  asker->connection != 0 ? DNS_UDP_SIZE : asker->question.udp_size);

	if (size < 0) {
		return;
	}
	if (asker->connection == 0) {
		uint8_t *packet;
		size_t packet_size =
			net_packet_datagram(&asker->tuple, buffer, (size_t)size, &packet);

		net_agent_send(agent, packet, packet_size, asker->tuple.source);
		return;
	}
	message[-2] = (uint8_t)(size >> 8);
	message[-1] = (uint8_t)size;
	/* The socket's buffer is empty, or the asker has not read what it asked for. */
	if (send(agent->dns.connections[asker->connection - 1].fd, message - 2, (size_t)size + 2,
		 MSG_NOSIGNAL | MSG_DONTWAIT) != size + 2) {
		close_connection(agent, asker->connection - 1u);
	}
}

static void answer_address(struct net_agent *agent, const struct net_dns_waiting *asker,
			   const uint8_t *v4, const uint8_t *v6)
{
	struct dns_answer answer = {.ttl_s = TTL_S, .address_count = 1};

	if (asker->question.type == DNS_TYPE_A) {
		answer.addresses = v4;
	} else if (asker->question.type == DNS_TYPE_AAAA) {
		answer.addresses = v6;
	} else {
		answer.address_count = 0;
	}
	send_answer(agent, asker, &answer);
}

static void answer_verdict(struct net_agent *agent, const struct net_dns_waiting *asker,
			   const struct verdict *verdict)
{
	struct net_dns *dns = &agent->dns;
	const struct net_dns_known *known = find_known(dns, asker->question.name);
	struct dns_answer answer = {.rcode = DNS_NXDOMAIN};
	uint8_t v4[4], v6[16];

	if (verdict->status == NET_OK && !verdict->empty && known) {
		net_pool_v4((uint32_t)(known - dns->names->known), v4);
		net_pool_v6((uint32_t)(known - dns->names->known), v6);
		answer_address(agent, asker, v4, v6);
		return;
	}
	if (verdict->status == NET_OK) {
		answer.rcode = DNS_NOERROR;
	} else if (verdict->status == NET_TEMPORARY) {
		answer.rcode = DNS_SERVFAIL;
	}
	send_answer(agent, asker, &answer);
}

static void answer_rcode(struct net_agent *agent, const struct net_dns_waiting *asker,
			 uint16_t rcode)
{
	const struct dns_answer answer = {.rcode = rcode};

	send_answer(agent, asker, &answer);
}

/* An address back to its name: those of the pool only. */
static void answer_reverse(struct net_agent *agent, const struct net_dns_waiting *asker)
{
	struct dns_answer answer = {.rcode = DNS_NXDOMAIN, .ttl_s = TTL_S};
	uint8_t bytes[16], address[16];
	bool pointer = asker->question.type == DNS_TYPE_PTR;
	int size = pointer ? dns_reverse_decode(asker->question.name, bytes) : -EINVAL;
	uint32_t number;

	if (size > 0) {
		net_pool_widen(bytes, (size_t)size, address);
		if (net_pool_contains(address, &number)) {
			answer.pointer = net_dns_name(&agent->dns, number);
		}
	}
	if (answer.pointer) {
		answer.rcode = DNS_NOERROR;
	}
	send_answer(agent, asker, &answer);
}

static bool ends_with(const char *name, const char *end)
{
	size_t size = strlen(name), end_size = strlen(end);

	return size >= end_size && strcmp(name + size - end_size, end) == 0;
}

/* What is answered without the host. */
static bool answer_here(struct net_agent *agent, const struct net_dns_waiting *asker)
{
	static const uint8_t loopback_v4[] = {127, 0, 0, 1};
	const struct dns_question *question = &asker->question;
	char hostname[DNS_NAME_MAX + 1] = "";

	if (question->rcode != DNS_NOERROR) {
		send_answer(agent, asker, NULL);
		return true;
	}
	if (question->type == TYPE_ANY) {
		answer_rcode(agent, asker, DNS_REFUSED);
		return true;
	}
	if (ends_with(question->name, ".in-addr.arpa") || ends_with(question->name, ".ip6.arpa")) {
		answer_reverse(agent, asker);
		return true;
	}
	/* RFC 6761, 6.3. */
	if (strcmp(question->name, "localhost") == 0 || ends_with(question->name, ".localhost")) {
		answer_address(agent, asker, loopback_v4, in6addr_loopback.s6_addr);
		return true;
	}
	/* Programs look up the name of the machine that they are on. */
	gethostname(hostname, sizeof(hostname) - 1);
	if (strcasecmp(question->name, hostname) == 0) {
		answer_address(agent, asker, net_pool_own_v4 + 12, net_pool_own_v6);
		return true;
	}
	return false;
}

/* ---- Questions ---- */

/* The place of the RESOLVE for a name, or -EBUSY. */
static int find_asking(struct net_dns *dns, const char *name)
{
	int vacant = -EBUSY;

	for (unsigned i = 0; i < NET_QUESTIONS_MAX; i++) {
		if (dns->asking[i].used && strcmp(dns->asking[i].name, name) == 0) {
			return (int)i;
		}
		if (!dns->asking[i].used && vacant < 0) {
			vacant = (int)i;
		}
	}
	if (vacant >= 0) {
		dns->asking[vacant] = (struct net_dns_asking){.used = true};
		memcpy(dns->asking[vacant].name, name, strlen(name) + 1);
		dns->due = true;
	}
	return vacant;
}

static struct net_dns_waiting *find_waiting(struct net_dns *dns)
{
	for (unsigned i = 0; i < NET_DNS_WAITING_MAX; i++) {
		if (!dns->waiting[i].used) {
			return &dns->waiting[i];
		}
	}
	return NULL;
}

/*
 * Answers a question or makes the asker wait for the host. When too many wait it is dropped: an
 * asker comes again after some seconds, but takes an error for the answer. Returns whether the
 * asker waits.
 */
static bool consider(struct net_agent *agent, struct net_dns_waiting *asker)
{
	struct net_dns *dns = &agent->dns;
	struct net_dns_waiting *waiting;
	struct verdict verdict;
	int asking;

	if (answer_here(agent, asker)) {
		return false;
	}
	if (look_up(dns, asker->question.name, &verdict)) {
		answer_verdict(agent, asker, &verdict);
		return false;
	}
	waiting = find_waiting(dns);
	asking = waiting ? find_asking(dns, asker->question.name) : -EBUSY;
	if (asking < 0) {
		return false;
	}
	*waiting = *asker;
	waiting->used = true;
	waiting->asking = (uint16_t)asking;
	waiting->deadline_ns = after_ms(WAITING_MS);
	dns->ticking = true;
	return true;
}

/* The address that a datagram was for. */
static bool destination_of(struct msghdr *message, uint8_t *ret_address)
{
	for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control;
	     control = CMSG_NXTHDR(message, control)) {
		struct in6_pktinfo info;

		if (control->cmsg_level == IPPROTO_IPV6 && control->cmsg_type == IPV6_PKTINFO &&
		    control->cmsg_len >= CMSG_LEN(sizeof(info))) {
			memcpy(&info, CMSG_DATA(control), sizeof(info));
			memcpy(ret_address, &info.ipi6_addr, 16);
			return true;
		}
	}
	return false;
}

void net_dns_datagrams(struct net_agent *agent)
{
	for (int i = 0; i < DATAGRAMS_MAX; i++) {
		_Alignas(struct cmsghdr) uint8_t control[CONTROL_MAX];
		uint8_t data[NET_DNS_MESSAGE_MAX];
		struct sockaddr_in6 peer = {0};
		struct net_dns_waiting asker = {.tuple.destination_port = {0, 53}};
		struct iovec vector = {.iov_base = data, .iov_len = sizeof(data)};
		struct msghdr message = {
			.msg_name = &peer,
			.msg_namelen = sizeof(peer),
			.msg_iov = &vector,
			.msg_iovlen = 1,
			.msg_control = control,
			.msg_controllen = sizeof(control),
		};
		ssize_t got = recvmsg(agent->config.sockets[NET_SOCKET_UDP], &message, 0);

		if (got < 0) {
			return;
		}
		if (!destination_of(&message, asker.tuple.destination) ||
		    dns_question_decode(data, (size_t)got, &asker.question) < 0) {
			continue;
		}
		memcpy(asker.tuple.source, &peer.sin6_addr, 16);
		memcpy(asker.tuple.source_port, &peer.sin6_port, 2);
		consider(agent, &asker);
	}
}

void net_dns_accept(struct net_agent *agent)
{
	struct net_dns *dns = &agent->dns;
	_cleanup_close_ int fd = accept4(agent->config.sockets[NET_SOCKET_DNS], NULL, NULL,
					 SOCK_NONBLOCK | SOCK_CLOEXEC);

	for (unsigned i = 0; fd >= 0 && i < NET_DNS_CONNECTIONS_MAX; i++) {
		struct net_dns_connection *connection = &dns->connections[i];

		if (connection->fd == 0 &&
		    net_agent_watch(agent, fd, EPOLLIN | EPOLLRDHUP, NET_SOURCE_DNS_TCP, i) == 0) {
			connection->fd = TAKE_FD(fd);
			connection->waiting = false;
			connection->filled = 0;
			connection->deadline_ns = after_ms(CONNECTION_MS);
			dns->ticking = true;
			return;
		}
	}
	/* None is free: the one that has come is closed. */
}

/* Takes whole questions, one after the other: the next one when the last was answered. */
static void take_messages(struct net_agent *agent, unsigned index)
{
	struct net_dns_connection *connection = &agent->dns.connections[index];

	while (connection->fd != 0 && !connection->waiting && connection->filled >= 2) {
		size_t size = (size_t)connection->data[0] << 8 | connection->data[1];
		struct net_dns_waiting asker = {.connection = (uint16_t)(index + 1)};

		if (size > NET_DNS_MESSAGE_MAX) {
			close_connection(agent, index);
			return;
		}
		if (connection->filled < 2 + size) {
			return;
		}
		if (dns_question_decode(connection->data + 2, size, &asker.question) < 0) {
			close_connection(agent, index);
			return;
		}
		connection->filled -= 2 + size;
		memmove(connection->data, connection->data + 2 + size, connection->filled);
		connection->deadline_ns = after_ms(CONNECTION_MS);
		connection->waiting = consider(agent, &asker);
	}
}

void net_dns_event(struct net_agent *agent, unsigned index)
{
	struct net_dns_connection *connection = &agent->dns.connections[index];
	size_t room = sizeof(connection->data) - connection->filled;
	ssize_t got;

	if (connection->fd == 0) {
		return;
	}
	/* A full buffer holds a whole question, so it only is when one is under way, and whoever
	 * sends so many at once may go. */
	got = room > 0 ? recv(connection->fd, connection->data + connection->filled, room,
			      MSG_DONTWAIT)
		       : 0;
	if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
		return;
	}
	if (got <= 0) {
		close_connection(agent, index);
		return;
	}
	connection->filled += (size_t)got;
	take_messages(agent, index);
}

int net_dns_resolved(struct net_agent *agent, const struct wire_frame *frame)
{
	struct net_dns *dns = &agent->dns;
	struct net_dns_asking *asking;
	struct net_resolved resolved;
	struct verdict verdict;

	if (net_resolved_decode(frame->payload, frame->length, &resolved) < 0 ||
	    resolved.token >= NET_QUESTIONS_MAX) {
		return -EBADMSG;
	}
	asking = &dns->asking[resolved.token];
	if (!asking->used || !asking->sent) {
		return -EBADMSG;
	}
	verdict.status = resolved.status;
	verdict.empty = !resolved.has_v4 && !resolved.has_v6;
	remember(dns, asking->name, &verdict);
	asking->used = false;
	for (unsigned i = 0; i < NET_DNS_WAITING_MAX; i++) {
		struct net_dns_waiting *waiting = &dns->waiting[i];

		if (!waiting->used || waiting->asking != resolved.token) {
			continue;
		}
		waiting->used = false;
		answer_verdict(agent, waiting, &verdict);
		if (waiting->connection != 0) {
			dns->connections[waiting->connection - 1].waiting = false;
			take_messages(agent, waiting->connection - 1u);
		}
	}
	return 0;
}

void net_dns_emit(struct net_agent *agent)
{
	struct net_dns *dns = &agent->dns;

	for (unsigned i = 0; dns->due && i < NET_QUESTIONS_MAX; i++) {
		struct net_dns_asking *asking = &dns->asking[i];
		const struct net_resolve resolve = {.token = i, .name = asking->name};
		int size;

		if (!asking->used || asking->sent) {
			continue;
		}
		if (net_port_room(&agent->port) < NET_PORT_ROOM_MIN) {
			return;
		}
		size = net_resolve_encode(&resolve, net_port_payload(&agent->port));
		net_port_commit(&agent->port, NET_RESOLVE, 0, (size_t)size);
		asking->sent = true;
	}
	dns->due = false;
}

void net_dns_tick(struct net_agent *agent, uint64_t now_ns)
{
	struct net_dns *dns = &agent->dns;

	if (!dns->ticking) {
		return;
	}
	dns->ticking = false;
	for (unsigned i = 0; i < NET_DNS_WAITING_MAX; i++) {
		/* A connection's end takes its question along. */
		if (dns->waiting[i].used && dns->waiting[i].connection == 0) {
			dns->waiting[i].used = now_ns < dns->waiting[i].deadline_ns;
			dns->ticking |= dns->waiting[i].used;
		}
	}
	for (unsigned i = 0; i < NET_DNS_CONNECTIONS_MAX; i++) {
		if (dns->connections[i].fd != 0) {
			if (now_ns >= dns->connections[i].deadline_ns) {
				close_connection(agent, i);
			} else {
				dns->ticking = true;
			}
		}
	}
}
