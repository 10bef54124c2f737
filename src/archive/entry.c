/* From headers to one entry: extended headers, long names, sparse maps, and what must agree. */
#include "archive/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "archive/name.h"
#include "base/check.h"

/* A file no Linux file system can hold is a lie; offsets are signed 64-bit numbers. */
#define FILE_SIZE_MAX ((uint64_t)INT64_MAX)

int reader_refuse(struct archive_reader *reader, struct err *err, const char *why)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	if (!reader->name) {
		return err_set(err, -EBADMSG, "archive-refused", "archive: entry number %llu: %s",
			       (unsigned long long)reader->entries + 1, why);
	}
	return err_set(err, -EBADMSG, "archive-refused", "archive: entry %s: %s",
		       archive_quote(reader->name, quoted), why);
}

static int fail(struct archive_reader *reader, int rc, const char *why, struct err *err)
{
	if (rc == -ENOMEM) {
		return err_set(err, rc, "archive-read", "archive: %s", strerror(ENOMEM));
	}
	return reader_refuse(reader, err, why);
}

/* Reads exactly size bytes of the archive. */
static int read_exactly(struct archive_reader *reader, void *data, size_t size, struct err *err)
{
	ssize_t got = archive_stream_read(&reader->stream, data, size, err);

	if (got < 0) {
		return (int)got;
	}
	if ((size_t)got < size) {
		return reader_refuse(reader, err, "the archive is cut short");
	}
	return 0;
}

static size_t padding_of(uint64_t size)
{
	return (size_t)(-size % TAR_BLOCK_BYTES);
}

/* Reads the body of an extension header and what pads it. */
static int read_body(struct archive_reader *reader, char *data, size_t size, struct err *err)
{
	char padding[TAR_BLOCK_BYTES];
	int rc = read_exactly(reader, data, size, err);

	if (rc < 0) {
		return rc;
	}
	return read_exactly(reader, padding, padding_of(size), err);
}

static int read_pax(struct archive_reader *reader, uint64_t size, bool global, struct err *err)
{
	struct tar_extra ignored = {0};
	const char *why = NULL;
	int rc;

	/* Values of the entry's own header live in the same memory. */
	if (reader->extended) {
		return reader_refuse(reader, err, "it has two extended headers");
	}
	if (size > TAR_EXTENDED_MAX) {
		return reader_refuse(reader, err, "its extended header is over 1 MiB");
	}
	reader->extended = malloc((size_t)size + 1);
	if (!reader->extended) {
		return fail(reader, -ENOMEM, NULL, err);
	}
	rc = read_body(reader, reader->extended, (size_t)size, err);
	if (rc < 0) {
		return rc;
	}
	rc = tar_pax_decode(reader->extended, (size_t)size, global,
			    global ? &ignored : &reader->extra, &reader->map, &why);
	if (rc < 0) {
		return fail(reader, rc, why, err);
	}
	if (global) {
		free(reader->extended);
		reader->extended = NULL;
	}
	return 0;
}

/* GNU's 'L' and 'K': the name is the body, with a NUL at its end. */
static int read_long_name(struct archive_reader *reader, bool *seen, char *name, struct err *err)
{
	uint64_t size = reader->header.size;
	int rc;

	if (*seen) {
		return reader_refuse(reader, err, "it has two long names");
	}
	/* The NUL comes on top of the longest name. */
	if (size > ARCHIVE_NAME_MAX + 1) {
		return reader_refuse(reader, err, "the name is over 4096 bytes");
	}
	if (size == 0) {
		return reader_refuse(reader, err, "the name is empty");
	}
	rc = read_body(reader, name, (size_t)size, err);
	if (rc < 0) {
		return rc;
	}
	if (name[size - 1] != '\0') {
		if (size > ARCHIVE_NAME_MAX) {
			return reader_refuse(reader, err, "the name is over 4096 bytes");
		}
		name[size++] = '\0';
	}
	if (strlen(name) + 1 != size) {
		return reader_refuse(reader, err, "its name holds a NUL");
	}
	*seen = true;
	return 0;
}

