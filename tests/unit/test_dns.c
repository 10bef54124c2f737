#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "wire/dns.h"

/* A literal's bytes and their number, without the NUL behind them. */
#define BYTES(text) (const uint8_t *)(text), sizeof(text) - 1
/* "a.b IN A" and "a.b IN AAAA" on the wire. */
#define A_B_NAME "\1a\1b\0"
#define A_B_A A_B_NAME "\0\1\0\1"
#define A_B_AAAA A_B_NAME "\0\x1c\0\1"
/* ID 0x1234, recursion desired, one question. */
#define ASK "\x12\x34\1\0\0\1\0\0\0\0\0\0"
#define ASK_EDNS "\x12\x34\1\0\0\1\0\0\0\0\0\1"
/* An OPT record of 1,232 bytes without options. */
#define OPT "\0\0\x29\4\xd0\0\0\0\0\0\0"
/* The head of a response to it with n answers. */
#define ANSWERED(n) "\x12\x34\x81\x80\0\1\0" n "\0\0\0\0"

#define SIXTY_FIVE "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static uint8_t out[DNS_MESSAGE_MAX];

/* Both decoders get a copy of exactly that size, so that a sanitizer sees a read of one more. */
static int ask(const uint8_t *bytes, size_t size, struct dns_question *ret)
{
	uint8_t *copy = malloc(size > 0 ? size : 1);
	int rc;

	assert_non_null(copy);
	memcpy(copy, bytes, size);
	rc = dns_question_decode(copy, size, ret);
	free(copy);
	return rc;
}

static int respond(const uint8_t *bytes, size_t size, const struct dns_query *query,
		   struct dns_response *ret)
{
	uint8_t *copy = malloc(size > 0 ? size : 1);
	int rc;

	assert_non_null(copy);
	memcpy(copy, bytes, size);
	rc = dns_response_decode(copy, size, query, ret);
	free(copy);
	return rc;
}

static const struct dns_query a_query = {.id = 0x1234, .type = DNS_TYPE_A, .name = "a.b"};
static const struct dns_query aaaa_query = {.id = 0x1234, .type = DNS_TYPE_AAAA, .name = "a.b"};

static void test_name_valid(void **state)
{
	static const char *const good[] = {"a",	       "a.b",	   "xn--bcher-kva.example",
					   "_dmarc.a", "a-.-b",	   "127.1",
					   "0x7f",     "a--b.c_d", "9.in-addr.arpa"};
	static const char *const bad[] = {"",	       ".",    "a.",  ".a",  "a..b", "A",
					  "a b",       "a/b",  "a:b", "a@b", "a*b",  "*.a",
					  "b\xc3\xbc", "a\tb", "a\n", "[a]", "a%b",  "a\\b"};
	char name[300];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		assert_true(dns_name_valid(good[i]));
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_false(dns_name_valid(bad[i]));
	}
	memset(name, 'a', sizeof(name));
	name[63] = '\0';
	assert_true(dns_name_valid(name));
	name[63] = 'a';
	name[64] = '\0';
	assert_false(dns_name_valid(name));
	for (size_t i = 0; i < sizeof(name); i++) {
		name[i] = i % 2 ? '.' : 'a';
	}
	name[253] = '\0';
	assert_true(dns_name_valid(name));
	name[253] = '.';
	name[255] = '\0';
	assert_false(dns_name_valid(name));
}

static void test_question(void **state)
{
	struct dns_question question;

	(void)state;
	assert_int_equal(ask(BYTES(ASK "\1A\1b\0\0\x1c\0\1"), &question), 0);
	assert_int_equal(question.rcode, DNS_NOERROR);
	assert_int_equal(question.id, 0x1234);
	assert_int_equal(question.type, DNS_TYPE_AAAA);
	assert_string_equal(question.name, "a.b");
	assert_int_equal(question.udp_size, 512);
	assert_false(question.edns);
	/* To the letter, with its upper case. */
	assert_int_equal(question.echo_size, 9);
	assert_memory_equal(question.echo, "\1A\1b\0\0\x1c\0\1", 9);
}

