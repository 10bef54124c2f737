/*
 * The difference of two texts, line by line, as hunks of a unified diff.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Larger ones are not compared: a person does not read their difference. */
#define DIFF_TEXT_MAX ((size_t)4 << 20)

/* Takes the next piece of the diff. Returns 0, or a negative errno that ends it. */
typedef int diff_text_sink(void *data, const char *piece, size_t size);

/* No NUL byte in its first 64 KiB: what is shown as lines. */
bool diff_text_is_text(const char *bytes, size_t size);

/*
 * Hands the hunks that make new of old to sink, with three lines of context, in the form of GNU
 * diff. Nothing for equal texts. Bytes are any; at most DIFF_TEXT_MAX of each. The result depends
 * on nothing but the texts, and is shortest unless the search for it becomes too long: the part in
 * question then is one block that replaces another. Needs 9 bytes for each line. Returns 0,
 * -ENOMEM, or what sink returned.
 */
int diff_text(const char *old, size_t old_size, const char *new, size_t new_size,
	      diff_text_sink *sink, void *data);
