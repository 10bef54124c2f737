/*
 * The log: lines are appended under a shared lock of the log file, the file is put aside under an
 * exclusive one. So a line never goes to a file that has just been put aside, two keepers never put
 * aside one after the other, and nobody waits for a keeper that stands still.
 */
#include "store/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "spec/spec.h"
#include "store/internal.h"

/* "NAME+net.jsonl.1" and a NUL. */
#define LOG_NAME_SIZE (SPEC_NAME_MAX + 16)
/* Those that keepers make have six letters. */
#define ID_LENGTH_MAX 32
#define OUTPUT_NAME_SIZE (ID_LENGTH_MAX + sizeof(".out"))
/* So many go at once, so that most creations need not look at the age of a thousand files. */
#define OUTPUTS_REMOVED (LOG_OUTPUTS_MAX / 8)
/* What somebody else has put there is not looked through to its end. */
#define OUTPUTS_SEEN_MAX (4 * LOG_OUTPUTS_MAX)

/* A kept output and its age. */
struct output_file {
	char name[OUTPUT_NAME_SIZE];
	int64_t changed_ns;
};

static int open_logs(struct store *store)
{
	return store_open_directory(store->home_fd, "log");
}

static void log_file_name(char *out, const char *name, bool older)
{
	snprintf(out, LOG_NAME_SIZE, "%s.jsonl%s", name, older ? ".1" : "");
}

/* A pipe or device that somebody put in a file's place must not hold a keeper up. */
static int check_regular(int fd)
{
	struct stat status;

	if (fstat(fd, &status) < 0) {
		return -errno;
	}
	return S_ISREG(status.st_mode) ? 0 : -EINVAL;
}

/*
 * Puts a full log aside, when no other is writing to it or putting it aside just now; otherwise the
 * next line tries again. Returns 1 when it was done, 0, or a negative errno.
 */
static int put_aside(int dir_fd, int fd, const char *file)
{
	char older[LOG_NAME_SIZE + 2];
	int rc;

	/* The shared lock may be lost on the way to the exclusive one; hence the second look. */
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		return errno == EWOULDBLOCK ? 0 : -errno;
	}
	rc = store_is_current(fd, dir_fd, file);
	if (rc <= 0) {
		return rc < 0 ? rc : 1;
	}
	snprintf(older, sizeof(older), "%s.1", file);
	return renameat(dir_fd, file, dir_fd, older) < 0 ? -errno : 1;
}

/* Opens the log for appending, under a shared lock, with room for one more line. */
static int open_for_line(int dir_fd, const char *file)
{
	for (int i = 0; i < STORE_TRIES_MAX; i++) {
		_cleanup_close_ int fd = store_open_locked(
			dir_fd, file, O_RDWR | O_APPEND | O_CREAT | O_NONBLOCK, LOCK_SH);
		struct stat status;
		int rc = fd < 0 ? fd : check_regular(fd);

		if (rc == -EINTR) {
			continue;
		}
		if (rc == 0 && fstat(fd, &status) < 0) {
			rc = -errno;
		}
		if (rc < 0) {
			return rc;
		}
		rc = (uint64_t)status.st_size > LOG_SIZE_MAX ? put_aside(dir_fd, fd, file) : 0;
		if (rc <= 0) {
			return rc < 0 ? rc : TAKE_FD(fd);
		}
	}
	return -EAGAIN;
}

/* Whether the file ends in the middle of a line: a disk was full, or a host went down. */
static bool ends_torn(int fd)
{
	off_t end = lseek(fd, 0, SEEK_END);
	char last = '\n';

	return end > 0 && pread(fd, &last, 1, end - 1) == 1 && last != '\n';
}

int store_log_append(struct store *store, const char *name, const char *line, size_t size)
{
	_cleanup_close_ int dir_fd = open_logs(store);
	_cleanup_close_ int fd = -EBADF;
	char file[LOG_NAME_SIZE], newline[] = "\n";
	struct iovec pieces[3] = {
		{.iov_base = newline},
		/* writev(2) only reads it. */
		{.iov_base = (char *)(uintptr_t)line, .iov_len = size},
		{.iov_base = newline, .iov_len = 1},
	};
	ssize_t written;

	if (size > LOG_LINE_MAX || memchr(line, '\n', size)) {
		return -EINVAL;
	}
	if (dir_fd < 0) {
		return dir_fd;
	}
	log_file_name(file, name, false);
	fd = open_for_line(dir_fd, file);
	if (fd < 0) {
		return fd;
	}
	pieces[0].iov_len = ends_torn(fd) ? 1 : 0;
	do {
		written = writev(fd, pieces, ARRAY_SIZE(pieces));
	} while (written < 0 && errno == EINTR);
	if (written < 0) {
		return -errno;
	}
	/* What else would cut a write to a file short. */
	return (size_t)written == pieces[0].iov_len + size + 1 ? 0 : -ENOSPC;
}

