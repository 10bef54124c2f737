/*
 * Messages between box and the keeper of a machine.
 *
 * A keeper has one client that started it, over a socket pair. The keeper of a machine that stays
 * also listens in run/NAME; whoever connects there gets IPC_GREETING and may send any of the
 * messages that are not marked "starter". Each client numbers its own commands.
 *
 * One message is one struct ipc_message in one packet of a SOCK_SEQPACKET socket, with up to
 * IPC_FDS_MAX descriptors. Both sides are ours and, as the greeting says, of one build, so the
 * struct is sent as it is; its size and type are checked all the same. What does not fit
 * (arguments, environment) goes in a sealed memory file.
 *
 * A command's streams are three pipes that the client makes; the keeper reads or writes the other
 * ends. A full pipe is the only backpressure there is, and its end is the end of the stream.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/ctl.h"

/* Files below one disk: those of a chain (store/chain.h). */
#define IPC_LAYERS_MAX 7
/* What makes up the copy of a machine. */
#define IPC_COPY_FDS 3
/* An IPC_START with all that it may have: data.qcow2, what is below it, another state to look at,
 * the copy of a machine, two locks. */
#define IPC_FDS_MAX (1 + 2 * IPC_LAYERS_MAX + IPC_COPY_FDS + 2)
#define IPC_TEXT_MAX 768
/* A rule of src/policy, which is shorter. */
#define IPC_RULE_SIZE 320

/* The code of an IPC_REFUSED that answers IPC_COPY_DATA: the machine comes or goes, ask again. */
#define IPC_CODE_BUSY "data-busy"
/* The code of an IPC_REFUSED for what needs a machine that has come up. */
#define IPC_CODE_STARTING "starting"

enum ipc_type {
	/* Starter, first and once: struct ipc_start. fds, as far as start says so: locked
	 * data.qcow2, what is below it from the bottom up, the layers of the disk "base" in the
	 * same order, what came with IPC_FORKED, the lock that says "live", the lock that says
	 * "up". Exactly these. */
	IPC_START = 1,
	/* Client to keeper: run a command. fds: sealed memory file with a joined wire EXEC
	 * payload, read end of stdin (exec.has_stdin), write ends of stdout, stderr
	 * (exec.has_output). Without output what it writes is only kept. */
	IPC_EXEC = 2,
	/* Client to keeper: signal.number to the process group of stream. */
	IPC_SIGNAL = 3,
	/* Client to keeper: window.rows, window.columns. */
	IPC_WINDOW_SIZE = 4,
	/* Client to keeper: kill the command. */
	IPC_CLOSE = 5,
	/* Client to keeper (builds only): make the guest ready, write the snapshot, then go down.
	 */
	IPC_SNAPSHOT = 6,
	/* Client to keeper: sync, unmount, end the machine; answered by IPC_DOWN. */
	IPC_SHUTDOWN = 7,
	/* Anyone to the keeper that holds /data: freeze it for an instant and copy it.
	 * Answered by IPC_DATA_COPY with one descriptor, or IPC_REFUSED. */
	IPC_COPY_DATA = 8,
	/* Client to keeper: leave the command of stream running without me. Nothing more comes
	 * for the stream; its output is only kept until somebody attaches. */
	IPC_DETACH = 9,
	/* Client to keeper: take over the detached command called id (command.id). fds: read end of
	 * stdin, write end of stdout, write end of stderr. What was kept of its output comes
	 * first. Answered by IPC_STARTED or IPC_REFUSED. */
	IPC_ATTACH = 10,
	/* Client to keeper: command.number as a signal to the process group of the command called
	 * command.id. SIGKILL also kills what has left the group. Answered by IPC_DONE or
	 * IPC_REFUSED. */
	IPC_KILL = 11,
	/* Client to keeper: what the machine is and what runs in it. Answered by IPC_LISTING with
	 * one sealed memory file that holds a JSON object (docs/architecture.md). */
	IPC_LIST = 12,
	/* Client to keeper: carry the connected TCP socket fd 0 to port tcp.port of the guest's
	 * loopback. Answered by IPC_STARTED, then IPC_EXITED; a connection that cannot be made
	 * is an IPC_EXITED alone. */
	IPC_TCP = 13,
	/* Client to the keeper of a machine that was kept ready: it is mine now. As IPC_START, with
	 * stay IPC_STAY_NO; from then on the sender is the starter. Answered by IPC_READY, or by
	 * IPC_REFUSED when the machine is not what a start would make now; it then ends. */
	IPC_CLAIM = 14,
	/* Client to keeper: what its processes are confined to. Answered as IPC_LIST. */
	IPC_REPORT = 15,
	/*
	 * Anyone who holds the chain lock (store/chain.h) to the keeper that holds /data: freeze
	 * it. fd: that lock, so that it is held for as long as the keeper needs it. Answered by
	 * IPC_DONE, or by IPC_REFUSED: then all is as it was. IPC_CODE_BUSY: ask again.
	 */
	IPC_FREEZE_DATA = 16,
	/* The same, and copy the machine as it is at that instant. Answered by IPC_FORKED. */
	IPC_FORK = 17,
	/* Client to the keeper of a machine with a network: rule.text is a rule more, in force
	 * until the machine ends. Answered by IPC_DONE once it is, or by IPC_REFUSED. */
	IPC_NET_RULE = 18,

