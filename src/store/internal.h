/* What the files of src/store share and nobody else needs. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "json/json.h"
#include "store/ids.h"
#include "store/store.h"
#include "store/subids.h"

/* Nobody has so many sandboxes, and ids.json with so many is a quarter of JSON_TEXT_MAX. */
#define STORE_IDS_SLOTS_MAX 16384

/* A sandbox that is being made, one that is being removed, and one whose data is still to be put
 * aside before it is removed. A name of a sandbox cannot begin with a dot. */
#define NEW_PREFIX ".new-"
#define TRASH_PREFIX ".trash-"
#define KEEP_PREFIX ".keep-"
/* A file of store_temporary_file between its creation and the loss of its name. */
#define TEMPORARY_PREFIX ".tmp-"
/* A build's staging directory below its sandbox. */
#define STAGE_PREFIX "build-"

/* An archive that is being made, or removed, below archive/. */
#define DRAFT_PREFIX ".new-"
/* A chain that is to change places with data/, or has done so, beside it. */
#define NEW_CHAIN_PREFIX "data.new-"

/* What a chain is made of (chain.h). */
#define CHAIN_DIRECTORY "data"
#define CHAIN_BASE "base-0.ext4"
#define CHAIN_TOP "data.qcow2"
#define CHAIN_FORK "fork.json"
#define DATA_PATH CHAIN_DIRECTORY "/" CHAIN_TOP
#define DATA_BASE_PATH CHAIN_DIRECTORY "/" CHAIN_BASE
/* "layer-", a number of a chain's length, ".qcow2" and a NUL. */
#define STORE_LAYER_NAME_SIZE 40

/* 64 random bits in hex and a NUL. */
#define STORE_TAG_SIZE 17
/* Tries to find a random name that is free. One in practice; more means that something is wrong. */
#define STORE_TRIES_MAX 16

/*
 * Fills err with "what: why" and the mend that fits rc (no room, read-only, not permitted, ...).
 * path is what the mend speaks of. Returns rc.
 */
