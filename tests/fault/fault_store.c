/*
 * src/store under failing calls: what stands under a plain name is whole, data is never lost,
 * leftovers are such that a sweep finds them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "faults.h"
#include "spec/spec.h"
#include "store/store.h"

static const char boxfile[] = "cpus: 3\n";

static char top[64];
static char home[128];
static struct store store;
static struct err err;
static char *kept;
static int sandbox_fd = -EBADF;
static int disk_fd = -EBADF;

static void prepare_top(void)
{
	snprintf(top, sizeof(top), "/tmp/fault-store-XXXXXX");
	assert_non_null(mkdtemp(top));
	snprintf(home, sizeof(home), "%s/home", top);
	setenv("BOX_HOME", home, 1);
	store = (struct store){.home_fd = -EBADF};
	memset(&err, 0, sizeof(err));
	kept = NULL;
}

static void prepare_home(void)
{
	prepare_top();
	assert_int_equal(store_open(true, &store, &err), 0);
}

static void prepare_sandbox(void)
{
	prepare_home();
	assert_int_equal(store_create(&store, "web", boxfile, strlen(boxfile), &err), 0);
	assert_int_equal(store_create(&store, "other", boxfile, strlen(boxfile), &err), 0);
	assert_int_equal(mkdirat(store.home_fd, "sandboxes/web/data", 0700), 0);
	assert_int_equal(mkdirat(store.home_fd, "sandboxes/web/image", 0700), 0);
	assert_int_equal(
		write_file_at(store.home_fd, "sandboxes/web/data/data.qcow2", "precious", 8, 0600),
		0);
	assert_int_equal(
		write_file_at(store.home_fd, "sandboxes/web/image/image.ext4", "x", 1, 0600), 0);
	assert_int_equal(mkdirat(store.home_fd, "run/web", 0700), 0);
	sandbox_fd = store_open_sandbox(&store, "web", &err);
	assert_true(sandbox_fd >= 0);
	disk_fd = openat(store.home_fd, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	assert_true(disk_fd >= 0);
}

static void clean(void)
{
	close_fd(&sandbox_fd);
	close_fd(&disk_fd);
	free(TAKE_PTR(kept));
	store_close(&store);
	assert_int_equal(remove_tree_at(AT_FDCWD, top), 0);
}

static bool has_text(const char *path, const char *wanted)
{
	_cleanup_free_ char *text = NULL;

	return read_file_at(store.home_fd, path, 100, &text, NULL) == 0 &&
	       strcmp(text, wanted) == 0;
}

static bool is_there(const char *path)
{
	struct stat status;

	return fstatat(store.home_fd, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Whoever fails says why. */
static void check_told(int rc)
{
	if (rc < 0) {
		assert_true(err.code[0] != '\0');
		assert_true(err.text[0] != '\0');
	}
	if (rc == -ENOSPC || rc == -EIO) {
		assert_true(err.mend[0] != '\0');
	}
}

static int count_entries(const char *path)
{
	char whole[PATH_MAX];

	snprintf(whole, sizeof(whole), "%s/%s", home, path);
	return fault_count_entries(whole);
}

static int open_and_close(void)
{
	struct store opened = {.home_fd = -EBADF};
	int rc = store_open(true, &opened, &err);

	assert_true(rc == 0 || (!opened.home && opened.home_fd == -EBADF));
	store_close(&opened);
	return rc;
}

static int create(void)
{
	return store_create(&store, "web", boxfile, strlen(boxfile), &err);
}

static void check_created(int rc)
{
	check_told(rc);
	assert_int_equal(count_entries("sandboxes"), rc == 0 ? 1 : 0);
	if (rc == 0) {
		assert_true(has_text("sandboxes/web/Boxfile", boxfile));
	}
}

static int destroy_all(void)
{
	close_fd(&sandbox_fd);
	/* An open descriptor in the place of the one closed, so that the count stays. */
	sandbox_fd = fcntl(store.home_fd, F_DUPFD_CLOEXEC, 0);
	return store_destroy(&store, "web", true, &kept, &err);
}

static void check_others(void)
{
	assert_true(has_text("sandboxes/other/Boxfile", boxfile));
}

static void check_destroyed(int rc)
{
	check_told(rc);
	check_others();
	assert_null(kept);
	if (is_there("sandboxes/web")) {
		/* Then it is whole. */
		assert_true(rc < 0);
		assert_true(has_text("sandboxes/web/Boxfile", boxfile));
		assert_true(has_text("sandboxes/web/data/data.qcow2", "precious"));
		assert_true(has_text("sandboxes/web/image/image.ext4", "x"));
	}
	if (rc < 0) {
		/* A second try makes it good, and so does a sweep. */
		rc = store_destroy(&store, "web", true, &kept, &err);
		assert_true(rc == 0 || rc == -ENOENT);
		assert_int_equal(store_sweep(&store), 0);
	}
	assert_int_equal(count_entries("sandboxes"), 1);
	assert_false(is_there("run/web"));
}

static int destroy_keeping(void)
{
	close_fd(&sandbox_fd);
	sandbox_fd = fcntl(store.home_fd, F_DUPFD_CLOEXEC, 0);
	return store_destroy(&store, "web", false, &kept, &err);
}

