#include "guest/below.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

int below_open(int dir_fd, const char *path, int flags)
{
	struct open_how how = {
		.flags = (unsigned)(flags | O_CLOEXEC | O_NOFOLLOW),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS |
			   RESOLVE_NO_XDEV,
	};
	long fd = syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));

	return fd < 0 ? -errno : (int)fd;
}

int below_open_parent(int dir_fd, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	char parent[CHANGE_PATH_MAX + 1];
	size_t size = slash ? (size_t)(slash - path) : 0;

	if (size >= sizeof(parent)) {
		return -ENAMETOOLONG;
	}
	memcpy(parent, path, size);
	parent[size] = '\0';
	*ret_name = slash ? slash + 1 : path;
	return below_open(dir_fd, size > 0 ? parent : ".", O_PATH | O_DIRECTORY);
}

int below_exists(int dir_fd, const char *path)
{
	_cleanup_close_ int fd = below_open(dir_fd, path, O_PATH);

	if (fd >= 0) {
		return 1;
	}
	/* What would be a link on the way is no directory there. */
	return fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP ? 0 : fd;
}
