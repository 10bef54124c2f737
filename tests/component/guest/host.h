/*
 * The host's end of a control port, as a test plays it, and a process behind it that runs a
 * session over a socket.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "wire/ctl.h"
#include "wire/frame.h"

#define HOST_STREAMS_MAX 1024
/* How long the session keeps still without a word; no test needs longer, under a sanitizer too. */
#define HOST_PAUSE_MAX_MS 3000

/* Written by the session's process, read by the test. */
struct guest_report {
	int setups;
	int freezes;
	int attaches;
	int detaches;
	int pauses;
	int resumes;
	int shutdowns;
	/* All steps of the clock together. */
	int64_t stepped_ns;
	/* Written by the test: what the hooks are to return. */
	int attach_error;
	int detach_error;
	int pause_error;
	int setup_error;
	int shutdown_error;
	bool root_too;
	/* What session_run returned. */
	int rc;
	struct err err;
};

/* What has come for one stream. */
struct result {
	uint8_t *data[3];
	size_t size[3];
	size_t capacity[3];
	bool eof[3];
	int started;
	int exits;
	struct wire_exit exit;
	uint32_t pid;
	uint32_t granted;
	/* DATA frames. */
	unsigned frames;
	char log[1025];
};

struct host {
	int fd;
	pid_t guest;
	struct guest_report *report;
	struct wire_decoder decoder;
	/* Grant credit for all output as it comes. */
	bool generous;
	struct result results[HOST_STREAMS_MAX];
	/* The last frame for the port itself, payload included. */
	struct wire_frame frame;
	uint8_t payload[WIRE_PAYLOAD_MAX];
};

struct command {
	const char *const *argv;
	const char *const *envp;
	const char *user;
	const char *directory;
	uint32_t flags;
	uint16_t rows, columns;
};

/* Starts a session's process; setup_error is what its setup hook returns. */
struct host *host_new(int setup_error);
/* Closes the port, waits for the process, frees everything. */
void host_free(struct host *host);
/* Closes the port and waits for the process; the report is then complete. */
void host_finish(struct host *host);
/* Waits until the process ends by itself. */
void host_await_end(struct host *host);

void host_send(struct host *host, uint8_t type, uint8_t channel, uint32_t stream, const void *data,
	       size_t size);
void host_send_u32(struct host *host, uint8_t type, uint8_t channel, uint32_t stream,
		   uint32_t value);
/* HELLO, SETUP and their answers. */
void host_greet(struct host *host);
void host_setup(struct host *host, uint32_t flags);
void host_start(struct host *host);

/* Sends an EXEC, in as many frames as it takes. */
void host_exec(struct host *host, uint32_t stream, const struct command *command);
/* /bin/sh -c script as root with the flags. */
void host_shell(struct host *host, uint32_t stream, const char *script, uint32_t flags);

/*
 * Takes one frame and books it. Returns its type, 0 after timeout_ms without one, -1 at the end.
 * Fails the test on a frame that is not legal.
 */
int host_next(struct host *host, int timeout_ms);
/* Takes frames until the stream has ended. Returns its result. */
struct result *host_await(struct host *host, uint32_t stream);
bool host_ended(const struct host *host, uint32_t stream);
/* Takes frames until one of the type comes for the port itself. */
void host_await_port(struct host *host, uint8_t type);
/* Takes frames until the stream's command or connection has begun. */
void host_await_started(struct host *host, uint32_t stream);

/* A session that runs, for cmocka, and its end. */
int host_set_up(void **state);
int host_tear_down(void **state);

void host_assert_exit(const struct result *result, uint32_t kind, uint32_t value);

/* Whether a process is gone, or is a zombie of somebody else, within two seconds. */
bool host_is_gone(uint32_t pid);
