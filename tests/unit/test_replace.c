/* src/engine/replace.c: other layers under a disk, against a monitor that this test plays. */
#include "engine/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "sys/process.h"

#define FIRST_SET 20
#define TEXT_MAX 4096
#define GREETED "{\"execute\":\"qmp_capabilities\"}"

struct fixture {
	struct loop *loop;
	struct replacer replacer;
	struct jail_process process;
	struct disk_state state;
	/* The monitor's ends: its own channel, then the others. */
	int monitor[1 + REPLACE_CHANNELS_MAX];
	int files[2];
	unsigned failed;
	unsigned done;
	char text[TEXT_MAX];
};

static void on_event(void *data, enum qmp_event event, const char *text)
{
	struct fixture *f = data;

	if (event == QMP_DONE) {
		assert_int_equal(replace_on_done(&f->replacer, text), 0);
	}
	f->failed += event == QMP_FAILED;
}

static void on_replaced(void *data)
{
	((struct fixture *)data)->done++;
}

static void stop(struct loop *loop, void *data)
{
	(void)data;
	loop_stop(loop, 0);
}

static void turn(struct fixture *f)
{
	uint64_t timer;

	assert_int_equal(loop_timer_add(f->loop, 3, stop, NULL, &timer), 0);
	assert_true(loop_run(f->loop) >= 0);
	loop_timer_cancel(f->loop, &timer);
}

/* What the monitor has been sent over a channel since the last look, and with which descriptor. */
static const char *heard(struct fixture *f, size_t channel, int *ret_fd)
{
	size_t filled = 0;
	ssize_t got;
	int fd;

	*ret_fd = -EBADF;
	do {
		got = sys_receive_fd(f->monitor[channel], f->text + filled, TEXT_MAX - 1 - filled,
				     &fd);
		filled += (size_t)MAX(got, 0);
		if (got > 0 && fd >= 0) {
			/* It goes with the last byte of a command. */
			assert_int_equal(f->text[filled - 1], '}');
			close_fd(ret_fd);
			*ret_fd = fd;
		}
	} while (got > 0);
	f->text[filled] = '\0';
	return f->text;
}

static void expect(struct fixture *f, size_t channel, const char *text)
{
	int fd;

	assert_string_equal(heard(f, channel, &fd), text);
	assert_int_equal(fd, -EBADF);
}

static void expect_file(struct fixture *f, size_t channel, const char *text, int file)
{
	_cleanup_close_ int fd = -EBADF;
	struct stat theirs, ours;

	assert_string_equal(heard(f, channel, &fd), text);
	assert_int_equal(fstat(fd, &theirs), 0);
	assert_int_equal(fstat(file, &ours), 0);
	assert_true(theirs.st_ino == ours.st_ino && theirs.st_dev == ours.st_dev);
}

static void answer(struct fixture *f, size_t channel)
{
	assert_int_equal(write_full(f->monitor[channel], "{\"return\":{}}\r\n", 15), 0);
	turn(f);
}

static struct engine_disk disk_of(const struct fixture *f, size_t layers)
{
	return (struct engine_disk){
		.serial = "data",
		.layers = {{.fd = f->files[0]}, {.fd = f->files[1], .qcow2 = true}},
		.layer_count = layers,
		.size_bytes = 4096,
	};
}

static void begin(struct fixture *f, size_t layers, bool keep_old)
{
	const struct engine_disk disk = disk_of(f, layers);

	f->done = 0;
	assert_int_equal(replace_begin(&f->replacer, &f->state, &disk, keep_old, on_replaced, f),
			 0);
	turn(f);
}

