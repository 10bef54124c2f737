/*
 * What is done to a sandbox's whole /data. The host never reads a guest's file system: everything
 * here goes through a machine, the one that is up or one that is started for it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/client.h"
#include "store/store.h"

struct client_data_options {
	/* As in client_copy_options and client_start_options. May be NULL. */
	void (*progress)(void *data, uint64_t bytes);
	void (*notice)(void *data, const char *text);
	void *data;
};

/*
 * A machine that holds /data of the sandbox: the one that is up, when it does, else one that is
 * started, when it is its turn. Give it to client_close_data. Returns 0 or a negative errno with
 * err filled.
 */
struct client_data_machine {
	struct client_machine *machine;
	/* It was started for this. */
	bool helper;
};
int client_open_data(struct store *store, const char *name,
		     const struct client_data_options *options,
		     struct client_data_machine *ret_machine, struct err *err);
/* failed: what it has written does not matter. Returns 0, or a negative errno when a helper could
 * not write everything to the disk. */
int client_close_data(struct client_data_machine *machine, bool failed, struct err *err);

/*
 * Copies what is in the host's directory into /data, merging as cp -a does; files belong to the
 * sandbox's user. What was complete stays after a failure.
 */
int client_data_import(struct store *store, const char *name, const char *directory,
		       const struct client_data_options *options, struct err *err);

/* Copies all of /data into a directory of the host that is new or empty; files belong to the
 * caller. -ENOTEMPTY ("not-empty") otherwise. */
int client_data_export(struct store *store, const char *name, const char *directory,
		       const struct client_data_options *options, struct err *err);

/* archive.c */

/* Packs /data into archive/LABEL.tar.zst; *ret_bytes is its length. */
int client_archive_make(struct store *store, const char *name, const char *label,
			const struct client_data_options *options, uint64_t *ret_bytes,
			struct err *err);

/* What restore would take for a word of a person: a label, a file, or NULL for the newest label. */
struct client_archive_source {
	struct store_archive archive;
	/* Not an archive but this file, borrowed from the word. */
	const char *file;
};
int client_archive_find(struct store *store, const char *name, const char *word,
			struct client_archive_source *ret_source, struct err *err);

/*
 * Replaces all of /data by what is in the source, or by nothing. All or nothing, also when killed
 * in the middle. What was there becomes an automatic archive; its label goes to ret_undo
 * (STORE_LABEL_MAX + 1 bytes). -EBUSY ("busy") while a machine holds /data.
 */
int client_archive_restore(struct store *store, const char *name,
			   const struct client_archive_source *source,
			   const struct client_data_options *options, char *ret_undo,
			   struct err *err);
int client_data_reset(struct store *store, const char *name, char *ret_undo, struct err *err);
