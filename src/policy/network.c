#include "policy/network.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/text.h"
#include "policy/name.h"
#include "wire/bytes.h"

#define ENCODED_MAGIC 0x6c706f62u
#define ENCODED_VERSION 1
/* A quoted name in a line of a log; a longer one is cut. */
#define QUOTED_MAX 300

static const uint16_t default_ports[] = {443, 80};

/* What is asked for: a name or an address, and a port (0: any). */
struct asked {
	const char *name;
	const struct policy_address *address;
	uint16_t port;
};

static struct policy_network *new_policy(enum policy_kind kind)
{
	struct policy_network *policy = calloc(1, sizeof(*policy));

	if (policy) {
		policy->kind = (uint8_t)kind;
	}
	return policy;
}

int policy_append(struct policy_network *policy, enum policy_action action, const char *text,
		  struct err *err)
{
	struct policy_rule rule;
	int rc = policy_rule_parse(action, text, &rule, err);

	if (rc < 0) {
		return rc;
	}
	if (policy->rule_count == POLICY_RULES_MAX) {
		err_set(err, -E2BIG, "too-many-rules", "the network has %d rules already",
			POLICY_RULES_MAX);
		err_mend(err, "use *.NAME for names below one name");
		return -E2BIG;
	}
	policy->rules[policy->rule_count++] = rule;
	if (action == POLICY_ALLOW && policy->kind == POLICY_NONE) {
		policy->kind = POLICY_LIST;
	}
	return 0;
}

int policy_make(const struct policy_source *source, struct policy_network **ret_policy,
		struct err *err)
{
	const char *const *const texts[] = {source->allow, source->deny, source->reach};
	const size_t counts[] = {source->allow_count, source->deny_count, source->reach_count};
	_cleanup_free_ struct policy_network *policy = new_policy(source->kind);

	if (!policy) {
		return -ENOMEM;
	}
	policy->connections_max = source->connections_max;
	policy->bytes_max = source->bytes_max;
	for (unsigned action = POLICY_ALLOW; action <= POLICY_REACH; action++) {
		for (size_t i = 0; i < counts[action]; i++) {
			int rc = policy_append(policy, (enum policy_action)action, texts[action][i],
					       err);

			if (rc < 0) {
				return err_context(err, rc, "network: %s",
						   policy_action_word((enum policy_action)action));
			}
		}
	}
	*ret_policy = TAKE_PTR(policy);
	return 0;
}

/* Whether name lies below parent, and is not parent itself. */
static bool is_below(const char *name, const char *parent)
{
	size_t length = strlen(name), parent_length = strlen(parent);

	return length > parent_length + 1 && name[length - parent_length - 1] == '.' &&
	       strcmp(name + length - parent_length, parent) == 0;
}

/* Whether a rule is about that name or address, whatever the port. */
static bool fits_subject(const struct policy_rule *rule, const struct asked *asked)
{
	switch (rule->subject) {
	case POLICY_NAME:
		return asked->name && strcmp(rule->name, asked->name) == 0;
	case POLICY_BELOW:
		return asked->name && is_below(asked->name, rule->name);
	default:
		return asked->address && policy_range_contains(&rule->range, asked->address);
	}
}

static const struct policy_rule *find_deny(const struct policy_network *policy,
					   const struct asked *asked)
{
	for (size_t i = 0; i < policy->rule_count; i++) {
		const struct policy_rule *rule = &policy->rules[i];

		/* Asked for any port, only a rule that denies them all is in the way. */
		if (rule->action == POLICY_DENY && (rule->port == 0 || rule->port == asked->port) &&
		    fits_subject(rule, asked)) {
			return rule;
		}
	}
	return NULL;
}

/* Whether an allow rule that is about asked also has its port; for any port, one that is not
 * denied. */
static bool fits_port(const struct policy_network *policy, const struct policy_rule *rule,
		      const struct asked *asked)
{
	const uint16_t *ports = rule->port != 0 ? &rule->port : default_ports;
	size_t count = rule->port != 0 ? 1 : ARRAY_SIZE(default_ports);

	for (size_t i = 0; i < count; i++) {
		struct asked one = {asked->name, asked->address, ports[i]};

		if (asked->port == ports[i] || (asked->port == 0 && !find_deny(policy, &one))) {
			return true;
		}
	}
	return false;
}