static int open_to_read(int dir_fd, const char *name)
{
	_cleanup_close_ int fd =
		openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	int rc = fd < 0 ? -errno : check_regular(fd);

	return rc < 0 ? rc : TAKE_FD(fd);
}

int store_log_open(struct store *store, const char *name, bool older)
{
	_cleanup_close_ int dir_fd = open_logs(store);
	char file[LOG_NAME_SIZE];

	if (dir_fd < 0) {
		return dir_fd;
	}
	log_file_name(file, name, older);
	return open_to_read(dir_fd, file);
}

/* Also the guard against an ID that is a path. */
static int output_name(char *out, const char *id, int channel)
{
	size_t length = strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789");

	if (length == 0 || length > ID_LENGTH_MAX || id[length] != '\0' || channel < 1 ||
	    channel > 2) {
		return -EINVAL;
	}
	snprintf(out, OUTPUT_NAME_SIZE, "%s.%s", id, channel == 1 ? "out" : "err");
	return 0;
}

static int open_outputs(struct store *store, const char *name, bool create)
{
	_cleanup_close_ int dir_fd = open_logs(store);

	if (dir_fd < 0) {
		return dir_fd;
	}
	if (create && mkdirat(dir_fd, name, 0700) < 0 && errno != EEXIST) {
		return -errno;
	}
	return store_open_directory(dir_fd, name);
}

/* Puts the file into the list of the oldest ones, which is sorted and keeps its length. */
static void note_age(struct output_file *oldest, size_t *count, const char *name, int64_t changed)
{
	size_t at = *count;

	while (at > 0 && oldest[at - 1].changed_ns > changed) {
		at--;
	}
	if (at == OUTPUTS_REMOVED) {
		return;
	}
	*count += *count < OUTPUTS_REMOVED;
	memmove(&oldest[at + 1], &oldest[at], (*count - at - 1) * sizeof(*oldest));
	snprintf(oldest[at].name, sizeof(oldest[at].name), "%s", name);
	oldest[at].changed_ns = changed;
}

static void remove_oldest(DIR *directory)
{
	struct output_file oldest[OUTPUTS_REMOVED];
	const struct dirent *entry;
	size_t count = 0, seen = 0;

	rewinddir(directory);
	while (seen < OUTPUTS_SEEN_MAX && (entry = readdir(directory))) {
		struct stat status;

		if (entry->d_name[0] == '.' || strlen(entry->d_name) >= OUTPUT_NAME_SIZE ||
		    fstatat(dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
			continue;
		}
		seen++;
		note_age(oldest, &count, entry->d_name,
			 (int64_t)status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec);
	}
	for (size_t i = 0; i < count; i++) {
		/* Another keeper may have been faster. */
		unlinkat(dirfd(directory), oldest[i].name, 0);
	}
}

/* Whoever still writes to one that goes writes to a file without a name, which does no harm. */
static int make_room(int dir_fd)
{
	_cleanup_close_ int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	size_t count = 0;
	DIR *directory;

	if (fd < 0) {
		return -errno;
	}
	directory = fdopendir(fd);
	if (!directory) {
		return -errno;
	}
	fd = -EBADF;
	while (count < LOG_OUTPUTS_MAX + 2 && readdir(directory)) {
		count++;
	}
	/* "." and ".." were counted as well. */
	if (count >= LOG_OUTPUTS_MAX + 2) {
		remove_oldest(directory);
	}
	closedir(directory);
	return 0;
}

int store_log_create_output(struct store *store, const char *name, const char *id, int channel)
{
	char file[OUTPUT_NAME_SIZE];
	_cleanup_close_ int dir_fd = -EBADF;
	int rc = output_name(file, id, channel), fd;

	if (rc < 0) {
		return rc;
	}
	dir_fd = open_outputs(store, name, true);
	rc = dir_fd < 0 ? dir_fd : make_room(dir_fd);
	if (rc < 0) {
		return rc;
	}
	/* An earlier command's of the same ID goes: whoever reads it keeps the old file. */
	if (unlinkat(dir_fd, file, 0) < 0 && errno != ENOENT) {
		return -errno;
	}
	fd = openat(dir_fd, file, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

int store_log_open_output(struct store *store, const char *name, const char *id, int channel)
{
	char file[OUTPUT_NAME_SIZE];
	_cleanup_close_ int dir_fd = -EBADF;
	int rc = output_name(file, id, channel);

	if (rc < 0) {
		return rc;
	}
	dir_fd = open_outputs(store, name, false);
	return dir_fd < 0 ? dir_fd : open_to_read(dir_fd, file);
}
