#include "archive/tar.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/check.h"

/* A field of a header: where it stands and how long it is. POSIX.1-2017 pax, "ustar Interchange
 * Format". */
struct field {
	size_t offset;
	size_t size;
};

static const struct field field_name = {0, 100};
static const struct field field_mode = {100, 8};
static const struct field field_uid = {108, 8};
static const struct field field_gid = {116, 8};
static const struct field field_size = {124, 12};
static const struct field field_mtime = {136, 12};
static const struct field field_checksum = {148, 8};
#define OFFSET_TYPE 156
static const struct field field_link = {157, 100};
#define OFFSET_MAGIC 257
static const struct field field_prefix = {345, 155};

/* The old GNU format keeps sparse fields where ustar has the prefix. */
#define OFFSET_GNU_SPARSE 386
#define GNU_SPARSE_IN_HEADER 4
#define OFFSET_GNU_EXTENDED 482
static const struct field field_gnu_real_size = {483, 12};
#define GNU_SPARSE_IN_EXTENSION 21
#define OFFSET_GNU_EXTENSION_MORE 504
#define GNU_NUMBER_BYTES 12

static int refuse(const char **ret_why, const char *why)
{
	*ret_why = why;
	return -EBADMSG;
}

bool tar_block_is_zero(const uint8_t *block)
{
	for (size_t i = 0; i < TAR_BLOCK_BYTES; i++) {
		if (block[i] != 0) {
			return false;
		}
	}
	return true;
}

/* GNU's base-256: the first byte is 0x80 for positive and 0xff for negative numbers. */
static bool parse_base256(const uint8_t *bytes, size_t size, int64_t *ret_value)
{
	bool negative = bytes[0] == 0xff;
	uint64_t value = negative ? UINT64_MAX : 0;

	if (bytes[0] != 0x80 && bytes[0] != 0xff) {
		return false;
	}
	for (size_t i = 1; i < size; i++) {
		/* Only the last eight bytes may say anything beyond the sign. */
		if (i + 8 < size && bytes[i] != (negative ? 0xff : 0)) {
			return false;
		}
		value = value << 8 | bytes[i];
	}
	if ((value >> 63 != 0) != negative) {
		return false;
	}
	*ret_value = (int64_t)value;
	return true;
}

/* Octal digits with blanks around them, or base-256. An empty field is 0. */
static bool parse_number(const uint8_t *bytes, size_t size, int64_t *ret_value)
{
	uint64_t value = 0;
	size_t i = 0;

	if (bytes[0] & 0x80) {
		return parse_base256(bytes, size, ret_value);
	}
	while (i < size && bytes[i] == ' ') {
		i++;
	}
	for (; i < size && bytes[i] >= '0' && bytes[i] <= '7'; i++) {
		/* 12 octal digits are 36 bits: no overflow is possible. */
		value = value << 3 | (uint64_t)(bytes[i] - '0');
	}
	for (; i < size; i++) {
		if (bytes[i] != ' ' && bytes[i] != 0) {
			return false;
		}
	}
	*ret_value = (int64_t)value;
	return true;
}

static bool field_number(const uint8_t *block, struct field field, int64_t *ret_value)
{
	return parse_number(block + field.offset, field.size, ret_value);
}

static bool field_unsigned(const uint8_t *block, struct field field, uint64_t *ret_value)
{
	int64_t value;

	if (!field_number(block, field, &value) || value < 0) {
		return false;
	}
	*ret_value = (uint64_t)value;
	return true;
}

/* Copies a text field and ends it. Returns false when something other than NUL follows a NUL. */
static bool field_text(const uint8_t *block, struct field field, char *ret_text)
{
	size_t length = strnlen((const char *)block + field.offset, field.size);

	for (size_t i = length; i < field.size; i++) {
		if (block[field.offset + i] != 0) {
			return false;
		}
	}
	memcpy(ret_text, block + field.offset, length);
	ret_text[length] = '\0';
	return true;
}

