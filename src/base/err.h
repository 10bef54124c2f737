/*
 * What a person reads when something fails.
 *
 * Functions return 0 or a negative errno. Where a person will read the reason, they also fill a
 * struct err that the caller owns. It is plain bytes: no allocation, nothing to free. On success
 * it is left untouched. A struct err pointer may be NULL everywhere: then only the code is
 * returned.
 */
#pragma once

#include <stddef.h>

struct err {
	/* A stable word for programs, such as "no-kernel". Empty until something failed. */
	char code[32];
	/* What failed and why, without a trailing newline. */
	char text[768];
	/* One line that says what to do, or empty. */
	char mend[512];
};

/* Fills err with a code word and a formatted text and clears the mend. Returns rc unchanged. */
int err_set(struct err *err, int rc, const char *code, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* Adds the line that says what to do. Does nothing when err is NULL. */
void err_mend(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Puts "context: " before the text that is already there, once on the way up; when there is no
 * text yet it becomes "context: strerror(rc)" with the code "system". Returns rc unchanged.
 */
int err_context(struct err *err, int rc, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
