#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/loop.h"
#include "base/process.h"
#include "base/text.h"

/* A new directory for one test, below TMPDIR. */
struct place {
	char path[256];
	int fd;
};

static struct place new_place(void)
{
	const char *parent = getenv("TMPDIR");
	struct place place;

	snprintf(place.path, sizeof(place.path), "%s/test-base-XXXXXX", parent ? parent : "/tmp");
	assert_non_null(mkdtemp(place.path));
	place.fd = open(place.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(place.fd >= 0);
	return place;
}

static void remove_place(struct place *place)
{
	close_fd(&place->fd);
	assert_int_equal(remove_tree_at(AT_FDCWD, place->path), 0);
	assert_int_equal(access(place->path, F_OK), -1);
}

static void make_file(int dir_fd, const char *name, const char *text)
{
	_cleanup_close_ int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write_full(fd, text, strlen(text)), 0);
}

static void test_arithmetic(void **state)
{
	uint8_t byte;
	size_t size;
	int64_t signed_value;

	(void)state;
	assert_false(ADD_OVERFLOWS(200, 55, &byte));
	assert_int_equal(byte, 255);
	assert_true(ADD_OVERFLOWS(200, 56, &byte));
	assert_true(SUB_OVERFLOWS(1, 2, &byte));
	assert_false(SUB_OVERFLOWS(2, 2, &byte));
	assert_int_equal(byte, 0);
	assert_true(MUL_OVERFLOWS(16, 16, &byte));
	assert_false(MUL_OVERFLOWS(SIZE_MAX / 2, (size_t)2, &size));
	assert_true(MUL_OVERFLOWS(SIZE_MAX / 2 + 1, (size_t)2, &size));
	assert_true(ADD_OVERFLOWS(INT64_MAX, 1, &signed_value));
	assert_int_equal(MIN(3, -2), -2);
	assert_int_equal(MAX(3, -2), 3);
}

/* Runs body in a child and says whether it was aborted. */
static bool aborts(bool holds)
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		/* The message belongs to the test, not to its output. */
		close(STDERR_FILENO);
		signal(SIGABRT, SIG_DFL);
		ASSERT(holds);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void test_assert(void **state)
{
	(void)state;
	assert_true(aborts(false));
	assert_false(aborts(true));
}

static void test_cleanup(void **state)
{
	char *pointer = strdup("x");
	char *taken = TAKE_PTR(pointer);
	int pipes[2], copy;

	(void)state;
	assert_null(pointer);
	assert_string_equal(taken, "x");
	free(taken);
	assert_int_equal(pipe(pipes), 0);
	{
		_cleanup_close_ int closed = pipes[0];
		_cleanup_close_ int unset = -EBADF;
		_cleanup_close_ int kept = pipes[1];

		copy = TAKE_FD(kept);
		assert_int_equal(kept, -EBADF);
		(void)closed;
		(void)unset;
		errno = EXDEV;
	}
	assert_int_equal(errno, EXDEV);
	{
		/* What is written with a side effect has it once. */
		int numbers[] = {7, 8, 9};
		size_t next = 0;

		assert_int_equal(TAKE_FD(numbers[next++]), 7);
		assert_int_equal(next, 1);
		assert_int_equal(numbers[0], -EBADF);
		assert_int_equal(numbers[1], 8);
	}
	assert_int_equal(fcntl(pipes[0], F_GETFD), -1);
	assert_true(fcntl(copy, F_GETFD) >= 0);
	close_fd(&copy);
	assert_int_equal(copy, -EBADF);
	close_fd(&copy);
}

static void test_clock(void **state)
{
	uint64_t first = clock_monotonic_ns(), second = clock_monotonic_ns();

	(void)state;
	assert_true(second >= first && first > 0);
	/* After 2020 and before 2100: seconds and nanoseconds are not mixed up. */
	assert_true(clock_realtime_ns() / 1000000000u > 1577836800u);
	assert_true(clock_realtime_ns() / 1000000000u < 4102444800u);
}