/* The sum of all bytes with the checksum itself as blanks. Old programs added signed bytes. */
static bool checksum_matches(const uint8_t *block)
{
	int64_t wanted, sum_unsigned = 0, sum_signed = 0;

	if (!field_number(block, field_checksum, &wanted)) {
		return false;
	}
	for (size_t i = 0; i < TAR_BLOCK_BYTES; i++) {
		bool blank = i >= field_checksum.offset &&
			     i < field_checksum.offset + field_checksum.size;
		uint8_t byte = blank ? ' ' : block[i];

		sum_unsigned += byte;
		sum_signed += (int8_t)byte;
	}
	return wanted == sum_unsigned || wanted == sum_signed;
}

/* Puts prefix and name together. */
static bool decode_name(const uint8_t *block, char *ret_name)
{
	struct field prefix_field = field_prefix;
	char prefix[155 + 1] = "", name[100 + 1];
	size_t length;

	if (!field_text(block, field_name, name)) {
		return false;
	}
	if (memcmp(block + OFFSET_MAGIC, "ustar\0", 6) == 0) {
		/* Schily tar keeps times in the last 24 bytes of the prefix and marks that. */
		if (memcmp(block + 508, "tar\0", 4) == 0) {
			prefix_field.size = 131;
		}
		if (!field_text(block, prefix_field, prefix)) {
			return false;
		}
	}
	length = strlen(prefix);
	memcpy(ret_name, prefix, length);
	if (length > 0) {
		ret_name[length++] = '/';
	}
	memcpy(ret_name + length, name, strlen(name) + 1);
	return true;
}

int tar_header_decode(const uint8_t *block, struct tar_header *ret_header, const char **ret_why)
{
	struct tar_header header = {0};
	uint64_t mode;

	if (!checksum_matches(block)) {
		return refuse(ret_why, "the checksum of its header is wrong");
	}
	header.type = (char)block[OFFSET_TYPE];
	if (header.type == '\0') {
		header.type = '0';
	}
	if (!decode_name(block, header.name)) {
		return refuse(ret_why, "its name holds a NUL");
	}
	if (!field_text(block, field_link, header.link)) {
		return refuse(ret_why, "the name of its link target holds a NUL");
	}
	if (!field_unsigned(block, field_mode, &mode) || mode > UINT32_MAX) {
		return refuse(ret_why, "its mode is not a number");
	}
	header.mode = (uint32_t)mode;
	if (!field_unsigned(block, field_uid, &header.uid) ||
	    !field_unsigned(block, field_gid, &header.gid)) {
		return refuse(ret_why, "its owner is not a number");
	}
	if (!field_unsigned(block, field_size, &header.size)) {
		return refuse(ret_why, "its size is not a number");
	}
	if (!field_number(block, field_mtime, &header.mtime)) {
		return refuse(ret_why, "its time is not a number");
	}
	*ret_header = header;
	return 0;
}

bool tar_parse_decimal(const char *text, size_t size, uint64_t *ret_value)
{
	uint64_t value = 0;

	if (size == 0) {
		return false;
	}
	for (size_t i = 0; i < size; i++) {
		if (text[i] < '0' || text[i] > '9' || MUL_OVERFLOWS(value, 10u, &value) ||
		    ADD_OVERFLOWS(value, (uint64_t)(text[i] - '0'), &value)) {
			return false;
		}
	}
	*ret_value = value;
	return true;
}

/* Seconds with an optional sign and fraction. Digits after the ninth are dropped. */
static bool parse_time(const char *text, int64_t *ret_s, uint32_t *ret_ns)
{
	bool negative = text[0] == '-';
	const char *digits = text + (negative ? 1 : 0);
	size_t whole = strcspn(digits, ".");
	uint64_t seconds;
	uint32_t ns = 0, scale = 100000000;

	if (!tar_parse_decimal(digits, whole, &seconds) || seconds > INT64_MAX) {
		return false;
	}
	if (digits[whole] == '.') {
		for (const char *p = digits + whole + 1; *p; p++) {
			if (*p < '0' || *p > '9') {
				return false;
			}
			ns += scale * (uint32_t)(*p - '0');
			scale /= 10;
		}
	}
	*ret_s = negative ? -(int64_t)seconds : (int64_t)seconds;
	if (negative && ns > 0) {
		*ret_s -= 1;
		ns = 1000000000 - ns;
	}
	*ret_ns = ns;
	return true;
}

