#include "keeper/stream.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "keeper/record.h"
#include "wire/ctl.h"

/* Credit goes out in pieces of at least this, so that it does not cost a frame for each write. */
#define CREDIT_STEP (WIRE_WINDOW / 4)
/* What may still lie inside when a command is killed: two pipes and the guest's own buffers. */
#define LATE_OUTPUT_MAX ((uint64_t)1 << 20)

/* Output on its way from the guest to a pipe. */
struct output {
	int fd;
	/* What the guest may still send. */
	uint32_t credit;
	/* Written to the pipe and not yet given back as credit. */
	uint32_t owed;
	bool eof;
	uint64_t total;
	/* A ring. */
	uint32_t start;
	uint32_t filled;
	uint8_t buffer[WIRE_WINDOW];
};

struct stream {
	uint32_t id;
	enum stream_kind kind;
	uint32_t grace_ms;
	struct record *record;
	bool killed;
	/* CLOSE is still to be sent: the port had no room for it. */
	bool close_due;
	struct control *control;
	struct loop *loop;
	struct stream_events events;
	int stdin_fd;
	bool stdin_eof;
	/* What may still be sent to the guest. */
	uint32_t stdin_credit;
	uint64_t timer;
	bool timed_out;
	/* Output until CLOSE, and until the last look at the stream since. */
	uint64_t closed_total;
	uint64_t seen_total;
	bool has_process;
	bool has_log;
	bool has_exit;
	bool ended;
	struct wire_exit exit;
	uint64_t started_ns;
	uint64_t ended_ns;
	/* Channels 1 and 2. */
	struct output outputs[2];
};

static void on_output(struct loop *loop, int fd, uint32_t events, void *data);
static void on_stdin(struct loop *loop, int fd, uint32_t events, void *data);

static void close_watched(struct stream *stream, int *fd)
{
	if (*fd >= 0) {
		loop_remove(stream->loop, *fd);
	}
	close_fd(fd);
}

static int send_u32(struct stream *stream, uint8_t type, uint8_t channel, uint32_t value)
{
	uint8_t payload[4];
	int size = wire_u32_encode(value, payload);

	return control_send(stream->control, type, channel, stream->id, payload, (size_t)size);
}

/* Whether the guest has said that it ended a connection by a reset, or could not make it. */
static bool was_reset(const struct stream *stream)
{
	return stream->kind == STREAM_TCP && stream->has_exit &&
	       (stream->exit.kind != WIRE_EXITED || stream->exit.value != 0);
}

/* The guest's half of a connection has ended; the other half goes on. An end in good order before a
 * reset would be taken for the whole truth. */
static void close_output(struct stream *stream, struct output *output)
{
	if (stream->kind == STREAM_TCP && output->fd >= 0 && !was_reset(stream)) {
		shutdown(output->fd, SHUT_WR);
	}
	close_watched(stream, &output->fd);
}

