/*
 * Carries accepted changes over to /data. Runs as root in a machine that is made for it; when it
 * fails the disk of /data is thrown away.
 */
#pragma once

#include "base/err.h"

/*
 * Reads records (wire/change.h) with their end mark from in_fd, then the archive of box-diff as it
 * was made, and applies exactly these records to the directory data_fd. Entries of the archive that
 * have no record are left out. Returns 0 when everything is on the disk, or a negative errno with
 * err filled; what was done by then stays.
 */
int apply_run(int data_fd, int in_fd, struct err *err);

/* "box-apply". Returns the exit code; a failure is one line on standard error. */
int apply_main(int argc, char **argv);
