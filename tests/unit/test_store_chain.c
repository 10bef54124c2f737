/* src/store: what /data stands on, and forks of it. */
#include "store/chain.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store_data.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

static bool is_there(int dir_fd, const char *path)
{
	struct stat status;

	return fstatat(dir_fd, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
}

static ino_t inode_of(int dir_fd, const char *path)
{
	struct stat status;

	assert_int_equal(fstatat(dir_fd, path, &status, AT_SYMLINK_NOFOLLOW), 0);
	return status.st_ino;
}

static nlink_t links_of(int dir_fd, const char *path)
{
	struct stat status;

	assert_int_equal(fstatat(dir_fd, path, &status, AT_SYMLINK_NOFOLLOW), 0);
	return status.st_nlink;
}

static size_t count_layers(int sandbox_fd)
{
	struct store_layers layers = {.count = 0};
	size_t count;

	assert_int_equal(store_open_layers(sandbox_fd, &layers, &err), 0);
	count = layers.count;
	store_close_layers(&layers);
	return count;
}

/* Freezes a /data that something was written to. */
static void freeze(void)
{
	_cleanup_close_ int data = take_data();
	_cleanup_close_ int chain = store_lock_chain(sandbox, true, false, &err);
	_cleanup_close_ int new_fd = -EBADF;

	assert_true(chain >= 0);
	write_something(data);
	assert_int_equal(store_freeze_data(sandbox, data, &new_fd, &err), 0);
}

static void fork_as(const char *name)
{
	_cleanup_close_ int chain = store_lock_chain(sandbox, true, false, &err);

	assert_true(chain >= 0);
	assert_int_equal(store_create_fork(&store, "a", name, &err), 0);
}

static void test_a_freeze_puts_an_empty_disk_on_top(void **state)
{
	_cleanup_close_ int data = take_data();
	_cleanup_close_ int chain = store_lock_chain(sandbox, true, false, &err);
	_cleanup_close_ int again = -EBADF;
	struct store_layers layers = {.count = 0};
	ino_t before = inode_of(sandbox, "data/data.qcow2");
	int new_fd = 77;
	uint64_t size;

	(void)state;
	assert_true(chain >= 0);
	/* Nothing was written: the base is the state. */
	assert_int_equal(store_freeze_data(sandbox, data, &new_fd, &err), 1);
	assert_int_equal(new_fd, -EBADF);
	assert_int_equal(count_layers(sandbox), 1);
	write_something(data);
	assert_int_equal(store_fit_disk(data, 128 * MIB, &err), 0);
	assert_int_equal(store_freeze_data(sandbox, data, &new_fd, &err), 0);
	assert_int_equal(inode_of(sandbox, "data/layer-1.qcow2"), before);
	assert_int_not_equal(inode_of(sandbox, "data/data.qcow2"), before);
	assert_int_equal(store_disk_size(new_fd, &size, &err), 0);
	assert_int_equal(size, 128 * MIB);
	assert_int_equal(fcntl(new_fd, F_GETFL) & O_ACCMODE, O_RDWR);
	/* The new one is held from its first moment. The old one is a layer, though still open. */
	assert_int_equal(store_open_data(sandbox, false, &err), -EAGAIN);
	assert_int_equal(store_open_layers(sandbox, &layers, &err), 0);
	assert_int_equal(layers.count, 2);
	assert_int_equal(fcntl(layers.fds[1], F_GETFL) & O_ACCMODE, O_RDONLY);
	store_close_layers(&layers);
	assert_int_equal(layers.count, 0);
	/* What was held before is not /data any more. */
	assert_int_equal(store_freeze_data(sandbox, data, &again, &err), -ESTALE);
	assert_int_equal(store_freeze_data(sandbox, new_fd, &again, &err), 1);
	close_fd(&new_fd);
	again = take_data();
}

static void test_a_chain_has_an_end(void **state)
{
	_cleanup_close_ int data = -EBADF;
	_cleanup_close_ int chain = -EBADF;
	_cleanup_close_ int new_fd = -EBADF;

	(void)state;
	/* With the base and data.qcow2. */
	for (size_t i = 2; i < STORE_CHAIN_MAX; i++) {
		freeze();
	}
	assert_int_equal(count_layers(sandbox), STORE_CHAIN_MAX - 1);
	data = take_data();
	chain = store_lock_chain(sandbox, true, false, &err);
	assert_true(chain >= 0);
	write_something(data);
	assert_int_equal(store_freeze_data(sandbox, data, &new_fd, &err), -EMLINK);
	assert_string_equal(err.code, "chain-long");
	assert_int_equal(new_fd, -EBADF);
	/* The longest can still be opened, and forked when it is empty. */
	assert_int_equal(count_layers(sandbox), STORE_CHAIN_MAX - 1);
}

static void test_a_chain_with_a_gap_is_refused(void **state)
{
	struct store_layers layers = {.count = 0};

	(void)state;
	freeze();
	freeze();
	assert_int_equal(unlinkat(sandbox, "data/layer-1.qcow2", 0), 0);
	assert_int_equal(store_open_layers(sandbox, &layers, &err), -EBADMSG);
	assert_string_equal(err.code, "chain-broken");
	assert_int_equal(layers.count, 0);
	/* A link in the place of a layer could lead anywhere. */
	assert_int_equal(symlinkat("/etc/passwd", sandbox, "data/layer-1.qcow2"), 0);
	assert_int_equal(store_open_layers(sandbox, &layers, &err), -ELOOP);
}

static void test_the_chain_lock(void **state)
{
	int shared = store_lock_chain(sandbox, false, false, &err);
	_cleanup_close_ int second = store_lock_chain(sandbox, false, false, &err);

	(void)state;
	assert_true(shared >= 0 && second >= 0);
	close_fd(&second);
	assert_int_equal(store_lock_chain(sandbox, true, false, &err), -EAGAIN);
	assert_string_equal(err.code, "busy");
	assert_int_equal(store_destroy(&store, "a", true, NULL, &err), -EBUSY);
	assert_int_equal(store_rename(&store, "a", "b", &err), -EBUSY);
	close_fd(&shared);
	second = store_lock_chain(sandbox, true, false, &err);
	assert_true(second >= 0);
}

static void test_a_fork_shares_and_is_its_own(void **state)
{
	_cleanup_close_ int copy = -EBADF;
	_cleanup_close_ int data = -EBADF;
	struct store_fork fork;

	(void)state;
	assert_int_equal(mkdirat(sandbox, "image", 0700), 0);
	assert_int_equal(mkdirat(sandbox, "snapshot", 0700), 0);
	assert_int_equal(write_file_at(sandbox, "image/image.ext4", "image", 5, 0600), 0);
	assert_int_equal(write_file_at(sandbox, "snapshot/memory", "memory", 6, 0600), 0);
	freeze();
	fork_as("copy");
	copy = store_open_sandbox(&store, "copy", &err);
	assert_int_equal(store_read_fork(copy, &fork, &err), 1);
	assert_string_equal(fork.parent, "a");
	assert_int_equal(fork.base_count, 2);
	assert_true(fork.created_s > 1700000000);
	assert_int_equal(store_read_fork(sandbox, &fork, &err), 0);
	assert_int_equal(inode_of(copy, "data/layer-1.qcow2"),
			 inode_of(sandbox, "data/layer-1.qcow2"));
	assert_int_equal(inode_of(copy, "image/image.ext4"), inode_of(sandbox, "image/image.ext4"));
	assert_int_equal(inode_of(copy, "snapshot/memory"), inode_of(sandbox, "snapshot/memory"));
	assert_int_not_equal(inode_of(copy, "data/data.qcow2"),
			     inode_of(sandbox, "data/data.qcow2"));
	assert_int_not_equal(inode_of(copy, "Boxfile"), inode_of(sandbox, "Boxfile"));
	assert_int_equal(links_of(sandbox, "data/layer-1.qcow2"), 2);
	assert_true(is_there(copy, "Boxfile"));
	/* Both have a /data to hold. */
	data = take_data();
	close_fd(&data);
	data = store_open_data(copy, false, &err);
	assert_true(data >= 0);
	assert_int_equal(store_create_fork(&store, "a", "copy", &err), -EEXIST);
	assert_string_equal(err.code, "exists");
	assert_int_equal(store_create_fork(&store, "a", "../x", &err), -EINVAL);
	assert_int_equal(store_create_fork(&store, "none", "x", &err), -ENOENT);
}

static void test_a_fork_needs_a_data(void **state)
{
	(void)state;
	assert_int_equal(store_create(&store, "raw", "", 0, &err), 0);
	assert_int_equal(store_create_fork(&store, "raw", "copy", &err), -ENOENT);
	assert_string_equal(err.code, "no-data");
	assert_false(is_there(store.home_fd, "sandboxes/copy"));
}

static void test_a_parent_outlives_its_forks(void **state)
{
	_cleanup_free_ char **names = NULL;
	_cleanup_free_ char *kept = NULL;
	size_t count;

	(void)state;
	freeze();
	fork_as("two");
	fork_as("one");
	assert_int_equal(store_list_forks(&store, "a", &names, &count, &err), 0);
	assert_int_equal(count, 2);
	assert_string_equal(names[0], "one");
	assert_string_equal(names[1], "two");
	assert_null(names[2]);
	assert_int_equal(store_destroy(&store, "a", true, NULL, &err), -EBUSY);
	assert_string_equal(err.code, "has-forks");
	assert_non_null(strstr(err.text, "one, two"));
	assert_non_null(strstr(err.mend, "box discard one"));
	assert_int_equal(store_rename(&store, "a", "b", &err), -EBUSY);
	assert_string_equal(err.code, "has-forks");
	assert_true(is_there(sandbox, "Boxfile"));
	assert_int_equal(store_rename(&store, "two", "three", &err), 0);
	assert_int_equal(store_destroy(&store, "three", true, NULL, &err), 0);
	/* What is kept of a fork is a whole chain. */
	assert_int_equal(store_destroy(&store, "one", false, &kept, &err), 0);
	assert_int_equal(links_of(sandbox, "data/layer-1.qcow2"), 2);
	assert_int_equal(store_refuse_forks(&store, "a", &err), 0);
	assert_int_equal(store_rename(&store, "a", "b", &err), 0);
	assert_int_equal(store_destroy(&store, "b", true, NULL, &err), 0);
	assert_true(is_there(AT_FDCWD, kept));
	for (size_t i = 0; i < 3; i++) {
		static const char *const files[] = {"base-0.ext4", "layer-1.qcow2", "data.qcow2"};
		char path[256];

		snprintf(path, sizeof(path), "%s/%s", kept, files[i]);
		assert_int_equal(links_of(AT_FDCWD, path), 1);
	}
}

static void test_a_fork_file_of_nobody(void **state)
{
	static const char *const texts[] = {"",
					    "{}",
					    "[1]",
					    "{\"parent\":\"a\",\"base_count\":0,\"created\":1}",
					    "{\"parent\":\"a\",\"base_count\":7,\"created\":1}",
					    "{\"parent\":\"../a\",\"base_count\":1,\"created\":1}",
					    "{\"parent\":\"a\",\"base_count\":1}"};
	struct store_fork fork = {.base_count = 77};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		assert_int_equal(
			write_file_at(sandbox, "data/fork.json", texts[i], strlen(texts[i]), 0600),
			0);
		assert_int_equal(store_read_fork(sandbox, &fork, &err), -EBADMSG);
		assert_string_equal(err.code, "fork-broken");
	}
	assert_int_equal(fork.base_count, 77);
	/* Whose fork that is nobody knows, so nothing goes. */
	assert_int_equal(store_create(&store, "b", "", 0, &err), 0);
	assert_int_equal(store_destroy(&store, "b", true, NULL, &err), -EBADMSG);
}

