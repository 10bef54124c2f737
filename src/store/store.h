/*
 * ~/.box: where sandboxes are kept.
 *
 *     sandboxes/NAME/Boxfile
 *     sandboxes/NAME/live            shared lock of every machine of the sandbox that runs
 *     sandboxes/NAME/image/          image.ext4, build.log, key (what it was made from)
 *     sandboxes/NAME/snapshot/       memory, devices, root.qcow2, key, proof.json
 *     sandboxes/NAME/data/           base-0.ext4, data.qcow2
 *     sandboxes/NAME/archive/
 *     run/NAME/sock                  of the keeper that holds /data
 *     cache/                         initramfs and library lists, by key; may be deleted
 *     log/NAME.jsonl
 *
 * All directories have mode 0700. Locks are flock(2) on open descriptions, so they end with the
 * processes that hold them, however those end.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct spec;

struct store {
	/* Absolute path of BOX_HOME, and the directory itself. */
	char *home;
	int home_fd;
};

/*
 * Opens BOX_HOME (by default ~/.box), making it when create is set. Refuses a home that is not a
 * directory, belongs to someone else, or may be written by others. Owned by the caller.
 */
int store_open(bool create, struct store *ret_store, struct err *err);
void store_close(struct store *store);

/* Makes a sandbox with this Boxfile; -EEXIST when there is one. */
int store_create(struct store *store, const char *name, const char *boxfile, size_t size,
		 struct err *err);

/* Opens sandboxes/NAME. Returns a directory descriptor, or -ENOENT with the nearest name as mend.
 */
int store_open_sandbox(struct store *store, const char *name, struct err *err);

/* Reads and parses the Boxfile of a sandbox. *ret_spec is owned by the caller. */
int store_load_spec(struct store *store, const char *name, struct spec **ret_spec, struct err *err);

/* All names, sorted, NULL-terminated, in one block owned by the caller: free() once. */
int store_list(struct store *store, char ***ret_names, size_t *ret_count, struct err *err);

/* Removes the sandbox with its image and snapshot, and its data when with_data is set (else data
 * is kept as kept/NAME-TIME/data and *ret_kept, owned by the caller, is that path). Refuses while
 * a machine lives. */
int store_destroy(struct store *store, const char *name, bool with_data, char **ret_kept,
		  struct err *err);

/*
 * Locks. shared: a machine lives; exclusive: a build swaps or destroys. wait=false gives -EAGAIN at
 * once. Returns a descriptor that holds the lock until its last copy is closed.
 */
int store_lock_live(int sandbox_fd, bool exclusive, bool wait, struct err *err);

/* One build at a time: lock of sandboxes/NAME/build.lock. As store_lock_live, always exclusive. */
int store_lock_build(int sandbox_fd, bool wait, struct err *err);

/*
 * Opens data/data.qcow2 for reading and writing with an exclusive lock on the very description
 * that the monitor will get, so that the lock lives as long as the last process that could write.
 * -EAGAIN when another machine holds it and wait is false; -ENOENT when there is no data yet.
 */
int store_open_data(int sandbox_fd, bool wait, struct err *err);

/* Opens data/base-0.ext4 read-only. */
int store_open_data_base(int sandbox_fd, struct err *err);

/* A nameless file in BOX_HOME that vanishes with its last descriptor. Returns it, read-write. */
int store_temporary_file(struct store *store, struct err *err);

/*
 * Writes an empty qcow2 (version 3, 64 KiB clusters) of size_bytes into the empty file fd. It names
 * no backing file: layers are always put together from descriptors by the engine, so that nothing
 * inside a qcow2 can name a file of the host. Follows docs/interop/qcow2.txt of QEMU.
 */
int store_write_qcow2(int fd, uint64_t size_bytes, struct err *err);

/* Digest (BLAKE2b-256, hex, 65 bytes with NUL) of bytes, or of a whole file from its start. */
void store_digest(const void *data, size_t size, char *ret_hex);
int store_digest_file(int fd, char *ret_hex, struct err *err);

/* Fills size bytes from the kernel's generator. */
void store_random(void *data, size_t size);
