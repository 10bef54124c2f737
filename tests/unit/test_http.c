/* src/wire/http.c: the head of what a proxy answers. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "wire/http.h"

static int judge(const char *text, unsigned *ret_status)
{
	return http_response_head((const uint8_t *)text, strlen(text), ret_status);
}

/* Every beginning of it is unfinished, until its end; what follows does not matter. */
static void expect_head(const char *text, unsigned status)
{
	size_t size = strlen(text);
	unsigned told;

	for (size_t i = 0; i < size; i++) {
		assert_int_equal(http_response_head((const uint8_t *)text, i, &told), 0);
		assert_int_equal(told, i < sizeof("HTTP/1.1 200") ? 0 : status);
	}
	assert_int_equal(judge(text, &told), (int)size);
	assert_int_equal(told, status);
}

static void test_heads(void **state)
{
	unsigned status;

	(void)state;
	expect_head("HTTP/1.1 200 Connection established\r\n\r\n", 200);
	expect_head("HTTP/1.0 200\r\nA: b\r\nC:\r\n\r\n", 200);
	expect_head("HTTP/1.1 100\n\n", 100);
	expect_head("HTTP/1.1 599 \r\n\n", 599);
	/* A return inside of a line ends nothing. */
	expect_head("HTTP/1.1 407 \rx\r\n\r\r\n\r\n", 407);
	assert_int_equal(judge("HTTP/1.1 200 x\r\n\r\nSSH-2.0\r\n\r\n", &status), 18);
	assert_int_equal(judge("HTTP/1.1 200 x\r\nA: b", &status), 0);
	assert_int_equal(status, 200);
}

static void test_what_is_none(void **state)
{
	static const char *const texts[] = {
		"\r\n",
		"http/1.1 200 x",
		"HTTP/2 200 x",
		"HTTP/1.1200 x",
		"HTTP/1.1 20 x",
		"HTTP/1.1 2000",
		"HTTP/1.1 x00 ",
		"HTTP/1.1 000 x",
		"HTTP/1.1 099 x",
		"HTTP/1.1 600 x",
		"HTTP/1.x 200 x",
		"SSH-2.0-OpenSSH",
		"HTTP/1.1  200 x",
		" HTTP/1.1 200 ",
		"HTTP/1.1 200x",
	};
	unsigned status = 7;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		assert_int_equal(judge(texts[i], &status), -EBADMSG);
		assert_int_equal(status, 0);
	}
	assert_int_equal(judge("", &status), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_heads),
		cmocka_unit_test(test_what_is_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
