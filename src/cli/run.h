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

int run_print_json(const struct run_report *report, struct err *err);
void run_print_trace(const struct run_report *report);

/*
 * Puts an environment together: base ("KEY=VALUE", count of them), then the assignments of the
 * options, later ones in place of earlier ones. "KEY" alone takes the caller's value, or nothing
 * when it has none. With a terminal TERM comes from the caller when nobody set it.
 * Give *ret_list to env_list_free; its items point into base and the options as well. Returns 0, or
 * a negative errno with err filled.
 */
struct env_list {
	const char **items;
	size_t count;
	/* Strings that were made here. */
	char **made;
	size_t made_count;
};

int env_list_make(char *const *base, size_t base_count, const char *const *options,
		  size_t option_count, bool terminal, struct env_list *ret_list, struct err *err);
void env_list_free(struct env_list *list);

/* Writes base64 (RFC 4648) of size bytes; owned by the caller. NULL without memory. */
char *run_base64(const void *bytes, size_t size);

/* Reads whole seconds. Returns 0 or -EINVAL with err filled. */
int run_parse_timeout(const char *text, uint32_t *ret_seconds, struct err *err);
