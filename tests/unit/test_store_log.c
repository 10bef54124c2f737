/* src/store/log.c, and the lock and directory of a machine that stays. */
#include "store/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "store_home.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

static mode_t mode_of(const char *path)
{
	struct stat status;

	assert_int_equal(fstatat(store.home_fd, path, &status, AT_SYMLINK_NOFOLLOW), 0);
	return status.st_mode & 07777;
}

static bool is_there(const char *path)
{
	return faccessat(store.home_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void assert_content(const char *path, const char *wanted)
{
	_cleanup_free_ char *text = NULL;
	size_t size;

	assert_int_equal(read_file_at(store.home_fd, path, 1 << 20, &text, &size), 0);
	assert_string_equal(text, wanted);
}

static int append(const char *line)
{
	return store_log_append(&store, "a", line, strlen(line));
}

static void test_lines(void **state)
{
	static char large[LOG_LINE_MAX + 1];
	_cleanup_close_ int fd = -EBADF;
	char text[32] = "";

	(void)state;
	assert_int_equal(store_log_open(&store, "a", false), -ENOENT);
	assert_int_equal(store_log_open(&store, "a", true), -ENOENT);
	assert_int_equal(append("{\"a\":1}"), 0);
	assert_int_equal(append("{}"), 0);
	assert_content("log/a.jsonl", "{\"a\":1}\n{}\n");
	assert_int_equal(mode_of("log/a.jsonl"), 0600);
	fd = store_log_open(&store, "a", false);
	assert_true(fd >= 0);
	assert_int_equal(read(fd, text, sizeof(text)), 11);
	assert_int_equal(write(fd, text, 1), -1);
	assert_int_equal(append("{\n}"), -EINVAL);
	memset(large, 'x', sizeof(large));
	assert_int_equal(store_log_append(&store, "a", large, sizeof(large)), -EINVAL);
	assert_int_equal(store_log_append(&store, "b", large, LOG_LINE_MAX), 0);
}

static void test_a_torn_line_stays_alone(void **state)
{
	(void)state;
	assert_int_equal(write_file_at(store.home_fd, "log/a.jsonl", "{}\n{\"tor", 8, 0600), 0);
	assert_int_equal(append("{\"b\":2}"), 0);
	assert_content("log/a.jsonl", "{}\n{\"tor\n{\"b\":2}\n");
}

static void test_links_and_pipes_are_refused(void **state)
{
	(void)state;
	assert_int_equal(write_file_at(store.home_fd, "other", "", 0, 0600), 0);
	assert_int_equal(symlinkat("../other", store.home_fd, "log/a.jsonl"), 0);
	assert_int_equal(append("{}"), -ELOOP);
	assert_int_equal(store_log_open(&store, "a", false), -ELOOP);
	assert_content("other", "");
	assert_int_equal(mkfifoat(store.home_fd, "log/p.jsonl", 0600), 0);
	assert_int_equal(store_log_append(&store, "p", "{}", 2), -EINVAL);
	assert_int_equal(store_log_open(&store, "p", false), -EINVAL);
	assert_int_equal(symlinkat("..", store.home_fd, "log/a"), 0);
	assert_int_equal(store_log_create_output(&store, "a", "abcdef", 1), -ENOTDIR);
	assert_false(is_there("abcdef.out"));
}

static void fill_log(off_t size)
{
	_cleanup_close_ int fd =
		openat(store.home_fd, "log/a.jsonl", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, size), 0);
	assert_int_equal(pwrite(fd, "\n", 1, size - 1), 1);
}

static void test_a_full_log_is_put_aside(void **state)
{
	_cleanup_close_ int held = -EBADF;

	(void)state;
	fill_log((off_t)LOG_SIZE_MAX);
	assert_int_equal(append("{}"), 0);
	assert_false(is_there("log/a.jsonl.1"));
	/* Somebody writes to it just now: it waits for the next line. */
	held = openat(store.home_fd, "log/a.jsonl", O_RDONLY | O_CLOEXEC);
	assert_int_equal(flock(held, LOCK_SH), 0);
	assert_int_equal(append("{}"), 0);
	assert_false(is_there("log/a.jsonl.1"));
	close_fd(&held);
	assert_int_equal(append("{\"new\":1}"), 0);
	assert_content("log/a.jsonl", "{\"new\":1}\n");
	assert_true(is_there("log/a.jsonl.1"));
	/* The one before goes. */
	fill_log((off_t)LOG_SIZE_MAX + 1);
	assert_int_equal(append("{\"newer\":1}"), 0);
	assert_content("log/a.jsonl", "{\"newer\":1}\n");
}

/* Writes numbered lines of some length until the log was put aside once or twice. */
static void write_many(unsigned writer, unsigned count)
{
	char line[4096];

	for (unsigned i = 0; i < count; i++) {
		int length = snprintf(line, sizeof(line), "{\"w\":%u,\"n\":%u,\"x\":\"", writer, i);

		memset(line + length, 'x', sizeof(line) - 3 - (size_t)length);
		memcpy(line + sizeof(line) - 3, "\"}", 3);
		if (store_log_append(&store, "a", line, sizeof(line) - 1) < 0) {
			_exit(1);
		}
	}
}

/* Notes each line's writer and number; returns how many lines there are. */
static unsigned read_many(const char *path, char seen[2][900])
{
	_cleanup_free_ char *text = NULL;
	unsigned lines = 0;
	size_t size;

	assert_int_equal(read_file_at(store.home_fd, path, 32 << 20, &text, &size), 0);
	assert_int_equal(size % 4096, 0);
	for (size_t at = 0; at < size; at += 4096) {
		unsigned writer, number;

		assert_int_equal(sscanf(text + at, "{\"w\":%u,\"n\":%u,", &writer, &number), 2);
		assert_memory_equal(text + at + 4093, "\"}\n", 3);
		assert_true(writer < 2 && number < 900);
		assert_int_equal(seen[writer][number], 0);
		seen[writer][number] = 1;
		lines++;
	}
	return lines;
}

/* 1,800 lines of 4 KiB are over 4 MiB once, not twice: every one must be in one of the files. */
static void test_two_writers_lose_nothing(void **state)
{
	static char seen[2][900];
	pid_t children[2];
	unsigned older, newer;

	(void)state;
	memset(seen, 0, sizeof(seen));
	for (unsigned i = 0; i < 2; i++) {
		children[i] = fork();
		assert_true(children[i] >= 0);
		if (children[i] == 0) {
			write_many(i, 900);
			_exit(0);
		}
	}
	for (unsigned i = 0; i < 2; i++) {
		int status;

		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_int_equal(status, 0);
	}
	older = read_many("log/a.jsonl.1", seen);
	newer = read_many("log/a.jsonl", seen);
	assert_int_equal(older + newer, 1800);
	assert_true((uint64_t)older * 4096 > LOG_SIZE_MAX);
}

static void test_outputs(void **state)
{
	static const char *const bad[] = {
		"",    "../a", "a/b",	   "A",
		"a.b", "-",    "\xc3\xa4", "a2345678901234567890123456789012x"};
	_cleanup_close_ int fd = -EBADF;
	_cleanup_close_ int again = -EBADF;
	char text[8] = "";

	(void)state;
	assert_int_equal(store_log_open_output(&store, "a", "abc123", 1), -ENOENT);
	fd = store_log_create_output(&store, "a", "abc123", 1);
	assert_true(fd >= 0);
	assert_int_equal(mode_of("log/a"), 0700);
	assert_int_equal(mode_of("log/a/abc123.out"), 0600);
	assert_int_equal(pwrite(fd, "one", 3, 0), 3);
	assert_int_equal(store_log_open_output(&store, "a", "abc123", 2), -ENOENT);
	again = store_log_open_output(&store, "a", "abc123", 1);
	assert_int_equal(read(again, text, sizeof(text)), 3);
	assert_int_equal(write(again, text, 1), -1);
	close_fd(&fd);
	/* The same ID once more: a new file, and who reads the old one keeps it. */
	fd = store_log_create_output(&store, "a", "abc123", 1);
	assert_int_equal(pwrite(fd, "2", 1, 0), 1);
	assert_content("log/a/abc123.out", "2");
	assert_int_equal(pread(again, text, sizeof(text), 0), 3);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(store_log_create_output(&store, "a", bad[i], 1), -EINVAL);
		assert_int_equal(store_log_open_output(&store, "a", bad[i], 1), -EINVAL);
	}
	assert_int_equal(store_log_create_output(&store, "a", "abc", 0), -EINVAL);
	assert_int_equal(store_log_create_output(&store, "a", "abc", 3), -EINVAL);
}

