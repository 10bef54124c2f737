/*
 * The YAML layer: a Boxfile's text as a small tree with positions. Private to this part.
 *
 * What YAML offers beyond maps, lists and scalars is refused here, so that nothing above has to
 * think of it: anchors, aliases, tags, several documents, keys that are no scalars, keys that
 * stand twice in one map, NUL in a scalar, and everything above the limits below.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* The deepest place is blueprint, users, one user, groups, one group: six. Two to spare. */
#define SPEC_DEPTH_MAX 8
/* Keys of one map; the environment is the longest. Duplicates are looked for one by one. */
#define SPEC_MAP_MAX 1024
/* Items of one list. Packages are the longest; a whole desktop has 3,000. */
#define SPEC_LIST_MAX 4096
/* All nodes of a file: bounds memory whatever the shape. */
#define SPEC_NODES_MAX 65536

enum spec_node_kind {
	SPEC_NODE_SCALAR,
	SPEC_NODE_LIST,
	SPEC_NODE_MAP,
};

struct spec_node {
	enum spec_node_kind kind;
	/* From 1. */
	size_t line;
	size_t column;
	/* A scalar's text: valid UTF-8, no NUL. NULL for lists and maps. */
	char *text;
	/* Written without quotation marks and not as a block. */
	bool plain;
	/* A list's items; a map's keys, all scalars. */
	struct spec_node *first;
	struct spec_node *next;
	/* How many of them. */
	size_t count;
	/* Of a map's key: what stands behind it. Never NULL there, NULL everywhere else. */
	struct spec_node *value;
};

/* Where messages go. */
struct spec_source {
	const char *file_name;
	struct err *err;
};

/* Fills err with "FILE:LINE:COLUMN: ..." for the place of node and returns -EINVAL. */
int spec_fail(const struct spec_source *source, const struct spec_node *node, const char *format,
	      ...) __attribute__((format(printf, 3, 4)));

/*
 * Reads text (size bytes, not trusted). *ret_root is owned by the caller, or NULL when the file
 * holds nothing but comments. Returns 0, -EINVAL with err filled, or -ENOMEM.
 */
int spec_node_read(const struct spec_source *source, const char *text, size_t size,
		   struct spec_node **ret_root);

/* Frees a node with all below and all after it. */
void spec_node_free(struct spec_node *node);
static inline void spec_node_freep(struct spec_node **node)
{
	spec_node_free(*node);
}

/* True for a plain scalar that says nothing: empty, ~ or null. */
bool spec_node_is_null(const struct spec_node *node);
