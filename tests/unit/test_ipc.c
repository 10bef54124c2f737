/* src/ipc: packets that are accepted and refused, descriptors and their owners, sockets by name. */
#include "ipc/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

#define FD_LIMIT 256

static unsigned count_open_fds(void)
{
	unsigned count = 0;

	for (int fd = 0; fd < FD_LIMIT; fd++) {
		count += fcntl(fd, F_GETFD) >= 0;
	}
	return count;
}

/* A packet that need not be a message, as a broken peer might send it. */
static void send_raw(int socket, const void *data, size_t size, const int *fds, size_t fd_count)
{
	_cleanup_free_ char *control = calloc(1, CMSG_SPACE(sizeof(int) * 64));
	_cleanup_free_ char *copy = malloc(size + 1);
	struct iovec vector = {.iov_base = copy, .iov_len = size};
	struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};

	assert_non_null(control);
	assert_non_null(copy);
	memcpy(copy, data, size);
	if (fd_count > 0) {
		struct cmsghdr *rights;

		header.msg_control = control;
		header.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
		rights = CMSG_FIRSTHDR(&header);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(rights), fds, sizeof(int) * fd_count);
	}
	assert_int_equal(sendmsg(socket, &header, MSG_NOSIGNAL), size);
}

static void test_decode_accepts_every_type(void **state)
{
	static const struct {
		uint32_t type;
		size_t fds_max;
	} rules[] = {
		{IPC_START, 0},	      {IPC_EXEC, 4},	  {IPC_SIGNAL, 0},
		{IPC_WINDOW_SIZE, 0}, {IPC_CLOSE, 0},	  {IPC_SNAPSHOT, 0},
		{IPC_SHUTDOWN, 0},    {IPC_COPY_DATA, 0}, {IPC_DETACH, 0},
		{IPC_ATTACH, 3},      {IPC_KILL, 0},	  {IPC_LIST, 0},
		{IPC_TCP, 1},	      {IPC_NET_RULE, 0},  {IPC_REPORT, 0},
		{IPC_CLAIM, 0},	      {IPC_READY, 0},	  {IPC_STARTED, 0},
		{IPC_EXITED, 0},      {IPC_NOTICE, 0},	  {IPC_FAILED, 0},
		{IPC_DOWN, 0},	      {IPC_DATA_COPY, 1}, {IPC_GREETING, 0},
		{IPC_REFUSED, 0},     {IPC_DONE, 0},	  {IPC_LISTING, 1},
		{IPC_FREEZE_DATA, 1}, {IPC_FORK, 1},	  {IPC_FORKED, IPC_COPY_FDS},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(rules); i++) {
		struct ipc_message packet = {.type = rules[i].type, .stream = 7};
		struct ipc_message message = {0};

		assert_int_equal(ipc_decode(&packet, sizeof(packet), 0, &message), 0);
		assert_memory_equal(&packet, &message, sizeof(packet));
		assert_int_equal(ipc_decode(&packet, sizeof(packet), rules[i].fds_max, &message),
				 0);
		assert_int_equal(
			ipc_decode(&packet, sizeof(packet), rules[i].fds_max + 1, &message),
			-EBADMSG);
	}
}

