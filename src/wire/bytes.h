/*
 * Little-endian fields in a byte range that is not ours to trust.
 *
 * A reader or writer remembers that it once ran over its end; from then on reads give zeros and
 * writes do nothing, so that a codec can be written straight down and checked once, at the end.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wire_reader {
	const uint8_t *data;
	size_t size;
	size_t offset;
	bool failed;
};

struct wire_writer {
	uint8_t *data;
	size_t capacity;
	size_t size;
	bool failed;
};

/* A reader or writer over a range that the caller keeps. */
struct wire_reader wire_reader_over(const void *data, size_t size);
struct wire_writer wire_writer_over(void *data, size_t capacity);

/* The next integer, or 0 and failed when the range is too short for it. */
uint8_t wire_get_u8(struct wire_reader *reader);
uint16_t wire_get_u16(struct wire_reader *reader);
uint32_t wire_get_u32(struct wire_reader *reader);
uint64_t wire_get_u64(struct wire_reader *reader);

/* A pointer to size bytes inside the range, or NULL and failed. */
const uint8_t *wire_get_bytes(struct wire_reader *reader, size_t size);

/*
 * A string: u32 length with the NUL counted, the bytes, one NUL at the end and none before it.
 * Returns a pointer into the range, or NULL and failed.
 */
const char *wire_get_string(struct wire_reader *reader);

/* True when everything was read, to the last byte, and nothing ran over. */
bool wire_reader_done(const struct wire_reader *reader);

/* Append a value, or set failed when it does not fit; nothing of it is then written. */
void wire_put_u8(struct wire_writer *writer, uint8_t value);
void wire_put_u16(struct wire_writer *writer, uint16_t value);
void wire_put_u32(struct wire_writer *writer, uint32_t value);
void wire_put_u64(struct wire_writer *writer, uint64_t value);
void wire_put_bytes(struct wire_writer *writer, const void *data, size_t size);
void wire_put_string(struct wire_writer *writer, const char *string);
