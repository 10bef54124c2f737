/*
 * Host names as a policy sees them: one spelling for each, and none that could be an address.
 *
 * Resolvers and libraries take many texts for IPv4 addresses: 127.1, 0x7f000001, 2130706433,
 * 0177.0.0.1. Whether a name is allowed and where it leads must not be decided by two readings of
 * it. So a name whose last label is a number is none, by the rule of the WHATWG URL Standard ("ends
 * in a number checker"): no top-level domain is a number, so nothing is lost.
 *
 * Only ASCII is taken. Turning other letters into their A-label (RFC 5891) needs tables of Unicode
 * that change every year, and two versions of them that disagree about a letter are a way around a
 * policy. A person writes such a name as it goes over the wire, with "xn--".
 */
#pragma once

#include <stddef.h>

#include "base/err.h"
#include "wire/dns.h"

/*
 * Reads a host name (any text; not trusted): upper case is folded, one dot at the end is dropped.
 * Writes it to ret_name, valid as dns_name_valid says. Returns 0, or -EINVAL with err: not a name,
 * not ASCII, or a spelling of an address. err may be NULL.
 */
int policy_name_parse(const char *text, char ret_name[DNS_NAME_MAX + 1], struct err *err);
