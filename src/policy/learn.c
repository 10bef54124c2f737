/*
 * The smallest list of rules that allows what was seen.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/name.h"
#include "policy/network.h"

static const char *host_of(const struct policy_rule *rule, char *address)
{
	if (rule->subject == POLICY_NAME) {
		return rule->name;
	}
	policy_range_format(&rule->range, address);
	return address;
}

static int compare(const void *left, const void *right)
{
	char left_text[POLICY_RANGE_TEXT], right_text[POLICY_RANGE_TEXT];
	const struct policy_rule *one = left, *other = right;
	int order = strcmp(host_of(one, left_text), host_of(other, right_text));

	return order != 0 ? order : (int)one->port - (int)other->port;
}

/* One thing that was seen, as a rule for it alone: false when it is none. */
static bool rule_of(const struct policy_seen *seen, struct policy_rule *ret_rule)
{
	struct policy_rule rule = {.action = POLICY_ALLOW, .port = seen->port};

	if (seen->port == 0) {
		return false;
	}
	if (policy_address_parse(seen->host, &rule.range.address) == 0) {
		rule.subject = POLICY_RANGE;
		rule.range.bits = rule.range.address.family == 4 ? 32 : 128;
	} else if (policy_name_parse(seen->host, rule.name, NULL) < 0) {
		return false;
	}
	*ret_rule = rule;
	return true;
}

/*
 * Appends a rule to those that are there, which are sorted: nothing for one that is there already,
 * and 80 with 443 becomes the rule without a port. False when there is no room.
 */
static bool add(struct policy_network *policy, const struct policy_rule *rule)
{
	for (size_t i = policy->rule_count; i > 0; i--) {
		struct policy_rule *before = &policy->rules[i - 1];
		struct policy_rule same_host = *before;

		same_host.port = rule->port;
		if (compare(&same_host, rule) != 0) {
			break;
		}
		if (before->port == rule->port || (before->port == 0 && rule->port == 443)) {
			return true;
		}
		if (before->port == 80 && rule->port == 443) {
			before->port = 0;
			return true;
		}
	}
	if (policy->rule_count == POLICY_LEARNED_MAX) {
		return false;
	}
	policy->rules[policy->rule_count++] = *rule;
	policy->kind = POLICY_LIST;
	return true;
}

int policy_learn(const struct policy_seen *seen, size_t count, struct policy_network **ret_policy,
		 size_t *ret_skipped, struct err *err)
{
	_cleanup_free_ struct policy_network *policy = calloc(1, sizeof(*policy));
	_cleanup_free_ struct policy_rule *rules = NULL;
	size_t found = 0;

	if (count > POLICY_SEEN_MAX) {
		return err_set(err, -E2BIG, "too-much-seen", "more than %d connections were seen",
			       POLICY_SEEN_MAX);
	}
	rules = calloc(count + 1, sizeof(*rules));
	if (!policy || !rules) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < count; i++) {
		found += rule_of(&seen[i], &rules[found]);
	}
	qsort(rules, found, sizeof(*rules), compare);
	for (size_t i = 0; i < found; i++) {
		if (!add(policy, &rules[i])) {
			err_set(err, -E2BIG, "too-much-seen",
				"more than %d hosts and ports were seen", POLICY_LEARNED_MAX);
			err_mend(err, "write wildcards such as *.NAME:443 for those that belong "
				      "together");
			return -E2BIG;
		}
	}
	*ret_policy = TAKE_PTR(policy);
	*ret_skipped = count - found;
	return 0;
}
