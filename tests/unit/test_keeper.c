/* The keeper's control port and streams against a guest that this test plays. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "keeper/control.h"
#include "keeper/keeper.h"
#include "keeper/stream.h"
#include "wire/ctl.h"

#define STREAM 7

struct fixture {
	struct loop *loop;
	struct control *control;
	struct stream *stream;
	/* The guest's end, and its decoder. */
	int guest;
	struct wire_decoder *decoder;
	/* The client's ends. */
	int stdin_write;
	int output_read[2];
	int frame_status;
	bool failed;
	bool ended;
	bool stuck;
	unsigned writable;
	struct ipc_message result;
};

static void on_frame(void *data, const struct wire_frame *frame)
{
	struct fixture *f = data;
	bool started;

	if (f->stream) {
		f->frame_status = stream_frame(f->stream, frame, &started);
	}
}

static void on_failed(void *data)
{
	struct fixture *f = data;

	f->failed = true;
}

static void on_writable(void *data)
{
	struct fixture *f = data;

	f->writable++;
	if (f->stream) {
		stream_writable(f->stream);
	}
}

static void on_ended(void *data, struct stream *stream)
{
	struct fixture *f = data;

	stream_result(stream, &f->result);
	f->ended = true;
	f->stream = NULL;
	stream_free(stream);
}

static void on_stuck(void *data, struct stream *stream)
{
	struct fixture *f = data;

	(void)stream;
	f->stuck = true;
	loop_stop(f->loop, 0);
}

static void stop(struct loop *loop, void *data)
{
	(void)data;
	loop_stop(loop, 0);
}

/* Lets the keeper's side work for a moment. */
static void turn(struct fixture *f)
{
	uint64_t timer;

	assert_int_equal(loop_timer_add(f->loop, 5, stop, NULL, &timer), 0);
	assert_true(loop_run(f->loop) >= 0);
}

static int setup_with(void **state, uint32_t timeout_seconds, bool has_stdin)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct control_events control_events = {on_frame, on_failed, on_writable, f};
	struct stream_events stream_events = {on_ended, on_stuck, f};
	struct stream_config config = {
		.id = STREAM,
		.grace_ms = 3000,
		.stdin_fd = -EBADF,
		.timeout_seconds = timeout_seconds,
	};
	int pair[2], ends[2];

	f->decoder = calloc(1, sizeof(*f->decoder));
	f->stdin_write = -EBADF;
	assert_int_equal(loop_new(&f->loop), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	f->guest = pair[1];
	assert_int_equal(control_new(pair[0], f->loop, &control_events, &f->control), 0);
	if (has_stdin) {
		assert_int_equal(pipe(ends), 0);
		config.stdin_fd = ends[0];
		f->stdin_write = ends[1];
		assert_int_equal(set_nonblocking(ends[1], true), 0);
	}
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(pipe(ends), 0);
		f->output_read[i] = ends[0];
		config.output_fds[i] = ends[1];
		assert_int_equal(set_nonblocking(ends[0], true), 0);
	}
	assert_int_equal(stream_new(&config, f->control, f->loop, &stream_events, &f->stream), 0);
	*state = f;
	return 0;
}

static int setup(void **state)
{
	return setup_with(state, 0, true);
}

static int setup_timeout(void **state)
{
	return setup_with(state, 1, false);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	stream_free(f->stream);
	control_free(f->control);
	loop_free(f->loop);
	close_fd(&f->guest);
	close_fd(&f->stdin_write);
	close_fd(&f->output_read[0]);
	close_fd(&f->output_read[1]);
	free(f->decoder);
	free(f);
	return 0;
}

static void guest_says(struct fixture *f, uint8_t type, uint8_t channel, const void *payload,
		       size_t size)
{
	uint8_t header[WIRE_HEADER_SIZE];

	wire_header_encode(header, type, channel, STREAM, (uint32_t)size);
	assert_int_equal(write_full(f->guest, header, sizeof(header)), 0);
	if (size > 0) {
		assert_int_equal(write_full(f->guest, payload, size), 0);
	}
	turn(f);
}

