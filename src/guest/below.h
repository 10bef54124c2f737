/*
 * Names below a directory whose file system is hostile: no link is followed, and no step leads out
 * of it or onto another file system.
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "wire/change.h"

/*
 * Opens a plain path ("." is the directory itself) below dir_fd with flags of open(2); O_CLOEXEC
 * and O_NOFOLLOW are added. With O_PATH a link at its end is opened itself. Returns a descriptor or
 * a negative errno.
 */
int below_open(int dir_fd, const char *path, int flags);

/*
 * Opens the directory that the last name of a plain path lies in. *ret_name points into path.
 * Returns a descriptor or a negative errno.
 */
int below_open_parent(int dir_fd, const char *path, const char **ret_name);

/* Whether something is at a path. Returns 1, 0, or a negative errno. */
int below_exists(int dir_fd, const char *path);
