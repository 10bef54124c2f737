/*
 * box-image as a filter: packs a stream into a file, or unpacks a file into a stream, in the jail
 * that every parser of foreign bytes has.
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "jail/jail.h"

struct packer {
	struct jail_process process;
	int messages_fd;
	bool running;
};

/* An empty packer, safe to give to packer_end. */
#define PACKER_NONE                                                                                \
	{                                                                                          \
		.process = {.pid = -1, .pidfd = -EBADF, .notify_fd = -EBADF},                      \
		.messages_fd = -EBADF                                                              \
	}

/*
 * Starts it. With packs it reads a stream from in_fd and writes zstd to the file out_fd, else the
 * other way around, whatever the file is packed with. Both are borrowed; close pipes afterwards.
 * Returns 0 or a negative errno with err filled.
 */
int packer_start(bool packs, int in_fd, int out_fd, struct packer *ret_packer, struct err *err);

/*
 * Waits for its end. failed: the other side has failed, and it is ended when it does not soon by
 * itself. Returns 0, -EPIPE when the other side had gone, or another negative errno with err
 * filled.
 */
int packer_end(struct packer *packer, bool failed, struct err *err);
