/*
 * Directories of ext4 (kernel documentation, filesystems/ext4, "Directory Entries").
 *
 * Since a directory is written when all its names are known, it is laid out in one pass: one block
 * of entries when they fit, otherwise a tree: block 0 is the root of the index, then come the leaf
 * blocks with names in order of their hash, then, when the root is not enough for all leaves, one
 * level of index blocks. Every block ends in a checksum that libext2fs fills in.
 */
#include "image/dir.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "image/file.h"

#define DIRENT_HEADER_BYTES 8u
#define TAIL_BYTES ((uint32_t)sizeof(struct ext2_dir_entry_tail))
/* Room for entries in a block. */
#define LEAF_BYTES (EXT4_BLOCK_BYTES - TAIL_BYTES)
/* Leaves are filled to this, so that a name added later does not split a block at once. */
#define LEAF_FILL_BYTES (LEAF_BYTES - LEAF_BYTES / 5)
#define ROOT_ENTRIES_OFFSET 32u
#define NODE_ENTRIES_OFFSET 8u
#define ROOT_ENTRIES                                                                               \
	((EXT4_BLOCK_BYTES - ROOT_ENTRIES_OFFSET - (uint32_t)sizeof(struct ext2_dx_tail)) /        \
	 (uint32_t)sizeof(struct ext2_dx_entry))
#define NODE_ENTRIES                                                                               \
	((EXT4_BLOCK_BYTES - NODE_ENTRIES_OFFSET - (uint32_t)sizeof(struct ext2_dx_tail)) /        \
	 (uint32_t)sizeof(struct ext2_dx_entry))
/* Links of a directory above this are written as 1, "not counted" (feature dir_nlink). */
#define DIRECTORY_LINKS_MAX 65000u

struct hashed {
	uint32_t hash;
	uint32_t minor;
	struct dir_entry entry;
};

/* The blocks of one directory while they are laid out. */
struct layout {
	struct ext4 *image;
	uint8_t *blocks;
	uint32_t count;
	uint32_t capacity;
	/* First hash of each leaf. */
	uint32_t *leaf_hashes;
	uint32_t leaf_count;
};

static void layout_clear(struct layout *layout)
{
	free(layout->blocks);
	free(layout->leaf_hashes);
}

/* A zeroed block more; valid until the next call. */
static uint8_t *add_block(struct layout *layout)
{
	uint8_t *block;

	if (layout->count == layout->capacity) {
		uint32_t capacity = layout->capacity ? layout->capacity * 2 : 1;
		uint8_t *grown = reallocarray(layout->blocks, capacity, EXT4_BLOCK_BYTES);

		if (!grown) {
			return NULL;
		}
		layout->blocks = grown;
		layout->capacity = capacity;
	}
	block = layout->blocks + (size_t)layout->count++ * EXT4_BLOCK_BYTES;
	memset(block, 0, EXT4_BLOCK_BYTES);
	return block;
}

static uint32_t entry_bytes(uint32_t name_size)
{
	return (DIRENT_HEADER_BYTES + name_size + 3) & ~3u;
}

/* Writes one entry at an offset that is a multiple of 4. */
static void put_entry(uint8_t *block, uint32_t offset, uint32_t length,
		      const struct dir_entry *entry)
{
	struct ext2_dir_entry_2 dirent = {
		.inode = entry->ino,
		.rec_len = (uint16_t)length,
		.name_len = entry->name_size,
		.file_type = entry->type,
	};

	memcpy(block + offset, &dirent, DIRENT_HEADER_BYTES);
	memcpy(block + offset + DIRENT_HEADER_BYTES, entry->name, entry->name_size);
}

/* The last entry of a block takes all that is left, up to the checksum. */
static void close_leaf(struct layout *layout, uint8_t *block, uint32_t last, uint32_t used)
{
	uint16_t length = (uint16_t)(LEAF_BYTES - last);

	ASSERT(used <= LEAF_BYTES);
	memcpy(block + last + offsetof(struct ext2_dir_entry_2, rec_len), &length, sizeof(length));
	ext2fs_initialize_dirent_tail(layout->image->fs, EXT2_DIRENT_TAIL(block, EXT4_BLOCK_BYTES));
}

static struct dir_entry dot(ext2_ino_t ino)
{
	return (struct dir_entry){.name = ".", .name_size = 1, .type = EXT2_FT_DIR, .ino = ino};
}

static struct dir_entry dot_dot(ext2_ino_t ino)
{
	return (struct dir_entry){.name = "..", .name_size = 2, .type = EXT2_FT_DIR, .ino = ino};
}

