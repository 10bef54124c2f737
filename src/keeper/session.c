#include "keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"

static void broken(struct keeper *keeper, const char *what)
{
	char text[160];

	snprintf(text, sizeof(text), "the guest broke the protocol of its control port: %s", what);
	keeper_fail_text(keeper, "guest-broken", text,
			 "something inside has taken over box-guest; the machine was ended");
}

static struct stream **find_stream(struct keeper *keeper, uint32_t id)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->streams); i++) {
		if (keeper->streams[i] && stream_id(keeper->streams[i]) == id) {
			return &keeper->streams[i];
		}
	}
	return NULL;
}

static void send_result(struct keeper *keeper, struct stream *stream)
{
	struct stream **slot = find_stream(keeper, stream_id(stream));
	struct ipc_message message;

	stream_result(stream, &message);
	keeper_tell(keeper, &message);
	ASSERT(slot);
	*slot = NULL;
	stream_free(stream);
}

static void on_stream_ended(void *data, struct stream *stream)
{
	send_result(data, stream);
}

static void on_stream_stuck(void *data, struct stream *stream)
{
	struct keeper *keeper = data;

	send_result(keeper, stream);
	keeper_fail_text(keeper, "guest-stuck", "the guest did not end a command when told to",
			 "the machine was ended");
}

/*
 * The proof that the guest has a kernel of its own, looked at again at every start: another boot
 * ID than the host's, and the version of the very file that was booted.
 */
static void check_kernel(struct keeper *keeper, const struct wire_ready *ready)
{
	_cleanup_free_ char *host_boot_id = NULL;
	char version[sizeof(keeper->ready.release) + sizeof(keeper->ready.version) + 2];
	size_t release_length = strlen(ready->release);

	if (read_file_at(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &host_boot_id, NULL) <
		    0 ||
	    strncmp(host_boot_id, ready->boot_id, strlen(ready->boot_id)) == 0 ||
	    ready->boot_id[0] == '\0') {
		keeper_fail_text(keeper, "kernel-not-own",
				 "the proof failed that the machine has a kernel of its own",
				 "do not use this engine; report it as SECURITY.md says");
		return;
	}
	if (kernel_version(keeper->files.kernel.kernel, version, sizeof(version), NULL) < 0 ||
	    strncmp(version, ready->release, release_length) != 0 ||
	    version[release_length] != ' ') {
		keeper_fail_text(keeper, "kernel-differs",
				 "the guest does not run the kernel that it was given",
				 "build it again: box build --no-cache");
	}
}

/* Whether a text of the guest can be passed on: of that size, and nothing that drives a terminal.
 */
static bool fits(const char *text, size_t size)
{
	for (const char *c = text; *c; c++) {
		if (*c < ' ' || *c > '~') {
			return false;
		}
	}
	return strlen(text) < size;
}

static void take_ready(struct keeper *keeper, const struct wire_frame *frame)
{
	struct ipc_message message = {.type = IPC_READY};
	struct wire_ready ready;

	if (!keeper->hello || wire_ready_decode(frame->payload, frame->length, &ready) < 0 ||
	    memcmp(ready.nonce, keeper->nonce, sizeof(keeper->nonce)) != 0 ||
	    !fits(ready.release, sizeof(keeper->ready.release)) ||
	    !fits(ready.version, sizeof(keeper->ready.version)) ||
	    !fits(ready.boot_id, sizeof(keeper->ready.boot_id))) {
		broken(keeper, "a READY that does not answer our SETUP");
		return;
	}
	check_kernel(keeper, &ready);
	if (keeper->phase == KEEPER_ENDING) {
		return;
	}
	keeper->phase = KEEPER_RUNNING;
	loop_timer_cancel(keeper->loop, &keeper->timer);
	keeper->ready.ready_ns = clock_monotonic_ns();
	keeper->ready.restored = keeper->files.restore;
	keeper->ready.hardware = keeper->files.hardware;
	keeper->ready.monitor_pid = engine_process(keeper->engine)->pid;
	snprintf(keeper->ready.engine, sizeof(keeper->ready.engine), "qemu");
	snprintf(keeper->ready.release, sizeof(keeper->ready.release), "%s", ready.release);
	snprintf(keeper->ready.version, sizeof(keeper->ready.version), "%s", ready.version);
	snprintf(keeper->ready.boot_id, sizeof(keeper->ready.boot_id), "%s", ready.boot_id);
	snprintf(keeper->ready.boot_reason, sizeof(keeper->ready.boot_reason), "%s",
		 keeper->files.boot_reason);
	snprintf(keeper->ready.missing, sizeof(keeper->ready.missing), "%s%s%s",
		 engine_process(keeper->engine)->missing.landlock_reason,
		 engine_process(keeper->engine)->missing.landlock ? " " : "",
		 engine_process(keeper->engine)->missing.cgroup_reason);
	message.ready = keeper->ready;
	keeper_tell(keeper, &message);
}

