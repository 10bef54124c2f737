/*
 * Tells which of some changes /data has already: where both sides of a merge have changed a path
 * and all that a record says is equal, only the contents can tell.
 */
#pragma once

#include "base/err.h"

/*
 * Reads records (wire/change.h) with their end mark from in_fd, then the archive of box-diff as it
 * was made. Writes to out_fd a stream with a record for each of them whose content and attributes
 * are those at its path in the directory data_fd: the new side, as if it were added. A further name
 * of a file in the archive counts as different. Returns 0 or a negative errno with err filled.
 */
int same_run(int data_fd, int in_fd, int out_fd, struct err *err);

/* "box-same". Returns the exit code; a failure is one line on standard error. */
int same_main(int argc, char **argv);
