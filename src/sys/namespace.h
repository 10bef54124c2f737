/*
 * New namespaces and who one is in them: clone3(2), user_namespaces(7).
 *
 * Everything here is safe in a child that was made by sys_clone: no allocation, no locks, and raw
 * system calls where the C library would try to tell threads that do not exist in the child.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The most lines that an ID map of box has: the process's own ID and a device's group. */
#define SYS_ID_MAP_MAX 4

struct sys_id_range {
	uint32_t inside;
	uint32_t outside;
	uint32_t count;
};

struct sys_id_map {
	struct sys_id_range ranges[SYS_ID_MAP_MAX];
	unsigned count;
};

/*
 * Forks into the new namespaces of flags (CLONE_NEW*), like fork(2) otherwise: returns 0 in the
 * child, in the parent the PID with *ret_pidfd (close-on-exec, owned by the caller), or a negative
 * errno. The child is born in the version 2 control group behind cgroup_fd unless that is -EBADF.
 */
pid_t sys_clone(uint64_t flags, int cgroup_fd, int *ret_pidfd);

/*
 * Writes the ID maps of pid, a child that waits in a new user namespace. deny_setgroups is what
 * a caller without CAP_SETGID has to give up first. Returns 0 or a negative errno.
 */
int sys_write_id_maps(pid_t pid, const struct sys_id_map *uids, const struct sys_id_map *gids,
		      int deny_setgroups);

/*
 * The same for a caller without privileges and IDs that are not its own, through newuidmap(1) and
 * newgidmap(1), which write what /etc/subuid and /etc/subgid allow. Unlike the caller they leave
 * setgroups(2) allowed. The first line of what they say, without its end, goes to ret_words (size
 * bytes with the NUL; empty: nothing). Not safe after sys_clone. Returns 0, -ENOENT when they are
 * not installed, -EPERM when they refused, -ETIMEDOUT, or another negative errno.
 */
int sys_write_id_maps_by_helpers(pid_t pid, const struct sys_id_map *uids,
				 const struct sys_id_map *gids, char *ret_words, size_t size);

/*
 * Becomes uid and gid (real, effective, saved, file system) for the calling thread. Returns 0 or a
 * negative errno.
 */
int sys_set_ids(uid_t uid, gid_t gid);

/* Replaces the supplementary groups of the calling thread. Returns 0 or a negative errno. */
int sys_set_groups(const gid_t *groups, size_t count);
