/*
 * Bringing what a fork has changed to its parent, and taking that back. See apply.c for how.
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "client/merge.h"
#include "store/applied.h"
#include "store/store.h"

struct client_apply_options {
	/* As a person types them (merge_path); none: everything. */
	const char *const *paths;
	size_t path_count;
	enum merge_choice choice;
	/* The digest that the fork's changes must have (client_diff with CLIENT_DIFF_CONTENT), or
	 * NULL. */
	const char *expect;
	/* Called for what a person may want to know. May be NULL. */
	void (*notice)(void *data, const char *text);
	void *data;
};

struct client_apply_result {
	/* Whose /data it is. */
	char parent[72];
	/* What each of the two has changed since the fork was made, and what became of it. */
	struct changes fork_changes;
	struct changes parent_changes;
	struct merge merge;
	/* Of the fork's changes. */
	char digest[STORE_DIGEST_SIZE];
	/* The automatic archive with the state before; empty when nothing was to be done. */
	char undo[STORE_LABEL_MAX + 1];
};

/*
 * Applies the changes of the fork called name to its parent's /data: all of what is to be, or
 * nothing, also when killed in the middle. Returns 0, 1 when nothing was done because there are
 * conflicts (result->merge.open_count), or a negative errno with err filled:
 *
 *     no-fork           it is no fork
 *     busy              the parent is up, or something holds its /data
 *     fork-moved        its changes are not those of `expect`
 *     no-change         a path of `paths` has none
 *     special-file      devices, fifos or sockets would have to be made
 *
 * *ret_result is filled in any case and given back with client_apply_clear.
 */
int client_apply(struct store *store, const char *name, const struct client_apply_options *options,
		 struct client_apply_result *ret_result, struct err *err);
void client_apply_clear(struct client_apply_result *result);

/*
 * Brings the state before the last apply back. name is the sandbox whose /data it was, or the fork
 * that was applied. Refused with "changed-since" when anything in /data has changed since, and with
 * "nothing-applied" when there is nothing to undo. ret_parent (72 bytes) and ret_undo
 * (STORE_LABEL_MAX + 1 bytes) say where, and which archive has the state that was undone.
 */
int client_apply_undo(struct store *store, const char *name,
		      const struct client_apply_options *options, char *ret_parent, char *ret_undo,
		      struct err *err);
