#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "wire/bytes.h"
#include "wire/ctl.h"
#include "wire/frame.h"

static uint8_t payload[WIRE_EXEC_MAX];

/* A copy of exactly size bytes, so that a sanitizer sees a read of one byte more. */
static uint8_t *exact(const uint8_t *bytes, size_t size)
{
	uint8_t *copy = malloc(size > 0 ? size : 1);

	assert_non_null(copy);
	memcpy(copy, bytes, size);
	return copy;
}

/* Every decoder behind one face, the result thrown away. */
static int try_hello(const uint8_t *bytes, size_t size)
{
	struct wire_hello hello;

	return wire_hello_decode(bytes, size, &hello);
}

static int try_setup(const uint8_t *bytes, size_t size)
{
	struct wire_setup setup;

	return wire_setup_decode(bytes, size, &setup);
}

static int try_ready(const uint8_t *bytes, size_t size)
{
	struct wire_ready ready;

	return wire_ready_decode(bytes, size, &ready);
}

static int try_error(const uint8_t *bytes, size_t size)
{
	struct wire_error error;

	return wire_error_decode(bytes, size, &error);
}

static int try_exit(const uint8_t *bytes, size_t size)
{
	struct wire_exit exit;

	return wire_exit_decode(bytes, size, &exit);
}

static int try_u32(const uint8_t *bytes, size_t size)
{
	uint32_t value;

	return wire_u32_decode(bytes, size, &value);
}

static int try_window_size(const uint8_t *bytes, size_t size)
{
	uint16_t rows, columns;

	return wire_window_size_decode(bytes, size, &rows, &columns);
}

static int try_time(const uint8_t *bytes, size_t size)
{
	uint64_t token;

	return wire_time_decode(bytes, size, &token);
}

static int try_time_answer(const uint8_t *bytes, size_t size)
{
	uint64_t token, realtime_ns;

	return wire_time_answer_decode(bytes, size, &token, &realtime_ns);
}

static int try_clock(const uint8_t *bytes, size_t size)
{
	int64_t step_ns;

	return wire_clock_decode(bytes, size, &step_ns);
}

static int try_port(const uint8_t *bytes, size_t size)
{
	uint16_t port;

	return wire_port_decode(bytes, size, &port);
}

static const char *argv_out[WIRE_ARGS_MAX + 1], *envp_out[WIRE_ARGS_MAX + 1];

static int try_exec(const uint8_t *bytes, size_t size)
{
	struct wire_exec exec;

	return wire_exec_decode(bytes, size, &exec, argv_out, envp_out);
}

/*
 * The payload (a good one of size bytes) is refused when it is cut at any length, and when one byte
 * follows it.
 */
static void assert_exact_size(int (*decode)(const uint8_t *bytes, size_t size), int size)
{
	assert_true(size > 0);
	for (size_t cut = 0; cut <= (size_t)size + 1; cut++) {
		_cleanup_free_ uint8_t *copy = exact(payload, cut);

		assert_int_equal(decode(copy, cut), cut == (size_t)size ? 0 : -EBADMSG);
	}
}

static void test_bytes(void **state)
{
	uint8_t buffer[64];
	struct wire_writer writer = wire_writer_over(buffer, 1 + 2 + 4 + 8 + 3 + 4 + 3);
	struct wire_reader reader;
	static const uint8_t expected[] = {0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04, 0x0f, 0x0e,
					   0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08, 'a',  'b',  'c',
					   3,	 0,    0,    0,	   'h',	 'i',  0};

	(void)state;
	wire_put_u8(&writer, 0x01);
	wire_put_u16(&writer, 0x0203);
	wire_put_u32(&writer, 0x04050607);
	wire_put_u64(&writer, 0x08090a0b0c0d0e0f);
	wire_put_bytes(&writer, "abc", 3);
	wire_put_string(&writer, "hi");
	assert_false(writer.failed);
	assert_int_equal(writer.size, sizeof(expected));
	assert_memory_equal(buffer, expected, sizeof(expected));
	/* It is full: one byte more fails, and from then on nothing is written. */
	wire_put_bytes(&writer, NULL, 0);
	assert_false(writer.failed);
	buffer[sizeof(expected)] = 0xee;
	wire_put_u8(&writer, 1);
	assert_true(writer.failed);
	assert_int_equal(writer.size, sizeof(expected));
	assert_int_equal(buffer[sizeof(expected)], 0xee);

	reader = wire_reader_over(expected, sizeof(expected));
	assert_int_equal(wire_get_u8(&reader), 0x01);
	assert_int_equal(wire_get_u16(&reader), 0x0203);
	assert_int_equal(wire_get_u32(&reader), 0x04050607);
	assert_true(wire_get_u64(&reader) == 0x08090a0b0c0d0e0f);
	assert_memory_equal(wire_get_bytes(&reader, 3), "abc", 3);
	assert_false(wire_reader_done(&reader));
	assert_string_equal(wire_get_string(&reader), "hi");
	assert_true(wire_reader_done(&reader));
	assert_int_equal(wire_get_u8(&reader), 0);
	assert_false(wire_reader_done(&reader));
}

