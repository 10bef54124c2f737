/*
 * Bringing what a fork changed to its parent, which may have changed something too: which changes
 * are taken, which are not, and where the two contradict each other. Pure.
 *
 * Both lists tell what became of the same old state. What only the fork changed is taken. What both
 * changed to the same is nothing to do. A conflict is
 *   - a path that both changed, differently;
 *   - a change of one in or on what the other deleted, renamed, or made something else than a
 *     directory. A rename stands for its old and its new path, with all below both.
 *
 * A conflict that is decided for the fork means that the parent's changes which are in the way are
 * taken back first: all of such a change, and what of the parent's depends on it. Then the fork's
 * changes fit as they are. One that is decided for the parent leaves the fork's change out, with
 * what of the fork's depends on it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "client/changes.h"

enum merge_choice {
	/* Nothing is applied while there are conflicts. */
	MERGE_ASK,
	/* The parent's side of each conflict. */
	MERGE_OURS,
	/* The fork's. */
	MERGE_THEIRS,
};

enum merge_fate {
	/* No path that was named has it. */
	MERGE_LEFT_OUT,
	MERGE_TAKEN,
	/* The parent has it already. */
	MERGE_SAME,
	/* A conflict that nobody has decided. */
	MERGE_OPEN,
	/* Given up in favour of the parent. */
	MERGE_GIVEN_UP,
};

enum merge_reason {
	MERGE_BOTH_CHANGED,
	/* The parent deleted, renamed or replaced something above it. */
	MERGE_PARENT_ABOVE,
	/* The fork deleted, renamed or replaced something in which the parent changed something. */
	MERGE_PARENT_BELOW,
};

struct merge_conflict {
	/* Indexes into the lists. Of several changes of the parent's that are in the way it is the
	 * first. */
	size_t fork;
	size_t parent;
	enum merge_reason reason;
};

struct merge_input {
	/* Ascending by path, as a stream has them. */
	const struct changes *fork;
	const struct changes *parent;
	/* For each of the fork's changes that merge_marks names: the contents are equal. NULL: none
	 * is. */
	const bool *equal;
	/* Paths below /data (merge_path); none: everything. Each takes what is below it too, and a
	 * conflict at the path itself is decided for the fork. A rename is named by either path. */
	const char *const *paths;
	size_t path_count;
	enum merge_choice choice;
};

struct merge {
	/* enum merge_fate for each of the fork's changes. */
	unsigned char *fates;
	/* For each of the parent's changes: it is to be taken back. */
	bool *reverts;
	struct merge_conflict *conflicts;
	size_t conflict_count;
	/* Conflicts that are not decided; while there are some nothing may be applied. */
	size_t open_count;
	size_t taken_count;
	size_t revert_count;
	/* The first path of paths that no change has, or NULL. */
	const char *unmatched;
};

/*
 * Marks (marks[i] for fork->items[i]) the changes that both have made with all that a record says
 * equal, so that only a look at the contents can tell whether they are the same. Returns how many,
 * or -ENOMEM.
 */
long merge_marks(const struct changes *fork, const struct changes *parent, bool *marks);

/* Returns 0 with *ret_merge, given back with merge_clear, or -ENOMEM. */
int merge_make(const struct merge_input *input, struct merge *ret_merge);
void merge_clear(struct merge *merge);

/*
 * Marks (ret_chosen[i] for back->items[i]) what takes the parent's changes back that are to be.
 * back is what leads from the parent's state to the old one, without renames: a rename of the
 * parent's is there as what is deleted and added. Returns 0 or -ENOMEM.
 */
int merge_back(const struct merge *merge, const struct changes *parent, const struct changes *back,
	       bool *ret_chosen);

/*
 * A path as a person gives it, below /data or from there ("src/x", "./src/x/", "/data/src/x"), in
 * the form of change.h. "." is all of /data. Returns 0, or -EINVAL for one that is none.
 */
int merge_path(const char *word, char ret_path[CHANGE_PATH_MAX + 1]);
