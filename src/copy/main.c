/*
 * box-copy: writes an archive that a guest has made into a directory of the host. Runs jailed: it
 * holds the archive, one directory and a place for messages, and can reach nothing else.
 *
 *     box-copy into DIR-FD             everything goes into the directory
 *     box-copy name DIR-FD NAME        the archive's one top goes there and is called NAME
 *     box-copy contents DIR-FD NAME    everything goes into a directory NAME of the directory
 *
 * What flows in: bytes that a guest wrote, on standard input. What flows out: files, and on failure
 * one message on standard error and exit code 1. What the archive may be is in docs/security.md
 * ("Archives and names"), how it is written in src/archive/extract.c.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive/extract.h"
#include "base/cleanup.h"
#include "base/exit.h"

static int usage(struct err *err)
{
	err_set(err, -EINVAL, "usage", "the command line cannot be read");
	err_mend(err, "box-copy into DIR-FD | box-copy name|contents DIR-FD NAME");
	return -EINVAL;
}

static int parse_fd(const char *text, int *ret_fd)
{
	char *end;
	long number = strtol(text, &end, 10);

	if (*text < '0' || *text > '9' || *end != '\0' || number > 4095) {
		return -EINVAL;
	}
	*ret_fd = (int)number;
	return 0;
}

static int parse_arguments(int argc, char **argv, struct extract_options *ret_options, int *ret_fd,
			   struct err *err)
{
	bool named = argc == 4 && argv[3][0] && !strchr(argv[3], '/') &&
		     strcmp(argv[3], ".") != 0 && strcmp(argv[3], "..") != 0 &&
		     strlen(argv[3]) <= ARCHIVE_COMPONENT_MAX;

	if (argc < 3 || parse_fd(argv[2], ret_fd) < 0) {
		return usage(err);
	}
	if (argc == 3 && strcmp(argv[1], "into") == 0) {
		/* It was there before, so who may look in and write is not for a guest to say. */
		ret_options->keep_root = true;
		return 0;
	}
	ret_options->name = argv[3];
	ret_options->contents = strcmp(argv[1], "contents") == 0;
	return named && (ret_options->contents || strcmp(argv[1], "name") == 0) ? 0 : usage(err);
}

static int run(int argc, char **argv, struct err *err)
{
	static const struct archive_options strict = {0};
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	struct extract_options options = {0};
	struct extract_result result;
	int dir_fd;
	int rc = parse_arguments(argc, argv, &options, &dir_fd, err);

	if (rc == 0) {
		rc = archive_open_plain_fd(STDIN_FILENO, &strict, &reader, err);
	}
	return rc == 0 ? archive_extract(reader, dir_fd, &options, &result, err) : rc;
}

int main(int argc, char **argv)
{
	const struct sigaction ignore = {.sa_handler = SIG_IGN};
	struct err err = {0};

	/* A limit on the file comes back as an error, not as a death. */
	sigaction(SIGXFSZ, &ignore, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
	umask(022);
	if (run(argc, argv, &err) < 0) {
		fprintf(stderr, "box-copy: %s\n", err.text);
		return EXIT_NEGATIVE;
	}
	return EXIT_OK;
}