static void test_err(void **state)
{
	struct err err = {0};
	char longer[4096];

	(void)state;
	assert_int_equal(err_set(&err, -EPERM, "a-code", "cannot %s", "do"), -EPERM);
	assert_string_equal(err.code, "a-code");
	assert_string_equal(err.text, "cannot do");
	assert_string_equal(err.mend, "");
	err_mend(&err, "try %d", 3);
	assert_string_equal(err.mend, "try 3");
	assert_int_equal(err_context(&err, -EIO, "here %c", 'x'), -EIO);
	assert_string_equal(err.text, "here x: cannot do");
	assert_string_equal(err.code, "a-code");
	assert_string_equal(err.mend, "try 3");
	/* A new failure forgets the mend of the old one. */
	err_set(&err, -EPERM, "other", "x");
	assert_string_equal(err.mend, "");

	err = (struct err){0};
	assert_int_equal(err_context(&err, -ENOENT, "open"), -ENOENT);
	assert_string_equal(err.text, "open: No such file or directory");
	assert_string_equal(err.code, "system");

	memset(longer, 'l', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	err_set(&err, -EIO, longer, "%s", longer);
	err_mend(&err, "%s", longer);
	assert_int_equal(strlen(err.code), sizeof(err.code) - 1);
	assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
	assert_int_equal(strlen(err.mend), sizeof(err.mend) - 1);
	err_context(&err, -EIO, "%s", longer);
	assert_int_equal(strlen(err.text), sizeof(err.text) - 1);

	assert_int_equal(err_set(NULL, -EIO, "c", "x"), -EIO);
	assert_int_equal(err_context(NULL, -EIO, "x"), -EIO);
	err_mend(NULL, "x");
}

static void test_full_io(void **state)
{
	char *big = malloc(300000), *back = malloc(300001);
	int pipes[2];
	pid_t child;
	int status;

	(void)state;
	assert_true(big && back);
	for (size_t i = 0; i < 300000; i++) {
		big[i] = (char)(i * 7 + i / 256);
	}
	assert_int_equal(pipe(pipes), 0);
	/* More than a pipe holds: both sides need several turns. */
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(pipes[0]);
		_exit(write_full(pipes[1], big, 300000) == 0 ? 0 : 1);
	}
	close(pipes[1]);
	assert_int_equal(read_full(pipes[0], back, 100), 100);
	assert_int_equal(read_full(pipes[0], back + 100, 300001 - 100), 300000 - 100);
	assert_memory_equal(big, back, 300000);
	assert_int_equal(read_full(pipes[0], back, 1), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	close(pipes[0]);
	assert_int_equal(read_full(-EBADF, back, 1), -EBADF);
	assert_int_equal(write_full(-EBADF, big, 1), -EBADF);
	assert_int_equal(write_full(-EBADF, big, 0), 0);
	free(big);
	free(back);
}

static void test_flags(void **state)
{
	int pipes[2];
	char byte;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(set_nonblocking(pipes[0], true), 0);
	assert_int_equal(read_full(pipes[0], &byte, 1), -EAGAIN);
	assert_int_equal(set_nonblocking(pipes[0], false), 0);
	assert_int_equal(fcntl(pipes[0], F_GETFL) & O_NONBLOCK, 0);
	assert_int_equal(set_cloexec(pipes[0], true), 0);
	assert_int_equal(fcntl(pipes[0], F_GETFD), FD_CLOEXEC);
	assert_int_equal(set_cloexec(pipes[0], false), 0);
	assert_int_equal(fcntl(pipes[0], F_GETFD), 0);
	assert_int_equal(set_nonblocking(-EBADF, true), -EBADF);
	assert_int_equal(set_cloexec(-EBADF, true), -EBADF);
	close(pipes[0]);
	close(pipes[1]);
}

static void test_read_file(void **state)
{
	struct place place = new_place();
	char text[10001];
	char *data = NULL;
	size_t size = 77;

	(void)state;
	memset(text, 'x', 10000);
	text[10000] = '\0';
	make_file(place.fd, "long", text);
	make_file(place.fd, "page", text + 10000 - 4096);
	make_file(place.fd, "empty", "");
	assert_int_equal(read_file_at(place.fd, "long", 9999, &data, &size), -EFBIG);
	assert_int_equal(read_file_at(place.fd, "none", 9999, &data, &size), -ENOENT);
	assert_int_equal(read_file_at(place.fd, ".", 9999, &data, &size), -EISDIR);
	assert_null(data);
	assert_int_equal(size, 77);
	assert_int_equal(read_file_at(place.fd, "long", 10000, &data, &size), 0);
	assert_int_equal(size, 10000);
	assert_string_equal(data, text);
	free(TAKE_PTR(data));
	assert_int_equal(read_file_at(place.fd, "page", 4096, &data, &size), 0);
	assert_int_equal(size, 4096);
	assert_int_equal(data[4096], '\0');
	free(TAKE_PTR(data));
	assert_int_equal(read_file_at(place.fd, "empty", 0, &data, NULL), 0);
	assert_string_equal(data, "");
	free(TAKE_PTR(data));
	remove_place(&place);
}

static void test_write_file(void **state)
{
	struct place place = new_place();
	_cleanup_close_ int old = -EBADF;
	struct stat status;
	char *data = NULL;
	char name[300];

	(void)state;
	assert_int_equal(write_file_at(place.fd, "a", "one", 3, 0600), 0);
	assert_int_equal(fstatat(place.fd, "a", &status, 0), 0);
	assert_int_equal(status.st_mode & 07777, 0600);
	old = openat(place.fd, "a", O_RDONLY);
	assert_int_equal(write_file_at(place.fd, "a", "two", 3, 0600), 0);
	assert_int_equal(read_file_at(place.fd, "a", 10, &data, NULL), 0);
	assert_string_equal(data, "two");
	free(TAKE_PTR(data));
	/* Who had it open still sees the old one, whole. */
	name[0] = '\0';
	assert_int_equal(read_full(old, name, 10), 3);
	assert_memory_equal(name, "one", 3);
	/* Below a directory, and by an absolute path. */
	assert_int_equal(mkdirat(place.fd, "d", 0700), 0);
	assert_int_equal(write_file_at(place.fd, "d/b", "", 0, 0600), 0);
	snprintf(name, sizeof(name), "%s/d/c", place.path);
	assert_int_equal(write_file_at(AT_FDCWD, name, "x", 1, 0600), 0);
	assert_int_equal(faccessat(place.fd, "d/c", F_OK, 0), 0);
	/* A failure leaves nothing: no temporary name, and what was there stays. */
	assert_int_equal(write_file_at(place.fd, "none/b", "x", 1, 0600), -ENOENT);
	assert_int_equal(write_file_at(place.fd, "d", "x", 1, 0600), -EISDIR);
	assert_int_equal(unlinkat(place.fd, "a", 0), 0);
	assert_int_equal(unlinkat(place.fd, "d/b", 0), 0);
	assert_int_equal(unlinkat(place.fd, "d/c", 0), 0);
	assert_int_equal(unlinkat(place.fd, "d", AT_REMOVEDIR), 0);
	/* Only an empty directory can be removed so. */
	close_fd(&place.fd);
	assert_int_equal(rmdir(place.path), 0);
}

static void test_write_file_link(void **state)
{
	struct place place = new_place();
	char temporary[64];
	char *data = NULL;

	(void)state;
	/* A link at the temporary name is not written through. */
	make_file(place.fd, "victim", "safe");
	snprintf(temporary, sizeof(temporary), "a.tmp.%d", (int)getpid());
	assert_int_equal(symlinkat("victim", place.fd, temporary), 0);
	assert_int_equal(write_file_at(place.fd, "a", "x", 1, 0600), -ELOOP);
	assert_int_equal(read_file_at(place.fd, "victim", 10, &data, NULL), 0);
	assert_string_equal(data, "safe");
	free(data);
	remove_place(&place);
}

static void test_copy_sparse(void **state)
{
	static const char text[] = "somewhere in the middle";
	static const off_t size = (off_t)64 << 20, middle = ((off_t)40 << 20) + 5;
	struct place place = new_place();
	_cleanup_close_ int from = openat(place.fd, "from", O_RDWR | O_CREAT, 0600);
	_cleanup_close_ int to = openat(place.fd, "to", O_RDWR | O_CREAT, 0600);
	_cleanup_close_ int empty = openat(place.fd, "empty", O_RDWR | O_CREAT, 0600);
	struct stat from_status, to_status;
	char back[sizeof(text)];

	(void)state;
	assert_true(from >= 0 && to >= 0 && empty >= 0);
	assert_int_equal(ftruncate(from, size), 0);
	assert_int_equal(pwrite(from, text, sizeof(text), middle), sizeof(text));
	assert_int_equal(pwrite(from, text, sizeof(text), 0), sizeof(text));
	/* The offset of neither is used. */
	assert_int_equal(lseek(from, 1000, SEEK_SET), 1000);
	assert_int_equal(lseek(to, 1000, SEEK_SET), 1000);
	assert_int_equal(copy_file_sparse(from, to), 0);
	assert_int_equal(fstat(from, &from_status), 0);
	assert_int_equal(fstat(to, &to_status), 0);
	assert_true(to_status.st_size == size);
	assert_int_equal(pread(to, back, sizeof(back), middle), sizeof(back));
	assert_string_equal(back, text);
	assert_int_equal(pread(to, back, sizeof(back), 0), sizeof(back));
	assert_string_equal(back, text);
	assert_int_equal(pread(to, back, 1, middle - 1), 1);
	assert_int_equal(back[0], 0);
	/* Where the file system knows holes, they stay: far less than 64 MiB are used. */
	if (from_status.st_blocks * 512 < size / 4) {
		assert_true(to_status.st_blocks * 512 < size / 4);
	}
	/* Nothing but a hole; and nothing at all. */
	assert_int_equal(ftruncate(from, 0), 0);
	assert_int_equal(copy_file_sparse(from, empty), 0);
	assert_int_equal(ftruncate(from, 100000), 0);
	assert_int_equal(copy_file_sparse(from, empty), 0);
	assert_int_equal(fstat(empty, &to_status), 0);
	assert_int_equal(to_status.st_size, 100000);
	assert_int_equal(copy_file_sparse(-EBADF, to), -EBADF);
	remove_place(&place);
}

static void test_copy_dense(void **state)
{
	struct place place = new_place();
	_cleanup_close_ int from = openat(place.fd, "from", O_RDWR | O_CREAT, 0600);
	_cleanup_close_ int to = openat(place.fd, "to", O_RDWR | O_CREAT, 0600);
	size_t size = ((size_t)3 << 20) + 12345;
	_cleanup_free_ char *data = malloc(size), *back = malloc(size);

	(void)state;
	assert_true(data && back);
	/* More than one turn of the copy, and no multiple of a block. */
	for (size_t i = 0; i < size; i++) {
		data[i] = (char)(i ^ (i >> 9));
	}
	assert_int_equal(write_full(from, data, size), 0);
	assert_int_equal(copy_file_sparse(from, to), 0);
	assert_int_equal(read_full(to, back, size), size);
	assert_memory_equal(data, back, size);
	remove_place(&place);
}

static void test_remove_tree(void **state)
{
	struct place place = new_place();
	char target[300];

	(void)state;
	assert_int_equal(mkdirat(place.fd, "outside", 0700), 0);
	make_file(place.fd, "outside/kept", "x");
	assert_int_equal(mkdirat(place.fd, "tree", 0700), 0);
	assert_int_equal(mkdirat(place.fd, "tree/sub", 0700), 0);
	make_file(place.fd, "tree/sub/file", "x");
	assert_int_equal(symlinkat("../../outside", place.fd, "tree/sub/relative"), 0);
	snprintf(target, sizeof(target), "%s/outside", place.path);
	assert_int_equal(symlinkat(target, place.fd, "tree/absolute"), 0);
	assert_int_equal(symlinkat("nowhere", place.fd, "tree/dangling"), 0);
	assert_int_equal(mkfifoat(place.fd, "tree/fifo", 0600), 0);
	assert_int_equal(remove_tree_at(place.fd, "tree"), 0);
	assert_int_equal(faccessat(place.fd, "tree", F_OK, AT_SYMLINK_NOFOLLOW), -1);
	assert_int_equal(faccessat(place.fd, "outside/kept", F_OK, 0), 0);
	/* A link in place of the tree: the link goes, what it points to stays. */
	assert_int_equal(symlinkat("outside", place.fd, "tree"), 0);
	assert_int_equal(remove_tree_at(place.fd, "tree"), 0);
	assert_int_equal(faccessat(place.fd, "tree", F_OK, AT_SYMLINK_NOFOLLOW), -1);
	assert_int_equal(faccessat(place.fd, "outside/kept", F_OK, 0), 0);
	/* What is not there is gone already. */
	assert_int_equal(remove_tree_at(place.fd, "tree"), 0);
	assert_int_equal(remove_tree_at(place.fd, "outside/kept"), 0);
	assert_int_equal(remove_tree_at(place.fd, "outside/kept/x"), 0);
	remove_place(&place);
}

static void test_remove_deep(void **state)
{
	struct place place = new_place();
	_cleanup_close_ int at = dup(place.fd);

	(void)state;
	/* Deeper than the bound: refused, not overrun. Then shortened from above until it goes. */
	for (int i = 0; i < 300; i++) {
		int next;

		assert_int_equal(mkdirat(at, "d", 0700), 0);
		next = openat(at, "d", O_RDONLY | O_DIRECTORY);
		assert_true(next >= 0);
		close(at);
		at = next;
	}
	assert_int_equal(remove_tree_at(place.fd, "d"), -ELOOP);
	close_fd(&at);
	at = openat(place.fd,
		    "d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/"
		    "d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d",
		    O_RDONLY | O_DIRECTORY);
	assert_true(at >= 0);
	assert_int_equal(remove_tree_at(at, "d"), 0);
	remove_place(&place);
}

struct counter {
	unsigned calls;
	unsigned limit;
	uint32_t events;
	int other_fd;
	int peer_fd;
	uint64_t timer;
	struct counter *next;
};

static void count_and_stop(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct counter *counter = data;

	(void)fd;
	counter->events |= events;
	if (++counter->calls >= counter->limit) {
		loop_stop(loop, 7);
	}
}

static void test_loop_watch(void **state)
{
	_cleanup_(loop_freep) struct loop *loop = NULL;
	struct counter counter = {.limit = 3};
	int pipes[2];

	(void)state;
	assert_int_equal(loop_new(&loop), 0);
	/* Nothing to watch: it ends at once. */
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(write(pipes[1], "x", 1), 1);
	assert_int_equal(loop_add(loop, pipes[0], EPOLLIN, count_and_stop, &counter), 0);
	assert_int_equal(loop_add(loop, pipes[0], EPOLLIN, count_and_stop, &counter), -EEXIST);
	assert_int_equal(loop_add(loop, 4000, EPOLLIN, count_and_stop, &counter), -EBADF);
	assert_int_equal(loop_run(loop), 7);
	assert_int_equal(counter.calls, 3);
	assert_int_equal(counter.events, EPOLLIN);
	assert_int_equal(loop_modify(loop, 4000, EPOLLIN), -ENOENT);
	assert_int_equal(loop_modify(loop, -EBADF, EPOLLIN), -ENOENT);
	/* With no events wanted only the end of the other side is told. */
	counter = (struct counter){.limit = 1};
	assert_int_equal(loop_modify(loop, pipes[0], 0), 0);
	assert_int_equal(loop_modify(loop, pipes[0], 0), 0);
	close(pipes[1]);
	assert_int_equal(loop_run(loop), 7);
	assert_int_equal(counter.events, EPOLLHUP);
	loop_remove(loop, pipes[0]);
	loop_remove(loop, pipes[0]);
	loop_remove(loop, -EBADF);
	assert_int_equal(loop_run(loop), 0);
	close(pipes[0]);
}

/* Takes away the other watch, whose event was collected in the same turn already. */
static void remove_other(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct counter *counter = data;

	(void)events;
	counter->calls++;
	loop_remove(loop, counter->other_fd);
	loop_remove(loop, fd);
}

static void test_loop_stale(void **state)
{
	_cleanup_(loop_freep) struct loop *loop = NULL;
	struct counter counters[2] = {0};
	int pipes[2][2];

	(void)state;
	assert_int_equal(loop_new(&loop), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pipe(pipes[i]), 0);
		assert_int_equal(write(pipes[i][1], "x", 1), 1);
		assert_int_equal(loop_add(loop, pipes[i][0], EPOLLIN, remove_other, &counters[i]),
				 0);
	}
	counters[0].other_fd = pipes[1][0];
	counters[1].other_fd = pipes[0][0];
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(counters[0].calls + counters[1].calls, 1);
	for (int i = 0; i < 2; i++) {
		close(pipes[i][0]);
		close(pipes[i][1]);
	}
}