	/* Keeper to client: the machine answers; struct ipc_ready. */
	IPC_READY = 32,
	/* Keeper to client: the command has a process; command.id is what people call it. */
	IPC_STARTED = 33,
	/* Keeper to client: the command has ended and all its output has been written; exited. */
	IPC_EXITED = 34,
	/* Keeper to client: something for a person, not an error; text. */
	IPC_NOTICE = 35,
	/* Keeper to client: the machine is gone or cannot be had; failed. Nothing follows. */
	IPC_FAILED = 36,
	/* Keeper to client: the answer to IPC_SHUTDOWN or IPC_SNAPSHOT. The keeper then exits. */
	IPC_DOWN = 37,
	/* Keeper to whoever asked: fd 0 is the copy. */
	IPC_DATA_COPY = 38,
	/* Keeper to whoever has connected, first and once: text is IPC_BUILD. stream is 1 while the
	 * machine is still starting, otherwise 0. */
	IPC_GREETING = 39,
	/* Keeper to client: one request (of stream, or of the asker) cannot be done; failed. All
	 * else goes on. */
	IPC_REFUSED = 40,
	IPC_DONE = 41,
	IPC_LISTING = 42,
	/* Keeper to client: the copy. fds: device state and memory, the root's overlay, a sealed
	 * memory file that tells its keeper the rest. Any number of machines may be started from
	 * it, each with its own copy of the overlay. */
	IPC_FORKED = 43,
};

/* What both sides of a connection must be. */
#define IPC_BUILD "box " BOX_VERSION
/* What people call a command: IPC_ID_LENGTH lower case letters and digits, and a NUL. */
#define IPC_ID_LENGTH 6
#define IPC_ID_SIZE 8

enum ipc_start_mode {
	/* Restore the snapshot if it is valid, otherwise boot the image. Root changes are dropped.
	 */
	IPC_START_RUN = 1,
	/* Boot the image and keep what is written to the root: for `run` lines of a build. */
	IPC_START_BUILD = 2,
	/* Boot the image to take a snapshot: for the end of a build. */
	IPC_START_SNAPSHOT = 3,
};

enum ipc_stay {
	/* The machine ends when the starter's socket closes. */
	IPC_STAY_NO = 0,
	/* It stays until somebody sends IPC_SHUTDOWN, and listens as run/NAME/sock. */
	IPC_STAY_UP = 1,
	/* It is kept ready in a slot of the pool, and listens as run/NAME/warm-SLOT. */
	IPC_STAY_WARM = 2,
};

/* What is to become of the /data that a machine has. */
enum ipc_data_fate {
	/* There is none, or it is a copy: nothing of it is written at the end. */
	IPC_DATA_DROPPED = 0,
	/* It is the sandbox's own: kept, and others may ask for a copy. */
	IPC_DATA_OWN = 1,
	/* It is a disk that is to become /data: kept, and nobody gets a copy. */
	IPC_DATA_NEW = 2,
};

/* As enum policy_action (policy/network.h) has them. */
enum ipc_rule_action {
	IPC_RULE_ALLOW = 0,
	IPC_RULE_DENY = 1,
	IPC_RULE_REACH = 2,
};

enum ipc_on_loss {
	/* A command whose client is gone is killed. */
	IPC_LOSS_KILLS = 0,
	/* It is detached. */
	IPC_LOSS_DETACHES = 1,
};

struct ipc_start {
	uint32_t mode;
	/* enum ipc_stay; the slot, 0 to 7, of a warm machine. */
	uint32_t stay;
	uint32_t slot;
	/* 1: /data is handed over as a descriptor; 0: the machine has none. */
	uint32_t has_data;
	/* How many files are below data.qcow2: at least 1 with it, none without. */
	uint32_t data_layers;
	/* How many the disk "base" has; 0: it is zeros. */
	uint32_t base_layers;
	/* 1: the machine is a copy of one that ran: the three descriptors of IPC_FORKED are handed
	 * over, of which the overlay becomes its own. */
	uint32_t has_copy;
	/* 1: the locks "live" and "up" are handed over; of IPC_STAY_WARM the latter is the slot's.
	 */
	uint32_t has_live;
	uint32_t has_up;
	/* enum ipc_data_fate. */
	uint32_t data_fate;
	/* 1: cold boot even when the snapshot is valid. */
	uint32_t force_boot;
	/* 1: the machine is for a new proof of its kernel, and needs none yet. */
	uint32_t for_proof;
	/* Of the host's proxy (policy/proxy.h); 0: there is none. For IPC_CLAIM: a machine that was
	 * made ready for another one is stale. */
	uint64_t proxy_mark;
	/* The sandbox. */
	char name[72];
	/* Directory below the sandbox where image and snapshot are: "" or a build's staging one. */
	char stage[72];
};

