#include "wire/change_stream.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"

#define HEADER_BYTES 4u

void change_stream_begin(struct change_stream *stream, bool with_text)
{
	stream->count = 0;
	stream->ended = false;
	stream->allows_text = with_text;
	stream->filled = 0;
	stream->last_path[0] = '\0';
	change_text_begin(&stream->patch);
}

static int take_record(struct change_stream *stream, const uint8_t *payload, size_t size)
{
	size_t length;

	if (!change_text_is_whole(&stream->patch) || stream->count >= CHANGE_RECORDS_MAX ||
	    change_decode(payload, size, &stream->change) < 0) {
		return -EBADMSG;
	}
	/* No path is empty, so the first is behind what stands there at the beginning. */
	if (strcmp(stream->change.path, stream->last_path) <= 0) {
		return -EBADMSG;
	}
	length = strlen(stream->change.path);
	ASSERT(length < sizeof(stream->last_path));
	memcpy(stream->last_path, stream->change.path, length + 1);
	stream->count++;
	change_text_begin(&stream->patch);
	return CHANGE_EVENT_RECORD;
}

static int take_text(struct change_stream *stream, const uint8_t *payload, size_t size)
{
	if (!stream->allows_text || stream->count == 0 || size == 0 ||
	    change_text_feed(&stream->patch, payload, size) < 0) {
		return -EBADMSG;
	}
	stream->text = payload;
	stream->text_size = size;
	return CHANGE_EVENT_TEXT;
}

static int take_end(struct change_stream *stream, const uint8_t *payload, size_t size)
{
	uint64_t count;

	if (change_end_decode(payload, size, &count) < 0 || count != stream->count ||
	    !change_text_is_whole(&stream->patch)) {
		return -EBADMSG;
	}
	stream->ended = true;
	return CHANGE_EVENT_END;
}

static int take_frame(struct change_stream *stream)
{
	const uint8_t *body = stream->frame + HEADER_BYTES;
	size_t size = stream->filled - HEADER_BYTES - 1;

	stream->filled = 0;
	switch (body[0]) {
	case CHANGE_RECORD:
		return take_record(stream, body + 1, size);
	case CHANGE_TEXT:
		return take_text(stream, body + 1, size);
	case CHANGE_END:
		return take_end(stream, body + 1, size);
	default:
		return -EBADMSG;
	}
}

/* Copies up to wanted bytes of the frame; true when they are all there. */
static bool fill(struct change_stream *stream, size_t wanted, const uint8_t **bytes, size_t *size)
{
	size_t missing = wanted > stream->filled ? wanted - stream->filled : 0;
	size_t taken = MIN(missing, *size);

	memcpy(stream->frame + stream->filled, *bytes, taken);
	stream->filled += taken;
	*bytes += taken;
	*size -= taken;
	return taken == missing;
}

int change_stream_feed(struct change_stream *stream, const void *bytes, size_t size,
		       size_t *ret_used)
{
	const uint8_t *at = bytes;
	size_t left = size;
	int event = CHANGE_EVENT_NONE;

	ASSERT(!stream->ended);
	if (size > 0 && fill(stream, HEADER_BYTES, &at, &left)) {
		int body = change_frame_size(stream->frame);

		if (body < 0) {
			event = -EBADMSG;
		} else if (fill(stream, HEADER_BYTES + (size_t)body, &at, &left)) {
			event = take_frame(stream);
		}
	}
	*ret_used = size - left;
	return event;
}
