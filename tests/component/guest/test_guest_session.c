#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/io.h"
#include "guest/stream.h"
#include "host.h"

static void assert_output(const struct result *result, int channel, const char *expected)
{
	assert_int_equal(result->size[channel], strlen(expected));
	if (expected[0] != '\0') {
		assert_memory_equal(result->data[channel], expected, strlen(expected));
	}
}

static struct result *run(struct host *host, uint32_t stream, const char *script)
{
	host_shell(host, stream, script, 0);
	return host_await(host, stream);
}

static void test_ready(void **state)
{
	struct host *host = host_new(0);
	struct wire_hello hello;
	struct wire_ready ready;

	(void)state;
	host_greet(host);
	assert_int_equal(wire_hello_decode(host->payload, host->frame.length, &hello), 0);
	assert_int_equal(hello.version, WIRE_VERSION);
	host_setup(host, 0);
	host_await_port(host, WIRE_READY);
	assert_int_equal(wire_ready_decode(host->payload, host->frame.length, &ready), 0);
	assert_int_equal(ready.nonce[0], 1);
	assert_int_equal(ready.nonce[WIRE_NONCE_SIZE - 1], 0xaa);
	assert_string_equal(ready.boot_id, "the-boot-id");
	host_finish(host);
	assert_int_equal(host->report->rc, 0);
	assert_int_equal(host->report->setups, 1);
	/* The host went away while commands could run: everything is brought to rest. */
	assert_int_equal(host->report->shutdowns, 1);
	assert_false(host->report->root_too);
	host_free(host);
}

static void test_setup_fails(void **state)
{
	struct host *host = host_new(-EIO);
	struct wire_error error;

	(void)state;
	host_greet(host);
	host_setup(host, 0);
	host_await_port(host, WIRE_ERROR);
	assert_int_equal(wire_error_decode(host->payload, host->frame.length, &error), 0);
	assert_int_equal(error.error, EIO);
	assert_string_equal(error.text, "the setup hook was told to fail");
	/* It takes no command any more, and ends with the host. */
	host_shell(host, 1, "true", 0);
	assert_int_equal(host_next(host, 200), 0);
	host_finish(host);
	assert_int_equal(host->report->rc, 0);
	host_free(host);
}

static void test_version(void **state)
{
	struct host *host = host_new(0);
	const struct wire_hello hello = {.magic = WIRE_MAGIC, .version = WIRE_VERSION + 1};
	uint8_t payload[WIRE_PAYLOAD_MAX];

	(void)state;
	host_send(host, WIRE_HELLO, 0, 0, payload, (size_t)wire_hello_encode(&hello, payload));
	host_await_port(host, WIRE_HELLO);
	host_await_port(host, WIRE_ERROR);
	host_free(host);
}

static void test_channels_are_separate(void **state)
{
	struct host *host = *state;
	struct result *result = run(host, 1, "printf 'o\\0ut'; printf 'err\\n' >&2; exit 7");

	assert_int_equal(result->started, 1);
	assert_true(result->pid > 1);
	assert_int_equal(result->size[1], 4);
	assert_memory_equal(result->data[1], "o\0ut", 4);
	assert_output(result, 2, "err\n");
	host_assert_exit(result, WIRE_EXITED, 7);
}

static void test_exit_codes(void **state)
{
	struct host *host = *state;

	host_assert_exit(run(host, 1, "exit 0"), WIRE_EXITED, 0);
	host_assert_exit(run(host, 2, "exit 255"), WIRE_EXITED, 255);
	host_assert_exit(run(host, 3, "kill -KILL $$"), WIRE_SIGNALED, SIGKILL);
	host_assert_exit(run(host, 4, "kill -USR1 $$"), WIRE_SIGNALED, SIGUSR1);
}

static struct result *run_argv(struct host *host, uint32_t stream, const char *name)
{
	const char *const argv[] = {name, "argument", NULL};
	const char *const envp[] = {"PATH=/usr/bin:/bin:/tmp/test-guest-path", NULL};

	host_exec(host, stream, &(struct command){.argv = argv, .envp = envp});
	return host_await(host, stream);
}

static void write_script(const char *path, const char *text, mode_t mode)
{
	assert_int_equal(write_file_at(AT_FDCWD, path, text, strlen(text), mode), 0);
	assert_int_equal(chmod(path, mode), 0);
}

