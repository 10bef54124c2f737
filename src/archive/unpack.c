#include "archive/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <string.h>

#include "archive/reader.h"
#include "base/check.h"

static la_ssize_t unpack_read(struct archive *input, void *data, const void **ret_data)
{
	struct archive_stream *stream = data;
	ssize_t got = archive_stream_input_read(stream, ret_data);

	if (got < 0) {
		archive_set_error(input, stream->read_error, "cannot read it");
		return ARCHIVE_FATAL;
	}
	gzip_note_input(&stream->sums, *ret_data, (size_t)got);
	return got;
}

static int unpack_fail(struct archive_stream *stream, struct err *err)
{
	const char *why = archive_error_string(stream->input);

	if (stream->read_error != 0) {
		return err_set(err, -stream->read_error, "archive-read", "archive: %s",
			       strerror(stream->read_error));
	}
	if (archive_errno(stream->input) == ENOMEM) {
		return err_set(err, -ENOMEM, "archive-read", "archive: %s", strerror(ENOMEM));
	}
	return err_set(err, -EBADMSG, "archive-broken", "archive: it cannot be unpacked: %s",
		       why ? why : "unknown reason");
}

/*
 * libarchive answers ARCHIVE_WARN where it would start an external program instead of a filter of
 * its own, and by then has set that up. So each filter is first tried on a throw-away object; one
 * that is not built in stays off and such an archive is then no tar archive to us.
 */
static int add_filters(struct archive *input)
{
	static int (*const filters[])(struct archive *) = {
		archive_read_support_filter_gzip, archive_read_support_filter_bzip2,
		archive_read_support_filter_xz,	  archive_read_support_filter_zstd,
		archive_read_support_filter_lz4,
	};

	for (size_t i = 0; i < ARRAY_SIZE(filters); i++) {
		struct archive *trial = archive_read_new();
		int rc = trial ? filters[i](trial) : ARCHIVE_FATAL;

		archive_read_free(trial);
		if (rc == ARCHIVE_FATAL || (rc == ARCHIVE_OK && filters[i](input) != ARCHIVE_OK)) {
			return -ENOMEM;
		}
	}
	return 0;
}

static int open_input(struct archive_stream *stream, struct err *err)
{
	struct archive_entry *entry;

	stream->input = archive_read_new();
	if (!stream->input || add_filters(stream->input) < 0 ||
	    archive_read_support_format_raw(stream->input) != ARCHIVE_OK) {
		return err_set(err, -ENOMEM, "archive-read", "archive: %s", strerror(ENOMEM));
	}
	if (archive_read_open(stream->input, stream, NULL, unpack_read, NULL) != ARCHIVE_OK ||
	    archive_read_next_header(stream->input, &entry) != ARCHIVE_OK) {
		if (stream->read_error == 0 && stream->input_bytes == 0) {
			return err_set(err, -ENODATA, "archive-broken", "archive: it is empty");
		}
		return unpack_fail(stream, err);
	}
	/* The other filter is the input itself. */
	stream->is_gzip = archive_filter_count(stream->input) == 2 &&
			  archive_filter_code(stream->input, 0) == ARCHIVE_FILTER_GZIP;
	return 0;
}

/* What is behind the packed data. libarchive looks at the sums of the other kinds itself. */
static int unpack_end(const struct archive_stream *stream, struct err *err)
{
	return !stream->is_gzip || gzip_sums_fit(&stream->sums)
		       ? 0
		       : err_set(err, -EBADMSG, "archive-broken",
				 "archive: it cannot be unpacked: its checksum is wrong");
}

static int unpack_fill(struct archive_stream *stream, struct err *err)
{
	const void *data;
	size_t size;
	la_int64_t offset;
	int rc = archive_read_data_block(stream->input, &data, &size, &offset);

	if (rc == ARCHIVE_EOF) {
		return unpack_end(stream, err);
	}
	if (rc != ARCHIVE_OK) {
		return unpack_fail(stream, err);
	}
	if (stream->is_gzip) {
		gzip_note_output(&stream->sums, data, size);
	}
	stream->data = data;
	stream->size = size;
	return 1;
}

static void unpack_close(struct archive_stream *stream)
{
	archive_read_free(stream->input);
	stream->input = NULL;
}

static const struct stream_source unpack_source = {.fill = unpack_fill, .close = unpack_close};

int unpack_open(struct archive_stream *stream, const struct stream_input *input, struct err *err)
{
	int rc = archive_stream_begin(stream, input, err);

	stream->source = &unpack_source;
	return rc < 0 ? rc : open_input(stream, err);
}

int archive_open_fd(int fd, const struct archive_options *options,
		    struct archive_reader **ret_reader, struct err *err)
{
	const struct stream_input input = {.fd = fd};

	ASSERT(fd >= 0);
	return reader_open(unpack_open, &input, options, ret_reader, err);
}

int archive_open_memory(const void *data, size_t size, const struct archive_options *options,
			struct archive_reader **ret_reader, struct err *err)
{
	const struct stream_input input = {.fd = -EBADF, .memory = data, .memory_size = size};

	return reader_open(unpack_open, &input, options, ret_reader, err);
}