static void test_question_edns(void **state)
{
	/* Sizes that are announced, and what is made of them (RFC 6891, 6.2.3). */
	static const struct {
		uint8_t size[2];
		uint16_t used;
	} sizes[] = {{{0, 0}, 512},
		     {{1, 255}, 512},
		     {{2, 1}, 513},
		     {{4, 0xd0}, 1232},
		     {{255, 255}, 1232}};
	char message[] = ASK_EDNS A_B_A OPT;
	struct dns_question question;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		memcpy(message + 12 + 9 + 3, sizes[i].size, 2);
		assert_int_equal(ask((uint8_t *)message, sizeof(message) - 1, &question), 0);
		assert_int_equal(question.rcode, DNS_NOERROR);
		assert_true(question.edns);
		assert_false(question.dnssec_ok);
		assert_int_equal(question.udp_size, sizes[i].used);
	}
	/* DO, and an option (a cookie of 8 bytes) that means nothing here. */
	assert_int_equal(ask(BYTES(ASK_EDNS A_B_A "\0\0\x29\4\xd0\0\0\x80\0\0\x0c"
						  "\0\x0a\0\x08"
						  "cookies!"),
			     &question),
			 0);
	assert_int_equal(question.rcode, DNS_NOERROR);
	assert_true(question.dnssec_ok);
	/* A record that is no OPT, such as a signature, is skipped. */
	assert_int_equal(ask(BYTES(ASK_EDNS A_B_A "\xc0\x0c\0\xfa\0\xff\0\0\0\0\0\2zz"), &question),
			 0);
	assert_int_equal(question.rcode, DNS_NOERROR);
	assert_false(question.edns);
}

struct refused {
	const char *what;
	const uint8_t *bytes;
	size_t size;
	uint16_t rcode;
	bool edns;
};

static const struct refused refused[] = {
	{"no question", BYTES("\0\0\1\0\0\0\0\0\0\0\0\0"), DNS_FORMERR},
	{"two", BYTES("\0\0\1\0\0\2\0\0\0\0\0\0" A_B_A A_B_A), DNS_FORMERR},
	{"an answer", BYTES("\0\0\1\0\0\1\0\1\0\0\0\0" A_B_A), DNS_FORMERR},
	{"an authority", BYTES("\0\0\1\0\0\1\0\0\0\1\0\0" A_B_A), DNS_FORMERR},
	{"no record", BYTES(ASK_EDNS A_B_A), DNS_FORMERR},
	{"no name", BYTES(ASK), DNS_FORMERR},
	{"no end of name", BYTES(ASK "\1a\1b"), DNS_FORMERR},
	{"a short label", BYTES(ASK "\5a"), DNS_FORMERR},
	{"no class", BYTES(ASK A_B_NAME "\0\1\0"), DNS_FORMERR},
	{"a pointer to itself", BYTES(ASK "\xc0\x0c\0\1\0\1"), DNS_FORMERR},
	{"a pointer to the header", BYTES(ASK "\1a\xc0\0\0\1\0\1"), DNS_FORMERR},
	{"a pointer forward", BYTES(ASK "\1a\xc0\x14\0\1\0\1\1a\0"), DNS_FORMERR},
	{"a pointer cut", BYTES(ASK "\1a\xc0"), DNS_FORMERR},
	{"a label of type 01", BYTES(ASK "\x41" SIXTY_FIVE "\0\0\1\0\1"), DNS_FORMERR},
	{"a label of type 10", BYTES(ASK "\x81" SIXTY_FIVE SIXTY_FIVE "\0\0\1\0\1"), DNS_FORMERR},
	{"bytes left over", BYTES(ASK A_B_A "x"), DNS_FORMERR},
	{"type 0", BYTES(ASK A_B_NAME "\0\0\0\1"), DNS_FORMERR},
	{"type OPT", BYTES(ASK A_B_NAME "\0\x29\0\1"), DNS_FORMERR},
	{"AXFR", BYTES(ASK A_B_NAME "\0\xfc\0\1"), DNS_NOTIMP},
	{"IXFR", BYTES(ASK A_B_NAME "\0\xfb\0\1"), DNS_NOTIMP},
	{"MAILA", BYTES(ASK A_B_NAME "\0\xfe\0\1"), DNS_NOTIMP},
	{"class CH", BYTES(ASK A_B_NAME "\0\1\0\3"), DNS_REFUSED},
	{"class ANY", BYTES(ASK A_B_NAME "\0\1\0\xff"), DNS_REFUSED},
	{"the root", BYTES(ASK "\0\0\2\0\1"), DNS_REFUSED},
	{"a space", BYTES(ASK "\3a c\0\0\1\0\1"), DNS_REFUSED},
	{"a NUL", BYTES(ASK "\3a\0c\0\0\1\0\1"), DNS_REFUSED},
	{"a dot in a label", BYTES(ASK "\3a.c\0\0\1\0\1"), DNS_REFUSED},
	{"UTF-8", BYTES(ASK "\2\xc3\xbc\0\0\1\0\1"), DNS_REFUSED},
	{"IQUERY", BYTES("\0\0\x09\0\0\1\0\0\0\0\0\0" A_B_A), DNS_NOTIMP},
	{"UPDATE", BYTES("\0\0\x28\0\0\1\0\0\0\0\0\0" A_B_A), DNS_NOTIMP},
	{"two OPT", BYTES("\0\0\1\0\0\1\0\0\0\0\0\2" A_B_A OPT OPT), DNS_FORMERR, true},
	{"OPT of a name", BYTES(ASK_EDNS A_B_A "\1a" OPT), DNS_FORMERR},
	{"OPT cut", BYTES(ASK_EDNS A_B_A "\0\0\x29\4\xd0\0\0\0\0\0\1"), DNS_FORMERR},
	{"half an option", BYTES(ASK_EDNS A_B_A "\0\0\x29\4\xd0\0\0\0\0\0\2\0\x0a"), DNS_FORMERR,
	 true},
	{"an option too long", BYTES(ASK_EDNS A_B_A "\0\0\x29\4\xd0\0\0\0\0\0\4\0\x0a\0\1"),
	 DNS_FORMERR, true},
	{"EDNS 1", BYTES(ASK_EDNS A_B_A "\0\0\x29\4\xd0\0\1\0\0\0\0"), DNS_BADVERS, true},
};

