/*
 * What a sandbox's image begins as: the built-in system, an archive, a directory, or Debian.
 */
#pragma once

#include <stdio.h>

#include "base/err.h"
#include "client/task.h"
#include "spec/spec.h"

/* A base as written, and a mirror's URL; what is longer is cut. */
#define BASE_LABEL_MAX 768

/* The stream that box-image reads, and who writes it. */
struct base_input {
	/* A regular file, or the read end of a pipe. */
	int fd;
	/* The writer of the pipe; pid is -1 for a regular file. */
	struct task producer;
	/* For messages: the base, and where it comes from. */
	char label[BASE_LABEL_MAX];
};

/*
 * Refuses what a base cannot do (packages on one without a package manager), before anything is
 * started. Returns 0 or -EINVAL with err filled.
 */
int base_check(const struct spec *spec, struct err *err);

/*
 * Writes what the base is made from right now as "base.…=" lines: another text means another image.
 * No content of archives and trees is read, their names, sizes and times are. Returns 0 or a
 * negative errno with err filled.
 */
int base_identity(const struct spec *spec, FILE *out, struct err *err);

/*
 * Opens the input, starting its writer when it has one. stage_fd is a build's staging directory,
 * for small helper files. Give *ret_input to base_close. Returns 0 or a negative errno with err
 * filled.
 */
int base_open(const struct spec *spec, int stage_fd, struct base_input *ret_input, struct err *err);

/* Ends the writer if it still runs, closes the stream. */
void base_close(struct base_input *input);

/* The Debian part of base_open: mmdebstrap without root, see base_debian.c. */
int base_open_debian(const struct spec *spec, int stage_fd, struct base_input *ret_input,
		     struct err *err);

/* Says below a failure of mmdebstrap what would mend it, where its own words tell. */
void base_mend_debian(struct err *err);

/* Removes what an mmdebstrap of a build that was killed may have left behind. */
void base_sweep_debian(int stage_fd);
