#include "wire/bytes.h"

#include <string.h>

struct wire_reader wire_reader_over(const void *data, size_t size)
{
	return (struct wire_reader){.data = data, .size = size};
}

struct wire_writer wire_writer_over(void *data, size_t capacity)
{
	return (struct wire_writer){.data = data, .capacity = capacity};
}

const uint8_t *wire_get_bytes(struct wire_reader *reader, size_t size)
{
	const uint8_t *bytes = reader->data + reader->offset;

	if (reader->failed || size > reader->size - reader->offset) {
		reader->failed = true;
		return NULL;
	}
	reader->offset += size;
	return bytes;
}

static uint64_t get_integer(struct wire_reader *reader, size_t size)
{
	const uint8_t *bytes = wire_get_bytes(reader, size);
	uint64_t value = 0;

	for (size_t i = size; bytes && i > 0; i--) {
		value = (value << 8) | bytes[i - 1];
	}
	return value;
}

uint8_t wire_get_u8(struct wire_reader *reader)
{
	return (uint8_t)get_integer(reader, 1);
}

uint16_t wire_get_u16(struct wire_reader *reader)
{
	return (uint16_t)get_integer(reader, 2);
}

uint32_t wire_get_u32(struct wire_reader *reader)
{
	return (uint32_t)get_integer(reader, 4);
}

uint64_t wire_get_u64(struct wire_reader *reader)
{
	return get_integer(reader, 8);
}

const char *wire_get_string(struct wire_reader *reader)
{
	uint32_t size = wire_get_u32(reader);
	const uint8_t *bytes = wire_get_bytes(reader, size);

	if (!bytes || size == 0 || memchr(bytes, '\0', size) != bytes + size - 1) {
		reader->failed = true;
		return NULL;
	}
	return (const char *)bytes;
}

bool wire_reader_done(const struct wire_reader *reader)
{
	return !reader->failed && reader->offset == reader->size;
}

void wire_put_bytes(struct wire_writer *writer, const void *data, size_t size)
{
	if (writer->failed || size > writer->capacity - writer->size) {
		writer->failed = true;
		return;
	}
	if (size > 0) {
		memcpy(writer->data + writer->size, data, size);
		writer->size += size;
	}
}

static void put_integer(struct wire_writer *writer, uint64_t value, size_t size)
{
	uint8_t bytes[8];

	for (size_t i = 0; i < size; i++) {
		bytes[i] = (uint8_t)(value >> (8 * i));
	}
	wire_put_bytes(writer, bytes, size);
}

void wire_put_u8(struct wire_writer *writer, uint8_t value)
{
	put_integer(writer, value, 1);
}

void wire_put_u16(struct wire_writer *writer, uint16_t value)
{
	put_integer(writer, value, 2);
}

void wire_put_u32(struct wire_writer *writer, uint32_t value)
{
	put_integer(writer, value, 4);
}

void wire_put_u64(struct wire_writer *writer, uint64_t value)
{
	put_integer(writer, value, 8);
}

void wire_put_string(struct wire_writer *writer, const char *string)
{
	size_t size = strlen(string) + 1;

	if (size > UINT32_MAX) {
		writer->failed = true;
		return;
	}
	put_integer(writer, size, 4);
	wire_put_bytes(writer, string, size);
}