static void test_question_refused(void **state)
{
	struct dns_question question;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
		int size;

		print_message("# %s\n", refused[i].what);
		assert_int_equal(ask(refused[i].bytes, refused[i].size, &question), 0);
		assert_int_equal(question.rcode, refused[i].rcode);
		assert_int_equal(question.edns, refused[i].edns);
		assert_string_equal(question.name, "");
		/* Each can be answered, and the answer says it. */
		size = dns_answer_encode(&question, NULL, out, question.udp_size);
		assert_true(size >= 12);
		assert_int_equal(out[2] & 0x80, 0x80);
		assert_int_equal(out[3] & 0x0f, refused[i].rcode & 0x0f);
		assert_int_equal(out[11], refused[i].edns);
		assert_int_equal(out[7], 0);
		/* The upper bits of BADVERS stand in the OPT record. */
		if (refused[i].edns) {
			assert_int_equal(out[size - 6], refused[i].rcode >> 4);
		}
	}
	/* These get no answer. */
	assert_int_equal(ask(BYTES("\0\0\1\0\0\1\0\0\0\0\0"), &question), -EBADMSG);
	assert_int_equal(ask(BYTES(""), &question), -EBADMSG);
	assert_int_equal(ask(BYTES(ANSWERED("\0") A_B_A), &question), -EBADMSG);
}

static void test_question_longest(void **state)
{
	uint8_t message[12 + 256 + 4] = ASK;
	struct dns_question question;
	size_t size = 12;

	(void)state;
	/* Labels of 63, 63, 63 and 61 bytes: 255 on the wire, 253 as text. */
	for (unsigned i = 0; i < 4; i++) {
		uint8_t length = i < 3 ? 63 : 61;

		message[size++] = length;
		memset(message + size, 'a', length);
		size += length;
	}
	message[size++] = 0;
	memcpy(message + size, "\0\1\0\1", 4);
	assert_int_equal(ask(message, size + 4, &question), 0);
	assert_int_equal(question.rcode, DNS_NOERROR);
	assert_int_equal(strlen(question.name), DNS_NAME_MAX);
	assert_int_equal(question.echo_size, DNS_QUESTION_MAX);
	assert_true(dns_name_valid(question.name));
	assert_true(dns_answer_encode(&question, &(struct dns_answer){0}, out, 512) > 0);
	/* One more. */
	message[12 + 3 * 64] = 62;
	memcpy(message + size - 1, "a\0\0\1\0\1", 6);
	assert_int_equal(ask(message, size + 5, &question), 0);
	assert_int_equal(question.rcode, DNS_FORMERR);
}

