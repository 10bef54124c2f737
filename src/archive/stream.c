#include "archive/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"

int archive_stream_begin(struct archive_stream *stream, const struct stream_input *input,
			 struct err *err)
{
	*stream = (struct archive_stream){
		.fd = input->fd < 0 ? -EBADF : input->fd,
		.memory = input->memory,
		.memory_size = input->memory_size,
	};
	if (input->fd >= 0) {
		stream->buffer = malloc(STREAM_READ_BYTES);
		if (!stream->buffer) {
			return err_set(err, -ENOMEM, "archive-read", "archive: %s",
				       strerror(ENOMEM));
		}
	}
	return 0;
}

ssize_t archive_stream_input_read(struct archive_stream *stream, const void **ret_data)
{
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
		return -errno;
	}
	stream->input_bytes += (uint64_t)got;
	return got;
}

static int plain_fill(struct archive_stream *stream, struct err *err)
{
	const void *data;
	ssize_t got = archive_stream_input_read(stream, &data);

	if (got < 0) {
		return err_set(err, (int)got, "archive-read", "archive: %s", strerror((int)-got));
	}
	if (got == 0) {
		return 0;
	}
	stream->data = data;
	stream->size = (size_t)got;
	return 1;
}

static const struct stream_source plain_source = {.fill = plain_fill};

int archive_stream_open_plain(struct archive_stream *stream, const struct stream_input *input,
			      struct err *err)
{
	int rc = archive_stream_begin(stream, input, err);

	stream->source = &plain_source;
	return rc;
}

void archive_stream_close(struct archive_stream *stream)
{
	if (stream->source && stream->source->close) {
		stream->source->close(stream);
	}
	free(stream->buffer);
	stream->buffer = NULL;
}

int archive_stream_take(struct archive_stream *stream, size_t max, const uint8_t **ret_data,
			size_t *ret_size, struct err *err)
{
	ASSERT(max > 0);
	while (stream->size == 0) {
		int rc = stream->at_end ? 0 : stream->source->fill(stream, err);

		if (rc <= 0) {
			stream->at_end = rc == 0;
			return rc;
		}
	}
	*ret_data = stream->data;
	*ret_size = MIN(max, stream->size);
	stream->data += *ret_size;
	stream->size -= *ret_size;
	return 1;
}

ssize_t archive_stream_read(struct archive_stream *stream, void *data, size_t size, struct err *err)
{
	size_t filled = 0;

	while (filled < size) {
		const uint8_t *piece;
		size_t piece_size;
		int rc = archive_stream_take(stream, size - filled, &piece, &piece_size, err);

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
