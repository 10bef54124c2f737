/*
 * What the last `box apply` did to a sandbox's /data, so that it can be undone.
 *
 * An apply works on a chain of its own: what is /data, frozen, with an empty disk on it
 * (store_begin_stacked). When all is written the chain takes the place of /data in one step
 * (store_swap_stacked). The state before becomes an automatic archive: the frozen files with
 * another empty disk on them, since no layer may be written to again.
 *
 *     sandboxes/NAME/applied.json
 */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "store/chain.h"
#include "store/store.h"

struct store_applied {
	/* Whose changes they were. */
	char fork[72];
	/* Seconds since 1970. */
	int64_t applied_s;
	/* Files of the chain, from the bottom, that are the state before. */
	uint32_t layers;
	/* The automatic archive with that state. */
	char undo[STORE_LABEL_MAX + 1];
	/* Of what leads from the state before to the one after, as client_diff gives it. */
	char digest[STORE_DIGEST_SIZE];
};

/*
 * Begins a chain that is /data as it is now with an empty disk on it. The caller holds the lock on
 * /data as data_fd until the end. *ret_layers is what is below the new disk, opened for reading;
 * given back with store_close_layers. Returns 0 or a negative errno with err filled: -EMLINK
 * ("chain-long") when the chain has STORE_CHAIN_MAX files already.
 */
int store_begin_stacked(int sandbox_fd, int data_fd, struct store_draft *ret_draft,
			struct store_layers *ret_layers, struct err *err);

/*
 * Puts it in the place of /data, in one step, and writes applied.json; the label of the state
 * before goes to applied->undo. The caller holds the lock on /data and the chain lock (exclusive),
 * and nothing has the draft open for writing any more.
 */
int store_swap_stacked(int sandbox_fd, struct store_draft *draft, struct store_applied *applied,
		       struct err *err);

/* Reads applied.json. 1 with *ret_applied, 0 when there is none, or a negative errno with err
 * filled. */
int store_read_applied(int sandbox_fd, struct store_applied *ret_applied, struct err *err);

/* Opens the state before: what of its archive is below the empty disk. -ENOENT ("no-archive") when
 * it is not kept any more. */
int store_open_undo(int sandbox_fd, const struct store_applied *applied,
		    struct store_layers *ret_layers, struct err *err);

/*
 * Begins the chain of the state before, and puts it in the place of /data: what was there becomes
 * an automatic archive with the label ret_undo, and applied.json goes. The caller holds the lock on
 * /data and the chain lock (exclusive).
 */
int store_undo_applied(int sandbox_fd, const struct store_applied *applied, char *ret_undo,
		       struct err *err);
