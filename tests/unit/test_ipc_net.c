/* src/ipc/net.c: what the keeper takes from a box-net that may have been broken into. */
#include "ipc/net.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "sys/process.h"

static struct ipc_net_message make_event(void)
{
	return (struct ipc_net_message){
		.type = IPC_NET_EVENT,
		.event =
			{
				.kind = IPC_NET_ENDED,
				.reason = 2,
				.end = IPC_NET_END_SERVER,
				.note = IPC_NET_NOTE_SNI,
				.allowed = 1,
				.port = 443,
				.error = ECONNRESET,
				.id = 7,
				.bytes_up = UINT64_MAX,
				.host = "xn--a.example",
				.address = "2001:db8::1",
				.rule = "allow [2001:db8::/32]:443",
				.special = "benchmarking (RFC 2544)",
				.sni = "other_name.example",
			},
	};
}

static int judge(const struct ipc_net_message *message, bool has_fd)
{
	struct ipc_net_message got = {.type = 77};
	int rc = ipc_net_decode(message, sizeof(*message), has_fd, &got);

	assert_int_equal(got.type, rc == 0 ? message->type : 77);
	return rc;
}

static void test_every_type(void **state)
{
	struct ipc_net_message message = make_event();

	(void)state;
	assert_int_equal(judge(&message, false), 0);
	assert_int_equal(judge(&message, true), -EBADMSG);
	message = (struct ipc_net_message){.type = IPC_NET_POLICY, .policy.serial = 3};
	assert_int_equal(judge(&message, true), 0);
	assert_int_equal(judge(&message, false), -EBADMSG);
	message.type = IPC_NET_READY;
	assert_int_equal(judge(&message, false), 0);
	assert_int_equal(judge(&message, true), -EBADMSG);
	message = (struct ipc_net_message){.type = IPC_NET_LIMIT,
					   .limit = {.kind = IPC_NET_LIMIT_BYTES, .text = "All."}};
	assert_int_equal(judge(&message, false), 0);
	for (message.type = IPC_NET_RESOLVER; message.type <= IPC_NET_HOSTS; message.type++) {
		assert_int_equal(judge(&message, true), 0);
		assert_int_equal(judge(&message, false), -EBADMSG);
	}
	assert_int_equal(judge(&message, true), -EBADMSG);
	message.type = IPC_NET_LOOK;
	assert_int_equal(judge(&message, false), 0);
	assert_int_equal(judge(&message, true), -EBADMSG);
	message.type = IPC_NET_LOOK + 1;
	assert_int_equal(judge(&message, false), -EBADMSG);
}

#define EXPECT_REFUSED(change)                                                                     \
	do {                                                                                       \
		struct ipc_net_message message = make_event();                                     \
		struct ipc_net_event *event = &message.event;                                      \
                                                                                                   \
		change;                                                                            \
		assert_int_equal(judge(&message, false), -EBADMSG);                                \
	} while (0)

static void test_ranges(void **state)
{
	(void)state;
	EXPECT_REFUSED(event->kind = 0);
	EXPECT_REFUSED(event->kind = IPC_NET_ENDED + 1);
	EXPECT_REFUSED(event->allowed = 2);
	EXPECT_REFUSED(event->allowed = 0);
	EXPECT_REFUSED(event->end = 0);
	EXPECT_REFUSED(event->kind = IPC_NET_CONNECTED);
	EXPECT_REFUSED(event->end = IPC_NET_END_PORT + 1);
	EXPECT_REFUSED(event->note = IPC_NET_NOTE_SNI + 1);
	EXPECT_REFUSED(event->reason = IPC_NET_NO_BYTES + 1);
	EXPECT_REFUSED(event->error = 4096);
	EXPECT_REFUSED(event->proxy = IPC_NET_PROXY_STATUS_MAX + 1);
	EXPECT_REFUSED(event->port = 0);
	EXPECT_REFUSED((event->kind = IPC_NET_ASKED, event->end = 0));
}

static void put(char *field, const char *text)
{
	memcpy(field, text, strlen(text) + 1);
}

/* A log line, a table on a terminal, a rule to paste: none may be made by the guest. */
static void test_texts(void **state)
{
	(void)state;
	EXPECT_REFUSED(memset(event->host, 'a', sizeof(event->host)));
	EXPECT_REFUSED(memset(event->address, '1', sizeof(event->address)));
	EXPECT_REFUSED(memset(event->rule, 'a', sizeof(event->rule)));
	EXPECT_REFUSED(memset(event->special, 'a', sizeof(event->special)));
	EXPECT_REFUSED(memset(event->sni, 'a', sizeof(event->sni)));
	EXPECT_REFUSED(put(event->host, "a b"));
	EXPECT_REFUSED(put(event->host, "a\nb"));
	EXPECT_REFUSED(put(event->address, "::1%lo"));
	EXPECT_REFUSED(put(event->rule, "allow \x1b[2J"));
	EXPECT_REFUSED(put(event->special, "\x7f"));
	EXPECT_REFUSED(put(event->special, "\n"));
	EXPECT_REFUSED(put(event->sni, "\xc3\xa4"));
}