/* The next frame for the guest; false when there is none. */
static bool guest_hears(struct fixture *f, struct wire_frame *ret_frame)
{
	size_t room;
	uint8_t *space;
	ssize_t got;
	int rc = wire_decoder_next(f->decoder, ret_frame);

	if (rc == 0) {
		space = wire_decoder_space(f->decoder, &room);
		got = read(f->guest, space, room);
		if (got > 0) {
			wire_decoder_filled(f->decoder, (size_t)got);
		}
		rc = wire_decoder_next(f->decoder, ret_frame);
	}
	assert_true(rc >= 0);
	return rc > 0;
}

static void guest_exits(struct fixture *f, uint32_t kind, uint32_t value)
{
	struct wire_exit exit = {kind, value};
	uint8_t payload[16];
	int size = wire_exit_encode(&exit, payload);

	guest_says(f, WIRE_EXIT, 0, payload, (size_t)size);
}

static void test_output_and_exit(void **state)
{
	struct fixture *f = *state;
	char bytes[16];

	guest_says(f, WIRE_DATA, 1, "out\0put", 7);
	guest_says(f, WIRE_DATA, 2, "err", 3);
	assert_int_equal(read(f->output_read[0], bytes, sizeof(bytes)), 7);
	assert_memory_equal(bytes, "out\0put", 7);
	assert_int_equal(read(f->output_read[1], bytes, sizeof(bytes)), 3);
	assert_memory_equal(bytes, "err", 3);
	guest_exits(f, WIRE_EXITED, 42);
	assert_false(f->ended);
	guest_says(f, WIRE_EOF, 1, NULL, 0);
	assert_int_equal(read(f->output_read[0], bytes, sizeof(bytes)), 0);
	assert_false(f->ended);
	guest_says(f, WIRE_EOF, 2, NULL, 0);
	assert_true(f->ended);
	assert_int_equal(f->result.exited.exit.kind, WIRE_EXITED);
	assert_int_equal(f->result.exited.exit.value, 42);
	assert_int_equal(f->result.exited.stdout_bytes, 7);
	assert_int_equal(f->result.exited.stderr_bytes, 3);
}

/* Sends until the window is used up. Returns the bytes sent. */
static size_t fill_window(struct fixture *f)
{
	static const uint8_t chunk[16384];
	size_t sent = 0;

	while (sent < WIRE_WINDOW) {
		guest_says(f, WIRE_DATA, 1, chunk, sizeof(chunk));
		assert_int_equal(f->frame_status, 0);
		sent += sizeof(chunk);
	}
	return sent;
}

static void test_guest_beyond_its_credit(void **state)
{
	struct fixture *f = *state;

	fill_window(f);
	/* The pipe took 64 KiB at most, and credit for them may have gone out: use that up too. */
	for (size_t sent = 0; sent <= 65536 && f->frame_status == 0; sent += 1024) {
		static const uint8_t more[1024];

		guest_says(f, WIRE_DATA, 1, more, sizeof(more));
	}
	assert_int_equal(f->frame_status, -EBADMSG);
}

static void test_credit_follows_the_reader(void **state)
{
	struct fixture *f = *state;
	struct wire_frame frame;
	uint64_t credit = 0;
	size_t sent = fill_window(f);
	size_t got_all = 0;

	while (guest_hears(f, &frame)) {
		uint32_t value;

		assert_int_equal(frame.type, WIRE_CREDIT);
		assert_int_equal(wire_u32_decode(frame.payload, frame.length, &value), 0);
		credit += value;
	}
	/* No more than what the pipe took. */
	assert_true(credit <= 65536);
	while (got_all < sent) {
		static uint8_t bytes[32768];
		ssize_t got = read(f->output_read[0], bytes, sizeof(bytes));

		if (got < 0) {
			turn(f);
			continue;
		}
		got_all += (size_t)got;
	}
	turn(f);
	while (guest_hears(f, &frame)) {
		uint32_t value;

		assert_int_equal(wire_u32_decode(frame.payload, frame.length, &value), 0);
		credit += value;
	}
	assert_int_equal(credit, sent);
}

