/* src/keeper/record.c: what is kept of a command. */
#include "keeper/record.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store_home.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "json/json.h"
#include "store/log.h"
#include "wire/ctl.h"

#define TAIL ((size_t)LOG_TAIL_BYTES)

static struct record_log record_log;
static uint8_t request[WIRE_EXEC_MAX];
/* What every byte of a long output is made of: its own number. */
static uint8_t pattern[(size_t)1 << 21];

static int set_up(void **state)
{
	for (size_t i = 0; i < sizeof(pattern); i++) {
		pattern[i] = (uint8_t)(i ^ (i >> 8) * 31 ^ (i >> 16) * 7);
	}
	record_log = (struct record_log){.store = &store, .name = "a", .machine = "up"};
	return home_set_up(state);
}

static struct record *begin(const char *const *argv, uint32_t flags)
{
	static const char *const envp[] = {"TOKEN=hush", NULL};
	struct wire_exec exec = {
		.flags = flags, .user = "agent", .directory = "/data", .argc = 0, .envc = 1};
	struct record *record;
	int size;

	while (argv[exec.argc]) {
		exec.argc++;
	}
	size = wire_exec_encode(&exec, argv, envp, request);
	assert_true(size > 0);
	record = record_begin(&record_log, "abc123", request, (size_t)size);
	assert_non_null(record);
	return record;
}

static struct record *begin_true(uint32_t flags)
{
	static const char *const argv[] = {"true", NULL};

	return begin(argv, flags);
}

static void end(struct record *record)
{
	struct ipc_message exited = {.type = IPC_EXITED};

	record_end(record, &exited);
}

static char *read_log(void)
{
	char *text = NULL;

	assert_int_equal(read_file_at(store.home_fd, "log/a.jsonl", 1 << 20, &text, NULL), 0);
	return text;
}

/* The line of that number in the log, parsed; it must be there. */
static struct json *line_of(unsigned number)
{
	_cleanup_free_ char *text = read_log();
	const char *line = text;
	struct json *json = NULL;

	while (number-- > 0) {
		line = strchr(line, '\n');
		assert_non_null(line);
		line++;
	}
	assert_true(strcspn(line, "\n") <= LOG_LINE_MAX);
	assert_int_equal(json_parse(line, strcspn(line, "\n"), &json, NULL), 0);
	return json;
}

static int64_t number_in(const struct json *json, const char *key)
{
	int64_t number = -1;

	assert_int_equal(json_get_integer(json, key, &number), 0);
	return number;
}

static void assert_time(const struct json *json, const char *key)
{
	const char *time = json_get_string(json, key);

	assert_non_null(time);
	assert_int_equal(strlen(time), 24);
	assert_true(time[4] == '-' && time[10] == 'T' && time[19] == '.' && time[23] == 'Z');
}

/* What is kept in a file must be just these bytes. */
static void assert_output(const char *path, const uint8_t *bytes, size_t size)
{
	_cleanup_free_ char *kept = NULL;
	size_t got;

	assert_int_equal(read_file_at(store.home_fd, path, 8 << 20, &kept, &got), 0);
	assert_int_equal(got, size);
	assert_memory_equal(kept, bytes, size);
}

