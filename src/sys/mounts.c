#include "sys/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mutant.h"

static int clone_mount(const char *path, unsigned flags, uint64_t attributes, int *ret_fd)
{
	_cleanup_close_ int fd = -EBADF;
	struct mount_attr attr = {
		.attr_set = attributes,
		.propagation = MS_PRIVATE,
	};

	fd = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | flags);
	if (fd < 0 || mount_setattr(fd, "", AT_EMPTY_PATH | flags, &attr, sizeof(attr)) < 0) {
		return -errno;
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int sys_mount_clone(const char *path, uint64_t attributes, int *ret_fd)
{
	return clone_mount(path, 0, attributes, ret_fd);
}

int sys_mount_clone_tree(const char *path, uint64_t attributes, int *ret_fd)
{
	return clone_mount(path, AT_RECURSIVE, attributes, ret_fd);
}

int sys_mount_tmpfs(const char *size, const char *inodes, uint64_t attributes, int *ret_fd)
{
	_cleanup_close_ int context = -EBADF;
	int fd;

	context = fsopen("tmpfs", FSOPEN_CLOEXEC);
	if (context < 0 || fsconfig(context, FSCONFIG_SET_STRING, "size", size, 0) < 0 ||
	    fsconfig(context, FSCONFIG_SET_STRING, "nr_inodes", inodes, 0) < 0 ||
	    fsconfig(context, FSCONFIG_SET_STRING, "mode", "0755", 0) < 0 ||
	    fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0) {
		return -errno;
	}
	fd = fsmount(context, FSMOUNT_CLOEXEC, (unsigned)attributes);
	if (fd < 0) {
		return -errno;
	}
	*ret_fd = fd;
	return 0;
}

int sys_mount_attach(int mount_fd, int dir_fd, const char *path)
{
	return move_mount(mount_fd, "", dir_fd, path, MOVE_MOUNT_F_EMPTY_PATH) < 0 ? -errno : 0;
}

int sys_mount_make_private(void)
{
	return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ? -errno : 0;
}

int sys_mount_pivot(int root_fd)
{
	/* With both names the same, the old root lands on top of the new one, so it can be
	 * detached without a directory for it (pivot_root(2), NOTES). */
	if (fchdir(root_fd) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 ||
	    (!MUTANT("root") && umount2(".", MNT_DETACH) < 0) || chdir("/") < 0) {
		return -errno;
	}
	return 0;
}

int sys_mount_seal_root(void)
{
	unsigned long flags = MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;

	return mount(NULL, "/", NULL, flags, NULL) < 0 ? -errno : 0;
}