/* A connection that the guest has reset is reset here as well. */
static void reset_if_wanted(const struct stream *stream)
{
	const struct linger linger = {.l_onoff = 1, .l_linger = 0};

	if (was_reset(stream) && stream->stdin_fd >= 0) {
		setsockopt(stream->stdin_fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	}
}

static void finish_if_done(struct stream *stream)
{
	for (size_t i = 0; i < ARRAY_SIZE(stream->outputs); i++) {
		struct output *output = &stream->outputs[i];

		if (output->eof && output->filled == 0) {
			close_output(stream, output);
		}
		if (!output->eof || output->filled > 0) {
			return;
		}
	}
	if (stream->has_exit && !stream->ended) {
		stream->ended = true;
		reset_if_wanted(stream);
		close_watched(stream, &stream->stdin_fd);
		loop_timer_cancel(stream->loop, &stream->timer);
		stream->events.ended(stream->events.data, stream);
	}
}

/* Gives credit for what has left the buffer; without room on the port, when there is some again. */
static void give_credit(struct stream *stream, struct output *output)
{
	if (!output->eof && (output->owed >= CREDIT_STEP || output->filled == 0) &&
	    output->owed > 0) {
		if (send_u32(stream, WIRE_CREDIT, (uint8_t)(1 + (output - stream->outputs)),
			     output->owed) < 0) {
			return;
		}
		output->credit += output->owed;
		output->owed = 0;
	}
}

/* Nobody is left to tell the other end of a connection; a command's client decides. */
static void lose_reader(struct stream *stream, struct output *output)
{
	close_watched(stream, &output->fd);
	if (stream->kind == STREAM_TCP) {
		stream_kill(stream);
	}
}

static void flush_output(struct stream *stream, struct output *output)
{
	while (output->filled > 0) {
		uint32_t first = MIN(output->filled, WIRE_WINDOW - output->start);
		struct iovec pieces[2] = {
			{.iov_base = output->buffer + output->start, .iov_len = first},
			{.iov_base = output->buffer, .iov_len = output->filled - first},
		};
		ssize_t written =
			output->fd < 0 ? (ssize_t)output->filled : writev(output->fd, pieces, 2);

		if (written < 0 && errno == EINTR) {
			continue;
		}
		if (written < 0 && errno == EAGAIN) {
			break;
		}
		if (written < 0) {
			/* The reader is gone. The client knows and decides; the rest is dropped. */
			lose_reader(stream, output);
			continue;
		}
		output->start = (output->start + (uint32_t)written) % WIRE_WINDOW;
		output->filled -= (uint32_t)written;
		output->owed += (uint32_t)written;
	}
	if (output->fd >= 0) {
		loop_modify(stream->loop, output->fd, output->filled > 0 ? EPOLLOUT : 0);
	}
	give_credit(stream, output);
}

static void on_output(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct stream *stream = data;
	struct output *output = &stream->outputs[stream->outputs[0].fd == fd ? 0 : 1];

	(void)loop;
	/* The end of a connection that was reset is a hang-up alone once the error was read. */
	if (events & (EPOLLERR | EPOLLHUP)) {
		lose_reader(stream, output);
	}
	flush_output(stream, output);
	finish_if_done(stream);
}

static void watch_stdin(struct stream *stream)
{
	if (stream->stdin_fd >= 0 && !stream->stdin_eof) {
		bool wanted = stream->stdin_credit > 0 && control_has_room(stream->control);

		loop_modify(stream->loop, stream->stdin_fd, wanted ? EPOLLIN : 0);
	}
}

static void end_stdin(struct stream *stream)
{
	if (stream->kind == STREAM_SESSION) {
		close_watched(stream, &stream->stdin_fd);
		return;
	}
	if (stream->kind == STREAM_TCP) {
		/* The descriptor is kept: its other half is still to be written. */
		loop_remove(stream->loop, stream->stdin_fd);
	} else {
		close_watched(stream, &stream->stdin_fd);
	}
	if (!stream->stdin_eof && !stream->has_exit) {
		control_send(stream->control, WIRE_EOF, 0, stream->id, NULL, 0);
	}
	stream->stdin_eof = true;
}

static void on_stdin(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct stream *stream = data;
	uint8_t bytes[WIRE_PAYLOAD_MAX];
	ssize_t got;

	(void)loop;
	if (!(events & EPOLLIN)) {
		/* A hang-up may come while there is no credit; what is buffered still counts. */
		if (stream->stdin_credit == 0 || !control_has_room(stream->control)) {
			loop_remove(stream->loop, fd);
			return;
		}
	}
	if (stream->stdin_credit == 0 || !control_has_room(stream->control)) {
		watch_stdin(stream);
		return;
	}
	got = read(fd, bytes, MIN(sizeof(bytes), (size_t)stream->stdin_credit));
	if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
		return;
	}
	if (got < 0 && stream->kind == STREAM_TCP) {
		loop_remove(loop, fd);
		stream->stdin_eof = true;
		stream_kill(stream);
		return;
	}
	if (got <= 0) {
		end_stdin(stream);
		return;
	}
	stream->stdin_credit -= (uint32_t)got;
	control_send(stream->control, WIRE_DATA, 0, stream->id, bytes, (size_t)got);
	watch_stdin(stream);
}

