/* src/store: archives of /data, the swap of its disk, growth, rename, nuke. */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "store_home.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)

static int sandbox = -EBADF;

static int set_up(void **state)
{
	if (home_set_up(state) < 0 || store_create(&store, "a", "data_size: 64M\n", 15, &err) < 0) {
		return -1;
	}
	sandbox = store_open_sandbox(&store, "a", &err);
	return sandbox < 0 || mkdirat(sandbox, "data", 0700) < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
	close_fd(&sandbox);
	return home_tear_down(state);
}

static void put(const char *path, const char *text)
{
	assert_int_equal(write_file_at(sandbox, path, text, strlen(text), 0600), 0);
}

static bool is_there(const char *path)
{
	struct stat status;

	return fstatat(sandbox, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
}

static void assert_text(const char *path, const char *text)
{
	_cleanup_free_ char *data = NULL;
	size_t size;

	assert_int_equal(read_file_at(sandbox, path, 4096, &data, &size), 0);
	assert_string_equal(data, text);
}

/* The base is as small as a test needs it. */
static void put_data(const char *text)
{
	put("data/base-0.ext4", "base");
	put("data/data.qcow2", text);
}

static size_t count_archives(void)
{
	_cleanup_free_ struct store_archive *archives = NULL;
	size_t count;

	assert_int_equal(store_list_archives(sandbox, &archives, &count, &err), 0);
	return count;
}

static void test_labels(void **state)
{
	static const char *const bad[] = {"",	 ".x",	  "a/b", "../x",       "a b",
					  "a\n", "undo-", "-x",	 "undo-x.tar", "a\033[2J"};
	char longest[STORE_LABEL_MAX + 2];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(store_check_label(bad[i], &err), -EINVAL);
		assert_string_equal(err.code, "label");
	}
	memset(longest, 'x', sizeof(longest));
	longest[STORE_LABEL_MAX + 1] = '\0';
	assert_int_equal(store_check_label(longest, &err), -EINVAL);
	longest[STORE_LABEL_MAX] = '\0';
	assert_int_equal(store_check_label(longest, &err), 0);
	assert_int_equal(store_check_label("before.upgrade-2", &err), 0);
}

static void test_an_archive_appears_when_it_is_whole(void **state)
{
	struct store_draft draft = STORE_DRAFT_NONE, other = STORE_DRAFT_NONE;
	struct store_archive found;

	(void)state;
	assert_int_equal(store_find_archive(sandbox, NULL, &found, &err), -ENOENT);
	assert_string_equal(err.code, "no-archive");
	assert_int_equal(store_begin_archive(sandbox, "one", &draft, &err), 0);
	assert_int_equal(store_begin_archive(sandbox, "one", &other, &err), 0);
	assert_int_equal(write_full(draft.fd, "text", 4), 0);
	assert_int_equal(count_archives(), 0);
	/* One that is being made is left alone. */
	store_sweep_archives(sandbox);
	assert_int_equal(store_commit_archive(sandbox, "one", &draft, &err), 0);
	assert_int_equal(store_commit_archive(sandbox, "one", &other, &err), -EEXIST);
	store_drop_draft(sandbox, &other);
	assert_text("archive/one.tar.zst", "text");
	assert_int_equal(store_find_archive(sandbox, NULL, &found, &err), 0);
	assert_string_equal(found.label, "one");
	assert_int_equal(found.size_bytes, 4);
	assert_int_equal(store_begin_archive(sandbox, "one", &other, &err), -EEXIST);
	assert_int_equal(store_find_archive(sandbox, "onee", &found, &err), -ENOENT);
	assert_non_null(strstr(err.mend, "did you mean one?"));
	/* What a killed process has left is not. */
	put("archive/.new-0123", "");
	assert_int_equal(mkdirat(sandbox, "data.new-0123", 0700), 0);
	put("data.new-0123/data.qcow2", "");
	store_sweep_archives(sandbox);
	assert_false(is_there("archive/.new-0123"));
	assert_false(is_there("data.new-0123"));
}

