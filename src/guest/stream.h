/*
 * One command's stream: its input on the way in, its output on the way out, and how it ends. Or one
 * TCP connection's, which has no process: it has ended when both of its directions have.
 *
 * A stream never waits. What it wants to say is a set of flags (enum stream_due) and what is in the
 * command's pipes; stream_emit turns that into frames while there is room. So no frame can be lost
 * for want of room, and the memory of a stream is fixed.
 */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest/exec.h"
#include "guest/outbox.h"
#include "wire/ctl.h"

/*
 * How long after a command's end its children may go on writing to its output. Long enough for the
 * last line of a pipeline; short enough that a daemon does not hold the caller up.
 */
#define STREAM_LINGER_MS 500
/* stdin, stdout, stderr */
#define STREAM_POLLS_MAX 3

/* Output is read when at least this much room is left, so that frames do not become tiny. */
#define STREAM_ROOM_MIN 4096u

struct pollfd;

/* In the order in which they are sent; data goes before the ends. */
enum stream_due {
	DUE_STARTED = 1u << 0,
	DUE_LOG = 1u << 1,
	DUE_EXIT = 1u << 2,
	DUE_EOF_1 = 1u << 3,
	DUE_EOF_2 = 1u << 4,
};

struct stream_output {
	int fd;
	/* Bytes that the host still takes. */
	uint32_t credit;
	/* Reading is worth a try. */
	bool ready;
	/* Of a terminal: when it was last read, and until when it is left alone, or 0. */
	uint64_t read_ns;
	uint64_t rest_until_ns;
	/* The command's end is long past: only left bytes are still taken. */
	bool cut;
	uint32_t left;
	bool ended;
};

enum stream_kind {
	STREAM_COMMAND,
	STREAM_TCP,
};

struct stream {
	/* 0: the slot is free. */
	uint32_t number;
	enum stream_kind kind;
	unsigned due;
	/* Process ID and process group of a command. Not to be used once exited is set: it may be
	 * another's. */
	pid_t pid;
	bool terminal;
	bool exited;
	/* The host has no more interest in output that it gave no credit for. */
	bool closed;
	uint64_t cut_ns;
	int cgroup;
	struct wire_exit exit;
	char reason[EXEC_REASON_MAX];

	/* Of a connection only. */
	uint16_t port;
	/* It is the second address that is tried. */
	bool ipv6;
	/* Not connected yet: input_fd is the socket. */
	bool connecting;
	bool reset;

	/* Input. fd is the terminal when there is one, and then not ours to close. A connection has
	 * two descriptors of one socket, input_fd and an output's, so that each way ends by itself.
	 */
	int input_fd;
	bool input_expected;
	bool input_eof;
	/* The last input byte passed on ended a line (a terminal then takes one end mark, not two).
	 */
	bool input_at_line_start;
	uint32_t input_window;
	uint32_t input_credit;
	/* A ring of WIRE_WINDOW bytes, borrowed from the session. */
	uint8_t *ring;
	size_t ring_start;
	size_t ring_filled;
	size_t ring_high;

	struct stream_output outputs[2];
};

/* Makes a stream of a free slot. ring holds WIRE_WINDOW bytes. */
void stream_open(struct stream *stream, uint32_t number, uint8_t *ring);

/* The command runs: takes the descriptors of *started. */
void stream_started(struct stream *stream, const struct wire_exec *exec,
		    const struct exec_started *started);

/* The command could not be started: -rc is the errno, stream->reason says why. */
void stream_not_started(struct stream *stream, int rc);

/* TCP: connects to a port of the loopback. How that ends is told as a command's start is. */
void stream_connect(struct stream *stream, uint16_t port);

/* DATA, EOF, CREDIT from the host. 0 or -EBADMSG when the host broke the rules. */
int stream_data(struct stream *stream, const uint8_t *data, size_t size);
void stream_eof(struct stream *stream);
int stream_credit(struct stream *stream, uint8_t channel, uint32_t bytes);
void stream_window_size(struct stream *stream, uint16_t rows, uint16_t columns);

/* Sends a signal to the command's process group. Nothing where there is none (any more). */
void stream_signal(const struct stream *stream, int number);

/* The command has ended, as waitid(2) says. */
void stream_exited(struct stream *stream, const siginfo_t *info, uint64_t now_ns);

/*
 * CLOSE, after the command was killed: what no credit is there for will be dropped once it has
 * ended. A connection is reset.
 */
void stream_close(struct stream *stream);

/* Fills at most STREAM_POLLS_MAX entries with what the stream waits for. Returns how many. */
unsigned stream_poll(const struct stream *stream, struct pollfd *polls);

/* Takes the same entries back after poll(2). */
void stream_polled(struct stream *stream, const struct pollfd *polls, unsigned count);

/* When stream_emit must be called although nothing happened; UINT64_MAX when never. */
uint64_t stream_deadline_ns(const struct stream *stream);

/* Whether stream_emit could put something now, given STREAM_ROOM_MIN bytes of room. */
bool stream_wants_turn(const struct stream *stream);

/* Puts what is due, and at most one frame of data per channel. */
void stream_emit(struct stream *stream, struct outbox *outbox, uint64_t now_ns);

/*
 * Another host's end takes over: the windows begin anew, as wire/ctl.h says. A connection ends for
 * good: it is to be released.
 */
void stream_take_over(struct stream *stream);

/* Everything was put, the command's end included. */
bool stream_ended(const struct stream *stream);

/* Closes the descriptors and frees the slot. */
void stream_release(struct stream *stream);
