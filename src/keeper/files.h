/* The files that a machine stands on: found, opened, and put together for the engine. */
#pragma once

#include <stdbool.h>

#include "base/err.h"
#include "engine/engine.h"
#include "engine/kernel.h"
#include "ipc/ipc.h"
#include "spec/spec.h"
#include "store/store.h"

struct files {
	struct store store;
	int sandbox_fd;
	struct spec *spec;
	struct kernel_paths kernel;
	bool hardware;
	/* True when the snapshot is valid and wanted. */
	bool restore;
	/* Why not, when it was wanted; empty otherwise. */
	char boot_reason[160];
	/* Owned. */
	int image_fd;
	int snapshot_root_fd;
	int overlay_fd;
	int memory_fd;
	int devices_fd;
	int data_base_fd;
	int data_fd;
};

/* Sets every descriptor to -EBADF. */
void files_init(struct files *files);

/*
 * Opens all that start asks for. data_fd (or -EBADF) is taken over, also on failure. Returns 0 or
 * a negative errno with err filled.
 */
int files_open(struct files *files, const struct ipc_start *start, int data_fd, struct err *err);

/* Fills disks, memory and paths of config; the descriptors stay with files. */
void files_describe(const struct files *files, const struct ipc_start *start,
		    struct engine_config *config);

/* Makes stage/snapshot/devices, open for writing. Returns a descriptor or a negative errno. */
int files_create_devices(const struct files *files, const struct ipc_start *start, struct err *err);

/* Puts memory, devices and root of a new snapshot on the disk. 0 or a negative errno. */
int files_sync_snapshot(const struct files *files, int devices_fd, struct err *err);

void files_close(struct files *files);
