/*
 * What ext4 keeps in its superblock, group descriptors and inodes, as far as two states of one file
 * system are compared by it. Pure: bytes in, numbers out. All bytes are hostile: a guest's root
 * writes to its disk what it likes.
 *
 * The layout is that of the kernel's Documentation/filesystems/ext4 (super.rst, group_descr.rst,
 * blockgroup.rst, inodes.rst). Checksums are not looked at: who can write the disk can write them.
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