/* Closes the other descriptor and watches a quiet one that gets its number and its slot. */
static void replace_other(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct counter *counter = data;

	(void)events;
	counter->calls++;
	loop_remove(loop, counter->other_fd);
	assert_int_equal(dup2(counter->peer_fd, counter->other_fd), counter->other_fd);
	assert_int_equal(loop_add(loop, counter->other_fd, EPOLLIN, count_and_stop, counter->next),
			 0);
	loop_remove(loop, fd);
}

static void stop_timer(struct loop *loop, void *data)
{
	(void)data;
	loop_stop(loop, 5);
}

static void test_loop_stale_number(void **state)
{
	_cleanup_(loop_freep) struct loop *loop = NULL;
	struct counter quiet = {.limit = 1};
	struct counter counters[2] = {{.next = &quiet}, {.next = &quiet}};
	int pipes[3][2];
	uint64_t timer;

	(void)state;
	assert_int_equal(loop_new(&loop), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(pipe(pipes[i]), 0);
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(write(pipes[i][1], "x", 1), 1);
		counters[i].other_fd = pipes[1 - i][0];
		counters[i].peer_fd = pipes[2][0];
		assert_int_equal(loop_add(loop, pipes[i][0], EPOLLIN, replace_other, &counters[i]),
				 0);
	}
	assert_int_equal(loop_timer_add(loop, 30, stop_timer, NULL, &timer), 0);
	/* The event of the old watch must not reach the new one, which has nothing to read. */
	assert_int_equal(loop_run(loop), 5);
	assert_int_equal(counters[0].calls + counters[1].calls, 1);
	assert_int_equal(quiet.calls, 0);
	for (int i = 0; i < 3; i++) {
		close(pipes[i][0]);
		close(pipes[i][1]);
	}
}

