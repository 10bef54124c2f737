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
#include "policy/name.h"
#include "policy/network.h"

static uint8_t encoded[POLICY_ENCODED_MAX];

static const struct {
	const char *text;
	const char *name;
} good_names[] = {
	{"pypi.org", "pypi.org"},
	{"PyPI.Org.", "pypi.org"},
	{"localhost", "localhost"},
	{"_dmarc.a.b", "_dmarc.a.b"},
	{"xn--bcher-kva.example", "xn--bcher-kva.example"},
	{"1.a", "1.a"},
	{"1.2.3.4.a", "1.2.3.4.a"},
	{"4.3.2.1.in-addr.arpa", "4.3.2.1.in-addr.arpa"},
	{"a.1a", "a.1a"},
	{"a.0y1", "a.0y1"},
	{"a.0xg", "a.0xg"},
	{"0x1.a", "0x1.a"},
	{"a.x0", "a.x0"},
};
/* Spellings of addresses that some resolver, library or browser takes for one. */
static const char *const address_names[] = {
	"127.0.0.1",	"127.1",	 "127.0.1",    "2130706433",
	"0x7f000001",	"0X7F000001",	 "0x7f.1",     "0177.0.0.1",
	"0177.1",	"017700000001",	 "127.0.0.1.", "0",
	"0x",		"0x.",		 "a.0x",       "a.0x7f",
	"a.1",		"a.b.0",	 "1.2.3.4.5",  "256.256.256.256",
	"999999999999", "00000000177.1", "127.0.0.01", "127.0x0.0.1",
	"a.08",
};
static const char *const bad_names[] = {
	"",
	".",
	"a..b",
	".a",
	"a..",
	"a b",
	"a/b",
	"a:80",
	"[::1]",
	"::1",
	"::ffff:127.0.0.1",
	"*.a",
	"a@b",
	"a%2eb",
	"a\tb",
	"a\nb",
	"fe80::1%eth0",
	"127.0.0.1:80",
	"1.2.3.4/8",
	"http://a.b",
	"a,b",
	"a\x7f",
};
/* Letters, digits and dots that some libraries turn into ASCII. */
static const char *const other_letters[] = {
	"b\xc3\xbc"
	"cher.example",
	"\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1",
	"127\xe3\x80\x82"
	"0\xe3\x80\x82"
	"0\xe3\x80\x82"
	"1",
	"\xe2\x91\xa0.0.0.1",
	"pyp\xd1\x96.org",
	"a\xff",
};

static void test_name(void **state)
{
	char name[DNS_NAME_MAX + 1];
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good_names); i++) {
		print_message("# %s\n", good_names[i].text);
		assert_int_equal(policy_name_parse(good_names[i].text, name, NULL), 0);
		assert_string_equal(name, good_names[i].name);
	}
	for (size_t i = 0; i < ARRAY_SIZE(address_names); i++) {
		print_message("# %s\n", address_names[i]);
		assert_int_equal(policy_name_parse(address_names[i], name, &err), -EINVAL);
		assert_non_null(strstr(err.text, "is an address to some"));
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad_names); i++) {
		print_message("# %zu\n", i);
		assert_int_equal(policy_name_parse(bad_names[i], name, &err), -EINVAL);
		assert_non_null(strstr(err.text, "is not a host name"));
	}
	for (size_t i = 0; i < ARRAY_SIZE(other_letters); i++) {
		assert_int_equal(policy_name_parse(other_letters[i], name, &err), -EINVAL);
		assert_non_null(strstr(err.mend, "xn--"));
	}
}

static void test_name_length(void **state)
{
	char text[DNS_NAME_MAX + 3], name[DNS_NAME_MAX + 1];
	struct err err;

	(void)state;
	for (size_t i = 0; i < sizeof(text); i++) {
		text[i] = i % 2 ? '.' : 'a';
	}
	text[DNS_NAME_MAX] = '\0';
	assert_int_equal(policy_name_parse(text, name, &err), 0);
	text[DNS_NAME_MAX] = '.';
	text[DNS_NAME_MAX + 1] = '\0';
	assert_int_equal(policy_name_parse(text, name, &err), 0);
	assert_int_equal(strlen(name), DNS_NAME_MAX);
	text[DNS_NAME_MAX + 1] = 'a';
	text[DNS_NAME_MAX + 2] = '\0';
	assert_int_equal(policy_name_parse(text, name, &err), -EINVAL);
	assert_non_null(strstr(err.text, "longer than 253"));
}

