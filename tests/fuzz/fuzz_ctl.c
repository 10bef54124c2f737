/*
 * Any bytes as a payload of the control port: the first byte is the type. What decodes must encode
 * to the same bytes; so there is one spelling for every message and nothing is lost or added.
 */
#include "fuzz.h"
#include "round.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "wire/ctl.h"
#include "wire/frame.h"

static uint8_t out[WIRE_EXEC_MAX];

/* Each decodes the payload; when that works it encodes it into out and returns the size. */

static int round_hello(const uint8_t *payload, size_t size)
{
	struct wire_hello hello;
	int rc = wire_hello_decode(payload, size, &hello);

	return rc < 0 ? rc : wire_hello_encode(&hello, out);
}

static int round_setup(const uint8_t *payload, size_t size)
{
	struct wire_setup setup;
	int rc = wire_setup_decode(payload, size, &setup);

	if (rc < 0) {
		return rc;
	}
	ASSERT(strlen(setup.hostname) <= WIRE_HOSTNAME_MAX);
	return wire_setup_encode(&setup, out);
}

static int round_ready(const uint8_t *payload, size_t size)
{
	struct wire_ready ready;
	int rc = wire_ready_decode(payload, size, &ready);

	return rc < 0 ? rc : wire_ready_encode(&ready, out);
}

static int round_error(const uint8_t *payload, size_t size)
{
	struct wire_error error;
	int rc = wire_error_decode(payload, size, &error);

	if (rc < 0) {
		return rc;
	}
	ASSERT(error.error > 0 && error.error <= 4095);
	return wire_error_encode(&error, out);
}

static int round_exec(const uint8_t *payload, size_t size)
{
	static const char *argv[WIRE_ARGS_MAX + 1], *envp[WIRE_ARGS_MAX + 1];
	struct wire_exec exec;
	int rc = wire_exec_decode(payload, size, &exec, argv, envp);

	if (rc < 0) {
		return rc;
	}
	ASSERT(exec.argc >= 1 && exec.argc <= WIRE_ARGS_MAX && exec.envc <= WIRE_ARGS_MAX);
	ASSERT(argv[exec.argc] == NULL && envp[exec.envc] == NULL);
	return wire_exec_encode(&exec, argv, envp, out);
}

static int round_u32(const uint8_t *payload, size_t size)
{
	uint32_t value;
	int rc = wire_u32_decode(payload, size, &value);

	return rc < 0 ? rc : wire_u32_encode(value, out);
}

static int round_window_size(const uint8_t *payload, size_t size)
{
	uint16_t rows, columns;
	int rc = wire_window_size_decode(payload, size, &rows, &columns);

	return rc < 0 ? rc : wire_window_size_encode(rows, columns, out);
}

static int round_exit(const uint8_t *payload, size_t size)
{
	struct wire_exit exit;
	int rc = wire_exit_decode(payload, size, &exit);

	return rc < 0 ? rc : wire_exit_encode(&exit, out);
}

/* Question and answer have one type and differ in size. */
static int round_time(const uint8_t *payload, size_t size)
{
	uint64_t token, realtime_ns;
	int question = wire_time_decode(payload, size, &token);
	int answer;

	if (question == 0) {
		ASSERT(wire_time_answer_decode(payload, size, &token, &realtime_ns) == -EBADMSG);
		return wire_time_encode(token, out);
	}
	answer = wire_time_answer_decode(payload, size, &token, &realtime_ns);
	return answer < 0 ? answer : wire_time_answer_encode(token, realtime_ns, out);
}

static int round_clock(const uint8_t *payload, size_t size)
{
	int64_t step_ns;
	int rc = wire_clock_decode(payload, size, &step_ns);

	return rc < 0 ? rc : wire_clock_encode(step_ns, out);
}

static int round_port(const uint8_t *payload, size_t size)
{
	uint16_t port;
	int rc = wire_port_decode(payload, size, &port);

	if (rc < 0) {
		return rc;
	}
	ASSERT(port != 0);
	return wire_port_encode(port, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int (*const rounds[])(const uint8_t *payload, size_t size) = {
		[WIRE_HELLO] = round_hello,
		[WIRE_SETUP] = round_setup,
		[WIRE_READY] = round_ready,
		[WIRE_ERROR] = round_error,
		[WIRE_EXEC] = round_exec,
		[WIRE_STARTED] = round_u32,
		[WIRE_CREDIT] = round_u32,
		[WIRE_SIGNAL] = round_u32,
		[WIRE_WINDOW_SIZE] = round_window_size,
		[WIRE_EXIT] = round_exit,
		[WIRE_TIME] = round_time,
		[WIRE_CLOCK] = round_clock,
		[WIRE_TCP] = round_port,
		[WIRE_PAUSED] = round_u32,
	};
	size_t limit;

	if (size == 0 || data[0] >= ARRAY_SIZE(rounds) || !rounds[data[0]]) {
		return 0;
	}
	limit = data[0] == WIRE_EXEC ? WIRE_EXEC_MAX : WIRE_PAYLOAD_MAX;
	if (size - 1 > limit) {
		return 0;
	}
	fuzz_round(rounds[data[0]], data + 1, size - 1, out);
	return 0;
}
