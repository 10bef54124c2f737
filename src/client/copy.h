/*
 * Copying files and trees between the host and machines that are up. See copy.c for how.
 */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "store/store.h"

struct client_machine;

struct client_copy_options {
	/*
	 * As a person types them: "NAME:/path" in the machine of a sandbox, "-" for an archive on
	 * standard input or output, anything else a path of the host. At least one is in a machine.
	 */
	const char *source;
	const char *target;
	/* Who reads and writes inside; NULL: whoever the Boxfile says. */
	const char *user;
	/* Called with the bytes moved so far, a few times a second, from another thread. May be
	 * NULL. */
	void (*progress)(void *data, uint64_t bytes);
	/* Called for things a person may want to know. May be NULL. */
	void (*notice)(void *data, const char *text);
	void *data;
	/* The machine of the end that is in one, borrowed; NULL: the one that is up. */
	struct client_machine *machine;
	/* Taken over, what "-" then stands for; 0: standard input or output. */
	int stream_fd;
	/* A word of box-copy-in (guest/copy.h) for a target that is a whole tree, or NULL. With
	 * "give" the files belong to give_to. */
	const char *verb;
	const char *give_to;
};

/*
 * Copies as cp -a does: into a directory under its own name, otherwise to the new name; "SOURCE/."
 * is what is in a directory. Files belong to the user who writes them; modes, times, links, hard
 * links and holes are kept. Returns 0 or a negative errno with err filled; -EINTR after a signal.
 * Files that were complete by then stay, none is there in part.
 */
int client_copy(struct store *store, const struct client_copy_options *options, struct err *err);