static void test_what_is_no_archive_is_not_listed(void **state)
{
	(void)state;
	assert_int_equal(mkdirat(sandbox, "archive", 0700), 0);
	put("archive/.tar.zst", "");
	put("archive/x.tar", "");
	put("archive/a b.tar.zst", "");
	assert_int_equal(mkdirat(sandbox, "archive/undo-x", 0700), 0);
	put("archive/undo-x/data.qcow2", "");
	put("archive/undo-20200101T000000Z", "no chain");
	put("archive/undo-x.tar.gz", "");
	put("archive/disk.qcow2", "");
	assert_int_equal(symlinkat("/etc/passwd", sandbox, "archive/link.tar.gz"), 0);
	assert_int_equal(mkdirat(sandbox, "archive/directory.tar.gz", 0700), 0);
	assert_int_equal(count_archives(), 0);
	put("archive/theirs.tar.gz", "");
	assert_int_equal(count_archives(), 1);
	assert_true(is_there("archive/disk.qcow2"));
}

/* The name of an automatic archive that was made so many seconds ago. */
static void undo_path(int64_t ago, char path[96])
{
	time_t at = time(NULL) - ago;
	struct tm utc;

	gmtime_r(&at, &utc);
	strftime(path, 96, "archive/" STORE_UNDO_PREFIX "%Y%m%dT%H%M%SZ", &utc);
}

/* One with nothing but its disk. */
static void put_undo(const char *path, const char *text)
{
	char name[128];

	assert_int_equal(mkdirat(sandbox, path, 0700), 0);
	snprintf(name, sizeof(name), "%s/data.qcow2", path);
	put(name, text);
}

/* One that is what /data is. */
static void link_undo(const char *path)
{
	char name[128];

	assert_int_equal(mkdirat(sandbox, path, 0700), 0);
	snprintf(name, sizeof(name), "%s/data.qcow2", path);
	assert_int_equal(linkat(sandbox, "data/data.qcow2", sandbox, name, 0), 0);
	snprintf(name, sizeof(name), "%s/base-0.ext4", path);
	assert_int_equal(linkat(sandbox, "data/base-0.ext4", sandbox, name, 0), 0);
}

static void test_automatic_archives_go_after_a_day(void **state)
{
	char young[96], old[96], path[96];

	(void)state;
	put_data("now");
	assert_int_equal(mkdirat(sandbox, "archive", 0700), 0);
	undo_path(STORE_UNDO_SECONDS - 60, young);
	undo_path(STORE_UNDO_SECONDS + 60, old);
	put_undo(young, "young");
	put_undo(old, "old");
	put("archive/undo-1.tar.zst", "no one's");
	assert_int_equal(count_archives(), 1);
	assert_true(is_there(young));
	assert_false(is_there(old));
	for (int i = 0; i < STORE_UNDO_MAX + 5; i++) {
		undo_path(1000 - i, path);
		put_undo(path, "one of many");
	}
	assert_int_equal(count_archives(), STORE_UNDO_MAX);
	/* The newest stay. */
	assert_true(is_there(path));
	assert_false(is_there(young));
}

static void test_a_swap_keeps_what_was_there(void **state)
{
	struct store_draft draft = STORE_DRAFT_NONE;
	char undo[STORE_LABEL_MAX + 1], second[STORE_LABEL_MAX + 1], path[96];
	struct store_archive found;

	(void)state;
	put_data("before");
	assert_int_equal(store_begin_data(sandbox, 64 * MIB, &draft, &err), 0);
	assert_text("data/data.qcow2", "before");
	assert_int_equal(store_swap_data(sandbox, &draft, undo, &err), 0);
	assert_int_equal(draft.fd, -EBADF);
	snprintf(path, sizeof(path), "archive/%s/data.qcow2", undo);
	assert_text(path, "before");
	/* And back, within the same second. */
	assert_int_equal(store_find_archive(sandbox, undo, &found, &err), 0);
	assert_true(found.automatic);
	assert_int_equal(store_begin_undo(sandbox, &found, &draft, &err), 0);
	assert_int_equal(store_swap_data(sandbox, &draft, second, &err), 0);
	assert_string_not_equal(undo, second);
	assert_text("data/data.qcow2", "before");
	assert_false(is_there(path));
	assert_int_equal(count_archives(), 1);
}

static void test_a_swap_that_was_interrupted(void **state)
{
	char path[96];

	(void)state;
	put_data("before");
	assert_int_equal(mkdirat(sandbox, "archive", 0700), 0);
	/* Killed between the link and the rename. */
	undo_path(0, path);
	link_undo(path);
	assert_int_equal(count_archives(), 0);
	assert_false(is_there(path));
	assert_text("data/data.qcow2", "before");
}

