/* Writes the directory that is named to stdout as a tar archive: archive_write_tree by itself. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "archive/archive.h"
#include "base/cleanup.h"

int main(int argc, char **argv)
{
	_cleanup_close_ int dir = -EBADF;
	struct err err = {0};

	dir = argc == 2 ? open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -EBADF;
	if (dir < 0) {
		fprintf(stderr, "usage: tar_tree DIRECTORY\n");
		return 2;
	}
	if (archive_write_tree(dir, STDOUT_FILENO, &err) < 0) {
		fprintf(stderr, "tar_tree: %s\n", err.text);
		return 1;
	}
	return 0;
}
