#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "guest/env.h"
#include "guest/machine.h"
#include "guest/outbox.h"
#include "guest/stream.h"
#include "guest/user.h"
#include "wire/frame.h"

static bool parse_passwd(const char *text, struct user *ret_user)
{
	char line[8192];

	snprintf(line, sizeof(line), "%s", text);
	return user_parse_passwd(line, ret_user);
}

static void test_passwd_line(void **state)
{
	struct user user = {0};

	(void)state;
	assert_true(parse_passwd("agent:x:1000:1001:Agent,,,:/home/agent:/bin/bash", &user));
	assert_string_equal(user.name, "agent");
	assert_int_equal(user.uid, 1000);
	assert_int_equal(user.gid, 1001);
	assert_string_equal(user.home, "/home/agent");
	assert_string_equal(user.shell, "/bin/bash");
	assert_true(parse_passwd("a::1:2:::", &user));
	assert_string_equal(user.home, "/");
	assert_string_equal(user.shell, "/bin/sh");
}

static void test_passwd_line_refused(void **state)
{
	static const char *const lines[] = {
		"",
		"agent",
		"agent:x:1000:1000:Agent:/home/agent",
		"agent:x:1000:1000:Agent:/home/agent:/bin/sh:more",
		":x:1000:1000::/:/bin/sh",
		"agent:x::1000::/:/bin/sh",
		"agent:x:-1:1000::/:/bin/sh",
		"agent:x:1000:+5::/:/bin/sh",
		"agent:x: 1000:1000::/:/bin/sh",
		"agent:x:4294967295:0::/:/bin/sh",
		"agent:x:4294967296:0::/:/bin/sh",
		"agent:x:0x10:0::/:/bin/sh",
	};
	char line[USER_PATH_MAX + 256];
	struct user user;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		assert_false(parse_passwd(lines[i], &user));
	}
	snprintf(line, sizeof(line), "%0*d:x:1:1::/:/bin/sh", USER_NAME_MAX + 1, 0);
	assert_false(user_parse_passwd(line, &user));
	snprintf(line, sizeof(line), "%0*d:x:1:1::/:/bin/sh", USER_NAME_MAX, 0);
	assert_true(user_parse_passwd(line, &user));
	snprintf(line, sizeof(line), "a:x:1:1::/%0*d:/bin/sh", USER_PATH_MAX - 1, 0);
	assert_false(user_parse_passwd(line, &user));
	snprintf(line, sizeof(line), "a:x:1:1::/%0*d:/bin/sh", USER_PATH_MAX - 2, 0);
	assert_true(user_parse_passwd(line, &user));
}

static bool parse_group(const char *text, const char *name, gid_t *ret_gid)
{
	char line[256];

	snprintf(line, sizeof(line), "%s", text);
	return user_parse_group(line, name, ret_gid);
}

static void test_group_line(void **state)
{
	gid_t gid = 7;

	(void)state;
	assert_true(parse_group("work:x:2000:bob,agent,eve", "agent", &gid));
	assert_int_equal(gid, 2000);
	assert_true(parse_group("work:x:2001:agent", "agent", &gid));
	assert_int_equal(gid, 2001);
	assert_false(parse_group("work:x:2000:agents,agen", "agent", &gid));
	assert_false(parse_group("agent:x:2000:", "agent", &gid));
	assert_false(parse_group("work:x:2000", "agent", &gid));
	assert_false(parse_group("work:x:two:agent", "agent", &gid));
	assert_false(parse_group("work:x:2000:agent:more", "agent", &gid));
	assert_int_equal(gid, 2001);
}

struct files {
	char directory[32];
	char passwd[64];
	char group[64];
};

static void write_files(struct files *files, const char *passwd, size_t size, const char *group)
{
	snprintf(files->directory, sizeof(files->directory), "/tmp/test-guest-XXXXXX");
	assert_non_null(mkdtemp(files->directory));
	snprintf(files->passwd, sizeof(files->passwd), "%s/passwd", files->directory);
	snprintf(files->group, sizeof(files->group), "%s/group", files->directory);
	if (passwd) {
		assert_int_equal(write_file_at(AT_FDCWD, files->passwd, passwd, size, 0644), 0);
	}
	if (group) {
		assert_int_equal(write_file_at(AT_FDCWD, files->group, group, strlen(group), 0644),
				 0);
	}
}

