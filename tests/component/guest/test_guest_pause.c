/* PAUSE and what follows it: RESUME, another host's end, or nothing for too long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "host.h"

#define MS UINT64_C(1000000)
/* What would come comes within this time. */
#define SILENCE_MS 300

/* Credit must not cross PAUSE, so nobody grants any unless a test says so. */
static int set_up(void **state)
{
	int rc = host_set_up(state);

	((struct host *)*state)->generous = false;
	return rc;
}

/* Sends PAUSE and returns the errno of its answer. */
static uint32_t send_pause(struct host *host, uint8_t channel)
{
	uint32_t error;

	host_send(host, WIRE_PAUSE, channel, 0, NULL, 0);
	host_await_port(host, WIRE_PAUSED);
	assert_int_equal(wire_u32_decode(host->payload, host->frame.length, &error), 0);
	return error;
}

static void resume(struct host *host)
{
	host_send(host, WIRE_RESUME, 0, 0, NULL, 0);
}

static void assert_broken(struct host *host)
{
	host_await_end(host);
	assert_int_equal(host->report->rc, -EBADMSG);
}

/* A new life in the middle of a pause, as a copy of the machine gets it. */
static void begin_anew(struct host *host)
{
	host_greet(host);
	host_setup(host, 0);
	host_await_port(host, WIRE_READY);
}

static void assert_counts_to(const struct result *result, int last)
{
	size_t at = 0;

	for (int i = 0; i <= last; i++) {
		char line[16];
		size_t length = (size_t)snprintf(line, sizeof(line), "%d\n", i);

		assert_true(at + length <= result->size[1]);
		assert_memory_equal(result->data[1] + at, line, length);
		at += length;
	}
	assert_int_equal(at, result->size[1]);
}

static void test_nothing_comes_and_nothing_is_lost(void **state)
{
	struct host *host = *state;
	struct result *result = &host->results[1];

	host_shell(host, 1, "i=0; while [ $i -lt 4000 ]; do echo $i; i=$((i+1)); done", 0);
	for (int i = 0; i < 8; i++) {
		size_t size = result->size[1];

		while (result->size[1] == size && !host_ended(host, 1)) {
			assert_true(host_next(host, 20000) > 0);
		}
		assert_int_equal(send_pause(host, 0), 0);
		assert_int_equal(host->report->pauses, i + 1);
		assert_int_equal(host->report->resumes, i);
		assert_int_equal(host_next(host, i == 0 ? SILENCE_MS : 20), 0);
		resume(host);
	}
	host_assert_exit(host_await(host, 1), WIRE_EXITED, 0);
	assert_counts_to(result, 3999);
	assert_int_equal(send_pause(host, 0), 0);
	assert_int_equal(host->report->resumes, 8);
}

static void test_what_ends_meanwhile_is_told_afterwards(void **state)
{
	struct host *host = *state;

	host_shell(host, 1, "sleep 0.1; echo last; exit 3", 0);
	host_await_started(host, 1);
	assert_int_equal(send_pause(host, 0), 0);
	assert_int_equal(host_next(host, SILENCE_MS), 0);
	resume(host);
	host_assert_exit(host_await(host, 1), WIRE_EXITED, 3);
	assert_int_equal(host->results[1].size[1], 5);
}

static void test_refused(void **state)
{
	struct host *host = *state;

	/* There are no control groups here, so commands cannot be stopped; none can. */
	assert_int_equal(send_pause(host, 1), 0);
	resume(host);
	host_shell(host, 1, "read x; echo $x", WIRE_EXEC_STDIN);
	host_await_started(host, 1);
	assert_int_equal(send_pause(host, 1), EOPNOTSUPP);
	host->report->pause_error = -EBUSY;
	assert_int_equal(send_pause(host, 0), EBUSY);
	/* It was told, and has gone on without RESUME; one that crosses is no harm. */
	resume(host);
	host_send(host, WIRE_DATA, 0, 1, "on\n", 3);
	host_assert_exit(host_await(host, 1), WIRE_EXITED, 0);
	assert_memory_equal(host->results[1].data[1], "on\n", 3);
	assert_int_equal(host->report->resumes, 1);
}