/* Text of the guest for a person: one line, nothing that drives a terminal. */
static void clean_text(const uint8_t *bytes, size_t size, char *out, size_t capacity)
{
	size_t length = MIN(size, capacity - 1);

	for (size_t i = 0; i < length; i++) {
		out[i] = bytes[i] >= ' ' && bytes[i] <= '~' ? (char)bytes[i] : '?';
	}
	out[length] = '\0';
}

static void take_error(struct keeper *keeper, const struct wire_frame *frame)
{
	struct wire_error error;
	char text[256];
	char line[400];

	if (wire_error_decode(frame->payload, frame->length, &error) < 0) {
		broken(keeper, "an ERROR that cannot be read");
		return;
	}
	clean_text((const uint8_t *)error.text, strlen(error.text), text, sizeof(text));
	snprintf(line, sizeof(line), "the guest could not set its machine up: %s: %s", text,
		 error.error > 0 && error.error < 4096 ? strerror((int)error.error) : "unknown");
	keeper_fail_text(keeper, "guest-setup", line, "build it again: box build --no-cache");
}

static void take_hello(struct keeper *keeper, const struct wire_frame *frame)
{
	struct wire_hello hello;

	if (keeper->hello || wire_hello_decode(frame->payload, frame->length, &hello) < 0) {
		broken(keeper, "a HELLO that cannot be read");
		return;
	}
	if (hello.version != WIRE_VERSION) {
		keeper_fail_text(keeper, "version", "the image's box-guest is of another version",
				 "build it again: box build --no-cache");
		return;
	}
	keeper->hello = true;
}

static void take_log(struct keeper *keeper, const struct wire_frame *frame)
{
	struct ipc_message message = {.type = IPC_NOTICE, .stream = frame->stream};
	struct stream **stream = find_stream(keeper, frame->stream);

	/* wire/ctl.h: at most 1,024 bytes. */
	if (frame->length > 1024) {
		broken(keeper, "a LOG that is too long");
		return;
	}
	/* A flood of them would fill the client's socket, and the result would find no room. */
	if (!stream || !stream_first_log(*stream)) {
		return;
	}
	clean_text(frame->payload, frame->length, message.text, sizeof(message.text));
	ipc_send(keeper->client_fd, &message, NULL, 0);
}

static void take_port_frame(struct keeper *keeper, const struct wire_frame *frame)
{
	bool starting = keeper->phase == KEEPER_STARTING;

	if (frame->type == WIRE_HELLO && starting) {
		take_hello(keeper, frame);
	} else if (frame->type == WIRE_READY && starting) {
		take_ready(keeper, frame);
	} else if (frame->type == WIRE_ERROR && (starting || keeper->phase == KEEPER_FREEZING)) {
		take_error(keeper, frame);
	} else if (frame->type == WIRE_LOG) {
		take_log(keeper, frame);
	} else if (frame->type == WIRE_FROZEN && keeper->phase == KEEPER_FREEZING &&
		   keeper->snapshot_fd < 0) {
		keeper_frozen(keeper);
	} else if (frame->type == WIRE_BYE && keeper->phase == KEEPER_GOING_DOWN) {
		keeper_gone_down(keeper);
	} else {
		broken(keeper, "a message that is not legal now");
	}
}

void keeper_frame(void *data, const struct wire_frame *frame)
{
	struct keeper *keeper = data;
	struct stream **stream;
	bool started = false;

	if (keeper->phase == KEEPER_ENDING) {
		return;
	}
	if (frame->stream == 0) {
		take_port_frame(keeper, frame);
		return;
	}
	if (frame->type == WIRE_LOG) {
		take_log(keeper, frame);
		return;
	}
	stream = find_stream(keeper, frame->stream);
	if (!stream) {
		/* Credit for a stream that has just ended crosses its end on the way. */
		if (frame->type != WIRE_CREDIT) {
			broken(keeper, "a message for a command that does not run");
		}
		return;
	}
	if (stream_frame(*stream, frame, &started) < 0) {
		broken(keeper, "a command's message that is not legal now");
		return;
	}
	if (started) {
		struct ipc_message message = {.type = IPC_STARTED, .stream = frame->stream};

		keeper_tell(keeper, &message);
	}
}

