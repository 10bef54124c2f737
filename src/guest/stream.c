#include "guest/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "guest/tcp.h"
#include "wire/bytes.h"

/* Input credit is given back in pieces of this size: few frames, and the window never runs dry. */
#define CREDIT_STEP (WIRE_WINDOW / 4)
/* A ring that held more than this gives its memory back when the stream ends. */
#define RING_KEEP_BYTES 16384u
/*
 * A program that writes to a terminal writes line by line, and each would become a frame of its own
 * and a way through the whole machine. After small reads that follow each other within a
 * moment the next one waits for more. What a person types and sees is never so close together.
 */
#define REST_NS UINT64_C(1000000)
#define REST_AFTER_NS (4 * REST_NS)
#define REST_BELOW_BYTES 1024

static const unsigned eof_due[2] = {DUE_EOF_1, DUE_EOF_2};

void stream_open(struct stream *stream, uint32_t number, uint8_t *ring)
{
	*stream = (struct stream){
		.number = number,
		.cgroup = -1,
		.input_fd = -EBADF,
		.input_window = WIRE_WINDOW,
		.input_at_line_start = true,
		.ring = ring,
	};
	for (int i = 0; i < 2; i++) {
		stream->outputs[i] = (struct stream_output){.fd = -EBADF, .credit = WIRE_WINDOW};
	}
}

void stream_started(struct stream *stream, const struct wire_exec *exec,
		    const struct exec_started *started)
{
	stream->pid = started->pid;
	stream->terminal = exec->flags & WIRE_EXEC_TERMINAL;
	stream->input_expected = exec->flags & WIRE_EXEC_STDIN;
	stream->outputs[0].fd = started->output_fd[0];
	stream->outputs[1].fd = started->output_fd[1];
	stream->input_fd = started->input_fd;
	if (stream->terminal && stream->input_expected) {
		stream->input_fd = started->output_fd[0];
	}
	stream->due |= DUE_STARTED;
}

static void end_output(struct stream *stream, int index)
{
	struct stream_output *output = &stream->outputs[index];

	if (index == 0 && stream->terminal) {
		stream->input_fd = -EBADF;
	}
	close_fd(&output->fd);
	if (!output->ended) {
		output->ended = true;
		stream->due |= eof_due[index];
	}
}

void stream_not_started(struct stream *stream, int rc)
{
	stream->exited = true;
	stream->exit = (struct wire_exit){.kind = WIRE_NOT_STARTED, .value = (uint32_t)-rc};
	stream->due |= DUE_EXIT | (stream->reason[0] != '\0' ? DUE_LOG : 0u);
	end_output(stream, 0);
	end_output(stream, 1);
}

/* ---- Input ---- */

static void end_input(struct stream *stream)
{
	if (stream->terminal) {
		stream->input_fd = -EBADF;
	}
	close_fd(&stream->input_fd);
	stream->input_credit += (uint32_t)stream->ring_filled;
	stream->ring_filled = 0;
}

/*
 * Says the end of input the way of the terminal's line discipline (termios(3), ICANON): the end
 * character hands over the line so far, and means the end only at the start of a line.
 */
static void mark_terminal_end(const struct stream *stream)
{
	struct termios settings;
	cc_t mark[2];

	if (tcgetattr(stream->input_fd, &settings) < 0 || !(settings.c_lflag & ICANON)) {
		return;
	}
	mark[0] = settings.c_cc[VEOF];
	mark[1] = settings.c_cc[VEOF];
	/* When its queue is full the command is not reading; there is nobody to tell. */
	(void)!write(stream->input_fd, mark, stream->input_at_line_start ? 1 : 2);
}

static void finish_input(struct stream *stream)
{
	if (stream->input_fd < 0 || stream->connecting || !stream->input_eof ||
	    stream->ring_filled > 0) {
		return;
	}
	if (stream->terminal) {
		mark_terminal_end(stream);
	} else if (stream->kind == STREAM_TCP) {
		shutdown(stream->input_fd, SHUT_WR);
	}
	end_input(stream);
}

/* The connection takes nothing any more. What it sent before may still be there to be read. */
static void note_reset(struct stream *stream)
{
	if (stream->kind == STREAM_TCP) {
		stream->reset = true;
		stream->outputs[0].ready = true;
	}
}

