/*
 * Bytes of an archive, unpacked: libarchive's compression filters behind a small reading cursor.
 *
 * libarchive only unpacks here (its "raw" format); what tar means is decoded by our own code.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct archive;

struct archive_stream {
	struct archive *input;
	/* Of archive_open_fd: where input comes from, with room for one read. Otherwise -EBADF. */
	int fd;
	uint8_t *buffer;
	/* Of archive_open_memory. */
	const uint8_t *memory;
	size_t memory_size;
	/* Input used. */
	uint64_t input_bytes;
	/* errno of a read that failed. */
	int read_error;
	/* Unpacked bytes that nobody took yet. */
	const uint8_t *data;
	size_t size;
	bool at_end;
};

/*
 * Opens a stream over fd, or with fd < 0 over memory (which must outlive it). Returns 0 or a
 * negative errno; -ENODATA when there is not one byte.
 */
int stream_open(struct archive_stream *stream, int fd, const void *memory, size_t memory_size,
		struct err *err);
void stream_close(struct archive_stream *stream);

/*
 * Hands out the next bytes, 1 to max of them, valid until the next call. Returns 1, 0 at the end,
 * or a negative errno with err filled.
 */
int stream_take(struct archive_stream *stream, size_t max, const uint8_t **ret_data,
		size_t *ret_size, struct err *err);

/* Copies size bytes. Returns how many there were (less only at the end) or a negative errno. */
ssize_t stream_read(struct archive_stream *stream, void *data, size_t size, struct err *err);
