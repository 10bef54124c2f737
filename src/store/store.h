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
 *     kept/NAME-TIME/data/           of destroyed sandboxes whose data was to stay
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
 * Opens BOX_HOME (by default ~/.box), making it when create is set; the directory above it must be
 * there. Refuses a home that is not a directory, belongs to someone else, or may be written by
 * others. Without create a home that is not there is -ENOENT ("no-home"). *ret_store is owned by
 * the caller and given back with store_close.
 *
 * Code words of what the store refuses: no-home, home-not-a-directory, home-owner, home-writable,
 * home-full, home-read-only, home-permission, no-sandbox, exists, no-boxfile, boxfile-size,
 * no-data, disk-size, busy, interrupted.
 */
int store_open(bool create, struct store *ret_store, struct err *err);
void store_close(struct store *store);

/*
 * Removes what interrupted commands left behind: half made and half removed sandboxes (data that
 * was to be kept is put aside first), staging directories build-* of sandboxes whose build lock is
 * free, named temporary files. Leaves alone what another process is still at. Everything is tried;
 * returns 0 or the first negative errno, which a caller may ignore.
 */
int store_sweep(struct store *store);

/* Makes a sandbox with this Boxfile (not parsed here); -EEXIST when there is one. */
int store_create(struct store *store, const char *name, const char *boxfile, size_t size,
		 struct err *err);

/* Opens sandboxes/NAME. Returns a directory descriptor, or -ENOENT with the nearest name as mend.
 */
int store_open_sandbox(struct store *store, const char *name, struct err *err);

/* Reads and parses the Boxfile of a sandbox. *ret_spec is owned by the caller. */
int store_load_spec(struct store *store, const char *name, struct spec **ret_spec, struct err *err);

/* All names, sorted, NULL-terminated, in one block owned by the caller: free() once. */
int store_list(struct store *store, char ***ret_names, size_t *ret_count, struct err *err);

/*
 * Removes the sandbox with its image and snapshot, and its data when with_data is set (else data
 * is kept as kept/NAME-TIME/data and *ret_kept, owned by the caller, is that path; NULL when there
 * was none). Its log stays. Refuses with -EBUSY while a machine lives or a build goes on, the
 * caller's own locks included. *ret_kept is also set when the data was put aside and a later step
 * failed. ret_kept may be NULL.
 */
int store_destroy(struct store *store, const char *name, bool with_data, char **ret_kept,
		  struct err *err);

/*
 * Locks. shared: a machine lives; exclusive: a build swaps or destroys. wait=false gives -EAGAIN at
 * once; with wait a signal gives -EINTR. Returns a descriptor that holds the lock until its last
 * copy is closed. -ENOENT when the sandbox was removed meanwhile. Whoever needs several takes them
 * in this order: build, live, data.
 */
int store_lock_live(int sandbox_fd, bool exclusive, bool wait, struct err *err);

/* One build at a time: lock of sandboxes/NAME/build.lock. As store_lock_live, always exclusive. */
int store_lock_build(int sandbox_fd, bool wait, struct err *err);

/*
 * Lock of sandboxes/NAME/swap.lock, for an instant each: exclusive while a build puts its image and
 * snapshot in place, shared while a start opens them, so that it gets both of one build. Waits.
 */
int store_lock_swap(int sandbox_fd, bool exclusive, struct err *err);

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
 * inside a qcow2 can name a file of the host. Follows docs/interop/qcow2.txt of QEMU. size_bytes is
 * a multiple of 512, at most 16 TiB; otherwise -EINVAL.
 */
int store_write_qcow2(int fd, uint64_t size_bytes, struct err *err);

/* Digest (BLAKE2b-256, hex, 65 bytes with NUL) of bytes, or of a whole file from its start; the
 * file's offset is neither used nor changed. */
void store_digest(const void *data, size_t size, char *ret_hex);
int store_digest_file(int fd, char *ret_hex, struct err *err);

/* Fills size bytes from the kernel's generator. */
void store_random(void *data, size_t size);
