/*
 * The names of an archive: a tree of numbered nodes in three flat arrays, found through a hash.
 *
 * The hash is keyed with random bytes (SipHash-2-4), so that names chosen to collide do not make
 * it slow. A node costs 16 bytes, its name and about 6 bytes of hash table.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct tree_node {
	uint32_t parent;
	/* The next node in the same hash bucket; 0 is none, since the root is in no bucket. */
	uint32_t next;
	/* Where its name starts in names. */
	uint32_t name;
	/* enum archive_type */
	uint16_t type;
	uint16_t name_size;
};

struct tree {
	struct tree_node *nodes;
	uint32_t count;
	uint32_t capacity;
	/* Names one after the other, each with its NUL. */
	char *names;
	size_t names_size;
	size_t names_capacity;
	/* A power of two. */
	uint32_t *buckets;
	uint32_t bucket_count;
	uint64_t key[2];
};

/* What tree_find gives for a name that is not there; the root is in no directory. */
#define TREE_NONE 0

/* Makes a tree that holds the root, number 0. Returns 0 or a negative errno. */
int tree_init(struct tree *tree);
void tree_clear(struct tree *tree);

/* The node called name (size bytes) in parent, or TREE_NONE. */
uint32_t tree_find(const struct tree *tree, uint32_t parent, const char *name, size_t size);

/*
 * Adds a node that is not there yet. Returns 0 with *ret_id, -E2BIG when ARCHIVE_ENTRIES_MAX names
 * or 1 GiB of them are there already, or -ENOMEM.
 */
int tree_add(struct tree *tree, uint32_t parent, const char *name, size_t size, uint16_t type,
	     uint32_t *ret_id);

/* The name of a node; valid until the next tree_add. */
const char *tree_name(const struct tree *tree, uint32_t id);
