/*
 * Theory of operation.
 *
 * Frames of the host flow in through a decoder; a table says which type is legal in which state,
 * on which channel, and whether it belongs to a stream. Answers and output flow out through one
 * outbox. Every turn of the loop gives every stream one chance to put what it has (stream.h),
 * beginning with another stream each time, writes what the port takes, and waits in poll(2).
 *
 * The loop is poll(2) over an array, not base/loop: after a restore under emulation each kernel
 * function that runs for the first time is translated first, and this way the first command needs
 * no calls to register and remove its descriptors.
 *
 * Paused, nothing is put in the outbox but PAUSED, and no stream is looked at: what a command has
 * written waits in its pipe. A copy of the machine begins there with another host's end, and keeps
 * still until that has sent SETUP.
 *
 * What may never happen: that the port is waited for while a command runs, that a frame is lost
 * (other than an answer to TIME that nobody reads), that anything is allocated after session_new,
 * that a message of the host is acted upon in a state in which wire/ctl.h does not list it.
 */
#include "guest/session.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/cgroup.h"
#include "guest/exec.h"
#include "guest/outbox.h"
#include "guest/stream.h"
#include "wire/frame.h"

/* After BYE or ERROR the host ends the machine; when it does not within this time, we do. */
#define FAREWELL_MS 5000u
/* Children reaped in one turn: a storm of them must not keep the host's messages waiting. */
#define REAP_MAX 256
/* How often an absent host is looked for: rarely enough to cost nothing. */
#define ABSENCE_STEP_MS 10
/* The port and the signals, then the streams. */
#define POLL_PORT 0
#define POLL_SIGNALS 1
#define POLLS_FIXED 2

enum session_state {
	STATE_WAITING = 1u << 0,
	/* HELLO was answered. */
	STATE_GREETED = 1u << 1,
	STATE_RUNNING = 1u << 2,
	STATE_GOING_DOWN = 1u << 3,
	STATE_PAUSED = 1u << 4,
};

struct session {
	struct session_config config;
	enum session_state state;
	bool done;
	int signal_fd;
	/* Children that have ended were left for the next turn. */
	bool reap_again;
	uint64_t farewell_ns;
	/* Since when the host's end has been away, or 0. */
	uint64_t absent_ns;
	/* /data was mounted, and the host is still to hear of it. */
	bool attached_due;
	/* Of a pause: since when, whether its answer is still to be put and with which errno,
	 * whether the commands were stopped, and whether HELLO came in it. */
	uint64_t paused_ns;
	bool paused_due;
	uint32_t paused_error;
	bool commands_stopped;
	bool new_life;
	struct err *err;

	/* Slots from this one on are free. */
	unsigned stream_end;
	/* Where the next turn begins. */
	unsigned stream_first;
	struct stream streams[WIRE_STREAMS_MAX];
	/* Input rings of all streams: address space, and memory only where it was used. */
	uint8_t *rings;

	struct pollfd polls[POLLS_FIXED + STREAM_POLLS_MAX * WIRE_STREAMS_MAX];
	unsigned poll_counts[WIRE_STREAMS_MAX];

	/* An EXEC in several frames: its stream, or 0, and what has come of it. */
	uint32_t joining;
	size_t joined_bytes;
	uint8_t joined[WIRE_EXEC_MAX];

	struct wire_decoder decoder;
	struct outbox outbox;
	struct cgroups cgroups;
	struct exec_context exec;
	/* Where answers are encoded. */
	uint8_t answer[WIRE_PAYLOAD_MAX];
};

#define RINGS_BYTES ((size_t)WIRE_STREAMS_MAX * WIRE_WINDOW)