static void test_two_lines(void **state)
{
	static const char *const argv[] = {"sh", "-c", "a\nb\t\"\\\x1b\xff\xc3\xa4", "", NULL};
	_cleanup_(json_freep) struct json *start = NULL;
	_cleanup_(json_freep) struct json *ended = NULL;
	_cleanup_free_ char *text = NULL;
	struct ipc_message exited = {.exited = {.exit = {WIRE_EXITED, 42},
						.stdout_bytes = 3,
						.started_ns = 1000000000,
						.ended_ns = 3500000000}};
	struct record *record = begin(argv, 0);
	const struct json *array;
	bool flag = true;

	(void)state;
	record_output(record, 1, "out", 3);
	record_output(record, 2, "error", 5);
	exited.exited.stderr_bytes = 5;
	record_end(record, &exited);
	assert_int_equal(record_log.failure, 0);
	start = line_of(0);
	assert_string_equal(json_get_string(start, "event"), "start");
	assert_string_equal(json_get_string(start, "id"), "abc123");
	assert_string_equal(json_get_string(start, "machine"), "up");
	assert_string_equal(json_get_string(start, "user"), "agent");
	assert_string_equal(json_get_string(start, "directory"), "/data");
	assert_int_equal(json_get_boolean(start, "terminal", &flag), 0);
	assert_false(flag);
	assert_time(start, "time");
	array = json_get_child(start, "argv");
	assert_int_equal(json_count(array), 4);
	assert_string_equal(json_string_of(json_at(array, 2)),
			    "a\nb\t\"\\\x1b\xef\xbf\xbd\xc3\xa4");
	assert_string_equal(json_string_of(json_at(array, 3)), "");
	assert_null(json_get_child(start, "args_cut"));
	ended = line_of(1);
	assert_string_equal(json_get_string(ended, "event"), "end");
	assert_time(ended, "time");
	assert_string_equal(json_get_string(ended, "started"), json_get_string(start, "time"));
	assert_int_equal(number_in(ended, "exit_code"), 42);
	assert_int_equal(number_in(ended, "duration_ms"), 2500);
	assert_int_equal(number_in(ended, "stdout_bytes"), 3);
	assert_int_equal(number_in(ended, "stderr_kept"), 5);
	assert_output("log/a/abc123.out", (const uint8_t *)"out", 3);
	assert_output("log/a/abc123.err", (const uint8_t *)"error", 5);
	text = read_log();
	assert_null(strstr(text, "hush"));
	assert_null(strstr(text, "TOKEN"));
}

static void test_how_it_ended(void **state)
{
	struct ipc_message killed = {.exited = {.exit = {WIRE_SIGNALED, 9}, .timed_out = 1}};
	struct ipc_message missing = {.exited = {.exit = {WIRE_NOT_STARTED, ENOENT}}};
	bool flag = false;

	(void)state;
	record_end(begin_true(0), &killed);
	record_end(begin_true(0), &missing);
	record_end(begin_true(0), NULL);
	for (unsigned i = 0; i < 3; i++) {
		_cleanup_(json_freep) struct json *line = line_of(2 * i + 1);

		assert_int_equal(json_get_boolean(line, "timed_out", &flag), 0);
		assert_int_equal(flag, i == 0);
		assert_null(json_get_child(line, "exit_code"));
		if (i == 0) {
			assert_int_equal(number_in(line, "signal"), 9);
		} else {
			assert_non_null(json_get_string(line, "error"));
		}
	}
	assert_int_equal(record_log.failure, 0);
}

/* However long and odd the arguments are, the line has its maximum and holds their beginning. */
static void test_long_arguments(void **state)
{
	static const char *const fills[] = {"a",    "\n",	"\"",
					    "\xff", "\xc3\xa4", "\xf0\x9f\x98\x80"};
	_cleanup_free_ char *large = malloc(60001);
	char user[3001];

	(void)state;
	memset(user, '\x01', sizeof(user) - 1);
	user[sizeof(user) - 1] = '\0';
	for (unsigned i = 0; i < ARRAY_SIZE(fills); i++) {
		_cleanup_(json_freep) struct json *line = NULL;
		size_t length = strlen(fills[i]);
		const char *argv[] = {"sh", large, "last"};
		struct wire_exec exec = {.user = user, .directory = large, .argc = 3};
		const struct json *array;
		const char *argument;
		int size;

		for (size_t at = 0; at < 60000; at++) {
			large[at] = fills[i][at % length];
		}
		large[60000] = '\0';
		large[0] = '/';
		size = wire_exec_encode(&exec, argv, NULL, request);
		assert_true(size > 0);
		end(record_begin(&record_log, "abc123", request, (size_t)size));
		assert_int_equal(record_log.failure, 0);
		line = line_of(2 * i);
		array = json_get_child(line, "argv");
		assert_int_equal(json_count(array), 2);
		argument = json_string_of(json_at(array, 1));
		assert_true(strlen(argument) > 1000);
		assert_non_null(json_get_child(line, "args_cut"));
		/* A character is not cut: nothing was replaced that was whole. */
		if (i >= 4) {
			/* After what the slash has broken. */
			assert_null(strstr(argument + 1 + 3 * (length - 1), "\xef\xbf\xbd"));
		}
	}
}

