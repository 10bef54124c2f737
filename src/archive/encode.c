#include "archive/encode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* What octal digits of a header hold; larger numbers become records. */
#define OCTAL_7_MAX 07777777u
#define OCTAL_11_MAX 077777777777u
/* The longest 64-bit number and its NUL. */
#define DECIMAL_BYTES 24

/* Where the fields of a header are: POSIX.1-2017 pax, "ustar Interchange Format". */
enum header_offset {
	AT_NAME = 0,
	AT_MODE = 100,
	AT_UID = 108,
	AT_GID = 116,
	AT_SIZE = 124,
	AT_MTIME = 136,
	AT_CHECKSUM = 148,
	AT_TYPE = 156,
	AT_LINK = 157,
	AT_MAGIC = 257,
	AT_MAJOR = 329,
	AT_MINOR = 337,
};
#define NAME_BYTES 100u

char *tar_buffer_add(struct tar_buffer *buffer, size_t size)
{
	char *at;

	if (size > buffer->capacity - buffer->size) {
		size_t capacity = MAX(buffer->capacity * 2, buffer->size + size);
		char *grown = realloc(buffer->data, capacity);

		if (!grown) {
			return NULL;
		}
		buffer->data = grown;
		buffer->capacity = capacity;
	}
	at = buffer->data + buffer->size;
	memset(at, 0, size);
	buffer->size += size;
	return at;
}

void tar_buffer_clear(struct tar_buffer *buffer)
{
	free(buffer->data);
	*buffer = (struct tar_buffer){0};
}

static int add_bytes(struct tar_buffer *buffer, const void *bytes, size_t size)
{
	char *at = tar_buffer_add(buffer, size);

	if (!at) {
		return -ENOMEM;
	}
	memcpy(at, bytes, size);
	return 0;
}

static int add_padding(struct tar_buffer *buffer, uint64_t size)
{
	return tar_buffer_add(buffer, tar_padding(size)) ? 0 : -ENOMEM;
}

/* width - 1 octal digits and a NUL. What does not fit is 0: a record says it. */
static void put_octal(char *block, size_t offset, size_t width, uint64_t value)
{
	char digits[DECIMAL_BYTES];
	uint64_t max = ((uint64_t)1 << (3 * (width - 1))) - 1;

	snprintf(digits, sizeof(digits), "%0*llo", (int)width - 1,
		 (unsigned long long)(value > max ? 0 : value));
	memcpy(block + offset, digits, width - 1);
}

static void put_name(char *block, size_t offset, const char *name)
{
	memcpy(block + offset, name, strnlen(name, NAME_BYTES));
}

static int add_header(struct tar_buffer *out, const struct tar_entry *entry, uint64_t size)
{
	char *block = tar_buffer_add(out, TAR_BLOCK_BYTES);
	unsigned sum = 0;

	if (!block) {
		return -ENOMEM;
	}
	put_name(block, AT_NAME, entry->path);
	put_octal(block, AT_MODE, 8, entry->mode & 07777);
	put_octal(block, AT_UID, 8, entry->uid);
	put_octal(block, AT_GID, 8, entry->gid);
	put_octal(block, AT_SIZE, 12, size);
	put_octal(block, AT_MTIME, 12, entry->mtime_s < 0 ? 0 : (uint64_t)entry->mtime_s);
	block[AT_TYPE] = entry->type;
	put_name(block, AT_LINK, entry->link ? entry->link : "");
	/* Magic, and version "00". */
	memcpy(block + AT_MAGIC, "ustar\00000", 8);
	put_octal(block, AT_MAJOR, 8, entry->device_major);
	put_octal(block, AT_MINOR, 8, entry->device_minor);
	memset(block + AT_CHECKSUM, ' ', 8);
	for (size_t i = 0; i < TAR_BLOCK_BYTES; i++) {
		sum += (unsigned char)block[i];
	}
	put_octal(block, AT_CHECKSUM, 7, sum);
	return 0;
}

/* "LENGTH KEY=VALUE\n", where LENGTH counts its own digits too. */
static int add_record(struct tar_buffer *out, const char *key, const void *value, size_t size)
{
	size_t rest = strlen(key) + size + 3, length = rest + 1;
	char digits[DECIMAL_BYTES];
	int rc;

	while (rest + (size_t)snprintf(digits, sizeof(digits), "%zu", length) != length) {
		length = rest + strlen(digits);
	}
	rc = add_bytes(out, digits, strlen(digits));
	if (rc == 0) {
		rc = add_bytes(out, " ", 1);
	}
	if (rc == 0) {
		rc = add_bytes(out, key, strlen(key));
	}
	if (rc == 0) {
		rc = add_bytes(out, "=", 1);
	}
	if (rc == 0) {
		rc = add_bytes(out, value, size);
	}
	return rc == 0 ? add_bytes(out, "\n", 1) : rc;
}

static int add_number(struct tar_buffer *out, const char *key, uint64_t number)
{
	char digits[DECIMAL_BYTES];

	snprintf(digits, sizeof(digits), "%llu", (unsigned long long)number);
	return add_record(out, key, digits, strlen(digits));
}

