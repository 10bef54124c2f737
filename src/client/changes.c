#include "client/changes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* Room for the four strings of any change, and for thousands of usual ones. */
#define BLOCK_BYTES ((size_t)1 << 18)
#define CAPACITY_FIRST 64

struct changes_block {
	struct changes_block *next;
	char bytes[BLOCK_BYTES];
};

static int reserve(struct changes *list, size_t more)
{
	if (more > CHANGES_BYTES_MAX - list->bytes) {
		return -E2BIG;
	}
	list->bytes += more;
	return 0;
}

static int keep_string(struct changes *list, const char **string)
{
	size_t size = strlen(*string) + 1;
	char *copy;

	ASSERT(size <= BLOCK_BYTES);
	if (size == 1) {
		*string = "";
		return 0;
	}
	if (!list->blocks || BLOCK_BYTES - list->used < size) {
		struct changes_block *block;
		int rc = reserve(list, sizeof(*block));

		block = rc == 0 ? malloc(sizeof(*block)) : NULL;
		if (!block) {
			return rc < 0 ? rc : -ENOMEM;
		}
		block->next = list->blocks;
		list->blocks = block;
		list->used = 0;
	}
	copy = list->blocks->bytes + list->used;
	memcpy(copy, *string, size);
	list->used += size;
	*string = copy;
	return 0;
}

static int grow(struct changes *list)
{
	size_t capacity = list->capacity > 0 ? list->capacity * 2 : CAPACITY_FIRST;
	struct change *items;
	int rc;

	if (list->count < list->capacity) {
		return 0;
	}
	rc = reserve(list, (capacity - list->capacity) * sizeof(*items));
	if (rc < 0) {
		return rc;
	}
	items = realloc(list->items, capacity * sizeof(*items));
	if (!items) {
		return -ENOMEM;
	}
	list->items = items;
	list->capacity = capacity;
	return 0;
}

int changes_add(struct changes *list, const struct change *change)
{
	struct change copy = *change;
	const char **strings[] = {&copy.path, &copy.from, &copy.old_target, &copy.new_target};
	int rc = grow(list);

	for (size_t i = 0; i < ARRAY_SIZE(strings) && rc == 0; i++) {
		rc = keep_string(list, strings[i]);
	}
	if (rc == 0) {
		list->items[list->count++] = copy;
	}
	return rc;
}

void changes_clear(struct changes *list)
{
	while (list->blocks) {
		struct changes_block *block = list->blocks;

		list->blocks = block->next;
		free(block);
	}
	free(list->items);
	*list = (struct changes){0};
}
