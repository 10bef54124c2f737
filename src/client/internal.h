/* What the files share that have to do with a machine. */
#pragma once

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "client/client.h"
#include "ipc/ipc.h"
#include "jail/jail.h"

struct client_machine {
	struct store *store;
	char name[SPEC_NAME_MAX + 1];
	struct ipc_ready ready;
	pid_t keeper_pid;
	int socket;
	int signal_fd;
	sigset_t old_mask;
	/* A reader that is gone is told to the command inside, it does not end this process. */
	struct sigaction old_pipe_action;
	bool signals_taken;
	/* The signal that ended a wait, or 0. */
	int stop_signal;
	/* Of a keeper that is no child of ours and ends with our connection, or -EBADF. Waited for
	 * unless it has said that the machine is gone: what it does then holds nobody up. */
	int keeper_pidfd;
	/* A keeper of ours does nothing any more, not even end by itself. */
	bool keeper_is_stopped;
	/* Its last command has ended, and it goes down without being told. */
	bool goes_down;
	/* CLOCK_MONOTONIC when an answer is waited for no longer; 0: for as long as it takes. */
	uint64_t deadline_ns;
	int sandbox_fd;
	int data_fd;
	/* What is below data_fd. */
	struct store_layers data_layers;
	int live_fd;
	int up_fd;
	int monitor_pidfd;
	uint32_t last_stream;
	/* struct ipc_start has it. */
	uint64_t proxy_mark;
};

/* A machine without anything yet. Owned by the caller. NULL with err filled without memory. */
struct client_machine *client_machine_new(struct store *store, const char *name, struct err *err);

/* Blocks the signals that client_run forwards and makes them readable. 0 or a negative errno. */
int client_take_signals(struct client_machine *machine);

/* The error for a signal that asked to stop: its code word tells which. Returns -EINTR. */
int client_interrupted(const struct client_machine *machine, struct err *err);

/* Waits for a time, or until a signal that means "stop" comes: then true. */
bool client_pause_ms(struct client_machine *machine, int timeout_ms);

/*
 * As poll(2) with limit_ms (-1: none), but no longer than a keeper may be stopped that is at the
 * other end of socket. Returns how many have something, 0 after limit_ms, -ETIMEDOUT for such a
 * keeper, or another negative errno, with err filled.
 */
int client_poll(struct client_machine *machine, int socket, struct pollfd *waits, nfds_t count,
		int limit_ms, struct err *err);

/* Waits until the socket can be read, or for machine->deadline_ns. 0, or -EINTR or -ETIMEDOUT with
 * err filled. */
int client_await_answer(struct client_machine *machine, int socket, struct err *err);

/* A keeper greets as soon as it looks; one that was stopped does not. */
#define CLIENT_GREETING_LIMIT_MS 10000

/* The text of an IPC_LISTING's memory file, owned by the caller. 0 or a negative errno. */
int client_read_listing(int fd, char **ret_text, size_t *ret_size);

/* The process that listens at the socket's other end, or 0. */
pid_t client_peer_of(int socket);

/* Takes the greeting of a keeper that was connected to. 0, 1 when its machine is still starting,
 * -EPROTO when it is of another build, -ETIMEDOUT, or another negative errno. */
int client_greet(int socket, int limit_ms);

/* The listing of the keeper behind a socket that was just connected, owned by the caller; NULL when
 * it does not answer at once. */
struct json *client_ask_soon(int socket);

/* Removes run/NAME/data when a killed keeper has left it, once its dying monitor lets go of /data.
 */
void client_sweep_socket(const struct client_machine *machine);

/* A sandbox whose /data is ours: nobody removes it, and no machine has its /data. */
struct client_held {
	int sandbox_fd;
	int live_fd;
	int data_fd;
};
#define CLIENT_HELD_NONE                                                                           \
	{                                                                                          \
		.sandbox_fd = -EBADF, .live_fd = -EBADF, .data_fd = -EBADF                         \
	}

/*
 * Takes /data of a sandbox that is to be changed at rest, at once or not at all. Returns 0 or a
 * negative errno with err filled; what was taken until then is in held, which the caller gives back
 * in either case with client_let_go.
 */
int client_hold(struct store *store, const char *name, struct client_held *held, struct err *err);
void client_let_go(struct client_held *held);

/* Connects to the keeper that holds /data. A socket, or -EAGAIN when there is none. */
int client_connect_holder(struct store *store, const char *name);

/* Fills an IPC_START or IPC_CLAIM for what machine holds; returns how many descriptors are in fds
 * (IPC_FDS_MAX entries), which stay the machine's and the options'. */
size_t client_fill_start(const struct client_machine *machine,
			 const struct client_start_options *options, struct ipc_message *message,
			 int *fds);

/*
 * Takes a machine that is kept ready, when there is one that fits. Returns 1 with the machine
 * ready, 0 when there is none, or -EINTR with err filled. When it returns 0 and machine->data_fd is
 * not there any more, a keeper that failed has had /data: it must be taken anew.
 */
int client_pool_claim(struct client_machine *machine, const struct client_start_options *options,
		      struct err *err);

/* The next signal that has come, or 0. */
int client_next_signal(struct client_machine *machine);

/* Waits for a message of type wanted; others but IPC_FAILED are passed over. */
int client_await(struct client_machine *machine, uint32_t wanted, struct ipc_message *ret_message,
		 struct err *err);

/* The errors for a keeper that is gone, and for an IPC_FAILED. Return a negative errno. */
int client_lost(struct client_machine *machine, struct err *err);
int client_failed(const struct ipc_message *message, struct err *err);
