#include "base/array.h"

#include <stdlib.h>

/* The allocator's smallest pieces hold about that many small elements. */
#define CAPACITY_FIRST 16

void *array_reserve(void *array, size_t count, size_t *capacity, size_t element_bytes)
{
	size_t wanted = *capacity > 0 ? *capacity * 2 : CAPACITY_FIRST;
	void *grown;

	if (count < *capacity) {
		return array;
	}
	grown = reallocarray(array, wanted, element_bytes);
	if (grown) {
		*capacity = wanted;
	}
	return grown;
}