/* Input that was put aside by a hang-up is watched again when there is credit. */
static void resume_stdin(struct stream *stream)
{
	if (stream->stdin_fd >= 0 && stream->stdin_credit > 0 && !stream->stdin_eof) {
		loop_add(stream->loop, stream->stdin_fd, EPOLLIN, on_stdin, stream);
		watch_stdin(stream);
	}
}

static void send_close(struct stream *stream)
{
	stream->close_due = control_send(stream->control, WIRE_CLOSE, 0, stream->id, NULL, 0) < 0;
}

void stream_writable(struct stream *stream)
{
	if (stream->close_due) {
		send_close(stream);
	}
	for (size_t i = 0; i < ARRAY_SIZE(stream->outputs); i++) {
		give_credit(stream, &stream->outputs[i]);
	}
	resume_stdin(stream);
}

static uint64_t output_total(const struct stream *stream)
{
	return stream->outputs[0].total + stream->outputs[1].total;
}

/*
 * Whether the guest has done its part and the client's reader is what the stream waits for. It is
 * believed for as much as can have been under way inside; more would be a guest that goes on.
 */
static bool reader_is_slow(struct stream *stream)
{
	uint64_t total = output_total(stream);
	bool moving = total != stream->seen_total;

	stream->seen_total = total;
	return stream->has_exit && total - stream->closed_total <= LATE_OUTPUT_MAX &&
	       (moving || stream->outputs[0].filled > 0 || stream->outputs[1].filled > 0);
}

static void on_grace_over(struct loop *loop, void *data)
{
	struct stream *stream = data;

	stream->timer = 0;
	if (reader_is_slow(stream)) {
		loop_timer_add(loop, stream->grace_ms, on_grace_over, stream, &stream->timer);
		return;
	}
	stream->events.stuck(stream->events.data, stream);
}

void stream_kill(struct stream *stream)
{
	if (stream->ended || stream->killed) {
		return;
	}
	stream->killed = true;
	stream->closed_total = output_total(stream);
	stream->seen_total = stream->closed_total;
	send_close(stream);
	loop_timer_cancel(stream->loop, &stream->timer);
	loop_timer_add(stream->loop, stream->grace_ms, on_grace_over, stream, &stream->timer);
}

static void on_timeout(struct loop *loop, void *data)
{
	struct stream *stream = data;

	(void)loop;
	stream->timer = 0;
	/* A command that has ended was in time, however long its output takes to be read. */
	stream->timed_out = !stream->has_exit;
	stream_kill(stream);
}

/* Watches descriptors that the stream has been given. */
static int watch_output(struct stream *stream, struct output *output)
{
	int rc = output->fd < 0 ? 0 : set_nonblocking(output->fd, true);

	if (rc == 0 && output->fd >= 0) {
		rc = loop_add(stream->loop, output->fd, 0, on_output, stream);
	}
	return rc;
}

static int watch_new_stdin(struct stream *stream)
{
	int rc = stream->stdin_fd < 0 ? 0 : set_nonblocking(stream->stdin_fd, true);

	if (rc == 0 && stream->stdin_fd >= 0) {
		rc = loop_add(stream->loop, stream->stdin_fd, EPOLLIN, on_stdin, stream);
	}
	return rc;
}

bool stream_save(const struct stream *stream, struct stream_state *ret_state)
{
	if (stream->has_exit && stream->outputs[0].eof && stream->outputs[1].eof) {
		return false;
	}
	*ret_state = (struct stream_state){
		.id = stream->id,
		.has_process = stream->has_process,
		.has_log = stream->has_log,
		.has_exit = stream->has_exit,
		.exit = stream->exit,
		.stdin_eof = stream->stdin_eof,
		.eof = {stream->outputs[0].eof, stream->outputs[1].eof},
	};
	return true;
}

