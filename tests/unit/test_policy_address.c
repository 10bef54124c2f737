#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "policy/address.h"

static struct policy_address address(const char *text)
{
	struct policy_address parsed;

	if (policy_address_parse(text, &parsed) != 0) {
		fail_msg("%s is not taken", text);
	}
	return parsed;
}

static const char *special(const char *text)
{
	struct policy_address parsed = address(text);
	const struct policy_special *found = policy_address_special(&parsed);

	return found ? found->name : "public";
}

static const char *const good[] = {
	"0.0.0.0",	 "1.2.3.4",	  "255.255.255.255",  "::",
	"::1",		 "2001:db8::1",	  "2001:db8:0:1::1",  "1:2:3:4:5:6:7:8",
	"fe80::1:2:3:4", "64:ff9b::1",	  "::ffff:127.0.0.1", "2001:0:0:1::1",
	"1::",		 "::2:3:4:5:6:7", "1:2:3:4:5:6:7:0",
};
/* Every spelling of an address that anything takes, but the canonical one. */
static const char *const odd[] = {
	"2001:DB8::1",
	"2001:0db8::1",
	"2001:db8:0:0:0:0:0:1",
	"2001:db8::0:1",
	"2001:db8:0:1:0:0:0:1",
	"::0",
	"0::1",
	"::ffff:7f00:1",
	"::FFFF:127.0.0.1",
	"0:0:0:0:0:0:0:0",
	"2001:db8::1.2.3.4",
};
static const char *const bad[] = {
	"",
	" 1.2.3.4",
	"1.2.3.4 ",
	"1.2.3",
	"127.1",
	"1.2.3.4.",
	"1.2.3.4.5",
	"1.2.3.256",
	"01.2.3.4",
	"1.2.3.04",
	"0x7f000001",
	"0x7f.0.0.1",
	"0177.0.0.1",
	"2130706433",
	"1.2.3.-4",
	"+1.2.3.4",
	"1.2.3.0x4",
	"[::1]",
	"::1]",
	"fe80::1%eth0",
	"fe80::1%1",
	"::1/128",
	"1.2.3.4/32",
	":::",
	"1::2::3",
	"1:2:3:4:5:6:7",
	":1",
	"1:2:3:4:5:6:7:8:9",
	"12345::",
	"g::1",
	"::1.2.3",
	"::1.2.3.04",
	"1.2.3.4:80",
	"localhost",
	"a.b",
	"1.2.3.4\n",
	"\xef\xbc\x91.1.1.1",
};

static void test_parse(void **state)
{
	struct policy_address parsed;
	char text[POLICY_ADDRESS_TEXT];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		print_message("# %s\n", good[i]);
		assert_int_equal(policy_address_parse(good[i], &parsed), 0);
		policy_address_format(&parsed, text);
		assert_string_equal(text, good[i]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(odd); i++) {
		print_message("# %s\n", odd[i]);
		assert_int_equal(policy_address_parse(odd[i], &parsed), -ENOTUNIQ);
		policy_address_format(&parsed, text);
		assert_int_equal(policy_address_parse(text, &parsed), 0);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		print_message("# %zu\n", i);
		assert_int_equal(policy_address_parse(bad[i], &parsed), -EINVAL);
	}
	parsed = address("1.2.3.4");
	assert_memory_equal(&parsed, (&(struct policy_address){4, {1, 2, 3, 4}}), sizeof(parsed));
}

