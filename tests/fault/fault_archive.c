/*
 * src/archive under failing calls: an archive goes out whole or with an error, and what is read
 * with success is everything that was in it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "archive/archive.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "faults.h"

/* More than one of the reader's pieces of 256 KiB, so that a later read can fail as well. */
#define LARGE_BYTES (600 << 10)
/* Longer than what the tree below is as text. */
#define LISTING_MAX 2048

static char top[64];
static int top_fd = -EBADF;
static int out_fd = -EBADF;
static struct err err;
/* What is read from a whole archive of the tree, and that archive. */
static char whole_listing[LISTING_MAX];
static char *whole_archive;
static size_t whole_size;
static char listing[LISTING_MAX];

static void make_file(const char *name, const char *text)
{
	assert_int_equal(write_file_at(top_fd, name, text, strlen(text), 0640), 0);
}

static void make_tree(void)
{
	_cleanup_free_ char *large = malloc(LARGE_BYTES);
	_cleanup_close_ int sparse = -EBADF;

	snprintf(top, sizeof(top), "/tmp/fault-archive-XXXXXX");
	assert_non_null(mkdtemp(top));
	top_fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(top_fd >= 0 && large);
	memset(large, 'x', LARGE_BYTES);
	assert_int_equal(write_file_at(top_fd, "large", large, LARGE_BYTES, 0600), 0);
	assert_int_equal(mkdirat(top_fd, "inner", 0700), 0);
	make_file("inner/one", "1");
	assert_int_equal(linkat(top_fd, "inner/one", top_fd, "inner/two", 0), 0);
	assert_int_equal(symlinkat("one", top_fd, "inner/link"), 0);
	sparse = openat(top_fd, "sparse", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(pwrite(sparse, "end", 3, 1 << 20), 3);
}

static void prepare(void)
{
	memset(&err, 0, sizeof(err));
	listing[0] = '\0';
	out_fd = memfd_create("archive", MFD_CLOEXEC);
	assert_true(out_fd >= 0);
}

/* The same with the whole archive in it. */
static void prepare_input(void)
{
	prepare();
	assert_int_equal(write_full(out_fd, whole_archive, whole_size), 0);
	assert_int_equal(lseek(out_fd, 0, SEEK_SET), 0);
}

static void clean(void)
{
	close_fd(&out_fd);
}

/* A line for each item, with a sum of its data. */
static int list_item(struct archive_reader *reader, const struct archive_item *item)
{
	size_t length = strlen(listing), size;
	uint64_t offset, sum = 0;
	const void *data;
	int rc;

	while ((rc = archive_data(reader, &data, &size, &offset, &err)) > 0) {
		for (size_t i = 0; i < size; i++) {
			sum += (offset + i + 1) * ((const unsigned char *)data)[i];
		}
	}
	snprintf(listing + length, sizeof(listing) - length, "%d %s %o %llu %s %llx\n", item->type,
		 item->path, item->mode, (unsigned long long)item->size,
		 item->link ? item->link : "", (unsigned long long)sum);
	return rc;
}

static int list(int fd)
{
	static const struct archive_options options = {.keep_setuid = true};
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	const struct archive_item *item;
	int rc = archive_open_fd(fd, &options, &reader, &err);

	if (rc < 0) {
		assert_null(reader);
		return rc;
	}
	while ((rc = archive_next(reader, &item, &err)) > 0) {
		rc = list_item(reader, item);
		if (rc < 0) {
			return rc;
		}
	}
	return rc;
}

static int read_archive(void)
{
	return list(out_fd);
}

static void check_told(int rc)
{
	if (rc < 0) {
		assert_true(err.code[0] != '\0');
		assert_true(err.text[0] != '\0');
	}
}

static void check_read(int rc)
{
	check_told(rc);
	if (rc == 0) {
		assert_string_equal(listing, whole_listing);
	}
}

static int write_tree(void)
{
	return archive_write_tree(top_fd, out_fd, &err);
}

static void check_written(int rc)
{
	check_told(rc);
	assert_int_equal(lseek(out_fd, 0, SEEK_SET), 0);
	if (rc == 0) {
		assert_int_equal(list(out_fd), 0);
		assert_string_equal(listing, whole_listing);
	} else {
		/* What went out before is not taken for an archive. */
		assert_true(list(out_fd) < 0);
	}
}

static void test_write(void **state)
{
	static const struct fault_case fault_case = {"archive_write_tree", prepare, write_tree,
						     check_written, clean};

	(void)state;
	fault_run(&fault_case);
}

static void test_read(void **state)
{
	static const struct fault_case fault_case = {"archive_next", prepare_input, read_archive,
						     check_read, clean};

	(void)state;
	fault_run(&fault_case);
}

static int set_up(void **state)
{
	struct stat status;

	(void)state;
	make_tree();
	prepare();
	assert_int_equal(write_tree(), 0);
	assert_int_equal(fstat(out_fd, &status), 0);
	whole_size = (size_t)status.st_size;
	assert_int_equal(lseek(out_fd, 0, SEEK_SET), 0);
	assert_int_equal(list(out_fd), 0);
	memcpy(whole_listing, listing, sizeof(listing));
	assert_non_null(strstr(whole_listing, " sparse "));
	whole_archive = malloc(whole_size);
	assert_non_null(whole_archive);
	assert_int_equal(pread(out_fd, whole_archive, whole_size, 0), whole_size);
	clean();
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	free(whole_archive);
	close_fd(&top_fd);
	assert_int_equal(remove_tree_at(AT_FDCWD, top), 0);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_write),
		cmocka_unit_test(test_read),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
