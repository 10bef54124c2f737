/*
 * Addresses of box's network inside: the machine's own, the name server's, and a pool in which each
 * stands for a name. 198.18.0.0/15 is for tests of networks (RFC 2544) and nobody's on the
 * Internet; the other is a unique local prefix (RFC 4193) of box's own. A name's addresses of
 * both kinds have the same number.
 *
 * All addresses have 16 bytes, those of IPv4 as ::ffff:a.b.c.d.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Addresses of names begin behind some that are left for other uses. The end of the range is far.
 */
#define NET_POOL_FIRST 16u
#define NET_POOL_NAMES 65536u

/* 198.18.0.2 and fd62:6f78:6e65:7400::2. */
extern const uint8_t net_pool_own_v4[16];
extern const uint8_t net_pool_own_v6[16];

/* The two addresses with a number below NET_POOL_NAMES: 4 and 16 bytes. */
void net_pool_v4(uint32_t number, uint8_t *out);
void net_pool_v6(uint32_t number, uint8_t *out);

/* Whether an address is in the pool's ranges. *ret_number is NET_POOL_NAMES when no name can have
 * it. */
bool net_pool_contains(const uint8_t *address, uint32_t *ret_number);

/* 4 or 16 bytes to 16. */
void net_pool_widen(const uint8_t *address, size_t size, uint8_t *out);
bool net_pool_is_v4(const uint8_t *address);
