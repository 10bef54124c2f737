/*
 * Archives made by hand, block by block, and read as text; for test_archive.c. Everything is static
 * since there is one program.
 */
#pragma once

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "archive/archive.h"
#include "base/cleanup.h"

/* Longer than any archive made here. */
#define TAR_ROOM ((size_t)1 << 21)

struct tar {
	uint8_t *data;
	size_t size;
};

struct made {
	const char *name;
	char type;
	const char *link;
	/* Bytes of data; size is their number unless lie is set. */
	const char *data;
	uint64_t lie;
};

static void tar_clear(struct tar *tar)
{
	free(tar->data);
}

static uint8_t *add_room(struct tar *tar, size_t size)
{
	uint8_t *at;

	if (!tar->data) {
		tar->data = calloc(1, TAR_ROOM);
		assert_non_null(tar->data);
	}
	assert_true(tar->size + size <= TAR_ROOM);
	at = tar->data + tar->size;
	tar->size += size;
	return at;
}

static void seal(uint8_t *block)
{
	unsigned sum = 0;

	memset(block + 148, ' ', 8);
	for (size_t i = 0; i < 512; i++) {
		sum += block[i];
	}
	snprintf((char *)block + 148, 8, "%06o", sum);
}

/* A header; fields may be changed afterwards and the block sealed again. */
static uint8_t *add_header(struct tar *tar, const char *name, char type, const char *link,
			   uint64_t size)
{
	uint8_t *block = add_room(tar, 512);

	memcpy(block, name, strnlen(name, 100));
	memcpy(block + 100, "0006755", 8);
	memcpy(block + 108, "0000007", 8);
	memcpy(block + 116, "0000010", 8);
	snprintf((char *)block + 124, 12, "%011llo", (unsigned long long)size);
	memcpy(block + 136, "00000000144", 12);
	block[156] = (uint8_t)type;
	memcpy(block + 157, link ? link : "", strnlen(link ? link : "", 100));
	memcpy(block + 257,
	       "ustar\0"
	       "00",
	       8);
	seal(block);
	return block;
}

static void add_data(struct tar *tar, const void *data, size_t size)
{
	memcpy(add_room(tar, (size + 511) & ~(size_t)511), data, size);
}

static void add_entry(struct tar *tar, const struct made *made)
{
	size_t size = made->data ? strlen(made->data) : 0;

	add_header(tar, made->name, made->type, made->link, made->lie ? made->lie : size);
	if (size > 0) {
		add_data(tar, made->data, size);
	}
}

static void add_file(struct tar *tar, const char *name, const char *data)
{
	add_entry(tar, &(struct made){.name = name, .type = '0', .data = data});
}

static void add_end(struct tar *tar)
{
	add_room(tar, 1024);
}

/* A pax header with records that are complete already. */
static void add_records(struct tar *tar, char type, const void *records, size_t size)
{
	add_header(tar, "PaxHeader", type, NULL, size);
	add_data(tar, records, size);
}

/* One record "LENGTH KEY=VALUE\n" at the end of text. */
static size_t make_record(char *text, const char *key, const void *value, size_t size)
{
	size_t rest = 1 + strlen(key) + 1 + size + 1, length = rest + 1;
	char front[320];
	size_t at;

	while (length != rest + (size_t)snprintf(NULL, 0, "%zu", length)) {
		length++;
	}
	at = (size_t)snprintf(front, sizeof(front), "%zu %s=", length, key);
	assert_true(at < sizeof(front));
	memcpy(text, front, at);
	memcpy(text + at, value, size);
	text[at + size] = '\n';
	return length;
}

static void add_pax(struct tar *tar, const char *key, const void *value, size_t size)
{
	char *text = malloc(size + 300);
	size_t length;

	assert_non_null(text);
	length = make_record(text, key, value, size);
	add_records(tar, 'x', text, length);
	free(text);
}

static void add_pax_text(struct tar *tar, const char *key, const char *value)
{
	add_pax(tar, key, value, strlen(value));
}

/* What was read, as text: a line for each item. */
struct log {
	char text[1 << 16];
	size_t size;
};

__attribute__((format(printf, 2, 3))) static void log_add(struct log *log, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	log->size += (size_t)vsnprintf(log->text + log->size, sizeof(log->text) - log->size, format,
				       arguments);
	va_end(arguments);
	assert_true(log->size < sizeof(log->text));
}

/* Reads data of one file as text: holes are dots; only the length when it is over 60. */
static int log_data(struct log *log, struct archive_reader *reader, const struct archive_item *item,
		    struct err *err)
{
	char text[61] = "";
	uint64_t end = 0, offset;
	const void *data;
	size_t size;
	int rc;

	if (item->size <= 60) {
		memset(text, '.', item->size);
	}
	while ((rc = archive_data(reader, &data, &size, &offset, err)) > 0) {
		assert_true(size > 0 && offset >= end && offset + size <= item->size);
		end = offset + size;
		if (item->size <= 60) {
			memcpy(text + offset, data, size);
		}
	}
	log_add(log, " %llu [%s]", (unsigned long long)item->size, text);
	return rc;
}

static int log_item(struct log *log, struct archive_reader *reader, const struct archive_item *item,
		    struct err *err)
{
	static const char letters[] = " dflh";
	int rc = 0;

	log_add(log, "%c%s %s", letters[item->type],
		item->implied ? "?"
		: item->again ? "+"
			      : "",
		item->path);
	if (item->link) {
		log_add(log, " -> %s", item->link);
	}
	if (item->type == ARCHIVE_ITEM_HARDLINK) {
		log_add(log, " = %u", item->link_id);
	}
	if (item->type == ARCHIVE_ITEM_FILE) {
		rc = log_data(log, reader, item, err);
	}
	log_add(log, "\n");
	return rc;
}

/* Reads everything. Returns the last code. */
static int read_tar(const struct tar *tar, const struct archive_options *options, struct log *log,
		    struct err *err)
{
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	const struct archive_item *item;
	int rc = archive_open_memory(tar->data, tar->size, options, &reader, err);

	log->size = 0;
	log->text[0] = '\0';
	if (rc < 0) {
		return rc;
	}
	while ((rc = archive_next(reader, &item, err)) > 0) {
		rc = log_item(log, reader, item, err);
		if (rc < 0) {
			return rc;
		}
	}
	return rc;
}

static const struct archive_options strict = {0};
static const struct archive_options base = {.keep_setuid = true, .drop_devices = true};

static void assert_read(const struct tar *tar, const struct archive_options *options,
			const char *wanted)
{
	static struct log log;
	struct err err = {0};
	int rc = read_tar(tar, options, &log, &err);

	assert_string_equal(err.text, "");
	assert_int_equal(rc, 0);
	assert_string_equal(log.text, wanted);
}

static void assert_refused(const struct tar *tar, const struct archive_options *options,
			   const char *why)
{
	static struct log log;
	struct err err = {0};
	int rc = read_tar(tar, options, &log, &err);

	if (!strstr(err.text, why)) {
		assert_string_equal(err.text, why);
	}
	assert_int_equal(rc, -EBADMSG);
}