static void test_goes_on_by_itself(void **state)
{
	struct host *host = *state;
	uint64_t began;

	host_shell(host, 1, "while :; do echo; sleep 0.05; done", 0);
	host_await_started(host, 1);
	began = clock_monotonic_ns();
	assert_int_equal(send_pause(host, 0), 0);
	assert_true(host_next(host, 20000) > 0);
	assert_true(clock_monotonic_ns() - began >= (HOST_PAUSE_MAX_MS - 100) * MS);
	assert_int_equal(host->report->resumes, 1);
	resume(host);
	assert_true(host_next(host, 20000) > 0);
	assert_int_equal(host->report->resumes, 1);
}

static void test_host_goes_away(void **state)
{
	struct host *host = *state;

	assert_int_equal(send_pause(host, 0), 0);
	host_finish(host);
	assert_int_equal(host->report->rc, 0);
	/* Thawed first, then written. */
	assert_int_equal(host->report->resumes, 1);
	assert_int_equal(host->report->shutdowns, 1);
}

static void test_new_life_keeps_commands(void **state)
{
	static uint8_t input[20000];
	struct host *host = *state;
	struct result *flood = &host->results[1], *echo = &host->results[2];

	/* One has used up its window, the other has input that its command has not taken yet. */
	host_shell(host, 1, "head -c 100000 /dev/zero", 0);
	host_shell(host, 2, "sleep 1; exec cat", WIRE_EXEC_STDIN);
	while (flood->size[1] < WIRE_WINDOW) {
		assert_true(host_next(host, 20000) > 0);
	}
	memset(input, 'i', sizeof(input));
	for (size_t sent = 0; sent < 100000; sent += 20000) {
		/* What the pipe has taken is granted again. */
		while (sent + 20000 > WIRE_WINDOW + echo->granted) {
			assert_true(host_next(host, 20000) > 0);
		}
		host_send(host, WIRE_DATA, 0, 2, input, 20000);
	}
	assert_int_equal(send_pause(host, 0), 0);
	assert_int_equal(flood->size[1], WIRE_WINDOW);
	/* What was granted before belongs to the other end. */
	echo->granted = 0;
	begin_anew(host);
	assert_int_equal(host->report->setups, 2);
	assert_int_equal(host->report->resumes, 1);
	host_assert_exit(host_await(host, 1), WIRE_EXITED, 0);
	assert_int_equal(flood->size[1], 100000);
	host->generous = true;
	while (echo->size[1] < 100000) {
		assert_true(host_next(host, 20000) > 0);
	}
	/* A whole window, of which what still waited was not granted at once. */
	while (echo->granted < WIRE_WINDOW - WIRE_WINDOW / 4) {
		assert_true(host_next(host, 20000) > 0);
	}
	assert_true(echo->granted <= WIRE_WINDOW);
	host_send(host, WIRE_DATA, 0, 2, "end", 3);
	host_send(host, WIRE_EOF, 0, 2, NULL, 0);
	host_assert_exit(host_await(host, 2), WIRE_EXITED, 0);
	assert_int_equal(echo->size[1], 100003);
	assert_memory_equal(echo->data[1] + 100000, "end", 3);
}

static void test_new_life_keeps_still_until_its_setup(void **state)
{
	struct host *host = *state;
	struct result *result = &host->results[1];

	host_shell(host, 1, "while :; do echo; sleep 0.02; done", 0);
	host_await_started(host, 1);
	assert_int_equal(send_pause(host, 0), 0);
	result->size[1] = 0;
	/* HELLO and SETUP of another host's end need not come together. */
	host_greet(host);
	assert_int_equal(host_next(host, SILENCE_MS), 0);
	host_setup(host, 0);
	assert_int_equal(host_next(host, 20000), WIRE_READY);
	while (result->size[1] == 0) {
		assert_true(host_next(host, 20000) > 0);
	}
	assert_int_equal(host->report->resumes, 1);
}

static void test_new_life_grants_before_it_takes(void **state)
{
	static uint8_t input[WIRE_WINDOW / 4];
	struct host *host = *state;

	/* So much waits for a command that takes nothing that there is no credit to give. */
	host_shell(host, 1, "exec sleep 60", WIRE_EXEC_STDIN);
	host_await_started(host, 1);
	for (size_t sent = 0; sent < 2 * WIRE_WINDOW; sent += sizeof(input)) {
		host_send(host, WIRE_DATA, 0, 1, input, sizeof(input));
		/* The first window goes into the command's pipe, the second one waits. */
		while (sent < WIRE_WINDOW && host->results[1].granted <= sent) {
			assert_true(host_next(host, 20000) > 0);
		}
	}
	assert_int_equal(send_pause(host, 0), 0);
	begin_anew(host);
	host_send(host, WIRE_DATA, 0, 1, "x", 1);
	assert_broken(host);
}

