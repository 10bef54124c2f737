/*
 * What a fork has changed in /data since it was made. box-diff finds it inside a machine of the
 * fork's own, which has a copy of its /data and the state at the fork; here its stream is checked,
 * digested and handed on.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/changes.h"
#include "store/chain.h"
#include "store/store.h"

struct client_machine;

enum client_diff_mode {
	/* The records alone. */
	CLIENT_DIFF_RECORDS,
	/* With unified differences of text files. */
	CLIENT_DIFF_PATCH,
	/* Followed by an archive of all that is new. */
	CLIENT_DIFF_CONTENT,
	/* The other way round: what would have to be done to have the old state again, with an
	 * archive. */
	CLIENT_DIFF_BACK,
};

struct client_diff_options {
	enum client_diff_mode mode;
	/*
	 * Called for each record, and for each piece of the text of the record before, from another
	 * thread than the caller's. A negative errno ends it. NULL: not wanted. What a record
	 * points to lives for the call only.
	 */
	int (*record)(void *data, const struct change *change);
	int (*text)(void *data, const void *bytes, size_t size);
	/* Called for what a person may want to know. May be NULL. */
	void (*notice)(void *data, const char *text);
	void *data;
	/* A file that gets the whole stream, or -EBADF. */
	int copy_fd;
};

struct client_diff_result {
	uint64_t records;
	/* Of the stream: where its archive begins, and where it ends. */
	uint64_t archive_offset;
	uint64_t size;
	/* Of all of it. */
	char digest[STORE_DIGEST_SIZE];
};

/*
 * Says what the sandbox called name has changed: 0 with *ret_result (may be NULL), or a negative
 * errno with err filled. -ENOTSUP ("no-fork") when it is no fork. A machine of it may be up.
 */
int client_diff(struct store *store, const char *name, const struct client_diff_options *options,
		struct client_diff_result *ret_result, struct err *err);

/* The same in a machine that has the two states as its disks. */
int client_diff_inside(struct client_machine *machine, const struct client_diff_options *options,
		       struct client_diff_result *ret_result, struct err *err);

/*
 * Opens what a fork stands on: *ret_fork, and the layers that were its parent's /data when it was
 * made, which the caller gives back with store_close_layers.
 */
int client_open_fork(int sandbox_fd, const char *name, struct store_fork *ret_fork,
		     struct store_layers *ret_layers, struct err *err);

/* A client_diff_options.record that keeps everything; data is a struct changes. */
int client_diff_keep(void *changes, const struct change *change);
