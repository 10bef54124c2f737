#include "policy/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

struct special {
	struct policy_range range;
	struct policy_special what;
};

#define V4(a, b, c, d, prefix, text)                                                               \
	{                                                                                          \
		{{4, {a, b, c, d}}, prefix},                                                       \
		{                                                                                  \
			text, true                                                                 \
		}                                                                                  \
	}
#define V4_NEVER(a, b, c, d, prefix, text)                                                         \
	{                                                                                          \
		{{4, {a, b, c, d}}, prefix},                                                       \
		{                                                                                  \
			text, false                                                                \
		}                                                                                  \
	}
/* The first three groups are enough for most. */
#define V6(a, b, c, prefix, text)                                                                  \
	{                                                                                          \
		{{6, {(a) >> 8, (a)&0xff, (b) >> 8, (b)&0xff, (c) >> 8, (c)&0xff}}, prefix},       \
		{                                                                                  \
			text, true                                                                 \
		}                                                                                  \
	}
#define V6_NEVER(a, prefix, text)                                                                  \
	{                                                                                          \
		{{6, {(a) >> 8, (a)&0xff}}, prefix},                                               \
		{                                                                                  \
			text, false                                                                \
		}                                                                                  \
	}

/*
 * Of nested ranges the inner one first, so that the first that fits has the best name. Space that
 * was not given out comes last; policy_range_special stops before it.
 */
static const struct special specials[] = {
	/* IANA IPv4 Special-Purpose Address Registry. */
	V4_NEVER(0, 0, 0, 0, 8, "this network"),
	V4(10, 0, 0, 0, 8, "private use"),
	V4(100, 64, 0, 0, 10, "shared address space"),
	V4(127, 0, 0, 0, 8, "loopback"),
	V4(169, 254, 0, 0, 16, "link-local"),
	V4(172, 16, 0, 0, 12, "private use"),
	V4(192, 0, 0, 0, 24, "IETF protocol assignments"),
	V4(192, 0, 2, 0, 24, "documentation"),
	V4(192, 31, 196, 0, 24, "AS112"),
	V4(192, 52, 193, 0, 24, "AMT"),
	V4(192, 88, 99, 0, 24, "6to4 relay"),
	V4(192, 168, 0, 0, 16, "private use"),
	V4(192, 175, 48, 0, 24, "AS112"),
	V4(198, 18, 0, 0, 15, "benchmarking"),
	V4(198, 51, 100, 0, 24, "documentation"),
	V4(203, 0, 113, 0, 24, "documentation"),
	V4_NEVER(224, 0, 0, 0, 4, "multicast"),
	V4_NEVER(255, 255, 255, 255, 32, "broadcast"),
	V4(240, 0, 0, 0, 4, "reserved"),
	/* Public space, but in Azure a service of the host itself, to which a machine's credentials
	 * are given. Other clouds' lie in link-local, shared, protocol or unique local space. */
	V4(168, 63, 129, 16, 32, "a cloud's host service"),

	/* IANA IPv6 Special-Purpose Address Registry, and what RFC 4291 sets apart. */
	V6_NEVER(0, 128, "unspecified"),
	{{{6, {[15] = 1}}, 128}, {"loopback", true}},
	{{{6, {[10] = 0xff, 0xff}}, 96}, {"IPv4-mapped", false}},
	{{{6, {[8] = 0xff, 0xff}}, 96}, {"IPv4-translated", false}},
	V6_NEVER(0, 96, "IPv4-compatible"),
	{{{6, {0, 0x64, 0xff, 0x9b}}, 96}, {"NAT64", true}},
	V6(0x64, 0xff9b, 1, 48, "local NAT64"),
	{{{6, {1, 0, [7] = 1}}, 64}, {"dummy prefix", false}},
	V6_NEVER(0x100, 64, "discard-only"),
	V6(0x2001, 0, 0, 32, "Teredo"),
	V6(0x2001, 2, 0, 48, "benchmarking"),
	V6(0x2001, 3, 0, 32, "AMT"),
	V6(0x2001, 4, 0x112, 48, "AS112"),
	V6(0x2001, 0x10, 0, 28, "ORCHID"),
	V6(0x2001, 0x20, 0, 28, "ORCHIDv2"),
	V6(0x2001, 0x30, 0, 28, "drone remote ID"),
	V6(0x2001, 0, 0, 23, "IETF protocol assignments"),
	V6(0x2001, 0xdb8, 0, 32, "documentation"),
	V6(0x2002, 0, 0, 16, "6to4"),
	V6(0x2620, 0x4f, 0x8000, 48, "AS112"),
	V6(0x3ffe, 0, 0, 16, "6bone"),
	V6(0x3fff, 0, 0, 20, "documentation"),
	V6(0x5f00, 0, 0, 16, "segment routing"),
	V6(0xfc00, 0, 0, 7, "unique local"),
	V6(0xfe80, 0, 0, 10, "link-local"),
	V6(0xfec0, 0, 0, 10, "site-local"),
	V6_NEVER(0xff00, 8, "multicast"),

	/* Only 2000::/3 is global unicast space up to now (RFC 4291, 2.4; IANA's registry). */
	V6_NEVER(0, 3, "not given out"),
	V6_NEVER(0x4000, 2, "not given out"),
	V6_NEVER(0x8000, 1, "not given out"),
};
#define NOT_GIVEN_OUT 3