int tar_map_add(struct tar_map *map, uint64_t offset, uint64_t size, const char **ret_why)
{
	struct tar_segment *grown;

	if (map->count >= TAR_SEGMENTS_MAX) {
		return refuse(ret_why, "its sparse map has too many pieces");
	}
	grown = array_reserve(map->segments, map->count, &map->capacity, sizeof(*grown));
	if (!grown) {
		*ret_why = "out of memory";
		return -ENOMEM;
	}
	map->segments = grown;
	map->segments[map->count++] = (struct tar_segment){.offset = offset, .size = size};
	return 0;
}

int tar_map_check(const struct tar_map *map, uint64_t real_size, uint64_t stored_size,
		  const char **ret_why)
{
	uint64_t end = 0, total = 0;

	for (size_t i = 0; i < map->count; i++) {
		const struct tar_segment *segment = &map->segments[i];

		if (segment->offset < end || ADD_OVERFLOWS(segment->offset, segment->size, &end) ||
		    end > real_size) {
			return refuse(ret_why, "its sparse map lies about its size");
		}
		/* Cannot overflow: the sum is at most real_size. */
		total += segment->size;
	}
	if (total != stored_size) {
		return refuse(ret_why, "its sparse map does not match the data that is stored");
	}
	return 0;
}

void tar_map_clear(struct tar_map *map)
{
	free(map->segments);
	*map = (struct tar_map){0};
}

int tar_old_sparse_decode(const uint8_t *block, bool extension, struct tar_map *map, bool *ret_more,
			  uint64_t *ret_real_size, const char **ret_why)
{
	const uint8_t *entry = block + (extension ? 0 : OFFSET_GNU_SPARSE);
	size_t count = extension ? GNU_SPARSE_IN_EXTENSION : GNU_SPARSE_IN_HEADER;

	if (!extension && !field_unsigned(block, field_gnu_real_size, ret_real_size)) {
		return refuse(ret_why, "its size is not a number");
	}
	for (size_t i = 0; i < count; i++, entry += 2 * (size_t)GNU_NUMBER_BYTES) {
		int64_t offset, size;
		int rc;

		/* An unused place is all zeros. */
		if (entry[0] == 0 && entry[GNU_NUMBER_BYTES] == 0) {
			continue;
		}
		if (!parse_number(entry, GNU_NUMBER_BYTES, &offset) ||
		    !parse_number(entry + GNU_NUMBER_BYTES, GNU_NUMBER_BYTES, &size) ||
		    offset < 0 || size < 0) {
			return refuse(ret_why, "its sparse map is broken");
		}
		rc = tar_map_add(map, (uint64_t)offset, (uint64_t)size, ret_why);
		if (rc < 0) {
			return rc;
		}
	}
	*ret_more = block[extension ? OFFSET_GNU_EXTENSION_MORE : OFFSET_GNU_EXTENDED] != 0;
	return 0;
}

/* One record of an extended header while it is decoded. */
struct record {
	const char *key;
	const char *value;
	size_t size;
	struct tar_extra *extra;
	struct tar_map *map;
	const char *why;
};

static int record_refuse(struct record *record, const char *why)
{
	record->why = why;
	return -EBADMSG;
}

static int record_name(struct record *record, const char **ret_name)
{
	if (memchr(record->value, 0, record->size)) {
		return record_refuse(record, "its name or link target holds a NUL");
	}
	if (record->size > ARCHIVE_NAME_MAX) {
		return record_refuse(record, "its name or link target is over 4096 bytes");
	}
	/* An empty value takes back what a global header said; those say nothing here. */
	*ret_name = record->size > 0 ? record->value : NULL;
	return 0;
}

