/*
 * Writes what is in some layers of a disk into the layer below them. No machine runs: QEMU does it
 * in the jail of every monitor, from open descriptors alone, and what a guest has written into
 * these files is read by nobody else.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "engine/engine.h"

struct engine_merge {
	/* From the bottom up, borrowed: at least one that stays as it is (the first is raw, all
	 * others qcow2), the one that is written to, and at least one whose content goes there. */
	int fds[ENGINE_LAYERS_MAX];
	size_t count;
	/* Which one is written to: it is open for reading and writing, the others for reading. */
	size_t target;
	/* Size of the disk, which the target has already. */
	uint64_t size_bytes;
	uid_t host_uid;
	gid_t host_gid;
};

/*
 * Does it, and puts it on the disk. Seen through the layers above it the target reads the same at
 * every instant, so who is killed has changed nothing that can be seen. Takes as long as it takes
 * to copy; a signal that ends this process ends the copy. Returns 0 or a negative errno with err
 * filled ("merge-failed").
 */
int engine_merge(const struct engine_merge *merge, struct err *err);