static void test_answer(void **state)
{
	static const char two[] =
		"\x12\x34\x81\x80\0\1\0\2\0\0\0\0" A_B_A "\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x0a\0\0\1"
		"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x0a\0\0\2";
	static const uint8_t addresses[] = {10, 0, 0, 1, 10, 0, 0, 2};
	struct dns_answer answer = {.ttl_s = 60, .addresses = addresses, .address_count = 2};
	struct dns_question question;
	int size;

	(void)state;
	assert_int_equal(ask(BYTES(ASK A_B_A), &question), 0);
	size = dns_answer_encode(&question, &answer, out, question.udp_size);
	assert_int_equal(size, sizeof(two) - 1);
	assert_memory_equal(out, two, sizeof(two) - 1);
	/* Room for one record alone is room for none (RFC 2181, 9). */
	size = dns_answer_encode(&question, &answer, out, sizeof(two) - 2);
	assert_int_equal(size, 12 + 9);
	assert_memory_equal(out, "\x12\x34\x83\x80\0\1\0\0\0\0\0\0" A_B_A, 12 + 9);
	assert_int_equal(dns_answer_encode(&question, &answer, out, 12 + 8), -EMSGSIZE);
	/* Nothing of that type, and the rcodes that a policy gives. */
	for (uint16_t rcode = 0; rcode <= 5; rcode++) {
		answer = (struct dns_answer){.rcode = rcode};
		size = dns_answer_encode(&question, &answer, out, question.udp_size);
		assert_int_equal(size, 12 + 9);
		assert_int_equal(out[3], 0x80 | rcode);
	}
}

static void test_answer_edns(void **state)
{
	/* CD is repeated, AD is not; the OPT record says 1,232 and DO. */
	static const char expected[] =
		"\x12\x34\x81\x90\0\1\0\1\0\0\0\1" A_B_AAAA "\xc0\x0c\0\x1c\0\1\0\0\0\1\0\x10"
		"0123456789abcdef"
		"\0\0\x29\4\xd0\0\0\x80\0\0\0";
	struct dns_answer answer = {
		.ttl_s = 1, .addresses = (const uint8_t *)"0123456789abcdef", .address_count = 1};
	struct dns_question question;
	int size;

	(void)state;
	assert_int_equal(
		ask(BYTES("\x12\x34\1\x30\0\1\0\0\0\0\0\1" A_B_AAAA "\0\0\x29\4\xd0\0\0\x80\0\0\0"),
		    &question),
		0);
	size = dns_answer_encode(&question, &answer, out, question.udp_size);
	assert_int_equal(size, sizeof(expected) - 1);
	assert_memory_equal(out, expected, sizeof(expected) - 1);
	/* Cut, it still has its OPT record. */
	size = dns_answer_encode(&question, &answer, out, 12 + 9 + 11);
	assert_int_equal(size, 12 + 9 + 11);
	assert_int_equal(out[2], 0x83);
	assert_int_equal(out[11], 1);
}

static void test_answer_pointer(void **state)
{
	static const char expected[] = "\x12\x34\x81\x80\0\1\0\1\0\0\0\0"
				       "\1a\1b\0\0\x0c\0\1"
				       "\xc0\x0c\0\x0c\0\1\0\0\0\0\0\x08"
				       "\3foo\2ex\0";
	struct dns_answer answer = {.pointer = "foo.ex"};
	struct dns_question question;
	int size;

	(void)state;
	/* The name of a question of this type is looked at by the caller. */
	assert_int_equal(ask(BYTES(ASK A_B_NAME "\0\x0c\0\1"), &question), 0);
	size = dns_answer_encode(&question, &answer, out, question.udp_size);
	assert_int_equal(size, sizeof(expected) - 1);
	assert_memory_equal(out, expected, sizeof(expected) - 1);
}

