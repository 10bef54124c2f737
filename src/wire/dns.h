/*
 * DNS messages, both ends: what a program in the guest asks and is answered, and what the host asks
 * its resolver and is answered. Pure: bytes in, bytes out.
 *
 * Questions and responses are hostile alike. A name is read into lower-case text, without the dot
 * at its end: labels of 1 to 63 bytes, 253 bytes in all (RFC 1035, 2.3.4). Its bytes are letters,
 * digits, hyphen and underscore. The DNS itself would allow any byte (RFC 2181, 11); a name of
 * anything else is no host's, and is refused before it can mean something to somebody. So a name
 * never has a NUL, a space or a dot inside a label.
 *
 * A compression pointer (RFC 1035, 4.1.4) must lead to a place before the one where the part of the
 * name began that it stands in, and not to another pointer. So each step leads further back and
 * adds a label, and none can go round.
 *
 * The guest is answered addresses that stand for a name, not those of the name. HTTPS and SVCB
 * records would hand it addresses and keys past that, so it gets an empty answer for these, and a
 * client then goes on without (RFC 9460, 3).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DNS_NAME_MAX 253
#define DNS_LABEL_MAX 63
/* What anybody takes over UDP without having said so (RFC 1035, 2.3.4). */
#define DNS_UDP_MIN 512
/* What we take and send over UDP: it fits one packet on every path, so that nothing comes in
 * fragments, which can be forged apart. */
#define DNS_UDP_SIZE 1232
/* The length of a message over TCP is a u16. */
#define DNS_MESSAGE_MAX 65535
/* A name on the wire, its type and class. */
#define DNS_QUESTION_MAX (DNS_NAME_MAX + 2 + 4)
/* Aliases of aliases. Real chains have three or four. */
#define DNS_CHAIN_MAX 16
/* Records of one response. A large one has fifty; each is looked at for each alias. */
#define DNS_RECORDS_MAX 512
/* Addresses of one name that are used. A connection tries a handful. */
#define DNS_ADDRESSES_MAX 64

enum dns_type {
	DNS_TYPE_A = 1,
	DNS_TYPE_CNAME = 5,
	DNS_TYPE_PTR = 12,
	DNS_TYPE_AAAA = 28,
	DNS_TYPE_OPT = 41,
	/* 251 to 254 ask for zones and mailboxes, not for records (RFC 1035, 3.2.3; RFC 1995). */
	DNS_TYPE_IXFR = 251,
	DNS_TYPE_MAILA = 254,
};

enum dns_rcode {
	DNS_NOERROR = 0,
	DNS_FORMERR = 1,
	DNS_SERVFAIL = 2,
	DNS_NXDOMAIN = 3,
	DNS_NOTIMP = 4,
	DNS_REFUSED = 5,
	/* RFC 6891, 6.1.3. Needs an OPT record to be said. */
	DNS_BADVERS = 16,
};

/* A question as a server sees it. */
struct dns_question {
	/* DNS_NOERROR, or what has to be answered whatever the name may be. */
	uint16_t rcode;
	uint16_t type;
	/* Lower-case text; "" unless rcode is DNS_NOERROR. */
	char name[DNS_NAME_MAX + 1];
	/* How much the asker takes over UDP: DNS_UDP_MIN to DNS_UDP_SIZE. */
	uint16_t udp_size;

	/* What dns_answer_encode needs to know beyond that. */
	uint16_t id;
	/* Those flags of the header that an answer repeats. */
	uint16_t flags;
	bool edns;
	bool dnssec_ok;
	/* The question as it came: an answer repeats it to the letter, upper case too, because some
	 * askers look at that. Nothing when it could not be read. */
	uint8_t echo[DNS_QUESTION_MAX];
	size_t echo_size;
};

