/* src/policy/proxy.c: what an environment says of a proxy. */
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
#include "policy/proxy.h"

/* "NAME=VALUE", up to NULL. */
static const char *const *environment;

static char *get(const char *name)
{
	size_t length = strlen(name);

	for (const char *const *entry = environment; *entry; entry++) {
		if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') {
			return (char *)(uintptr_t)(*entry + length + 1);
		}
	}
	return NULL;
}

#define ENVIRONMENT(...)                                                                           \
	(const char *const[])                                                                      \
	{                                                                                          \
		__VA_ARGS__, NULL                                                                  \
	}

static int find(const char *const *entries, struct policy_proxy *ret_proxy, struct err *err)
{
	environment = entries;
	memset(ret_proxy, 0, sizeof(*ret_proxy));
	return policy_proxy_find(get, ret_proxy, err);
}

static void expect(const char *const *entries, const char *host, uint16_t port, const char *secret)
{
	struct policy_proxy proxy;
	struct err err = {0};
	int rc = find(entries, &proxy, &err);

	if (rc < 0) {
		print_error("%s\n", err.text);
	}
	assert_int_equal(rc, 1);
	assert_string_equal(proxy.host, host);
	assert_int_equal(proxy.port, port);
	assert_string_equal(proxy.authorization, secret);
	free(proxy.direct);
}

static void test_which(void **state)
{
	const char *const *const none[] = {
		ENVIRONMENT("PATH=/"),
		ENVIRONMENT("BOX_PROXY=", "https_proxy=http://h:1"),
		ENVIRONMENT("https_proxy=http://h:1"),
		ENVIRONMENT("BOX_PROXY=environment", "https_proxy="),
		/* A header of that name could come from anywhere. */
		ENVIRONMENT("BOX_PROXY=environment", "HTTP_PROXY=http://h:1"),
		ENVIRONMENT("BOX_PROXY=http://h:1", "no_proxy=a.b, *"),
	};
	struct policy_proxy proxy;
	struct err err = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(none); i++) {
		assert_int_equal(find(none[i], &proxy, &err), 0);
	}
	expect(ENVIRONMENT("BOX_PROXY=http://h:1", "https_proxy=http://i:2"), "h", 1, "");
	expect(ENVIRONMENT("BOX_PROXY=environment", "http_proxy=http://i:2"), "i", 2, "");
	expect(ENVIRONMENT("BOX_PROXY=environment", "http_proxy=i:2", "ALL_PROXY=j:3"), "j", 3, "");
	expect(ENVIRONMENT("BOX_PROXY=environment", "ALL_PROXY=j:3", "HTTPS_PROXY=k:4"), "k", 4,
	       "");
}

static void test_urls(void **state)
{
	(void)state;
	expect(ENVIRONMENT("BOX_PROXY=Proxy.Example:3128/"), "proxy.example", 3128, "");
	expect(ENVIRONMENT("BOX_PROXY=http://10.0.0.1:80"), "10.0.0.1", 80, "");
	expect(ENVIRONMENT("BOX_PROXY=http://[::1]:80"), "::1", 80, "");
	expect(ENVIRONMENT("BOX_PROXY=http://user:word@h:1"), "h", 1, "dXNlcjp3b3Jk");
	expect(ENVIRONMENT("BOX_PROXY=http://user@h:1"), "h", 1, "dXNlcjo=");
	expect(ENVIRONMENT("BOX_PROXY=http://us%65r:w@rd%3a%2F@h:1"), "h", 1, "dXNlcjp3QHJkOi8=");
}

static void test_bad_urls(void **state)
{
	static const char *const bad[] = {
		"BOX_PROXY=http://u:hush@h",
		"BOX_PROXY=https://u:hush@h:1",
		"BOX_PROXY=socks5://u:hush@h:1",
		"BOX_PROXY=http://u:hush@h:0",
		"BOX_PROXY=http://u:hush@h:70000",
		"BOX_PROXY=http://u:hush@",
		"BOX_PROXY=http://u:hush@*.h:1",
		"BOX_PROXY=http://u:hush@10.0.0.0/8:1",
		"BOX_PROXY=http://u:hush@127.1:1",
		"BOX_PROXY=http://u:hush@h:1/path",
		"BOX_PROXY=http://u:hush%2@h:1",
		"BOX_PROXY=http://u:hush%zz@h:1",
		"BOX_PROXY=hush",
	};
	struct policy_proxy proxy;
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		err = (struct err){0};
		assert_int_equal(find(ENVIRONMENT(bad[i]), &proxy, &err), -EINVAL);
		assert_non_null(strstr(err.text, "BOX_PROXY"));
		assert_null(strstr(err.text, "hush"));
		assert_null(strstr(err.mend, "hush"));
	}
}

