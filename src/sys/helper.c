#include "sys/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"

static int spawn_helper(const char *const argv[], int words_fd, pid_t *ret_helper)
{
	char *no_environment[] = {NULL};
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none, usual;
	int rc;

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
	rc = rc ? rc
		: posix_spawn(ret_helper, argv[0], &actions, &attributes,
			      (char *const *)(uintptr_t)argv, no_environment);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return -rc;
}

/* Reads what the helpers say until both have closed their ends. Its first line is kept. */
static int hear(int fd, int limit_ms, char *words, size_t size)
{
	size_t length = 0;
	char rest[256];

	for (;;) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		bool full = length + 1 >= size;
		ssize_t got;
		int rc = poll(&ready, 1, limit_ms);

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

int sys_run_helpers(const char *const *const argvs[], size_t count, int limit_ms, char *ret_words,
		    size_t size)
{
	_cleanup_close_ int read_end = -EBADF;
	_cleanup_close_ int write_end = -EBADF;
	pid_t helpers[SYS_HELPERS_MAX];
	size_t started = 0;
	int ends[2], rc = 0;

	ASSERT(count <= SYS_HELPERS_MAX);
	ret_words[0] = '\0';
	if (pipe2(ends, O_CLOEXEC) < 0) {
		return -errno;
	}
	read_end = ends[0];
	write_end = ends[1];
	while (rc == 0 && started < count) {
		rc = spawn_helper(argvs[started], write_end, &helpers[started]);
		started += rc == 0;
	}
	close_fd(&write_end);
	if (rc == 0) {
		rc = hear(read_end, limit_ms, ret_words, size);
	}
	for (size_t i = 0; i < started; i++) {
		int ended = reap(helpers[i], rc == -ETIMEDOUT);

		rc = rc < 0 ? rc : ended;
	}
	return rc;
}