static void test_not_started(void **state)
{
	struct host *host = *state;
	struct result *result;

	mkdir("/tmp/test-guest-path", 0755);
	write_script("/tmp/test-guest-path/not-executable", "echo no\n", 0644);
	write_script("/tmp/test-guest-path/bad-interpreter", "#!/nonexistent/x\n", 0755);
	result = run_argv(host, 1, "no-such-command");
	host_assert_exit(result, WIRE_NOT_STARTED, ENOENT);
	assert_int_equal(result->started, 0);
	assert_string_equal(result->log, "");
	host_assert_exit(run_argv(host, 2, "/nonexistent/command"), WIRE_NOT_STARTED, ENOENT);
	host_assert_exit(run_argv(host, 3, "not-executable"), WIRE_NOT_STARTED, EACCES);
	host_assert_exit(run_argv(host, 4, "/tmp/test-guest-path/not-executable"), WIRE_NOT_STARTED,
			 EACCES);
	host_assert_exit(run_argv(host, 5, "/tmp"), WIRE_NOT_STARTED, EACCES);
	host_assert_exit(run_argv(host, 6, ""), WIRE_NOT_STARTED, ENOENT);
	host_assert_exit(run_argv(host, 7, "/tmp/test-guest-path/bad-interpreter"),
			 WIRE_NOT_STARTED, ENOENT);
	/* The pipes that were made for those are still good. */
	assert_output(run(host, 8, "echo fine"), 1, "fine\n");
	assert_int_equal(remove_tree_at(AT_FDCWD, "/tmp/test-guest-path"), 0);
}

static void test_script_without_interpreter(void **state)
{
	struct host *host = *state;
	struct result *result;

	mkdir("/tmp/test-guest-path", 0755);
	write_script("/tmp/test-guest-path/plain", "echo \"$0 $1\"\n", 0755);
	result = run_argv(host, 1, "plain");
	host_assert_exit(result, WIRE_EXITED, 0);
	assert_output(result, 1, "/tmp/test-guest-path/plain argument\n");
	assert_int_equal(remove_tree_at(AT_FDCWD, "/tmp/test-guest-path"), 0);
}

static void test_user_and_directory_missing(void **state)
{
	struct host *host = *state;
	const char *const argv[] = {"/bin/pwd", NULL};
	struct result *result;

	host_exec(host, 1, &(struct command){.argv = argv, .user = "no-such-user"});
	result = host_await(host, 1);
	host_assert_exit(result, WIRE_NOT_STARTED, EINVAL);
	assert_string_equal(result->log, "user no-such-user does not exist in the image");
	host_exec(host, 2, &(struct command){.argv = argv, .directory = "/no/such/place"});
	result = host_await(host, 2);
	host_assert_exit(result, WIRE_NOT_STARTED, ENOENT);
	assert_string_equal(result->log, "directory /no/such/place: No such file or directory");
	host_exec(host, 3, &(struct command){.argv = argv, .directory = "/etc/passwd"});
	host_assert_exit(host_await(host, 3), WIRE_NOT_STARTED, ENOTDIR);
	host_exec(host, 4, &(struct command){.argv = argv, .directory = "/usr"});
	assert_output(host_await(host, 4), 1, "/usr\n");
}

static void test_environment(void **state)
{
	struct host *host = *state;
	const char *const argv[] = {"env", NULL};
	const char *const envp[] = {"PATH=/usr/bin:/bin", "HOME=/h", "USER=u", "LOGNAME=l", "A=1 2",
				    "SHELL=/s",		  NULL};

	host_exec(host, 1, &(struct command){.argv = argv, .envp = envp});
	assert_output(host_await(host, 1), 1,
		      "PATH=/usr/bin:/bin\nHOME=/h\nUSER=u\nLOGNAME=l\nA=1 2\nSHELL=/s\n");
}

static void test_clean_process(void **state)
{
	struct host *host = *state;
	struct result *result;

	result = run(host, 1,
		     "cd /proc/self/fd; echo *; umask; grep -E '^Sig(Blk|Ign)' "
		     "/proc/self/status; read pid comm st ppid pgrp sid rest "
		     "</proc/$$/stat; [ $pid = $pgrp ] && [ $pid = $sid ] && echo leader");
	host_assert_exit(result, WIRE_EXITED, 0);
	/* Descriptor 3 is the shell's own, for the pattern. */
	assert_output(result, 1,
		      "0 1 2 3\n0022\nSigBlk:\t0000000000000000\n"
		      "SigIgn:\t0000000000000000\nleader\n");
	assert_output(run(host, 2, "readlink /proc/self/fd/0"), 1, "/dev/null\n");
}

static void test_other_user(void **state)
{
	struct host *host = *state;
	const char *const argv[] = {"/bin/sh", "-c",
				    "id -u; id -g; id -G; grep -E '^(CapEff|NoNewPrivs)' "
				    "/proc/self/status",
				    NULL};

	if (getuid() != 0) {
		skip();
	}
	host_exec(host, 1, &(struct command){.argv = argv, .user = "54321"});
	assert_output(host_await(host, 1), 1,
		      "54321\n54321\n54321\nCapEff:\t0000000000000000\nNoNewPrivs:\t0\n");
	/* What one user's command did to itself is not the next one's. */
	assert_output(run(host, 2, "id -u"), 1, "0\n");
}