/* A machine is started with what the message names, and with nothing else. */
static void test_a_start_has_its_descriptors(void **state)
{
	static const uint32_t types[] = {IPC_START, IPC_CLAIM};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		struct ipc_message packet = {.type = types[i]}, message;
		struct ipc_start *start = &packet.start;

		start->has_data = start->has_copy = start->has_live = start->has_up = 1;
		start->data_layers = start->base_layers = IPC_LAYERS_MAX;
		assert_int_equal(ipc_decode(&packet, sizeof(packet), IPC_FDS_MAX, &message), 0);
		assert_int_equal(ipc_decode(&packet, sizeof(packet), IPC_FDS_MAX - 1, &message),
				 -EBADMSG);
		start->base_layers++;
		assert_int_equal(ipc_decode(&packet, sizeof(packet), IPC_FDS_MAX, &message),
				 -EBADMSG);
		start->base_layers = 0;
		start->data_layers = 2;
		assert_int_equal(ipc_decode(&packet, sizeof(packet), 8, &message), 0);
		start->has_copy = 2;
		assert_int_equal(ipc_decode(&packet, sizeof(packet), 11, &message), -EBADMSG);
		start->has_copy = 0;
		assert_int_equal(ipc_decode(&packet, sizeof(packet), 5, &message), 0);
		/* A disk without what is below it, and the other way round. */
		start->data_layers = 0;
		assert_int_equal(ipc_decode(&packet, sizeof(packet), 3, &message), -EBADMSG);
		start->has_data = 0;
		start->data_layers = 2;
		assert_int_equal(ipc_decode(&packet, sizeof(packet), 4, &message), -EBADMSG);
		/* Sums that come out right by their wrapping. */
		start->data_layers = 0;
		start->has_live = 3;
		start->has_up = UINT32_MAX;
		assert_int_equal(ipc_decode(&packet, sizeof(packet), 2, &message), -EBADMSG);
	}
}

static void test_decode_refuses_sizes_and_types(void **state)
{
	static const uint32_t unknown[] = {0, 19, 31, 44, UINT32_MAX};
	char packet[sizeof(struct ipc_message) + 1] = {0};
	struct ipc_message message = {.type = 99};
	struct ipc_message stop = {.type = IPC_SHUTDOWN};

	(void)state;
	memcpy(packet, &stop, sizeof(stop));
	assert_int_equal(ipc_decode(packet, 0, 0, &message), -EBADMSG);
	assert_int_equal(ipc_decode(packet, 4, 0, &message), -EBADMSG);
	assert_int_equal(ipc_decode(packet, sizeof(stop) - 1, 0, &message), -EBADMSG);
	assert_int_equal(ipc_decode(packet, sizeof(stop) + 1, 0, &message), -EBADMSG);
	for (size_t i = 0; i < ARRAY_SIZE(unknown); i++) {
		stop.type = unknown[i];
		assert_int_equal(ipc_decode(&stop, sizeof(stop), 0, &message), -EBADMSG);
	}
	assert_int_equal(message.type, 99);
}

#define EXPECT_TEXT_CHECKED(message_type, member)                                                  \
	do {                                                                                       \
		struct ipc_message packet = {.type = (message_type)};                              \
		struct ipc_message message;                                                        \
                                                                                                   \
		memset(packet.member, 'x', sizeof(packet.member));                                 \
		assert_int_equal(ipc_decode(&packet, sizeof(packet), 0, &message), -EBADMSG);      \
		packet.member[sizeof(packet.member) - 1] = '\0';                                   \
		assert_int_equal(ipc_decode(&packet, sizeof(packet), 0, &message), 0);             \
	} while (0)

static void test_decode_wants_every_text_terminated(void **state)
{
	(void)state;
	EXPECT_TEXT_CHECKED(IPC_START, start.name);
	EXPECT_TEXT_CHECKED(IPC_START, start.stage);
	EXPECT_TEXT_CHECKED(IPC_READY, ready.engine);
	EXPECT_TEXT_CHECKED(IPC_READY, ready.release);
	EXPECT_TEXT_CHECKED(IPC_READY, ready.version);
	EXPECT_TEXT_CHECKED(IPC_READY, ready.boot_id);
	EXPECT_TEXT_CHECKED(IPC_READY, ready.boot_reason);
	EXPECT_TEXT_CHECKED(IPC_READY, ready.missing);
	EXPECT_TEXT_CHECKED(IPC_STARTED, command.id);
	EXPECT_TEXT_CHECKED(IPC_EXITED, exited.id);
	EXPECT_TEXT_CHECKED(IPC_ATTACH, command.id);
	EXPECT_TEXT_CHECKED(IPC_NET_RULE, rule.text);
	EXPECT_TEXT_CHECKED(IPC_KILL, command.id);
	EXPECT_TEXT_CHECKED(IPC_CLAIM, start.name);
	EXPECT_TEXT_CHECKED(IPC_CLAIM, start.stage);
	EXPECT_TEXT_CHECKED(IPC_GREETING, text);
	EXPECT_TEXT_CHECKED(IPC_REFUSED, failed.code);
	EXPECT_TEXT_CHECKED(IPC_REFUSED, failed.text);
	EXPECT_TEXT_CHECKED(IPC_REFUSED, failed.mend);
	EXPECT_TEXT_CHECKED(IPC_FAILED, failed.code);
	EXPECT_TEXT_CHECKED(IPC_FAILED, failed.text);
	EXPECT_TEXT_CHECKED(IPC_FAILED, failed.mend);
	EXPECT_TEXT_CHECKED(IPC_NOTICE, text);
}