static void test_reader_fails_for_good(void **state)
{
	static const uint8_t bytes[] = {1, 2, 3, 4, 5};
	struct wire_reader reader = wire_reader_over(bytes, sizeof(bytes));

	(void)state;
	assert_null(wire_get_bytes(&reader, SIZE_MAX));
	assert_true(reader.failed);
	/* What would fit is no longer read either. */
	assert_int_equal(wire_get_u8(&reader), 0);
	assert_int_equal(wire_get_u32(&reader), 0);
	assert_null(wire_get_bytes(&reader, 0));
	assert_false(wire_reader_done(&reader));
	/* A field that is cut gives zeros, not its beginning. */
	reader = wire_reader_over(bytes, 3);
	assert_int_equal(wire_get_u32(&reader), 0);
	assert_true(reader.failed);
	reader = wire_reader_over(NULL, 0);
	assert_true(wire_reader_done(&reader));
	assert_int_equal(wire_get_u64(&reader), 0);
	assert_true(reader.failed);
}

static void test_strings(void **state)
{
	static const struct {
		uint8_t bytes[8];
		size_t size;
		const char *text;
	} cases[] = {
		{{1, 0, 0, 0, 0}, 5, ""},
		{{2, 0, 0, 0, 'a', 0}, 6, "a"},
		{{0, 0, 0, 0}, 4, NULL},
		{{1, 0, 0, 0, 'a'}, 5, NULL},
		{{2, 0, 0, 0, 'a', 'b'}, 6, NULL},
		{{2, 0, 0, 0, 0, 0}, 6, NULL},
		{{3, 0, 0, 0, 'a', 0, 0}, 7, NULL},
		{{3, 0, 0, 0, 'a', 0}, 6, NULL},
		{{0xff, 0xff, 0xff, 0xff, 'a', 0}, 6, NULL},
		{{1, 0, 0}, 3, NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ uint8_t *copy = exact(cases[i].bytes, cases[i].size);
		struct wire_reader reader = wire_reader_over(copy, cases[i].size);
		const char *text = wire_get_string(&reader);

		if (!cases[i].text) {
			assert_null(text);
			assert_true(reader.failed);
			continue;
		}
		assert_string_equal(text, cases[i].text);
		assert_true(wire_reader_done(&reader));
	}
}

static void test_hello(void **state)
{
	struct wire_hello hello = {.magic = WIRE_MAGIC, .version = 7}, back = {0};
	int size = wire_hello_encode(&hello, payload);

	(void)state;
	assert_int_equal(size, 6);
	assert_memory_equal(payload, "box1", 4);
	assert_int_equal(wire_hello_decode(payload, 6, &back), 0);
	assert_int_equal(back.magic, WIRE_MAGIC);
	/* Which versions are spoken is decided above. */
	assert_int_equal(back.version, 7);
	assert_exact_size(try_hello, size);
	back.version = 99;
	payload[0] ^= 1;
	assert_int_equal(wire_hello_decode(payload, 6, &back), -EBADMSG);
	assert_int_equal(back.version, 99);
}

static struct wire_setup sample_setup(const char *hostname)
{
	struct wire_setup setup = {
		.flags = WIRE_SETUP_DATA | WIRE_SETUP_READONLY,
		.realtime_ns = 0x1122334455667788,
		.hostname = hostname,
	};

	memset(setup.nonce, 'n', sizeof(setup.nonce));
	memset(setup.seed, 's', sizeof(setup.seed));
	memset(setup.machine_id, 'm', sizeof(setup.machine_id));
	return setup;
}

static void test_setup(void **state)
{
	struct wire_setup setup = sample_setup("box-1"), back;
	int size = wire_setup_encode(&setup, payload);
	char hostname[WIRE_HOSTNAME_MAX + 2];

	(void)state;
	assert_int_equal(size, 4 + 8 + 32 + 64 + 16 + 4 + 6);
	assert_int_equal(wire_setup_decode(payload, (size_t)size, &back), 0);
	assert_int_equal(back.flags, setup.flags);
	assert_true(back.realtime_ns == setup.realtime_ns);
	assert_memory_equal(back.nonce, setup.nonce, sizeof(setup.nonce));
	assert_memory_equal(back.seed, setup.seed, sizeof(setup.seed));
	assert_memory_equal(back.machine_id, setup.machine_id, sizeof(setup.machine_id));
	assert_string_equal(back.hostname, "box-1");
	assert_exact_size(try_setup, size);
	payload[0] = 4;
	assert_int_equal(try_setup(payload, (size_t)size), -EBADMSG);
	payload[0] = 0;
	assert_int_equal(try_setup(payload, (size_t)size), 0);
	payload[3] = 0x80;
	assert_int_equal(try_setup(payload, (size_t)size), -EBADMSG);

	memset(hostname, 'h', sizeof(hostname));
	hostname[WIRE_HOSTNAME_MAX + 1] = '\0';
	setup = sample_setup(hostname);
	size = wire_setup_encode(&setup, payload);
	assert_int_equal(try_setup(payload, (size_t)size), -EBADMSG);
	hostname[WIRE_HOSTNAME_MAX] = '\0';
	size = wire_setup_encode(&setup, payload);
	assert_int_equal(try_setup(payload, (size_t)size), 0);
}

static void test_ready(void **state)
{
	struct wire_ready ready = {.release = "6.1.0", .version = "#1 SMP", .boot_id = ""}, back;
	int size;

	(void)state;
	memset(ready.nonce, 0xa5, sizeof(ready.nonce));
	size = wire_ready_encode(&ready, payload);
	assert_int_equal(wire_ready_decode(payload, (size_t)size, &back), 0);
	assert_memory_equal(back.nonce, ready.nonce, sizeof(ready.nonce));
	assert_string_equal(back.release, "6.1.0");
	assert_string_equal(back.version, "#1 SMP");
	assert_string_equal(back.boot_id, "");
	assert_exact_size(try_ready, size);
}

static void test_error(void **state)
{
	struct wire_error error = {.error = EIO, .text = "no disk"}, back;
	static const uint32_t wrong[] = {0, 4096, 0x80000000u, UINT32_MAX};
	int size = wire_error_encode(&error, payload);

	(void)state;
	assert_int_equal(wire_error_decode(payload, (size_t)size, &back), 0);
	assert_int_equal(back.error, EIO);
	assert_string_equal(back.text, "no disk");
	assert_exact_size(try_error, size);
	/* An error that says 0 would be taken for success. */
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		error.error = wrong[i];
		size = wire_error_encode(&error, payload);
		assert_int_equal(try_error(payload, (size_t)size), -EBADMSG);
	}
	error.error = 4095;
	size = wire_error_encode(&error, payload);
	assert_int_equal(try_error(payload, (size_t)size), 0);
}

