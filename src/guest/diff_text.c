/*
 * Theory of operation.
 *
 * Myers' algorithm in linear space (E. W. Myers, "An O(ND) Difference Algorithm and Its
 * Variations", 1986, section 4b). A box is a range of lines of each text. What both begin or end
 * with is left aside; then a search from both corners at once, one edit more in each round, meets
 * somewhere on a shortest path, and that point cuts the box into two smaller ones.
 *
 * Each half has half of the edits, so the recursion is no deeper than their number's logarithm. Who
 * writes the texts may want the search to be long; the work of one call has an end, and a box that
 * cannot be cut within it has all of its lines replaced.
 */
#include "guest/diff_text.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

/* Of one call, in steps of the search: a few tenths of a second, or seconds in emulation. */
#define WORK_MAX ((uint64_t)1 << 24)
/* With more edits from each corner the work would be used up anyway. */
#define EDITS_MAX 4096
/* A diagonal that no path has reached within the box. One more is still below 0. */
#define UNREACHED (-2)
#define CONTEXT_LINES 3u
#define TEXT_LOOK ((size_t)64 << 10)
/* As much of a long line as is compared for the price of one step. */
#define STEP_BYTES 64u

struct line {
	uint32_t begin;
	uint32_t hash;
};

struct text {
	const char *bytes;
	/* One more than there are, so that each ends where the next begins. */
	struct line *lines;
	uint32_t count;
	/* Of each line: it is deleted, or inserted. */
	bool *changed;
};

struct search {
	struct text old;
	struct text new;
	uint64_t work;
	/* By diagonal, from -EDITS_MAX - 1 to EDITS_MAX + 1: how far the longest path there is. */
	int32_t *reached[2];
};

/* Lines from..to of each text. */
struct box {
	uint32_t old_from;
	uint32_t old_to;
	uint32_t new_from;
	uint32_t new_to;
};

bool diff_text_is_text(const char *bytes, size_t size)
{
	return size == 0 || memchr(bytes, '\0', MIN(size, TEXT_LOOK)) == NULL;
}

static size_t line_size(const struct text *text, uint32_t line)
{
	return text->lines[line + 1].begin - text->lines[line].begin;
}

static const char *line_bytes(const struct text *text, uint32_t line)
{
	return text->bytes + text->lines[line].begin;
}

/* FNV-1a. It only spares comparisons: lines that are made to collide are compared in full. */
static uint32_t hash_line(const char *bytes, size_t size)
{
	uint32_t hash = 2166136261u;

	for (size_t i = 0; i < size; i++) {
		hash = (uint32_t)((hash ^ (uint8_t)bytes[i]) * UINT64_C(16777619));
	}
	return hash;
}

static int split_lines(const char *bytes, size_t size, struct text *text)
{
	size_t count = 0;

	ASSERT(size <= DIFF_TEXT_MAX);
	for (size_t at = 0; at < size; count++) {
		const char *end = memchr(bytes + at, '\n', size - at);

		at = end ? (size_t)(end - bytes) + 1 : size;
	}
	text->bytes = bytes;
	text->count = (uint32_t)count;
	text->lines = calloc(count + 1, sizeof(*text->lines));
	text->changed = calloc(count + 1, sizeof(*text->changed));
	if (!text->lines || !text->changed) {
		return -ENOMEM;
	}
	for (size_t at = 0, line = 0; at < size; line++) {
		const char *end = memchr(bytes + at, '\n', size - at);
		size_t next = end ? (size_t)(end - bytes) + 1 : size;

		text->lines[line].begin = (uint32_t)at;
		text->lines[line].hash = hash_line(bytes + at, next - at);
		at = next;
	}
	text->lines[count].begin = (uint32_t)size;
	return 0;
}

static bool lines_equal(struct search *search, uint32_t old, uint32_t new)
{
	size_t size = line_size(&search->old, old);

	search->work++;
	if (search->old.lines[old].hash != search->new.lines[new].hash ||
	    size != line_size(&search->new, new)) {
		return false;
	}
	search->work += size / STEP_BYTES;
	return memcmp(line_bytes(&search->old, old), line_bytes(&search->new, new), size) == 0;
}

static int32_t *diagonal(struct search *search, bool backward, int32_t number)
{
	ASSERT(number >= -EDITS_MAX - 1 && number <= EDITS_MAX + 1);
	return &search->reached[backward][number + EDITS_MAX + 1];
}

/*
 * The longest path to a diagonal (lines of old less lines of new) with one edit more than its
 * neighbours have, seen from the box's first corner or backward from its last. Returns how many
 * lines of old it takes, or UNREACHED.
 */
