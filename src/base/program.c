#include "base/program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void program_begin(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++) {
		/* Opened the wrong way round, so that their use fails as that of a closed one does.
		 * open(2) takes the lowest free number, which is fd. */
		if (fcntl(fd, F_GETFD) < 0) {
			(void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
		}
	}
	sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
}

/* Cuts path after its last component is gone, when that component is name. */
static int strip(char *path, const char *name)
{
	char *slash = strrchr(path, '/');

	if (!slash || (name && strcmp(slash + 1, name) != 0)) {
		return -ENOENT;
	}
	*slash = '\0';
	return 0;
}

int program_prefix_path(const char *relative, char *ret_path, size_t size)
{
	char path[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);

	if (length < 0) {
		return -errno;
	}
	path[length] = '\0';
	strip(path, NULL);
	if (strip(path, "bin") < 0 && strip(path, "box") == 0) {
		strip(path, "libexec");
	}
	return snprintf(ret_path, size, "%s/%s", path, relative) < (int)size ? 0 : -ENAMETOOLONG;
}

int program_path(const char *name, char *ret_path, size_t size)
{
	char relative[NAME_MAX + 16];

	if (snprintf(relative, sizeof(relative), "libexec/box/%s", name) >= (int)sizeof(relative)) {
		return -ENAMETOOLONG;
	}
	return program_prefix_path(relative, ret_path, size);
}

int program_share_path(const char *name, char *ret_path, size_t size)
{
	char relative[NAME_MAX + 16];

	if (snprintf(relative, sizeof(relative), "share/box/%s", name) >= (int)sizeof(relative)) {
		return -ENAMETOOLONG;
	}
	return program_prefix_path(relative, ret_path, size);
}
