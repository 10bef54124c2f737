#include "image/ext4.h"

#include <et/com_err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "image/file.h"

/* 2^4: bitmaps and inode tables of 16 groups stand together, as mke2fs places them. */
#define LOG_GROUPS_PER_FLEX 4
/* Everything after the 128 bytes of the first ext2 that struct ext2_inode_large names. */
#define EXTRA_INODE_BYTES 32

int ext4_error(errcode_t code, const char *what, struct err *err)
{
	if (code == EXT2_ET_BLOCK_ALLOC_FAIL || code == EXT2_ET_INODE_ALLOC_FAIL) {
		return -EDQUOT;
	}
	if (code == ENOSPC) {
		err_set(err, -ENOSPC, "host-full",
			"%s: no space left on the file system that holds the image", what);
		err_mend(err, "make room there, or move BOX_HOME to a larger file system");
		return -ENOSPC;
	}
	if (code == EFBIG) {
		return err_set(err, -EFBIG, "image-failed",
			       "%s: a file of this size is not allowed there", what);
	}
	if (code == EXT2_ET_NO_MEMORY || code == ENOMEM) {
		return err_set(err, -ENOMEM, "image-failed", "%s: %s", what, strerror(ENOMEM));
	}
	/* Small codes are errno, the rest belongs to libext2fs. */
	return err_set(err, code > 0 && code < 4096 ? -(int)code : -EIO, "image-failed", "%s: %s",
		       what, error_message(code));
}

static void set_features(struct ext2_super_block *super)
{
	ext2fs_set_feature_journal(super);
	ext2fs_set_feature_xattr(super);
	ext2fs_set_feature_dir_index(super);
	ext2fs_set_feature_filetype(super);
	ext2fs_set_feature_extents(super);
	ext2fs_set_feature_64bit(super);
	ext2fs_set_feature_flex_bg(super);
	ext2fs_set_feature_sparse_super(super);
	ext2fs_set_feature_large_file(super);
	ext2fs_set_feature_huge_file(super);
	ext2fs_set_feature_dir_nlink(super);
	ext2fs_set_feature_extra_isize(super);
	ext2fs_set_feature_metadata_csum(super);
}

/* What depends on the UUID and the tables, after libext2fs has chosen their places. */
static void set_identity(ext2_filsys fs, const struct image_options *options)
{
	struct ext2_super_block *super = fs->super;

	memcpy(super->s_uuid, options->uuid, sizeof(super->s_uuid));
	/* The seed only has to differ between images; a guest's names cannot be foreseen anyway. */
	for (size_t i = 0; i < 4; i++) {
		memcpy(&super->s_hash_seed[i], options->uuid + 4 * i, 4);
	}
	memcpy(super->s_volume_name, options->label, strlen(options->label));
	super->s_def_hash_version = EXT2_HASH_HALF_MD4;
	super->s_flags |= EXT2_FLAGS_SIGNED_HASH;
	super->s_checksum_type = EXT2_CRC32C_CHKSUM;
	super->s_errors = EXT2_ERRORS_DEFAULT;
	super->s_max_mnt_count = -1;
	super->s_min_extra_isize = EXTRA_INODE_BYTES;
	super->s_want_extra_isize = EXTRA_INODE_BYTES;
	super->s_default_mount_opts = 0;
	super->s_mkfs_time = (uint32_t)fs->now;
	ext2fs_r_blocks_count_set(super, 0);
	ext2fs_init_csum_seed(fs);
}

/*
 * The file was empty and grew to its size, so every table reads as zeros already. Saying so keeps
 * the guest's kernel from writing them all in the background after the first mount.
 */
static void mark_tables_zeroed(ext2_filsys fs)
{
	for (dgrp_t group = 0; group < fs->group_desc_count; group++) {
		ext2fs_bg_flags_set(fs, group, EXT2_BG_INODE_ZEROED);
		ext2fs_group_desc_csum_set(fs, group);
	}
}

