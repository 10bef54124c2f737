/*
 * One control group per command, so that all its processes can be killed together, those included
 * that left its process group.
 *
 * Groups are made ahead and used again once they are empty: making one costs more than starting a
 * command should. A group whose command left processes behind is set aside until those are gone.
 * Where cgroup2 cannot be used there are no groups, and a command is killed by its process group.
 */
#pragma once

#include <stdbool.h>

#include "wire/ctl.h"

/* One for every stream, and as many again that are set aside. */
#define CGROUPS_MAX (2 * WIRE_STREAMS_MAX)

enum cgroup_state {
	CGROUP_NONE = 0,
	CGROUP_FREE,
	CGROUP_USED,
	CGROUP_ASIDE,
};

struct cgroup {
	enum cgroup_state state;
	int fd;
};

struct cgroups {
	/* The mounted cgroup2, or -EBADF. Borrowed. */
	int root_fd;
	struct cgroup table[CGROUPS_MAX];
};

/* root_fd stays the caller's and must outlive *groups. */
void cgroups_init(struct cgroups *groups, int root_fd);

/* Makes groups until one is free. A failure is no error: commands then run without. */
void cgroups_prepare(struct cgroups *groups);

/* Takes a free group. Returns its index, or -1 when there is none. */
int cgroups_take(struct cgroups *groups);

/* The group's directory, for CLONE_INTO_CGROUP. -EBADF for index -1. */
int cgroups_fd(const struct cgroups *groups, int index);

/* Kills all processes of a group. Returns 0 or a negative errno; -ENOENT for index -1. */
int cgroups_kill(struct cgroups *groups, int index);

/*
 * Stops every process of every group that was taken, where it is and unseen by it (cgroup-v2.rst,
 * cgroup.freeze), and waits until they stand still. Returns 0, -ETIMEDOUT when one waits for
 * something else for too long, or another negative errno; then all go on. cgroups_thaw lets them.
 */
int cgroups_freeze(struct cgroups *groups);
void cgroups_thaw(struct cgroups *groups);

/* Gives a group back. -1 is allowed. */
void cgroups_release(struct cgroups *groups, int index);

/* Closes everything. The directories stay; they are the kernel's and vanish with the machine. */
void cgroups_close(struct cgroups *groups);
