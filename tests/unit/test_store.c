/* src/store: the home, sandboxes by name, locks, disks, digests. */
#include "store/chain.h"
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "store_home.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "spec/spec.h"

/* Exit code of a child that cannot have what its test needs. */
#define CHILD_SKIP 77
#define MIB (UINT64_C(1) << 20)
#define TIB (UINT64_C(1) << 40)

static int set_up_empty(void **state)
{
	(void)state;
	return home_name();
}

/* Whether a path below the home is there. */
static bool is_there(const char *path)
{
	struct stat status;

	return fstatat(store.home_fd, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
}

static void put_file(const char *path, const char *text)
{
	assert_int_equal(write_file_at(store.home_fd, path, text, strlen(text), 0600), 0);
}

static void put_directory(const char *path)
{
	assert_int_equal(mkdirat(store.home_fd, path, 0700), 0);
}

static void create(const char *name)
{
	assert_int_equal(store_create(&store, name, "cpus: 2\n", 8, &err), 0);
}

static int open_sandbox(const char *name)
{
	int fd = store_open_sandbox(&store, name, &err);

	assert_true(fd >= 0);
	return fd;
}

/* A sandbox with a file in data/ and a stale socket directory in run/. */
static void create_with_data(const char *name)
{
	char path[PATH_MAX];

	create(name);
	snprintf(path, sizeof(path), "sandboxes/%s/data", name);
	put_directory(path);
	snprintf(path, sizeof(path), "sandboxes/%s/data/data.qcow2", name);
	put_file(path, "precious");
	snprintf(path, sizeof(path), "run/%s", name);
	put_directory(path);
}

/* Names in a directory below the home, hidden ones included. */
static int count_entries(const char *path)
{
	char command[PATH_MAX + 64];
	int count = -1;
	FILE *out;

	snprintf(command, sizeof(command), "ls -A '%s/%s' | wc -l", home, path);
	out = popen(command, "r");
	assert_non_null(out);
	assert_int_equal(fscanf(out, "%d", &count), 1);
	pclose(out);
	return count;
}

/* The home */

static void test_home_is_made_private(void **state)
{
	static const char *const parts[] = {"", "/sandboxes", "/run", "/cache", "/log"};
	char path[PATH_MAX];
	struct stat status;

	(void)state;
	assert_int_equal(store_open(false, &store, &err), -ENOENT);
	assert_string_equal(err.code, "no-home");
	assert_non_null(strstr(err.mend, "box new"));
	assert_int_equal(store_open(true, &store, &err), 0);
	assert_string_equal(store.home, home);
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		snprintf(path, sizeof(path), "%s%s", home, parts[i]);
		assert_int_equal(stat(path, &status), 0);
		assert_int_equal(status.st_mode, S_IFDIR | 0700);
	}
	assert_int_equal(fcntl(store.home_fd, F_GETFD), FD_CLOEXEC);
	store_close(&store);
	store_close(&store);
	assert_int_equal(store.home_fd, -EBADF);
	assert_int_equal(store_open(false, &store, &err), 0);
}

static void test_home_by_default(void **state)
{
	const struct passwd *entry = getpwuid(geteuid());
	char expected[PATH_MAX];

	(void)state;
	setenv("BOX_HOME", "", 1);
	setenv("HOME", top, 1);
	assert_int_equal(store_open(true, &store, &err), 0);
	snprintf(expected, sizeof(expected), "%s/.box", top);
	assert_string_equal(store.home, expected);
	store_close(&store);
	/* Without HOME the passwd entry counts. Nothing is made there: create is not set. */
	unsetenv("HOME");
	if (entry) {
		int rc = store_open(false, &store, &err);

		snprintf(expected, sizeof(expected), "%s/.box", entry->pw_dir);
		if (rc == 0) {
			assert_string_equal(store.home, expected);
		} else {
			assert_non_null(strstr(err.text, expected));
		}
	}
}

static void test_relative_home_becomes_absolute(void **state)
{
	_cleanup_close_ int old = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char real_top[PATH_MAX], expected[PATH_MAX + 8];

	(void)state;
	assert_int_equal(chdir(top), 0);
	assert_non_null(getcwd(real_top, sizeof(real_top)));
	setenv("BOX_HOME", "rel", 1);
	assert_int_equal(store_open(true, &store, &err), 0);
	assert_int_equal(fchdir(old), 0);
	snprintf(expected, sizeof(expected), "%s/rel", real_top);
	assert_string_equal(store.home, expected);
	create("web");
	assert_true(is_there("sandboxes/web/Boxfile"));
}

