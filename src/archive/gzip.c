#include "archive/gzip.h"

#include <string.h>

#include "base/check.h"

/* The polynomial of RFC 1952, section 8, lowest bit first. */
#define POLYNOMIAL 0xedb88320u
#define SLICES 8

/* tables[k][b]: what byte b does to the sum when k more bytes follow it. */
static uint32_t tables[SLICES][256];

static void make_tables(void)
{
	if (tables[0][1] != 0) {
		return;
	}
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t sum = i;

		for (int bit = 0; bit < 8; bit++) {
			sum = (sum >> 1) ^ (sum & 1 ? POLYNOMIAL : 0);
		}
		tables[0][i] = sum;
	}
	for (size_t k = 1; k < SLICES; k++) {
		for (size_t i = 0; i < 256; i++) {
			uint32_t sum = tables[k - 1][i];

			tables[k][i] = (sum >> 8) ^ tables[0][sum & 255];
		}
	}
}

static uint32_t load(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
	       (uint32_t)bytes[3] << 24;
}

void gzip_note_input(struct gzip_sums *sums, const void *data, size_t size)
{
	size_t fresh = MIN(size, (size_t)GZIP_TRAILER_BYTES);

	if (fresh > 0) {
		memmove(sums->tail, sums->tail + fresh, GZIP_TRAILER_BYTES - fresh);
		memcpy(sums->tail + GZIP_TRAILER_BYTES - fresh,
		       (const uint8_t *)data + size - fresh, fresh);
	}
}

void gzip_note_output(struct gzip_sums *sums, const void *data, size_t size)
{
	const uint8_t *at = data;
	uint32_t sum = ~sums->crc;

	make_tables();
	sums->unpacked += size;
	/* Eight bytes at once: unpacking is not to wait for this. */
	for (; size >= SLICES; at += SLICES, size -= SLICES) {
		uint32_t low = load(at) ^ sum, high = load(at + 4);

		sum = tables[7][low & 255] ^ tables[6][(low >> 8) & 255] ^
		      tables[5][(low >> 16) & 255] ^ tables[4][low >> 24] ^ tables[3][high & 255] ^
		      tables[2][(high >> 8) & 255] ^ tables[1][(high >> 16) & 255] ^
		      tables[0][high >> 24];
	}
	for (; size > 0; at++, size--) {
		sum = (sum >> 8) ^ tables[0][(sum ^ *at) & 255];
	}
	sums->crc = ~sum;
}

bool gzip_sums_fit(const struct gzip_sums *sums)
{
	uint32_t length = load(sums->tail + 4);

	/* A length of 0 is padding more often than an empty file. */
	return length == 0 || length != (uint32_t)sums->unpacked || load(sums->tail) == sums->crc;
}
