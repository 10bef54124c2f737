/*
 * One command in several forks of a sandbox, side by side. See try.c for how.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/client.h"
#include "client/fork.h"

/* What a command writes is kept in the fork's directory, up to this many bytes. */
#define CLIENT_TRY_OUTPUT "output"
#define CLIENT_TRY_OUTPUT_MAX ((uint64_t)256 << 20)

struct client_try_options {
	unsigned count;
	/* The command of each; its descriptors are not used. */
	struct client_command command;
	/* Called for what a person may want to know, and when a fork has ended. May be NULL. */
	void (*notice)(void *data, const char *text);
	void *data;
};

/* What became of one fork. */
struct client_try_result {
	char name[STORE_LABEL_MAX + 1];
	/* The command has ended: its exit code as `box run` has it, and how long it took. */
	bool finished;
	int exit_code;
	bool timed_out;
	uint64_t took_ns;
	/* Changes of /data. */
	uint64_t changes;
	/* 0, or why box failed, with err filled. */
	int rc;
	struct err err;
};

/*
 * Makes the forks NAME-try-1 to NAME-try-COUNT (1 to CLIENT_FORKS_MAX) from one state, and runs the
 * command in each, as many at once as there are processors and memory for. ret_results has room for
 * count of them. Returns 0 when all were tried, or a negative errno with err filled and no fork
 * left; -EINTR after a signal.
 */
int client_try(struct store *store, const char *name, const struct client_try_options *options,
	       struct client_try_result *ret_results, struct err *err);

/* The quickest of those that ended with 0, or -1. */
int client_try_best(const struct client_try_result *results, unsigned count);
