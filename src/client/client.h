/*
 * What a command does to a machine: start it, connect to it, run commands in it, end it.
 *
 * Every face of box (command line, and later serve and mcp) goes through this. A machine of
 * client_start belongs to the process that started it: its keeper ends when the connection ends.
 * A machine of client_up stays until client_down; client_connect leads to it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ipc/ipc.h"
#include "spec/spec.h"
#include "store/chain.h"
#include "store/store.h"

enum client_data {
	/* Hold the sandbox's /data; wait for it when another machine has it. */
	CLIENT_DATA_OWN,
	/* No /data. */
	CLIENT_DATA_NONE,
	/* A copy of /data that is thrown away. */
	CLIENT_DATA_CLONE,
	/* The disk of data_fd, which is to become /data (client/data.h). */
	CLIENT_DATA_GIVEN,
};

struct client_start_options {
	enum ipc_start_mode mode;
	enum client_data data;
	/* Of CLIENT_DATA_GIVEN: the disk and what is below it, borrowed. NULL: the base alone. */
	int data_fd;
	const struct store_layers *data_layers;
	/* A state of /data that is to be the machine's disk "base", borrowed, or NULL: the disk is
	 * zeros. The guest may write to it, to replay a journal; that is thrown away. */
	const struct store_layers *base;
	/* What a keeper sent with IPC_FORKED (IPC_COPY_FDS of them), borrowed: the machine begins
	 * as a copy of that one. Otherwise NULL. */
	const int *saved_fds;
	/* The machine is for box's own work: no advice how a person's could do without /data. */
	bool helper;
	/* A build's staging directory below the sandbox, or "". */
	const char *stage;
	bool force_boot;
	/* The machine is for a new proof of its kernel (engine/proof.h), and needs none yet. */
	bool for_proof;
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

/*
 * Starts a machine that stays (options->mode is IPC_START_RUN). *ret_ready says how it started.
 * -EALREADY with err filled (code "already-up") when the sandbox has one.
 */
int client_up(struct store *store, const char *name, const struct client_start_options *options,
	      struct ipc_ready *ret_ready, struct err *err);

/*
 * Connects to the machine of client_up. *ret_machine is owned by the caller and given back with
 * client_machine_free, which leaves the machine running. What a killed keeper has left is cleaned
 * up. -ENOENT with code "not-up" when there is none, -EPROTO with code "other-version" when
 * another version of box has started it.
 */
int client_connect(struct store *store, const char *name, struct client_machine **ret_machine,
		   struct err *err);

/*
 * Ends the machine of client_up: commands get SIGTERM, then SIGKILL, /data is written and
 * unmounted. Works also on a machine of another version. Returns 1 when there was one, 0 when
 * there was none, or a negative errno with err filled.
 */
int client_down(struct store *store, const char *name, struct err *err);

/* Ends the machines that the pool of a sandbox keeps ready. Returns how many there were, or a
 * negative errno with err filled. */
int client_pool_drain(struct store *store, const char *name, struct err *err);

/* How many machines the pool of a sandbox keeps ready, and what memory they use alone. */
void client_pool_count(struct store *store, const char *name, unsigned *ret_count,
		       uint64_t *ret_memory_bytes);

/* What the machine is and what runs in it, as text of a JSON object owned by the caller. */
int client_list(struct client_machine *machine, char **ret_text, size_t *ret_size, struct err *err);

/* The security report of the machine, in the same form: docs/security-report.schema.json. */
int client_report(struct client_machine *machine, char **ret_text, size_t *ret_size,
		  struct err *err);

/* Sends a signal to the command called id. -ESRCH with err filled when none is called so. */
int client_kill(struct client_machine *machine, const char *id, int number, struct err *err);

/* Adds a rule to what the machine may reach, until it ends; it is in force when this returns. 0 or
 * a negative errno with err filled. */
int client_net_rule(struct client_machine *machine, enum ipc_rule_action action, const char *rule,
		    struct err *err);

/*
 * Carries every connection that listen_fd (ipc/tcp.h, borrowed) takes to a port of the guest's
 * loopback, until a signal comes: then 0. Returns a negative errno with err filled when the machine
 * goes away.
 */
int client_forward(struct client_machine *machine, int listen_fd, uint16_t port, struct err *err);

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
	/* Start it and do not wait: no descriptor is used, client_run returns when it runs (or
	 * could not be started) and result->id is set. */
	bool detached;
	/* When this process is gone the command stays, detached; otherwise it is killed. */
	bool keep_on_loss;
	/* The machine, which this process has started, goes down when the command has ended, as
	 * client_stop has it. That waits until it is down. */
	bool is_last;
	/* With a terminal: ctrl-\ ctrl-q detaches, see result->detached. */
	bool detach_key;
	/* Not a new command: attach to the detached one of this name. argv is not used; stdin_fd is
	 * a terminal. */
	const char *attach_id;
	/* stdin_fd and stdout_fd are pipes of the caller's own: the keeper gets them itself, and no
	 * byte goes through this process. The caller closes its copies after the end. */
	bool direct;
	/* Run box-guest itself (WIRE_EXEC_SELF); argv says as what. */
	bool self;
	/* Forward SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGWINCH of this process to the command;
	 * a second SIGINT ends the machine. */
	bool forward_signals;
};

struct client_result {
	/* What people call the command; empty when it never ran. */
	char id[IPC_ID_SIZE];
	/* It runs on without us: started so, or left by the detach key. exit is then not set. */
	bool detached;
	struct wire_exit exit;
	bool timed_out;
	/* Why the command could not even be tried (no such user, no such directory); else empty. */
	char reason[256];
	/* The first limit of its network that the machine has come to meanwhile; else empty. */
	char limit[256];
	/* The machine was ended by a second SIGINT or SIGHUP; exit is then a signal. */
	bool interrupted;
	/* The last signal of this process that was forwarded to the command, or 0. */
	int forwarded;
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
