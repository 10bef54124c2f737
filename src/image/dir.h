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

/*
 * Writes the blocks of directory ino, whose inode is in place without data, and updates that
 * inode. Names that do not fit in one block get a hash index (htree), as the kernel makes it.
 * min_blocks (0 or more) are taken at least. Returns as ext4.h says.
 */
int dir_write(struct ext4 *image, ext2_ino_t ino, ext2_ino_t parent,
	      const struct dir_entry *entries, uint32_t count, uint32_t min_blocks,
	      struct err *err);