static void test_exit(void **state)
{
	static const struct {
		struct wire_exit exit;
		int rc;
	} cases[] = {
		{{WIRE_EXITED, 0}, 0},
		{{WIRE_EXITED, 255}, 0},
		{{WIRE_EXITED, 256}, -EBADMSG},
		{{WIRE_SIGNALED, 0}, -EBADMSG},
		{{WIRE_SIGNALED, 1}, 0},
		{{WIRE_SIGNALED, 64}, 0},
		{{WIRE_SIGNALED, 65}, -EBADMSG},
		{{WIRE_NOT_STARTED, 0}, -EBADMSG},
		{{WIRE_NOT_STARTED, 2}, 0},
		{{WIRE_NOT_STARTED, 4095}, 0},
		{{WIRE_NOT_STARTED, 4096}, -EBADMSG},
		{{3, 1}, -EBADMSG},
		{{UINT32_MAX, 1}, -EBADMSG},
		{{WIRE_EXITED, UINT32_MAX}, -EBADMSG},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct wire_exit back = {99, 99};

		assert_int_equal(wire_exit_encode(&cases[i].exit, payload), 8);
		assert_int_equal(wire_exit_decode(payload, 8, &back), cases[i].rc);
		assert_int_equal(back.kind, cases[i].rc == 0 ? cases[i].exit.kind : 99);
		assert_int_equal(back.value, cases[i].rc == 0 ? cases[i].exit.value : 99);
	}
	wire_exit_encode(&cases[0].exit, payload);
	assert_exact_size(try_exit, 8);
}