static void test_homes_that_are_refused(void **state)
{
	char path[PATH_MAX];

	(void)state;
	assert_int_equal(write_file_at(AT_FDCWD, home, "x", 1, 0600), 0);
	assert_int_equal(store_open(true, &store, &err), -ENOTDIR);
	assert_string_equal(err.code, "home-not-a-directory");
	assert_true(err.mend[0] != '\0');
	assert_int_equal(unlink(home), 0);

	assert_int_equal(mkdir(home, 0700), 0);
	assert_int_equal(chmod(home, 0720), 0);
	assert_int_equal(store_open(true, &store, &err), -EPERM);
	assert_string_equal(err.code, "home-writable");
	assert_int_equal(chmod(home, 0702), 0);
	assert_int_equal(store_open(true, &store, &err), -EPERM);
	assert_string_equal(err.code, "home-writable");
	assert_non_null(strstr(err.mend, "chmod 700"));
	assert_int_equal(chmod(home, 0755), 0);

	snprintf(path, sizeof(path), "%s/run", home);
	assert_int_equal(write_file_at(AT_FDCWD, path, "x", 1, 0600), 0);
	assert_int_equal(store_open(true, &store, &err), -ENOTDIR);
	assert_non_null(strstr(err.text, "/run"));
	assert_int_equal(unlink(path), 0);
	/* A link would lead out of the home. */
	assert_int_equal(symlink("/tmp", path), 0);
	assert_int_equal(store_open(true, &store, &err), -ENOTDIR);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(store_open(true, &store, &err), 0);
	store_close(&store);

	snprintf(path, sizeof(path), "%s/none/home", top);
	setenv("BOX_HOME", path, 1);
	memset(&err, 0, sizeof(err));
	assert_int_equal(store_open(true, &store, &err), -ENOENT);
	assert_non_null(strstr(err.mend, "BOX_HOME"));
	assert_null(store.home);
}

static void test_home_of_another_user(void **state)
{
	(void)state;
	if (geteuid() != 0) {
		print_message("only root can give a directory away\n");
		skip();
	}
	assert_int_equal(mkdir(home, 0700), 0);
	assert_int_equal(chown(home, 65534, 65534), 0);
	assert_int_equal(store_open(true, &store, &err), -EPERM);
	assert_string_equal(err.code, "home-owner");
	assert_non_null(strstr(err.text, "65534"));
	assert_true(err.mend[0] != '\0');
}

/* Homes on file systems of their own: in a child with its own mounts. */

#define CHILD_CHECK(condition)                                                                     \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s (%s: %s)\n", __FILE__, __LINE__, #condition,    \
				err.code, err.text);                                               \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static bool put_proc(const char *path, const char *text)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd >= 0 && write_full(fd, text, strlen(text)) == 0;
}

static void enter_own_mounts(const char *options)
{
	char uids[32], gids[32];

	snprintf(uids, sizeof(uids), "%u %u 1", geteuid(), geteuid());
	snprintf(gids, sizeof(gids), "%u %u 1", getegid(), getegid());
	if (unshare(CLONE_NEWNS) < 0 &&
	    (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0 ||
	     !put_proc("/proc/self/setgroups", "deny") || !put_proc("/proc/self/uid_map", uids) ||
	     !put_proc("/proc/self/gid_map", gids))) {
		_exit(CHILD_SKIP);
	}
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mkdir(home, 0700) < 0 ||
	    mount("none", home, "tmpfs", 0, options) < 0) {
		_exit(CHILD_SKIP);
	}
}

static void run_with_tmpfs_home(const char *options, void (*body)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		enter_own_mounts(options);
		body();
		_exit(0);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == CHILD_SKIP) {
		print_message("no mount namespace can be had here\n");
		skip();
	}
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void full_disk(void)
{
	static char large[200000];
	int rc;

	CHILD_CHECK(store_open(true, &store, &err) == 0);
	memset(large, '#', sizeof(large));
	rc = store_create(&store, "web", large, sizeof(large), &err);
	CHILD_CHECK(rc == -ENOSPC);
	CHILD_CHECK(strcmp(err.code, "home-full") == 0);
	CHILD_CHECK(strstr(err.mend, "make room") && strstr(err.mend, home));
	CHILD_CHECK(count_entries("sandboxes") == 0);
	/* There is room for a small one. */
	CHILD_CHECK(store_create(&store, "web", "", 0, &err) == 0);
}

static void full_before_the_first(void)
{
	/* Three inodes are the root's and two directories'. */
	CHILD_CHECK(store_open(true, &store, &err) == -ENOSPC);
	CHILD_CHECK(strcmp(err.code, "home-full") == 0);
	CHILD_CHECK(store.home == NULL);
}

