/*
 * ~/.box: where sandboxes are kept.
 *
 *     sandboxes/NAME/Boxfile
 *     sandboxes/NAME/live            shared lock of every machine of the sandbox that runs
 *     sandboxes/NAME/image/          image.ext4, build.log, key (what it was made from)
 *     sandboxes/NAME/snapshot/       memory, devices, root.qcow2, key, proof-*.json
 *     sandboxes/NAME/data/           base-0.ext4, layer-N.qcow2, data.qcow2 (see chain.h)
 *     sandboxes/NAME/archive/        LABEL.tar.zst, undo-TIME/ (see archive.c)
 *     sandboxes/NAME/up.lock         held by the keeper of the machine that stays (box up)
 *     run/NAME/sock                  socket of that keeper
 *     run/NAME/data                  socket of the keeper that holds /data
 *     run/NAME/warm-N, claim-N       sockets of machines that are kept ready, and of one that is
 *                                    just being taken
 *     run/NAME/slot-N                locks: a machine is kept ready, or made so, in slot N
 *     cache/                         initramfs and library lists, by key; may be deleted
 *     ids.json, ids.lock             which sandbox has which IDs of its own (ids.h)
 *     log/NAME.jsonl                 what ran, one JSON object a line; NAME.jsonl.1 is older
 *     log/NAME/ID.out, ID.err        what is kept of a command's output
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

/* Sockets in run/NAME. */
#define STORE_UP_SOCKET "sock"
#define STORE_DATA_SOCKET "data"
/* Slots of the pool of a sandbox, and with a number each the socket and the lock of a slot. */
#define STORE_SLOTS_MAX 8
#define STORE_WARM_SOCKET "warm-%u"
#define STORE_CLAIMED_SOCKET "claim-%u"
#define STORE_SLOT_LOCK "slot-%u"

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

/*
 * How many things store_sweep would remove or finish in BOX_HOME, but for staging directories of
 * builds and for IDs (store_ids_gone). What cannot be read counts as nothing.
 */
size_t store_count_leftovers(struct store *store);

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
 * caller's own locks included, and while it has forks (chain.h). *ret_kept is also set when the
 * data was put aside and a later step failed. ret_kept may be NULL.
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

/*
 * Lock of sandboxes/NAME/up.lock, exclusive: who holds it is, or starts, or cleans up after, the
 * machine that stays. At once or not at all: -EAGAIN when another has it, with code "already-up".
 */
int store_lock_up(int sandbox_fd, struct err *err);

/* Whether somebody holds up.lock so. Never in the way of a store_lock_up at the same time. */
bool store_is_up(int sandbox_fd);

/*
 * Keeps a machine that stays from starting until the descriptor is closed: up.lock, shared.
 * store_lock_up waits for it, so hold it for an instant only. -EAGAIN when there is one.
 */
int store_lock_down(int sandbox_fd);

/*
 * Takes the lock of a slot of the pool, below run/NAME (run_fd), at once or not at all. Returns a
 * descriptor, -EAGAIN when another has it, -ENOENT when the directory has gone, or another errno.
 */
int store_lock_slot(int run_fd, unsigned slot);
/* Removes the lock's file, which the caller holds as lock_fd, and gives the lock back. */
void store_unlock_slot(int run_fd, unsigned slot, int *lock_fd);

/* Opens (and makes, when create is set) the directory run/NAME. A descriptor or negative errno. */
int store_open_run(struct store *store, const char *name, bool create, struct err *err);

/* Takes run/NAME away when nothing is in it any more. */
void store_leave_run(struct store *store, const char *name);

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

/* A nameless file in BOX_HOME that vanishes with its last descriptor. Returns it, read-write. */
int store_temporary_file(struct store *store, struct err *err);

/*
 * Writes an empty qcow2 (version 3, 64 KiB clusters) of size_bytes into the empty file fd. It names
 * no backing file: layers are always put together from descriptors by the engine, so that nothing
 * inside a qcow2 can name a file of the host. Follows docs/interop/qcow2.txt of QEMU. size_bytes is
 * a multiple of 512, at most 16 TiB; otherwise -EINVAL.
 */
int store_write_qcow2(int fd, uint64_t size_bytes, struct err *err);

/* How large the disk in such a file is. -EBADMSG ("disk-broken") when the header is another's. */
int store_disk_size(int fd, uint64_t *ret_size_bytes, struct err *err);

/*
 * Lets the disk grow to size_bytes; what is new reads as what is below it, or zeros. Nobody else
 * has the file open for writing. It is the old or the new size at every instant. -EINVAL
 * ("data-size") when it is larger already, -EFBIG when its tables have no room.
 */
int store_fit_disk(int fd, uint64_t size_bytes, struct err *err);

/* The error for a disk that is to become smaller. Returns -EINVAL. */
int store_refuse_shrink(uint64_t size_bytes, uint64_t wanted_bytes, struct err *err);

/* Labels are made like names of sandboxes; those of automatic archives begin so. */
#define STORE_LABEL_MAX 64
#define STORE_UNDO_PREFIX "undo-"
/* How long an automatic archive is kept, and how many are, the newest ones. */
#define STORE_UNDO_SECONDS (24 * 60 * 60)
#define STORE_UNDO_MAX 16

