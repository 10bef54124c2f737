/*
 * A list of changes of /data (wire/change.h) that is kept, with its own memory.
 */
#pragma once

#include <stddef.h>

#include "wire/change.h"

/* What one list may take. A change takes about 150 bytes and its names, so this is some millions of
 * changes; a guest that invents more fills no memory of the host. */
#define CHANGES_BYTES_MAX ((size_t)512 << 20)

struct changes_block;

struct changes {
	/* Their strings live as long as the list. */
	struct change *items;
	size_t count;
	size_t capacity;
	struct changes_block *blocks;
	/* Of the newest block, and of everything. */
	size_t used;
	size_t bytes;
};

/* Adds a copy. Returns 0, -ENOMEM, or -E2BIG when the list has grown too large. */
int changes_add(struct changes *list, const struct change *change);

/* Gives everything back; the list is then empty. Safe on a zeroed one. */
void changes_clear(struct changes *list);
