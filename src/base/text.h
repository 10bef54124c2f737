/*
 * Text that a person reads: names from outside made harmless, mistyped words, sizes.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What text_quote can make of one byte, at most ("\xNN"). */
#define TEXT_QUOTE_GROWTH 4

/* Enough for every result of text_format_bytes, with its NUL. */
#define TEXT_BYTES_MAX 16

/*
 * Quotes size bytes (not trusted, any bytes, NUL included) for a message or a terminal: printable
 * UTF-8 stays as it is; `\` and `"` get a `\` before them; newline, tab, carriage return and escape
 * become \n, \t, \r, \e; all other control characters, bytes that are not valid UTF-8, and the
 * characters that turn the direction of text or end a line become \xNN, one for each byte. The
 * result stands in a pair of quotation marks that the caller writes.
 *
 * out gets at most capacity bytes, a NUL always (capacity is at least 1), and only whole
 * characters and escapes. Returns the length of the whole quoted form, without NUL: when this is
 * not less than capacity, out holds only its beginning. size * TEXT_QUOTE_GROWTH + 1 is enough.
 */
size_t text_quote(const char *bytes, size_t size, char *out, size_t capacity);

/*
 * The word of candidates (NULL-terminated) that a person most likely meant by word: the fewest
 * letters wrong, missing, too many or swapped, upper and lower case alike; otherwise the first one
 * that word is the beginning of. NULL when none is near. word is not trusted. The result is one of
 * the pointers in candidates; of equally near ones the first.
 */
const char *text_nearest(const char *word, const char *const *candidates);

/*
 * Writes a number of bytes with a binary unit: "512 B", "12.3 MiB". Rounded to one tenth. out holds
 * capacity bytes; TEXT_BYTES_MAX is always enough.
 */
void text_format_bytes(uint64_t bytes, char *out, size_t capacity);

/*
 * The length in bytes (1 to 4) of the UTF-8 character at the start of size bytes, or 0 when there
 * is none: too short, overlong, a surrogate, above U+10FFFF (RFC 3629). *ret_code_point may be
 * NULL. The bytes are not trusted.
 */
size_t text_utf8_decode(const char *bytes, size_t size, uint32_t *ret_code_point);

/* Base64 (RFC 4648, 4) of size bytes, with its padding; owned by the caller. NULL without memory.
 */
char *text_base64(const void *bytes, size_t size);
