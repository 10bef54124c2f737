/*
 * What /data stands on: a chain of disks, sandboxes/NAME/data/.
 *
 *     base-0.ext4                    an empty file system, never written to
 *     layer-1.qcow2, layer-2.qcow2   frozen states, each on what is below it, numbered without a
 *                                    gap; shared with forks by hard links
 *     data.qcow2                     what was written since; the only one with a lock of its own
 *     fork.json                      of a fork: whose it is, and how many files of its chain, from
 *                                    the bottom, are the state at the fork
 *
 * The number of links of a layer tells how many chains stand on it. Every change of which files a
 * chain has is made in a new directory beside it, data.new-TAG, that then changes places with data/
 * in one step (renameat2(2), RENAME_EXCHANGE), so a chain is whole at every instant.
 *
 * A layer is written to by a merge alone (merge.c), and only when no other chain has it and nobody
 * has it open: whoever opens layers holds a shared lock on each, which lives as long as the last
 * process that could read.
 *
 *     sandboxes/NAME/chain.lock      exclusive: the files of the chain are being changed; shared:
 *                                    somebody opens layers without holding the lock on /data
 *     archive/undo-TIME/             an automatic archive: a chain of its own, made of links
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "store/store.h"

/* Files of one chain, data.qcow2 included. With a throwaway overlay on it a disk has one more
 * (ENGINE_LAYERS_MAX). Each costs a monitor some memory and every first read a look. */
#define STORE_CHAIN_MAX 7

/* Open files of a chain, read-only, from the bottom up. */
struct store_layers {
	int fds[STORE_CHAIN_MAX];
	/* At least 1: fds[0] is the raw base, the others are qcow2. 0: nothing is open. */
	size_t count;
};

/*
 * Lock of sandboxes/NAME/chain.lock. Taken after the lock on /data where both are needed, but by
 * `fork` of a machine that is up before it, since there the keeper holds that one. -EAGAIN
 * ("busy") without wait. Returns a descriptor or a negative errno with err filled.
 */
int store_lock_chain(int sandbox_fd, bool exclusive, bool wait, struct err *err);

/*
 * Opens what is below data.qcow2. The caller holds the lock on /data, or the chain lock. Returns 0
 * or a negative errno with err filled (-ENOENT, "no-data"; -EBADMSG, "chain-broken"). Given back
 * with store_close_layers, which is safe with count 0.
 */
int store_open_layers(int sandbox_fd, struct store_layers *ret_layers, struct err *err);
void store_close_layers(struct store_layers *layers);

/* Opens the base alone, which is the same in every chain of a sandbox: no lock is needed. */
int store_open_base(int sandbox_fd, struct store_layers *ret_layers, struct err *err);

/* Closes all but the first count files. */
void store_trim_layers(struct store_layers *layers, size_t count);

/*
 * Freezes /data: data.qcow2 becomes the last layer, and a new empty data.qcow2 of the same size is
 * put on it. The caller holds the chain lock (exclusive) and the lock on /data as data_fd, and
 * nothing that matters is written between the call and the moment when its machine writes to the
 * new one. *ret_top_fd is the new data.qcow2, locked as store_open_data does; the lock on data_fd
 * becomes a layer's. Nothing is done, and
 * 1 returned with *ret_top_fd -EBADF, when data.qcow2 holds nothing: what is below it is then the
 * state. Returns 0, 1, or a negative errno with err filled: -EMLINK ("chain-long") when the chain
 * has STORE_CHAIN_MAX files.
 */
int store_freeze_data(int sandbox_fd, int data_fd, int *ret_top_fd, struct err *err);

/* What a fork stands on. */
struct store_fork {
	char parent[72];
	/* Files of the fork's chain that are the state at the fork, the base included. */
	uint32_t base_count;
	/* Seconds since 1970. */
	int64_t created_s;
};

/* Reads fork.json. 1 with *ret_fork, 0 when it is no fork, or a negative errno with err filled. */
int store_read_fork(int sandbox_fd, struct store_fork *ret_fork, struct err *err);

/*
 * Makes sandbox `name` as a fork of `parent`, whose last layer is the state: Boxfile copied, image
 * and snapshot (where there are some) and all layers linked, an empty data.qcow2 on top. The caller
 * holds the parent's chain lock (exclusive). In one step: killed in the middle there is none.
 * -EEXIST when the name is taken.
 */
int store_create_fork(struct store *store, const char *parent, const char *name, struct err *err);

/* Names of the live forks of a sandbox, as store_list gives names. */
int store_list_forks(struct store *store, const char *parent, char ***ret_names, size_t *ret_count,
		     struct err *err);

/* The error for what cannot be done while there are forks: -EBUSY ("has-forks"), with their names
 * and the mend. 0 when there are none. */
int store_refuse_forks(struct store *store, const char *name, struct err *err);

/* Files of a chain that are to become one, see merge.c. */
struct store_merge {
	/* From the bottom up: what stays below, the one that is written to, and what goes into it.
	 */
	int fds[STORE_CHAIN_MAX + 1];
	size_t fd_count;
	size_t target;
	/* Of the target. */
	uint64_t size_bytes;
	/* The places in the chain, from the bottom, of the first and the last of those. */
	size_t first;
	size_t last;
	/* Files of the chain now, data.qcow2 included. */
	size_t count;
	/* Where the target is a new file: the chain that it is made for. */
	struct store_draft draft;
};
#define STORE_MERGE_NONE                                                                           \
	{                                                                                          \
		.fds = {[0 ... STORE_CHAIN_MAX] = -EBADF}, .draft = STORE_DRAFT_NONE               \
	}

enum store_merge_way {
	/* Only what no other chain stands on any more, each into the one below it: the cheapest
	 * of them. */
	STORE_MERGE_UNUSED,
	/* To make room: else all that is above the state at the fork (of what is no fork: the base)
	 * into a new file, else all that is below it and above the base. */
	STORE_MERGE_ROOM,
};

/*
 * Chooses files that can become one and opens them. The caller holds the chain lock (exclusive) and
 * the lock on /data, and carries the content over (engine/merge.h). Returns 1 with *ret_merge,
 * which is given back with store_drop_merge; 0 when there is nothing to merge; or a negative errno
 * with err filled.
 */
int store_begin_merge(int sandbox_fd, enum store_merge_way way, struct store_merge *ret_merge,
		      struct err *err);

/*
 * Makes the chain shorter: the target takes the place of all that was carried into it. Where
 * data.qcow2 was among these the target is data.qcow2 now, and *ret_top_fd its descriptor, locked
 * as store_open_data does; otherwise -EBADF. Returns 0 or a negative errno with err filled.
 */
int store_commit_merge(int sandbox_fd, struct store_merge *merge, int *ret_top_fd, struct err *err);
void store_drop_merge(int sandbox_fd, struct store_merge *merge);
