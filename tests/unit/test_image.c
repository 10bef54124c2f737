/* What of src/image needs no whole image to be looked at; tests/component looks at whole images. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "image/ext4.h"
#include "image/image.h"

static void test_uuid_is_read(void **state)
{
	static const uint8_t wanted[16] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
					   0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10};
	uint8_t uuid[16];

	(void)state;
	assert_int_equal(image_parse_uuid("01234567-89ab-cdef-FEDC-ba9876543210", uuid), 0);
	assert_memory_equal(uuid, wanted, sizeof(wanted));
}

static void test_uuid_is_refused(void **state)
{
	static const char *const wrong[] = {
		"",
		"0",
		"01234567",
		"01234567-89ab-cdef-fedc-ba987654321",
		"01234567-89ab-cdef-fedc-ba98765432100",
		"0123456789abcdeffedcba9876543210",
		"01234567-89ab-cdef-fedc-ba987654321g",
		"01234567-89ab-cdefafedc-ba9876543210",
	};
	uint8_t uuid[16];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(image_parse_uuid(wrong[i], uuid), -EINVAL);
	}
}

static void test_random_uuid_has_its_version(void **state)
{
	uint8_t first[16], second[16];

	(void)state;
	assert_int_equal(image_random_uuid(first), 0);
	assert_int_equal(image_random_uuid(second), 0);
	assert_int_equal(first[6] >> 4, 4);
	assert_int_equal(first[8] >> 6, 2);
	assert_memory_not_equal(first, second, sizeof(first));
}

static void test_times_around_2038_and_1901(void **state)
{
	static const struct {
		int64_t seconds;
		uint32_t low, epoch;
	} times[] = {
		{0, 0, 0},
		{-1, UINT32_MAX, 0},
		{INT32_MAX, INT32_MAX, 0},
		{(int64_t)INT32_MAX + 1, 0x80000000u, 1},
		{((int64_t)1 << 32) + 5, 5, 1},
		{INT32_MIN, 0x80000000u, 0},
		{INT64_MIN, 0x80000000u, 0},
		{INT64_MAX, INT32_MAX, 3},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		struct ext4_attributes attributes = {.mtime_s = times[i].seconds, .mtime_ns = 7};
		struct ext2_inode_large inode;

		ext4_fill_inode(&attributes, &inode);
		assert_int_equal(inode.i_mtime, times[i].low);
		assert_int_equal(inode.i_mtime_extra, times[i].epoch | 7 << 2);
	}
}

static void test_owners_have_32_bits(void **state)
{
	struct ext4_attributes attributes = {.uid = 0x12345678, .gid = 0x9abcdef0, .mode = 0104755};
	struct ext2_inode_large inode;

	(void)state;
	ext4_fill_inode(&attributes, &inode);
	assert_int_equal(inode_uid(inode), 0x12345678);
	assert_int_equal(inode_gid(inode), 0x9abcdef0);
	assert_int_equal(inode.i_mode, 0104755);
}

static int new_file(void)
{
	int fd = memfd_create("image", MFD_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static void test_output_must_be_empty_and_regular(void **state)
{
	struct image_options options = {.size_bytes = IMAGE_SIZE_MIN, .progress_fd = -EBADF};
	_cleanup_close_ int used = new_file();
	_cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct err err = {0};

	(void)state;
	assert_int_equal(write(used, "x", 1), 1);
	assert_int_equal(image_make_empty(used, &options, &err), -EINVAL);
	assert_string_equal(err.text, "image: the output must be an empty regular file");
	assert_int_equal(image_make_empty(null, &options, &err), -EINVAL);
	assert_int_equal(image_make_empty(-EBADF, &options, &err), -EBADF);
}

static void test_size_limits(void **state)
{
	struct image_options options = {.size_bytes = IMAGE_SIZE_MIN - 1, .progress_fd = -EBADF};
	_cleanup_close_ int fd = new_file();
	struct stat status;
	struct err err = {0};

	(void)state;
	assert_int_equal(image_make_empty(fd, &options, &err), -EINVAL);
	options.size_bytes = IMAGE_SIZE_MAX + 1;
	assert_int_equal(image_make_empty(fd, &options, &err), -EINVAL);
	options.size_bytes = IMAGE_SIZE_MIN;
	assert_int_equal(image_make_empty(fd, &options, &err), 0);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(status.st_size, IMAGE_SIZE_MIN);
}

static void test_largest_image(void **state)
{
	struct image_options options = {.size_bytes = IMAGE_SIZE_MAX, .progress_fd = -EBADF};
	_cleanup_close_ int fd = new_file();
	uint8_t magic[2];
	struct err err = {0};

	(void)state;
	assert_int_equal(image_make_empty(fd, &options, &err), 0);
	assert_int_equal(pread(fd, magic, 2, 1024 + 0x38), 2);
	assert_int_equal(magic[0] | magic[1] << 8, 0xef53);
}

static void test_a_full_image_says_so(void **state)
{
	struct image_options options = {.size_bytes = IMAGE_SIZE_MIN, .progress_fd = -EBADF};
	_cleanup_(ext4_clear) struct ext4 image = {0};
	_cleanup_close_ int fd = new_file();
	struct err err = {0};
	blk64_t first, before = 0;
	uint64_t taken = 0;
	uint32_t count;
	ext2_ino_t ino;
	int rc;

	(void)state;
	assert_int_equal(ext4_create(fd, &options, &image, &err), 0);
	while ((rc = ext4_take_blocks(&image, 7, &first, &count, &err)) == 0) {
		assert_true(count >= 1 && count <= 7);
		assert_true(first >= before);
		before = first + count;
		taken += count;
	}
	assert_int_equal(rc, -EDQUOT);
	assert_int_equal(ext2fs_free_blocks_count(image.fs->super), 0);
	assert_true(taken > 900 && taken < 2048 - 1024);
	while ((rc = ext4_take_inode(&image, false, &ino)) == 0) {
	}
	assert_int_equal(rc, -EDQUOT);
	assert_int_equal(ino, IMAGE_SIZE_MIN / EXT4_BYTES_PER_INODE);
}

static void test_size_for_is_enough(void **state)
{
	static const uint64_t blocks[] = {1, 1000, 30000, 300000, 3000000};

	(void)state;
	for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
		struct image_options options = {
			.size_bytes = ext4_size_for(blocks[i], 10),
			.progress_fd = -EBADF,
		};
		_cleanup_(ext4_clear) struct ext4 image = {0};
		_cleanup_close_ int fd = new_file();
		struct err err = {0};

		assert_int_equal(ext4_create(fd, &options, &image, &err), 0);
		assert_true(ext2fs_free_blocks_count(image.fs->super) >= blocks[i]);
	}
	assert_true(ext4_size_for(1, 1000000) >= (uint64_t)1000000 * EXT4_BYTES_PER_INODE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_uuid_is_read),
		cmocka_unit_test(test_uuid_is_refused),
		cmocka_unit_test(test_random_uuid_has_its_version),
		cmocka_unit_test(test_times_around_2038_and_1901),
		cmocka_unit_test(test_owners_have_32_bits),
		cmocka_unit_test(test_output_must_be_empty_and_regular),
		cmocka_unit_test(test_size_limits),
		cmocka_unit_test(test_largest_image),
		cmocka_unit_test(test_a_full_image_says_so),
		cmocka_unit_test(test_size_for_is_enough),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
