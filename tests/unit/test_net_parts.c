/* src/net: the host's resolver set-up, and the pace of connections. */
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "net/conf.h"
#include "net/pace.h"

static struct conf read_conf(const char *text)
{
	struct conf conf = {0};

	conf_read_resolver(&conf, text, strlen(text));
	return conf;
}

/* What a server is, in policy's spelling, with its zone and port checked. */
static const char *server_of(const struct conf *conf, size_t i, uint32_t zone)
{
	static char text[POLICY_ADDRESS_TEXT];
	struct policy_address address = {.family = 4};

	if (conf->servers[i].ss_family == AF_INET) {
		struct sockaddr_in v4;

		memcpy(&v4, &conf->servers[i], sizeof(v4));
		memcpy(address.bytes, &v4.sin_addr, 4);
		assert_int_equal(ntohs(v4.sin_port), 53);
	} else {
		struct sockaddr_in6 v6;

		memcpy(&v6, &conf->servers[i], sizeof(v6));
		address.family = 6;
		memcpy(address.bytes, &v6.sin6_addr, 16);
		assert_int_equal(ntohs(v6.sin6_port), 53);
		assert_int_equal(v6.sin6_scope_id, zone);
	}
	policy_address_format(&address, text);
	return text;
}

static void test_resolver_file(void **state)
{
	struct conf conf = read_conf("# nameserver 9.9.9.9\n;nameserver 9.9.9.9\n"
				     "search corp.example\nnameserver\t192.168.1.1 # here\r\n"
				     "nameserver fe80::1%3\nnameserver fe80::1%eth0\n"
				     "nameserver nonsense\nnameserver 2001:DB8::1\n"
				     "nameserver 8.8.8.8\noptions timeout:7 attempts:4 ndots:5");

	(void)state;
	assert_int_equal(conf.server_count, 3);
	assert_string_equal(server_of(&conf, 0, 0), "192.168.1.1");
	assert_string_equal(server_of(&conf, 1, 3), "fe80::1");
	assert_string_equal(server_of(&conf, 2, 0), "2001:db8::1");
	assert_int_equal(conf.timeout_s, 7);
	assert_int_equal(conf.attempts, 4);
	assert_false(conf.rotate || conf.use_tcp);
}

static void test_resolver_defaults(void **state)
{
	const char *texts[] = {"", "\n\n", "nameserver\n", "nameserver 1.2.3\n",
			       "options timeout:x attempts:-1 timeout:1x timeout:\n"};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct conf conf = read_conf(texts[i]);

		assert_int_equal(conf.server_count, 1);
		assert_string_equal(server_of(&conf, 0, 0), "127.0.0.1");
		assert_int_equal(conf.timeout_s, CONF_TIMEOUT_S);
		assert_int_equal(conf.attempts, CONF_ATTEMPTS);
	}
}

static void test_resolver_limits(void **state)
{
	struct conf conf = read_conf("options timeout:0 attempts:0 rotate use-vc\n");

	(void)state;
	assert_int_equal(conf.timeout_s, 1);
	assert_int_equal(conf.attempts, 1);
	assert_true(conf.rotate && conf.use_tcp);
	conf = read_conf("options timeout:99999999999999999999 attempts:999\n");
	assert_int_equal(conf.timeout_s, CONF_TIMEOUT_MAX_S);
	assert_int_equal(conf.attempts, CONF_ATTEMPTS_MAX);
}

static size_t find(const char *text, const char *name, struct policy_address *addresses, size_t max)
{
	struct conf conf = {.hosts = text, .hosts_size = strlen(text)};

	return conf_find_host(&conf, name, addresses, max);
}

static void test_hosts(void **state)
{
	static const char text[] = "127.0.0.1 localhost local. # 1.1.1.1 commented.example\n"
				   "::1\tLOCALHOST ip6\n#9.9.9.9 localhost\nnonsense localhost\n"
				   "10.0.0.1 localhost.example localhos\n10.0.0.2";
	struct policy_address found[4];
	char name[POLICY_ADDRESS_TEXT];

	(void)state;
	assert_int_equal(find(text, "localhost", found, 4), 2);
	policy_address_format(&found[0], name);
	assert_string_equal(name, "127.0.0.1");
	policy_address_format(&found[1], name);
	assert_string_equal(name, "::1");
	assert_int_equal(find(text, "localhost", found, 1), 1);
	assert_int_equal(find(text, "local", found, 4), 1);
	assert_int_equal(find(text, "commented.example", found, 4), 0);
	assert_int_equal(find(text, "localhost.exampl", found, 4), 0);
	assert_int_equal(find(text, "127.0.0.1", found, 4), 0);
	assert_int_equal(find("", "localhost", found, 4), 0);
}

/* A line may be longer than all that is looked at of it. */
static void test_long_lines(void **state)
{
	static char text[70000];
	struct policy_address found[4];

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	memcpy(text, "10.0.0.1 ", 9);
	assert_int_equal(find(text, "x", found, 4), 0);
	for (size_t i = 9; i < sizeof(text) - 1; i += 2) {
		text[i] = ' ';
	}
	assert_int_equal(find(text, "x", found, 4), 1);
}

#define SECOND UINT64_C(1000000000)

static unsigned take_all(struct pace *pace, uint64_t now_ns)
{
	unsigned count = 0;

	while (pace_take(pace, now_ns)) {
		count++;
	}
	return count;
}

static void test_pace(void **state)
{
	struct pace pace = pace_make(256, 1024, 5 * SECOND);

	(void)state;
	assert_int_equal(take_all(&pace, 5 * SECOND), 1024);
	assert_int_equal(take_all(&pace, 6 * SECOND), 256);
	assert_int_equal(take_all(&pace, 6 * SECOND + SECOND / 256 - 1), 0);
	assert_int_equal(take_all(&pace, 6 * SECOND + SECOND / 256), 1);
	/* A short step is not lost. */
	pace = pace_make(3, 10, 0);
	assert_int_equal(take_all(&pace, 0), 10);
	for (uint64_t now = 0; now < SECOND; now += 1000) {
		assert_false(pace_take(&pace, now / 10));
	}
	assert_int_equal(take_all(&pace, SECOND), 3);
	/* However long it was. */
	assert_int_equal(take_all(&pace, UINT64_MAX / 2), 10);
	assert_int_equal(take_all(&pace, UINT64_MAX), 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_resolver_file),	cmocka_unit_test(test_resolver_defaults),
		cmocka_unit_test(test_resolver_limits), cmocka_unit_test(test_hosts),
		cmocka_unit_test(test_long_lines),	cmocka_unit_test(test_pace),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
