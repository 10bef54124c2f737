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
#include "ipc/net.h"

void keeper_guest_broken(struct keeper *keeper, const char *port, const char *what)
{
	char text[160 + IPC_NET_TEXT_SIZE];

	snprintf(text, sizeof(text), "the guest broke the protocol of its %s port: %s", port, what);
	keeper_fail_text(keeper, "guest-broken", text,
			 "something inside has taken over box-guest; the machine was ended");
}

static void broken(struct keeper *keeper, const char *what)
{
	keeper_guest_broken(keeper, "control", what);
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
	struct wire_ready ready;

	if (!keeper->hello || keeper->net.guest_waits ||
	    wire_ready_decode(frame->payload, frame->length, &ready) < 0 ||
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
	snprintf(keeper->ready.release, sizeof(keeper->ready.release), "%s", ready.release);
	snprintf(keeper->ready.version, sizeof(keeper->ready.version), "%s", ready.version);
	snprintf(keeper->ready.boot_id, sizeof(keeper->ready.boot_id), "%s", ready.boot_id);
	if (net_is_ready(keeper)) {
		keeper_guest_ready(keeper);
	} else {
		keeper->net.guest_waits = true;
	}
}

void keeper_guest_ready(struct keeper *keeper)
{
	if (keeper->start.has_copy && live_adopt(keeper) < 0) {
		keeper_fail_text(keeper, "copy",
				 "what ran in the copied machine could not be taken over",
				 "try again");
		return;
	}
	keeper->ready.ready_ns = clock_monotonic_ns();
	keeper->ready.restored = keeper->files.restore;
	keeper->ready.hardware = keeper->files.hardware;
	keeper->ready.monitor_pid = engine_process(keeper->engine)->pid;
	snprintf(keeper->ready.engine, sizeof(keeper->ready.engine), "qemu");
	snprintf(keeper->ready.boot_reason, sizeof(keeper->ready.boot_reason), "%s",
		 keeper->files.boot_reason);
	report_missing(&engine_process(keeper->engine)->missing,
		       keeper->net.spawned ? &keeper->net.process.missing : NULL,
		       keeper->ready.missing, sizeof(keeper->ready.missing));
	if (keeper->start.stay == IPC_STAY_WARM) {
		pool_started(keeper);
	} else {
		keeper_is_up(keeper);
		clock_ask(keeper);
	}
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
	if (keeper->phase == KEEPER_GOING_DOWN && !keeper->attaching) {
		snprintf(line, sizeof(line), "%s: %s", text, strerror((int)error.error));
		keeper_fail_text(keeper, "data-not-written", line,
				 "is the host's disk full? what a program had synced without an "
				 "error is there");
		return;
	}
	snprintf(line, sizeof(line), "the guest could not set its machine up: %s: %s", text,
		 error.error > 0 && error.error < 4096 ? strerror((int)error.error) : "unknown");
	keeper_fail_text(keeper, "guest-setup", line,
			 "build it again: box build --no-cache; is it /data? `box restore` or "
			 "`box reset` puts another in its place");
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
	struct ipc_message message = {.type = IPC_NOTICE};
	struct command *command = command_find(keeper, frame->stream);

	/* wire/ctl.h: at most 1,024 bytes. */
	if (frame->length > 1024) {
		broken(keeper, "a LOG that is too long");
		return;
	}
	/* A flood of them would fill the client's socket, and the result would find no room. */
	if (!command || !stream_first_log(command->stream)) {
		return;
	}
	message.stream = command->number;
	clean_text(frame->payload, frame->length, message.text, sizeof(message.text));
	client_tell(command->client, &message);
}

/* Whether the guest has been asked for what may fail. */
static bool may_fail(const struct keeper *keeper)
{
	enum keeper_phase phase = keeper->phase;

	return keeper->attaching || phase == KEEPER_STARTING || phase == KEEPER_GOING_DOWN ||
	       phase == KEEPER_FREEZING || phase == KEEPER_WARMING || phase == KEEPER_TAKEN;
}

static void take_port_frame(struct keeper *keeper, const struct wire_frame *frame)
{
	bool starting = keeper->phase == KEEPER_STARTING;

	if (frame->type == WIRE_HELLO && starting) {
		take_hello(keeper, frame);
	} else if (frame->type == WIRE_READY && starting) {
		take_ready(keeper, frame);
	} else if (frame->type == WIRE_ERROR && may_fail(keeper)) {
		take_error(keeper, frame);
	} else if (frame->type == WIRE_DETACHED && keeper->phase == KEEPER_WARMING &&
		   commands_signal(keeper, 0) == 0) {
		pool_detached(keeper);
	} else if (frame->type == WIRE_ATTACHED && keeper->attaching) {
		pool_attached(keeper);
	} else if (frame->type == WIRE_LOG) {
		take_log(keeper, frame);
	} else if (frame->type == WIRE_FROZEN && keeper->phase == KEEPER_FREEZING &&
		   keeper->snapshot_fd < 0) {
		keeper_frozen(keeper);
	} else if (frame->type == WIRE_BYE && keeper->phase == KEEPER_GOING_DOWN) {
		keeper_gone_down(keeper);
	} else if (frame->type == WIRE_PAUSED && !starting) {
		if (live_paused(keeper, frame) < 0) {
			broken(keeper, "a PAUSED that nobody had asked for");
		}
	} else if (frame->type == WIRE_TIME && !starting) {
		if (clock_answer(keeper, frame) < 0) {
			broken(keeper, "a TIME that nobody had asked for");
		}
	} else {
		broken(keeper, "a message that is not legal now");
	}
}

static void tell_started(const struct command *command, const struct wire_frame *frame)
{
	struct ipc_message message = {.type = IPC_STARTED, .stream = command->number};

	wire_u32_decode(frame->payload, frame->length, &message.command.number);
	snprintf(message.command.id, sizeof(message.command.id), "%s", command->id);
	client_tell(command->client, &message);
}

void keeper_frame(void *data, const struct wire_frame *frame)
{
	struct keeper *keeper = data;
	struct command *command;
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
	command = command_find(keeper, frame->stream);
	if (!command) {
		/* Credit for a stream that has just ended crosses its end on the way. */
		if (frame->type != WIRE_CREDIT) {
			broken(keeper, "a message for a command that does not run");
		}
		return;
	}
	if (stream_frame(command->stream, frame, &started) < 0) {
		broken(keeper, "a command's message that is not legal now");
		return;
	}
	if (started) {
		tell_started(command, frame);
	}
}

void keeper_port_broken(void *data)
{
	broken(data, "a frame that is no frame");
}

void keeper_port_writable(void *data)
{
	struct keeper *keeper = data;

	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		if (keeper->commands[i].stream) {
			stream_writable(keeper->commands[i].stream);
		}
	}
}
