/*
 * An ext4 file system that is being made: its tables, and room in it. The only place besides
 * file.c and dir.c that knows libext2fs.
 */
#pragma once

#include <stdint.h>
#include <ext2fs/ext2fs.h>

#include "base/err.h"
#include "image/image.h"

#define EXT4_BLOCK_BYTES 4096u
/* Bits per inode; mke2fs takes the same for file systems of ordinary size. */
#define EXT4_BYTES_PER_INODE 16384u

/*
 * Functions return 0 or a negative errno. -EDQUOT alone has no text: the image has no room left
 * (blocks or inodes), and only the caller knows what would have been needed.
 */
struct ext4 {
	ext2_filsys fs;
	/* The image, for data blocks; libext2fs writes its tables through a copy of it. */
	int fd;
	/* Nothing below these is free. */
	blk64_t next_block;
	ext2_ino_t next_inode;
	/* One piece of file data, reused for every file. */
	uint8_t *chunk;
};

struct ext4_attributes {
	/* Type and permissions. */
	uint16_t mode;
	uint32_t uid;
	uint32_t gid;
	int64_t mtime_s;
	uint32_t mtime_ns;
};

/* Lays out an empty file system in the empty regular file fd. */
int ext4_create(int fd, const struct image_options *options, struct ext4 *ret_image,
		struct err *err);

/* Writes bitmaps, descriptors and superblocks, and syncs. Afterwards only ext4_clear may follow. */
int ext4_finish(struct ext4 *image, struct err *err);
void ext4_clear(struct ext4 *image);

/* Turns an error of libext2fs into an errno and a text. Returns -EDQUOT for a full image. */
int ext4_error(errcode_t code, const char *what, struct err *err);

/* Takes 1 to wanted blocks that follow one another. */
int ext4_take_blocks(struct ext4 *image, uint32_t wanted, blk64_t *ret_first, uint32_t *ret_count,
		     struct err *err);

/* Takes the next inode number. */
int ext4_take_inode(struct ext4 *image, bool directory, ext2_ino_t *ret_ino);

/* An inode with these attributes, one link and no data. */
void ext4_fill_inode(const struct ext4_attributes *attributes, struct ext2_inode_large *ret_inode);
int ext4_read_inode(struct ext4 *image, ext2_ino_t ino, struct ext2_inode_large *ret_inode,
		    struct err *err);
int ext4_write_inode(struct ext4 *image, ext2_ino_t ino, struct ext2_inode_large *inode,
		     struct err *err);

/* Writes count data blocks past libext2fs. */
int ext4_write_blocks(struct ext4 *image, blk64_t first, const void *data, uint32_t count,
		      struct err *err);

/* How many bytes the image would need for this many blocks of content and inodes. */
uint64_t ext4_size_for(uint64_t blocks, uint64_t inodes);