/* A freeze keeps whose fork it is, and what the state at the fork was. */
static void test_a_fork_is_frozen(void **state)
{
	struct store_fork fork;

	(void)state;
	fork_as("copy");
	close_fd(&sandbox);
	sandbox = store_open_sandbox(&store, "copy", &err);
	freeze();
	assert_int_equal(store_read_fork(sandbox, &fork, &err), 1);
	assert_int_equal(fork.base_count, 1);
	assert_string_equal(fork.parent, "a");
	assert_int_equal(count_layers(sandbox), 2);
}

/* A swap killed between its two steps has left an archive whose disk is /data itself. Frozen, that
 * would be a layer which a restore opens for writing. */
static void test_a_freeze_leaves_no_second_name(void **state)
{
	(void)state;
	assert_int_equal(mkdirat(sandbox, "archive", 0700), 0);
	assert_int_equal(mkdirat(sandbox, "archive/undo-20990101T000000Z", 0700), 0);
	assert_int_equal(linkat(sandbox, "data/data.qcow2", sandbox,
				"archive/undo-20990101T000000Z/data.qcow2", 0),
			 0);
	freeze();
	assert_int_equal(links_of(sandbox, "data/layer-1.qcow2"), 1);
	assert_false(is_there(sandbox, "archive/undo-20990101T000000Z"));
}