static void test_integers(void **state)
{
	uint32_t value = 0;
	uint16_t rows = 0, columns = 0;

	(void)state;
	assert_int_equal(wire_u32_encode(0x01020304, payload), 4);
	assert_memory_equal(payload, "\x04\x03\x02\x01", 4);
	assert_int_equal(wire_u32_decode(payload, 4, &value), 0);
	assert_int_equal(value, 0x01020304);
	assert_exact_size(try_u32, 4);
	assert_int_equal(wire_window_size_encode(24, 65535, payload), 4);
	assert_memory_equal(payload, "\x18\x00\xff\xff", 4);
	assert_int_equal(wire_window_size_decode(payload, 4, &rows, &columns), 0);
	assert_int_equal(rows, 24);
	assert_int_equal(columns, 65535);
	assert_exact_size(try_window_size, 4);
}

static void test_time(void **state)
{
	uint64_t token = 0, realtime_ns = 0;

	(void)state;
	assert_int_equal(wire_time_encode(0x0102030405060708, payload), 8);
	assert_memory_equal(payload, "\x08\x07\x06\x05\x04\x03\x02\x01", 8);
	assert_int_equal(wire_time_decode(payload, 8, &token), 0);
	assert_true(token == 0x0102030405060708);
	assert_exact_size(try_time, 8);
	assert_int_equal(wire_time_answer_encode(UINT64_MAX, 2, payload), 16);
	assert_memory_equal(payload,
			    "\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x00\x00\x00", 16);
	assert_int_equal(wire_time_answer_decode(payload, 16, &token, &realtime_ns), 0);
	assert_true(token == UINT64_MAX);
	assert_true(realtime_ns == 2);
	assert_exact_size(try_time_answer, 16);
	/* A question is no answer; what it was to be written to stays. */
	token = 5;
	assert_int_equal(wire_time_answer_decode(payload, 8, &token, &realtime_ns), -EBADMSG);
	assert_int_equal(wire_time_decode(payload, 16, &token), -EBADMSG);
	assert_true(token == 5 && realtime_ns == 2);
}

static void test_clock(void **state)
{
	static const int64_t steps[] = {0, 1, -1, INT64_MAX, INT64_MIN, -1500000000};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		int64_t back = 99;

		assert_int_equal(wire_clock_encode(steps[i], payload), 8);
		assert_int_equal(wire_clock_decode(payload, 8, &back), 0);
		assert_true(back == steps[i]);
		assert_int_equal(wire_clock_decode(payload, 7, &back), -EBADMSG);
		assert_true(back == steps[i]);
	}
	wire_clock_encode(-2, payload);
	assert_memory_equal(payload, "\xfe\xff\xff\xff\xff\xff\xff\xff", 8);
	assert_exact_size(try_clock, 8);
}

