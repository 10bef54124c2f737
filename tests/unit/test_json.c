#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "json/json.h"

static void assert_dumps(const struct json *json, unsigned flags, const char *expected)
{
	_cleanup_free_ char *text = NULL;

	assert_int_equal(json_dump(json, flags, &text), 0);
	assert_string_equal(text, expected);
}

static struct json *parse(const char *text)
{
	struct json *json = NULL;
	struct err err = {0};
	int rc = json_parse(text, strlen(text), &json, &err);

	if (rc < 0) {
		print_error("%s\n", err.text);
	}
	assert_int_equal(rc, 0);
	return json;
}

static void test_build(void **state)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	struct json *array = json_new_array();
	struct json *inner = json_new_object();

	(void)state;
	assert_int_equal(json_set_string(object, "z", "last"), 0);
	assert_int_equal(json_set_integer(object, "big", INT64_MIN), 0);
	assert_int_equal(json_set_boolean(object, "yes", true), 0);
	assert_int_equal(json_set_boolean(object, "no", false), 0);
	assert_int_equal(json_set_real(object, "real", 0.1), 0);
	assert_int_equal(json_set_real(object, "nan", NAN), 0);
	assert_int_equal(json_set_real(object, "inf", -INFINITY), 0);
	assert_int_equal(json_set_null(object, "null"), 0);
	assert_int_equal(json_set_string(object, "none", NULL), 0);
	assert_int_equal(json_append_string(array, "a"), 0);
	assert_int_equal(json_append_integer(array, -1), 0);
	assert_int_equal(json_append_child(array, inner), 0);
	assert_int_equal(json_set_child(object, "a", array), 0);
	assert_dumps(object, 0,
		     "{\"a\":[\"a\",-1,{}],\"big\":-9223372036854775808,\"inf\":null,\"nan\":null,"
		     "\"no\":false,\"none\":null,\"null\":null,\"real\":0.1,\"yes\":true,"
		     "\"z\":\"last\"}");
	/* A second value for a key takes the place of the first. */
	assert_int_equal(json_set_integer(object, "a", 5), 0);
	assert_int_equal(json_count(object), 10);
}

static void test_layout(void **state)
{
	_cleanup_(json_freep) struct json *json = parse(" {\"b\": [1, 2], \"a\": {}} ");
	_cleanup_(json_freep) struct json *empty = json_new_array();

	(void)state;
	assert_dumps(json, 0, "{\"a\":{},\"b\":[1,2]}");
	assert_dumps(json, JSON_DUMP_NEWLINE, "{\"a\":{},\"b\":[1,2]}\n");
	assert_dumps(json, JSON_DUMP_INDENT | JSON_DUMP_NEWLINE,
		     "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2\n  ]\n}\n");
	assert_dumps(empty, 0, "[]");
}

static void test_any_bytes(void **state)
{
	static const struct {
		const char *bytes;
		size_t size;
		const char *text;
	} cases[] = {
		{"a\nb\"\\\x01", 6, "{\"k\":\"a\\nb\\\"\\\\\\u0001\"}"},
		{"a\0b", 3, "{\"k\":\"a\\u0000b\"}"},
		{"\xc3\xa4", 2, "{\"k\":\"\xc3\xa4\"}"},
		{"\xff", 1, "{\"k\":\"\xef\xbf\xbd\"}"},
		/* Cut, overlong, a surrogate, above the last code point. */
		{"x\xe2\x82", 3, "{\"k\":\"x\xef\xbf\xbd\xef\xbf\xbd\"}"},
		{"\xc0\x80", 2, "{\"k\":\"\xef\xbf\xbd\xef\xbf\xbd\"}"},
		{"\xed\xa0\x80", 3, "{\"k\":\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"}"},
		{"\xf4\x90\x80\x80", 4,
		 "{\"k\":\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"}"},
		{"\xf0\x9f\x98\x80", 4, "{\"k\":\"\xf0\x9f\x98\x80\"}"},
		{"", 0, "{\"k\":\"\"}"},
	};
	_cleanup_(json_freep) struct json *object = json_new_object();
	char all[256];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_int_equal(json_set_bytes(object, "k", cases[i].bytes, cases[i].size), 0);
		assert_dumps(object, 0, cases[i].text);
	}
	/* A control character of two bytes, an override of the direction, one beyond 16 bits. */
	assert_int_equal(
		json_set_string(object, "k", "\xc2\x9b\xe2\x80\xae\xf0\x9f\x98\x80\xc3\xa4"), 0);
	assert_dumps(object, JSON_DUMP_ASCII, "{\"k\":\"\\u009B\\u202E\\uD83D\\uDE00\\u00E4\"}");
	/* Every byte, also as a key, comes out as JSON that parses. */
	for (size_t i = 0; i < sizeof(all); i++) {
		_cleanup_(json_freep) struct json *again = NULL;
		_cleanup_free_ char *text = NULL;
		char key[3] = {'x', (char)i, '\0'};

		all[i] = (char)i;
		assert_int_equal(json_set_string(object, key, key), 0);
		assert_int_equal(json_dump(object, 0, &text), 0);
		assert_int_equal(json_parse(text, strlen(text), &again, NULL), 0);
		assert_dumps(again, 0, text);
	}
	assert_int_equal(json_set_bytes(object, "all", all + 1, sizeof(all) - 1), 0);
}

