#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "wire/net.h"

static uint8_t payload[WIRE_PAYLOAD_MAX];

static int try_hello(const uint8_t *bytes, size_t size)
{
	struct net_hello hello;

	return net_hello_decode(bytes, size, &hello);
}

static int try_resolve(const uint8_t *bytes, size_t size)
{
	struct net_resolve resolve;

	return net_resolve_decode(bytes, size, &resolve);
}

static int try_resolved(const uint8_t *bytes, size_t size)
{
	struct net_resolved resolved;

	return net_resolved_decode(bytes, size, &resolved);
}

static int try_open(const uint8_t *bytes, size_t size)
{
	struct net_open open;

	return net_open_decode(bytes, size, &open);
}

static int try_credit(const uint8_t *bytes, size_t size)
{
	uint32_t credit;

	return net_credit_decode(bytes, size, &credit);
}

static int try_failed(const uint8_t *bytes, size_t size)
{
	int error;

	return net_failed_decode(bytes, size, &error);
}

/* A copy of exactly that size is decoded, so that a sanitizer sees a read of one byte more. */
static int decode(int (*decoder)(const uint8_t *bytes, size_t size), const void *bytes, size_t size)
{
	uint8_t *copy = malloc(size > 0 ? size : 1);
	int rc;

	assert_non_null(copy);
	memcpy(copy, bytes, size);
	rc = decoder(copy, size);
	free(copy);
	return rc;
}

/* The payload decodes at its own size and at no other. */
static void only_whole(int (*decoder)(const uint8_t *bytes, size_t size), int size)
{
	assert_true(size > 0);
	for (size_t i = 0; i <= (size_t)size + 1; i++) {
		assert_int_equal(decode(decoder, payload, i), i == (size_t)size ? 0 : -EBADMSG);
	}
}

static void test_hello(void **state)
{
	struct net_hello hello = {.magic = NET_MAGIC, .token = 9, .version = 7}, back;

	(void)state;
	only_whole(try_hello, net_hello_encode(&hello, payload));
	assert_memory_equal(payload, "boxn\11\0\0\0\0\0\0\0\7\0", 14);
	assert_int_equal(net_hello_decode(payload, 14, &back), 0);
	assert_int_equal(back.version, 7);
	assert_int_equal(back.token, 9);
	payload[0] ^= 1;
	assert_int_equal(decode(try_hello, payload, 14), -EBADMSG);
}

static void test_resolve(void **state)
{
	static const char *const bad[] = {"",	  "A.b", "a b",	      "a.",
					  "a..b", ".a",	 "a\xc3\xbc", "[::1]"};
	struct net_resolve resolve = {.token = 0x01020304, .name = "pypi.org"}, back;
	int size;

	(void)state;
	size = net_resolve_encode(&resolve, payload);
	only_whole(try_resolve, size);
	assert_memory_equal(payload, "\4\3\2\1\x09\0\0\0pypi.org", 17);
	assert_int_equal(net_resolve_decode(payload, (size_t)size, &back), 0);
	assert_int_equal(back.token, 0x01020304);
	assert_string_equal(back.name, "pypi.org");
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		size_t length = strlen(bad[i]) + 1;

		payload[4] = (uint8_t)length;
		memcpy(payload + 8, bad[i], length);
		assert_int_equal(decode(try_resolve, payload, 8 + length), -EBADMSG);
	}
	/* A name that goes on behind its NUL. */
	assert_int_equal(decode(try_resolve, "\0\0\0\0\4\0\0\0a\0b\0", 12), -EBADMSG);
}

static void test_resolved(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct net_resolved resolved = {
			.token = 5, .status = NET_OK, .has_v4 = i & 1, .has_v6 = i & 2};
		struct net_resolved back;

		only_whole(try_resolved, net_resolved_encode(&resolved, payload));
		assert_int_equal(net_resolved_decode(payload, 6, &back), 0);
		assert_int_equal(back.token, 5);
		assert_int_equal(back.has_v4, i & 1);
		assert_int_equal(back.has_v6, i >> 1);
	}
	for (uint8_t status = NET_NXDOMAIN; status <= NET_TEMPORARY; status++) {
		struct net_resolved resolved = {.status = status}, back;

		only_whole(try_resolved, net_resolved_encode(&resolved, payload));
		assert_int_equal(net_resolved_decode(payload, 6, &back), 0);
		assert_int_equal(back.status, status);
		/* What does not exist has no addresses. */
		payload[5] = 1;
		assert_int_equal(decode(try_resolved, payload, 6), -EBADMSG);
	}
	assert_int_equal(decode(try_resolved, "\0\0\0\0\4\0", 6), -EBADMSG);
	assert_int_equal(decode(try_resolved, "\0\0\0\0\0\4", 6), -EBADMSG);
}

