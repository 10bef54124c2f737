/*
 * Theory of operation.
 *
 * What flows in: the bytes of an archive, from a descriptor or memory, written by anyone. stream.c
 * hands them on as they are, or unpack.c unpacks them through libarchive's built-in filters (never
 * an external program; programs that must not link it open plain archives only). entry.c reads
 * headers by tar.c's pure decoders and makes one entry of them: type, plain name, attributes, size
 * and sparse map that agree with each other. This file gives the entry its place among the names
 * that came before (tree.c) and hands it out.
 *
 * What flows out: items whose names are relative and plain, whose parents are directories that
 * were handed out before (implied ones are made up on the way), whose hard links point at earlier
 * items, and data whose length is what the item says.
 *
 * What may never happen: that a name leads through a link, replaces anything, or leaves the tree;
 * that data is short without an error; that memory grows with anything but the number and length
 * of names. A non-directory that comes twice is refused, since the later one would replace the
 * earlier and nothing honest needs that; a directory may come again with other attributes.
 */
#include "archive/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

static enum archive_type node_type(const struct archive_reader *reader, uint32_t id)
{
	return (enum archive_type)reader->tree.nodes[id].type;
}

/* Why a name may not lead through this node, or NULL for a directory. */
static const char *not_through(const struct archive_reader *reader, uint32_t id)
{
	switch (node_type(reader, id)) {
	case ARCHIVE_ITEM_DIRECTORY:
		return NULL;
	case ARCHIVE_ITEM_SYMLINK:
		return "the name leads through a link that came earlier";
	case ARCHIVE_ITEM_DROPPED:
		return "the name leads through a device";
	default:
		return "the name leads through a file";
	}
}

static int add_name(struct archive_reader *reader, const char *name, size_t size,
		    enum archive_type type, uint32_t *ret_id, struct err *err)
{
	int rc = tree_add(&reader->tree, reader->placed_id, name, size, (uint16_t)type, ret_id);

	if (rc == -E2BIG) {
		return reader_refuse(reader, err, "the archive has more than 10 million names");
	}
	if (rc < 0) {
		return err_set(err, rc, "archive-read", "archive: %s", strerror(-rc));
	}
	return 0;
}

/* Makes up a directory that no entry named, and hands it out. */
static int place_implied(struct archive_reader *reader, size_t size, struct err *err)
{
	uint32_t id;
	int rc = add_name(reader, reader->path + reader->placed, size, ARCHIVE_ITEM_DIRECTORY, &id,
			  err);

	if (rc < 0) {
		return rc;
	}
	memcpy(reader->implied_path, reader->path, reader->placed + size);
	reader->implied_path[reader->placed + size] = '\0';
	reader->implied = (struct archive_item){
		.type = ARCHIVE_ITEM_DIRECTORY,
		.id = id,
		.parent_id = reader->placed_id,
		.path = reader->implied_path,
		.implied = true,
		.mode = 0755,
	};
	reader->placed += size + 1;
	reader->placed_id = id;
	return 1;
}

/* Finds what a hard link points at. It must have come before, by a way without links. */
static int find_target(struct archive_reader *reader, uint32_t *ret_id, struct err *err)
{
	const char *at = reader->target;
	uint32_t id = 0;

	while (*at) {
		size_t size = strcspn(at, "/");
		const char *why = not_through(reader, id);

		if (why) {
			return reader_refuse(reader, err,
					     "its target leads through a link or file");
		}
		id = tree_find(&reader->tree, id, at, size);
		if (id == TREE_NONE) {
			return reader_refuse(reader, err, "its target did not come before it");
		}
		at += size;
		at += *at == '/';
	}
	if (node_type(reader, id) == ARCHIVE_ITEM_DIRECTORY) {
		return reader_refuse(reader, err, "a hard link to a directory");
	}
	*ret_id = id;
	return 0;
}