static void test_bulk(void **state)
{
	struct host *host = *state;
	const size_t lines = 1500000;
	struct result *result;
	size_t offset = 0;

	result = run(host, 1, "seq 1 1500000");
	host_assert_exit(result, WIRE_EXITED, 0);
	assert_true(result->size[1] > 10 * 1024 * 1024);
	for (size_t i = 1; i <= lines; i++) {
		char line[16];
		size_t size = (size_t)snprintf(line, sizeof(line), "%zu\n", i);

		if (memcmp(result->data[1] + offset, line, size) != 0) {
			fail_msg("line %zu is damaged", i);
		}
		offset += size;
	}
	assert_int_equal(offset, result->size[1]);
}

/* Takes what comes until nothing has come for a while. */
static void take_all(struct host *host)
{
	while (host_next(host, 300) > 0) {
	}
}

static void test_slow_reader(void **state)
{
	struct host *host = *state;
	struct result *result = &host->results[1];

	host->generous = false;
	/* A window, and 40,000 bytes that stay in the pipe after the command's end. */
	host_shell(host, 1, "head -c 105536 /dev/zero; echo last >&2", 0);
	take_all(host);
	assert_int_equal(result->size[1], WIRE_WINDOW);
	assert_int_equal(result->exits, 1);
	assert_false(result->eof[1]);
	/* The other channel is not held up. */
	assert_output(result, 2, "last\n");
	assert_true(result->eof[2]);
	usleep(STREAM_LINGER_MS * 1000);
	host_send_u32(host, WIRE_CREDIT, 1, 1, 1);
	take_all(host);
	assert_int_equal(result->size[1], WIRE_WINDOW + 1);
	assert_false(result->eof[1]);
	host_send_u32(host, WIRE_CREDIT, 1, 1, WIRE_WINDOW);
	host_await(host, 1);
	assert_int_equal(result->size[1], WIRE_WINDOW + 40000);
}

static void test_slow_reader_holds_up_nobody(void **state)
{
	struct host *host = *state;

	host->generous = false;
	host_shell(host, 1, "exec cat /dev/zero", 0);
	take_all(host);
	assert_int_equal(host->results[1].size[1], WIRE_WINDOW);
	assert_output(run(host, 2, "echo through"), 1, "through\n");
	host_send(host, WIRE_CLOSE, 0, 1, NULL, 0);
	host_assert_exit(host_await(host, 1), WIRE_SIGNALED, SIGKILL);
}

/* Sends count bytes of a pattern to a stream, within the window. Returns what was granted. */
static void send_input(struct host *host, uint32_t stream, size_t count)
{
	struct result *result = &host->results[stream];
	uint8_t piece[30000];
	size_t sent = 0;

	while (sent < count) {
		size_t window = WIRE_WINDOW + result->granted - sent;
		size_t size = MIN(MIN(sizeof(piece), count - sent), window);

		if (size == 0) {
			assert_true(host_next(host, 20000) > 0);
			continue;
		}
		for (size_t i = 0; i < size; i++) {
			piece[i] = (uint8_t)((sent + i) % 251);
		}
		host_send(host, WIRE_DATA, 0, stream, piece, size);
		sent += size;
	}
}

static void test_input(void **state)
{
	struct host *host = *state;
	const size_t count = 1000003;
	struct result *result;

	host_shell(host, 1, "exec cat", WIRE_EXEC_STDIN);
	send_input(host, 1, count);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	result = host_await(host, 1);
	host_assert_exit(result, WIRE_EXITED, 0);
	assert_int_equal(result->size[1], count);
	for (size_t i = 0; i < count; i++) {
		if (result->data[1][i] != i % 251) {
			fail_msg("byte %zu is damaged", i);
		}
	}
}

static void test_input_ends_late(void **state)
{
	struct host *host = *state;

	/* The end waits for what the command has not read yet. */
	host_shell(host, 1, "sleep 0.3; wc -c", WIRE_EXEC_STDIN);
	send_input(host, 1, 200000);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	assert_output(host_await(host, 1), 1, "200000\n");
	host_shell(host, 2, "cat; echo end", WIRE_EXEC_STDIN);
	host_send(host, WIRE_EOF, 0, 2, NULL, 0);
	assert_output(host_await(host, 2), 1, "end\n");
}

static void test_input_not_wanted(void **state)
{
	struct host *host = *state;
	struct result *result;

	host_shell(host, 1, "exec <&-; sleep 0.5; echo done", WIRE_EXEC_STDIN);
	send_input(host, 1, 600000);
	result = host_await(host, 1);
	assert_output(result, 1, "done\n");
	assert_true(result->granted >= 600000 - WIRE_WINDOW);
	/* Input that crosses the command's end is dropped. */
	host_shell(host, 2, "exit 3", WIRE_EXEC_STDIN);
	host_assert_exit(host_await(host, 2), WIRE_EXITED, 3);
	host_send(host, WIRE_DATA, 0, 2, "late", 4);
	host_send(host, WIRE_EOF, 0, 2, NULL, 0);
	host_send_u32(host, WIRE_SIGNAL, 0, 2, SIGTERM);
	host_send_u32(host, WIRE_CREDIT, 1, 2, 100);
	host_send(host, WIRE_CLOSE, 0, 2, NULL, 0);
	assert_output(run(host, 3, "echo alive"), 1, "alive\n");
}