/* Seconds before 1970 are written as a negative number of which the fraction is a part. */
static int add_time(struct tar_buffer *out, int64_t seconds, uint32_t ns)
{
	bool negative = seconds < 0;
	char text[2 * DECIMAL_BYTES];

	if (negative && ns > 0) {
		seconds++;
		ns = 1000000000 - ns;
	}
	snprintf(text, sizeof(text), "%s%llu.%09u", negative ? "-" : "",
		 (unsigned long long)(negative ? -(uint64_t)seconds : (uint64_t)seconds), ns);
	return add_record(out, "mtime", text, strlen(text));
}

static int add_xattr(struct tar_buffer *out, const struct archive_xattr *xattr)
{
	/* XATTR_NAME_MAX is 255. */
	char key[sizeof("SCHILY.xattr.") + 255];

	if (snprintf(key, sizeof(key), "SCHILY.xattr.%s", xattr->name) >= (int)sizeof(key)) {
		return -E2BIG;
	}
	return add_record(out, key, xattr->value, xattr->size);
}

static int add_sparse_records(struct tar_buffer *out, const struct tar_entry *entry)
{
	int rc = add_number(out, "GNU.sparse.major", 1);

	if (rc == 0) {
		rc = add_number(out, "GNU.sparse.minor", 0);
	}
	if (rc == 0) {
		rc = add_record(out, "GNU.sparse.name", entry->path, strlen(entry->path));
	}
	return rc == 0 ? add_number(out, "GNU.sparse.realsize", entry->size) : rc;
}

/* The records for everything that the header cannot say. */
static int add_records(struct tar_buffer *out, const struct tar_entry *entry, uint64_t stored)
{
	int rc = 0;

	if (strlen(entry->path) > NAME_BYTES && !entry->map) {
		rc = add_record(out, "path", entry->path, strlen(entry->path));
	}
	if (rc == 0 && entry->link && strlen(entry->link) > NAME_BYTES) {
		rc = add_record(out, "linkpath", entry->link, strlen(entry->link));
	}
	if (rc == 0 && entry->uid > OCTAL_7_MAX) {
		rc = add_number(out, "uid", entry->uid);
	}
	if (rc == 0 && entry->gid > OCTAL_7_MAX) {
		rc = add_number(out, "gid", entry->gid);
	}
	if (rc == 0 && stored > OCTAL_11_MAX) {
		rc = add_number(out, "size", stored);
	}
	if (rc == 0 &&
	    (entry->mtime_ns > 0 || entry->mtime_s < 0 || entry->mtime_s > (int64_t)OCTAL_11_MAX)) {
		rc = add_time(out, entry->mtime_s, entry->mtime_ns);
	}
	if (rc == 0 && entry->links > 1) {
		rc = add_number(out, "SCHILY.nlink", entry->links);
	}
	for (size_t i = 0; i < entry->xattr_count && rc == 0; i++) {
		rc = add_xattr(out, &entry->xattrs[i]);
	}
	return rc == 0 && entry->map ? add_sparse_records(out, entry) : rc;
}

/* The map in front of the data: numbers as lines, padded to a block. */
static int encode_map(const struct tar_map *map, struct tar_buffer *out)
{
	char line[2 * DECIMAL_BYTES];
	int rc;

	snprintf(line, sizeof(line), "%zu\n", map->count);
	rc = add_bytes(out, line, strlen(line));
	for (size_t i = 0; i < map->count && rc == 0; i++) {
		snprintf(line, sizeof(line), "%llu\n%llu\n",
			 (unsigned long long)map->segments[i].offset,
			 (unsigned long long)map->segments[i].size);
		rc = add_bytes(out, line, strlen(line));
	}
	return rc == 0 ? add_padding(out, out->size) : rc;
}

static int add_extended(struct tar_buffer *out, const struct tar_buffer *records)
{
	const struct tar_entry extended = {.type = 'x', .path = "PaxHeader", .mode = 0644};
	int rc = add_header(out, &extended, records->size);

	if (rc == 0) {
		rc = add_bytes(out, records->data, records->size);
	}
	return rc == 0 ? add_padding(out, records->size) : rc;
}

int tar_encode(const struct tar_entry *entry, struct tar_buffer *out, uint64_t *ret_data)
{
	__attribute__((cleanup(tar_buffer_clear))) struct tar_buffer records = {0};
	__attribute__((cleanup(tar_buffer_clear))) struct tar_buffer map = {0};
	uint64_t data = entry->type == '0' ? entry->size : 0;
	size_t before = out->size;
	int rc = 0;

	if (entry->map) {
		data = 0;
		for (size_t i = 0; i < entry->map->count; i++) {
			data += entry->map->segments[i].size;
		}
		rc = encode_map(entry->map, &map);
	}
	if (rc == 0) {
		rc = add_records(&records, entry, data + map.size);
	}
	if (rc == 0 &&
	    (records.size > TAR_EXTENDED_MAX || entry->xattr_count > ARCHIVE_XATTRS_MAX)) {
		rc = -E2BIG;
	}
	if (rc == 0 && records.size > 0) {
		rc = add_extended(out, &records);
	}
	if (rc == 0) {
		rc = add_header(out, entry, data + map.size);
	}
	if (rc == 0 && map.size > 0) {
		rc = add_bytes(out, map.data, map.size);
	}
	if (rc < 0) {
		out->size = before;
		return rc;
	}
	*ret_data = data;
	return 0;
}

int tar_encode_end(struct tar_buffer *out)
{
	return tar_buffer_add(out, (size_t)2 * TAR_BLOCK_BYTES) ? 0 : -ENOMEM;
}
