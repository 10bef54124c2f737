/*
 * What the host says about the machine itself: its clock and its disk. And box-guest's own program
 * as a command, for which this program stands in.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "host.h"

/* What this program is called when the session starts it as itself. */
#define SELF_NAME "test-self"
#define PATIENCE_MS 20000

static void assert_output(const struct result *result, const char *expected)
{
	assert_int_equal(result->size[1], strlen(expected));
	assert_memory_equal(result->data[1], expected, strlen(expected));
}

/* ---- TIME, CLOCK ---- */

static void ask_time(struct host *host, uint64_t token)
{
	uint8_t payload[WIRE_PAYLOAD_MAX];

	host_send(host, WIRE_TIME, 0, 0, payload, (size_t)wire_time_encode(token, payload));
}

static uint64_t take_time(struct host *host, uint64_t token)
{
	uint64_t got_token, realtime_ns;

	host_await_port(host, WIRE_TIME);
	assert_int_equal(wire_time_answer_decode(host->payload, host->frame.length, &got_token,
						 &realtime_ns),
			 0);
	assert_true(got_token == token);
	return realtime_ns;
}

static void test_time(void **state)
{
	struct host *host = *state;
	uint64_t before = clock_realtime_ns(), answer;

	ask_time(host, 0xfedcba9876543210);
	answer = take_time(host, 0xfedcba9876543210);
	assert_true(answer >= before);
	assert_true(answer <= clock_realtime_ns());
	/* Several at once are answered in their order. */
	for (uint64_t token = 1; token <= 5; token++) {
		ask_time(host, token);
	}
	for (uint64_t token = 1; token <= 5; token++) {
		uint64_t next = take_time(host, token);

		assert_true(next >= answer);
		answer = next;
	}
}

/* Counts the bytes of output that come before the answer, with the port full of them. */
static void test_time_goes_before_output(void **state)
{
	struct host *host = *state;
	size_t before;

	/* More than a window each, so that what the port does not take stays in the outbox. */
	for (uint32_t stream = 1; stream <= 8; stream++) {
		host_shell(host, stream, "exec cat /dev/zero", 0);
	}
	usleep(300000);
	ask_time(host, 7);
	usleep(100000);
	host->generous = false;
	take_time(host, 7);
	before = host->results[1].size[1] + host->results[2].size[1] + host->results[3].size[1] +
		 host->results[4].size[1] + host->results[5].size[1] + host->results[6].size[1] +
		 host->results[7].size[1] + host->results[8].size[1];
	/* The socket itself holds some; the windows are eight times 256 KiB. */
	assert_true(before < (size_t)4 * WIRE_WINDOW);
}

/* A host that asks and asks and does not read harms nobody. */
static void test_time_unread(void **state)
{
	struct host *host = *state;
	const char *const argv[] = {"/bin/echo", "alive", NULL};

	host_shell(host, 1, "exec cat /dev/zero", 0);
	usleep(200000);
	for (uint64_t token = 1; token <= 20000; token++) {
		ask_time(host, token);
	}
	host_exec(host, 2, &(struct command){.argv = argv});
	assert_output(host_await(host, 2), "alive\n");
}

static void step_clock(struct host *host, int64_t step_ns)
{
	uint8_t payload[WIRE_PAYLOAD_MAX];

	host_send(host, WIRE_CLOCK, 0, 0, payload, (size_t)wire_clock_encode(step_ns, payload));
	/* It has been acted upon once a later message is answered. */
	ask_time(host, 1);
	take_time(host, 1);
}

static void test_clock(void **state)
{
	struct host *host = *state;

	step_clock(host, INT64_C(5000000001));
	assert_true(host->report->stepped_ns == INT64_C(5000000001));
	step_clock(host, INT64_C(-7000000002));
	assert_true(host->report->stepped_ns == INT64_C(-2000000001));
}

/* ---- ATTACH, DETACH ---- */

static void test_attach(void **state)
{
	struct host *host = *state;

	/* What runs goes on. */
	host_shell(host, 1, "exec cat", WIRE_EXEC_STDIN);
	host_await_started(host, 1);
	host_send(host, WIRE_ATTACH, 0, 0, NULL, 0);
	host_await_port(host, WIRE_ATTACHED);
	assert_int_equal(host->frame.length, 0);
	assert_int_equal(host->report->attaches, 1);
	host_send(host, WIRE_DATA, 0, 1, "on\n", 3);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	assert_output(host_await(host, 1), "on\n");
}

static void test_detach(void **state)
{
	struct host *host = *state;
	uint32_t pid;

	host_shell(host, 1, "exec sleep 60", 0);
	host_await_started(host, 1);
	pid = host->results[1].pid;
	host_send(host, WIRE_DETACH, 0, 0, NULL, 0);
	host_await_port(host, WIRE_DETACHED);
	assert_int_equal(host->frame.length, 0);
	assert_true(host_is_gone(pid));
	assert_int_equal(host->report->detaches, 1);
	/* The stream is gone without a word, and its number is free. */
	assert_int_equal(host_next(host, 300), 0);
	assert_int_equal(host->results[1].exits, 0);
	memset(&host->results[1], 0, sizeof(host->results[1]));
	/* It still runs, without another SETUP, and takes another disk. */
	host_shell(host, 1, "echo between", 0);
	assert_output(host_await(host, 1), "between\n");
	host_send(host, WIRE_ATTACH, 0, 0, NULL, 0);
	host_await_port(host, WIRE_ATTACHED);
	host_shell(host, 2, "echo after", 0);
	assert_output(host_await(host, 2), "after\n");
	assert_int_equal(host->report->setups, 1);
}