static void test_range(void **state)
{
	/* What is read, what comes back, and what is written. */
	static const struct {
		const char *text;
		int rc;
		const char *written;
	} cases[] = {
		{"10.0.0.0/8", 0, "10.0.0.0/8"},
		{"0.0.0.0/0", 0, "0.0.0.0/0"},
		{"10.1.2.3", 0, "10.1.2.3"},
		{"10.1.2.3/32", 0, "10.1.2.3"},
		{"::/0", 0, "::/0"},
		{"fc00::/7", 0, "fc00::/7"},
		{"2001:db8::1/128", 0, "2001:db8::1"},
		{"10.1.0.0/8", -ENOTUNIQ, "10.0.0.0/8"},
		{"10.0.0.1/31", -ENOTUNIQ, "10.0.0.0/31"},
		{"FC00::/7", -ENOTUNIQ, "fc00::/7"},
		{"fe00::/7", 0, "fe00::/7"},
		{"ff00::/7", -ENOTUNIQ, "fe00::/7"},
		{"10.0.0.0/33", -EINVAL, NULL},
		{"::/129", -EINVAL, NULL},
		{"::/256", -EINVAL, NULL},
		{"10.0.0.0/", -EINVAL, NULL},
		{"10.0.0.0/08", -EINVAL, NULL},
		{"10.0.0.0/-8", -EINVAL, NULL},
		{"10.0.0.0/8 ", -EINVAL, NULL},
		{"10.0.0.0/8/8", -EINVAL, NULL},
		{"10.0.0.0/255.0.0.0", -EINVAL, NULL},
		{"10/8", -EINVAL, NULL},
		{"/8", -EINVAL, NULL},
		{"fe80::%1/10", -EINVAL, NULL},
		{"1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa/8", -EINVAL, NULL},
	};
	struct policy_range range;
	char text[POLICY_RANGE_TEXT];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		print_message("# %s\n", cases[i].text);
		assert_int_equal(policy_range_parse(cases[i].text, &range), cases[i].rc);
		if (cases[i].written) {
			policy_range_format(&range, text);
			assert_string_equal(text, cases[i].written);
		}
	}
}

