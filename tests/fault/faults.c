#include "faults.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/check.h"

/* More calls than any operation here makes: then something runs in a circle. */
#define CALLS_MAX 2000
/* The tests open far fewer descriptors. */
#define FD_LIMIT 256

/* How a process that was killed at a call ends. */
#define DIED 99

enum call_kind {
	/* Fails with the error asked for. */
	CALL_ANY,
	/* The same, and needs room on the disk. */
	CALL_ROOM,
	/* Fails with ENOMEM. */
	CALL_MEMORY,
};

static struct {
	bool armed;
	enum fault_mode mode;
	int error;
	/* The call that fails, from 1. */
	int target;
	int count;
	bool hit;
} fault;

/* Whether this call is to fail; errno is then set. */
static bool fails(enum call_kind kind)
{
	if (!fault.armed || (fault.mode == FAULT_NO_ROOM && kind != CALL_ROOM)) {
		return false;
	}
	fault.count++;
	if (fault.count != fault.target &&
	    (fault.mode == FAULT_ONCE || fault.count < fault.target)) {
		return false;
	}
	fault.hit = true;
	if (fault.mode == FAULT_DEATH) {
		_exit(DIED);
	}
	errno = kind == CALL_MEMORY ? ENOMEM : fault.error;
	return true;
}

bool fault_now(bool room)
{
	return fails(room ? CALL_ROOM : CALL_ANY);
}

static enum call_kind open_kind(int flags)
{
	return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? CALL_ROOM : CALL_ANY;
}

/* On x86-64 a function with a variable argument may be called as one with a fixed argument. */
#define WRAP(type, name, parameters, arguments, kind, failure)                                     \
	type __real_##name parameters;                                                             \
	type __wrap_##name parameters;                                                             \
	type __wrap_##name parameters                                                              \
	{                                                                                          \
		return fails(kind) ? (failure) : __real_##name arguments;                          \
	}

WRAP(int, open64, (const char *path, int flags, mode_t mode), (path, flags, mode), open_kind(flags),
     -1)
WRAP(int, openat64, (int fd, const char *path, int flags, mode_t mode), (fd, path, flags, mode),
     open_kind(flags), -1)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), CALL_ROOM, -1)
WRAP(int, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode), CALL_ROOM, -1)
WRAP(int, fstat64, (int fd, struct stat *status), (fd, status), CALL_ANY, -1)
WRAP(int, fstatat64, (int fd, const char *path, struct stat *status, int flags),
     (fd, path, status, flags), CALL_ANY, -1)
/* Waiting for a disk would show nothing here and takes most of the time. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	return fails(CALL_ROOM) ? -1 : fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

WRAP(int, ftruncate64, (int fd, off_t size), (fd, size), CALL_ROOM, -1)
WRAP(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size), CALL_ANY, -1)
WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), CALL_ROOM, -1)
WRAP(ssize_t, pread64, (int fd, void *data, size_t size, off_t offset), (fd, data, size, offset),
     CALL_ANY, -1)
WRAP(ssize_t, __pread64_chk, (int fd, void *data, size_t size, off_t offset, size_t room),
     (fd, data, size, offset, room), CALL_ANY, -1)
WRAP(ssize_t, pwrite64, (int fd, const void *data, size_t size, off_t offset),
     (fd, data, size, offset), CALL_ROOM, -1)
WRAP(off_t, lseek64, (int fd, off_t offset, int whence), (fd, offset, whence), CALL_ANY, -1)
WRAP(int, linkat, (int from_fd, const char *from, int to_fd, const char *to, int flags),
     (from_fd, from, to_fd, to, flags), CALL_ROOM, -1)
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
	return fails(CALL_ROOM) ? -1 : fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}
WRAP(int, renameat, (int from_fd, const char *from, int to_fd, const char *to),
     (from_fd, from, to_fd, to), CALL_ANY, -1)
WRAP(int, renameat2, (int from_fd, const char *from, int to_fd, const char *to, unsigned flags),
     (from_fd, from, to_fd, to, flags), CALL_ANY, -1)
WRAP(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), CALL_ANY, -1)
WRAP(int, flock, (int fd, int operation), (fd, operation), CALL_ANY, -1)
WRAP(DIR *, fdopendir, (int fd), (fd), CALL_MEMORY, NULL)
WRAP(struct dirent *, readdir64, (DIR * directory), (directory), CALL_ANY, NULL)
WRAP(ssize_t, readlinkat, (int fd, const char *path, char *out, size_t size), (fd, path, out, size),
     CALL_ANY, -1)
WRAP(ssize_t, __readlinkat_chk, (int fd, const char *path, char *out, size_t size, size_t room),
     (fd, path, out, size, room), CALL_ANY, -1)
WRAP(ssize_t, flistxattr, (int fd, char *out, size_t size), (fd, out, size), CALL_ANY, -1)
WRAP(ssize_t, getrandom, (void *out, size_t size, unsigned flags), (out, size, flags), CALL_ANY, -1)
WRAP(int, dup, (int fd), (fd), CALL_ANY, -1)
WRAP(char *, getcwd, (char *out, size_t size), (out, size), CALL_ANY, NULL)
WRAP(void *, malloc, (size_t size), (size), CALL_MEMORY, NULL)
WRAP(void *, calloc, (size_t count, size_t size), (count, size), CALL_MEMORY, NULL)
WRAP(void *, realloc, (void *old, size_t size), (old, size), CALL_MEMORY, NULL)
WRAP(void *, reallocarray, (void *old, size_t count, size_t size), (old, count, size), CALL_MEMORY,
     NULL)
WRAP(char *, strdup, (const char *text), (text), CALL_MEMORY, NULL)

int fault_count_entries(const char *path)
{
	DIR *directory = opendir(path);
	int count = -2;

	assert_non_null(directory);
	/* The place is looked at while no call fails. */
	while (readdir(directory)) {
		count++;
	}
	closedir(directory);
	return count;
}