/* A policy of a kind with rules, each "+HOST" to allow, "-HOST" to deny, "=RANGE" to reach. */
static struct policy_network *make(enum policy_kind kind, const char *const *rules)
{
	struct policy_source source = {.kind = kind};
	struct policy_network *policy;
	struct err err = {0};

	assert_int_equal(policy_make(&source, &policy, NULL), 0);
	for (; *rules; rules++) {
		enum policy_action action = **rules == '+'   ? POLICY_ALLOW
					    : **rules == '-' ? POLICY_DENY
							     : POLICY_REACH;

		if (policy_append(policy, action, *rules + 1, &err) != 0) {
			fail_msg("%s: %s", *rules, err.text);
		}
	}
	return policy;
}
#define RULES(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct policy_address address(const char *text)
{
	struct policy_address parsed;

	assert_int_not_equal(policy_address_parse(text, &parsed), -EINVAL);
	return parsed;
}

/* One letter for a verdict: what a table can hold. */
static char letter(struct policy_verdict verdict)
{
	static const char letters[] = {
		[POLICY_BY_RULE] = 'R',	   [POLICY_BY_BRIDGE] = 'B', [POLICY_BY_ADDRESS] = 'A',
		[POLICY_BY_REACH] = 'H',   [POLICY_NO_DENIED] = 'd', [POLICY_NO_RULE] = 'n',
		[POLICY_NO_SPECIAL] = 's', [POLICY_NO_NAME] = 'x',
	};
	char found = letters[verdict.reason];

	/* Upper case is what is allowed. */
	assert_int_equal(verdict.allowed, found >= 'A' && found <= 'Z');
	assert_int_equal(verdict.special != NULL, found == 's');
	return found;
}

struct asked {
	const char *host;
	uint16_t port;
	char verdict;
};

static void check_names(const struct policy_network *policy, const struct asked *asked,
			size_t count)
{
	for (size_t i = 0; i < count; i++) {
		print_message("# %zu\n", i);
		assert_int_equal(letter(policy_decide_name(policy, asked[i].host, asked[i].port)),
				 asked[i].verdict);
	}
}

static void check_literals(const struct policy_network *policy, const struct asked *asked,
			   size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct policy_address parsed = address(asked[i].host);

		print_message("# %zu\n", i);
		assert_int_equal(letter(policy_decide_literal(policy, &parsed, asked[i].port)),
				 asked[i].verdict);
	}
}

static void check_addresses(const struct policy_network *policy, const struct asked *asked,
			    size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct policy_address parsed = address(asked[i].host);

		print_message("# %zu\n", i);
		assert_int_equal(letter(policy_decide_address(policy, &parsed, asked[i].port)),
				 asked[i].verdict);
	}
}

