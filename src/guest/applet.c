#include "guest/applet.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cleanup.h"

int applet_end(int rc, const struct err *err)
{
	if (rc < 0) {
		dprintf(STDERR_FILENO, "%s\n", err->text);
	}
	return rc < 0 ? 1 : 0;
}

int applet_on_data(int argc, char **argv, int (*run)(int data_fd, struct err *err))
{
	_cleanup_close_ int fd = open("/data", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct err err = {0};

	if (argc != 1) {
		dprintf(STDERR_FILENO, "the command line of %s cannot be read\n", argv[0]);
		return 1;
	}
	if (fd < 0) {
		dprintf(STDERR_FILENO, "this machine has no /data\n");
		return 1;
	}
	return applet_end(run(fd, &err), &err);
}
