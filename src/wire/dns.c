#include "wire/dns.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "wire/bytes.h"

#define HEADER_SIZE 12
#define CLASS_IN 1
/* RFC 1035, 4.1.1; AD and CD by RFC 4035, 3.1.6 and 3.2.2. */
#define FLAG_RESPONSE 0x8000u
#define FLAGS_OPCODE 0x7800u
#define FLAG_TRUNCATED 0x0200u
#define FLAG_DESIRED 0x0100u
#define FLAG_AVAILABLE 0x0080u
#define FLAG_CHECKING_DISABLED 0x0010u
#define FLAGS_RCODE 0x000fu
/* In the TTL of an OPT record (RFC 6891, 6.1.3). */
#define OPT_DNSSEC_OK 0x8000u
/* The name of the question, which always stands right behind the header. */
#define QUESTION_POINTER (0xc000u | HEADER_SIZE)

enum section {
	SECTION_QUESTION,
	SECTION_ANSWER,
	SECTION_AUTHORITY,
	SECTION_ADDITIONAL,
	SECTIONS,
};

struct header {
	uint16_t id;
	uint16_t flags;
	uint16_t counts[SECTIONS];
};

struct record {
	/* Where the owner's name begins in the message. */
	size_t owner;
	uint16_t type;
	uint16_t class;
	uint32_t ttl;
	/* Where the data begins, and its size; it lies in the message. */
	size_t data;
	uint16_t size;
};

/* The answers of a response that may matter to a query. */
struct answers {
	struct wire_reader message;
	struct record records[DNS_RECORDS_MAX];
	size_t count;
};

/* The DNS writes its integers big-endian. */
static uint16_t get_16(struct wire_reader *reader)
{
	return __builtin_bswap16(wire_get_u16(reader));
}

static uint32_t get_32(struct wire_reader *reader)
{
	return __builtin_bswap32(wire_get_u32(reader));
}

static void put_16(struct wire_writer *writer, unsigned value)
{
	wire_put_u16(writer, __builtin_bswap16((uint16_t)value));
}

static void put_32(struct wire_writer *writer, uint32_t value)
{
	wire_put_u32(writer, __builtin_bswap32(value));
}