static void test_read(void **state)
{
	_cleanup_(json_freep) struct json *json = parse(
		"{\"s\": \"x\", \"i\": -7, \"r\": 1.5, \"t\": true, \"f\": false, \"n\": null,"
		" \"a\": [\"p\", 3, []], \"o\": {\"deep\": {\"x\": 1}}}");
	const struct json *array = json_get_child(json, "a");
	int64_t integer = 99;
	double real = 9.5;
	bool boolean = false;

	(void)state;
	assert_string_equal(json_get_string(json, "s"), "x");
	assert_null(json_get_string(json, "i"));
	assert_null(json_get_string(json, "missing"));
	assert_int_equal(json_get_integer(json, "s", &integer), -EBADMSG);
	assert_int_equal(json_get_integer(json, "r", &integer), -EBADMSG);
	assert_int_equal(json_get_integer(json, "missing", &integer), -ENOENT);
	assert_int_equal(integer, 99);
	assert_int_equal(json_get_integer(json, "i", &integer), 0);
	assert_int_equal(integer, -7);
	assert_int_equal(json_get_boolean(json, "n", &boolean), -EBADMSG);
	assert_int_equal(json_get_boolean(json, "missing", &boolean), -ENOENT);
	assert_int_equal(json_get_boolean(json, "t", &boolean), 0);
	assert_true(boolean);
	assert_int_equal(json_get_boolean(json, "f", &boolean), 0);
	assert_false(boolean);
	assert_int_equal(json_get_real(json, "s", &real), -EBADMSG);
	assert_int_equal(json_get_real(json, "missing", &real), -ENOENT);
	assert_true(real > 9.0);
	assert_int_equal(json_get_real(json, "r", &real), 0);
	assert_true(real > 1.4 && real < 1.6);
	assert_int_equal(json_get_real(json, "i", &real), 0);
	assert_true(real < -6.9);
	/* A path through what is not there, or is no object, leads nowhere and is no crash. */
	assert_int_equal(
		json_get_integer(json_get_child(json_get_child(json, "o"), "deep"), "x", &integer),
		0);
	assert_int_equal(integer, 1);
	assert_null(json_get_child(json_get_child(json, "s"), "x"));
	assert_null(json_get_string(NULL, "x"));
	assert_int_equal(json_get_integer(NULL, "x", &integer), -ENOENT);
	assert_int_equal(json_count(array), 3);
	assert_string_equal(json_string_of(json_at(array, 0)), "p");
	assert_int_equal(json_integer_of(json_at(array, 1), &integer), 0);
	assert_int_equal(integer, 3);
	assert_int_equal(json_integer_of(json_at(array, 0), &integer), -EBADMSG);
	assert_int_equal(json_integer_of(NULL, &integer), -EBADMSG);
	assert_null(json_at(array, 3));
	assert_null(json_at(json, 0));
	assert_int_equal(json_count(json_get_child(json, "s")), 0);
	assert_int_equal(json_count(NULL), 0);
}

static void test_kinds(void **state)
{
	_cleanup_(json_freep) struct json *json =
		parse("[null, true, false, 1, 1.0, \"\", [], {}]");
	static const enum json_kind kinds[] = {
		JSON_KIND_NULL, JSON_KIND_BOOLEAN, JSON_KIND_BOOLEAN, JSON_KIND_INTEGER,
		JSON_KIND_REAL, JSON_KIND_STRING,  JSON_KIND_ARRAY,   JSON_KIND_OBJECT};

	(void)state;
	assert_int_equal(json_count(json), ARRAY_SIZE(kinds));
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		assert_int_equal(json_kind(json_at(json, i)), kinds[i]);
	}
}

