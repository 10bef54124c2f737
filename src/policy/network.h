/*
 * What a machine may reach: rules, and the decisions that follow from them.
 *
 * A rule is an action and what it is about:
 *
 *     allow, deny   NAME[:PORT]  *.NAME[:PORT]  IPV4[/BITS][:PORT]  [IPV6[/BITS]][:PORT]
 *     reach         IPV4[/BITS]  IPV6[/BITS]
 *
 * An allow without a port means 443 and 80; a deny without a port means all of them. *.NAME is
 * every name below NAME, at any depth, and never NAME itself. The brackets of an IPv6 address are
 * part of its spelling.
 *
 * How it is decided. A connection is to a name or to a literal address, and must pass all that
 * applies to it:
 *
 *   1. With "none" nothing is allowed, and with "bridge" every name and every address. With a list
 *      a name needs an allow rule with that name, and a literal address one with its range: an
 *      address is never allowed because some name leads to it.
 *   2. No deny rule fits. Deny wins, wherever it stands.
 *   3. Every address that is connected to, written or resolved, is public: it and any IPv4 address
 *      that it carries lies in no special range (policy/address.h). A reach rule lifts this for
 *      its range. It allows nothing by itself.
 *   4. No deny rule fits an address that a name leads to, or an IPv4 address that it carries.
 *
 * So a name is decided twice: policy_decide_name before anything is asked of a resolver, because a
 * question alone can carry a secret away, and policy_decide_address for each answer. A deny
 * rule with a name does not keep anybody from the addresses behind it when these are allowed
 * otherwise, as they are with "bridge".
 *
 * A policy can be narrowed and widened while it is in force by appending rules. What was denied
 * stays denied.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "policy/address.h"
#include "wire/dns.h"

/* Of all actions together: a Boxfile has up to 1,024 of each, and some are appended. */
#define POLICY_RULES_MAX 4096
/* "*." or brackets, a name or a range, ":65535" and a NUL. */
#define POLICY_RULE_TEXT (DNS_NAME_MAX + 16)
/* With its action before it. */
#define POLICY_RULE_LINE (POLICY_RULE_TEXT + 6)
/* A whole policy with POLICY_RULES_MAX rules of the largest size (action, length, text). */
#define POLICY_ENCODED_MAX (64 + POLICY_RULES_MAX * (1 + 4 + POLICY_RULE_TEXT))
/* A sentence about a verdict: what was asked for, quoted, a rule, and some words. */
#define POLICY_VERDICT_TEXT 640
/* Connections that are looked at to learn from, most of them repetitions. */
#define POLICY_SEEN_MAX 65536
/* As many allow rules as a Boxfile takes. */
#define POLICY_LEARNED_MAX 1024

enum policy_kind {
	POLICY_NONE = 0,
	POLICY_BRIDGE = 1,
	POLICY_LIST = 2,
};

enum policy_action {
	POLICY_ALLOW = 0,
	POLICY_DENY = 1,
	POLICY_REACH = 2,
};

/* What a rule is about. */
enum policy_subject {
	POLICY_NAME = 0,
	POLICY_BELOW = 1,
	POLICY_RANGE = 2,
};

struct policy_rule {
	/* enum policy_action and enum policy_subject */
	uint8_t action;
	uint8_t subject;
	/* 0: none was given. */
	uint16_t port;
	struct policy_range range;
	char name[DNS_NAME_MAX + 1];
};

struct policy_network {
	/* enum policy_kind */
	uint8_t kind;
	/* Connections at once, and bytes both ways in a machine's life; 0: no limit. For who
	 * counts. */
	uint64_t connections_max;
	uint64_t bytes_max;
	size_t rule_count;
	/* In the order in which they came; a rule's index never changes. */
	struct policy_rule rules[POLICY_RULES_MAX];
};

enum policy_reason {
	/* An allow rule, or the kind "bridge". */
	POLICY_BY_RULE,
	POLICY_BY_BRIDGE,
	/* An answer for an allowed name that is public, or that a reach rule has. */
	POLICY_BY_ADDRESS,
	POLICY_BY_REACH,
	/* Refusals: a deny rule; no rule allows it; the address is special; the name is none. */
	POLICY_NO_DENIED,
	POLICY_NO_RULE,
	POLICY_NO_SPECIAL,
	POLICY_NO_NAME,
};