static void test_reverse(void **state)
{
	static const char *const bad[] = {
		"in-addr.arpa",
		"1.2.3.in-addr.arpa",
		"1.2.3.4.5.in-addr.arpa",
		"256.2.3.4.in-addr.arpa",
		"01.2.3.4.in-addr.arpa",
		"a.2.3.4.in-addr.arpa",
		"1.2.3.4.in-addr.arpa.com",
		"1.2.3.4.ip6.arpa",
		"1.2.3.4",
		"8.b.d.0.1.0.0.2.ip6.arpa",
		"10.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa",
		"g.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa",
		"0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa",
	};
	uint8_t address[16];

	(void)state;
	assert_int_equal(dns_reverse_decode("4.3.20.100.in-addr.arpa", address), 4);
	assert_memory_equal(address, "\x64\x14\3\4", 4);
	assert_int_equal(dns_reverse_decode("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.f.8.b.d."
					    "0.1.0.0.2.ip6.arpa",
					    address),
			 16);
	assert_memory_equal(address, "\x20\1\x0d\xb8\xf0\0\0\0\0\0\0\0\0\0\0\1", 16);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(dns_reverse_decode(bad[i], address), -EINVAL);
	}
}

static void test_query(void **state)
{
	static const char expected[] = ASK_EDNS A_B_AAAA OPT;
	int size;

	(void)state;
	size = dns_query_encode(&aaaa_query, out, DNS_UDP_MIN);
	assert_int_equal(size, sizeof(expected) - 1);
	assert_memory_equal(out, expected, sizeof(expected) - 1);
	assert_int_equal(dns_query_encode(&aaaa_query, out, sizeof(expected) - 2), -EMSGSIZE);
}

/* Records, each with its owner. */
#define R_A(owner, ttl, last) owner "\0\1\0\1\0\0\0" ttl "\0\4\1\2\3" last
#define R_CNAME(owner, ttl, size, target) owner "\0\5\0\1\0\0\0" ttl "\0" size target
#define Q "\xc0\x0c"

static void test_response(void **state)
{
	struct dns_response response;

	(void)state;
	/* Two addresses, upper case in question and owner, the least TTL. */
	assert_int_equal(respond(BYTES(ANSWERED("\2") "\1A\1B\0\0\1\0\1" R_A(Q, "\x3c", "\4")
					       R_A("\1a\xc0\x0e", "\x09", "\5")),
				 &a_query, &response),
			 0);
	assert_int_equal(response.rcode, DNS_NOERROR);
	assert_false(response.truncated);
	assert_int_equal(response.ttl_s, 9);
	assert_int_equal(response.address_count, 2);
	assert_memory_equal(response.addresses[0], "\1\2\3\4\0\0\0\0\0\0\0\0\0\0\0\0", 16);
	assert_memory_equal(response.addresses[1], "\1\2\3\5", 4);
	/* Another owner's, another type's and another class's address mean nothing. */
	assert_int_equal(respond(BYTES(ANSWERED("\4") A_B_A R_A("\1c\0", "\1", "\1")
					       R_A("\xc0\x0e", "\1", "\1") Q
				       "\0\1\0\3\0\0\0\1\0\4zzzz" Q
				       "\0\x1c\0\1\0\0\0\1\0\x10zzzzzzzzzzzzzzzz"),
				 &a_query, &response),
			 0);
	assert_int_equal(response.address_count, 0);
	assert_int_equal(response.ttl_s, 0);
	/* An AAAA record, and a TTL with its uppermost bit. */
	assert_int_equal(respond(BYTES(ANSWERED("\1") A_B_AAAA Q "\0\x1c\0\1\x80\0\0\1\0\x10"
								 "0123456789abcdef"),
				 &aaaa_query, &response),
			 0);
	assert_int_equal(response.address_count, 1);
	assert_memory_equal(response.addresses[0], "0123456789abcdef", 16);
	assert_int_equal(response.ttl_s, 0);
}

