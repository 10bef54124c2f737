/*
 * receive PATH SOURCE-NAME < ARCHIVE: what client_copy does on the host with what comes out of a
 * machine. Finds box-copy as box does, from its own place.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "archive/target.h"
#include "base/cleanup.h"
#include "client/copy_receive.h"

int main(int argc, char **argv)
{
	struct copy_receiver receiver = COPY_RECEIVER_NONE;
	struct copy_target target;
	struct err err = {0};
	int rc;

	if (argc != 3) {
		fprintf(stderr, "usage: receive PATH SOURCE-NAME\n");
		return 2;
	}
	rc = copy_target_open(argv[1], argv[2], false, &target, &err);
	if (rc == 0) {
		rc = copy_receive_start(&target, STDIN_FILENO, &receiver, &err);
		close_fd(&target.dir_fd);
	}
	if (rc == 0) {
		rc = copy_receive_end(&receiver, -EBADF, &err);
	}
	if (rc < 0) {
		fprintf(stderr, "%s: %s\n", err.code, err.text);
		return 1;
	}
	return 0;
}