static void test_long_secrets(void **state)
{
	static char user[600];
	struct policy_proxy proxy;

	(void)state;
	for (size_t length = 300; length < sizeof(user); length++) {
		char entry[1024];
		int rc;

		memset(user, 'a', length);
		snprintf(entry, sizeof(entry), "BOX_PROXY=http://%.*s@h:1", (int)length, user);
		rc = find(ENVIRONMENT(entry), &proxy, NULL);
		assert_true(rc == 1 || (rc == -EINVAL && length > 370));
		assert_true(rc == -EINVAL || length < 390);
		free(proxy.direct);
	}
}

static bool is_direct(const struct policy_proxy *proxy, const char *host, uint16_t port)
{
	struct policy_address address;

	if (policy_address_parse(host, &address) == 0) {
		return policy_decide_literal(proxy->direct, &address, port).reason ==
		       POLICY_NO_DENIED;
	}
	return policy_decide_name(proxy->direct, host, port).reason == POLICY_NO_DENIED;
}

static void test_direct(void **state)
{
	static const struct {
		const char *host;
		uint16_t port;
		bool direct;
	} cases[] = {
		{"corp.example", 443, true},
		{"a.b.corp.example", 22, true},
		{"xcorp.example", 443, false},
		{"dot.example", 80, true},
		{"a.star.example", 80, true},
		{"only.example", 8080, true},
		{"only.example", 80, false},
		{"10.1.2.3", 443, true},
		{"11.1.2.3", 443, false},
		{"192.168.1.1", 443, true},
		{"::1", 443, true},
		{"fd00::1", 443, true},
		{"fe80::1", 443, false},
		{"public.example", 443, false},
	};
	struct policy_proxy proxy;

	(void)state;
	assert_int_equal(find(ENVIRONMENT("BOX_PROXY=h:1", "NO_PROXY=x.example",
					  "no_proxy=corp.example, .dot.example,*.star.example "
					  "only.example:8080,10.0.0.0/8,192.168.1.1,::1,fd00::/8,"
					  "[broken,10.,,what ever"),
			      &proxy, NULL),
			 1);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		if (is_direct(&proxy, cases[i].host, cases[i].port) != cases[i].direct) {
			print_error("%s:%u\n", cases[i].host, cases[i].port);
		}
		assert_int_equal(is_direct(&proxy, cases[i].host, cases[i].port), cases[i].direct);
	}
	free(proxy.direct);
}

static uint64_t mark_of(const char *const *entries)
{
	struct policy_proxy proxy;
	uint64_t mark;

	assert_int_equal(find(entries, &proxy, NULL), 1);
	mark = policy_proxy_mark(&proxy);
	free(proxy.direct);
	return mark;
}

static void test_marks(void **state)
{
	const uint64_t marks[] = {
		mark_of(ENVIRONMENT("BOX_PROXY=h:1")),
		mark_of(ENVIRONMENT("BOX_PROXY=h:11")),
		mark_of(ENVIRONMENT("BOX_PROXY=i:1")),
		mark_of(ENVIRONMENT("BOX_PROXY=a@h:1")),
		mark_of(ENVIRONMENT("BOX_PROXY=h:1", "no_proxy=a")),
		mark_of(ENVIRONMENT("BOX_PROXY=h:1", "no_proxy=a,b")),
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
		assert_true(marks[i] != 0);
		for (size_t k = 0; k < i; k++) {
			assert_true(marks[i] != marks[k]);
		}
	}
	assert_true(marks[0] == mark_of(ENVIRONMENT("BOX_PROXY=environment", "http_proxy=h:1")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_which),	     cmocka_unit_test(test_urls),
		cmocka_unit_test(test_bad_urls),     cmocka_unit_test(test_direct),
		cmocka_unit_test(test_long_secrets), cmocka_unit_test(test_marks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