/* What came before has the same name: only a directory may come again. */
static int place_again(struct archive_reader *reader, uint32_t id, struct err *err)
{
	enum archive_type before = node_type(reader, id);

	if (before == ARCHIVE_ITEM_SYMLINK) {
		return reader_refuse(reader, err, "it would replace a link that came earlier");
	}
	if (before != ARCHIVE_ITEM_DIRECTORY || reader->item.type != ARCHIVE_ITEM_DIRECTORY) {
		return reader_refuse(reader, err, "it comes twice");
	}
	reader->item.again = true;
	reader->item.id = id;
	reader->item.parent_id = reader->tree.nodes[id].parent;
	return 1;
}

/* Gives the last component its number. Returns 1, or 0 when the entry is left out. */
static int place_last(struct archive_reader *reader, size_t size, struct err *err)
{
	struct archive_item *item = &reader->item;
	enum archive_type type = item->type;
	const char *name = reader->path + reader->placed;
	uint32_t id;
	int rc;

	id = size ? tree_find(&reader->tree, reader->placed_id, name, size) : 0;
	if (size == 0 || id != TREE_NONE) {
		return place_again(reader, id, err);
	}
	if (type == ARCHIVE_ITEM_HARDLINK) {
		rc = find_target(reader, &item->link_id, err);
		if (rc < 0) {
			return rc;
		}
		type = node_type(reader, item->link_id);
	} else if (type == ARCHIVE_ITEM_DROPPED && !reader->options.drop_devices) {
		return reader_refuse(reader, err, "it is a device or fifo");
	}
	rc = add_name(reader, name, size, type, &item->id, err);
	if (rc < 0) {
		return rc;
	}
	item->parent_id = reader->placed_id;
	if (type == ARCHIVE_ITEM_DROPPED) {
		reader->dropped++;
		return 0;
	}
	return 1;
}

/*
 * Goes one step on from the root towards the entry's name. Returns 1 when an item is ready, 0 when
 * the entry was left out, or a failure.
 */
static int place(struct archive_reader *reader, const struct archive_item **ret_item,
		 struct err *err)
{
	for (;;) {
		const char *at = reader->path + reader->placed;
		size_t size = strcspn(at, "/");
		const char *why = not_through(reader, reader->placed_id);
		uint32_t id;
		int rc;

		if (why) {
			return reader_refuse(reader, err, why);
		}
		if (at[size] == '\0') {
			reader->placing = false;
			*ret_item = &reader->item;
			return place_last(reader, size, err);
		}
		id = tree_find(&reader->tree, reader->placed_id, at, size);
		if (id == TREE_NONE) {
			rc = place_implied(reader, size, err);
			*ret_item = &reader->implied;
			return rc;
		}
		reader->placed += size + 1;
		reader->placed_id = id;
	}
}

/* Goes over data and padding that nobody asked for. */
static int skip_data(struct archive_reader *reader, struct err *err)
{
	const uint8_t *data;
	size_t size;

	reader->data_left += reader->padding;
	reader->padding = 0;
	while (reader->data_left > 0) {
		int rc = archive_stream_take(&reader->stream, (size_t)reader->data_left, &data,
					     &size, err);

		if (rc < 0) {
			return rc;
		}
		if (rc == 0) {
			return reader_refuse(reader, err, "its data is cut short");
		}
		reader->data_left -= size;
	}
	return 0;
}

int archive_next(struct archive_reader *reader, const struct archive_item **ret_item,
		 struct err *err)
{
	int rc;

	while (!reader->at_end) {
		if (!reader->placing) {
			rc = skip_data(reader, err);
			if (rc < 0) {
				return rc;
			}
			rc = reader_read_entry(reader, err);
			if (rc < 0) {
				return rc;
			}
			if (rc == 0) {
				reader->at_end = true;
				break;
			}
			reader->placing = true;
			reader->placed = 0;
			reader->placed_id = 0;
		}
		rc = place(reader, ret_item, err);
		if (rc != 0) {
			return rc;
		}
	}
	return 0;
}