/* One block with everything, and empty ones up to min_blocks. */
static int lay_out_flat(struct layout *layout, const struct dir_entry *entries, uint32_t count,
			uint32_t min_blocks)
{
	uint8_t *block = add_block(layout);
	uint32_t used = 0, last = 0;

	if (!block) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < count; i++) {
		last = used;
		used += entry_bytes(entries[i].name_size);
		put_entry(block, last, used - last, &entries[i]);
	}
	close_leaf(layout, block, last, used);
	while (layout->count < min_blocks) {
		block = add_block(layout);
		if (!block) {
			return -ENOMEM;
		}
		close_leaf(layout, block, 0, 0);
	}
	return 0;
}

static int compare_hashed(const void *a, const void *b)
{
	const struct hashed *left = a, *right = b;

	if (left->hash != right->hash) {
		return left->hash < right->hash ? -1 : 1;
	}
	if (left->minor != right->minor) {
		return left->minor < right->minor ? -1 : 1;
	}
	return 0;
}

static int hash_entries(struct ext4 *image, const struct dir_entry *entries, uint32_t count,
			struct hashed *hashed)
{
	const struct ext2_super_block *super = image->fs->super;

	for (uint32_t i = 0; i < count; i++) {
		hashed[i].entry = entries[i];
		if (ext2fs_dirhash(super->s_def_hash_version, entries[i].name, entries[i].name_size,
				   super->s_hash_seed, &hashed[i].hash, &hashed[i].minor)) {
			return -EIO;
		}
	}
	qsort(hashed, count, sizeof(*hashed), compare_hashed);
	return 0;
}

/* Fills leaves with names in order of their hash and notes where each leaf begins. */
static int lay_out_leaves(struct layout *layout, const struct hashed *hashed, uint32_t count)
{
	uint32_t used = 0, last = 0;
	uint8_t *block = NULL;

	/* No leaf but the last holds less than half of what it may, at 12 bytes a name or more. */
	layout->leaf_hashes = calloc((size_t)count + 1, sizeof(*layout->leaf_hashes));
	if (!layout->leaf_hashes) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < count; i++) {
		uint32_t length = entry_bytes(hashed[i].entry.name_size);

		if (!block || used + length > LEAF_FILL_BYTES) {
			uint32_t hash = hashed[i].hash;

			if (block) {
				close_leaf(layout, block, last, used);
				/* The lowest bit says that the leaf before has this hash too. */
				hash |= hashed[i - 1].hash == hash;
			}
			block = add_block(layout);
			if (!block) {
				return -ENOMEM;
			}
			layout->leaf_hashes[layout->leaf_count++] = hash;
			used = 0;
		}
		last = used;
		used += length;
		put_entry(block, last, length, &hashed[i].entry);
	}
	close_leaf(layout, block, last, used);
	return 0;
}

/* Writes count index entries; the hash of the first is not stored but gives way to the counts. */
static void put_index(uint8_t *place, uint32_t limit, const struct ext2_dx_entry *entries,
		      uint32_t count)
{
	struct ext2_dx_countlimit counts = {.limit = (uint16_t)limit, .count = (uint16_t)count};

	ASSERT(count > 0 && count <= limit);
	memcpy(place, entries, count * sizeof(*entries));
	memcpy(place, &counts, sizeof(counts));
}

static void put_root(struct layout *layout, ext2_ino_t ino, ext2_ino_t parent, uint32_t levels)
{
	struct ext2_dx_root_info info = {
		.hash_version = layout->image->fs->super->s_def_hash_version,
		.info_length = sizeof(info),
		.indirect_levels = (uint8_t)levels,
	};
	struct dir_entry self = dot(ino), up = dot_dot(parent);

	put_entry(layout->blocks, 0, entry_bytes(1), &self);
	put_entry(layout->blocks, entry_bytes(1), EXT4_BLOCK_BYTES - entry_bytes(1), &up);
	memcpy(layout->blocks + 2 * (size_t)entry_bytes(1), &info, sizeof(info));
}

/* Puts index blocks behind the leaves and the root's entries over them. */
static int lay_out_index(struct layout *layout, struct ext2_dx_entry *entries)
{
	struct ext2_dx_entry root[ROOT_ENTRIES];
	uint32_t nodes = 0;

	if (layout->leaf_count <= ROOT_ENTRIES) {
		put_index(layout->blocks + ROOT_ENTRIES_OFFSET, ROOT_ENTRIES, entries,
			  layout->leaf_count);
		return 0;
	}
	for (uint32_t from = 0; from < layout->leaf_count; nodes++) {
		/* A node that is not full leaves room for leaves that split. */
		uint32_t part = MIN(NODE_ENTRIES - NODE_ENTRIES / 5, layout->leaf_count - from);
		struct ext2_dir_entry_2 cover = {.rec_len = EXT4_BLOCK_BYTES};
		uint8_t *block;

		if (nodes == ROOT_ENTRIES) {
			return -EFBIG;
		}
		root[nodes] = (struct ext2_dx_entry){
			.hash = entries[from].hash,
			.block = layout->count,
		};
		block = add_block(layout);
		if (!block) {
			return -ENOMEM;
		}
		memcpy(block, &cover, DIRENT_HEADER_BYTES);
		put_index(block + NODE_ENTRIES_OFFSET, NODE_ENTRIES, entries + from, part);
		from += part;
	}
	put_index(layout->blocks + ROOT_ENTRIES_OFFSET, ROOT_ENTRIES, root, nodes);
	return 0;
}