static void test_loop_full(void **state)
{
	_cleanup_(loop_freep) struct loop *loop = NULL;
	struct counter counter = {.limit = 1};
	uint64_t timer = 0;
	int pipes[2];

	(void)state;
	assert_int_equal(loop_new(&loop), 0);
	for (int i = 0; i < LOOP_TIMERS_MAX; i++) {
		assert_int_equal(loop_timer_add(loop, 1000, stop_timer, NULL, &timer), 0);
		assert_true(timer != 0);
	}
	assert_int_equal(loop_timer_add(loop, 1000, stop_timer, NULL, &timer), -ENOSPC);
	loop_timer_cancel(loop, &timer);
	assert_int_equal(timer, 0);
	loop_timer_cancel(loop, &timer);
	assert_int_equal(loop_timer_add(loop, 0, stop_timer, NULL, &timer), 0);
	assert_int_equal(loop_run(loop), 5);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(loop_add(loop, pipes[1], EPOLLOUT, count_and_stop, &counter), 0);
	for (int i = 0; i < 900; i++) {
		int copy = fcntl(pipes[1], F_DUPFD, 20);

		assert_true(copy >= 0);
		assert_int_equal(loop_add(loop, copy, EPOLLOUT, count_and_stop, &counter), 0);
	}
	assert_int_equal(loop_run(loop), 7);
	assert_int_equal(counter.calls, 1);
	for (int fd = 20; fd < 1024; fd++) {
		loop_remove(loop, fd);
		close(fd);
	}
	close(pipes[0]);
	close(pipes[1]);
}

