/* What machine.c and command.c share. */
#pragma once

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
	int sandbox_fd;
	int data_fd;
	int live_fd;
	int monitor_pidfd;
	uint32_t last_stream;
};

/* The next signal that has come, or 0. */
int client_next_signal(struct client_machine *machine);

/* Waits for a message of type wanted; others but IPC_FAILED are passed over. */
int client_await(struct client_machine *machine, uint32_t wanted, struct ipc_message *ret_message,
		 struct err *err);

/* The errors for a keeper that is gone, and for an IPC_FAILED. Return a negative errno. */
int client_lost(struct client_machine *machine, struct err *err);
int client_failed(const struct ipc_message *message, struct err *err);
