/*
 * Theory of operation.
 *
 * What flows in: checked items of an archive (src/archive) in any order in which parents come
 * first. What flows out: an ext4 file system in the output descriptor. Files go straight to disk
 * as they come: an inode number is taken, data is written in pieces of up to 1 MiB into the next
 * free blocks, then the inode. Directories get their inodes as they come, but their blocks at the
 * end, when all names are known (dir.c); until then a name costs 4 bytes here and about 30 in the
 * archive's table.
 *
 * An image that is too small is found out in the middle. From there on nothing is written, but the
 * archive is read to its end, so that the error can say how much would have been enough.
 *
 * What may never happen: reading the image back as anything but what we wrote, a partial image
 * with success, or a file system that e2fsck finds fault with.
 */
#include "image/image.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "archive/archive.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "image/dir.h"
#include "image/ext4.h"
#include "image/file.h"

/* 10 lines a second look smooth to a person and cost nothing. */
#define PROGRESS_PERIOD_NS 100000000u
#define LOST_FOUND "lost+found"
/* Room for e2fsck to link lost files without taking blocks; mke2fs gives the same 16 KiB. */
#define LOST_FOUND_BLOCKS 4
/* Where file extents end: block numbers in a file are 32 bits. */
#define FILE_BLOCKS_MAX UINT32_MAX
/* A symbolic link shorter than this stands in its inode. */
#define FAST_LINK_MAX sizeof(((struct ext2_inode_large *)NULL)->i_block)

struct fill {
	struct ext4 image;
	struct archive_reader *reader;
	/* Inode of each name, by its number. */
	ext2_ino_t *inodes;
	uint32_t capacity;
	ext2_ino_t lost_found;
	/* What the content needs, counted whether it finds room or not. */
	uint64_t blocks_needed;
	uint64_t inodes_needed;
	bool full;
	int progress_fd;
	uint64_t progress_ns;
};

static void fill_clear(struct fill *fill)
{
	archive_close(fill->reader);
	free(fill->inodes);
	ext4_clear(&fill->image);
}

static void report_progress(struct fill *fill, bool last)
{
	uint64_t now;
	char line[64];
	int size;

	if (fill->progress_fd < 0) {
		return;
	}
	now = clock_monotonic_ns();
	if (!last && now - fill->progress_ns < PROGRESS_PERIOD_NS) {
		return;
	}
	fill->progress_ns = now;
	size = snprintf(line, sizeof(line), "progress %llu %llu\n",
			(unsigned long long)archive_bytes_read(fill->reader),
			(unsigned long long)archive_entry_count(fill->reader));
	/* Progress is a courtesy: when nobody listens any more, it ends. */
	if (write_full(fill->progress_fd, line, (size_t)size) < 0) {
		fill->progress_fd = -EBADF;
	}
}

static int item_error(const struct archive_item *item, int rc, struct err *err, const char *why)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(err, rc, "image-failed", "image: %s: %s", archive_quote(item->path, quoted),
		       why);
}

static int set_inode(struct fill *fill, uint32_t id, ext2_ino_t ino, struct err *err)
{
	if (id >= fill->capacity) {
		uint32_t capacity = MAX(id + 1, fill->capacity ? fill->capacity * 2 : 1024);
		ext2_ino_t *grown = reallocarray(fill->inodes, capacity, sizeof(*grown));

		if (!grown) {
			return err_set(err, -ENOMEM, "image-failed", "image: %s", strerror(ENOMEM));
		}
		memset(grown + fill->capacity, 0, (capacity - fill->capacity) * sizeof(*grown));
		fill->inodes = grown;
		fill->capacity = capacity;
	}
	fill->inodes[id] = ino;
	return 0;
}

/* Takes a number for the item, unless it has one: the root, lost+found, a directory again. */
static int number_item(struct fill *fill, const struct archive_item *item, ext2_ino_t *ret_ino,
		       struct err *err)
{
	bool directory = item->type == ARCHIVE_ITEM_DIRECTORY;
	int rc;