static void test_decode_wants_an_action_of_rules(void **state)
{
	struct ipc_message packet = {.type = IPC_NET_RULE, .rule = {.text = "a.b"}};
	struct ipc_message message;

	(void)state;
	for (uint32_t action = 0; action <= IPC_RULE_REACH + 1; action++) {
		packet.rule.action = action;
		assert_int_equal(ipc_decode(&packet, sizeof(packet), 0, &message),
				 action <= IPC_RULE_REACH ? 0 : -EBADMSG);
	}
}

static void test_message_and_descriptors_cross(void **state)
{
	struct ipc_message sent = {.type = IPC_EXEC, .stream = 5, .exec = {.has_stdin = 1}};
	struct ipc_message message = {0};
	int sockets[2], pipes[2], fds[IPC_FDS_MAX];
	unsigned before = count_open_fds();
	char byte = 0;

	(void)state;
	assert_int_equal(ipc_pair(sockets), 0);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	assert_int_equal(ipc_send(sockets[0], &sent, (const int[]){pipes[1], pipes[0]}, 2), 0);
	close(pipes[1]);
	assert_int_equal(ipc_receive(sockets[1], &message, fds), 1);
	assert_memory_equal(&sent, &message, sizeof(sent));
	for (size_t i = 2; i < IPC_FDS_MAX; i++) {
		assert_int_equal(fds[i], -EBADF);
	}
	assert_int_equal(fcntl(fds[0], F_GETFD), FD_CLOEXEC);
	assert_int_equal(fcntl(fds[1], F_GETFD), FD_CLOEXEC);
	assert_int_equal(write(fds[0], "!", 1), 1);
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	assert_int_equal(byte, '!');
	ipc_close_fds(fds);
	assert_int_equal(fds[0], -EBADF);
	/* The last write end is closed: the pipe has ended. */
	assert_int_equal(read(pipes[0], &byte, 1), 0);
	close(pipes[0]);
	close(sockets[0]);
	close(sockets[1]);
	assert_int_equal(count_open_fds(), before);
}