static void remove_files(const struct files *files)
{
	assert_int_equal(remove_tree_at(AT_FDCWD, files->directory), 0);
}

static void test_resolve(void **state)
{
	static const char passwd[] = "root:x:0:0:root:/root:/bin/bash\n"
				     "broken line\n"
				     "agent:x:1000:1000::/home/agent:/bin/sh\n"
				     "last:x:7:8::/last:/bin/last";
	struct files files;
	struct user user;

	(void)state;
	write_files(&files, passwd, strlen(passwd),
		    "agent:x:1000:agent\nwork:x:5:x,agent\nnot:x:6:x\nplay:x:9:agent\n");
	assert_int_equal(user_resolve(files.passwd, files.group, "agent", &user), 0);
	assert_int_equal(user.uid, 1000);
	assert_int_equal(user.group_count, 3);
	assert_int_equal(user.groups[0], 1000);
	assert_int_equal(user.groups[1], 5);
	assert_int_equal(user.groups[2], 9);
	/* The last line has no newline. */
	assert_int_equal(user_resolve(files.passwd, files.group, "last", &user), 0);
	assert_int_equal(user.gid, 8);
	assert_int_equal(user.group_count, 1);
	/* By number, with and without a line. */
	assert_int_equal(user_resolve(files.passwd, files.group, "1000", &user), 0);
	assert_string_equal(user.name, "agent");
	assert_int_equal(user.group_count, 3);
	assert_int_equal(user_resolve(files.passwd, files.group, "4242", &user), 0);
	assert_string_equal(user.name, "");
	assert_int_equal(user.uid, 4242);
	assert_int_equal(user.gid, 4242);
	assert_string_equal(user.home, "/");
	assert_int_equal(user_resolve(files.passwd, files.group, "nobody", &user), -ENOENT);
	assert_int_equal(user_resolve(files.passwd, files.group, "broken line", &user), -ENOENT);
	remove_files(&files);
}

static void test_resolve_without_files(void **state)
{
	struct user user;

	(void)state;
	assert_int_equal(user_resolve("/nonexistent/p", "/nonexistent/g", "root", &user), 0);
	assert_int_equal(user.uid, 0);
	assert_string_equal(user.home, "/root");
	assert_int_equal(user_resolve("/nonexistent/p", "/nonexistent/g", "5", &user), 0);
	assert_int_equal(user.uid, 5);
	assert_int_equal(user_resolve("/nonexistent/p", "/nonexistent/g", "eve", &user), -ENOENT);
	assert_int_equal(user_resolve("/proc", "/proc", "root", &user), 0);
}

/* Lines longer than the buffer are passed over whole, wherever its end falls in them. */
static void test_resolve_waits_for_no_fifo(void **state)
{
	char path[] = "/tmp/box-guest-XXXXXX", fifo[64];
	struct user user;

	(void)state;
	assert_non_null(mkdtemp(path));
	snprintf(fifo, sizeof(fifo), "%s/fifo", path);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(user_resolve(fifo, fifo, "root", &user), 0);
	assert_int_equal(user.uid, 0);
	assert_int_equal(user_resolve(fifo, fifo, "eve", &user), -ENOENT);
	unlink(fifo);
	rmdir(path);
}

static void test_resolve_long_lines(void **state)
{
	static const size_t lengths[] = {4000, 4093, 4094, 4095, 4096, 4097, 8190, 20000};
	static char passwd[65536];
	struct files files;
	struct user user;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
		size_t length = lengths[i];

		memset(passwd, 'x', length);
		/* Were the rest of the long line taken for a line, eve would be root. */
		snprintf(passwd + length, sizeof(passwd) - length,
			 "eve:x:0:0::/:/bin/sh\nbob:x:5:5::/:/bin/sh\n");
		write_files(&files, passwd, strlen(passwd), "");
		assert_int_equal(user_resolve(files.passwd, files.group, "bob", &user), 0);
		assert_int_equal(user.uid, 5);
		assert_int_equal(user_resolve(files.passwd, files.group, "eve", &user), -ENOENT);
		remove_files(&files);
	}
}

