/*
 * An engine runs one machine: probe, boot or restore, snapshot, stop.
 *
 * The caller (the keeper) opens everything; the engine gets descriptors and a jail, and answers
 * events on descriptors that the keeper's loop watches.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/loop.h"
#include "jail/jail.h"

#define ENGINE_DISKS_MAX 4
/* qcow2 layers of one disk, the raw image at the bottom included. */
#define ENGINE_LAYERS_MAX 10

struct engine_layer {
	int fd;
	/* qcow2 when true, raw otherwise. */
	bool qcow2;
};

struct engine_disk {
	/* virtio serial: "root" or "data". */
	const char *serial;
	/* From the bottom up; only the last may be written, and only when it is not read_only. */
	struct engine_layer layers[ENGINE_LAYERS_MAX];
	/* 0 layers: a disk of size_bytes zeros that takes no writes to anywhere. */
	size_t layer_count;
	bool read_only;
	uint64_t size_bytes;
};

struct engine_config {
	const char *name;
	uint32_t cpus;
	uint32_t ram_mib;
	/* Hardware virtualization is real here and may be used. */
	bool hardware;
	/* Host paths; needed for a boot. */
	const char *kernel_path;
	const char *initrd_path;
	struct engine_disk disks[ENGINE_DISKS_MAX];
	size_t disk_count;
	/* Guest memory: a regular file of exactly ram_mib MiB, or -EBADF for anonymous memory. A
	 * boot writes to it; a restore maps it copy-on-write and never writes. */
	int memory_fd;
	/* Device state of a snapshot, open for reading: restore. -EBADF: boot. */
	int devices_fd;
	/* The monitor's ends: control port and kernel console. */
	int ctl_fd;
	int console_fd;
	uid_t host_uid;
	gid_t host_gid;
};

struct engine;

struct engine_events {
	/* The monitor is there and the machine runs (a restore: has been loaded). */
	void (*running)(void *data);
	/* The snapshot asked for is complete in its files. */
	void (*snapshot_done)(void *data);
	/* The monitor has ended, by itself or by engine_stop, or failed; err says how. */
	void (*ended)(void *data, const struct err *err);
	void *data;
};

/*
 * Whether /dev/kvm really runs guest code here: makes a tiny machine, runs a short loop and times
 * it. Returns 1 real, 0 not usable (err says why: missing, not permitted, only interprets), or a
 * negative errno. Takes at most about 50 ms.
 */
int engine_probe_kvm(struct err *err);

/*
 * The same answer, kept in the file `kvm` of cache_dir (absolute path) for as long as the host is
 * not restarted and the device not changed, since the probe takes milliseconds.
 */
bool engine_hardware(const char *cache_dir);

/* What stands for the monitor in a fingerprint: path, size, times and inode of its binary and
 * firmware, as text owned by the caller. Returns 0 or a negative errno with err filled. */
int engine_identity(char **ret_text, struct err *err);

/* Starts the monitor in its jail. The engine copies config. Returns 0 or a negative errno. */
int engine_start(const struct engine_config *config, struct loop *loop,
		 const struct engine_events *events, struct engine **ret_engine, struct err *err);

/* Stops the guest and writes its device state to devices_fd (open for writing). The memory is in
 * memory_fd already. Ends with the snapshot_done or ended event. */
int engine_snapshot(struct engine *engine, int devices_fd, struct err *err);

/* Pauses the guest with everything written to the disks' files, or lets it go on. paused may be
 * NULL. */
int engine_pause(struct engine *engine, void (*paused)(void *data), void *data, struct err *err);
int engine_resume(struct engine *engine, struct err *err);

/* The jail that the monitor was started in, and the process, for reports. */
const struct jail *engine_jail(const struct engine *engine);
const struct jail_process *engine_process(const struct engine *engine);

/* Kills the monitor, waits for it, frees everything. NULL is allowed. */
void engine_free(struct engine *engine);
