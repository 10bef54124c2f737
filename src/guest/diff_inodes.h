/*
 * Which inodes of a file system differ from those of an earlier state of the same file system,
 * found by reading both inode tables.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/change.h"

/* A file and its names, on either side; more than twice the records cannot be told. */
#define DIFF_INODES_MAX (2 * (size_t)CHANGE_RECORDS_MAX)

/* 16 bytes. */
struct inode_change {
	uint32_t number;
	uint32_t old_generation;
	uint32_t new_generation;
	/* As st_mode; 0 where it is not in use. */
	uint16_t old_mode;
	uint16_t new_mode;
};

struct inode_changes {
	/* Ascending by number. */
	struct inode_change *list;
	size_t count;
	size_t capacity;
	/* The highest number that either side has. */
	uint32_t last;
	/* How many names those have that the new side has, as their inodes count them; a directory
	 * has one, the root none. */
	uint64_t new_names;
	/* A bit for each inode: whether it is a directory of the new side that holds such a name or
	 * is above one that does, as far as it could be told (diff_hints). NULL: it could not. */
	uint8_t *hints;
};

/*
 * Compares the ext4 in old_fd with that in new_fd: block devices that are mounted and synced, or
 * files. A device's descriptor reads past the cache from then on (O_DIRECT). All their bytes are
 * hostile. *ret_changes, which starts as zeros, is the caller's, also after a failure. Returns 0,
 * -EBADMSG when one of them is broken or both are not states of one file system, or another
 * negative errno, with err filled.
 */
int diff_inodes(int old_fd, int new_fd, struct inode_changes *ret_changes, struct err *err);

/* The change of an inode, or NULL when it has not changed. */
const struct inode_change *inode_changes_find(const struct inode_changes *changes, uint64_t number);

/* Whether a directory is worth a look first. */
static inline bool inode_changes_hint(const struct inode_changes *changes, uint32_t number)
{
	return changes->hints && changes->hints[number / 8] & 1u << number % 8;
}

void inode_changes_clear(struct inode_changes *changes);