static void test_response_aliases(void **state)
{
	struct dns_response response;

	(void)state;
	/* a.b is c.b is d.b, in the wrong order, and an address that lies on the way to nothing. */
	assert_int_equal(respond(BYTES(ANSWERED("\4") A_B_A R_A("\1d\xc0\x0e", "\x50", "\7")
					       R_CNAME("\1c\xc0\x0e", "\x40", "\4", "\1d\xc0\x0e")
						       R_CNAME(Q, "\x60", "\4", "\1c\xc0\x0e")
							       R_A("\1e\xc0\x0e", "\1", "\x08")),
				 &a_query, &response),
			 0);
	assert_int_equal(response.address_count, 1);
	assert_int_equal(response.addresses[0][3], 7);
	assert_int_equal(response.ttl_s, 0x40);
	/* An alias that leads to no address. */
	assert_int_equal(respond(BYTES(ANSWERED("\1") A_B_A R_CNAME(Q, "\x60", "\3", "\1c\0")),
				 &a_query, &response),
			 0);
	assert_int_equal(response.address_count, 0);
	/* In a circle: a.b is itself; a.b is c.b is a.b. */
	assert_int_equal(
		respond(BYTES(ANSWERED("\1") A_B_A R_CNAME(Q, "\1", "\2", Q)), &a_query, &response),
		-EBADMSG);
	assert_int_equal(respond(BYTES(ANSWERED("\2") A_B_A R_CNAME(Q, "\1", "\4", "\1c\xc0\x0e")
					       R_CNAME("\1c\xc0\x0e", "\1", "\2", Q)),
				 &a_query, &response),
			 -EBADMSG);
}

/* A chain of so many aliases: a.b, then ba.b, bb.b and so on, and an address at its end. */
static int chain(unsigned length, struct dns_response *response)
{
	uint8_t message[2048] = ANSWERED("\0") A_B_A;
	size_t size = 12 + 9;

	message[7] = (uint8_t)(length + 1);
	for (unsigned i = 0; i <= length; i++) {
		uint8_t record[] = {
			2, 'b', (uint8_t)('a' + i - 1), 0xc0, 14, 0, 5, 0, 1, 0, 0, 0, 9, 0, 5,
			2, 'b', (uint8_t)('a' + i),	0xc0, 14};

		if (i == 0) {
			memcpy(record + 1, "\1a\xc0\x0e", 4);
		}
		if (i == length) {
			record[6] = 1;
			record[14] = 4;
		}
		memcpy(message + size, record + (i == 0),
		       sizeof(record) - (i == 0) - (i == length));
		size += sizeof(record) - (i == 0) - (i == length);
	}
	return respond(message, size, &a_query, response);
}

static void test_response_chain(void **state)
{
	struct dns_response response;

	(void)state;
	assert_int_equal(chain(0, &response), 0);
	assert_int_equal(response.address_count, 1);
	assert_int_equal(chain(DNS_CHAIN_MAX, &response), 0);
	assert_int_equal(response.address_count, 1);
	assert_int_equal(chain(DNS_CHAIN_MAX + 1, &response), -EBADMSG);
}

static void test_response_rcode(void **state)
{
	struct dns_response response;

	(void)state;
	/* A name that is an alias of one that does not exist does not exist (RFC 6604, 3). */
	assert_int_equal(respond(BYTES("\x12\x34\x81\x83\0\1\0\2\0\0\0\0" A_B_A R_CNAME(
					 Q, "\1", "\3", "\1c\0") R_A("\1c\0", "\1", "\1")),
				 &a_query, &response),
			 0);
	assert_int_equal(response.rcode, DNS_NXDOMAIN);
	assert_int_equal(response.address_count, 0);
	/* The upper bits in an OPT record. */
	assert_int_equal(respond(BYTES("\x12\x34\x81\x80\0\1\0\0\0\0\0\1" A_B_A
				       "\0\0\x29\4\xd0\1\0\0\0\0\0"),
				 &a_query, &response),
			 0);
	assert_int_equal(response.rcode, DNS_BADVERS);
	/* Errors may come without the question; a good answer may not. */
	assert_int_equal(respond(BYTES("\x12\x34\x81\x81\0\0\0\0\0\0\0\0"), &a_query, &response),
			 0);
	assert_int_equal(response.rcode, DNS_FORMERR);
	assert_int_equal(respond(BYTES("\x12\x34\x81\x80\0\0\0\0\0\0\0\0"), &a_query, &response),
			 -ENOMSG);
	assert_int_equal(respond(BYTES("\x12\x34\x81\x83\0\0\0\0\0\0\0\0"), &a_query, &response),
			 -ENOMSG);
	/* Cut in the middle of a record: come again over TCP. */
	assert_int_equal(respond(BYTES("\x12\x34\x83\x80\0\1\0\1\0\0\0\0" A_B_A Q "\0\1"), &a_query,
				 &response),
			 0);
	assert_true(response.truncated);
	assert_int_equal(response.address_count, 0);
}