static int32_t extend(struct search *search, const struct box *box, bool backward, int32_t number,
		      bool first)
{
	int32_t old_size = (int32_t)(box->old_to - box->old_from);
	int32_t new_size = (int32_t)(box->new_to - box->new_from);
	int32_t insert = first ? 0 : *diagonal(search, backward, number + 1);
	int32_t delete = first ? UNREACHED : *diagonal(search, backward, number - 1) + 1;
	int32_t x = UNREACHED;

	if (insert >= 0 && insert - number >= 0 && insert - number <= new_size) {
		x = insert;
	}
	if (delete > 0 && delete <= old_size && delete > x) {
		x = delete;
	}
	while (x >= 0 && x < old_size && x - number < new_size) {
		uint32_t old = (uint32_t)x, new = (uint32_t)(x - number);

		if (!lines_equal(search, backward ? box->old_to - 1 - old : box->old_from + old,
				 backward ? box->new_to - 1 - new : box->new_from + new)) {
			break;
		}
		x++;
	}
	*diagonal(search, backward, number) = x;
	search->work++;
	return x;
}

/*
 * One edit more from one corner. Returns true when its paths have met those of the other, at
 * *ret_old and *ret_new from the box's begin.
 */
static bool search_round(struct search *search, const struct box *box, bool backward, int32_t edits,
			 struct box *ret_first)
{
	int32_t old_size = (int32_t)(box->old_to - box->old_from);
	int32_t new_size = (int32_t)(box->new_to - box->new_from);
	int32_t delta = old_size - new_size;
	/* The other corner has as many edits behind it, or one less while it is its turn. */
	int32_t other_edits = backward ? edits : edits - 1;

	*diagonal(search, backward, edits + 1) = UNREACHED;
	*diagonal(search, backward, -edits - 1) = UNREACHED;
	for (int32_t number = -edits; number <= edits; number += 2) {
		int32_t x = extend(search, box, backward, number, edits == 0);
		int32_t other = delta - number;

		if (x < 0 || other < -other_edits || other > other_edits ||
		    ((other + other_edits) & 1) != 0) {
			continue;
		}
		if (*diagonal(search, !backward, other) >= 0 &&
		    x + *diagonal(search, !backward, other) >= old_size) {
			uint32_t old = (uint32_t)(backward ? old_size - x : x);
			uint32_t new = (uint32_t)(backward ? new_size - (x - number) : x - number);

			*ret_first = (struct box){box->old_from, box->old_from + old, box->new_from,
						  box->new_from + new};
			return true;
		}
	}
	return false;
}

/* Cuts a box on a shortest path through it. Returns false when that is too much work. */
static bool cut(struct search *search, const struct box *box, struct box *ret_first)
{
	for (int32_t edits = 0; edits <= EDITS_MAX && search->work < WORK_MAX; edits++) {
		if (search_round(search, box, false, edits, ret_first) ||
		    search_round(search, box, true, edits, ret_first)) {
			return true;
		}
	}
	return false;
}

static void mark(struct search *search, const struct box *box)
{
	memset(search->old.changed + box->old_from, 1, box->old_to - box->old_from);
	memset(search->new.changed + box->new_from, 1, box->new_to - box->new_from);
}

static void compare(struct search *search, struct box box)
{
	struct box first, rest = {0};

	while (box.old_from < box.old_to && box.new_from < box.new_to &&
	       lines_equal(search, box.old_from, box.new_from)) {
		box.old_from++;
		box.new_from++;
	}
	while (box.old_from < box.old_to && box.new_from < box.new_to &&
	       lines_equal(search, box.old_to - 1, box.new_to - 1)) {
		box.old_to--;
		box.new_to--;
	}
	if (box.old_from == box.old_to || box.new_from == box.new_to ||
	    !cut(search, &box, &first)) {
		mark(search, &box);
		return;
	}
	rest = (struct box){first.old_to, box.old_to, first.new_to, box.new_to};
	/* Both ends differ, so there are two edits at least, and one in each half. */
	ASSERT(memcmp(&first, &box, sizeof(box)) != 0 && memcmp(&rest, &box, sizeof(box)) != 0);
	compare(search, first);
	compare(search, rest);
}

/* Where the diff goes. */
struct output {
	diff_text_sink *sink;
	void *data;
};

