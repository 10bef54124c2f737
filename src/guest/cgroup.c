#include "guest/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"

/* How long a process may wait for a disk before it stands still. The host waits longer. */
#define FREEZE_MAX_MS 5000u
/* Standing still takes a process one turn of the scheduler. */
#define FREEZE_STEP_MS 1

void cgroups_init(struct cgroups *groups, int root_fd)
{
	groups->root_fd = root_fd;
	for (int i = 0; i < CGROUPS_MAX; i++) {
		groups->table[i] = (struct cgroup){.state = CGROUP_NONE, .fd = -EBADF};
	}
}

/* Whether the group's events say so (cgroup-v2.rst, cgroup.events). */
static bool has_event(const struct cgroup *group, const char *event)
{
	_cleanup_close_ int fd = openat(group->fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
	char text[128] = "";

	return fd >= 0 && read_full(fd, text, sizeof(text) - 1) > 0 && strstr(text, event) != NULL;
}

/* Whether no process is in the group. */
static bool is_empty(const struct cgroup *group)
{
	return has_event(group, "populated 0");
}

static int find_state(const struct cgroups *groups, enum cgroup_state state)
{
	for (int i = 0; i < CGROUPS_MAX; i++) {
		if (groups->table[i].state == state) {
			return i;
		}
	}
	return -1;
}

/* Makes the group of a table entry, or finds what an entry of that number was before. */
static int make_group(struct cgroups *groups, int index)
{
	struct cgroup *group = &groups->table[index];
	char name[32];

	snprintf(name, sizeof(name), "box-%d", index);
	if (mkdirat(groups->root_fd, name, 0755) < 0 && errno != EEXIST) {
		return -errno;
	}
	group->fd = openat(groups->root_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (group->fd < 0) {
		return -errno;
	}
	group->state = CGROUP_FREE;
	return 0;
}

static void collect_aside(struct cgroups *groups)
{
	for (int i = 0; i < CGROUPS_MAX; i++) {
		struct cgroup *group = &groups->table[i];

		if (group->state == CGROUP_ASIDE && is_empty(group)) {
			group->state = CGROUP_FREE;
		}
	}
}

void cgroups_prepare(struct cgroups *groups)
{
	if (groups->root_fd < 0) {
		return;
	}
	collect_aside(groups);
	if (find_state(groups, CGROUP_FREE) < 0 && find_state(groups, CGROUP_NONE) >= 0) {
		make_group(groups, find_state(groups, CGROUP_NONE));
	}
}

int cgroups_take(struct cgroups *groups)
{
	int index;

	if (groups->root_fd < 0) {
		return -1;
	}
	index = find_state(groups, CGROUP_FREE);
	if (index < 0) {
		cgroups_prepare(groups);
		index = find_state(groups, CGROUP_FREE);
	}
	if (index >= 0) {
		groups->table[index].state = CGROUP_USED;
	}
	return index;
}

int cgroups_fd(const struct cgroups *groups, int index)
{
	return index < 0 ? -EBADF : groups->table[index].fd;
}

int cgroups_kill(struct cgroups *groups, int index)
{
	_cleanup_close_ int fd = -EBADF;

	if (index < 0) {
		return -ENOENT;
	}
	fd = openat(groups->table[index].fd, "cgroup.kill", O_WRONLY | O_CLOEXEC);
	return fd < 0 ? -errno : write_full(fd, "1", 1);
}

static bool may_have_processes(const struct cgroup *group)
{
	return group->state == CGROUP_USED || group->state == CGROUP_ASIDE;
}

static int set_frozen(const struct cgroup *group, const char *value)
{
	_cleanup_close_ int fd = openat(group->fd, "cgroup.freeze", O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -errno : write_full(fd, value, 1);
}

static bool all_stand_still(const struct cgroups *groups)
{
	for (int i = 0; i < CGROUPS_MAX; i++) {
		const struct cgroup *group = &groups->table[i];

		if (may_have_processes(group) && !has_event(group, "frozen 1")) {
			return false;
		}
	}
	return true;
}

int cgroups_freeze(struct cgroups *groups)
{
	uint64_t end_ns = clock_monotonic_ns() + FREEZE_MAX_MS * UINT64_C(1000000);
	int rc = 0;

	for (int i = 0; rc == 0 && i < CGROUPS_MAX; i++) {
		if (may_have_processes(&groups->table[i])) {
			rc = set_frozen(&groups->table[i], "1");
		}
	}
	while (rc == 0 && !all_stand_still(groups)) {
		if (clock_monotonic_ns() >= end_ns) {
			rc = -ETIMEDOUT;
		}
		poll(NULL, 0, FREEZE_STEP_MS);
	}
	if (rc < 0) {
		cgroups_thaw(groups);
	}
	return rc;
}

void cgroups_thaw(struct cgroups *groups)
{
	for (int i = 0; i < CGROUPS_MAX; i++) {
		if (may_have_processes(&groups->table[i])) {
			/* The group may have been removed from inside; nothing is in it then. */
			(void)set_frozen(&groups->table[i], "0");
		}
	}
}

void cgroups_release(struct cgroups *groups, int index)
{
	if (index >= 0) {
		struct cgroup *group = &groups->table[index];

		ASSERT(group->state == CGROUP_USED);
		group->state = is_empty(group) ? CGROUP_FREE : CGROUP_ASIDE;
	}
}

void cgroups_close(struct cgroups *groups)
{
	for (int i = 0; i < CGROUPS_MAX; i++) {
		close_fd(&groups->table[i].fd);
		groups->table[i].state = CGROUP_NONE;
	}
}
