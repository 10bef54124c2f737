/*
 * `box net` and the policy: what it would say, what it should be, and what it is to be from now on.
 */
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/net.h"
#include "client/client.h"
#include "json/json.h"
#include "policy/network.h"
#include "policy/proxy.h"
#include "spec/spec.h"

/* What is asked about when no port is given. */
#define PORT_DEFAULT 443

/* ---- --check ---- */

struct question {
	char host[POLICY_RULE_TEXT];
	uint16_t port;
	bool is_address;
	struct policy_address address;
};

static int refuse_question(const char *text, struct err *err)
{
	char quoted[POLICY_RULE_TEXT];

	text_quote(text, strlen(text), quoted, sizeof(quoted));
	err_set(err, -EINVAL, "usage", "net: --check: \"%s\" is not HOST or HOST:PORT", quoted);
	err_mend(err, "write a name or an IPv4 address, or an IPv6 address in brackets, then "
		      "optionally : and a port");
	return -EINVAL;
}

/* Takes apart HOST, HOST:PORT, [IPV6] or [IPV6]:PORT. */
static int read_question(const char *text, struct question *ret, struct err *err)
{
	bool brackets = text[0] == '[';
	const char *host = brackets ? text + 1 : text;
	size_t length = strcspn(host, brackets ? "]" : ":");
	const char *rest = host + length;
	char *end = NULL;
	unsigned long port = PORT_DEFAULT;
	int rc;

	if ((brackets && *rest++ != ']') || length == 0 || length >= sizeof(ret->host)) {
		return refuse_question(text, err);
	}
	if (*rest == ':') {
		errno = 0;
		port = strtoul(rest + 1, &end, 10);
		if (rest[1] < '0' || rest[1] > '9' || *end != '\0' || errno != 0) {
			return refuse_question(text, err);
		}
		rest = end;
	}
	if (*rest != '\0' || port == 0 || port > UINT16_MAX) {
		return refuse_question(text, err);
	}
	memcpy(ret->host, host, length);
	ret->host[length] = '\0';
	ret->port = (uint16_t)port;
	rc = policy_address_parse(ret->host, &ret->address);
	/* Spelled otherwise it is still that address, as a program inside would find. */
	ret->is_address = rc == 0 || rc == -ENOTUNIQ;
	return ret->is_address || !brackets ? 0 : refuse_question(text, err);
}

/* Whether what is allowed goes through the host's proxy: then nobody here sees its address. */
static int ask_proxy(const struct question *question, bool *ret_by_proxy, struct err *err)
{
	struct policy_proxy proxy = {.port = 0};
	struct policy_verdict verdict;
	int rc = policy_proxy_find(getenv, &proxy, err);

	*ret_by_proxy = false;
	if (rc <= 0) {
		return rc;
	}
	verdict = question->is_address
			  ? policy_decide_literal(proxy.direct, &question->address, question->port)
			  : policy_decide_name(proxy.direct, question->host, question->port);
	*ret_by_proxy = verdict.reason != POLICY_NO_DENIED;
	free(proxy.direct);
	return 0;
}

static int print_verdict(const struct policy_verdict *verdict, const char *text, bool by_proxy,
			 bool json, struct err *err)
{
	_cleanup_(json_freep) struct json *object = NULL;
	char line[POLICY_VERDICT_TEXT], rule[POLICY_RULE_TEXT] = "";

	policy_verdict_describe(verdict, text, line, sizeof(line));
	if (!json) {
		printf("%s%s\n", line,
		       by_proxy ? "; by proxy, so the address that it leads to is not checked"
				: "");
		return 0;
	}
	object = json_new_object();
	if (verdict->rule) {
		policy_rule_format(verdict->rule, rule);
	}
	if (json_set_string(object, "asked", text) < 0 ||
	    json_set_boolean(object, "allowed", verdict->allowed) < 0 ||
	    json_set_boolean(object, "by_proxy", by_proxy) < 0 ||
	    json_set_string(object, "rule", verdict->rule ? rule : NULL) < 0 ||
	    json_set_string(object, "special", verdict->special ? verdict->special->name : NULL) <
		    0 ||
	    json_set_string(object, "text", line) < 0) {
		return -ENOMEM;
	}
	return cli_print_json(object, err);
}

int net_check(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_(spec_freep) struct spec *spec = NULL;
	_cleanup_free_ struct policy_network *policy = NULL;
	const char *text = cli_value(args, "check");
	struct policy_verdict verdict;
	struct question question;
	bool by_proxy = false;
	int rc = read_question(text, &question, err);

	if (rc == 0) {
		rc = store_open(false, &store, err);
	}
	if (rc == 0) {
		rc = store_load_spec(&store, args->operands[0], &spec, err);
	}
	if (rc == 0) {
		rc = spec_make_policy(&spec->network, &policy, err);
	}
	if (rc == 0) {
		rc = ask_proxy(&question, &by_proxy, err);
	}
	if (rc < 0) {
		return rc;
	}
	verdict = question.is_address
			  ? policy_decide_literal(policy, &question.address, question.port)
			  : policy_decide_name(policy, question.host, question.port);
	rc = print_verdict(&verdict, text, verdict.allowed && by_proxy, cli_has(args, "json"), err);
	return rc < 0 ? rc : (verdict.allowed ? EXIT_OK : EXIT_NEGATIVE);
}

/* ---- --learn ---- */