int store_fail(struct err *err, int rc, const char *path, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* The path behind a directory descriptor, for messages only. out holds PATH_MAX bytes. */
void store_fd_path(int fd, char *out);

/* Writes a random tag into out (STORE_TAG_SIZE bytes). */
void store_random_tag(char *out);

/*
 * Reads a small file of box's own that holds one JSON object. Returns 1 with *ret_json owned by the
 * caller, 0 when there is none, -EBADMSG for what is none or longer than max_bytes, or another
 * negative errno.
 */
int store_read_json(int dir_fd, const char *path, size_t max_bytes, struct json **ret_json);

/* Opens a directory below dir_fd, never through a link. A descriptor or a negative errno. */
int store_open_directory(int dir_fd, const char *name);

/*
 * The names in the directory path below dir_fd for which wanted says 1, sorted. One block as in
 * store_list. wanted says 0 or 1, or a negative errno, which ends the reading. Returns 0, -E2BIG or
 * a negative errno.
 */
int store_read_names(int dir_fd, const char *path, int (*wanted)(int dir_fd, const char *name),
		     char ***ret_names, size_t *ret_count);

/* An exclusive lock on the directory itself, at once or not at all. 0, -EAGAIN, or an errno. */
int store_try_lock_directory(int fd);

/* Whether fd is still what path below dir_fd names. Returns 1, 0, or a negative errno. */
int store_is_current(int fd, int dir_fd, const char *path);

/*
 * Opens path below dir_fd with open_flags (mode 0600) and takes a lock on that description
 * (operation as of flock(2)). When the file was replaced while we waited the new one is opened.
 * Returns the descriptor, -EAGAIN, -EINTR when a signal ended the wait, or another negative errno.
 */
int store_open_locked(int dir_fd, const char *path, int open_flags, int operation);

/* The sandbox directory's own name, in the room of path (PATH_MAX bytes). */
const char *store_sandbox_label(int sandbox_fd, char *path);
/* The error for a lock that could not be had. Returns rc. */
int store_lock_failed(int sandbox_fd, int rc, const char *busy_text, struct err *err);

/* The locks that keep everybody else away from a sandbox. */
struct store_locks {
	int up;
	int build;
	int live;
	int chain;
};
#define STORE_LOCKS_NONE                                                                           \
	{                                                                                          \
		-EBADF, -EBADF, -EBADF, -EBADF                                                     \
	}
/* Takes them all, and the one on the directory itself, at once or not at all: -EBUSY. */
int store_lock_all(int sandbox_fd, const char *name, struct store_locks *ret_locks,
		   struct err *err);
void store_unlock_all(struct store_locks *locks);

/*
 * Makes a hidden directory below sandboxes that a sweep leaves alone, and opens and locks it. Its
 * name goes to out (NAME_MAX + 1 bytes). The descriptor or a negative errno.
 */
int store_make_hidden(int sandboxes_fd, char *out);

/*
 * Makes a file, or a directory, of the name prefix (with its path below the sandbox) and a tag,
 * locked. 0 or a negative errno.
 */
int store_make_draft(int sandbox_fd, const char *prefix, bool directory,
		     struct store_draft *ret_draft);

/* chain.c: files of a chain */

/* The name of a chain's file by its place from the bottom, which is below data.qcow2. */
void store_layer_name(size_t at, char out[static STORE_LAYER_NAME_SIZE]);
/* How many files are below data.qcow2 in a chain's directory. -EBADMSG when one is missing. */
int store_count_layers(int chain_fd, size_t *ret_count);
/* Gives the first count of them second names in to_fd. */
int store_link_layers(int from_fd, int to_fd, size_t count);
/* Opens data.qcow2 for writing and locks it, at once or not at all. */
int store_open_top(int chain_fd, int flags);
/* Makes an empty data.qcow2, written to the disk; as store_open_top. err is filled. */
int store_make_top(int chain_fd, uint64_t size_bytes, int *ret_fd, struct err *err);
/* Begins a directory that is to become data/: draft->dir_fd. Given back with store_drop_draft. */
int store_begin_chain(int sandbox_fd, struct store_draft *ret_draft);
/* Lets it and data/ change places, in one step and on the disk. What was there before has the
 * draft's name then, and goes with it. The chain lock is held. 0 or a negative errno. */
int store_exchange_chain(int sandbox_fd, const struct store_draft *draft);
/* The error for a chain's file that cannot be had. Returns rc. */
int store_fail_chain(int sandbox_fd, int rc, const char *what, struct err *err);

/* Whether nothing was ever written to a disk that box has made: 1, 0, or a negative errno. */
int store_disk_is_empty(int fd, struct err *err);

/* archive.c: removes automatic archives that are /data itself, left by a swap that was killed. The
 * caller holds the lock on /data. 0 or a negative errno. */
int store_drop_second_names(int sandbox_fd);

/* archive.c: makes an automatic archive of the first count files of a chain's directory, with an
 * empty disk of their size on them; its label goes to ret_label (STORE_LABEL_MAX + 1 bytes). err is
 * filled. */
int store_keep_frozen(int sandbox_fd, int chain_fd, size_t count, char *ret_label, struct err *err);
/* Removes it again, where what it was made for has not come about. */
void store_drop_frozen(int sandbox_fd, const char *label);

/* fork.c: writes a fork's fork.json into another directory of its chain, with base_count, or the
 * same for 0. 0 also where it is no fork. */
int store_copy_fork(int from_fd, int to_fd, uint32_t base_count);

/* Renames a directory below sandboxes to a trash name and removes it. */
int store_throw_away(int sandboxes_fd, const char *name);

/* What a rename that was interrupted has left to do with the log of the sandbox called name. */
int store_finish_rename(struct store *store, int sandbox_fd, const char *name);

/* As store_ids_take, with these ranges for the caller's. */
int store_ids_take_from(struct store *store, const char *name, const struct subids *subids,
			struct store_ids *ret_ids, struct err *err);

/* How many slots these ranges make. */
size_t store_ids_slots(const struct subids *ids);