static void test_signal(void **state)
{
	struct host *host = *state;
	struct result *result = &host->results[2];

	host_shell(host, 1, "exec sleep 60", 0);
	host_send_u32(host, WIRE_SIGNAL, 0, 1, SIGTERM);
	host_assert_exit(host_await(host, 1), WIRE_SIGNALED, SIGTERM);
	host_shell(host, 2, "trap 'echo got; exit 4' INT; echo ready; while :; do sleep 0.05; done",
		   0);
	while (result->size[1] < 6) {
		assert_true(host_next(host, 20000) > 0);
	}
	host_send_u32(host, WIRE_SIGNAL, 0, 2, SIGINT);
	host_assert_exit(host_await(host, 2), WIRE_EXITED, 4);
	assert_output(result, 1, "ready\ngot\n");
}

static void start_terminal(struct host *host, uint32_t stream, const char *script, uint32_t flags)
{
	const char *const argv[] = {"/bin/sh", "-c", script, NULL};

	host_exec(host, stream,
		  &(struct command){.argv = argv,
				    .flags = flags | WIRE_EXEC_TERMINAL,
				    .rows = 33,
				    .columns = 77});
}

static void test_terminal(void **state)
{
	struct host *host = *state;
	struct result *result;

	start_terminal(host, 1,
		       "stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all >&2; "
		       "echo $TERM; : </dev/tty && echo controlling",
		       0);
	result = host_await(host, 1);
	host_assert_exit(result, WIRE_EXITED, 0);
	assert_output(result, 1, "33 77\r\nall\r\nxterm-256color\r\ncontrolling\r\n");
	assert_output(result, 2, "");
}

/* Line after line becomes few frames, and nothing of it is lost or late. */
static void test_terminal_lines(void **state)
{
	struct host *host = *state;
	uint64_t began = clock_monotonic_ns();
	struct result *result;

	start_terminal(host, 1,
		       "stty -opost; i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i + 1)); done",
		       0);
	result = host_await(host, 1);
	host_assert_exit(result, WIRE_EXITED, 0);
	assert_int_equal(result->size[1], 20000 * 6 - 10 * 4 - 90 * 3 - 900 * 2 - 9000);
	/* Without a rest it is a frame for nearly every line, some fifty in a millisecond. */
	assert_true(result->frames < 200 + (clock_monotonic_ns() - began) / 1000000);
}

static void test_terminal_window_size(void **state)
{
	struct host *host = *state;
	uint8_t payload[WIRE_PAYLOAD_MAX];
	struct result *result = &host->results[1];

	start_terminal(host, 1, "stty -echo; trap 'stty size' WINCH; echo ready; read x; stty size",
		       WIRE_EXEC_STDIN);
	while (result->size[1] < 7) {
		assert_true(host_next(host, 20000) > 0);
	}
	host_send(host, WIRE_WINDOW_SIZE, 0, 1, payload,
		  (size_t)wire_window_size_encode(10, 20, payload));
	host_send(host, WIRE_DATA, 0, 1, "x\n", 2);
	host_await(host, 1);
	/* The trap may run before or after the read has ended. */
	assert_true(result->size[1] >= strlen("ready\r\n10 20\r\n"));
	assert_memory_equal(result->data[1], "ready\r\n10 20\r\n", strlen("ready\r\n10 20\r\n"));
}

static void test_terminal_end_of_input(void **state)
{
	struct host *host = *state;
	struct result *result;

	/* In the middle of a line: one end mark hands the line over, the second is the end. */
	start_terminal(host, 1, "stty -echo; echo ready; cat; echo end", WIRE_EXEC_STDIN);
	while (host->results[1].size[1] < 7) {
		assert_true(host_next(host, 20000) > 0);
	}
	host_send(host, WIRE_DATA, 0, 1, "abc", 3);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	result = host_await(host, 1);
	assert_output(result, 1, "ready\r\nabcend\r\n");
	start_terminal(host, 2, "stty -echo; echo ready; cat; echo end", WIRE_EXEC_STDIN);
	while (host->results[2].size[1] < 7) {
		assert_true(host_next(host, 20000) > 0);
	}
	host_send(host, WIRE_DATA, 0, 2, "abc\n", 4);
	host_send(host, WIRE_EOF, 0, 2, NULL, 0);
	result = host_await(host, 2);
	assert_output(result, 1, "ready\r\nabc\r\nend\r\n");
}

static void test_terminal_hangup(void **state)
{
	struct host *host = *state;
	struct result *result;

	/* The kernel takes the terminal from a child that stays. */
	start_terminal(host, 1, "trap '' HUP; sleep 3 & echo done", 0);
	result = host_await(host, 1);
	host_assert_exit(result, WIRE_EXITED, 0);
	assert_output(result, 1, "done\r\n");
}

