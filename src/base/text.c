#include "base/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* No key, command or name that is compared is longer; it bounds the rows on the stack. */
#define NEAREST_WORD_MAX 64

/* A shorter beginning would fit nearly everything. */
#define NEAREST_PREFIX_MIN 3

size_t text_utf8_decode(const char *bytes, size_t size, uint32_t *ret_code_point)
{
	/* The smallest code point that may be written with so many bytes. */
	static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	const unsigned char *data = (const unsigned char *)bytes;
	uint32_t code_point;
	size_t length;

	if (size == 0) {
		return 0;
	}
	if (data[0] < 0x80) {
		length = 1;
		code_point = data[0];
	} else if (data[0] >= 0xc0 && data[0] < 0xe0) {
		length = 2;
		code_point = data[0] & 0x1fu;
	} else if (data[0] >= 0xe0 && data[0] < 0xf0) {
		length = 3;
		code_point = data[0] & 0x0fu;
	} else if (data[0] >= 0xf0 && data[0] < 0xf8) {
		length = 4;
		code_point = data[0] & 0x07u;
	} else {
		return 0;
	}
	if (length > size) {
		return 0;
	}
	for (size_t i = 1; i < length; i++) {
		if ((data[i] & 0xc0u) != 0x80) {
			return 0;
		}
		code_point = (code_point << 6) | (data[i] & 0x3fu);
	}
	if (code_point < smallest[length] || code_point > 0x10ffff ||
	    (code_point >= 0xd800 && code_point <= 0xdfff)) {
		return 0;
	}
	if (ret_code_point) {
		*ret_code_point = code_point;
	}
	return length;
}

/* True for what may go to a terminal unchanged. */
static bool is_harmless(uint32_t code_point)
{
	/*
	 * Control characters; then what is not seen but changes what is: marks and overrides of
	 * the direction of writing, separators of lines and paragraphs, spaces without width.
	 */
	static const struct {
		uint32_t first;
		uint32_t last;
	} harmful[] = {
		{0x0000, 0x001f}, {0x007f, 0x009f}, {0x00ad, 0x00ad}, {0x061c, 0x061c},
		{0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
		{0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xfffe, 0xffff}, {0xe0000, 0xe0fff},
	};

	for (size_t i = 0; i < ARRAY_SIZE(harmful); i++) {
		if (code_point >= harmful[i].first && code_point <= harmful[i].last) {
			return false;
		}
	}
	return true;
}

/* Writes the quoted form of one byte to out (TEXT_QUOTE_GROWTH + 1 bytes), returns its length. */
static size_t escape_byte(char byte, char *out)
{
	static const char named[] = "\n\t\r\x1b\\\"";
	static const char letters[] = "ntre\\\"";
	const char *found = byte != '\0' ? strchr(named, byte) : NULL;
	int length;

	if (found) {
		length = snprintf(out, TEXT_QUOTE_GROWTH + 1, "\\%c", letters[found - named]);
	} else {
		length = snprintf(out, TEXT_QUOTE_GROWTH + 1, "\\x%02x", (unsigned char)byte);
	}
	return (size_t)length;
}

size_t text_quote(const char *bytes, size_t size, char *out, size_t capacity)
{
	size_t offset = 0, whole = 0, written = 0;
	bool cut = false;

	ASSERT(capacity > 0);
	while (offset < size) {
		uint32_t code_point = 0;
		size_t taken = text_utf8_decode(bytes + offset, size - offset, &code_point);
		char escaped[TEXT_QUOTE_GROWTH + 1];
		const char *piece = bytes + offset;
		size_t length = taken;

		if (taken == 0 || !is_harmless(code_point) || code_point == '\\' ||
		    code_point == '"') {
			/* A harmful character of several bytes is no character from its second
			 * byte on, so that these are escaped too. */
			taken = 1;
			length = escape_byte(bytes[offset], escaped);
			piece = escaped;
		}
		offset += taken;
		whole += length;
		cut = cut || length >= capacity - written;
		if (!cut) {
			memcpy(out + written, piece, length);
			written += length;
		}
	}
	out[written] = '\0';
	return whole;
}

static char lower(char letter)
{
	return letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
}

/*
 * Letters wrong, missing, too many, or two neighbours swapped, between a and b, both at most
 * NEAREST_WORD_MAX long. Three rows of the usual table are enough: a swap looks back two.
 */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
	size_t rows[3][NEAREST_WORD_MAX + 1];

	for (size_t j = 0; j <= b_length; j++) {
		rows[0][j] = j;
	}
	for (size_t i = 1; i <= a_length; i++) {
		size_t *row = rows[i % 3], *above = rows[(i + 2) % 3],
		       *two_above = rows[(i + 1) % 3];

		row[0] = i;
		for (size_t j = 1; j <= b_length; j++) {
			char x = lower(a[i - 1]), y = lower(b[j - 1]);

			row[j] = MIN(above[j - 1] + (x != y), MIN(above[j], row[j - 1]) + 1);
			if (i > 1 && j > 1 && x == lower(b[j - 2]) && y == lower(a[i - 2])) {
				row[j] = MIN(row[j], two_above[j - 2] + 1);
			}
		}
	}
	return rows[a_length % 3][b_length];
}