static errcode_t lay_out(struct ext4 *image, const struct image_options *options)
{
	struct ext2_super_block parameters = {0};
	char name[16];
	int copy = dup(image->fd);
	errcode_t code;
	ext2_filsys fs;

	if (copy < 0) {
		return errno;
	}
	snprintf(name, sizeof(name), "%d", copy);
	parameters.s_rev_level = EXT2_DYNAMIC_REV;
	parameters.s_log_block_size = 2;
	parameters.s_log_cluster_size = 2;
	parameters.s_inode_size = 256;
	parameters.s_inodes_count = (uint32_t)(options->size_bytes / EXT4_BYTES_PER_INODE);
	parameters.s_log_groups_per_flex = LOG_GROUPS_PER_FLEX;
	/* Of exactly 16 TiB the last block has a number that libext2fs does not take. */
	ext2fs_blocks_count_set(&parameters,
				MIN(options->size_bytes / EXT4_BLOCK_BYTES, UINT32_MAX));
	set_features(&parameters);
	code = ext2fs_initialize(name, EXT2_FLAG_64BITS, &parameters, unixfd_io_manager,
				 &image->fs);
	if (code) {
		/* libext2fs has closed the copy. */
		return code;
	}
	fs = image->fs;
	fs->now = time(NULL);
	fs->umask = 022;
	set_identity(fs, options);
	code = ext2fs_allocate_tables(fs);
	if (code) {
		return code;
	}
	mark_tables_zeroed(fs);
	for (ext2_ino_t ino = EXT2_BAD_INO; ino < EXT2_FIRST_INODE(fs->super); ino++) {
		ext2fs_inode_alloc_stats2(fs, ino, 1, ino == EXT2_ROOT_INO);
	}
	image->next_inode = EXT2_FIRST_INODE(fs->super);
	image->next_block = fs->super->s_first_data_block;
	return 0;
}

/* The size is mke2fs's, which grows with the image from 4 MiB. Its blocks read as zeros already. */
static errcode_t add_journal(ext2_filsys fs)
{
	int blocks = ext2fs_default_journal_size(ext2fs_blocks_count(fs->super));

	if (blocks <= 0) {
		return EXT2_ET_BLOCK_ALLOC_FAIL;
	}
	return ext2fs_add_journal_inode2(fs, (blk_t)blocks, fs->super->s_first_data_block,
					 EXT2_MKJOURNAL_LAZYINIT | EXT2_MKJOURNAL_NO_MNT_CHECK);
}

static int check_output(int fd, const struct image_options *options, struct err *err)
{
	struct stat status;

	if (options->size_bytes < IMAGE_SIZE_MIN || options->size_bytes > IMAGE_SIZE_MAX) {
		return err_set(err, -EINVAL, "image-failed",
			       "image: its size must be from 8 MiB to 16 TiB");
	}
	if (fstat(fd, &status) < 0) {
		return err_set(err, -errno, "image-failed", "image: %s", strerror(errno));
	}
	if (!S_ISREG(status.st_mode) || status.st_size != 0) {
		return err_set(err, -EINVAL, "image-failed",
			       "image: the output must be an empty regular file");
	}
	if (ftruncate(fd, (off_t)options->size_bytes) < 0) {
		return ext4_error(errno, "image: cannot set its size", err);
	}
	return 0;
}

int ext4_create(int fd, const struct image_options *options, struct ext4 *ret_image,
		struct err *err)
{
	_cleanup_(ext4_clear) struct ext4 image = {.fd = fd};
	errcode_t code;
	int rc;

	initialize_ext2_error_table();
	rc = check_output(fd, options, err);
	if (rc < 0) {
		return rc;
	}
	image.chunk = malloc(FILE_CHUNK_BYTES);
	if (!image.chunk) {
		return err_set(err, -ENOMEM, "image-failed", "image: %s", strerror(ENOMEM));
	}
	code = lay_out(&image, options);
	if (!code) {
		code = add_journal(image.fs);
	}
	if (code) {
		return ext4_error(code, "image: cannot lay it out", err);
	}
	*ret_image = image;
	image = (struct ext4){0};
	return 0;
}

int ext4_finish(struct ext4 *image, struct err *err)
{
	errcode_t code = ext2fs_close_free(&image->fs);

	if (code) {
		return ext4_error(code, "image: cannot write its tables", err);
	}
	if (fsync(image->fd) < 0) {
		return ext4_error(errno, "image: cannot sync it", err);
	}
	return 0;
}

void ext4_clear(struct ext4 *image)
{
	if (image->fs) {
		ext2fs_free(image->fs);
	}
	free(image->chunk);
	*image = (struct ext4){0};
}

int ext4_take_blocks(struct ext4 *image, uint32_t wanted, blk64_t *ret_first, uint32_t *ret_count,
		     struct err *err)
{
	ext2_filsys fs = image->fs;
	blk64_t last = ext2fs_blocks_count(fs->super) - 1;
	blk64_t first, stop, end;
	errcode_t code;