/* Answers come in the order of the questions, also when the host does not wait for them. */
static void test_attach_and_detach_at_once(void **state)
{
	struct host *host = *state;
	static const uint8_t order[] = {WIRE_ATTACHED, WIRE_DETACHED, WIRE_ATTACHED, WIRE_BYE};

	host_send(host, WIRE_ATTACH, 0, 0, NULL, 0);
	host_send(host, WIRE_DETACH, 0, 0, NULL, 0);
	host_send(host, WIRE_ATTACH, 0, 0, NULL, 0);
	host_send(host, WIRE_SHUTDOWN, 0, 0, NULL, 0);
	for (size_t i = 0; i < ARRAY_SIZE(order); i++) {
		assert_int_equal(host_next(host, PATIENCE_MS), order[i]);
	}
}

static void assert_error(struct host *host, uint8_t type, uint32_t number, const char *text)
{
	struct wire_error error;

	host_send(host, type, 0, 0, NULL, 0);
	host_await_port(host, WIRE_ERROR);
	assert_int_equal(wire_error_decode(host->payload, host->frame.length, &error), 0);
	assert_int_equal(error.error, number);
	assert_string_equal(error.text, text);
	/* It goes down, and takes nothing any more. */
	host_send(host, WIRE_ATTACH, 0, 0, NULL, 0);
	host_shell(host, 1, "true", 0);
	assert_int_equal(host_next(host, 200), 0);
	host_finish(host);
	assert_int_equal(host->report->rc, 0);
}

static void test_attach_fails(void **state)
{
	struct host *host = *state;

	host->report->attach_error = -EUCLEAN;
	assert_error(host, WIRE_ATTACH, EUCLEAN, "the attach hook was told to fail");
	assert_int_equal(host->report->attaches, 1);
}

static void test_detach_fails(void **state)
{
	struct host *host = *state;

	host->report->detach_error = -EBUSY;
	assert_error(host, WIRE_DETACH, EBUSY, "the detach hook was told to fail");
	assert_int_equal(host->report->detaches, 1);
	assert_int_equal(host->report->attaches, 0);
}

/* ---- The program itself as a command ---- */

static int self(int argc, char **argv)
{
	char directory[256] = "";

	printf("%d %s %s %u %u %s\n", argc, argv[1], getenv("KEY"), (unsigned)getuid(),
	       (unsigned)getgid(), getcwd(directory, sizeof(directory)));
	return 5;
}

static struct result *run_self(struct host *host, uint32_t stream, const char *name,
			       const char *user, uint32_t flags)
{
	const char *const argv[] = {name, "argument", NULL};
	const char *const envp[] = {"KEY=value", NULL};

	host_exec(host, stream,
		  &(struct command){.argv = argv,
				    .envp = envp,
				    .user = user,
				    .directory = "/usr",
				    .flags = flags | WIRE_EXEC_SELF});
	return host_await(host, stream);
}

static void test_self(void **state)
{
	struct host *host = *state;
	struct result *result = run_self(host, 1, SELF_NAME, "0", 0);

	host_assert_exit(result, WIRE_EXITED, 5);
	assert_output(result, "2 argument value 0 0 /usr\n");
	/* The name is only a name: it is not looked for. */
	result = run_self(host, 2, "/nonexistent/" SELF_NAME, "0", 0);
	host_assert_exit(result, WIRE_EXITED, 6);
	result = run_self(host, 3, SELF_NAME, "0", WIRE_EXEC_TERMINAL);
	host_assert_exit(result, WIRE_EXITED, 5);
	assert_output(result, "2 argument value 0 0 /usr\r\n");
}

/* A user who may not look at /proc/PID/exe of the session runs it all the same. */
static void test_self_as_user(void **state)
{
	struct host *host = *state;
	struct result *result;

	if (getuid() != 0) {
		skip();
	}
	result = run_self(host, 1, SELF_NAME, "54321", 0);
	host_assert_exit(result, WIRE_EXITED, 5);
	assert_output(result, "2 argument value 54321 54321 /usr\n");
	result = run_self(host, 2, SELF_NAME, "no-such-user", 0);
	host_assert_exit(result, WIRE_NOT_STARTED, EINVAL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_time, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_time_goes_before_output, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_time_unread, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_clock, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_attach, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_detach, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_attach_and_detach_at_once, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_attach_fails, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_detach_fails, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_self, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_self_as_user, host_set_up, host_tear_down),
	};

	if (strcmp(argv[0], SELF_NAME) == 0) {
		return self(argc, argv);
	}
	/* A session's child that was to be something else must not begin the tests again. */
	return argc > 1 ? 6 : cmocka_run_group_tests(tests, NULL, NULL);
}
