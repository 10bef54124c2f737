/*
 * A tree of the user as a pax archive, through libarchive's writer.
 *
 * Directories wait in a list (a stack, so the walk goes deep first), each with its path below the
 * root, so that no more than two descriptors are open at any depth.
 */
#include "archive/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

/* Large enough that copying is bound by the disk, small enough to stay in the cache. */
#define WRITE_CHUNK_BYTES ((size_t)256 << 10)

/* A file with more names than one, found again by device and inode. */
struct hard_link {
	dev_t dev;
	ino_t ino;
	char *path;
};

struct writer {
	int dir_fd;
	struct archive *output;
	int out_fd;
	/* errno of a write that failed. Nothing more is written then. */
	int output_error;
	char *chunk;
	char *xattr_names;
	char *xattr_value;
	/* Directories that still wait. */
	char **waiting;
	size_t waiting_count;
	size_t waiting_capacity;
	/* Open addressing; capacity is a power of two, at most half full. */
	struct hard_link *links;
	size_t link_count;
	size_t link_capacity;
};

static void cleanup_entry(struct archive_entry **entry)
{
	archive_entry_free(*entry);
}

static int fail(struct err *err, int rc, const char *path)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(err, rc, "archive-write", "cannot read %s: %s", archive_quote(path, quoted),
		       strerror(-rc));
}

/*
 * Takes a block of the archive. It never tells libarchive of a failure, since libarchive 3.6 then
 * forgets to free its buffers; whoever writes looks at output_error afterwards.
 */
static la_ssize_t write_output(struct archive *output, void *data, const void *block, size_t size)
{
	struct writer *writer = data;

	(void)output;
	if (writer->output_error == 0) {
		writer->output_error = -write_full(writer->out_fd, block, size);
	}
	return (la_ssize_t)size;
}

/* Looks at the outcome of a call to libarchive. */
static int check_output(struct writer *writer, la_ssize_t rc, struct err *err)
{
	const char *why = archive_error_string(writer->output);

	if (writer->output_error != 0) {
		return err_set(err, -writer->output_error, "archive-write",
			       "cannot write the archive: %s", strerror(writer->output_error));
	}
	/* A warning is about a name that is no UTF-8: it goes out as the bytes it is. */
	if (rc < ARCHIVE_WARN) {
		return err_set(err, -EIO, "archive-write", "cannot write the archive: %s",
			       why ? why : "unknown reason");
	}
	return 0;
}

static size_t link_slot(const struct writer *writer, dev_t dev, ino_t ino)
{
	size_t slot = (size_t)((ino * 0x9e3779b97f4a7c15u) ^ dev) & (writer->link_capacity - 1);

	while (writer->links[slot].path &&
	       (writer->links[slot].dev != dev || writer->links[slot].ino != ino)) {
		slot = (slot + 1) & (writer->link_capacity - 1);
	}
	return slot;
}

static int grow_links(struct writer *writer)
{
	struct hard_link *old = writer->links;
	size_t old_capacity = writer->link_capacity;
	size_t capacity = old_capacity ? old_capacity * 2 : 1024;
	struct hard_link *links = calloc(capacity, sizeof(*links));

	if (!links) {
		return -ENOMEM;
	}
	writer->links = links;
	writer->link_capacity = capacity;
	for (size_t i = 0; i < old_capacity; i++) {
		if (old[i].path) {
			links[link_slot(writer, old[i].dev, old[i].ino)] = old[i];
		}
	}
	free(old);
	return 0;
}

/* *ret_first is the name under which this file was written already, or NULL. */
static int find_hard_link(struct writer *writer, const struct stat *status, const char *path,
			  const char **ret_first)
{
	size_t slot;

	*ret_first = NULL;
	if (writer->link_count * 2 >= writer->link_capacity && grow_links(writer) < 0) {
		return -ENOMEM;
	}
	slot = link_slot(writer, status->st_dev, status->st_ino);
	if (writer->links[slot].path) {
		*ret_first = writer->links[slot].path;
		return 0;
	}
	writer->links[slot] = (struct hard_link){
		.dev = status->st_dev,
		.ino = status->st_ino,
		.path = strdup(path),
	};
	writer->link_count++;
	return writer->links[slot].path ? 0 : -ENOMEM;
}

static int push_directory(struct writer *writer, const char *path)
{
	if (writer->waiting_count == writer->waiting_capacity) {
		size_t capacity = writer->waiting_capacity ? writer->waiting_capacity * 2 : 64;
		char **grown = reallocarray(writer->waiting, capacity, sizeof(*grown));

		if (!grown) {
			return -ENOMEM;
		}
		writer->waiting = grown;
		writer->waiting_capacity = capacity;
	}
	writer->waiting[writer->waiting_count] = strdup(path);
	return writer->waiting[writer->waiting_count++] ? 0 : -ENOMEM;
}

