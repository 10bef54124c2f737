/*
 * One path in both states: what differs, as a record says it.
 */
#pragma once

#include "base/err.h"
#include "guest/diff_walk.h"
#include "wire/change.h"

/* Buffers of a comparison, and the link targets that the last record points to. */
struct diff_compare;

/* Returns one that diff_compare_free takes back, or NULL when there is no memory. */
struct diff_compare *diff_compare_new(const struct diff_sides *sides);

/*
 * Looks at an item on the sides that have it, and reads what must be read to tell. Returns 1 with
 * *ret_change, whose strings live until the next call; 0 when there is no change; or a negative
 * errno with err filled.
 */
int diff_compare_item(struct diff_compare *compare, const struct diff_item *item,
		      struct change *ret_change, struct err *err);

void diff_compare_free(struct diff_compare *compare);
static inline void diff_compare_freep(struct diff_compare **compare)
{
	diff_compare_free(*compare);
}
