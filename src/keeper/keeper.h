/* What the parts of box-keeper share: one machine. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/loop.h"
#include "engine/engine.h"
#include "ipc/ipc.h"
#include "keeper/control.h"
#include "keeper/files.h"
#include "keeper/stream.h"

/*
 * When root starts box the monitor gets this ID: the first of the range that systemd keeps for
 * containers (524288 to 1879048191), which no account of a host has.
 */
#define KEEPER_ROOT_DROPS_TO 524288
/* The end of the kernel's log, where a panic is. */
#define KEEPER_CONSOLE_SIZE 16384

enum keeper_phase {
	/* HELLO and SETUP are on their way; HELLO or READY is awaited. */
	KEEPER_STARTING,
	KEEPER_RUNNING,
	KEEPER_FREEZING,
	KEEPER_GOING_DOWN,
	KEEPER_ENDING,
};

struct keeper {
	enum keeper_phase phase;
	bool hello;
	struct loop *loop;
	int client_fd;
	struct ipc_start start;
	struct ipc_ready ready;
	struct files files;
	struct engine *engine;
	struct control *control;
	struct stream *streams[WIRE_STREAMS_MAX];
	uint8_t nonce[WIRE_NONCE_SIZE];
	int live_fd;
	int snapshot_fd;
	uint64_t timer;
	/* For those who want a copy of /data while this machine holds it. */
	int run_fd;
	int listen_fd;
	int asker_fd;
	/* A pause was asked for and has not come yet; and how long that may take. */
	bool pausing;
	uint64_t pause_timer;
	int console_fd;
	size_t console_size;
	char console[KEEPER_CONSOLE_SIZE];
};

/* keeper.c */

/*
 * Lives the life of one machine for the client at the other end of client_fd (taken over), from
 * its IPC_START to the end. Returns the exit code of the keeper.
 */
int keeper_run(int client_fd);

/* Ends the keeper with a reason for the client; the first one counts. */
void keeper_fail(struct keeper *keeper, const struct err *err);
void keeper_fail_text(struct keeper *keeper, const char *code, const char *text, const char *mend);
/* Tells the client what it must learn. When it cannot be told, because it is gone or has not read
 * for too long, the keeper ends: the closed socket tells it then. */
void keeper_tell(struct keeper *keeper, const struct ipc_message *message);
/* Ask the guest to get ready for a snapshot, or to write everything and go down. */
int keeper_freeze(struct keeper *keeper);
int keeper_shutdown(struct keeper *keeper);
/* The guest has answered: take the snapshot, or end the machine. */
void keeper_frozen(struct keeper *keeper);
void keeper_gone_down(struct keeper *keeper);
/* Reads what the kernel has said; returns what recv(2) did. */
ssize_t keeper_read_console(struct keeper *keeper);

/* session.c: the guest's frames and the client's messages */
/* Called by the control port. */
void keeper_frame(void *data, const struct wire_frame *frame);
void keeper_port_broken(void *data);
void keeper_port_writable(void *data);
/* Takes over those descriptors that it replaces by -EBADF in fds. */
void keeper_message(struct keeper *keeper, const struct ipc_message *message, int *fds);
/* Ends every stream without a word to anyone. */
void keeper_close_streams(struct keeper *keeper);

/* data.c: copies of /data for others */
/* Listens in run/NAME while this machine holds /data. 0 or a negative errno with err filled. */
int keeper_listen(struct keeper *keeper, struct err *err);
/* Takes the socket and its directory away. */
void keeper_stop_listening(struct keeper *keeper);
