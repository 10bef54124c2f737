/*
 * Other layers under the disk of a running machine.
 *
 * The monitor is told over QMP: a set with a descriptor for each layer, a node that stands on them,
 * and that the guest's device has this node as its drive from now on. It reads QMP byte by byte, so
 * these commands are most of what a replacement takes. Where one is to come soon, each of them has
 * a channel of its own, over which all but its last byte was sent before.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/loop.h"
#include "engine/disk.h"
#include "engine/engine.h"
#include "engine/qmp.h"

/* Channels for a disk of up to four layers, and one each for the node and the drive. */
#define REPLACE_CHANNELS_MAX 6

/* What a disk stands on at present: the name of its node is made from the generation. */
struct disk_state {
	unsigned generation;
	size_t set_count;
	/* The monitor's sets that hold the layers' descriptors, and which files these are. */
	int sets[ENGINE_LAYERS_MAX];
	struct {
		uint64_t device;
		uint64_t inode;
	} files[ENGINE_LAYERS_MAX];
};

struct replacer {
	/* Borrowed: the monitor's own channel, and its process. */
	struct qmp *qmp;
	struct jail_process *process;
	int next_set;
	/* Channels with one command each, in the order in which they take effect. */
	struct qmp *channels[REPLACE_CHANNELS_MAX];
	size_t channel_count;
	/* Before the monitor has started: both ends of them. */
	int ours[REPLACE_CHANNELS_MAX];
	int theirs[REPLACE_CHANNELS_MAX];
	/* What their commands are for; NULL: none is ready any more. */
	const struct engine_disk *ready;
	/* A replacement under way; NULL: there is none. */
	struct disk_state *disk;
	struct disk_state next;
	const char *serial;
	/* How many channels have sent their last byte; channel_count where they are not used. */
	size_t finished;
	/* Answers that are still to come. */
	size_t pending;
	/* The old layers stay open. */
	bool keep_old;
	void (*done)(void *data);
	void *data;
};

/* Notes that a disk has one layer more, whose descriptor is in set. 0 or a negative errno. */
int replace_note_layer(struct disk_state *state, int fd, int set);

/* The name of the node that a disk stands on. */
void replace_print_node(const char *serial, unsigned generation,
			char ret_node[static DISK_NODE_MAX]);

/*
 * Makes the channels for a replacement of disk, which is kept as a pointer, by as many layers of
 * the same kinds; none when they are too many. Returns 0 or a negative errno. In any case
 * replace_close frees what there is.
 */
int replace_open(struct replacer *replacer, const struct engine_disk *disk);

/*
 * The monitor has started, with qmp as its own channel and with the channels' other ends, which are
 * closed here; its sets from next_set on are free. What the channels answer goes to callback. 0 or
 * a negative errno.
 */
int replace_get_ready(struct replacer *replacer, int next_set, struct loop *loop,
		      qmp_callback *callback, void *data);

/*
 * What engine_replace_disk says. state is the disk's, which changes when it is done; disk has the
 * new layers, and all else as it was. 0 or a negative errno.
 */
int replace_begin(struct replacer *replacer, struct disk_state *state,
		  const struct engine_disk *disk, bool keep_old, void (*done)(void *data),
		  void *data);

/*
 * The monitor has done a command. Those that are not of a replacement are ignored. Returns 0, or a
 * negative errno when it cannot be told the next one.
 */
int replace_on_done(struct replacer *replacer, const char *command);

/* Frees the channels. What was under way is forgotten. */
void replace_close(struct replacer *replacer);
