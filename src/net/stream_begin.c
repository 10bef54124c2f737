/*
 * A stream from OPEN to its first attempt to connect: the policy is asked about the name, then
 * about each address that the name has led to just now; those that pass are connected to as they
 * are.
 */
#include "net/net.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/mutant.h"

/* As many connections as a machine may have under this policy. */
static uint64_t connections_max(const struct net *net)
{
	uint64_t limit = net->policy->connections_max;

	return limit == 0 ? NET_STREAMS_MAX : MIN(limit, (uint64_t)NET_STREAMS_MAX);
}

bool stream_decide(struct stream *stream, struct ipc_net_event *event)
{
	const struct net *net = stream->net;
	bool has_address = !stream->by_proxy &&
			   (stream->state == STREAM_OPEN || stream->state == STREAM_LINGERING);
	struct policy_verdict verdict;

	event->rule[0] = event->special[0] = '\0';
	if (!net->policy) {
		event->allowed = 0;
		event->reason = IPC_NET_NO_POLICY;
		return false;
	}
	verdict = stream->kind == NET_KIND_NAME
			  ? policy_decide_name(net->policy, event->host, event->port)
			  : policy_decide_literal(net->policy, &stream->literal, event->port);
	if (verdict.allowed && has_address) {
		struct policy_verdict second =
			policy_decide_address(net->policy, &stream->address, event->port);

		verdict = second.allowed ? verdict : second;
	}
	report_verdict(event, &verdict);
	return verdict.allowed;
}

/* What a policy of 1,000 connections lets nobody do in an unlimited number. */
static bool is_within_limits(struct stream *stream)
{
	struct net *net = stream->net;
	uint64_t limit = connections_max(net);

	if (!net->over_bytes && net->counted < limit) {
		return true;
	}
	/* No rule refuses it. */
	stream->event.rule[0] = '\0';
	if (net->over_bytes) {
		stream->event.reason = IPC_NET_NO_BYTES;
		return false;
	}
	stream->event.reason = IPC_NET_NO_CONNECTIONS;
	if (!net->told_connections) {
		net->told_connections = true;
		report_limit(net, IPC_NET_LIMIT_CONNECTIONS, limit,
			     "limits.connections is reached; further connections are refused");
	}
	return false;
}

void stream_refuse(struct stream *stream, int error)
{
	stream->event.allowed = 0;
	stream_failed(stream, error);
}

/* The next of a name's addresses, one of IPv6 and one of IPv4 in turn (RFC 8305, 4), or NULL. */
static const struct policy_address *nth_address(const struct lookup *lookup, size_t i)
{
	int kind = i % 2 == 0;

	return i / 2 < lookup->address_count[kind] ? &lookup->addresses[kind][i / 2] : NULL;
}

/* All of the proxy's. */
static bool take_proxy(struct stream *stream, const struct lookup *lookup)
{
	for (size_t i = 0; i < 2 * (size_t)RESOLVER_ADDRESSES; i++) {
		const struct policy_address *address = nth_address(lookup, i);

		if (address && stream->candidate_count < CANDIDATES_MAX) {
			stream->candidates[stream->candidate_count++] = *address;
		}
	}
	return stream->candidate_count > 0;
}

/* Takes those of the addresses that the policy allows, in turn. When it allows none, the event says
 * why not the first. */
static bool take_candidates(struct stream *stream, const struct lookup *lookup)
{
	const struct policy_network *policy = stream->net->policy;
	struct ipc_net_event *event = &stream->event;
	bool refused = false;

	for (size_t i = 0; i < 2 * (size_t)RESOLVER_ADDRESSES; i++) {
		const struct policy_address *address = nth_address(lookup, i);
		struct policy_verdict verdict;

		if (!address || stream->candidate_count == CANDIDATES_MAX) {
			continue;
		}
		verdict = policy_decide_address(policy, address, event->port);
		/* The first connection of a machine has number 1. */
		if (verdict.allowed || (MUTANT("later-looks") && stream->number > 1)) {
			stream->candidates[stream->candidate_count++] = *address;
		} else if (!refused && stream->candidate_count == 0) {
			refused = true;
			report_verdict(event, &verdict);
			policy_address_format(address, event->address);
		}
	}
	if (refused && stream->candidate_count > 0) {
		event->address[0] = '\0';
		(void)stream_decide(stream, event);
	}
	return stream->candidate_count > 0;
}

