/*
 * Theory of operation
 *
 * The store is a directory tree of the user's own (BOX_HOME) and the rules by which processes
 * change it side by side, without a daemon. Three means do all of it:
 *
 *   - A thing is made under a hidden name and renamed into place when it is whole; it is removed
 *     by renaming it to a hidden name first. What stands under a plain name is therefore always
 *     whole, however a process ends. Hidden leftovers are found and removed by store_sweep.
 *   - Who may do what is decided by flock(2) on open descriptions, which end with their holders.
 *     The order is: the build lock, then the live lock, then the lock on /data. A sandbox's
 *     directory is itself locked by whoever makes or removes it, so that a sweep can tell work
 *     from leftovers.
 *   - Everything is opened below a directory descriptor that was checked once, in store_open, and
 *     nothing is ever renamed out of BOX_HOME: it may be a file system of its own.
 *
 * What flows in: names (checked by src/spec) and bytes of the user's. Nothing here reads what a
 * guest wrote; disks are only opened, locked and handed on.
 *
 * What may never happen: a half sandbox under a plain name, data lost by an interrupted command, a
 * disk that two machines can write, a tree that another user can change.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "store/internal.h"

/* getpwuid_r(3) asks for this much on glibc; entries of directory services are far smaller. */
#define PASSWD_BUFFER_BYTES 16384

static const char *const home_parts[] = {"sandboxes", "run", "cache", "log"};

static void mend_by_errno(struct err *err, int rc, const char *path)
{
	switch (-rc) {
	case ENOSPC:
	case EDQUOT:
		err_mend(err,
			 "make room on the file system of %s, or set BOX_HOME to a directory that "
			 "has more",
			 path);
		break;
	case EROFS:
		err_mend(err,
			 "%s is on a read-only file system; set BOX_HOME to a directory that can "
			 "be written",
			 path);
		break;
	case EACCES:
	case EPERM:
		err_mend(err,
			 "look at owner and mode (`ls -ld %s`), or set BOX_HOME to a directory of "
			 "your own",
			 path);
		break;
	case EMFILE:
	case ENFILE:
		err_mend(err, "allow more open files (`ulimit -n`) and try again");
		break;
	case EIO:
		err_mend(err, "look at `dmesg`: the disk below %s may be failing", path);
		break;
	default:
		break;
	}
}

static const char *code_by_errno(int rc)
{
	switch (-rc) {
	case ENOSPC:
	case EDQUOT:
		return "home-full";
	case EROFS:
		return "home-read-only";
	case EACCES:
	case EPERM:
		return "home-permission";
	default:
		return "system";
	}
}

int store_fail(struct err *err, int rc, const char *path, const char *format, ...)
{
	char what[512];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	err_set(err, rc, code_by_errno(rc), "%s: %s", what, strerror(-rc));
	mend_by_errno(err, rc, path);
	return rc;
}

void store_fd_path(int fd, char *out)
{
	char link[64];
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, out, PATH_MAX - 1);
	if (length < 0) {
		snprintf(out, PATH_MAX, "the sandbox");
		return;
	}
	out[length] = '\0';
}

void store_random_tag(char *out)
{
	uint64_t number;

	store_random(&number, sizeof(number));
	snprintf(out, STORE_TAG_SIZE, "%016llx", (unsigned long long)number);
}

