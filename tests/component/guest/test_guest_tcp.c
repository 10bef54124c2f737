/*
 * Streams that are TCP connections, to servers of this test on the loopback.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/io.h"
#include "host.h"

#define PATIENCE_MS 20000
/* More than the test opens at once. */
#define BACKLOG 256
/* Fits into the receiver's buffer, also of a small one. */
#define MORE 10000

/* What the servers' processes have seen. */
struct seen {
	size_t bytes;
	bool end;
	/* The errno of the last read or write. */
	int error;
};

struct server {
	int fd;
	uint16_t port;
	pid_t pid;
};

static struct seen *seen;

/* ---- Servers ---- */

static void serve_echo(int fd)
{
	static char data[65536];
	ssize_t got;

	while ((got = read(fd, data, sizeof(data))) > 0) {
		if (write_full(fd, data, (size_t)got) < 0) {
			return;
		}
	}
}

/* Says how much came, once the other side has said that this was all. */
static void serve_count(int fd)
{
	static char data[65536];
	char text[32];
	size_t count = 0;
	ssize_t got;

	while ((got = read(fd, data, sizeof(data))) > 0) {
		count += (size_t)got;
	}
	(void)write_full(fd, text, (size_t)snprintf(text, sizeof(text), "%zu\n", count));
}

/* Speaks first, ends its side, and then listens to the end. */
static void serve_greeting(int fd)
{
	char byte;

	(void)write_full(fd, "hello", 5);
	shutdown(fd, SHUT_WR);
	while (read(fd, &byte, 1) > 0) {
		seen->bytes++;
	}
	seen->end = true;
}

/* Reads one byte, answers, and resets. */
static void serve_reset(int fd)
{
	const struct linger none = {.l_onoff = 1, .l_linger = 0};
	char byte;

	if (read(fd, &byte, 1) == 1) {
		(void)write_full(fd, "last", 4);
		/* What was sent would be thrown away with the connection. */
		usleep(200000);
	}
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}

/* Sends a little more than a window, and later resets. */
static void serve_window_and_reset(int fd)
{
	static const char data[WIRE_WINDOW + MORE];
	const struct linger none = {.l_onoff = 1, .l_linger = 0};

	int unsent = 1;

	(void)write_full(fd, data, sizeof(data));
	/* A reset throws away what the receiver has not got. */
	for (int i = 0; i < 1000 && unsent != 0; i++) {
		usleep(10000);
		ioctl(fd, SIOCOUTQ, &unsent);
	}
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	seen->end = true;
}

/* Ends its side, and later resets. */
static void serve_end_and_reset(int fd)
{
	const struct linger none = {.l_onoff = 1, .l_linger = 0};

	shutdown(fd, SHUT_WR);
	usleep(300000);
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}

static void serve_flood(int fd)
{
	static const char data[65536];

	while (write(fd, data, sizeof(data)) > 0) {
	}
	seen->error = errno;
}

/* Reads nothing for a second, then everything. */
static void serve_late(int fd)
{
	sleep(1);
	serve_count(fd);
}

/* Waits for the other side's end and notes of what kind it is. */
static void serve_wait(int fd)
{
	char byte;
	ssize_t got = read(fd, &byte, 1);

	seen->error = got < 0 ? errno : 0;
	seen->end = true;
}

