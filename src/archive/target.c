#include "archive/target.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

static int refuse(struct err *err, int rc, const char *path, const char *why)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(err, rc, "copy-path", "%s: %s", archive_quote(path, quoted), why);
}

/* Length of path without slashes at its end; the root is one slash. */
static size_t trimmed(const char *path)
{
	size_t length = strlen(path);

	while (length > 1 && path[length - 1] == '/') {
		length--;
	}
	return length;
}

/* Where the last of length bytes' components begins. */
static size_t last_begin(const char *path, size_t length)
{
	while (length > 0 && path[length - 1] != '/') {
		length--;
	}
	return length;
}

static int take_name(const char *path, char *ret_name, struct err *err)
{
	size_t length = trimmed(path);
	size_t begin = last_begin(path, length);
	size_t size = length - begin;

	if (size > ARCHIVE_COMPONENT_MAX) {
		return refuse(err, -ENAMETOOLONG, path, "its last name is over 255 bytes");
	}
	memcpy(ret_name, path + begin, size);
	ret_name[size] = '\0';
	return 0;
}

int copy_source_name(const char *path, char ret_name[ARCHIVE_COMPONENT_MAX + 1], struct err *err)
{
	int rc;

	if (!path[0]) {
		return refuse(err, -EINVAL, path, "the path is empty");
	}
	rc = take_name(path, ret_name, err);
	if (rc < 0) {
		return rc;
	}
	if (strcmp(ret_name, "..") == 0) {
		rc = refuse(err, -EINVAL, path, "a path to copy cannot end with \"..\"");
		err_mend(err, "write the name of the directory, or add \"/.\" for what is in it");
		return rc;
	}
	if (strcmp(ret_name, ".") == 0) {
		ret_name[0] = '\0';
	}
	return 0;
}

static int open_above(const char *path, struct copy_target *target, struct err *err)
{
	char above[ARCHIVE_NAME_MAX + 1];
	size_t begin = last_begin(path, trimmed(path));
	int rc = take_name(path, target->name, err);

	if (rc < 0) {
		return rc;
	}
	if (begin >= sizeof(above)) {
		return refuse(err, -ENAMETOOLONG, path, "it is over 4096 bytes");
	}
	memcpy(above, path, begin);
	above[begin] = '\0';
	target->dir_fd = open(begin > 0 ? above : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (target->dir_fd < 0 && errno == ENOENT) {
		rc = refuse(err, -ENOENT, path, "the directory above it is not there");
		err_mend(err, "make that directory first");
		return rc;
	}
	return target->dir_fd < 0 ? refuse(err, -errno, path, strerror(errno)) : 0;
}

int copy_target_open(const char *path, const char *source_name, bool must_be_directory,
		     struct copy_target *ret_target, struct err *err)
{
	struct copy_target target = {.dir_fd = -EBADF};
	size_t length = strlen(path);
	struct stat status;
	bool there;
	int rc = 0;

	if (length == 0) {
		return refuse(err, -EINVAL, path, "the path is empty");
	}
	there = stat(path, &status) == 0;
	if (!there && errno != ENOENT && errno != ENOTDIR) {
		return refuse(err, -errno, path, strerror(errno));
	}
	if (there && S_ISDIR(status.st_mode)) {
		target.dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (target.dir_fd < 0) {
			return refuse(err, -errno, path, strerror(errno));
		}
		snprintf(target.name, sizeof(target.name), "%s", source_name);
	} else if (must_be_directory || path[length - 1] == '/') {
		return refuse(err, -ENOTDIR, path,
			      there ? "it is not a directory" : "there is no such directory");
	} else {
		target.contents = source_name[0] == '\0';
		rc = open_above(path, &target, err);
	}
	if (rc < 0) {
		close_fd(&target.dir_fd);
		return rc;
	}
	*ret_target = target;
	return 0;
}
