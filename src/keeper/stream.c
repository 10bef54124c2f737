#include "keeper/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "wire/ctl.h"

/* Credit goes out in pieces of at least this, so that it does not cost a frame for each write. */
#define CREDIT_STEP (WIRE_WINDOW / 4)
/* After CLOSE the guest only has to kill and to say so. */
#define CLOSE_GRACE_MS 3000
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

static void send_u32(struct stream *stream, uint8_t type, uint8_t channel, uint32_t value)
{
	uint8_t payload[4];
	int size = wire_u32_encode(value, payload);

	control_send(stream->control, type, channel, stream->id, payload, (size_t)size);
}

static void finish_if_done(struct stream *stream)
{
	for (size_t i = 0; i < ARRAY_SIZE(stream->outputs); i++) {
		struct output *output = &stream->outputs[i];

		if (output->eof && output->filled == 0) {
			close_watched(stream, &output->fd);
		}
		if (!output->eof || output->filled > 0) {
			return;
		}
	}
	if (stream->has_exit && !stream->ended) {
		stream->ended = true;
		close_watched(stream, &stream->stdin_fd);
		loop_timer_cancel(stream->loop, &stream->timer);
		stream->events.ended(stream->events.data, stream);
	}
}

/* Gives credit for what has left the buffer. */
static void give_credit(struct stream *stream, struct output *output)
{
	if (!output->eof && (output->owed >= CREDIT_STEP || output->filled == 0) &&
	    output->owed > 0) {
		output->credit += output->owed;
		send_u32(stream, WIRE_CREDIT, (uint8_t)(1 + (output - stream->outputs)),
			 output->owed);
		output->owed = 0;
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
			close_watched(stream, &output->fd);
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
	if (events & EPOLLERR) {
		close_watched(stream, &output->fd);
	}
	flush_output(stream, output);
	finish_if_done(stream);
}

static void watch_stdin(struct stream *stream)
{
	if (stream->stdin_fd >= 0) {
		bool wanted = stream->stdin_credit > 0 && control_has_room(stream->control);

		loop_modify(stream->loop, stream->stdin_fd, wanted ? EPOLLIN : 0);
	}
}

static void end_stdin(struct stream *stream)
{
	close_watched(stream, &stream->stdin_fd);
	if (!stream->stdin_eof && !stream->has_exit) {
		control_send(stream->control, WIRE_EOF, 0, stream->id, NULL, 0);
	}
	stream->stdin_eof = true;
}

static void on_stdin(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct stream *stream = data;
	uint8_t bytes[16384];
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
	if (stream->stdin_fd >= 0 && stream->stdin_credit > 0) {
		loop_add(stream->loop, stream->stdin_fd, EPOLLIN, on_stdin, stream);
		watch_stdin(stream);
	}
}

void stream_writable(struct stream *stream)
{
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
		loop_timer_add(loop, CLOSE_GRACE_MS, on_grace_over, stream, &stream->timer);
		return;
	}
	stream->events.stuck(stream->events.data, stream);
}

static void on_timeout(struct loop *loop, void *data)
{
	struct stream *stream = data;

	/* A command that has ended was in time, however long its output takes to be read. */
	stream->timed_out = !stream->has_exit;
	stream->closed_total = output_total(stream);
	stream->seen_total = stream->closed_total;
	control_send(stream->control, WIRE_CLOSE, 0, stream->id, NULL, 0);
	loop_timer_add(loop, CLOSE_GRACE_MS, on_grace_over, stream, &stream->timer);
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
		if (rc == 0 && output->fd >= 0) {
			rc = set_nonblocking(output->fd, true);
		}
		if (rc == 0 && output->fd >= 0) {
			rc = loop_add(loop, output->fd, 0, on_output, stream);
		}
	}
	if (rc == 0 && stream->stdin_fd >= 0) {
		rc = set_nonblocking(stream->stdin_fd, true);
	}
	if (rc == 0 && stream->stdin_fd >= 0) {
		rc = loop_add(loop, stream->stdin_fd, EPOLLIN, on_stdin, stream);
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
	ret_message->exited.exit = stream->exit;
	ret_message->exited.timed_out = stream->timed_out;
	ret_message->exited.stdout_bytes = stream->outputs[0].total;
	ret_message->exited.stderr_bytes = stream->outputs[1].total;
	ret_message->exited.started_ns = stream->started_ns;
	ret_message->exited.ended_ns = stream->ended_ns;
}
