/* What can be said about a sandbox without starting anything. */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "client/client.h"
#include "engine/proof.h"
#include "store/store.h"

enum client_state {
	/* There is no image. */
	CLIENT_STATE_NOT_BUILT,
	/* The Boxfile's image was made by other words of it, or by another version of box. */
	CLIENT_STATE_STALE,
	CLIENT_STATE_BUILT,
	/* At least one machine lives. */
	CLIENT_STATE_RUNNING,
	/* One of them stays (client_up). */
	CLIENT_STATE_UP,
};

/*
 * Looks at the locks and keys alone, so that it takes microseconds: a changed archive or mirror is
 * noticed by `box build`, not here. sandbox_fd is the sandbox's directory.
 */
enum client_state client_state(int sandbox_fd, const struct spec *spec);

/* "not built", "stale", "built", "running", "up". */
const char *client_state_name(enum client_state state);

/* What the machines of a sandbox that stay use at the moment. */
struct client_usage {
	/* The keeper of the one that is up has answered: the next two are known. */
	bool known;
	uint64_t memory_bytes;
	uint64_t up_seconds;
	/* Machines that are kept ready. */
	unsigned pool_machines;
	uint64_t pool_memory_bytes;
};

/* Asks the keepers, for a fraction of a second; those that do not answer are left out. */
void client_usage(struct store *store, const char *name, int sandbox_fd,
		  struct client_usage *ret_usage);

/* Counts the sockets in run/NAME that killed keepers have left; with remove they go. */
size_t client_stale_sockets(struct store *store, const char *name, int sandbox_fd, bool remove);

/* Removes what killed builds have left in a sandbox, unless one runs. */
void client_build_sweep(int sandbox_fd);

struct client_verify_result {
	/* The proof that was there, and the one taken now. */
	struct proof proved;
	struct proof now;
	/* There was none on this accelerator: proved is of the other one. */
	bool first;
	/* What runs now and did not then, as a person calls it, or NULL. */
	const char *changed;
	/* What must not change but by a build, one sentence each, in one buffer; empty when all is
	 * as it was. Then the new proof took the old one's place. */
	char differences[1024];
};

/*
 * Boots the sandbox once more, takes the proof again, and keeps it when the image is that of the
 * build. Returns 0 (look at differences), or a negative errno with err filled when it could not be
 * done. A machine without a kernel of its own is -EPROTO.
 */
int client_verify(struct store *store, const char *name, const struct client_start_options *start,
		  struct client_verify_result *ret_result, struct err *err);