int store_open_directory(int dir_fd, const char *name)
{
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int store_read_json(int dir_fd, const char *path, size_t max_bytes, struct json **ret_json)
{
	_cleanup_free_ char *text = NULL;
	size_t size;
	int rc = read_file_at(dir_fd, path, max_bytes, &text, &size);

	if (rc == 0) {
		rc = json_parse(text, size, ret_json, NULL);
	}
	if (rc == -ENOENT) {
		return 0;
	}
	return rc == -EFBIG ? -EBADMSG : rc < 0 ? rc : 1;
}

int store_try_lock_directory(int fd)
{
	return flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
}

/* path + suffix, made absolute. */
static int join_absolute(const char *path, const char *suffix, char **ret_path)
{
	char current[PATH_MAX] = "";
	const char *separator = "";
	size_t size;
	char *joined;

	if (path[0] != '/') {
		if (!getcwd(current, sizeof(current))) {
			return -errno;
		}
		separator = "/";
	}
	size = strlen(current) + strlen(separator) + strlen(path) + strlen(suffix) + 1;
	joined = malloc(size);
	if (!joined) {
		return -ENOMEM;
	}
	snprintf(joined, size, "%s%s%s%s", current, separator, path, suffix);
	*ret_path = joined;
	return 0;
}

static int passwd_home(char **ret_path, struct err *err)
{
	_cleanup_free_ char *buffer = malloc(PASSWD_BUFFER_BYTES);
	struct passwd entry, *found = NULL;
	int rc;

	if (!buffer) {
		return err_context(err, -ENOMEM, "home directory");
	}
	rc = getpwuid_r(geteuid(), &entry, buffer, PASSWD_BUFFER_BYTES, &found);
	if (rc != 0 || !found || found->pw_dir[0] != '/') {
		err_set(err, -ENOENT, "no-home",
			"user %u has no home directory, and neither BOX_HOME nor HOME is set",
			(unsigned)geteuid());
		err_mend(err, "set BOX_HOME to the directory where box may keep its things");
		return -ENOENT;
	}
	rc = join_absolute(found->pw_dir, "/.box", ret_path);
	return rc < 0 ? err_context(err, rc, "home directory") : 0;
}

static int home_path(char **ret_path, struct err *err)
{
	const char *box_home = getenv("BOX_HOME");
	const char *home = getenv("HOME");
	int rc;

	if (box_home && box_home[0] != '\0') {
		rc = join_absolute(box_home, "", ret_path);
	} else if (home && home[0] != '\0') {
		rc = join_absolute(home, "/.box", ret_path);
	} else {
		return passwd_home(ret_path, err);
	}
	return rc < 0 ? store_fail(err, rc, ".", "BOX_HOME: the current directory") : 0;
}

static int make_home(const char *path, struct err *err)
{
	int rc;

	if (mkdir(path, 0700) == 0 || errno == EEXIST) {
		return 0;
	}
	rc = -errno;
	store_fail(err, rc, path, "cannot make %s", path);
	if (rc == -ENOENT || rc == -ENOTDIR) {
		err_mend(err, "the directory that should hold it is not there: make it, or set "
			      "BOX_HOME to another one");
	}
	return rc;
}

static int open_home(const char *path, struct err *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc;

	if (fd >= 0) {
		return fd;
	}
	rc = -errno;
	store_fail(err, rc, path, "cannot open %s", path);
	if (rc == -ENOTDIR) {
		err_set(err, rc, "home-not-a-directory", "%s is not a directory", path);
		err_mend(err, "move that file away, or set BOX_HOME to a directory");
	} else if (rc == -ENOENT) {
		err_set(err, rc, "no-home", "%s is not there: no sandbox has been made yet", path);
		err_mend(err, "`box new NAME` makes the first one");
	}
	return rc;
}

/* Nobody else may own the tree or change it: what stands in it decides what box runs. */
static int check_home(int fd, const char *path, struct err *err)
{
	struct stat status;

	if (fstat(fd, &status) < 0) {
		return store_fail(err, -errno, path, "cannot look at %s", path);
	}
	if (status.st_uid != geteuid()) {
		err_set(err, -EPERM, "home-owner", "%s belongs to user %u, and box runs as user %u",
			path, (unsigned)status.st_uid, (unsigned)geteuid());
		err_mend(err, "run box as its owner, or set BOX_HOME to a directory of your own");
		return -EPERM;
	}
	if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
		err_set(err, -EPERM, "home-writable",
			"%s may be written by other users (mode %04o)", path,
			(unsigned)(status.st_mode & 07777));
		err_mend(err, "`chmod 700 %s`, after a look at what is in it", path);
		return -EPERM;
	}
	return 0;
}

