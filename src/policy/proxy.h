/*
 * The HTTP proxy that a host's connections go through, as its environment says. It is the
 * operator's word, and no machine's: machines neither choose a proxy nor see one.
 *
 *     BOX_PROXY    http://[USER[:WORD]@]HOST:PORT, or "environment": then the first of https_proxy,
 *                  HTTPS_PROXY, all_proxy, ALL_PROXY and http_proxy that is set says it
 *     no_proxy     or NO_PROXY: hosts that are reached without it, with commas or spaces between
 *                  them. A name is also every name below it; an address, or a range; "*" is all.
 *
 * USER and WORD may be percent-encoded. They go to the proxy as "Basic" (RFC 7617).
 */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "policy/network.h"

/* "USER:WORD" in base64 and a NUL. Tokens that stand in for words are long. */
#define POLICY_PROXY_SECRET 512

struct policy_proxy {
	/* A name, or an address in its canonical spelling. */
	char host[DNS_NAME_MAX + 1];
	uint16_t port;
	/* Base64; "" without. */
	char authorization[POLICY_PROXY_SECRET];
	/* "bridge", and a deny rule for what is reached without the proxy. Owned, free(3). */
	struct policy_network *direct;
};

/* Reads the environment by get, which is getenv(3) but in tests. Returns 1 with *ret_proxy, 0 when
 * there is no proxy, -ENOMEM, or -EINVAL with err filled, in which no secret is repeated. */
int policy_proxy_find(char *(*get)(const char *name), struct policy_proxy *ret_proxy,
		      struct err *err);

/* The same number for the same setting, and hardly ever for another; never 0. */
uint64_t policy_proxy_mark(const struct policy_proxy *proxy);