static void test_open(void **state)
{
	struct net_open by_name = {.kind = NET_KIND_NAME, .port = 443, .name = "a.b"};
	struct net_open v4 = {.kind = NET_KIND_V4, .port = 65535, .address = {1, 2, 3, 4}};
	struct net_open v6 = {.kind = NET_KIND_V6, .port = 1, .address = {0x20, 1, [15] = 9}}, back;
	int size;

	(void)state;
	size = net_open_encode(&by_name, payload);
	only_whole(try_open, size);
	assert_memory_equal(payload, "\0\xbb\1\4\0\0\0a.b\0", 11);
	assert_int_equal(net_open_decode(payload, (size_t)size, &back), 0);
	assert_int_equal(back.port, 443);
	assert_string_equal(back.name, "a.b");
	/* Port 0; a name that is none. */
	assert_int_equal(decode(try_open, "\0\0\0\4\0\0\0a.b\0", 11), -EBADMSG);
	assert_int_equal(decode(try_open, "\0\xbb\1\4\0\0\0a:b\0", 11), -EBADMSG);
	size = net_open_encode(&v4, payload);
	only_whole(try_open, size);
	assert_int_equal(net_open_decode(payload, (size_t)size, &back), 0);
	assert_int_equal(back.port, 65535);
	assert_null(back.name);
	assert_memory_equal(back.address, v4.address, 16);
	size = net_open_encode(&v6, payload);
	only_whole(try_open, size);
	assert_int_equal(net_open_decode(payload, (size_t)size, &back), 0);
	assert_int_equal(back.kind, NET_KIND_V6);
	assert_memory_equal(back.address, v6.address, 16);
	/* Any other kind. */
	for (unsigned kind = 0; kind < 256; kind++) {
		payload[0] = (uint8_t)kind;
		assert_int_equal(decode(try_open, payload, (size_t)size),
				 kind == NET_KIND_V6 ? 0 : -EBADMSG);
	}
}

static void test_credit(void **state)
{
	uint32_t credit;

	(void)state;
	only_whole(try_credit, net_credit_encode(NET_WINDOW, payload));
	assert_int_equal(net_credit_decode(payload, 4, &credit), 0);
	assert_int_equal(credit, NET_WINDOW);
	assert_int_equal(decode(try_credit, "\0\0\0\0", 4), -EBADMSG);
	assert_int_equal(decode(try_credit, "\1\0\2\0", 4), -EBADMSG);
	assert_int_equal(decode(try_credit, "\xff\xff\xff\xff", 4), -EBADMSG);
}

static void test_failed(void **state)
{
	static const int told[] = {ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT, ECONNRESET};
	int error;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(told); i++) {
		only_whole(try_failed, net_failed_encode(told[i], payload));
		assert_int_equal(net_failed_decode(payload, 4, &error), 0);
		assert_int_equal(error, told[i]);
	}
	/* A policy and a firewall look like a host that refuses; our own trouble like no way. */
	net_failed_encode(EACCES, payload);
	assert_int_equal(net_failed_decode(payload, 4, &error), 0);
	assert_int_equal(error, ECONNREFUSED);
	net_failed_encode(EPERM, payload);
	assert_int_equal(net_failed_decode(payload, 4, &error), 0);
	assert_int_equal(error, ECONNREFUSED);
	net_failed_encode(EMFILE, payload);
	assert_int_equal(net_failed_decode(payload, 4, &error), 0);
	assert_int_equal(error, EHOSTUNREACH);
	/* Neither success nor anything that tells more is taken. */
	assert_int_equal(decode(try_failed, "\0\0\0\0", 4), -EBADMSG);
	assert_int_equal(decode(try_failed, "\x0d\0\0\0", 4), -EBADMSG);
	assert_int_equal(decode(try_failed, "\x91\xff\xff\xff", 4), -EBADMSG);
}

static void test_frame_check(void **state)
{
	/* By type: from the guest, from the host, of a stream, empty. */
	static const char *const shapes[] = {"----", "gh--", "g---", "-h--", "g-s-", "-hse",
					     "-hs-", "ghs-", "ghse", "ghs-", "ghse", "----"};

	(void)state;
	for (unsigned i = 0; i < 256; i++) {
		const char *shape = i < ARRAY_SIZE(shapes) ? shapes[i] : "----";

		for (unsigned bits = 0; bits < 16; bits++) {
			bool from_guest = bits & 1;
			struct wire_frame frame = {.type = (uint8_t)i,
						   .channel = bits & 2 ? 1 : 0,
						   .stream = bits & 4 ? 9 : 0,
						   .length = bits & 8 ? 3 : 0};
			bool right = shape[from_guest ? 0 : 1] != '-' && frame.channel == 0 &&
				     (shape[2] == 's') == (frame.stream != 0) &&
				     (shape[3] == 'e') == (frame.length == 0);

			assert_int_equal(net_frame_check(&frame, from_guest), right ? 0 : -EBADMSG);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hello),	    cmocka_unit_test(test_resolve),
		cmocka_unit_test(test_resolved),    cmocka_unit_test(test_open),
		cmocka_unit_test(test_credit),	    cmocka_unit_test(test_failed),
		cmocka_unit_test(test_frame_check),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