static int count_fds(void)
{
	int count = 0;

	for (int fd = 0; fd < FD_LIMIT; fd++) {
		count += fcntl(fd, F_GETFD) >= 0;
	}
	return count;
}

/* One run; false when it got through without a failure. */
static bool run_once(const struct fault_case *fault_case, int target)
{
	int before, rc;

	fault_case->prepare();
	before = count_fds();
	fault.target = target;
	fault.count = 0;
	fault.hit = false;
	fault.armed = true;
	rc = fault_case->run();
	fault.armed = false;
	if (count_fds() != before) {
		fail_msg("%s: call %d, %s: a descriptor leaked", fault_case->name, target,
			 strerror(fault.error));
	}
	if (rc < 0 && !fault.hit) {
		fail_msg("%s fails by itself: %s", fault_case->name, strerror(-rc));
	}
	fault_case->check(rc);
	fault_case->clean();
	return fault.hit;
}

/* The same with a kill: the operation has a process of its own. False when it was not killed. */
static bool run_to_death(const struct fault_case *fault_case, int target)
{
	int status = 0;
	pid_t child;

	fault_case->prepare();
	child = fork();
	if (child == 0) {
		fault.target = target;
		fault.count = 0;
		fault.armed = true;
		_exit(fault_case->run() < 0 ? 1 : 0);
	}
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == DIED || status == 0));
	fault_case->check(status == 0 ? 0 : FAULT_DIED);
	fault_case->clean();
	return status != 0;
}

static void run_all_deaths(const struct fault_case *fault_case)
{
	int target = 1;

	fault.mode = FAULT_DEATH;
	while (run_to_death(fault_case, target)) {
		target++;
		assert_in_range(target, 1, CALLS_MAX);
	}
	assert_true(target > 1);
}

static void run_all(const struct fault_case *fault_case, enum fault_mode mode, int error)
{
	int target = 1;

	fault.mode = mode;
	fault.error = error;
	while (run_once(fault_case, target)) {
		target++;
		assert_in_range(target, 1, CALLS_MAX);
	}
	/* A case in which nothing can fail tests nothing. Not every one needs room. */
	assert_true(target > 1 || mode == FAULT_NO_ROOM);
}

void fault_run(const struct fault_case *fault_case)
{
	run_all(fault_case, FAULT_ONCE, EIO);
	run_all(fault_case, FAULT_ONCE, ENOSPC);
	run_all(fault_case, FAULT_ONCE, EINTR);
	run_all(fault_case, FAULT_ONCE, EOPNOTSUPP);
	run_all(fault_case, FAULT_NO_ROOM, ENOSPC);
	if (fault_case->dies) {
		run_all_deaths(fault_case);
	}
}