static void test_child_keeps_output(void **state)
{
	struct host *host = *state;
	struct result *result = &host->results[1];
	uint64_t start, exited;

	host_shell(host, 1, "(sleep 0.2; echo late; exec sleep 5) & echo done", 0);
	start = clock_monotonic_ns();
	while (result->exits == 0) {
		assert_true(host_next(host, 20000) > 0);
	}
	exited = clock_monotonic_ns();
	assert_false(result->eof[1]);
	host_await(host, 1);
	assert_true(clock_monotonic_ns() - exited >= (STREAM_LINGER_MS - 50) * UINT64_C(1000000));
	assert_true(clock_monotonic_ns() - start < UINT64_C(4500000000));
	assert_output(result, 1, "done\nlate\n");
}

/* A child that never stops writing is cut all the same. */
static void test_child_floods_output(void **state)
{
	struct host *host = *state;
	uint64_t start = clock_monotonic_ns();

	host_shell(host, 1, "yes & exit 0", 0);
	host_assert_exit(host_await(host, 1), WIRE_EXITED, 0);
	assert_true(clock_monotonic_ns() - start < UINT64_C(15000000000));
}

static void test_close(void **state)
{
	struct host *host = *state;
	struct result *result = &host->results[1];
	uint32_t child;

	host_shell(host, 1, "sleep 60 & echo $!; exec sleep 60", 0);
	while (result->size[1] == 0) {
		assert_true(host_next(host, 20000) > 0);
	}
	child = (uint32_t)strtoul((const char *)result->data[1], NULL, 10);
	assert_true(child > 1);
	host_send(host, WIRE_CLOSE, 0, 1, NULL, 0);
	host_assert_exit(host_await(host, 1), WIRE_SIGNALED, SIGKILL);
	assert_true(host_is_gone(result->pid));
	assert_true(host_is_gone(child));
}

static void test_many_streams(void **state)
{
	struct host *host = *state;
	const uint32_t count = 200;
	char text[32];

	for (uint32_t i = 1; i <= count; i++) {
		host_shell(host, i, "exec cat", WIRE_EXEC_STDIN);
	}
	for (uint32_t i = 1; i <= count; i++) {
		snprintf(text, sizeof(text), "I am %u\n", i);
		host_send(host, WIRE_DATA, 0, i, text, strlen(text));
		host_send(host, WIRE_EOF, 0, i, NULL, 0);
	}
	for (uint32_t i = 1; i <= count; i++) {
		snprintf(text, sizeof(text), "I am %u\n", i);
		assert_output(host_await(host, i), 1, text);
		host_assert_exit(&host->results[i], WIRE_EXITED, 0);
	}
}

/* Streams that flood do not keep a small one from its turn. */
static void test_fairness(void **state)
{
	struct host *host = *state;

	for (uint32_t i = 1; i <= 20; i++) {
		host_shell(host, i, "exec cat /dev/zero", 0);
	}
	for (uint32_t i = 21; i <= 25; i++) {
		assert_output(run(host, i, "echo small"), 1, "small\n");
	}
	for (uint32_t i = 1; i <= 20; i++) {
		/* On a busy host it may not have run yet. */
		while (host->results[i].size[1] == 0) {
			assert_true(host_next(host, 20000) > 0);
		}
		host_send(host, WIRE_CLOSE, 0, i, NULL, 0);
	}
	for (uint32_t i = 1; i <= 20; i++) {
		host_await(host, i);
	}
}

static void test_streams_limit(void **state)
{
	struct host *host = *state;

	for (uint32_t i = 1; i <= WIRE_STREAMS_MAX; i++) {
		host_shell(host, i, "exec cat", WIRE_EXEC_STDIN);
	}
	host_send(host, WIRE_EOF, 0, 7, NULL, 0);
	host_await(host, 7);
	host_shell(host, 300, "echo in its place", 0);
	assert_output(host_await(host, 300), 1, "in its place\n");
	host_shell(host, 301, "exec cat", WIRE_EXEC_STDIN);
	host_shell(host, 302, "true", 0);
	host_await_end(host);
	assert_int_equal(host->report->rc, -EBADMSG);
	assert_non_null(strstr(host->report->err.text, "too many streams"));
}

static void test_long_exec(void **state)
{
	struct host *host = *state;
	static char text[100001];
	const char *const argv[] = {"/bin/sh", "-c", "echo ${#1} ${#2}", "sh", text, text, NULL};

	memset(text, 'a', sizeof(text) - 1);
	host_exec(host, 1, &(struct command){.argv = argv});
	assert_output(host_await(host, 1), 1, "100000 100000\n");
}