static void load(struct stream *stream, const struct stream_state *state)
{
	stream->has_process = state->has_process;
	stream->has_log = state->has_log;
	stream->has_exit = state->has_exit;
	stream->exit = state->exit;
	stream->stdin_eof = state->stdin_eof;
	stream->outputs[0].eof = state->eof[0];
	stream->outputs[1].eof = state->eof[1];
	/* The guest grants what it takes. */
	stream->stdin_credit = 0;
}

int stream_new(const struct stream_config *config, struct control *control, struct loop *loop,
	       const struct stream_events *events, struct stream **ret_stream)
{
	struct stream *stream = calloc(1, sizeof(*stream));
	int rc = stream ? 0 : -ENOMEM;

	if (!stream) {
		int fds[] = {config->stdin_fd, config->output_fds[0], config->output_fds[1]};

		for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
			close_fd(&fds[i]);
		}
		return rc;
	}
	stream->id = config->id;
	stream->kind = config->kind;
	stream->grace_ms = config->grace_ms;
	stream->control = control;
	stream->loop = loop;
	stream->events = *events;
	stream->stdin_fd = config->stdin_fd;
	stream->stdin_credit = WIRE_WINDOW;
	stream->started_ns = clock_monotonic_ns();
	for (size_t i = 0; i < ARRAY_SIZE(stream->outputs); i++) {
		struct output *output = &stream->outputs[i];

		output->fd = config->output_fds[i];
		output->credit = WIRE_WINDOW;
	}
	if (config->state) {
		load(stream, config->state);
	}
	if (config->kind == STREAM_TCP) {
		/* A number of its own, since each direction is watched and ends by itself. */
		stream->outputs[0].fd = fcntl(stream->stdin_fd, F_DUPFD_CLOEXEC, 3);
		rc = stream->outputs[0].fd < 0 ? -errno : 0;
	}
	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(stream->outputs); i++) {
		rc = watch_output(stream, &stream->outputs[i]);
	}
	if (rc == 0) {
		rc = watch_new_stdin(stream);
	}
	if (rc == 0 && config->timeout_seconds > 0) {
		rc = loop_timer_add(loop, (uint64_t)config->timeout_seconds * 1000, on_timeout,
				    stream, &stream->timer);
	}
	if (rc < 0) {
		stream_free(stream);
		return rc;
	}
	*ret_stream = stream;
	return 0;
}

void stream_free(struct stream *stream)
{
	if (!stream) {
		return;
	}
	loop_timer_cancel(stream->loop, &stream->timer);
	close_watched(stream, &stream->stdin_fd);
	close_watched(stream, &stream->outputs[0].fd);
	close_watched(stream, &stream->outputs[1].fd);
	free(stream);
}

void stream_set_record(struct stream *stream, struct record *record)
{
	stream->record = record;
}

int stream_attach(struct stream *stream, int stdin_fd, const int output_fds[2])
{
	int rc = 0;

	close_watched(stream, &stream->stdin_fd);
	stream->stdin_fd = stdin_fd;
	for (size_t i = 0; i < ARRAY_SIZE(stream->outputs); i++) {
		close_watched(stream, &stream->outputs[i].fd);
		stream->outputs[i].fd = output_fds[i];
	}
	if (stream->stdin_eof) {
		close_fd(&stream->stdin_fd);
	}
	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(stream->outputs); i++) {
		rc = watch_output(stream, &stream->outputs[i]);
	}
	if (rc == 0) {
		rc = watch_new_stdin(stream);
	}
	if (rc < 0) {
		close_watched(stream, &stream->stdin_fd);
		close_watched(stream, &stream->outputs[0].fd);
		close_watched(stream, &stream->outputs[1].fd);
	}
	/* What waited for the former reader goes to the new one, or nowhere. */
	flush_output(stream, &stream->outputs[0]);
	flush_output(stream, &stream->outputs[1]);
	finish_if_done(stream);
	return rc;
}

uint32_t stream_id(const struct stream *stream)
{
	return stream->id;
}

