/* The data of one file, streamed into extents. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "image/ext4.h"

/* Large writes keep the number of system calls and extents small. A multiple of the block size. */
#define FILE_CHUNK_BYTES ((size_t)1 << 20)

struct file_writer {
	struct ext4 *image;
	ext2_ino_t ino;
	struct ext2_inode_large *inode;
	ext2_extent_handle_t extents;
	/* Blocks that were taken but are in no extent yet; e_len 0 is none. */
	struct ext2fs_extent pending;
	/* image->chunk holds chunk_size bytes from chunk_start, a multiple of its length. */
	uint64_t chunk_start;
	size_t chunk_size;
};

/* Starts with an inode that has no data. image and inode must outlive the writer. */
int file_begin(struct file_writer *writer, struct ext4 *image, ext2_ino_t ino,
	       struct ext2_inode_large *inode, struct err *err);

/* Data at offset; offsets ascend. Blocks of zeros become holes. */
int file_write(struct file_writer *writer, uint64_t offset, const void *data, size_t size,
	       struct err *err);

/* Adds count blocks from first, already written, as the file's blocks from logical. */
int file_add_blocks(struct file_writer *writer, blk64_t logical, blk64_t first, uint32_t count,
		    struct err *err);

/* Writes what is left and sets the length in the inode, which the caller then writes. */
int file_end(struct file_writer *writer, uint64_t size, struct err *err);

/* Gives back what file_begin took; after file_end or a failure. */
void file_clear(struct file_writer *writer);
