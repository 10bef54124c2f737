/*
 * Frames: the one shape in which bytes cross between the host and a guest.
 *
 * A frame is a 12-byte header and a payload. All integers are little endian:
 *
 *     u32 length of the payload   at most WIRE_PAYLOAD_MAX
 *     u8  type                    enum of the port's own codec (wire/ctl.h)
 *     u8  channel                 which byte stream of the stream
 *     u16 reserved                zero
 *     u32 stream                  zero: the port itself
 *
 * The decoder is fed whatever a read returned and yields whole frames; it does no I/O and
 * allocates nothing. A broken header makes it fail for good: the port is then closed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_HEADER_SIZE 12
/* A whole frame fits the 32 KiB that Linux's virtio console driver moves in one piece. */
#define WIRE_FRAME_MAX 32768
#define WIRE_PAYLOAD_MAX (WIRE_FRAME_MAX - WIRE_HEADER_SIZE)

struct wire_frame {
	uint8_t type;
	uint8_t channel;
	uint32_t stream;
	uint32_t length;
	/* Points into the decoder's buffer; valid until its next call. */
	const uint8_t *payload;
};

struct wire_decoder {
	size_t filled;
	size_t consumed;
	bool failed;
	uint8_t buffer[2 * WIRE_FRAME_MAX];
};

/* Forgets everything, also a failure. */
void wire_decoder_reset(struct wire_decoder *decoder);

/*
 * Where the next read(2) may put bytes, and how many (never 0 unless the decoder failed or a whole
 * frame waits to be taken).
 */
uint8_t *wire_decoder_space(struct wire_decoder *decoder, size_t *ret_size);

/* Says that size bytes were put there. */
void wire_decoder_filled(struct wire_decoder *decoder, size_t size);

/* True when the bytes so far end exactly at a frame's end. */
bool wire_decoder_empty(const struct wire_decoder *decoder);

/* Takes the next whole frame: 1 with *ret_frame, 0 when more bytes are needed, -EBADMSG. */
int wire_decoder_next(struct wire_decoder *decoder, struct wire_frame *ret_frame);

/* Writes a frame's header into out (WIRE_HEADER_SIZE bytes). length is at most WIRE_PAYLOAD_MAX. */
void wire_header_encode(uint8_t *out, uint8_t type, uint8_t channel, uint32_t stream,
			uint32_t length);
