/*
 * Assertions and checked arithmetic.
 *
 * ASSERT is for our own mistakes and stays on in release builds. It is never used on a value that
 * came from outside; such values are refused with an error code.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Prints the failed condition to stderr and aborts. */
_Noreturn void assert_failed(const char *condition, const char *file, int line);

#define ASSERT(condition)                                                                          \
	do {                                                                                       \
		if (__builtin_expect(!(condition), 0)) {                                           \
			assert_failed(#condition, __FILE__, __LINE__);                             \
		}                                                                                  \
	} while (0)

/* True when the result does not fit the type of *ret_result; *ret_result is then unspecified. */
#define ADD_OVERFLOWS(a, b, ret_result) __builtin_add_overflow((a), (b), (ret_result))
#define SUB_OVERFLOWS(a, b, ret_result) __builtin_sub_overflow((a), (b), (ret_result))
#define MUL_OVERFLOWS(a, b, ret_result) __builtin_mul_overflow((a), (b), (ret_result))

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
