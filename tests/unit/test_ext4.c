/* The numbers of ext4: taken from superblocks as they should be, refused where they lie. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "wire/ext4.h"

#define DEVICE_BYTES ((uint64_t)1 << 30)

static uint8_t bytes[EXT4_SUPER_BYTES];

static void put(size_t at, size_t size, uint64_t value)
{
	for (size_t i = 0; i < size; i++) {
		bytes[at + i] = (uint8_t)(value >> (8 * i));
	}
}

/* 1 GiB in blocks of 4 KiB: 8 groups of 8192 inodes of 256 bytes, wide descriptors. */
static void make_super(void)
{
	memset(bytes, 0, sizeof(bytes));
	put(0x00, 4, 8 * 8192);
	put(0x04, 4, 262144);
	put(0x18, 4, 2);
	put(0x20, 4, 32768);
	put(0x28, 4, 8192);
	put(0x38, 2, 0xef53);
	put(0x4c, 4, 1);
	put(0x58, 2, 256);
	put(0x60, 4, 0x2c2);
	put(0x64, 4, 0x401);
	put(0x68, 1, 0xaa);
	put(0xfe, 2, 64);
}

static int decode(struct ext4_super *ret_super)
{
	const char *why = NULL;
	int rc = ext4_super_decode(bytes, DEVICE_BYTES, ret_super, &why);

	assert_true(rc == 0 || (rc == -EBADMSG && why));
	return rc;
}

static void test_super(void **state)
{
	struct ext4_super super;

	(void)state;
	make_super();
	assert_int_equal(decode(&super), 0);
	assert_int_equal(super.block_bytes, 4096);
	assert_int_equal(super.inode_bytes, 256);
	assert_int_equal(super.groups, 8);
	assert_int_equal(super.blocks, 262144);
	assert_int_equal(super.descriptor_bytes, 64);
	assert_int_equal(super.uuid[0], 0xaa);
	assert_true(super.has_unused && super.sparse && !super.sparse_two);
	assert_int_equal(ext4_descriptors_per_block(&super), 64);
	/* The last group may be short. */
	put(0x04, 4, 262144 - 5);
	assert_int_equal(decode(&super), 0);
	assert_int_equal(super.groups, 8);
}

static void test_super_refused(void **state)
{
	static const struct {
		size_t at;
		size_t size;
		uint64_t value;
	} lies[] = {
		{0x00, 4, 65535},      {0x00, 4, 0},	       {0x04, 4, 262145},
		{0x04, 4, 0},	       {0x14, 4, 1},	       {0x18, 4, 7},
		{0x18, 4, UINT32_MAX}, {0x20, 4, 0},	       {0x20, 4, 32769},
		{0x28, 4, 0},	       {0x28, 4, 32769},       {0x38, 2, 0},
		{0x58, 2, 0},	       {0x58, 2, 64},	       {0x58, 2, 257},
		{0x58, 2, 8192},       {0x60, 4, 0x2c3},       {0x60, 4, 0x1002c2 | 0x80000},
		{0xfe, 2, 32},	       {0xfe, 2, 128},	       {0xfe, 2, 0},
		{0x150, 4, 1},	       {0x150, 4, UINT32_MAX}, {0x20, 4, 1},
	};
	struct ext4_super super;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
		make_super();
		put(lies[i].at, lies[i].size, lies[i].value);
		assert_int_equal(decode(&super), -EBADMSG);
	}
}

static uint64_t descriptors(const struct ext4_super *super, uint32_t group)
{
	uint64_t offset = 0;

	assert_int_equal(ext4_descriptors_offset(super, group, &offset), 0);
	return offset / super->block_bytes;
}

static void test_descriptors(void **state)
{
	struct ext4_super super;
	uint64_t offset;

	(void)state;
	make_super();
	assert_int_equal(decode(&super), 0);
	assert_int_equal(descriptors(&super, 0), 1);
	/* Many groups of 1 KiB blocks; from the second block of descriptors on in the groups. */
	super = (struct ext4_super){
		.block_bytes = 1024,
		.first_block = 1,
		.blocks = 8192ull * 1000,
		.blocks_per_group = 8192,
		.groups = 1000,
		.descriptor_bytes = 32,
		.first_meta_block = 1,
		.sparse = true,
	};
	assert_int_equal(descriptors(&super, 0), 2);
	assert_int_equal(descriptors(&super, 32), 1 + 32 * 8192);
	assert_int_equal(descriptors(&super, 64), 1 + 64 * 8192);
	super.sparse = false;
	assert_int_equal(descriptors(&super, 64), 1 + 64 * 8192 + 1);
	super.sparse_two = true;
	super.backups[1] = 96;
	assert_int_equal(descriptors(&super, 64), 1 + 64 * 8192);
	assert_int_equal(descriptors(&super, 96), 1 + 96 * 8192 + 1);
	super.blocks = 1 + 64 * 8192;
	assert_int_equal(ext4_descriptors_offset(&super, 64, &offset), -EBADMSG);
}