static void test_response_of_another(void **state)
{
	static const struct {
		const uint8_t *bytes;
		size_t size;
	} others[] = {
		{BYTES("")},
		{BYTES("\x12\x34\x81\x80\0\1\0\0\0\0\0")},
		/* Another ID; a question; a notification. */
		{BYTES("\x12\x35\x81\x80\0\1\0\0\0\0\0\0" A_B_A)},
		{BYTES("\x12\x34\x01\x80\0\1\0\0\0\0\0\0" A_B_A)},
		{BYTES("\x12\x34\xa1\x80\0\1\0\0\0\0\0\0" A_B_A)},
		/* Another name, type, class; two questions; half a question. */
		{BYTES(ANSWERED("\0") "\1a\1c\0\0\1\0\1")},
		{BYTES(ANSWERED("\0") "\1a\1b\1b\0\0\1\0\1")},
		{BYTES(ANSWERED("\0") "\3a.b\0\0\1\0\1")},
		{BYTES(ANSWERED("\0") A_B_AAAA)},
		{BYTES(ANSWERED("\0") A_B_NAME "\0\1\0\3")},
		{BYTES("\x12\x34\x81\x80\0\2\0\0\0\0\0\0" A_B_A A_B_A)},
		{BYTES(ANSWERED("\0") A_B_NAME "\0\1\0")},
		{BYTES(ANSWERED("\0") "\1a\1b")},
	};
	struct dns_response response;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		assert_int_equal(respond(others[i].bytes, others[i].size, &a_query, &response),
				 -ENOMSG);
	}
}

static void test_response_broken(void **state)
{
	static const struct {
		const uint8_t *bytes;
		size_t size;
	} broken[] = {
		/* Fewer records than said, also in sections that are not used. */
		{BYTES(ANSWERED("\2") A_B_A R_A(Q, "\1", "\1"))},
		{BYTES("\x12\x34\x81\x80\0\1\0\0\0\1\0\0" A_B_A)},
		{BYTES("\x12\x34\x81\x80\0\1\0\0\0\0\0\1" A_B_A)},
		{BYTES("\x12\x34\x81\x80\0\1\xff\xff\0\0\0\0" A_B_A R_A(Q, "\1", "\1"))},
		/* More bytes than records. */
		{BYTES(ANSWERED("\0") A_B_A "x")},
		{BYTES(ANSWERED("\0") A_B_A R_A(Q, "\1", "\1"))},
		/* Addresses of 3, 5 and 16 bytes. */
		{BYTES(ANSWERED("\1") A_B_A Q "\0\1\0\1\0\0\0\1\0\3zzz")},
		{BYTES(ANSWERED("\1") A_B_A Q "\0\1\0\1\0\0\0\1\0\5zzzzz")},
		{BYTES(ANSWERED("\1") A_B_A Q "\0\1\0\1\0\0\0\1\0\x10zzzzzzzzzzzzzzzz")},
		/* Data that runs over. */
		{BYTES(ANSWERED("\1") A_B_A Q "\0\1\0\1\0\0\0\1\0\5zzzz")},
		{BYTES(ANSWERED("\1") A_B_A Q "\0\1\0\1\0\0\0\1\0")},
		/* An alias that ends before or behind its data, or is no name of ours. */
		{BYTES(ANSWERED("\1") A_B_A R_CNAME(Q, "\1", "\4", "\1c\0z"))},
		{BYTES(ANSWERED("\2") A_B_A R_CNAME(Q, "\1", "\2", "\1c") R_A("\0", "\1", "\1"))},
		{BYTES(ANSWERED("\1") A_B_A R_CNAME(Q, "\1", "\1", "\0"))},
		{BYTES(ANSWERED("\1") A_B_A R_CNAME(Q, "\1", "\5", "\3c d\0"))},
		/* Owners whose pointers lead to themselves, forward, to a pointer, into the header.
		 */
		{BYTES(ANSWERED("\1") A_B_A R_A("\xc0\x15", "\1", "\1"))},
		{BYTES(ANSWERED("\1") A_B_A R_A("\1a\xc0\x15", "\1", "\1"))},
		{BYTES(ANSWERED("\1") A_B_A R_A("\xc0\x20", "\1", "\1"))},
		{BYTES(ANSWERED("\2") A_B_A R_A(Q, "\1", "\1") R_A("\xc0\x15", "\1", "\1"))},
		{BYTES(ANSWERED("\1") A_B_A R_A("\xc0\0", "\1", "\1"))},
		{BYTES(ANSWERED("\1") A_B_A R_A("\xff\xff", "\1", "\1"))},
		/* Two OPT records. */
		{BYTES("\x12\x34\x81\x80\0\1\0\0\0\0\0\2" A_B_A OPT OPT)},
	};
	struct dns_response response;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(broken); i++) {
		print_message("# %zu\n", i);
		assert_int_equal(respond(broken[i].bytes, broken[i].size, &a_query, &response),
				 -EBADMSG);
	}
}