static void test_freeze(void **state)
{
	struct host *host = *state;
	uint32_t pid;

	host_shell(host, 1, "exec sleep 60", 0);
	while (host->results[1].started == 0) {
		assert_true(host_next(host, 20000) > 0);
	}
	pid = host->results[1].pid;
	host_send(host, WIRE_FREEZE, 0, 0, NULL, 0);
	host_await_port(host, WIRE_FROZEN);
	assert_true(host_is_gone(pid));
	assert_int_equal(host->report->freezes, 1);
	/* The next life begins like the first, and numbers may be used again. */
	host_start(host);
	assert_int_equal(host->report->setups, 2);
	memset(&host->results[1], 0, sizeof(host->results[1]));
	assert_output(run(host, 1, "echo again"), 1, "again\n");
}

static void test_shutdown(void **state)
{
	struct host *host = *state;

	host_shell(host, 1, "exec sleep 60", 0);
	host_send(host, WIRE_SHUTDOWN, 1, 0, NULL, 0);
	host_await_port(host, WIRE_BYE);
	host_finish(host);
	assert_int_equal(host->report->rc, 0);
	assert_int_equal(host->report->shutdowns, 1);
	assert_true(host->report->root_too);
}

static void test_shutdown_data_only(void **state)
{
	struct host *host = *state;

	host_send(host, WIRE_SHUTDOWN, 0, 0, NULL, 0);
	host_await_port(host, WIRE_BYE);
	host_finish(host);
	assert_int_equal(host->report->shutdowns, 1);
	assert_false(host->report->root_too);
}

/* A host that hears BYE throws the machine away: it must not hear it when data is missing. */
static void test_shutdown_that_could_not_write(void **state)
{
	struct host *host = *state;
	struct wire_error error;

	host->report->shutdown_error = -EIO;
	host_send(host, WIRE_SHUTDOWN, 0, 0, NULL, 0);
	host_await_port(host, WIRE_ERROR);
	assert_int_equal(wire_error_decode(host->payload, host->frame.length, &error), 0);
	assert_int_equal(error.error, EIO);
	assert_int_equal(host->report->shutdowns, 1);
}

enum stage {
	STAGE_WAITING,
	STAGE_GREETED,
	STAGE_RUNNING,
};

