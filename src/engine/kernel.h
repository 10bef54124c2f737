/* The guest's kernel, its modules, and the initramfs that box makes for it. */
#pragma once

#include <limits.h>
#include <stddef.h>

#include "base/err.h"

struct kernel_paths {
	/* bzImage. */
	char kernel[PATH_MAX];
	/* The directory that depmod calls lib/modules/VERSION. */
	char modules[PATH_MAX];
	/* box-guest. */
	char guest[PATH_MAX];
	/* Made by kernel_initramfs; empty before. */
	char initramfs[PATH_MAX];
};

/*
 * BOX_KERNEL and BOX_MODULES, else PREFIX/lib/box/kernel/{vmlinuz,modules}. Returns 0, or -ENOENT
 * with err filled (code "no-kernel").
 */
int kernel_find(struct kernel_paths *ret_paths, struct err *err);

/*
 * Makes sure that an initramfs of this guest program and these modules is in the cache directory
 * (absolute path), and sets paths->initramfs. Returns 0 or a negative errno with err filled.
 */
int kernel_initramfs(struct kernel_paths *paths, const char *cache_dir, struct err *err);

/* The kernel's command line. Never a secret: whoever is inside can read it. */
const char *kernel_words(void);

/*
 * The version text inside a bzImage ("6.1.0-57-cloud-amd64 (…) #1 SMP …"), as Linux's
 * Documentation/x86/boot.rst says: at the offset that header field kernel_version gives, plus
 * 0x200. Returns 0, -EINVAL when the file is no bzImage, or a negative errno.
 */
int kernel_version(const char *kernel_path, char *ret_version, size_t size, struct err *err);
