/*
 * A tree of the user as a pax archive.
 *
 * Directories wait in a list (a stack, so the walk goes deep first), each with its path below the
 * root, so that no more than two descriptors are open at any depth. In the archive each comes just
 * before what is in it, files first: other readers set the time of a directory when they leave it.
 * Headers and small files gather in one buffer, which goes out when it is full; what is large goes
 * from file to pipe by sendfile(2), which copies nothing, where the kernel can.
 */
#include "archive/archive.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "archive/encode.h"
#include "base/array.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

/* What one write takes: as much as a large pipe holds. */
#define WRITE_BUFFER_BYTES ((size_t)1 << 20)
/* Less room than this at the buffer's end is not worth a read. */
#define WRITE_ROOM_MIN ((size_t)64 << 10)
/* From this size on the buffer is passed by. */
#define WRITE_DIRECT_MIN ((uint64_t)256 << 10)

/* EXT4_ROOT_INO of the kernel (Documentation/filesystems/ext4/special_inodes.rst). */
#define EXT4_ROOT_INODE 2

/* A file with more names than one, found again by device and inode. */
struct hard_link {
	dev_t dev;
	ino_t ino;
	char *path;
};

struct writer {
	int dir_fd;
	int out_fd;
	/* What the root is called: "." or a name. */
	const char *top;
	/* It is the root of a file system of ext4's kind. */
	bool file_system;
	/* Leave out devices and fifos, and count them. */
	bool skip_devices;
	/* Say of each file how many names it has. */
	bool say_links;
	uint64_t left_out;
	/* The kernel cannot move this output by itself. */
	bool no_sendfile;
	struct tar_buffer buffer;
	/* Of the file at hand. */
	struct tar_map map;
	char *xattr_names;
	struct archive_xattr xattrs[ARCHIVE_XATTRS_MAX];
	struct tar_buffer xattr_values;
	/* Directories that still wait. */
	char **waiting;
	size_t waiting_count;
	size_t waiting_capacity;
	/* Open addressing; capacity is a power of two, at most half full. */
	struct hard_link *links;
	size_t link_count;
	size_t link_capacity;
};

static int fail(struct err *err, int rc, const char *path)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(err, rc, "archive-write", "cannot read %s: %s", archive_quote(path, quoted),
		       rc == -E2BIG ? "it has too many or too large attributes" : strerror(-rc));
}

static int fail_output(struct err *err, int rc)
{
	return err_set(err, rc, "archive-write", "cannot write the archive: %s", strerror(-rc));
}

static int flush(struct writer *writer, struct err *err)
{
	int rc = write_full(writer->out_fd, writer->buffer.data, writer->buffer.size);

	writer->buffer.size = 0;
	return rc < 0 ? fail_output(err, rc) : 0;
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
	char **grown = array_reserve(writer->waiting, writer->waiting_count,
				     &writer->waiting_capacity, sizeof(*grown));

	if (!grown) {
		return -ENOMEM;
	}
	writer->waiting = grown;
	writer->waiting[writer->waiting_count] = strdup(path);
	return writer->waiting[writer->waiting_count++] ? 0 : -ENOMEM;
}

/*
 * Notes the attributes of an open file that box keeps. A file system without any is no error.
 */
static int read_xattrs(struct writer *writer, int fd, struct tar_entry *entry)
{
	ssize_t size = flistxattr(fd, writer->xattr_names, XATTR_LIST_MAX);
	size_t offsets[ARCHIVE_XATTRS_MAX];

	writer->xattr_values.size = 0;
	entry->xattrs = writer->xattrs;
	if (size < 0) {
		return errno == ENOTSUP ? 0 : -errno;
	}
	for (const char *name = writer->xattr_names; name < writer->xattr_names + size;
	     name += strlen(name) + 1) {
		ssize_t got;
		char *value;

		if (strncmp(name, "user.", 5) != 0 && strcmp(name, "security.capability") != 0) {
			continue;
		}
		if (entry->xattr_count == ARCHIVE_XATTRS_MAX) {
			return -E2BIG;
		}
		offsets[entry->xattr_count] = writer->xattr_values.size;
		value = tar_buffer_add(&writer->xattr_values, XATTR_SIZE_MAX);
		if (!value) {
			return -ENOMEM;
		}
		got = fgetxattr(fd, name, value, XATTR_SIZE_MAX);
		if (got < 0) {
			return -errno;
		}
		writer->xattr_values.size -= XATTR_SIZE_MAX - (size_t)got;
		writer->xattrs[entry->xattr_count++] =
			(struct archive_xattr){.name = name, .size = (size_t)got};
	}
	for (size_t i = 0; i < entry->xattr_count; i++) {
		writer->xattrs[i].value = writer->xattr_values.data + offsets[i];
	}
	return 0;
}

