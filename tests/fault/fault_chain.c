/*
 * The chain of /data under failing calls, and killed at each: it is whole at every instant, in one
 * state or the other, and a sweep finds what is left.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "faults.h"
#include "store/chain.h"
#include "store/store.h"

#define MIB (UINT64_C(1) << 20)
/* Where a mark makes a disk's first table say that something was written. */
#define TABLE_OFFSET 0x30000
/* Where it tells one disk from another: behind what box reads of a header. */
#define MARK_OFFSET 0x100

static char top[64];
static char home[96];
static struct store store;
static struct err err;
static int sandbox = -EBADF;
static int data_fd = -EBADF;
static int chain_fd = -EBADF;

/* A disk that something was written to, and that can be told from others. */
static void put_disk(const char *path, char mark)
{
	_cleanup_close_ int fd = openat(sandbox, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_int_equal(store_write_qcow2(fd, 64 * MIB, &err), 0);
	assert_int_equal(pwrite(fd, &mark, 1, MARK_OFFSET), 1);
	assert_int_equal(pwrite(fd, &mark, 1, TABLE_OFFSET), 1);
}

static char mark_of(int dir_fd, const char *path)
{
	_cleanup_close_ int fd = openat(dir_fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	char mark = '-';

	return fd < 0 ? '!' : pread(fd, &mark, 1, MARK_OFFSET) == 1 ? mark : '?';
}

static void prepare(void)
{
	snprintf(top, sizeof(top), "/tmp/fault-chain-XXXXXX");
	assert_non_null(mkdtemp(top));
	snprintf(home, sizeof(home), "%s/home", top);
	setenv("BOX_HOME", home, 1);
	memset(&err, 0, sizeof(err));
	assert_int_equal(store_open(true, &store, &err), 0);
	assert_int_equal(store_create(&store, "web", "cpus: 3\n", 8, &err), 0);
	sandbox = store_open_sandbox(&store, "web", &err);
	assert_int_equal(mkdirat(sandbox, "data", 0700), 0);
	assert_int_equal(mkdirat(sandbox, "image", 0700), 0);
	assert_int_equal(write_file_at(sandbox, "image/key", "key", 3, 0600), 0);
	assert_int_equal(write_file_at(sandbox, "data/base-0.ext4", "base", 4, 0600), 0);
	put_disk("data/layer-1.qcow2", '1');
	put_disk("data/data.qcow2", '2');
	data_fd = store_open_data(sandbox, false, &err);
	chain_fd = store_lock_chain(sandbox, true, false, &err);
	assert_true(data_fd >= 0 && chain_fd >= 0);
}

static void clean(void)
{
	close_fd(&data_fd);
	close_fd(&chain_fd);
	close_fd(&sandbox);
	store_close(&store);
	assert_int_equal(remove_tree_at(AT_FDCWD, top), 0);
}

/* What a next command sees: it sweeps, and opens what is there. */
static void look_again(void)
{
	struct store_layers layers = {.count = 0};

	close_fd(&data_fd);
	close_fd(&chain_fd);
	memset(&err, 0, sizeof(err));
	assert_int_equal(store_sweep(&store), 0);
	data_fd = store_open_data(sandbox, false, &err);
	assert_true(data_fd >= 0);
	assert_int_equal(store_open_layers(sandbox, &layers, &err), 0);
	store_close_layers(&layers);
}

static void check_told(int rc)
{
	if (rc < 0 && rc != FAULT_DIED) {
		assert_true(err.code[0] != '\0');
		assert_true(err.text[0] != '\0');
	}
}

static int count_names(const char *path)
{
	char whole[192];

	snprintf(whole, sizeof(whole), "%s/sandboxes/%s", home, path);
	return fault_count_entries(whole);
}

static bool is_there(const char *path)
{
	struct stat status;

	return fstatat(sandbox, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
}

static int freeze(void)
{
	_cleanup_close_ int new_fd = -EBADF;
	int rc = store_freeze_data(sandbox, data_fd, &new_fd, &err);

	assert_int_equal(rc == 0, new_fd >= 0);
	return rc;
}

static void check_frozen(int rc)
{
	bool frozen;

	check_told(rc);
	frozen = is_there("data/layer-2.qcow2");
	/* Whoever was told that nothing has happened goes on writing to what was there. */
	assert_true(rc == FAULT_DIED || frozen == (rc == 0));
	look_again();
	assert_int_equal(mark_of(sandbox, "data/layer-1.qcow2"), '1');
	if (frozen) {
		assert_int_equal(mark_of(sandbox, "data/layer-2.qcow2"), '2');
		assert_int_equal(mark_of(sandbox, "data/data.qcow2"), 0);
	} else {
		assert_int_equal(mark_of(sandbox, "data/data.qcow2"), '2');
	}
	assert_int_equal(count_names("web/data"), frozen ? 4 : 3);
	/* Boxfile, data, image and the chain's lock. */
	assert_int_equal(count_names("web"), 4);
}

static int fork_it(void)
{
	return store_create_fork(&store, "web", "copy", &err);
}

static void check_forked(int rc)
{
	_cleanup_close_ int fork_fd = -EBADF;
	struct store_layers layers = {.count = 0};
	struct store_fork fork;

	check_told(rc);
	fork_fd = store_open_sandbox(&store, "copy", NULL);
	assert_true(rc == FAULT_DIED || (fork_fd >= 0) == (rc == 0));
	look_again();
	assert_int_equal(count_names(""), fork_fd >= 0 ? 2 : 1);
	assert_int_equal(count_names("web/data"), 3);
	if (fork_fd >= 0) {
		assert_int_equal(store_read_fork(fork_fd, &fork, &err), 1);
		assert_int_equal(fork.base_count, 2);
		assert_int_equal(store_open_layers(fork_fd, &layers, &err), 0);
		assert_int_equal(layers.count, 2);
		store_close_layers(&layers);
		assert_int_equal(mark_of(fork_fd, "data/layer-1.qcow2"), '1');
		assert_int_equal(faccessat(fork_fd, "image/key", R_OK, 0), 0);
		assert_int_equal(faccessat(fork_fd, "Boxfile", R_OK, 0), 0);
	}
}

static int reset(void)
{
	struct store_draft draft = STORE_DRAFT_NONE;
	char undo[STORE_LABEL_MAX + 1];
	int rc = store_begin_data(sandbox, 64 * MIB, &draft, &err);

	if (rc == 0) {
		rc = store_swap_data(sandbox, &draft, undo, &err);
	}
	store_drop_draft(sandbox, &draft);
	return rc;
}

/* /data is the old state or the new one, and with the new one the old one is an archive. */
static void check_reset(int rc)
{
	_cleanup_free_ struct store_archive *archives = NULL;
	char path[128];
	size_t count = 0;
	bool done;

	check_told(rc);
	done = !is_there("data/layer-1.qcow2");
	assert_true(rc == FAULT_DIED || rc < 0 || done);
	look_again();
	assert_int_equal(store_list_archives(sandbox, &archives, &count, &err), 0);
	assert_int_equal(count, done ? 1 : 0);
	assert_int_equal(mark_of(sandbox, "data/data.qcow2"), done ? 0 : '2');
	if (done) {
		snprintf(path, sizeof(path), "%s/data.qcow2", archives[0].path);
		assert_int_equal(mark_of(sandbox, path), '2');
		snprintf(path, sizeof(path), "%s/layer-1.qcow2", archives[0].path);
		assert_int_equal(mark_of(sandbox, path), '1');
	}
	assert_int_equal(count_names("web/data"), done ? 2 : 3);
}

static void prepare_undo(void)
{
	prepare();
	assert_int_equal(reset(), 0);
	put_disk("data/data.qcow2", '3');
	close_fd(&data_fd);
	data_fd = store_open_data(sandbox, false, &err);
}

static int undo(void)
{
	_cleanup_free_ struct store_archive *archives = NULL;
	struct store_draft draft = STORE_DRAFT_NONE;
	char label[STORE_LABEL_MAX + 1];
	size_t count = 0;
	int rc = store_list_archives(sandbox, &archives, &count, &err);

	if (rc == 0 && count == 0) {
		/* It could not be looked at. */
		rc = err_set(&err, -EIO, "no-archive", "no archive");
	}
	if (rc == 0) {
		rc = store_begin_undo(sandbox, &archives[0], &draft, &err);
	}
	if (rc == 0) {
		rc = store_swap_data(sandbox, &draft, label, &err);
	}
	store_drop_draft(sandbox, &draft);
	return rc;
}

static void check_undone(int rc)
{
	_cleanup_free_ struct store_archive *archives = NULL;
	char path[128];
	size_t count = 0;
	bool done;

	check_told(rc);
	done = is_there("data/layer-1.qcow2");
	assert_true(rc == FAULT_DIED || rc < 0 || done);
	look_again();
	close_fd(&data_fd);
	assert_int_equal(store_list_archives(sandbox, &archives, &count, &err), 0);
	assert_int_equal(count, 1);
	snprintf(path, sizeof(path), "%s/data.qcow2", archives[0].path);
	assert_int_equal(mark_of(sandbox, "data/data.qcow2"), done ? '2' : '3');
	assert_int_equal(mark_of(sandbox, path), done ? '3' : '2');
}

static int merge(enum store_merge_way way)
{
	_cleanup_close_ int top_fd = -EBADF;
	struct store_merge done = STORE_MERGE_NONE;
	int rc = store_begin_merge(sandbox, way, &done, &err);

	if (rc > 0) {
		/* The copy of what is above, which says that it is there. */
		rc = pwrite(done.fds[done.target], "m", 1, MARK_OFFSET) == 1
			     ? store_commit_merge(sandbox, &done, &top_fd, &err)
			     : err_set(&err, -EIO, "test", "the test's own write failed");
		assert_int_equal(rc == 0, top_fd >= 0);
	} else if (rc == 0) {
		/* A file that cannot be locked is in use, and nothing was done. */
		rc = err_set(&err, -EAGAIN, "busy", "in use");
	}
	store_drop_merge(sandbox, &done);
	return rc;
}

static int merge_in_place(void)
{
	return merge(STORE_MERGE_UNUSED);
}

static void prepare_shared(void)
{
	prepare();
	assert_int_equal(linkat(sandbox, "data/layer-1.qcow2", sandbox, "other", 0), 0);
}

static int merge_into_new(void)
{
	return merge(STORE_MERGE_ROOM);
}

static void check_merged(int rc)
{
	bool shared = is_there("other");
	bool done;

	check_told(rc);
	done = !is_there("data/layer-1.qcow2");
	assert_true(rc == FAULT_DIED || done == (rc == 0));
	look_again();
	assert_int_equal(mark_of(sandbox, "data/data.qcow2"), done ? 'm' : '2');
	if (!done) {
		char mark = mark_of(sandbox, "data/layer-1.qcow2");

		assert_true(mark == '1' || (!shared && mark == 'm'));
	}
	/* Whoever shares it has it as it was. */
	assert_true(!shared || mark_of(sandbox, "other") == '1');
	assert_int_equal(count_names("web/data"), done ? 2 : 3);
	assert_int_equal(count_names("web"), shared ? 5 : 4);
}

static void check_one(void **state)
{
	fault_run(*state);
}

int main(void)
{
	static struct fault_case cases[] = {
		{"store_freeze_data", prepare, freeze, check_frozen, clean, true},
		{"store_create_fork", prepare, fork_it, check_forked, clean, true},
		{"store_swap_data", prepare, reset, check_reset, clean, true},
		{"store_commit_merge", prepare, merge_in_place, check_merged, clean, true},
		{"store_commit_merge, new", prepare_shared, merge_into_new, check_merged, clean,
		 true},
		{"store_begin_undo", prepare_undo, undo, check_undone, clean, true},
	};
	struct CMUnitTest tests[ARRAY_SIZE(cases)];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		tests[i] = (struct CMUnitTest){
			.name = cases[i].name,
			.test_func = check_one,
			.initial_state = &cases[i],
		};
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
