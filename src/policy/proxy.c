#include "policy/proxy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"

/* Of the FNV-1a hash with 64 bits. */
#define MARK_START UINT64_C(0xcbf29ce484222325)
#define MARK_PRIME UINT64_C(0x100000001b3)
/* What base64 makes four letters of three. */
#define SECRET_BYTES (POLICY_PROXY_SECRET / 4 * 3 - 3)

static int refuse(const char *name, const char *why, struct err *err)
{
	err_set(err, -EINVAL, "proxy", "%s is not the URL of a proxy that box can use: %s", name,
		why);
	err_mend(err, "set it to http://HOST:PORT or http://USER:WORD@HOST:PORT");
	return -EINVAL;
}

/* The variable that says which proxy, or NULL. */
static const char *find_variable(char *(*get)(const char *name))
{
	static const char *const names[] = {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
					    "http_proxy"};
	const char *box = get("BOX_PROXY");

	if (!box || box[0] == '\0') {
		return NULL;
	}
	if (strcmp(box, "environment") != 0) {
		return "BOX_PROXY";
	}
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		const char *value = get(names[i]);

		if (value && value[0] != '\0') {
			return names[i];
		}
	}
	return NULL;
}

static int hex_digit(char c)
{
	const char *digits = "0123456789abcdef";
	const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;

	return at ? (int)(at - digits) : -1;
}

/* USER:WORD with its percent-encoding undone (RFC 3986, 2.1), in base64. 0, -EINVAL or -ENOMEM. */
static int take_secret(const char *text, size_t length, char out[POLICY_PROXY_SECRET])
{
	_cleanup_free_ char *encoded = NULL;
	char plain[SECRET_BYTES];
	size_t size = 0;

	for (size_t i = 0; i < length; i++) {
		int high = text[i] == '%' && i + 2 < length ? hex_digit(text[i + 1]) : -1;
		int low = high >= 0 ? hex_digit(text[i + 2]) : -1;

		if (size == sizeof(plain) - 1 || (text[i] == '%' && low < 0)) {
			return -EINVAL;
		}
		plain[size++] = low < 0 ? text[i] : (char)(high * 16 + low);
		i += low < 0 ? 0 : 2;
	}
	/* A user without a word is one with an empty one. */
	if (!memchr(plain, ':', size)) {
		plain[size++] = ':';
	}
	encoded = text_base64(plain, size);
	if (!encoded) {
		return -ENOMEM;
	}
	ASSERT(strlen(encoded) < POLICY_PROXY_SECRET);
	memcpy(out, encoded, strlen(encoded) + 1);
	return 0;
}

/* HOST:PORT, which is one host as a rule has it, and one port. */
static int take_place(const char *name, const char *text, struct policy_proxy *proxy,
		      struct err *err)
{
	struct policy_rule rule;

	if (policy_rule_parse(POLICY_ALLOW, text, &rule, NULL) < 0 ||
	    rule.subject == POLICY_BELOW ||
	    (rule.subject == POLICY_RANGE &&
	     rule.range.bits != (rule.range.address.family == 4 ? 32 : 128))) {
		return refuse(name, "its host is no host", err);
	}
	if (rule.port == 0) {
		return refuse(name, "it has no port", err);
	}
	proxy->port = rule.port;
	if (rule.subject == POLICY_NAME) {
		memcpy(proxy->host, rule.name, sizeof(rule.name));
	} else {
		policy_address_format(&rule.range.address, proxy->host);
	}
	return 0;
}