/* Handles a header that only prepares the next one. Returns 1 when it is one, 0, or a failure. */
static int read_extension(struct archive_reader *reader, struct err *err)
{
	int rc;

	switch (reader->header.type) {
	case 'x':
		rc = read_pax(reader, reader->header.size, false, err);
		break;
	case 'g':
		rc = read_pax(reader, reader->header.size, true, err);
		break;
	case 'L':
		rc = read_long_name(reader, &reader->has_long_name, reader->long_name, err);
		break;
	case 'K':
		rc = read_long_name(reader, &reader->has_long_link, reader->long_link, err);
		break;
	case 'V':
		/* The name of the volume. */
		rc = reader->header.size == 0 ? 0 : reader_refuse(reader, err, "its size is a lie");
		break;
	default:
		return 0;
	}
	return rc < 0 ? rc : 1;
}

/* After the end mark there may be padding, and nothing else: a second archive would get lost. */
static int read_end(struct archive_reader *reader, struct err *err)
{
	const uint8_t *data;
	size_t size;
	int rc;

	reader->name = NULL;
	if (reader->extended || reader->has_long_name || reader->has_long_link) {
		return reader_refuse(reader, err, "an extended header without an entry");
	}
	while ((rc = archive_stream_take(&reader->stream, SIZE_MAX, &data, &size, err)) > 0) {
		if (data[0] != 0 || memcmp(data, data + 1, size - 1) != 0) {
			return err_set(err, -EBADMSG, "archive-refused",
				       "archive: something follows its end");
		}
	}
	return rc;
}

static void forget_entry(struct archive_reader *reader)
{
	free(reader->extended);
	reader->extended = NULL;
	reader->extra = (struct tar_extra){0};
	tar_map_clear(&reader->map);
	reader->has_long_name = false;
	reader->has_long_link = false;
	reader->name = NULL;
}

/* The old GNU map: some pieces in the header, more in blocks behind it. */
static int read_old_sparse(struct archive_reader *reader, uint8_t *block, struct err *err)
{
	bool extension = false, more;

	do {
		const char *why = NULL;
		int rc = tar_old_sparse_decode(block, extension, &reader->map, &more,
					       &reader->extra.real_size, &why);

		if (rc < 0) {
			return fail(reader, rc, why, err);
		}
		extension = true;
		if (more) {
			rc = read_exactly(reader, block, TAR_BLOCK_BYTES, err);
			if (rc < 0) {
				return rc;
			}
		}
	} while (more);
	reader->extra.has_real_size = true;
	reader->extra.sparse = TAR_SPARSE_MAPPED;
	return 0;
}

/* One line of a 1.0 map: decimal digits and a newline. Crosses blocks. */
static int read_map_number(struct archive_reader *reader, uint8_t *block, size_t *position,
			   uint64_t *ret_number, struct err *err)
{
	/* 20 digits hold every 64-bit number. */
	char digits[20];
	size_t count = 0;

	for (;;) {
		if (*position == TAR_BLOCK_BYTES) {
			int rc;

			if (reader->data_left < TAR_BLOCK_BYTES) {
				return reader_refuse(reader, err, "its sparse map is cut short");
			}
			rc = read_exactly(reader, block, TAR_BLOCK_BYTES, err);
			if (rc < 0) {
				return rc;
			}
			reader->data_left -= TAR_BLOCK_BYTES;
			*position = 0;
		}
		if (block[*position] == '\n') {
			(*position)++;
			break;
		}
		if (count == sizeof(digits)) {
			return reader_refuse(reader, err, "its sparse map is broken");
		}
		digits[count++] = (char)block[(*position)++];
	}
	if (!tar_parse_decimal(digits, count, ret_number)) {
		return reader_refuse(reader, err, "its sparse map is broken");
	}
	return 0;
}

static int read_data_map(struct archive_reader *reader, struct err *err)
{
	uint8_t block[TAR_BLOCK_BYTES];
	size_t position = TAR_BLOCK_BYTES;
	uint64_t count;
	int rc = read_map_number(reader, block, &position, &count, err);

	if (rc < 0) {
		return rc;
	}
	if (count > TAR_SEGMENTS_MAX) {
		return reader_refuse(reader, err, "its sparse map has too many pieces");
	}
	for (uint64_t i = 0; i < count; i++) {
		const char *why = NULL;
		uint64_t offset, size;

		rc = read_map_number(reader, block, &position, &offset, err);
		if (rc == 0) {
			rc = read_map_number(reader, block, &position, &size, err);
		}
		if (rc < 0) {
			return rc;
		}
		rc = tar_map_add(&reader->map, offset, size, &why);
		if (rc < 0) {
			return fail(reader, rc, why, err);
		}
	}
	return 0;
}

