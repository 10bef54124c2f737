/*
 * Which directories are worth a look first, told by their blocks as they lie on the disk.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "guest/diff_inodes.h"
#include "wire/ext4.h"

struct hint_directory;
struct hint_run;

/* The directories of one state, as far as their inodes say themselves where they are. */
struct hints {
	/* Ascending by number. */
	struct hint_directory *directories;
	size_t directory_count;
	size_t directory_capacity;
	struct hint_run *runs;
	size_t run_count;
	size_t run_capacity;
	uint64_t blocks;
};

/* Notes an inode if it is a directory; numbers must ascend. Without memory it is not noted. */
void hints_add(struct hints *hints, const struct ext4_super *super, uint32_t number,
	       const uint8_t *inode);

/*
 * Fills changes->hints from the device or file that has these directories. What cannot be read or
 * breaks the rules is left out, and so is what there is no memory for.
 */
void hints_find(struct hints *hints, const struct ext4_super *super, int fd,
		struct inode_changes *changes);

void hints_clear(struct hints *hints);