static uint8_t width(const struct policy_address *address)
{
	return address->family == 4 ? 32 : 128;
}

static int family_of(const struct policy_address *address)
{
	ASSERT(address->family == 4 || address->family == 6);
	return address->family == 4 ? AF_INET : AF_INET6;
}

void policy_address_format(const struct policy_address *address, char *out)
{
	ASSERT(inet_ntop(family_of(address), address->bytes, out, POLICY_ADDRESS_TEXT));
}

int policy_address_parse(const char *text, struct policy_address *ret_address)
{
	struct policy_address address = {.family = strchr(text, ':') ? 6 : 4};
	char canonical[POLICY_ADDRESS_TEXT];

	if (inet_pton(family_of(&address), text, address.bytes) != 1) {
		return -EINVAL;
	}
	policy_address_format(&address, canonical);
	*ret_address = address;
	return strcmp(canonical, text) == 0 ? 0 : -ENOTUNIQ;
}

/* The byte at index with only those bits that the prefix covers. */
static uint8_t masked(const struct policy_address *address, unsigned bits, unsigned index)
{
	unsigned covered = bits > index * 8 ? MIN(bits - index * 8, 8u) : 0;

	return (uint8_t)(address->bytes[index] & (0xff00u >> covered));
}

/* Reads 0 to maximum, one to three digits without a needless 0. */
static int parse_bits(const char *text, uint8_t maximum, uint8_t *ret_bits)
{
	size_t length = strspn(text, "0123456789");
	unsigned bits = 0;

	if (length == 0 || length > 3 || text[length] != '\0' || (text[0] == '0' && length > 1)) {
		return -EINVAL;
	}
	for (size_t i = 0; i < length; i++) {
		bits = bits * 10 + (unsigned)(text[i] - '0');
	}
	if (bits > maximum) {
		return -EINVAL;
	}
	*ret_bits = (uint8_t)bits;
	return 0;
}

int policy_range_parse(const char *text, struct policy_range *ret_range)
{
	char address[POLICY_ADDRESS_TEXT];
	size_t length = strcspn(text, "/");
	struct policy_range range;
	int rc;

	if (length >= sizeof(address)) {
		return -EINVAL;
	}
	memcpy(address, text, length);
	address[length] = '\0';
	rc = policy_address_parse(address, &range.address);
	if (rc == -EINVAL) {
		return rc;
	}
	range.bits = width(&range.address);
	if (text[length] == '/' && parse_bits(text + length + 1, range.bits, &range.bits) < 0) {
		return -EINVAL;
	}
	for (unsigned i = 0; i < sizeof(range.address.bytes); i++) {
		uint8_t byte = masked(&range.address, range.bits, i);

		if (byte != range.address.bytes[i]) {
			range.address.bytes[i] = byte;
			rc = -ENOTUNIQ;
		}
	}
	*ret_range = range;
	return rc;
}