static int record_number(struct record *record, uint64_t *ret_number)
{
	if (!tar_parse_decimal(record->value, record->size, ret_number) ||
	    *ret_number > INT64_MAX) {
		return record_refuse(record, "a number in its extended header is broken");
	}
	return 0;
}

static int record_path(struct record *record)
{
	return record_name(record, &record->extra->path);
}

static int record_link(struct record *record)
{
	return record_name(record, &record->extra->link);
}

static int record_sparse_name(struct record *record)
{
	return record_name(record, &record->extra->sparse_name);
}

static int record_uid(struct record *record)
{
	record->extra->has_uid = true;
	return record_number(record, &record->extra->uid);
}

static int record_gid(struct record *record)
{
	record->extra->has_gid = true;
	return record_number(record, &record->extra->gid);
}

static int record_size(struct record *record)
{
	record->extra->has_size = true;
	return record_number(record, &record->extra->size);
}

static int record_mtime(struct record *record)
{
	record->extra->has_mtime = true;
	if (memchr(record->value, 0, record->size) ||
	    !parse_time(record->value, &record->extra->mtime_s, &record->extra->mtime_ns)) {
		return record_refuse(record, "its time is not a number");
	}
	return 0;
}

static int record_links(struct record *record)
{
	return record_number(record, &record->extra->links);
}

static int record_charset(struct record *record)
{
	/* Names are bytes to us either way. */
	(void)record;
	return 0;
}

static int record_sparse_major(struct record *record)
{
	return record_number(record, &record->extra->sparse_major);
}

static int record_sparse_minor(struct record *record)
{
	return record_number(record, &record->extra->sparse_minor);
}

static int record_real_size(struct record *record)
{
	record->extra->has_real_size = true;
	return record_number(record, &record->extra->real_size);
}

/* Format 0.0: pairs of records. */
static int record_sparse_offset(struct record *record)
{
	record->extra->has_sparse_offset = true;
	return record_number(record, &record->extra->sparse_offset);
}

static int record_sparse_bytes(struct record *record)
{
	uint64_t size;
	int rc = record_number(record, &size);

	if (rc < 0) {
		return rc;
	}
	if (!record->extra->has_sparse_offset) {
		return record_refuse(record, "its sparse map is broken");
	}
	record->extra->has_sparse_offset = false;
	record->extra->sparse = TAR_SPARSE_MAPPED;
	return tar_map_add(record->map, record->extra->sparse_offset, size, &record->why);
}

/* Format 0.1: one record with "offset,size,offset,size". */
static int record_sparse_map(struct record *record)
{
	const char *at = record->value, *end = record->value + record->size;
	uint64_t numbers[2];
	size_t have = 0;

	record->extra->sparse = TAR_SPARSE_MAPPED;
	record->map->count = 0;
	while (at < end) {
		const char *comma = memchr(at, ',', (size_t)(end - at));
		const char *stop = comma ? comma : end;

		if (!tar_parse_decimal(at, (size_t)(stop - at), &numbers[have])) {
			return record_refuse(record, "its sparse map is broken");
		}
		if (++have == 2) {
			int rc = tar_map_add(record->map, numbers[0], numbers[1], &record->why);

			if (rc < 0) {
				return rc;
			}
			have = 0;
		}
		at = comma ? comma + 1 : end;
	}
	return have == 0 ? 0 : record_refuse(record, "its sparse map is broken");
}

