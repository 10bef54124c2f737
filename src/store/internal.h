/* What the files of src/store share and nobody else needs. */
#pragma once

#include <limits.h>
#include <stddef.h>

#include "base/err.h"
#include "store/store.h"

/* A sandbox that is being made, one that is being removed, and one whose data is still to be put
 * aside before it is removed. A name of a sandbox cannot begin with a dot. */
#define NEW_PREFIX ".new-"
#define TRASH_PREFIX ".trash-"
#define KEEP_PREFIX ".keep-"
/* A file of store_temporary_file between its creation and the loss of its name. */
#define TEMPORARY_PREFIX ".tmp-"
/* A build's staging directory below its sandbox. */
#define STAGE_PREFIX "build-"

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