static int listen_on(struct server *server, int family, int backlog)
{
	struct sockaddr_in6 ipv6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	struct sockaddr_in ipv4 = {.sin_family = AF_INET,
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = family == AF_INET ? sizeof(ipv4) : sizeof(ipv6);
	struct sockaddr *address = family == AF_INET ? (void *)&ipv4 : (void *)&ipv6;

	*server = (struct server){.fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	if (server->fd < 0 || bind(server->fd, address, size) < 0) {
		return -errno;
	}
	assert_int_equal(getsockname(server->fd, address, &size), 0);
	server->port = ntohs(family == AF_INET ? ipv4.sin_port : ipv6.sin6_port);
	if (backlog >= 0) {
		assert_int_equal(listen(server->fd, backlog), 0);
	}
	return 0;
}

/* Every connection gets a process. */
static _Noreturn void run_server(int fd, void (*serve)(int fd))
{
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	/* Or the port would stay open when a test that fails closes it. */
	close_range(STDERR_FILENO + 1, (unsigned)fd - 1, 0);
	close_range((unsigned)fd + 1, ~0u, 0);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		int connection = accept(fd, NULL, NULL);

		if (connection >= 0 && fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
			close(fd);
			serve(connection);
			close(connection);
			_exit(0);
		}
		close(connection);
	}
}

static void run_behind(struct server *server, void (*serve)(int fd))
{
	memset(seen, 0, sizeof(*seen));
	fflush(NULL);
	server->pid = fork();
	assert_true(server->pid >= 0);
	if (server->pid == 0) {
		run_server(server->fd, serve);
	}
	close(server->fd);
	server->fd = -EBADF;
}

static struct server start_server(void (*serve)(int fd))
{
	struct server server;

	assert_int_equal(listen_on(&server, AF_INET, BACKLOG), 0);
	run_behind(&server, serve);
	return server;
}

static void stop_server(struct server *server)
{
	if (server->pid > 0) {
		kill(server->pid, SIGKILL);
		assert_int_equal(waitpid(server->pid, NULL, 0), server->pid);
	}
	if (server->fd >= 0) {
		close(server->fd);
	}
}

/* ---- The host's side ---- */

static int set_up_group(void **state)
{
	(void)state;
	seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return seen == MAP_FAILED ? -1 : 0;
}

static void connect_to(struct host *host, uint32_t stream, uint16_t port)
{
	uint8_t payload[WIRE_PAYLOAD_MAX];

	host_send(host, WIRE_TCP, 0, stream, payload, (size_t)wire_port_encode(port, payload));
}

static void await_bytes(struct host *host, uint32_t stream, size_t size)
{
	while (host->results[stream].size[1] < size) {
		assert_true(host_next(host, PATIENCE_MS) > 0);
	}
}

static void await_seen_end(void)
{
	for (int i = 0; i < 1000 && !*(volatile bool *)&seen->end; i++) {
		usleep(10000);
	}
	assert_true(seen->end);
}

static void assert_output(const struct result *result, const char *expected)
{
	assert_int_equal(result->size[1], strlen(expected));
	assert_memory_equal(result->data[1], expected, strlen(expected));
	assert_int_equal(result->size[2], 0);
}

static void assert_exit(const struct result *result, uint32_t kind, uint32_t value)
{
	assert_int_equal(result->exit.kind, kind);
	assert_int_equal(result->exit.value, value);
	assert_int_equal(result->started, kind == WIRE_NOT_STARTED ? 0 : 1);
	assert_int_equal(result->pid, 0);
	assert_string_equal(result->log, "");
}

static uint8_t pattern(size_t at)
{
	return (uint8_t)(at * 7 + (at >> 8) + (at >> 16));
}

/* Sends count bytes of the pattern, as fast as credit comes. */
static void send_pattern(struct host *host, uint32_t stream, size_t count)
{
	struct result *result = &host->results[stream];
	uint8_t piece[30000];
	size_t sent = 0;

	while (sent < count) {
		size_t window = WIRE_WINDOW + result->granted - sent;
		size_t size = MIN(MIN(sizeof(piece), count - sent), window);

		if (size == 0) {
			assert_true(host_next(host, PATIENCE_MS) > 0);
			continue;
		}
		for (size_t i = 0; i < size; i++) {
			piece[i] = pattern(sent + i);
		}
		host_send(host, WIRE_DATA, 0, stream, piece, size);
		sent += size;
	}
}

static void test_echo(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_echo);
	const size_t count = 10u * 1024 * 1024 + 3;
	struct result *result;

	/* Nothing is waited for: what comes before the connection does is kept. */
	connect_to(host, 1, server.port);
	send_pattern(host, 1, count);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	result = host_await(host, 1);
	assert_exit(result, WIRE_EXITED, 0);
	assert_int_equal(result->size[1], count);
	for (size_t i = 0; i < count; i++) {
		if (result->data[1][i] != pattern(i)) {
			fail_msg("byte %zu is damaged", i);
		}
	}
	stop_server(&server);
}

/* Without TCP_NODELAY a small answer would wait for the acknowledgement of the one before. */
static void test_small_pieces(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_echo);
	uint64_t start;

	connect_to(host, 1, server.port);
	host_await_started(host, 1);
	start = clock_monotonic_ns();
	for (size_t i = 1; i <= 100; i++) {
		host_send(host, WIRE_DATA, 0, 1, "a", 1);
		host_send(host, WIRE_DATA, 0, 1, "b", 1);
		await_bytes(host, 1, 2 * i);
	}
	assert_true(clock_monotonic_ns() - start < UINT64_C(2000000000));
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	assert_exit(host_await(host, 1), WIRE_EXITED, 0);
	stop_server(&server);
}

