/*
 * The text of a patch (CHANGE_TEXT of wire/change.h) as it arrives, from a sender that is not
 * trusted. Pure. A program that reads patches takes what stands behind a hunk for the next file, so
 * text that is no sequence of whole hunks could name files that no record has.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Two ranges of 8 digits each, and the mark for a line without a newline. */
#define CHANGE_TEXT_LINE_MAX 64

struct change_text {
	/* Lines that the hunk still has to have. */
	uint32_t old_left;
	uint32_t new_left;
	/* Within a line: of a hunk, or of one that is kept to be looked at. */
	bool in_line;
	bool kept;
	/* The line before was one of a file, which may have no newline. */
	bool may_be_marked;
	size_t filled;
	char line[CHANGE_TEXT_LINE_MAX];
};

/* Begins the text of a record. */
void change_text_begin(struct change_text *text);

/*
 * Takes the next bytes. Returns 0, or -EBADMSG for what diff_text (guest/diff_text.h) would not
 * write: hunks with a header of numbers below 100 million and exactly the lines that it says.
 */
int change_text_feed(struct change_text *text, const uint8_t *bytes, size_t size);

/* Whether the text may end here: within no line and no hunk. */
bool change_text_is_whole(const struct change_text *text);
