/* Trees of a few files for the tests of the merge: random edits, the changes between two trees as
 * change.h defines them, and what becomes of a tree by some changes. Slow and plain. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/changes.h"

#define TREE_NODES_MAX 64
#define TREE_PATH_MAX 40

struct node {
	char path[TREE_PATH_MAX];
	/* What the number of an inode says: the same file under whatever path. */
	unsigned inode;
	uint32_t type;
	uint32_t mode;
	unsigned content;
	/* Of tree_apply: where it is while renames are under way. */
	char held[TREE_PATH_MAX];
};

struct tree {
	struct node nodes[TREE_NODES_MAX];
	size_t count;
};

/* A generator whose seed is all that it depends on. */
struct dice {
	uint64_t state;
	unsigned next_inode;
};

unsigned dice_below(struct dice *dice, unsigned limit);

struct node *tree_find(struct tree *tree, const char *path);
const struct node *tree_look(const struct tree *tree, const char *path);
bool node_equal(const struct node *a, const struct node *b);
bool tree_equal(const struct tree *a, const struct tree *b);

/* Does something to the tree. */
void tree_edit(struct tree *tree, struct dice *dice, bool renames);

/* The changes from old to new; false when they are of a kind that change.h leaves open. Without
 * renames what was renamed is deleted and added. */
bool tree_diff(const struct tree *old, const struct tree *new, bool renames,
	       struct changes *ret_changes);

/*
 * Does the changes that chosen names to the tree, with contents out of source. Returns NULL or what
 * is not possible.
 */
const char *tree_apply(struct tree *tree, const struct changes *changes, const bool *chosen,
		       const struct tree *source);