static void test_resolve_group_limit(void **state)
{
	static char group[65536];
	struct files files;
	struct user user;
	size_t size = 0;

	(void)state;
	for (int i = 0; i < USER_GROUPS_MAX + 10; i++) {
		size += (size_t)snprintf(group + size, sizeof(group) - size, "g%d:x:%d:agent\n", i,
					 3000 + i);
	}
	write_files(&files, "agent:x:1:1:::\n", 15, group);
	assert_int_equal(user_resolve(files.passwd, files.group, "agent", &user), 0);
	assert_int_equal(user.group_count, USER_GROUPS_MAX);
	assert_int_equal(user.groups[USER_GROUPS_MAX - 1], 3000 + USER_GROUPS_MAX - 2);
	remove_files(&files);
}

static void test_environment(void **state)
{
	struct user user = {
		.uid = 1000, .name = "agent", .home = "/home/agent", .shell = "/bin/sh"};
	const char *envp[3 + ENV_DEFAULTS_MAX + 1] = {"HOME=/elsewhere", "PATHS=x", "A=b"};
	struct env_defaults defaults;
	size_t count = env_complete(envp, 3, &user, false, &defaults);

	(void)state;
	assert_int_equal(count, 7);
	assert_null(envp[7]);
	assert_string_equal(envp[0], "HOME=/elsewhere");
	assert_string_equal(envp[3], "PATH=/usr/local/bin:/usr/bin:/bin");
	assert_string_equal(envp[4], "USER=agent");
	assert_string_equal(envp[5], "LOGNAME=agent");
	assert_string_equal(envp[6], "SHELL=/bin/sh");
	assert_string_equal(env_get(envp, count, "HOME"), "/elsewhere");
	assert_null(env_get(envp, count, "TERM"));
	assert_null(env_get(envp, count, "PAT"));
}

static void test_environment_defaults(void **state)
{
	struct user user = {.uid = 0, .name = "root", .home = "/root", .shell = "/bin/bash"};
	const char *envp[1 + ENV_DEFAULTS_MAX + 1] = {"TERM=dumb"};
	struct env_defaults defaults;

	(void)state;
	assert_int_equal(env_complete(envp, 0, &user, true, &defaults), 6);
	assert_string_equal(envp[0],
			    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	assert_string_equal(envp[5], "TERM=xterm-256color");
	envp[0] = "TERM=dumb";
	assert_int_equal(env_complete(envp, 1, &user, true, &defaults), 6);
	assert_string_equal(env_get(envp, 6, "TERM"), "dumb");
	user.name[0] = '\0';
	assert_int_equal(env_complete(envp, 0, &user, false, &defaults), 3);
	assert_null(env_get(envp, 3, "USER"));
}

static void test_environment_last_counts(void **state)
{
	const char *envp[] = {"A=1", "A=2", "AB=3"};

	(void)state;
	assert_string_equal(env_get(envp, 3, "A"), "2");
	assert_null(env_get(envp, 0, "A"));
}

static void test_candidates(void **state)
{
	const char *path = "/usr/bin::/bin:";
	char out[16];

	(void)state;
	assert_int_equal(env_next_candidate(&path, "ls", out, sizeof(out)), 1);
	assert_string_equal(out, "/usr/bin/ls");
	assert_int_equal(env_next_candidate(&path, "ls", out, sizeof(out)), 1);
	assert_string_equal(out, "./ls");
	assert_int_equal(env_next_candidate(&path, "ls", out, sizeof(out)), 1);
	assert_string_equal(out, "/bin/ls");
	assert_int_equal(env_next_candidate(&path, "ls", out, sizeof(out)), 1);
	assert_string_equal(out, "./ls");
	assert_int_equal(env_next_candidate(&path, "ls", out, sizeof(out)), 0);
	/* One that does not fit is left out; the next is tried. */
	path = "/a/very/long/directory:/b";
	assert_int_equal(env_next_candidate(&path, "ls", out, sizeof(out)), -ENAMETOOLONG);
	assert_int_equal(env_next_candidate(&path, "ls", out, sizeof(out)), 1);
	assert_string_equal(out, "/b/ls");
	/* Exactly full, and one byte more. */
	path = "/123456789ab:/123456789abc";
	assert_int_equal(env_next_candidate(&path, "ls", out, sizeof(out)), 1);
	assert_int_equal(strlen(out), 15);
	assert_int_equal(env_next_candidate(&path, "ls", out, sizeof(out)), -ENAMETOOLONG);
	assert_null(path);
}

static void test_ids(void **state)
{
	const uint8_t id[16] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0xf6, 0x77,
				0xff, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x0f};
	char text[40];

	(void)state;
	assert_int_equal(machine_id_text(id, text), 33);
	assert_memory_equal(text, "001122334455f677ff99aabbccddee0f\n", 33);
	assert_int_equal(machine_uuid_text(id, text), 37);
	assert_memory_equal(text, "00112233-4455-4677-bf99-aabbccddee0f\n", 37);
}

