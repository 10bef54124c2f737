/* Landlock: what a process may still reach by name, landlock(7). Safe after sys_clone. */
#pragma once

#include <stdbool.h>

/* The landlock ABI of this kernel (at least 1), or -EOPNOTSUPP / -ENOSYS when it has none. */
int sys_landlock_abi(void);

/*
 * Makes a ruleset that denies every right that the kernel's ABI knows: all of the file system,
 * TCP, and signals and abstract sockets to the outside. Descriptors that are open already are not
 * touched. With connects, connecting over TCP is left alone, to any address and port. *ret_fd is
 * owned by the caller. Returns 0 or a negative errno.
 */
int sys_landlock_new(bool connects, int *ret_fd);

/*
 * Allows reading and executing of files beneath the directory or file path_fd; with device true,
 * path_fd is a device node that may be read, written and used with ioctl(2). Returns 0 or a
 * negative errno.
 */
int sys_landlock_allow(int ruleset_fd, int path_fd, bool device);

/*
 * Allows reading, making, replacing and linking of files and directories beneath tree_fd, but
 * neither executing nor devices, fifos and sockets. Returns 0 or a negative errno.
 */
int sys_landlock_allow_tree(int ruleset_fd, int tree_fd);

/* Puts the calling thread under the ruleset for good. Needs no_new_privs. 0 or a negative errno. */
int sys_landlock_enter(int ruleset_fd);