/* Makes outputs o0000 and so on; the age of each is its number, the last ones are the oldest. */
static void make_outputs(unsigned count)
{
	assert_int_equal(mkdirat(store.home_fd, "log/a", 0700), 0);
	for (unsigned i = 0; i < count; i++) {
		struct timespec times[2] = {{.tv_sec = 1000000 - i}, {.tv_sec = 1000000 - i}};
		char path[64];

		snprintf(path, sizeof(path), "log/a/o%04u.out", i);
		close(openat(store.home_fd, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
		assert_int_equal(utimensat(store.home_fd, path, times, 0), 0);
	}
}

static void test_the_oldest_outputs_go(void **state)
{
	char path[64];

	(void)state;
	make_outputs(LOG_OUTPUTS_MAX - 1);
	close(store_log_create_output(&store, "a", "new1", 2));
	for (unsigned i = 0; i < LOG_OUTPUTS_MAX - 1; i++) {
		snprintf(path, sizeof(path), "log/a/o%04u.out", i);
		assert_true(is_there(path));
	}
	/* Now there are as many as may be. */
	close(store_log_create_output(&store, "a", "new2", 1));
	for (unsigned i = 0; i < LOG_OUTPUTS_MAX - 1; i++) {
		snprintf(path, sizeof(path), "log/a/o%04u.out", i);
		assert_int_equal(is_there(path), i < LOG_OUTPUTS_MAX - 1 - LOG_OUTPUTS_MAX / 8);
	}
	assert_true(is_there("log/a/new1.err"));
	assert_true(is_there("log/a/new2.out"));
}

static void create(const char *name)
{
	assert_int_equal(store_create(&store, name, "cpus: 2\n", 8, &err), 0);
}

static void test_up_has_one_holder(void **state)
{
	_cleanup_close_ int sandbox_fd = -EBADF;
	_cleanup_close_ int up = -EBADF;
	struct stat status;

	(void)state;
	create("a");
	sandbox_fd = store_open_sandbox(&store, "a", &err);
	up = store_lock_up(sandbox_fd, &err);
	assert_true(up >= 0);
	assert_int_equal(store_lock_up(sandbox_fd, &err), -EAGAIN);
	assert_string_equal(err.code, "already-up");
	assert_string_equal(err.text, "a is up already");
	assert_string_equal(err.mend, "`box down a` stops it, `box exec a` runs something in it");
	assert_int_equal(store_destroy(&store, "a", true, NULL, &err), -EBUSY);
	assert_string_equal(err.code, "busy");
	assert_string_equal(err.mend, "`box down a` stops it");
	assert_int_equal(fstat(up, &status), 0);
	assert_int_equal(status.st_mode & 0777, 0600);
	close_fd(&up);
	up = store_lock_up(sandbox_fd, &err);
	assert_true(up >= 0);
	close_fd(&up);
	assert_int_equal(store_destroy(&store, "a", true, NULL, &err), 0);
	assert_int_equal(store_lock_up(sandbox_fd, &err), -ENOENT);
	assert_string_equal(err.code, "no-sandbox");
}

static void test_run_directory(void **state)
{
	_cleanup_close_ int fd = -EBADF;
	struct stat status;

	(void)state;
	assert_int_equal(store_open_run(&store, "a", false, &err), -ENOENT);
	assert_true(err.text[0] != '\0');
	fd = store_open_run(&store, "a", true, &err);
	assert_true(fd >= 0);
	assert_int_equal(mode_of("run/a"), 0700);
	close_fd(&fd);
	fd = store_open_run(&store, "a", false, &err);
	assert_int_equal(fstat(fd, &status), 0);
	assert_true(S_ISDIR(status.st_mode));
	assert_int_equal(symlinkat("..", store.home_fd, "run/b"), 0);
	assert_int_equal(store_open_run(&store, "b", true, &err), -ENOTDIR);
}

static void test_destroy_leaves_the_log(void **state)
{
	_cleanup_close_ int run = -EBADF;

	(void)state;
	create("a");
	assert_int_equal(append("{}"), 0);
	close(store_log_create_output(&store, "a", "abc", 1));
	run = store_open_run(&store, "a", true, &err);
	close(openat(run, "slot-0", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	assert_int_equal(store_destroy(&store, "a", true, NULL, &err), 0);
	assert_false(is_there("run/a"));
	assert_false(is_there("sandboxes/a"));
	assert_content("log/a.jsonl", "{}\n");
	assert_true(is_there("log/a/abc.out"));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, home_set_up, home_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_lines),
		TEST(test_a_torn_line_stays_alone),
		TEST(test_links_and_pipes_are_refused),
		TEST(test_a_full_log_is_put_aside),
		TEST(test_two_writers_lose_nothing),
		TEST(test_outputs),
		TEST(test_the_oldest_outputs_go),
		TEST(test_up_has_one_holder),
		TEST(test_run_directory),
		TEST(test_destroy_leaves_the_log),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
