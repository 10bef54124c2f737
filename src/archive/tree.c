#include "archive/tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "archive/archive.h"
#include "base/check.h"

/* 100 bytes for each of the most entries that an archive may have. */
#define TREE_NAMES_MAX ((size_t)1 << 30)
#define TREE_FIRST_BUCKETS 1024u

static uint64_t rotate(uint64_t value, unsigned bits)
{
	return value << bits | value >> (64 - bits);
}

static void sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = rotate(v[1], 13) ^ v[0];
	v[0] = rotate(v[0], 32);
	v[2] += v[3];
	v[3] = rotate(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotate(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotate(v[1], 17) ^ v[2];
	v[2] = rotate(v[2], 32);
}

static void sip_word(uint64_t v[4], uint64_t word)
{
	v[3] ^= word;
	sip_round(v);
	sip_round(v);
	v[0] ^= word;
}

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of the parent's number and the name. */
static uint32_t hash_name(const struct tree *tree, uint32_t parent, const char *name, size_t size)
{
	uint64_t v[4] = {
		tree->key[0] ^ 0x736f6d6570736575u,
		tree->key[1] ^ 0x646f72616e646f6du,
		tree->key[0] ^ 0x6c7967656e657261u,
		tree->key[1] ^ 0x7465646279746573u,
	};
	uint64_t word;
	size_t i = 0;

	sip_word(v, parent);
	for (; i + 8 <= size; i += 8) {
		memcpy(&word, name + i, 8);
		sip_word(v, word);
	}
	word = 0;
	memcpy(&word, name + i, size - i);
	sip_word(v, word | (uint64_t)(size & 0xff) << 56);
	v[2] ^= 0xff;
	for (int round = 0; round < 4; round++) {
		sip_round(v);
	}
	return (uint32_t)(v[0] ^ v[1] ^ v[2] ^ v[3]);
}

static uint32_t *bucket_of(const struct tree *tree, uint32_t parent, const char *name, size_t size)
{
	return &tree->buckets[hash_name(tree, parent, name, size) & (tree->bucket_count - 1)];
}

const char *tree_name(const struct tree *tree, uint32_t id)
{
	ASSERT(id < tree->count);
	return tree->names + tree->nodes[id].name;
}

uint32_t tree_find(const struct tree *tree, uint32_t parent, const char *name, size_t size)
{
	uint32_t id = *bucket_of(tree, parent, name, size);

	while (id != TREE_NONE) {
		const struct tree_node *node = &tree->nodes[id];

		if (node->parent == parent && node->name_size == size &&
		    memcmp(tree->names + node->name, name, size) == 0) {
			return id;
		}
		id = node->next;
	}
	return TREE_NONE;
}

/* Twice as many buckets, so that a bucket holds one node on average. */
static int grow_buckets(struct tree *tree)
{
	uint32_t count = tree->bucket_count ? tree->bucket_count * 2 : TREE_FIRST_BUCKETS;
	uint32_t *buckets = calloc(count, sizeof(*buckets));

	if (!buckets) {
		return -ENOMEM;
	}
	free(tree->buckets);
	tree->buckets = buckets;
	tree->bucket_count = count;
	for (uint32_t id = 1; id < tree->count; id++) {
		struct tree_node *node = &tree->nodes[id];
		uint32_t *bucket =
			bucket_of(tree, node->parent, tree->names + node->name, node->name_size);

		node->next = *bucket;
		*bucket = id;
	}
	return 0;
}

static int grow_nodes(struct tree *tree)
{
	uint32_t capacity = tree->capacity ? tree->capacity * 2 : TREE_FIRST_BUCKETS;
	struct tree_node *nodes = reallocarray(tree->nodes, capacity, sizeof(*nodes));

	if (!nodes) {
		return -ENOMEM;
	}
	tree->nodes = nodes;
	tree->capacity = capacity;
	return 0;
}

static int grow_names(struct tree *tree, size_t need)
{
	size_t capacity = tree->names_capacity ? tree->names_capacity : 65536;
	char *names;

	while (capacity < need) {
		capacity *= 2;
	}
	names = realloc(tree->names, capacity);
	if (!names) {
		return -ENOMEM;
	}
	tree->names = names;
	tree->names_capacity = capacity;
	return 0;
}

int tree_add(struct tree *tree, uint32_t parent, const char *name, size_t size, uint16_t type,
	     uint32_t *ret_id)
{
	size_t need = tree->names_size + size + 1;
	uint32_t id = tree->count;

	ASSERT(size <= ARCHIVE_COMPONENT_MAX);
	/* The root is no entry. */
	if (id > ARCHIVE_ENTRIES_MAX || need > TREE_NAMES_MAX) {
		return -E2BIG;
	}
	if ((id == tree->capacity && grow_nodes(tree) < 0) ||
	    (need > tree->names_capacity && grow_names(tree, need) < 0) ||
	    (id >= tree->bucket_count && grow_buckets(tree) < 0)) {
		return -ENOMEM;
	}
	tree->nodes[id] = (struct tree_node){
		.parent = parent,
		.name = (uint32_t)tree->names_size,
		.type = type,
		.name_size = (uint16_t)size,
	};
	memcpy(tree->names + tree->names_size, name, size);
	tree->names[tree->names_size + size] = '\0';
	tree->names_size = need;
	tree->count++;
	if (id > 0) {
		uint32_t *bucket = bucket_of(tree, parent, name, size);

		tree->nodes[id].next = *bucket;
		*bucket = id;
	}
	*ret_id = id;
	return 0;
}

int tree_init(struct tree *tree)
{
	uint32_t root;
	int rc;

	*tree = (struct tree){0};
	if (getrandom(tree->key, sizeof(tree->key), 0) != (ssize_t)sizeof(tree->key)) {
		return -EIO;
	}
	rc = tree_add(tree, 0, "", 0, ARCHIVE_ITEM_DIRECTORY, &root);
	if (rc < 0) {
		tree_clear(tree);
	}
	return rc;
}

void tree_clear(struct tree *tree)
{
	free(tree->nodes);
	free(tree->names);
	free(tree->buckets);
	*tree = (struct tree){0};
}