/* Adds the attributes of an open file that box keeps. A file system without any is no error. */
static int add_xattrs(struct writer *writer, int fd, struct archive_entry *entry)
{
	ssize_t size = flistxattr(fd, writer->xattr_names, XATTR_LIST_MAX);

	if (size < 0) {
		return errno == ENOTSUP ? 0 : -errno;
	}
	for (const char *name = writer->xattr_names; name < writer->xattr_names + size;
	     name += strlen(name) + 1) {
		ssize_t got;

		if (strncmp(name, "user.", 5) != 0 && strcmp(name, "security.capability") != 0) {
			continue;
		}
		got = fgetxattr(fd, name, writer->xattr_value, XATTR_LIST_MAX);
		if (got < 0) {
			return -errno;
		}
		archive_entry_xattr_add_entry(entry, name, writer->xattr_value, (size_t)got);
	}
	return 0;
}

/* Tells the entry where data is. A file system that cannot say has none but data. */
static int add_holes(int fd, uint64_t size, struct archive_entry *entry)
{
	off_t at = 0;

	while ((uint64_t)at < size) {
		off_t data = lseek(fd, at, SEEK_DATA);
		off_t hole;

		if (data < 0) {
			return errno == ENXIO || errno == EINVAL ? 0 : -errno;
		}
		hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0) {
			return -errno;
		}
		if (data == 0 && (uint64_t)hole >= size) {
			return 0;
		}
		archive_entry_sparse_add_entry(entry, data, MIN(hole, (off_t)size) - data);
		at = hole;
	}
	return 0;
}

/* Copies size bytes from offset into the archive. */
static int copy_range(struct writer *writer, int fd, int64_t offset, int64_t size, const char *path,
		      struct err *err)
{
	while (size > 0) {
		size_t want = (size_t)MIN(size, (int64_t)WRITE_CHUNK_BYTES);
		ssize_t got = pread(fd, writer->chunk, want, offset);
		int rc;

		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got < 0) {
			return fail(err, -errno, path);
		}
		if (got == 0) {
			char quoted[ARCHIVE_QUOTED_MAX];

			return err_set(err, -EIO, "archive-write",
				       "cannot read %s: it became shorter meanwhile",
				       archive_quote(path, quoted));
		}
		rc = check_output(writer,
				  archive_write_data(writer->output, writer->chunk, (size_t)got),
				  err);
		if (rc < 0) {
			return rc;
		}
		offset += got;
		size -= got;
	}
	return 0;
}

/*
 * libarchive's writer takes the whole length of a file and leaves out what the sparse list does not
 * name, so holes are read like data and cost no room.
 */
static int write_file(struct writer *writer, const char *path, struct archive_entry *entry,
		      struct err *err)
{
	_cleanup_close_ int fd = -EBADF;
	struct stat status;
	int rc;

	fd = openat(writer->dir_fd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &status) < 0) {
		return fail(err, -errno, path);
	}
	archive_entry_copy_stat(entry, &status);
	rc = add_xattrs(writer, fd, entry);
	if (rc == 0) {
		rc = add_holes(fd, (uint64_t)status.st_size, entry);
	}
	if (rc < 0) {
		return fail(err, rc, path);
	}
	rc = check_output(writer, archive_write_header(writer->output, entry), err);
	return rc < 0 ? rc : copy_range(writer, fd, 0, status.st_size, path, err);
}

static int write_directory(struct writer *writer, const char *path, struct archive_entry *entry,
			   struct err *err)
{
	_cleanup_close_ int fd = -EBADF;
	int rc;

	fd = openat(writer->dir_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		return fail(err, -errno, path);
	}
	rc = add_xattrs(writer, fd, entry);
	if (rc == 0) {
		rc = push_directory(writer, path);
	}
	if (rc < 0) {
		return fail(err, rc, path);
	}
	return check_output(writer, archive_write_header(writer->output, entry), err);
}

static int add_symlink(struct writer *writer, const char *path, struct archive_entry *entry)
{
	char target[ARCHIVE_NAME_MAX + 1];
	ssize_t size = readlinkat(writer->dir_fd, path, target, sizeof(target));

	if (size < 0) {
		return -errno;
	}
	if (size > ARCHIVE_NAME_MAX) {
		return -ENAMETOOLONG;
	}
	target[size] = '\0';
	archive_entry_set_symlink(entry, target);
	return 0;
}

