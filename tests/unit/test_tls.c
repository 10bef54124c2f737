/* src/wire/tls.c: the server name in a hello, whole, in pieces, and broken. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "wire/tls.h"

#define RECORD 5

struct bytes {
	uint8_t data[2048];
	size_t size;
};

static void put(struct bytes *bytes, const void *data, size_t size)
{
	assert_true(bytes->size + size <= sizeof(bytes->data));
	memcpy(bytes->data + bytes->size, data, size);
	bytes->size += size;
}

static void put_number(struct bytes *bytes, size_t value, size_t width)
{
	uint8_t out[4];

	for (size_t i = 0; i < width; i++) {
		out[i] = (uint8_t)(value >> (8 * (width - 1 - i)));
	}
	put(bytes, out, width);
}

/* A handshake message with a name, behind another extension. NULL: without the name. */
static struct bytes make_hello(const char *name)
{
	struct bytes extensions = {0}, body = {0}, message = {0};

	put_number(&extensions, 0x002b, 2);
	put_number(&extensions, 3, 2);
	put(&extensions, "\2\3\4", 3);
	if (name) {
		put_number(&extensions, 0, 2);
		put_number(&extensions, strlen(name) + 5, 2);
		put_number(&extensions, strlen(name) + 3, 2);
		put_number(&extensions, 0, 1);
		put_number(&extensions, strlen(name), 2);
		put(&extensions, name, strlen(name));
	}
	put_number(&body, 0x0303, 2);
	for (int i = 0; i < 32; i++) {
		put_number(&body, 0xab, 1);
	}
	put_number(&body, 4, 1);
	put(&body, "sess", 4);
	put_number(&body, 4, 2);
	put(&body, "\x13\1\x13\2", 4);
	put_number(&body, 1, 1);
	put_number(&body, 0, 1);
	put_number(&body, extensions.size, 2);
	put(&body, extensions.data, extensions.size);
	put_number(&message, 1, 1);
	put_number(&message, body.size, 3);
	put(&message, body.data, body.size);
	return message;
}

/* The message in records of at most step bytes. */
static struct bytes wrap(const struct bytes *message, size_t step)
{
	struct bytes records = {0};

	for (size_t i = 0; i < message->size; i += step) {
		size_t part = message->size - i < step ? message->size - i : step;

		put(&records, "\x16\3\1", 3);
		put_number(&records, part, 2);
		put(&records, message->data + i, part);
	}
	return records;
}

static struct bytes hello_of(const char *name)
{
	struct bytes message = make_hello(name);

	return wrap(&message, 1000);
}

static int read_name(const struct bytes *bytes, char *ret_name)
{
	return tls_server_name(bytes->data, bytes->size, ret_name);
}

static void test_name(void **state)
{
	struct bytes hello = hello_of("WWW.Some_Name.Example");
	char name[DNS_NAME_MAX + 1] = "";

	(void)state;
	assert_int_equal(read_name(&hello, name), 1);
	assert_string_equal(name, "www.some_name.example");
	hello = hello_of(NULL);
	assert_int_equal(read_name(&hello, name), -ENOENT);
}

/* Every beginning of a hello needs more; what comes behind it does not matter. */
static void test_pieces(void **state)
{
	struct bytes message = make_hello("a.example");
	char name[DNS_NAME_MAX + 1] = "untouched";

	(void)state;
	for (size_t step = 1; step < message.size + 2; step++) {
		struct bytes hello = wrap(&message, step);

		for (size_t size = 0; size < hello.size; size++) {
			assert_int_equal(tls_server_name(hello.data, size, name), 0);
		}
		assert_string_equal(name, "untouched");
		assert_int_equal(read_name(&hello, name), 1);
		assert_string_equal(name, "a.example");
		memcpy(name, "untouched", sizeof("untouched"));
	}
}

static void test_names_that_are_none(void **state)
{
	static const char *const names[] = {"",		  ".",	      "a..b", "a b",
					    "a.example.", "\xc3\xa4", "a\n"};
	char name[DNS_NAME_MAX + 1], long_name[300];

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct bytes hello = hello_of(names[i]);

		assert_int_equal(read_name(&hello, name), -EBADMSG);
	}
	memset(long_name, 'a', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	for (size_t size = DNS_NAME_MAX; size < sizeof(long_name); size++) {
		struct bytes hello = hello_of(long_name + sizeof(long_name) - 1 - size);

		assert_int_equal(read_name(&hello, name), -EBADMSG);
	}
}

static void test_other_protocols(void **state)
{
	static const char *const texts[] = {"GET / HTTP/1.1\r\n", "SSH-2.0-x\r\n", "\x15\3\1",
					    "\x16\2\1\1\1\1", "\x16\3\1\1\1\2"};
	char name[DNS_NAME_MAX + 1];
	uint8_t empty[] = {0x16, 3, 1, 0, 0}, large[] = {0x16, 3, 1, 0x40, 1};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		assert_int_equal(tls_server_name((const uint8_t *)texts[i], strlen(texts[i]), name),
				 -EBADMSG);
	}
	assert_int_equal(tls_server_name(empty, sizeof(empty), name), -EBADMSG);
	assert_int_equal(tls_server_name(large, sizeof(large), name), -EBADMSG);
}

/* Lengths inside that reach beyond what they lie in, whatever is behind. Offsets in the message:
 * session 38, suites 43, methods 49, extensions 51, first 55, second 62, list 64, name 67. */
static void test_lengths_that_lie(void **state)
{
	static const struct {
		size_t offset;
		uint8_t value;
	} lies[] = {{3, 40},   {38, 250}, {44, 250}, {49, 250}, {52, 250}, {52, 10},  {56, 250},
		    {63, 250}, {63, 3},	  {65, 250}, {65, 3},	{66, 1},   {68, 250}, {68, 1}};
	char name[DNS_NAME_MAX + 1];

	(void)state;
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct bytes hello = hello_of("a.example");

		assert_int_not_equal(hello.data[RECORD + lies[i].offset], lies[i].value);
		hello.data[RECORD + lies[i].offset] = lies[i].value;
		/* More bytes, so that nothing but the lengths ends it. */
		put(&hello, "\x16\3\1\3\xe8", 5);
		hello.size += 1000;
		if (read_name(&hello, name) != -EBADMSG) {
			fail_msg("%zu = %u", lies[i].offset, lies[i].value);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_name),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_names_that_are_none),
		cmocka_unit_test(test_other_protocols),
		cmocka_unit_test(test_lengths_that_lie),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
