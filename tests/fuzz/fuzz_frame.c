/*
 * Any bytes as a port's stream. The first byte says how large the pieces are in which the rest is
 * fed; the frames that come out must not depend on it, and must encode to the bytes that went in.
 */
#include "fuzz.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "wire/frame.h"

/* What came out of one run: the frames as bytes again, and whether the decoder failed. */
struct result {
	uint8_t *bytes;
	size_t size;
	bool failed;
	bool empty;
};

static void take(struct result *result, const struct wire_frame *frame)
{
	ASSERT(frame->length <= WIRE_PAYLOAD_MAX);
	wire_header_encode(result->bytes + result->size, frame->type, frame->channel, frame->stream,
			   frame->length);
	result->size += WIRE_HEADER_SIZE;
	if (frame->length > 0) {
		memcpy(result->bytes + result->size, frame->payload, frame->length);
	}
	result->size += frame->length;
}

static void feed(struct wire_decoder *decoder, const uint8_t *data, size_t size, size_t piece,
		 struct result *result)
{
	struct wire_frame frame;

	wire_decoder_reset(decoder);
	while (size > 0 && !result->failed) {
		size_t space, count;
		uint8_t *to = wire_decoder_space(decoder, &space);
		int rc;

		/* All whole frames were taken, so there must be room. */
		ASSERT(space >= WIRE_FRAME_MAX);
		count = MIN(MIN(space, piece), size);
		memcpy(to, data, count);
		wire_decoder_filled(decoder, count);
		data += count;
		size -= count;
		while ((rc = wire_decoder_next(decoder, &frame)) == 1) {
			take(result, &frame);
		}
		ASSERT(rc == 0 || rc == -EBADMSG);
		result->failed = rc < 0;
	}
	result->empty = wire_decoder_empty(decoder);
	if (result->failed) {
		size_t space;

		/* It fails for good. */
		wire_decoder_space(decoder, &space);
		ASSERT(space == 0);
		ASSERT(wire_decoder_next(decoder, &frame) == -EBADMSG);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct wire_decoder decoder;
	_cleanup_free_ uint8_t *whole_bytes = NULL, *piece_bytes = NULL;
	struct result whole = {0}, pieces = {0};
	size_t piece;

	if (size == 0) {
		return 0;
	}
	piece = (size_t)data[0] + 1;
	data++;
	size--;
	whole.bytes = whole_bytes = malloc(size + 1);
	pieces.bytes = piece_bytes = malloc(size + 1);
	ASSERT(whole_bytes && piece_bytes);
	feed(&decoder, data, size, SIZE_MAX, &whole);
	feed(&decoder, data, size, piece, &pieces);
	ASSERT(whole.size == pieces.size && whole.failed == pieces.failed);
	ASSERT(memcmp(whole.bytes, pieces.bytes, whole.size) == 0);
	ASSERT(whole.size <= size && memcmp(whole.bytes, data, whole.size) == 0);
	if (!whole.failed) {
		ASSERT(whole.empty == (whole.size == size) && pieces.empty == whole.empty);
	}
	return 0;
}
