/*
 * Control groups for one process: memory and number of tasks.
 *
 * Works with a version 2 hierarchy where the caller may make groups (root, or delegated by
 * systemd), and with the version 1 hierarchies memory and pids of hybrid hosts (cgroups(7)). For a
 * login session see sys/scope.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Names are "box-<pid of the maker>-<anything>", so that leftovers of dead makers can be told. */
#define SYS_CGROUP_PREFIX "box-"

struct sys_cgroup_limits {
	/* 0: no limit wanted. */
	uint64_t memory_bytes;
	uint64_t pids;
};

/*
 * Makes one group for each hierarchy that is needed and sets the limits. The absolute paths are
 * put into paths, NUL-separated, ended by an empty one; "" when none could be made. What could not
 * be had is said in reason (else ""). Returns 0 when everything wanted is there, otherwise a
 * negative errno; groups that were made are in paths in both cases.
 */
int sys_cgroup_make(const char *name, const struct sys_cgroup_limits *limits, char *paths,
		    size_t paths_size, char *reason, size_t reason_size);

/*
 * The path of a process's group in the hierarchy of a version 1 controller, or in version 2 when
 * controller is NULL. pid: its number in decimal, or "self". Returns 0, -ENOENT when it is in no
 * such group or in one outside our cgroup namespace, or another negative errno.
 */
int sys_cgroup_path(const char *pid, const char *controller, char *ret_path, size_t size);

/* One directory of version 2 and one of each version 1 hierarchy. */
#define SYS_CGROUP_FDS_MAX 2

/*
 * How a child gets into groups. To move another process, the kernel waits for all processors, which
 * takes 5 to 15 ms. To be born in a group of version 2, or to move oneself in version 1, takes
 * microseconds.
 */
struct sys_cgroup_way {
	/* For sys_clone, or -EBADF. */
	int born_in_fd;
	/* For sys_cgroup_move_self in the child. */
	int self_fds[SYS_CGROUP_FDS_MAX];
	unsigned self_count;
};

/*
 * Opens the way into every group of paths, close-on-exec. The caller gives it back with
 * sys_cgroup_close, also after a failure. Returns 0 or a negative errno.
 */
int sys_cgroup_open(const char *paths, struct sys_cgroup_way *ret_way);
void sys_cgroup_close(struct sys_cgroup_way *way);

/*
 * Moves the calling process, which has one thread, into the version 1 groups of way, with the
 * rights of who opened it. Safe after sys_clone. Returns 0 or a negative errno.
 */
int sys_cgroup_move_self(const struct sys_cgroup_way *way);

/*
 * Removes the groups of paths, whose processes have ended; retries for up to 200 ms while the
 * kernel lets go of them. A scope is only waited for: systemd removes it. Returns 0 or a negative
 * errno.
 */
int sys_cgroup_remove(const char *paths);

/*
 * Counts the groups whose makers are dead, where sys_cgroup_make would make them. With remove the
 * empty ones go.
 */
size_t sys_cgroup_leftovers(bool remove);