static int take_data(struct stream *stream, const struct wire_frame *frame)
{
	struct output *output;
	uint32_t end, first;

	if (frame->channel < 1 || frame->channel > 2) {
		return -EBADMSG;
	}
	output = &stream->outputs[frame->channel - 1];
	if (output->eof || frame->length > output->credit) {
		return -EBADMSG;
	}
	/* Credit and buffer together never exceed the window, so this always fits. */
	ASSERT(frame->length <= WIRE_WINDOW - output->filled);
	end = (output->start + output->filled) % WIRE_WINDOW;
	first = MIN(frame->length, WIRE_WINDOW - end);
	memcpy(output->buffer + end, frame->payload, first);
	memcpy(output->buffer, frame->payload + first, frame->length - first);
	output->filled += frame->length;
	output->credit -= frame->length;
	output->total += frame->length;
	record_output(stream->record, frame->channel, frame->payload, frame->length);
	flush_output(stream, output);
	return 0;
}

static int take_eof(struct stream *stream, const struct wire_frame *frame)
{
	if (frame->channel < 1 || frame->channel > 2 || frame->length != 0 ||
	    stream->outputs[frame->channel - 1].eof) {
		return -EBADMSG;
	}
	stream->outputs[frame->channel - 1].eof = true;
	finish_if_done(stream);
	return 0;
}

static int take_credit(struct stream *stream, const struct wire_frame *frame)
{
	uint32_t credit;

	if (frame->channel != 0 || wire_u32_decode(frame->payload, frame->length, &credit) < 0 ||
	    credit > WIRE_WINDOW - stream->stdin_credit) {
		return -EBADMSG;
	}
	stream->stdin_credit += credit;
	resume_stdin(stream);
	return 0;
}

static int take_exit(struct stream *stream, const struct wire_frame *frame)
{
	if (stream->has_exit ||
	    wire_exit_decode(frame->payload, frame->length, &stream->exit) < 0) {
		return -EBADMSG;
	}
	stream->has_exit = true;
	stream->ended_ns = clock_monotonic_ns();
	finish_if_done(stream);
	return 0;
}

/* Once only: each is told to the client, whose socket must not fill up with them. */
static int take_started(struct stream *stream, const struct wire_frame *frame, bool *ret_started)
{
	if (stream->has_process || stream->has_exit || frame->length != 4) {
		return -EBADMSG;
	}
	stream->has_process = true;
	stream->started_ns = clock_monotonic_ns();
	*ret_started = true;
	return 0;
}

bool stream_first_log(struct stream *stream)
{
	bool first = !stream->has_log;

	stream->has_log = true;
	return first;
}

int stream_frame(struct stream *stream, const struct wire_frame *frame, bool *ret_started)
{
	switch (frame->type) {
	case WIRE_DATA:
		return take_data(stream, frame);
	case WIRE_EOF:
		return take_eof(stream, frame);
	case WIRE_CREDIT:
		return take_credit(stream, frame);
	case WIRE_EXIT:
		return take_exit(stream, frame);
	case WIRE_STARTED:
		return take_started(stream, frame, ret_started);
	default:
		return -EBADMSG;
	}
}

void stream_result(const struct stream *stream, struct ipc_message *ret_message)
{
	*ret_message = (struct ipc_message){.type = IPC_EXITED, .stream = stream->id};
	if (stream->has_exit) {
		ret_message->exited.exit = stream->exit;
		ret_message->exited.ended_ns = stream->ended_ns;
	} else {
		/* The guest did not say how, so it ended as what it was told to end by. */
		ret_message->exited.exit.kind = WIRE_SIGNALED;
		ret_message->exited.exit.value = SIGKILL;
		ret_message->exited.ended_ns = clock_monotonic_ns();
	}
	ret_message->exited.timed_out = stream->timed_out;
	ret_message->exited.stdout_bytes = stream->outputs[0].total;
	ret_message->exited.stderr_bytes = stream->outputs[1].total;
	ret_message->exited.started_ns = stream->started_ns;
}