static void test_groups(void **state)
{
	struct ext4_super super;
	struct ext4_group group;

	(void)state;
	make_super();
	assert_int_equal(decode(&super), 0);
	memset(bytes, 0, sizeof(bytes));
	put(0x08, 4, 100);
	put(0x1c, 2, 8000);
	assert_int_equal(ext4_group_decode(&super, bytes, &group), 0);
	assert_int_equal(group.table_offset, 100 * 4096);
	assert_int_equal(group.used, 192);
	put(0x1c, 2, 8193);
	assert_int_equal(ext4_group_decode(&super, bytes, &group), -EBADMSG);
	put(0x12, 2, 1);
	assert_int_equal(ext4_group_decode(&super, bytes, &group), 0);
	assert_int_equal(group.used, 0);
	super.has_unused = false;
	assert_int_equal(ext4_group_decode(&super, bytes, &group), 0);
	assert_int_equal(group.used, 8192);
	/* The table has 512 blocks. */
	put(0x08, 4, 262144 - 512);
	assert_int_equal(ext4_group_decode(&super, bytes, &group), 0);
	put(0x08, 4, 262144 - 511);
	assert_int_equal(ext4_group_decode(&super, bytes, &group), -EBADMSG);
	put(0x08, 4, 100);
	put(0x28, 4, UINT32_MAX);
	assert_int_equal(ext4_group_decode(&super, bytes, &group), -EBADMSG);
	super.descriptor_bytes = 32;
	assert_int_equal(ext4_group_decode(&super, bytes, &group), 0);
}

static void test_inodes(void **state)
{
	/* Every byte on its own: these are the only ones that do not count. */
	static const uint8_t ignored[] = {0x08, 0x09, 0x0a, 0x0b, 0x7c, 0x7d,
					  0x82, 0x83, 0x8c, 0x8d, 0x8e, 0x8f};
	uint8_t a[256], b[256];
	struct ext4_inode inode;
	size_t count = 0;

	(void)state;
	memset(a, 0x11, sizeof(a));
	a[0x80] = 32;
	a[0x81] = 0;
	for (size_t i = 0; i < sizeof(a); i++) {
		bool expected = memchr(ignored, (int)i, sizeof(ignored)) != NULL;

		memcpy(b, a, sizeof(a));
		b[i] ^= 1;
		assert_int_equal(ext4_inode_same(a, b, sizeof(a)), expected);
		count += expected;
		if (i < 128) {
			assert_int_equal(ext4_inode_same(a, b, 128), expected);
		}
	}
	assert_int_equal(count, sizeof(ignored));
	/* One that has no further fields may have attributes in their place. */
	a[0x80] = 8;
	memcpy(b, a, sizeof(a));
	b[0x8c] ^= 1;
	assert_false(ext4_inode_same(a, b, sizeof(a)));

	ext4_inode_decode(a, &inode);
	assert_int_equal(inode.mode, 0x1111);
	assert_int_equal(inode.links, 0x1111);
	assert_int_equal(inode.generation, 0x11111111);
	a[0x1a] = a[0x1b] = 0;
	ext4_inode_decode(a, &inode);
	assert_int_equal(inode.mode, 0);
}

/* A directory with this many runs: blocks 1000, 2000… of 1, 2… blocks. */
static void make_directory(size_t runs)
{
	memset(bytes, 0, sizeof(bytes));
	put(0x00, 2, 040755);
	put(0x1a, 2, 2);
	put(0x20, 4, 0x80000);
	put(0x28, 2, 0xf30a);
	put(0x2a, 2, runs);
	for (size_t i = 0; i < MIN(runs, (size_t)EXT4_RUNS_MAX); i++) {
		put(0x34 + 12 * i + 4, 2, i + 1);
		put(0x34 + 12 * i + 8, 4, 1000 * (i + 1));
	}
}