static int lay_out_tree(struct layout *layout, ext2_ino_t ino, ext2_ino_t parent,
			const struct dir_entry *entries, uint32_t count)
{
	_cleanup_free_ struct hashed *hashed = calloc(count, sizeof(*hashed));
	_cleanup_free_ struct ext2_dx_entry *index = NULL;
	int rc;

	if (!hashed || !add_block(layout)) {
		return -ENOMEM;
	}
	rc = hash_entries(layout->image, entries, count, hashed);
	if (rc == 0) {
		rc = lay_out_leaves(layout, hashed, count);
	}
	if (rc < 0) {
		return rc;
	}
	index = calloc(layout->leaf_count, sizeof(*index));
	if (!index) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < layout->leaf_count; i++) {
		index[i] = (struct ext2_dx_entry){.hash = layout->leaf_hashes[i], .block = i + 1};
	}
	put_root(layout, ino, parent, layout->leaf_count > ROOT_ENTRIES);
	return lay_out_index(layout, index);
}

/* Fills in the checksums, takes room, and maps it. */
static int write_layout(struct layout *layout, ext2_ino_t ino, struct ext2_inode_large *inode,
			struct err *err)
{
	_cleanup_(file_clear) struct file_writer writer;
	ext2_filsys fs = layout->image->fs;
	uint32_t done = 0;
	int rc;

	for (uint32_t i = 0; i < layout->count; i++) {
		void *block = layout->blocks + (size_t)i * EXT4_BLOCK_BYTES;
		errcode_t code = ext2fs_dir_block_csum_set(fs, ino, block);

		if (code) {
			return ext4_error(code, "image: cannot seal a directory", err);
		}
	}
	rc = file_begin(&writer, layout->image, ino, inode, err);
	while (rc == 0 && done < layout->count) {
		uint8_t *from = layout->blocks + (size_t)done * EXT4_BLOCK_BYTES;
		blk64_t first;
		uint32_t got;

		rc = ext4_take_blocks(layout->image, layout->count - done, &first, &got, err);
		if (rc == 0) {
			rc = ext4_write_blocks(layout->image, first, from, got, err);
		}
		if (rc == 0) {
			rc = file_add_blocks(&writer, done, first, got, err);
			done += got;
		}
	}
	if (rc == 0) {
		rc = file_end(&writer, (uint64_t)layout->count * EXT4_BLOCK_BYTES, err);
	}
	return rc;
}

/* All entries with "." and ".." in front, when they fit into one block. */
static int lay_out(struct layout *layout, ext2_ino_t ino, ext2_ino_t parent,
		   const struct dir_list *list)
{
	_cleanup_free_ struct dir_entry *all = NULL;
	uint64_t bytes = 2 * (uint64_t)entry_bytes(1);

	for (uint32_t i = 0; i < list->count; i++) {
		bytes += entry_bytes(list->entries[i].name_size);
	}
	if (bytes > LEAF_BYTES) {
		return lay_out_tree(layout, ino, parent, list->entries, list->count);
	}
	all = calloc((size_t)list->count + 2, sizeof(*all));
	if (!all) {
		return -ENOMEM;
	}
	all[0] = dot(ino);
	all[1] = dot_dot(parent);
	if (list->count > 0) {
		memcpy(all + 2, list->entries, list->count * sizeof(*all));
	}
	return lay_out_flat(layout, all, list->count + 2, list->min_blocks);
}

int dir_write(struct ext4 *image, ext2_ino_t ino, ext2_ino_t parent, const struct dir_list *list,
	      struct err *err)
{
	_cleanup_(layout_clear) struct layout layout = {.image = image};
	struct ext2_inode_large inode;
	uint32_t links = 2;
	int rc = lay_out(&layout, ino, parent, list);

	if (rc == -EFBIG) {
		return err_set(err, rc, "image-failed", "image: a directory has too many names");
	}
	if (rc < 0) {
		return err_set(err, rc, "image-failed", "image: %s", strerror(-rc));
	}
	rc = ext4_read_inode(image, ino, &inode, err);
	if (rc < 0) {
		return rc;
	}
	for (uint32_t i = 0; i < list->count; i++) {
		links += list->entries[i].type == EXT2_FT_DIR;
	}
	inode.i_links_count = (uint16_t)(links >= DIRECTORY_LINKS_MAX ? 1 : links);
	rc = write_layout(&layout, ino, &inode, err);
	if (rc < 0) {
		return rc;
	}
	if (layout.leaf_count > 0) {
		inode.i_flags |= EXT2_INDEX_FL;
	}
	return ext4_write_inode(image, ino, &inode, err);
}
