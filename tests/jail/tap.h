/* Test results as TAP lines, for the programs of this folder. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static int tap_count;
static int tap_failures;

__attribute__((format(printf, 2, 3))) static inline bool tap(bool good, const char *format, ...)
{
	va_list args;

	printf("%s %d - ", good ? "ok" : "not ok", ++tap_count);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	tap_failures += !good;
	return good;
}

/* A check that cannot be made here. */
static inline void tap_skip(const char *name, const char *reason)
{
	printf("ok %d - %s # SKIP %s\n", ++tap_count, name, reason);
	fflush(stdout);
}

__attribute__((format(printf, 1, 2))) static inline void tap_note(const char *format, ...)
{
	va_list args;

	printf("# ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

static inline int tap_done(void)
{
	printf("1..%d\n", tap_count);
	return tap_failures ? 1 : 0;
}