static void test_decide_name(void **state)
{
	static const struct asked asked[] = {
		/* Exactly that name, and two ports. */
		{"pypi.org", 443, 'R'},
		{"pypi.org", 80, 'R'},
		{"PYPI.ORG.", 443, 'R'},
		{"pypi.org", 22, 'n'},
		{"pypi.org", 8443, 'n'},
		{"www.pypi.org", 443, 'n'},
		{"org", 443, 'n'},
		{"xpypi.org", 443, 'n'},
		{"pypi.org.evil.com", 443, 'n'},
		/* One port. */
		{"github.com", 22, 'R'},
		{"github.com", 443, 'n'},
		/* Below, at any depth; never the name itself. */
		{"cdn.pythonhosted.org", 443, 'R'},
		{"a.b.pythonhosted.org", 443, 'R'},
		{"pythonhosted.org", 443, 'n'},
		{"evilpythonhosted.org", 443, 'n'},
		{"cdn.pythonhosted.org", 80, 'n'},
		/* Deny wins, on all ports or on its own. */
		{"bad.pythonhosted.org", 443, 'd'},
		{"bad.pythonhosted.org", 22, 'd'},
		{"x.bad.pythonhosted.org", 443, 'R'},
		{"part.example.com", 80, 'd'},
		{"part.example.com", 443, 'R'},
		/* No name. */
		{"127.1", 443, 'x'},
		{"1.1.1.1", 443, 'x'},
		{"[::1]", 443, 'x'},
		{"0x7f000001", 443, 'x'},
		{"", 443, 'x'},
		{"pypi.org\n", 443, 'x'},
		/* To be asked for at all. */
		{"pypi.org", 0, 'R'},
		{"github.com", 0, 'R'},
		{"a.pythonhosted.org", 0, 'R'},
		{"bad.pythonhosted.org", 0, 'd'},
		{"part.example.com", 0, 'R'},
		{"whole.example.com", 0, 'n'},
		{"evil.com", 0, 'n'},
		{"127.1", 0, 'x'},
	};
	_cleanup_free_ struct policy_network *policy =
		make(POLICY_LIST,
		     RULES("-bad.pythonhosted.org", "+PyPI.org", "+github.com:22",
			   "+*.pythonhosted.org:443", "+*.example.com", "-part.example.com:80",
			   "-whole.example.com:80", "-whole.example.com:443", "+1.1.1.1"));

	(void)state;
	check_names(policy, asked, ARRAY_SIZE(asked));
}

static void test_decide_literal(void **state)
{
	static const struct asked asked[] = {
		{"1.1.1.1", 53, 'R'},
		{"1.1.1.1", 443, 'n'},
		{"1.1.1.2", 53, 'n'},
		{"9.9.9.255", 443, 'R'},
		{"9.9.9.255", 80, 'R'},
		{"9.9.9.255", 22, 'n'},
		{"9.9.9.9", 443, 'd'},
		{"2606:4700::1111", 443, 'R'},
		{"2606:4700::1111", 80, 'n'},
		/* Listed, but special, and opened or not. */
		{"10.0.0.1", 443, 's'},
		{"192.168.1.5", 443, 'R'},
		{"192.168.2.5", 443, 's'},
		{"127.0.0.1", 443, 'n'},
		/* A second spelling of something that is listed is not. */
		{"::ffff:1.1.1.1", 53, 'n'},
		{"64:ff9b::101:101", 53, 'n'},
	};
	_cleanup_free_ struct policy_network *policy =
		make(POLICY_LIST,
		     RULES("+1.1.1.1:53", "+9.9.9.0/24", "-9.9.9.9", "+[2606:4700::/32]:443",
			   "+10.0.0.1", "+192.168.0.0/16", "=192.168.1.0/24", "+pypi.org"));

	(void)state;
	check_literals(policy, asked, ARRAY_SIZE(asked));
}

