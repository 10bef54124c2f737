/* ID maps that only newuidmap(1) and newgidmap(1) may write. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "sys/namespace.h"

/* Where Debian has them. Not looked for in PATH: what is run here decides who one becomes. */
#define NEWUIDMAP "/usr/bin/newuidmap"
#define NEWGIDMAP "/usr/bin/newgidmap"
/* Milliseconds in practice; longer where the user's name comes over a network. */
#define HELPER_LIMIT_MS 20000
/* Ten digits and a NUL. */
#define NUMBER_SIZE 12

static int spawn_helper(const char *path, pid_t pid, const struct sys_id_map *map, int words_fd,
			pid_t *ret_helper)
{
	char numbers[1 + 3 * SYS_ID_MAP_MAX][NUMBER_SIZE];
	char *argv[3 + 3 * SYS_ID_MAP_MAX] = {(char *)(uintptr_t)path};
	char *no_environment[] = {NULL};
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none, usual;
	size_t count = 0;
	int rc;

	ASSERT(map->count <= SYS_ID_MAP_MAX);
	snprintf(numbers[count++], NUMBER_SIZE, "%d", (int)pid);
	for (unsigned i = 0; i < map->count; i++) {
		snprintf(numbers[count++], NUMBER_SIZE, "%u", map->ranges[i].inside);
		snprintf(numbers[count++], NUMBER_SIZE, "%u", map->ranges[i].outside);
		snprintf(numbers[count++], NUMBER_SIZE, "%u", map->ranges[i].count);
	}
	for (size_t i = 0; i < count; i++) {
		argv[1 + i] = numbers[i];
	}
	if (posix_spawn_file_actions_init(&actions) != 0) {
		return -ENOMEM;
	}
	if (posix_spawnattr_init(&attributes) != 0) {
		posix_spawn_file_actions_destroy(&actions);
		return -ENOMEM;
	}
	sigemptyset(&none);
	sigemptyset(&usual);
	sigaddset(&usual, SIGPIPE);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &usual);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	rc = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	rc = rc ? rc : posix_spawn_file_actions_adddup2(&actions, words_fd, 1);
	rc = rc ? rc : posix_spawn_file_actions_adddup2(&actions, words_fd, 2);
	rc = rc ? rc : posix_spawn(ret_helper, path, &actions, &attributes, argv, no_environment);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return -rc;
}

/* Reads what the helpers say until both have closed their ends. Its first line is kept. */
static int hear(int fd, char *words, size_t size)
{
	size_t length = 0;
	char rest[256];

	for (;;) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		bool full = length + 1 >= size;
		ssize_t got;
		int rc = poll(&ready, 1, HELPER_LIMIT_MS);

		if (rc < 0 && errno == EINTR) {
			continue;
		}
		if (rc <= 0) {
			return rc < 0 ? -errno : -ETIMEDOUT;
		}
		got = read(fd, full ? rest : words + length,
			   full ? sizeof(rest) : size - 1 - length);
		if (got < 0 && errno != EINTR) {
			return -errno;
		}
		if (got == 0) {
			break;
		}
		length += full || got < 0 ? 0 : (size_t)got;
	}
	words[length] = '\0';
	words[strcspn(words, "\n")] = '\0';
	return 0;
}

/* Returns 0 when it has ended well. */
static int reap(pid_t helper, bool end)
{
	int status = -1;
	pid_t got;

	if (end) {
		kill(helper, SIGKILL);
	}
	do {
		got = waitpid(helper, &status, 0);
	} while (got < 0 && errno == EINTR);
	return got == helper && status == 0 ? 0 : -EPERM;
}

int sys_write_id_maps_by_helpers(pid_t pid, const struct sys_id_map *uids,
				 const struct sys_id_map *gids, char *ret_words, size_t size)
{
	_cleanup_close_ int read_end = -EBADF;
	_cleanup_close_ int write_end = -EBADF;
	pid_t helpers[2] = {-1, -1};
	int ends[2], rc;

	ret_words[0] = '\0';
	if (pipe2(ends, O_CLOEXEC) < 0) {
		return -errno;
	}
	read_end = ends[0];
	write_end = ends[1];
	/* Side by side: neither needs what the other does. */
	rc = spawn_helper(NEWUIDMAP, pid, uids, write_end, &helpers[0]);
	if (rc == 0) {
		rc = spawn_helper(NEWGIDMAP, pid, gids, write_end, &helpers[1]);
	}
	close_fd(&write_end);
	if (rc == 0) {
		rc = hear(read_end, ret_words, size);
	}
	for (size_t i = 0; i < ARRAY_SIZE(helpers); i++) {
		int ended = helpers[i] > 0 ? reap(helpers[i], rc == -ETIMEDOUT) : 0;

		rc = rc < 0 ? rc : ended;
	}
	return rc;
}
