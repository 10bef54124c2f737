/*
 * A stream of changes (wire/change.h) as it arrives: in pieces of any size, from a sender that is
 * not trusted. Pure: what is read is handed over one frame at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/change.h"
#include "wire/change_text.h"

enum change_event {
	/* All bytes are used, and more are needed. */
	CHANGE_EVENT_NONE = 0,
	/* stream->change is the next record. */
	CHANGE_EVENT_RECORD = 1,
	/* stream->text, of the record before it. */
	CHANGE_EVENT_TEXT = 2,
	/* The end; what follows it, if anything, is the archive and not for this stream. */
	CHANGE_EVENT_END = 3,
};

struct change_stream {
	/* Valid until the next call, with their events. */
	struct change change;
	const uint8_t *text;
	size_t text_size;

	/* Records so far. */
	uint64_t count;
	bool ended;

	/* Its own. */
	bool allows_text;
	struct change_text patch;
	size_t filled;
	char last_path[CHANGE_PATH_MAX + 1];
	uint8_t frame[4 + CHANGE_FRAME_MAX];
};

/* Begins a stream; with_text: CHANGE_TEXT may come. */
void change_stream_begin(struct change_stream *stream, bool with_text);

/*
 * Takes bytes up to the end of the next frame. *ret_used is how many. Returns an event, or -EBADMSG
 * for what breaks a rule of change.h: a record that does not decode or is not behind the one before
 * it, text without a record or that is no whole hunks, a wrong count, too many. After -EBADMSG and
 * CHANGE_EVENT_END nothing may follow.
 */
int change_stream_feed(struct change_stream *stream, const void *bytes, size_t size,
		       size_t *ret_used);
