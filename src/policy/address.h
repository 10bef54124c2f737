/*
 * Addresses as a policy sees them: their one spelling, ranges, and which are special.
 *
 * What may be reached on the Internet is global unicast space and nothing else. Every range of the
 * IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890) is special, also those few
 * that the registries call globally reachable: relays and anycast services of protocols, which no
 * program asks for by name. So are multicast, all space that was not given out, and
 * addresses that clouds use for their own hosts' services.
 *
 * Some IPv6 addresses carry an IPv4 address in them, and a router or a kernel may go there. Such an
 * address is judged by what it carries as well as by itself.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An IPv6 address as text, with its NUL (INET6_ADDRSTRLEN). */
#define POLICY_ADDRESS_TEXT 46
/* The same, "/", up to three digits. */
#define POLICY_RANGE_TEXT (POLICY_ADDRESS_TEXT + 4)
/* Teredo carries two, and may look like ISATAP as well. */
#define POLICY_EMBEDDED_MAX 3

struct policy_address {
	/* 4 or 6. */
	uint8_t family;
	/* Network order. Of IPv4 the first four; the rest is zero. */
	uint8_t bytes[16];
};

struct policy_range {
	/* With zeros behind the prefix. */
	struct policy_address address;
	/* 0 to 32 or 128. */
	uint8_t bits;
};

struct policy_special {
	/* Such as "loopback". */
	const char *name;
	/* Whether an operator can list it under `reach`. Nothing can be listed that is no address
	 * of a host, or that is a second spelling of an IPv4 address to a kernel. */
	bool reachable;
};

/*
 * Reads an address in its canonical spelling: four decimal numbers without needless zeros, or as
 * RFC 5952 says, without brackets and zone. Any text; not trusted. Returns 0; -EINVAL when it is no
 * address; -ENOTUNIQ when it is one, spelled otherwise: *ret_address is set, and
 * policy_address_format writes how it should be. There is one spelling, so that what a person reads
 * in a rule, a log and a question is what is compared.
 */
int policy_address_parse(const char *text, struct policy_address *ret_address);

/* Writes the canonical spelling. out holds POLICY_ADDRESS_TEXT bytes. */
void policy_address_format(const struct policy_address *address, char *out);

/*
 * Reads ADDRESS/BITS, or ADDRESS alone for a range of one. Returns 0; -EINVAL; or -ENOTUNIQ when
 * the address is not in its canonical spelling or has bits set behind the prefix: *ret_range is
 * then the range that was most likely meant.
 */
int policy_range_parse(const char *text, struct policy_range *ret_range);

/* Writes ADDRESS/BITS, or ADDRESS for a range of one. out holds POLICY_RANGE_TEXT bytes. */
void policy_range_format(const struct policy_range *range, char *out);

/* Whether the address lies in the range. An IPv4 address lies in no IPv6 range. */
bool policy_range_contains(const struct policy_range *range, const struct policy_address *address);

/* The most specific special range that the address itself lies in, or NULL: it is public. What it
 * carries is not looked at. */
const struct policy_special *policy_address_special(const struct policy_address *address);

/* The special range that all of range lies in, or NULL. Space that was not given out counts as
 * none: it has no name to be listed by. */
const struct policy_special *policy_range_special(const struct policy_range *range);

/*
 * The IPv4 addresses that an address carries: v4-mapped, v4-compatible, v4-translated (RFC 2765),
 * NAT64 with the well-known prefix and with the local one when its prefix has 96 bits (RFC 6052,
 * RFC 8215), 6to4 (RFC 3056), Teredo's server and client (RFC 4380, 4), ISATAP (RFC 5214, 6.1).
 * Returns how many.
 */
size_t policy_address_embedded(const struct policy_address *address,
			       struct policy_address ret_embedded[POLICY_EMBEDDED_MAX]);