/* Restores bring back the whole chain, whatever has become of /data since. */
static void test_an_undo_is_a_chain(void **state)
{
	struct store_draft draft = STORE_DRAFT_NONE;
	char undo[STORE_LABEL_MAX + 1], second[STORE_LABEL_MAX + 1];
	struct store_archive found;
	ino_t layer, disk;

	(void)state;
	freeze();
	layer = inode_of(sandbox, "data/layer-1.qcow2");
	disk = inode_of(sandbox, "data/data.qcow2");
	assert_int_equal(store_begin_data(sandbox, 64 * MIB, &draft, &err), 0);
	assert_int_equal(store_swap_data(sandbox, &draft, undo, &err), 0);
	assert_int_equal(count_layers(sandbox), 1);
	freeze();
	freeze();
	assert_int_equal(store_find_archive(sandbox, undo, &found, &err), 0);
	assert_int_equal(store_begin_undo(sandbox, &found, &draft, &err), 0);
	assert_int_equal(store_swap_data(sandbox, &draft, second, &err), 0);
	assert_int_equal(inode_of(sandbox, "data/layer-1.qcow2"), layer);
	assert_int_equal(inode_of(sandbox, "data/data.qcow2"), disk);
	assert_int_equal(links_of(sandbox, "data/data.qcow2"), 1);
	assert_int_equal(count_layers(sandbox), 2);
	assert_int_equal(store_find_archive(sandbox, undo, &found, &err), -ENOENT);
	assert_int_equal(store_find_archive(sandbox, second, &found, &err), 0);
	/* Layers that others have too are not its own to give back. */
	assert_true(found.size_bytes >= 2 * 4096);
}