void policy_range_format(const struct policy_range *range, char *out)
{
	char address[POLICY_ADDRESS_TEXT];

	policy_address_format(&range->address, address);
	if (range->bits == width(&range->address)) {
		snprintf(out, POLICY_RANGE_TEXT, "%s", address);
	} else {
		snprintf(out, POLICY_RANGE_TEXT, "%s/%u", address, (unsigned)range->bits);
	}
}

bool policy_range_contains(const struct policy_range *range, const struct policy_address *address)
{
	if (range->address.family != address->family) {
		return false;
	}
	for (unsigned i = 0; i < sizeof(address->bytes); i++) {
		if (masked(address, range->bits, i) != range->address.bytes[i]) {
			return false;
		}
	}
	return true;
}

const struct policy_special *policy_address_special(const struct policy_address *address)
{
	for (size_t i = 0; i < ARRAY_SIZE(specials); i++) {
		if (policy_range_contains(&specials[i].range, address)) {
			return &specials[i].what;
		}
	}
	return NULL;
}

const struct policy_special *policy_range_special(const struct policy_range *range)
{
	for (size_t i = 0; i < ARRAY_SIZE(specials) - NOT_GIVEN_OUT; i++) {
		const struct policy_range *outer = &specials[i].range;

		if (range->bits >= outer->bits && policy_range_contains(outer, &range->address)) {
			return &specials[i].what;
		}
	}
	return NULL;
}

/* Takes four bytes of address, each combined with mask: Teredo hides its client's by 0xff. */
static void carry(const struct policy_address *address, unsigned offset, uint8_t mask,
		  struct policy_address *ret)
{
	*ret = (struct policy_address){.family = 4};
	for (unsigned i = 0; i < 4; i++) {
		ret->bytes[i] = address->bytes[offset + i] ^ mask;
	}
}

/* :: and ::1, which lie among the IPv4-compatible addresses and are none (RFC 4291, 2.5). */
static bool carries_nothing(const struct policy_address *address)
{
	static const struct policy_range first = {{6, {0}}, 127};

	return policy_range_contains(&first, address);
}

size_t policy_address_embedded(const struct policy_address *address,
			       struct policy_address ret_embedded[POLICY_EMBEDDED_MAX])
{
	/* Prefixes behind which four bytes at offset are an IPv4 address. */
	static const struct {
		struct policy_range range;
		uint8_t offset;
		uint8_t mask;
	} carriers[] = {
		{{{6, {[10] = 0xff, 0xff}}, 96}, 12, 0},
		{{{6, {[8] = 0xff, 0xff}}, 96}, 12, 0},
		{{{6, {0}}, 96}, 12, 0},
		{{{6, {0, 0x64, 0xff, 0x9b}}, 96}, 12, 0},
		{{{6, {0, 0x64, 0xff, 0x9b, 0, 1}}, 48}, 12, 0},
		{{{6, {0x20, 0x02}}, 16}, 2, 0},
		{{{6, {0x20, 0x01}}, 32}, 4, 0},
		{{{6, {0x20, 0x01}}, 32}, 12, 0xff},
	};
	/* ISATAP's interface identifier; its first byte has the bit "globally unique" or not. */
	static const uint8_t isatap[] = {0x00, 0x5e, 0xfe};
	size_t count = 0;

	for (size_t i = 0; i < ARRAY_SIZE(carriers); i++) {
		if (policy_range_contains(&carriers[i].range, address) &&
		    !carries_nothing(address)) {
			ASSERT(count < POLICY_EMBEDDED_MAX);
			carry(address, carriers[i].offset, carriers[i].mask,
			      &ret_embedded[count++]);
		}
	}
	if (address->family == 6 && (address->bytes[8] & ~0x02) == 0 &&
	    memcmp(address->bytes + 9, isatap, sizeof(isatap)) == 0) {
		ASSERT(count < POLICY_EMBEDDED_MAX);
		carry(address, 12, 0, &ret_embedded[count++]);
	}
	return count;
}