void keeper_port_broken(void *data)
{
	broken(data, "a frame that is no frame");
}

void keeper_port_writable(void *data)
{
	struct keeper *keeper = data;

	for (size_t i = 0; i < ARRAY_SIZE(keeper->streams); i++) {
		if (keeper->streams[i]) {
			stream_writable(keeper->streams[i]);
		}
	}
}

/* Sends the command's request; the memory file is the client's and was sealed by it. */
static int send_exec(struct keeper *keeper, uint32_t id, int request_fd)
{
	struct stat status;
	void *payload;
	int rc;

	if (fstat(request_fd, &status) < 0) {
		return -errno;
	}
	if (status.st_size <= 0 || status.st_size > (off_t)WIRE_EXEC_MAX) {
		return -E2BIG;
	}
	payload = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, request_fd, 0);
	if (payload == MAP_FAILED) {
		return -errno;
	}
	rc = control_send_exec(keeper->control, id, payload, (size_t)status.st_size);
	munmap(payload, (size_t)status.st_size);
	return rc;
}

static void refuse_exec(struct keeper *keeper, uint32_t id, int error)
{
	struct ipc_message message = {.type = IPC_EXITED, .stream = id};

	message.exited.exit.kind = WIRE_NOT_STARTED;
	message.exited.exit.value = (uint32_t)error;
	keeper_tell(keeper, &message);
}

static void start_command(struct keeper *keeper, const struct ipc_message *message, int *fds)
{
	struct stream_events events = {
		.ended = on_stream_ended, .stuck = on_stream_stuck, .data = keeper};
	struct stream_config config = {
		.id = message->stream,
		.timeout_seconds = message->exec.timeout_seconds,
	};
	bool has_stdin = message->exec.has_stdin != 0;
	struct stream **slot = NULL;
	int rc;

	for (size_t i = 0; i < ARRAY_SIZE(keeper->streams) && !slot; i++) {
		slot = keeper->streams[i] ? NULL : &keeper->streams[i];
	}
	if (!slot || find_stream(keeper, message->stream) || message->stream == 0) {
		refuse_exec(keeper, message->stream, EBUSY);
		return;
	}
	config.stdin_fd = has_stdin ? TAKE_FD(fds[1]) : -EBADF;
	config.output_fds[0] = TAKE_FD(fds[has_stdin ? 2 : 1]);
	config.output_fds[1] = TAKE_FD(fds[has_stdin ? 3 : 2]);
	rc = stream_new(&config, keeper->control, keeper->loop, &events, slot);
	if (rc == 0) {
		rc = send_exec(keeper, message->stream, fds[0]);
		if (rc < 0) {
			stream_free(TAKE_PTR(*slot));
		}
	}
	if (rc < 0) {
		refuse_exec(keeper, message->stream, -rc);
	}
}

void keeper_message(struct keeper *keeper, const struct ipc_message *message, int *fds)
{
	uint8_t payload[8];
	int size = 0;

	if (keeper->phase != KEEPER_RUNNING) {
		return;
	}
	switch (message->type) {
	case IPC_EXEC:
		start_command(keeper, message, fds);
		break;
	case IPC_SIGNAL:
		size = wire_u32_encode(message->signal.number, payload);
		control_send(keeper->control, WIRE_SIGNAL, 0, message->stream, payload,
			     (size_t)size);
		break;
	case IPC_WINDOW_SIZE:
		size = wire_window_size_encode(message->window.rows, message->window.columns,
					       payload);
		control_send(keeper->control, WIRE_WINDOW_SIZE, 0, message->stream, payload,
			     (size_t)size);
		break;
	case IPC_CLOSE:
		control_send(keeper->control, WIRE_CLOSE, 0, message->stream, NULL, 0);
		break;
	case IPC_SNAPSHOT:
		keeper_freeze(keeper);
		break;
	case IPC_SHUTDOWN:
		keeper_shutdown(keeper);
		break;
	default:
		keeper_fail_text(keeper, "internal", "the client sent an unknown message",
				 "box and box-keeper are of different builds; install again");
		break;
	}
}

void keeper_close_streams(struct keeper *keeper)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->streams); i++) {
		stream_free(TAKE_PTR(keeper->streams[i]));
	}
}
