/* The guest's first file system: box-guest, and the kernel modules that it loads before anything
 * else. */
#pragma once

#include "base/err.h"

/* Raised when other files go in, so that an archive made before is not used any more. */
#define INITRAMFS_VERSION 2

/*
 * Writes an initramfs to fd (a file, written from its offset on): an uncompressed cpio archive in
 * the format "newc" (Linux, Documentation/driver-api/early-userspace/buffer-format.rst) with
 *
 *     /init                  the program at guest_program_path, mode 0755
 *     /dev /proc /sys /root  empty directories to mount on
 *     /dev/console           so that init has descriptors 0, 1 and 2
 *     /modules/NN-name.ko    what a machine needs, NN in the order of loading from 00
 *
 * modules_dir is a directory like lib/modules/VERSION, as a kernel package has it; depmod need not
 * have run there. A module that is built into the kernel is left out. The same inputs give the
 * same bytes. Both paths are the operator's and trusted.
 *
 * Returns 0, -ENOENT when a program or module is missing, -ENOTSUP for compressed modules, -EINVAL
 * for files that are no modules, or another negative errno; err is filled.
 */
int initramfs_write(int fd, const char *guest_program_path, const char *modules_dir,
		    struct err *err);