const char *text_nearest(const char *word, const char *const *candidates)
{
	size_t length = strnlen(word, NEAREST_WORD_MAX + 1);
	/* One mistake in a short word, one more for every four letters. */
	size_t best = 1 + length / 4;
	const char *nearest = NULL;

	if (length == 0 || length > NEAREST_WORD_MAX) {
		return NULL;
	}
	for (size_t i = 0; candidates[i]; i++) {
		size_t candidate_length = strlen(candidates[i]), distance;

		if (candidate_length > NEAREST_WORD_MAX) {
			continue;
		}
		distance = edit_distance(word, length, candidates[i], candidate_length);
		/* A word of which no letter is right is not near, however short. */
		if (distance < MAX(length, candidate_length) &&
		    (distance < best || (distance == best && !nearest))) {
			best = distance;
			nearest = candidates[i];
		}
	}
	for (size_t i = 0; !nearest && length >= NEAREST_PREFIX_MIN && candidates[i]; i++) {
		if (strncasecmp(word, candidates[i], length) == 0) {
			nearest = candidates[i];
		}
	}
	return nearest;
}

void text_format_bytes(uint64_t bytes, char *out, size_t capacity)
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	uint64_t whole = 0, tenths = 0;
	size_t unit = 0;

	if (bytes < 1024) {
		snprintf(out, capacity, "%u B", (unsigned)bytes);
		return;
	}
	/* One unit further also when rounding would otherwise write "1024.0". */
	for (; unit < ARRAY_SIZE(units); unit++) {
		unsigned shift = 10 * (unsigned)(unit + 1);
		uint64_t rest = bytes & ((UINT64_C(1) << shift) - 1);

		whole = bytes >> shift;
		tenths = (rest * 10 + (UINT64_C(1) << (shift - 1))) >> shift;
		if (tenths == 10) {
			whole++;
			tenths = 0;
		}
		if (whole < 1024) {
			break;
		}
	}
	snprintf(out, capacity, "%u.%u %s", (unsigned)whole, (unsigned)tenths, units[unit]);
}

char *text_base64(const void *bytes, size_t size)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const unsigned char *in = bytes;
	char *text = malloc((size + 2) / 3 * 4 + 1);
	char *out = text;

	if (!text) {
		return NULL;
	}
	for (size_t i = 0; i < size; i += 3) {
		size_t left = size - i;
		uint32_t group = (uint32_t)in[i] << 16;

		group |= left > 1 ? (uint32_t)in[i + 1] << 8 : 0;
		group |= left > 2 ? (uint32_t)in[i + 2] : 0;
		*out++ = digits[group >> 18];
		*out++ = digits[group >> 12 & 63];
		*out++ = left > 1 ? digits[group >> 6 & 63] : '=';
		*out++ = left > 2 ? digits[group & 63] : '=';
	}
	*out = '\0';
	return text;
}