static void read_only(void)
{
	char **names;
	size_t count;
	int rc;

	CHILD_CHECK(store_open(true, &store, &err) == 0);
	CHILD_CHECK(store_create(&store, "web", "", 0, &err) == 0);
	store_close(&store);
	CHILD_CHECK(mount("none", home, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	/* Reading works. */
	CHILD_CHECK(store_open(true, &store, &err) == 0);
	CHILD_CHECK(store_list(&store, &names, &count, &err) == 0 && count == 1);
	free(names);
	rc = store_create(&store, "other", "", 0, &err);
	CHILD_CHECK(rc == -EROFS);
	CHILD_CHECK(strcmp(err.code, "home-read-only") == 0);
	CHILD_CHECK(strstr(err.mend, "BOX_HOME"));
	CHILD_CHECK(store_temporary_file(&store, &err) == -EROFS);
	CHILD_CHECK(store_destroy(&store, "web", true, NULL, &err) == -EROFS);
	CHILD_CHECK(strcmp(err.code, "home-read-only") == 0);
}

static void own_file_system(void)
{
	char *kept = NULL;
	int fd;

	CHILD_CHECK(store_open(true, &store, &err) == 0);
	CHILD_CHECK(store_create(&store, "web", "", 0, &err) == 0);
	fd = store_temporary_file(&store, &err);
	CHILD_CHECK(fd >= 0 && write(fd, "x", 1) == 1);
	CHILD_CHECK(mkdirat(store.home_fd, "sandboxes/web/data", 0700) == 0);
	CHILD_CHECK(store_destroy(&store, "web", false, &kept, &err) == 0);
	CHILD_CHECK(kept && access(kept, F_OK) == 0);
	free(kept);
}

struct tmpfs_case {
	const char *options;
	void (*body)(void);
};

static void test_home_on_tmpfs(void **state)
{
	const struct tmpfs_case *tmpfs_case = *state;

	run_with_tmpfs_home(tmpfs_case->options, tmpfs_case->body);
}

/* Sandboxes */

static void test_create_and_open(void **state)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int fd = -EBADF;
	struct stat status;
	size_t size;

	(void)state;
	create("web");
	assert_int_equal(read_file_at(store.home_fd, "sandboxes/web/Boxfile", 100, &text, &size),
			 0);
	assert_string_equal(text, "cpus: 2\n");
	assert_int_equal(fstatat(store.home_fd, "sandboxes/web", &status, 0), 0);
	assert_int_equal(status.st_mode, S_IFDIR | 0700);
	fd = open_sandbox("web");
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	/* A second one of the name leaves the first as it is. */
	assert_int_equal(store_create(&store, "web", "x", 1, &err), -EEXIST);
	assert_string_equal(err.code, "exists");
	assert_non_null(strstr(err.mend, "box edit web"));
	free(TAKE_PTR(text));
	assert_int_equal(read_file_at(store.home_fd, "sandboxes/web/Boxfile", 100, &text, &size),
			 0);
	assert_string_equal(text, "cpus: 2\n");
	assert_int_equal(count_entries("sandboxes"), 1);
}

static void test_names_and_sizes_that_are_refused(void **state)
{
	static const char *const names[] = {"", ".", "..", ".web", "a/b", "../web", "a b", "-x"};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		assert_int_equal(store_create(&store, names[i], "", 0, &err), -EINVAL);
		assert_int_equal(store_open_sandbox(&store, names[i], &err), -EINVAL);
		assert_int_equal(store_destroy(&store, names[i], true, NULL, &err), -EINVAL);
		assert_true(err.text[0] != '\0');
	}
	assert_int_equal(store_create(&store, "web", "", SPEC_FILE_MAX + 1, &err), -EFBIG);
	assert_int_equal(count_entries("sandboxes"), 0);
}

static void test_missing_sandbox_names_the_nearest(void **state)
{
	(void)state;
	assert_int_equal(store_open_sandbox(&store, "web", &err), -ENOENT);
	assert_string_equal(err.code, "no-sandbox");
	assert_string_equal(err.mend, "`box new web` makes it");
	create("webshop");
	create("database");
	assert_int_equal(store_open_sandbox(&store, "webshpo", &err), -ENOENT);
	assert_non_null(strstr(err.text, "webshpo"));
	assert_string_equal(err.mend, "did you mean webshop? `box ls` lists them");
	assert_int_equal(store_open_sandbox(&store, "zzzzzzzzzzzz", &err), -ENOENT);
	assert_non_null(strstr(err.mend, "`box ls`"));
	assert_int_equal(store_destroy(&store, "databse", true, NULL, &err), -ENOENT);
	assert_non_null(strstr(err.mend, "database"));
}