static void test_response_limits(void **state)
{
	static const char one[] = R_A(Q, "\1", "\1");
	static uint8_t message[12 + 9 + (DNS_RECORDS_MAX + 1) * 16] = ANSWERED("\0") A_B_A;
	struct dns_response response;

	(void)state;
	assert_int_equal(sizeof(one) - 1, 16);
	for (size_t i = 0; i <= DNS_RECORDS_MAX; i++) {
		memcpy(message + 12 + 9 + i * 16, one, 16);
	}
	message[6] = DNS_RECORDS_MAX >> 8;
	message[7] = DNS_RECORDS_MAX & 0xff;
	assert_int_equal(respond(message, sizeof(message) - 16, &a_query, &response), 0);
	assert_int_equal(response.address_count, DNS_ADDRESSES_MAX);
	message[7]++;
	assert_int_equal(respond(message, sizeof(message), &a_query, &response), -EBADMSG);
}

/* What the server says the client understands. */
static void test_both_ends(void **state)
{
	static const uint8_t addresses[DNS_ADDRESSES_MAX * 16] = {1, 2, 3, [1023] = 9};
	struct dns_answer answer = {
		.ttl_s = INT32_MAX, .addresses = addresses, .address_count = DNS_ADDRESSES_MAX};
	struct dns_question question;
	struct dns_response response;
	int size;

	(void)state;
	size = dns_query_encode(&aaaa_query, out, sizeof(out));
	assert_int_equal(ask(out, (size_t)size, &question), 0);
	assert_int_equal(question.rcode, DNS_NOERROR);
	assert_string_equal(question.name, aaaa_query.name);
	size = dns_answer_encode(&question, &answer, out, sizeof(out));
	assert_int_equal(respond(out, (size_t)size, &aaaa_query, &response), 0);
	assert_int_equal(response.address_count, DNS_ADDRESSES_MAX);
	assert_memory_equal(response.addresses, addresses, sizeof(addresses));
	assert_int_equal(response.ttl_s, INT32_MAX);
	/* Over UDP they do not fit. */
	size = dns_answer_encode(&question, &answer, out, question.udp_size);
	assert_int_equal(respond(out, (size_t)size, &aaaa_query, &response), 0);
	assert_true(response.truncated);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_name_valid),
		cmocka_unit_test(test_question),
		cmocka_unit_test(test_question_edns),
		cmocka_unit_test(test_question_refused),
		cmocka_unit_test(test_question_longest),
		cmocka_unit_test(test_answer),
		cmocka_unit_test(test_answer_edns),
		cmocka_unit_test(test_answer_pointer),
		cmocka_unit_test(test_reverse),
		cmocka_unit_test(test_query),
		cmocka_unit_test(test_response),
		cmocka_unit_test(test_response_aliases),
		cmocka_unit_test(test_response_chain),
		cmocka_unit_test(test_response_rcode),
		cmocka_unit_test(test_response_of_another),
		cmocka_unit_test(test_response_broken),
		cmocka_unit_test(test_response_limits),
		cmocka_unit_test(test_both_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
