#include "archive/stream.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"

/* Large enough that reading is bound by the unpacking, small enough to stay in the cache. */
#define STREAM_READ_BYTES ((size_t)256 << 10)

static la_ssize_t input_read(struct archive *input, void *data, const void **ret_data)
{
	struct archive_stream *stream = data;
	ssize_t got;

	if (stream->fd < 0) {
		got = (ssize_t)stream->memory_size;
		*ret_data = stream->memory;
		stream->memory_size = 0;
	} else {
		do {
			got = read(stream->fd, stream->buffer, STREAM_READ_BYTES);
		} while (got < 0 && errno == EINTR);
		*ret_data = stream->buffer;
	}
	if (got < 0) {
		stream->read_error = errno;
		archive_set_error(input, errno, "cannot read it");
		return ARCHIVE_FATAL;
	}
	stream->input_bytes += (uint64_t)got;
	return got;
}

static int stream_fail(struct archive_stream *stream, struct err *err)
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
	if (archive_read_open(stream->input, stream, NULL, input_read, NULL) != ARCHIVE_OK ||
	    archive_read_next_header(stream->input, &entry) != ARCHIVE_OK) {
		if (stream->read_error == 0 && stream->input_bytes == 0) {
			return err_set(err, -ENODATA, "archive-broken", "archive: it is empty");
		}
		return stream_fail(stream, err);
	}
	return 0;
}

int stream_open(struct archive_stream *stream, int fd, const void *memory, size_t memory_size,
		struct err *err)
{
	int rc;

	*stream = (struct archive_stream){
		.fd = fd < 0 ? -EBADF : fd,
		.memory = memory,
		.memory_size = memory_size,
	};
	if (fd >= 0) {
		stream->buffer = malloc(STREAM_READ_BYTES);
		if (!stream->buffer) {
			return err_set(err, -ENOMEM, "archive-read", "archive: %s",
				       strerror(ENOMEM));
		}
	}
	rc = open_input(stream, err);
	if (rc < 0) {
		stream_close(stream);
	}
	return rc;
}

void stream_close(struct archive_stream *stream)
{
	archive_read_free(stream->input);
	stream->input = NULL;
	free(stream->buffer);
	stream->buffer = NULL;
}

int stream_take(struct archive_stream *stream, size_t max, const uint8_t **ret_data,
		size_t *ret_size, struct err *err)
{
	ASSERT(max > 0);
	while (stream->size == 0) {
		const void *data;
		size_t size;
		la_int64_t offset;
		int rc;

		if (stream->at_end) {
			return 0;
		}
		rc = archive_read_data_block(stream->input, &data, &size, &offset);
		if (rc == ARCHIVE_EOF) {
			stream->at_end = true;
			return 0;
		}
		if (rc != ARCHIVE_OK) {
			return stream_fail(stream, err);
		}
		stream->data = data;
		stream->size = size;
	}
	*ret_data = stream->data;
	*ret_size = MIN(max, stream->size);
	stream->data += *ret_size;
	stream->size -= *ret_size;
	return 1;
}

ssize_t stream_read(struct archive_stream *stream, void *data, size_t size, struct err *err)
{
	size_t filled = 0;

	while (filled < size) {
		const uint8_t *piece;
		size_t piece_size;
		int rc = stream_take(stream, size - filled, &piece, &piece_size, err);

		if (rc < 0) {
			return rc;
		}
		if (rc == 0) {
			break;
		}
		memcpy((uint8_t *)data + filled, piece, piece_size);
		filled += piece_size;
	}
	return (ssize_t)filled;
}
