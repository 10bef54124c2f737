#include "policy/network.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"
#include "policy/name.h"

/* A quoted rule in a message; a longer one is cut. */
#define QUOTED_MAX 300

static int refuse(const char *text, struct err *err)
{
	char quoted[QUOTED_MAX];

	text_quote(text, strlen(text), quoted, sizeof(quoted));
	err_set(err, -EINVAL, "bad-rule",
		"\"%s\" is not a host, a range of addresses or a wildcard", quoted);
	err_mend(err, "write NAME, *.NAME, an IPv4 address or range, or an IPv6 one in brackets, "
		      "then optionally :PORT");
	return -EINVAL;
}

/* Reads 1 to 65535 without a needless 0: 0 or -EINVAL. */
static int parse_port(const char *text, uint16_t *ret_port)
{
	size_t length = strspn(text, "0123456789");
	uint32_t port = 0;

	if (length == 0 || length > 5 || text[length] != '\0' || text[0] == '0') {
		return -EINVAL;
	}
	for (size_t i = 0; i < length; i++) {
		port = port * 10 + (uint32_t)(text[i] - '0');
	}
	if (port > UINT16_MAX) {
		return -EINVAL;
	}
	*ret_port = (uint16_t)port;
	return 0;
}

/* Reads a range that must be spelled right, or the mend says how, with the
 * brackets that the rule has around it. 0 or -EINVAL. */
static int parse_range(const char *text, bool brackets, struct policy_range *ret_range,
		       struct err *err)
{
	char quoted[QUOTED_MAX], right[POLICY_RANGE_TEXT];
	int rc = policy_range_parse(text, ret_range);

	if (rc == -EINVAL) {
		return refuse(text, err);
	}
	if (rc < 0) {
		text_quote(text, strlen(text), quoted, sizeof(quoted));
		policy_range_format(ret_range, right);
		err_set(err, -EINVAL, "bad-rule", "\"%s\" is not how this range is written",
			quoted);
		err_mend(err, brackets ? "write [%s]" : "write %s", right);
		return -EINVAL;
	}
	return 0;
}

/* A reach rule opens what is closed to everybody else, so it must name one thing that is closed. */
static int parse_reach(const char *text, struct policy_rule *rule, struct err *err)
{
	const struct policy_special *special;
	int rc = parse_range(text, false, &rule->range, err);

	if (rc < 0) {
		return rc;
	}
	rule->subject = POLICY_RANGE;
	special = policy_range_special(&rule->range);
	if (!special) {
		err_set(err, -EINVAL, "bad-rule", "%s does not lie in one reserved range", text);
		err_mend(err, "list each reserved range that you mean under reach, and public "
			      "addresses under allow");
		return -EINVAL;
	}
	if (!special->reachable) {
		err_set(err, -EINVAL, "bad-rule", "%s is \"%s\", which no rule can open", text,
			special->name);
		err_mend(err, "list the address of the host that you mean");
		return -EINVAL;
	}
	return 0;
}

/* Cuts text into the host and the port behind it, if there is one: 0 or -EINVAL. */
static int cut_port(const char *text, char host[POLICY_RULE_TEXT], uint16_t *ret_port)
{
	const char *end = text[0] == '[' ? strchr(text, ']') : text + strcspn(text, ":");
	size_t length;

	if (!end) {
		return -EINVAL;
	}
	end += *end == ']' ? 1 : 0;
	length = (size_t)(end - text);
	if (length >= POLICY_RULE_TEXT || (*end != '\0' && *end != ':')) {
		return -EINVAL;
	}
	memcpy(host, text, length);
	host[length] = '\0';
	*ret_port = 0;
	return *end == ':' ? parse_port(end + 1, ret_port) : 0;
}

/* Whether host, without brackets, was meant as an IPv4 address or range. */
static bool looks_like_v4(const char *host)
{
	return strchr(host, '/') || host[strspn(host, "0123456789.")] == '\0';
}

static int parse_host(char *host, struct policy_rule *rule, struct err *err)
{
	size_t length = strlen(host);

	rule->subject = POLICY_RANGE;
	if (host[0] == '[') {
		if (!strchr(host, ':')) {
			return refuse(host, err);
		}
		/* cut_port has found the other one, and it is the last. */
		host[length - 1] = '\0';
		return parse_range(host + 1, true, &rule->range, err);
	}
	if (looks_like_v4(host)) {
		return parse_range(host, false, &rule->range, err);
	}
	if (strncmp(host, "*.", 2) == 0) {
		rule->subject = POLICY_BELOW;
		return policy_name_parse(host + 2, rule->name, err);
	}
	rule->subject = POLICY_NAME;
	return policy_name_parse(host, rule->name, err);
}

int policy_rule_parse(enum policy_action action, const char *text, struct policy_rule *ret_rule,
		      struct err *err)
{
	struct policy_rule rule = {.action = (uint8_t)action};
	char host[POLICY_RULE_TEXT];
	int rc;

	if (action == POLICY_REACH) {
		rc = parse_reach(text, &rule, err);
	} else if (cut_port(text, host, &rule.port) < 0) {
		rc = refuse(text, err);
	} else {
		rc = parse_host(host, &rule, err);
	}
	if (rc == 0) {
		*ret_rule = rule;
	}
	return rc;
}

void policy_rule_format(const struct policy_rule *rule, char *out)
{
	bool brackets = rule->subject == POLICY_RANGE && rule->range.address.family == 6 &&
			rule->action != POLICY_REACH;
	char range[POLICY_RANGE_TEXT], port[8] = "";
	const char *host = rule->name;

	if (rule->subject == POLICY_RANGE) {
		policy_range_format(&rule->range, range);
		host = range;
	}
	if (rule->port != 0) {
		snprintf(port, sizeof(port), ":%u", (unsigned)rule->port);
	}
	snprintf(out, POLICY_RULE_TEXT, "%s%s%s%s",
		 rule->subject == POLICY_BELOW ? "*."
		 : brackets		       ? "["
					       : "",
		 host, brackets ? "]" : "", port);
}

const char *policy_action_word(enum policy_action action)
{
	static const char *const words[] = {
		[POLICY_ALLOW] = "allow",
		[POLICY_DENY] = "deny",
		[POLICY_REACH] = "reach",
	};

	ASSERT(action < ARRAY_SIZE(words));
	return words[action];
}

void policy_rule_describe(const struct policy_rule *rule, char *out)
{
	char text[POLICY_RULE_TEXT];

	policy_rule_format(rule, text);
	snprintf(out, POLICY_RULE_LINE, "%s %s",
		 policy_action_word((enum policy_action)rule->action), text);
}
