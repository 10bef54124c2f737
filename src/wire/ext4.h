/*
 * What ext4 keeps in its superblock, group descriptors, inodes and directories, as far as two
 * states of one file system are compared by it. Pure: bytes in, numbers out. All bytes are hostile:
 * a guest's root writes to its disk what it likes.
 *
 * The layout is that of the kernel's Documentation/filesystems/ext4 (super.rst, group_descr.rst,
 * blockgroup.rst, inodes.rst, ifork.rst, directory.rst). Checksums are not looked at: who can write
 * the disk can write them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXT4_SUPER_OFFSET 1024
#define EXT4_SUPER_BYTES 1024u
/* Blocks of 64 KiB are the largest that the format knows. */
#define EXT4_BLOCK_BYTES_MAX 65536u
#define EXT4_INODE_BYTES_MIN 128u
#define EXT4_DESCRIPTOR_BYTES_MAX 64u
#define EXT4_ROOT_INODE 2u
/* Below it are inodes of the file system's own; the root is one of them. */
#define EXT4_FIRST_INODE 11u
/* As many as an inode has room for itself. */
#define EXT4_RUNS_MAX 4u

struct ext4_super {
	uint8_t uuid[16];
	/* A power of two from 1024. */
	uint32_t block_bytes;
	/* A power of two from 128 to block_bytes. */
	uint32_t inode_bytes;
	/* All of them fit on the device that was named. */
	uint64_t blocks;
	uint32_t blocks_per_group;
	uint32_t inodes_per_group;
	uint32_t first_block;
	uint32_t groups;
	/* 32 or 64. */
	uint32_t descriptor_bytes;
	/* From this block of descriptors on, each lies in the groups that it describes. */
	uint32_t first_meta_block;
	/* Which groups have a copy of the superblock. */
	bool sparse;
	bool sparse_two;
	uint32_t backups[2];
	/* Group descriptors say how much of a table was never used. */
	bool has_unused;
};

struct ext4_group {
	/* Bytes from the begin of the device; the whole table is on it. */
	uint64_t table_offset;
	/* The first so many inodes of the table; the rest was never used. */
	uint32_t used;
};

struct ext4_inode {
	/* As st_mode has it; 0 when it is not in use. */
	uint32_t mode;
	uint32_t links;
	uint32_t generation;
};

/* Blocks that follow each other on the device. */
struct ext4_run {
	uint64_t block;
	uint32_t blocks;
};

struct ext4_entry {
	uint32_t number;
	/* Its name is "..". */
	bool is_parent;
};

/*
 * Decodes EXT4_SUPER_BYTES of a device of that size. Returns 0, or -EBADMSG with *ret_why, which
 * holds no byte of the input.
 */
int ext4_super_decode(const uint8_t *bytes, uint64_t device_bytes, struct ext4_super *ret_super,
		      const char **ret_why);

/* How many group descriptors one block holds. */
static inline uint32_t ext4_descriptors_per_block(const struct ext4_super *super)
{
	return super->block_bytes / super->descriptor_bytes;
}

/*
 * The byte at which the block with the descriptors of group and those after it begins; group is a
 * multiple of ext4_descriptors_per_block and there is such a group. Returns 0 or -EBADMSG.
 */
int ext4_descriptors_offset(const struct ext4_super *super, uint32_t group, uint64_t *ret_offset);

/* Decodes one descriptor of descriptor_bytes. Returns 0 or -EBADMSG. */
int ext4_group_decode(const struct ext4_super *super, const uint8_t *bytes,
		      struct ext4_group *ret_group);

/* Decodes an inode of at least EXT4_INODE_BYTES_MIN bytes. Nothing about it can be wrong. */
void ext4_inode_decode(const uint8_t *bytes, struct ext4_inode *ret_inode);

/*
 * Whether two inodes of size bytes say the same, apart from when they were read last and from their
 * checksums. The version counts: where times have no fraction, as in inodes of 128 bytes, it may be
 * all that a change of a directory leaves.
 */
bool ext4_inode_same(const uint8_t *a, const uint8_t *b, size_t size);

/*
 * Where the content of a directory is, when its inode of at least EXT4_INODE_BYTES_MIN bytes says
 * it itself. Returns how many runs that are, all of them on the device; 0 when it is no directory,
 * has more runs than that, or breaks the rules.
 */
size_t ext4_directory_runs(const struct ext4_super *super, const uint8_t *bytes,
			   struct ext4_run ret_runs[static EXT4_RUNS_MAX]);

/*
 * The next entry that is in use of a directory's block of size bytes, from *at on, which begins
 * with 0. False at the end of the block, and where it breaks the rules.
 */
bool ext4_entry_next(const uint8_t *block, size_t size, size_t *at, struct ext4_entry *ret_entry);