/* Data of a file: how much is stored, how long the file is, and the map between the two. */
static int decode_data(struct archive_reader *reader, uint8_t *block, struct err *err)
{
	struct tar_extra *extra = &reader->extra;
	const char *why = NULL;
	int rc = 0;

	reader->data_left = extra->has_size ? extra->size : reader->header.size;
	reader->padding = padding_of(reader->data_left);
	if (reader->header.type == 'S') {
		if (extra->sparse != TAR_SPARSE_NONE) {
			return reader_refuse(reader, err, "it has two sparse maps");
		}
		rc = read_old_sparse(reader, block, err);
	} else if (extra->sparse == TAR_SPARSE_IN_DATA) {
		if (reader->map.count > 0) {
			return reader_refuse(reader, err, "it has two sparse maps");
		}
		rc = read_data_map(reader, err);
	}
	if (rc < 0) {
		return rc;
	}
	reader->sparse = extra->sparse != TAR_SPARSE_NONE;
	reader->item.size = reader->data_left;
	if (reader->sparse) {
		if (!extra->has_real_size) {
			return reader_refuse(reader, err, "its sparse map has no size");
		}
		reader->item.size = extra->real_size;
		if (tar_map_check(&reader->map, extra->real_size, reader->data_left, &why) < 0) {
			return reader_refuse(reader, err, why);
		}
	}
	if (reader->item.size > FILE_SIZE_MAX) {
		return reader_refuse(reader, err, "its size is a lie");
	}
	return 0;
}

/* ARCHIVE_ITEM_DROPPED stands for devices and fifos here. 0 is a type that is not known. */
static enum archive_type type_of(const struct archive_reader *reader)
{
	size_t length = strlen(reader->name);

	switch (reader->header.type) {
	case '0':
		/* The oldest format marks directories by their name alone. */
		if (length > 0 && reader->name[length - 1] == '/') {
			return ARCHIVE_ITEM_DIRECTORY;
		}
		return ARCHIVE_ITEM_FILE;
	case '7':
	case 'S':
		return ARCHIVE_ITEM_FILE;
	case '1':
		return ARCHIVE_ITEM_HARDLINK;
	case '2':
		return ARCHIVE_ITEM_SYMLINK;
	case '3':
	case '4':
	case '6':
		return ARCHIVE_ITEM_DROPPED;
	case '5':
		return ARCHIVE_ITEM_DIRECTORY;
	default:
		return 0;
	}
}

static int decode_link(struct archive_reader *reader, struct err *err)
{
	struct archive_item *item = &reader->item;
	const char *why = NULL;

	item->link = reader->extra.link	     ? reader->extra.link
		     : reader->has_long_link ? reader->long_link
					     : reader->header.link;
	if (item->link[0] == '\0') {
		return reader_refuse(reader, err, "its link has no target");
	}
	if (item->type == ARCHIVE_ITEM_HARDLINK) {
		if (name_normalize(item->link, reader->target, &why) < 0) {
			char text[128] = "of its link target, ";

			strncat(text, why, sizeof(text) - strlen(text) - 1);
			return reader_refuse(reader, err, text);
		}
		item->link = NULL;
	}
	return 0;
}

static int decode_owner(struct archive_reader *reader, struct err *err)
{
	const struct tar_extra *extra = &reader->extra;
	uint64_t uid = extra->has_uid ? extra->uid : reader->header.uid;
	uint64_t gid = extra->has_gid ? extra->gid : reader->header.gid;

	/* The largest number is Linux's "no ID". */
	if (uid >= UINT32_MAX || gid >= UINT32_MAX) {
		return reader_refuse(reader, err, "its owner is out of range");
	}
	reader->item.uid = (uint32_t)uid;
	reader->item.gid = (uint32_t)gid;
	reader->item.mtime_s = extra->has_mtime ? extra->mtime_s : reader->header.mtime;
	reader->item.mtime_ns = extra->has_mtime ? extra->mtime_ns : 0;
	reader->item.mode = reader->header.mode & (reader->options.keep_setuid ? 07777 : 01777);
	return 0;
}