static void test_outbox(void **state)
{
	static struct outbox outbox;
	static uint8_t payload[WIRE_PAYLOAD_MAX];
	struct wire_frame frame = {
		.type = WIRE_DATA, .channel = 1, .stream = 3, .payload = payload};
	uint8_t header[WIRE_HEADER_SIZE];
	int fds[2], count = 0;

	(void)state;
	assert_true(outbox_empty(&outbox));
	assert_int_equal(outbox_room(&outbox), WIRE_PAYLOAD_MAX);
	frame.length = WIRE_PAYLOAD_MAX;
	while (outbox_put(&outbox, &frame)) {
		count++;
	}
	assert_int_equal(count, OUTBOX_BYTES / WIRE_FRAME_MAX);
	assert_int_equal(outbox_room(&outbox), 0);
	frame.length = 0;
	assert_false(outbox_put(&outbox, &frame));
	/* What the pipe takes makes room again, and the order is kept. */
	assert_int_equal(pipe2(fds, O_NONBLOCK), 0);
	assert_int_equal(outbox_flush(&outbox, fds[1]), 0);
	assert_false(outbox_empty(&outbox));
	assert_true(outbox_room(&outbox) > 0);
	assert_true(outbox_put(&outbox, &frame));
	assert_int_equal(read(fds[0], header, sizeof(header)), sizeof(header));
	assert_int_equal(header[4], WIRE_DATA);
	for (int i = 0; i < 4; i++) {
		while (read(fds[0], payload, sizeof(payload)) > 0) {
		}
		assert_int_equal(outbox_flush(&outbox, fds[1]), 0);
	}
	assert_true(outbox_empty(&outbox));
	close(fds[0]);
	close(fds[1]);
}

/* Reads all that waits, from a pipe that holds less, and takes its frames apart. */
static size_t take_frames(struct outbox *outbox, int fds[2], struct wire_frame *ret_frames,
			  size_t max)
{
	static struct wire_decoder decoder;
	size_t count = 0;

	wire_decoder_reset(&decoder);
	for (;;) {
		size_t space;
		uint8_t *target;
		ssize_t got;

		assert_int_equal(outbox_flush(outbox, fds[1]), 0);
		target = wire_decoder_space(&decoder, &space);
		got = read(fds[0], target, space);
		if (got < 0) {
			break;
		}
		assert_true(got > 0);
		wire_decoder_filled(&decoder, (size_t)got);
		while (count < max && wire_decoder_next(&decoder, &ret_frames[count]) == 1) {
			count++;
		}
	}
	assert_true(wire_decoder_empty(&decoder));
	assert_true(outbox_empty(outbox));
	return count;
}

