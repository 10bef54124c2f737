#include "guest/diff_compare.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "archive/archive.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "guest/below.h"
#include "guest/xattrs.h"

/* Of each file at once. */
#define CHUNK_BYTES ((size_t)1 << 20)

/* The path at hand on one side. */
struct look {
	const char *path;
	/* O_PATH. */
	int fd;
	struct stat status;
	char target[CHANGE_PATH_MAX + 1];
	char names[XATTR_LIST_MAX];
	char value[XATTR_SIZE_MAX];
	uint8_t chunk[CHUNK_BYTES];
};

struct diff_compare {
	const struct diff_sides *sides;
	struct look old;
	struct look new;
};

static int fail(const struct look *look, int rc, struct err *err)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(err, rc, "diff-path", "cannot look at %s: %s",
		       archive_quote(look->path, quoted), strerror(-rc));
}

static int look_at(struct look *look, int root_fd, struct change_side *side, const char **target,
		   struct err *err)
{
	ssize_t size;

	look->fd = below_open(root_fd, look->path, O_PATH);
	if (look->fd < 0) {
		return fail(look, look->fd, err);
	}
	if (fstat(look->fd, &look->status) < 0) {
		return fail(look, -errno, err);
	}
	*side = (struct change_side){
		.type = change_type_of(look->status.st_mode),
		.mode = look->status.st_mode & 07777,
		.uid = look->status.st_uid,
		.gid = look->status.st_gid,
		.size = S_ISREG(look->status.st_mode) ? (uint64_t)look->status.st_size : 0,
	};
	if (side->type != CHANGE_TYPE_SYMLINK) {
		return 0;
	}
	size = readlinkat(look->fd, "", look->target, sizeof(look->target));
	if (size < 0) {
		return fail(look, -errno, err);
	}
	/* No system call makes either, but who writes the disk does. */
	if (size == 0 || size == (ssize_t)sizeof(look->target)) {
		return fail(look, -EINVAL, err);
	}
	look->target[size] = '\0';
	*target = look->target;
	return 0;
}

/* ---- Extended attributes ---- */

/* Fills names. Returns their bytes or a negative errno. */
static ssize_t list_xattrs(struct look *look, int fd, size_t *ret_count)
{
	ssize_t size = flistxattr(fd, look->names, sizeof(look->names));

	*ret_count = 0;
	if (size < 0) {
		return errno == ENOTSUP ? 0 : -errno;
	}
	for (const char *name = look->names; name < look->names + size; name += strlen(name) + 1) {
		*ret_count += xattrs_counts(name, true);
	}
	return size;
}

/* Returns 1 when attributes differ, 0, or a negative errno. */
static int compare_xattrs(struct diff_compare *compare, int old_fd, int new_fd, struct err *err)
{
	struct look *old = &compare->old, *new = &compare->new;
	size_t old_count, new_count;
	ssize_t old_size = list_xattrs(old, old_fd, &old_count);
	ssize_t new_size = list_xattrs(new, new_fd, &new_count);

	if (old_size < 0 || new_size < 0) {
		return old_size < 0 ? fail(old, (int)old_size, err) : fail(new, (int)new_size, err);
	}
	if (old_count != new_count) {
		return 1;
	}
	for (const char *name = old->names; name < old->names + old_size;
	     name += strlen(name) + 1) {
		ssize_t old_value, new_value;

		if (!xattrs_counts(name, true)) {
			continue;
		}
		old_value = fgetxattr(old_fd, name, old->value, sizeof(old->value));
		if (old_value < 0) {
			return fail(old, -errno, err);
		}
		new_value = fgetxattr(new_fd, name, new->value, sizeof(new->value));
		if (new_value < 0 && errno != ENODATA) {
			return fail(new, -errno, err);
		}
		if (new_value != old_value ||
		    memcmp(old->value, new->value, (size_t)old_value) != 0) {
			return 1;
		}
	}
	return 0;
}

/* ---- Content ---- */

/* Where data is from at on; size when there is none. */
static int next_data(struct look *look, int fd, off_t at, off_t *ret_at, struct err *err)
{
	*ret_at = lseek(fd, at, SEEK_DATA);
	if (*ret_at < 0 && errno == ENXIO) {
		*ret_at = look->status.st_size;
		return 0;
	}
	return *ret_at < 0 ? fail(look, -errno, err) : 0;
}

static int read_chunk(struct look *look, int fd, size_t size, off_t at, struct err *err)
{
	size_t filled = 0;

	while (filled < size) {
		ssize_t got = pread(fd, look->chunk + filled, size - filled, at + (off_t)filled);

		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got <= 0) {
			return fail(look, got < 0 ? -errno : -EIO, err);
		}
		filled += (size_t)got;
	}
	return 0;
}

/*
 * Two files of one size, without what is a hole in both. Returns 1 when they differ, 0, or a
 * negative errno.
 */
