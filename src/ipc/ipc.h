/*
 * Messages between box and the keeper of a machine.
 *
 * One message is one struct ipc_message in one packet of a SOCK_SEQPACKET socket, with up to
 * IPC_FDS_MAX descriptors. Both sides are ours and of one build, so the struct is sent as it is;
 * its size and type are checked all the same. What does not fit (arguments, environment) goes in a
 * sealed memory file.
 *
 * A command's streams are three pipes that the client makes; the keeper reads or writes the other
 * ends. A full pipe is the only backpressure there is, and its end is the end of the stream.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/ctl.h"

#define IPC_FDS_MAX 8
#define IPC_TEXT_MAX 768

/* The code of an IPC_FAILED that answers IPC_COPY_DATA: the machine comes or goes, ask again. */
#define IPC_CODE_BUSY "data-busy"

enum ipc_type {
	/* Client to keeper, first and once: struct ipc_start; fd 0: locked data.qcow2, if any;
	 * fd 1: the lock that says "live", if any. */
	IPC_START = 1,
	/* Client to keeper: run a command. fds: sealed memory file with a joined wire EXEC
	 * payload, read end of stdin (or none, see exec.has_stdin), write ends of stdout, stderr.
	 */
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
	 * Answered by IPC_DATA_COPY with one descriptor, or IPC_FAILED. */
	IPC_COPY_DATA = 8,

	/* Keeper to client: the machine answers; struct ipc_ready. */
	IPC_READY = 32,
	/* Keeper to client: the command has a process. */
	IPC_STARTED = 33,
	/* Keeper to client: the command has ended and all its output has been written; exit. */
	IPC_EXITED = 34,
	/* Keeper to client: something for a person, not an error; text. */
	IPC_NOTICE = 35,
	/* Keeper to client: the machine is gone or cannot be had; failed. Nothing follows. */
	IPC_FAILED = 36,
	/* Keeper to client: the answer to IPC_SHUTDOWN or IPC_SNAPSHOT. The keeper then exits. */
	IPC_DOWN = 37,
	/* Keeper to whoever asked: fd 0 is the copy. */
	IPC_DATA_COPY = 38,
};

enum ipc_start_mode {
	/* Restore the snapshot if it is valid, otherwise boot the image. Root changes are dropped.
	 */
	IPC_START_RUN = 1,
	/* Boot the image and keep what is written to the root: for `run` lines of a build. */
	IPC_START_BUILD = 2,
	/* Boot the image to take a snapshot: for the end of a build, and the proof of the kernel.
	 */
	IPC_START_SNAPSHOT = 3,
};

struct ipc_start {
	uint32_t mode;
	/* 1: /data is handed over as a descriptor; 0: the machine has none. */
	uint32_t has_data;
	/* 1: the client holds /data for itself; the keeper listens for IPC_COPY_DATA. */
	uint32_t data_is_own;
	/* 1: cold boot even when the snapshot is valid. */
	uint32_t force_boot;
	/* The sandbox. */
	char name[72];
	/* Directory below the sandbox where image and snapshot are: "" or a build's staging one. */
	char stage[72];
};

struct ipc_ready {
	/* 1: restored from the snapshot; 0: booted. */
	uint32_t restored;
	/* 1: hardware virtualization; 0: software emulation. */
	uint32_t hardware;
	char engine[16];
	char release[96];
	char version[160];
	char boot_id[40];
	/* Why it was booted although a snapshot was wanted; empty otherwise. */
	char boot_reason[160];
	/* Confinement that this host cannot give; empty when all is there. */
	char missing[256];
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
			uint32_t terminal;
			/* 0: none. The keeper kills the command and reports timed_out. */
			uint32_t timeout_seconds;
		} exec;
		struct {
			uint32_t number;
		} signal;
		struct {
			uint16_t rows;
			uint16_t columns;
		} window;
		struct ipc_ready ready;
		struct {
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
 * the struct, its type is known, the type may carry that many descriptors, and every text of the
 * type has its NUL. Does no I/O. Returns 0 or -EBADMSG with *ret_message untouched.
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

/* Makes a connected pair of close-on-exec SOCK_SEQPACKET sockets. 0 or a negative errno. */
int ipc_pair(int ret_sockets[2]);

/*
 * Binds a listening socket called name below the directory dir_fd, mode 0600, or connects to it.
 * The length of the directory's path does not matter; name itself has at most 80 bytes. A name that
 * is there already is -EADDRINUSE: whoever holds the lock that stands for it unlinks it first.
 * Connecting to a name whose owner has died is -ECONNREFUSED. Needs /proc. Return the socket
 * (blocking, close-on-exec) or a negative errno.
 */
int ipc_listen_at(int dir_fd, const char *name);
int ipc_connect_at(int dir_fd, const char *name);

/*
 * A memory file with the given bytes, its offset at the start, sealed: nobody can change it or its
 * size any more. label is seen in /proc/PID/fd only. Returns a descriptor or a negative errno.
 */
int ipc_memory_file(const char *label, const void *data, size_t size);