static void test_decide_address(void **state)
{
	static const struct asked asked[] = {
		{"151.101.0.223", 443, 'A'},
		{"2a04:4e42::223", 443, 'A'},
		/* What a name must never lead to. */
		{"127.0.0.1", 443, 's'},
		{"0.0.0.0", 443, 's'},
		{"169.254.169.254", 80, 's'},
		{"168.63.129.16", 80, 's'},
		{"::1", 443, 's'},
		{"::", 443, 's'},
		{"::ffff:127.0.0.1", 443, 's'},
		{"::ffff:8.8.8.8", 443, 's'},
		{"::127.0.0.1", 443, 's'},
		{"64:ff9b:1::7f00:1", 443, 's'},
		{"2002:7f00:1::", 443, 's'},
		{"2001:0:7f00:1::80ff:fffe", 443, 's'},
		{"fd00:ec2::254", 80, 's'},
		{"fe80::1", 80, 's'},
		{"4000::1", 80, 's'},
		/* Public by itself, carrying what is not. */
		{"2a00:1450::5efe:7f00:1", 443, 's'},
		{"2a00:1450::5efe:808:808", 443, 'A'},
		/* Opened: only what is in the range, and only when what it carries is public or
		   opened. */
		{"10.1.0.1", 443, 'H'},
		{"10.2.0.1", 443, 's'},
		{"64:ff9b::808:808", 443, 'H'},
		{"64:ff9b::a01:1", 443, 'H'},
		{"64:ff9b::a02:1", 443, 's'},
		{"64:ff9b::7f00:1", 443, 's'},
		{"2a00:1450::5efe:a01:1", 443, 'A'},
		{"::ffff:10.1.0.1", 443, 's'},
		/* Denied, also where it is carried. */
		{"8.8.4.4", 443, 'd'},
		{"8.8.4.4", 53, 'd'},
		{"64:ff9b::808:404", 443, 'd'},
		{"10.1.9.9", 443, 'd'},
		{"10.1.9.9", 80, 'H'},
		{"2001:4860::1", 443, 'd'},
		/* Both that Teredo carries must be public. */
		{"2001:0:808:808::f7f7:f7f7", 443, 'H'},
		{"2001:0:808:808::f5ff:fffd", 443, 's'},
		{"2001:0:a00:1::f7f7:f7f7", 443, 's'},
		/* In an opened range, and yet not to be reached by anybody. */
		{"240.0.0.1", 443, 'H'},
		{"255.255.255.255", 443, 's'},
	};
	_cleanup_free_ struct policy_network *policy =
		make(POLICY_LIST,
		     RULES("+pypi.org", "=10.1.0.0/16", "=64:ff9b::/96", "-8.8.4.0/24",
			   "-10.1.9.9:443", "-[2001:4860::/32]", "=2001::/32", "=240.0.0.0/4"));

	(void)state;
	check_addresses(policy, asked, ARRAY_SIZE(asked));
}

static void test_bridge(void **state)
{
	static const struct asked names[] = {
		{"pypi.org", 443, 'B'}, {"pypi.org", 25, 'B'}, {"evil.com", 443, 'd'},
		{"evil.com", 0, 'd'},	{"a.b", 0, 'B'},       {"part.com", 25, 'd'},
		{"part.com", 0, 'B'},	{"127.1", 80, 'x'},
	};
	static const struct asked literals[] = {
		{"1.1.1.1", 25, 'B'},	    {"2606:4700::1111", 1, 'B'}, {"127.0.0.1", 80, 's'},
		{"10.0.0.1", 80, 'B'},	    {"10.9.0.1", 80, 'd'},	 {"9.9.9.9", 80, 'd'},
		{"::ffff:1.1.1.1", 1, 's'},
	};
	_cleanup_free_ struct policy_network *policy =
		make(POLICY_BRIDGE,
		     RULES("-evil.com", "-part.com:25", "=10.0.0.0/8", "-10.9.0.0/16", "-9.9.9.9"));

	(void)state;
	check_names(policy, names, ARRAY_SIZE(names));
	check_literals(policy, literals, ARRAY_SIZE(literals));
}

static void test_none(void **state)
{
	static const struct asked nothing[] = {{"1.1.1.1", 443, 'n'}, {"127.0.0.1", 443, 'n'}};
	static const struct asked name[] = {{"pypi.org", 443, 'n'}, {"pypi.org", 0, 'n'}};
	_cleanup_free_ struct policy_network *policy = make(POLICY_NONE, RULES("=127.0.0.0/8"));

	(void)state;
	check_names(policy, name, ARRAY_SIZE(name));
	check_literals(policy, nothing, ARRAY_SIZE(nothing));
	check_addresses(policy, nothing, ARRAY_SIZE(nothing));
	/* Widened, it is a list; narrowed again, it is what it was. */
	assert_int_equal(policy_append(policy, POLICY_ALLOW, "pypi.org", NULL), 0);
	assert_int_equal(letter(policy_decide_name(policy, "pypi.org", 443)), 'R');
	assert_int_equal(letter(policy_decide_name(policy, "a.b", 443)), 'n');
	assert_int_equal(policy_append(policy, POLICY_DENY, "pypi.org", NULL), 0);
	assert_int_equal(letter(policy_decide_name(policy, "pypi.org", 443)), 'd');
	assert_int_equal(policy_append(policy, POLICY_ALLOW, "pypi.org:443", NULL), 0);
	assert_int_equal(letter(policy_decide_name(policy, "pypi.org", 443)), 'd');
}