static void test_contains(void **state)
{
	static const struct {
		const char *range;
		const char *inside;
		const char *outside;
	} cases[] = {
		{"10.0.0.0/8", "10.255.255.255", "11.0.0.0"},
		{"10.0.0.0/8", "10.0.0.0", "9.255.255.255"},
		{"172.16.0.0/12", "172.31.255.255", "172.32.0.0"},
		{"0.0.0.0/0", "255.255.255.255", "::"},
		{"::/0", "ffff::", "0.0.0.0"},
		{"1.2.3.4", "1.2.3.4", "1.2.3.5"},
		{"128.0.0.0/1", "128.0.0.0", "127.255.255.255"},
		{"fc00::/7", "fdff::1", "fe00::"},
		{"2001:db8::1", "2001:db8::1", "2001:db8::2"},
		{"2001:db8::/127", "2001:db8::1", "2001:db8::2"},
		/* An IPv4 range does not take in what carries such an address. */
		{"127.0.0.0/8", "127.0.0.1", "::ffff:127.0.0.1"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct policy_address inside = address(cases[i].inside);
		struct policy_address outside = address(cases[i].outside);
		struct policy_range range;

		assert_int_equal(policy_range_parse(cases[i].range, &range), 0);
		assert_true(policy_range_contains(&range, &inside));
		assert_false(policy_range_contains(&range, &outside));
	}
}

/* Both ends of each range, and what lies right before and behind. */
static const struct {
	const char *before;
	const char *first;
	const char *last;
	const char *behind;
	const char *name;
} ranges[] = {
	{NULL, "0.0.0.0", "0.255.255.255", "1.0.0.0", "this network"},
	{"9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0", "private use"},
	{"100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0", "shared address space"},
	{"126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0", "loopback"},
	{"169.253.255.255", "169.254.0.0", "169.254.255.255", "169.255.0.0", "link-local"},
	{"172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0", "private use"},
	{"191.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.1.0", "IETF protocol assignments"},
	{"192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0", "documentation"},
	{"192.31.195.255", "192.31.196.0", "192.31.196.255", "192.31.197.0", "AS112"},
	{"192.52.192.255", "192.52.193.0", "192.52.193.255", "192.52.194.0", "AMT"},
	{"192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0", "6to4 relay"},
	{"192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0", "private use"},
	{"192.175.47.255", "192.175.48.0", "192.175.48.255", "192.175.49.0", "AS112"},
	{"198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0", "benchmarking"},
	{"198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0", "documentation"},
	{"203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0", "documentation"},
	{"168.63.129.15", "168.63.129.16", "168.63.129.16", "168.63.129.17",
	 "a cloud's host service"},
	{"223.255.255.255", "224.0.0.0", "239.255.255.255", NULL, "multicast"},
	{NULL, "240.0.0.0", "255.255.255.254", NULL, "reserved"},
	{NULL, "255.255.255.255", "255.255.255.255", NULL, "broadcast"},
	{NULL, "::", "::", NULL, "unspecified"},
	{NULL, "::1", "::1", NULL, "loopback"},
	{NULL, "::2", "::255.255.255.255", NULL, "IPv4-compatible"},
	{NULL, "::ffff:0.0.0.0", "::ffff:255.255.255.255", NULL, "IPv4-mapped"},
	{NULL, "::ffff:0:0:0", "::ffff:0:ffff:ffff", NULL, "IPv4-translated"},
	{NULL, "64:ff9b::", "64:ff9b::ffff:ffff", NULL, "NAT64"},
	{NULL, "64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", NULL, "local NAT64"},
	{NULL, "100::", "100::ffff:ffff:ffff:ffff", NULL, "discard-only"},
	{NULL, "100:0:0:1::", "100::1:ffff:ffff:ffff:ffff", NULL, "dummy prefix"},
	{NULL, "2001::", "2001:0:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "Teredo"},
	{NULL, "2001:1::", "2001:1:ffff:ffff:ffff:ffff:ffff:ffff", NULL,
	 "IETF protocol assignments"},
	{NULL, "2001:2::", "2001:2:0:ffff:ffff:ffff:ffff:ffff", NULL, "benchmarking"},
	{NULL, "2001:3::", "2001:3:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "AMT"},
	{NULL, "2001:4:112::", "2001:4:112:ffff:ffff:ffff:ffff:ffff", NULL, "AS112"},
	{NULL, "2001:10::", "2001:1f:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "ORCHID"},
	{NULL, "2001:20::", "2001:2f:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "ORCHIDv2"},
	{NULL, "2001:30::", "2001:3f:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "drone remote ID"},
	{NULL, "2001:40::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff",
	 "2001:200::", "IETF protocol assignments"},
	{"2001:db7:ffff:ffff:ffff:ffff:ffff:ffff",
	 "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db9::", "documentation"},
	{"2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	 "2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2003::", "6to4"},
	{"2620:4f:7fff:ffff:ffff:ffff:ffff:ffff",
	 "2620:4f:8000::", "2620:4f:8000:ffff:ffff:ffff:ffff:ffff", "2620:4f:8001::", "AS112"},
	{"3ffd:ffff::", "3ffe::", "3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "6bone"},
	{NULL, "3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", "3fff:1000::", "documentation"},
	{NULL, "5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "segment routing"},
	{NULL, "fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "unique local"},
	{NULL, "fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "link-local"},
	{NULL, "fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "site-local"},
	{NULL, "ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", NULL, "multicast"},
	/* What was never given out: up to 2000::, and behind 3fff. */
	{NULL, "200::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2000::", "not given out"},
	{"3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "4000::", "5eff::", NULL, "not given out"},
	{NULL, "5f01::", "fbff::", NULL, "not given out"},
	{NULL, "6000::", "7fff::", NULL, "not given out"},
	{NULL, "fe00::", "fe7f::", NULL, "not given out"},
};
/* Where clouds keep their metadata. */
static const char *const metadata[] = {"169.254.169.254", "169.254.170.2",   "fd00:ec2::254",
				       "fd20:ce::254",	  "100.100.100.200", "192.0.0.192",
				       "168.63.129.16"};

static void test_special(void **state)
{

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
		print_message("# %s\n", ranges[i].first);
		assert_string_equal(special(ranges[i].first), ranges[i].name);
		assert_string_equal(special(ranges[i].last), ranges[i].name);
		if (ranges[i].before) {
			assert_string_equal(special(ranges[i].before), "public");
		}
		if (ranges[i].behind) {
			assert_string_equal(special(ranges[i].behind), "public");
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(metadata); i++) {
		assert_string_not_equal(special(metadata[i]), "public");
	}
	assert_string_equal(special("1.1.1.1"), "public");
	assert_string_equal(special("2606:4700:4700::1111"), "public");
	assert_string_equal(special("2a00:1450::5efe:808:808"), "public");
}

static void test_range_special(void **state)
{
	static const struct {
		const char *range;
		const char *name;
		bool reachable;
	} cases[] = {
		{"10.0.0.0/8", "private use", true},
		{"10.1.2.3", "private use", true},
		{"127.0.0.1", "loopback", true},
		{"::1", "loopback", true},
		{"fc00::/7", "unique local", true},
		{"fd12:3456::/32", "unique local", true},
		{"2001::/23", "IETF protocol assignments", true},
		{"240.0.0.0/4", "reserved", true},
		{"64:ff9b::/96", "NAT64", true},
		{"0.0.0.0/8", "this network", false},
		{"224.0.0.0/4", "multicast", false},
		{"255.255.255.255", "broadcast", false},
		{"ff02::/16", "multicast", false},
		{"::ffff:0.0.0.0/96", "IPv4-mapped", false},
		{"::127.0.0.0/104", "IPv4-compatible", false},
		/* In no single range, or in one that was not given out. */
		{"0.0.0.0/0", NULL, false},
		{"10.0.0.0/7", NULL, false},
		{"172.0.0.0/8", NULL, false},
		{"8.8.8.8", NULL, false},
		{"::/0", NULL, false},
		{"8000::/1", NULL, false},
		{"4000::/3", NULL, false},
		{"2000::/3", NULL, false},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct policy_special *found;
		struct policy_range range;

		print_message("# %s\n", cases[i].range);
		assert_int_equal(policy_range_parse(cases[i].range, &range), 0);
		found = policy_range_special(&range);
		assert_int_equal(found != NULL, cases[i].name != NULL);
		if (found) {
			assert_string_equal(found->name, cases[i].name);
			assert_int_equal(found->reachable, cases[i].reachable);
		}
	}
}

static void test_embedded(void **state)
{
	static const struct {
		const char *address;
		const char *carried[POLICY_EMBEDDED_MAX];
	} cases[] = {
		{"::ffff:127.0.0.1", {"127.0.0.1"}},
		{"::ffff:0:7f00:1", {"127.0.0.1"}},
		{"::127.0.0.1", {"127.0.0.1"}},
		{"64:ff9b::a9fe:a9fe", {"169.254.169.254"}},
		{"64:ff9b:1::a00:1", {"10.0.0.1"}},
		{"64:ff9b:1:2:3:4:a00:1", {"10.0.0.1"}},
		{"2002:7f00:1::", {"127.0.0.1"}},
		{"2002:a9fe:a9fe::1", {"169.254.169.254"}},
		{"2001:0:a00:1:0:ffff:f5ff:fffd", {"10.0.0.1", "10.0.0.2"}},
		{"2a00:1450::5efe:a00:1", {"10.0.0.1"}},
		{"2a00:1450:0:0:200:5efe:a00:1", {"10.0.0.1"}},
		{"fe80::5efe:a00:1", {"10.0.0.1"}},
		{"2002:a00:1::5efe:a00:2", {"10.0.0.1", "10.0.0.2"}},
		{"2001:0:a00:1:0:5efe:a00:2", {"10.0.0.1", "245.255.255.253", "10.0.0.2"}},
		/* Nothing: not such an address, or one that looks like it. */
		{"::", {NULL}},
		{"::1", {NULL}},
		{"10.0.0.1", {NULL}},
		{"2606:4700::a00:1", {NULL}},
		{"64:ff9b:2::a00:1", {NULL}},
		{"2a00:1450::100:5efe:a00:1", {NULL}},
		{"2a00:1450::5eff:a00:1", {NULL}},
		{"::fffe:127.0.0.1", {NULL}},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct policy_address embedded[POLICY_EMBEDDED_MAX];
		struct policy_address whole;
		size_t count, wanted = 0;

		print_message("# %s\n", cases[i].address);
		assert_int_not_equal(policy_address_parse(cases[i].address, &whole), -EINVAL);
		while (wanted < POLICY_EMBEDDED_MAX && cases[i].carried[wanted]) {
			wanted++;
		}
		count = policy_address_embedded(&whole, embedded);
		assert_int_equal(count, wanted);
		for (size_t j = 0; j < count; j++) {
			char text[POLICY_ADDRESS_TEXT];

			policy_address_format(&embedded[j], text);
			assert_string_equal(text, cases[i].carried[j]);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse),	      cmocka_unit_test(test_range),
		cmocka_unit_test(test_contains),      cmocka_unit_test(test_special),
		cmocka_unit_test(test_range_special), cmocka_unit_test(test_embedded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