/* Notes where data is. A file system that cannot say has none but data. */
static int read_holes(struct writer *writer, int fd, uint64_t size, struct tar_entry *entry)
{
	const char *why;
	off_t at = 0;
	int rc = 0;

	writer->map.count = 0;
	while ((uint64_t)at < size && rc == 0) {
		off_t data = lseek(fd, at, SEEK_DATA);
		off_t hole;

		if (data < 0 && errno == ENXIO) {
			break;
		}
		if (data < 0) {
			return errno == EINVAL ? 0 : -errno;
		}
		hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0) {
			return -errno;
		}
		if (data == 0 && (uint64_t)hole >= size) {
			return 0;
		}
		/* A reader takes no more pieces than that; the last holds the rest. */
		at = writer->map.count == TAR_SEGMENTS_MAX - 2 ? (off_t)size
							       : MIN(hole, (off_t)size);
		if (data < at) {
			rc = tar_map_add(&writer->map, (uint64_t)data, (uint64_t)(at - data), &why);
		}
	}
	if (rc == 0 && size > 0) {
		entry->map = &writer->map;
		/* Only by an empty piece at its end does GNU tar know of a hole there. */
		rc = (uint64_t)at < size || writer->map.count == 0
			     ? tar_map_add(&writer->map, size, 0, &why)
			     : 0;
	}
	return rc;
}

static int became_shorter(struct err *err, const char *path)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(err, -EIO, "archive-write", "cannot read %s: it became shorter meanwhile",
		       archive_quote(path, quoted));
}

/* Lets the kernel move a large piece. Returns 1 when it cannot, else 0 or a negative errno. */
static int send_range(struct writer *writer, int fd, struct tar_segment *piece, const char *path,
		      struct err *err)
{
	off_t at = (off_t)piece->offset;
	int rc = flush(writer, err);

	while (rc == 0 && piece->size > 0) {
		ssize_t sent = sendfile(writer->out_fd, fd, &at,
					(size_t)MIN(piece->size, (uint64_t)SSIZE_MAX / 2));

		if (sent < 0 && errno == EINTR) {
			continue;
		}
		if (sent < 0 && (errno == EINVAL || errno == ENOSYS || errno == EBADF)) {
			/* Not this kind of output, or input: the other way says what is wrong. */
			writer->no_sendfile = true;
			return 1;
		}
		if (sent < 0) {
			return fail_output(err, -errno);
		}
		if (sent == 0) {
			return became_shorter(err, path);
		}
		piece->offset += (uint64_t)sent;
		piece->size -= (uint64_t)sent;
	}
	return rc;
}

/* Copies a piece of a file into the archive. */
static int copy_range(struct writer *writer, int fd, struct tar_segment piece, const char *path,
		      struct err *err)
{
	if (piece.size >= WRITE_DIRECT_MIN && !writer->no_sendfile) {
		int rc = send_range(writer, fd, &piece, path, err);

		if (rc <= 0) {
			return rc;
		}
	}
	while (piece.size > 0) {
		struct tar_buffer *buffer = &writer->buffer;
		size_t room = buffer->capacity - buffer->size;
		ssize_t got;

		if (room < WRITE_ROOM_MIN) {
			int rc = flush(writer, err);

			if (rc < 0) {
				return rc;
			}
			continue;
		}
		got = pread(fd, buffer->data + buffer->size,
			    (size_t)MIN(piece.size, (uint64_t)room), (off_t)piece.offset);
		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got <= 0) {
			return got < 0 ? fail(err, -errno, path) : became_shorter(err, path);
		}
		buffer->size += (size_t)got;
		piece.offset += (uint64_t)got;
		piece.size -= (uint64_t)got;
	}
	return 0;
}