static const struct {
	const char *key;
	int (*decode)(struct record *record);
	/* May stand in a global header, since it changes no entry. */
	bool global;
} record_keys[] = {
	{"path", record_path, false},
	{"linkpath", record_link, false},
	{"size", record_size, false},
	{"uid", record_uid, false},
	{"gid", record_gid, false},
	{"mtime", record_mtime, false},
	{"SCHILY.nlink", record_links, false},
	{"hdrcharset", record_charset, true},
	{"GNU.sparse.name", record_sparse_name, false},
	{"GNU.sparse.major", record_sparse_major, false},
	{"GNU.sparse.minor", record_sparse_minor, false},
	{"GNU.sparse.realsize", record_real_size, false},
	{"GNU.sparse.size", record_real_size, false},
	{"GNU.sparse.offset", record_sparse_offset, false},
	{"GNU.sparse.numbytes", record_sparse_bytes, false},
	{"GNU.sparse.map", record_sparse_map, false},
};

#define XATTR_PREFIX "SCHILY.xattr."

static int record_xattr(struct record *record)
{
	struct tar_extra *extra = record->extra;
	const char *name = record->key + strlen(XATTR_PREFIX);

	/* No mapping of Linux has a longer name (xattr(7)). */
	if (*name == '\0' || strlen(name) > 255) {
		return record_refuse(record, "the name of an extended attribute is too long");
	}
	if (extra->xattr_count == ARCHIVE_XATTRS_MAX) {
		return record_refuse(record, "it has too many extended attributes");
	}
	extra->xattrs[extra->xattr_count++] = (struct archive_xattr){
		.name = name,
		.value = record->value,
		.size = record->size,
	};
	return 0;
}

static int record_decode(struct record *record, bool global)
{
	bool xattr = strncmp(record->key, XATTR_PREFIX, strlen(XATTR_PREFIX)) == 0;

	for (size_t i = 0; i < ARRAY_SIZE(record_keys); i++) {
		if (strcmp(record->key, record_keys[i].key) == 0) {
			if (global && !record_keys[i].global) {
				return record_refuse(
					record, "a global header that changes entries is not read");
			}
			return record_keys[i].decode(record);
		}
	}
	if (xattr && !global) {
		return record_xattr(record);
	}
	return 0;
}

/* Cuts the next record, "LENGTH KEY=VALUE\n" with LENGTH counting all of it, off *at. */
static int record_cut(char **at, char *end, struct record *ret_record)
{
	char *space = memchr(*at, ' ', MIN((size_t)(end - *at), (size_t)20));
	char *equals, *stop;
	uint64_t length;

	if (!space || !tar_parse_decimal(*at, (size_t)(space - *at), &length) || length == 0 ||
	    length > (uint64_t)(end - *at)) {
		return -EBADMSG;
	}
	stop = *at + length - 1;
	if (stop <= space || *stop != '\n') {
		return -EBADMSG;
	}
	equals = memchr(space + 1, '=', (size_t)(stop - space - 1));
	if (!equals || memchr(space + 1, 0, (size_t)(equals - space - 1))) {
		return -EBADMSG;
	}
	*equals = '\0';
	*stop = '\0';
	ret_record->key = space + 1;
	ret_record->value = equals + 1;
	ret_record->size = (size_t)(stop - equals - 1);
	*at = stop + 1;
	return 0;
}

int tar_pax_decode(char *body, size_t size, bool global, struct tar_extra *extra,
		   struct tar_map *map, const char **ret_why)
{
	char *at = body, *end = body + size;

	while (at < end) {
		struct record record = {.extra = extra, .map = map};
		int rc;

		if (record_cut(&at, end, &record) < 0) {
			return refuse(ret_why, "its extended header is broken");
		}
		rc = record_decode(&record, global);
		if (rc < 0) {
			*ret_why = record.why;
			return rc;
		}
	}
	if (extra->has_sparse_offset) {
		return refuse(ret_why, "its sparse map is broken");
	}
	if (extra->sparse_major == 1 && extra->sparse_minor == 0) {
		extra->sparse = TAR_SPARSE_IN_DATA;
	} else if (extra->sparse_major != 0 || extra->sparse_minor > 1) {
		return refuse(ret_why, "its sparse format is not known");
	}
	return 0;
}
