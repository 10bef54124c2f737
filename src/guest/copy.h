/*
 * The guest's side of `box cp`: box-guest run as an ordinary process of some user, that writes an
 * archive to its standard output or extracts one from its standard input.
 */
#pragma once

/*
 * "box-copy-out PATH": what is at PATH goes out under its last name, or with "/." at its end what
 * is in that directory. Returns the exit code; a failure is one line on standard error.
 */
int copy_out_main(int argc, char **argv);

/*
 * "box-copy-in name PATH NAME": the archive's one top is called NAME in the directory PATH, or
 * becomes PATH. "contents PATH": everything goes into the directory PATH, which is made when only
 * its last name is missing. "stream PATH": the same, but PATH must be there.
 *
 * For the whole of /data, as root: "give PATH USER": as stream, everything belongs to USER, and
 * PATH itself stays as it is. "owners PATH": as stream, owners are those of the archive. "state
 * PATH": so are setuid bits and file capabilities.
 *
 * Returns the exit code; a failure is one line on standard error, and nothing that is not complete
 * stays.
 */
int copy_in_main(int argc, char **argv);