static void test_list_is_sorted_and_hides(void **state)
{
	_cleanup_free_ char **names = NULL;
	size_t count = 99;

	(void)state;
	assert_int_equal(store_list(&store, &names, &count, &err), 0);
	assert_int_equal(count, 0);
	assert_null(names[0]);
	free(TAKE_PTR(names));
	create("b");
	create("a.1");
	create("C");
	create("a");
	put_directory("sandboxes/.trash-0");
	put_directory("sandboxes/.new-0");
	put_file("sandboxes/notes", "not a sandbox");
	assert_int_equal(symlinkat("a", store.home_fd, "sandboxes/link"), 0);
	assert_int_equal(store_list(&store, &names, &count, &err), 0);
	assert_int_equal(count, 4);
	assert_string_equal(names[0], "C");
	assert_string_equal(names[1], "a");
	assert_string_equal(names[2], "a.1");
	assert_string_equal(names[3], "b");
	assert_null(names[4]);
}

static void test_list_of_many(void **state)
{
	_cleanup_free_ char **names = NULL;
	char path[PATH_MAX];
	size_t count;

	(void)state;
	for (int i = 0; i < 500; i++) {
		snprintf(path, sizeof(path), "sandboxes/a-name-that-is-rather-long-%03d", i);
		put_directory(path);
	}
	assert_int_equal(store_list(&store, &names, &count, &err), 0);
	assert_int_equal(count, 500);
	assert_string_equal(names[499], "a-name-that-is-rather-long-499");
}

static void test_load_spec(void **state)
{
	_cleanup_(spec_freep) struct spec *spec = NULL;
	char path[PATH_MAX];

	(void)state;
	create("web");
	assert_int_equal(store_load_spec(&store, "web", &spec, &err), 0);
	assert_int_equal(spec->cpus, 2);
	put_file("sandboxes/web/Boxfile", "cpsu: 2\n");
	assert_int_equal(store_load_spec(&store, "web", &spec, &err), -EINVAL);
	snprintf(path, sizeof(path), "%s/sandboxes/web/Boxfile:1:", home);
	assert_non_null(strstr(err.text, path));
	assert_int_equal(unlinkat(store.home_fd, "sandboxes/web/Boxfile", 0), 0);
	assert_int_equal(store_load_spec(&store, "web", &spec, &err), -ENOENT);
	assert_string_equal(err.code, "no-boxfile");
	assert_int_equal(store_load_spec(&store, "wbe", &spec, &err), -ENOENT);
	assert_string_equal(err.code, "no-sandbox");
	snprintf(path, sizeof(path), "%s/sandboxes/web/Boxfile", home);
	assert_int_equal(write_file_at(AT_FDCWD, path, "", 0, 0600), 0);
	assert_int_equal(truncate(path, (off_t)SPEC_FILE_MAX + 1), 0);
	assert_int_equal(store_load_spec(&store, "web", &spec, &err), -EFBIG);
	assert_string_equal(err.code, "boxfile-size");
}

/* Destroy and sweep */

static void test_destroy_with_data(void **state)
{
	char *kept = home;

	(void)state;
	create_with_data("web");
	create("other");
	assert_int_equal(store_destroy(&store, "web", true, &kept, &err), 0);
	assert_null(kept);
	assert_false(is_there("sandboxes/web"));
	assert_false(is_there("run/web"));
	assert_false(is_there("kept"));
	assert_int_equal(count_entries("sandboxes"), 1);
	assert_int_equal(store_destroy(&store, "other", false, &kept, &err), 0);
	/* There was no data. */
	assert_null(kept);
	assert_false(is_there("kept"));
	assert_int_equal(count_entries("sandboxes"), 0);
}

static void test_destroy_keeps_data(void **state)
{
	_cleanup_free_ char *kept = NULL;
	_cleanup_free_ char *again = NULL;
	_cleanup_free_ char *text = NULL;
	char path[PATH_MAX];

	(void)state;
	create_with_data("web");
	assert_int_equal(store_destroy(&store, "web", false, &kept, &err), 0);
	assert_non_null(kept);
	snprintf(path, sizeof(path), "%s/kept/web-", home);
	assert_int_equal(strncmp(kept, path, strlen(path)), 0);
	snprintf(path, sizeof(path), "%s/data.qcow2", kept);
	assert_int_equal(read_file_at(AT_FDCWD, path, 100, &text, NULL), 0);
	assert_string_equal(text, "precious");
	/* A second one within the same second has a place of its own. */
	create_with_data("web");
	assert_int_equal(store_destroy(&store, "web", false, &again, &err), 0);
	assert_non_null(again);
	assert_string_not_equal(again, kept);
	assert_int_equal(access(kept, F_OK), 0);
	assert_int_equal(access(again, F_OK), 0);
	assert_int_equal(count_entries("sandboxes"), 0);
	assert_int_equal(count_entries("kept"), 2);
}

