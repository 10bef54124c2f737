/*
 * Bytes of an archive behind a small reading cursor: as they are, or unpacked (unpack.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "archive/gzip.h"
#include "base/err.h"

/* Large enough that reading is bound by the unpacking, small enough to stay in the cache. */
#define STREAM_READ_BYTES ((size_t)256 << 10)

struct archive;
struct archive_stream;

/* How a stream gets more bytes once those at hand are used up. */
struct stream_source {
	/* Sets data and size, to at least one byte. 1, 0 at the end, or a negative errno. */
	int (*fill)(struct archive_stream *stream, struct err *err);
	void (*close)(struct archive_stream *stream);
};

struct archive_stream {
	const struct stream_source *source;
	/* Of an unpacked stream. */
	struct archive *input;
	bool is_gzip;
	struct gzip_sums sums;
	/* Where input comes from, with room for one read; -EBADF when it comes from memory. */
	int fd;
	uint8_t *buffer;
	const uint8_t *memory;
	size_t memory_size;
	/* Input used. */
	uint64_t input_bytes;
	/* errno of a read that failed. */
	int read_error;
	/* Bytes that nobody took yet. */
	const uint8_t *data;
	size_t size;
	bool at_end;
};

/* Where an archive is: fd, or with fd < 0 memory. Both must outlive the stream. */
struct stream_input {
	int fd;
	const void *memory;
	size_t memory_size;
};

/*
 * Fills a stream from its input; the source is set afterwards. Returns 0 or -ENOMEM.
 * archive_stream_close may follow in both cases.
 */
int archive_stream_begin(struct archive_stream *stream, const struct stream_input *input,
			 struct err *err);

/*
 * Reads the next input. Returns how many bytes are at *ret_data, 0 at the end, or a negative errno
 * that is kept in read_error as well.
 */
ssize_t archive_stream_input_read(struct archive_stream *stream, const void **ret_data);

/* Opens a stream that hands out its input as it is. Returns 0 or a negative errno. */
int archive_stream_open_plain(struct archive_stream *stream, const struct stream_input *input,
			      struct err *err);
void archive_stream_close(struct archive_stream *stream);

/*
 * Hands out the next bytes, 1 to max of them, valid until the next call. Returns 1, 0 at the end,
 * or a negative errno with err filled.
 */
int archive_stream_take(struct archive_stream *stream, size_t max, const uint8_t **ret_data,
			size_t *ret_size, struct err *err);

/* Copies size bytes. Returns how many there were (less only at the end) or a negative errno. */
ssize_t archive_stream_read(struct archive_stream *stream, void *data, size_t size,
			    struct err *err);
