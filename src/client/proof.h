/*
 * The proof that a machine has a kernel of its own, taken at every build and by `box verify`.
 *
 * It holds when the guest's boot ID is not the host's (every running Linux kernel has one of its
 * own), and the version that the guest's kernel tells is the one written in the kernel file that
 * was booted.
 */
#pragma once

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
	/* As engine_identity tells, one line. */
	char monitor[1024];
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

/* Writes and reads it as JSON, path below dir_fd. Return 0 or a negative errno with err filled. */
int proof_write(int dir_fd, const char *path, const struct proof *proof, struct err *err);
int proof_read(int dir_fd, const char *path, struct proof *ret_proof, struct err *err);
