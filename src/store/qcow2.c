/*
 * An empty qcow2 image, as docs/interop/qcow2.txt of QEMU describes version 3.
 *
 *     cluster 0      header, and after it the empty list of header extensions
 *     cluster 1      refcount table, one entry
 *     cluster 2      refcount block: each of these clusters is used once
 *     cluster 3...   L1 table, all zero: nothing is allocated yet
 *
 * All numbers are big endian. Only what is not zero is written, so the file is sparse.
 *
 * Of a disk that a monitor has written since, its header alone is read, and only what box had put
 * there is taken; and whether its L1 table is still all zero.
 */
#include "store/store.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/text.h"
#include "store/internal.h"

#define CLUSTER_BITS 16
#define CLUSTER_BYTES (UINT64_C(1) << CLUSTER_BITS)
/* An L2 table is one cluster of 8-byte entries, each for one cluster. */
#define L2_REACH_BYTES (CLUSTER_BYTES / 8 * CLUSTER_BYTES)
#define L1_ENTRY_BYTES 8
/* Refcounts of 1 << 4 = 16 bits. */
#define REFCOUNT_ORDER 4
#define HEADER_BYTES 104
#define SECTOR_BYTES 512

#define REFCOUNT_TABLE_OFFSET (1 * CLUSTER_BYTES)
#define REFCOUNT_BLOCK_OFFSET (2 * CLUSTER_BYTES)
#define L1_TABLE_OFFSET (3 * CLUSTER_BYTES)
#define CLUSTERS_BEFORE_L1 3

/* What ext4 with 4 KiB blocks and 32-bit block numbers can use. */
#define DISK_BYTES_MAX (UINT64_C(16) << 40)
#define L1_CLUSTERS_MAX (DISK_BYTES_MAX / L2_REACH_BYTES * L1_ENTRY_BYTES / CLUSTER_BYTES)

struct qcow2_header {
	uint32_t magic;
	uint32_t version;
	uint64_t backing_file_offset;
	uint32_t backing_file_size;
	uint32_t cluster_bits;
	uint64_t size;
	uint32_t crypt_method;
	uint32_t l1_size;
	uint64_t l1_table_offset;
	uint64_t refcount_table_offset;
	uint32_t refcount_table_clusters;
	uint32_t nb_snapshots;
	uint64_t snapshots_offset;
	uint64_t incompatible_features;
	uint64_t compatible_features;
	uint64_t autoclear_features;
	uint32_t refcount_order;
	uint32_t header_length;
};
_Static_assert(sizeof(struct qcow2_header) == HEADER_BYTES, "no padding");

static int pwrite_full(int fd, const void *data, size_t size, uint64_t offset)
{
	const char *bytes = data;

	while (size > 0) {
		ssize_t written = pwrite(fd, bytes, size, (off_t)offset);

		if (written < 0 && errno == EINTR) {
			continue;
		}
		if (written < 0) {
			return -errno;
		}
		bytes += written;
		size -= (size_t)written;
		offset += (uint64_t)written;
	}
	return 0;
}

static uint64_t l1_entries_of(uint64_t size_bytes)
{
	return (size_bytes + L2_REACH_BYTES - 1) / L2_REACH_BYTES;
}

static uint64_t l1_clusters_of(uint64_t size_bytes)
{
	return (l1_entries_of(size_bytes) * L1_ENTRY_BYTES + CLUSTER_BYTES - 1) / CLUSTER_BYTES;
}

