/*
 * What changed on /data since the state that the disk with serial "base" holds, as the stream of
 * wire/change.h. Runs as root in a machine that is made for it and thrown away: the file systems
 * are hostile, and both are written to (journal, orphans).
 */
#pragma once

#include "base/err.h"

enum diff_mode {
	/* Records only. */
	DIFF_RECORDS,
	/* And the archive of what they bring. */
	DIFF_CONTENT,
	/* And hunks for texts. */
	DIFF_PATCH,
	/* The other way round: what leads from the new state to the old one, and the archive of
	 * what that brings. Without renames, so that each record tells of its path alone. */
	DIFF_BACK,
};

struct diff_config {
	/* The new state, an ext4 that is mounted here, without a slash at the end. */
	const char *data;
	/* The block device with the old one. */
	const char *base_device;
	enum diff_mode mode;
	int out_fd;
};

/*
 * Writes the stream to out_fd. Mounts the old state over the new one in a mount namespace of its
 * own, which the process keeps. The stream is the same whenever both states are. Returns 0 or a
 * negative errno with err filled; the stream then has no end.
 */
int diff_run(const struct diff_config *config, struct err *err);

/* "box-diff [content|patch|back]". Returns the exit code; a failure is one line on standard error.
 */
int diff_main(int argc, char **argv);