static int make_parts(int home_fd, const char *path, struct err *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(home_parts); i++) {
		struct stat status;

		if (mkdirat(home_fd, home_parts[i], 0700) == 0) {
			continue;
		}
		if (errno != EEXIST) {
			return store_fail(err, -errno, path, "cannot make %s/%s", path,
					  home_parts[i]);
		}
		if (fstatat(home_fd, home_parts[i], &status, AT_SYMLINK_NOFOLLOW) < 0) {
			return store_fail(err, -errno, path, "cannot look at %s/%s", path,
					  home_parts[i]);
		}
		if (!S_ISDIR(status.st_mode)) {
			err_set(err, -ENOTDIR, "home-not-a-directory", "%s/%s is not a directory",
				path, home_parts[i]);
			err_mend(err, "move it away: box makes its own");
			return -ENOTDIR;
		}
	}
	return 0;
}

int store_open(bool create, struct store *ret_store, struct err *err)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -EBADF;
	int rc;

	rc = home_path(&path, err);
	if (rc == 0 && create) {
		rc = make_home(path, err);
	}
	if (rc < 0) {
		return rc;
	}
	fd = open_home(path, err);
	if (fd < 0) {
		return fd;
	}
	rc = check_home(fd, path, err);
	if (rc == 0) {
		rc = make_parts(fd, path, err);
	}
	if (rc < 0) {
		return rc;
	}
	*ret_store = (struct store){.home = TAKE_PTR(path), .home_fd = TAKE_FD(fd)};
	return 0;
}

void store_close(struct store *store)
{
	if (store && store->home) {
		free(TAKE_PTR(store->home));
		close_fd(&store->home_fd);
	}
}

/* Whoever leaves it removes it when it is empty, perhaps just between our two calls. */
static int open_run(int run_fd, const char *name, bool create)
{
	int fd = store_open_directory(run_fd, name);

	for (int i = 0; i < STORE_TRIES_MAX && create && fd == -ENOENT; i++) {
		if (mkdirat(run_fd, name, 0700) < 0 && errno != EEXIST) {
			return -errno;
		}
		fd = store_open_directory(run_fd, name);
	}
	return fd;
}

int store_open_run(struct store *store, const char *name, bool create, struct err *err)
{
	_cleanup_close_ int run_fd = store_open_directory(store->home_fd, "run");
	int fd = run_fd < 0 ? run_fd : open_run(run_fd, name, create);

	if (fd < 0) {
		store_fail(err, fd, store->home, "cannot open %s/run/%s", store->home, name);
	}
	return fd;
}

void store_leave_run(struct store *store, const char *name)
{
	_cleanup_close_ int run_fd = store_open_directory(store->home_fd, "run");

	if (run_fd >= 0) {
		unlinkat(run_fd, name, AT_REMOVEDIR);
	}
}

/* For file systems without O_TMPFILE (NFS, some FUSE ones): a name that is lost at once. */
static int make_and_unlink(int home_fd)
{
	for (int i = 0; i < STORE_TRIES_MAX; i++) {
		char name[sizeof(TEMPORARY_PREFIX) + STORE_TAG_SIZE] = TEMPORARY_PREFIX;
		_cleanup_close_ int fd = -EBADF;

		store_random_tag(name + strlen(TEMPORARY_PREFIX));
		fd = openat(home_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fd >= 0) {
			/* ENOENT: a sweep was faster, which is just as well. */
			if (unlinkat(home_fd, name, 0) < 0 && errno != ENOENT) {
				return -errno;
			}
			return TAKE_FD(fd);
		}
		if (errno != EEXIST) {
			return -errno;
		}
	}
	return -EEXIST;
}

int store_temporary_file(struct store *store, struct err *err)
{
	int fd = openat(store->home_fd, ".", O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, 0600);

	if (fd >= 0) {
		return fd;
	}
	/* EISDIR is what a kernel or FUSE server says that has never heard of O_TMPFILE. */
	fd = errno == EOPNOTSUPP || errno == EISDIR ? make_and_unlink(store->home_fd) : -errno;
	if (fd < 0) {
		return store_fail(err, fd, store->home, "cannot make a temporary file in %s",
				  store->home);
	}
	return fd;
}
