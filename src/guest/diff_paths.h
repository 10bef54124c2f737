/*
 * Many paths: kept one after the other, and found again by a hash.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/change.h"

/* What a system call takes: PATH_MAX has the NUL in it. */
#define DIFF_PATH_MAX (CHANGE_PATH_MAX - 1)

struct path_block;

/* Strings that live until all of them go. Each costs its length and a NUL. */
struct path_store {
	struct path_block *block;
};

/* A copy of the first size bytes of path, or NULL when there is no memory. */
const char *path_store_add(struct path_store *store, const char *path, size_t size);
void path_store_clear(struct path_store *store);

/*
 * Writes directory/name, or name when the directory is "." or empty. Returns false when that is
 * longer than DIFF_PATH_MAX.
 */
bool path_join(const char *directory, const char *name, char ret_path[DIFF_PATH_MAX + 1]);

struct path_slot {
	/* NULL: free. */
	const char *path;
	size_t value;
};

/* Open addressing, at most half full; the capacity is a power of two. */
struct path_map {
	struct path_slot *slots;
	size_t count;
	size_t capacity;
	/* So that nobody can choose paths that collide. */
	uint64_t seed;
};

/* Adds a path that is not there yet; it stays the caller's. Returns 0 or a negative errno. */
int path_map_add(struct path_map *map, const char *path, size_t value);

/* Looks the first size bytes of path up. */
bool path_map_find(const struct path_map *map, const char *path, size_t size, size_t *ret_value);

/*
 * The longest of path and the directories above it that the map has: *ret_size is its length in
 * path. With proper, path itself does not count.
 */
bool path_map_find_above(const struct path_map *map, const char *path, bool proper,
			 size_t *ret_size, size_t *ret_value);

void path_map_clear(struct path_map *map);