static const struct policy_rule *find_allow(const struct policy_network *policy,
					    const struct asked *asked)
{
	for (size_t i = 0; i < policy->rule_count; i++) {
		const struct policy_rule *rule = &policy->rules[i];

		if (rule->action == POLICY_ALLOW && fits_subject(rule, asked) &&
		    fits_port(policy, rule, asked)) {
			return rule;
		}
	}
	return NULL;
}

static const struct policy_rule *find_reach(const struct policy_network *policy,
					    const struct policy_address *address)
{
	for (size_t i = 0; i < policy->rule_count; i++) {
		const struct policy_rule *rule = &policy->rules[i];

		if (rule->action == POLICY_REACH && policy_range_contains(&rule->range, address)) {
			return rule;
		}
	}
	return NULL;
}

/* Steps 1 and 2. */
static struct policy_verdict decide(const struct policy_network *policy, const struct asked *asked)
{
	struct policy_verdict verdict = {.reason = POLICY_NO_DENIED};

	verdict.rule = find_deny(policy, asked);
	if (verdict.rule) {
		return verdict;
	}
	if (policy->kind == POLICY_BRIDGE) {
		return (struct policy_verdict){.allowed = true, .reason = POLICY_BY_BRIDGE};
	}
	verdict.rule = find_allow(policy, asked);
	verdict.allowed = verdict.rule != NULL;
	verdict.reason = verdict.allowed ? POLICY_BY_RULE : POLICY_NO_RULE;
	return verdict;
}

struct policy_verdict policy_decide_name(const struct policy_network *policy, const char *name,
					 uint16_t port)
{
	char canonical[DNS_NAME_MAX + 1];
	struct asked asked = {.name = canonical, .port = port};

	if (policy_name_parse(name, canonical, NULL) < 0) {
		return (struct policy_verdict){.reason = POLICY_NO_NAME};
	}
	return decide(policy, &asked);
}

/* Steps 3 and 4 for one address, without what it carries. */
static struct policy_verdict decide_one(const struct policy_network *policy,
					const struct policy_address *address, uint16_t port)
{
	struct asked asked = {.address = address, .port = port};
	struct policy_verdict verdict = {.reason = POLICY_NO_DENIED};

	verdict.rule = find_deny(policy, &asked);
	if (verdict.rule) {
		return verdict;
	}
	verdict.special = MUTANT("reserved") ? NULL : policy_address_special(address);
	if (!verdict.special) {
		return (struct policy_verdict){.allowed = true, .reason = POLICY_BY_ADDRESS};
	}
	if (verdict.special->reachable) {
		verdict.rule = find_reach(policy, address);
	}
	if (verdict.rule) {
		return (struct policy_verdict){
			.allowed = true, .reason = POLICY_BY_REACH, .rule = verdict.rule};
	}
	verdict.reason = POLICY_NO_SPECIAL;
	return verdict;
}

struct policy_verdict policy_decide_address(const struct policy_network *policy,
					    const struct policy_address *address, uint16_t port)
{
	struct policy_address embedded[POLICY_EMBEDDED_MAX];
	size_t count = policy_address_embedded(address, embedded);
	struct policy_verdict verdict;

	if (policy->kind == POLICY_NONE) {
		return (struct policy_verdict){.reason = POLICY_NO_RULE};
	}
	verdict = decide_one(policy, address, port);
	for (size_t i = 0; verdict.allowed && i < count; i++) {
		struct policy_verdict inner = decide_one(policy, &embedded[i], port);

		if (!inner.allowed) {
			verdict = inner;
		}
	}
	return verdict;
}

struct policy_verdict policy_decide_literal(const struct policy_network *policy,
					    const struct policy_address *address, uint16_t port)
{
	struct asked asked = {.address = address, .port = port};
	struct policy_verdict verdict = decide(policy, &asked);
	struct policy_verdict second;

	if (!verdict.allowed) {
		return verdict;
	}
	second = policy_decide_address(policy, address, port);
	return second.allowed ? verdict : second;
}

