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
	/* virtio serial: "root", "data" or "base". */
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
	/* Serial of the disk that engine_replace_disk is to get other layers soon, or NULL. As many
	 * of the same kinds as now are then put under it in a third of the time. */
	const char *replaced_soon;
	/* Guest memory: a regular file of exactly ram_mib MiB, or -EBADF for anonymous memory. A
	 * boot writes to it; a restore maps it copy-on-write and never writes. */
	int memory_fd;
	/* Device state of a snapshot, open for reading: restore. -EBADF: boot. A restore without
	 * memory_fd reads the memory from here too, as engine_save has written it. */
	int devices_fd;
	/* The monitor's ends: control port and kernel console. */
	int ctl_fd;
	int console_fd;
	/* Of the port box.net, or -EBADF: the machine has no such port. A restore must have it
	 * exactly when the snapshot's machine had it. */
	int net_fd;
	/* System calls to take away from the monitor's list; the names stay the caller's, and
	 * valid. */
	char *const *seccomp;
	size_t seccomp_count;
	uid_t host_uid;
	gid_t host_gid;
};

/* The code of an error: the monitor asked the kernel for what its list does not have. */
#define ENGINE_NOT_ON_LIST "not-on-list"

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
 * negative errno. Takes at most about 100 ms.
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

/* The same by content: the BLAKE2b-256 in hex (65 bytes) of the digests of these files. */
int engine_digest(char *ret_hex, struct err *err);

/* Whether these calls can be taken away from the monitor's list. 0 or -EINVAL with err filled. */
int engine_check_seccomp(char *const *names, size_t count, struct err *err);

/* The path of a part of the monitor (its program, its firmware) that is not there or cannot be
 * used, or NULL when all are. */
const char *engine_missing_part(void);

/* Starts the monitor in its jail. The engine copies config. Returns 0 or a negative errno. */
int engine_start(const struct engine_config *config, struct loop *loop,
		 const struct engine_events *events, struct engine **ret_engine, struct err *err);

/* Stops the guest and writes its device state to devices_fd (open for writing). The memory is in
 * memory_fd already. Ends with the snapshot_done or ended event. */
int engine_snapshot(struct engine *engine, int devices_fd, struct err *err);

/*
 * Writes the state of a paused machine, device state and memory, to the empty file state_fd at its
 * offset. The machine stays paused and may go on afterwards. done gets 0, or a negative errno when
 * it could not be written (the host's disk is full): then the machine is as it was. One at a time:
 * -EBUSY. The descriptor is passed on, the caller keeps its own. Returns 0 or a negative errno.
 */
int engine_save(struct engine *engine, int state_fd, void (*done)(void *data, int rc), void *data,
		struct err *err);

/* Pauses the guest with everything written to the disks' files, or lets it go on. paused may be
 * NULL. */
int engine_pause(struct engine *engine, void (*paused)(void *data), void *data, struct err *err);
int engine_resume(struct engine *engine, struct err *err);

/*
 * Puts the layers of disk, or without layers its zeros, under the disk of the same serial
 * and size, while the guest does not use it; the rest of disk is not looked at. Only once
 * the guest has answered: a restore may still be loading when it is said to run. The descriptors
 * are passed on, the caller keeps its own. The old ones are closed; with keep_old they stay open
 * until the machine ends, which takes the monitor less time. done is called when that is done; a
 * failure is the ended event. One at a time: -EBUSY. Returns 0 or a negative errno.
 */
int engine_replace_disk(struct engine *engine, const struct engine_disk *disk, bool keep_old,
			void (*done)(void *data), void *data, struct err *err);

/* Memory of the host that this machine alone uses, in bytes: private pages of the monitor, guest
 * memory that it has written included. 0 when it cannot be read. */
uint64_t engine_private_bytes(const struct engine *engine);

/* The jail that the monitor was started in, and the process, for reports. */
const struct jail *engine_jail(const struct engine *engine);
const struct jail_process *engine_process(const struct engine *engine);

/* Stops the monitor. When this returns it writes nothing any more, and no event comes; engine_free
 * kills it and waits until it is gone. NULL is allowed. */
void engine_stop(struct engine *engine);

/* Kills the monitor, waits for it, frees everything. NULL is allowed. */
void engine_free(struct engine *engine);
