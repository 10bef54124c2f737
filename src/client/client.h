/*
 * What a command does to a machine: start it, run commands in it, end it.
 *
 * Every face of box (command line, and later serve and mcp) goes through this. A machine belongs
 * to the process that started it: its keeper ends when the connection ends.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ipc/ipc.h"
#include "spec/spec.h"
#include "store/store.h"

enum client_data {
	/* Hold the sandbox's /data; wait for it when another machine has it. */
	CLIENT_DATA_OWN,
	/* No /data. */
	CLIENT_DATA_NONE,
	/* A copy of /data that is thrown away. */
	CLIENT_DATA_CLONE,
};

struct client_start_options {
	enum ipc_start_mode mode;
	enum client_data data;
	/* A build's staging directory below the sandbox, or "". */
	const char *stage;
	bool force_boot;
	/* Called for things a person may want to know (waiting for /data, a slow boot, missing
	 * confinement). May be NULL. */
	void (*notice)(void *data, const char *text);
	void *notice_data;
};

struct client_machine;

/*
 * Starts a machine of sandbox name and waits until it answers. *ret_machine is owned by the
 * caller and given back with client_machine_free. Returns 0 or a negative errno with err filled.
 * With -EINTR a signal (SIGINT, SIGTERM, SIGHUP) ended the wait and everything is gone again.
 * Signals that this process ignores stay ignored.
 */
int client_start(struct store *store, const char *name, const struct client_start_options *options,
		 struct client_machine **ret_machine, struct err *err);

/* How it started. Valid as long as the machine. */
const struct ipc_ready *client_ready(const struct client_machine *machine);

struct client_command {
	const char *const *argv;
	size_t argc;
	/* "KEY=VALUE". */
	const char *const *env;
	size_t env_count;
	const char *user;
	/* Absolute, or "" for the user's home. */
	const char *directory;
	/* A terminal inside. stdin_fd is then put into raw mode when it is a terminal itself. */
	bool terminal;
	/* Copied to the command until its end; -EBADF: the command has no stdin. */
	int stdin_fd;
	/* Where output goes. -EBADF drops it. */
	int stdout_fd;
	int stderr_fd;
	/* 0: no limit. */
	uint32_t timeout_seconds;
	/* Forward SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGWINCH of this process to the command;
	 * a second SIGINT ends the machine. */
	bool forward_signals;
};

struct client_result {
	struct wire_exit exit;
	bool timed_out;
	/* Why the command could not even be tried (no such user, no such directory); else empty. */
	char reason[256];
	/* The machine was ended by a second SIGINT or SIGHUP; exit is then a signal. */
	bool interrupted;
	/* Why stdout could not be written, as a negative errno; 0 when it was, and also when its
	 * reader has gone. */
	int output_error;
	uint64_t stdout_bytes;
	uint64_t stderr_bytes;
	uint64_t started_ns;
	uint64_t ended_ns;
};

/*
 * Runs one command and copies its streams until it and they have ended. Returns 0 with *ret_result,
 * or a negative errno with err filled when the machine went away or could not run it.
 */
int client_run(struct client_machine *machine, const struct client_command *command,
	       struct client_result *ret_result, struct err *err);

/* The exit code of box for a result, as surface.md lists them. */
int client_exit_code(const struct client_result *result);

/* Builds only: makes the guest ready, writes snapshot files into the stage, ends the machine. */
int client_snapshot(struct client_machine *machine, struct err *err);

/* Syncs and unmounts inside, then ends the machine. Without it /data has only what was synced. */
int client_stop(struct client_machine *machine, struct err *err);

/* Ends the machine at once if it still runs; leaves no process behind. NULL is allowed. */
void client_machine_free(struct client_machine *machine);
static inline void client_machine_freep(struct client_machine **machine)
{
	client_machine_free(*machine);
}

struct client_build_options {
	/* Make everything anew. */
	bool no_cache;
	/* Called with each step as it begins ("image: unpacking", "machine: first boot"), and with
	 * detail lines of the running step. */
	void (*step)(void *data, const char *text);
	void (*detail)(void *data, const char *text);
	void *data;
};

struct client_build_result {
	/* Nothing had changed; nothing was done. */
	bool up_to_date;
	uint64_t took_ns;
	/* Of the first boot: the proof that the machine has a kernel of its own. */
	char guest_kernel[256];
	char host_kernel[256];
	uint64_t image_bytes;
	uint64_t snapshot_bytes;
};

/* Builds image, proof and snapshot of a sandbox. What was there stays usable until the new one is
 * complete. Returns 0 or a negative errno with err filled (the log's path is in the mend). */
int client_build(struct store *store, const char *name, const struct client_build_options *options,
		 struct client_build_result *ret_result, struct err *err);

/* Where box's other programs are: see base/program.h (program_path, program_share_path). */

/* Where the guest's kernel and fingerprints are: see engine/kernel.h and engine/fingerprint.h. */