/* Stream 9 runs `cat` with input in the running stage; stream 8 has no input. */
static const struct illegal {
	enum stage stage;
	uint8_t type;
	uint8_t channel;
	uint32_t stream;
	size_t size;
	const char *payload;
} illegals[] = {
	{STAGE_WAITING, 0, 0, 0, 0, ""},
	{STAGE_WAITING, WIRE_HELLO, 0, 0, 0, ""},
	{STAGE_WAITING, WIRE_HELLO, 0, 0, 6, "xxxx\1\0"},
	{STAGE_WAITING, WIRE_HELLO, 1, 0, 6, "box1\1\0"},
	{STAGE_WAITING, WIRE_HELLO, 0, 1, 6, "box1\1\0"},
	{STAGE_WAITING, WIRE_HELLO, 0, 0, 7, "box1\1\0\0"},
	{STAGE_WAITING, WIRE_SETUP, 0, 0, 0, ""},
	{STAGE_WAITING, WIRE_EXEC, 0, 1, 0, ""},
	{STAGE_WAITING, WIRE_FREEZE, 0, 0, 0, ""},
	{STAGE_WAITING, WIRE_SHUTDOWN, 0, 0, 0, ""},
	{STAGE_GREETED, WIRE_HELLO, 0, 0, 6, "box1\1\0"},
	{STAGE_GREETED, WIRE_SETUP, 0, 0, 5, "abcde"},
	{STAGE_GREETED, WIRE_DATA, 0, 1, 1, "x"},
	{STAGE_RUNNING, WIRE_HELLO, 0, 0, 6, "box1\1\0"},
	{STAGE_RUNNING, WIRE_SETUP, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_READY, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_ERROR, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_STARTED, 0, 9, 4, "\1\0\0\0"},
	{STAGE_RUNNING, WIRE_EXIT, 0, 9, 8, "\0\0\0\0\0\0\0\0"},
	{STAGE_RUNNING, WIRE_LOG, 0, 9, 1, "x"},
	{STAGE_RUNNING, WIRE_FROZEN, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_BYE, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_ATTACHED, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_DETACHED, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_PAUSED, 0, 0, 4, "\0\0\0\0"},
	{STAGE_RUNNING, WIRE_RESUME + 1, 0, 0, 0, ""},
	{STAGE_WAITING, WIRE_PAUSE, 0, 0, 0, ""},
	{STAGE_GREETED, WIRE_PAUSE, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_PAUSE, 2, 0, 0, ""},
	{STAGE_RUNNING, WIRE_PAUSE, 0, 9, 0, ""},
	{STAGE_GREETED, WIRE_RESUME, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_RESUME, 1, 0, 0, ""},
	{STAGE_RUNNING, 255, 0, 0, 0, ""},
	{STAGE_WAITING, WIRE_TIME, 0, 0, 8, "12345678"},
	{STAGE_GREETED, WIRE_TIME, 0, 0, 8, "12345678"},
	{STAGE_RUNNING, WIRE_TIME, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_TIME, 0, 0, 7, "1234567"},
	{STAGE_RUNNING, WIRE_TIME, 0, 0, 16, "1234567812345678"},
	{STAGE_RUNNING, WIRE_TIME, 0, 9, 8, "12345678"},
	{STAGE_RUNNING, WIRE_TIME, 1, 0, 8, "12345678"},
	{STAGE_GREETED, WIRE_CLOCK, 0, 0, 8, "12345678"},
	{STAGE_RUNNING, WIRE_CLOCK, 0, 0, 4, "1234"},
	{STAGE_RUNNING, WIRE_CLOCK, 0, 9, 8, "12345678"},
	{STAGE_RUNNING, WIRE_CLOCK, 1, 0, 8, "12345678"},
	{STAGE_GREETED, WIRE_TCP, 0, 1, 2, "\1\0"},
	{STAGE_RUNNING, WIRE_TCP, 0, 0, 2, "\1\0"},
	{STAGE_RUNNING, WIRE_TCP, 0, 9, 2, "\1\0"},
	{STAGE_RUNNING, WIRE_TCP, 1, 10, 2, "\1\0"},
	{STAGE_RUNNING, WIRE_TCP, 0, 10, 2, "\0\0"},
	{STAGE_RUNNING, WIRE_TCP, 0, 10, 1, "\1"},
	{STAGE_RUNNING, WIRE_TCP, 0, 10, 3, "\1\0\0"},
	{STAGE_WAITING, WIRE_ATTACH, 0, 0, 0, ""},
	{STAGE_GREETED, WIRE_ATTACH, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_ATTACH, 0, 0, 1, "x"},
	{STAGE_RUNNING, WIRE_ATTACH, 0, 9, 0, ""},
	{STAGE_RUNNING, WIRE_ATTACH, 1, 0, 0, ""},
	{STAGE_WAITING, WIRE_DETACH, 0, 0, 0, ""},
	{STAGE_GREETED, WIRE_DETACH, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_DETACH, 0, 0, 1, "x"},
	{STAGE_RUNNING, WIRE_DETACH, 0, 9, 0, ""},
	{STAGE_RUNNING, WIRE_DETACH, 1, 0, 0, ""},
	{STAGE_RUNNING, WIRE_EXEC, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_EXEC, 0, 10, 3, "bad"},
	{STAGE_RUNNING, WIRE_EXEC, 2, 10, 0, ""},
	{STAGE_RUNNING, WIRE_EXEC, 0, 9, 0, ""},
	{STAGE_RUNNING, WIRE_EXEC, 1, 9, 0, ""},
	{STAGE_RUNNING, WIRE_DATA, 0, 0, 1, "x"},
	{STAGE_RUNNING, WIRE_DATA, 1, 9, 1, "x"},
	{STAGE_RUNNING, WIRE_DATA, 200, 9, 1, "x"},
	{STAGE_RUNNING, WIRE_DATA, 0, 8, 1, "x"},
	{STAGE_RUNNING, WIRE_EOF, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_EOF, 1, 9, 0, ""},
	{STAGE_RUNNING, WIRE_EOF, 0, 9, 1, "x"},
	{STAGE_RUNNING, WIRE_CREDIT, 0, 9, 4, "\1\0\0\0"},
	{STAGE_RUNNING, WIRE_CREDIT, 3, 9, 4, "\1\0\0\0"},
	{STAGE_RUNNING, WIRE_CREDIT, 1, 0, 4, "\1\0\0\0"},
	{STAGE_RUNNING, WIRE_CREDIT, 1, 9, 3, "\1\0\0"},
	{STAGE_RUNNING, WIRE_CREDIT, 1, 9, 4, "\1\0\0\0"},
	{STAGE_RUNNING, WIRE_CREDIT, 1, 9, 4, "\xff\xff\xff\xff"},
	{STAGE_RUNNING, WIRE_SIGNAL, 0, 9, 4, "\0\0\0\0"},
	{STAGE_RUNNING, WIRE_SIGNAL, 0, 9, 4, "\x41\0\0\0"},
	{STAGE_RUNNING, WIRE_SIGNAL, 1, 9, 4, "\1\0\0\0"},
	{STAGE_RUNNING, WIRE_SIGNAL, 0, 0, 4, "\1\0\0\0"},
	{STAGE_RUNNING, WIRE_WINDOW_SIZE, 0, 9, 3, "\1\0\1"},
	{STAGE_RUNNING, WIRE_WINDOW_SIZE, 0, 0, 4, "\1\0\1\0"},
	{STAGE_RUNNING, WIRE_CLOSE, 0, 9, 1, "x"},
	{STAGE_RUNNING, WIRE_CLOSE, 0, 0, 0, ""},
	{STAGE_RUNNING, WIRE_FREEZE, 0, 0, 1, "x"},
	{STAGE_RUNNING, WIRE_FREEZE, 0, 1, 0, ""},
	{STAGE_RUNNING, WIRE_SHUTDOWN, 2, 0, 0, ""},
	{STAGE_RUNNING, WIRE_SHUTDOWN, 0, 0, 1, "x"},
};

