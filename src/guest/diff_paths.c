#include "guest/diff_paths.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/check.h"

/* Large against the longest path, small against what is little memory. */
#define BLOCK_BYTES ((size_t)256 << 10)
#define FIRST_SLOTS 64u

struct path_block {
	struct path_block *next;
	size_t used;
	char bytes[];
};

const char *path_store_add(struct path_store *store, const char *path, size_t size)
{
	struct path_block *block = store->block;
	char *copy;

	ASSERT(size <= CHANGE_PATH_MAX);
	if (!block || size + 1 > BLOCK_BYTES - block->used) {
		block = malloc(sizeof(*block) + BLOCK_BYTES);
		if (!block) {
			return NULL;
		}
		block->next = store->block;
		block->used = 0;
		store->block = block;
	}
	copy = block->bytes + block->used;
	memcpy(copy, path, size);
	copy[size] = '\0';
	block->used += size + 1;
	return copy;
}

void path_store_clear(struct path_store *store)
{
	while (store->block) {
		struct path_block *next = store->block->next;

		free(store->block);
		store->block = next;
	}
}

bool path_join(const char *directory, const char *name, char ret_path[DIFF_PATH_MAX + 1])
{
	size_t size = strcmp(directory, ".") == 0 ? 0 : strlen(directory);
	size_t name_size = strlen(name);

	if (size + (size > 0 ? 1 : 0) + name_size > DIFF_PATH_MAX) {
		return false;
	}
	memcpy(ret_path, directory, size);
	if (size > 0) {
		ret_path[size++] = '/';
	}
	memcpy(ret_path + size, name, name_size + 1);
	return true;
}

static uint64_t hash_path(const struct path_map *map, const char *path, size_t size)
{
	unsigned __int128 product;
	uint64_t hash = map->seed;

	for (size_t i = 0; i < size; i++) {
		product =
			(unsigned __int128)(hash ^ (uint8_t)path[i]) * UINT64_C(0x9e3779b97f4a7c15);
		hash = (uint64_t)product ^ (uint64_t)(product >> 64) ^ map->seed;
	}
	return hash;
}

static size_t find_slot(const struct path_map *map, const char *path, size_t size)
{
	size_t slot = (size_t)hash_path(map, path, size) & (map->capacity - 1);

	while (map->slots[slot].path && (strncmp(map->slots[slot].path, path, size) != 0 ||
					 map->slots[slot].path[size] != '\0')) {
		slot = (slot + 1) & (map->capacity - 1);
	}
	return slot;
}

static int grow(struct path_map *map)
{
	struct path_slot *old = map->slots;
	size_t old_capacity = map->capacity;
	size_t capacity = old_capacity ? old_capacity * 2 : FIRST_SLOTS;
	struct path_slot *slots = calloc(capacity, sizeof(*slots));

	if (!slots) {
		return -ENOMEM;
	}
	if (!old && getrandom(&map->seed, sizeof(map->seed), 0) != (ssize_t)sizeof(map->seed)) {
		free(slots);
		return -EIO;
	}
	map->slots = slots;
	map->capacity = capacity;
	for (size_t i = 0; i < old_capacity; i++) {
		if (old[i].path) {
			slots[find_slot(map, old[i].path, strlen(old[i].path))] = old[i];
		}
	}
	free(old);
	return 0;
}

int path_map_add(struct path_map *map, const char *path, size_t value)
{
	int rc = map->count * 2 >= map->capacity ? grow(map) : 0;
	size_t slot;

	if (rc < 0) {
		return rc;
	}
	slot = find_slot(map, path, strlen(path));
	ASSERT(!map->slots[slot].path);
	map->slots[slot] = (struct path_slot){.path = path, .value = value};
	map->count++;
	return 0;
}

bool path_map_find(const struct path_map *map, const char *path, size_t size, size_t *ret_value)
{
	size_t slot;

	if (map->count == 0) {
		return false;
	}
	slot = find_slot(map, path, size);
	if (!map->slots[slot].path) {
		return false;
	}
	*ret_value = map->slots[slot].value;
	return true;
}

bool path_map_find_above(const struct path_map *map, const char *path, bool proper,
			 size_t *ret_size, size_t *ret_value)
{
	size_t size = strlen(path);

	while (map->count > 0 && size > 0) {
		if (!proper && path_map_find(map, path, size, ret_value)) {
			*ret_size = size;
			return true;
		}
		proper = false;
		do {
			size--;
		} while (size > 0 && path[size] != '/');
	}
	return false;
}

void path_map_clear(struct path_map *map)
{
	free(map->slots);
	*map = (struct path_map){0};
}
