/* What the reader keeps; shared by reader.c (which entry) and entry.c (what a header says). */
#pragma once

#include "archive/archive.h"
#include "archive/stream.h"
#include "archive/tar.h"
#include "archive/tree.h"

struct archive_reader {
	struct archive_options options;
	struct archive_stream stream;
	struct tree tree;
	uint64_t entries;
	uint64_t dropped;

	/* The entry being read, as its headers say it. */
	struct tar_header header;
	struct tar_extra extra;
	struct tar_map map;
	char *extended;
	bool has_long_name;
	bool has_long_link;
	char long_name[ARCHIVE_NAME_MAX + 1];
	char long_link[ARCHIVE_NAME_MAX + 1];
	/* For messages: its name as written. */
	const char *name;

	/* The same entry, checked. path and target are plain, "" is the root. */
	char path[ARCHIVE_NAME_MAX + 1];
	char target[ARCHIVE_NAME_MAX + 1];
	struct archive_item item;
	struct archive_xattr xattrs[ARCHIVE_XATTRS_MAX];

	/* Where in path the walk from the root stands, while implied directories are handed out. */
	bool placing;
	size_t placed;
	uint32_t placed_id;
	struct archive_item implied;
	char implied_path[ARCHIVE_NAME_MAX + 1];

	/* Stored bytes of the current entry that nobody took yet, and what pads them. */
	uint64_t data_left;
	size_t padding;
	uint64_t data_offset;
	/* Position in the sparse map. */
	bool sparse;
	size_t segment;
	uint64_t segment_done;
	bool at_end;
};

/* Ends the archive because of the current entry. Returns -EBADMSG. */
int reader_refuse(struct archive_reader *reader, struct err *err, const char *why);

/*
 * Reads headers up to the next entry and fills reader->item but for its place (id, parent_id,
 * link_id). Returns 1, 0 at the end of the archive, or a negative errno.
 */
int reader_read_entry(struct archive_reader *reader, struct err *err);

/* Opens a stream over an input, as archive_stream_open_plain does. */
typedef int reader_opener(struct archive_stream *stream, const struct stream_input *input,
			  struct err *err);

/* Makes a reader over a stream that open opens. Returns 0 or a negative errno. */
int reader_open(reader_opener *open, const struct stream_input *input,
		const struct archive_options *options, struct archive_reader **ret_reader,
		struct err *err);
