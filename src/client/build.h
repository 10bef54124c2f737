/*
 * The parts of client_build. Only the build's own files include this.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/client.h"
#include "client/task.h"
#include "engine/kernel.h"
#include "spec/spec.h"
#include "store/store.h"

/* The ID that box-image runs under when box runs as root: nobody's, as Debian numbers it. */
#define BUILD_UNPRIVILEGED_ID 65534

struct build {
	struct store *store;
	const char *name;
	const struct client_build_options *options;
	struct client_build_result *result;
	struct spec *spec;
	struct kernel_paths paths;
	/* sandboxes/NAME, and its lock. */
	int sandbox_fd;
	int lock_fd;
	/* What the image is to be made from, as text. */
	char *image_key;
	/* The image that is there was made from the very same. */
	bool image_fresh;
	/* The staging directory below sandbox_fd; empty before it is made. */
	char stage[32];
	int stage_fd;
	int log_fd;
	/* SIGINT, SIGTERM and SIGHUP, blocked while a build runs. */
	int signal_fd;
	uint64_t began_ns;
};

/* Begins a step: tells the caller and the log. */
void build_step(struct build *build, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One line of a running step's output, to the caller and the log. */
void build_detail(struct build *build, const char *line);

/* The keys: what an image (a snapshot) is made from right now, as text owned by the caller. Return
 * 0 or a negative errno with err filled. */
int build_image_key(const struct spec *spec, char **ret_text, struct err *err);

/* True when the file path below dir_fd holds exactly this text. */
bool build_key_is(int dir_fd, const char *path, const char *text);

/* Unpacks the base into stage/image/image.ext4. */
int build_image(struct build *build, struct err *err);

/*
 * Describes the jail of box-image, whatever it is called for: program, IDs, system calls. The
 * caller sets limits and adds descriptors. 0 or a negative errno with err filled.
 */
int build_describe_image(struct jail *jail, struct err *err);

/* One call of box-image. */
struct image_job {
	/* Its first argument: "tar" or "empty". */
	const char *verb;
	/* The archive, or -EBADF. */
	int input_fd;
	/* The empty file that becomes the disk. */
	int output_fd;
	uint64_t size_bytes;
	/* Writes the archive, or NULL; ended with it. */
	struct task *producer;
};

/* Runs box-image in its jail, beside its producer. Returns 0 or a negative errno with err filled.
 */
int build_run_image(struct build *build, const struct image_job *job, struct err *err);

/* The Boxfile's lines, files and users, run inside a machine that writes to the staged image. */
int build_customize(struct build *build, struct err *err);

/* Makes data/ when there is none; never touches one that is there. */
int build_data(struct build *build, struct err *err);

/* Boots the staged image, proves the kernel, warms up, and leaves a snapshot in the stage. */
int build_snapshot(struct build *build, struct err *err);

/*
 * Runs one command in a machine of the build with its output in the log. what names it in an error
 * ("run line 2"). input is its standard input or NULL. Fails unless it exits with 0.
 */
int build_command(struct build *build, struct client_machine *machine,
		  const struct client_command *command, const char *what, struct err *err);
