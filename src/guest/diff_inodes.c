#include "guest/diff_inodes.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/check.h"
#include "guest/diff_hints.h"
#include "wire/ext4.h"

/* Of each side at once: what makes a request of a virtual disk cheap. Whole blocks of any size. */
#define CHUNK_BYTES ((size_t)1 << 20)
/* Of buffers that a disk writes to; no block of a disk that can be mounted is larger. */
#define ALIGNMENT 4096

/* One state of the file system. */
struct side {
	const char *name;
	int fd;
	struct ext4_super super;
	/* The block of descriptors that was read last, and the first group in it. */
	uint8_t *descriptors;
	uint32_t descriptors_group;
	bool has_descriptors;
	/* The group at hand. */
	struct ext4_group group;
	uint8_t *chunk;
};

struct comparison {
	struct side old;
	struct side new;
	struct inode_changes *changes;
	/* Directories of the new side. */
	struct hints hints;
};

static int broken(const struct side *side, const char *why, struct err *err)
{
	return err_set(err, -EBADMSG, "diff-broken", "the file system of %s cannot be read: %s",
		       side->name, why);
}

static int no_memory(struct err *err)
{
	return err_set(err, -ENOMEM, "diff-memory",
		       "this machine has too little memory to find what changed");
}

static int read_at(const struct side *side, void *data, size_t size, uint64_t offset,
		   struct err *err)
{
	size_t filled = 0;

	while (filled < size) {
		ssize_t got = pread(side->fd, (uint8_t *)data + filled, size - filled,
				    (off_t)(offset + filled));

		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got < 0) {
			return err_set(err, -errno, "diff-read", "cannot read the disk of %s: %s",
				       side->name, strerror(errno));
		}
		if (got == 0) {
			return broken(side, "it ends too early", err);
		}
		filled += (size_t)got;
	}
	return 0;
}

static int device_bytes(const struct side *side, uint64_t *ret_bytes, bool *ret_is_device,
			struct err *err)
{
	struct stat status;

	if (fstat(side->fd, &status) < 0 ||
	    (S_ISBLK(status.st_mode) && ioctl(side->fd, BLKGETSIZE64, ret_bytes) < 0)) {
		return err_set(err, -errno, "diff-read", "cannot read the disk of %s: %s",
			       side->name, strerror(errno));
	}
	if (!S_ISBLK(status.st_mode)) {
		*ret_bytes = (uint64_t)status.st_size;
	}
	*ret_is_device = S_ISBLK(status.st_mode);
	return 0;
}

/*
 * From now on reads of a disk go past the cache: copying a table would cost more than comparing it.
 * What the kernel has changed and not yet written is written first.
 */
static void read_directly(const struct side *side)
{
	int flags = fcntl(side->fd, F_GETFL);

	if (flags >= 0) {
		fcntl(side->fd, F_SETFL, flags | O_DIRECT);
	}
}

static int open_side(struct side *side, struct err *err)
{
	uint8_t bytes[EXT4_SUPER_BYTES];
	const char *why = NULL;
	bool is_device = false;
	uint64_t size = 0;
	int rc = device_bytes(side, &size, &is_device, err);

	if (rc == 0) {
		rc = read_at(side, bytes, sizeof(bytes), EXT4_SUPER_OFFSET, err);
	}
	if (rc < 0) {
		return rc;
	}
	if (ext4_super_decode(bytes, size, &side->super, &why) < 0) {
		return broken(side, why, err);
	}
	side->descriptors = aligned_alloc(ALIGNMENT, MAX(side->super.block_bytes, ALIGNMENT));
	side->chunk = aligned_alloc(ALIGNMENT, CHUNK_BYTES);
	if (is_device) {
		read_directly(side);
	}
	return side->descriptors && side->chunk ? 0 : no_memory(err);
}

static void close_side(struct side *side)
{
	free(side->descriptors);
	free(side->chunk);
}

/* Makes a group the one at hand; one that the side has not is empty. */
static int enter_group(struct side *side, uint32_t group, struct err *err)
{
	uint32_t per_block = ext4_descriptors_per_block(&side->super);
	uint32_t first = group - group % per_block;

	if (group >= side->super.groups) {
		side->group = (struct ext4_group){0};
		return 0;
	}
	if (!side->has_descriptors || side->descriptors_group != first) {
		uint64_t offset;
		int rc;

		if (ext4_descriptors_offset(&side->super, first, &offset) < 0) {
			return broken(side, "a group is outside of it", err);
		}
		rc = read_at(side, side->descriptors, side->super.block_bytes, offset, err);
		if (rc < 0) {
			return rc;
		}
		side->descriptors_group = first;
		side->has_descriptors = true;
	}
	return ext4_group_decode(&side->super,
				 side->descriptors +
					 (size_t)(group - first) * side->super.descriptor_bytes,
				 &side->group) < 0
		       ? broken(side, "a table of its inodes is outside of it", err)
		       : 0;
}

/* Reads inodes of the group at hand; those that were never used are zeros. */
static int read_inodes(struct side *side, uint32_t first, uint32_t count, struct err *err)
{
	size_t inode_bytes = side->super.inode_bytes;
	uint32_t there = side->group.used > first ? MIN(side->group.used - first, count) : 0;
	size_t block_bytes = side->super.block_bytes;
	/* Whole blocks: the table ends with one. */
	size_t blocks = (there * inode_bytes + block_bytes - 1) / block_bytes;
	int rc = read_at(side, side->chunk, blocks * block_bytes,
			 side->group.table_offset + first * inode_bytes, err);

	memset(side->chunk + there * inode_bytes, 0, (count - there) * inode_bytes);
	return rc;
}