/* Begins a merge under both locks, does nothing, and makes the chain shorter. Returns whether there
 * was one to do. */
static bool merge(enum store_merge_way way, struct store_merge *ret_merge)
{
	_cleanup_close_ int data = take_data();
	_cleanup_close_ int chain = store_lock_chain(sandbox, true, false, &err);
	_cleanup_close_ int top_fd = -EBADF;
	struct store_merge merge = STORE_MERGE_NONE;
	struct stat opened, named;
	int rc = store_begin_merge(sandbox, way, &merge, &err);

	assert_true(data >= 0 && chain >= 0);
	assert_true(rc == 0 || rc == 1);
	*ret_merge = merge;
	if (rc == 0) {
		return false;
	}
	/* What is written to is one file, and all the others are read. */
	for (size_t i = 0; i < merge.fd_count; i++) {
		assert_int_equal(fcntl(merge.fds[i], F_GETFL) & O_ACCMODE,
				 i == merge.target ? O_RDWR : O_RDONLY);
	}
	assert_int_equal(store_commit_merge(sandbox, &merge, &top_fd, &err), 0);
	if (top_fd >= 0) {
		assert_int_equal(fstat(top_fd, &opened), 0);
		assert_int_equal(fstatat(sandbox, "data/data.qcow2", &named, 0), 0);
		assert_true(opened.st_ino == named.st_ino);
		assert_int_equal(store_open_data(sandbox, false, &err), -EAGAIN);
	}
	return true;
}

static void test_unused_layers_are_merged(void **state)
{
	_cleanup_close_ int fd = -EBADF;
	struct store_merge done;
	ino_t first, second;
	uint64_t size;

	(void)state;
	freeze();
	freeze();
	first = inode_of(sandbox, "data/layer-1.qcow2");
	second = inode_of(sandbox, "data/layer-2.qcow2");
	/* data.qcow2 has the most, so what is below it goes first. */
	fd = take_data();
	assert_int_equal(store_fit_disk(fd, 128 * MIB, &err), 0);
	assert_int_equal(ftruncate(fd, (off_t)(2 * MIB)), 0);
	for (off_t i = 0; i < 512; i++) {
		assert_int_equal(pwrite(fd, "x", 1, (off_t)MIB + i * 2048), 1);
	}
	close_fd(&fd);
	assert_true(merge(STORE_MERGE_UNUSED, &done));
	assert_int_equal(done.first, 1);
	assert_int_equal(done.last, 2);
	assert_int_equal(inode_of(sandbox, "data/layer-1.qcow2"), first);
	assert_false(is_there(sandbox, "data/layer-2.qcow2"));
	assert_true(merge(STORE_MERGE_UNUSED, &done));
	assert_int_equal(inode_of(sandbox, "data/data.qcow2"), first);
	assert_int_not_equal(first, second);
	assert_int_equal(count_layers(sandbox), 1);
	/* It has become as large as what is in it now. */
	fd = take_data();
	assert_int_equal(store_disk_size(fd, &size, &err), 0);
	assert_int_equal(size, 128 * MIB);
	close_fd(&fd);
	assert_false(merge(STORE_MERGE_UNUSED, &done));
	assert_false(merge(STORE_MERGE_ROOM, &done));
	assert_int_equal(links_of(sandbox, "data/data.qcow2"), 1);
}

