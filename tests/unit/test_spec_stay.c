/* src/spec: the keys of machines that stay or are kept ready, and of builds. */
#include "spec/spec.h"

#include <errno.h>
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

static struct spec *parse(const char *text)
{
	struct spec *spec = NULL;

	assert_int_equal(spec_parse(text, strlen(text), "B", &spec, NULL), 0);
	return spec;
}

/* The text is refused and the message begins so. */
static void refused_at(const char *text, const char *beginning)
{
	struct spec *spec = NULL;
	struct err err = {0};

	assert_int_equal(spec_parse(text, strlen(text), "B", &spec, &err), -EINVAL);
	if (strlen(err.text) > strlen(beginning)) {
		err.text[strlen(beginning)] = '\0';
	}
	assert_string_equal(err.text, beginning);
}

static void test_times(void **state)
{
	static const struct {
		const char *text;
		uint32_t seconds;
	} good[] = {{"10", 10},	   {"10s", 10},	   {"90s", 90},	     {"1m", 60},
		    {"30m", 1800}, {"24h", 86400}, {"1440m", 86400}, {"86400", 86400}};
	static const char *const bad[] = {"",	 "s",  "m10", "1.5h", "-1m", "10 s",
					  "10S", "1d", "1hm", "010s", "+10"};
	static const char *const outside[] = {"9",
					      "0",
					      "9s",
					      "86401",
					      "25h",
					      "1441m",
					      "9999999999999999999999h",
					      "18446744073709551615h"};
	char text[64], message[128];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		_cleanup_(spec_freep) struct spec *spec = NULL;

		snprintf(text, sizeof(text), "warm_idle: %s", good[i].text);
		spec = parse(text);
		assert_int_equal(spec->warm_idle_seconds, good[i].seconds);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		snprintf(text, sizeof(text), "warm_idle: '%s'", bad[i]);
		snprintf(message, sizeof(message), "B:1:12: warm_idle: \"%s\" is not a time",
			 bad[i]);
		refused_at(text, message);
	}
	for (size_t i = 0; i < ARRAY_SIZE(outside); i++) {
		snprintf(text, sizeof(text), "warm_idle: %s", outside[i]);
		snprintf(message, sizeof(message),
			 "B:1:12: warm_idle: \"%s\" is not within 10 and 86400", outside[i]);
		refused_at(text, message);
	}
	refused_at("warm_idle: [1]", "B:1:12: warm_idle must be a single value");
}

static void test_log_output(void **state)
{
	static const struct {
		const char *text;
		enum spec_log_output output;
	} words[] = {{"log_output: tail", SPEC_LOG_TAIL},
		     {"log_output: none", SPEC_LOG_NONE},
		     {"log_output: full", SPEC_LOG_FULL}};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
		_cleanup_(spec_freep) struct spec *spec = parse(words[i].text);

		assert_int_equal(spec->log_output, words[i].output);
	}
	refused_at("log_output: nnoe", "B:1:13: log_output: \"nnoe\" is none of tail, none, full");
}

static void test_port(void **state)
{
	static const struct {
		const char *text;
		struct spec_port port;
	} good[] = {
		{"8080:80", {"127.0.0.1", 8080, 80}},
		{"0:80", {"127.0.0.1", 0, 80}},
		{"0.0.0.0:1:65535", {"0.0.0.0", 1, 65535}},
		{"localhost:1:2", {"127.0.0.1", 1, 2}},
		{"[::1]:65535:1", {"::1", 65535, 1}},
		{"[0:0::1]:0:1", {"::1", 0, 1}},
		{"[1111:2222:3333:4444:5555:6666:123.123.123.123]:1:2",
		 {"1111:2222:3333:4444:5555:6666:7b7b:7b7b", 1, 2}},
	};
	static const char *const bad[] = {
		"",	     ":",	"80",		"80:0",		":80",	    "80:",
		"65536:1",   "1:65536", "01:2",		"1:02",		"-1:2",	    "a:1:2",
		":1:2",	     "::1:1:2", "[::1:1:2",	"[]:1:2",	"[]]:1:2",  "[1.2.3.4]:1:2",
		"1.2.3:1:2", "1:2:3:4", "[::1%lo]:1:2", "01.2.3.4:1:2", "[::1]1:2", " 1:2",
		"1:2 "};
	struct spec_port port;
	struct err err = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		assert_int_equal(spec_parse_port(good[i].text, &port, NULL), 0);
		assert_string_equal(port.address, good[i].port.address);
		assert_int_equal(port.host, good[i].port.host);
		assert_int_equal(port.guest, good[i].port.guest);
	}
	memset(&port, 7, sizeof(port));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(spec_parse_port(bad[i], &port, &err), -EINVAL);
		assert_string_equal(err.code, "bad-port");
		assert_true(err.mend[0] != '\0');
		assert_int_equal(port.host, 0x0707);
	}
	spec_parse_port("\x1b[2J", &port, &err);
	assert_memory_equal(err.text, "\"\\e[2J\" ", 8);
	refused_at(
		"network: {ports: ['0:80']}",
		"B:1:19: ports: \"0:80\" has 0 as the host's port, which only `box forward` takes");
}

