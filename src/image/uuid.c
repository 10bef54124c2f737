#include "image/image.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9') {
		return c - '0';
	}
	if (c >= 'a' && c <= 'f') {
		return c - 'a' + 10;
	}
	if (c >= 'A' && c <= 'F') {
		return c - 'A' + 10;
	}
	return -1;
}

int image_parse_uuid(const char *text, uint8_t ret_uuid[16])
{
	uint8_t uuid[16];
	size_t at = 0;

	for (size_t i = 0; i < sizeof(uuid); i++) {
		int high, low;

		if (i == 4 || i == 6 || i == 8 || i == 10) {
			if (text[at++] != '-') {
				return -EINVAL;
			}
		}
		high = hex_digit(text[at]);
		low = high < 0 ? -1 : hex_digit(text[at + 1]);
		if (low < 0) {
			return -EINVAL;
		}
		uuid[i] = (uint8_t)(high << 4 | low);
		at += 2;
	}
	if (text[at] != '\0') {
		return -EINVAL;
	}
	memcpy(ret_uuid, uuid, sizeof(uuid));
	return 0;
}

int image_random_uuid(uint8_t ret_uuid[16])
{
	/* 16 bytes come whole (getrandom(2)). */
	if (getrandom(ret_uuid, 16, 0) != 16) {
		return -EIO;
	}
	ret_uuid[6] = (uint8_t)((ret_uuid[6] & 0x0f) | 0x40);
	ret_uuid[8] = (uint8_t)((ret_uuid[8] & 0x3f) | 0x80);
	return 0;
}