static int write_image(int fd, uint64_t size_bytes)
{
	uint64_t l1_entries = l1_entries_of(size_bytes);
	uint64_t l1_clusters = l1_clusters_of(size_bytes);
	uint64_t clusters = CLUSTERS_BEFORE_L1 + l1_clusters;
	uint16_t refcounts[CLUSTERS_BEFORE_L1 + L1_CLUSTERS_MAX];
	const uint64_t refcount_table = htobe64(REFCOUNT_BLOCK_OFFSET);
	const struct qcow2_header header = {
		.magic = htobe32(0x514649fbu), /* "QFI" and 0xfb */
		.version = htobe32(3),
		.cluster_bits = htobe32(CLUSTER_BITS),
		.size = htobe64(size_bytes),
		.l1_size = htobe32((uint32_t)l1_entries),
		.l1_table_offset = htobe64(L1_TABLE_OFFSET),
		.refcount_table_offset = htobe64(REFCOUNT_TABLE_OFFSET),
		.refcount_table_clusters = htobe32(1),
		.refcount_order = htobe32(REFCOUNT_ORDER),
		.header_length = htobe32(HEADER_BYTES),
	};
	int rc;

	ASSERT(clusters <= ARRAY_SIZE(refcounts));
	for (uint64_t i = 0; i < clusters; i++) {
		refcounts[i] = htobe16(1);
	}
	/* To the end of the last cluster, so that the image has no part beyond its file. */
	if (ftruncate(fd, (off_t)(clusters * CLUSTER_BYTES)) < 0) {
		return -errno;
	}
	rc = pwrite_full(fd, &refcount_table, sizeof(refcount_table), REFCOUNT_TABLE_OFFSET);
	if (rc == 0) {
		rc = pwrite_full(fd, refcounts, clusters * sizeof(refcounts[0]),
				 REFCOUNT_BLOCK_OFFSET);
	}
	if (rc == 0) {
		rc = pwrite_full(fd, &header, sizeof(header), 0);
	}
	return rc;
}

int store_write_qcow2(int fd, uint64_t size_bytes, struct err *err)
{
	char path[PATH_MAX];
	int rc;

	if (size_bytes == 0 || size_bytes > DISK_BYTES_MAX || size_bytes % SECTOR_BYTES != 0) {
		err_set(err, -EINVAL, "disk-size",
			"a disk cannot have %llu bytes: it has 512 bytes to 16 TiB, in steps of "
			"512 bytes",
			(unsigned long long)size_bytes);
		return -EINVAL;
	}
	rc = write_image(fd, size_bytes);
	if (rc < 0) {
		store_fd_path(fd, path);
		return store_fail(err, rc, path, "cannot write an empty disk");
	}
	return 0;
}

/* A header that box wrote; the monitor changes nothing in it but feature bits and extensions. */
static int read_header(int fd, struct qcow2_header *ret_header)
{
	ssize_t got = pread(fd, ret_header, sizeof(*ret_header), 0);
	uint64_t size;

	if (got != (ssize_t)sizeof(*ret_header)) {
		return got < 0 ? -errno : -EBADMSG;
	}
	size = be64toh(ret_header->size);
	return be32toh(ret_header->magic) == 0x514649fbu && be32toh(ret_header->version) == 3 &&
			       ret_header->backing_file_offset == 0 &&
			       be32toh(ret_header->cluster_bits) == CLUSTER_BITS &&
			       ret_header->crypt_method == 0 && ret_header->nb_snapshots == 0 &&
			       be64toh(ret_header->l1_table_offset) == L1_TABLE_OFFSET &&
			       size > 0 && size <= DISK_BYTES_MAX && size % SECTOR_BYTES == 0 &&
			       be32toh(ret_header->l1_size) == l1_entries_of(size)
		       ? 0
		       : -EBADMSG;
}

static int read_failed(int fd, int rc, struct err *err)
{
	char path[PATH_MAX];

	store_fd_path(fd, path);
	if (rc == -EBADMSG) {
		err_set(err, rc, "disk-broken", "%s is not as box makes its disks", path);
		err_mend(err, "`box restore` or `box reset` puts another in its place");
		return rc;
	}
	return store_fail(err, rc, path, "cannot read the disk");
}

int store_disk_size(int fd, uint64_t *ret_size_bytes, struct err *err)
{
	struct qcow2_header header;
	int rc = read_header(fd, &header);

	if (rc < 0) {
		return read_failed(fd, rc, err);
	}
	*ret_size_bytes = be64toh(header.size);
	return 0;
}