static void test_stdin_stops_at_the_window(void **state)
{
	struct fixture *f = *state;
	static const char chunk[4096];
	struct wire_frame frame;
	size_t written = 0, heard = 0;
	uint8_t payload[8];
	int size = wire_u32_encode(1000, payload);

	for (unsigned i = 0; i < 400; i++) {
		ssize_t put = write(f->stdin_write, chunk, sizeof(chunk));

		written += put > 0 ? (size_t)put : 0;
		turn(f);
		while (guest_hears(f, &frame)) {
			assert_int_equal(frame.type, WIRE_DATA);
			assert_int_equal(frame.channel, 0);
			heard += frame.length;
		}
	}
	assert_true(written > WIRE_WINDOW);
	assert_int_equal(heard, WIRE_WINDOW);
	guest_says(f, WIRE_CREDIT, 0, payload, (size_t)size);
	assert_true(guest_hears(f, &frame));
	assert_int_equal(frame.length, 1000);
}

static void test_stdin_end(void **state)
{
	struct fixture *f = *state;
	struct wire_frame frame;

	assert_int_equal(write_full(f->stdin_write, "last", 4), 0);
	close_fd(&f->stdin_write);
	turn(f);
	assert_true(guest_hears(f, &frame));
	assert_int_equal(frame.type, WIRE_DATA);
	assert_memory_equal(frame.payload, "last", 4);
	assert_true(guest_hears(f, &frame));
	assert_int_equal(frame.type, WIRE_EOF);
}

static void test_illegal_frames(void **state)
{
	static const struct {
		uint8_t type;
		uint8_t channel;
		size_t size;
	} cases[] = {
		{WIRE_DATA, 0, 4},   {WIRE_DATA, 3, 4},	  {WIRE_EOF, 0, 0},  {WIRE_EOF, 1, 1},
		{WIRE_CREDIT, 0, 3}, {WIRE_CREDIT, 1, 4}, {WIRE_EXIT, 0, 4}, {WIRE_HELLO, 0, 0},
		{WIRE_FROZEN, 0, 0}, {WIRE_EXEC, 0, 4},	  {200, 0, 0},
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		f->frame_status = 0;
		guest_says(f, cases[i].type, cases[i].channel, "\1\1\1\1", cases[i].size);
		assert_int_equal(f->frame_status, -EBADMSG);
	}
	/* More credit than the window was never used up. */
	guest_says(f, WIRE_CREDIT, 0, "\1\0\0\0", 4);
	assert_int_equal(f->frame_status, -EBADMSG);
	guest_says(f, WIRE_STARTED, 0, "\1\0\0\0", 4);
	assert_int_equal(f->frame_status, 0);
	guest_says(f, WIRE_STARTED, 0, "\1\0\0\0", 4);
	assert_int_equal(f->frame_status, -EBADMSG);
	guest_exits(f, WIRE_EXITED, 0);
	assert_int_equal(f->frame_status, 0);
	guest_exits(f, WIRE_EXITED, 0);
	assert_int_equal(f->frame_status, -EBADMSG);
	guest_says(f, WIRE_EOF, 1, NULL, 0);
	assert_int_equal(f->frame_status, 0);
	guest_says(f, WIRE_DATA, 1, "x", 1);
	assert_int_equal(f->frame_status, -EBADMSG);
}

static void test_broken_header_fails_the_port(void **state)
{
	struct fixture *f = *state;
	uint8_t header[WIRE_HEADER_SIZE];

	memset(header, 0xff, sizeof(header));
	assert_int_equal(write_full(f->guest, header, sizeof(header)), 0);
	turn(f);
	assert_true(f->failed);
}

static void test_timeout_closes_then_gives_up(void **state)
{
	struct fixture *f = *state;
	struct wire_frame frame;

	assert_true(loop_run(f->loop) >= 0);
	assert_true(f->stuck);
	assert_true(guest_hears(f, &frame));
	assert_int_equal(frame.type, WIRE_CLOSE);
	stream_result(f->stream, &f->result);
	assert_true(f->result.exited.timed_out);
}