static int add_change(struct inode_changes *changes, const struct inode_change *change,
		      struct err *err)
{
	struct inode_change *grown;

	if (changes->count >= DIFF_INODES_MAX) {
		return err_set(err, -E2BIG, "diff-too-many",
			       "more than 20 million inodes have changed");
	}
	grown = array_reserve(changes->list, changes->count, &changes->capacity, sizeof(*grown));
	if (!grown) {
		return no_memory(err);
	}
	changes->list = grown;
	changes->list[changes->count++] = *change;
	return 0;
}

static uint32_t names_of(const struct ext4_inode *inode, uint32_t number)
{
	if (inode->mode == 0 || number == EXT4_ROOT_INODE) {
		return 0;
	}
	return S_ISDIR(inode->mode) ? 1 : inode->links;
}

static int compare_inode(struct comparison *comparison, const uint8_t *old_bytes,
			 const uint8_t *new_bytes, uint32_t number, struct err *err)
{
	struct ext4_inode old, new;

	if (ext4_inode_same(old_bytes, new_bytes, comparison->new.super.inode_bytes) ||
	    (number < EXT4_FIRST_INODE && number != EXT4_ROOT_INODE)) {
		return 0;
	}
	ext4_inode_decode(old_bytes, &old);
	ext4_inode_decode(new_bytes, &new);
	if (old.mode == 0 && new.mode == 0) {
		return 0;
	}
	comparison->changes->new_names += names_of(&new, number);
	return add_change(comparison->changes,
			  &(struct inode_change){
				  .number = number,
				  .old_generation = old.generation,
				  .new_generation = new.generation,
				  .old_mode = (uint16_t)old.mode,
				  .new_mode = (uint16_t) new.mode,
			  },
			  err);
}

static int compare_group(struct comparison *comparison, uint32_t group, struct err *err)
{
	struct side *old = &comparison->old, *new = &comparison->new;
	size_t inode_bytes = new->super.inode_bytes;
	uint32_t used, step = (uint32_t)(CHUNK_BYTES / inode_bytes);
	int rc = enter_group(old, group, err);

	if (rc == 0) {
		rc = enter_group(new, group, err);
	}
	if (rc < 0) {
		return rc;
	}
	used = MAX(old->group.used, new->group.used);
	for (uint32_t first = 0; first < used; first += MIN(step, used - first)) {
		uint32_t count = MIN(step, used - first);
		/* Numbers begin with 1, and fit: the superblocks were checked for that. */
		uint32_t number = group * new->super.inodes_per_group + first + 1;

		rc = read_inodes(old, first, count, err);
		if (rc == 0) {
			rc = read_inodes(new, first, count, err);
		}
		for (uint32_t i = 0; i < count && rc == 0; i++) {
			hints_add(&comparison->hints, &new->super, number + i,
				  new->chunk + i *inode_bytes);
		}
		if (rc == 0 && memcmp(old->chunk, new->chunk, count * inode_bytes) == 0) {
			continue;
		}
		for (uint32_t i = 0; i < count && rc == 0; i++) {
			rc = compare_inode(comparison, old->chunk + i * inode_bytes,
					   new->chunk + i *inode_bytes, number + i, err);
		}
		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

static int check_same_origin(const struct comparison *comparison, struct err *err)
{
	const struct ext4_super *old = &comparison->old.super, *new = &comparison->new.super;

	/* Such inodes count whole seconds, so a change may leave no trace in them. */
	if (new->inode_bytes == EXT4_INODE_BYTES_MIN) {
		return broken(&comparison->new, "its inodes have 128 bytes, and 256 are needed",
			      err);
	}
	if (memcmp(old->uuid, new->uuid, sizeof(old->uuid)) == 0 &&
	    old->block_bytes == new->block_bytes && old->inode_bytes == new->inode_bytes &&
	    old->inodes_per_group == new->inodes_per_group) {
		return 0;
	}
	return err_set(err, -EBADMSG, "diff-made-anew",
		       "the file system of /data was made anew inside, so there is no telling what "
		       "changed in it");
}

int diff_inodes(int old_fd, int new_fd, struct inode_changes *ret_changes, struct err *err)
{
	struct comparison comparison = {
		.old = {.name = "the state before", .fd = old_fd},
		.new = {.name = "/data", .fd = new_fd},
		.changes = ret_changes,
	};
	uint32_t groups = 0;
	int rc = open_side(&comparison.old, err);

	if (rc == 0) {
		rc = open_side(&comparison.new, err);
	}
	if (rc == 0) {
		rc = check_same_origin(&comparison, err);
	}
	if (rc == 0) {
		groups = MAX(comparison.old.super.groups, comparison.new.super.groups);
		ret_changes->last = groups * comparison.new.super.inodes_per_group;
	}
	for (uint32_t group = 0; group < groups && rc == 0; group++) {
		rc = compare_group(&comparison, group, err);
	}
	if (rc == 0 && ret_changes->new_names > 0) {
		hints_find(&comparison.hints, &comparison.new.super, new_fd, ret_changes);
	}
	hints_clear(&comparison.hints);
	close_side(&comparison.old);
	close_side(&comparison.new);
	return rc;
}

const struct inode_change *inode_changes_find(const struct inode_changes *changes, uint64_t number)
{
	size_t low = 0, high = changes->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (changes->list[middle].number < number) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low < changes->count && changes->list[low].number == number ? &changes->list[low]
									   : NULL;
}

void inode_changes_clear(struct inode_changes *changes)
{
	free(changes->list);
	free(changes->hints);
	*changes = (struct inode_changes){0};
}
