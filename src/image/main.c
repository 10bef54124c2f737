/*
 * box-image: makes ext4 images. Runs jailed with an empty root; everything it works on comes as the
 * numbers of open descriptors.
 *
 *     box-image tar IN-FD OUT-FD SIZE-BYTES [--label L] [--uuid U] [--progress-fd N]
 *     box-image empty OUT-FD SIZE-BYTES [--label L] [--uuid U]
 *     box-image pack|unpack IN-FD OUT-FD
 *
 * The last two compress an archive with zstd, or unpack one of any kind, without a look at what is
 * in it.
 *
 * Exits 0, or 1 with one message on stderr and a line that says what to do where there is one.
 */
#include "image/image.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "base/check.h"
#include "base/exit.h"

struct arguments {
	int in_fd;
	int out_fd;
	struct image_options options;
};

static int usage(struct err *err)
{
	err_set(err, -EINVAL, "usage", "the command line cannot be read");
	err_mend(err, "box-image tar IN-FD OUT-FD SIZE-BYTES [--label L] [--uuid U]"
		      " [--progress-fd N] | box-image empty OUT-FD SIZE-BYTES [--label L]"
		      " [--uuid U] | box-image pack|unpack IN-FD OUT-FD");
	return -EINVAL;
}

static int parse_number(const char *text, uint64_t max, uint64_t *ret_number)
{
	unsigned long long number;
	char *end;

	/* strtoull takes blanks and signs, which mean nothing here. */
	if (*text < '0' || *text > '9') {
		return -EINVAL;
	}
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno != 0 || *end != '\0' || number > max) {
		return -EINVAL;
	}
	*ret_number = number;
	return 0;
}

static int parse_fd(const char *text, int *ret_fd)
{
	uint64_t number;

	if (parse_number(text, INT32_MAX, &number) < 0) {
		return -EINVAL;
	}
	*ret_fd = (int)number;
	return 0;
}

static int take_label(struct image_options *options, const char *value)
{
	if (strlen(value) > IMAGE_LABEL_MAX) {
		return -EINVAL;
	}
	memcpy(options->label, value, strlen(value) + 1);
	return 0;
}

static int take_uuid(struct image_options *options, const char *value)
{
	return image_parse_uuid(value, options->uuid);
}

static int take_progress_fd(struct image_options *options, const char *value)
{
	return parse_fd(value, &options->progress_fd);
}

static const struct {
	const char *name;
	int (*take)(struct image_options *options, const char *value);
} option_table[] = {
	{"label", take_label},
	{"uuid", take_uuid},
	{"progress-fd", take_progress_fd},
};

static int parse_options(int argc, char **argv, struct image_options *options)
{
	struct option longs[ARRAY_SIZE(option_table) + 1] = {0};
	int index, c;

	for (size_t i = 0; i < ARRAY_SIZE(option_table); i++) {
		longs[i] = (struct option){.name = option_table[i].name, .has_arg = 1};
	}
	opterr = 0;
	while ((c = getopt_long(argc, argv, "", longs, &index)) != -1) {
		if (c != 0 || option_table[index].take(options, optarg) < 0) {
			return -EINVAL;
		}
	}
	return 0;
}

static int parse_arguments(int argc, char **argv, struct arguments *arguments, struct err *err)
{
	struct image_options *options = &arguments->options;
	int rc, at;

	rc = image_random_uuid(options->uuid);
	if (rc < 0) {
		return err_set(err, rc, "image-failed", "cannot get random bytes: %s",
			       strerror(-rc));
	}
	if (parse_options(argc, argv, options) < 0 || optind >= argc) {
		return usage(err);
	}
	at = optind + 1;
	if (strcmp(argv[optind], "tar") == 0 && argc - at == 3) {
		rc = parse_fd(argv[at++], &arguments->in_fd);
	} else if (strcmp(argv[optind], "empty") != 0 || argc - at != 2) {
		return usage(err);
	}
	if (rc < 0 || parse_fd(argv[at], &arguments->out_fd) < 0 ||
	    parse_number(argv[at + 1], IMAGE_SIZE_MAX, &options->size_bytes) < 0) {
		return usage(err);
	}
	return 0;
}

/* Streams alone. Returns 1 when the command line is about something else. */
static int run_stream(int argc, char **argv, struct err *err)
{
	bool packs = argc > 1 && strcmp(argv[1], "pack") == 0;
	int in_fd, out_fd;

	if (argc < 2 || (!packs && strcmp(argv[1], "unpack") != 0)) {
		return 1;
	}
	if (argc != 4 || parse_fd(argv[2], &in_fd) < 0 || parse_fd(argv[3], &out_fd) < 0) {
		return usage(err);
	}
	return packs ? archive_pack_fd(in_fd, out_fd, err) : archive_unpack_fd(in_fd, out_fd, err);
}

static int run(int argc, char **argv, struct err *err)
{
	struct arguments arguments = {
		.in_fd = -EBADF,
		.out_fd = -EBADF,
		.options = {.progress_fd = -EBADF},
	};
	struct image_result result = {0};
	int rc = run_stream(argc, argv, err);

	if (rc <= 0) {
		return rc;
	}
	rc = parse_arguments(argc, argv, &arguments, err);
	if (rc < 0) {
		return rc;
	}
	if (arguments.in_fd < 0) {
		return image_make_empty(arguments.out_fd, &arguments.options, err);
	}
	rc = image_make_from_tar(arguments.in_fd, arguments.out_fd, &arguments.options, &result,
				 err);
	if (rc == 0 && result.dropped > 0) {
		fprintf(stderr, "box-image: note: %llu devices or fifos were left out\n",
			(unsigned long long)result.dropped);
	}
	return rc;
}

int main(int argc, char **argv)
{
	const struct sigaction ignore = {.sa_handler = SIG_IGN};
	struct err err = {0};

	/* A limit on the file or a closed progress pipe comes back as an error, not as a death. */
	sigaction(SIGXFSZ, &ignore, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
	if (run(argc, argv, &err) < 0) {
		fprintf(stderr, "box-image: %s\n", err.text);
		if (err.mend[0]) {
			fprintf(stderr, "%s\n", err.mend);
		}
		return EXIT_NEGATIVE;
	}
	return EXIT_OK;
}