/* Lets the keeper's side work for some time. */
static void work(struct fixture *f, uint64_t time_ms)
{
	uint64_t timer;

	assert_int_equal(loop_timer_add(f->loop, time_ms, stop, NULL, &timer), 0);
	assert_true(loop_run(f->loop) >= 0);
	loop_timer_cancel(f->loop, &timer);
}

static size_t read_output(struct fixture *f)
{
	static uint8_t bytes[65536];
	size_t all = 0;
	ssize_t got;

	while ((got = read(f->output_read[0], bytes, sizeof(bytes))) > 0) {
		all += (size_t)got;
		turn(f);
	}
	return all;
}

/* The command was ended in time; only its reader takes long. */
static void test_timeout_waits_for_a_slow_reader(void **state)
{
	struct fixture *f = *state;
	size_t sent;

	/* Most of it waits in the keeper. */
	assert_int_equal(fcntl(f->output_read[0], F_SETPIPE_SZ, 4096), 4096);
	sent = fill_window(f);
	work(f, 1200);
	guest_exits(f, WIRE_SIGNALED, 9);
	work(f, 4000);
	assert_false(f->stuck);
	guest_says(f, WIRE_EOF, 1, NULL, 0);
	guest_says(f, WIRE_EOF, 2, NULL, 0);
	assert_false(f->ended);
	assert_int_equal(read_output(f), sent);
	assert_true(f->ended);
	assert_true(f->result.exited.timed_out);
	assert_int_equal(f->result.exited.exit.kind, WIRE_SIGNALED);
}

static void test_a_command_in_time_with_a_slow_reader(void **state)
{
	struct fixture *f = *state;
	size_t sent = fill_window(f);

	guest_exits(f, WIRE_EXITED, 3);
	guest_says(f, WIRE_EOF, 1, NULL, 0);
	guest_says(f, WIRE_EOF, 2, NULL, 0);
	work(f, 1500);
	assert_int_equal(read_output(f), sent);
	assert_true(f->ended);
	assert_false(f->result.exited.timed_out);
	assert_int_equal(f->result.exited.exit.value, 3);
}

/* A guest cannot put its end off by going on to send. */
static void test_timeout_of_a_guest_that_goes_on(void **state)
{
	static const uint8_t chunk[16384];
	struct fixture *f = *state;

	work(f, 1200);
	guest_exits(f, WIRE_EXITED, 0);
	for (unsigned i = 0; i < 400 && !f->stuck; i++) {
		guest_says(f, WIRE_DATA, 1, chunk, sizeof(chunk));
		read_output(f);
		work(f, 10);
	}
	assert_true(f->stuck);
}

/* A monitor that says it has ended and does not stop sending must not hold the keeper. */
static void test_the_last_words_have_an_end(void **state)
{
	struct fixture *f = *state;
	int status;
	pid_t child;

	assert_int_equal(set_nonblocking(f->guest, false), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		/* Large, so that the reader never finds the socket empty. */
		static uint8_t frames[20000 * WIRE_HEADER_SIZE];

		for (size_t i = 0; i < sizeof(frames); i += WIRE_HEADER_SIZE) {
			wire_header_encode(frames + i, WIRE_DATA, 1, STREAM, 0);
		}
		while (write_full(f->guest, frames, sizeof(frames)) == 0) {
		}
		_exit(0);
	}
	alarm(20);
	control_drain(f->control);
	alarm(0);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
}

/* Who was turned away is told of new room also when an order of someone else had made it. */
static void test_room_made_by_another_order(void **state)
{
	static const uint8_t chunk[16384];
	static uint8_t sink[65536];
	struct fixture *f = *state;

	while (control_has_room(f->control)) {
		assert_int_equal(
			control_send(f->control, WIRE_DATA, 0, STREAM, chunk, sizeof(chunk)), 0);
	}
	turn(f);
	f->writable = 0;
	for (unsigned i = 0; i < 20; i++) {
		while (read(f->guest, sink, sizeof(sink)) > 0) {
		}
		assert_int_equal(control_send(f->control, WIRE_CLOSE, 0, STREAM, NULL, 0), 0);
	}
	assert_true(control_has_room(f->control));
	turn(f);
	assert_true(f->writable > 0);
}

