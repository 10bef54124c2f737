/*
 * Theory of operation.
 *
 * Two disks hold two states of one ext4, the later one begun as a copy of the earlier. What flows
 * in: their bytes, raw and through the kernel's file system. What flows out: records of what
 * differs, in the order of their paths (wire/change.h), and nothing that depends on the time, the
 * machine or the order of names in a directory.
 *
 *   diff_inodes    both inode tables are read and compared: which inodes may have changed
 *   diff_hints     where names of these are likely to be
 *   diff_renames   which directories have moved, asked of the kernel by file handles
 *   diff_walk      the new tree is walked by names alone, the old one where it differs
 *   diff_compare   what came out of that is looked at on both sides, and read where it must be
 *   diff_text      hunks of a patch
 *
 * So an unchanged file costs the bytes of its inode and of its name. A change that leaves no trace
 * in an inode, made by writing to the disk past the file system, is not found: it is not shown, and
 * never carried over.
 */
#include "guest/diff.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "archive/archive.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "guest/applet.h"
#include "guest/below.h"
#include "guest/device.h"
#include "guest/diff_compare.h"
#include "guest/diff_text.h"
#include "guest/diff_walk.h"
#include "wire/ext4.h"

/* Records gather to this before they are written. */
#define OUTPUT_BYTES ((size_t)256 << 10)
#define FRAME_BYTES ((size_t)CHANGE_FRAME_MAX + 4)
#define TEXT_BYTES ((size_t)CHANGE_FRAME_MAX - 1)

struct diff {
	const struct diff_config *config;
	struct diff_sides sides;
	struct diff_items items;
	uint64_t records;
	/* Of out_fd. */
	uint8_t output[OUTPUT_BYTES];
	size_t output_size;
	/* Of a patch. */
	char text[TEXT_BYTES];
	size_t text_size;
	/* Of the archive: the item that comes next. */
	size_t next;
};

static int fail(struct err *err, int rc, const char *what, const char *name)
{
	return err_set(err, rc, "diff", "cannot %s %s: %s", what, name, strerror(-rc));
}

/* ---- Mounting ---- */

/* Opens the block device that a mounted file system is on. */
static int open_device_of(int fd, struct err *err)
{
	char link[64], target[256], path[DEVICE_PATH_MAX];
	struct stat status;
	const char *name;
	ssize_t size;
	int device;

	if (fstat(fd, &status) < 0) {
		return fail(err, -errno, "look at", "/data");
	}
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(status.st_dev),
		 minor(status.st_dev));
	size = readlink(link, target, sizeof(target) - 1);
	if (size < 0) {
		return fail(err, -errno, "find", "the disk of /data");
	}
	target[size] = '\0';
	name = strrchr(target, '/');
	snprintf(path, sizeof(path), "/dev/%s", name ? name + 1 : target);
	device = open(path, O_RDONLY | O_CLOEXEC);
	return device < 0 ? fail(err, -errno, "open", "the disk of /data") : device;
}

/*
 * Mounts the old state over the new one, where nobody else sees it. errors=continue: what the disk
 * says should happen on an error is hostile as well, and may be a panic.
 */
static int mount_base(const struct diff_config *config, int device_fd, struct err *err)
{
	const unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME;

	/* Blocks that were cached in an earlier life of the machine may be of another disk. */
	if (ioctl(device_fd, BLKFLSBUF, 0) < 0) {
		return fail(err, -errno, "read", "the disk of the state before");
	}
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
		return fail(err, -errno, "begin", "a mount namespace");
	}
	if (mount(config->base_device, config->data, "ext4", flags, "errors=continue") < 0) {
		return fail(err, -errno, "mount", "the state before");
	}
	return 0;
}

static int check_root(int fd, const char *name, struct err *err)
{
	struct stat status;

	if (fstat(fd, &status) < 0) {
		return fail(err, -errno, "look at", name);
	}
	return status.st_ino == EXT4_ROOT_INODE
		       ? 0
		       : err_set(err, -EINVAL, "diff", "%s is not the root of an ext4", name);
}