/* Writes the entry for one name below the root; "." is the root itself. */
static int write_entry(struct writer *writer, const char *path, struct err *err)
{
	_cleanup_(cleanup_entry) struct archive_entry *entry = NULL;
	char name[ARCHIVE_NAME_MAX + 1];
	const char *first = NULL;
	struct stat status;
	int rc = 0;

	entry = archive_entry_new();
	if (!entry) {
		return fail(err, -ENOMEM, path);
	}
	if (fstatat(writer->dir_fd, path, &status, AT_SYMLINK_NOFOLLOW) < 0) {
		return fail(err, -errno, path);
	}
	if (S_ISSOCK(status.st_mode)) {
		return 0;
	}
	/* A name may begin with anything; "./" in front makes it plain that it is relative. */
	if (snprintf(name, sizeof(name), "%s%s", strcmp(path, ".") ? "./" : "", path) >=
	    (int)sizeof(name)) {
		return fail(err, -ENAMETOOLONG, path);
	}
	archive_entry_copy_stat(entry, &status);
	archive_entry_set_pathname(entry, name);
	if (S_ISDIR(status.st_mode)) {
		return write_directory(writer, path, entry, err);
	}
	if (status.st_nlink > 1) {
		rc = find_hard_link(writer, &status, name, &first);
	}
	if (rc == 0 && S_ISLNK(status.st_mode) && !first) {
		rc = add_symlink(writer, path, entry);
	}
	if (rc < 0) {
		return fail(err, rc, path);
	}
	if (first) {
		archive_entry_set_hardlink(entry, first);
		archive_entry_unset_size(entry);
	} else if (S_ISREG(status.st_mode)) {
		return write_file(writer, path, entry, err);
	} else {
		archive_entry_set_size(entry, 0);
	}
	return check_output(writer, archive_write_header(writer->output, entry), err);
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int not_dots(const struct dirent *entry)
{
	return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* Writes what is in one directory. */
static int write_names(struct writer *writer, const char *directory, struct err *err)
{
	bool root = strcmp(directory, ".") == 0;
	struct dirent **names = NULL;
	int count, rc = 0;

	count = scandirat(writer->dir_fd, directory, &names, not_dots, compare_names);
	if (count < 0) {
		return fail(err, -errno, directory);
	}
	for (int i = 0; i < count; i++) {
		char path[ARCHIVE_NAME_MAX + 1];

		if (rc == 0 && snprintf(path, sizeof(path), "%s%s%s", root ? "" : directory,
					root ? "" : "/", names[i]->d_name) >= (int)sizeof(path)) {
			rc = fail(err, -ENAMETOOLONG, directory);
		}
		if (rc == 0) {
			rc = write_entry(writer, path, err);
		}
		free(names[i]);
	}
	free(names);
	return rc;
}

static void writer_clear(struct writer *writer)
{
	for (size_t i = 0; i < writer->waiting_count; i++) {
		free(writer->waiting[i]);
	}
	for (size_t i = 0; i < writer->link_capacity; i++) {
		free(writer->links[i].path);
	}
	free(writer->waiting);
	free(writer->links);
	free(writer->chunk);
	free(writer->xattr_names);
	free(writer->xattr_value);
	archive_write_free(writer->output);
}

static int open_output(struct writer *writer, struct err *err)
{
	writer->chunk = malloc(WRITE_CHUNK_BYTES);
	writer->xattr_names = malloc(XATTR_LIST_MAX);
	writer->xattr_value = malloc(XATTR_LIST_MAX);
	writer->output = archive_write_new();
	if (!writer->chunk || !writer->xattr_names || !writer->xattr_value || !writer->output) {
		return err_set(err, -ENOMEM, "archive-write", "cannot write the archive: %s",
			       strerror(ENOMEM));
	}
	if (archive_write_set_format_pax_restricted(writer->output) != ARCHIVE_OK ||
	    archive_write_set_options(writer->output, "xattrheader=SCHILY") != ARCHIVE_OK ||
	    archive_write_open(writer->output, writer, NULL, write_output, NULL) != ARCHIVE_OK) {
		return check_output(writer, ARCHIVE_FATAL, err);
	}
	return 0;
}

int archive_write_tree(int dir_fd, int out_fd, struct err *err)
{
	_cleanup_(writer_clear) struct writer writer = {.dir_fd = dir_fd, .out_fd = out_fd};
	int rc = open_output(&writer, err);

	if (rc == 0) {
		rc = write_entry(&writer, ".", err);
	}
	while (rc == 0 && writer.waiting_count > 0) {
		_cleanup_free_ char *directory = writer.waiting[--writer.waiting_count];

		rc = write_names(&writer, directory, err);
	}
	if (rc < 0) {
		/* Without its end mark the reader sees that it is cut short. */
		writer.output_error = ECANCELED;
		return rc;
	}
	return check_output(&writer, archive_write_close(writer.output), err);
}
