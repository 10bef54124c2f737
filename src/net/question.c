/*
 * What the guest asks for names. Each question takes its turn, is decided by the policy, and only
 * then, if at all, becomes a lookup: a question alone could carry a secret to a resolver.
 */
#include "net/net.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mutant.h"

static struct question *find(struct net *net, uint8_t state)
{
	struct question *first = NULL;

	for (size_t i = 0; i < NET_QUESTIONS_MAX; i++) {
		struct question *question = &net->questions[i];

		if (question->state == state && (!first || question->number < first->number)) {
			first = question;
		}
	}
	return first;
}

int question_ask(struct net *net, const struct net_resolve *resolve)
{
	struct question *question = find(net, QUESTION_FREE);

	for (size_t i = 0; i < NET_QUESTIONS_MAX; i++) {
		if (net->questions[i].state != QUESTION_FREE &&
		    net->questions[i].token == resolve->token) {
			net->wrong = "a question with the token of another";
			return -EBADMSG;
		}
	}
	if (!question) {
		net->wrong = "more questions than there may be";
		return -EBADMSG;
	}
	*question = (struct question){
		.state = QUESTION_WAITING,
		.token = resolve->token,
		.number = ++net->last_question,
		.event = {.kind = IPC_NET_ASKED, .time_ns = clock_realtime_ns()},
		.began_ns = clock_monotonic_ns(),
	};
	ASSERT(strlen(resolve->name) < sizeof(question->event.host));
	memcpy(question->event.host, resolve->name, strlen(resolve->name) + 1);
	net->questions_waiting++;
	return 0;
}

static void answer(struct net *net, struct question *question, enum net_status status)
{
	question->answer = (struct net_resolved){
		.token = question->token,
		.status = (uint8_t)status,
	};
	if (question->lookup) {
		if (status == NET_OK) {
			question->answer.has_v4 = question->lookup->address_count[0] > 0;
			question->answer.has_v6 = question->lookup->address_count[1] > 0;
		}
		resolver_release(question->lookup);
		question->lookup = NULL;
	} else if (question->by_proxy) {
		/* The proxy resolves the name when it is connected to. Inside both kinds of address
		 * stand for the name, so a program that has only one is right too. */
		question->answer.has_v4 = question->answer.has_v6 = true;
	}
	question->event.status = (uint8_t)status;
	report_event(net, &question->event, question->began_ns);
	question->state = QUESTION_ANSWERED;
	net->questions_answered++;
}

/* Whether the policy lets it be asked; fills in the event. */
static bool decide(const struct net *net, struct ipc_net_event *event)
{
	struct policy_verdict verdict;

	if (!net->policy) {
		event->reason = IPC_NET_NO_POLICY;
		return false;
	}
	verdict = policy_decide_name(net->policy, event->host, 0);
	report_verdict(event, &verdict);
	if (verdict.allowed && net->over_bytes) {
		event->allowed = 0;
		event->reason = IPC_NET_NO_BYTES;
	}
	return event->allowed;
}

static void begin(struct net *net, struct question *question)
{
	question->event.id = ++net->last_id;
	if (!decide(net, &question->event) && !MUTANT("labels")) {
		answer(net, question, NET_DENIED);
		return;
	}
	question->by_proxy = proxy_is_for(net, question->event.host, NULL, 0);
	if (question->by_proxy) {
		question->event.proxy = IPC_NET_PROXY_SILENT;
		answer(net, question, NET_OK);
		return;
	}
	question->lookup = net_look_up(net, question->event.host);
	if (!question->lookup) {
		answer(net, question, NET_TEMPORARY);
	} else if (question->lookup->state == LOOKUP_DONE) {
		answer(net, question, question->lookup->status);
	} else {
		question->state = QUESTION_RESOLVING;
		net_need_tick(net);
	}
}

void question_begin_waiting(struct net *net)
{
	while (net->questions_waiting > 0 && net_may_begin(net)) {
		if (!pace_take(&net->question_pace, clock_monotonic_ns())) {
			net_need_tick(net);
			return;
		}
		net->questions_waiting--;
		begin(net, find(net, QUESTION_WAITING));
	}
}

void question_lookup_done(struct net *net, struct lookup *lookup)
{
	for (size_t i = 0; i < NET_QUESTIONS_MAX; i++) {
		struct question *question = &net->questions[i];

		if (question->state == QUESTION_RESOLVING && question->lookup == lookup) {
			answer(net, question, lookup->status);
		}
	}
}

void question_drop_all(struct net *net)
{
	for (size_t i = 0; i < NET_QUESTIONS_MAX; i++) {
		struct question *question = &net->questions[i];

		if (question->state == QUESTION_RESOLVING) {
			answer(net, question, NET_TEMPORARY);
		}
		question->state = QUESTION_FREE;
	}
	net->questions_waiting = net->questions_answered = 0;
}

size_t question_take_answer(struct net *net, uint8_t *out)
{
	struct question *question;

	if (net->questions_answered == 0) {
		return 0;
	}
	question = find(net, QUESTION_ANSWERED);
	question->state = QUESTION_FREE;
	net->questions_answered--;
	return (size_t)net_resolved_encode(&question->answer, out);
}
