/*
 * Any bytes as what a policy reads. The first byte says as what: 0 a name, 1 an address or a range,
 * 2 a rule, 3 a whole encoded policy. What can be read is written in one spelling, which reads back
 * as the same; and no spelling of an address is ever a name.
 */
#include "fuzz.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "policy/name.h"
#include "policy/network.h"

static void try_name(const char *text)
{
	char name[DNS_NAME_MAX + 1], again[DNS_NAME_MAX + 1];
	struct policy_address address;
	struct in_addr other;

	if (policy_name_parse(text, name, NULL) < 0) {
		return;
	}
	ASSERT(dns_name_valid(name));
	ASSERT(policy_name_parse(name, again, NULL) == 0 && strcmp(name, again) == 0);
	/* inet_aton(3) takes all spellings that C libraries have ever taken. */
	ASSERT(inet_aton(name, &other) == 0 && inet_aton(text, &other) == 0);
	ASSERT(policy_address_parse(name, &address) == -EINVAL);
}

static void check_address(const struct policy_address *address)
{
	struct policy_address embedded[POLICY_EMBEDDED_MAX], back;
	char text[POLICY_ADDRESS_TEXT];
	size_t count;

	policy_address_format(address, text);
	ASSERT(policy_address_parse(text, &back) == 0);
	ASSERT(memcmp(&back, address, sizeof(back)) == 0);
	count = policy_address_embedded(address, embedded);
	ASSERT(count <= POLICY_EMBEDDED_MAX && (address->family == 6 || count == 0));
	for (size_t i = 0; i < count; i++) {
		ASSERT(embedded[i].family == 4);
	}
}

static void try_range(const char *text)
{
	struct policy_range range, back;
	char written[POLICY_RANGE_TEXT];
	int rc = policy_range_parse(text, &range);

	if (rc == -EINVAL) {
		return;
	}
	ASSERT(rc == 0 || rc == -ENOTUNIQ);
	check_address(&range.address);
	policy_range_format(&range, written);
	ASSERT(policy_range_parse(written, &back) == 0 && memcmp(&back, &range, sizeof(back)) == 0);
	ASSERT(policy_range_contains(&range, &range.address));
	if (policy_range_special(&range)) {
		ASSERT(policy_address_special(&range.address));
	}
}

/* With any policy: an address that is special is reached by a reach rule only. */
static void check_decisions(const struct policy_network *policy)
{
	static const struct policy_address special[] = {
		{4, {127, 0, 0, 1}},
		{4, {169, 254, 169, 254}},
		{4, {0}},
		{6, {[15] = 1}},
		{6, {[10] = 0xff, 0xff, 127, 0, 0, 1}},
	};
	char line[POLICY_VERDICT_TEXT];

	for (size_t i = 0; i < ARRAY_SIZE(special); i++) {
		struct policy_verdict verdict = policy_decide_literal(policy, &special[i], 443);

		policy_verdict_describe(&verdict, "x", line, sizeof(line));
		ASSERT(strlen(line) < sizeof(line) - 1);
		verdict = policy_decide_address(policy, &special[i], 443);
		ASSERT(!verdict.allowed || verdict.reason == POLICY_BY_REACH);
	}
	ASSERT(!policy_decide_name(policy, "127.1", 443).allowed);
	policy_decide_name(policy, "a.b", 0);
}

static void try_rule(const char *text)
{
	/* Kept, because it is large and only its first rules are ever used. */
	static struct policy_network kept;
	struct policy_network *policy = &kept;

	for (unsigned action = POLICY_ALLOW; action <= POLICY_REACH; action++) {
		char written[POLICY_RULE_TEXT], again[POLICY_RULE_TEXT];

		policy->kind = POLICY_BRIDGE;
		policy->rule_count = 0;
		if (policy_append(policy, (enum policy_action)action, text, NULL) < 0) {
			ASSERT(policy->rule_count == 0);
			continue;
		}
		policy_rule_format(&policy->rules[0], written);
		ASSERT(policy_append(policy, (enum policy_action)action, written, NULL) == 0);
		policy_rule_format(&policy->rules[1], again);
		ASSERT(strcmp(written, again) == 0);
		ASSERT(memcmp(&policy->rules[0], &policy->rules[1], sizeof(policy->rules[0])) == 0);
		check_decisions(policy);
	}
}

static void try_encoded(const uint8_t *data, size_t size)
{
	static uint8_t out[POLICY_ENCODED_MAX];
	_cleanup_free_ struct policy_network *policy = NULL;
	int rc = policy_decode(data, size, &policy);

	if (rc < 0) {
		ASSERT(rc == -EBADMSG && !policy);
		return;
	}
	ASSERT(policy_encode(policy, out) == size && memcmp(out, data, size) == 0);
	check_decisions(policy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const tries[])(const char *text) = {try_name, try_range, try_rule};
	_cleanup_free_ uint8_t *copy = NULL;

	if (size == 0 || data[0] > ARRAY_SIZE(tries) || size > POLICY_ENCODED_MAX) {
		return 0;
	}
	/* One byte more than the input less its first: the NUL that ends a text. */
	copy = calloc(1, size);
	ASSERT(copy);
	memcpy(copy, data + 1, size - 1);
	if (data[0] < ARRAY_SIZE(tries)) {
		tries[data[0]]((const char *)copy);
	} else {
		try_encoded(copy, size - 1);
	}
	return 0;
}