static void note_timer(struct loop *loop, void *data)
{
	struct counter *counter = data;

	(void)loop;
	counter->calls++;
	if (counter->next) {
		loop_timer_cancel(loop, &counter->next->timer);
	}
	if (counter->calls < counter->limit) {
		assert_int_equal(loop_timer_add(loop, 1, note_timer, counter, &counter->timer), 0);
	}
}

static void test_loop_timers(void **state)
{
	_cleanup_(loop_freep) struct loop *loop = NULL;
	struct counter again = {.limit = 4}, cancelled = {.limit = 1};
	struct counter canceller = {.limit = 1, .next = &cancelled};
	uint64_t begin, timer = 0;

	(void)state;
	assert_int_equal(loop_new(&loop), 0);
	assert_int_equal(loop_timer_add(loop, 1, note_timer, &again, &again.timer), 0);
	assert_int_equal(loop_timer_add(loop, 5, note_timer, &canceller, &canceller.timer), 0);
	assert_int_equal(loop_timer_add(loop, 1000, note_timer, &cancelled, &cancelled.timer), 0);
	begin = clock_monotonic_ns();
	/* No descriptor is watched: it ends with the last timer. */
	assert_int_equal(loop_run(loop), 0);
	assert_true(clock_monotonic_ns() - begin >= 5000000u);
	assert_true(clock_monotonic_ns() - begin < 1000000000u);
	assert_int_equal(again.calls, 4);
	assert_int_equal(canceller.calls, 1);
	assert_int_equal(cancelled.calls, 0);
	assert_int_equal(cancelled.timer, 0);
	/* Never too early; a delay beyond all clocks is never, not at once. */
	assert_int_equal(loop_timer_add(loop, UINT64_MAX, note_timer, &cancelled, &timer), 0);
	begin = clock_monotonic_ns();
	assert_int_equal(loop_timer_add(loop, 20, stop_timer, NULL, &timer), 0);
	assert_int_equal(loop_run(loop), 5);
	assert_true(clock_monotonic_ns() - begin >= 20000000u);
	assert_int_equal(cancelled.calls, 0);
}