/* Writes the headers of an entry. */
static int put_entry(struct writer *writer, const struct tar_entry *entry, uint64_t *ret_data,
		     struct err *err)
{
	uint64_t unused;
	int rc = 0;

	if (writer->buffer.capacity - writer->buffer.size < WRITE_ROOM_MIN) {
		rc = flush(writer, err);
	}
	if (rc < 0) {
		return rc;
	}
	rc = tar_encode(entry, &writer->buffer, ret_data ? ret_data : &unused);
	return rc < 0 ? fail(err, rc, entry->path) : 0;
}

static int put_data(struct writer *writer, int fd, const struct tar_entry *entry, uint64_t size,
		    struct err *err)
{
	const struct tar_segment whole = {.offset = 0, .size = size};
	const struct tar_segment *pieces = entry->map ? entry->map->segments : &whole;
	size_t count = entry->map ? entry->map->count : 1;
	int rc = 0;

	for (size_t i = 0; i < count && rc == 0; i++) {
		rc = copy_range(writer, fd, pieces[i], entry->path, err);
	}
	if (rc == 0 && !tar_buffer_add(&writer->buffer, tar_padding(size))) {
		rc = fail(err, -ENOMEM, entry->path);
	}
	return rc;
}

static void set_attributes(struct tar_entry *entry, const struct stat *status)
{
	entry->mode = status->st_mode & 07777;
	entry->uid = status->st_uid;
	entry->gid = status->st_gid;
	entry->mtime_s = status->st_mtim.tv_sec;
	entry->mtime_ns = (uint32_t)status->st_mtim.tv_nsec;
}

static int write_file(struct writer *writer, const char *path, struct tar_entry *entry,
		      struct err *err)
{
	_cleanup_close_ int fd = -EBADF;
	struct stat status;
	uint64_t size;
	int rc;

	fd = openat(writer->dir_fd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &status) < 0) {
		return fail(err, -errno, path);
	}
	if (!S_ISREG(status.st_mode)) {
		return fail(err, -ESTALE, path);
	}
	set_attributes(entry, &status);
	entry->size = (uint64_t)status.st_size;
	rc = read_xattrs(writer, fd, entry);
	if (rc == 0) {
		rc = read_holes(writer, fd, entry->size, entry);
	}
	if (rc < 0) {
		return fail(err, rc, path);
	}
	rc = put_entry(writer, entry, &size, err);
	return rc < 0 ? rc : put_data(writer, fd, entry, size, err);
}

static int read_symlink(struct writer *writer, const char *path, char *target)
{
	ssize_t size = readlinkat(writer->dir_fd, path, target, ARCHIVE_NAME_MAX + 1);

	if (size < 0) {
		return -errno;
	}
	if (size > ARCHIVE_NAME_MAX) {
		return -ENAMETOOLONG;
	}
	target[size] = '\0';
	return 0;
}

static char type_of(const struct stat *status)
{
	switch (status->st_mode & S_IFMT) {
	case S_IFLNK:
		return '2';
	case S_IFCHR:
		return '3';
	case S_IFBLK:
		return '4';
	case S_IFDIR:
		return '5';
	case S_IFIFO:
		return '6';
	default:
		return '0';
	}
}

/* What path, below the root, is called in the archive. Returns false when that is too long. */
static bool name_of(const struct writer *writer, const char *path, bool directory, char *ret_name)
{
	bool root = strcmp(path, ".") == 0;

	return snprintf(ret_name, ARCHIVE_NAME_MAX + 1, "%s%s%s%s", writer->top, root ? "" : "/",
			root ? "" : path, directory ? "/" : "") <= ARCHIVE_NAME_MAX;
}

/* Writes a link, device or fifo, or a further name of a file: nothing with data. */
static int write_plain(struct writer *writer, const char *path, struct tar_entry *entry,
		       const struct stat *status, struct err *err)
{
	char target[ARCHIVE_NAME_MAX + 1];

	if (entry->type == '2') {
		int rc = read_symlink(writer, path, target);

		if (rc < 0) {
			return fail(err, rc, path);
		}
		entry->link = target;
	} else if (entry->type == '3' || entry->type == '4') {
		entry->device_major = major(status->st_rdev);
		entry->device_minor = minor(status->st_rdev);
	}
	return put_entry(writer, entry, NULL, err);
}

