/*
 * Any bytes as a superblock, group descriptors, inodes and directories. Whatever is taken stays
 * inside the device.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "wire/ext4.h"

/* As much as a large host could have. */
#define DEVICE_BYTES ((uint64_t)1 << 44)

static void try_groups(const struct ext4_super *super, const uint8_t *data, size_t size)
{
	uint64_t device = super->blocks * super->block_bytes;
	uint32_t per_block = ext4_descriptors_per_block(super);
	uint64_t table = (uint64_t)super->inodes_per_group * super->inode_bytes;

	ASSERT(super->groups > 0 && per_block > 0 && device <= DEVICE_BYTES);
	for (uint32_t group = 0; group < super->groups && group / per_block < 64;
	     group += per_block) {
		uint64_t offset;

		if (ext4_descriptors_offset(super, group, &offset) == 0) {
			ASSERT(offset <= device - super->block_bytes);
		}
		if (group > UINT32_MAX - per_block) {
			break;
		}
	}
	for (; size >= super->descriptor_bytes; data += super->descriptor_bytes) {
		struct ext4_group group;

		if (ext4_group_decode(super, data, &group) == 0) {
			ASSERT(group.used <= super->inodes_per_group);
			ASSERT(table <= device && group.table_offset <= device - table);
		}
		size -= super->descriptor_bytes;
	}
}

static void try_directory(const struct ext4_super *super, const uint8_t *inode)
{
	struct ext4_run runs[EXT4_RUNS_MAX];
	size_t count = ext4_directory_runs(super, inode, runs);

	ASSERT(count <= EXT4_RUNS_MAX);
	for (size_t i = 0; i < count; i++) {
		ASSERT(runs[i].blocks > 0 && runs[i].blocks <= super->blocks &&
		       runs[i].block <= super->blocks - runs[i].blocks);
	}
}

static void try_entries(const uint8_t *data, size_t size)
{
	struct ext4_entry entry;
	size_t at = 0, before = 0;

	while (ext4_entry_next(data, size, &at, &entry)) {
		ASSERT(at > before && at <= size && entry.number != 0);
		before = at;
	}
	ASSERT(at <= size);
}

static void try_inodes(const struct ext4_super *super, const uint8_t *data, size_t size)
{
	size_t inode_bytes = super->inode_bytes;

	for (; size >= 2 * inode_bytes; data += inode_bytes) {
		struct ext4_inode inode;

		ext4_inode_decode(data, &inode);
		ASSERT((inode.mode & ~0xffffu) == 0 && (inode.links > 0 || inode.mode == 0));
		ASSERT(ext4_inode_same(data, data, inode_bytes));
		ASSERT(ext4_inode_same(data, data + inode_bytes, inode_bytes) ||
		       memcmp(data, data + inode_bytes, inode_bytes) != 0);
		try_directory(super, data);
		size -= inode_bytes;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_free_ uint8_t *rest = NULL;
	struct ext4_super super;
	const char *why = NULL;

	if (size < EXT4_SUPER_BYTES) {
		return 0;
	}
	if (ext4_super_decode(data, DEVICE_BYTES, &super, &why) < 0) {
		ASSERT(why);
		return 0;
	}
	/* A copy of exactly that size, so that a sanitizer sees a read of one byte more. */
	size -= EXT4_SUPER_BYTES;
	rest = malloc(size > 0 ? size : 1);
	ASSERT(rest);
	memcpy(rest, data + EXT4_SUPER_BYTES, size);
	try_groups(&super, rest, size);
	try_inodes(&super, rest, size);
	try_entries(rest, size);
	return 0;
}