static void test_text_quote(void **state)
{
	static const struct {
		const char *bytes;
		size_t size;
		const char *quoted;
	} cases[] = {
		{"", 0, ""},
		{"plain name.txt", 14, "plain name.txt"},
		{"a\nb\tc\rd\x1b[2J", 11, "a\\nb\\tc\\rd\\e[2J"},
		{"\\\"'", 3, "\\\\\\\"'"},
		{"a\0b\x7f", 4, "a\\x00b\\x7f"},
		{"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
		{"\xff\xc3(\xe2\x82", 5, "\\xff\\xc3(\\xe2\\x82"},
		{"\xc0\xaf\xed\xa0\x80", 5, "\\xc0\\xaf\\xed\\xa0\\x80"},
		{"\xf4\x90\x80\x80", 4, "\\xf4\\x90\\x80\\x80"},
		/* CSI as one character, a right-to-left override, a line separator, no width. */
		{"\xc2\x9b"
		 "2J",
		 4, "\\xc2\\x9b2J"},
		{"\xe2\x80\xae", 3, "\\xe2\\x80\\xae"},
		{"\xe2\x80\xa8", 3, "\\xe2\\x80\\xa8"},
		{"\xe2\x80\x8b\xef\xbb\xbf", 6, "\\xe2\\x80\\x8b\\xef\\xbb\\xbf"},
	};
	char out[128];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		size_t length = text_quote(cases[i].bytes, cases[i].size, out, sizeof(out));

		assert_string_equal(out, cases[i].quoted);
		assert_int_equal(length, strlen(cases[i].quoted));
		assert_true(length <= cases[i].size * TEXT_QUOTE_GROWTH);
		/* Cut anywhere it holds whole escapes and characters, and reports the same. */
		for (size_t capacity = 1; capacity <= length + 1; capacity++) {
			memset(out, 'Z', sizeof(out));
			assert_int_equal(text_quote(cases[i].bytes, cases[i].size, out, capacity),
					 length);
			assert_true(strlen(out) < capacity);
			assert_memory_equal(out, cases[i].quoted, strlen(out));
			assert_int_equal(out[capacity], 'Z');
		}
	}
	text_quote("a\xe2\x82\xac", 4, out, 4);
	assert_string_equal(out, "a");
	text_quote("a\n", 2, out, 3);
	assert_string_equal(out, "a");
	/* What comes after a cut does not slip in behind it. */
	text_quote("a\nb", 3, out, 3);
	assert_string_equal(out, "a");
}