struct policy_verdict {
	bool allowed;
	/* enum policy_reason */
	uint8_t reason;
	/* The rule that made it, or NULL. Belongs to the policy. */
	const struct policy_rule *rule;
	/* With POLICY_NO_SPECIAL the range that it is in, otherwise NULL. */
	const struct policy_special *special;
};

/* A Boxfile's words. */
struct policy_source {
	enum policy_kind kind;
	const char *const *allow;
	size_t allow_count;
	const char *const *deny;
	size_t deny_count;
	const char *const *reach;
	size_t reach_count;
	uint64_t connections_max;
	uint64_t bytes_max;
};

/* Something that a machine connected to while its policy was being learned. */
struct policy_seen {
	/* A name, or an address in its canonical spelling. */
	const char *host;
	uint16_t port;
};

/*
 * Makes a policy; the caller frees it with free(3). Returns 0, -ENOMEM, or what policy_append
 * returns. Nothing grows later: POLICY_RULES_MAX rules have room.
 */
int policy_make(const struct policy_source *source, struct policy_network **ret_policy,
		struct err *err);

/*
 * Appends a rule, written as above (any text; not trusted). On a policy of kind "none" an allow
 * makes a list of it. Returns 0; -EINVAL when it cannot be read, or when a reach rule does not lie
 * in one special range that may be listed; -E2BIG when there are POLICY_RULES_MAX. On failure
 * nothing has changed.
 */
int policy_append(struct policy_network *policy, enum policy_action action, const char *text,
		  struct err *err);

/*
 * Reads a rule's text (not trusted): 0, or -EINVAL with err. A range that is not in its canonical
 * spelling, or has bits set behind its prefix, is refused; the mend says how it is written. A reach
 * rule lies in one special range that may be listed.
 */
int policy_rule_parse(enum policy_action action, const char *text, struct policy_rule *ret_rule,
		      struct err *err);

/* Writes a rule in the one spelling that it is compared and shown in, without its action. out holds
 * POLICY_RULE_TEXT bytes. */
void policy_rule_format(const struct policy_rule *rule, char *out);

/* "allow", "deny" or "reach". */
const char *policy_action_word(enum policy_action action);

/* The same with its action before it. out holds POLICY_RULE_LINE bytes. */
void policy_rule_describe(const struct policy_rule *rule, char *out);

/*
 * Whether name may be asked for and then connected to on port. With port 0: whether it may be asked
 * for, because there is a port on which it is allowed. Any text; not trusted.
 */
struct policy_verdict policy_decide_name(const struct policy_network *policy, const char *name,
					 uint16_t port);

/* Whether a literal address may be connected to. All steps; no second question is needed. */
struct policy_verdict policy_decide_literal(const struct policy_network *policy,
					    const struct policy_address *address, uint16_t port);

/* Whether an address that an allowed name has just led to may be connected to. */
struct policy_verdict policy_decide_address(const struct policy_network *policy,
					    const struct policy_address *address, uint16_t port);

/*
 * One line for a log about what was asked for (not trusted; it is quoted) and decided. out gets at
 * most capacity bytes, a NUL always; POLICY_VERDICT_TEXT is enough for a name that is one.
 */
void policy_verdict_describe(const struct policy_verdict *verdict, const char *asked, char *out,
			     size_t capacity);

/*
 * Writes a policy to out, which holds POLICY_ENCODED_MAX bytes, and returns the size. Reads one: 0,
 * -ENOMEM, or -EBADMSG when it is anything but what policy_encode writes, to the letter. The bytes
 * are not trusted. The caller frees it.
 */
size_t policy_encode(const struct policy_network *policy, uint8_t *out);
int policy_decode(const uint8_t *data, size_t size, struct policy_network **ret_policy);

/*
 * Makes the smallest list that allows what was seen, and no more: every name and port once, sorted,
 * without wildcards; a name that was seen on both 443 and 80 is one rule without a port. What is no
 * host or has port 0 is left out, and counted in *ret_skipped. Returns 0, -ENOMEM, or -E2BIG with
 * more than POLICY_SEEN_MAX or more than POLICY_LEARNED_MAX rules. The caller frees it. With
 * nothing seen its kind is "none". It allows special addresses that were seen but does not reach
 * them: whether these are to be opened is for a person to say.
 */
int policy_learn(const struct policy_seen *seen, size_t count, struct policy_network **ret_policy,
		 size_t *ret_skipped, struct err *err);