struct lesson {
	/* What the list is to be under in the Boxfile. */
	const char *key;
	struct policy_seen *seen;
	size_t count;
	/* A tree of pointers into seen (tsearch(3)). */
	void *tree;
	/* Connections that were refused. */
	size_t refused;
};

/* Of machines, and of builds. */
#define LESSONS 2
struct lessons {
	struct lesson each[LESSONS];
};

static void keep_node(void *node)
{
	(void)node;
}

static void clear_lessons(struct lessons *lessons)
{
	for (size_t i = 0; i < LESSONS; i++) {
		struct lesson *lesson = &lessons->each[i];

		tdestroy(lesson->tree, keep_node);
		for (size_t k = 0; k < lesson->count; k++) {
			free((void *)(uintptr_t)lesson->seen[k].host);
		}
		free(lesson->seen);
	}
}

static int compare_seen(const void *left, const void *right)
{
	const struct policy_seen *one = left, *other = right;
	int order = strcmp(one->host, other->host);

	return order != 0 ? order : (int)one->port - (int)other->port;
}

static int add_seen(struct lesson *lesson, const char *host, uint16_t port)
{
	struct policy_seen *place = &lesson->seen[lesson->count];
	const struct policy_seen asked = {.host = host, .port = port};

	if (tfind(&asked, &lesson->tree, compare_seen)) {
		return 0;
	}
	if (lesson->count == POLICY_LEARNED_MAX) {
		return -E2BIG;
	}
	*place = (struct policy_seen){.host = strdup(host), .port = port};
	if (!place->host) {
		return -ENOMEM;
	}
	lesson->count++;
	return tsearch(place, &lesson->tree, compare_seen) ? 0 : -ENOMEM;
}

static int learn_line(void *data, const struct json *object, const char *line, size_t size)
{
	struct lessons *lessons = data;
	const char *event = json_get_string(object, "event");
	const char *host = json_get_string(object, "host");
	const char *machine = json_get_string(object, "machine");
	struct lesson *lesson = &lessons->each[machine && strcmp(machine, "build") == 0];
	bool allowed = false;
	int64_t port = 0;

	(void)line;
	(void)size;
	if (!event || !host || strcmp(event, "connected") != 0 ||
	    json_get_integer(object, "port", &port) < 0 || port < 1 || port > UINT16_MAX) {
		return 0;
	}
	json_get_boolean(object, "allowed", &allowed);
	if (!allowed) {
		lesson->refused++;
		return 0;
	}
	return add_seen(lesson, host, (uint16_t)port);
}

static int print_lesson(const struct lesson *lesson, struct err *err)
{
	_cleanup_free_ struct policy_network *policy = NULL;
	size_t skipped = 0;
	int rc = policy_learn(lesson->seen, lesson->count, &policy, &skipped, err);

	if (rc < 0) {
		return rc;
	}
	if (lesson->refused > 0) {
		printf("# %zu connections were refused, and are not in the list.\n",
		       lesson->refused);
	}
	printf("%s:\n", lesson->key);
	puts(policy->rule_count > 0 ? "  allow:" : "  allow: []");
	for (size_t i = 0; i < policy->rule_count; i++) {
		char rule[POLICY_RULE_TEXT];

		policy_rule_format(&policy->rules[i], rule);
		printf("    - \"%s\"\n", rule);
	}
	return 0;
}

int net_learn(struct log_lines *lines, struct err *err)
{
	_cleanup_(clear_lessons) struct lessons lessons = {
		.each = {{.key = "network"}, {.key = "build_network"}}};
	const struct lesson *build = &lessons.each[1];
	int rc = 0;

	for (size_t i = 0; i < LESSONS; i++) {
		lessons.each[i].seen = calloc(POLICY_LEARNED_MAX, sizeof(struct policy_seen));
		rc = lessons.each[i].seen ? rc : -ENOMEM;
	}
	lines->take = learn_line;
	lines->data = &lessons;
	if (rc == 0) {
		rc = log_lines_read(lines);
	}
	lines->data = NULL;
	if (rc == 0) {
		rc = print_lesson(&lessons.each[0], err);
	}
	if (rc == 0 && build->count + build->refused > 0) {
		rc = print_lesson(build, err);
	}
	return rc < 0 ? err_context(err, rc, "the network log") : EXIT_OK;
}

/* ---- --allow, --deny ---- */

int net_change(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	const char *name = args->operands[0];
	int rc = store_open(false, &store, err);

	/* All are read before the first is sent: a mistyped one changes nothing. */
	for (size_t i = 0; rc == 0 && i < args->given_count; i++) {
		const struct cli_given *given = &args->given[i];
		struct policy_rule rule;

		rc = policy_rule_parse(strcmp(given->option->name, "deny") == 0 ? POLICY_DENY
										: POLICY_ALLOW,
				       given->value, &rule, err);
	}
	if (rc == 0) {
		rc = client_connect(&store, name, &machine, err);
	}
	for (size_t i = 0; rc == 0 && i < args->given_count; i++) {
		const struct cli_given *given = &args->given[i];
		bool deny = strcmp(given->option->name, "deny") == 0;

		rc = client_net_rule(machine, deny ? IPC_RULE_DENY : IPC_RULE_ALLOW, given->value,
				     err);
		if (rc == 0) {
			printf("%s: %s %s, until it goes down\n", name, deny ? "denies" : "allows",
			       given->value);
		}
	}
	return rc < 0 ? rc : EXIT_OK;
}