static void test_outbox_urgent(void **state)
{
	static struct outbox outbox;
	static uint8_t payload[WIRE_PAYLOAD_MAX];
	struct wire_frame bulk = {.type = WIRE_DATA,
				  .channel = 1,
				  .stream = 3,
				  .payload = payload,
				  .length = WIRE_PAYLOAD_MAX};
	struct wire_frame urgent = {.type = WIRE_TIME, .payload = payload, .length = 16};
	struct wire_frame frames[64];
	int fds[2];
	size_t count;
	uint32_t put = 0;

	(void)state;
	assert_int_equal(pipe2(fds, O_NONBLOCK), 0);
	/* Into an empty one, and before frames that wait. */
	assert_true(outbox_put_urgent(&outbox, &urgent));
	assert_true(outbox_put(&outbox, &bulk));
	urgent.stream = 1;
	assert_true(outbox_put_urgent(&outbox, &urgent));
	count = take_frames(&outbox, fds, frames, ARRAY_SIZE(frames));
	assert_int_equal(count, 3);
	assert_int_equal(frames[0].type, WIRE_TIME);
	assert_int_equal(frames[0].stream, 0);
	assert_int_equal(frames[1].type, WIRE_TIME);
	assert_int_equal(frames[1].stream, 1);
	assert_int_equal(frames[2].type, WIRE_DATA);
	/* It is full, and three frames are partly or wholly under way: after those, in order. */
	bulk.length = 100;
	assert_true(outbox_put(&outbox, &bulk));
	bulk.length = WIRE_PAYLOAD_MAX;
	while (outbox_put(&outbox, &bulk)) {
	}
	assert_int_equal(outbox_flush(&outbox, fds[1]), 0);
	assert_false(outbox_empty(&outbox));
	while (outbox_room(&outbox) > 0) {
		bulk.length = (uint32_t)outbox_room(&outbox);
		assert_true(outbox_put(&outbox, &bulk));
	}
	for (urgent.stream = 10; outbox_put_urgent(&outbox, &urgent); urgent.stream++) {
		put++;
	}
	assert_true(put >= OUTBOX_URGENT_BYTES / (WIRE_HEADER_SIZE + 16));
	assert_int_equal(outbox_room(&outbox), 0);
	assert_false(outbox_put(&outbox, &(struct wire_frame){.type = WIRE_EOF}));
	count = take_frames(&outbox, fds, frames, ARRAY_SIZE(frames));
	assert_int_equal(frames[0].length, 100);
	assert_int_equal(frames[1].type, WIRE_DATA);
	assert_int_equal(frames[2].type, WIRE_DATA);
	for (uint32_t i = 0; i < put; i++) {
		assert_int_equal(frames[3 + i].type, WIRE_TIME);
		assert_int_equal(frames[3 + i].stream, 10 + i);
		assert_int_equal(frames[3 + i].length, 16);
	}
	assert_int_equal(frames[3 + put].type, WIRE_DATA);
	assert_int_equal(frames[3 + put].length, WIRE_PAYLOAD_MAX);
	assert_true(count > 3 + put);
	assert_int_equal(outbox_room(&outbox), WIRE_PAYLOAD_MAX);
	close(fds[0]);
	close(fds[1]);
}

static void test_stream_windows(void **state)
{
	static uint8_t ring[WIRE_WINDOW];
	static uint8_t data[WIRE_PAYLOAD_MAX];
	struct wire_exec exec = {.flags = WIRE_EXEC_STDIN};
	struct exec_started started = {.pid = 1, .output_fd = {-EBADF, -EBADF}};
	struct stream stream;
	size_t sent = 0;
	int fds[2];

	(void)state;
	assert_int_equal(pipe2(fds, O_NONBLOCK), 0);
	started.input_fd = fds[1];
	stream_open(&stream, 5, ring);
	stream_started(&stream, &exec, &started);
	/* The whole window fits, and not one byte more. */
	while (sent + sizeof(data) <= WIRE_WINDOW) {
		assert_int_equal(stream_data(&stream, data, sizeof(data)), 0);
		sent += sizeof(data);
	}
	assert_int_equal(stream_data(&stream, data, WIRE_WINDOW - sent + 1), -EBADMSG);
	assert_int_equal(stream_data(&stream, data, WIRE_WINDOW - sent), 0);
	assert_int_equal(stream_data(&stream, data, 1), -EBADMSG);
	/* Output credit: full at the start. */
	assert_int_equal(stream_credit(&stream, 1, 1), -EBADMSG);
	assert_int_equal(stream_credit(&stream, 2, 0), 0);
	stream.outputs[1].credit -= 10;
	assert_int_equal(stream_credit(&stream, 2, 11), -EBADMSG);
	assert_int_equal(stream_credit(&stream, 2, 10), 0);
	assert_int_equal(stream_credit(&stream, 1, UINT32_MAX), -EBADMSG);
	stream_release(&stream);
	assert_int_equal(stream.number, 0);
	close(fds[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_passwd_line),
		cmocka_unit_test(test_passwd_line_refused),
		cmocka_unit_test(test_group_line),
		cmocka_unit_test(test_resolve),
		cmocka_unit_test(test_resolve_without_files),
		cmocka_unit_test(test_resolve_waits_for_no_fifo),
		cmocka_unit_test(test_resolve_long_lines),
		cmocka_unit_test(test_resolve_group_limit),
		cmocka_unit_test(test_environment),
		cmocka_unit_test(test_environment_defaults),
		cmocka_unit_test(test_environment_last_counts),
		cmocka_unit_test(test_candidates),
		cmocka_unit_test(test_ids),
		cmocka_unit_test(test_outbox),
		cmocka_unit_test(test_outbox_urgent),
		cmocka_unit_test(test_stream_windows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