/* Writes the entry for one name; name is what the archive calls it. */
static int write_named(struct writer *writer, const char *path, const char *name,
		       const struct stat *status, struct err *err)
{
	struct tar_entry entry = {.type = type_of(status), .path = name};

	set_attributes(&entry, status);
	if (status->st_nlink > 1) {
		int rc = find_hard_link(writer, status, name, &entry.link);

		if (rc < 0) {
			return fail(err, rc, path);
		}
		if (entry.link) {
			entry.type = '1';
			return put_entry(writer, &entry, NULL, err);
		}
		entry.links = writer->say_links ? (uint32_t)status->st_nlink : 0;
	}
	return entry.type == '0' ? write_file(writer, path, &entry, err)
				 : write_plain(writer, path, &entry, status, err);
}

static bool is_left_out(struct writer *writer, const struct stat *status)
{
	bool device =
		S_ISCHR(status->st_mode) || S_ISBLK(status->st_mode) || S_ISFIFO(status->st_mode);

	writer->left_out += device && writer->skip_devices;
	return S_ISSOCK(status->st_mode) || (device && writer->skip_devices);
}

/* Writes the entry of a directory under a name with a slash at its end. */
static int write_directory_named(struct writer *writer, const char *path, const char *name,
				 struct err *err)
{
	_cleanup_close_ int fd = -EBADF;
	struct tar_entry entry = {.type = '5', .path = name};
	struct stat status;
	int rc;

	fd = openat(writer->dir_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &status) < 0) {
		return fail(err, -errno, path);
	}
	set_attributes(&entry, &status);
	rc = read_xattrs(writer, fd, &entry);
	return rc < 0 ? fail(err, rc, path) : put_entry(writer, &entry, NULL, err);
}

/* Writes the entry of a directory; what is in it must follow at once. */
static int write_directory(struct writer *writer, const char *path, struct err *err)
{
	char name[ARCHIVE_NAME_MAX + 1];

	return name_of(writer, path, true, name) ? write_directory_named(writer, path, name, err)
						 : fail(err, -ENAMETOOLONG, path);
}

