#include "image/file.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"

#define CHUNK_BLOCKS (FILE_CHUNK_BYTES / EXT4_BLOCK_BYTES)

int file_begin(struct file_writer *writer, struct ext4 *image, ext2_ino_t ino,
	       struct ext2_inode_large *inode, struct err *err)
{
	struct ext2fs_extent unused;
	errcode_t code;

	*writer = (struct file_writer){.image = image, .ino = ino, .inode = inode};
	code = ext2fs_extent_open2(image->fs, ino, ext2fs_inode(inode), &writer->extents);
	if (!code) {
		/* Steps onto the root, where the first extent goes; there is nothing to get. */
		code = ext2fs_extent_get(writer->extents, EXT2_EXTENT_ROOT, &unused);
		if (code == EXT2_ET_EXTENT_NO_NEXT || code == EXT2_ET_NO_CURRENT_NODE) {
			code = 0;
		}
	}
	return code ? ext4_error(code, "image: cannot start a file", err) : 0;
}

void file_clear(struct file_writer *writer)
{
	if (writer->extents) {
		ext2fs_extent_free(writer->extents);
		writer->extents = NULL;
	}
}

static int flush_extent(struct file_writer *writer, struct err *err)
{
	errcode_t code;

	if (writer->pending.e_len == 0) {
		return 0;
	}
	code = ext2fs_extent_insert(writer->extents, EXT2_EXTENT_INSERT_AFTER, &writer->pending);
	if (!code) {
		code = ext2fs_extent_fix_parents(writer->extents);
	}
	writer->pending.e_len = 0;
	return code ? ext4_error(code, "image: cannot map a file", err) : 0;
}

int file_add_blocks(struct file_writer *writer, blk64_t logical, blk64_t first, uint32_t count,
		    struct err *err)
{
	struct ext2fs_extent *pending = &writer->pending;
	errcode_t code =
		ext2fs_iblk_add_blocks(writer->image->fs, ext2fs_inode(writer->inode), count);
	int rc;

	if (code) {
		return ext4_error(code, "image: cannot map a file", err);
	}
	if (pending->e_len > 0 && pending->e_lblk + pending->e_len == logical &&
	    pending->e_pblk + pending->e_len == first &&
	    pending->e_len + count <= EXT_INIT_MAX_LEN) {
		pending->e_len += count;
		return 0;
	}
	rc = flush_extent(writer, err);
	*pending = (struct ext2fs_extent){.e_lblk = logical, .e_pblk = first, .e_len = count};
	return rc;
}

static bool is_zero_block(const uint8_t *block)
{
	return block[0] == 0 && memcmp(block, block + 1, EXT4_BLOCK_BYTES - 1) == 0;
}

/* Writes count blocks of the chunk from number from on. */
static int write_run(struct file_writer *writer, uint32_t from, uint32_t count, struct err *err)
{
	while (count > 0) {
		blk64_t first;
		uint32_t got;
		int rc = ext4_take_blocks(writer->image, count, &first, &got, err);

		if (rc == 0) {
			rc = ext4_write_blocks(
				writer->image, first,
				writer->image->chunk + (size_t)from * EXT4_BLOCK_BYTES, got, err);
		}
		if (rc == 0) {
			rc = file_add_blocks(writer, writer->chunk_start / EXT4_BLOCK_BYTES + from,
					     first, got, err);
		}
		if (rc < 0) {
			return rc;
		}
		from += got;
		count -= got;
	}
	return 0;
}

static int flush_chunk(struct file_writer *writer, struct err *err)
{
	uint8_t *chunk = writer->image->chunk;
	size_t size = writer->chunk_size;
	uint32_t blocks = (uint32_t)((size + EXT4_BLOCK_BYTES - 1) / EXT4_BLOCK_BYTES);
	uint32_t block = 0;

	memset(chunk + size, 0, (size_t)blocks * EXT4_BLOCK_BYTES - size);
	writer->chunk_size = 0;
	while (block < blocks) {
		uint32_t from = block;
		int rc;

		while (block < blocks && !is_zero_block(chunk + (size_t)block * EXT4_BLOCK_BYTES)) {
			block++;
		}
		rc = write_run(writer, from, block - from, err);
		if (rc < 0) {
			return rc;
		}
		/* The block that ended the run is zero. */
		block++;
	}
	return 0;
}

int file_write(struct file_writer *writer, uint64_t offset, const void *data, size_t size,
	       struct err *err)
{
	uint8_t *chunk = writer->image->chunk;
	const uint8_t *bytes = data;

	while (size > 0) {
		uint64_t start = offset - offset % FILE_CHUNK_BYTES;
		size_t at = (size_t)(offset - start);
		size_t part = MIN(size, FILE_CHUNK_BYTES - at);

		if (writer->chunk_start != start) {
			int rc = flush_chunk(writer, err);

			if (rc < 0) {
				return rc;
			}
			writer->chunk_start = start;
		}
		ASSERT(at >= writer->chunk_size);
		memset(chunk + writer->chunk_size, 0, at - writer->chunk_size);
		memcpy(chunk + at, bytes, part);
		writer->chunk_size = at + part;
		bytes += part;
		offset += part;
		size -= part;
	}
	return 0;
}

int file_end(struct file_writer *writer, uint64_t size, struct err *err)
{
	errcode_t code;
	int rc = flush_chunk(writer, err);

	if (rc == 0) {
		rc = flush_extent(writer, err);
	}
	if (rc < 0) {
		return rc;
	}
	code = ext2fs_inode_size_set(writer->image->fs, ext2fs_inode(writer->inode),
				     (ext2_off64_t)size);
	return code ? ext4_error(code, "image: cannot set the length of a file", err) : 0;
}