static void test_host_ends_first(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_count);

	connect_to(host, 1, server.port);
	host_await_started(host, 1);
	send_pattern(host, 1, 1000003);
	assert_false(host->results[1].eof[1]);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	assert_output(host_await(host, 1), "1000003\n");
	assert_exit(&host->results[1], WIRE_EXITED, 0);
	/* An end without a byte, said before it can be connected. */
	connect_to(host, 2, server.port);
	host_send(host, WIRE_EOF, 0, 2, NULL, 0);
	assert_output(host_await(host, 2), "0\n");
	assert_exit(&host->results[2], WIRE_EXITED, 0);
	stop_server(&server);
}

static void test_server_ends_first(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_greeting);
	struct result *result = &host->results[1];

	connect_to(host, 1, server.port);
	while (!result->eof[1]) {
		assert_true(host_next(host, PATIENCE_MS) > 0);
	}
	assert_output(result, "hello");
	/* The other way stays open. */
	assert_int_equal(host_next(host, 300), 0);
	assert_int_equal(result->exits, 0);
	send_pattern(host, 1, 600000);
	assert_int_equal(result->exits, 0);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	assert_exit(host_await(host, 1), WIRE_EXITED, 0);
	await_seen_end();
	assert_int_equal(seen->bytes, 600000);
	stop_server(&server);
}

static void test_refused(void **state)
{
	struct host *host = *state;
	struct server server;

	/* The port is taken, but nobody listens. */
	assert_int_equal(listen_on(&server, AF_INET, -1), 0);
	connect_to(host, 1, server.port);
	host_send(host, WIRE_DATA, 0, 1, "lost", 4);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	assert_exit(host_await(host, 1), WIRE_NOT_STARTED, ECONNREFUSED);
	/* What crosses the end is dropped. */
	host_send(host, WIRE_DATA, 0, 1, "late", 4);
	host_send(host, WIRE_CLOSE, 0, 1, NULL, 0);
	connect_to(host, 2, server.port);
	assert_exit(host_await(host, 2), WIRE_NOT_STARTED, ECONNREFUSED);
	stop_server(&server);
}

static void test_ipv6(void **state)
{
	struct host *host = *state;
	struct server server;
	struct result *result;

	if (listen_on(&server, AF_INET6, BACKLOG) < 0) {
		print_message("there is no IPv6 here\n");
		skip();
	}
	run_behind(&server, serve_echo);
	connect_to(host, 1, server.port);
	host_send(host, WIRE_DATA, 0, 1, "six", 3);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	result = host_await(host, 1);
	assert_output(result, "six");
	assert_exit(result, WIRE_EXITED, 0);
	stop_server(&server);
}

static void test_reset(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_reset);
	struct result *result;

	connect_to(host, 1, server.port);
	host_send(host, WIRE_DATA, 0, 1, "x", 1);
	result = host_await(host, 1);
	assert_output(result, "last");
	assert_exit(result, WIRE_EXITED, 1);
	/* While a lot of input waits. */
	connect_to(host, 2, server.port);
	send_pattern(host, 2, WIRE_WINDOW);
	assert_exit(host_await(host, 2), WIRE_EXITED, 1);
	stop_server(&server);
}

/* A reset is noticed although no output is asked for; what had come before it is passed on. */
static void test_reset_without_credit(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_window_and_reset);
	struct result *result = &host->results[1];

	host->generous = false;
	connect_to(host, 1, server.port);
	await_bytes(host, 1, WIRE_WINDOW);
	await_seen_end();
	assert_int_equal(host_next(host, 300), 0);
	host_send(host, WIRE_DATA, 0, 1, "lost", 4);
	host_send_u32(host, WIRE_CREDIT, 1, 1, WIRE_WINDOW);
	assert_exit(host_await(host, 1), WIRE_EXITED, 1);
	assert_int_equal(result->size[1], WIRE_WINDOW + MORE);
	stop_server(&server);
}

/* And although nothing is sent and nothing can come any more. */
static void test_reset_after_end(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_end_and_reset);
	struct result *result = &host->results[1];

	connect_to(host, 1, server.port);
	while (!result->eof[1]) {
		assert_true(host_next(host, PATIENCE_MS) > 0);
	}
	assert_int_equal(result->exits, 0);
	assert_exit(host_await(host, 1), WIRE_EXITED, 1);
	stop_server(&server);
}

static void test_many(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_echo);
	const uint32_t count = 100;
	char text[32];

	for (uint32_t i = 1; i <= count; i++) {
		connect_to(host, i, server.port);
	}
	for (uint32_t i = 1; i <= count; i++) {
		snprintf(text, sizeof(text), "I am %u\n", i);
		host_send(host, WIRE_DATA, 0, i, text, strlen(text));
	}
	for (uint32_t i = 1; i <= count; i++) {
		snprintf(text, sizeof(text), "I am %u\n", i);
		await_bytes(host, i, strlen(text));
		assert_output(&host->results[i], text);
		assert_int_equal(host->results[i].exits, 0);
	}
	for (uint32_t i = 1; i <= count; i++) {
		host_send(host, WIRE_EOF, 0, i, NULL, 0);
	}
	for (uint32_t i = 1; i <= count; i++) {
		assert_exit(host_await(host, i), WIRE_EXITED, 0);
	}
	stop_server(&server);
}

