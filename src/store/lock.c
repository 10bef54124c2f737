/*
 * Locks of a sandbox, and the disks that are opened under them.
 *
 * A process may have waited for a lock while the file behind it was replaced (reset, restore) or
 * the sandbox was removed. So a lock counts only when its file still has its name afterwards.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "store/internal.h"

/* A look at up.lock takes microseconds, a sweep some milliseconds. */
#define LOOK_PAUSE_NS 1000000
#define LOOK_TRIES 500

const char *store_sandbox_label(int sandbox_fd, char *path)
{
	const char *slash;

	store_fd_path(sandbox_fd, path);
	slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

int store_is_current(int fd, int dir_fd, const char *path)
{
	struct stat opened, named;

	if (fstat(fd, &opened) < 0) {
		return -errno;
	}
	if (fstatat(dir_fd, path, &named, AT_SYMLINK_NOFOLLOW) < 0) {
		return errno == ENOENT ? 0 : -errno;
	}
	return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

int store_open_locked(int dir_fd, const char *path, int open_flags, int operation)
{
	for (int i = 0; i < STORE_TRIES_MAX; i++) {
		_cleanup_close_ int fd = -EBADF;
		int rc;

		fd = openat(dir_fd, path, open_flags | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd < 0) {
			return -errno;
		}
		if (flock(fd, operation) < 0) {
			return -errno;
		}
		rc = store_is_current(fd, dir_fd, path);
		if (rc < 0) {
			return rc;
		}
		if (rc > 0) {
			return TAKE_FD(fd);
		}
	}
	return -EAGAIN;
}

int store_lock_failed(int sandbox_fd, int rc, const char *busy_text, struct err *err)
{
	char path[PATH_MAX];
	const char *name = store_sandbox_label(sandbox_fd, path);

	if (rc == -EAGAIN) {
		return err_set(err, rc, "busy", "%s %s", name, busy_text);
	}
	if (rc == -EINTR) {
		return err_set(err, rc, "interrupted", "interrupted while waiting for %s", name);
	}
	if (rc == -ENOENT) {
		return err_set(err, rc, "no-sandbox", "%s has been removed", name);
	}
	return store_fail(err, rc, path, "cannot lock %s", name);
}

int store_lock_live(int sandbox_fd, bool exclusive, bool wait, struct err *err)
{
	int operation = (exclusive ? LOCK_EX : LOCK_SH) | (wait ? 0 : LOCK_NB);
	int fd = store_open_locked(sandbox_fd, "live", O_RDWR | O_CREAT, operation);

	if (fd < 0) {
		store_lock_failed(sandbox_fd, fd,
				  exclusive ? "has a running machine"
					    : "is being rebuilt or removed just now",
				  err);
		if (fd == -EAGAIN) {
			err_mend(err, "wait until that is over and try again");
		}
	}
	return fd;
}

int store_lock_build(int sandbox_fd, bool wait, struct err *err)
{
	int fd = store_open_locked(sandbox_fd, "build.lock", O_RDWR | O_CREAT,
				   LOCK_EX | (wait ? 0 : LOCK_NB));

	if (fd < 0) {
		store_lock_failed(sandbox_fd, fd, "is being built by another process", err);
		if (fd == -EAGAIN) {
			err_mend(err, "wait for that build, or stop it");
		}
	}
	return fd;
}

int store_lock_down(int sandbox_fd)
{
	return store_open_locked(sandbox_fd, "up.lock", O_RDWR | O_CREAT, LOCK_SH | LOCK_NB);
}

bool store_is_up(int sandbox_fd)
{
	_cleanup_close_ int fd =
		store_open_locked(sandbox_fd, "up.lock", O_RDWR, LOCK_SH | LOCK_NB);

	return fd == -EAGAIN;
}

/* Takes up.lock. Those who only look hold it for an instant: while they do they can be told from a
 * machine, because they share it. */
static int take_up(int sandbox_fd)
{
	const struct timespec pause = {.tv_nsec = LOOK_PAUSE_NS};

	for (int i = 0; i < LOOK_TRIES; i++) {
		int fd = store_open_locked(sandbox_fd, "up.lock", O_RDWR | O_CREAT,
					   LOCK_EX | LOCK_NB);

		if (fd != -EAGAIN || store_is_up(sandbox_fd)) {
			return fd;
		}
		nanosleep(&pause, NULL);
	}
	return -EAGAIN;
}

int store_lock_up(int sandbox_fd, struct err *err)
{
	int fd = take_up(sandbox_fd);
	char path[PATH_MAX];

	if (fd == -EAGAIN) {
		const char *name = store_sandbox_label(sandbox_fd, path);

		err_set(err, fd, "already-up", "%s is up already", name);
		err_mend(err, "`box down %s` stops it, `box exec %s` runs something in it", name,
			 name);
	} else if (fd < 0) {
		store_lock_failed(sandbox_fd, fd, "", err);
	}
	return fd;
}

int store_lock_slot(int run_fd, unsigned slot)
{
	char name[32];

	snprintf(name, sizeof(name), STORE_SLOT_LOCK, slot);
	return store_open_locked(run_fd, name, O_RDWR | O_CREAT, LOCK_EX | LOCK_NB);
}

void store_unlock_slot(int run_fd, unsigned slot, int *lock_fd)
{
	char name[32];

	snprintf(name, sizeof(name), STORE_SLOT_LOCK, slot);
	unlinkat(run_fd, name, 0);
	close_fd(lock_fd);
}

int store_lock_swap(int sandbox_fd, bool exclusive, struct err *err)
{
	int fd = store_open_locked(sandbox_fd, "swap.lock", O_RDWR | O_CREAT,
				   exclusive ? LOCK_EX : LOCK_SH);

	if (fd < 0) {
		store_lock_failed(sandbox_fd, fd, "is being rebuilt just now", err);
	}
	return fd;
}

int store_open_data(int sandbox_fd, bool wait, struct err *err)
{
	char path[PATH_MAX];
	int fd = store_open_locked(sandbox_fd, DATA_PATH, O_RDWR, LOCK_EX | (wait ? 0 : LOCK_NB));

	if (fd == -ENOENT) {
		const char *name = store_sandbox_label(sandbox_fd, path);

		err_set(err, fd, "no-data", "%s has no /data yet", name);
		err_mend(err, "`box build %s` makes it", name);
	} else if (fd == -EAGAIN) {
		store_lock_failed(sandbox_fd, fd, "has its /data held by another machine", err);
		err_mend(err, "wait for that machine, or use `--data none` or `--data clone`");
	} else if (fd < 0) {
		store_lock_failed(sandbox_fd, fd, "", err);
	}
	return fd;
}