int store_disk_is_empty(int fd, struct err *err)
{
	struct qcow2_header header;
	uint64_t entries[512];
	uint64_t at = L1_TABLE_OFFSET, end;
	int rc = read_header(fd, &header);

	if (rc < 0) {
		return read_failed(fd, rc, err);
	}
	end = at + L1_ENTRY_BYTES * (uint64_t)be32toh(header.l1_size);
	while (at < end) {
		size_t size = (size_t)MIN(end - at, (uint64_t)sizeof(entries));
		ssize_t got = pread(fd, entries, size, (off_t)at);

		if (got != (ssize_t)size) {
			return read_failed(fd, got < 0 ? -errno : -EBADMSG, err);
		}
		for (size_t i = 0; i < size / L1_ENTRY_BYTES; i++) {
			if (entries[i] != 0) {
				return 0;
			}
		}
		at += size;
	}
	return 1;
}

/* New entries first, then size and number of entries in one sector: it is the old disk or the new
 * one at every instant. */
static int grow(int fd, struct qcow2_header *header, uint64_t size_bytes)
{
	static const uint8_t zeros[4096];
	uint64_t at = L1_TABLE_OFFSET + L1_ENTRY_BYTES * (uint64_t)be32toh(header->l1_size);
	uint64_t end = L1_TABLE_OFFSET + L1_ENTRY_BYTES * l1_entries_of(size_bytes);
	size_t offset = offsetof(struct qcow2_header, size);
	size_t length = offsetof(struct qcow2_header, l1_table_offset) - offset;
	int rc = 0;

	for (; rc == 0 && at < end; at += MIN(end - at, (uint64_t)sizeof(zeros))) {
		rc = pwrite_full(fd, zeros, (size_t)MIN(end - at, (uint64_t)sizeof(zeros)), at);
	}
	if (rc == 0 && fdatasync(fd) < 0) {
		rc = -errno;
	}
	header->size = htobe64(size_bytes);
	header->l1_size = htobe32((uint32_t)l1_entries_of(size_bytes));
	if (rc == 0) {
		rc = pwrite_full(fd, (const char *)header + offset, length, offset);
	}
	return rc == 0 && fdatasync(fd) < 0 ? -errno : rc;
}

int store_fit_disk(int fd, uint64_t size_bytes, struct err *err)
{
	char is[TEXT_BYTES_MAX], wanted[TEXT_BYTES_MAX];
	struct qcow2_header header;
	uint64_t size;
	int rc = read_header(fd, &header);

	if (rc < 0) {
		return read_failed(fd, rc, err);
	}
	size = be64toh(header.size);
	if (size == size_bytes) {
		return 0;
	}
	if (size_bytes < size) {
		return store_refuse_shrink(size, size_bytes, err);
	}
	text_format_bytes(size, is, sizeof(is));
	text_format_bytes(size_bytes, wanted, sizeof(wanted));
	if (size_bytes > DISK_BYTES_MAX || l1_clusters_of(size_bytes) != l1_clusters_of(size)) {
		err_set(err, -EFBIG, "data-size",
			"data_size: /data of %s cannot grow to %s in its place: a step over a "
			"multiple of 4 TiB needs a new disk",
			is, wanted);
		err_mend(err, "`box snapshot`, then set data_size, then `box restore`");
		return -EFBIG;
	}
	rc = grow(fd, &header, size_bytes);
	if (rc < 0) {
		char path[PATH_MAX];

		store_fd_path(fd, path);
		return store_fail(err, rc, path, "data_size: cannot let /data grow");
	}
	return 0;
}

int store_refuse_shrink(uint64_t size_bytes, uint64_t wanted_bytes, struct err *err)
{
	char is[TEXT_BYTES_MAX], wanted[TEXT_BYTES_MAX];

	text_format_bytes(size_bytes, is, sizeof(is));
	text_format_bytes(wanted_bytes, wanted, sizeof(wanted));
	err_set(err, -EINVAL, "data-size",
		"data_size: /data has %s and the Boxfile says %s: a disk is not made smaller, "
		"since "
		"what is on it may not fit",
		is, wanted);
	err_mend(err,
		 "set data_size back to %s; for a smaller one `box snapshot` first, then set it, "
		 "then `box restore`",
		 is);
	return -EINVAL;
}
