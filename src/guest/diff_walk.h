/*
 * Everything that may be a change, found by walking the directories of both states.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "guest/diff_renames.h"

/* 24 bytes, and its paths: about 90 bytes for a name of usual depth. */
struct diff_item {
	/* As a record has it. */
	const char *path;
	/* Where it was before; the same pointer when that is the same. NULL with CHANGE_ADDED. */
	const char *old;
	/* enum change_kind. CHANGE_MODIFIED: on both sides, perhaps without any difference. */
	uint8_t kind;
	/* Its new content goes into the archive; set when it was compared. */
	bool has_content;
};

struct diff_items {
	/* Ascending by path. */
	struct diff_item *list;
	size_t count;
	size_t capacity;
	struct path_store paths;
};

/*
 * Finds the items. Reads directories of the new state until all names of changed inodes are found,
 * and of the old one those that have changed or are gone; looks at nothing else. *ret_items, which
 * starts as zeros, is the caller's, also after a failure. Returns 0 or a negative errno with err
 * filled.
 */
int diff_walk(const struct diff_sides *sides, struct diff_items *ret_items, struct err *err);

void diff_items_clear(struct diff_items *items);