/* Moves to the next piece of the map that has bytes; returns how many of them are left. */
static uint64_t sparse_left(struct archive_reader *reader)
{
	while (reader->segment < reader->map.count) {
		const struct tar_segment *segment = &reader->map.segments[reader->segment];

		if (reader->segment_done < segment->size) {
			reader->data_offset = segment->offset + reader->segment_done;
			return segment->size - reader->segment_done;
		}
		reader->segment++;
		reader->segment_done = 0;
	}
	return 0;
}

int archive_data(struct archive_reader *reader, const void **ret_data, size_t *ret_size,
		 uint64_t *ret_offset, struct err *err)
{
	uint64_t want = reader->data_left;
	const uint8_t *data;
	size_t size;
	int rc;

	/* Between the implied directories of an entry its data is not up yet. */
	if (reader->placing || want == 0) {
		return 0;
	}
	if (reader->sparse) {
		want = sparse_left(reader);
		/* The map was held against the stored bytes. */
		ASSERT(want > 0 && want <= reader->data_left);
	}
	rc = archive_stream_take(&reader->stream, (size_t)want, &data, &size, err);
	if (rc < 0) {
		return rc;
	}
	if (rc == 0) {
		return reader_refuse(reader, err, "its data is cut short");
	}
	*ret_data = data;
	*ret_size = size;
	*ret_offset = reader->data_offset;
	reader->data_left -= size;
	reader->data_offset += size;
	reader->segment_done += size;
	return 1;
}

int reader_open(reader_opener *open, const struct stream_input *input,
		const struct archive_options *options, struct archive_reader **ret_reader,
		struct err *err)
{
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	int rc;

	reader = calloc(1, sizeof(*reader));
	if (!reader) {
		return err_set(err, -ENOMEM, "archive-read", "archive: %s", strerror(ENOMEM));
	}
	reader->options = *options;
	rc = tree_init(&reader->tree);
	if (rc < 0) {
		return err_set(err, rc, "archive-read", "archive: %s", strerror(-rc));
	}
	rc = open(&reader->stream, input, err);
	if (rc < 0) {
		return rc == -ENODATA ? -EBADMSG : rc;
	}
	*ret_reader = TAKE_PTR(reader);
	return 0;
}

int archive_open_plain_fd(int fd, const struct archive_options *options,
			  struct archive_reader **ret_reader, struct err *err)
{
	const struct stream_input input = {.fd = fd};

	ASSERT(fd >= 0);
	return reader_open(archive_stream_open_plain, &input, options, ret_reader, err);
}

int archive_open_plain_memory(const void *data, size_t size, const struct archive_options *options,
			      struct archive_reader **ret_reader, struct err *err)
{
	const struct stream_input input = {.fd = -EBADF, .memory = data, .memory_size = size};

	return reader_open(archive_stream_open_plain, &input, options, ret_reader, err);
}

void archive_close(struct archive_reader *reader)
{
	if (!reader) {
		return;
	}
	archive_stream_close(&reader->stream);
	tree_clear(&reader->tree);
	tar_map_clear(&reader->map);
	free(reader->extended);
	free(reader);
}

uint64_t archive_bytes_read(const struct archive_reader *reader)
{
	return reader->stream.input_bytes;
}

uint64_t archive_entry_count(const struct archive_reader *reader)
{
	return reader->entries;
}

uint64_t archive_dropped_count(const struct archive_reader *reader)
{
	return reader->dropped;
}

uint32_t archive_name_count(const struct archive_reader *reader)
{
	return reader->tree.count;
}

const char *archive_name(const struct archive_reader *reader, uint32_t id, uint32_t *ret_parent_id,
			 enum archive_type *ret_type)
{
	const char *name = tree_name(&reader->tree, id);

	*ret_parent_id = reader->tree.nodes[id].parent;
	*ret_type = node_type(reader, id);
	return name;
}