static int compare_content(struct diff_compare *compare, int old_fd, int new_fd, struct err *err)
{
	struct look *old = &compare->old, *new = &compare->new;
	off_t at = 0, end = new->status.st_size;
	int rc = 0;

	while (rc == 0) {
		off_t old_data = 0, new_data = 0;
		size_t size;

		rc = next_data(old, old_fd, at, &old_data, err);
		if (rc == 0) {
			rc = next_data(new, new_fd, at, &new_data, err);
		}
		at = MIN(old_data, new_data);
		if (rc < 0 || at >= end) {
			break;
		}
		size = (size_t)MIN((off_t)CHUNK_BYTES, end - at);
		rc = read_chunk(old, old_fd, size, at, err);
		if (rc == 0) {
			rc = read_chunk(new, new_fd, size, at, err);
		}
		if (rc == 0 && memcmp(old->chunk, new->chunk, size) != 0) {
			rc = 1;
		}
		at += (off_t)size;
	}
	/* What was read of room that was only reserved would be data to SEEK_DATA from now on, and
	 * the archive would depend on who has looked. */
	posix_fadvise(new_fd, 0, 0, POSIX_FADV_DONTNEED);
	return rc;
}

/* ---- Items ---- */

static int open_again(const struct look *look, int root_fd, struct err *err)
{
	int fd = below_open(root_fd, look->path, O_RDONLY | O_NONBLOCK | O_NOATIME);

	return fd < 0 ? fail(look, fd, err) : fd;
}

/* What must be read, of two files or directories. Adds to *flags. */
static int compare_insides(struct diff_compare *compare, bool is_file, uint32_t *flags,
			   struct err *err)
{
	_cleanup_close_ int old_fd = open_again(&compare->old, compare->sides->old_fd, err);
	_cleanup_close_ int new_fd = -EBADF;
	int rc;

	if (old_fd < 0) {
		return old_fd;
	}
	new_fd = open_again(&compare->new, compare->sides->new_fd, err);
	if (new_fd < 0) {
		return new_fd;
	}
	rc = compare_xattrs(compare, old_fd, new_fd, err);
	*flags |= rc > 0 ? (uint32_t)CHANGE_FLAG_XATTRS : 0;
	if (rc < 0 || !is_file) {
		return rc;
	}
	rc = compare->old.status.st_size != compare->new.status.st_size
		     ? 1
		     : compare_content(compare, old_fd, new_fd, err);
	*flags |= rc > 0 ? (uint32_t)CHANGE_FLAG_CONTENT : 0;
	return rc;
}

/* What differs between two sides that are both there. */
static int compare_sides(struct diff_compare *compare, struct change *change, struct err *err)
{
	const struct change_side *old = &change->old, *new = &change->new;
	const struct stat *old_status = &compare->old.status, *new_status = &compare->new.status;
	int rc = 0;

	if (old->type != new->type) {
		change->flags = CHANGE_FLAG_TYPE;
		return 0;
	}
	if (old->mode != new->mode) {
		change->flags |= CHANGE_FLAG_MODE;
	}
	if (old->uid != new->uid || old->gid != new->gid) {
		change->flags |= CHANGE_FLAG_OWNER;
	}
	if (strcmp(change->old_target, change->new_target) != 0) {
		change->flags |= CHANGE_FLAG_TARGET;
	}
	if (new->type == CHANGE_TYPE_DEVICE &&
	    (old_status->st_rdev != new_status->st_rdev ||
	     (old_status->st_mode & S_IFMT) != (new_status->st_mode & S_IFMT))) {
		change->flags |= CHANGE_FLAG_CONTENT;
	}
	if (new->type == CHANGE_TYPE_FILE || new->type == CHANGE_TYPE_DIRECTORY) {
		rc = compare_insides(compare, new->type == CHANGE_TYPE_FILE, &change->flags, err);
	}
	return rc < 0 ? rc : 0;
}

int diff_compare_item(struct diff_compare *compare, const struct diff_item *item,
		      struct change *ret_change, struct err *err)
{
	struct change change = {
		.kind = item->kind,
		.path = item->path,
		.from = item->kind == CHANGE_RENAMED ? item->old : "",
		.old_target = "",
		.new_target = "",
	};
	int rc = 0;

	if (item->kind != CHANGE_ADDED) {
		compare->old.path = item->old;
		rc = look_at(&compare->old, compare->sides->old_fd, &change.old, &change.old_target,
			     err);
	}
	if (rc == 0 && item->kind != CHANGE_DELETED) {
		compare->new.path = item->path;
		rc = look_at(&compare->new, compare->sides->new_fd, &change.new, &change.new_target,
			     err);
	}
	if (rc == 0 && item->kind != CHANGE_ADDED && item->kind != CHANGE_DELETED) {
		rc = compare_sides(compare, &change, err);
	}
	close_fd(&compare->old.fd);
	close_fd(&compare->new.fd);
	if (rc < 0) {
		return rc;
	}
	*ret_change = change;
	return item->kind != CHANGE_MODIFIED || change.flags != 0;
}

struct diff_compare *diff_compare_new(const struct diff_sides *sides)
{
	struct diff_compare *compare = calloc(1, sizeof(*compare));

	if (compare) {
		compare->sides = sides;
		compare->old.fd = -EBADF;
		compare->new.fd = -EBADF;
	}
	return compare;
}

void diff_compare_free(struct diff_compare *compare)
{
	free(compare);
}