/* Passes bytes on. Returns how many were taken, or -EPIPE when the command has closed its input. */
static ssize_t pass_input(struct stream *stream, const uint8_t *data, size_t size)
{
	ssize_t written;

	if (stream->connecting) {
		return 0;
	}
	if (stream->input_fd < 0) {
		return -EPIPE;
	}
	written = write(stream->input_fd, data, size);
	if (written < 0) {
		if (errno == EAGAIN || errno == EINTR) {
			return 0;
		}
		note_reset(stream);
		return -EPIPE;
	}
	if (written > 0) {
		stream->input_at_line_start = data[written - 1] == '\n';
	}
	stream->input_credit += (uint32_t)written;
	return written;
}

static void drain_ring(struct stream *stream)
{
	while (stream->ring_filled > 0) {
		size_t piece = MIN(stream->ring_filled, WIRE_WINDOW - stream->ring_start);
		ssize_t taken = pass_input(stream, stream->ring + stream->ring_start, piece);

		if (taken < 0) {
			end_input(stream);
		}
		if (taken <= 0) {
			break;
		}
		stream->ring_start = (stream->ring_start + (size_t)taken) % WIRE_WINDOW;
		stream->ring_filled -= (size_t)taken;
	}
	if (stream->ring_filled == 0) {
		stream->ring_start = 0;
	}
}

static void fill_ring(struct stream *stream, const uint8_t *data, size_t size)
{
	size_t end = (stream->ring_start + stream->ring_filled) % WIRE_WINDOW;
	size_t first = MIN(size, WIRE_WINDOW - end);

	ASSERT(size <= WIRE_WINDOW - stream->ring_filled);
	memcpy(stream->ring + end, data, first);
	memcpy(stream->ring, data + first, size - first);
	stream->ring_filled += size;
	stream->ring_high = MAX(stream->ring_high, MIN(end + size, (size_t)WIRE_WINDOW));
}

int stream_data(struct stream *stream, const uint8_t *data, size_t size)
{
	ssize_t taken = 0;

	if (size > stream->input_window || stream->input_eof ||
	    (!stream->input_expected && !stream->exited)) {
		return -EBADMSG;
	}
	stream->input_window -= (uint32_t)size;
	if (stream->ring_filled == 0 && size > 0) {
		taken = pass_input(stream, data, size);
	}
	if (taken < 0) {
		end_input(stream);
		stream->input_credit += (uint32_t)size;
	} else if ((size_t)taken < size) {
		fill_ring(stream, data + taken, size - (size_t)taken);
	}
	return 0;
}

void stream_eof(struct stream *stream)
{
	stream->input_eof = true;
	finish_input(stream);
}

void stream_window_size(struct stream *stream, uint16_t rows, uint16_t columns)
{
	struct winsize size = {.ws_row = rows, .ws_col = columns};

	if (stream->terminal && stream->outputs[0].fd >= 0) {
		ioctl(stream->outputs[0].fd, TIOCSWINSZ, &size);
	}
}

void stream_signal(const struct stream *stream, int number)
{
	/* Process group 0 would be our own. */
	if (!stream->exited && stream->pid > 0) {
		kill(-stream->pid, number);
	}
}

/* ---- TCP connections ---- */