int session_new(const struct session_config *config, struct session **ret_session)
{
	struct session *session = calloc(1, sizeof(*session));
	sigset_t signals;
	int rc;

	if (!session) {
		return -ENOMEM;
	}
	session->config = *config;
	session->state = STATE_WAITING;
	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	exec_init(&session->exec, config->passwd_path, config->group_path);
	cgroups_init(&session->cgroups, config->cgroup_fd);
	session->rings = mmap(NULL, RINGS_BYTES, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	session->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	if (session->signal_fd < 0 || session->rings == MAP_FAILED) {
		rc = -errno;
		session_free(session);
		return rc;
	}
	cgroups_prepare(&session->cgroups);
	rc = exec_prepare(&session->exec);
	if (rc < 0) {
		session_free(session);
		return rc;
	}
	*ret_session = session;
	return 0;
}

static void drop_streams(struct session *session)
{
	for (unsigned i = 0; i < session->stream_end; i++) {
		struct stream *stream = &session->streams[i];

		if (stream->number != 0) {
			cgroups_release(&session->cgroups, stream->cgroup);
			stream_release(stream);
		}
	}
	session->stream_end = 0;
	session->joining = 0;
}

void session_free(struct session *session)
{
	if (!session) {
		return;
	}
	drop_streams(session);
	close_fd(&session->signal_fd);
	cgroups_close(&session->cgroups);
	exec_close(&session->exec);
	if (session->rings && session->rings != MAP_FAILED) {
		munmap(session->rings, RINGS_BYTES);
	}
	free(session);
}

/* ---- What is said outside of streams ---- */

static int broken(struct session *session, const char *what, const struct wire_frame *frame)
{
	return err_set(
		session->err, -EBADMSG, "protocol",
		"the host's message breaks the protocol: %s (type %u, channel %u, stream %u, "
		"%u bytes)",
		what, frame->type, frame->channel, frame->stream, frame->length);
}

/* Writes all of the outbox, waiting for the port. Only while no command runs. */
static int flush_all(struct session *session)
{
	for (;;) {
		struct pollfd port = {.fd = session->config.port_fd, .events = POLLOUT};
		int rc = outbox_flush(&session->outbox, session->config.port_fd);

		if (rc < 0 || outbox_empty(&session->outbox)) {
			return rc;
		}
		if (poll(&port, 1, -1) < 0 && errno != EINTR) {
			return -errno;
		}
		if (port.revents & (POLLHUP | POLLERR)) {
			return -EPIPE;
		}
	}
}

/* Says something on the port itself. size is what an encoder returned for session->answer. */
static int say(struct session *session, enum wire_ctl_type type, int size)
{
	struct wire_frame frame = {.type = (uint8_t)type, .payload = session->answer};

	ASSERT(size >= 0);
	frame.length = (uint32_t)size;
	if (!outbox_put(&session->outbox, &frame)) {
		int rc = flush_all(session);

		if (rc < 0) {
			return rc;
		}
		ASSERT(outbox_put(&session->outbox, &frame));
	}
	return 0;
}

static void go_down(struct session *session)
{
	session->state = STATE_GOING_DOWN;
	session->farewell_ns = clock_monotonic_ns() + FAREWELL_MS * UINT64_C(1000000);
}

static int say_error(struct session *session, int error, const char *text)
{
	struct wire_error message = {.error = (uint32_t)-error, .text = text};

	go_down(session);
	return say(session, WIRE_ERROR, wire_error_encode(&message, session->answer));
}

/* ---- Messages of the host ---- */

static int on_hello(struct session *session, const struct wire_frame *frame)
{
	struct wire_hello hello;
	struct wire_hello ours = {.magic = WIRE_MAGIC, .version = WIRE_VERSION};
	int rc;

	if (wire_hello_decode(frame->payload, frame->length, &hello) < 0) {
		return broken(session, "bad HELLO", frame);
	}
	rc = say(session, WIRE_HELLO, wire_hello_encode(&ours, session->answer));
	if (rc == 0 && hello.version != WIRE_VERSION) {
		return say_error(session, -EPROTO,
				 "the host and this machine's box-guest are of different versions");
	}
	session->new_life = session->state == STATE_PAUSED;
	session->state = STATE_GREETED;
	return rc;
}

/* Paused, or a new life of what was paused that was not set up, or not yet. */
static bool keeps_still(const struct session *session)
{
	return session->state == STATE_PAUSED || session->new_life;
}

/* What was paused goes on. */
static void end_pause(struct session *session)
{
	const struct session_hooks *hooks = session->config.hooks;

	hooks->resume(hooks->data);
	if (session->commands_stopped) {
		cgroups_thaw(&session->cgroups);
	}
	session->commands_stopped = false;
	session->new_life = false;
	session->state = STATE_RUNNING;
}

/* A copy of a paused machine: commands go on for another host's end, which has no connections. */
static void take_streams_over(struct session *session)
{
	for (unsigned i = 0; i < session->stream_end; i++) {
		struct stream *stream = &session->streams[i];

		if (stream->number != 0 && stream->kind == STREAM_TCP) {
			stream_release(stream);
		} else if (stream->number != 0) {
			stream_take_over(stream);
		}
	}
}

static int on_setup(struct session *session, const struct wire_frame *frame)
{
	const struct session_hooks *hooks = session->config.hooks;
	struct wire_setup setup;
	struct wire_ready ready;
	struct err err = {.code = ""};
	int rc;

	if (wire_setup_decode(frame->payload, frame->length, &setup) < 0) {
		return broken(session, "bad SETUP", frame);
	}
	rc = hooks->setup(hooks->data, &setup, &ready, &err);
	if (rc < 0) {
		return say_error(session, rc, err.text);
	}
	memcpy(ready.nonce, setup.nonce, sizeof(ready.nonce));
	if (session->new_life) {
		take_streams_over(session);
		end_pause(session);
	}
	session->state = STATE_RUNNING;
	return say(session, WIRE_READY, wire_ready_encode(&ready, session->answer));
}

static struct stream *find_stream(struct session *session, uint32_t number)
{
	for (unsigned i = 0; i < session->stream_end; i++) {
		if (session->streams[i].number == number) {
			return &session->streams[i];
		}
	}
	return NULL;
}

static struct stream *open_stream(struct session *session, uint32_t number)
{
	for (unsigned i = 0; i < WIRE_STREAMS_MAX; i++) {
		struct stream *stream = &session->streams[i];

		if (stream->number == 0) {
			stream_open(stream, number, session->rings + (size_t)i * WIRE_WINDOW);
			session->stream_end = MAX(session->stream_end, i + 1);
			return stream;
		}
	}
	return NULL;
}

static int start_command(struct session *session, const struct wire_frame *frame,
			 const uint8_t *payload, size_t size)
{
	struct exec_context *context = &session->exec;
	struct exec_started started;
	struct wire_exec exec;
	struct stream *stream;
	int rc;

	if (wire_exec_decode(payload, size, &exec, context->argv, context->envp) < 0) {
		return broken(session, "bad EXEC", frame);
	}
	stream = open_stream(session, frame->stream);
	if (!stream) {
		return broken(session, "too many streams", frame);
	}
	stream->cgroup = cgroups_take(&session->cgroups);
	rc = exec_start(context, &exec, cgroups_fd(&session->cgroups, stream->cgroup), &started,
			stream->reason);
	if (rc < 0) {
		stream_not_started(stream, rc);
	} else {
		stream_started(stream, &exec, &started);
	}
	return 0;
}

static int on_tcp(struct session *session, const struct wire_frame *frame)
{
	struct stream *stream;
	uint16_t port;

	if (wire_port_decode(frame->payload, frame->length, &port) < 0) {
		return broken(session, "bad TCP", frame);
	}
	if (find_stream(session, frame->stream) || session->joining == frame->stream) {
		return broken(session, "the stream is in use", frame);
	}
	stream = open_stream(session, frame->stream);
	if (!stream) {
		return broken(session, "too many streams", frame);
	}
	stream_connect(stream, port);
	return 0;
}

static int on_exec(struct session *session, const struct wire_frame *frame)
{
	bool more = frame->channel == 1;

	if (session->joining != 0 && session->joining != frame->stream) {
		return broken(session, "EXEC while another is incomplete", frame);
	}
	if (session->joining == 0 && find_stream(session, frame->stream)) {
		return broken(session, "the stream is in use", frame);
	}
	if (session->joining == 0 && !more) {
		return start_command(session, frame, frame->payload, frame->length);
	}
	if (session->joining == 0) {
		session->joining = frame->stream;
		session->joined_bytes = 0;
	}
	if (frame->length > sizeof(session->joined) - session->joined_bytes) {
		return broken(session, "EXEC is too long", frame);
	}
	memcpy(session->joined + session->joined_bytes, frame->payload, frame->length);
	session->joined_bytes += frame->length;
	if (more) {
		return 0;
	}
	session->joining = 0;
	return start_command(session, frame, session->joined, session->joined_bytes);
}

/* Messages to a stream that has ended are dropped: the two sides cross on the way. */
static int on_data(struct session *session, const struct wire_frame *frame)
{
	struct stream *stream = find_stream(session, frame->stream);

	if (stream && stream_data(stream, frame->payload, frame->length) < 0) {
		return broken(session, "input without credit, after its end, or for none", frame);
	}
	return 0;
}

static int on_eof(struct session *session, const struct wire_frame *frame)
{
	struct stream *stream = find_stream(session, frame->stream);

	if (frame->length != 0) {
		return broken(session, "EOF with a payload", frame);
	}
	if (stream) {
		stream_eof(stream);
	}
	return 0;
}

static int on_credit(struct session *session, const struct wire_frame *frame)
{
	struct stream *stream = find_stream(session, frame->stream);
	uint32_t bytes;

	if (wire_u32_decode(frame->payload, frame->length, &bytes) < 0) {
		return broken(session, "bad CREDIT", frame);
	}
	if (stream && stream_credit(stream, frame->channel, bytes) < 0) {
		return broken(session, "more credit than the window", frame);
	}
	return 0;
}

static int on_signal(struct session *session, const struct wire_frame *frame)
{
	struct stream *stream = find_stream(session, frame->stream);
	uint32_t number;

	if (wire_u32_decode(frame->payload, frame->length, &number) < 0 || number < 1 ||
	    number > (uint32_t)SIGRTMAX) {
		return broken(session, "bad SIGNAL", frame);
	}
	if (stream) {
		stream_signal(stream, (int)number);
	}
	return 0;
}

static int on_window_size(struct session *session, const struct wire_frame *frame)
{
	struct stream *stream = find_stream(session, frame->stream);
	uint16_t rows, columns;

	if (wire_window_size_decode(frame->payload, frame->length, &rows, &columns) < 0) {
		return broken(session, "bad WINDOW_SIZE", frame);
	}
	if (stream) {
		stream_window_size(stream, rows, columns);
	}
	return 0;
}

static int on_close(struct session *session, const struct wire_frame *frame)
{
	struct stream *stream = find_stream(session, frame->stream);

	if (frame->length != 0) {
		return broken(session, "CLOSE with a payload", frame);
	}
	if (stream) {
		stream_signal(stream, SIGKILL);
		cgroups_kill(&session->cgroups, stream->cgroup);
		stream_close(stream);
	}
	return 0;
}

/* The answer goes before all output that waits, so that it says how far away the host is. */
static int on_time(struct session *session, const struct wire_frame *frame)
{
	struct wire_frame answer = {.type = WIRE_TIME, .payload = session->answer};
	uint64_t token;
	int rc;

	if (wire_time_decode(frame->payload, frame->length, &token) < 0) {
		return broken(session, "bad TIME", frame);
	}
	rc = wire_time_answer_encode(token, clock_realtime_ns(), session->answer);
	ASSERT(rc >= 0);
	answer.length = (uint32_t)rc;
	/* Without room the host has left many answers unread. One more would tell it nothing. */
	(void)outbox_put_urgent(&session->outbox, &answer);
	return 0;
}

static int on_clock(struct session *session, const struct wire_frame *frame)
{
	const struct session_hooks *hooks = session->config.hooks;
	int64_t step_ns;

	if (wire_clock_decode(frame->payload, frame->length, &step_ns) < 0) {
		return broken(session, "bad CLOCK", frame);
	}
	hooks->step_clock(hooks->data, step_ns);
	return 0;
}

static int on_attach(struct session *session, const struct wire_frame *frame)
{
	const struct session_hooks *hooks = session->config.hooks;
	struct err err = {.code = ""};
	int rc;

	if (frame->length != 0) {
		return broken(session, "ATTACH with a payload", frame);
	}
	rc = hooks->attach(hooks->data, &err);
	if (rc < 0) {
		return say_error(session, rc, err.text);
	}
	/* Said in the next turn: commands may run, so the port is not to be waited for. */
	session->attached_due = true;
	return 0;
}

/* Says that /data was mounted when that is still to be said. Only while no command runs. */
static int catch_up(struct session *session)
{
	bool due = session->attached_due;

	session->attached_due = false;
	return due ? say(session, WIRE_ATTACHED, 0) : 0;
}

/* Drops the streams, whose commands a hook has ended, and prepares for the next command. */
static int start_afresh(struct session *session)
{
	int rc;

	drop_streams(session);
	rc = catch_up(session);
	if (rc < 0) {
		return rc;
	}
	cgroups_prepare(&session->cgroups);
	rc = exec_prepare(&session->exec);
	return rc < 0 ? say_error(session, rc, "cannot prepare for the next command") : 0;
}

static int on_detach(struct session *session, const struct wire_frame *frame)
{
	const struct session_hooks *hooks = session->config.hooks;
	struct err err = {.code = ""};
	int rc;

	if (frame->length != 0) {
		return broken(session, "DETACH with a payload", frame);
	}
	if (session->joining != 0) {
		return broken(session, "DETACH while an EXEC is incomplete", frame);
	}
	rc = hooks->detach(hooks->data, &err);
	if (rc < 0) {
		return say_error(session, rc, err.text);
	}
	rc = start_afresh(session);
	if (rc < 0 || session->state == STATE_GOING_DOWN) {
		return rc;
	}
	return say(session, WIRE_DETACHED, 0);
}

/* Everything is made ready for the next life first, so that nothing runs after FROZEN. */
static int on_freeze(struct session *session, const struct wire_frame *frame)
{
	const struct session_hooks *hooks = session->config.hooks;
	struct err err = {.code = ""};
	int rc;

	if (frame->length != 0 || !wire_decoder_empty(&session->decoder)) {
		return broken(session, "FREEZE is not the last message", frame);
	}
	rc = hooks->freeze(hooks->data, &err);
	if (rc < 0) {
		return say_error(session, rc, err.text);
	}
	rc = start_afresh(session);
	if (rc < 0 || session->state == STATE_GOING_DOWN) {
		return rc;
	}
	wire_decoder_reset(&session->decoder);
	session->state = STATE_WAITING;
	rc = say(session, WIRE_FROZEN, 0);
	return rc < 0 ? rc : flush_all(session);
}

static int on_shutdown(struct session *session, const struct wire_frame *frame)
{
	const struct session_hooks *hooks = session->config.hooks;
	struct err err = {.code = ""};
	int written, rc;

	if (frame->length != 0) {
		return broken(session, "SHUTDOWN with a payload", frame);
	}
	written = hooks->shutdown(hooks->data, frame->channel == 1, &err);
	drop_streams(session);
	rc = catch_up(session);
	if (rc < 0) {
		return rc;
	}
	if (written < 0) {
		return say_error(session, written, err.text);
	}
	go_down(session);
	return say(session, WIRE_BYE, 0);
}

/* Commands first: one that is stopped while it waits for the frozen file system cannot stop. */
static int pause_all(struct session *session, bool commands_too)
{
	const struct session_hooks *hooks = session->config.hooks;
	int rc = 0;

	for (unsigned i = 0; commands_too && i < session->stream_end; i++) {
		const struct stream *stream = &session->streams[i];

		if (stream->number != 0 && stream->kind == STREAM_COMMAND && !stream->exited &&
		    stream->cgroup < 0) {
			return -EOPNOTSUPP;
		}
	}
	if (commands_too) {
		rc = cgroups_freeze(&session->cgroups);
	}
	if (rc == 0) {
		session->commands_stopped = commands_too;
		rc = hooks->pause(hooks->data);
		if (rc < 0 && commands_too) {
			session->commands_stopped = false;
			cgroups_thaw(&session->cgroups);
		}
	}
	return rc;
}

static int on_pause(struct session *session, const struct wire_frame *frame)
{
	int rc;

	if (frame->length != 0) {
		return broken(session, "PAUSE with a payload", frame);
	}
	if (session->joining != 0 || session->paused_due) {
		return broken(session, "PAUSE while something else is incomplete", frame);
	}
	rc = pause_all(session, frame->channel == 1);
	if (rc == 0) {
		session->state = STATE_PAUSED;
		session->paused_ns = clock_monotonic_ns();
	}
	session->paused_error = (uint32_t)-rc;
	/* Said in the next turn: commands may run, so the port is not to be waited for. */
	session->paused_due = true;
	return 0;
}

static int on_resume(struct session *session, const struct wire_frame *frame)
{
	if (frame->length != 0) {
		return broken(session, "RESUME with a payload", frame);
	}
	if (session->state == STATE_PAUSED) {
		end_pause(session);
	}
	return 0;
}

/* The table of wire/ctl.h. Types that are not in it are never legal from the host. */
static const struct rule {
	int (*handler)(struct session *session, const struct wire_frame *frame);
	unsigned states;
	/* For the port itself, stream 0; otherwise for a stream. */
	bool port;
	/* Bit n: channel n is allowed. */
	unsigned channels;
} rules[] = {
	[WIRE_HELLO] = {on_hello, STATE_WAITING | STATE_PAUSED, true, 1u << 0},
	[WIRE_SETUP] = {on_setup, STATE_GREETED, true, 1u << 0},
	[WIRE_TCP] = {on_tcp, STATE_RUNNING, false, 1u << 0},
	[WIRE_EXEC] = {on_exec, STATE_RUNNING, false, 1u << 0 | 1u << 1},
	[WIRE_DATA] = {on_data, STATE_RUNNING, false, 1u << 0},
	[WIRE_EOF] = {on_eof, STATE_RUNNING, false, 1u << 0},
	[WIRE_CREDIT] = {on_credit, STATE_RUNNING, false, 1u << 1 | 1u << 2},
	[WIRE_SIGNAL] = {on_signal, STATE_RUNNING, false, 1u << 0},
	[WIRE_WINDOW_SIZE] = {on_window_size, STATE_RUNNING, false, 1u << 0},
	[WIRE_CLOSE] = {on_close, STATE_RUNNING, false, 1u << 0},
	[WIRE_TIME] = {on_time, STATE_RUNNING, true, 1u << 0},
	[WIRE_CLOCK] = {on_clock, STATE_RUNNING, true, 1u << 0},
	[WIRE_ATTACH] = {on_attach, STATE_RUNNING, true, 1u << 0},
	[WIRE_DETACH] = {on_detach, STATE_RUNNING, true, 1u << 0},
	[WIRE_PAUSE] = {on_pause, STATE_RUNNING, true, 1u << 0 | 1u << 1},
	[WIRE_RESUME] = {on_resume, STATE_RUNNING | STATE_PAUSED, true, 1u << 0},
	[WIRE_FREEZE] = {on_freeze, STATE_RUNNING, true, 1u << 0},
	[WIRE_SHUTDOWN] = {on_shutdown, STATE_RUNNING, true, 1u << 0 | 1u << 1},
};

static int handle_frame(struct session *session, const struct wire_frame *frame)
{
	const struct rule *rule;

	if (session->state == STATE_GOING_DOWN) {
		/* The two sides cross on the way. */
		return 0;
	}
	if (frame->type >= ARRAY_SIZE(rules) || !rules[frame->type].handler) {
		return broken(session, "unknown type", frame);
	}
	rule = &rules[frame->type];
	if (!(rule->states & session->state)) {
		return broken(session, "not now", frame);
	}
	if (rule->port != (frame->stream == 0)) {
		return broken(session, "wrong stream", frame);
	}
	if (frame->channel > 2 || !(rule->channels & (1u << frame->channel))) {
		return broken(session, "wrong channel", frame);
	}
	return rule->handler(session, frame);
}

/* ---- The loop ---- */

/* The host's end is away. Waits for it while nothing runs, otherwise brings everything to rest. */
static void host_absent(struct session *session)
{
	const struct session_hooks *hooks = session->config.hooks;
	uint64_t now = clock_monotonic_ns();
	struct err err = {.code = ""};

	if (session->state == STATE_RUNNING) {
		/* Nobody is left to tell. */
		hooks->shutdown(hooks->data, false, &err);
		session->done = true;
		return;
	}
	if (session->absent_ns == 0) {
		session->absent_ns = now;
	}
	if (session->state == STATE_GOING_DOWN ||
	    now - session->absent_ns >= session->config.absence_ms * UINT64_C(1000000)) {
		if (session->state == STATE_PAUSED) {
			/* The next turn brings everything to rest. */
			end_pause(session);
			return;
		}
		session->done = true;
		return;
	}
	poll(NULL, 0, ABSENCE_STEP_MS);
}

static int receive(struct session *session)
{
	struct wire_frame frame;
	size_t space;
	uint8_t *target = wire_decoder_space(&session->decoder, &space);
	ssize_t got = read(session->config.port_fd, target, space);
	int rc;

	if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
		return 0;
	}
	if (got < 0 && errno != ECONNRESET) {
		return err_set(session->err, -errno, "port", "cannot read the control port: %s",
			       strerrordesc_np(errno));
	}
	if (got <= 0) {
		host_absent(session);
		return 0;
	}
	session->absent_ns = 0;
	wire_decoder_filled(&session->decoder, (size_t)got);
	while ((rc = wire_decoder_next(&session->decoder, &frame)) > 0) {
		rc = handle_frame(session, &frame);
		if (rc < 0) {
			return rc;
		}
	}
	return rc < 0 ? err_set(session->err, rc, "protocol",
				"the host's bytes on the control port are no frames")
		      : 0;
}

