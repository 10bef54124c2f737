/*
 * The log of the network, NAME+net.jsonl (store/log.h): what the machine asked for, and what became
 * of it. Lines (times as in record.h; what does not apply is left out):
 *
 *   {"event":"asked","time":T,"machine":M,"life":N,"id":N,"host":H,"allowed":B,"reason":WORD,
 *    "rule":TEXT,"special":TEXT,"status":WORD,"duration_ms":N}
 *   {"event":"connected", as "asked" with "port":N, "address":A, "error":NAME}
 *   "proxy":N stands in any of them for what goes through the host's proxy: the status that it has
 *   answered with, or 1. There is no "address" then.
 *   {"event":"ended", as "connected" with "end":WORD,"bytes_up":N,"bytes_down":N,"sni":NAME}
 *   {"event":"limit","time":T,"machine":M,"life":N,"kind":WORD,"value":N,"text":TEXT}
 *   {"event":"policy","time":T,"machine":M,"life":N,"rule":TEXT}
 *
 * A connection that was made has two lines with one id; ids begin anew with each life, which is a
 * random number. Every text was judged by ipc_net_decode, and JSON quotes it, so that no name can
 * make a line of its own.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "ipc/net.h"
#include "json/json.h"
#include "keeper/keeper.h"
#include "store/log.h"
#include "wire/net.h"

static const char *reason_word(uint8_t reason)
{
	static const struct {
		uint8_t reason;
		const char *word;
	} words[] = {
		{POLICY_BY_RULE, "rule"},	  {POLICY_BY_BRIDGE, "bridge"},
		{POLICY_BY_ADDRESS, "address"},	  {POLICY_BY_REACH, "reach"},
		{POLICY_NO_DENIED, "denied"},	  {POLICY_NO_RULE, "no-rule"},
		{POLICY_NO_SPECIAL, "special"},	  {POLICY_NO_NAME, "no-name"},
		{IPC_NET_NO_POLICY, "no-policy"}, {IPC_NET_NO_CONNECTIONS, "connections"},
		{IPC_NET_NO_BYTES, "bytes"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
		if (words[i].reason == reason) {
			return words[i].word;
		}
	}
	return "unknown";
}

static const char *word_of(const char *const *words, size_t count, size_t at)
{
	return at < count && words[at] ? words[at] : "unknown";
}

/* What every line begins with. NULL without memory. */
static struct json *begin(const struct keeper *keeper, const char *event, uint64_t time_ns)
{
	struct json *object = json_new_object();
	char time[RECORD_TIME_SIZE];

	record_format_time(time_ns, time);
	if (json_set_string(object, "event", event) < 0 ||
	    json_set_string(object, "time", time) < 0 ||
	    json_set_string(object, "machine", keeper->net.log->machine) < 0 ||
	    json_set_integer(object, "life", keeper->net.life) < 0) {
		json_free(object);
		return NULL;
	}
	return object;
}

static void append(struct keeper *keeper, struct json *object, int rc)
{
	char name[sizeof(keeper->start.name) + sizeof(STORE_LOG_NET)];

	snprintf(name, sizeof(name), "%s" STORE_LOG_NET, keeper->start.name);
	record_append(keeper->net.log, name, object, object ? rc : -ENOMEM);
}

/* Numbers of a broken box-net may be of any size; JSON's are signed. */
static int set_number(struct json *object, const char *key, uint64_t value)
{
	return json_set_integer(object, key, (int64_t)MIN(value, (uint64_t)INT64_MAX));
}

static int set_texts(struct json *object, const struct ipc_net_event *event)
{
	const struct {
		const char *key;
		const char *text;
	} texts[] = {
		{"host", event->host},	     {"address", event->address}, {"rule", event->rule},
		{"special", event->special}, {"sni", event->sni},
	};

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		if (texts[i].text[0] && json_set_string(object, texts[i].key, texts[i].text) < 0) {
			return -ENOMEM;
		}
	}
	return 0;
}

static int set_error(struct json *object, uint32_t error)
{
	const char *name = error < 4096 ? strerrorname_np((int)error) : NULL;

	return error == 0 ? 0 : json_set_string(object, "error", name ? name : "unknown");
}

/* What became of it, by kind. */
static int set_outcome(struct json *object, const struct ipc_net_event *event)
{
	static const char *const statuses[] = {
		[NET_OK] = "found",
		[NET_NXDOMAIN] = "no-such-name",
		[NET_DENIED] = "refused",
		[NET_TEMPORARY] = "no-answer",
	};
	static const char *const ends[] = {
		[IPC_NET_END_BOTH] = "both",	 [IPC_NET_END_GUEST] = "guest",
		[IPC_NET_END_SERVER] = "server", [IPC_NET_END_POLICY] = "policy",
		[IPC_NET_END_LIMIT] = "limit",	 [IPC_NET_END_PORT] = "machine",
	};

	if (event->kind == IPC_NET_ASKED) {
		return json_set_string(object, "status",
				       word_of(statuses, ARRAY_SIZE(statuses), event->status));
	}
	if (set_number(object, "port", event->port) < 0 || set_error(object, event->error) < 0) {
		return -ENOMEM;
	}
	if (event->kind != IPC_NET_ENDED) {
		return 0;
	}
	if (json_set_string(object, "end", word_of(ends, ARRAY_SIZE(ends), event->end)) < 0 ||
	    set_number(object, "bytes_up", event->bytes_up) < 0 ||
	    set_number(object, "bytes_down", event->bytes_down) < 0) {
		return -ENOMEM;
	}
	return 0;
}

void net_log_event(struct keeper *keeper, const struct ipc_net_event *event)
{
	static const char *const kinds[] = {
		[IPC_NET_ASKED] = "asked",
		[IPC_NET_CONNECTED] = "connected",
		[IPC_NET_ENDED] = "ended",
	};
	struct json *object;
	int rc = 0;

	if (!keeper->net.log) {
		return;
	}
	object = begin(keeper, word_of(kinds, ARRAY_SIZE(kinds), event->kind), event->time_ns);
	if (set_number(object, "id", event->id) < 0 ||
	    (event->proxy != 0 && set_number(object, "proxy", event->proxy) < 0) ||
	    json_set_boolean(object, "allowed", event->allowed) < 0 ||
	    json_set_string(object, "reason", reason_word(event->reason)) < 0 ||
	    set_number(object, "duration_ms", event->duration_ns / 1000000) < 0 ||
	    set_texts(object, event) < 0 || set_outcome(object, event) < 0) {
		rc = -ENOMEM;
	}
	append(keeper, object, rc);
}

void net_log_limit(struct keeper *keeper, const struct ipc_net_limit *limit)
{
	static const char *const kinds[] = {
		[IPC_NET_LIMIT_CONNECTIONS] = "connections",
		[IPC_NET_LIMIT_BYTES] = "bytes",
		[IPC_NET_LIMIT_PROTOCOL] = "protocol",
	};
	struct json *object;
	int rc = 0;

	if (!keeper->net.log) {
		return;
	}
	object = begin(keeper, "limit", clock_realtime_ns());
	if (json_set_string(object, "kind", word_of(kinds, ARRAY_SIZE(kinds), limit->kind)) < 0 ||
	    set_number(object, "value", limit->value) < 0 ||
	    json_set_string(object, "text", limit->text) < 0) {
		rc = -ENOMEM;
	}
	append(keeper, object, rc);
}

void net_log_rule(struct keeper *keeper, const char *rule)
{
	struct json *object;

	if (keeper->net.log) {
		object = begin(keeper, "policy", clock_realtime_ns());
		append(keeper, object, json_set_string(object, "rule", rule));
	}
}