/* Somebody lists the archives just between the two steps of a swap. */
static void test_a_look_at_a_swap_under_way(void **state)
{
	int data;
	char path[96];

	(void)state;
	put_data("before");
	assert_int_equal(mkdirat(sandbox, "archive", 0700), 0);
	data = store_open_data(sandbox, false, &err);
	assert_true(data >= 0);
	undo_path(0, path);
	link_undo(path);
	assert_int_equal(count_archives(), 0);
	store_sweep_archives(sandbox);
	assert_true(is_there(path));
	put("data/data.qcow2", "after");
	close_fd(&data);
	assert_int_equal(count_archives(), 1);
	snprintf(path + strlen(path), sizeof(path) - strlen(path), "/data.qcow2");
	assert_text(path, "before");
}

static void test_a_base_limits_how_small(void **state)
{
	struct store_draft draft = STORE_DRAFT_NONE;
	_cleanup_close_ int base = -EBADF;

	(void)state;
	put_data("before");
	base = openat(sandbox, "data/base-0.ext4", O_WRONLY | O_CLOEXEC);
	assert_int_equal(ftruncate(base, (off_t)(64 * MIB)), 0);
	assert_int_equal(store_begin_data(sandbox, 32 * MIB, &draft, &err), -EINVAL);
	assert_string_equal(err.code, "data-size");
	assert_int_equal(store_begin_data(sandbox, 64 * MIB, &draft, &err), 0);
	store_drop_draft(sandbox, &draft);
}

static void test_a_disk_grows_and_never_shrinks(void **state)
{
	_cleanup_close_ int fd = store_temporary_file(&store, &err);
	static const uint64_t steps[] = {64 * MIB, 65 * MIB, 513 * MIB, 10 * GIB, 4 * TIB};
	uint64_t size;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(store_write_qcow2(fd, steps[0], &err), 0);
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		assert_int_equal(store_fit_disk(fd, steps[i], &err), 0);
		assert_int_equal(store_disk_size(fd, &size, &err), 0);
		assert_int_equal(size, steps[i]);
	}
	assert_int_equal(store_fit_disk(fd, 10 * GIB, &err), -EINVAL);
	assert_string_equal(err.code, "data-size");
	assert_int_equal(store_fit_disk(fd, 5 * TIB, &err), -EFBIG);
	assert_int_equal(store_disk_size(fd, &size, &err), 0);
	assert_int_equal(size, 4 * TIB);
}

static void test_a_disk_of_somebody_else_is_refused(void **state)
{
	/* Magic, backing file, cluster size, size, encryption, L1 size and place, snapshots. */
	static const int fields[] = {0, 4, 15, 23, 31, 35, 39, 46, 63};
	uint64_t size;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		_cleanup_close_ int fd = store_temporary_file(&store, &err);
		char byte = 0x55;

		assert_int_equal(store_write_qcow2(fd, 64 * MIB, &err), 0);
		assert_int_equal(pwrite(fd, &byte, 1, fields[i]), 1);
		assert_int_equal(store_disk_size(fd, &size, &err), -EBADMSG);
		assert_int_equal(store_fit_disk(fd, 128 * MIB, &err), -EBADMSG);
		assert_string_equal(err.code, "disk-broken");
	}
}

static void put_home(const char *path, const char *text)
{
	assert_int_equal(write_file_at(store.home_fd, path, text, strlen(text), 0600), 0);
}

static void assert_home_text(const char *path, const char *text)
{
	_cleanup_free_ char *data = NULL;
	size_t size;

	assert_int_equal(read_file_at(store.home_fd, path, 4096, &data, &size), 0);
	assert_string_equal(data, text);
}