static void assert_broken(struct host *host)
{
	host_await_end(host);
	assert_int_equal(host->report->rc, -EBADMSG);
	assert_true(host->report->err.text[0] != '\0');
	assert_int_equal(host->report->freezes, 0);
	assert_int_equal(host->report->attaches, 0);
	assert_int_equal(host->report->detaches, 0);
	assert_true(host->report->stepped_ns == 0);
	assert_int_equal(host->report->shutdowns, 0);
}

static void test_illegal_messages(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(illegals); i++) {
		const struct illegal *illegal = &illegals[i];
		struct host *host = host_new(0);

		if (illegal->stage >= STAGE_GREETED) {
			host_greet(host);
		}
		if (illegal->stage >= STAGE_RUNNING) {
			host_setup(host, 0);
			host_await_port(host, WIRE_READY);
			host_shell(host, 9, "exec cat", WIRE_EXEC_STDIN);
			host_shell(host, 8, "exec sleep 60", 0);
			while (host->results[8].started == 0) {
				assert_true(host_next(host, 20000) > 0);
			}
		}
		host_send(host, illegal->type, illegal->channel, illegal->stream, illegal->payload,
			  illegal->size);
		assert_broken(host);
		host_free(host);
	}
}

static void test_illegal_frames(void **state)
{
	static const uint8_t too_long[] = {0xf5, 0x7f, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
	static const uint8_t reserved[] = {0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0};
	static const uint8_t *const headers[] = {too_long, reserved};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(headers); i++) {
		struct host *host = host_new(0);

		assert_int_equal(write(host->fd, headers[i], WIRE_HEADER_SIZE), WIRE_HEADER_SIZE);
		assert_broken(host);
		host_free(host);
	}
}

static void test_illegal_sequences(void **state)
{
	static uint8_t payload[WIRE_PAYLOAD_MAX];
	struct host *host;

	/* Input after its end. */
	(void)state;
	host_set_up((void **)&host);
	host_shell(host, 1, "exec cat", WIRE_EXEC_STDIN);
	host_shell(host, 2, "exec sleep 60", WIRE_EXEC_STDIN);
	host_send(host, WIRE_EOF, 0, 2, NULL, 0);
	host_send(host, WIRE_DATA, 0, 2, "x", 1);
	assert_broken(host);
	host_free(host);
	/* Input beyond the window. */
	host_set_up((void **)&host);
	host_shell(host, 1, "exec sleep 60", WIRE_EXEC_STDIN);
	for (size_t sent = 0; sent <= WIRE_WINDOW + 65536; sent += sizeof(payload)) {
		host_send(host, WIRE_DATA, 0, 1, payload, sizeof(payload));
	}
	assert_broken(host);
	host_free(host);
	/* An EXEC that begins inside another. */
	host_set_up((void **)&host);
	host_send(host, WIRE_EXEC, 1, 1, "x", 1);
	host_send(host, WIRE_EXEC, 0, 2, "x", 1);
	assert_broken(host);
	host_free(host);
	/* A connection, or a disk's end, inside an EXEC. */
	host_set_up((void **)&host);
	host_send(host, WIRE_EXEC, 1, 1, "x", 1);
	host_send(host, WIRE_TCP, 0, 1, "\1\0", 2);
	assert_broken(host);
	host_free(host);
	host_set_up((void **)&host);
	host_send(host, WIRE_EXEC, 1, 1, "x", 1);
	host_send(host, WIRE_DETACH, 0, 0, NULL, 0);
	assert_broken(host);
	host_free(host);
	/* An EXEC without end. */
	host_set_up((void **)&host);
	for (size_t sent = 0; sent <= WIRE_EXEC_MAX; sent += sizeof(payload)) {
		host_send(host, WIRE_EXEC, 1, 1, payload, sizeof(payload));
	}
	assert_broken(host);
	host_free(host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ready),
		cmocka_unit_test(test_setup_fails),
		cmocka_unit_test(test_version),
		cmocka_unit_test_setup_teardown(test_channels_are_separate, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_exit_codes, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_not_started, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_script_without_interpreter, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_user_and_directory_missing, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_environment, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_clean_process, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_other_user, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_bulk, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_slow_reader, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_slow_reader_holds_up_nobody, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_input, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_input_ends_late, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_input_not_wanted, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_signal, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_terminal, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_terminal_lines, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_terminal_window_size, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_terminal_end_of_input, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_terminal_hangup, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_child_keeps_output, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_child_floods_output, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_close, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_many_streams, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_fairness, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_streams_limit, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_long_exec, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_freeze, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_shutdown, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_shutdown_that_could_not_write, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_shutdown_data_only, host_set_up,
						host_tear_down),
		cmocka_unit_test(test_illegal_messages),
		cmocka_unit_test(test_illegal_frames),
		cmocka_unit_test(test_illegal_sequences),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
