/* src/client/diff.c: a machine that says more of its changes than it can have. The machine is a
 * process of the test. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store_home.h"

#include "base/check.h"
#include "client/diff.h"
#include "client/inside.h"
#include "client/internal.h"
#include "wire/change.h"

#define MIB ((size_t)1 << 20)

/* How much of an archive the machine says. */
static size_t archive_bytes;

int __wrap_client_run_inside(struct client_machine *machine, const struct client_inside *inside,
			     struct err *reason);

_Noreturn static void say_all(int fd)
{
	static uint8_t frame[4 + CHANGE_FRAME_MAX], bytes[65536];
	const struct change change = {
		.kind = CHANGE_ADDED,
		.new = {.type = CHANGE_TYPE_FILE, .mode = 0644, .size = UINT64_MAX},
		.path = "f",
		.from = "",
		.old_target = "",
		.new_target = "",
	};
	bool good = write_full(fd, frame, (size_t)change_encode(&change, frame)) == 0 &&
		    write_full(fd, frame, (size_t)change_end_encode(1, frame)) == 0;

	while (good && archive_bytes > 0) {
		size_t part = MIN(archive_bytes, sizeof(bytes));

		good = write_full(fd, bytes, part) == 0;
		archive_bytes -= part;
	}
	_exit(0);
}

int __wrap_client_run_inside(struct client_machine *machine, const struct client_inside *inside,
			     struct err *reason)
{
	struct inside_end end;
	int ends[2], stop[2], rc;
	pid_t pid;

	(void)machine;
	assert_true(pipe(ends) == 0 && pipe(stop) == 0);
	pid = fork();
	if (pid == 0) {
		close(ends[0]);
		say_all(ends[1]);
	}
	close(ends[1]);
	end = (struct inside_end){.fd = ends[0], .stop_fd = stop[0]};
	rc = inside->read(inside->data, &end, reason);
	close(ends[0]);
	close(stop[0]);
	close(stop[1]);
	waitpid(pid, NULL, 0);
	return rc;
}

static int diff(size_t bytes, size_t *ret_kept)
{
	static const char boxfile[] = "data_size: 64MiB\n";
	struct client_machine machine = {.store = &store, .name = "a"};
	struct client_diff_options options = {.mode = CLIENT_DIFF_CONTENT};
	int rc = store_create(&store, "a", boxfile, strlen(boxfile), &err);

	assert_true(rc == 0 || rc == -EEXIST);
	err = (struct err){0};
	archive_bytes = bytes;
	options.copy_fd = store_temporary_file(&store, &err);
	assert_true(options.copy_fd >= 0);
	rc = client_diff_inside(&machine, &options, NULL, &err);
	*ret_kept = (size_t)lseek(options.copy_fd, 0, SEEK_END);
	close(options.copy_fd);
	return rc;
}

static void what_a_disk_holds_is_taken(void **state)
{
	size_t kept;

	(void)state;
	assert_int_equal(diff(64 * MIB, &kept), 0);
	assert_true(kept > 64 * MIB);
}

static void more_than_a_disk_holds_is_refused(void **state)
{
	size_t kept;

	(void)state;
	assert_int_equal(diff(256 * MIB, &kept), -EBADMSG);
	assert_string_equal(err.code, "diff-broken");
	/* And does not fill the host's disk before that. */
	assert_true(kept < 69 * MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_a_disk_holds_is_taken, home_set_up,
						home_tear_down),
		cmocka_unit_test_setup_teardown(more_than_a_disk_holds_is_refused, home_set_up,
						home_tear_down),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
