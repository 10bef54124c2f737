#include "wire/http.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "base/check.h"

/* What a status line begins with (RFC 9112, 4): # is a digit. */
static const char beginning[] = "HTTP/1.# ### ";
#define BEGINNING_SIZE (sizeof(beginning) - 1)
#define STATUS_AT (sizeof("HTTP/1.# ") - 1)

static bool fits(uint8_t byte, char wanted)
{
	return wanted == '#' ? byte >= '0' && byte <= '9' : byte == (uint8_t)wanted;
}

/* The place behind the empty line, or 0. A bare LF ends a line too (RFC 9112, 2.2). */
static size_t find_end(const uint8_t *data, size_t size)
{
	size_t line = 0;

	for (size_t i = 0; i < size; i++) {
		if (data[i] != '\n') {
			continue;
		}
		if (i == line || (i == line + 1 && data[line] == '\r')) {
			return i + 1;
		}
		line = i + 1;
	}
	return 0;
}

int http_response_head(const uint8_t *data, size_t size, unsigned *ret_status)
{
	const uint8_t *digits = data + STATUS_AT;
	unsigned status;

	*ret_status = 0;
	/* The space behind the status may be missing with the reason: then its line ends there. */
	for (size_t i = 0; i < MIN(size, BEGINNING_SIZE); i++) {
		bool ends = i == BEGINNING_SIZE - 1 && (data[i] == '\r' || data[i] == '\n');

		if (!fits(data[i], beginning[i]) && !ends) {
			return -EBADMSG;
		}
	}
	if (size < BEGINNING_SIZE) {
		return 0;
	}
	status = 100u * (digits[0] - '0') + 10u * (digits[1] - '0') + (digits[2] - '0');
	if (status < 100 || status > 599 || size > INT_MAX) {
		return -EBADMSG;
	}
	*ret_status = status;
	return (int)find_end(data, size);
}
