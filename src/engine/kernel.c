#include "engine/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/program.h"
#include "engine/initramfs.h"

/* Offsets of the x86 boot protocol's setup header. */
#define SETUP_MAGIC_OFFSET 0x202
#define SETUP_VERSION_OFFSET 0x20e

static int copy_path(char *out, const char *variable, const char *installed)
{
	const char *wanted = getenv(variable);

	if (wanted && wanted[0] != '\0') {
		return snprintf(out, PATH_MAX, "%s", wanted) < PATH_MAX ? 0 : -ENAMETOOLONG;
	}
	return program_prefix_path(installed, out, PATH_MAX);
}

int kernel_find(struct kernel_paths *ret_paths, struct err *err)
{
	int rc = copy_path(ret_paths->kernel, "BOX_KERNEL", "lib/box/kernel/vmlinuz");

	if (rc == 0) {
		rc = copy_path(ret_paths->modules, "BOX_MODULES", "lib/box/kernel/modules");
	}
	if (rc == 0) {
		rc = program_path("box-guest", ret_paths->guest, PATH_MAX);
	}
	if (rc < 0) {
		return err_set(err, rc, "no-kernel", "guest kernel: %s", strerror(-rc));
	}
	ret_paths->initramfs[0] = '\0';
	const char *needed[] = {ret_paths->kernel, ret_paths->modules, ret_paths->guest};
	for (size_t i = 0; i < ARRAY_SIZE(needed); i++) {
		if (access(needed[i], R_OK) < 0) {
			rc = -errno;
			err_set(err, rc, "no-kernel", "guest kernel: %s: %s", needed[i],
				strerror(-rc));
			err_mend(err, "run `make install` again, or name another kernel with "
				      "BOX_KERNEL and its lib/modules/VERSION with BOX_MODULES");
			return rc;
		}
	}
	return 0;
}

int kernel_initramfs(struct kernel_paths *paths, const char *cache_dir, struct err *err)
{
	_cleanup_close_ int fd = -EBADF;
	char temporary[PATH_MAX];
	struct stat guest, modules;
	int rc;

	if (stat(paths->guest, &guest) < 0 || stat(paths->modules, &modules) < 0) {
		return err_context(err, -errno, "initramfs: %s", paths->guest);
	}
	/* The time of change as well: files of a release all carry one time of writing. */
	if (snprintf(paths->initramfs, PATH_MAX,
		     "%s/initramfs-%d-%llx-%llx-%llx-%llx-%llx-%llx-%llx.cpio", cache_dir,
		     INITRAMFS_VERSION, (unsigned long long)guest.st_ino,
		     (unsigned long long)guest.st_size, (unsigned long long)guest.st_mtim.tv_sec,
		     (unsigned long long)guest.st_mtim.tv_nsec,
		     (unsigned long long)guest.st_ctim.tv_sec,
		     (unsigned long long)guest.st_ctim.tv_nsec,
		     (unsigned long long)modules.st_ino) >= PATH_MAX) {
		return err_context(err, -ENAMETOOLONG, "initramfs");
	}
	if (access(paths->initramfs, R_OK) == 0) {
		return 0;
	}
	if (snprintf(temporary, sizeof(temporary), "%s/initramfs.tmp.%d", cache_dir,
		     (int)getpid()) >= (int)sizeof(temporary)) {
		return err_context(err, -ENAMETOOLONG, "initramfs");
	}
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0) {
		return err_context(err, -errno, "initramfs: %s", temporary);
	}
	rc = initramfs_write(fd, paths->guest, paths->modules, err);
	/* The monitor reads it under an ID of its own; there is nothing secret in it. */
	if (rc == 0 && fchmod(fd, 0644) < 0) {
		rc = err_context(err, -errno, "initramfs: %s", temporary);
	}
	if (rc == 0 && rename(temporary, paths->initramfs) < 0) {
		rc = err_context(err, -errno, "initramfs: %s", paths->initramfs);
	}
	if (rc < 0) {
		unlink(temporary);
	}
	return rc;
}

int kernel_version(const char *kernel_path, char *ret_version, size_t size, struct err *err)
{
	_cleanup_close_ int fd = open(kernel_path, O_RDONLY | O_CLOEXEC);
	unsigned char header[SETUP_VERSION_OFFSET + 2 - SETUP_MAGIC_OFFSET];
	ssize_t got;
	off_t offset;

	ASSERT(size > 0);
	if (fd < 0) {
		return err_context(err, -errno, "guest kernel: %s", kernel_path);
	}
	if (pread(fd, header, sizeof(header), SETUP_MAGIC_OFFSET) != (ssize_t)sizeof(header) ||
	    memcmp(header, "HdrS", 4) != 0) {
		err_set(err, -EINVAL, "bad-kernel", "guest kernel: %s is not a bzImage",
			kernel_path);
		err_mend(err, "name a Linux x86-64 kernel image with BOX_KERNEL");
		return -EINVAL;
	}
	offset = (header[sizeof(header) - 2] | header[sizeof(header) - 1] << 8) + 0x200;
	got = pread(fd, ret_version, size - 1, offset);
	if (got < 0) {
		return err_context(err, -errno, "guest kernel: %s", kernel_path);
	}
	ret_version[got] = '\0';
	return 0;
}

const char *kernel_words(void)
{
	/* A panic ends the machine at once (-no-reboot); the console says why. The kernel's test
	 * whether the timer ticks counts turns of a loop, and panics where a busy host lets it turn
	 * too fast. The kernel also distrusts the time stamp counter of more than one emulated
	 * processor, and would read the time from the HPET, a device that all of them wait for in
	 * turn; QEMU derives their counters from one. */
	static const char words[] = "console=ttyS0 quiet panic=-1 reboot=t no_timer_check "
				    "tsc=reliable";

	/* What the kernel does not know becomes the environment of its first process. */
	if (MUTANT("seed")) {
		return "console=ttyS0 BOX_MUTANT=seed";
	}
	return MUTANT("boot-id") ? "console=ttyS0 BOX_MUTANT=boot-id" : words;
}