static void test_many_arguments(void **state)
{
	_cleanup_free_ const char **argv = calloc(WIRE_ARGS_MAX + 1, sizeof(*argv));
	_cleanup_(json_freep) struct json *line = NULL;

	(void)state;
	for (size_t i = 0; i < WIRE_ARGS_MAX; i++) {
		argv[i] = "";
	}
	end(begin(argv, 0));
	assert_int_equal(record_log.failure, 0);
	line = line_of(0);
	assert_true(json_count(json_get_child(line, "argv")) > 3000);
	assert_non_null(json_get_child(line, "args_cut"));
}

static void test_broken_request(void **state)
{
	(void)state;
	assert_null(record_begin(&record_log, "abc123", (const uint8_t *)"x", 1));
	assert_int_equal(record_log.failure, -EBADMSG);
	record_output(NULL, 1, "a", 1);
	assert_int_equal(record_kept(NULL, 1, request, 1), 0);
	record_end(NULL, NULL);
}

/* Sizes around the borders of the tail, written in pieces of several sizes. */
static void test_tail_is_exact(void **state)
{
	static const size_t sizes[] = {
		1,	   TAIL - 1,	  TAIL,		TAIL + 1,  2 * TAIL - 1,
		2 * TAIL,  2 * TAIL + 1,  15 * TAIL,	16 * TAIL, 16 * TAIL + 1,
		17 * TAIL, 31 * TAIL + 1, 5 * TAIL - 1, 700001};
	static const size_t pieces[] = {1000, 16384, TAIL, TAIL + 1, 3 * TAIL};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(sizes) * ARRAY_SIZE(pieces); i++) {
		size_t size = sizes[i % ARRAY_SIZE(sizes)], at = 0;
		size_t piece = pieces[i / ARRAY_SIZE(sizes)];
		size_t kept = MIN(size, TAIL);
		struct record *record = begin_true(0);
		struct stat status;

		while (at < size) {
			record_output(record, 1, pattern + at, MIN(piece, size - at));
			at += MIN(piece, size - at);
			assert_int_equal(fstatat(store.home_fd, "log/a/abc123.out", &status, 0), 0);
			assert_true((size_t)status.st_size <= 16 * TAIL);
			assert_true((size_t)status.st_size >= MIN(at, TAIL));
		}
		/* What somebody would get who attaches now. */
		assert_int_equal(record_kept(record, 1, request, kept), kept);
		assert_memory_equal(request, pattern + size - kept, kept);
		assert_int_equal(record_kept(record, 1, request, 1), 1);
		assert_int_equal(request[0], pattern[size - 1]);
		assert_int_equal(record_kept(record, 2, request, 100), 0);
		end(record);
		assert_output("log/a/abc123.out", pattern + size - kept, kept);
	}
	assert_int_equal(record_log.failure, 0);
	assert_int_equal(faccessat(store.home_fd, "log/a/abc123.err", F_OK, 0), -1);
}

static void test_full(void **state)
{
	_cleanup_(json_freep) struct json *line = NULL;
	struct record *record;

	(void)state;
	record_log.output = SPEC_LOG_FULL;
	record = begin_true(0);
	for (size_t at = 0; at < 700001; at += 7000) {
		record_output(record, 2, pattern + at, MIN((size_t)7000, 700001 - at));
	}
	end(record);
	assert_output("log/a/abc123.err", pattern, 700001);
	line = line_of(1);
	assert_int_equal(number_in(line, "stderr_kept"), 700001);
}

static void test_none(void **state)
{
	_cleanup_(json_freep) struct json *line = NULL;
	struct record *record;

	(void)state;
	record_log.output = SPEC_LOG_NONE;
	record = begin_true(0);
	record_output(record, 1, "x", 1);
	assert_int_equal(record_kept(record, 1, request, 100), 0);
	end(record);
	assert_int_equal(faccessat(store.home_fd, "log/a", F_OK, 0), -1);
	line = line_of(1);
	assert_int_equal(number_in(line, "stdout_kept"), 0);
}

