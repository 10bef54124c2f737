/*
 * src/image under failing calls: an image comes out complete, to the last byte the one that comes
 * out when nothing fails, or with an error.
 *
 * libext2fs writes its tables itself: pwrite64 is defined here, in front of the C library's, so
 * that those calls fail as well. time is, so that two images are the same.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "archive/archive.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "faults.h"
#include "image/image.h"

#define IN_FRONT __attribute__((visibility("default")))

static struct image_options options = {
	.size_bytes = IMAGE_SIZE_MIN,
	.label = "fault",
	.uuid = {1, 2, 3, 4},
};
static int in_fd = -EBADF;
static int out_fd = -EBADF;
static int progress_fd = -EBADF;
static struct image_result result;
static struct err err;
/* The image that comes out when nothing fails. */
static char *whole;

#undef pwrite64
IN_FRONT ssize_t pwrite64(int fd, const void *data, size_t size, __off64_t offset)
{
	return fault_now(true) ? -1 : syscall(SYS_pwrite64, fd, data, size, offset);
}

IN_FRONT time_t time(time_t *out)
{
	const time_t now = 1700000000;

	if (out) {
		*out = now;
	}
	return now;
}

/* Names that fill a directory with an index, a file in pieces, a link that needs a block. */
static void make_archive(void)
{
	char top[] = "/tmp/fault-image-XXXXXX", name[64], text[5000];
	_cleanup_close_ int top_fd = -EBADF;

	assert_non_null(mkdtemp(top));
	top_fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(top_fd >= 0);
	memset(text, 'a', sizeof(text));
	assert_int_equal(write_file_at(top_fd, "file", text, sizeof(text), 0644), 0);
	text[200] = '\0';
	assert_int_equal(symlinkat(text, top_fd, "link"), 0);
	assert_int_equal(linkat(top_fd, "file", top_fd, "second", 0), 0);
	assert_int_equal(mkdirat(top_fd, "names", 0755), 0);
	for (int i = 0; i < 120; i++) {
		snprintf(name, sizeof(name), "names/a name of some length, number %d", i);
		assert_int_equal(symlinkat("x", top_fd, name), 0);
	}
	in_fd = memfd_create("archive", MFD_CLOEXEC);
	assert_true(in_fd >= 0);
	assert_int_equal(archive_write_tree(top_fd, in_fd, NULL), 0);
	assert_int_equal(remove_tree_at(AT_FDCWD, top), 0);
}

static void prepare(void)
{
	memset(&err, 0, sizeof(err));
	result = (struct image_result){0};
	assert_int_equal(lseek(in_fd, 0, SEEK_SET), 0);
	out_fd = memfd_create("image", MFD_CLOEXEC);
	progress_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	assert_true(out_fd >= 0 && progress_fd >= 0);
	options.progress_fd = progress_fd;
}

static void clean(void)
{
	close_fd(&out_fd);
	close_fd(&progress_fd);
}

static int make_from_tar(void)
{
	return image_make_from_tar(in_fd, out_fd, &options, &result, &err);
}

static int make_empty(void)
{
	return image_make_empty(out_fd, &options, &err);
}

static char *map(void)
{
	char *bytes = mmap(NULL, IMAGE_SIZE_MIN, PROT_READ, MAP_PRIVATE, out_fd, 0);

	assert_true(bytes != MAP_FAILED);
	return bytes;
}

static void check(int rc)
{
	char *bytes;

	if (rc < 0) {
		assert_true(err.code[0] != '\0');
		assert_true(err.text[0] != '\0');
		/* That the image is too small is for a full image alone. */
		assert_string_not_equal(err.code, "image-too-small");
		return;
	}
	bytes = map();
	assert_memory_equal(bytes, whole, IMAGE_SIZE_MIN);
	munmap(bytes, IMAGE_SIZE_MIN);
}

static void run_case(const struct fault_case *fault_case)
{
	prepare();
	assert_int_equal(fault_case->run(), 0);
	whole = map();
	clean();
	fault_run(fault_case);
	munmap(whole, IMAGE_SIZE_MIN);
}

static void test_from_tar(void **state)
{
	static const struct fault_case fault_case = {"image_make_from_tar", prepare, make_from_tar,
						     check, clean};

	(void)state;
	run_case(&fault_case);
	assert_int_equal(result.entries, 125);
}

static void test_empty(void **state)
{
	static const struct fault_case fault_case = {"image_make_empty", prepare, make_empty, check,
						     clean};

	(void)state;
	run_case(&fault_case);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_from_tar),
		cmocka_unit_test(test_empty),
	};

	make_archive();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
