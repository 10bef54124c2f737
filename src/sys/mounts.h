/*
 * Mounts by descriptor: open_tree(2), mount_setattr(2), fsmount(2), move_mount(2), pivot_root(2).
 *
 * All of it needs CAP_SYS_ADMIN in the user namespace that owns the mount namespace, and is safe
 * after sys_clone: no allocation, no locks.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Clones the mount of one file, detached, as *ret_fd, with the MOUNT_ATTR_* of attributes set and
 * private propagation. Returns 0 or a negative errno.
 */
int sys_mount_clone(const char *path, uint64_t attributes, int *ret_fd);

/*
 * The same for a directory with everything that is mounted below it: *ret_fd is an O_PATH
 * descriptor for the root of mounts of its own, which end when it is closed.
 */
int sys_mount_clone_tree(const char *path, uint64_t attributes, int *ret_fd);

/*
 * Makes a detached tmpfs of at most size (as tmpfs(5) writes it) and inodes entries, mode 0755,
 * with MOUNT_ATTR_* attributes. Returns 0 or a negative errno.
 */
int sys_mount_tmpfs(const char *size, const char *inodes, uint64_t attributes, int *ret_fd);

/* Attaches a detached mount at path below dir_fd. Returns 0 or a negative errno. */
int sys_mount_attach(int mount_fd, int dir_fd, const char *path);

/* Stops every mount event from or to the outside: MS_REC | MS_PRIVATE on "/". */
int sys_mount_make_private(void);

/*
 * Makes the attached mount behind root_fd the root, detaches the old root and everything below
 * it, and leaves the working directory at the new root. Returns 0 or a negative errno.
 */
int sys_mount_pivot(int root_fd);

/* Remounts "/" read-only, nosuid, nodev, noexec: the file system itself and the mount. */
int sys_mount_seal_root(void);