static void test_build_network(void **state)
{
	static const struct {
		const char *text;
		enum spec_network_kind kind;
		bool has;
	} cases[] = {
		{"cpus: 1", SPEC_NETWORK_LIST, true},
		{"build_network: base", SPEC_NETWORK_LIST, true},
		{"build_network: {}", SPEC_NETWORK_LIST, true},
		{"build_network: none", SPEC_NETWORK_NONE, false},
		{"build_network: bridge", SPEC_NETWORK_BRIDGE, true},
		{"base: tiny", SPEC_NETWORK_LIST, false},
		{"{base: tiny, build_network: {allow: [a.b]}}", SPEC_NETWORK_LIST, true},
		{"{base: tiny, network: bridge}", SPEC_NETWORK_LIST, false},
		{"{base: 'dir:/a', build_network: bridge}", SPEC_NETWORK_BRIDGE, true},
	};
	_cleanup_(spec_freep) struct spec *both =
		parse("network: {allow: [a.b]}\n"
		      "build_network: {allow: [c.d, e.f], deny: [g.h], reach: [10.0.0.0/8],\n"
		      "                limits: {connections: 5, bytes: 1M}}\n");

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(spec_freep) struct spec *spec = parse(cases[i].text);

		assert_int_equal(spec->build_network.kind, cases[i].kind);
		assert_int_equal(spec_has_build_network(spec), cases[i].has);
	}
	assert_int_equal(both->network.allow_count, 1);
	assert_int_equal(both->build_network.allow_count, 2);
	assert_string_equal(both->build_network.deny[0], "g.h");
	assert_string_equal(both->build_network.reach[0], "10.0.0.0/8");
	assert_int_equal(both->build_network.connections_max, 5);
	assert_true(both->build_network.bytes_max == (uint64_t)1 << 20);
	refused_at("build_network: {ports: ['1:1']}", "B:1:17: ");
	refused_at("build_network: [a.b]", "B:1:16: build_network must be none, bridge or a map");
	refused_at("build_network: {allow: ['a b']}", "B:1:25: allow: ");
}

static char *image_key_of(const char *text)
{
	_cleanup_(spec_freep) struct spec *spec = parse(text);
	char *key = NULL;

	assert_int_equal(spec_image_key(spec, &key), 0);
	return key;
}

/* What lines of a build could reach is a part of their image. */
static void test_build_network_key(void **state)
{
	static const char *const others[] = {
		"build_network: none",
		"build_network: bridge",
		"build_network: {allow: [a.b]}",
		"build_network: {deny: [a.b]}",
		"build_network: {reach: [10.0.0.0/8]}",
		"build_network: {limits: {bytes: 1}}",
		"build_network: {limits: {connections: 1}}",
	};
	_cleanup_free_ char *line = image_key_of("run: [a]");
	_cleanup_free_ char *base = image_key_of("run: [a]\nbuild_network: base");
	_cleanup_free_ char *nothing = image_key_of("");

	(void)state;
	assert_string_equal(base, line);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		char with_line[128];
		_cleanup_free_ char *alone = image_key_of(others[i]);
		_cleanup_free_ char *key = NULL;

		/* Nobody is there to use it. */
		assert_string_equal(alone, nothing);
		snprintf(with_line, sizeof(with_line), "run: [a]\n%s", others[i]);
		key = image_key_of(with_line);
		assert_string_not_equal(key, line);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_times),
		cmocka_unit_test(test_log_output),
		cmocka_unit_test(test_port),
		cmocka_unit_test(test_build_network),
		cmocka_unit_test(test_build_network_key),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