static void reap(struct session *session)
{
	struct signalfd_siginfo ignored;
	uint64_t now = clock_monotonic_ns();

	/* Signals of several children may have become one, so this only says: look. */
	(void)!read(session->signal_fd, &ignored, sizeof(ignored));
	session->reap_again = true;
	for (int count = 0; count < REAP_MAX; count++) {
		siginfo_t info = {.si_pid = 0};

		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) < 0 || info.si_pid == 0) {
			session->reap_again = false;
			break;
		}
		for (unsigned i = 0; i < session->stream_end; i++) {
			struct stream *stream = &session->streams[i];

			if (stream->number != 0 && !stream->exited && stream->pid == info.si_pid) {
				stream_exited(stream, &info, now);
			}
		}
	}
}

static void emit_attached(struct session *session)
{
	const struct wire_frame frame = {.type = WIRE_ATTACHED};

	if (session->attached_due && outbox_put(&session->outbox, &frame)) {
		session->attached_due = false;
	}
}

static void emit_paused(struct session *session)
{
	struct wire_frame frame = {.type = WIRE_PAUSED, .payload = session->answer};

	if (session->paused_due) {
		frame.length = (uint32_t)wire_u32_encode(session->paused_error, session->answer);
		session->paused_due = !outbox_put(&session->outbox, &frame);
	}
}