static void choose_xattrs(struct archive_reader *reader)
{
	struct archive_item *item = &reader->item;

	item->xattrs = reader->xattrs;
	if (item->type != ARCHIVE_ITEM_FILE && item->type != ARCHIVE_ITEM_DIRECTORY) {
		return;
	}
	for (size_t i = 0; i < reader->extra.xattr_count; i++) {
		const struct archive_xattr *xattr = &reader->extra.xattrs[i];
		/* A file capability is a setuid bit in a finer form. */
		bool capability = strcmp(xattr->name, "security.capability") == 0;

		if (strncmp(xattr->name, "user.", 5) == 0 ||
		    (capability && reader->options.keep_setuid)) {
			reader->xattrs[item->xattr_count++] = *xattr;
		}
	}
}

static int decode_entry(struct archive_reader *reader, uint8_t *block, struct err *err)
{
	struct archive_item *item = &reader->item;
	const char *why = NULL;
	int rc;

	*item = (struct archive_item){.type = type_of(reader)};
	reader->data_left = 0;
	reader->padding = 0;
	reader->data_offset = 0;
	reader->sparse = false;
	reader->segment = 0;
	reader->segment_done = 0;
	if (item->type == 0) {
		return reader_refuse(reader, err, "its type is not known");
	}
	if (name_normalize(reader->name, reader->path, &why) < 0) {
		return reader_refuse(reader, err, why);
	}
	item->path = reader->path[0] ? reader->path : ".";
	if (item->type == ARCHIVE_ITEM_FILE) {
		rc = decode_data(reader, block, err);
	} else if ((reader->extra.has_size ? reader->extra.size : reader->header.size) != 0 ||
		   reader->extra.sparse != TAR_SPARSE_NONE) {
		rc = reader_refuse(reader, err, "it says that it has data, but is no file");
	} else {
		rc = 0;
	}
	if (rc == 0) {
		rc = decode_owner(reader, err);
	}
	if (rc == 0 &&
	    (item->type == ARCHIVE_ITEM_HARDLINK || item->type == ARCHIVE_ITEM_SYMLINK)) {
		rc = decode_link(reader, err);
	}
	if (rc == 0) {
		item->links = (uint32_t)MIN(reader->extra.links, (uint64_t)UINT32_MAX);
		choose_xattrs(reader);
	}
	return rc;
}

/* Reads one block. Returns 1, 0 for the end mark, or a failure. */
static int read_header_block(struct archive_reader *reader, uint8_t *block, struct err *err)
{
	ssize_t got = archive_stream_read(&reader->stream, block, TAR_BLOCK_BYTES, err);

	if (got < 0) {
		return (int)got;
	}
	if (got < (ssize_t)TAR_BLOCK_BYTES) {
		return err_set(err, -EBADMSG, "archive-broken",
			       "archive: it is cut short after %llu entries",
			       (unsigned long long)reader->entries);
	}
	return tar_block_is_zero(block) ? 0 : 1;
}

int reader_read_entry(struct archive_reader *reader, struct err *err)
{
	uint8_t block[TAR_BLOCK_BYTES];
	const char *why = NULL;
	int rc;

	forget_entry(reader);
	do {
		rc = read_header_block(reader, block, err);
		if (rc < 0) {
			return rc;
		}
		if (rc == 0) {
			return read_end(reader, err);
		}
		if (tar_header_decode(block, &reader->header, &why) < 0) {
			if (reader->entries == 0 && !reader->extended) {
				return err_set(err, -EBADMSG, "archive-broken",
					       "archive: this is not a tar archive: %s", why);
			}
			return reader_refuse(reader, err, why);
		}
		rc = read_extension(reader, err);
		if (rc < 0) {
			return rc;
		}
	} while (rc > 0);
	reader->name = reader->extra.sparse_name ? reader->extra.sparse_name
		       : reader->extra.path	 ? reader->extra.path
		       : reader->has_long_name	 ? reader->long_name
						 : reader->header.name;
	if (reader->entries >= ARCHIVE_ENTRIES_MAX) {
		return reader_refuse(reader, err, "the archive has more than 10 million entries");
	}
	reader->entries++;
	rc = decode_entry(reader, block, err);
	return rc < 0 ? rc : 1;
}
