/*
 * Bytes as an archive: whatever comes out must obey the rules of src/archive. The first byte
 * chooses the options, the rest is the archive, which is read with or without unpacking. One option
 * mends the checksums of headers first, so that changed headers get beyond that check.
 */
#include "fuzz.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "base/check.h"
#include "base/cleanup.h"

/* Data that unpacks without end is no fault, but takes time: look at this much. */
#define FUZZ_DATA_MAX ((uint64_t)1 << 24)

static void check_path(const char *path)
{
	if (strcmp(path, ".") == 0) {
		return;
	}
	ASSERT(strlen(path) <= ARCHIVE_NAME_MAX);
	for (const char *at = path;;) {
		size_t size = strcspn(at, "/");

		ASSERT(size > 0 && size <= ARCHIVE_COMPONENT_MAX);
		ASSERT(!(size == 1 && at[0] == '.'));
		ASSERT(!(size == 2 && at[0] == '.' && at[1] == '.'));
		if (at[size] == '\0') {
			return;
		}
		at += size + 1;
	}
}

static void check_item(const struct archive_reader *reader, const struct archive_item *item,
		       const struct archive_options *options, uint32_t names_before)
{
	enum archive_type type, parent_type;
	uint32_t parent, up;

	check_path(item->path);
	ASSERT(item->type >= ARCHIVE_ITEM_DIRECTORY && item->type <= ARCHIVE_ITEM_HARDLINK);
	archive_name(reader, item->id, &parent, &type);
	ASSERT(parent == item->parent_id);
	archive_name(reader, parent, &up, &parent_type);
	ASSERT(parent_type == ARCHIVE_ITEM_DIRECTORY);
	ASSERT(item->id == 0 || parent < item->id);
	if (item->again) {
		ASSERT(item->type == ARCHIVE_ITEM_DIRECTORY && item->id < names_before);
	} else {
		ASSERT(item->id >= names_before);
	}
	if (item->type == ARCHIVE_ITEM_HARDLINK) {
		ASSERT(item->link_id < item->id);
		archive_name(reader, item->link_id, &up, &type);
		ASSERT(type == ARCHIVE_ITEM_FILE || type == ARCHIVE_ITEM_SYMLINK);
	}
	ASSERT((item->type == ARCHIVE_ITEM_SYMLINK) == (item->link != NULL));
	ASSERT(!item->link || (*item->link && strlen(item->link) <= ARCHIVE_NAME_MAX));
	ASSERT(item->mode <= (options->keep_setuid ? 07777u : 01777u));
	ASSERT(item->mtime_ns < 1000000000);
	ASSERT(item->xattr_count <= ARCHIVE_XATTRS_MAX);
	ASSERT(item->type == ARCHIVE_ITEM_FILE || item->size == 0);
}

/* Returns false when there is no use in going on. */
static bool read_data(struct archive_reader *reader, const struct archive_item *item)
{
	uint64_t end = 0, offset;
	const void *data;
	size_t size;
	int rc;

	while ((rc = archive_data(reader, &data, &size, &offset, NULL)) > 0) {
		ASSERT(size > 0 && offset >= end && offset + size <= item->size);
		end = offset + size;
		if (end > FUZZ_DATA_MAX) {
			return false;
		}
	}
	return rc == 0;
}

static void mend_checksums(uint8_t *data, size_t size)
{
	for (size_t at = 0; at + 512 <= size; at += 512) {
		uint8_t *block = data + at;
		unsigned sum = 0;

		if (memcmp(block + 257, "ustar", 5) != 0) {
			continue;
		}
		memset(block + 148, ' ', 8);
		for (size_t i = 0; i < 512; i++) {
			sum += block[i];
		}
		snprintf((char *)block + 148, 8, "%06o", sum);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* Freed after the reader, which still points into it. */
	_cleanup_free_ uint8_t *copy = NULL;
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	struct archive_options options = {0};
	const struct archive_item *item;
	uint32_t names = 1;

	if (size == 0) {
		return 0;
	}
	/* A copy of its own size shows reads beyond its end. */
	copy = malloc(size);
	ASSERT(copy);
	memcpy(copy, data + 1, size - 1);
	if (data[0] & 4) {
		mend_checksums(copy, size - 1);
	}
	options.keep_setuid = data[0] & 1;
	options.drop_devices = data[0] & 2;
	if ((data[0] & 8 ? archive_open_plain_memory
			 : archive_open_memory)(copy, size - 1, &options, &reader, NULL) < 0) {
		return 0;
	}
	while (archive_next(reader, &item, NULL) > 0) {
		check_item(reader, item, &options, names);
		names = archive_name_count(reader);
		/* Every other file is skipped by the reader itself. */
		if (item->type == ARCHIVE_ITEM_FILE && item->id % 2 && !read_data(reader, item)) {
			break;
		}
	}
	return 0;
}
