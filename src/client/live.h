/* Forks of a machine that is up: what its keeper is asked for, and the copies that are started. */
#pragma once

#include "base/err.h"
#include "ipc/ipc.h"
#include "store/store.h"

/* What a keeper hands out for IPC_FORK, in that order. */
struct client_saved {
	int fds[IPC_COPY_FDS];
};

#define CLIENT_SAVED_NONE                                                                          \
	{                                                                                          \
		.fds = { -EBADF, -EBADF, -EBADF }                                                  \
	}

/*
 * Asks the keeper that holds /data of the sandbox to freeze it, and with ret_saved to copy its
 * machine at the same instant. chain_fd is the chain lock, which the keeper holds too meanwhile.
 * Returns 0; -EAGAIN, with err untouched, when no keeper holds /data any more; or another negative
 * errno with err filled: nothing has changed then.
 */
int client_freeze_running(struct store *store, const char *name, int chain_fd,
			  struct client_saved *ret_saved, struct err *err);
void client_close_saved(struct client_saved *saved);

/*
 * Starts fork `name`, which was just made, as a copy of the machine of saved (borrowed). It stays
 * up. Returns 0 or a negative errno with err filled: then it is not up.
 */
int client_start_copy(struct store *store, const char *name, const struct client_saved *saved,
		      struct err *err);