static void test_destroy_refuses_while_in_use(void **state)
{
	_cleanup_close_ int fd = -EBADF;
	_cleanup_close_ int lock = -EBADF;

	(void)state;
	create("web");
	fd = open_sandbox("web");
	lock = store_lock_live(fd, false, false, &err);
	assert_true(lock >= 0);
	assert_int_equal(store_destroy(&store, "web", true, NULL, &err), -EBUSY);
	assert_string_equal(err.text, "a machine of web is running");
	assert_non_null(strstr(err.mend, "commands that use web"));
	assert_true(is_there("sandboxes/web/Boxfile"));
	close_fd(&lock);
	lock = store_lock_build(fd, false, &err);
	assert_true(lock >= 0);
	assert_int_equal(store_destroy(&store, "web", true, NULL, &err), -EBUSY);
	assert_non_null(strstr(err.text, "being built"));
	close_fd(&lock);
	assert_int_equal(store_destroy(&store, "web", true, NULL, &err), 0);
	/* The directory that is still open can give no lock any more. */
	assert_int_equal(store_lock_live(fd, false, false, &err), -ENOENT);
	assert_string_equal(err.code, "no-sandbox");
}

static void test_sweep_ends_what_was_begun(void **state)
{
	_cleanup_free_ char *text = NULL;

	(void)state;
	create_with_data("web");
	create("other");
	/* A destroy that kept data and was interrupted after the first step, and one after the
	 * second; a create and a removal; a build; a temporary file. */
	assert_int_equal(renameat(store.home_fd, "sandboxes/web", store.home_fd,
				  "sandboxes/.keep-web-20260101T000000Z"),
			 0);
	put_directory("kept");
	put_directory("kept/old-20260101T000000Z");
	put_directory("kept/old-20260101T000000Z/data");
	put_directory("sandboxes/.keep-old-20260101T000000Z");
	put_file("sandboxes/.keep-old-20260101T000000Z/Boxfile", "");
	put_directory("sandboxes/.new-0123");
	put_file("sandboxes/.new-0123/Boxfile", "");
	put_directory("sandboxes/.trash-0123");
	put_directory("sandboxes/.trash-0123/image");
	put_file("sandboxes/.trash-0123/image/image.ext4", "x");
	put_directory("sandboxes/other/build-77");
	put_file("sandboxes/other/build-77/image.ext4", "x");
	put_directory("sandboxes/other/image");
	put_file(".tmp-0123456789abcdef", "x");
	assert_int_equal(store_sweep(&store), 0);
	assert_int_equal(count_entries("sandboxes"), 1);
	assert_true(is_there("sandboxes/other/Boxfile"));
	assert_true(is_there("sandboxes/other/image"));
	assert_false(is_there("sandboxes/other/build-77"));
	assert_false(is_there(".tmp-0123456789abcdef"));
	assert_true(is_there("kept/old-20260101T000000Z/data"));
	assert_int_equal(read_file_at(store.home_fd, "kept/web-20260101T000000Z/data/data.qcow2",
				      100, &text, NULL),
			 0);
	assert_string_equal(text, "precious");
	assert_int_equal(store_sweep(&store), 0);
}

