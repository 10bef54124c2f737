/*
 * What box-guest does as an ordinary process (WIRE_EXEC_SELF): its beginning and its end.
 */
#pragma once

#include "base/err.h"

/*
 * The whole of an applet without arguments that works on /data: run gets it opened. Returns the
 * exit code; a failure is one line on standard error.
 */
int applet_on_data(int argc, char **argv, int (*run)(int data_fd, struct err *err));

/* The exit code for what an applet came to; a failure is said on standard error. */
int applet_end(int rc, const struct err *err);
