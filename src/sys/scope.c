#include "sys/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "sys/helper.h"

/* It comes with systemd. Not looked for in PATH: what is run here is told of a process. */
#define BUSCTL "/usr/bin/busctl"
/* Where systemd mounts the one hierarchy. */
#define HIERARCHY "/sys/fs/cgroup"
/* busctl gives up before it is killed, and says so. */
#define ANSWER_LIMIT "--timeout=10"
#define HELPER_LIMIT_MS 15000
/* systemd answers when it has taken the order, and moves the process a moment later. */
#define MOVE_TRIES 5000
#define MOVE_PAUSE_NS 1000000L
/* A number or "max". */
#define LIMIT_BYTES_MAX 64
#define NUMBER_SIZE 24

/* Not from the environment: whoever uses su keeps that of another user. */
static int bus_path(char *ret_path, size_t size)
{
	return snprintf(ret_path, size, "/run/user/%u/bus", geteuid());
}

bool sys_scope_manager_is_there(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct ucred listener = {0};
	socklen_t size = sizeof(listener);

	bus_path(address.sun_path, sizeof(address.sun_path));
	/* systemd opened this socket. In a PID namespace that it is not in, its number reads 0. */
	return fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
	       getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &listener, &size) == 0 && listener.pid > 0;
}

bool sys_scope_can_be_asked(void)
{
	char path[PATH_MAX], session[64];

	if (geteuid() == 0 || sys_cgroup_path("self", NULL, path, sizeof(path)) < 0) {
		return false;
	}
	snprintf(session, sizeof(session), "/user-%u.slice/session-", geteuid());
	return strstr(path, session) && sys_scope_manager_is_there();
}

/* Method StartTransientUnit of org.freedesktop.systemd1(5). */
static int order(const char *pid, const char *unit, const struct sys_cgroup_limits *limits,
		 char *words, size_t size)
{
	char address[64] = "--address=unix:path=", memory[NUMBER_SIZE], tasks[NUMBER_SIZE];
	const char *const argv[] = {
		BUSCTL, "--quiet", ANSWER_LIMIT, address, "call", "org.freedesktop.systemd1",
		"/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
		"StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail",
		/* So many properties, each with its name, its type and its value. */
		"5", "PIDs", "au", "1", pid, "MemoryMax", "t", memory, "MemorySwapMax", "t", "0",
		"TasksMax", "t", tasks,
		/* A scope that has failed is forgotten like one that has ended. */
		"CollectMode", "s", "inactive-or-failed",
		/* No other units. */
		"0", NULL};
	const char *const *const argvs[] = {argv};
	size_t length = strlen(address);

	bus_path(address + length, sizeof(address) - length);
	snprintf(memory, sizeof(memory), "%" PRIu64, limits->memory_bytes);
	snprintf(tasks, sizeof(tasks), "%" PRIu64, limits->pids);
	return sys_run_helpers(argvs, 1, HELPER_LIMIT_MS, words, size);
}

static int wait_until_moved(const char *pid, const char *unit, char *ret_path, size_t size)
{
	struct timespec pause = {.tv_nsec = MOVE_PAUSE_NS};
	char path[PATH_MAX];

	for (int i = 0; i < MOVE_TRIES; i++) {
		int rc = sys_cgroup_path(pid, NULL, path, sizeof(path));

		if (rc < 0) {
			return rc;
		}
		if (strcmp(strrchr(path, '/') + 1, unit) == 0) {
			return snprintf(ret_path, size, HIERARCHY "%s", path) >= (int)size
				       ? -ENAMETOOLONG
				       : 0;
		}
		nanosleep(&pause, NULL);
	}
	return -ETIMEDOUT;
}

static bool has_limit(const char *group, const char *name, uint64_t limit)
{
	_cleanup_free_ char *text = NULL;
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/%s", group, name) < (int)sizeof(path) &&
	       read_file_at(AT_FDCWD, path, LIMIT_BYTES_MAX, &text, NULL) == 0 &&
	       strtoull(text, NULL, 10) == limit;
}

int sys_scope_make(pid_t pid, const char *name, const struct sys_cgroup_limits *limits,
		   char *ret_path, size_t size, char reason[static SYS_SCOPE_REASON_SIZE])
{
	char unit[NAME_MAX], number[NUMBER_SIZE], words[128];
	int rc;

	snprintf(unit, sizeof(unit), "%s" SYS_SCOPE_SUFFIX, name);
	snprintf(number, sizeof(number), "%d", (int)pid);
	rc = order(number, unit, limits, words, sizeof(words));
	if (rc < 0) {
		snprintf(reason, SYS_SCOPE_REASON_SIZE, "systemd made no scope: %s",
			 words[0] ? words : strerror(-rc));
		return rc;
	}
	rc = wait_until_moved(number, unit, ret_path, size);
	if (rc < 0) {
		snprintf(reason, SYS_SCOPE_REASON_SIZE,
			 "systemd did not move it into its scope: %s", strerror(-rc));
		return rc;
	}
	if (!has_limit(ret_path, "memory.max", limits->memory_bytes) ||
	    !has_limit(ret_path, "pids.max", limits->pids)) {
		snprintf(reason, SYS_SCOPE_REASON_SIZE,
			 "systemd's scope does not limit memory and pids");
		return -EOPNOTSUPP;
	}
	return 0;
}