static void assert_hears(struct fixture *f, uint8_t type, uint32_t stream)
{
	struct wire_frame frame;

	assert_true(guest_hears(f, &frame));
	assert_int_equal(frame.type, type);
	assert_int_equal(frame.stream, stream);
}

static void test_a_guest_that_keeps_still_hears_nothing(void **state)
{
	struct fixture *f = *state;
	struct wire_frame frame;

	assert_int_equal(control_send(f->control, WIRE_PAUSE, 0, 0, NULL, 0), 0);
	control_hold(f->control);
	assert_int_equal(control_send(f->control, WIRE_CLOSE, 0, STREAM, NULL, 0), 0);
	assert_int_equal(write_full(f->stdin_write, "input", 5), 0);
	turn(f);
	assert_hears(f, WIRE_PAUSE, 0);
	assert_false(guest_hears(f, &frame));
	control_go_on(f->control, WIRE_RESUME);
	turn(f);
	assert_hears(f, WIRE_RESUME, 0);
	assert_hears(f, WIRE_CLOSE, STREAM);
	assert_true(guest_hears(f, &frame));
	assert_int_equal(frame.type, WIRE_DATA);
	assert_memory_equal(frame.payload, "input", 5);
	/* Twice is once. */
	control_go_on(f->control, WIRE_RESUME);
	turn(f);
	assert_false(guest_hears(f, &frame));
}

/* What was queued before the hold goes out, however long that takes; what comes after waits, until
 * there is no room; the word to go on always has some. */
static void test_a_hold_with_a_full_queue(void **state)
{
	static const uint8_t chunk[16384];
	struct fixture *f = *state;
	struct wire_frame frame;
	unsigned before = 0, after = 0;

	while (control_has_room(f->control)) {
		assert_int_equal(
			control_send(f->control, WIRE_DATA, 0, STREAM, chunk, sizeof(chunk)), 0);
		before++;
	}
	control_hold(f->control);
	while (control_send(f->control, WIRE_DATA, 0, STREAM + 1, chunk, sizeof(chunk)) == 0) {
		after++;
	}
	while (control_send(f->control, WIRE_CLOSE, 0, STREAM + 2, NULL, 0) == 0) {
	}
	assert_true(after > 10);
	for (unsigned i = 0; i < before; i++) {
		turn(f);
		assert_hears(f, WIRE_DATA, STREAM);
	}
	turn(f);
	assert_false(guest_hears(f, &frame));
	control_go_on(f->control, WIRE_RESUME);
	turn(f);
	assert_hears(f, WIRE_RESUME, 0);
	for (unsigned i = 0; i < after; i++) {
		turn(f);
		assert_hears(f, WIRE_DATA, STREAM + 1);
	}
}

