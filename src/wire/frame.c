#include "wire/frame.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "wire/bytes.h"

void wire_decoder_reset(struct wire_decoder *decoder)
{
	decoder->filled = 0;
	decoder->consumed = 0;
	decoder->failed = false;
}

uint8_t *wire_decoder_space(struct wire_decoder *decoder, size_t *ret_size)
{
	if (decoder->consumed > 0) {
		memmove(decoder->buffer, decoder->buffer + decoder->consumed,
			decoder->filled - decoder->consumed);
		decoder->filled -= decoder->consumed;
		decoder->consumed = 0;
	}
	*ret_size = decoder->failed ? 0 : sizeof(decoder->buffer) - decoder->filled;
	return decoder->buffer + decoder->filled;
}

void wire_decoder_filled(struct wire_decoder *decoder, size_t size)
{
	ASSERT(size <= sizeof(decoder->buffer) - decoder->filled);
	decoder->filled += size;
}

bool wire_decoder_empty(const struct wire_decoder *decoder)
{
	return decoder->filled == decoder->consumed;
}

int wire_decoder_next(struct wire_decoder *decoder, struct wire_frame *ret_frame)
{
	size_t available = decoder->filled - decoder->consumed;
	struct wire_reader reader;
	struct wire_frame frame;
	uint16_t reserved;

	if (decoder->failed) {
		return -EBADMSG;
	}
	if (available < WIRE_HEADER_SIZE) {
		return 0;
	}
	reader = wire_reader_over(decoder->buffer + decoder->consumed, WIRE_HEADER_SIZE);
	frame.length = wire_get_u32(&reader);
	frame.type = wire_get_u8(&reader);
	frame.channel = wire_get_u8(&reader);
	reserved = wire_get_u16(&reader);
	frame.stream = wire_get_u32(&reader);
	if (frame.length > WIRE_PAYLOAD_MAX || reserved != 0) {
		decoder->failed = true;
		return -EBADMSG;
	}
	if (available - WIRE_HEADER_SIZE < frame.length) {
		return 0;
	}
	frame.payload = decoder->buffer + decoder->consumed + WIRE_HEADER_SIZE;
	decoder->consumed += WIRE_HEADER_SIZE + frame.length;
	*ret_frame = frame;
	return 1;
}

void wire_header_encode(uint8_t *out, uint8_t type, uint8_t channel, uint32_t stream,
			uint32_t length)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_HEADER_SIZE);

	ASSERT(length <= WIRE_PAYLOAD_MAX);
	wire_put_u32(&writer, length);
	wire_put_u8(&writer, type);
	wire_put_u8(&writer, channel);
	wire_put_u16(&writer, 0);
	wire_put_u32(&writer, stream);
}
