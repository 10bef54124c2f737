/* Making ext4 images without root and without mounting. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Bytes of a label; ext4 keeps no more. */
#define IMAGE_LABEL_MAX 16
/* Below this there is no room for a journal beside the tables. */
#define IMAGE_SIZE_MIN ((uint64_t)8 << 20)
/* What ext4 with 4 KiB blocks holds when block numbers fit in 32 bits, as file extents need it. */
#define IMAGE_SIZE_MAX ((uint64_t)16 << 40)

struct image_options {
	/* The file's exact length afterwards. IMAGE_SIZE_MIN to IMAGE_SIZE_MAX. */
	uint64_t size_bytes;
	char label[IMAGE_LABEL_MAX + 1];
	uint8_t uuid[16];
	/* Gets a line "progress BYTES-READ ENTRIES" at most 10 times a second, or -EBADF. */
	int progress_fd;
};

struct image_result {
	uint64_t entries;
	/* Devices and fifos that were left out. */
	uint64_t dropped;
};

/*
 * Makes an ext4 file system with nothing but lost+found in the empty regular file out_fd, and syncs
 * it. out_fd stays the caller's. Returns 0 or a negative errno with err filled.
 */
int image_make_empty(int out_fd, const struct image_options *options, struct err *err);

/*
 * The same with the content of the tar archive that in_fd gives; the archive is not trusted. Error
 * codes a caller may want to tell apart: "image-too-small" (raise disk_size), "host-full" (no space
 * left below the image), those of src/archive, and "image-failed". Returns 0 or a negative errno.
 */
int image_make_from_tar(int in_fd, int out_fd, const struct image_options *options,
			struct image_result *ret_result, struct err *err);

/* Reads a UUID, 8-4-4-4-12 hexadecimal digits. Returns 0 or -EINVAL. */
int image_parse_uuid(const char *text, uint8_t ret_uuid[16]);
/* A random UUID, version 4 (RFC 4122). Returns 0 or a negative errno. */
int image_random_uuid(uint8_t ret_uuid[16]);
