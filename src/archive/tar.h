/*
 * The bytes of tar: pure decoders for headers, extended headers and sparse maps.
 *
 * Formats: POSIX.1-2017 pax and ustar, the GNU format (tar 1.34, "Basic Tar Format" and "Storing
 * Sparse Files" in its manual), and the old V7 format. All input is hostile; a decoder that says
 * no gives the reason as a string that holds no byte of the input.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "archive/archive.h"

#define TAR_BLOCK_BYTES 512u
/* Room for a few names and 64 attributes; GNU tar's sparse maps of format 0.1 are the longest. */
#define TAR_EXTENDED_MAX ((size_t)1 << 20)
/* 16 bytes each. A file with more holes than this is not made by accident. */
#define TAR_SEGMENTS_MAX ((size_t)1 << 20)

struct tar_header {
	/* '0' to '7', or a letter; 0 of the old format is given as '0'. */
	char type;
	/* prefix/name of ustar, or name. */
	char name[100 + 1 + 155 + 1];
	char link[100 + 1];
	uint32_t mode;
	uint64_t uid;
	uint64_t gid;
	uint64_t size;
	int64_t mtime;
};

enum tar_sparse {
	TAR_SPARSE_NONE,
	/* The map is complete. */
	TAR_SPARSE_MAPPED,
	/* pax 1.0: the map is in front of the data. */
	TAR_SPARSE_IN_DATA,
};

struct tar_segment {
	uint64_t offset;
	uint64_t size;
};

struct tar_map {
	struct tar_segment *segments;
	size_t count;
	size_t capacity;
};

/* What extended headers say about the entry that follows them. Pointers go into their bodies. */
struct tar_extra {
	const char *path;
	const char *link;
	const char *sparse_name;
	bool has_uid;
	bool has_gid;
	bool has_size;
	bool has_mtime;
	bool has_real_size;
	bool has_sparse_offset;
	uint64_t uid;
	uint64_t gid;
	uint64_t size;
	uint64_t real_size;
	uint64_t sparse_offset;
	uint64_t sparse_major;
	uint64_t sparse_minor;
	/* 0: nothing is said. */
	uint64_t links;
	int64_t mtime_s;
	uint32_t mtime_ns;
	enum tar_sparse sparse;
	struct archive_xattr xattrs[ARCHIVE_XATTRS_MAX];
	size_t xattr_count;
};

/* True for a block of zeros, which ends an archive. */
bool tar_block_is_zero(const uint8_t *block);

/* Decodes one header block. Returns 0 or -EBADMSG with *ret_why. */
int tar_header_decode(const uint8_t *block, struct tar_header *ret_header, const char **ret_why);

/*
 * Decodes the body of a pax header into *extra and *map. body is changed: values become strings
 * in place and must live as long as *extra is used. With global set, records that would change
 * entries are refused. Returns 0, -EBADMSG or -ENOMEM with *ret_why.
 */
int tar_pax_decode(char *body, size_t size, bool global, struct tar_extra *extra,
		   struct tar_map *map, const char **ret_why);

/*
 * The sparse fields of an old GNU header ('S', extension false) or of one extension block. Adds to
 * *map; *ret_more says whether an extension block follows; *ret_real_size is set for the header.
 */
int tar_old_sparse_decode(const uint8_t *block, bool extension, struct tar_map *map, bool *ret_more,
			  uint64_t *ret_real_size, const char **ret_why);

/* Decimal digits only, to the end of text. Returns false when it is anything else. */
bool tar_parse_decimal(const char *text, size_t size, uint64_t *ret_value);

/* Adds a segment. Returns 0, -EBADMSG when there are too many, or -ENOMEM. */
int tar_map_add(struct tar_map *map, uint64_t offset, uint64_t size, const char **ret_why);

/*
 * Holds a complete map against the file: ascending, not overlapping, inside real_size, and as many
 * bytes as are stored. Returns 0 or -EBADMSG with *ret_why.
 */
int tar_map_check(const struct tar_map *map, uint64_t real_size, uint64_t stored_size,
		  const char **ret_why);

void tar_map_clear(struct tar_map *map);
