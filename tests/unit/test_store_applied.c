/* src/store: the chain that an apply works on, its step, and the way back. */
#include "store/applied.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "store_data.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

/* Enough to see what may go wrong on two processors: once in a hundred. */
#define RACES 5000

static ino_t inode_of(const char *path)
{
	struct stat status;

	return fstatat(sandbox, path, &status, AT_SYMLINK_NOFOLLOW) < 0 ? 0 : status.st_ino;
}

/* A whole apply. Returns the inode of the disk that was written to. */
static ino_t apply(struct store_applied *applied)
{
	struct store_draft draft = STORE_DRAFT_NONE;
	struct store_layers layers = {.count = 0};
	_cleanup_close_ int data = take_data();
	_cleanup_close_ int chain = -EBADF;
	struct stat status;

	*applied = (struct store_applied){.fork = "f", .applied_s = 5};
	memset(applied->digest, 'd', sizeof(applied->digest) - 1);
	assert_int_equal(store_begin_stacked(sandbox, data, &draft, &layers, &err), 0);
	applied->layers = (uint32_t)layers.count;
	write_something(draft.fd);
	assert_int_equal(fstat(draft.fd, &status), 0);
	/* Nobody else may have /data meanwhile, and nothing of it is different yet. */
	assert_int_equal(store_open_data(sandbox, false, &err), -EAGAIN);
	chain = store_lock_chain(sandbox, true, false, &err);
	store_close_layers(&layers);
	assert_int_equal(store_swap_stacked(sandbox, &draft, applied, &err), 0);
	return status.st_ino;
}

static void the_state_before_is_frozen_below(void **state)
{
	ino_t before = inode_of("data/data.qcow2"), newest;
	struct store_applied applied, read;
	char path[128];
	int data = take_data();

	(void)state;
	write_something(data);
	close_fd(&data);
	newest = apply(&applied);
	assert_int_equal(inode_of("data/data.qcow2"), newest);
	assert_int_equal(inode_of("data/layer-1.qcow2"), before);
	assert_int_equal(applied.layers, 2);
	/* Its archive has a disk of its own on top: no layer is ever written to again. */
	snprintf(path, sizeof(path), "archive/%s/layer-1.qcow2", applied.undo);
	assert_int_equal(inode_of(path), before);
	snprintf(path, sizeof(path), "archive/%s/data.qcow2", applied.undo);
	assert_true(inode_of(path) != 0 && inode_of(path) != before && inode_of(path) != newest);
	assert_int_equal(store_read_applied(sandbox, &read, &err), 1);
	assert_memory_equal(&read, &applied, sizeof(read));
}

static void an_undo_leads_back(void **state)
{
	ino_t before = inode_of("data/data.qcow2"), newest;
	_cleanup_close_ int chain = -EBADF;
	struct store_applied applied;
	struct store_layers layers = {.count = 0};
	char undo[STORE_LABEL_MAX + 1], path[128];
	int data = take_data();

	(void)state;
	write_something(data);
	close_fd(&data);
	newest = apply(&applied);
	assert_int_equal(store_open_undo(sandbox, &applied, &layers, &err), 0);
	assert_int_equal(layers.count, 2);
	store_close_layers(&layers);
	data = take_data();
	chain = store_lock_chain(sandbox, true, false, &err);
	assert_int_equal(store_undo_applied(sandbox, &applied, undo, &err), 0);
	close_fd(&data);
	assert_int_equal(inode_of("data/layer-1.qcow2"), before);
	assert_int_not_equal(inode_of("data/data.qcow2"), newest);
	snprintf(path, sizeof(path), "archive/%s/data.qcow2", undo);
	assert_int_equal(inode_of(path), newest);
	assert_int_equal(store_read_applied(sandbox, &applied, &err), 0);
}

/* What an apply leaves that was killed before its step: the archive of the state before, whose last
 * layer is still what /data is written to. */
