/* What archive_extract makes of checked items, while others change the directories under it. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

/* It has more in it than this program takes. */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "archive_maker.h"
#include "archive/extract.h"
#include "archive/target.h"
#include "base/check.h"
#include "base/io.h"

static char top[64];

static int make_directory(void)
{
	int fd;

	snprintf(top, sizeof(top), "/tmp/box-extract-XXXXXX");
	assert_non_null(mkdtemp(top));
	fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static int extract(int dir, const struct tar *tar, const char *name, bool contents, struct err *err)
{
	const struct extract_options options = {.name = name, .contents = contents};
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	struct extract_result result;

	*err = (struct err){0};
	assert_int_equal(archive_open_plain_memory(tar->data, tar->size, &strict, &reader, err), 0);
	return archive_extract(reader, dir, &options, &result, err);
}

static void expect_text(int dir, const char *path, const char *text)
{
	_cleanup_free_ char *data = NULL;
	size_t size;

	assert_int_equal(read_file_at(dir, path, 4096, &data, &size), 0);
	assert_string_equal(data, text);
}

static bool is_there(int dir, const char *path)
{
	struct stat status;

	return fstatat(dir, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
}

static void remove_directory(void)
{
	assert_int_equal(remove_tree_at(AT_FDCWD, top), 0);
}

static void test_the_three_ways_to_name(void **state)
{
	_cleanup_close_ int dir = make_directory();
	_cleanup_(tar_clear) struct tar one = {0}, tree = {0};
	struct err err;

	(void)state;
	add_file(&one, "theirs/x", "one");
	add_end(&one);
	add_entry(&tree, &(struct made){.name = "./", .type = '5'});
	add_file(&tree, "./a", "tree");
	add_file(&tree, "b/c", "deep");
	add_end(&tree);
	assert_int_equal(extract(dir, &one, "ours", false, &err), 0);
	expect_text(dir, "ours/x", "one");
	assert_false(is_there(dir, "theirs"));
	assert_int_equal(extract(dir, &tree, "new", true, &err), 0);
	expect_text(dir, "new/a", "tree");
	expect_text(dir, "new/b/c", "deep");
	assert_int_equal(extract(dir, &tree, NULL, false, &err), 0);
	expect_text(dir, "a", "tree");
	assert_int_equal(extract(dir, &tree, "ours", false, &err), -EBADMSG);
	assert_false(is_there(dir, "ours/a"));
	remove_directory();
}

static void test_temporary_names_are_removed(void **state)
{
	_cleanup_close_ int dir = make_directory();
	_cleanup_(tar_clear) struct tar tar = {0};
	struct err err;

	(void)state;
	add_file(&tar, "t", "whole");
	add_header(&tar, "u", '0', NULL, 5000);
	add_room(&tar, 1024);
	assert_int_equal(extract(dir, &tar, NULL, false, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "\"u\": its data is cut short"));
	expect_text(dir, "t", "whole");
	assert_false(is_there(dir, "u"));
	/* Nothing else is in it, so it can be removed by its name. */
	assert_int_equal(unlinkat(dir, "t", 0), 0);
	assert_int_equal(rmdir(top), 0);
}

static void test_what_is_in_the_way(void **state)
{
	static const struct {
		struct made made;
		int rc;
	} cases[] = {
		{{.name = "file", .type = '0', .data = "new"}, 0},
		{{.name = "link", .type = '0', .data = "new"}, 0},
		{{.name = "dir", .type = '0', .data = "new"}, -EISDIR},
		{{.name = "file", .type = '2', .link = "elsewhere"}, 0},
		{{.name = "link", .type = '2', .link = "elsewhere"}, 0},
		{{.name = "dir", .type = '2', .link = "elsewhere"}, -EISDIR},
		{{.name = "file", .type = '5'}, -ENOTDIR},
		{{.name = "link", .type = '5'}, -ENOTDIR},
		{{.name = "dir", .type = '5'}, 0},
		{{.name = "link/x", .type = '0', .data = "new"}, -ENOTDIR},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		_cleanup_close_ int dir = make_directory();
		_cleanup_(tar_clear) struct tar tar = {0};
		struct err err;

		assert_int_equal(write_file_at(dir, "file", "old", 3, 0600), 0);
		assert_int_equal(write_file_at(dir, "victim", "old", 3, 0600), 0);
		assert_int_equal(mkdirat(dir, "dir", 0700), 0);
		assert_int_equal(mkdirat(dir, "outside", 0700), 0);
		assert_int_equal(write_file_at(dir, "dir/keep", "old", 3, 0600), 0);
		assert_int_equal(symlinkat(i == 1 ? "victim" : "outside", dir, "link"), 0);
		add_entry(&tar, &cases[i].made);
		add_end(&tar);
		assert_int_equal(extract(dir, &tar, NULL, false, &err), cases[i].rc);
		expect_text(dir, "dir/keep", "old");
		expect_text(dir, "victim", "old");
		assert_false(is_there(dir, "outside/x"));
		remove_directory();
	}
}

static void test_times_modes_and_holes(void **state)
{
	_cleanup_close_ int dir = make_directory();
	_cleanup_(tar_clear) struct tar tar = {0};
	struct stat status;
	struct err err;

	(void)state;
	add_entry(&tar, &(struct made){.name = "d", .type = '5'});
	add_file(&tar, "d/f", "x");
	add_records(&tar, 'x',
		    "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
		    "31 GNU.sparse.realsize=8388608\n21 GNU.sparse.name=s\n",
		    22 + 22 + 31 + 21);
	add_header(&tar, "s", '0', NULL, 1024);
	add_data(&tar, "1\n4194304\n512\n", 14);
	add_data(&tar, "y", 1);
	add_end(&tar);
	assert_int_equal(extract(dir, &tar, NULL, false, &err), 0);
	assert_int_equal(fstatat(dir, "d", &status, 0), 0);
	/* The archive says 06755 and 100 seconds. */
	assert_int_equal(status.st_mode & 07777, 0755);
	assert_int_equal(status.st_mtim.tv_sec, 100);
	assert_int_equal(fstatat(dir, "d/f", &status, 0), 0);
	assert_int_equal(status.st_mode & 07777, 0755);
	assert_int_equal(status.st_mtim.tv_sec, 100);
	assert_int_equal(status.st_uid, geteuid());
	assert_int_equal(fstatat(dir, "s", &status, 0), 0);
	assert_int_equal(status.st_size, 8388608);
	assert_true(status.st_blocks * 512 < 1 << 20);
	remove_directory();
}

/* What stood there before must not become everybody's because an archive says so. */
static void test_the_directory_itself_is_left_alone(void **state)
{
	const struct extract_options options = {.keep_root = true};
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	_cleanup_close_ int dir = make_directory();
	_cleanup_(tar_clear) struct tar tar = {0};
	struct extract_result result;
	struct stat before, status;
	struct err err = {0};

	(void)state;
	add_entry(&tar, &(struct made){.name = "./", .type = '5'});
	add_end(&tar);
	assert_int_equal(fchmod(dir, 0510), 0);
	assert_int_equal(fstat(dir, &before), 0);
	assert_int_equal(archive_open_plain_memory(tar.data, tar.size, &strict, &reader, &err), 0);
	assert_int_equal(archive_extract(reader, dir, &options, &result, &err), 0);
	assert_int_equal(result.entries, 1);
	assert_int_equal(fstat(dir, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0510);
	assert_int_equal(status.st_mtim.tv_sec, before.st_mtim.tv_sec);
	assert_int_equal(fchmod(dir, 0700), 0);
	remove_directory();
}

static void test_hard_links_again_and_again(void **state)
{
	_cleanup_close_ int dir = make_directory();
	_cleanup_(tar_clear) struct tar tar = {0};
	struct stat status;
	struct err err;

	(void)state;
	add_file(&tar, "t/a", "x");
	add_entry(&tar, &(struct made){.name = "t/deep/b", .type = '1', .link = "t/a"});
	add_end(&tar);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(extract(dir, &tar, "u", false, &err), 0);
		assert_int_equal(fstatat(dir, "u/a", &status, 0), 0);
		assert_int_equal(status.st_nlink, 2);
		expect_text(dir, "u/deep/b", "x");
	}
	/* As if something was left: a directory with a name more cannot be removed. */
	assert_int_equal(unlinkat(dir, "u/deep/b", 0), 0);
	assert_int_equal(unlinkat(dir, "u/deep", AT_REMOVEDIR), 0);
	assert_int_equal(unlinkat(dir, "u/a", 0), 0);
	assert_int_equal(unlinkat(dir, "u", AT_REMOVEDIR), 0);
	remove_directory();
}

/* Gives an archive in two parts, and puts a link in a directory's place between them. */
struct swap {
	int dir;
	int write_end;
	const struct tar *tar;
	size_t first;
};

static void *swap_between(void *data)
{
	struct swap *swap = data;

	assert_int_equal(write_full(swap->write_end, swap->tar->data, swap->first), 0);
	while (!is_there(swap->dir, "d/first")) {
		usleep(1000);
	}
	assert_int_equal(renameat(swap->dir, "d", swap->dir, "moved"), 0);
	assert_int_equal(symlinkat("outside", swap->dir, "d"), 0);
	assert_int_equal(write_full(swap->write_end, swap->tar->data + swap->first,
				    swap->tar->size - swap->first),
			 0);
	close(swap->write_end);
	return NULL;
}

static void test_a_link_in_place_of_a_directory_is_not_followed(void **state)
{
	static const struct extract_options options = {0};
	_cleanup_close_ int dir = make_directory();
	_cleanup_(tar_clear) struct tar tar = {0};
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	struct extract_result result;
	struct swap swap = {.dir = dir, .tar = &tar};
	struct err err = {0};
	pthread_t thread;
	int ends[2];

	(void)state;
	assert_int_equal(mkdirat(dir, "outside", 0700), 0);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	add_file(&tar, "d/first", "1");
	swap.first = tar.size;
	/* Another directory first, so that d is looked up again. */
	add_file(&tar, "e/other", "2");
	add_file(&tar, "d/second", "3");
	add_end(&tar);
	swap.write_end = ends[1];
	assert_int_equal(pthread_create(&thread, NULL, swap_between, &swap), 0);
	assert_int_equal(archive_open_plain_fd(ends[0], &strict, &reader, &err), 0);
	assert_int_equal(archive_extract(reader, dir, &options, &result, &err), -ENOTDIR);
	pthread_join(thread, NULL);
	close(ends[0]);
	assert_false(is_there(dir, "outside/second"));
	assert_true(is_there(dir, "moved/first") && is_there(dir, "e/other"));
	remove_directory();
}

static void test_packed_archives_are_no_plain_ones(void **state)
{
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	const struct archive_item *item;
	char packed[1024] = "\x1f\x8b\x08";
	struct err err = {0};

	(void)state;
	assert_int_equal(archive_open_plain_memory(packed, sizeof(packed), &strict, &reader, &err),
			 0);
	assert_int_equal(archive_next(reader, &item, &err), -EBADMSG);
}

static void test_source_names(void **state)
{
	static const struct {
		const char *path;
		const char *name;
	} cases[] = {
		{"/a/b", "b"}, {"/a/b//", "b"}, {"b", "b"},    {"/", ""},	{".", ""},
		{"/a/.", ""},  {"./", ""},	{"/a/..", 0},  {"..", 0},	{"", 0},
		{"../a", "a"}, {"/.x", ".x"},	{"/a/./", ""}, {"/...", "..."},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char name[ARCHIVE_COMPONENT_MAX + 1] = "none";
		struct err err = {0};
		int rc = copy_source_name(cases[i].path, name, &err);

		assert_int_equal(rc, cases[i].name ? 0 : -EINVAL);
		assert_true(!cases[i].name || strcmp(name, cases[i].name) == 0);
		assert_true(cases[i].name || err.text[0]);
	}
}

static void test_targets(void **state)
{
	static const struct {
		const char *path;
		const char *source;
		bool must;
		/* NULL: -ENOTDIR or -ENOENT. */
		const char *name;
		bool contents;
	} cases[] = {
		{"dir", "s", false, "s", false},     {"dir/", "s", false, "s", false},
		{"dir", "", false, "", false},	     {"new", "s", false, "new", false},
		{"new", "", false, "new", true},     {"dir/new", "s", false, "new", false},
		{"new/", "s", false, NULL, false},   {"file/", "s", false, NULL, false},
		{"file", "s", true, NULL, false},    {"none/new", "s", false, NULL, false},
		{"file", "s", false, "file", false}, {"file/x", "s", false, NULL, false},
		{"link", "s", false, "s", false},
	};
	_cleanup_close_ int dir = make_directory();

	(void)state;
	assert_int_equal(mkdirat(dir, "dir", 0700), 0);
	assert_int_equal(symlinkat("dir", dir, "link"), 0);
	assert_int_equal(write_file_at(dir, "file", "", 0, 0600), 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct copy_target target = {.dir_fd = -EBADF};
		struct err err = {0};
		char path[128];
		int rc;

		snprintf(path, sizeof(path), "%s/%s", top, cases[i].path);
		rc = copy_target_open(path, cases[i].source, cases[i].must, &target, &err);
		assert_int_equal(rc == 0, cases[i].name != NULL);
		assert_int_equal(target.dir_fd >= 0, rc == 0);
		if (rc == 0) {
			assert_string_equal(target.name, cases[i].name);
			assert_int_equal(target.contents, cases[i].contents);
		}
		close_fd(&target.dir_fd);
	}
	remove_directory();
}

static void test_owners(void **state)
{
	static const struct {
		enum extract_owner owner;
		uid_t uid;
		gid_t gid;
	} cases[] = {
		{EXTRACT_OWNER_CALLER, 0, 0},
		{EXTRACT_OWNER_ARCHIVE, 7, 8},
		{EXTRACT_OWNER_GIVEN, 1234, 5678},
	};
	static const char *const names[] = {"d", "d/f", "l"};
	_cleanup_(tar_clear) struct tar tar = {0};

	(void)state;
	if (geteuid() != 0) {
		skip();
	}
	add_entry(&tar, &(struct made){.name = "./", .type = '5'});
	add_entry(&tar, &(struct made){.name = "d/", .type = '5'});
	add_file(&tar, "d/f", "text");
	add_entry(&tar, &(struct made){.name = "l", .type = '2', .link = "/etc/passwd"});
	add_end(&tar);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct archive_options options = {.keep_setuid = cases[i].owner ==
								       EXTRACT_OWNER_ARCHIVE};
		const struct extract_options how = {.owner = cases[i].owner,
						    .uid = cases[i].uid,
						    .gid = cases[i].gid,
						    .keep_root = true};
		_cleanup_(archive_closep) struct archive_reader *reader = NULL;
		_cleanup_close_ int dir = make_directory();
		struct extract_result result;
		struct stat status;
		struct err err = {0};

		assert_int_equal(
			archive_open_plain_memory(tar.data, tar.size, &options, &reader, &err), 0);
		assert_int_equal(archive_extract(reader, dir, &how, &result, &err), 0);
		for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
			assert_int_equal(fstatat(dir, names[k], &status, AT_SYMLINK_NOFOLLOW), 0);
			assert_int_equal(status.st_uid, cases[i].uid);
			assert_int_equal(status.st_gid, cases[i].gid);
		}
		assert_int_equal(fstatat(dir, "d/f", &status, 0), 0);
		assert_int_equal(status.st_mode & 07777, options.keep_setuid ? 06755 : 0755);
		/* The directory itself is as it was. */
		assert_int_equal(fstat(dir, &status), 0);
		assert_int_equal(status.st_mode & 07777, 0700);
		assert_int_equal(status.st_uid, 0);
		remove_directory();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_three_ways_to_name),
		cmocka_unit_test(test_temporary_names_are_removed),
		cmocka_unit_test(test_what_is_in_the_way),
		cmocka_unit_test(test_times_modes_and_holes),
		cmocka_unit_test(test_the_directory_itself_is_left_alone),
		cmocka_unit_test(test_hard_links_again_and_again),
		cmocka_unit_test(test_a_link_in_place_of_a_directory_is_not_followed),
		cmocka_unit_test(test_packed_archives_are_no_plain_ones),
		cmocka_unit_test(test_source_names),
		cmocka_unit_test(test_targets),
		cmocka_unit_test(test_owners),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