/* The host takes nothing of one stream: it gets a window of it, and the others go on. */
static void test_slow_host(void **state)
{
	struct host *host = *state;
	struct server flood = start_server(serve_flood);
	struct server echo = start_server(serve_echo);

	host->generous = false;
	connect_to(host, 1, flood.port);
	await_bytes(host, 1, WIRE_WINDOW);
	connect_to(host, 2, echo.port);
	host_send(host, WIRE_DATA, 0, 2, "through", 7);
	host_send(host, WIRE_EOF, 0, 2, NULL, 0);
	assert_output(host_await(host, 2), "through");
	host_shell(host, 3, "echo too", 0);
	assert_output(host_await(host, 3), "too\n");
	assert_int_equal(host->results[1].size[1], WIRE_WINDOW);
	host_send_u32(host, WIRE_CREDIT, 1, 1, 1000);
	await_bytes(host, 1, WIRE_WINDOW + 1000);
	assert_int_equal(host_next(host, 200), 0);
	assert_int_equal(host->results[1].size[1], WIRE_WINDOW + 1000);
	stop_server(&flood);
	stop_server(&echo);
}

/* The server takes nothing for a while: the others go on, and nothing is lost. */
static void test_slow_server(void **state)
{
	struct host *host = *state;
	struct server late = start_server(serve_late);
	struct server echo = start_server(serve_echo);
	uint64_t start = clock_monotonic_ns();

	connect_to(host, 1, late.port);
	send_pattern(host, 1, WIRE_WINDOW);
	connect_to(host, 2, echo.port);
	host_send(host, WIRE_DATA, 0, 2, "through", 7);
	host_send(host, WIRE_EOF, 0, 2, NULL, 0);
	assert_output(host_await(host, 2), "through");
	assert_true(clock_monotonic_ns() - start < UINT64_C(900000000));
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	assert_output(host_await(host, 1), "65536\n");
	connect_to(host, 3, late.port);
	send_pattern(host, 3, (size_t)8 * 1024 * 1024);
	host_send(host, WIRE_EOF, 0, 3, NULL, 0);
	assert_output(host_await(host, 3), "8388608\n");
	stop_server(&late);
	stop_server(&echo);
}

static void test_close(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_wait);
	struct result *result;

	connect_to(host, 1, server.port);
	host_await_started(host, 1);
	host_send(host, WIRE_CLOSE, 0, 1, NULL, 0);
	result = host_await(host, 1);
	assert_output(result, "");
	assert_exit(result, WIRE_EXITED, 1);
	await_seen_end();
	assert_int_equal(seen->error, ECONNRESET);
	stop_server(&server);
	/* While there is more output than the host takes. */
	server = start_server(serve_flood);
	host->generous = false;
	connect_to(host, 2, server.port);
	await_bytes(host, 2, WIRE_WINDOW);
	host_send(host, WIRE_CLOSE, 0, 2, NULL, 0);
	assert_exit(host_await(host, 2), WIRE_EXITED, 1);
	assert_int_equal(host->results[2].size[1], WIRE_WINDOW);
	for (int i = 0; i < 1000 && *(volatile int *)&seen->error == 0; i++) {
		usleep(10000);
	}
	assert_true(seen->error == ECONNRESET || seen->error == EPIPE);
	stop_server(&server);
}

/* A connection has no process and no terminal; nobody else is meant instead. */
static void test_signal_and_size_are_ignored(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_echo);
	uint8_t payload[WIRE_PAYLOAD_MAX];

	connect_to(host, 1, server.port);
	host_send_u32(host, WIRE_SIGNAL, 0, 1, SIGKILL);
	host_await_started(host, 1);
	host_send_u32(host, WIRE_SIGNAL, 0, 1, SIGKILL);
	host_send(host, WIRE_WINDOW_SIZE, 0, 1, payload,
		  (size_t)wire_window_size_encode(10, 20, payload));
	host_send(host, WIRE_DATA, 0, 1, "alive", 5);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	assert_output(host_await(host, 1), "alive");
	assert_exit(&host->results[1], WIRE_EXITED, 0);
	stop_server(&server);
}