static void test_next(void **state)
{
	_cleanup_(json_freep) struct json *json = parse("{\"a\": 1, \"b\": 2, \"c\": 4}");
	_cleanup_(json_freep) struct json *empty = json_new_object();
	const struct json *value = NULL;
	const char *key = NULL;
	void *position = NULL;
	int64_t sum = 0, count = 0;

	(void)state;
	assert_false(json_next(empty, &position, &key, &value));
	assert_null(key);
	assert_null(position);
	while (json_next(json, &position, &key, &value)) {
		int64_t number;

		assert_int_equal(json_integer_of(value, &number), 0);
		assert_int_equal(number, 1 << (key[0] - 'a'));
		sum += number;
		count++;
	}
	assert_int_equal(sum, 7);
	assert_int_equal(count, 3);
}

static void test_refused(void **state)
{
	static const char *const bad[] = {
		"",
		" ",
		"{",
		"{}x",
		"{} {}",
		"1",
		"\"a\"",
		"nul",
		"[1,]",
		"{\"a\":1,\"a\":2}",
		"{a: 1}",
		"['a']",
		"[\"\\u0000\"]",
		"[\"\xff\"]",
		"[\"\\ud800\"]",
		"[01]",
		"[1e999]",
		"[\"a\nb\"]",
		"[//]",
		"[99999999999999999999]",
		"\xef\xbb\xbf{}",
		"[\"\xc0\x80\"]",
	};
	struct json *json = NULL;
	struct err err = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		err.text[0] = '\0';
		if (json_parse(bad[i], strlen(bad[i]), &json, &err) != -EBADMSG) {
			fail_msg("%s was not refused", bad[i]);
		}
		assert_null(json);
		assert_memory_equal(err.text, "line ", 5);
		assert_string_equal(err.code, "bad-json");
		assert_int_equal(json_parse(bad[i], strlen(bad[i]), &json, NULL), -EBADMSG);
	}
	assert_int_equal(json_parse("{}\0", 3, &json, &err), -EBADMSG);
	/* What stood in the input reaches the message only in a harmless form. */
	assert_int_equal(json_parse("[\n\x1b[2J", 6, &json, &err), -EBADMSG);
	assert_memory_equal(err.text, "line 2,", 7);
	assert_null(strchr(err.text, '\x1b'));
}

static void test_limits(void **state)
{
	_cleanup_(json_freep) struct json *json = NULL;
	_cleanup_free_ char *text = malloc(JSON_TEXT_MAX + 1);
	struct err err = {0};
	size_t half = JSON_DEPTH_MAX + 1;

	(void)state;
	assert_non_null(text);
	memset(text, '[', half);
	memset(text + half, ']', half);
	assert_int_equal(json_parse(text, 2 * half, &json, &err), -EBADMSG);
	assert_string_equal(err.text, "nested deeper than 64 levels");
	assert_int_equal(json_parse(text + 1, 2 * half - 2, &json, &err), 0);
	json_free(TAKE_PTR(json));
	/* Brackets in a string, behind an escaped quotation mark, do not count. */
	memset(text, '[', 200);
	memcpy(text, "[\"\\\"", 4);
	memcpy(text + 200, "\"]", 2);
	assert_int_equal(json_parse(text, 202, &json, &err), 0);
	json_free(TAKE_PTR(json));
	memset(text, ' ', JSON_TEXT_MAX + 1);
	memcpy(text, "[]", 2);
	assert_int_equal(json_parse(text, JSON_TEXT_MAX + 1, &json, &err), -EBADMSG);
	assert_int_equal(json_parse(text, JSON_TEXT_MAX, &json, &err), 0);
}

static void test_no_object(void **state)
{
	struct json *child = json_new_object();
	struct json *other = json_new_array();
	char *text = NULL;

	(void)state;
	assert_int_equal(json_set_string(NULL, "a", "b"), -ENOMEM);
	assert_int_equal(json_append_integer(NULL, 1), -ENOMEM);
	/* Taken over all the same: LeakSanitizer would notice. */
	assert_int_equal(json_set_child(NULL, "a", child), -ENOMEM);
	assert_int_equal(json_append_child(NULL, other), -ENOMEM);
	child = json_new_object();
	assert_int_equal(json_set_child(child, "a", NULL), -ENOMEM);
	assert_int_equal(json_count(child), 0);
	json_free(child);
	assert_int_equal(json_dump(NULL, 0, &text), -ENOMEM);
	assert_null(text);
	json_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_build),	  cmocka_unit_test(test_layout),
		cmocka_unit_test(test_any_bytes), cmocka_unit_test(test_read),
		cmocka_unit_test(test_kinds),	  cmocka_unit_test(test_next),
		cmocka_unit_test(test_refused),	  cmocka_unit_test(test_limits),
		cmocka_unit_test(test_no_object),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
