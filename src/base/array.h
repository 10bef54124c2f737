/* Arrays that grow. */
#pragma once

#include <stddef.h>

/*
 * Makes room for one more element of element_bytes in an array that holds count of them and has
 * room for *capacity; it doubles. Returns the array, perhaps moved, or NULL when there is no
 * memory: then the array and *capacity are as they were.
 */
void *array_reserve(void *array, size_t count, size_t *capacity, size_t element_bytes);