static void test_directory_runs(void **state)
{
	/* What makes of it something that is not taken. */
	static const struct {
		size_t at;
		size_t size;
		uint64_t value;
	} odd[] = {
		{0x00, 2, 0100644}, {0x1a, 2, 0},      {0x20, 4, 0x10000000}, {0x28, 2, 0xf30b},
		{0x2a, 2, 5},	    {0x2e, 2, 1},      {0x38, 2, 0},	      {0x38, 2, 32769},
		{0x3a, 2, 1},	    {0x3c, 4, 262144}, {0x3c, 4, UINT32_MAX}, {0x44 + 4, 4, 262143},
	};
	struct ext4_super super;
	struct ext4_run runs[EXT4_RUNS_MAX];

	(void)state;
	make_super();
	assert_int_equal(decode(&super), 0);
	for (size_t count = 0; count <= EXT4_RUNS_MAX; count++) {
		make_directory(count);
		assert_int_equal(ext4_directory_runs(&super, bytes, runs), count);
		for (size_t i = 0; i < count; i++) {
			assert_int_equal(runs[i].block, 1000 * (i + 1));
			assert_int_equal(runs[i].blocks, i + 1);
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(odd); i++) {
		make_directory(2);
		put(odd[i].at, odd[i].size, odd[i].value);
		assert_int_equal(ext4_directory_runs(&super, bytes, runs), 0);
	}
	/* The last block of the device, and all of 48 bits. */
	make_directory(1);
	put(0x3c, 4, 262143);
	assert_int_equal(ext4_directory_runs(&super, bytes, runs), 1);
	super.blocks = UINT64_MAX;
	put(0x3a, 2, 0xffff);
	assert_int_equal(ext4_directory_runs(&super, bytes, runs), 1);
	assert_true(runs[0].block == 0xffff0003ffff);
}

static void put_entry(size_t at, uint32_t number, size_t entry_bytes, const char *name)
{
	put(at, 4, number);
	put(at + 4, 2, entry_bytes);
	put(at + 6, 1, strlen(name));
	memcpy(bytes + at + 8, name, strlen(name));
}

/* How many entries there are up to the end or to what breaks the rules. */
static size_t count_entries(size_t size)
{
	struct ext4_entry entry;
	size_t at = 0, count = 0;

	while (ext4_entry_next(bytes, size, &at, &entry)) {
		count++;
	}
	return count;
}

static void test_entries(void **state)
{
	struct ext4_entry entry;
	size_t at = 0;

	(void)state;
	memset(bytes, 0, sizeof(bytes));
	put_entry(0, 12, 12, ".");
	put_entry(12, 2, 12, "..");
	put_entry(24, 0, 16, "deleted");
	put_entry(40, 13, 12, "..a");
	put_entry(52, 14, 1024 - 52, "xy");
	assert_true(ext4_entry_next(bytes, 1024, &at, &entry));
	assert_int_equal(entry.number, 12);
	assert_false(entry.is_parent);
	assert_true(ext4_entry_next(bytes, 1024, &at, &entry));
	assert_int_equal(entry.number, 2);
	assert_true(entry.is_parent);
	assert_true(ext4_entry_next(bytes, 1024, &at, &entry));
	assert_int_equal(entry.number, 13);
	assert_false(entry.is_parent);
	assert_true(ext4_entry_next(bytes, 1024, &at, &entry));
	assert_int_equal(entry.number, 14);
	assert_false(entry.is_parent);
	assert_false(ext4_entry_next(bytes, 1024, &at, &entry));
	assert_int_equal(at, 1024);
	/* The last one would be longer than the block. */
	assert_int_equal(count_entries(1023), 3);
	assert_int_equal(count_entries(40 + 7), 2);
	/* A name that is longer than its entry, and an entry of no length. */
	put(40 + 6, 1, 5);
	assert_int_equal(count_entries(1024), 2);
	put(40 + 6, 1, 4);
	assert_int_equal(count_entries(1024), 4);
	put(12 + 4, 2, 0);
	assert_int_equal(count_entries(1024), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_super),	    cmocka_unit_test(test_super_refused),
		cmocka_unit_test(test_descriptors), cmocka_unit_test(test_groups),
		cmocka_unit_test(test_inodes),	    cmocka_unit_test(test_directory_runs),
		cmocka_unit_test(test_entries),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