	if (item->id == 0) {
		*ret_ino = EXT2_ROOT_INO;
	} else if (item->again) {
		*ret_ino = fill->inodes[item->id];
	} else if (item->parent_id == 0 && strcmp(item->path, LOST_FOUND) == 0) {
		if (!directory) {
			return item_error(item, -EBADMSG, err, "this name is kept for a directory");
		}
		*ret_ino = fill->lost_found;
	} else {
		rc = ext4_take_inode(&fill->image, directory, ret_ino);
		if (rc < 0) {
			return rc;
		}
	}
	return set_inode(fill, item->id, *ret_ino, err);
}

static int add_xattrs(struct fill *fill, const struct archive_item *item, ext2_ino_t ino,
		      struct err *err)
{
	struct ext2_xattr_handle *handle = NULL;
	errcode_t code;

	if (item->xattr_count == 0) {
		return 0;
	}
	code = ext2fs_xattrs_open(fill->image.fs, ino, &handle);
	if (!code) {
		code = ext2fs_xattrs_read(handle);
	}
	for (size_t i = 0; !code && i < item->xattr_count; i++) {
		const struct archive_xattr *xattr = &item->xattrs[i];

		code = ext2fs_xattr_set(handle, xattr->name, xattr->value, xattr->size);
	}
	if (handle) {
		/* Writes what was not written yet. */
		errcode_t closed = ext2fs_xattrs_close(&handle);

		code = code ? code : closed;
	}
	if (code == EXT2_ET_EA_NO_SPACE) {
		return item_error(item, -E2BIG, err, "its extended attributes do not fit");
	}
	return code ? ext4_error(code, "image: cannot write attributes", err) : 0;
}

/* The next piece of data, counted. Returns as archive_data. */
static int next_data(struct fill *fill, const void **ret_data, size_t *ret_size,
		     uint64_t *ret_offset, uint64_t *total, struct err *err)
{
	int rc = archive_data(fill->reader, ret_data, ret_size, ret_offset, err);

	if (rc > 0) {
		*total += *ret_size;
		report_progress(fill, false);
	}
	return rc;
}

static int add_file(struct fill *fill, const struct archive_item *item, ext2_ino_t ino,
		    struct ext2_inode_large *inode, struct err *err)
{
	_cleanup_(file_clear) struct file_writer writer = {0};
	uint64_t total = 0, offset;
	const void *data;
	size_t size;
	int rc, got = 0;

	if (item->size > (uint64_t)FILE_BLOCKS_MAX * EXT4_BLOCK_BYTES) {
		return item_error(item, -EFBIG, err, "a file of 16 TiB or more does not fit");
	}
	rc = file_begin(&writer, &fill->image, ino, inode, err);
	while (rc == 0 && (got = next_data(fill, &data, &size, &offset, &total, err)) > 0) {
		rc = file_write(&writer, offset, data, size, err);
	}
	if (got < 0) {
		return got;
	}
	if (rc == 0) {
		rc = file_end(&writer, item->size, err);
	}
	fill->blocks_needed += (total + EXT4_BLOCK_BYTES - 1) / EXT4_BLOCK_BYTES;
	return rc;
}

static int add_symlink(struct fill *fill, const struct archive_item *item, ext2_ino_t ino,
		       struct ext2_inode_large *inode, struct err *err)
{
	_cleanup_(file_clear) struct file_writer writer = {0};
	size_t size = strlen(item->link);
	int rc;

	if (size < FAST_LINK_MAX) {
		memcpy(inode->i_block, item->link, size);
		inode->i_size = (uint32_t)size;
		return 0;
	}
	/* The kernel wants a NUL behind it in the same block. */
	if (size >= EXT4_BLOCK_BYTES) {
		return item_error(item, -ENAMETOOLONG, err, "its target is over 4095 bytes");
	}
	rc = file_begin(&writer, &fill->image, ino, inode, err);
	if (rc == 0) {
		rc = file_write(&writer, 0, item->link, size, err);
	}
	if (rc == 0) {
		rc = file_end(&writer, size, err);
	}
	fill->blocks_needed++;
	return rc;
}