static int put_line(const struct output *output, char sign, const struct text *text, uint32_t line)
{
	static const char no_newline[] = "\n\\ No newline at end of file\n";
	const char *bytes = line_bytes(text, line);
	size_t size = line_size(text, line);
	int rc = output->sink(output->data, &sign, 1);

	if (rc == 0) {
		rc = output->sink(output->data, bytes, size);
	}
	if (rc == 0 && bytes[size - 1] != '\n') {
		rc = output->sink(output->data, no_newline, sizeof(no_newline) - 1);
	}
	return rc;
}

/* "12,3", or "12" for one line; a range without lines names the one before it. */
static void format_range(char *out, size_t size, uint32_t from, uint32_t to)
{
	if (to - from == 1) {
		snprintf(out, size, "%u", from + 1);
	} else {
		snprintf(out, size, "%u,%u", to > from ? from + 1 : from, to - from);
	}
}

static int put_header(const struct output *output, const struct box *hunk)
{
	char old[32], new[32], text[80];

	format_range(old, sizeof(old), hunk->old_from, hunk->old_to);
	format_range(new, sizeof(new), hunk->new_from, hunk->new_to);
	snprintf(text, sizeof(text), "@@ -%s +%s @@\n", old, new);
	return output->sink(output->data, text, strlen(text));
}

/* Deleted lines before those that take their place. */
static int put_hunk(const struct search *search, const struct output *output, struct box hunk)
{
	int rc = put_header(output, &hunk);

	while (rc == 0 && (hunk.old_from < hunk.old_to || hunk.new_from < hunk.new_to)) {
		if (hunk.old_from < hunk.old_to && search->old.changed[hunk.old_from]) {
			rc = put_line(output, '-', &search->old, hunk.old_from++);
		} else if (hunk.new_from < hunk.new_to && search->new.changed[hunk.new_from]) {
			rc = put_line(output, '+', &search->new, hunk.new_from++);
		} else {
			rc = put_line(output, ' ', &search->old, hunk.old_from++);
			hunk.new_from++;
		}
	}
	return rc;
}

/* Passes the changed lines at the box's begin. */
static void skip_changed(const struct search *search, struct box *at)
{
	while (at->old_from < at->old_to && search->old.changed[at->old_from]) {
		at->old_from++;
	}
	while (at->new_from < at->new_to && search->new.changed[at->new_from]) {
		at->new_from++;
	}
}

/* How many lines at the box's begin are the same on both sides. */
static uint32_t same_lines(const struct search *search, const struct box *at)
{
	uint32_t count = 0;

	while (at->old_from + count < at->old_to && at->new_from + count < at->new_to &&
	       !search->old.changed[at->old_from + count] &&
	       !search->new.changed[at->new_from + count]) {
		count++;
	}
	return count;
}

static int put_hunks(const struct search *search, const struct output *output)
{
	struct box at = {0, search->old.count, 0, search->new.count};
	uint32_t same = same_lines(search, &at);
	int rc = 0;

	while (rc == 0 && (at.old_from + same < at.old_to || at.new_from + same < at.new_to)) {
		uint32_t before = MIN(same, CONTEXT_LINES);
		struct box hunk = {.old_from = at.old_from + same - before,
				   .new_from = at.new_from + same - before};

		/* Changes whose context would meet are one hunk. */
		do {
			at.old_from += same;
			at.new_from += same;
			skip_changed(search, &at);
			same = same_lines(search, &at);
		} while (same <= 2 * CONTEXT_LINES &&
			 (at.old_from + same < at.old_to || at.new_from + same < at.new_to));
		hunk.old_to = at.old_from + MIN(same, CONTEXT_LINES);
		hunk.new_to = at.new_from + MIN(same, CONTEXT_LINES);
		rc = put_hunk(search, output, hunk);
	}
	return rc;
}

static void search_clear(struct search *search)
{
	free(search->old.lines);
	free(search->old.changed);
	free(search->new.lines);
	free(search->new.changed);
	free(search->reached[0]);
	free(search->reached[1]);
}

int diff_text(const char *old, size_t old_size, const char *new, size_t new_size,
	      diff_text_sink *sink, void *data)
{
	_cleanup_(search_clear) struct search search = {0};
	const struct output output = {sink, data};
	int rc = split_lines(old, old_size, &search.old);

	if (rc == 0) {
		rc = split_lines(new, new_size, &search.new);
	}
	for (size_t i = 0; i < ARRAY_SIZE(search.reached) && rc == 0; i++) {
		search.reached[i] = calloc(2 * EDITS_MAX + 3, sizeof(*search.reached[i]));
		rc = search.reached[i] ? 0 : -ENOMEM;
	}
	if (rc < 0) {
		return rc;
	}
	compare(&search, (struct box){0, search.old.count, 0, search.new.count});
	return put_hunks(&search, &output);
}