/* A terminal can be attached to again, whatever the log keeps. */
static void test_terminal(void **state)
{
	static const size_t pieces[] = {1, 999, 16384, TAIL, TAIL + 1, 200000};

	(void)state;
	record_log.output = SPEC_LOG_NONE;
	for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
		struct record *record = begin_true(WIRE_EXEC_TERMINAL);
		size_t at = 0;

		while (at < 200000) {
			size_t part = MIN(pieces[i], 200000 - at);
			size_t kept;

			record_output(record, 1, pattern + at, part);
			at += part;
			if (pieces[i] > 1 || at % 4096 == 0) {
				kept = record_kept(record, 1, request, TAIL + 5);
				assert_int_equal(kept, MIN(at, TAIL));
				assert_memory_equal(request, pattern + at - kept, kept);
				kept = record_kept(record, 1, request, 10);
				assert_memory_equal(request, pattern + at - kept, kept);
			}
		}
		end(record);
	}
	assert_int_equal(faccessat(store.home_fd, "log/a", F_OK, 0), -1);
	record_log.output = SPEC_LOG_TAIL;
	{
		struct record *record = begin_true(WIRE_EXEC_TERMINAL);

		record_output(record, 1, "screen", 6);
		end(record);
		assert_output("log/a/abc123.out", (const uint8_t *)"screen", 6);
	}
}

/* A log that cannot be written is told once and stops nothing. */
static void test_failures(void **state)
{
	struct record *record;

	(void)state;
	assert_int_equal(symlinkat("..", store.home_fd, "log/a"), 0);
	record = begin_true(0);
	record_output(record, 1, "x", 1);
	assert_int_equal(record_log.failure, -ENOTDIR);
	assert_int_equal(unlinkat(store.home_fd, "log/a", 0), 0);
	record_output(record, 1, "y", 1);
	end(record);
	assert_int_equal(faccessat(store.home_fd, "log/a", F_OK, 0), -1);
	record_log.failure = 0;
	assert_int_equal(unlinkat(store.home_fd, "log/a.jsonl", 0), 0);
	assert_int_equal(symlinkat("../x", store.home_fd, "log/a.jsonl"), 0);
	record = begin_true(0);
	assert_int_equal(record_log.failure, -ELOOP);
	end(record);
	record_event(&record_log, "down", NULL);
	assert_int_equal(record_log.failure, -ELOOP);
}

static void test_events_and_listing(void **state)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	_cleanup_(json_freep) struct json *up = NULL;
	_cleanup_(json_freep) struct json *down = NULL;
	struct record *record;

	(void)state;
	record_event(&record_log, "up", NULL);
	record_event(&record_log, "down", "killed\n\x1b");
	up = line_of(0);
	down = line_of(1);
	assert_string_equal(json_get_string(up, "event"), "up");
	assert_time(up, "time");
	assert_null(json_get_child(up, "text"));
	assert_string_equal(json_get_string(down, "text"), "killed\n\x1b");
	record = begin_true(WIRE_EXEC_TERMINAL);
	record_output(record, 1, "abc", 3);
	assert_int_equal(record_to_json(record, object), 0);
	assert_string_equal(json_get_string(object, "id"), "abc123");
	assert_string_equal(json_string_of(json_at(json_get_child(object, "argv"), 0)), "true");
	assert_int_equal(number_in(object, "stdout_bytes"), 3);
	assert_int_equal(number_in(object, "stderr_bytes"), 0);
	assert_int_equal(number_in(object, "seconds"), 0);
	assert_time(object, "started");
	end(record);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, home_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_two_lines),
		TEST(test_how_it_ended),
		TEST(test_long_arguments),
		TEST(test_many_arguments),
		TEST(test_broken_request),
		TEST(test_tail_is_exact),
		TEST(test_full),
		TEST(test_none),
		TEST(test_terminal),
		TEST(test_failures),
		TEST(test_events_and_listing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