static int take_url(const char *name, const char *url, struct policy_proxy *proxy, struct err *err)
{
	const char *scheme = strstr(url, "://");
	const char *rest = scheme ? scheme + 3 : url;
	size_t length = strcspn(rest, "/");
	const char *at = memrchr(rest, '@', length);
	const char *place = at ? at + 1 : rest;
	char text[POLICY_RULE_TEXT];
	int rc = 0;

	if (scheme && strncmp(url, "http://", 7) != 0) {
		return refuse(name, "only http:// is spoken with a proxy", err);
	}
	if (rest[length] != '\0' && rest[length + 1] != '\0') {
		return refuse(name, "it has a path", err);
	}
	if (at) {
		rc = take_secret(rest, (size_t)(at - rest), proxy->authorization);
	}
	if (rc == -EINVAL) {
		return refuse(name, "its user or word is too long or has a broken %XX", err);
	}
	length -= (size_t)(place - rest);
	if (rc < 0 || length >= sizeof(text)) {
		return rc < 0 ? rc : refuse(name, "its host is no host", err);
	}
	memcpy(text, place, length);
	text[length] = '\0';
	return take_place(name, text, proxy, err);
}

/* One entry of no_proxy. What is no host, name or range is passed over, as other programs do. */
static void add_direct(struct policy_network *direct, const char *entry)
{
	char text[POLICY_RULE_TEXT];

	entry += strncmp(entry, "*.", 2) == 0 ? 2 : entry[0] == '.';
	/* An IPv6 address or range has two colons at least, and no brackets around it here. */
	if (strchr(entry, ':') != strrchr(entry, ':') && entry[0] != '[') {
		snprintf(text, sizeof(text), "[%s]", entry);
		(void)policy_append(direct, POLICY_DENY, text, NULL);
		return;
	}
	(void)policy_append(direct, POLICY_DENY, entry, NULL);
	snprintf(text, sizeof(text), "*.%s", entry);
	(void)policy_append(direct, POLICY_DENY, text, NULL);
}

/* Returns 1, or 0 when the list says that all is reached without. */
static int take_direct(const char *list, struct policy_network *direct)
{
	_cleanup_free_ char *copy = strdup(list);
	char *state = NULL;

	if (!copy) {
		return -ENOMEM;
	}
	for (char *entry = strtok_r(copy, ", \t", &state); entry;
	     entry = strtok_r(NULL, ", \t", &state)) {
		if (strcmp(entry, "*") == 0) {
			return 0;
		}
		add_direct(direct, entry);
	}
	return 1;
}

int policy_proxy_find(char *(*get)(const char *name), struct policy_proxy *ret_proxy,
		      struct err *err)
{
	static const struct policy_source everything = {.kind = POLICY_BRIDGE};
	_cleanup_free_ struct policy_network *direct = NULL;
	struct policy_proxy proxy = {.port = 0};
	const char *name = find_variable(get);
	const char *list = get("no_proxy") ? get("no_proxy") : get("NO_PROXY");
	int rc;

	if (!name) {
		return 0;
	}
	rc = take_url(name, get(name), &proxy, err);
	if (rc == 0) {
		rc = policy_make(&everything, &direct, err);
	}
	if (rc == 0) {
		rc = list ? take_direct(list, direct) : 1;
	}
	if (rc == 1) {
		proxy.direct = TAKE_PTR(direct);
		*ret_proxy = proxy;
	}
	return rc;
}

static uint64_t add_to_mark(uint64_t mark, const char *text)
{
	/* With its NUL, so that no two texts look like two others. */
	for (size_t i = 0; i <= strlen(text); i++) {
		mark = (mark ^ (uint8_t)text[i]) * MARK_PRIME;
	}
	return mark;
}

uint64_t policy_proxy_mark(const struct policy_proxy *proxy)
{
	uint64_t mark = MARK_START;
	char text[POLICY_RULE_TEXT];

	mark = add_to_mark(mark, proxy->host);
	snprintf(text, sizeof(text), "%u", (unsigned)proxy->port);
	mark = add_to_mark(mark, text);
	mark = add_to_mark(mark, proxy->authorization);
	for (size_t i = 0; i < proxy->direct->rule_count; i++) {
		policy_rule_format(&proxy->direct->rules[i], text);
		mark = add_to_mark(mark, text);
	}
	return mark != 0 ? mark : 1;
}