/* What is read, and how it is written. */
static const char *const good_rules[][2] = {
	{"+pypi.org", "pypi.org"},
	{"+PYPI.org.", "pypi.org"},
	{"+pypi.org:443", "pypi.org:443"},
	{"-*.A.b:1", "*.a.b:1"},
	{"+1.2.3.4", "1.2.3.4"},
	{"+1.2.3.4/32:80", "1.2.3.4:80"},
	{"+1.2.3.0/24", "1.2.3.0/24"},
	{"+0.0.0.0/0:65535", "0.0.0.0/0:65535"},
	{"-[2001:db8::1]", "[2001:db8::1]"},
	{"-[2001:db8::/32]:53", "[2001:db8::/32]:53"},
	{"=10.0.0.0/8", "10.0.0.0/8"},
	{"=fc00::/7", "fc00::/7"},
	{"=127.0.0.1/32", "127.0.0.1"},
};
/* What is refused, and what the text or mend says. */
static const char *const bad_rules[][2] = {
	{"+", "is not a host"},
	{"+:443", "is not a host"},
	{"+*", "is not a host name"},
	{"+*.", "is not a host name"},
	{"+*.*.a", "is not a host name"},
	{"+a.*.b", "is not a host name"},
	{"+a*.b", "is not a host name"},
	{"+*.1", "an address to some"},
	{"+*.1.2.3.4", "an address to some"},
	{"+a.b:", "is not a host"},
	{"+a.b:0", "is not a host"},
	{"+a.b:080", "is not a host"},
	{"+a.b:65536", "is not a host"},
	{"+a.b:*", "is not a host"},
	{"+a.b:80-90", "is not a host"},
	{"+a.b:80:80", "is not a host"},
	{"+http://a.b", "is not a host"},
	{"+a.b/c", "is not a host"},
	{"+127.1", "is not a host"},
	{"+0177.0.0.1", "is not a host"},
	{"+0x7f000001", "an address to some"},
	{"+2130706433", "is not a host"},
	{"+1.2.3.4/24", "write 1.2.3.0/24"},
	{"+1.2.3.4/33", "is not a host"},
	{"+::1", "IPv6 one in brackets"},
	{"+2001:db8::1", "IPv6 one in brackets"},
	{"+[::1", "is not a host"},
	{"+[::1]x", "is not a host"},
	{"+[::1]:", "is not a host"},
	{"+[1.2.3.4]", "is not a host"},
	{"+[a.b]", "is not a host"},
	{"+[fe80::1%1]", "is not a host"},
	{"+[2001:DB8::1]", "write [2001:db8::1]"},
	{"+[2001:db8::1/32]", "write [2001:db8::/32]"},
	{"+[]", "is not a host"},
	{"+b\xc3\xbc"
	 "cher.example",
	 "xn--"},
	{"+a b", "is not a host name"},
	{"=a.b", "is not a host"},
	{"=10.0.0.0/8:80", "is not a host"},
	{"=[fc00::/7]", "is not a host"},
	{"=10.1.0.0/8", "write 10.0.0.0/8"},
	{"=FC00::/7", "write fc00::/7"},
	{"=0.0.0.0/0", "does not lie in one reserved range"},
	{"=::/0", "does not lie in one reserved range"},
	{"=8.8.8.8", "does not lie in one reserved range"},
	{"=0.0.0.0/8", "no rule can open"},
	{"=224.0.0.0/4", "no rule can open"},
	{"=::ffff:127.0.0.1", "no rule can open"},
};

static void test_rules(void **state)
{
	char text[POLICY_RULE_TEXT];
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good_rules); i++) {
		_cleanup_free_ struct policy_network *policy =
			make(POLICY_LIST, RULES(good_rules[i][0]));

		print_message("# %s\n", good_rules[i][0]);
		policy_rule_format(&policy->rules[0], text);
		assert_string_equal(text, good_rules[i][1]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad_rules); i++) {
		_cleanup_free_ struct policy_network *policy = make(POLICY_NONE, RULES(NULL));
		char first = bad_rules[i][0][0];

		print_message("# %zu %s\n", i, bad_rules[i][1]);
		assert_int_equal(policy_append(policy, first == '+' ? POLICY_ALLOW : POLICY_REACH,
					       bad_rules[i][0] + 1, &err),
				 -EINVAL);
		assert_int_equal(policy->rule_count, 0);
		assert_int_equal(policy->kind, POLICY_NONE);
		if (!strstr(err.text, bad_rules[i][1]) && !strstr(err.mend, bad_rules[i][1])) {
			fail_msg("%s: %s; %s", bad_rules[i][0], err.text, err.mend);
		}
	}
}