static void test_sweep_leaves_work_alone(void **state)
{
	_cleanup_close_ int trash = -EBADF;
	_cleanup_close_ int sandbox = -EBADF;
	_cleanup_close_ int build = -EBADF;

	(void)state;
	create("web");
	sandbox = open_sandbox("web");
	build = store_lock_build(sandbox, false, &err);
	assert_true(build >= 0);
	put_directory("sandboxes/web/build-1");
	put_directory("sandboxes/.trash-1");
	trash = openat(store.home_fd, "sandboxes/.trash-1", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(flock(trash, LOCK_EX), 0);
	assert_int_equal(store_sweep(&store), 0);
	assert_true(is_there("sandboxes/web/build-1"));
	assert_true(is_there("sandboxes/.trash-1"));
	close_fd(&trash);
	close_fd(&build);
	assert_int_equal(store_sweep(&store), 0);
	assert_false(is_there("sandboxes/web/build-1"));
	assert_false(is_there("sandboxes/.trash-1"));
	assert_true(is_there("sandboxes/web/Boxfile"));
}

/* Locks and disks */

static void test_live_lock_is_shared_or_exclusive(void **state)
{
	_cleanup_close_ int fd = -EBADF;
	_cleanup_close_ int one = -EBADF;
	_cleanup_close_ int two = -EBADF;

	(void)state;
	create("web");
	fd = open_sandbox("web");
	one = store_lock_live(fd, false, false, &err);
	two = store_lock_live(fd, false, false, &err);
	assert_true(one >= 0 && two >= 0);
	assert_int_equal(fcntl(one, F_GETFD), FD_CLOEXEC);
	assert_int_equal(store_lock_live(fd, true, false, &err), -EAGAIN);
	assert_string_equal(err.code, "busy");
	assert_string_equal(err.text, "web has a running machine");
	close_fd(&one);
	assert_int_equal(store_lock_live(fd, true, false, &err), -EAGAIN);
	close_fd(&two);
	one = store_lock_live(fd, true, false, &err);
	assert_true(one >= 0);
	assert_int_equal(store_lock_live(fd, false, false, &err), -EAGAIN);
	/* The lock lasts as long as any copy of the descriptor. */
	two = fcntl(one, F_DUPFD_CLOEXEC, 0);
	close_fd(&one);
	assert_int_equal(store_lock_live(fd, false, false, &err), -EAGAIN);
	close_fd(&two);
	one = store_lock_build(fd, false, &err);
	assert_true(one >= 0);
	assert_int_equal(store_lock_build(fd, false, &err), -EAGAIN);
	assert_non_null(strstr(err.text, "built by another"));
}

static void test_data_has_one_holder(void **state)
{
	_cleanup_close_ int fd = -EBADF;
	_cleanup_close_ int data = -EBADF;
	struct store_layers layers = {.count = 0};

	(void)state;
	create("web");
	fd = open_sandbox("web");
	assert_int_equal(store_open_data(fd, false, &err), -ENOENT);
	assert_string_equal(err.code, "no-data");
	assert_string_equal(err.mend, "`box build web` makes it");
	assert_int_equal(store_open_layers(fd, &layers, &err), -ENOENT);
	assert_string_equal(err.code, "no-data");
	put_directory("sandboxes/web/data");
	put_file("sandboxes/web/data/data.qcow2", "qcow2");
	put_file("sandboxes/web/data/base-0.ext4", "ext4");
	data = store_open_data(fd, false, &err);
	assert_true(data >= 0);
	assert_int_equal(fcntl(data, F_GETFL) & O_ACCMODE, O_RDWR);
	assert_int_equal(store_open_data(fd, false, &err), -EAGAIN);
	assert_string_equal(err.code, "busy");
	assert_non_null(strstr(err.mend, "--data"));
	close_fd(&data);
	data = store_open_data(fd, false, &err);
	assert_true(data >= 0);
	assert_int_equal(store_open_layers(fd, &layers, &err), 0);
	assert_int_equal(layers.count, 1);
	assert_int_equal(fcntl(layers.fds[0], F_GETFL) & O_ACCMODE, O_RDONLY);
	store_close_layers(&layers);
	/* A link in the place of a disk could lead anywhere. */
	assert_int_equal(unlinkat(store.home_fd, "sandboxes/web/data/base-0.ext4", 0), 0);
	assert_int_equal(symlinkat("/etc/passwd", store.home_fd, "sandboxes/web/data/base-0.ext4"),
			 0);
	assert_int_equal(store_open_layers(fd, &layers, &err), -ELOOP);
	assert_int_equal(layers.count, 0);
}

static void ignore_signal(int number)
{
	(void)number;
}

/*
 * Starts a child that waits for /data and writes the inode that it got, or its negative errno, to
 * result_fd. held_fd is the parent's lock: the child's copy of it is not meant.
 */
static pid_t start_waiter(int sandbox_fd, int held_fd, int result_fd)
{
	struct sigaction action = {.sa_handler = ignore_signal};
	struct stat status;
	int64_t result;
	pid_t pid;

	sigaction(SIGUSR1, &action, NULL);
	pid = fork();
	if (pid == 0) {
		close(held_fd);
		result = store_open_data(sandbox_fd, true, &err);
		if (result >= 0 && fstat((int)result, &status) == 0) {
			result = (int64_t)status.st_ino;
		}
		_exit(write_full(result_fd, &result, sizeof(result)) < 0);
	}
	assert_true(pid > 0);
	/* Time to begin to wait. Too little would test less, and not fail. */
	nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	return pid;
}

static void test_data_that_was_replaced_while_waiting(void **state)
{
	_cleanup_close_ int fd = -EBADF;
	_cleanup_close_ int data = -EBADF;
	struct stat status;
	int64_t result;
	int pipes[2];
	pid_t pid;

	(void)state;
	create_with_data("web");
	fd = open_sandbox("web");
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	data = store_open_data(fd, false, &err);
	assert_true(data >= 0);
	pid = start_waiter(fd, data, pipes[1]);
	put_file("sandboxes/web/data/data.qcow2", "restored");
	close_fd(&data);
	assert_int_equal(read_full(pipes[0], &result, sizeof(result)), sizeof(result));
	assert_int_equal(fstatat(fd, "data/data.qcow2", &status, 0), 0);
	assert_int_equal(result, status.st_ino);
	assert_int_equal(waitpid(pid, NULL, 0), pid);

	/* A signal ends the wait. */
	data = store_open_data(fd, false, &err);
	assert_true(data >= 0);
	pid = start_waiter(fd, data, pipes[1]);
	do {
		/* Again when it came before the wait. */
		assert_int_equal(kill(pid, SIGUSR1), 0);
	} while (poll(&(struct pollfd){.fd = pipes[0], .events = POLLIN}, 1, 50) == 0);
	assert_int_equal(read_full(pipes[0], &result, sizeof(result)), sizeof(result));
	assert_int_equal(result, -EINTR);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(pipes[0]);
	close(pipes[1]);
}

static void test_temporary_file_has_no_name(void **state)
{
	_cleanup_close_ int fd = store_temporary_file(&store, &err);
	char byte = 0;
	struct stat status, home_status;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(fstat(store.home_fd, &home_status), 0);
	assert_int_equal(status.st_nlink, 0);
	assert_int_equal(status.st_mode, S_IFREG | 0600);
	assert_int_equal(status.st_dev, home_status.st_dev);
	assert_int_equal(pwrite(fd, "x", 1, 0), 1);
	assert_int_equal(pread(fd, &byte, 1, 0), 1);
	assert_int_equal(byte, 'x');
	assert_int_equal(count_entries(""), 4);
}

/* qcow2 */

static const uint64_t disk_sizes[] = {
	512, MIB, 16 * MIB, 512 * MIB, 512 * MIB + 512, 10240 * MIB, TIB, 4 * TIB, 16 * TIB,
};

static int run(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int run(const char *format, ...)
{
	char command[PATH_MAX + 512];
	va_list args;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	return system(command);
}

static void write_disk(const char *path, uint64_t size)
{
	_cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct stat status;

	assert_true(fd >= 0);
	assert_int_equal(store_write_qcow2(fd, size, &err), 0);
	assert_int_equal(fstat(fd, &status), 0);
	/* Sparse: only three places of it were written. */
	assert_in_range(status.st_blocks, 1, 3 * 65536 / 512);
	assert_int_equal(status.st_size % 65536, 0);
}

static void test_qcow2_as_qemu_sees_it(void **state)
{
	char path[PATH_MAX];

	(void)state;
	if (run("command -v qemu-img >/dev/null") != 0) {
		print_message("qemu-img (package qemu-utils) is not installed\n");
		skip();
	}
	snprintf(path, sizeof(path), "%s/disk.qcow2", top);
	for (size_t i = 0; i < ARRAY_SIZE(disk_sizes); i++) {
		unsigned long long size = disk_sizes[i];

		write_disk(path, size);
		assert_int_equal(run("qemu-img check -q -f qcow2 %s", path), 0);
		assert_int_equal(
			run("qemu-img info -f qcow2 --output=json %s > %s.info", path, path), 0);
		assert_int_equal(run("grep -q '\"virtual-size\": %llu,' %s.info", size, path), 0);
		assert_int_equal(run("grep -q '\"compat\": \"1.1\"' %s.info", path), 0);
		assert_int_not_equal(run("grep -q backing %s.info", path), 0);
	}
}

static void test_qcow2_holds_what_is_written(void **state)
{
	static const uint64_t sizes[] = {16 * MIB, 10240 * MIB, 16 * TIB};
	char path[PATH_MAX];

	(void)state;
	if (run("command -v qemu-io >/dev/null") != 0) {
		print_message("qemu-io (package qemu-utils) is not installed\n");
		skip();
	}
	snprintf(path, sizeof(path), "%s/disk.qcow2", top);
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		unsigned long long last = sizes[i] - 65536;

		write_disk(path, sizes[i]);
		assert_int_equal(run("qemu-io -f qcow2 -c 'write -P 0x5a 0 64k' "
				     "-c 'write -P 0xa5 %llu 64k' %s >/dev/null",
				     last, path),
				 0);
		/* qemu-io tells a wrong pattern in words only. */
		assert_int_not_equal(run("qemu-io -f qcow2 -c 'read -P 0x5a 0 64k' "
					 "-c 'read -P 0xa5 %llu 64k' -c 'read -P 0 1m 64k' %s | "
					 "grep -qi 'fail\\|error'",
					 last, path),
				     0);
		assert_int_equal(run("qemu-img check -q -f qcow2 %s", path), 0);
	}
}

static void test_qcow2_sizes_that_are_refused(void **state)
{
	static const uint64_t sizes[] = {0, 1, 511, 513, 16 * TIB + 512, UINT64_MAX};
	_cleanup_close_ int fd = store_temporary_file(&store, &err);
	struct stat status;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		assert_int_equal(store_write_qcow2(fd, sizes[i], &err), -EINVAL);
		assert_string_equal(err.code, "disk-size");
	}
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(status.st_size, 0);
	assert_int_equal(store_write_qcow2(-EBADF, MIB, &err), -EBADF);
}

