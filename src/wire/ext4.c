#include "wire/ext4.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"

#define MAGIC 0xef53u

enum super_at {
	AT_INODES = 0x00,
	AT_BLOCKS_LOW = 0x04,
	AT_FIRST_BLOCK = 0x14,
	AT_BLOCK_SHIFT = 0x18,
	AT_BLOCKS_PER_GROUP = 0x20,
	AT_INODES_PER_GROUP = 0x28,
	AT_MAGIC = 0x38,
	AT_REVISION = 0x4c,
	AT_INODE_BYTES = 0x58,
	AT_COMPATIBLE = 0x5c,
	AT_INCOMPATIBLE = 0x60,
	AT_READ_ONLY = 0x64,
	AT_UUID = 0x68,
	AT_DESCRIPTOR_BYTES = 0xfe,
	AT_FIRST_META = 0x104,
	AT_BLOCKS_HIGH = 0x150,
	AT_BACKUPS = 0x24c,
};

enum group_at {
	AT_TABLE_LOW = 0x08,
	AT_FLAGS = 0x12,
	AT_UNUSED_LOW = 0x1c,
	AT_TABLE_HIGH = 0x28,
	AT_UNUSED_HIGH = 0x32,
};

enum inode_at {
	AT_MODE = 0x00,
	AT_LINKS = 0x1a,
	AT_INODE_FLAGS = 0x20,
	AT_EXTENTS = 0x28,
	AT_GENERATION = 0x64,
	AT_EXTRA_BYTES = 0x80,
};

/* A header, then extents. */
enum extents_at {
	AT_EXTENTS_MAGIC = 0x00,
	AT_EXTENTS_COUNT = 0x02,
	AT_EXTENTS_DEPTH = 0x06,
	EXTENT_BYTES = 12,
	AT_EXTENT_BLOCKS = 0x04,
	AT_EXTENT_HIGH = 0x06,
	AT_EXTENT_LOW = 0x08,
};

enum entry_at {
	AT_ENTRY_BYTES = 0x04,
	AT_NAME_BYTES = 0x06,
	AT_NAME = 0x08,
};

#define INODE_EXTENTS 0x80000u
#define EXTENTS_MAGIC 0xf30au
/* Of more blocks than that nothing was written yet. */
#define EXTENT_BLOCKS_MAX 32768u

#define COMPATIBLE_SPARSE_TWO 0x200u
#define INCOMPATIBLE_META 0x10u
#define INCOMPATIBLE_64BIT 0x80u
/* filetype, recover, meta_bg, extents, 64bit, mmp, flex_bg, ea_inode, csum_seed, large_dir,
 * inline_data, encrypt, casefold: none of the rest moves a table. */
#define INCOMPATIBLE_KNOWN 0x3e7d6u
#define READ_ONLY_SPARSE 0x1u
/* uninit_bg and metadata_csum: without either the number of unused inodes means nothing. */
#define READ_ONLY_UNUSED 0x410u
#define GROUP_INODES_UNUSED 0x1u