/* An archive of /data. */
struct store_archive {
	char label[STORE_LABEL_MAX + 1];
	/* Below sandboxes/NAME. */
	char path[STORE_LABEL_MAX + 32];
	/* Made by a restore or reset: the disks themselves as they were. Otherwise a packed tar. */
	bool automatic;
	uint64_t size_bytes;
	/* Seconds since 1970; of an automatic one also when it goes. */
	int64_t created_s;
	int64_t expires_s;
};

/* 0, or -EINVAL ("label") with err filled for what is no label that a person may give. */
int store_check_label(const char *label, struct err *err);

/* All archives, the oldest first, in a block owned by the caller. Those whose time is over are
 * removed. Returns 0 or a negative errno with err filled. */
int store_list_archives(int sandbox_fd, struct store_archive **ret_archives, size_t *ret_count,
			struct err *err);

/* The one called label, or with NULL the newest that is not automatic. -ENOENT ("no-archive"). */
int store_find_archive(int sandbox_fd, const char *label, struct store_archive *ret_archive,
		       struct err *err);

/* What is being made below sandboxes/NAME: an archive, or a chain of disks. Locked by its maker. */
struct store_draft {
	/* The archive, or the chain's data.qcow2. */
	int fd;
	/* The chain's directory; -EBADF of an archive. */
	int dir_fd;
	char path[64];
};
#define STORE_DRAFT_NONE                                                                           \
	{                                                                                          \
		.fd = -EBADF, .dir_fd = -EBADF                                                     \
	}

/* Begins an archive. 0, or a negative errno with err filled (-EEXIST, "exists": the label is
 * taken). */
int store_begin_archive(int sandbox_fd, const char *label, struct store_draft *ret_draft,
			struct err *err);
/* Gives an archive that is complete its label, after it was synced. */
int store_commit_archive(int sandbox_fd, const char *label, struct store_draft *draft,
			 struct err *err);
/*
 * Begins a chain that is to become /data: the base with an empty disk of size_bytes on it, or what
 * an automatic archive is. The caller holds the lock on /data.
 */
int store_begin_data(int sandbox_fd, uint64_t size_bytes, struct store_draft *ret_draft,
		     struct err *err);
int store_begin_undo(int sandbox_fd, const struct store_archive *archive,
		     struct store_draft *ret_draft, struct err *err);
/*
 * Puts the chain in the place of /data, in one step; what was there becomes an automatic archive,
 * whose label is written to ret_undo (STORE_LABEL_MAX + 1 bytes). The caller holds the lock on
 * /data and the chain lock (exclusive), and nothing has the draft open for writing any more.
 */
int store_swap_data(int sandbox_fd, struct store_draft *draft, char *ret_undo, struct err *err);
/* Removes what was not committed. Safe with STORE_DRAFT_NONE. */
void store_drop_draft(int sandbox_fd, struct store_draft *draft);

/* How many drafts of processes that have ended are there. */
size_t store_count_drafts(int sandbox_fd);

/* Removes drafts of processes that have ended, and archives whose time is over. */
void store_sweep_archives(int sandbox_fd);

/*
 * Gives a sandbox another name, with its log. Refuses with -EBUSY as store_destroy does, and with
 * -EEXIST when there is one of the new name. In one step; what is left to do with the log after a
 * crash a sweep does.
 */
int store_rename(struct store *store, const char *from, const char *to, struct err *err);

/* What the tree below dir_fd takes on the disk. What cannot be read counts as nothing. */
uint64_t store_tree_bytes(int dir_fd, const char *name);

/*
 * Removes everything that box has put into BOX_HOME: sandboxes with their data, kept data, cache,
 * logs. Refuses with -EBUSY, before anything is touched, while a machine runs or a build goes on.
 */
int store_nuke(struct store *store, struct err *err);

/* Digest (BLAKE2b-256, hex, 65 bytes with NUL) of bytes, or of a whole file from its start; the
 * file's offset is neither used nor changed. */
void store_digest(const void *data, size_t size, char *ret_hex);
int store_digest_file(int fd, char *ret_hex, struct err *err);
int store_digest_path(const char *path, char *ret_hex, struct err *err);

/* The same of bytes that come in pieces. Made by store_hasher_new (NULL without memory), owned by
 * the caller; after store_hasher_end, which writes the digest, only store_hasher_free may follow.
 */
struct store_hasher;
struct store_hasher *store_hasher_new(void);
void store_hasher_add(struct store_hasher *hasher, const void *data, size_t size);
void store_hasher_end(struct store_hasher *hasher, char *ret_hex);
void store_hasher_free(struct store_hasher *hasher);
static inline void store_hasher_freep(struct store_hasher **hasher)
{
	store_hasher_free(*hasher);
}

/* A digest in hex, with its NUL. */
#define STORE_DIGEST_SIZE 65

/* Fills size bytes from the kernel's generator. */
void store_random(void *data, size_t size);