static void test_rule_longest(void **state)
{
	char host[DNS_NAME_MAX + 16] = "*.", text[POLICY_RULE_TEXT];
	_cleanup_free_ struct policy_network *policy = make(POLICY_LIST, RULES(NULL));

	(void)state;
	for (size_t i = 0; i < DNS_NAME_MAX; i++) {
		host[2 + i] = i % 2 ? '.' : 'a';
	}
	memcpy(host + 2 + DNS_NAME_MAX, ":65535", 7);
	assert_int_equal(policy_append(policy, POLICY_ALLOW, host, NULL), 0);
	policy_rule_format(&policy->rules[0], text);
	assert_string_equal(text, host);
	/* Far too long for any buffer on the way. */
	memset(host, 'a', sizeof(host) - 1);
	host[sizeof(host) - 1] = '\0';
	assert_int_equal(policy_append(policy, POLICY_ALLOW, host, NULL), -EINVAL);
}

static void test_make(void **state)
{
	static const char *const allow[] = {"pypi.org", "a.b:1"};
	static const char *const deny[] = {"x.a.b"};
	static const char *const reach[] = {"10.0.0.0/8"};
	static const char *const wrong[] = {"10.0.0.0/8", "127.1"};
	struct policy_source source = {.kind = POLICY_LIST,
				       .allow = allow,
				       .allow_count = 2,
				       .deny = deny,
				       .deny_count = 1,
				       .reach = reach,
				       .reach_count = 1,
				       .connections_max = 5,
				       .bytes_max = 6};
	struct policy_network *policy = NULL;
	struct err err = {0};

	(void)state;
	assert_int_equal(policy_make(&source, &policy, &err), 0);
	assert_int_equal(policy->rule_count, 4);
	assert_int_equal(policy->rules[0].action, POLICY_ALLOW);
	assert_int_equal(policy->rules[2].action, POLICY_DENY);
	assert_int_equal(policy->rules[3].action, POLICY_REACH);
	assert_int_equal(policy->connections_max, 5);
	assert_int_equal(policy->bytes_max, 6);
	free(policy);
	policy = NULL;
	source.reach = wrong;
	source.reach_count = 2;
	assert_int_equal(policy_make(&source, &policy, &err), -EINVAL);
	assert_null(policy);
	assert_non_null(strstr(err.text, "network: reach: \"127.1\""));
}

static void test_full(void **state)
{
	_cleanup_free_ struct policy_network *policy = make(POLICY_LIST, RULES(NULL));
	struct err err = {0};
	char text[32];

	(void)state;
	for (unsigned i = 0; i < POLICY_RULES_MAX; i++) {
		snprintf(text, sizeof(text), "a%u.b", i);
		assert_int_equal(policy_append(policy, POLICY_ALLOW, text, &err), 0);
	}
	assert_int_equal(policy_append(policy, POLICY_ALLOW, "a.b", &err), -E2BIG);
	assert_int_equal(policy->rule_count, POLICY_RULES_MAX);
	assert_int_equal(letter(policy_decide_name(policy, "a4095.b", 443)), 'R');
	assert_int_equal(letter(policy_decide_name(policy, "a.b", 443)), 'n');
	assert_true(policy_encode(policy, encoded) < POLICY_ENCODED_MAX);
}

