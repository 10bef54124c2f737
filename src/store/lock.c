/*
 * Locks of a sandbox, and the disks that are opened under them.
 *
 * A process may have waited for a lock while the file behind it was replaced (reset, restore) or
 * the sandbox was removed. So a lock counts only when its file still has its name afterwards.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "store/internal.h"

#define DATA_PATH "data/data.qcow2"
#define DATA_BASE_PATH "data/base-0.ext4"

/* The directory's own name, in the room of path. */
static const char *sandbox_label(int sandbox_fd, char *path)
{
	const char *slash;

	store_fd_path(sandbox_fd, path);
	slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* Whether fd is still what path names. Returns 1, 0, or a negative errno. */
static int is_current(int fd, int dir_fd, const char *path)
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

/*
 * Opens path and takes a lock on that description. When the file was replaced while we waited the
 * new one is opened. Returns the descriptor, -EAGAIN, -EINTR when a signal ended the wait, or
 * another negative errno.
 */
static int open_locked(int dir_fd, const char *path, int open_flags, int operation)
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
		rc = is_current(fd, dir_fd, path);
		if (rc < 0) {
			return rc;
		}
		if (rc > 0) {
			return TAKE_FD(fd);
		}
	}
	return -EAGAIN;
}

static int lock_failed(int sandbox_fd, int rc, const char *busy_text, struct err *err)
{
	char path[PATH_MAX];
	const char *name = sandbox_label(sandbox_fd, path);

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
	int fd = open_locked(sandbox_fd, "live", O_RDWR | O_CREAT, operation);

	if (fd < 0) {
		lock_failed(sandbox_fd, fd,
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
	int fd = open_locked(sandbox_fd, "build.lock", O_RDWR | O_CREAT,
			     LOCK_EX | (wait ? 0 : LOCK_NB));

	if (fd < 0) {
		lock_failed(sandbox_fd, fd, "is being built by another process", err);
		if (fd == -EAGAIN) {
			err_mend(err, "wait for that build, or stop it");
		}
	}
	return fd;
}

int store_lock_swap(int sandbox_fd, bool exclusive, struct err *err)
{
	int fd = open_locked(sandbox_fd, "swap.lock", O_RDWR | O_CREAT,
			     exclusive ? LOCK_EX : LOCK_SH);

	if (fd < 0) {
		lock_failed(sandbox_fd, fd, "is being rebuilt just now", err);
	}
	return fd;
}

int store_open_data(int sandbox_fd, bool wait, struct err *err)
{
	char path[PATH_MAX];
	int fd = open_locked(sandbox_fd, DATA_PATH, O_RDWR, LOCK_EX | (wait ? 0 : LOCK_NB));

	if (fd == -ENOENT) {
		const char *name = sandbox_label(sandbox_fd, path);

		err_set(err, fd, "no-data", "%s has no /data yet", name);
		err_mend(err, "`box build %s` makes it", name);
	} else if (fd == -EAGAIN) {
		lock_failed(sandbox_fd, fd, "has its /data held by another machine", err);
		err_mend(err, "wait for that machine, or use `--data none` or `--data clone`");
	} else if (fd < 0) {
		lock_failed(sandbox_fd, fd, "", err);
	}
	return fd;
}

int store_open_data_base(int sandbox_fd, struct err *err)
{
	char path[PATH_MAX];
	const char *name;
	int fd = openat(sandbox_fd, DATA_BASE_PATH, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	int rc;

	if (fd >= 0) {
		return fd;
	}
	rc = -errno;
	name = sandbox_label(sandbox_fd, path);
	if (rc == -ENOENT) {
		err_set(err, rc, "no-data", "%s has no /data yet", name);
		err_mend(err, "`box build %s` makes it", name);
		return rc;
	}
	return store_fail(err, rc, path, "cannot open the base of /data of %s", name);
}