static void test_port(void **state)
{
	uint16_t port = 99;

	(void)state;
	assert_int_equal(wire_port_encode(0x1f90, payload), 2);
	assert_memory_equal(payload, "\x90\x1f", 2);
	assert_int_equal(wire_port_decode(payload, 2, &port), 0);
	assert_int_equal(port, 8080);
	assert_exact_size(try_port, 2);
	wire_port_encode(65535, payload);
	assert_int_equal(wire_port_decode(payload, 2, &port), 0);
	assert_int_equal(port, 65535);
	wire_port_encode(0, payload);
	assert_int_equal(wire_port_decode(payload, 2, &port), -EBADMSG);
	assert_int_equal(port, 65535);
}

static struct wire_exec sample_exec(uint32_t argc, uint32_t envc)
{
	return (struct wire_exec){
		.flags = WIRE_EXEC_TERMINAL | WIRE_EXEC_STDIN,
		.rows = 24,
		.columns = 80,
		.user = "root",
		.directory = "/root",
		.argc = argc,
		.envc = envc,
	};
}

static void test_exec(void **state)
{
	static const char *const argv[] = {"sh", "-c", "", "echo \xff"};
	static const char *const envp[] = {"A=b", "C="};
	struct wire_exec exec = sample_exec(4, 2), back = {0};
	int size = wire_exec_encode(&exec, argv, envp, payload);

	(void)state;
	assert_true(size > 0);
	assert_int_equal(wire_exec_decode(payload, (size_t)size, &back, argv_out, envp_out), 0);
	assert_int_equal(back.flags, 3);
	assert_int_equal(back.rows, 24);
	assert_int_equal(back.columns, 80);
	assert_string_equal(back.user, "root");
	assert_string_equal(back.directory, "/root");
	assert_int_equal(back.argc, 4);
	assert_int_equal(back.envc, 2);
	for (size_t i = 0; i < ARRAY_SIZE(argv); i++) {
		assert_string_equal(argv_out[i], argv[i]);
	}
	assert_null(argv_out[4]);
	assert_string_equal(envp_out[0], "A=b");
	assert_string_equal(envp_out[1], "C=");
	assert_null(envp_out[2]);
	assert_exact_size(try_exec, size);
	exec.directory = "";
	exec.envc = 0;
	exec.flags = 0;
	size = wire_exec_encode(&exec, argv, NULL, payload);
	assert_int_equal(wire_exec_decode(payload, (size_t)size, &back, argv_out, envp_out), 0);
	assert_string_equal(back.directory, "");
	assert_null(envp_out[0]);
	assert_exact_size(try_exec, size);
}

static void test_exec_refused(void **state)
{
	static const char *const argv[] = {"x"};
	struct wire_exec exec = sample_exec(1, 0);
	int size;

	(void)state;
	exec.user = "";
	size = wire_exec_encode(&exec, argv, NULL, payload);
	assert_int_equal(try_exec(payload, (size_t)size), -EBADMSG);
	exec = sample_exec(1, 0);
	exec.directory = "tmp";
	size = wire_exec_encode(&exec, argv, NULL, payload);
	assert_int_equal(try_exec(payload, (size_t)size), -EBADMSG);
	exec = sample_exec(1, 0);
	exec.flags = WIRE_EXEC_SELF;
	size = wire_exec_encode(&exec, argv, NULL, payload);
	assert_int_equal(try_exec(payload, (size_t)size), 0);
	exec.flags = 8;
	size = wire_exec_encode(&exec, argv, NULL, payload);
	assert_int_equal(try_exec(payload, (size_t)size), -EBADMSG);
	exec = sample_exec(0, 0);
	size = wire_exec_encode(&exec, argv, NULL, payload);
	assert_int_equal(try_exec(payload, (size_t)size), -EBADMSG);
	/* Counts that lie about what follows. */
	exec = sample_exec(1, 0);
	size = wire_exec_encode(&exec, argv, NULL, payload);
	assert_int_equal(try_exec(payload, (size_t)size), 0);
	for (size_t i = 0; i < 2; i++) {
		uint8_t *count = payload + 8 + (4 + 5) + (4 + 6) + 4 * i;
		uint8_t kept = *count;

		*count = (uint8_t)(kept + 1);
		assert_int_equal(try_exec(payload, (size_t)size), -EBADMSG);
		memset(count, 0xff, 4);
		assert_int_equal(try_exec(payload, (size_t)size), -EBADMSG);
		memset(count, 0, 4);
		*count = kept;
	}
	assert_int_equal(try_exec(payload, (size_t)size), 0);
}