void policy_verdict_describe(const struct policy_verdict *verdict, const char *asked, char *out,
			     size_t capacity)
{
	static const char *const words[] = {
		[POLICY_BY_RULE] = "allowed by",
		[POLICY_BY_BRIDGE] = "allowed: the network is bridge",
		[POLICY_BY_ADDRESS] = "allowed: the address is public",
		[POLICY_BY_REACH] = "allowed by reach",
		[POLICY_NO_DENIED] = "denied by",
		[POLICY_NO_RULE] = "denied: no rule allows it",
		[POLICY_NO_SPECIAL] = "denied: it is reserved,",
		[POLICY_NO_NAME] = "denied: it is not a host name",
	};
	char quoted[QUOTED_MAX], rule[POLICY_RULE_TEXT] = "";
	const char *detail = rule;

	ASSERT(verdict->reason < ARRAY_SIZE(words));
	text_quote(asked, strlen(asked), quoted, sizeof(quoted));
	if (verdict->rule) {
		policy_rule_format(verdict->rule, rule);
	} else if (verdict->special) {
		detail = verdict->special->name;
	}
	snprintf(out, capacity, "\"%s\" %s%s%s", quoted, words[verdict->reason], *detail ? " " : "",
		 detail);
}

size_t policy_encode(const struct policy_network *policy, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, POLICY_ENCODED_MAX);
	char text[POLICY_RULE_TEXT];

	wire_put_u32(&writer, ENCODED_MAGIC);
	wire_put_u16(&writer, ENCODED_VERSION);
	wire_put_u8(&writer, policy->kind);
	wire_put_u64(&writer, policy->connections_max);
	wire_put_u64(&writer, policy->bytes_max);
	wire_put_u32(&writer, (uint32_t)policy->rule_count);
	for (size_t i = 0; i < policy->rule_count; i++) {
		policy_rule_format(&policy->rules[i], text);
		wire_put_u8(&writer, policy->rules[i].action);
		wire_put_string(&writer, text);
	}
	ASSERT(!writer.failed);
	return writer.size;
}

/* Reads one rule, in the very spelling that policy_rule_format has: 0 or -EBADMSG. */
static int decode_rule(struct wire_reader *reader, struct policy_network *policy)
{
	uint8_t action = wire_get_u8(reader);
	const char *text = wire_get_string(reader);
	char canonical[POLICY_RULE_TEXT];

	if (!text || action > POLICY_REACH ||
	    policy_append(policy, (enum policy_action)action, text, NULL) < 0) {
		return -EBADMSG;
	}
	policy_rule_format(&policy->rules[policy->rule_count - 1], canonical);
	return strcmp(canonical, text) == 0 ? 0 : -EBADMSG;
}

int policy_decode(const uint8_t *data, size_t size, struct policy_network **ret_policy)
{
	struct wire_reader reader = wire_reader_over(data, size);
	_cleanup_free_ struct policy_network *policy = NULL;
	uint32_t magic = wire_get_u32(&reader);
	uint16_t version = wire_get_u16(&reader);
	uint8_t kind = wire_get_u8(&reader);
	uint64_t connections_max = wire_get_u64(&reader);
	uint64_t bytes_max = wire_get_u64(&reader);
	uint32_t count = wire_get_u32(&reader);

	if (reader.failed || magic != ENCODED_MAGIC || version != ENCODED_VERSION ||
	    kind > POLICY_LIST || count > POLICY_RULES_MAX) {
		return -EBADMSG;
	}
	policy = new_policy(POLICY_NONE);
	if (!policy) {
		return -ENOMEM;
	}
	policy->connections_max = connections_max;
	policy->bytes_max = bytes_max;
	for (uint32_t i = 0; i < count; i++) {
		if (decode_rule(&reader, policy) < 0) {
			return -EBADMSG;
		}
	}
	/* An allow rule has made a list of it, so "none" and such a rule do not go together. */
	if (!wire_reader_done(&reader) || (kind == POLICY_NONE && policy->kind != POLICY_NONE)) {
		return -EBADMSG;
	}
	policy->kind = kind;
	*ret_policy = TAKE_PTR(policy);
	return 0;
}