/* Takes all places of a listener, so that the next one has to wait until one is accepted. */
static void fill_backlog(const struct server *server, int *fds, size_t count)
{
	const struct sockaddr_in address = {.sin_family = AF_INET,
					    .sin_port = htons(server->port),
					    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	for (size_t i = 0; i < count; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		assert_true(fds[i] >= 0);
		(void)connect(fds[i], (const struct sockaddr *)&address, sizeof(address));
	}
}

static void test_connects_late(void **state)
{
	struct host *host = *state;
	struct server server;
	int fds[3];

	assert_int_equal(listen_on(&server, AF_INET, 0), 0);
	fill_backlog(&server, fds, ARRAY_SIZE(fds));
	connect_to(host, 1, server.port);
	send_pattern(host, 1, 60000);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	connect_to(host, 2, server.port);
	host_shell(host, 3, "echo meanwhile", 0);
	assert_output(host_await(host, 3), "meanwhile\n");
	assert_int_equal(host->results[1].started, 0);
	assert_int_equal(host->results[2].started, 0);
	/* One is given up, the other gets its turn with all that has come for it. */
	host_send(host, WIRE_CLOSE, 0, 2, NULL, 0);
	assert_exit(host_await(host, 2), WIRE_NOT_STARTED, ECANCELED);
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		close(fds[i]);
	}
	run_behind(&server, serve_count);
	assert_output(host_await(host, 1), "60000\n");
	assert_exit(&host->results[1], WIRE_EXITED, 0);
	stop_server(&server);
}

/* DETACH drops a connection without a word to the host; its server sees a reset, not an end. */
static void test_detach(void **state)
{
	struct host *host = *state;
	struct server server = start_server(serve_wait);

	connect_to(host, 1, server.port);
	host_await_started(host, 1);
	host_send(host, WIRE_DETACH, 0, 0, NULL, 0);
	host_await_port(host, WIRE_DETACHED);
	await_seen_end();
	assert_int_equal(seen->error, ECONNRESET);
	assert_int_equal(host_next(host, 200), 0);
	assert_int_equal(host->results[1].exits, 0);
	stop_server(&server);
}

static void assert_broken(struct host *host, const char *what)
{
	host_await_end(host);
	assert_int_equal(host->report->rc, -EBADMSG);
	assert_non_null(strstr(host->report->err.text, what));
	host_free(host);
}

static void test_illegal(void **state)
{
	static const uint8_t payload[WIRE_PAYLOAD_MAX];
	struct server server = start_server(serve_late), full;
	struct host *host;
	int fds[3];

	(void)state;
	assert_int_equal(listen_on(&full, AF_INET, 0), 0);
	fill_backlog(&full, fds, ARRAY_SIZE(fds));
	host_set_up((void **)&host);
	connect_to(host, 1, server.port);
	connect_to(host, 1, server.port);
	assert_broken(host, "in use");
	/* Input after its end; and beyond the window, of which nothing can be passed on. */
	host_set_up((void **)&host);
	connect_to(host, 1, server.port);
	host_send(host, WIRE_EOF, 0, 1, NULL, 0);
	host_send(host, WIRE_DATA, 0, 1, "x", 1);
	assert_broken(host, "input without credit");
	host_set_up((void **)&host);
	connect_to(host, 1, full.port);
	for (size_t sent = 0; sent <= WIRE_WINDOW; sent += sizeof(payload)) {
		host_send(host, WIRE_DATA, 0, 1, payload, sizeof(payload));
	}
	assert_broken(host, "input without credit");
	/* Credit beyond the window. */
	host_set_up((void **)&host);
	connect_to(host, 1, server.port);
	host_send_u32(host, WIRE_CREDIT, 1, 1, 1);
	assert_broken(host, "credit");
	/* More than there are streams. */
	host_set_up((void **)&host);
	for (uint32_t i = 1; i <= WIRE_STREAMS_MAX + 1; i++) {
		connect_to(host, i, server.port);
	}
	assert_broken(host, "too many streams");
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		close(fds[i]);
	}
	stop_server(&server);
	stop_server(&full);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_echo, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_small_pieces, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_host_ends_first, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_server_ends_first, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_refused, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_ipv6, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_reset, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_reset_without_credit, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_reset_after_end, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_many, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_slow_host, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_slow_server, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_close, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_signal_and_size_are_ignored, host_set_up,
						host_tear_down),
		cmocka_unit_test_setup_teardown(test_connects_late, host_set_up, host_tear_down),
		cmocka_unit_test_setup_teardown(test_detach, host_set_up, host_tear_down),
		cmocka_unit_test(test_illegal),
	};

	return cmocka_run_group_tests(tests, set_up_group, NULL);
}