static void test_new_life_resets_connections(void **state)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	struct host *host = *state;
	uint8_t port[WIRE_PAYLOAD_MAX];
	int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char byte;
	int peer;

	assert_int_equal(bind(server, (struct sockaddr *)&address, size), 0);
	assert_int_equal(listen(server, 1), 0);
	assert_int_equal(getsockname(server, (struct sockaddr *)&address, &size), 0);
	host_send(host, WIRE_TCP, 0, 1, port,
		  (size_t)wire_port_encode(ntohs(address.sin_port), port));
	host_await_started(host, 1);
	peer = accept(server, NULL, NULL);
	assert_int_equal(send_pause(host, 0), 0);
	begin_anew(host);
	assert_int_equal(read(peer, &byte, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	/* Without a word, and its number is free. */
	assert_int_equal(host_next(host, 100), 0);
	host_send(host, WIRE_TCP, 0, 1, port,
		  (size_t)wire_port_encode(ntohs(address.sin_port), port));
	host->results[1] = (struct result){0};
	host_await_started(host, 1);
	close(peer);
	close(server);
}

static void test_new_life_fails(void **state)
{
	struct host *host;
	struct wire_error error;

	/* Nothing that was paused goes on. */
	(void)state;
	set_up((void **)&host);
	host_shell(host, 1, "while :; do echo; sleep 0.02; done", 0);
	host_await_started(host, 1);
	assert_int_equal(send_pause(host, 0), 0);
	host->report->setup_error = -EIO;
	host_greet(host);
	host_setup(host, 0);
	host_await_port(host, WIRE_ERROR);
	assert_int_equal(wire_error_decode(host->payload, host->frame.length, &error), 0);
	assert_int_equal(error.error, EIO);
	assert_int_equal(host_next(host, SILENCE_MS), 0);
	assert_int_equal(host->report->resumes, 0);
	host_free(host);
}

static void test_not_legal(void **state)
{
	static const struct {
		uint8_t type, channel;
		uint32_t stream;
		size_t size;
	} messages[] = {
		{WIRE_PAUSE, 0, 0, 0},	{WIRE_SETUP, 0, 0, 0},	  {WIRE_TIME, 0, 0, 8},
		{WIRE_CREDIT, 1, 1, 4}, {WIRE_DATA, 0, 1, 1},	  {WIRE_CLOSE, 0, 1, 0},
		{WIRE_FREEZE, 0, 0, 0}, {WIRE_SHUTDOWN, 0, 0, 0}, {WIRE_DETACH, 0, 0, 0},
		{WIRE_ATTACH, 0, 0, 0}, {WIRE_RESUME, 0, 0, 1},	  {WIRE_RESUME, 0, 1, 0},
	};
	static const uint8_t zeros[8];
	struct host *host;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(messages); i++) {
		set_up((void **)&host);
		assert_int_equal(send_pause(host, 0), 0);
		host_send(host, messages[i].type, messages[i].channel, messages[i].stream, zeros,
			  messages[i].size);
		assert_broken(host);
		host_free(host);
	}
	set_up((void **)&host);
	host_send(host, WIRE_PAUSE, 0, 0, "x", 1);
	assert_broken(host);
	assert_int_equal(host->report->pauses, 0);
	host_free(host);
	set_up((void **)&host);
	host_send(host, WIRE_EXEC, 1, 1, "x", 1);
	host_send(host, WIRE_PAUSE, 0, 0, NULL, 0);
	assert_broken(host);
	assert_int_equal(host->report->pauses, 0);
	host_free(host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_nothing_comes_and_nothing_is_lost, set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_what_ends_meanwhile_is_told_afterwards, set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_refused, set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_goes_on_by_itself, set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_host_goes_away, set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_new_life_keeps_commands, set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_new_life_keeps_still_until_its_setup, set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_new_life_grants_before_it_takes, set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_new_life_resets_connections, set_up,
						host_tear_down),
		cmocka_unit_test(test_new_life_fails),
		cmocka_unit_test(test_not_legal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