/* Goes on after an attempt to connect that gave rc, and, when it did not fail, input_fd. */
static void continue_connecting(struct stream *stream, int rc)
{
	if (rc == -ECONNREFUSED && !stream->ipv6) {
		close_fd(&stream->input_fd);
		stream->ipv6 = true;
		rc = tcp_connect(stream->port, true, &stream->input_fd);
	}
	stream->connecting = rc == -EINPROGRESS;
	if (stream->connecting) {
		return;
	}
	if (rc == 0) {
		stream->outputs[0].fd = fcntl(stream->input_fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		rc = stream->outputs[0].fd < 0 ? -errno : 0;
	}
	if (rc < 0) {
		end_input(stream);
		/* Why ::1 fails too is beside the point: there may be no IPv6. */
		stream_not_started(stream, stream->ipv6 ? -ECONNREFUSED : rc);
		return;
	}
	stream->due |= DUE_STARTED;
	drain_ring(stream);
	finish_input(stream);
}

void stream_connect(struct stream *stream, uint16_t port)
{
	stream->kind = STREAM_TCP;
	stream->port = port;
	stream->input_expected = true;
	continue_connecting(stream, tcp_connect(port, false, &stream->input_fd));
}

/* Makes the last close of the socket a reset. */
static void abort_connection(const struct stream *stream)
{
	if (stream->kind == STREAM_TCP && stream->input_fd >= 0) {
		tcp_abort(stream->input_fd);
	} else if (stream->kind == STREAM_TCP && stream->outputs[0].fd >= 0) {
		tcp_abort(stream->outputs[0].fd);
	}
}

static void close_connection(struct stream *stream)
{
	abort_connection(stream);
	if (stream->connecting) {
		stream->connecting = false;
		end_input(stream);
		stream_not_started(stream, -ECANCELED);
		return;
	}
	stream->reset = true;
	end_input(stream);
	end_output(stream, 0);
}

/* A connection has ended when both of its directions have. */
static void end_connection(struct stream *stream)
{
	if (stream->kind != STREAM_TCP || stream->exited || stream->connecting) {
		return;
	}
	if (stream->input_fd >= 0 || !stream->outputs[0].ended) {
		return;
	}
	stream->exited = true;
	stream->exit = (struct wire_exit){.kind = WIRE_EXITED, .value = stream->reset ? 1 : 0};
	stream->due |= DUE_EXIT;
	end_output(stream, 1);
}

/* ---- Ends ---- */

int stream_credit(struct stream *stream, uint8_t channel, uint32_t bytes)
{
	struct stream_output *output = &stream->outputs[channel - 1];

	if (bytes > WIRE_WINDOW - output->credit) {
		return -EBADMSG;
	}
	output->credit += bytes;
	return 0;
}

void stream_exited(struct stream *stream, const siginfo_t *info, uint64_t now_ns)
{
	stream->exit.kind = info->si_code == CLD_EXITED ? WIRE_EXITED : WIRE_SIGNALED;
	stream->exit.value = (uint32_t)info->si_status;
	stream->exited = true;
	stream->cut_ns = now_ns + STREAM_LINGER_MS * UINT64_C(1000000);
	stream->due |= DUE_EXIT;
	/* What it wrote last is most likely there, and the end too. */
	for (int i = 0; i < 2; i++) {
		stream->outputs[i].ready = true;
		if (stream->outputs[i].fd < 0) {
			end_output(stream, i);
		}
	}
}

void stream_close(struct stream *stream)
{
	stream->closed = true;
	if (stream->kind == STREAM_TCP && !stream->exited) {
		close_connection(stream);
	}
	end_input(stream);
}

static bool cut_due(const struct stream *stream, uint64_t now_ns)
{
	return stream->exited && (stream->closed || now_ns >= stream->cut_ns);
}

/* From here on only what is in the pipe is passed on, so that a busy child cannot go on for ever.
 */
static void cut_output(const struct stream *stream, struct stream_output *output)
{
	int waiting = 0;

	if (ioctl(output->fd, FIONREAD, &waiting) < 0 || waiting < 0) {
		waiting = 0;
	}
	output->cut = true;
	output->left = (uint32_t)waiting;
	if (stream->closed) {
		output->left = MIN(output->left, output->credit);
	}
	output->ready = true;
}

/* ---- poll(2) ---- */

unsigned stream_poll(const struct stream *stream, struct pollfd *polls)
{
	unsigned count = 0;

	if (stream->input_fd >= 0 && (stream->ring_filled > 0 || stream->connecting)) {
		polls[count++] = (struct pollfd){.fd = stream->input_fd, .events = POLLOUT};
	} else if (stream->input_fd >= 0 && stream->kind == STREAM_TCP) {
		/* A reset is reported all the same, also when no output is waited for. */
		polls[count++] = (struct pollfd){.fd = stream->input_fd, .events = 0};
	}
	for (int i = 0; i < 2; i++) {
		const struct stream_output *output = &stream->outputs[i];

		/* Without credit even a hang-up is of no use, and poll(2) would report it for ever.
		 */
		if (output->fd >= 0 && output->credit > 0 && !output->ready &&
		    output->rest_until_ns == 0) {
			polls[count++] = (struct pollfd){.fd = output->fd, .events = POLLIN};
		}
	}
	return count;
}

void stream_polled(struct stream *stream, const struct pollfd *polls, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (polls[i].revents == 0) {
			continue;
		}
		if (stream->connecting) {
			continue_connecting(stream, tcp_connected(stream->input_fd));
			continue;
		}
		if (polls[i].events == POLLOUT) {
			drain_ring(stream);
			finish_input(stream);
			continue;
		}
		if (polls[i].events == 0) {
			note_reset(stream);
			end_input(stream);
			continue;
		}
		for (int j = 0; j < 2; j++) {
			if (stream->outputs[j].fd == polls[i].fd) {
				stream->outputs[j].ready = true;
			}
		}
	}
}