static void test_a_stream_of_a_copied_machine(void **state)
{
	struct fixture *f = *state;
	struct stream_events events = {on_ended, on_stuck, f};
	struct stream_state saved;
	struct stream_config config = {.kind = STREAM_SESSION, .stdin_fd = -EBADF};
	uint8_t number[4];
	struct wire_frame frame;
	int ends[2];

	guest_says(f, WIRE_STARTED, 0, "\1\0\0\0", 4);
	guest_says(f, WIRE_EOF, 2, NULL, 0);
	assert_true(stream_save(f->stream, &saved));
	assert_true(saved.has_process && !saved.eof[0] && saved.eof[1] && !saved.has_exit);
	/* The guest's end is the copy's from here on. */
	stream_free(f->stream);
	config.id = saved.id;
	config.state = &saved;
	assert_int_equal(pipe(ends), 0);
	config.stdin_fd = ends[0];
	config.output_fds[0] = config.output_fds[1] = -EBADF;
	assert_int_equal(stream_new(&config, f->control, f->loop, &events, &f->stream), 0);
	/* It may send nothing before it gets credit. */
	assert_int_equal(write_full(ends[1], "typed", 5), 0);
	turn(f);
	assert_false(guest_hears(f, &frame));
	wire_u32_encode(WIRE_WINDOW, number);
	guest_says(f, WIRE_CREDIT, 0, number, sizeof(number));
	turn(f);
	assert_true(guest_hears(f, &frame));
	assert_memory_equal(frame.payload, "typed", 5);
	/* What was said is said. */
	guest_says(f, WIRE_STARTED, 0, "\1\0\0\0", 4);
	assert_int_equal(f->frame_status, -EBADMSG);
	guest_says(f, WIRE_DATA, 2, "x", 1);
	assert_int_equal(f->frame_status, -EBADMSG);
	guest_says(f, WIRE_DATA, 1, "x", 1);
	assert_int_equal(f->frame_status, 0);
	guest_exits(f, WIRE_EXITED, 4);
	assert_false(f->ended);
	assert_true(stream_save(f->stream, &saved) && saved.has_exit && saved.exit.value == 4);
	guest_says(f, WIRE_EOF, 1, NULL, 0);
	assert_true(f->ended);
	close(ends[1]);
}

/* However much a guest has to say, the client learns how its command ended. */
static void test_a_flood_of_logs_leaves_room_for_the_result(void **state)
{
	struct fixture *f = *state;
	_cleanup_free_ struct keeper *keeper = calloc(1, sizeof(*keeper));
	struct wire_frame log = {.type = WIRE_LOG, .stream = STREAM, .length = 2};
	struct ipc_message message = {0};
	int pair[2], fds[IPC_FDS_MAX];
	unsigned notices = 0;

	assert_int_equal(ipc_pair(pair), 0);
	assert_int_equal(set_nonblocking(pair[0], true), 0);
	assert_int_equal(set_nonblocking(pair[1], true), 0);
	keeper->phase = KEEPER_RUNNING;
	keeper->loop = f->loop;
	clients_init(keeper);
	keeper->starter = client_add(keeper, pair[0]);
	keeper->commands[3] =
		(struct command){.stream = f->stream, .client = keeper->starter, .number = 7};
	log.payload = (const uint8_t *)"hi";
	for (unsigned i = 0; i < 10000; i++) {
		log.stream = i % 3 == 0 ? 0 : i % 3 == 1 ? STREAM : STREAM + 1;
		keeper_frame(keeper, &log);
	}
	message.type = IPC_EXITED;
	client_tell(keeper->starter, &message);
	assert_int_equal(keeper->phase, KEEPER_RUNNING);
	while (ipc_receive(pair[1], &message, fds) > 0 && message.type == IPC_NOTICE) {
		assert_string_equal(message.text, "hi");
		assert_int_equal(message.stream, 7);
		notices++;
	}
	assert_int_equal(notices, 1);
	assert_int_equal(message.type, IPC_EXITED);
	/* A client that never reads is not waited for: its machine ends. */
	for (unsigned i = 0; i < 10000 && keeper->phase == KEEPER_RUNNING; i++) {
		client_tell(keeper->starter, &message);
	}
	assert_int_equal(keeper->phase, KEEPER_ENDING);
	assert_null(keeper->starter);
	close(pair[1]);
}

/* What a guest says of itself reaches people and files: one that would drive a terminal is refused.
 */
static void test_ready_with_escape_codes(void **state)
{
	struct fixture *f = *state;
	_cleanup_free_ struct keeper *keeper = calloc(1, sizeof(*keeper));
	_cleanup_free_ uint8_t *payload = malloc(WIRE_PAYLOAD_MAX);
	struct wire_ready ready = {
		.release = "6.1.0", .version = "#1 \033]0;x\007", .boot_id = "not-the-host's"};
	struct wire_frame frame = {.type = WIRE_READY, .payload = payload};
	struct ipc_message message;
	int pair[2], fds[IPC_FDS_MAX];

	assert_int_equal(ipc_pair(pair), 0);
	keeper->phase = KEEPER_STARTING;
	keeper->hello = true;
	keeper->loop = f->loop;
	clients_init(keeper);
	keeper->starter = client_add(keeper, pair[0]);
	frame.length = (uint32_t)wire_ready_encode(&ready, payload);
	keeper_frame(keeper, &frame);
	assert_int_equal(keeper->phase, KEEPER_ENDING);
	assert_int_equal(ipc_receive(pair[1], &message, fds), 1);
	assert_int_equal(message.type, IPC_FAILED);
	assert_string_equal(message.failed.code, "guest-broken");
	clients_close(keeper);
	close(pair[1]);
}