static void test_describe(void **state)
{
	_cleanup_free_ struct policy_network *policy =
		make(POLICY_LIST, RULES("+pypi.org", "-*.evil.com", "=10.0.0.0/8"));
	struct policy_address private = address("10.0.0.1"), local = address("127.0.0.1");
	struct policy_address public = address("1.1.1.1");
	char line[POLICY_VERDICT_TEXT];
	struct policy_verdict verdict;

	(void)state;
	verdict = policy_decide_name(policy, "pypi.org", 443);
	policy_verdict_describe(&verdict, "pypi.org:443", line, sizeof(line));
	assert_string_equal(line, "\"pypi.org:443\" allowed by pypi.org");
	verdict = policy_decide_name(policy, "a.evil.com", 443);
	policy_verdict_describe(&verdict, "a.evil.com:443", line, sizeof(line));
	assert_string_equal(line, "\"a.evil.com:443\" denied by *.evil.com");
	verdict = policy_decide_name(policy, "a.b", 443);
	policy_verdict_describe(&verdict, "a.b\n", line, sizeof(line));
	assert_string_equal(line, "\"a.b\\n\" denied: no rule allows it");
	verdict = policy_decide_name(policy, "127.1", 443);
	policy_verdict_describe(&verdict, "127.1", line, sizeof(line));
	assert_string_equal(line, "\"127.1\" denied: it is not a host name");
	verdict = policy_decide_address(policy, &local, 443);
	policy_verdict_describe(&verdict, "127.0.0.1", line, sizeof(line));
	assert_string_equal(line, "\"127.0.0.1\" denied: it is reserved, loopback");
	verdict = policy_decide_address(policy, &private, 443);
	policy_verdict_describe(&verdict, "10.0.0.1", line, sizeof(line));
	assert_string_equal(line, "\"10.0.0.1\" allowed by reach 10.0.0.0/8");
	verdict = policy_decide_address(policy, &public, 443);
	policy_verdict_describe(&verdict, "1.1.1.1", line, sizeof(line));
	assert_string_equal(line, "\"1.1.1.1\" allowed: the address is public");
	/* No room is no harm. */
	policy_verdict_describe(&verdict, "1.1.1.1", line, 5);
	assert_string_equal(line, "\"1.1");
}

static void test_encode(void **state)
{
	_cleanup_free_ struct policy_network *policy =
		make(POLICY_LIST, RULES("+pypi.org", "+*.a.b:443", "-[2001:4860::/32]",
					"+1.1.1.0/24:53", "=fc00::/7", "-x.a.b:80"));
	_cleanup_free_ struct policy_network *back = NULL;
	struct policy_network *none = NULL;
	uint8_t *copy;
	size_t size;

	(void)state;
	policy->connections_max = 12;
	policy->bytes_max = UINT64_MAX;
	size = policy_encode(policy, encoded);
	assert_int_equal(policy_decode(encoded, size, &back), 0);
	assert_memory_equal(back, policy, offsetof(struct policy_network, rules));
	assert_memory_equal(back->rules, policy->rules,
			    policy->rule_count * sizeof(policy->rules[0]));
	/* At no other size. */
	for (size_t i = 0; i < size; i++) {
		copy = malloc(i > 0 ? i : 1);
		assert_non_null(copy);
		memcpy(copy, encoded, i);
		assert_int_equal(policy_decode(copy, i, &none), -EBADMSG);
		free(copy);
	}
	assert_int_equal(policy_decode(encoded, size + 1, &none), -EBADMSG);
	/* Magic, version, kind, count, and a rule's action. */
	for (size_t i = 0; i < 28; i++) {
		if (i >= 7 && i < 23) {
			continue;
		}
		encoded[i] ^= 0x40;
		assert_int_equal(policy_decode(encoded, size, &none), -EBADMSG);
		encoded[i] ^= 0x40;
	}
	/* Another spelling of the first rule, and one that is none. */
	encoded[32] = 'P';
	assert_int_equal(policy_decode(encoded, size, &none), -EBADMSG);
	encoded[32] = '/';
	assert_int_equal(policy_decode(encoded, size, &none), -EBADMSG);
	encoded[32] = 'p';
	/* "none" with a rule that allows. */
	encoded[6] = POLICY_NONE;
	assert_int_equal(policy_decode(encoded, size, &none), -EBADMSG);
	encoded[6] = POLICY_BRIDGE;
	assert_int_equal(policy_decode(encoded, size, &none), 0);
	assert_int_equal(none->kind, POLICY_BRIDGE);
	free(none);
}

