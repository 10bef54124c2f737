#include "base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"

/* Large enough that the copy of a data region is bound by the disk, not by system calls. */
#define COPY_CHUNK_BYTES ((size_t)1 << 20)

int write_full(int fd, const void *data, size_t size)
{
	const char *bytes = data;

	while (size > 0) {
		ssize_t written = write(fd, bytes, size);

		if (written < 0) {
			if (errno == EINTR) {
				continue;
			}
			return -errno;
		}
		bytes += written;
		size -= (size_t)written;
	}
	return 0;
}

ssize_t read_full(int fd, void *data, size_t size)
{
	char *bytes = data;
	size_t filled = 0;

	while (filled < size) {
		ssize_t got = read(fd, bytes + filled, size - filled);

		if (got < 0) {
			if (errno == EINTR) {
				continue;
			}
			return -errno;
		}
		if (got == 0) {
			break;
		}
		filled += (size_t)got;
	}
	return (ssize_t)filled;
}

int read_file_at(int dir_fd, const char *path, size_t max_bytes, char **ret_data, size_t *ret_size)
{
	_cleanup_close_ int fd = -EBADF;
	_cleanup_free_ char *data = NULL;
	size_t capacity = 4096, size = 0;

	fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		return -errno;
	}
	for (;;) {
		ssize_t got;
		char *grown = realloc(data, capacity + 1);

		if (!grown) {
			return -ENOMEM;
		}
		data = grown;
		got = read_full(fd, data + size, capacity - size);
		if (got < 0) {
			return (int)got;
		}
		size += (size_t)got;
		if (size > max_bytes) {
			return -EFBIG;
		}
		if (size < capacity) {
			break;
		}
		capacity *= 2;
	}
	data[size] = '\0';
	*ret_data = TAKE_PTR(data);
	if (ret_size) {
		*ret_size = size;
	}
	return 0;
}

static int sync_parent(int dir_fd, const char *path)
{
	_cleanup_close_ int parent = -EBADF;
	char directory[4096];
	const char *slash = strrchr(path, '/');
	size_t length = slash ? (size_t)(slash - path) : 0;

	if (length >= sizeof(directory)) {
		return -ENAMETOOLONG;
	}
	memcpy(directory, path, length);
	directory[length] = '\0';
	parent = openat(dir_fd, length ? directory : (slash ? "/" : "."),
			O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (parent < 0 || fsync(parent) < 0) {
		return -errno;
	}
	return 0;
}

int write_file_at(int dir_fd, const char *path, const void *data, size_t size, mode_t mode)
{
	_cleanup_close_ int fd = -EBADF;
	char temporary[4096];
	int rc;

	if (snprintf(temporary, sizeof(temporary), "%s.tmp.%d", path, (int)getpid()) >=
	    (int)sizeof(temporary)) {
		return -ENAMETOOLONG;
	}
	fd = openat(dir_fd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
	if (fd < 0) {
		return -errno;
	}
	rc = write_full(fd, data, size);
	if (rc == 0 && fsync(fd) < 0) {
		rc = -errno;
	}
	if (rc == 0 && renameat(dir_fd, temporary, dir_fd, path) < 0) {
		rc = -errno;
	}
	if (rc < 0) {
		unlinkat(dir_fd, temporary, 0);
		return rc;
	}
	return sync_parent(dir_fd, path);
}

int set_nonblocking(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0) {
		return -errno;
	}
	flags = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
	return fcntl(fd, F_SETFL, flags) < 0 ? -errno : 0;
}

int set_cloexec(int fd, bool on)
{
	return fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0) < 0 ? -errno : 0;
}

static int copy_region(int from_fd, int to_fd, off_t offset, off_t end, char *chunk)
{
	while (offset < end) {
		size_t want = (size_t)MIN((off_t)COPY_CHUNK_BYTES, end - offset);
		ssize_t got = pread(from_fd, chunk, want, offset);
		ssize_t put;

		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got <= 0) {
			return got < 0 ? -errno : 0;
		}
		put = pwrite(to_fd, chunk, (size_t)got, offset);
		if (put < 0 && errno != EINTR) {
			return -errno;
		}
		if (put > 0) {
			offset += put;
		}
	}
	return 0;
}

int copy_file_sparse(int from_fd, int to_fd)
{
	_cleanup_free_ char *chunk = NULL;
	struct stat status;
	off_t offset = 0;

	if (ioctl(to_fd, FICLONE, from_fd) == 0) {
		return 0;
	}
	if (fstat(from_fd, &status) < 0 || ftruncate(to_fd, status.st_size) < 0) {
		return -errno;
	}
	chunk = malloc(COPY_CHUNK_BYTES);
	if (!chunk) {
		return -ENOMEM;
	}
	while (offset < status.st_size) {
		off_t data = lseek(from_fd, offset, SEEK_DATA);
		off_t hole;
		int rc;

		if (data < 0) {
			return errno == ENXIO ? 0 : -errno;
		}
		hole = lseek(from_fd, data, SEEK_HOLE);
		if (hole < 0) {
			return -errno;
		}
		rc = copy_region(from_fd, to_fd, data, hole, chunk);
		if (rc < 0) {
			return rc;
		}
		offset = hole;
	}
	return 0;
}

/* Depth is bounded so that a crafted tree cannot exhaust descriptors or the stack. */
#define REMOVE_DEPTH_MAX 256

static int remove_entry(int dir_fd, const char *name, unsigned depth);

static int remove_children(int fd, unsigned depth)
{
	DIR *directory = fdopendir(fd);
	struct dirent *entry;
	int first_error = 0;

	if (!directory) {
		int rc = -errno;

		close(fd);
		return rc;
	}
	while ((entry = readdir(directory))) {
		int rc;

		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
			continue;
		}
		rc = remove_entry(dirfd(directory), entry->d_name, depth + 1);
		if (rc < 0 && first_error == 0) {
			first_error = rc;
		}
	}
	closedir(directory);
	return first_error;
}

static int remove_entry(int dir_fd, const char *name, unsigned depth)
{
	int fd, rc;

	if (depth > REMOVE_DEPTH_MAX) {
		return -ELOOP;
	}
	if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT) {
		return 0;
	}
	if (errno != EISDIR && errno != EPERM) {
		return -errno;
	}
	fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		return -errno;
	}
	rc = remove_children(fd, depth);
	if (unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && rc == 0) {
		rc = -errno;
	}
	return rc;
}

int remove_tree_at(int dir_fd, const char *name)
{
	return remove_entry(dir_fd, name, 0);
}