static int not_dots(const struct dirent *entry)
{
	return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* The directory that every ext4 has for itself. One that somebody has put something into is like
 * any other. */
static bool is_lost_found(const struct writer *writer, const char *path)
{
	struct dirent **names = NULL;
	int count;

	if (!writer->file_system || strcmp(path, "lost+found") != 0) {
		return false;
	}
	count = scandirat(writer->dir_fd, path, &names, not_dots, NULL);
	for (int i = 0; i < count; i++) {
		free(names[i]);
	}
	free(names);
	return count == 0;
}

/* Writes the entry for one name below the root; a directory has to wait. */
static int write_entry(struct writer *writer, const char *path, struct err *err)
{
	char name[ARCHIVE_NAME_MAX + 1];
	struct stat status;

	if (fstatat(writer->dir_fd, path, &status, AT_SYMLINK_NOFOLLOW) < 0) {
		return fail(err, -errno, path);
	}
	if (is_left_out(writer, &status)) {
		return 0;
	}
	if (S_ISDIR(status.st_mode)) {
		int rc = is_lost_found(writer, path) ? 0 : push_directory(writer, path);

		return rc < 0 ? fail(err, rc, path) : 0;
	}
	if (!name_of(writer, path, false, name)) {
		return fail(err, -ENAMETOOLONG, path);
	}
	return write_named(writer, path, name, &status, err);
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* The last to wait is the first to come. */
static void reverse_waiting(struct writer *writer, size_t first)
{
	for (size_t last = writer->waiting_count; first + 1 < last; first++) {
		char *path = writer->waiting[first];

		writer->waiting[first] = writer->waiting[--last];
		writer->waiting[last] = path;
	}
}

/* Writes what is in one directory, except for directories, which follow. */
static int write_names(struct writer *writer, const char *directory, struct err *err)
{
	bool root = strcmp(directory, ".") == 0;
	size_t waiting = writer->waiting_count;
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
	reverse_waiting(writer, waiting);
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
	free(writer->xattr_names);
	tar_map_clear(&writer->map);
	tar_buffer_clear(&writer->xattr_values);
	tar_buffer_clear(&writer->buffer);
}

static int begin(struct writer *writer, struct err *err)
{
	writer->xattr_names = malloc(XATTR_LIST_MAX);
	/* Taken as room only. */
	if (!writer->xattr_names || !tar_buffer_add(&writer->buffer, WRITE_BUFFER_BYTES)) {
		return fail_output(err, -ENOMEM);
	}
	writer->buffer.size = 0;
	return 0;
}

static int finish(struct writer *writer, struct err *err)
{
	int rc = tar_encode_end(&writer->buffer);

	return rc < 0 ? fail_output(err, rc) : flush(writer, err);
}

/* Without its end mark a reader sees that an archive is cut short. */
static int write_tree(struct writer *writer, struct err *err)
{
	int rc = push_directory(writer, ".");
	struct stat status;

	if (rc < 0) {
		return fail(err, rc, ".");
	}
	writer->file_system =
		fstat(writer->dir_fd, &status) == 0 && status.st_ino == EXT4_ROOT_INODE;
	while (rc == 0 && writer->waiting_count > 0) {
		_cleanup_free_ char *directory = writer->waiting[--writer->waiting_count];

		rc = write_directory(writer, directory, err);
		if (rc == 0) {
			rc = write_names(writer, directory, err);
		}
	}
	return rc == 0 ? finish(writer, err) : rc;
}

int archive_write_tree(int dir_fd, int out_fd, struct err *err)
{
	_cleanup_(writer_clear) struct writer writer = {
		.dir_fd = dir_fd, .out_fd = out_fd, .top = "."};
	int rc = begin(&writer, err);

	return rc == 0 ? write_tree(&writer, err) : rc;
}

static int not_carried(const char *path, struct err *err)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(err, -EINVAL, "archive-write",
		       "%s is a device, fifo or socket, which cannot be copied",
		       archive_quote(path, quoted));
}

static int write_chosen(struct writer *writer, const char *path, struct err *err)
{
	char name[ARCHIVE_NAME_MAX + 2];
	struct stat status;

	if (fstatat(writer->dir_fd, path, &status, AT_SYMLINK_NOFOLLOW) < 0) {
		return fail(err, -errno, path);
	}
	if (S_ISDIR(status.st_mode)) {
		return snprintf(name, sizeof(name), "%s/", path) < (int)sizeof(name)
			       ? write_directory_named(writer, path, name, err)
			       : fail(err, -ENAMETOOLONG, path);
	}
	return S_ISREG(status.st_mode) || S_ISLNK(status.st_mode)
		       ? write_named(writer, path, path, &status, err)
		       : not_carried(path, err);
}

int archive_write_chosen(int dir_fd, archive_path_source *next, void *data, int out_fd,
			 struct err *err)
{
	_cleanup_(writer_clear) struct writer writer = {
		.dir_fd = dir_fd, .out_fd = out_fd, .say_links = true};
	int rc = begin(&writer, err);

	for (const char *path; rc == 0 && (path = next(data));) {
		rc = write_chosen(&writer, path, err);
	}
	return rc == 0 ? finish(&writer, err) : rc;
}

int archive_write_path(int dir_fd, const char *path, const char *top, int out_fd,
		       uint64_t *ret_left_out, struct err *err)
{
	_cleanup_(writer_clear) struct writer writer = {
		.dir_fd = dir_fd, .out_fd = out_fd, .top = top ? top : ".", .skip_devices = true};
	_cleanup_close_ int fd = -EBADF;
	struct stat status;
	int rc;

	if (fstatat(dir_fd, path, &status, top ? AT_SYMLINK_NOFOLLOW : 0) < 0) {
		return fail(err, -errno, path);
	}
	rc = begin(&writer, err);
	if (rc == 0 && (!top || S_ISDIR(status.st_mode))) {
		fd = openat(dir_fd, path,
			    O_RDONLY | O_DIRECTORY | O_CLOEXEC | (top ? O_NOFOLLOW : 0));
		if (fd < 0) {
			return fail(err, -errno, path);
		}
		writer.dir_fd = fd;
		rc = write_tree(&writer, err);
	} else if (rc == 0 && !S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
		rc = not_carried(path, err);
	} else if (rc == 0) {
		rc = write_named(&writer, path, top, &status, err);
		rc = rc == 0 ? finish(&writer, err) : rc;
	}
	*ret_left_out = writer.left_out;
	return rc;
}
