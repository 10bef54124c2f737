/*
 * What box itself runs inside a machine during a build: shell scripts that need nothing but a POSIX
 * shell, mkdir, cat, chmod and chown, so that they work in every base.
 */
#pragma once

/* NAME UID SHELL GROUPS: makes a user (UID 0: the next free one from 1000; SHELL "": /bin/sh;
 * GROUPS separated by spaces, those that do not exist are passed over with a word). A user who is
 * there already is kept and must have that UID. */
extern const char script_add_user[];

/* PATH MODE OWNER: writes standard input to a file, making directories on the way. OWNER "": root.
 */
extern const char script_write_file[];

/* Takes setuid and setgid bits from every program in the usual path. */
extern const char script_drop_setuid[];
