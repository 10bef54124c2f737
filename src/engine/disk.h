/*
 * The layers of one disk as a monitor is told of them: one text in QMP's form of block devices
 * (BlockdevOptions), for -blockdev at the start and for blockdev-add later.
 */
#pragma once

#include <stddef.h>

#include "engine/engine.h"

/* ENGINE_LAYERS_MAX layers of some hundred bytes each, with names and numbers at their longest. */
#define DISK_TEXT_MAX 2048
/* A serial, a dash and a number. */
#define DISK_NODE_MAX 32

/*
 * Writes the text that describes disk's layers as one node called node, which takes everything
 * below it along when it goes. sets are the monitor's numbers of the sets that hold the layers'
 * descriptors, one for each. Without layers the node is size_bytes zeros.
 */
void disk_describe(const struct engine_disk *disk, const char *node, const int *sets,
		   char ret_text[static DISK_TEXT_MAX]);
