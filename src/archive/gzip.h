/*
 * The sums at the end of a gzip file (RFC 1952, section 2.3.1), which libarchive skips.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GZIP_TRAILER_BYTES 8

/* What passed by on both sides of the unpacking. Begins zeroed. */
struct gzip_sums {
	/* The last bytes of the input. */
	uint8_t tail[GZIP_TRAILER_BYTES];
	uint32_t crc;
	uint64_t unpacked;
};

/* Takes note of the next bytes of the packed file; the last ones are kept. */
void gzip_note_input(struct gzip_sums *sums, const void *data, size_t size);
/* Takes note of the next bytes that were unpacked. */
void gzip_note_output(struct gzip_sums *sums, const void *data, size_t size);

/*
 * False when the input ends with a checksum that is not that of the output. Only a file of one
 * member can be judged: with more, or with something behind it, the length at the end is not that
 * of the output, and the answer is true.
 */
bool gzip_sums_fit(const struct gzip_sums *sums);