static void test_refused_packets_leave_no_descriptor(void **state)
{
	struct ipc_message message = {.type = 77};
	struct ipc_message down = {.type = IPC_DOWN}, unknown = {.type = 50};
	char large[2 * sizeof(struct ipc_message)] = {IPC_EXEC};
	int sockets[2], fds[IPC_FDS_MAX], many[40];
	unsigned before;

	(void)state;
	assert_int_equal(ipc_pair(sockets), 0);
	before = count_open_fds();
	for (size_t i = 0; i < ARRAY_SIZE(many); i++) {
		many[i] = STDERR_FILENO;
	}
	/* Too short, too long, of no type, with a descriptor too many, with far too many. */
	send_raw(sockets[0], &down, 8, many, 1);
	send_raw(sockets[0], large, sizeof(large), many, 3);
	send_raw(sockets[0], &unknown, sizeof(unknown), many, 2);
	send_raw(sockets[0], &down, sizeof(down), many, 1);
	send_raw(sockets[0], large, sizeof(struct ipc_message), many, 8);
	send_raw(sockets[0], large, sizeof(struct ipc_message), many, 40);
	for (int i = 0; i < 6; i++) {
		assert_int_equal(ipc_receive(sockets[1], &message, fds), -EBADMSG);
		assert_int_equal(message.type, 77);
		for (size_t j = 0; j < IPC_FDS_MAX; j++) {
			assert_int_equal(fds[j], -EBADF);
		}
	}
	send_raw(sockets[0], "", 0, many, 1);
	assert_int_equal(ipc_receive(sockets[1], &message, fds), 0);
	assert_int_equal(count_open_fds(), before);
	/* The socket is as good as before. */
	assert_int_equal(ipc_send(sockets[0], &down, NULL, 0), 0);
	assert_int_equal(ipc_receive(sockets[1], &message, fds), 1);
	close(sockets[0]);
	close(sockets[1]);
}

static void test_ends_of_the_peer(void **state)
{
	struct ipc_message down = {.type = IPC_DOWN, .stream = 3}, message;
	int sockets[2], fds[IPC_FDS_MAX];

	(void)state;
	assert_int_equal(ipc_pair(sockets), 0);
	assert_int_equal(set_nonblocking(sockets[1], true), 0);
	assert_int_equal(ipc_receive(sockets[1], &message, fds), -EAGAIN);
	close(sockets[0]);
	assert_int_equal(ipc_receive(sockets[1], &message, fds), 0);
	/* SIGPIPE has its default action here: a signal would end the test. */
	signal(SIGPIPE, SIG_DFL);
	assert_int_equal(ipc_send(sockets[1], &down, NULL, 0), -EPIPE);
	close(sockets[1]);
	assert_int_equal(ipc_receive(-EBADF, &message, fds), -EBADF);
}

/* A keeper that says its last word and exits while the client has just sent something. */
static void test_last_words_survive_a_reset(void **state)
{
	struct ipc_message down = {.type = IPC_DOWN, .stream = 3}, message = {0};
	int sockets[2], fds[IPC_FDS_MAX];

	(void)state;
	assert_int_equal(ipc_pair(sockets), 0);
	assert_int_equal(ipc_send(sockets[1], &down, NULL, 0), 0);
	assert_int_equal(ipc_send(sockets[0], &down, NULL, 0), 0);
	close(sockets[0]);
	assert_int_equal(ipc_receive(sockets[1], &message, fds), 1);
	assert_int_equal(message.stream, 3);
	assert_int_equal(ipc_receive(sockets[1], &message, fds), 0);
	close(sockets[1]);

	assert_int_equal(ipc_pair(sockets), 0);
	assert_int_equal(ipc_send(sockets[1], &down, NULL, 0), 0);
	close(sockets[0]);
	assert_int_equal(ipc_send(sockets[1], &down, NULL, 0), -EPIPE);
	close(sockets[1]);
}

