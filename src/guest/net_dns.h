/*
 * DNS inside the guest: every question to port 53, of whatever address, is answered here.
 *
 * The host is asked about each name first (RESOLVE); whether it exists and may be used is all that
 * the guest learns. A name that may be used gets a number for the life of the machine, and with it
 * two addresses of the pool, which stand for it. Both are answered, whatever kinds the name
 * really has: the host makes the connection, so a program that knows only one kind of address
 * reaches all names.
 *
 * A name that the policy denies does not exist (NXDOMAIN). REFUSED would be more exact, but musl
 * takes no notice of it and waits for seconds, and glibc tries again and calls it a temporary
 * failure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "guest/net_bpf.h"
#include "guest/net_pool.h"
#include "wire/dns.h"
#include "wire/net.h"

struct net_agent;

/* Askers that wait at once. Each program that starts has two. */
#define NET_DNS_WAITING_MAX 512
/* Connections to port 53 at once; hardly any program makes one. */
#define NET_DNS_CONNECTIONS_MAX 32
/* A question over TCP. It is some hundreds of bytes even with cookies and padding. */
#define NET_DNS_MESSAGE_MAX 2048
/* Names that are not there, remembered for a moment. */
#define NET_DNS_ABSENT_MAX 64

/* A name with a number. Numbers are places in a table. */
struct net_dns_known {
	char name[DNS_NAME_MAX + 1];
	/* What the host said last, enum net_status, and until when that is not asked again. */
	uint8_t status;
	bool empty;
	uint64_t fresh_until_ns;
	/* The next one with the same hash, plus 1. */
	uint32_t next;
};

struct net_dns_absent {
	char name[DNS_NAME_MAX + 1];
	uint8_t status;
	/* It exists and has no address. */
	bool empty;
	uint64_t fresh_until_ns;
};

/* A RESOLVE under way. Its place is its token. */
struct net_dns_asking {
	bool used;
	bool sent;
	char name[DNS_NAME_MAX + 1];
};

/* Who waits for it. */
struct net_dns_waiting {
	bool used;
	uint16_t asking;
	/* Where to answer: an index plus 1, or 0 for a datagram of the tuple. */
	uint16_t connection;
	struct net_tuple tuple;
	uint64_t deadline_ns;
	struct dns_question question;
};

struct net_dns_connection {
	/* 0 is no descriptor of the agent's. */
	int fd;
	bool waiting;
	uint64_t deadline_ns;
	size_t filled;
	uint8_t data[2 + NET_DNS_MESSAGE_MAX];
};

/*
 * All names with a number. Process 1 holds it for its agents: in a copy of a paused machine the
 * programs go on with the addresses that they have, and these must not come to mean other names.
 */
struct net_names {
	uint32_t known_count;
	struct net_dns_known known[NET_POOL_NAMES];
	uint32_t by_name[NET_POOL_NAMES];
};

struct net_dns {
	/* Borrowed. */
	struct net_names *names;
	struct net_dns_absent absent[NET_DNS_ABSENT_MAX];
	unsigned absent_next;
	struct net_dns_asking asking[NET_QUESTIONS_MAX];
	struct net_dns_waiting waiting[NET_DNS_WAITING_MAX];
	struct net_dns_connection connections[NET_DNS_CONNECTIONS_MAX];
	/* Some RESOLVE has not been sent; somebody waits with a deadline. */
	bool due;
	bool ticking;
};

/* The name with a number, or NULL. */
const char *net_dns_name(const struct net_dns *dns, uint32_t number);

/* Takes questions that came as datagrams. */
void net_dns_datagrams(struct net_agent *agent);
/* Takes connections to port 53, and what comes on one. */
void net_dns_accept(struct net_agent *agent);
void net_dns_event(struct net_agent *agent, unsigned index);
/* Takes RESOLVED. Returns 0 or -EBADMSG. */
int net_dns_resolved(struct net_agent *agent, const struct wire_frame *frame);
/* Puts RESOLVE frames while there is room. */
void net_dns_emit(struct net_agent *agent);
/* Forgets who has waited too long. */
void net_dns_tick(struct net_agent *agent, uint64_t now_ns);
