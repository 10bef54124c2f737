/*
 * How this host finds addresses: /etc/resolv.conf (resolv.conf(5)) and /etc/hosts (hosts(5)), as
 * the keeper read them. Both are the operator's, not a guest's. What is not understood is passed
 * over, as every resolver does.
 *
 * `search` and `domain` are not applied: a name of the guest means that name, and the policy has
 * decided about that one. A nameserver with a zone is understood when the zone is a number.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "policy/address.h"

/* resolv.conf(5): MAXNS, RES_MAXRETRANS, RES_MAXRETRY, and their defaults. */
#define CONF_SERVERS_MAX 3
#define CONF_TIMEOUT_MAX_S 30
#define CONF_ATTEMPTS_MAX 5
#define CONF_TIMEOUT_S 5
#define CONF_ATTEMPTS 2

struct conf {
	/* At least one: without any it is this host's own. */
	struct sockaddr_storage servers[CONF_SERVERS_MAX];
	size_t server_count;
	unsigned timeout_s;
	unsigned attempts;
	/* Begin with another server each time; never ask over UDP. */
	bool rotate;
	bool use_tcp;
	/* The text of /etc/hosts; the caller's. */
	const char *hosts;
	size_t hosts_size;
};

/* Reads resolv.conf's text; hosts is left as it is. */
void conf_read_resolver(struct conf *conf, const char *text, size_t size);

/* The addresses that hosts has for a name (valid, lower case), at most max. Returns how many. */
size_t conf_find_host(const struct conf *conf, const char *name, struct policy_address *addresses,
		      size_t max);

/* A socket address; *ret_size is what connect(2) wants. */
void conf_socket_address(const struct policy_address *address, uint16_t port,
			 struct sockaddr_storage *ret_address, socklen_t *ret_size);