uint64_t stream_deadline_ns(const struct stream *stream)
{
	if (stream->outputs[0].fd >= 0 && stream->outputs[0].rest_until_ns != 0) {
		return stream->outputs[0].rest_until_ns;
	}
	for (int i = 0; stream->exited && i < 2; i++) {
		if (stream->outputs[i].fd >= 0 && !stream->outputs[i].cut) {
			return stream->cut_ns;
		}
	}
	return UINT64_MAX;
}

/* ---- Output ---- */

static bool put(struct stream *stream, struct outbox *outbox, enum wire_ctl_type type,
		uint8_t channel, const struct wire_frame *payload)
{
	struct wire_frame frame = *payload;

	frame.type = (uint8_t)type;
	frame.channel = channel;
	frame.stream = stream->number;
	return outbox_put(outbox, &frame);
}

static bool put_number(struct stream *stream, struct outbox *outbox, enum wire_ctl_type type,
		       uint32_t value)
{
	uint8_t payload[WIRE_HEADER_SIZE];
	struct wire_writer writer = wire_writer_over(payload, sizeof(payload));

	wire_put_u32(&writer, value);
	return put(stream, outbox, type, 0,
		   &(struct wire_frame){.payload = payload, .length = (uint32_t)writer.size});
}

static bool put_exit(struct stream *stream, struct outbox *outbox)
{
	uint8_t payload[WIRE_HEADER_SIZE];
	struct wire_writer writer = wire_writer_over(payload, sizeof(payload));

	wire_put_u32(&writer, stream->exit.kind);
	wire_put_u32(&writer, stream->exit.value);
	return put(stream, outbox, WIRE_EXIT, 0,
		   &(struct wire_frame){.payload = payload, .length = (uint32_t)writer.size});
}

static bool put_reason(struct stream *stream, struct outbox *outbox)
{
	return put(stream, outbox, WIRE_LOG, 0,
		   &(struct wire_frame){.payload = (const uint8_t *)stream->reason,
					.length = (uint32_t)strlen(stream->reason)});
}

/* Puts one of the frames that are due. Returns false when it has to wait for room. */
static bool put_due(struct stream *stream, struct outbox *outbox, enum stream_due due)
{
	static const struct wire_frame empty;

	switch (due) {
	case DUE_STARTED:
		return put_number(stream, outbox, WIRE_STARTED, (uint32_t)stream->pid);
	case DUE_LOG:
		return put_reason(stream, outbox);
	case DUE_EXIT:
		return put_exit(stream, outbox);
	case DUE_EOF_1:
		return put(stream, outbox, WIRE_EOF, 1, &empty);
	case DUE_EOF_2:
		return put(stream, outbox, WIRE_EOF, 2, &empty);
	}
	return true;
}

static void emit_due(struct stream *stream, struct outbox *outbox)
{
	for (unsigned due = DUE_STARTED; due <= DUE_EOF_2 && stream->due != 0; due <<= 1) {
		if (stream->due & due) {
			if (!put_due(stream, outbox, (enum stream_due)due)) {
				return;
			}
			stream->due &= ~due;
		}
	}
}

static void emit_credit(struct stream *stream, struct outbox *outbox)
{
	if (stream->input_credit < CREDIT_STEP || stream->input_eof) {
		return;
	}
	if (put_number(stream, outbox, WIRE_CREDIT, stream->input_credit)) {
		stream->input_window += stream->input_credit;
		stream->input_credit = 0;
	}
}

/* How many bytes of an output may be read into the outbox now. */
static size_t output_room(const struct stream_output *output, const struct outbox *outbox)
{
	size_t room = outbox_room(outbox);

	if (room < STREAM_ROOM_MIN) {
		return 0;
	}
	room = MIN(room, output->credit);
	return output->cut ? MIN(room, output->left) : room;
}

