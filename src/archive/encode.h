/*
 * Entries as the bytes of a pax archive (POSIX.1-2017 pax; holes as GNU's sparse format 1.0,
 * attributes as SCHILY.xattr records). No I/O. What it makes is read back by entry.c.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "archive/archive.h"
#include "archive/tar.h"

/* Bytes that wait to be written. */
struct tar_buffer {
	char *data;
	size_t size;
	size_t capacity;
};

struct tar_entry {
	/* '0' to '6' as in a header; '1' is a hard link. */
	char type;
	const char *path;
	/* Of '1' and '2'; else NULL. */
	const char *link;
	uint32_t mode;
	uint32_t uid;
	uint32_t gid;
	int64_t mtime_s;
	uint32_t mtime_ns;
	/* Of '0': its whole length, holes included. */
	uint64_t size;
	/* How many names it has; 0 or 1 is not said. */
	uint32_t links;
	uint32_t device_major;
	uint32_t device_minor;
	/* Where data is; NULL when there are no holes. Data is then only what the map names. */
	const struct tar_map *map;
	const struct archive_xattr *xattrs;
	size_t xattr_count;
};

/*
 * Appends everything that comes before the entry's data: headers, and the sparse map. *ret_data is
 * how many bytes of data must follow, and tar_padding of that as many zeros. Returns 0, -ENOMEM, or
 * -E2BIG when its names and attributes are more than a reader takes; out is then as before.
 */
int tar_encode(const struct tar_entry *entry, struct tar_buffer *out, uint64_t *ret_data);

/* Appends the mark that ends an archive. 0 or -ENOMEM. */
int tar_encode_end(struct tar_buffer *out);

/* Zeros after so many bytes of data. */
static inline size_t tar_padding(uint64_t size)
{
	return (size_t)(-size % TAR_BLOCK_BYTES);
}

/* Appends size bytes of zeros and returns where they are, or NULL. Valid until the next call. */
char *tar_buffer_add(struct tar_buffer *buffer, size_t size);
void tar_buffer_clear(struct tar_buffer *buffer);
