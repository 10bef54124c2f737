/*
 * The applets for what changed on a disk, on directories and devices of the host.
 *
 *     driver diff DATA BASE-DEVICE [content|patch]    the stream goes to standard output
 *     driver apply DATA                               records and archive come from standard input
 *     driver inodes OLD NEW                           numbers of inodes that differ, of two images
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "guest/apply.h"
#include "guest/diff.h"
#include "guest/diff_inodes.h"

static int inodes(const char *old, const char *new, struct err *err)
{
	_cleanup_close_ int old_fd = open(old, O_RDONLY | O_CLOEXEC);
	_cleanup_close_ int new_fd = open(new, O_RDONLY | O_CLOEXEC);
	struct inode_changes changes = {0};
	int rc = diff_inodes(old_fd, new_fd, &changes, err);

	for (size_t i = 0; i < changes.count && rc == 0; i++) {
		printf("%u\n", changes.list[i].number);
	}
	inode_changes_clear(&changes);
	return rc;
}

int main(int argc, char **argv)
{
	struct err err = {0};
	int rc = -1;

	umask(0);
	if (argc >= 4 && strcmp(argv[1], "diff") == 0) {
		const char *mode = argc > 4 ? argv[4] : "";
		const struct diff_config config = {
			.data = argv[2],
			.base_device = argv[3],
			.mode = strcmp(mode, "content") == 0 ? DIFF_CONTENT
				: strcmp(mode, "patch") == 0 ? DIFF_PATCH
							     : DIFF_RECORDS,
			.out_fd = STDOUT_FILENO,
		};

		rc = diff_run(&config, &err);
	} else if (argc == 3 && strcmp(argv[1], "apply") == 0) {
		_cleanup_close_ int fd = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);

		rc = apply_run(fd, STDIN_FILENO, &err);
	} else if (argc == 4 && strcmp(argv[1], "inodes") == 0) {
		rc = inodes(argv[2], argv[3], &err);
	}
	if (rc < 0) {
		dprintf(STDERR_FILENO, "%s\n", err.text);
	}
	return rc < 0 ? 1 : 0;
}