/* The byte of a name in lower case, or 0 when a name may not have it. */
static char fold(uint8_t byte)
{
	if (byte >= 'A' && byte <= 'Z') {
		return (char)(byte - 'A' + 'a');
	}
	if ((byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '-' ||
	    byte == '_') {
		return (char)byte;
	}
	return '\0';
}

bool dns_name_valid(const char *text)
{
	size_t label = 0, length = 0;

	for (; text[length] != '\0'; length++) {
		uint8_t byte = (uint8_t)text[length];

		if (length == DNS_NAME_MAX) {
			return false;
		}
		if (byte == '.' && label > 0) {
			label = 0;
		} else if (fold(byte) != (char)byte || ++label > DNS_LABEL_MAX) {
			return false;
		}
	}
	return label > 0;
}

/*
 * Reads a name and leaves reader behind it. out is "" for the root and for a name that has other
 * bytes than ours may have. Returns 0 or -EBADMSG.
 */
static int get_name(struct wire_reader *reader, char out[DNS_NAME_MAX + 1])
{
	struct wire_reader at = *reader;
	size_t start = at.offset, length = 0, length_at_jump = 0;
	bool odd = false, jumped = false;
	uint8_t head;

	while ((head = wire_get_u8(&at)) != 0) {
		const uint8_t *label;

		if (head >= 0xc0) {
			size_t target = (size_t)(head & 0x3f) << 8 | wire_get_u8(&at);

			/* A pointer to a pointer has no use, and would make thousands of steps. */
			if (at.failed || target < HEADER_SIZE || target >= start ||
			    (jumped && length == length_at_jump)) {
				return -EBADMSG;
			}
			length_at_jump = length;
			if (!jumped) {
				reader->offset = at.offset;
				jumped = true;
			}
			start = at.offset = target;
			continue;
		}
		label = wire_get_bytes(&at, head);
		/* One byte more for each label: the dot before the next, or the NUL. */
		if (head > DNS_LABEL_MAX || !label || length + head + 1 > DNS_NAME_MAX + 1) {
			return -EBADMSG;
		}
		for (uint8_t i = 0; i < head; i++) {
			out[length] = fold(label[i]);
			odd = odd || out[length] == '\0';
			length++;
		}
		out[length++] = '.';
	}
	if (at.failed) {
		return -EBADMSG;
	}
	if (!jumped) {
		reader->offset = at.offset;
	}
	out[length > 0 && !odd ? length - 1 : 0] = '\0';
	return 0;
}

static void put_name(struct wire_writer *writer, const char *name)
{
	ASSERT(dns_name_valid(name));
	for (;;) {
		size_t size = strcspn(name, ".");

		wire_put_u8(writer, (uint8_t)size);
		wire_put_bytes(writer, name, size);
		if (name[size] == '\0') {
			break;
		}
		name += size + 1;
	}
	wire_put_u8(writer, 0);
}

static struct header get_header(struct wire_reader *reader)
{
	struct header header = {.id = get_16(reader)};

	header.flags = get_16(reader);
	for (unsigned i = 0; i < SECTIONS; i++) {
		header.counts[i] = get_16(reader);
	}
	return header;
}

static void put_header(struct wire_writer *writer, const struct header *header)
{
	put_16(writer, header->id);
	put_16(writer, header->flags);
	for (unsigned i = 0; i < SECTIONS; i++) {
		put_16(writer, header->counts[i]);
	}
}

/* Reads a record and leaves reader behind it: 0 or -EBADMSG. */
static int get_record(struct wire_reader *reader, struct record *ret_record)
{
	struct record record = {.owner = reader->offset};
	char name[DNS_NAME_MAX + 1];
	int rc = get_name(reader, name);

	if (rc < 0) {
		return rc;
	}
	record.type = get_16(reader);
	record.class = get_16(reader);
	record.ttl = get_32(reader);
	record.size = get_16(reader);
	record.data = reader->offset;
	if (!wire_get_bytes(reader, record.size)) {
		return -EBADMSG;
	}
	*ret_record = record;
	return 0;
}

/* The options of an OPT record: u16 code, u16 size, bytes. None of them means anything to us. */
static bool options_whole(const struct wire_reader *message, const struct record *record)
{
	struct wire_reader reader = wire_reader_over(message->data + record->data, record->size);

	while (!reader.failed && reader.offset < reader.size) {
		get_16(&reader);
		wire_get_bytes(&reader, get_16(&reader));
	}
	return wire_reader_done(&reader);
}

/* Reads what stands behind a question: returns the rcode. */
static uint16_t read_additional(struct wire_reader *reader, uint16_t count,
				struct dns_question *question)
{
	struct record record;

	for (uint16_t i = 0; i < count; i++) {
		if (get_record(reader, &record) < 0) {
			return DNS_FORMERR;
		}
		if (record.type != DNS_TYPE_OPT) {
			continue;
		}
		if (question->edns || reader->data[record.owner] != 0) {
			return DNS_FORMERR;
		}
		question->edns = true;
		question->dnssec_ok = (record.ttl & OPT_DNSSEC_OK) != 0;
		question->udp_size = MIN(MAX(record.class, DNS_UDP_MIN), DNS_UDP_SIZE);
		if ((record.ttl >> 16 & 0xff) != 0) {
			return DNS_BADVERS;
		}
		if (!options_whole(reader, &record)) {
			return DNS_FORMERR;
		}
	}
	return wire_reader_done(reader) ? DNS_NOERROR : DNS_FORMERR;
}

/* Reads what stands behind the header of a standard query: returns the rcode. */
static uint16_t read_question(struct wire_reader *reader, const struct header *header,
			      struct dns_question *question)
{
	uint16_t class, rcode;

	if (header->counts[SECTION_QUESTION] != 1 || header->counts[SECTION_ANSWER] != 0 ||
	    header->counts[SECTION_AUTHORITY] != 0 || get_name(reader, question->name) < 0) {
		return DNS_FORMERR;
	}
	question->type = get_16(reader);
	class = get_16(reader);
	if (reader->failed) {
		return DNS_FORMERR;
	}
	question->echo_size = reader->offset - HEADER_SIZE;
	/* A pointer has nothing before it to lead to, so the name is no longer than its text. */
	ASSERT(question->echo_size <= sizeof(question->echo));
	memcpy(question->echo, reader->data + HEADER_SIZE, question->echo_size);
	rcode = read_additional(reader, header->counts[SECTION_ADDITIONAL], question);
	if (rcode != DNS_NOERROR) {
		return rcode;
	}
	if (question->type == 0 || question->type == DNS_TYPE_OPT) {
		return DNS_FORMERR;
	}
	if (question->type >= DNS_TYPE_IXFR && question->type <= DNS_TYPE_MAILA) {
		return DNS_NOTIMP;
	}
	return class == CLASS_IN && question->name[0] != '\0' ? DNS_NOERROR : DNS_REFUSED;
}

int dns_question_decode(const uint8_t *message, size_t size, struct dns_question *ret_question)
{
	struct wire_reader reader = wire_reader_over(message, size);
	struct dns_question question = {.udp_size = DNS_UDP_MIN};
	struct header header = get_header(&reader);

	if (reader.failed || (header.flags & FLAG_RESPONSE)) {
		return -EBADMSG;
	}
	question.id = header.id;
	question.flags = header.flags & (FLAGS_OPCODE | FLAG_DESIRED | FLAG_CHECKING_DISABLED);
	question.rcode = header.flags & FLAGS_OPCODE ? DNS_NOTIMP
						     : read_question(&reader, &header, &question);
	if (question.rcode != DNS_NOERROR) {
		question.name[0] = '\0';
	}
	*ret_question = question;
	return 0;
}

static void put_record_head(struct wire_writer *writer, uint16_t type, uint32_t ttl_s)
{
	put_16(writer, QUESTION_POINTER);
	put_16(writer, type);
	put_16(writer, CLASS_IN);
	put_32(writer, ttl_s);
}

static void put_records(struct wire_writer *writer, uint16_t type, const struct dns_answer *answer)
{
	size_t size = type == DNS_TYPE_A ? 4 : 16;

	for (size_t i = 0; i < answer->address_count; i++) {
		put_record_head(writer, type, answer->ttl_s);
		put_16(writer, (unsigned)size);
		wire_put_bytes(writer, answer->addresses + i * size, size);
	}
	if (answer->pointer) {
		put_record_head(writer, type, answer->ttl_s);
		put_16(writer, (unsigned)strlen(answer->pointer) + 2);
		put_name(writer, answer->pointer);
	}
}

/* The root, OPT, our size, then the upper bits of the rcode, version 0 and the flags. */
static void put_opt(struct wire_writer *writer, uint16_t rcode, bool dnssec_ok)
{
	wire_put_u8(writer, 0);
	put_16(writer, DNS_TYPE_OPT);
	put_16(writer, DNS_UDP_SIZE);
	put_32(writer, (uint32_t)(rcode >> 4) << 24 | (dnssec_ok ? OPT_DNSSEC_OK : 0));
	put_16(writer, 0);
}

static void put_answer(struct wire_writer *writer, const struct dns_question *question,
		       const struct dns_answer *answer, bool truncated)
{
	size_t records = answer->address_count + (answer->pointer ? 1 : 0);
	struct header header = {
		.id = question->id,
		.flags = (uint16_t)(FLAG_RESPONSE | question->flags | FLAG_AVAILABLE |
				    (truncated ? FLAG_TRUNCATED : 0) |
				    (answer->rcode & FLAGS_RCODE)),
		.counts[SECTION_QUESTION] = question->echo_size > 0,
		.counts[SECTION_ANSWER] = truncated ? 0 : (uint16_t)records,
		.counts[SECTION_ADDITIONAL] = question->edns,
	};

	put_header(writer, &header);
	wire_put_bytes(writer, question->echo, question->echo_size);
	if (!truncated) {
		put_records(writer, question->type, answer);
	}
	if (question->edns) {
		put_opt(writer, answer->rcode, question->dnssec_ok);
	}
}

int dns_answer_encode(const struct dns_question *question, const struct dns_answer *answer,
		      uint8_t *out, size_t capacity)
{
	const struct dns_answer error = {.rcode = question->rcode};
	struct wire_writer writer = wire_writer_over(out, capacity);

	if (question->rcode != DNS_NOERROR) {
		answer = &error;
	}
	ASSERT(answer && (answer->rcode < DNS_BADVERS || question->edns));
	ASSERT(answer->ttl_s <= INT32_MAX && answer->address_count <= DNS_ADDRESSES_MAX);
	ASSERT(answer->address_count == 0 ||
	       (answer->rcode == DNS_NOERROR &&
		(question->type == DNS_TYPE_A || question->type == DNS_TYPE_AAAA)));
	ASSERT(!answer->pointer ||
	       (answer->rcode == DNS_NOERROR && question->type == DNS_TYPE_PTR));
	put_answer(&writer, question, answer, false);
	if (writer.failed) {
		writer = wire_writer_over(out, capacity);
		put_answer(&writer, question, answer, true);
	}
	return writer.failed ? -EMSGSIZE : (int)writer.size;
}

int dns_query_encode(const struct dns_query *query, uint8_t *out, size_t capacity)
{
	struct wire_writer writer = wire_writer_over(out, capacity);
	struct header header = {
		.id = query->id,
		.flags = FLAG_DESIRED,
		.counts[SECTION_QUESTION] = 1,
		.counts[SECTION_ADDITIONAL] = 1,
	};

	put_header(&writer, &header);
	put_name(&writer, query->name);
	put_16(&writer, query->type);
	put_16(&writer, CLASS_IN);
	put_opt(&writer, DNS_NOERROR, false);
	return writer.failed ? -EMSGSIZE : (int)writer.size;
}

/* Errors that a server may answer without repeating a question that it did not understand. */
static bool may_leave_question_out(const struct header *header)
{
	unsigned rcode = header->flags & FLAGS_RCODE;

	return (rcode == DNS_FORMERR || rcode == DNS_SERVFAIL || rcode == DNS_NOTIMP ||
		rcode == DNS_REFUSED) &&
	       header->counts[SECTION_ANSWER] == 0;
}

/* Reads header and question of a response, and holds both against the query: 0 or -ENOMSG. */
static int match_question(struct wire_reader *reader, const struct dns_query *query,
			  struct header *ret_header)
{
	struct header header = get_header(reader);
	char name[DNS_NAME_MAX + 1];

	if (reader->failed || header.id != query->id || !(header.flags & FLAG_RESPONSE) ||
	    (header.flags & FLAGS_OPCODE)) {
		return -ENOMSG;
	}
	*ret_header = header;
	if (header.counts[SECTION_QUESTION] == 0 && may_leave_question_out(&header)) {
		return 0;
	}
	if (header.counts[SECTION_QUESTION] != 1 || get_name(reader, name) < 0 ||
	    strcmp(name, query->name) != 0 || get_16(reader) != query->type ||
	    get_16(reader) != CLASS_IN || reader->failed) {
		return -ENOMSG;
	}
	return 0;
}

/* Reads all records. The answers are kept; of the others only the OPT record says something. */
static int read_records(struct wire_reader *reader, const struct header *header,
			struct answers *answers, uint16_t *rcode)
{
	size_t left = DNS_RECORDS_MAX;
	bool edns = false;

	for (unsigned section = SECTION_ANSWER; section < SECTIONS; section++) {
		if (header->counts[section] > left) {
			return -EBADMSG;
		}
		left -= header->counts[section];
		for (uint16_t i = 0; i < header->counts[section]; i++) {
			struct record *record = &answers->records[answers->count];

			if (get_record(reader, record) < 0) {
				return -EBADMSG;
			}
			if (section == SECTION_ANSWER && record->class == CLASS_IN) {
				answers->count++;
			} else if (section == SECTION_ADDITIONAL && record->type == DNS_TYPE_OPT) {
				if (edns) {
					return -EBADMSG;
				}
				edns = true;
				*rcode |= (uint16_t)(record->ttl >> 24 << 4);
			}
		}
	}
	return wire_reader_done(reader) ? 0 : -EBADMSG;
}

/* The first record at or behind index with that owner and type; answers->count: there is none. */
static size_t find_record(const struct answers *answers, size_t index, const char *owner,
			  uint16_t type)
{
	char name[DNS_NAME_MAX + 1];

	for (; index < answers->count; index++) {
		const struct record *record = &answers->records[index];
		struct wire_reader reader = answers->message;

		reader.offset = record->owner;
		if (record->type == type && get_name(&reader, name) == 0 &&
		    strcmp(name, owner) == 0) {
			break;
		}
	}
	return index;
}

/* RFC 2181, 8: a TTL with its uppermost bit set is 0. */
static void shorten(struct dns_response *response, uint32_t ttl)
{
	response->ttl_s = MIN(response->ttl_s, ttl > INT32_MAX ? 0 : ttl);
}

/* Takes all addresses of a name: 0 or -EBADMSG. */
static int take_addresses(const struct answers *answers, const char *name, uint16_t type,
			  struct dns_response *response)
{
	size_t size = type == DNS_TYPE_A ? 4 : 16;

	for (size_t i = find_record(answers, 0, name, type); i < answers->count;
	     i = find_record(answers, i + 1, name, type)) {
		const struct record *record = &answers->records[i];

		if (record->size != size) {
			return -EBADMSG;
		}
		if (response->address_count < DNS_ADDRESSES_MAX) {
			memcpy(response->addresses[response->address_count++],
			       answers->message.data + record->data, size);
			shorten(response, record->ttl);
		}
	}
	return 0;
}

/* Goes from alias to alias until there are addresses, or nothing more: 0 or -EBADMSG. */
static int follow_aliases(const struct answers *answers, const struct dns_query *query,
			  struct dns_response *response)
{
	char name[DNS_NAME_MAX + 1];

	ASSERT(dns_name_valid(query->name));
	memcpy(name, query->name, strlen(query->name) + 1);
	for (unsigned step = 0; step <= DNS_CHAIN_MAX; step++) {
		int rc = take_addresses(answers, name, query->type, response);
		struct wire_reader reader = answers->message;
		const struct record *record;
		size_t alias;

		if (rc < 0 || response->address_count > 0) {
			return rc;
		}
		alias = find_record(answers, 0, name, DNS_TYPE_CNAME);
		if (alias == answers->count) {
			return 0;
		}
		record = &answers->records[alias];
		shorten(response, record->ttl);
		reader.offset = record->data;
		if (get_name(&reader, name) < 0 || name[0] == '\0' ||
		    reader.offset != record->data + record->size) {
			return -EBADMSG;
		}
	}
	return -EBADMSG;
}

int dns_response_decode(const uint8_t *message, size_t size, const struct dns_query *query,
			struct dns_response *ret_response)
{
	struct wire_reader reader = wire_reader_over(message, size);
	struct dns_response response = {.ttl_s = INT32_MAX};
	struct answers answers;
	struct header header;
	int rc;

	ASSERT(query->type == DNS_TYPE_A || query->type == DNS_TYPE_AAAA);
	rc = match_question(&reader, query, &header);
	if (rc < 0) {
		return rc;
	}
	answers.message = wire_reader_over(message, size);
	answers.count = 0;
	response.rcode = header.flags & FLAGS_RCODE;
	response.truncated = (header.flags & FLAG_TRUNCATED) != 0;
	if (!response.truncated) {
		rc = read_records(&reader, &header, &answers, &response.rcode);
		if (rc == 0 && response.rcode == DNS_NOERROR) {
			rc = follow_aliases(&answers, query, &response);
		}
	}
	if (rc < 0) {
		return rc;
	}
	if (response.address_count == 0) {
		response.ttl_s = 0;
	}
	*ret_response = response;
	return 0;
}

/* Reads the digits before a dot, without a needless 0 before them: false when there are none. */
static bool take_number(const char **text, unsigned base, unsigned digits_max, unsigned *ret_number)
{
	static const char digits[] = "0123456789abcdef";
	size_t length = strcspn(*text, ".");
	unsigned number = 0;

	if (length == 0 || length > digits_max || (*text)[length] != '.' ||
	    (length > 1 && (*text)[0] == '0')) {
		return false;
	}
	for (size_t i = 0; i < length; i++) {
		const char *digit = memchr(digits, (*text)[i], base);

		if (!digit) {
			return false;
		}
		number = number * base + (unsigned)(digit - digits);
	}
	*text += length + 1;
	*ret_number = number;
	return true;
}

int dns_reverse_decode(const char *name, uint8_t ret_address[16])
{
	uint8_t address[16] = {0};
	const char *rest = name;
	unsigned number, low;
	size_t size = 4;

	while (size > 0 && take_number(&rest, 10, 3, &number) && number <= 255) {
		address[--size] = (uint8_t)number;
	}
	if (size == 0 && strcmp(rest, "in-addr.arpa") == 0) {
		memcpy(ret_address, address, 4);
		return 4;
	}
	rest = name;
	size = 16;
	while (size > 0 && take_number(&rest, 16, 1, &low) && take_number(&rest, 16, 1, &number)) {
		address[--size] = (uint8_t)(number << 4 | low);
	}
	if (size == 0 && strcmp(rest, "ip6.arpa") == 0) {
		memcpy(ret_address, address, 16);
		return 16;
	}
	return -EINVAL;
}