/* Opens both states and compares their inodes. */
static int open_sides(struct diff *diff, struct err *err)
{
	const struct diff_config *config = diff->config;
	_cleanup_close_ int old_device = open(config->base_device, O_RDONLY | O_CLOEXEC);
	_cleanup_close_ int new_device = -EBADF;
	struct diff_sides *sides = &diff->sides;
	int rc = 0;

	if (old_device < 0) {
		return fail(err, -errno, "open", "the disk of the state before");
	}
	sides->new_fd = open(config->data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (sides->new_fd < 0) {
		return fail(err, -errno, "open", config->data);
	}
	/* Until then inodes wait in memory for data that has no place yet. */
	if (syncfs(sides->new_fd) < 0) {
		return fail(err, -errno, "write", config->data);
	}
	new_device = open_device_of(sides->new_fd, err);
	if (new_device < 0) {
		return new_device;
	}
	rc = mount_base(config, old_device, err);
	if (rc < 0) {
		return rc;
	}
	sides->old_fd = open(config->data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (sides->old_fd < 0) {
		return fail(err, -errno, "open", "the state before");
	}
	rc = check_root(sides->old_fd, "the state before", err);
	if (rc == 0) {
		rc = check_root(sides->new_fd, config->data, err);
	}
	if (rc < 0) {
		return rc;
	}
	if (config->mode == DIFF_BACK) {
		int fd = sides->old_fd;

		sides->old_fd = sides->new_fd;
		sides->new_fd = fd;
		sides->without_renames = true;
		return diff_inodes(new_device, old_device, &sides->changes, err);
	}
	return diff_inodes(old_device, new_device, &sides->changes, err);
}

/* ---- Output ---- */

static int flush(struct diff *diff, struct err *err)
{
	int rc = write_full(diff->config->out_fd, diff->output, diff->output_size);

	diff->output_size = 0;
	return rc < 0 ? fail(err, rc, "write", "what changed") : 0;
}

/* Where the next frame goes, or NULL when what is there cannot be written. */
static uint8_t *frame_place(struct diff *diff, struct err *err)
{
	if (OUTPUT_BYTES - diff->output_size < FRAME_BYTES && flush(diff, err) < 0) {
		return NULL;
	}
	return diff->output + diff->output_size;
}

static int put_record(struct diff *diff, const struct change *change, struct err *err)
{
	uint8_t *place = frame_place(diff, err);
	char quoted[ARCHIVE_QUOTED_MAX];
	int size;

	if (!place) {
		return -EIO;
	}
	if (diff->records == CHANGE_RECORDS_MAX) {
		return err_set(err, -E2BIG, "diff-too-many", "more than 10 million paths changed");
	}
	size = change_encode(change, place);
	if (size < 0) {
		/* Such as an owner that is Linux's "no ID". */
		return err_set(err, -EBADMSG, "diff-broken",
			       "the file system is broken at %s: what it says there cannot be",
			       archive_quote(change->path, quoted));
	}
	diff->output_size += (size_t)size;
	diff->records++;
	return 0;
}

static int flush_text(struct diff *diff, struct err *err)
{
	uint8_t *place = frame_place(diff, err);
	int size;

	if (!place) {
		return -EIO;
	}
	if (diff->text_size > 0) {
		size = change_text_encode(diff->text, diff->text_size, place);
		ASSERT(size > 0);
		diff->output_size += (size_t)size;
		diff->text_size = 0;
	}
	return 0;
}

struct text_output {
	struct diff *diff;
	struct err *err;
};

static int put_text(void *data, const char *piece, size_t size)
{
	const struct text_output *output = data;
	struct diff *diff = output->diff;

	while (size > 0) {
		size_t part = MIN(size, TEXT_BYTES - diff->text_size);

		memcpy(diff->text + diff->text_size, piece, part);
		diff->text_size += part;
		piece += part;
		size -= part;
		if (diff->text_size == TEXT_BYTES) {
			int rc = flush_text(diff, output->err);

			if (rc < 0) {
				return rc;
			}
		}
	}
	return 0;
}

/* ---- Patches ---- */

/* Reads the file of one side; what is no file is an empty one. */
static int read_text(int root_fd, const char *path, const struct change_side *side, char **ret_text,
		     struct err *err)
{
	size_t size = side->type == CHANGE_TYPE_FILE ? (size_t)side->size : 0;
	_cleanup_free_ char *text = malloc(size + 1);
	_cleanup_close_ int fd = -EBADF;
	char quoted[ARCHIVE_QUOTED_MAX];
	ssize_t got;

	if (!text) {
		return fail(err, -ENOMEM, "read", archive_quote(path, quoted));
	}
	if (size > 0) {
		fd = below_open(root_fd, path, O_RDONLY | O_NONBLOCK);
		if (fd < 0) {
			return fail(err, fd, "read", archive_quote(path, quoted));
		}
		got = read_full(fd, text, size);
		if (got < (ssize_t)size) {
			return fail(err, got < 0 ? (int)got : -EIO, "read",
				    archive_quote(path, quoted));
		}
	}
	*ret_text = TAKE_PTR(text);
	return 0;
}

static int put_patch(struct diff *diff, const struct diff_item *item, const struct change *change,
		     struct err *err)
{
	size_t old_size = (size_t)MIN(change->old.size, (uint64_t)DIFF_TEXT_MAX + 1);
	size_t new_size = (size_t)MIN(change->new.size, (uint64_t)DIFF_TEXT_MAX + 1);
	bool same = change->old.type == change->new.type && !(change->flags & CHANGE_FLAG_CONTENT);
	struct text_output output = {diff, err};
	_cleanup_free_ char *old = NULL, *new = NULL;
	int rc;

	/* Only files have a size. */
	if (same || old_size > DIFF_TEXT_MAX || new_size > DIFF_TEXT_MAX ||
	    old_size + new_size == 0) {
		return 0;
	}
	rc = read_text(diff->sides.old_fd, item->old, &change->old, &old, err);
	if (rc == 0) {
		rc = read_text(diff->sides.new_fd, item->path, &change->new, &new, err);
	}
	if (rc < 0 || !diff_text_is_text(old, old_size) || !diff_text_is_text(new, new_size)) {
		return rc;
	}
	rc = diff_text(old, old_size, new, new_size, put_text, &output);
	if (rc == -ENOMEM) {
		char quoted[ARCHIVE_QUOTED_MAX];

		return fail(err, rc, "compare", archive_quote(item->path, quoted));
	}
	return rc < 0 ? rc : flush_text(diff, err);
}

/* ---- The stream ---- */

static int put_item(struct diff *diff, struct diff_compare *compare, struct diff_item *item,
		    struct err *err)
{
	struct change change;
	int rc = diff_compare_item(compare, item, &change, err);

	if (rc <= 0) {
		return rc;
	}
	item->has_content = change_has_content(&change);
	rc = put_record(diff, &change, err);
	return rc == 0 && diff->config->mode == DIFF_PATCH ? put_patch(diff, item, &change, err)
							   : rc;
}

static const char *next_path(void *data)
{
	struct diff *diff = data;

	while (diff->next < diff->items.count) {
		const struct diff_item *item = &diff->items.list[diff->next++];

		if (item->has_content) {
			return item->path;
		}
	}
	return NULL;
}

static int put_stream(struct diff *diff, struct err *err)
{
	_cleanup_(diff_compare_freep) struct diff_compare *compare = diff_compare_new(&diff->sides);
	uint8_t *place;
	int size, rc = compare ? 0 : fail(err, -ENOMEM, "compare", "two states");

	for (size_t i = 0; i < diff->items.count && rc == 0; i++) {
		rc = put_item(diff, compare, &diff->items.list[i], err);
	}
	if (rc < 0) {
		return rc;
	}
	place = frame_place(diff, err);
	if (!place) {
		return -EIO;
	}
	size = change_end_encode(diff->records, place);
	ASSERT(size > 0);
	diff->output_size += (size_t)size;
	rc = flush(diff, err);
	if (rc == 0 && (diff->config->mode == DIFF_CONTENT || diff->config->mode == DIFF_BACK)) {
		rc = archive_write_chosen(diff->sides.new_fd, next_path, diff, diff->config->out_fd,
					  err);
	}
	return rc;
}

static void diff_free(struct diff *diff)
{
	close_fd(&diff->sides.old_fd);
	close_fd(&diff->sides.new_fd);
	inode_changes_clear(&diff->sides.changes);
	diff_items_clear(&diff->items);
	free(diff);
}

int diff_run(const struct diff_config *config, struct err *err)
{
	struct diff *diff = calloc(1, sizeof(*diff));
	int rc;

	if (!diff) {
		return fail(err, -ENOMEM, "compare", "two states");
	}
	diff->config = config;
	diff->sides.old_fd = -EBADF;
	diff->sides.new_fd = -EBADF;
	rc = open_sides(diff, err);
	if (rc == 0) {
		rc = diff_walk(&diff->sides, &diff->items, err);
	}
	if (rc == 0) {
		rc = put_stream(diff, err);
	}
	diff_free(diff);
	return rc;
}

int diff_main(int argc, char **argv)
{
	char device[DEVICE_PATH_MAX];
	struct diff_config config = {
		.data = "/data",
		.base_device = device,
		.out_fd = STDOUT_FILENO,
	};
	struct err err = {0};

	if (argc == 2 && strcmp(argv[1], "content") == 0) {
		config.mode = DIFF_CONTENT;
	} else if (argc == 2 && strcmp(argv[1], "patch") == 0) {
		config.mode = DIFF_PATCH;
	} else if (argc == 2 && strcmp(argv[1], "back") == 0) {
		config.mode = DIFF_BACK;
	} else if (argc != 1) {
		dprintf(STDERR_FILENO, "the command line of box-diff cannot be read\n");
		return 1;
	}
	if (!device_find("/sys/block", "serial", "base", device, sizeof(device))) {
		dprintf(STDERR_FILENO, "this machine has no disk with serial \"base\"\n");
		return 1;
	}
	return applet_end(diff_run(&config, &err), &err);
}