static void test_text_all_bytes(void **state)
{
	char out[16];

	(void)state;
	for (int first = 0; first < 256; first++) {
		for (int second = 0; second < 256; second++) {
			char bytes[2] = {(char)first, (char)second};

			text_quote(bytes, 2, out, sizeof(out));
			for (const char *at = out; *at; at++) {
				unsigned char byte = (unsigned char)*at;

				assert_true(byte >= 0x20 && byte != 0x7f);
				/* No C1 control and no broken character. */
				assert_true(byte < 0x80 ||
					    text_utf8_decode(at, strlen(at), NULL) == 2 ||
					    text_utf8_decode(at - 1, 2, NULL) == 2);
				assert_false(byte == 0xc2 && (unsigned char)at[1] < 0xa0);
			}
		}
	}
}

static void test_text_utf8(void **state)
{
	uint32_t code_point = 0;

	(void)state;
	assert_int_equal(text_utf8_decode("", 0, &code_point), 0);
	assert_int_equal(text_utf8_decode("\0", 1, &code_point), 1);
	assert_int_equal(code_point, 0);
	assert_int_equal(text_utf8_decode("\x7f", 1, &code_point), 1);
	assert_int_equal(text_utf8_decode("\xc2\x80", 2, &code_point), 2);
	assert_int_equal(code_point, 0x80);
	assert_int_equal(text_utf8_decode("\xe0\xa0\x80", 3, &code_point), 3);
	assert_int_equal(code_point, 0x800);
	assert_int_equal(text_utf8_decode("\xf0\x90\x80\x80", 4, &code_point), 4);
	assert_int_equal(code_point, 0x10000);
	assert_int_equal(text_utf8_decode("\xf4\x8f\xbf\xbf", 4, &code_point), 4);
	assert_int_equal(code_point, 0x10ffff);
	assert_int_equal(text_utf8_decode("\xc1\xbf", 2, NULL), 0);
	assert_int_equal(text_utf8_decode("\xe0\x9f\xbf", 3, NULL), 0);
	assert_int_equal(text_utf8_decode("\xf0\x8f\xbf\xbf", 4, NULL), 0);
	assert_int_equal(text_utf8_decode("\xed\xbf\xbf", 3, NULL), 0);
	assert_int_equal(text_utf8_decode("\xee\x80\x80", 3, NULL), 3);
	assert_int_equal(text_utf8_decode("\xf0\x90\x80", 3, NULL), 0);
	assert_int_equal(text_utf8_decode("\x80", 1, NULL), 0);
	assert_int_equal(text_utf8_decode("\xf8\x88\x80\x80\x80", 5, NULL), 0);
}