static bool home_has(const char *path)
{
	struct stat status;

	return fstatat(store.home_fd, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
}

static void test_a_rename_takes_the_log_along(void **state)
{
	(void)state;
	put_home("log/a.jsonl", "lines\n");
	put_home("log/a.jsonl.1", "older\n");
	assert_int_equal(mkdirat(store.home_fd, "log/a", 0700), 0);
	put_home("log/a/abc.out", "output");
	put_home("log/b.jsonl", "of an earlier b\n");
	assert_int_equal(store_create(&store, "c", "", 0, &err), 0);
	assert_int_equal(store_rename(&store, "a", "c", &err), -EEXIST);
	assert_string_equal(err.code, "exists");
	assert_false(is_there("renamed-from"));
	assert_int_equal(store_rename(&store, "a", "../b", &err), -EINVAL);
	assert_int_equal(store_rename(&store, "x", "b", &err), -ENOENT);
	assert_int_equal(store_rename(&store, "a", "b", &err), 0);
	assert_home_text("log/b.jsonl", "lines\n");
	assert_home_text("log/b.jsonl.1", "older\n");
	assert_home_text("log/b/abc.out", "output");
	assert_true(home_has("sandboxes/b/data"));
	assert_false(home_has("sandboxes/a"));
	assert_false(is_there("renamed-from"));
}

static void test_a_rename_refuses_while_in_use(void **state)
{
	int live = store_lock_live(sandbox, false, false, &err);

	(void)state;
	assert_int_equal(store_rename(&store, "a", "b", &err), -EBUSY);
	close_fd(&live);
	live = store_lock_build(sandbox, false, &err);
	assert_int_equal(store_rename(&store, "a", "b", &err), -EBUSY);
	close_fd(&live);
	live = store_lock_up(sandbox, &err);
	assert_int_equal(store_rename(&store, "a", "b", &err), -EBUSY);
	assert_non_null(strstr(err.mend, "box down a"));
	close_fd(&live);
	assert_int_equal(store_rename(&store, "a", "b", &err), 0);
}

static void test_a_rename_that_was_interrupted(void **state)
{
	(void)state;
	put_home("log/old.jsonl", "lines\n");
	/* Killed after the sandbox had its new name. */
	put("renamed-from", "old");
	assert_int_equal(store_sweep(&store), 0);
	assert_home_text("log/a.jsonl", "lines\n");
	assert_false(is_there("renamed-from"));
	/* Killed before. */
	put("renamed-from", "a");
	assert_int_equal(store_sweep(&store), 0);
	assert_home_text("log/a.jsonl", "lines\n");
	assert_false(is_there("renamed-from"));
	/* A note that nobody of ours has written leads nowhere. */
	put("renamed-from", "../sandboxes/a");
	assert_int_equal(store_sweep(&store), 0);
	assert_true(is_there("Boxfile"));
	assert_false(is_there("renamed-from"));
}

static void test_a_rename_is_not_finished_by_two(void **state)
{
	int busy = openat(store.home_fd, "sandboxes/a", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)state;
	put_home("log/old.jsonl", "lines\n");
	put("renamed-from", "old");
	assert_true(busy >= 0);
	assert_int_equal(flock(busy, LOCK_EX | LOCK_NB), 0);
	assert_int_equal(store_sweep(&store), 0);
	assert_home_text("log/old.jsonl", "lines\n");
	assert_true(is_there("renamed-from"));
	close_fd(&busy);
	/* By now there is another sandbox of the old name, and the log is its own. */
	assert_int_equal(store_create(&store, "old", "", 0, &err), 0);
	assert_int_equal(store_sweep(&store), 0);
	assert_home_text("log/old.jsonl", "lines\n");
	assert_false(home_has("log/a.jsonl"));
	assert_false(is_there("renamed-from"));
}

static void test_nuke_is_all_or_nothing(void **state)
{
	int live;

	(void)state;
	assert_int_equal(store_create(&store, "b", "", 0, &err), 0);
	live = store_lock_live(sandbox, false, false, &err);
	assert_int_equal(store_nuke(&store, &err), -EBUSY);
	assert_true(home_has("sandboxes/a/Boxfile"));
	assert_true(home_has("sandboxes/b/Boxfile"));
	close_fd(&live);
	put_home("theirs", "not of box");
	put_home("ids.json", "{}");
	assert_true(store_tree_bytes(store.home_fd, "sandboxes") > 0);
	assert_int_equal(store_nuke(&store, &err), 0);
	assert_false(home_has("sandboxes"));
	assert_false(home_has("log"));
	assert_false(home_has("ids.json"));
	assert_false(home_has("ids.lock"));
	assert_true(home_has("theirs"));
	assert_int_equal(store_tree_bytes(store.home_fd, "sandboxes"), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_labels),
		TEST(test_an_archive_appears_when_it_is_whole),
		TEST(test_what_is_no_archive_is_not_listed),
		TEST(test_automatic_archives_go_after_a_day),
		TEST(test_a_swap_keeps_what_was_there),
		TEST(test_a_swap_that_was_interrupted),
		TEST(test_a_look_at_a_swap_under_way),
		TEST(test_a_base_limits_how_small),
		TEST(test_a_disk_grows_and_never_shrinks),
		TEST(test_a_disk_of_somebody_else_is_refused),
		TEST(test_a_rename_takes_the_log_along),
		TEST(test_a_rename_refuses_while_in_use),
		TEST(test_a_rename_that_was_interrupted),
		TEST(test_a_rename_is_not_finished_by_two),
		TEST(test_nuke_is_all_or_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
