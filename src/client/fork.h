/*
 * Forks of a sandbox: made from one state of its /data, and thrown away again. What stands on what
 * is in store/chain.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "store/store.h"

/* Forks of one command. Each is a sandbox with a name, locks and IDs of its own. */
#define CLIENT_FORKS_MAX 100

struct client_fork_options {
	/* The machine that is up is copied too: the forks are up afterwards, and what ran in it
	 * runs on in them. */
	bool live;
	/* Called for things a person may want to know. May be NULL. */
	void (*notice)(void *data, const char *text);
	void *data;
};

/* The name of fork number at (from 0) of count; with count 0 there is one, called name itself.
 * -ENAMETOOLONG when there is no room for the number. */
int client_fork_name(const char *name, unsigned count, unsigned at,
		     char ret_name[static STORE_LABEL_MAX + 1]);

/*
 * Makes fork name of parent, or with count (1 to CLIENT_FORKS_MAX) the forks name-1 to name-COUNT,
 * all from one state. Either all of them are made or none; when box is killed in between those that
 * are there are whole. Where the chain is too long it is made shorter first, which copies what was
 * written. A machine that holds the parent's /data keeps still for a moment; it cannot make the
 * chain shorter. Returns 0 or a negative errno with err filled: -EEXIST when a name is taken,
 * -ENOENT ("not-up") when a machine is to be copied and there is none.
 */
int client_fork(struct store *store, const char *parent, const char *name, unsigned count,
		const struct client_fork_options *options, struct err *err);

/*
 * store_destroy, after what a build and the pool of the sandbox have left; when it was a fork the
 * parent's chain becomes shorter. *ret_kept and errors as there.
 */
int client_destroy(struct store *store, const char *name, bool with_data, char **ret_kept,
		   const struct client_fork_options *options, struct err *err);

/*
 * Ends a fork with all its data, and makes the parent's chain shorter. -EINVAL ("not-fork") for a
 * sandbox that is none, -EBUSY while it is up or has forks itself.
 */
int client_discard(struct store *store, const char *name, const struct client_fork_options *options,
		   struct err *err);

/*
 * Makes room for one more disk in the chain of a sandbox whose /data the caller holds as *data_fd,
 * which may be another descriptor afterwards. Returns 0 or a negative errno with err filled.
 */
int client_make_room(struct store *store, const char *name, int sandbox_fd, int *data_fd,
		     struct err *err);

/*
 * Merges what no fork of the sandbox needs any more, when its /data is free. What cannot be done is
 * a notice: the longer chain is as good.
 */
void client_shorten_chain(struct store *store, const char *name,
			  const struct client_fork_options *options);
