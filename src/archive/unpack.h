/*
 * Streams unpacked by libarchive's own compression filters, never by an external program.
 *
 * libarchive only unpacks here (its "raw" format); what tar means is decoded by our own code.
 */
#pragma once

#include "archive/stream.h"

/*
 * Opens a stream over plain or packed input. Returns 0 or a negative errno; -ENODATA when there is
 * not one byte.
 */
int unpack_open(struct archive_stream *stream, const struct stream_input *input, struct err *err);