struct ipc_ready {
	/* 1: restored from the snapshot; 0: booted. */
	uint32_t restored;
	/* 1: it was kept ready. */
	uint32_t warm;
	/* 1: hardware virtualization; 0: software emulation. */
	uint32_t hardware;
	char engine[16];
	char release[96];
	char version[160];
	char boot_id[40];
	/* Why it was booted although a snapshot was wanted; empty otherwise. */
	char boot_reason[160];
	/* Confinement that this host cannot give; empty when all is there. */
	char missing[640];
	/* CLOCK_MONOTONIC, ns: keeper began; monitor started; monitor answered; guest ready. */
	uint64_t began_ns;
	uint64_t spawned_ns;
	uint64_t monitor_ns;
	uint64_t ready_ns;
	int32_t monitor_pid;
};

struct ipc_failed {
	char code[32];
	char text[IPC_TEXT_MAX];
	char mend[512];
};

struct ipc_message {
	uint32_t type;
	/* The command, chosen by the client, never 0; 0 where none is meant. */
	uint32_t stream;
	union {
		struct ipc_start start;
		struct {
			uint32_t has_stdin;
			uint32_t has_output;
			uint32_t terminal;
			/* enum ipc_on_loss. */
			uint32_t on_loss;
			/* 0: none. The keeper kills the command and reports timed_out. */
			uint32_t timeout_seconds;
			/* 1: of the starter only: the machine goes down after IPC_EXITED, as if
			 * IPC_SHUTDOWN had come then. */
			uint32_t is_last;
		} exec;
		struct {
			uint32_t number;
		} signal;
		struct {
			uint16_t rows;
			uint16_t columns;
		} window;
		struct {
			char id[IPC_ID_SIZE];
			/* IPC_STARTED: process ID inside. IPC_KILL: signal. */
			uint32_t number;
		} command;
		struct {
			uint16_t port;
		} tcp;
		struct {
			/* enum ipc_rule_action. */
			uint32_t action;
			char text[IPC_RULE_SIZE];
		} rule;
		struct ipc_ready ready;
		struct {
			char id[IPC_ID_SIZE];
			struct wire_exit exit;
			uint32_t timed_out;
			uint64_t stdout_bytes;
			uint64_t stderr_bytes;
			uint64_t started_ns;
			uint64_t ended_ns;
		} exited;
		struct ipc_failed failed;
		char text[IPC_TEXT_MAX];
	};
};

/*
 * Decodes a received packet of size bytes that came with fd_count descriptors: its size is that of
 * the struct, its type is known, the type may carry that many descriptors (an IPC_START or
 * IPC_CLAIM has exactly those that it names), and every text of the type has its NUL. Does no I/O.
 * Returns 0 or -EBADMSG with *ret_message untouched.
 */
int ipc_decode(const void *packet, size_t size, size_t fd_count, struct ipc_message *ret_message);

/*
 * Sends one message with fd_count descriptors, which the caller keeps. The message is one that
 * ipc_decode accepts. Blocks on a blocking socket. Returns 0 or a negative errno (-EPIPE when the
 * peer is gone; no signal is raised).
 */
int ipc_send(int socket, const struct ipc_message *message, const int *fds, size_t fd_count);

/*
 * Receives one message. Descriptors arrive close-on-exec in ret_fds (IPC_FDS_MAX entries), owned
 * by the caller; unused entries are -EBADF, all of them unless 1 is returned. Returns 1, 0 when the
 * peer has closed, -EAGAIN on a non-blocking socket, -EBADMSG for a packet that ipc_decode refuses,
 * or a negative errno.
 */
int ipc_receive(int socket, struct ipc_message *ret_message, int *ret_fds);

/* Closes every entry of a descriptor array that is one. */
void ipc_close_fds(int *fds);

/*
 * In a child: becomes the keeper at path, with socket as its client's end. Nothing else goes along,
 * but descriptors 0 to 2: what a caller has open, a lock perhaps, is not to stay open for as long
 * as a machine.
 */
_Noreturn void ipc_exec_keeper(const char *path, int socket);

/* Makes a connected pair of close-on-exec SOCK_SEQPACKET sockets. 0 or a negative errno. */
int ipc_pair(int ret_sockets[2]);

/*
 * Binds a listening socket called name below the directory dir_fd, mode 0600, or connects to it.
 * The length of the directory's path does not matter; name itself has at most 80 bytes. A name that
 * is there already is -EADDRINUSE: whoever holds the lock that stands for it unlinks it first.
 * Connecting to a name whose owner has died is -ECONNREFUSED, to one who takes nobody in -EAGAIN
 * (after 2 s). Needs /proc. Return the socket
 * (blocking, close-on-exec) or a negative errno.
 */
int ipc_listen_at(int dir_fd, const char *name);
int ipc_connect_at(int dir_fd, const char *name);

/*
 * A memory file with the given bytes, its offset at the start, sealed: nobody can change it or its
 * size any more. label is seen in /proc/PID/fd only. Returns a descriptor or a negative errno.
 */
int ipc_memory_file(const char *label, const void *data, size_t size);
