/* What can be said about a sandbox without starting anything. */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "client/client.h"
#include "client/proof.h"
#include "store/store.h"

enum client_state {
	/* There is no image. */
	CLIENT_STATE_NOT_BUILT,
	/* The Boxfile's image was made by other words of it, or by another version of box. */
	CLIENT_STATE_STALE,
	CLIENT_STATE_BUILT,
	/* At least one machine lives. */
	CLIENT_STATE_RUNNING,
};

/*
 * Looks at the locks and keys alone, so that it takes microseconds: a changed archive or mirror is
 * noticed by `box build`, not here. sandbox_fd is the sandbox's directory.
 */
enum client_state client_state(int sandbox_fd, const struct spec *spec);

/* "not built", "stale", "built", "running". */
const char *client_state_name(enum client_state state);

/* Removes what killed builds have left in a sandbox, unless one runs. */
void client_build_sweep(int sandbox_fd);

struct client_verify_result {
	/* As written at the build, and as taken now. */
	struct proof built;
	struct proof now;
	/* What does not match, one sentence each, in one buffer; empty when all does. */
	char differences[1024];
};

/*
 * Boots the sandbox once more, takes the proof again and holds it against the one of the build.
 * Returns 0 (look at differences), or a negative errno with err filled when it could not be done.
 * A machine without a kernel of its own is -EPROTO.
 */
int client_verify(struct store *store, const char *name, const struct client_start_options *start,
		  struct client_verify_result *ret_result, struct err *err);
