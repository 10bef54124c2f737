/* The files that a machine stands on: found, opened, and put together for the engine. */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "engine/engine.h"
#include "engine/kernel.h"
#include "ipc/ipc.h"
#include "spec/spec.h"
#include "store/chain.h"
#include "store/store.h"
#include "wire/bytes.h"

/* What IPC_FORKED carries. */
struct files_copy {
	/* Device state and memory; what was written to the root; what else the keeper must know. */
	int state_fd;
	int overlay_fd;
	int description_fd;
};

struct files {
	struct store store;
	int sandbox_fd;
	struct spec *spec;
	struct kernel_paths kernel;
	bool hardware;
	/* True when the snapshot is valid and wanted. */
	bool restore;
	/* What the snapshot was made from, when it is restored. */
	char *snapshot_key;
	/* What the machine was made from (engine/fingerprint.h), of a run. */
	char *machine_key;
	/* Why not, when it was wanted; empty otherwise. */
	char boot_reason[160];
	/* Owned. */
	int image_fd;
	int snapshot_root_fd;
	int overlay_fd;
	int memory_fd;
	int devices_fd;
	/* The disk "data": what is below it, and what is written to; no layers: there is none. */
	struct store_layers data_layers;
	int data_fd;
	/* The disk "base": a state to look at, and a nameless file for what a look writes. */
	struct store_layers base_layers;
	int base_fd;
	/* Of a machine that is the copy of another. */
	struct files_copy copy;
	uint8_t *description;
	size_t description_size;
	/* How much of it has been read. */
	size_t description_used;
};

/* How much a description holds: for each command what its record does, at most 20 KiB. */
#define FILES_DESCRIPTION_MAX ((size_t)8 << 20)

/* Sets every descriptor to -EBADF. */
void files_init(struct files *files);

/*
 * Takes over the disks that came with start, from the front of fds, in the place of those that are
 * there. Returns how many descriptors that were.
 */
size_t files_take(struct files *files, const struct ipc_start *start, int *fds);

/* Opens all else that start asks for. Returns 0 or a negative errno with err filled. */
int files_open(struct files *files, const struct ipc_start *start, struct err *err);

/*
 * Whether a start would restore this very snapshot now: nothing that it was made from has changed
 * since files_open.
 */
bool files_are_current(struct files *files, const struct ipc_start *start);

/* The first part of a description, for the keeper of a copy: which files the machine stands on. */
void files_put_identity(const struct files *files, struct wire_writer *writer);

/* Makes /data as large as the Boxfile says. 0 or a negative errno with err filled. */
int files_fit_data(struct files *files, struct err *err);

/* Describes the disk "data" as it is now; the descriptors stay with files. */
void files_describe_data(const struct files *files, struct engine_disk *ret_disk);

/* Fills disks, memory and paths of config; the descriptors stay with files. */
void files_describe(const struct files *files, const struct ipc_start *start,
		    struct engine_config *config);

/* Makes stage/snapshot/devices, open for writing. Returns a descriptor or a negative errno. */
int files_create_devices(const struct files *files, const struct ipc_start *start, struct err *err);

/* Puts memory, devices and root of a new snapshot on the disk. 0 or a negative errno. */
int files_sync_snapshot(const struct files *files, int devices_fd, struct err *err);

/* Closes /data and what is below it. */
void files_close_data(struct files *files);

/* Frees the locks of /data and its layers, which belong to the open files: the monitor's duplicates
 * of the descriptors would keep them until it is gone. Only when it can write nothing any more, and
 * only when nobody else stands on them: those of a disk that is to become /data are its maker's. */
void files_unlock_data(const struct files *files);
void files_close_copy(struct files_copy *copy);
void files_close(struct files *files);
