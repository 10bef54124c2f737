/*
 * In: the first bytes of a stream. They are records, each with a head of five bytes; joined, their
 * contents are handshake messages, of which the first is the hello. A cursor walks the contents and
 * steps over the heads, so that a name that is cut by one is found as well. What lies beyond the
 * given bytes is "more is needed", which is not the same as what lies beyond a length that the
 * hello itself states.
 */
#include "wire/tls.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define RECORD_HANDSHAKE 22
#define RECORD_HEAD 5
/* RFC 8446, 5.1. */
#define RECORD_MAX 16384
#define MESSAGE_CLIENT_HELLO 1
#define EXTENSION_SERVER_NAME 0
#define NAME_TYPE_HOST 0
#define RANDOM_SIZE 32

struct cursor {
	const uint8_t *data;
	size_t size;
	size_t offset;
	/* What is left of the record that it stands in. */
	size_t record;
	/* 0: the bytes ended; or -EBADMSG. Counts once failed is set. */
	int result;
	bool failed;
};

static void stop(struct cursor *cursor, int result)
{
	if (!cursor->failed) {
		cursor->failed = true;
		cursor->result = result;
	}
}

/* Steps over the head of the next record. */
static void enter_record(struct cursor *cursor)
{
	const uint8_t *head = cursor->data + cursor->offset;
	size_t there = cursor->size - cursor->offset;
	size_t length;

	/* What cannot become a hello is told at its first byte. */
	if (there > 0 && head[0] != RECORD_HANDSHAKE) {
		stop(cursor, -EBADMSG);
		return;
	}
	if (there < RECORD_HEAD) {
		stop(cursor, 0);
		return;
	}
	length = (size_t)head[3] << 8 | head[4];
	/* An empty record of this kind is forbidden; with them a head could be followed by heads
	 * only. */
	if (head[1] != 3 || length == 0 || length > RECORD_MAX) {
		stop(cursor, -EBADMSG);
		return;
	}
	cursor->record = length;
	cursor->offset += RECORD_HEAD;
}

static uint8_t get_byte(struct cursor *cursor)
{
	if (!cursor->failed && cursor->record == 0) {
		enter_record(cursor);
	}
	if (cursor->failed || cursor->offset == cursor->size) {
		stop(cursor, 0);
		return 0;
	}
	cursor->record--;
	return cursor->data[cursor->offset++];
}

/* A big-endian integer of up to three bytes, all of them within *left, which is lowered. */
static size_t get_number(struct cursor *cursor, size_t bytes, size_t *left)
{
	size_t value = 0;

	if (*left < bytes) {
		stop(cursor, -EBADMSG);
		return 0;
	}
	*left -= bytes;
	for (size_t i = 0; i < bytes; i++) {
		value = value << 8 | get_byte(cursor);
	}
	return value;
}

static void skip(struct cursor *cursor, size_t bytes, size_t *left)
{
	if (*left < bytes) {
		stop(cursor, -EBADMSG);
		return;
	}
	*left -= bytes;
	for (size_t i = 0; i < bytes && !cursor->failed; i++) {
		(void)get_byte(cursor);
	}
}

/* Takes a length from what is left of the part around it; the part inside must fit. */
static size_t get_part(struct cursor *cursor, size_t bytes, size_t *left)
{
	size_t length = get_number(cursor, bytes, left);

	if (length > *left) {
		stop(cursor, -EBADMSG);
		return 0;
	}
	*left -= length;
	return length;
}

/* The one name of the extension (RFC 6066, 3): 1, 0 or -EBADMSG. */
static int read_name(struct cursor *cursor, size_t extension, char *ret_name)
{
	char name[DNS_NAME_MAX + 1];
	size_t list = get_part(cursor, 2, &extension);
	size_t type = get_number(cursor, 1, &list);
	size_t length = get_part(cursor, 2, &list);

	if (!cursor->failed && (type != NAME_TYPE_HOST || length > DNS_NAME_MAX || length == 0 ||
				list != 0 || extension != 0)) {
		return -EBADMSG;
	}
	for (size_t i = 0; i < length && !cursor->failed; i++) {
		name[i] = (char)tolower(get_byte(cursor));
	}
	if (cursor->failed) {
		return cursor->result;
	}
	name[length] = '\0';
	if (strlen(name) != length || !dns_name_valid(name)) {
		return -EBADMSG;
	}
	memcpy(ret_name, name, length + 1);
	return 1;
}

int tls_server_name(const uint8_t *data, size_t size, char ret_name[DNS_NAME_MAX + 1])
{
	struct cursor cursor = {.data = data, .size = size};
	size_t head = 4, hello, part, extensions;
	size_t type = get_number(&cursor, 1, &head);

	if (!cursor.failed && type != MESSAGE_CLIENT_HELLO) {
		return -EBADMSG;
	}
	hello = get_number(&cursor, 3, &head);
	/* Version and random, session, cipher suites, compression methods. */
	skip(&cursor, 2 + RANDOM_SIZE, &hello);
	for (size_t i = 0; i < 3; i++) {
		part = get_part(&cursor, i == 1 ? 2 : 1, &hello);
		skip(&cursor, part, &part);
	}
	if (!cursor.failed && hello == 0) {
		return -ENOENT;
	}
	extensions = get_part(&cursor, 2, &hello);
	while (!cursor.failed && extensions > 0) {
		size_t kind = get_number(&cursor, 2, &extensions);

		part = get_part(&cursor, 2, &extensions);
		if (!cursor.failed && kind == EXTENSION_SERVER_NAME) {
			return read_name(&cursor, part, ret_name);
		}
		skip(&cursor, part, &part);
	}
	return cursor.failed ? cursor.result : -ENOENT;
}
