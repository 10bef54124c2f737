/*
 * Any bytes as a stream of changes, in pieces whose sizes the first byte says. What comes out is in
 * order, complete, and the same whatever the pieces are.
 */
#include "fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "wire/change_stream.h"

/* What a run over all bytes has given. */
struct outcome {
	uint64_t events[4];
	size_t used;
	int last;
};

static void check_event(const struct change_stream *stream, int event, char *last)
{
	if (event == CHANGE_EVENT_RECORD) {
		ASSERT(strcmp(stream->change.path, last) > 0);
		memcpy(last, stream->change.path, strlen(stream->change.path) + 1);
	} else if (event == CHANGE_EVENT_TEXT) {
		ASSERT(stream->text_size > 0 && stream->text_size < CHANGE_FRAME_MAX);
	}
}

static struct outcome run(const uint8_t *data, size_t size, size_t piece)
{
	_cleanup_free_ struct change_stream *stream = calloc(1, sizeof(*stream));
	struct outcome outcome = {0};
	char last[CHANGE_PATH_MAX + 1] = "";

	ASSERT(stream);
	change_stream_begin(stream, true);
	while (outcome.used < size && !stream->ended) {
		size_t given = MIN(piece, size - outcome.used), used = 0;
		/* A copy of exactly that size, so that a sanitizer sees a read of one byte more. */
		_cleanup_free_ uint8_t *bytes = malloc(given);

		ASSERT(bytes);
		memcpy(bytes, data + outcome.used, given);
		outcome.last = change_stream_feed(stream, bytes, given, &used);
		ASSERT(used <= given);
		outcome.used += used;
		if (outcome.last < 0) {
			ASSERT(outcome.last == -EBADMSG);
			break;
		}
		ASSERT(outcome.last != CHANGE_EVENT_NONE || used == given);
		outcome.events[outcome.last]++;
		check_event(stream, outcome.last, last);
	}
	ASSERT(stream->count == outcome.events[CHANGE_EVENT_RECORD]);
	ASSERT(stream->ended == (outcome.events[CHANGE_EVENT_END] == 1));
	outcome.events[CHANGE_EVENT_NONE] = 0;
	return outcome;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct outcome whole, pieces;

	if (size < 2) {
		return 0;
	}
	whole = run(data + 1, size - 1, size);
	pieces = run(data + 1, size - 1, 1u + data[0]);
	ASSERT(memcmp(whole.events, pieces.events, sizeof(whole.events)) == 0);
	ASSERT((whole.last < 0) == (pieces.last < 0));
	return 0;
}