/* Digests */

static void test_digests_and_random(void **state)
{
	unsigned char one[32] = {0}, two[32] = {0};
	/* RFC 7693 gives the algorithm; these values are of `b2sum -l 256`. */
	static const char *const of_nothing =
		"0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8";
	static const char *const of_abc =
		"bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319";
	_cleanup_close_ int fd = store_temporary_file(&store, &err);
	char hex[65], hex_of_file[65];
	static char large[200001];

	(void)state;
	store_digest(NULL, 0, hex);
	assert_string_equal(hex, of_nothing);
	store_digest("abc", 3, hex);
	assert_string_equal(hex, of_abc);
	assert_int_equal(store_digest_file(fd, hex, &err), 0);
	assert_string_equal(hex, of_nothing);
	for (size_t i = 0; i < sizeof(large); i++) {
		large[i] = (char)(i * i);
	}
	store_digest(large, sizeof(large), hex);
	assert_int_equal(write_full(fd, large, sizeof(large)), 0);
	/* From the start, wherever the offset is. */
	assert_int_equal(store_digest_file(fd, hex_of_file, &err), 0);
	assert_string_equal(hex_of_file, hex);
	assert_int_equal(lseek(fd, 0, SEEK_CUR), sizeof(large));
	assert_int_equal(store_digest_file(-EBADF, hex, &err), -EBADF);
	assert_int_equal(store_digest_file(store.home_fd, hex, &err), -EISDIR);
	store_random(one, sizeof(one));
	store_random(two, sizeof(two));
	assert_memory_not_equal(one, two, sizeof(one));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, home_set_up, home_tear_down)
