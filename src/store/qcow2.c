/*
 * An empty qcow2 image, as docs/interop/qcow2.txt of QEMU describes version 3.
 *
 *     cluster 0      header, and after it the empty list of header extensions
 *     cluster 1      refcount table, one entry
 *     cluster 2      refcount block: each of these clusters is used once
 *     cluster 3...   L1 table, all zero: nothing is allocated yet
 *
 * All numbers are big endian. Only what is not zero is written, so the file is sparse.
 */
#include "store/store.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
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

static int write_image(int fd, uint64_t size_bytes)
{
	uint64_t l1_entries = (size_bytes + L2_REACH_BYTES - 1) / L2_REACH_BYTES;
	uint64_t l1_clusters = (l1_entries * L1_ENTRY_BYTES + CLUSTER_BYTES - 1) / CLUSTER_BYTES;
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