static void test_limits(void **state)
{
	struct ipc_net_message message = {.type = IPC_NET_LIMIT};

	(void)state;
	assert_int_equal(judge(&message, false), -EBADMSG);
	message.limit.kind = IPC_NET_LIMIT_CLOSED + 1;
	assert_int_equal(judge(&message, false), -EBADMSG);
	message.limit.kind = IPC_NET_LIMIT_CLOSED;
	assert_int_equal(judge(&message, false), 0);
	memset(message.limit.text, 'a', sizeof(message.limit.text));
	assert_int_equal(judge(&message, false), -EBADMSG);
	message.limit.text[3] = '\0';
	assert_int_equal(judge(&message, false), 0);
	message.limit.text[2] = '\x1b';
	assert_int_equal(judge(&message, false), -EBADMSG);
}

static void test_proxies(void **state)
{
	const struct ipc_net_message good = {
		.type = IPC_NET_PROXY,
		.proxy = {.host = "2001:db8::1", .authorization = "dXNlcjo=", .port = 1}};
	struct ipc_net_message message = good;

	(void)state;
	assert_int_equal(judge(&message, true), 0);
	assert_int_equal(judge(&message, false), -EBADMSG);
	message.proxy.port = 0;
	assert_int_equal(judge(&message, true), -EBADMSG);
	message = good;
	message.proxy.host[0] = '\0';
	assert_int_equal(judge(&message, true), -EBADMSG);
	message = good;
	message.proxy.host[3] = '\r';
	assert_int_equal(judge(&message, true), -EBADMSG);
	message = good;
	message.proxy.authorization[3] = '\n';
	assert_int_equal(judge(&message, true), -EBADMSG);
	message = good;
	memset(message.proxy.authorization, 'a', sizeof(message.proxy.authorization));
	assert_int_equal(judge(&message, true), -EBADMSG);
	message.proxy.authorization[sizeof(message.proxy.authorization) - 1] = '\0';
	assert_int_equal(judge(&message, true), 0);
	memset(message.proxy.host, 'a', sizeof(message.proxy.host));
	assert_int_equal(judge(&message, true), -EBADMSG);
}

static void test_sizes(void **state)
{
	struct ipc_net_message message = make_event(), got;
	int pair[2];
	char packet[sizeof(message) + 1] = {0};
	int fd;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(ipc_net_decode(&message, sizeof(message) - 1, false, &got), -EBADMSG);
	memcpy(packet, &message, sizeof(message));
	assert_int_equal(send(pair[0], packet, sizeof(packet), 0), sizeof(packet));
	assert_int_equal(ipc_net_receive(pair[1], &got, &fd), -EBADMSG);
	assert_int_equal(send(pair[0], packet, 3, 0), 3);
	assert_int_equal(ipc_net_receive(pair[1], &got, &fd), -EBADMSG);
	/* A descriptor that nobody asked for is closed. */
	assert_int_equal(sys_send_fd(pair[0], &message, sizeof(message), pair[0]), 0);
	assert_int_equal(ipc_net_receive(pair[1], &got, &fd), -EBADMSG);
	assert_int_equal(fd, -EBADF);
	assert_int_equal(fcntl(pair[1] + 1, F_GETFD), -1);
	close(pair[0]);
	assert_int_equal(ipc_net_receive(pair[1], &got, &fd), 0);
	assert_int_equal(ipc_net_send(pair[1], &message, -EBADF), -EPIPE);
	close(pair[1]);
}

static void test_both_ways(void **state)
{
	struct ipc_net_message message = {.type = IPC_NET_POLICY, .policy.serial = 9}, got;
	int pair[2], fd;

	(void)state;
	assert_int_equal(
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	assert_int_equal(ipc_net_receive(pair[1], &got, &fd), -EAGAIN);
	assert_int_equal(ipc_net_send(pair[0], &message, pair[0]), 0);
	assert_int_equal(ipc_net_receive(pair[1], &got, &fd), 1);
	assert_int_equal(got.policy.serial, 9);
	assert_true(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
	close(fd);
	message = make_event();
	while (ipc_net_send(pair[1], &message, -EBADF) == 0) {
	}
	assert_int_equal(ipc_net_send(pair[1], &message, -EBADF), -EAGAIN);
	assert_int_equal(ipc_net_receive(pair[0], &got, &fd), 1);
	assert_memory_equal(&got, &message, sizeof(got));
	close(pair[0]);
	/* The other end went and had not read everything; no signal. */
	assert_int_equal(ipc_net_receive(pair[1], &got, &fd), 0);
	close(pair[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_type), cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_texts),	   cmocka_unit_test(test_limits),
		cmocka_unit_test(test_proxies),	   cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_both_ways),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