static void leave_half_an_apply(char *ret_path, size_t size)
{
	char stamp[64], path[160];
	_cleanup_close_ int fd = -EBADF;
	time_t now = time(NULL);
	struct tm utc;

	gmtime_r(&now, &utc);
	strftime(stamp, sizeof(stamp), "archive/undo-%Y%m%dT%H%M%SZ", &utc);
	snprintf(ret_path, size, "%s", stamp);
	(void)mkdirat(sandbox, "archive", 0700);
	assert_int_equal(mkdirat(sandbox, ret_path, 0700), 0);
	snprintf(path, sizeof(path), "%s/base-0.ext4", ret_path);
	assert_int_equal(linkat(sandbox, "data/base-0.ext4", sandbox, path, 0), 0);
	snprintf(path, sizeof(path), "%s/layer-1.qcow2", ret_path);
	assert_int_equal(linkat(sandbox, "data/data.qcow2", sandbox, path, 0), 0);
	snprintf(path, sizeof(path), "%s/data.qcow2", ret_path);
	fd = openat(sandbox, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_int_equal(store_write_qcow2(fd, 64 * MIB, &err), 0);
}

static size_t count_archives(void)
{
	_cleanup_free_ struct store_archive *archives = NULL;
	size_t count = 99;

	assert_int_equal(store_list_archives(sandbox, &archives, &count, &err), 0);
	return count;
}

static void half_an_apply_is_no_archive(void **state)
{
	char path[128];
	int data = take_data();

	(void)state;
	write_something(data);
	leave_half_an_apply(path, sizeof(path));
	/* As long as somebody has /data it may be an apply that is about to take its step. */
	assert_int_equal(count_archives(), 0);
	assert_int_not_equal(inode_of(path), 0);
	close_fd(&data);
	assert_int_equal(count_archives(), 0);
	assert_int_equal(inode_of(path), 0);
}

static void a_freeze_forgets_half_an_apply(void **state)
{
	int newest = -EBADF, data = take_data();
	struct stat status;
	char path[128];

	(void)state;
	write_something(data);
	leave_half_an_apply(path, sizeof(path));
	assert_int_equal(store_freeze_data(sandbox, data, &newest, &err), 0);
	close_fd(&newest);
	assert_int_equal(inode_of(path), 0);
	assert_int_equal(fstat(data, &status), 0);
	assert_int_equal(status.st_nlink, 1);
	close_fd(&data);
}

static void a_step_that_fails_leaves_no_archive(void **state)
{
	struct store_applied applied = {.fork = "f", .digest = "d"};
	struct store_draft draft = STORE_DRAFT_NONE;
	struct store_layers layers = {.count = 0};
	_cleanup_close_ int data = take_data();
	ino_t before = inode_of("data/data.qcow2");
	struct stat status;

	(void)state;
	write_something(data);
	assert_int_equal(store_begin_stacked(sandbox, data, &draft, &layers, &err), 0);
	applied.layers = (uint32_t)layers.count;
	store_close_layers(&layers);
	/* The note cannot be written there. */
	assert_int_equal(mkdirat(sandbox, "applied.json", 0700), 0);
	assert_true(store_swap_stacked(sandbox, &draft, &applied, &err) < 0);
	store_drop_draft(sandbox, &draft);
	assert_int_equal(inode_of("data/data.qcow2"), before);
	assert_int_equal(fstat(data, &status), 0);
	assert_int_equal(status.st_nlink, 1);
}

/* Removes an archive as box does, each time when it is told to. */
_Noreturn static void remove_when_told(const char *path, int told_fd, int done_fd)
{
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(told_fd, &byte, 1) == 1) {
		int rc = renameat(sandbox, path, sandbox, "archive/.new-x");

		rc = rc == 0 ? unlinkat(sandbox, "archive/.new-x/layer-1.qcow2", 0) : rc;
		if (rc < 0 || write(done_fd, &byte, 1) != 1) {
			_exit(1);
		}
	}
	_exit(0);
}

static void an_archive_that_is_being_removed_is_no_state(void **state)
{
	struct store_archive archive;
	struct store_applied applied;
	int told[2], done[2], data = take_data();
	char layer[128], byte = 0;

	(void)state;
	write_something(data);
	close_fd(&data);
	apply(&applied);
	assert_int_equal(store_find_archive(sandbox, applied.undo, &archive, &err), 0);
	snprintf(layer, sizeof(layer), "%s/layer-1.qcow2", archive.path);
	assert_int_equal(linkat(sandbox, layer, sandbox, "saved", 0), 0);
	assert_true(pipe2(told, O_CLOEXEC) == 0 && pipe2(done, O_CLOEXEC) == 0);
	if (fork() == 0) {
		close(told[1]);
		remove_when_told(archive.path, told[0], done[1]);
	}
	for (size_t i = 0; i < RACES; i++) {
		struct store_draft draft = STORE_DRAFT_NONE;
		struct stat status;

		assert_int_equal(write(told[1], &byte, 1), 1);
		for (size_t spin = 0; spin < i % 64; spin++) {
			sched_yield();
		}
		if (store_begin_undo(sandbox, &archive, &draft, &err) == 0) {
			assert_int_equal(fstatat(draft.dir_fd, "layer-1.qcow2", &status, 0), 0);
		}
		store_drop_draft(sandbox, &draft);
		assert_int_equal(read(done[0], &byte, 1), 1);
		assert_int_equal(
			linkat(sandbox, "saved", sandbox, "archive/.new-x/layer-1.qcow2", 0), 0);
		assert_int_equal(renameat(sandbox, "archive/.new-x", sandbox, archive.path), 0);
	}
	close(told[0]);
	close(told[1]);
	close(done[0]);
	close(done[1]);
	wait(NULL);
}