static void test_exec_limits(void **state)
{
	const char **many = calloc(WIRE_ARGS_MAX + 1, sizeof(*many));
	_cleanup_free_ char *large = malloc(WIRE_EXEC_MAX);
	struct wire_exec exec = sample_exec(WIRE_ARGS_MAX, WIRE_ARGS_MAX);
	const char *one[1];
	int size;

	(void)state;
	assert_true(many && large);
	for (size_t i = 0; i <= WIRE_ARGS_MAX; i++) {
		many[i] = "a=b";
	}
	size = wire_exec_encode(&exec, many, many, payload);
	assert_int_equal(try_exec(payload, (size_t)size), 0);
	assert_null(argv_out[WIRE_ARGS_MAX]);
	assert_null(envp_out[WIRE_ARGS_MAX]);
	exec = sample_exec(WIRE_ARGS_MAX + 1, 0);
	size = wire_exec_encode(&exec, many, many, payload);
	assert_int_equal(try_exec(payload, (size_t)size), -EBADMSG);
	exec = sample_exec(1, WIRE_ARGS_MAX + 1);
	size = wire_exec_encode(&exec, many, many, payload);
	assert_int_equal(try_exec(payload, (size_t)size), -EBADMSG);
	free(many);
	/* The largest that fits, and one byte more. */
	exec = sample_exec(1, 0);
	one[0] = large;
	size = 8 + (4 + 5) + (4 + 6) + 8 + (4 + 1);
	memset(large, 'a', WIRE_EXEC_MAX);
	large[WIRE_EXEC_MAX - (size_t)size] = '\0';
	assert_int_equal(wire_exec_encode(&exec, one, NULL, payload), WIRE_EXEC_MAX);
	assert_int_equal(try_exec(payload, WIRE_EXEC_MAX), 0);
	large[WIRE_EXEC_MAX - (size_t)size] = 'a';
	large[WIRE_EXEC_MAX - (size_t)size + 1] = '\0';
	assert_int_equal(wire_exec_encode(&exec, one, NULL, payload), -EMSGSIZE);
}

static void test_encode_too_large(void **state)
{
	_cleanup_free_ char *large = malloc(WIRE_PAYLOAD_MAX + 1);
	struct wire_error error = {.error = 1, .text = large};
	struct wire_ready ready = {.release = large, .version = "", .boot_id = ""};
	struct wire_setup setup;

	(void)state;
	assert_non_null(large);
	memset(large, 'a', WIRE_PAYLOAD_MAX);
	large[WIRE_PAYLOAD_MAX] = '\0';
	setup = sample_setup(large);
	assert_int_equal(wire_error_encode(&error, payload), -EMSGSIZE);
	assert_int_equal(wire_setup_encode(&setup, payload), -EMSGSIZE);
	assert_int_equal(wire_ready_encode(&ready, payload), -EMSGSIZE);
	large[WIRE_PAYLOAD_MAX - 9] = '\0';
	assert_int_equal(wire_error_encode(&error, payload), WIRE_PAYLOAD_MAX);
	large[WIRE_PAYLOAD_MAX - 9] = 'a';
	large[WIRE_PAYLOAD_MAX - 8] = '\0';
	assert_int_equal(wire_error_encode(&error, payload), -EMSGSIZE);
}

/* Frames of many lengths, one after the other. */
struct stream {
	uint8_t *bytes;
	size_t size;
	unsigned frames;
};

static const uint32_t lengths[] = {0, 1, 5, 0, 300, WIRE_PAYLOAD_MAX, 2, WIRE_PAYLOAD_MAX, 4095, 0};

static uint8_t payload_byte(unsigned frame, uint32_t at)
{
	return (uint8_t)(frame * 31 + at * 7 + (at >> 8));
}

static struct stream make_stream(void)
{
	struct stream stream = {.bytes = malloc(ARRAY_SIZE(lengths) * WIRE_FRAME_MAX)};

