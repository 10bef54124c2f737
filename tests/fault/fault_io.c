/* base/io under failing calls: the old content or the new one, never a part, nothing left over. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "faults.h"

static const char old_text[] = "old content";
static const char new_text[] = "new content, which is longer";

static char top[64];
static int top_fd = -EBADF;
static int from_fd = -EBADF;
static int to_fd = -EBADF;

static void prepare_empty(void)
{
	snprintf(top, sizeof(top), "/tmp/fault-io-XXXXXX");
	assert_non_null(mkdtemp(top));
	top_fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(top_fd >= 0);
}

static void clean(void)
{
	close_fd(&top_fd);
	close_fd(&from_fd);
	close_fd(&to_fd);
	assert_int_equal(remove_tree_at(AT_FDCWD, top), 0);
}

static void prepare_file(void)
{
	prepare_empty();
	assert_int_equal(write_file_at(top_fd, "file", old_text, strlen(old_text), 0600), 0);
}

static int replace_file(void)
{
	return write_file_at(top_fd, "file", new_text, strlen(new_text), 0600);
}

static void check_replaced(int rc)
{
	_cleanup_free_ char *text = NULL;

	assert_int_equal(read_file_at(top_fd, "file", 100, &text, NULL), 0);
	if (rc == 0) {
		assert_string_equal(text, new_text);
	} else {
		assert_true(strcmp(text, old_text) == 0 || strcmp(text, new_text) == 0);
	}
	assert_int_equal(fault_count_entries(top), 1);
}

static int read_file(void)
{
	_cleanup_free_ char *text = NULL;
	size_t size = 99;
	int rc = read_file_at(top_fd, "file", 100, &text, &size);

	if (rc == 0) {
		assert_string_equal(text, old_text);
		assert_int_equal(size, strlen(old_text));
	} else {
		assert_null(text);
		assert_int_equal(size, 99);
	}
	return rc;
}

static void check_nothing(int rc)
{
	(void)rc;
}

static void prepare_sparse(void)
{
	prepare_empty();
	from_fd = openat(top_fd, "from", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	to_fd = openat(top_fd, "to", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(from_fd >= 0 && to_fd >= 0);
	assert_int_equal(pwrite(from_fd, "begin", 5, 0), 5);
	assert_int_equal(pwrite(from_fd, "middle", 6, 1000000), 6);
	assert_int_equal(ftruncate(from_fd, 3000000), 0);
}

static int copy(void)
{
	return copy_file_sparse(from_fd, to_fd);
}

static void check_copied(int rc)
{
	char bytes[8] = {0};
	struct stat status;

	if (rc < 0) {
		return;
	}
	assert_int_equal(fstat(to_fd, &status), 0);
	assert_int_equal(status.st_size, 3000000);
	assert_int_equal(pread(to_fd, bytes, 5, 0), 5);
	assert_string_equal(bytes, "begin");
	assert_int_equal(pread(to_fd, bytes, 6, 1000000), 6);
	assert_string_equal(bytes, "middle");
}

static void prepare_tree(void)
{
	prepare_file();
	assert_int_equal(mkdirat(top_fd, "tree", 0700), 0);
	assert_int_equal(mkdirat(top_fd, "tree/inner", 0700), 0);
	assert_int_equal(write_file_at(top_fd, "tree/inner/one", "1", 1, 0600), 0);
	assert_int_equal(write_file_at(top_fd, "tree/two", "2", 1, 0600), 0);
	assert_int_equal(symlinkat("../file", top_fd, "tree/link"), 0);
}

static int remove_tree(void)
{
	return remove_tree_at(top_fd, "tree");
}

static void check_removed(int rc)
{
	struct stat status;

	/* A failure is told and can be made good; success means that it is gone. */
	if (rc < 0) {
		assert_int_equal(remove_tree_at(top_fd, "tree"), 0);
	}
	assert_int_equal(fstatat(top_fd, "tree", &status, AT_SYMLINK_NOFOLLOW), -1);
	assert_int_equal(fstatat(top_fd, "file", &status, AT_SYMLINK_NOFOLLOW), 0);
}

static const struct fault_case cases[] = {
	{"write_file_at", prepare_file, replace_file, check_replaced, clean},
	{"read_file_at", prepare_file, read_file, check_nothing, clean},
	{"copy_file_sparse", prepare_sparse, copy, check_copied, clean},
	{"remove_tree_at", prepare_tree, remove_tree, check_removed, clean},
};

static void test_write_file(void **state)
{
	(void)state;
	fault_run(&cases[0]);
}

static void test_read_file(void **state)
{
	(void)state;
	fault_run(&cases[1]);
}

static void test_copy_file(void **state)
{
	(void)state;
	fault_run(&cases[2]);
}

static void test_remove_tree(void **state)
{
	(void)state;
	fault_run(&cases[3]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_write_file),
		cmocka_unit_test(test_read_file),
		cmocka_unit_test(test_copy_file),
		cmocka_unit_test(test_remove_tree),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