/* Whether an output that was just read is better left alone for a moment. */
static bool needs_rest(const struct stream *stream, const struct stream_output *output, size_t got,
		       uint64_t now_ns)
{
	return stream->terminal && !stream->exited && got < REST_BELOW_BYTES &&
	       now_ns - output->read_ns < REST_AFTER_NS;
}

static void emit_data(struct stream *stream, int index, struct outbox *outbox, uint64_t now_ns)
{
	struct stream_output *output = &stream->outputs[index];
	size_t room = output_room(output, outbox);
	ssize_t got;

	if (room == 0) {
		return;
	}
	got = read(output->fd, outbox_payload(outbox), room);
	if (got < 0 && errno == EINTR) {
		return;
	}
	if (got < 0 && errno == EAGAIN) {
		output->ready = false;
		if (output->cut) {
			end_output(stream, index);
		}
		return;
	}
	if (got <= 0) {
		/* The end; of a terminal it is EIO. */
		if (got < 0 && stream->kind == STREAM_TCP) {
			stream->reset = true;
		}
		if (stream->reset) {
			end_input(stream);
		}
		end_output(stream, index);
		return;
	}
	outbox_commit(outbox, &(struct wire_frame){.type = WIRE_DATA,
						   .channel = (uint8_t)(index + 1),
						   .stream = stream->number,
						   .length = (uint32_t)got});
	output->credit -= (uint32_t)got;
	output->left -= output->cut ? (uint32_t)got : 0;
	/* A command that has ended writes no more: what comes next is the end, without waiting. */
	output->ready = (size_t)got == room || stream->exited;
	if (needs_rest(stream, output, (size_t)got, now_ns)) {
		output->rest_until_ns = now_ns + REST_NS;
	}
	output->read_ns = now_ns;
}

static void emit_output(struct stream *stream, int index, struct outbox *outbox, uint64_t now_ns)
{
	struct stream_output *output = &stream->outputs[index];

	if (output->fd < 0) {
		return;
	}
	if (!output->cut && cut_due(stream, now_ns)) {
		cut_output(stream, output);
	}
	if (output->rest_until_ns != 0 && (now_ns >= output->rest_until_ns || stream->exited)) {
		output->rest_until_ns = 0;
		output->ready = true;
	}
	if (output->ready) {
		emit_data(stream, index, outbox, now_ns);
	}
	if (output->fd >= 0 && output->cut && output->left == 0) {
		end_output(stream, index);
	}
}

bool stream_wants_turn(const struct stream *stream)
{
	if (stream->due != 0 || (stream->input_credit >= CREDIT_STEP && !stream->input_eof)) {
		return true;
	}
	for (int i = 0; i < 2; i++) {
		const struct stream_output *output = &stream->outputs[i];

		if (output->fd >= 0 && output->ready && output->credit > 0) {
			return true;
		}
	}
	return false;
}

void stream_emit(struct stream *stream, struct outbox *outbox, uint64_t now_ns)
{
	/* STARTED goes before the first output. */
	if (stream->due & DUE_STARTED) {
		emit_due(stream, outbox);
		if (stream->due & DUE_STARTED) {
			return;
		}
	}
	emit_credit(stream, outbox);
	emit_output(stream, 0, outbox, now_ns);
	emit_output(stream, 1, outbox, now_ns);
	end_connection(stream);
	emit_due(stream, outbox);
}

void stream_take_over(struct stream *stream)
{
	for (int i = 0; i < 2; i++) {
		stream->outputs[i].credit = WIRE_WINDOW;
	}
	/* What waits in the ring is passed on; the rest of the window is granted as ever. */
	stream->input_window = 0;
	stream->input_credit = WIRE_WINDOW - (uint32_t)stream->ring_filled;
}

bool stream_ended(const struct stream *stream)
{
	return stream->exited && stream->due == 0 && stream->outputs[0].ended &&
	       stream->outputs[1].ended;
}

void stream_release(struct stream *stream)
{
	/* A stream that is dropped on the way leaves no connection behind in the kernel. */
	abort_connection(stream);
	end_input(stream);
	close_fd(&stream->outputs[0].fd);
	close_fd(&stream->outputs[1].fd);
	if (stream->ring_high > RING_KEEP_BYTES) {
		madvise(stream->ring, WIRE_WINDOW, MADV_DONTNEED);
	}
	stream->number = 0;
}
