#include "sys/namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

pid_t sys_clone(uint64_t flags, int cgroup_fd, int *ret_pidfd)
{
	int pidfd = -EBADF;
	struct clone_args args = {
		.flags = flags | CLONE_PIDFD,
		.pidfd = (uint64_t)(uintptr_t)&pidfd,
		.exit_signal = SIGCHLD,
	};
	long pid;

	if (cgroup_fd >= 0) {
		args.flags = args.flags | CLONE_INTO_CGROUP;
		args.cgroup = (unsigned)cgroup_fd;
	}
	pid = syscall(SYS_clone3, &args, sizeof(args));
	if (pid < 0) {
		return -errno;
	}
	if (pid > 0) {
		*ret_pidfd = pidfd;
	}
	return (pid_t)pid;
}

/* The kernel takes an ID map in one write only. */
static int write_proc(pid_t pid, const char *name, const char *text)
{
	_cleanup_close_ int fd = -EBADF;
	char path[64];
	ssize_t written;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) {
		return -errno;
	}
	written = write(fd, text, strlen(text));
	if (written < 0) {
		return -errno;
	}
	return (size_t)written == strlen(text) ? 0 : -EIO;
}

static int write_map(pid_t pid, const char *name, const struct sys_id_map *map)
{
	/* Three numbers of ten digits and their separators for each line. */
	char text[SYS_ID_MAP_MAX * 36];
	size_t length = 0;

	ASSERT(map->count <= SYS_ID_MAP_MAX);
	for (unsigned i = 0; i < map->count; i++) {
		const struct sys_id_range *range = &map->ranges[i];

		length += (size_t)snprintf(text + length, sizeof(text) - length, "%u %u %u\n",
					   range->inside, range->outside, range->count);
		ASSERT(length < sizeof(text));
	}
	return write_proc(pid, name, text);
}

int sys_write_id_maps(pid_t pid, const struct sys_id_map *uids, const struct sys_id_map *gids,
		      int deny_setgroups)
{
	int rc = 0;

	if (deny_setgroups) {
		rc = write_proc(pid, "setgroups", "deny");
	}
	if (rc == 0) {
		rc = write_map(pid, "gid_map", gids);
	}
	if (rc == 0) {
		rc = write_map(pid, "uid_map", uids);
	}
	return rc;
}

int sys_set_ids(uid_t uid, gid_t gid)
{
	if (syscall(SYS_setresgid, gid, gid, gid) < 0) {
		return -errno;
	}
	if (syscall(SYS_setresuid, uid, uid, uid) < 0) {
		return -errno;
	}
	return 0;
}

int sys_set_groups(const gid_t *groups, size_t count)
{
	return syscall(SYS_setgroups, count, groups) < 0 ? -errno : 0;
}
