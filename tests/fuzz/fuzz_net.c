/*
 * Any bytes as a payload of the network port: the first byte is the type. What decodes must encode
 * to the same bytes, so there is one spelling for every message.
 */
#include "fuzz.h"
#include "round.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "wire/net.h"

static uint8_t out[WIRE_PAYLOAD_MAX];

/* Each decodes the payload; when that works it encodes it into out and returns the size. */

static int round_hello(const uint8_t *payload, size_t size)
{
	struct net_hello hello;
	int rc = net_hello_decode(payload, size, &hello);

	return rc < 0 ? rc : net_hello_encode(&hello, out);
}

static int round_resolve(const uint8_t *payload, size_t size)
{
	struct net_resolve resolve;
	int rc = net_resolve_decode(payload, size, &resolve);

	return rc < 0 ? rc : net_resolve_encode(&resolve, out);
}

static int round_resolved(const uint8_t *payload, size_t size)
{
	struct net_resolved resolved;
	int rc = net_resolved_decode(payload, size, &resolved);

	return rc < 0 ? rc : net_resolved_encode(&resolved, out);
}

static int round_open(const uint8_t *payload, size_t size)
{
	struct net_open open;
	int rc = net_open_decode(payload, size, &open);

	return rc < 0 ? rc : net_open_encode(&open, out);
}

static int round_failed(const uint8_t *payload, size_t size)
{
	int error;
	int rc = net_failed_decode(payload, size, &error);

	return rc < 0 ? rc : net_failed_encode(error, out);
}

static int round_credit(const uint8_t *payload, size_t size)
{
	uint32_t bytes;
	int rc = net_credit_decode(payload, size, &bytes);

	return rc < 0 ? rc : net_credit_encode(bytes, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int (*const rounds[])(const uint8_t *payload, size_t size) = {
		[NET_HELLO] = round_hello,	 [NET_RESOLVE] = round_resolve,
		[NET_RESOLVED] = round_resolved, [NET_OPEN] = round_open,
		[NET_FAILED] = round_failed,	 [NET_CREDIT] = round_credit,
	};

	if (size == 0 || data[0] >= ARRAY_SIZE(rounds) || !rounds[data[0]] ||
	    size - 1 > WIRE_PAYLOAD_MAX) {
		return 0;
	}
	fuzz_round(rounds[data[0]], data + 1, size - 1, out);
	return 0;
}