static void test_learn(void **state)
{
	static const struct policy_seen seen[] = {
		{"pypi.org", 443},  {"a.b", 80},
		{"pypi.org", 443},  {"PyPI.org.", 443},
		{"a.b", 443},	    {"a.b", 80},
		{"github.com", 22}, {"github.com", 443},
		{"a.b", 443},	    {"c.d", 8443},
		{"c.d", 443},	    {"c.d", 80},
		{"c.d", 100},	    {"1.1.1.1", 443},
		{"e.f", 80},	    {"2606:4700::1111", 53},
		{"127.1", 443},	    {"x y", 443},
		{"pypi.org", 0},    {"cdn.pythonhosted.org", 443},
	};
	static const char *const learned[] = {
		"1.1.1.1:443",
		"[2606:4700::1111]:53",
		"a.b",
		"c.d",
		"c.d:100",
		"c.d:8443",
		"cdn.pythonhosted.org:443",
		"e.f:80",
		"github.com:22",
		"github.com:443",
		"pypi.org:443",
	};
	_cleanup_free_ struct policy_network *policy = NULL;
	char text[POLICY_RULE_TEXT];
	size_t skipped;

	(void)state;
	assert_int_equal(policy_learn(seen, ARRAY_SIZE(seen), &policy, &skipped, NULL), 0);
	assert_int_equal(skipped, 3);
	assert_int_equal(policy->kind, POLICY_LIST);
	assert_int_equal(policy->rule_count, ARRAY_SIZE(learned));
	for (size_t i = 0; i < ARRAY_SIZE(learned); i++) {
		policy_rule_format(&policy->rules[i], text);
		assert_string_equal(text, learned[i]);
		assert_int_equal(policy->rules[i].action, POLICY_ALLOW);
	}
	/* What was seen is allowed. */
	for (size_t i = 0; i < ARRAY_SIZE(seen); i++) {
		struct policy_address literal;

		if (seen[i].port == 0 || strcmp(seen[i].host, "127.1") == 0 ||
		    strcmp(seen[i].host, "x y") == 0) {
			continue;
		}
		assert_true(
			policy_address_parse(seen[i].host, &literal) == 0
				? policy_decide_literal(policy, &literal, seen[i].port).allowed
				: policy_decide_name(policy, seen[i].host, seen[i].port).allowed);
	}
}

static void test_learn_limits(void **state)
{
	static struct policy_seen seen[POLICY_LEARNED_MAX + 1];
	static char names[POLICY_LEARNED_MAX + 1][16];
	struct policy_network *policy = NULL;
	struct err err = {0};
	size_t skipped;

	(void)state;
	assert_int_equal(policy_learn(NULL, 0, &policy, &skipped, &err), 0);
	assert_int_equal(policy->rule_count, 0);
	assert_int_equal(policy->kind, POLICY_NONE);
	free(policy);
	for (unsigned i = 0; i <= POLICY_LEARNED_MAX; i++) {
		snprintf(names[i], sizeof(names[i]), "a%u.b", i);
		seen[i] = (struct policy_seen){names[i], 443};
	}
	assert_int_equal(policy_learn(seen, POLICY_LEARNED_MAX, &policy, &skipped, &err), 0);
	assert_int_equal(policy->rule_count, POLICY_LEARNED_MAX);
	free(policy);
	policy = NULL;
	assert_int_equal(policy_learn(seen, POLICY_LEARNED_MAX + 1, &policy, &skipped, &err),
			 -E2BIG);
	assert_int_equal(policy_learn(seen, POLICY_SEEN_MAX + 1, &policy, &skipped, &err), -E2BIG);
	assert_null(policy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_name),	       cmocka_unit_test(test_name_length),
		cmocka_unit_test(test_decide_name),    cmocka_unit_test(test_decide_literal),
		cmocka_unit_test(test_decide_address), cmocka_unit_test(test_bridge),
		cmocka_unit_test(test_none),	       cmocka_unit_test(test_rules),
		cmocka_unit_test(test_rule_longest),   cmocka_unit_test(test_make),
		cmocka_unit_test(test_full),	       cmocka_unit_test(test_describe),
		cmocka_unit_test(test_encode),	       cmocka_unit_test(test_learn),
		cmocka_unit_test(test_learn_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