#define TEST_WITHOUT_HOME(function)                                                                \
	cmocka_unit_test_setup_teardown(function, set_up_empty, home_tear_down)

#define TMPFS_TEST(function, mount_options)                                                        \
	{                                                                                          \
		"test_home_on_tmpfs: " #function, test_home_on_tmpfs, set_up_empty,                \
			home_tear_down, &(struct tmpfs_case)                                       \
		{                                                                                  \
			mount_options, function                                                    \
		}                                                                                  \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_WITHOUT_HOME(test_home_is_made_private),
		TEST_WITHOUT_HOME(test_home_by_default),
		TEST_WITHOUT_HOME(test_relative_home_becomes_absolute),
		TEST_WITHOUT_HOME(test_homes_that_are_refused),
		TEST_WITHOUT_HOME(test_home_of_another_user),
		TMPFS_TEST(full_disk, "size=64k,mode=700"),
		TMPFS_TEST(full_before_the_first, "size=64k,mode=700,nr_inodes=3"),
		TMPFS_TEST(read_only, "size=1m,mode=700"),
		TMPFS_TEST(own_file_system, "size=1m,mode=700"),
		TEST(test_create_and_open),
		TEST(test_names_and_sizes_that_are_refused),
		TEST(test_missing_sandbox_names_the_nearest),
		TEST(test_list_is_sorted_and_hides),
		TEST(test_list_of_many),
		TEST(test_load_spec),
		TEST(test_destroy_with_data),
		TEST(test_destroy_keeps_data),
		TEST(test_destroy_refuses_while_in_use),
		TEST(test_sweep_ends_what_was_begun),
		TEST(test_sweep_leaves_work_alone),
		TEST(test_live_lock_is_shared_or_exclusive),
		TEST(test_data_has_one_holder),
		TEST(test_data_that_was_replaced_while_waiting),
		TEST(test_temporary_file_has_no_name),
		TEST(test_qcow2_as_qemu_sees_it),
		TEST(test_qcow2_holds_what_is_written),
		TEST(test_qcow2_sizes_that_are_refused),
		TEST(test_digests_and_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