static uint64_t pause_end_ns(const struct session *session)
{
	return session->paused_ns + session->config.pause_max_ms * UINT64_C(1000000);
}

static void emit_streams(struct session *session)
{
	uint64_t now = session->stream_end > 0 ? clock_monotonic_ns() : 0;
	unsigned count = session->stream_end;

	for (unsigned i = 0; i < count; i++) {
		struct stream *stream = &session->streams[(session->stream_first + i) % count];

		if (stream->number == 0) {
			continue;
		}
		stream_emit(stream, &session->outbox, now);
		if (stream_ended(stream)) {
			cgroups_release(&session->cgroups, stream->cgroup);
			stream_release(stream);
		}
	}
	session->stream_first = count > 0 ? (session->stream_first + 1) % count : 0;
	while (session->stream_end > 0 && session->streams[session->stream_end - 1].number == 0) {
		session->stream_end--;
	}
}

/* Fills the array for poll(2). Returns the number of entries; *ret_timeout_ms is -1 for ever. */
static unsigned collect_polls(struct session *session, int *ret_timeout_ms)
{
	bool room = outbox_room(&session->outbox) >= STREAM_ROOM_MIN;
	uint64_t deadline = session->reap_again ? 0 : UINT64_MAX, now = 0;
	bool still = keeps_still(session);
	unsigned count = POLLS_FIXED;

	session->polls[POLL_PORT] = (struct pollfd){.fd = session->config.port_fd};
	session->polls[POLL_PORT].events =
		(short)(POLLIN | (outbox_empty(&session->outbox) ? 0 : POLLOUT));
	session->polls[POLL_SIGNALS] = (struct pollfd){.fd = session->signal_fd, .events = POLLIN};
	for (unsigned i = 0; i < session->stream_end; i++) {
		struct stream *stream = &session->streams[i];

		session->poll_counts[i] = 0;
		if (stream->number == 0 || still) {
			continue;
		}
		session->poll_counts[i] = stream_poll(stream, &session->polls[count]);
		count += session->poll_counts[i];
		deadline = MIN(deadline, stream_deadline_ns(stream));
		if (room && stream_wants_turn(stream)) {
			deadline = 0;
		}
	}
	if (session->state == STATE_GOING_DOWN) {
		deadline = MIN(deadline, session->farewell_ns);
	}
	if (session->state == STATE_PAUSED) {
		deadline = MIN(deadline, pause_end_ns(session));
	}
	if (deadline != UINT64_MAX && deadline != 0) {
		now = clock_monotonic_ns();
	}
	*ret_timeout_ms = -1;
	if (deadline != UINT64_MAX) {
		*ret_timeout_ms = deadline <= now ? 0 : (int)((deadline - now) / 1000000u + 1);
	}
	return count;
}