	if (image->next_block > last) {
		return -EDQUOT;
	}
	code = ext2fs_find_first_zero_block_bitmap2(fs->block_map, image->next_block, last, &first);
	if (code == ENOENT) {
		image->next_block = last + 1;
		return -EDQUOT;
	}
	if (code) {
		return ext4_error(code, "image: cannot find room", err);
	}
	end = MIN(first + wanted - 1, last);
	code = ext2fs_find_first_set_block_bitmap2(fs->block_map, first, end, &stop);
	if (code == ENOENT) {
		stop = end + 1;
	} else if (code) {
		return ext4_error(code, "image: cannot find room", err);
	}
	*ret_first = first;
	*ret_count = (uint32_t)(stop - first);
	ext2fs_block_alloc_stats_range(fs, first, *ret_count, 1);
	image->next_block = stop;
	return 0;
}

int ext4_take_inode(struct ext4 *image, bool directory, ext2_ino_t *ret_ino)
{
	if (image->next_inode > image->fs->super->s_inodes_count) {
		return -EDQUOT;
	}
	*ret_ino = image->next_inode++;
	ext2fs_inode_alloc_stats2(image->fs, *ret_ino, 1, directory);
	return 0;
}

/* Seconds beyond 2038 go into two bits beside the nanoseconds; what does not fit is clamped. */
static void fill_time(int64_t seconds, uint32_t ns, uint32_t *ret_low, uint32_t *ret_extra)
{
	const int64_t min = INT32_MIN, max = INT32_MAX + ((int64_t)3 << 32);

	seconds = MAX(min, MIN(seconds, max));
	*ret_low = (uint32_t)seconds;
	*ret_extra = ns << 2 | (uint32_t)((seconds - (int32_t)*ret_low) >> 32 & 3);
}

void ext4_fill_inode(const struct ext4_attributes *attributes, struct ext2_inode_large *ret_inode)
{
	struct ext2_inode_large inode = {
		.i_mode = attributes->mode,
		.i_uid = (uint16_t)attributes->uid,
		.i_uid_high = (uint16_t)(attributes->uid >> 16),
		.i_gid = (uint16_t)attributes->gid,
		.i_gid_high = (uint16_t)(attributes->gid >> 16),
		.i_links_count = 1,
		.i_extra_isize = EXTRA_INODE_BYTES,
	};

	fill_time(attributes->mtime_s, attributes->mtime_ns, &inode.i_mtime, &inode.i_mtime_extra);
	inode.i_atime = inode.i_ctime = inode.i_crtime = inode.i_mtime;
	inode.i_atime_extra = inode.i_ctime_extra = inode.i_crtime_extra = inode.i_mtime_extra;
	*ret_inode = inode;
}

int ext4_read_inode(struct ext4 *image, ext2_ino_t ino, struct ext2_inode_large *ret_inode,
		    struct err *err)
{
	errcode_t code =
		ext2fs_read_inode_full(image->fs, ino, ext2fs_inode(ret_inode), sizeof(*ret_inode));

	return code ? ext4_error(code, "image: cannot read an inode", err) : 0;
}

int ext4_write_inode(struct ext4 *image, ext2_ino_t ino, struct ext2_inode_large *inode,
		     struct err *err)
{
	errcode_t code =
		ext2fs_write_inode_full(image->fs, ino, ext2fs_inode(inode), sizeof(*inode));

	return code ? ext4_error(code, "image: cannot write an inode", err) : 0;
}

int ext4_write_blocks(struct ext4 *image, blk64_t first, const void *data, uint32_t count,
		      struct err *err)
{
	const uint8_t *bytes = data;
	size_t size = (size_t)count * EXT4_BLOCK_BYTES;
	off_t offset = (off_t)(first * EXT4_BLOCK_BYTES);

	while (size > 0) {
		ssize_t written = pwrite(image->fd, bytes, size, offset);

		if (written < 0) {
			if (errno == EINTR) {
				continue;
			}
			return ext4_error(errno, "image: cannot write it", err);
		}
		bytes += written;
		size -= (size_t)written;
		offset += written;
	}
	return 0;
}

uint64_t ext4_size_for(uint64_t blocks, uint64_t inodes)
{
	/* A last group without room for its own tables is left out. */
	uint64_t content = blocks * EXT4_BLOCK_BYTES + ((uint64_t)1 << 20);
	uint64_t size = MAX(content, inodes * EXT4_BYTES_PER_INODE);

	/* A journal that grows with the image makes it larger once more, and then no more. */
	for (int round = 0; round < 3; round++) {
		int journal = ext2fs_default_journal_size(size / EXT4_BLOCK_BYTES);
		/* Inode tables take 1/64; bitmaps, descriptors and their copies not 1/128. */
		uint64_t needed = content + size / 64 + size / 128 +
				  (uint64_t)MAX(journal, 1024) * EXT4_BLOCK_BYTES;

		size = MAX(size, needed);
	}
	return MAX(size, IMAGE_SIZE_MIN);
}