/* What is answered. Everything zero is "the name exists, and has nothing of that type". */
struct dns_answer {
	/* enum dns_rcode. With anything but DNS_NOERROR there are no records. */
	uint16_t rcode;
	/* Seconds that the records may be kept, at most 2^31 - 1. */
	uint32_t ttl_s;
	/* To a question of type A or AAAA: so many addresses of 4 or 16 bytes, in one row. */
	const uint8_t *addresses;
	size_t address_count;
	/* To a question of type PTR: a valid name. NULL: none. */
	const char *pointer;
};

/* What is asked, by a client. */
struct dns_query {
	/* The caller's, random: with the port it is what a forger has to guess. */
	uint16_t id;
	/* DNS_TYPE_A or DNS_TYPE_AAAA. */
	uint16_t type;
	/* A valid name. */
	const char *name;
};

/* What came back. */
struct dns_response {
	/* With the upper bits of the OPT record (RFC 6891, 6.1.3): 0 to 4095. */
	uint16_t rcode;
	/* Ask again over TCP; nothing else of the message was looked at. */
	bool truncated;
	/* The least of all records on the way to the addresses; 0 without addresses. */
	uint32_t ttl_s;
	size_t address_count;
	/* 4 or 16 bytes each, as the query's type says; the rest is zero. */
	uint8_t addresses[DNS_ADDRESSES_MAX][16];
};

/* Whether text is a name in the form that is said above. Any bytes; not trusted. */
bool dns_name_valid(const char *text);

/*
 * Reads the address out of a name below in-addr.arpa or ip6.arpa (RFC 1035, 3.5; RFC 3596, 2.5).
 * name is a valid name. Returns 4 or 16, the bytes that were written to ret_address, or -EINVAL
 * when it is anything else, also only a part of such an address.
 */
int dns_reverse_decode(const char *name, uint8_t ret_address[16]);

/*
 * Decodes a question. Returns 0, also for one that can only be answered with an error: rcode says
 * which. Returns -EBADMSG when nothing may be answered at all, because the message has no whole
 * header or is itself a response, and two servers that answer each other would never end.
 *
 * DNS_FORMERR: not one question, records where none may be, two OPT records or a broken one (RFC
 * 6891, 6.1.1 and 7), bytes left over. DNS_NOTIMP: not a standard query, or one for a zone.
 * DNS_REFUSED: another class than IN, the root, or a name that is no host's. DNS_BADVERS: EDNS
 * other than version 0.
 */
int dns_question_decode(const uint8_t *message, size_t size, struct dns_question *ret_question);

/*
 * Encodes the answer to a question into out. capacity is question->udp_size over UDP and
 * DNS_MESSAGE_MAX over TCP. answer may be NULL when question->rcode says what it is. Records that
 * do not fit are all left out and TC is set, so that the asker comes again over TCP (RFC 2181, 9).
 * An OPT record is there exactly when the question had one (RFC 6891, 6.1.1).
 *
 * Returns the size, or -EMSGSIZE when not even the question fits; DNS_UDP_MIN is always enough for
 * that. Records that do not belong to the question's type are our own mistake.
 */
int dns_answer_encode(const struct dns_question *question, const struct dns_answer *answer,
		      uint8_t *out, size_t capacity);

/* Encodes a query, recursion desired, with EDNS. Returns the size or -EMSGSIZE; DNS_UDP_MIN is
 * always enough. */
int dns_query_encode(const struct dns_query *query, uint8_t *out, size_t capacity);

/*
 * Decodes a response to query. Follows aliases from the query's name, and takes all addresses of
 * the name at their end; other records mean nothing. Returns 0; -ENOMSG when it is not an answer to
 * this query (another ID, name or type; not a response): drop it and wait on; -EBADMSG when it is
 * one and broken: aliases without end, an address of a wrong size, anything that runs over, more
 * than DNS_RECORDS_MAX records, bytes left over.
 */
int dns_response_decode(const uint8_t *message, size_t size, const struct dns_query *query,
			struct dns_response *ret_response);
