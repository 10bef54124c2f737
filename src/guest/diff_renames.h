/*
 * Directories that have another path than before.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "guest/diff_inodes.h"
#include "guest/diff_paths.h"

/* Both states, mounted. */
struct diff_sides {
	/* Their roots, open for reading. */
	int old_fd;
	int new_fd;
	/* What has moved is told as deleted and added. */
	bool without_renames;
	struct inode_changes changes;
};

struct renamed_directory {
	const char *from;
	const char *to;
};

struct renames {
	/* Ascending by to. */
	struct renamed_directory *list;
	size_t count;
	size_t capacity;
	struct path_store paths;
	/* Into list, by from and by to. */
	struct path_map sources;
	struct path_map targets;
};

/*
 * Finds the directories that change.h calls renamed. Needs no walk of all there is: the inode of
 * what was moved has changed, and the kernel knows the path of a directory by its inode.
 * *ret_renames, which starts as zeros, is the caller's, also after a failure. Returns 0 or a
 * negative errno with err filled.
 */
int renames_find(const struct diff_sides *sides, struct renames *ret_renames, struct err *err);

/* Whether a directory of the old state is called something else now. */
bool renames_is_source(const struct renames *renames, const char *old_path);

/* What a directory of the new state was called before, or NULL when it is not renamed. */
const char *renames_from(const struct renames *renames, const char *new_path);

void renames_clear(struct renames *renames);
