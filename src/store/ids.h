/*
 * IDs of a sandbox's own, for `isolation: strict`: which slot of the caller's subordinate IDs
 * belongs to which sandbox. See ids.c.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "store/store.h"

/* IDs of a slot, one for each kind of process that a machine may have. */
#define STORE_IDS_PER_SLOT 16
/* Which of them is whose. */
#define STORE_IDS_MONITOR 0
#define STORE_IDS_NET 1

struct store_ids {
	/* The first user ID and the first group ID of the slot, STORE_IDS_PER_SLOT each. */
	uint32_t uid;
	uint32_t gid;
};

/*
 * The slot of a sandbox, which gets one when it has none, or one that the caller may not map any
 * more. Safe against any number of other processes. The sandbox must be there; a machine of it must
 * be kept from being destroyed (store_lock_live) when the slot is to be used.
 *
 * Refuses with -ENOSPC ("no-ids") and the line that would mend it when there is no free slot, with
 * -ENOENT ("no-uidmap") when a normal user has no helpers to map it, with -EBADMSG ("bad-ids") when
 * ids.json cannot be understood, or with what went wrong.
 */
int store_ids_take(struct store *store, const char *name, struct store_ids *ret_ids,
		   struct err *err);

/*
 * When root starts box the monitor of an `isolation: standard` gets this ID, and the others of
 * its machine those behind it: the first of the range
 * that systemd keeps for containers (524288 to 1879048191), which no account of a host has.
 */
#define STORE_IDS_ROOT_DROPS_TO 524288

/*
 * Who a process of the sandbox's machines is on the host; which is STORE_IDS_MONITOR and the like.
 * It is one of the sandbox's own IDs, as store_ids_take says, or, with `isolation: standard`, the
 * caller. 0 or a negative errno with err filled.
 */
int store_ids_choose(struct store *store, const char *name, const struct spec *spec, uint32_t which,
		     struct store_ids *ret_ids, struct err *err);

/* Takes the slot of a sandbox away. It had none: no error. Returns 0 or a negative errno. */
int store_ids_free(struct store *store, const char *name);

/* Frees the slots of sandboxes that are not there any more. Returns 0 or a negative errno. */
int store_ids_sweep(struct store *store);

/* How many slots store_ids_sweep would free; 0 also when ids.json cannot be read. */
size_t store_ids_gone(struct store *store);

/* Removes ids.json and its lock: there is no sandbox any more. What cannot be removed stays. */
void store_ids_forget(struct store *store);

/*
 * How many slots the caller's IDs make, and how many sandboxes of this home have one (store may be
 * NULL: none has). 0 or a negative errno with err filled.
 */
int store_ids_count(struct store *store, size_t *ret_total, size_t *ret_taken, struct err *err);
