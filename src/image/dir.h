/* Directories, written whole once all of their names are known. */
#pragma once

#include <stdint.h>

#include "image/ext4.h"

struct dir_entry {
	const char *name;
	uint8_t name_size;
	/* EXT2_FT_* */
	uint8_t type;
	ext2_ino_t ino;
};

struct dir_list {
	const struct dir_entry *entries;
	uint32_t count;
	/* Blocks that are taken at least; 0 is as many as are needed. */
	uint32_t min_blocks;
};

/*
 * Writes the blocks of directory ino, whose inode is in place without data, and updates that
 * inode. Names that do not fit in one block get a hash index (htree), as the kernel makes it.
 * Returns as ext4.h says.
 */
int dir_write(struct ext4 *image, ext2_ino_t ino, ext2_ino_t parent, const struct dir_list *list,
	      struct err *err);