static void hand_out_polls(struct session *session)
{
	const struct pollfd *polls = &session->polls[POLLS_FIXED];
	/* Handling the port may have opened streams, for which nothing was polled. */
	unsigned end = session->stream_end;

	for (unsigned i = 0; i < end; i++) {
		stream_polled(&session->streams[i], polls, session->poll_counts[i]);
		polls += session->poll_counts[i];
	}
}

static int turn(struct session *session)
{
	short port_events;
	int timeout_ms, rc;
	unsigned count;

	emit_attached(session);
	if (!keeps_still(session)) {
		emit_streams(session);
	}
	emit_paused(session);
	rc = outbox_flush(&session->outbox, session->config.port_fd);
	if (rc == -EPIPE || rc == -ECONNRESET) {
		host_absent(session);
		return 0;
	}
	if (rc < 0) {
		return err_set(session->err, rc, "port", "cannot write to the control port: %s",
			       strerrordesc_np(-rc));
	}
	count = collect_polls(session, &timeout_ms);
	if (poll(session->polls, count, timeout_ms) < 0) {
		return errno == EINTR ? 0
				      : err_set(session->err, -errno, "poll", "poll failed: %s",
						strerrordesc_np(errno));
	}
	hand_out_polls(session);
	if (session->polls[POLL_SIGNALS].revents != 0 || session->reap_again) {
		reap(session);
	}
	port_events = session->polls[POLL_PORT].revents;
	if (port_events & POLLIN) {
		return receive(session);
	}
	if (port_events & (POLLHUP | POLLERR)) {
		host_absent(session);
	}
	if (session->state == STATE_GOING_DOWN && clock_monotonic_ns() >= session->farewell_ns) {
		session->done = true;
	}
	if (session->state == STATE_PAUSED && clock_monotonic_ns() >= pause_end_ns(session)) {
		end_pause(session);
	}
	return 0;
}

int session_run(struct session *session, struct err *err)
{
	session->err = err;
	while (!session->done) {
		int rc = turn(session);

		if (rc < 0) {
			/* Which of our own answers could not be sent is of no interest any more. */
			return rc == -EBADMSG ? rc : err_context(err, rc, "control port");
		}
	}
	return 0;
}