static void set(struct fixture *f, const struct engine_disk *disk)
{
	int pair[2];

	memset(f, 0, sizeof(*f));
	for (size_t i = 0; i < ARRAY_SIZE(f->files); i++) {
		f->files[i] = memfd_create("layer", MFD_CLOEXEC);
		assert_true(f->files[i] >= 0);
	}
	assert_int_equal(loop_new(&f->loop), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	f->monitor[0] = pair[1];
	assert_int_equal(qmp_new(pair[0], f->loop, on_event, f, &f->replacer.qmp), 0);
	f->replacer.process = &f->process;
	if (disk) {
		assert_int_equal(replace_open(&f->replacer, disk), 0);
	}
	for (size_t i = 0; i < f->replacer.channel_count; i++) {
		f->monitor[1 + i] = dup(f->replacer.theirs[i]);
	}
	assert_int_equal(replace_get_ready(&f->replacer, FIRST_SET, f->loop, on_event, f), 0);
	for (size_t i = 0; i < 1 + f->replacer.channel_count; i++) {
		assert_int_equal(set_nonblocking(f->monitor[i], true), 0);
		answer(f, i);
	}
}

static void clear(struct fixture *f)
{
	size_t count = f->replacer.channel_count;

	assert_int_equal(f->failed, 0);
	replace_close(&f->replacer);
	qmp_free(f->replacer.qmp);
	for (size_t i = 0; i < 1 + count; i++) {
		close_fd(&f->monitor[i]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(f->files); i++) {
		close_fd(&f->files[i]);
	}
	loop_free(f->loop);
}

#define ADD_FD(set) "{\"execute\":\"add-fd\",\"arguments\":{\"fdset-id\":" set "}"
#define FILE_NODE(set)                                                                             \
	"{\"driver\":\"file\",\"filename\":\"/dev/fdset/" set "\",\"locking\":\"off\""
#define NODE(number, below, above)                                                                 \
	"{\"execute\":\"blockdev-add\",\"arguments\":{\"driver\":\"qcow2\",\"file\":" FILE_NODE(   \
		above) "},\"node-name\":\"data-" number                                            \
		       "\",\"discard\":\"unmap\",\"backing\":" FILE_NODE(below) "}}"
#define DRIVE(number)                                                                              \
	"{\"execute\":\"qom-set\",\"arguments\":{\"path\":\"data\",\"property\":\"drive\","        \
	"\"value\":\"data-" number "\"}"

/* The kinds of layers that commands are made ready for; which files they are is told later. */
static const struct engine_disk expected = {
	.serial = "data", .layers = {{.fd = -1}, {.fd = -1, .qcow2 = true}}, .layer_count = 2};

/* Every command but its last byte is there before; they take effect one after the other. */
static void test_ready(void **state)
{
	struct fixture f;
	struct stat status;

	(void)state;
	set(&f, &expected);
	assert_int_equal(f.replacer.channel_count, 4);
	expect(&f, 0, GREETED);
	expect(&f, 1, GREETED ADD_FD("20"));
	expect(&f, 2, GREETED ADD_FD("21"));
	expect(&f, 3, GREETED NODE("1", "20", "21"));
	expect(&f, 4, GREETED DRIVE("1"));
	begin(&f, 2, true);
	expect_file(&f, 1, "}", f.files[0]);
	expect_file(&f, 2, "}", f.files[1]);
	answer(&f, 2);
	expect(&f, 3, "");
	answer(&f, 1);
	expect(&f, 3, "}");
	expect(&f, 4, "");
	answer(&f, 3);
	expect(&f, 4, "}");
	assert_int_equal(f.done, 0);
	answer(&f, 4);
	assert_int_equal(f.done, 1);
	expect(&f, 0, "");
	assert_int_equal(f.state.generation, 1);
	assert_int_equal(f.state.set_count, 2);
	assert_int_equal(f.state.sets[1], 21);
	assert_int_equal(fstat(f.files[1], &status), 0);
	assert_int_equal(f.state.files[1].inode, status.st_ino);
	assert_int_equal(f.process.file_count, 2);
	/* The next one has nothing ready. What was before is closed when the guest is off it. */
	begin(&f, 2, false);
	expect_file(&f, 0,
		    ADD_FD("22") "}" ADD_FD("23") "}" NODE("2", "22", "23") "}" DRIVE("2") "}",
		    f.files[1]);
	for (int i = 0; i < 4; i++) {
		expect(&f, 0, "");
		answer(&f, 0);
	}
	expect(&f, 0,
	       "{\"execute\":\"blockdev-del\",\"arguments\":{\"node-name\":\"data-1\"}}"
	       "{\"execute\":\"remove-fd\",\"arguments\":{\"fdset-id\":20}}"
	       "{\"execute\":\"remove-fd\",\"arguments\":{\"fdset-id\":21}}");
	for (int i = 0; i < 3; i++) {
		assert_int_equal(f.done, 0);
		answer(&f, 0);
	}
	assert_int_equal(f.done, 1);
	assert_int_equal(f.process.file_count, 2);
	for (size_t i = 1; i <= 4; i++) {
		expect(&f, i, "");
	}
	clear(&f);
}

/* Layers of other kinds than were expected: what is ready is not used, also not later. */
static void test_not_what_was_expected(void **state)
{
	struct fixture f;

	(void)state;
	set(&f, &expected);
	for (size_t i = 0; i <= 4; i++) {
		int fd;

		heard(&f, i, &fd);
	}
	begin(&f, 0, true);
	expect(&f, 0,
	       "{\"execute\":\"blockdev-add\",\"arguments\":{\"driver\":\"null-co\",\"node-name\":"
	       "\"data-1\",\"size\":4096,\"read-zeroes\":true}}" DRIVE("1") "}");
	answer(&f, 0);
	answer(&f, 0);
	assert_int_equal(f.done, 1);
	begin(&f, 2, true);
	expect_file(&f, 0,
		    ADD_FD("20") "}" ADD_FD("21") "}" NODE("2", "20", "21") "}" DRIVE("2") "}",
		    f.files[1]);
	for (size_t i = 1; i <= 4; i++) {
		expect(&f, i, "");
	}
	clear(&f);
}

/* A disk without layers has two commands; one with too many has none ready. */
static void test_how_many(void **state)
{
	struct engine_disk disk = {.serial = "data", .size_bytes = 4096};
	struct fixture f;

	(void)state;
	set(&f, &disk);
	assert_int_equal(f.replacer.channel_count, 2);
	begin(&f, 0, true);
	assert_string_equal(strrchr(heard(&f, 1, &(int){0}), '}'), "}");
	answer(&f, 1);
	answer(&f, 2);
	assert_int_equal(f.done, 1);
	clear(&f);
	disk.layer_count = REPLACE_CHANNELS_MAX - 1;
	set(&f, &disk);
	assert_int_equal(f.replacer.channel_count, 0);
	clear(&f);
	/* Who does not expect any. */
	set(&f, NULL);
	assert_int_equal(f.replacer.channel_count, 0);
	begin(&f, 0, true);
	answer(&f, 0);
	answer(&f, 0);
	assert_int_equal(f.done, 1);
	clear(&f);
}

/* A monitor that answers what it was not asked. */
static void test_answers_to_nothing(void **state)
{
	struct fixture f;

	(void)state;
	set(&f, NULL);
	assert_int_equal(replace_on_done(&f.replacer, "qom-set"), 0);
	begin(&f, 0, true);
	assert_int_equal(replace_on_done(&f.replacer, "stop"), 0);
	assert_int_equal(f.done, 0);
	answer(&f, 0);
	answer(&f, 0);
	assert_int_equal(f.done, 1);
	assert_int_equal(replace_on_done(&f.replacer, "qom-set"), 0);
	assert_int_equal(f.done, 1);
	clear(&f);
}

/* One that answers nothing is sent no part of a further command, with a descriptor or without. */
static void test_no_answers(void **state)
{
	struct fixture f;
	int fd;

	(void)state;
	set(&f, NULL);
	while (qmp_send(f.replacer.qmp, "stop", NULL, -EBADF) == 0) {
	}
	heard(&f, 0, &fd);
	assert_int_equal(qmp_send(f.replacer.qmp, "stop", NULL, -EBADF), -ENOBUFS);
	assert_int_equal(qmp_send(f.replacer.qmp, "getfd", "{}", f.files[0]), -ENOBUFS);
	expect(&f, 0, "");
	answer(&f, 0);
	assert_int_equal(qmp_send(f.replacer.qmp, "getfd", "{}", f.files[0]), 0);
	expect_file(&f, 0, "{\"execute\":\"getfd\",\"arguments\":{}}", f.files[0]);
	clear(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ready),	   cmocka_unit_test(test_not_what_was_expected),
		cmocka_unit_test(test_how_many),   cmocka_unit_test(test_answers_to_nothing),
		cmocka_unit_test(test_no_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