	assert_non_null(stream.bytes);
	for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
		wire_header_encode(stream.bytes + stream.size, (uint8_t)(i + 1), (uint8_t)(255 - i),
				   0xfffffff0u + i, lengths[i]);
		stream.size += WIRE_HEADER_SIZE;
		for (uint32_t at = 0; at < lengths[i]; at++) {
			stream.bytes[stream.size++] = payload_byte(i, at);
		}
		stream.frames++;
	}
	return stream;
}

static void assert_frame(const struct wire_frame *frame, unsigned i)
{
	assert_int_equal(frame->type, i + 1);
	assert_int_equal(frame->channel, 255 - i);
	assert_true(frame->stream == 0xfffffff0u + i);
	assert_int_equal(frame->length, lengths[i]);
	for (uint32_t at = 0; at < frame->length; at++) {
		if (frame->payload[at] != payload_byte(i, at)) {
			fail_msg("frame %u differs at %u", i, at);
		}
	}
}

static void test_frame_pieces(void **state)
{
	static const size_t pieces[] = {1,   2,	   3,	  7,	 11,	12,   13,
					127, 4096, 32767, 32768, 32769, 65536};
	struct stream stream = make_stream();
	struct wire_decoder *decoder = malloc(sizeof(*decoder));

	(void)state;
	assert_non_null(decoder);
	for (size_t p = 0; p < ARRAY_SIZE(pieces); p++) {
		size_t offset = 0;
		unsigned frames = 0;

		wire_decoder_reset(decoder);
		assert_true(wire_decoder_empty(decoder));
		while (offset < stream.size) {
			struct wire_frame frame;
			size_t space, count;
			uint8_t *to = wire_decoder_space(decoder, &space);
			int rc;

			assert_true(space >= WIRE_FRAME_MAX);
			count = MIN(MIN(space, pieces[p]), stream.size - offset);
			memcpy(to, stream.bytes + offset, count);
			wire_decoder_filled(decoder, count);
			offset += count;
			while ((rc = wire_decoder_next(decoder, &frame)) == 1) {
				assert_frame(&frame, frames++);
			}
			assert_int_equal(rc, 0);
		}
		assert_int_equal(frames, stream.frames);
		assert_true(wire_decoder_empty(decoder));
	}
	free(decoder);
	free(stream.bytes);
}

/* A frame that waits is not lost when more is read before it is taken. */
static void test_frame_waits(void **state)
{
	struct wire_decoder *decoder = calloc(1, sizeof(*decoder));
	struct wire_frame frame;
	size_t space;
	uint8_t *to;

	(void)state;
	assert_non_null(decoder);
	to = wire_decoder_space(decoder, &space);
	assert_int_equal(space, sizeof(decoder->buffer));
	for (int i = 0; i < 2; i++) {
		wire_header_encode(to + i * WIRE_FRAME_MAX, (uint8_t)(i + 1), 0, 0,
				   WIRE_PAYLOAD_MAX);
		memset(to + i * WIRE_FRAME_MAX + WIRE_HEADER_SIZE, 'a' + i, WIRE_PAYLOAD_MAX);
	}
	wire_decoder_filled(decoder, sizeof(decoder->buffer));
	wire_decoder_space(decoder, &space);
	assert_int_equal(space, 0);
	assert_int_equal(wire_decoder_next(decoder, &frame), 1);
	assert_int_equal(frame.type, 1);
	assert_int_equal(frame.payload[0], 'a');
	to = wire_decoder_space(decoder, &space);
	assert_int_equal(space, WIRE_FRAME_MAX);
	wire_header_encode(to, 3, 0, 0, 0);
	wire_decoder_filled(decoder, WIRE_HEADER_SIZE);
	assert_int_equal(wire_decoder_next(decoder, &frame), 1);
	assert_int_equal(frame.type, 2);
	assert_int_equal(frame.payload[WIRE_PAYLOAD_MAX - 1], 'b');
	assert_false(wire_decoder_empty(decoder));
	assert_int_equal(wire_decoder_next(decoder, &frame), 1);
	assert_int_equal(frame.type, 3);
	assert_int_equal(frame.length, 0);
	assert_int_equal(wire_decoder_next(decoder, &frame), 0);
	assert_true(wire_decoder_empty(decoder));
	free(decoder);
}

