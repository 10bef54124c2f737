#include "guest/same.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive/archive.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "guest/applet.h"
#include "guest/apply_records.h"
#include "guest/below.h"
#include "guest/xattrs.h"

#define CHUNK_BYTES ((size_t)1 << 16)

struct same {
	struct apply_records records;
	struct archive_reader *reader;
	int data_fd;
	char bytes[CHUNK_BYTES];
	uint8_t frame[4 + CHANGE_FRAME_MAX];
};

static int fail(const char *path, int rc, struct err *err)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(err, rc, "same", "cannot compare %s: %s", archive_quote(path, quoted),
		       strerror(-rc));
}

/* Whether size bytes of the file at offset are those of data; NULL stands for zeros. 1, 0 or a
 * negative errno. */
static int equals(struct same *same, int fd, const uint8_t *data, uint64_t size, uint64_t offset)
{
	static const char zeros[CHUNK_BYTES];

	while (size > 0) {
		size_t part = (size_t)MIN(size, (uint64_t)sizeof(same->bytes));
		ssize_t got = pread(fd, same->bytes, part, (off_t)offset);

		if (got < 0) {
			return -errno;
		}
		if (got == 0 ||
		    memcmp(same->bytes, data ? (const void *)data : zeros, (size_t)got) != 0) {
			return 0;
		}
		data = data ? data + got : NULL;
		offset += (uint64_t)got;
		size -= (uint64_t)got;
	}
	return 1;
}

static int same_content(struct same *same, int fd, uint64_t size, struct err *err)
{
	uint64_t done = 0, offset;
	const void *data;
	size_t piece;
	int equal = 1, rc;

	while ((rc = archive_data(same->reader, &data, &piece, &offset, err)) > 0) {
		if (equal > 0) {
			equal = equals(same, fd, NULL, offset - done, done);
		}
		if (equal > 0) {
			equal = equals(same, fd, data, piece, offset);
		}
		done = offset + piece;
	}
	if (rc == 0 && equal > 0) {
		equal = equals(same, fd, NULL, size - done, done);
	}
	return rc < 0 ? rc : equal;
}

/* Whether what the record says is what is there. The contents are not looked at. */
static bool same_inode(const struct apply_record *record, const struct stat *status)
{
	const mode_t type = record->new.type == CHANGE_TYPE_FILE	? S_IFREG
			    : record->new.type == CHANGE_TYPE_DIRECTORY ? S_IFDIR
									: S_IFLNK;

	return (status->st_mode & S_IFMT) == type &&
	       (type == S_IFLNK || (status->st_mode & 07777) == record->new.mode) &&
	       status->st_uid == record->new.uid && status->st_gid == record->new.gid &&
	       (type != S_IFREG || (uint64_t)status->st_size == record->new.size);
}

static bool same_link(struct same *same, const struct apply_record *record)
{
	const char *name;
	_cleanup_close_ int parent_fd = below_open_parent(same->data_fd, record->path, &name);
	ssize_t size =
		parent_fd < 0 ? -1 : readlinkat(parent_fd, name, same->bytes, sizeof(same->bytes));

	return size >= 0 && (size_t)size == strlen(record->target) &&
	       memcmp(same->bytes, record->target, (size_t)size) == 0;
}

/* 1, 0, or a negative errno with err filled. */
static int compare(struct same *same, const struct archive_item *item,
		   const struct apply_record *record, struct err *err)
{
	_cleanup_close_ int place_fd = below_open(same->data_fd, record->path, O_PATH);
	_cleanup_close_ int fd = -EBADF;
	struct stat status;
	int rc;

	if (place_fd < 0 || fstat(place_fd, &status) < 0 || !same_inode(record, &status)) {
		return 0;
	}
	switch (item->type) {
	case ARCHIVE_ITEM_SYMLINK:
		return item->xattr_count == 0 && strcmp(item->link, record->target) == 0 &&
		       same_link(same, record);
	case ARCHIVE_ITEM_FILE:
	case ARCHIVE_ITEM_DIRECTORY:
		break;
	default:
		return 0;
	}
	if ((item->type == ARCHIVE_ITEM_FILE) != S_ISREG(status.st_mode) ||
	    item->size != record->new.size) {
		return 0;
	}
	fd = below_open(same->data_fd, record->path, O_RDONLY | O_NONBLOCK);
	if (fd < 0 || xattrs_same(fd, item, true) <= 0) {
		return 0;
	}
	rc = item->type == ARCHIVE_ITEM_FILE ? same_content(same, fd, item->size, err) : 1;
	return rc < 0 && err && !err->text[0] ? fail(record->path, rc, err) : rc;
}

/* Goes through the archive; has_come then means: it is the same. */
static int compare_all(struct same *same, struct err *err)
{
	const struct archive_item *item;
	int rc;

	while ((rc = archive_next(same->reader, &item, err)) > 0) {
		struct apply_record *record = apply_records_find(&same->records, item->path);

		if (!record || !record->has_content) {
			continue;
		}
		rc = compare(same, item, record, err);
		if (rc < 0) {
			return rc;
		}
		record->has_come = rc > 0;
	}
	return rc;
}

static int put(struct same *same, int out_fd, int size, struct err *err)
{
	int rc = size < 0 ? size : write_full(out_fd, same->frame, (size_t)size);

	return rc < 0 ? err_context(err, rc, "cannot write what is the same") : 0;
}

static int answer(struct same *same, int out_fd, struct err *err)
{
	uint64_t count = 0;
	int rc = 0;

	for (size_t i = 0; i < same->records.count && rc == 0; i++) {
		const struct apply_record *record = &same->records.list[i];
		const struct change change = {
			.kind = CHANGE_ADDED,
			.new = record->new,
			.path = record->path,
			.from = "",
			.old_target = "",
			.new_target = record->target,
		};

		if (record->has_come) {
			rc = put(same, out_fd, change_encode(&change, same->frame), err);
			count++;
		}
	}
	return rc == 0 ? put(same, out_fd, change_end_encode(count, same->frame), err) : rc;
}

int same_run(int data_fd, int in_fd, int out_fd, struct err *err)
{
	const struct archive_options options = {.keep_setuid = true};
	struct same *same = calloc(1, sizeof(*same));
	int rc;

	if (!same) {
		return err_context(err, -ENOMEM, "cannot compare");
	}
	same->data_fd = data_fd;
	rc = apply_records_read(in_fd, &same->records, err);
	if (rc == 0) {
		rc = archive_open_plain_fd(in_fd, &options, &same->reader, err);
	}
	if (rc == 0) {
		rc = compare_all(same, err);
	}
	if (rc == 0) {
		rc = answer(same, out_fd, err);
	}
	archive_close(same->reader);
	apply_records_clear(&same->records);
	free(same);
	return rc;
}

static int run(int data_fd, struct err *err)
{
	return same_run(data_fd, STDIN_FILENO, STDOUT_FILENO, err);
}

int same_main(int argc, char **argv)
{
	return applet_on_data(argc, argv, run);
}