/* A directory again: new attributes, everything else stays. */
static int change_directory(struct fill *fill, const struct ext2_inode_large *wanted,
			    ext2_ino_t ino, struct err *err)
{
	struct ext2_inode_large inode;
	int rc = ext4_read_inode(&fill->image, ino, &inode, err);
	struct ext2_inode_large changed = *wanted;

	if (rc < 0) {
		return rc;
	}
	memcpy(changed.i_block, inode.i_block, sizeof(inode.i_block));
	changed.i_blocks = inode.i_blocks;
	changed.i_flags = inode.i_flags;
	changed.i_file_acl = inode.i_file_acl;
	return ext4_write_inode(&fill->image, ino, &changed, err);
}

static uint16_t mode_of(const struct archive_item *item)
{
	static const uint32_t types[] = {
		[ARCHIVE_ITEM_DIRECTORY] = S_IFDIR,
		[ARCHIVE_ITEM_FILE] = S_IFREG,
		[ARCHIVE_ITEM_SYMLINK] = S_IFLNK,
	};

	/* The permissions of a symbolic link mean nothing; Linux shows them all. */
	return (uint16_t)(types[item->type] |
			  (item->type == ARCHIVE_ITEM_SYMLINK ? 0777 : item->mode));
}

static int add_hard_link(struct fill *fill, const struct archive_item *item, struct err *err)
{
	struct ext2_inode_large inode;
	ext2_ino_t ino = fill->inodes[item->link_id];
	int rc = ext4_read_inode(&fill->image, ino, &inode, err);

	if (rc < 0) {
		return rc;
	}
	if (inode.i_links_count >= EXT2_LINK_MAX) {
		return item_error(item, -EMLINK, err, "its target has 65000 names already");
	}
	inode.i_links_count++;
	rc = ext4_write_inode(&fill->image, ino, &inode, err);
	return rc < 0 ? rc : set_inode(fill, item->id, ino, err);
}

static int add_item(struct fill *fill, const struct archive_item *item, struct err *err)
{
	struct ext4_attributes attributes = {
		.uid = item->uid,
		.gid = item->gid,
		.mtime_s = item->mtime_s,
		.mtime_ns = item->mtime_ns,
	};
	struct ext2_inode_large inode;
	ext2_ino_t ino;
	int rc;

	if (item->type == ARCHIVE_ITEM_HARDLINK) {
		return add_hard_link(fill, item, err);
	}
	rc = number_item(fill, item, &ino, err);
	if (rc < 0) {
		return rc;
	}
	attributes.mode = mode_of(item);
	ext4_fill_inode(&attributes, &inode);
	if (item->type == ARCHIVE_ITEM_FILE) {
		rc = add_file(fill, item, ino, &inode, err);
	} else if (item->type == ARCHIVE_ITEM_SYMLINK) {
		rc = add_symlink(fill, item, ino, &inode, err);
	} else if (item->again) {
		rc = change_directory(fill, &inode, ino, err);
		return rc < 0 ? rc : add_xattrs(fill, item, ino, err);
	}
	if (rc == 0) {
		rc = ext4_write_inode(&fill->image, ino, &inode, err);
	}
	return rc < 0 ? rc : add_xattrs(fill, item, ino, err);
}

/* Once the image is full, only counts. */
static int count_item(struct fill *fill, struct err *err)
{
	uint64_t total = 0, offset;
	const void *data;
	size_t size;
	int rc;

	while ((rc = next_data(fill, &data, &size, &offset, &total, err)) > 0) {
	}
	fill->blocks_needed += (total + EXT4_BLOCK_BYTES - 1) / EXT4_BLOCK_BYTES;
	return rc;
}

static int add_items(struct fill *fill, struct err *err)
{
	const struct archive_item *item;
	int rc;

	while ((rc = archive_next(fill->reader, &item, err)) > 0) {
		report_progress(fill, false);
		if (item->type != ARCHIVE_ITEM_HARDLINK && !item->again) {
			fill->inodes_needed++;
			fill->blocks_needed += item->type == ARCHIVE_ITEM_DIRECTORY;
		}
		rc = fill->full ? 0 : add_item(fill, item, err);
		if (rc == -EDQUOT) {
			fill->full = true;
		} else if (rc < 0) {
			return rc;
		}
		if (fill->full) {
			rc = count_item(fill, err);
			if (rc < 0) {
				return rc;
			}
		}
	}
	return rc;
}

