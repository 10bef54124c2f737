/*
 * Names to addresses: a stub resolver (RFC 1034, 5.3.1) and the table of what it found.
 *
 * It asks for names that the policy allows and for no others; its user sees to that. Each question
 * goes out from a socket of its own, connected to one server, so with a port that the kernel picked
 * at random, and has a random ID. Both kinds of address are asked for at once.
 *
 * An answer is kept as long as it says, within limits. Who connects takes its addresses out of one
 * lookup and decides about those very bytes; a name that changes its address is a new lookup
 * and a new decision.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop.h"
#include "net/conf.h"
#include "wire/net.h"

/* Of each kind. A connection tries a handful. */
#define RESOLVER_ADDRESSES 16

enum lookup_state {
	LOOKUP_FREE = 0,
	/* Too many are under way. */
	LOOKUP_QUEUED,
	LOOKUP_ASKING,
	LOOKUP_DONE,
};

struct resolver;

/* One question to a server, of one kind. Private to resolver.c, as all that is not said to be read.
 */
struct query {
	struct resolver *resolver;
	struct lookup *lookup;
	int fd;
	uint16_t id;
	uint16_t type;
	/* Servers that were asked in vain; which one is asked now follows from it. */
	unsigned tries;
	uint64_t deadline_ns;
	bool done;
	/* It came to a proper end: addresses, or none. */
	bool answered;
	bool no_name;
	uint32_t ttl_s;
	/* Over TCP: the place of the answer, how much of it is there, and whether we have asked. */
	bool tcp;
	int tcp_slot;
	size_t tcp_got;
	bool tcp_asked;
};

struct lookup {
	/* enum lookup_state; to be read. */
	uint8_t state;
	/* enum net_status, once done; to be read. With NET_OK there is at least the name. */
	uint8_t status;
	/* To be read once done: v4, then v6. */
	size_t address_count[2];
	struct policy_address addresses[2][RESOLVER_ADDRESSES];
	char name[DNS_NAME_MAX + 1];
	unsigned users;
	/* In the order in which they were asked for. */
	uint64_t number;
	/* When one kind is there, how long the other may still take; 0: neither is. */
	uint64_t grace_ns;
	uint64_t expires_ns;
	struct query queries[2];
};

/* A lookup is done; called from the loop or from resolver_tick, never from resolver_ask. */
typedef void resolver_callback(struct lookup *lookup, void *data);

/* conf and loop stay the caller's and must live longer. Returns 0 or -ENOMEM. */
int resolver_new(struct loop *loop, const struct conf *conf, resolver_callback *callback,
		 void *data, struct resolver **ret_resolver);

/*
 * The addresses of a name (valid, lower case). The lookup is there at once; when it is not done
 * yet, callback says so later. The caller gives it back with resolver_release. NULL when too many
 * are in use.
 */
struct lookup *resolver_ask(struct resolver *resolver, const char *name);
void resolver_release(struct lookup *lookup);

/* conf has changed: what is remembered is forgotten, and what is under way is asked anew. */
void resolver_conf_changed(struct resolver *resolver);

/* To be called every few milliseconds while resolver_busy. */
void resolver_tick(struct resolver *resolver, uint64_t now_ns);
bool resolver_busy(const struct resolver *resolver);