static void check_kept(int rc)
{
	char path[PATH_MAX];

	check_told(rc);
	check_others();
	if (is_there("sandboxes/web")) {
		assert_true(rc < 0);
		assert_null(kept);
		assert_true(has_text("sandboxes/web/Boxfile", boxfile));
		assert_true(has_text("sandboxes/web/data/data.qcow2", "precious"));
		assert_true(has_text("sandboxes/web/image/image.ext4", "x"));
		assert_int_equal(store_destroy(&store, "web", false, &kept, &err), 0);
	}
	assert_int_equal(store_sweep(&store), 0);
	assert_int_equal(count_entries("sandboxes"), 1);
	assert_non_null(kept);
	snprintf(path, sizeof(path), "%s/data.qcow2", kept);
	assert_true(has_text(path, "precious"));
}

static void prepare_leftovers(void)
{
	prepare_sandbox();
	assert_int_equal(mkdirat(store.home_fd, "sandboxes/.keep-old-1", 0700), 0);
	assert_int_equal(mkdirat(store.home_fd, "sandboxes/.keep-old-1/data", 0700), 0);
	assert_int_equal(write_file_at(store.home_fd, "sandboxes/.keep-old-1/data/data.qcow2",
				       "precious", 8, 0600),
			 0);
	assert_int_equal(mkdirat(store.home_fd, "sandboxes/.new-1", 0700), 0);
	assert_int_equal(mkdirat(store.home_fd, "sandboxes/web/build-1", 0700), 0);
	assert_int_equal(write_file_at(store.home_fd, ".tmp-1", "x", 1, 0600), 0);
}

static int sweep(void)
{
	return store_sweep(&store);
}

static void check_swept(int rc)
{
	check_others();
	if (rc < 0) {
		assert_int_equal(store_sweep(&store), 0);
	}
	assert_true(has_text("kept/old-1/data/data.qcow2", "precious"));
	assert_true(has_text("sandboxes/web/data/data.qcow2", "precious"));
	assert_int_equal(count_entries("sandboxes"), 2);
	assert_false(is_there("sandboxes/web/build-1"));
	assert_false(is_there(".tmp-1"));
}

static int list(void)
{
	_cleanup_free_ char **names = NULL;
	size_t count = 0;
	int rc = store_list(&store, &names, &count, &err);

	/* All of them or an error, never some. */
	if (rc == 0) {
		assert_int_equal(count, 2);
		assert_string_equal(names[1], "web");
	} else {
		assert_null(names);
	}
	return rc;
}

static int open_missing(void)
{
	int rc = store_open_sandbox(&store, "wbe", &err);

	assert_true(rc < 0);
	/* To be told that there is none is what was asked for here. */
	return rc == -ENOENT ? 0 : rc;
}

static int load(void)
{
	_cleanup_(spec_freep) struct spec *spec = NULL;
	int rc = store_load_spec(&store, "web", &spec, &err);

	if (rc == 0) {
		assert_int_equal(spec->cpus, 3);
	} else {
		assert_null(spec);
	}
	return rc;
}

static int open_locks_and_disks(void)
{
	_cleanup_close_ int build = store_lock_build(sandbox_fd, false, &err);
	_cleanup_close_ int live = -EBADF;
	_cleanup_close_ int data = -EBADF;
	_cleanup_close_ int temporary = -EBADF;

	if (build < 0) {
		return build;
	}
	live = store_lock_live(sandbox_fd, true, false, &err);
	if (live < 0) {
		return live;
	}
	data = store_open_data(sandbox_fd, false, &err);
	if (data < 0) {
		return data;
	}
	temporary = store_temporary_file(&store, &err);
	return temporary < 0 ? temporary : 0;
}

static void check_locks_are_free(int rc)
{
	check_told(rc);
	/* Where O_TMPFILE fails for good reasons a name is used, and lost again. */
	assert_int_equal(count_entries(""), 4);
	memset(&err, 0, sizeof(err));
	assert_int_equal(open_locks_and_disks(), 0);
	assert_true(has_text("sandboxes/web/data/data.qcow2", "precious"));
}

static int write_disk(void)
{
	return store_write_qcow2(disk_fd, (uint64_t)1 << 40, &err);
}

static int digest(void)
{
	char hex[65];

	return store_digest_file(disk_fd, hex, &err);
}

static void check_one(void **state)
{
	fault_run(*state);
}

int main(void)
{
	static struct fault_case cases[] = {
		{"store_open", prepare_top, open_and_close, check_told, clean},
		{"store_create", prepare_home, create, check_created, clean},
		{"store_destroy", prepare_sandbox, destroy_all, check_destroyed, clean},
		{"store_destroy, data kept", prepare_sandbox, destroy_keeping, check_kept, clean},
		{"store_sweep", prepare_leftovers, sweep, check_swept, clean},
		{"store_list", prepare_sandbox, list, check_told, clean},
		{"store_open_sandbox", prepare_sandbox, open_missing, check_told, clean},
		{"store_load_spec", prepare_sandbox, load, check_told, clean},
		{"locks", prepare_sandbox, open_locks_and_disks, check_locks_are_free, clean},
		{"store_write_qcow2", prepare_sandbox, write_disk, check_told, clean},
		{"store_digest_file", prepare_sandbox, digest, check_told, clean},
	};
	struct CMUnitTest tests[sizeof(cases) / sizeof(cases[0])];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tests[i] = (struct CMUnitTest){
			.name = cases[i].name,
			.test_func = check_one,
			.initial_state = &cases[i],
		};
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