static uint16_t get_u16(const uint8_t *bytes)
{
	return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static uint32_t get_u32(const uint8_t *bytes)
{
	return get_u16(bytes) | (uint32_t)get_u16(bytes + 2) << 16;
}

static uint64_t get_u64(const uint8_t *low, const uint8_t *high)
{
	return get_u32(low) | (uint64_t)get_u32(high) << 32;
}

static int refuse(const char **ret_why, const char *why)
{
	*ret_why = why;
	return -EBADMSG;
}

static bool is_power_of_two(uint32_t value)
{
	return value != 0 && (value & (value - 1)) == 0;
}

static int decode_features(const uint8_t *bytes, struct ext4_super *super, const char **ret_why)
{
	uint32_t incompatible = get_u32(bytes + AT_INCOMPATIBLE);
	uint32_t read_only = get_u32(bytes + AT_READ_ONLY);

	if ((incompatible & ~INCOMPATIBLE_KNOWN) != 0) {
		return refuse(ret_why, "it has a feature that is not known");
	}
	super->descriptor_bytes = 32;
	if (incompatible & INCOMPATIBLE_64BIT) {
		super->descriptor_bytes = get_u16(bytes + AT_DESCRIPTOR_BYTES);
		if (super->descriptor_bytes != EXT4_DESCRIPTOR_BYTES_MAX) {
			return refuse(ret_why, "the size of its group descriptors is odd");
		}
		super->blocks |= (uint64_t)get_u32(bytes + AT_BLOCKS_HIGH) << 32;
	}
	super->first_meta_block =
		incompatible & INCOMPATIBLE_META ? get_u32(bytes + AT_FIRST_META) : UINT32_MAX;
	super->sparse = read_only & READ_ONLY_SPARSE;
	super->sparse_two = get_u32(bytes + AT_COMPATIBLE) & COMPATIBLE_SPARSE_TWO;
	super->backups[0] = get_u32(bytes + AT_BACKUPS);
	super->backups[1] = get_u32(bytes + AT_BACKUPS + 4);
	super->has_unused = read_only & READ_ONLY_UNUSED;
	return 0;
}

/* How many groups there are, and that everything that was said about them fits together. */
static int check_groups(const uint8_t *bytes, uint64_t device_bytes, struct ext4_super *super,
			const char **ret_why)
{
	uint64_t groups;

	if (super->blocks_per_group == 0 || super->blocks_per_group > 8 * super->block_bytes ||
	    super->inodes_per_group == 0 || super->inodes_per_group > 8 * super->block_bytes) {
		return refuse(ret_why, "its groups have an odd size");
	}
	if (super->blocks > device_bytes / super->block_bytes ||
	    super->first_block != (super->block_bytes == 1024 ? 1u : 0u) ||
	    super->first_block >= super->blocks) {
		return refuse(ret_why, "it is larger than its disk");
	}
	groups = (super->blocks - super->first_block + super->blocks_per_group - 1) /
		 super->blocks_per_group;
	if (groups > UINT32_MAX / super->inodes_per_group ||
	    groups * super->inodes_per_group != get_u32(bytes + AT_INODES)) {
		return refuse(ret_why, "its numbers of groups and inodes do not fit together");
	}
	super->groups = (uint32_t)groups;
	return 0;
}

int ext4_super_decode(const uint8_t *bytes, uint64_t device_bytes, struct ext4_super *ret_super,
		      const char **ret_why)
{
	uint32_t shift = get_u32(bytes + AT_BLOCK_SHIFT);
	bool is_old = get_u32(bytes + AT_REVISION) == 0;
	struct ext4_super super = {
		.inode_bytes = is_old ? 128 : get_u16(bytes + AT_INODE_BYTES),
		.blocks = get_u32(bytes + AT_BLOCKS_LOW),
		.blocks_per_group = get_u32(bytes + AT_BLOCKS_PER_GROUP),
		.inodes_per_group = get_u32(bytes + AT_INODES_PER_GROUP),
		.first_block = get_u32(bytes + AT_FIRST_BLOCK),
	};
	int rc;

	if (get_u16(bytes + AT_MAGIC) != MAGIC) {
		return refuse(ret_why, "it is no ext4");
	}
	if (shift > 6) {
		return refuse(ret_why, "its blocks have an odd size");
	}
	super.block_bytes = 1024u << shift;
	if (!is_power_of_two(super.inode_bytes) || super.inode_bytes < EXT4_INODE_BYTES_MIN ||
	    super.inode_bytes > super.block_bytes) {
		return refuse(ret_why, "its inodes have an odd size");
	}
	memcpy(super.uuid, bytes + AT_UUID, sizeof(super.uuid));
	rc = decode_features(bytes, &super, ret_why);
	if (rc == 0) {
		rc = check_groups(bytes, device_bytes, &super, ret_why);
	}
	if (rc == 0) {
		*ret_super = super;
	}
	return rc;
}

static bool is_power_of(uint32_t value, uint32_t base)
{
	while (value % base == 0) {
		value /= base;
	}
	return value == 1;
}

/* Whether a copy of the superblock stands before what else is in the group. */
static bool group_has_super(const struct ext4_super *super, uint32_t group)
{
	if (group == 0) {
		return true;
	}
	if (super->sparse_two) {
		return group == super->backups[0] || group == super->backups[1];
	}
	return group == 1 || !super->sparse || is_power_of(group, 3) || is_power_of(group, 5) ||
	       is_power_of(group, 7);
}

int ext4_descriptors_offset(const struct ext4_super *super, uint32_t group, uint64_t *ret_offset)
{
	uint32_t index = group / ext4_descriptors_per_block(super);
	uint64_t block;

	ASSERT(group < super->groups && group % ext4_descriptors_per_block(super) == 0);
	if (index < super->first_meta_block) {
		block = (uint64_t)super->first_block + 1 + index;
	} else {
		block = super->first_block + (uint64_t)group * super->blocks_per_group +
			(group_has_super(super, group) ? 1 : 0);
	}
	if (block >= super->blocks) {
		return -EBADMSG;
	}
	*ret_offset = block * super->block_bytes;
	return 0;
}

int ext4_group_decode(const struct ext4_super *super, const uint8_t *bytes,
		      struct ext4_group *ret_group)
{
	static const uint8_t zeros[4];
	bool is_wide = super->descriptor_bytes > 32;
	uint64_t block = get_u64(bytes + AT_TABLE_LOW, is_wide ? bytes + AT_TABLE_HIGH : zeros);
	uint32_t unused = get_u16(bytes + AT_UNUSED_LOW) |
			  (is_wide ? (uint32_t)get_u16(bytes + AT_UNUSED_HIGH) << 16 : 0);
	uint64_t table_bytes = (uint64_t)super->inodes_per_group * super->inode_bytes;
	uint64_t table_blocks = (table_bytes + super->block_bytes - 1) / super->block_bytes;

	if (block < super->first_block || block > super->blocks ||
	    table_blocks > super->blocks - block) {
		return -EBADMSG;
	}
	if (!super->has_unused) {
		unused = 0;
	} else if (get_u16(bytes + AT_FLAGS) & GROUP_INODES_UNUSED) {
		unused = super->inodes_per_group;
	}
	if (unused > super->inodes_per_group) {
		return -EBADMSG;
	}
	*ret_group = (struct ext4_group){
		.table_offset = block * super->block_bytes,
		.used = super->inodes_per_group - unused,
	};
	return 0;
}

void ext4_inode_decode(const uint8_t *bytes, struct ext4_inode *ret_inode)
{
	*ret_inode = (struct ext4_inode){
		.mode = get_u16(bytes + AT_MODE),
		.links = get_u16(bytes + AT_LINKS),
		.generation = get_u32(bytes + AT_GENERATION),
	};
	/* One that was deleted keeps its mode. */
	if (ret_inode->links == 0) {
		ret_inode->mode = 0;
	}
}

bool ext4_inode_same(const uint8_t *a, const uint8_t *b, size_t size)
{
	/* Ascending. What lies beyond the first 128 bytes is there only as far as the inode says.
	 */
	static const struct {
		uint16_t at;
		uint16_t size;
	} ignored[] = {
		{0x08, 4}, /* i_atime */
		{0x7c, 2}, /* l_i_checksum_lo */
		{0x82, 2}, /* i_checksum_hi */
		{0x8c, 4}, /* i_atime_extra */
	};
	size_t extra, begin = 0;

	ASSERT(size >= EXT4_INODE_BYTES_MIN);
	if (memcmp(a, b, size) == 0) {
		return true;
	}
	extra = size > EXT4_INODE_BYTES_MIN ? get_u16(a + AT_EXTRA_BYTES) : 0;
	for (size_t i = 0; i < ARRAY_SIZE(ignored); i++) {
		size_t end = (size_t)ignored[i].at + ignored[i].size;

		if (end > size ||
		    (end > EXT4_INODE_BYTES_MIN && end - EXT4_INODE_BYTES_MIN > extra)) {
			break;
		}
		if (memcmp(a + begin, b + begin, ignored[i].at - begin) != 0) {
			return false;
		}
		begin = end;
	}
	return memcmp(a + begin, b + begin, size - begin) == 0;
}

size_t ext4_directory_runs(const struct ext4_super *super, const uint8_t *bytes,
			   struct ext4_run ret_runs[static EXT4_RUNS_MAX])
{
	const uint8_t *extents = bytes + AT_EXTENTS;
	struct ext4_inode inode;
	size_t count;

	ext4_inode_decode(bytes, &inode);
	if (!S_ISDIR(inode.mode) || !(get_u32(bytes + AT_INODE_FLAGS) & INODE_EXTENTS) ||
	    get_u16(extents + AT_EXTENTS_MAGIC) != EXTENTS_MAGIC ||
	    get_u16(extents + AT_EXTENTS_DEPTH) != 0) {
		return 0;
	}
	count = get_u16(extents + AT_EXTENTS_COUNT);
	if (count > EXT4_RUNS_MAX) {
		return 0;
	}
	for (size_t i = 0; i < count; i++) {
		const uint8_t *extent = extents + (i + 1) * EXTENT_BYTES;
		struct ext4_run run = {
			.block = get_u32(extent + AT_EXTENT_LOW) |
				 (uint64_t)get_u16(extent + AT_EXTENT_HIGH) << 32,
			.blocks = get_u16(extent + AT_EXTENT_BLOCKS),
		};

		if (run.blocks == 0 || run.blocks > EXTENT_BLOCKS_MAX ||
		    run.block >= super->blocks || run.blocks > super->blocks - run.block) {
			return 0;
		}
		ret_runs[i] = run;
	}
	return count;
}

bool ext4_entry_next(const uint8_t *block, size_t size, size_t *at, struct ext4_entry *ret_entry)
{
	while (*at <= size && size - *at >= AT_NAME) {
		const uint8_t *entry = block + *at;
		size_t bytes = get_u16(entry + AT_ENTRY_BYTES);
		size_t name_bytes = entry[AT_NAME_BYTES];
		uint32_t number = get_u32(entry);

		if (bytes < AT_NAME + name_bytes || bytes > size - *at) {
			return false;
		}
		*at += bytes;
		if (number != 0) {
			*ret_entry = (struct ext4_entry){
				.number = number,
				.is_parent =
					name_bytes == 2 && memcmp(entry + AT_NAME, "..", 2) == 0,
			};
			return true;
		}
	}
	return false;
}
