/* The parts of `box run`, `box exec` and `box shell`. Only their own files include this. */
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
	/* So do COLORTERM and LANG, for a person. */
	bool login;
};

/* The environment of one command. */
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

/*
 * client_up that waits for another command which is just starting the machine or taking it down.
 * Returns 0, -EALREADY (err untouched) when it is up, or another negative errno with err filled.
 */
int cli_ensure_up(struct store *store, const char *name, const struct client_start_options *options,
		  struct ipc_ready *ret_ready, struct err *err);

struct cli_args;

/* A whole command, so that its steps can share it. */
struct run_job {
	const struct cli_args *args;
	bool json;
	bool terminal;
	/* A person's shell. */
	bool login;
	enum client_data data;
	struct store store;
	struct spec *spec;
	struct env_list env;
	uint32_t timeout_seconds;
	const char *user;
	const char *directory;
	struct run_report report;
};

/* Reads options and Boxfile. Everything that can be wrong with the words is told here, before
 * anything is started. 0 or a negative errno with err filled. */
int run_prepare(struct run_job *job, struct err *err);
/* Says on standard error why the command called name did not begin or was ended. */
void run_explain(const struct run_job *job, const char *name);
void run_job_init(struct run_job *job, const struct cli_args *args);
void run_job_free(struct run_job *job);
/* A client's notice, for standard error. */
void run_notice(void *data, const char *text);

/* Reads whole seconds; command is whose option it is. Returns 0 or -EINVAL with err filled. */
int run_parse_timeout(const char *command, const char *text, uint32_t *ret_seconds,
		      struct err *err);