static void test_text_nearest(void **state)
{
	static const char *const words[] = {
		"packages", "run",    "env",  "ram_mib", "timeout_seconds",
		"warm",	    "warmup", "base", NULL};
	static const char *const none[] = {NULL};
	static const struct {
		const char *word;
		const char *nearest;
	} cases[] = {
		{"pakages", "packages"},
		{"packagess", "packages"},
		{"pacakges", "packages"},
		{"Packages", "packages"},
		{"run", "run"},
		{"rnu", "run"},
		{"rum", "run"},
		{"warn", "warm"},
		{"warmups", "warmup"},
		{"ram", "ram_mib"},
		{"timeout", "timeout_seconds"},
		{"bas", "base"},
		{"x", NULL},
		{"xyz", NULL},
		{"", NULL},
		{"zzzzzzzz", NULL},
		{"r", NULL},
	};
	char longer[200];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *nearest = text_nearest(cases[i].word, words);

		if (!cases[i].nearest) {
			assert_null(nearest);
			continue;
		}
		assert_non_null(nearest);
		assert_string_equal(nearest, cases[i].nearest);
	}
	assert_null(text_nearest("run", none));
	memset(longer, 'a', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	assert_null(text_nearest(longer, words));
	/* The longest that is compared, against itself with one letter wrong. */
	{
		char word[65], other[65];
		const char *const candidates[] = {longer, other, NULL};

		memset(word, 'a', 64);
		memset(other, 'a', 64);
		word[64] = other[64] = '\0';
		other[63] = 'b';
		assert_ptr_equal(text_nearest(word, candidates), other);
	}
}

static void test_text_bytes(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {
		{0, "0 B"},
		{1023, "1023 B"},
		{1024, "1.0 KiB"},
		{1536, "1.5 KiB"},
		{12897485, "12.3 MiB"},
		{1048575, "1.0 MiB"},
		{(UINT64_C(1) << 30) - 1, "1.0 GiB"},
		{1048576 - 103, "1023.9 KiB"},
		{UINT64_C(8) << 30, "8.0 GiB"},
		{UINT64_C(16) << 40, "16.0 TiB"},
		{UINT64_MAX, "16.0 EiB"},
	};
	char out[TEXT_BYTES_MAX];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		text_format_bytes(cases[i].bytes, out, sizeof(out));
		assert_string_equal(out, cases[i].text);
	}
	text_format_bytes(UINT64_C(1000) << 20, out, 5);
	assert_string_equal(out, "1000");
}

static void test_process_state(void **state)
{
	pid_t child = fork();
	int status;

	(void)state;
	assert_true(child >= 0);
	if (child == 0) {
		for (;;) {
			pause();
		}
	}
	assert_false(process_has_thread_in(child, 'T'));
	kill(child, SIGSTOP);
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	assert_true(process_has_thread_in(child, 'T'));
	assert_false(process_has_thread_in(child, 'D'));
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_false(process_has_thread_in(child, 'T'));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_arithmetic),
		cmocka_unit_test(test_assert),
		cmocka_unit_test(test_cleanup),
		cmocka_unit_test(test_clock),
		cmocka_unit_test(test_err),
		cmocka_unit_test(test_full_io),
		cmocka_unit_test(test_flags),
		cmocka_unit_test(test_read_file),
		cmocka_unit_test(test_write_file),
		cmocka_unit_test(test_write_file_link),
		cmocka_unit_test(test_copy_sparse),
		cmocka_unit_test(test_copy_dense),
		cmocka_unit_test(test_remove_tree),
		cmocka_unit_test(test_remove_deep),
		cmocka_unit_test(test_loop_watch),
		cmocka_unit_test(test_loop_stale),
		cmocka_unit_test(test_loop_stale_number),
		cmocka_unit_test(test_loop_full),
		cmocka_unit_test(test_loop_timers),
		cmocka_unit_test(test_text_quote),
		cmocka_unit_test(test_text_all_bytes),
		cmocka_unit_test(test_text_utf8),
		cmocka_unit_test(test_text_nearest),
		cmocka_unit_test(test_text_bytes),
		cmocka_unit_test(test_process_state),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