/* A directory whose path is far longer than a socket address. */
static int make_deep_directory(const char *top)
{
	static const char part[] = "a-directory-name-of-more-than-fifty-bytes-in-one-component";
	int fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	for (int depth = 0; depth < 5; depth++) {
		int next;

		assert_true(fd >= 0);
		assert_int_equal(mkdirat(fd, part, 0700), 0);
		next = openat(fd, part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		close(fd);
		fd = next;
	}
	assert_true(fd >= 0);
	return fd;
}

static void test_sockets_by_name(void **state)
{
	char top[] = "/tmp/test-ipc-XXXXXX";
	char long_name[128];
	struct ipc_message sent = {.type = IPC_SHUTDOWN}, message = {0};
	int directory, listener, client, server, fds[IPC_FDS_MAX];
	struct stat status;
	mode_t old_mask;

	(void)state;
	assert_non_null(mkdtemp(top));
	directory = make_deep_directory(top);
	old_mask = umask(0);
	listener = ipc_listen_at(directory, "sock");
	umask(old_mask);
	assert_true(listener >= 0);
	assert_int_equal(fcntl(listener, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fstatat(directory, "sock", &status, 0), 0);
	assert_int_equal(status.st_mode, S_IFSOCK | 0600);

	client = ipc_connect_at(directory, "sock");
	assert_true(client >= 0);
	server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(server >= 0);
	assert_int_equal(ipc_send(client, &sent, NULL, 0), 0);
	assert_int_equal(ipc_receive(server, &message, fds), 1);
	assert_int_equal(message.type, IPC_SHUTDOWN);
	close(client);
	close(server);

	assert_int_equal(ipc_listen_at(directory, "sock"), -EADDRINUSE);
	close(listener);
	assert_int_equal(ipc_connect_at(directory, "sock"), -ECONNREFUSED);
	assert_int_equal(ipc_connect_at(directory, "none"), -ENOENT);
	memset(long_name, 'n', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	assert_int_equal(ipc_connect_at(directory, long_name), -ENAMETOOLONG);
	assert_int_equal(ipc_listen_at(directory, long_name), -ENAMETOOLONG);
	assert_int_equal(ipc_listen_at(directory, ""), -EINVAL);
	long_name[80] = '\0';
	listener = ipc_listen_at(directory, long_name);
	assert_true(listener >= 0);
	close(listener);
	close(directory);
	assert_int_equal(remove_tree_at(AT_FDCWD, top), 0);
}

/* A keeper that was stopped takes nobody in: who only looks must not hang for that. */
static void test_connecting_to_a_full_listener_ends(void **state)
{
	char path[] = "/tmp/box-ipc-XXXXXX";
	int sockets[1024], directory, listener, rc = 0;
	size_t count = 0;

	(void)state;
	assert_non_null(mkdtemp(path));
	directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(directory >= 0);
	listener = ipc_listen_at(directory, "sock");
	assert_true(listener >= 0);
	alarm(20);
	while (rc >= 0 && count < ARRAY_SIZE(sockets)) {
		rc = ipc_connect_at(directory, "sock");
		if (rc >= 0) {
			sockets[count++] = rc;
		}
	}
	alarm(0);
	assert_int_equal(rc, -EAGAIN);
	while (count > 0) {
		close(sockets[--count]);
	}
	close(listener);
	unlinkat(directory, "sock", 0);
	close(directory);
	rmdir(path);
}

static void test_memory_file_is_sealed(void **state)
{
	static const char text[] = "arguments";
	char read_back[sizeof(text)] = {0};
	int fd = ipc_memory_file("test", text, sizeof(text));
	struct stat status;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(status.st_size, sizeof(text));
	/* From its start, without a seek. */
	assert_int_equal(read(fd, read_back, sizeof(read_back)), sizeof(text));
	assert_memory_equal(read_back, text, sizeof(text));
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, 1), -1);
	assert_int_equal(ftruncate(fd, 100), -1);
	assert_ptr_equal(mmap(NULL, 16, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), -1);
	close(fd);
	fd = ipc_memory_file("empty", NULL, 0);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(status.st_size, 0);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decode_accepts_every_type),
		cmocka_unit_test(test_a_start_has_its_descriptors),
		cmocka_unit_test(test_decode_refuses_sizes_and_types),
		cmocka_unit_test(test_decode_wants_every_text_terminated),
		cmocka_unit_test(test_decode_wants_an_action_of_rules),
		cmocka_unit_test(test_message_and_descriptors_cross),
		cmocka_unit_test(test_refused_packets_leave_no_descriptor),
		cmocka_unit_test(test_ends_of_the_peer),
		cmocka_unit_test(test_last_words_survive_a_reset),
		cmocka_unit_test(test_sockets_by_name),
		cmocka_unit_test(test_connecting_to_a_full_listener_ends),
		cmocka_unit_test(test_memory_file_is_sealed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