static void resolved(struct stream *stream)
{
	struct lookup *lookup = stream->lookup;
	bool found = lookup->address_count[0] + lookup->address_count[1] > 0;
	bool passed;

	stream->lookup = NULL;
	if (!stream_decide(stream, &stream->event)) {
		/* The policy is another than when it was asked for. */
		resolver_release(lookup);
		stream_refuse(stream, ECONNREFUSED);
		return;
	}
	passed = found &&
		 (stream->by_proxy ? take_proxy(stream, lookup) : take_candidates(stream, lookup));
	resolver_release(lookup);
	if (passed) {
		dial_begin(stream);
	} else if (found) {
		stream_refuse(stream, ECONNREFUSED);
	} else {
		stream_failed(stream, EHOSTUNREACH);
	}
}

void stream_lookup_done(struct net *net, struct lookup *lookup)
{
	for (size_t i = 0; i < SLOTS; i++) {
		struct stream *stream = &net->streams[i];

		if (stream->state == STREAM_RESOLVING && stream->lookup == lookup) {
			resolved(stream);
		}
	}
}

/* Where to connect to is known already: an address that was allowed, or the proxy's. */
static bool knows_address(struct stream *stream)
{
	struct policy_address *first = &stream->candidates[0];

	if (stream->by_proxy) {
		stream->candidate_count = policy_address_parse(stream->net->proxy.host, first) == 0;
	} else if (stream->kind != NET_KIND_NAME) {
		*first = stream->literal;
		stream->candidate_count = 1;
	}
	return stream->candidate_count > 0;
}

void stream_start(struct stream *stream)
{
	struct net *net = stream->net;

	stream->event.id = ++net->last_id;
	stream->state = STREAM_RESOLVING;
	if (!stream_decide(stream, &stream->event) || !is_within_limits(stream)) {
		stream_refuse(stream, ECONNREFUSED);
		return;
	}
	stream->counted = true;
	net->counted++;
	stream->by_proxy = proxy_is_for(net, stream->event.host,
					stream->kind == NET_KIND_NAME ? NULL : &stream->literal,
					stream->event.port);
	stream->event.proxy = stream->by_proxy ? IPC_NET_PROXY_SILENT : 0;
	if (knows_address(stream)) {
		dial_begin(stream);
		return;
	}
	stream->lookup = net_look_up(net, stream->by_proxy ? net->proxy.host : stream->event.host);
	if (!stream->lookup) {
		stream_failed(stream, EHOSTUNREACH);
	} else if (stream->lookup->state == LOOKUP_DONE) {
		resolved(stream);
	} else {
		net_need_tick(net);
	}
}

void stream_look_for_name(struct stream *stream, const uint8_t *data, size_t size)
{
	char name[DNS_NAME_MAX + 1];
	size_t more = MIN(size, TLS_HELLO_MAX - stream->hello_size);
	bool kept = stream->hello_size > 0;
	int rc;

	if (stream->hello_done) {
		return;
	}
	if (kept) {
		memcpy(stream->hello + stream->hello_size, data, more);
		stream->hello_size += more;
		rc = tls_server_name(stream->hello, stream->hello_size, name);
	} else {
		rc = tls_server_name(data, size, name);
	}
	if (rc == 0 && !kept && size < TLS_HELLO_MAX) {
		/* Hardly ever: the beginning of a hello. */
		memcpy(stream->hello, data, size);
		stream->hello_size = size;
		return;
	}
	if (rc == 0 && kept && stream->hello_size < TLS_HELLO_MAX) {
		return;
	}
	stream->hello_done = true;
	if (rc == 1 && strcmp(name, stream->event.host) != 0 && !MUTANT("server-name")) {
		stream->event.note = IPC_NET_NOTE_SNI;
		memcpy(stream->event.sni, name, strlen(name) + 1);
	}
}