static void a_draft_that_is_dropped_leaves_nothing(void **state)
{
	ino_t before = inode_of("data/data.qcow2");
	struct store_draft draft = STORE_DRAFT_NONE;
	struct store_layers layers = {.count = 0};
	_cleanup_close_ int data = take_data();
	char path[sizeof(draft.path)];
	struct stat status;

	(void)state;
	write_something(data);
	assert_int_equal(store_begin_stacked(sandbox, data, &draft, &layers, &err), 0);
	memcpy(path, draft.path, sizeof(path));
	assert_int_not_equal(inode_of(path), 0);
	store_close_layers(&layers);
	store_drop_draft(sandbox, &draft);
	assert_int_equal(inode_of(path), 0);
	assert_int_equal(inode_of("data/data.qcow2"), before);
	assert_int_equal(inode_of("data/layer-1.qcow2"), 0);
	assert_int_equal(fstat(data, &status), 0);
	assert_int_equal(status.st_nlink, 1);
}

static void nothing_written_is_nothing_frozen(void **state)
{
	struct store_applied applied;

	(void)state;
	apply(&applied);
	assert_int_equal(applied.layers, 1);
	assert_int_equal(inode_of("data/layer-1.qcow2"), 0);
}

static void a_long_chain_is_refused(void **state)
{
	struct store_draft draft = STORE_DRAFT_NONE;
	struct store_layers layers = {.count = 0};
	struct store_applied applied;
	_cleanup_close_ int data = -EBADF;

	(void)state;
	/* The first finds nothing to freeze. */
	for (size_t i = 1; i < STORE_CHAIN_MAX; i++) {
		apply(&applied);
	}
	data = take_data();
	assert_int_equal(store_begin_stacked(sandbox, data, &draft, &layers, &err), -EMLINK);
	assert_string_equal(err.code, "chain-long");
	assert_int_equal(draft.fd, -EBADF);
	assert_int_equal(layers.count, 0);
}

static void what_box_has_not_written_is_refused(void **state)
{
	static const char *const texts[] = {
		"",
		"[]",
		"{}",
		"{\"fork\": \"../x\", \"undo\": \"u\", \"digest\": \"d\", \"layers\": 1, "
		"\"applied\": 1}",
		"{\"fork\": \"x\", \"undo\": \"../u\", \"digest\": \"d\", \"layers\": 1, "
		"\"applied\": 1}",
		"{\"fork\": \"x\", \"undo\": \"u\", \"digest\": \"d\", \"layers\": 0, "
		"\"applied\": 1}",
		"{\"fork\": \"x\", \"undo\": \"u\", \"digest\": \"d\", \"layers\": 7, "
		"\"applied\": 1}",
	};
	struct store_applied applied;

	(void)state;
	assert_int_equal(store_read_applied(sandbox, &applied, &err), 0);
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		assert_int_equal(
			write_file_at(sandbox, "applied.json", texts[i], strlen(texts[i]), 0600),
			0);
		assert_int_equal(store_read_applied(sandbox, &applied, &err), -EBADMSG);
		assert_string_equal(err.code, "applied-broken");
	}
}

static void pieces_have_the_digest_of_the_whole(void **state)
{
	char whole[STORE_DIGEST_SIZE], pieces[STORE_DIGEST_SIZE];
	struct store_hasher *hasher = store_hasher_new();

	(void)state;
	assert_non_null(hasher);
	store_digest("one two", 7, whole);
	store_hasher_add(hasher, "one", 3);
	store_hasher_add(hasher, "", 0);
	store_hasher_add(hasher, " two", 4);
	store_hasher_end(hasher, pieces);
	assert_string_equal(pieces, whole);
	store_hasher_free(hasher);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_state_before_is_frozen_below, data_set_up,
						data_tear_down),
		cmocka_unit_test_setup_teardown(an_undo_leads_back, data_set_up, data_tear_down),
		cmocka_unit_test_setup_teardown(half_an_apply_is_no_archive, data_set_up,
						data_tear_down),
		cmocka_unit_test_setup_teardown(a_freeze_forgets_half_an_apply, data_set_up,
						data_tear_down),
		cmocka_unit_test_setup_teardown(a_step_that_fails_leaves_no_archive, data_set_up,
						data_tear_down),
		cmocka_unit_test_setup_teardown(an_archive_that_is_being_removed_is_no_state,
						data_set_up, data_tear_down),
		cmocka_unit_test_setup_teardown(a_draft_that_is_dropped_leaves_nothing, data_set_up,
						data_tear_down),
		cmocka_unit_test_setup_teardown(nothing_written_is_nothing_frozen, data_set_up,
						data_tear_down),
		cmocka_unit_test_setup_teardown(a_long_chain_is_refused, data_set_up,
						data_tear_down),
		cmocka_unit_test_setup_teardown(what_box_has_not_written_is_refused, data_set_up,
						data_tear_down),
		cmocka_unit_test(pieces_have_the_digest_of_the_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
