/*
 * The proof that a machine has a kernel of its own, taken at every build and by `box verify`.
 *
 * It holds when the guest's boot ID is not the host's (every running Linux kernel has one of its
 * own), and the version that the guest's kernel tells is the one written in the kernel file that
 * was booted. It covers what the engine ran: the monitor's binary and firmware, the kernel, the
 * initramfs and the guest program, byte for byte. A machine that would boot anything else is not
 * started. One that restores a snapshot needs no look at these bytes: the snapshot's key names the
 * same files (engine/fingerprint.h), and was written together with a proof.
 *
 * Each accelerator has a proof of its own, and none stands for the other's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/kernel.h"
#include "ipc/ipc.h"

struct proof {
	char guest_release[96];
	char guest_version[160];
	char guest_boot_id[40];
	char host_release[96];
	char host_version[160];
	char host_boot_id[40];
	/* BLAKE2b-256 in hex. */
	char kernel_digest[65];
	char initramfs_digest[65];
	char guest_digest[65];
	char image_digest[65];
	/* engine_digest: the monitor and its firmware. */
	char monitor_digest[65];
	/* Nanoseconds since 1970. */
	uint64_t taken_ns;
};

/*
 * Checks what a machine said against this host and the kernel file, and fills *ret_proof. Returns
 * 0, or -EPROTO with err filled (code "proof") when the machine has not the kernel that was
 * started, or another negative errno.
 */
int proof_take(const struct ipc_ready *ready, const struct kernel_paths *paths,
	       struct proof *ret_proof, struct err *err);

/*
 * Adds the digest of a disk: of the contents of all pieces that are not zeros, wherever the file
 * has holes. Returns 0 or a negative errno with err filled.
 */
int proof_add_image(int dir_fd, const char *path, struct proof *proof, struct err *err);

/* Where a sandbox keeps it, below its directory. hardware: of machines with KVM. */
const char *proof_path(bool hardware);

/* Writes and reads it as JSON, path below dir_fd. Return 0 or a negative errno with err filled. */
int proof_write(int dir_fd, const char *path, const struct proof *proof, struct err *err);
int proof_read(int dir_fd, const char *path, struct proof *ret_proof, struct err *err);

/* The first part that the two do not agree in, as a person calls it, or NULL. */
const char *proof_difference(const struct proof *proof, const struct proof *other);

/*
 * Whether what would run now is what was proved for the sandbox called name with this accelerator.
 * Reads all of it: some 30 MB. Returns 0, -EPERM with err filled (code "not-proved"), or another
 * negative errno.
 */
int proof_check(int sandbox_fd, const char *name, bool hardware, const struct kernel_paths *paths,
		struct err *err);