static void test_what_others_stand_on_is_not_written_to(void **state)
{
	struct store_layers layers = {.count = 0};
	struct store_merge done;
	ino_t shared;

	(void)state;
	freeze();
	fork_as("copy");
	shared = inode_of(sandbox, "data/layer-1.qcow2");
	assert_false(merge(STORE_MERGE_UNUSED, &done));
	freeze();
	/* The second layer is ours alone, and somebody looks at it. */
	assert_int_equal(store_open_layers(sandbox, &layers, &err), 0);
	assert_false(merge(STORE_MERGE_UNUSED, &done));
	store_close_layers(&layers);
	assert_true(merge(STORE_MERGE_UNUSED, &done));
	assert_int_equal(done.first, 2);
	assert_int_equal(inode_of(sandbox, "data/layer-1.qcow2"), shared);
	assert_int_equal(count_layers(sandbox), 2);
	/* With the fork gone nobody needs the state that it began with. */
	assert_int_equal(store_destroy(&store, "copy", true, NULL, &err), 0);
	assert_true(merge(STORE_MERGE_UNUSED, &done));
	assert_int_equal(inode_of(sandbox, "data/data.qcow2"), shared);
}

static void test_room_is_made_beside_what_is_shared(void **state)
{
	struct store_merge done;
	char name[16];
	ino_t before;

	(void)state;
	for (int i = 0; i < STORE_CHAIN_MAX - 2; i++) {
		freeze();
		snprintf(name, sizeof(name), "copy%d", i);
		fork_as(name);
	}
	before = inode_of(sandbox, "data/data.qcow2");
	assert_false(merge(STORE_MERGE_UNUSED, &done));
	assert_true(merge(STORE_MERGE_ROOM, &done));
	assert_int_equal(done.first, 1);
	assert_int_equal(done.last, STORE_CHAIN_MAX - 1);
	assert_int_equal(count_layers(sandbox), 1);
	assert_int_not_equal(inode_of(sandbox, "data/data.qcow2"), before);
	/* Nobody has lost anything. */
	for (int i = 0; i < STORE_CHAIN_MAX - 2; i++) {
		_cleanup_close_ int copy = -EBADF;

		snprintf(name, sizeof(name), "copy%d", i);
		copy = store_open_sandbox(&store, name, &err);
		assert_int_equal(count_layers(copy), i + 2);
	}
}

/* The state at the fork stays a place in the chain. */
static void test_a_forks_base_is_kept_apart(void **state)
{
	struct store_merge done;
	struct store_fork fork;

	(void)state;
	freeze();
	freeze();
	fork_as("copy");
	close_fd(&sandbox);
	sandbox = store_open_sandbox(&store, "copy", &err);
	freeze();
	assert_int_equal(store_read_fork(sandbox, &fork, &err), 1);
	assert_int_equal(fork.base_count, 3);
	/* base, two shared, one of its own, data.qcow2 */
	assert_true(merge(STORE_MERGE_UNUSED, &done));
	assert_int_equal(done.first, 3);
	assert_false(merge(STORE_MERGE_UNUSED, &done));
	/* Above the base there is nothing left to merge; below it there is. */
	assert_true(merge(STORE_MERGE_ROOM, &done));
	assert_int_equal(done.first, 1);
	assert_int_equal(done.last, 2);
	assert_int_equal(store_read_fork(sandbox, &fork, &err), 1);
	assert_int_equal(fork.base_count, 2);
	assert_int_equal(count_layers(sandbox), 2);
	/* Its own now, and still not to be mixed with what came later. */
	assert_int_equal(links_of(sandbox, "data/layer-1.qcow2"), 1);
	assert_false(merge(STORE_MERGE_ROOM, &done));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, data_set_up, data_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_a_freeze_puts_an_empty_disk_on_top),
		TEST(test_a_chain_has_an_end),
		TEST(test_a_chain_with_a_gap_is_refused),
		TEST(test_the_chain_lock),
		TEST(test_a_fork_shares_and_is_its_own),
		TEST(test_a_fork_needs_a_data),
		TEST(test_a_parent_outlives_its_forks),
		TEST(test_a_fork_file_of_nobody),
		TEST(test_a_fork_is_frozen),
		TEST(test_a_freeze_leaves_no_second_name),
		TEST(test_an_undo_is_a_chain),
		TEST(test_unused_layers_are_merged),
		TEST(test_what_others_stand_on_is_not_written_to),
		TEST(test_room_is_made_beside_what_is_shared),
		TEST(test_a_forks_base_is_kept_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