static int too_small(struct fill *fill, const struct image_options *options, struct err *err)
{
	/* A little more than counted, since names in directories were not. */
	uint64_t needed =
		ext4_size_for(fill->blocks_needed, fill->inodes_needed) + fill->inodes_needed * 64;
	uint64_t mib = (MAX(needed, options->size_bytes + 1) >> 20) + 1;

	err_set(err, -EFBIG, "image-too-small",
		"image: %llu MiB are too small for its content, which needs about %llu MiB",
		(unsigned long long)(options->size_bytes >> 20), (unsigned long long)mib);
	err_mend(err, "set disk_size to %lluM or more in the Boxfile", (unsigned long long)mib);
	return -EFBIG;
}

/* Names by directory: those of directory id are order[start[id]] to order[start[id + 1] - 1]. */
struct children {
	uint32_t *start;
	uint32_t *order;
};

static void children_clear(struct children *children)
{
	free(children->start);
	free(children->order);
}

/* Sorts the numbers of all names by their parents, by counting. */
static int sort_children(const struct archive_reader *reader, struct children *ret_children)
{
	_cleanup_(children_clear) struct children children = {0};
	uint32_t count = archive_name_count(reader), parent;
	enum archive_type type;

	children.start = calloc((size_t)count + 2, sizeof(*children.start));
	children.order = calloc(count, sizeof(*children.order));
	if (!children.start || !children.order) {
		return -ENOMEM;
	}
	for (uint32_t id = 1; id < count; id++) {
		archive_name(reader, id, &parent, &type);
		children.start[parent + 2]++;
	}
	for (uint32_t id = 2; id < count + 2; id++) {
		children.start[id] += children.start[id - 1];
	}
	for (uint32_t id = 1; id < count; id++) {
		archive_name(reader, id, &parent, &type);
		children.order[children.start[parent + 1]++] = id;
	}
	*ret_children = children;
	children = (struct children){0};
	return 0;
}

static struct dir_entry lost_found_entry(const struct fill *fill)
{
	return (struct dir_entry){
		.name = LOST_FOUND,
		.name_size = (uint8_t)strlen(LOST_FOUND),
		.type = EXT2_FT_DIR,
		.ino = fill->lost_found,
	};
}

static int write_directory(struct fill *fill, const struct children *children, uint32_t id,
			   struct err *err)
{
	static const uint8_t types[] = {
		[ARCHIVE_ITEM_DIRECTORY] = EXT2_FT_DIR,
		[ARCHIVE_ITEM_FILE] = EXT2_FT_REG_FILE,
		[ARCHIVE_ITEM_SYMLINK] = EXT2_FT_SYMLINK,
	};
	_cleanup_free_ struct dir_entry *entries = NULL;
	uint32_t from = children->start[id], to = children->start[id + 1];
	uint32_t count = 0, parent, parent_of_name;
	ext2_ino_t ino = fill->inodes[id];
	bool need_lost_found = id == 0;
	struct dir_list list;
	enum archive_type type;

	entries = calloc((size_t)(to - from) + 1, sizeof(*entries));
	if (!entries) {
		return err_set(err, -ENOMEM, "image-failed", "image: %s", strerror(ENOMEM));
	}
	archive_name(fill->reader, id, &parent, &type);
	for (uint32_t i = from; i < to; i++) {
		uint32_t name_id = children->order[i];
		const char *name = archive_name(fill->reader, name_id, &parent_of_name, &type);

		if (type == ARCHIVE_ITEM_DROPPED) {
			continue;
		}
		entries[count++] = (struct dir_entry){
			.name = name,
			.name_size = (uint8_t)strlen(name),
			.type = types[type],
			.ino = fill->inodes[name_id],
		};
		need_lost_found &= fill->inodes[name_id] != fill->lost_found;
	}
	if (need_lost_found) {
		entries[count++] = lost_found_entry(fill);
	}
	list = (struct dir_list){
		.entries = entries,
		.count = count,
		.min_blocks = ino == fill->lost_found ? LOST_FOUND_BLOCKS : 0,
	};
	return dir_write(&fill->image, ino, fill->inodes[parent], &list, err);
}