static void test_exec_in_pieces(void **state)
{
	struct fixture *f = *state;
	size_t size = WIRE_PAYLOAD_MAX + 100;
	_cleanup_free_ uint8_t *payload = calloc(1, size);
	struct wire_frame frame;

	assert_int_equal(control_send_exec(f->control, STREAM, payload, size), 0);
	turn(f);
	assert_true(guest_hears(f, &frame));
	assert_int_equal(frame.type, WIRE_EXEC);
	assert_int_equal(frame.channel, 1);
	assert_int_equal(frame.length, WIRE_PAYLOAD_MAX);
	assert_true(guest_hears(f, &frame));
	assert_int_equal(frame.channel, 0);
	assert_int_equal(frame.length, 100);
}

/* What is missing for box-net is told as for the monitor. */
static void test_missing_confinement(void **state)
{
	const struct jail_missing nothing = {.landlock = false};
	const struct jail_missing group = {.cgroup = true, .cgroup_reason = "no group"};
	const struct jail_missing both = {.landlock = true,
					  .cgroup = true,
					  .landlock_reason = "no landlock",
					  .cgroup_reason = "no group"};
	const struct {
		const struct jail_missing *monitor, *net;
		const char *text;
	} cases[] = {
		{&nothing, NULL, ""},
		{&nothing, &nothing, ""},
		{&group, NULL, "no group"},
		{&both, NULL, "no landlock no group"},
		{&group, &nothing, "no group"},
		{&nothing, &group, "box-net: no group"},
		{&both, &both, "no landlock no group; the same for box-net"},
		{&group, &both, "no group; box-net: no landlock no group"},
	};
	char text[sizeof(((struct ipc_ready *)NULL)->missing)];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		report_missing(cases[i].monitor, cases[i].net, text, sizeof(text));
		assert_string_equal(text, cases[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_missing_confinement),
		cmocka_unit_test_setup_teardown(test_output_and_exit, setup, teardown),
		cmocka_unit_test_setup_teardown(test_guest_beyond_its_credit, setup, teardown),
		cmocka_unit_test_setup_teardown(test_credit_follows_the_reader, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stdin_stops_at_the_window, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stdin_end, setup, teardown),
		cmocka_unit_test_setup_teardown(test_illegal_frames, setup, teardown),
		cmocka_unit_test_setup_teardown(test_broken_header_fails_the_port, setup, teardown),
		cmocka_unit_test_setup_teardown(test_timeout_closes_then_gives_up, setup_timeout,
						teardown),
		cmocka_unit_test_setup_teardown(test_timeout_waits_for_a_slow_reader, setup_timeout,
						teardown),
		cmocka_unit_test_setup_teardown(test_a_command_in_time_with_a_slow_reader,
						setup_timeout, teardown),
		cmocka_unit_test_setup_teardown(test_timeout_of_a_guest_that_goes_on, setup_timeout,
						teardown),
		cmocka_unit_test_setup_teardown(test_the_last_words_have_an_end, setup, teardown),
		cmocka_unit_test_setup_teardown(test_room_made_by_another_order, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_guest_that_keeps_still_hears_nothing, setup,
						teardown),
		cmocka_unit_test_setup_teardown(test_a_hold_with_a_full_queue, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_stream_of_a_copied_machine, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_flood_of_logs_leaves_room_for_the_result,
						setup, teardown),
		cmocka_unit_test_setup_teardown(test_ready_with_escape_codes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_exec_in_pieces, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
