/* The parts of `box run`. Only its own files include this. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "client/client.h"

/* What --json keeps of one stream. More is for a file or a pipe, not for an object. */
#define CAPTURE_MAX ((size_t)1 << 20)

/* One output stream of a command, read by a thread while client_run waits. */
struct capture {
	/* Give this to the command; close it when the command has ended. */
	int write_fd;
	int read_fd;
	uint64_t total;
	size_t size;
	char *bytes;
	bool running;
	pthread_t thread;
};

/* Starts the reader. Returns 0 or a negative errno with err filled. */
int capture_start(struct capture *capture, struct err *err);
/* Closes the stream and waits for its reader. Safe on one that never started. */
void capture_end(struct capture *capture);
void capture_free(struct capture *capture);

struct json;

/* Sets KEY, KEY_encoding ("utf-8" or "base64"), KEY_bytes and KEY_truncated. 0 or -ENOMEM. */
int capture_to_json(const struct capture *capture, const char *key, struct json *object);

/* Everything that --json and BOX_TRACE tell about a run. */
struct run_report {
	/* The machine has answered. */
	bool started;
	struct ipc_ready ready;
	/* The command has ended. */
	bool finished;
	struct client_result result;
	int exit_code;
	/* CLOCK_MONOTONIC in ns when everything was gone again. */
	uint64_t gone_ns;
	struct capture out;
	struct capture errors;
	/* Filled when box itself failed. */
	struct err err;
};

/* Prints the whole report as one object. Returns 0 or a negative errno with err filled. */
int run_print_json(const struct run_report *report, struct err *err);
/* Says on standard error how long each part took. */
void run_print_trace(const struct run_report *report);

struct env_input {
	/* "KEY=VALUE", as the Boxfile has them. */
	char *const *base;
	size_t base_count;
	/* "KEY=VALUE", or "KEY" alone for the caller's own value (nothing when it has none). */
	const char *const *options;
	size_t option_count;
	/* TERM comes from the caller when nobody sets it. */
	bool terminal;
};

struct env_list {
	const char **items;
	size_t count;
	/* Strings that were made here. */
	char **made;
	size_t made_count;
};

/*
 * Puts an environment together; later assignments stand in place of earlier ones. Give *ret_list to
 * env_list_free; its items point into the input as well. Returns 0, or a negative errno with err
 * filled.
 */
int env_list_make(const struct env_input *input, struct env_list *ret_list, struct err *err);
void env_list_free(struct env_list *list);

/* Writes base64 (RFC 4648) of size bytes; owned by the caller. NULL without memory. */
char *run_base64(const void *bytes, size_t size);

/* Reads whole seconds. Returns 0 or -EINVAL with err filled. */
int run_parse_timeout(const char *text, uint32_t *ret_seconds, struct err *err);