/* The root and lost+found exist before anything comes. An empty disk is for whoever uses it: its
 * root is as that of /tmp. */
static int make_first_directories(struct fill *fill, struct err *err)
{
	struct ext4_attributes attributes = {.mode = S_IFDIR | (fill->reader ? 0755 : 01777)};
	struct ext2_inode_large inode;
	int rc;

	attributes.mtime_s = (int64_t)fill->image.fs->now;
	ext4_fill_inode(&attributes, &inode);
	rc = ext4_write_inode(&fill->image, EXT2_ROOT_INO, &inode, err);
	if (rc == 0) {
		rc = set_inode(fill, 0, EXT2_ROOT_INO, err);
	}
	if (rc == 0) {
		rc = ext4_take_inode(&fill->image, true, &fill->lost_found);
	}
	attributes.mode = S_IFDIR | 0700;
	ext4_fill_inode(&attributes, &inode);
	return rc < 0 ? rc : ext4_write_inode(&fill->image, fill->lost_found, &inode, err);
}

static int write_lost_found(struct fill *fill, struct err *err)
{
	struct dir_list list = {.min_blocks = LOST_FOUND_BLOCKS};

	return dir_write(&fill->image, fill->lost_found, EXT2_ROOT_INO, &list, err);
}

static int write_directories(struct fill *fill, struct err *err)
{
	_cleanup_(children_clear) struct children children = {0};
	uint32_t count = archive_name_count(fill->reader), parent;
	bool need_lost_found = true;
	int rc = sort_children(fill->reader, &children);

	if (rc < 0) {
		return err_set(err, rc, "image-failed", "image: %s", strerror(-rc));
	}
	for (uint32_t id = 0; id < count && rc == 0; id++) {
		enum archive_type type;

		archive_name(fill->reader, id, &parent, &type);
		if (type == ARCHIVE_ITEM_DIRECTORY) {
			need_lost_found &= fill->inodes[id] != fill->lost_found;
			rc = write_directory(fill, &children, id, err);
		}
	}
	if (rc == 0 && need_lost_found) {
		rc = write_lost_found(fill, err);
	}
	return rc;
}

int image_make_empty(int out_fd, const struct image_options *options, struct err *err)
{
	_cleanup_(fill_clear) struct fill fill = {0};
	struct dir_entry entry;
	struct dir_list root = {.entries = &entry, .count = 1};
	int rc = ext4_create(out_fd, options, &fill.image, err);

	if (rc == 0) {
		rc = make_first_directories(&fill, err);
	}
	if (rc == 0) {
		entry = lost_found_entry(&fill);
		rc = dir_write(&fill.image, EXT2_ROOT_INO, EXT2_ROOT_INO, &root, err);
	}
	if (rc == 0) {
		rc = write_lost_found(&fill, err);
	}
	if (rc == 0) {
		rc = ext4_finish(&fill.image, err);
	}
	return rc == -EDQUOT ? too_small(&fill, options, err) : rc;
}

int image_make_from_tar(int in_fd, int out_fd, const struct image_options *options,
			struct image_result *ret_result, struct err *err)
{
	static const struct archive_options archive_options = {
		.keep_setuid = true,
		.drop_devices = true,
	};
	_cleanup_(fill_clear) struct fill fill = {
		.progress_fd = options->progress_fd,
		.progress_ns = clock_monotonic_ns(),
	};
	int rc = archive_open_fd(in_fd, &archive_options, &fill.reader, err);

	if (rc == 0) {
		rc = ext4_create(out_fd, options, &fill.image, err);
	}
	if (rc == 0) {
		rc = make_first_directories(&fill, err);
	}
	if (rc == 0) {
		rc = add_items(&fill, err);
	}
	if (rc == 0 && fill.full) {
		rc = -EDQUOT;
	}
	if (rc == 0) {
		rc = write_directories(&fill, err);
	}
	if (rc == 0) {
		rc = ext4_finish(&fill.image, err);
	}
	if (rc < 0) {
		return rc == -EDQUOT ? too_small(&fill, options, err) : rc;
	}
	report_progress(&fill, true);
	ret_result->entries = archive_entry_count(fill.reader);
	ret_result->dropped = archive_dropped_count(fill.reader);
	return 0;
}