static void put_raw(struct wire_decoder *decoder, const uint8_t *bytes, size_t size)
{
	size_t space;
	uint8_t *to = wire_decoder_space(decoder, &space);

	assert_true(space >= size);
	memcpy(to, bytes, size);
	wire_decoder_filled(decoder, size);
}

static void test_frame_broken(void **state)
{
	static const uint8_t broken[][WIRE_HEADER_SIZE] = {
		/* One more than the largest payload, the largest number, a reserved bit. */
		{0xf5, 0x7f, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
		{0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0},
		{0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0},
		{0, 0, 0, 0, 1, 0, 0, 0x80, 0, 0, 0, 0},
	};
	struct wire_decoder *decoder = calloc(1, sizeof(*decoder));
	uint8_t good[WIRE_HEADER_SIZE];
	struct wire_frame frame = {.type = 77};

	(void)state;
	assert_non_null(decoder);
	wire_header_encode(good, 5, 6, 7, 0);
	for (size_t i = 0; i < ARRAY_SIZE(broken); i++) {
		size_t space;

		wire_decoder_reset(decoder);
		/* What came before it is still delivered. */
		put_raw(decoder, good, sizeof(good));
		put_raw(decoder, broken[i], sizeof(broken[i]));
		assert_int_equal(wire_decoder_next(decoder, &frame), 1);
		assert_int_equal(frame.type, 5);
		frame.type = 77;
		assert_int_equal(wire_decoder_next(decoder, &frame), -EBADMSG);
		assert_int_equal(wire_decoder_next(decoder, &frame), -EBADMSG);
		assert_int_equal(frame.type, 77);
		wire_decoder_space(decoder, &space);
		assert_int_equal(space, 0);
		assert_int_equal(wire_decoder_next(decoder, &frame), -EBADMSG);
		/* Only a reset makes it forget. */
		wire_decoder_reset(decoder);
		put_raw(decoder, good, sizeof(good));
		assert_int_equal(wire_decoder_next(decoder, &frame), 1);
		assert_int_equal(frame.channel, 6);
		assert_int_equal(frame.stream, 7);
	}
	/* It is seen as soon as the header is whole, and not before. */
	wire_decoder_reset(decoder);
	put_raw(decoder, broken[0], WIRE_HEADER_SIZE - 1);
	assert_int_equal(wire_decoder_next(decoder, &frame), 0);
	put_raw(decoder, broken[0] + WIRE_HEADER_SIZE - 1, 1);
	assert_int_equal(wire_decoder_next(decoder, &frame), -EBADMSG);
	free(decoder);
}

static void test_header(void **state)
{
	static const uint8_t expected[WIRE_HEADER_SIZE] = {0xf4, 0x7f, 0,    0,	   9,	 8,
							   0,	 0,    0x04, 0x03, 0x02, 0x01};
	uint8_t header[WIRE_HEADER_SIZE];

	(void)state;
	wire_header_encode(header, 9, 8, 0x01020304, WIRE_PAYLOAD_MAX);
	assert_memory_equal(header, expected, sizeof(header));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),	    cmocka_unit_test(test_reader_fails_for_good),
		cmocka_unit_test(test_strings),	    cmocka_unit_test(test_hello),
		cmocka_unit_test(test_setup),	    cmocka_unit_test(test_ready),
		cmocka_unit_test(test_error),	    cmocka_unit_test(test_exit),
		cmocka_unit_test(test_integers),    cmocka_unit_test(test_time),
		cmocka_unit_test(test_clock),	    cmocka_unit_test(test_port),
		cmocka_unit_test(test_exec),	    cmocka_unit_test(test_exec_refused),
		cmocka_unit_test(test_exec_limits), cmocka_unit_test(test_encode_too_large),
		cmocka_unit_test(test_header),	    cmocka_unit_test(test_frame_pieces),
		cmocka_unit_test(test_frame_waits), cmocka_unit_test(test_frame_broken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
