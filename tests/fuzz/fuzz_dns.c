/*
 * Any bytes as a DNS message. The first byte says as what: 0 a question, 1 and 2 a response to a
 * query for an A or AAAA record of "a.b" with ID 0x1234.
 *
 * A question is also answered, in all ways that fit its type; our own client must understand what
 * our server says.
 */
#include "fuzz.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "wire/dns.h"

static uint8_t out[DNS_MESSAGE_MAX];

static void check_response(const struct dns_response *response, uint16_t type)
{
	static const uint8_t zero[16];

	ASSERT(response->rcode < 4096 && response->address_count <= DNS_ADDRESSES_MAX);
	ASSERT(response->ttl_s <= INT32_MAX);
	if (response->truncated || response->rcode != DNS_NOERROR) {
		ASSERT(response->address_count == 0);
	}
	if (response->address_count == 0) {
		ASSERT(response->ttl_s == 0);
	}
	for (size_t i = 0; type == DNS_TYPE_A && i < response->address_count; i++) {
		ASSERT(memcmp(response->addresses[i] + 4, zero, 12) == 0);
	}
}

/* The answer must fit, and say to a client what it was made from. */
static void check_answer(const struct dns_question *question, const struct dns_answer *answer,
			 size_t capacity)
{
	struct dns_query query = {question->id, question->type, question->name};
	struct dns_response response;
	int size = dns_answer_encode(question, answer, out, capacity);

	ASSERT(size >= 12 && (size_t)size <= capacity);
	/* A server takes no answer for a question. */
	ASSERT(dns_question_decode(out, (size_t)size, &(struct dns_question){0}) == -EBADMSG);
	/* A client asks for addresses only. */
	if (question->rcode != DNS_NOERROR ||
	    (question->type != DNS_TYPE_A && question->type != DNS_TYPE_AAAA)) {
		return;
	}
	ASSERT(dns_response_decode(out, (size_t)size, &query, &response) == 0);
	check_response(&response, query.type);
	ASSERT(response.truncated || (response.rcode == answer->rcode &&
				      response.address_count == answer->address_count));
	ASSERT(!response.truncated || capacity == question->udp_size);
}

static void try_question(const uint8_t *message, size_t size)
{
	static const uint8_t addresses[DNS_ADDRESSES_MAX * 16] = {10, 0, 0, 1, [1023] = 1};
	struct dns_question question;
	struct dns_answer answer = {.ttl_s = 30};
	uint8_t address[16];
	int rc = dns_question_decode(message, size, &question);

	if (rc < 0) {
		ASSERT(rc == -EBADMSG);
		return;
	}
	ASSERT(question.udp_size >= DNS_UDP_MIN && question.udp_size <= DNS_UDP_SIZE);
	ASSERT((question.rcode == DNS_NOERROR) == dns_name_valid(question.name));
	check_answer(&question, &answer, question.udp_size);
	if (question.rcode != DNS_NOERROR) {
		return;
	}
	rc = dns_reverse_decode(question.name, address);
	ASSERT(rc == 4 || rc == 16 || rc == -EINVAL);
	if (question.type == DNS_TYPE_A || question.type == DNS_TYPE_AAAA) {
		answer.addresses = addresses;
		answer.address_count = 1;
		check_answer(&question, &answer, DNS_MESSAGE_MAX);
		answer.address_count = DNS_ADDRESSES_MAX;
		check_answer(&question, &answer, question.udp_size);
		check_answer(&question, &answer, DNS_MESSAGE_MAX);
	} else if (question.type == DNS_TYPE_PTR) {
		answer.pointer = question.name;
		check_answer(&question, &answer, DNS_MESSAGE_MAX);
	}
	answer = (struct dns_answer){.rcode = DNS_NXDOMAIN};
	check_answer(&question, &answer, question.udp_size);
}

static void try_response(const uint8_t *message, size_t size, uint16_t type)
{
	const struct dns_query query = {0x1234, type, "a.b"};
	struct dns_response response;
	int rc = dns_response_decode(message, size, &query, &response);

	if (rc < 0) {
		ASSERT(rc == -EBADMSG || rc == -ENOMSG);
		return;
	}
	check_response(&response, type);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_free_ uint8_t *message = NULL;

	if (size == 0 || size - 1 > DNS_MESSAGE_MAX) {
		return 0;
	}
	/* A copy of exactly that size, so that a sanitizer sees a read of one byte more. */
	message = malloc(size - 1 > 0 ? size - 1 : 1);
	ASSERT(message);
	memcpy(message, data + 1, size - 1);
	if (data[0] == 0) {
		try_question(message, size - 1);
	} else {
		try_response(message, size - 1, data[0] == 1 ? DNS_TYPE_A : DNS_TYPE_AAAA);
	}
	return 0;
}
