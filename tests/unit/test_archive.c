/*
 * The rules for archives: every way to break one is tried with an archive made by hand, block by
 * block. Archives made by other programs are read in tests/component/image.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <cmocka.h>

#include "archive/archive.h"
#include "archive/reader.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "archive_maker.h"

static const struct {
	struct made entries[4];
	const char *why;
} hostile[] = {
	{{{"/etc/passwd", '0'}}, "\"/etc/passwd\": the name is absolute"},
	{{{"//x", '0'}}, "the name is absolute"},
	{{{"../x", '0'}}, "the name goes up with \"..\""},
	{{{"a/../../x", '0'}}, "the name goes up with \"..\""},
	{{{"a/..", '5'}}, "the name goes up with \"..\""},
	{{{"..", '5'}}, "the name goes up with \"..\""},
	{{{"", '0'}}, "the name is empty"},
	{{{".", '0'}}, "\".\": it comes twice"},
	{{{"./", '2', "x"}}, "\"./\": it comes twice"},
	{{{"a", '2', "/etc"}, {"a/passwd", '0'}}, "the name leads through a link"},
	{{{"a", '2', "."}, {"a/b/c", '0'}}, "the name leads through a link"},
	{{{"a", '2', "b"}, {"a/", '5'}}, "it would replace a link"},
	{{{"a", '2', "b"}, {"a", '0', NULL, "x"}}, "it would replace a link"},
	{{{"a", '2', "b"}, {"./a", '2', "c"}}, "it would replace a link"},
	{{{"d/x", '0'}, {"d", '2', "/"}}, "\"d\": it comes twice"},
	{{{"f", '0'}, {"f", '0'}}, "\"f\": it comes twice"},
	{{{"f", '0'}, {"f", '5'}}, "\"f\": it comes twice"},
	{{{"f", '0'}, {"f/x", '0'}}, "the name leads through a file"},
	{{{"f", '0'}, {"g", '0'}, {"f", '1', "g"}}, "\"f\": it comes twice"},
	{{{"h", '1', "/etc/shadow"}}, "of its link target, the name is absolute"},
	{{{"h", '1', "../x"}}, "of its link target, the name goes up"},
	{{{"h", '1', "missing"}}, "its target did not come before it"},
	{{{"h", '1', "h"}}, "its target did not come before it"},
	{{{"h", '1', "f"}, {"f", '0'}}, "its target did not come before it"},
	{{{"d/", '5'}, {"h", '1', "d"}}, "a hard link to a directory"},
	{{{"h", '1', "."}}, "a hard link to a directory"},
	{{{"l", '2', "/"}, {"h", '1', "l/etc/shadow"}}, "its target leads through a link"},
	{{{"l", '2', "x"}, {"h", '1', "l"}, {"h/x", '0'}}, "the name leads through a link"},
	{{{"h", '1', ""}}, "its link has no target"},
	{{{"l", '2', ""}}, "its link has no target"},
	{{{"null", '3'}}, "it is a device or fifo"},
	{{{"sda", '4'}}, "it is a device or fifo"},
	{{{"pipe", '6'}}, "it is a device or fifo"},
	{{{"x", 'M'}}, "its type is not known"},
	{{{"x", 'D'}}, "its type is not known"},
	{{{"x", 'Z'}}, "its type is not known"},
	{{{"d", '5', NULL, "data"}}, "it says that it has data, but is no file"},
	{{{"f", '0'}, {"h", '1', "f", "data"}}, "it says that it has data, but is no file"},
	{{{"l", '2', "f", "data"}}, "it says that it has data, but is no file"},
	{{{"d/", '0', NULL, "data"}}, "it says that it has data, but is no file"},
	{{{"f", '0', NULL, "short", 1000000}}, "\"f\": its data is cut short"},
	{{{"f", '0', NULL, NULL, 077777777777}}, "\"f\": its data is cut short"},
	{{{"esc\033[2J\n", '0'}, {"esc\033[2J\n", '0'}}, "\"esc\\033[2J\\012\": it comes twice"},
};

static void test_hostile_entries_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(hostile); i++) {
		_cleanup_(tar_clear) struct tar tar = {0};

		add_file(&tar, "before", "fine");
		for (size_t j = 0; j < 4 && hostile[i].entries[j].name; j++) {
			add_entry(&tar, &hostile[i].entries[j]);
		}
		add_end(&tar);
		assert_refused(&tar, &strict, hostile[i].why);
	}
}

static void test_devices_are_dropped_and_stay_in_the_way(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0}, through = {0}, over = {0};

	(void)state;
	add_entry(&tar, &(struct made){"null", '3'});
	add_entry(&tar, &(struct made){"pipe", '6'});
	add_entry(&tar, &(struct made){"other", '1', "null"});
	add_file(&tar, "f", "x");
	add_end(&tar);
	assert_read(&tar, &base, "f f 1 [x]\n");

	add_entry(&through, &(struct made){"null", '3'});
	add_file(&through, "null/x", "x");
	add_end(&through);
	assert_refused(&through, &base, "the name leads through a device");

	add_entry(&over, &(struct made){"null", '3'});
	add_file(&over, "null", "x");
	add_end(&over);
	assert_refused(&over, &base, "it comes twice");
}

static void test_names_with_nul_are_refused(void **state)
{
	_cleanup_(tar_clear) struct tar header = {0}, link = {0}, pax = {0}, gnu = {0};
	uint8_t *block;

	(void)state;
	block = add_header(&header, "a", '0', NULL, 0);
	block[2] = 'b';
	seal(block);
	add_end(&header);
	assert_refused(&header, &strict, "its name holds a NUL");

	block = add_header(&link, "a", '2', "x", 0);
	block[157 + 50] = 'b';
	seal(block);
	add_end(&link);
	assert_refused(&link, &strict, "holds a NUL");

	add_pax(&pax, "path", "safe\0/../evil", 13);
	add_file(&pax, "short", "x");
	add_end(&pax);
	assert_refused(&pax, &strict, "holds a NUL");

	add_header(&gnu, "././@LongLink", 'L', NULL, 8);
	add_data(&gnu, "ab\0cdef", 8);
	add_file(&gnu, "short", "x");
	add_end(&gnu);
	assert_refused(&gnu, &strict, "its name holds a NUL");
}

static void test_name_lengths(void **state)
{
	static char name[ARCHIVE_NAME_MAX + 2];
	_cleanup_(tar_clear) struct tar longest = {0}, pax = {0}, gnu = {0}, component = {0};

	(void)state;
	for (size_t i = 0; i <= ARCHIVE_NAME_MAX; i++) {
		name[i] = i % 200 == 199 ? '/' : 'n';
	}
	add_pax(&longest, "path", name, ARCHIVE_NAME_MAX);
	add_entry(&longest, &(struct made){"short", '2', "t"});
	add_header(&longest, "././@LongLink", 'L', NULL, ARCHIVE_NAME_MAX + 1);
	name[ARCHIVE_NAME_MAX - 1] = 'z';
	name[ARCHIVE_NAME_MAX] = '\0';
	add_data(&longest, name, ARCHIVE_NAME_MAX + 1);
	add_entry(&longest, &(struct made){"short", '2', "t"});
	add_end(&longest);
	{
		static struct log log;
		struct err err = {0};

		assert_int_equal(read_tar(&longest, &strict, &log, &err), 0);
		assert_non_null(strstr(log.text, name));
	}
	name[ARCHIVE_NAME_MAX] = 'n';
	add_pax(&pax, "path", name, ARCHIVE_NAME_MAX + 1);
	add_file(&pax, "short", "x");
	add_end(&pax);
	assert_refused(&pax, &strict, "over 4096 bytes");

	add_header(&gnu, "././@LongLink", 'L', NULL, ARCHIVE_NAME_MAX + 2);
	add_data(&gnu, name, ARCHIVE_NAME_MAX + 2);
	add_file(&gnu, "short", "x");
	add_end(&gnu);
	assert_refused(&gnu, &strict, "over 4096 bytes");

	add_pax(&component, "path", name + 200, 199);
	memset(name, 'c', 256);
	add_file(&component, "short", "x");
	add_pax(&component, "path", name, 255);
	add_file(&component, "short", "x");
	add_pax(&component, "path", name, 256);
	add_file(&component, "short", "x");
	add_end(&component);
	assert_refused(&component, &strict, "a part of the name is over 255 bytes");
}

static void test_more_than_ten_million_entries_are_refused(void **state)
{
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	_cleanup_(tar_clear) struct tar tar = {0};
	const struct archive_item *item;
	struct err err = {0};
	uint32_t count, id;

	(void)state;
	add_file(&tar, "a", "x");
	add_file(&tar, "b", "x");
	add_end(&tar);
	assert_int_equal(archive_open_memory(tar.data, tar.size, &strict, &reader, &err), 0);
	reader->entries = ARCHIVE_ENTRIES_MAX - 1;
	assert_int_equal(archive_next(reader, &item, &err), 1);
	assert_int_equal(archive_next(reader, &item, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "10 million entries"));
	/* Names that are only implied count as well. */
	count = reader->tree.count;
	reader->tree.count = ARCHIVE_ENTRIES_MAX + 1;
	assert_int_equal(tree_add(&reader->tree, 0, "n", 1, ARCHIVE_ITEM_FILE, &id), -E2BIG);
	reader->tree.count = count;
}

static void test_broken_streams_are_refused(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0}, garbage = {0}, none = {0};

	(void)state;
	add_room(&none, 1);
	none.size = 0;
	assert_refused(&none, &strict, "it is empty");
	memset(add_room(&garbage, 4096), 'g', 4096);
	assert_refused(&garbage, &strict, "this is not a tar archive");

	add_file(&tar, "a", "some data");
	add_file(&tar, "b", "x");
	/* At every length that is not the whole archive. */
	for (size_t size = 1; size <= 2048; size += 73) {
		struct tar cut = {tar.data, size};

		assert_refused(&cut, &strict, "cut short");
	}
	assert_refused(&tar, &strict, "cut short");
	tar.data[1024] ^= 1;
	assert_refused(&tar, &strict, "entry number 2: the checksum of its header is wrong");
}

static void test_nothing_may_follow_the_end(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0};

	(void)state;
	add_file(&tar, "a", "x");
	add_room(&tar, 512);
	assert_read(&tar, &strict, "f a 1 [x]\n");
	add_room(&tar, 10240);
	assert_read(&tar, &strict, "f a 1 [x]\n");
	add_file(&tar, "b", "x");
	add_end(&tar);
	assert_refused(&tar, &strict, "something follows its end");
}

static void test_broken_records_are_refused(void **state)
{
	static const char *const broken[] = {
		"x",
		"10 path=a",
		"999999 path=a\n",
		"8 path=a\n",
		"11 path=a\n",
		"18446744073709551625 path=a\n",
		"99999999999999999999999 path=a\n",
		"0 path=a\n",
		"1 path=a\n",
		"2 \n",
		"7 path\n",
		"-9 path=a\n",
		" 9 path=a\n",
		"9 path=a\n9",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(broken); i++) {
		_cleanup_(tar_clear) struct tar tar = {0};

		add_records(&tar, 'x', broken[i], strlen(broken[i]));
		add_file(&tar, "a", "x");
		add_end(&tar);
		assert_refused(&tar, &strict, "its extended header is broken");
	}
}

static void test_records_with_wrong_values_are_refused(void **state)
{
	static const struct {
		const char *key;
		const char *value;
		const char *why;
	} wrong[] = {
		{"path", "/etc/x", "the name is absolute"},
		{"path", "a/../x", "the name goes up"},
		{"size", "-1", "a number in its extended header is broken"},
		{"size", "", "a number in its extended header is broken"},
		{"size", "1 ", "a number in its extended header is broken"},
		{"size", "0x1", "a number in its extended header is broken"},
		{"size", "99999999999999999999", "a number in its extended header is broken"},
		{"size", "9223372036854775808", "a number in its extended header is broken"},
		{"size", "9223372036854775807", "its data is cut short"},
		{"uid", "4294967295", "its owner is out of range"},
		{"gid", "4294967296", "its owner is out of range"},
		{"mtime", "x", "its time is not a number"},
		{"mtime", "1.x", "its time is not a number"},
		{"GNU.sparse.name", "../x", "the name goes up"},
		{"GNU.sparse.major", "7", "its sparse format is not known"},
		{"GNU.sparse.minor", "2", "its sparse format is not known"},
		{"GNU.sparse.numbytes", "1", "its sparse map is broken"},
		{"GNU.sparse.offset", "1", "its sparse map is broken"},
		{"GNU.sparse.map", "0,1,", "its sparse map has no size"},
		{"GNU.sparse.map", "0,1,2", "its sparse map is broken"},
		{"GNU.sparse.map", "0", "its sparse map is broken"},
		{"GNU.sparse.map", "a,b", "its sparse map is broken"},
		{"SCHILY.xattr.", "v", "the name of an extended attribute"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		_cleanup_(tar_clear) struct tar tar = {0};

		add_pax_text(&tar, wrong[i].key, wrong[i].value);
		add_file(&tar, "a", "x");
		add_end(&tar);
		assert_refused(&tar, &strict, wrong[i].why);
	}
}

static void test_extended_headers_that_do_not_fit_are_refused(void **state)
{
	_cleanup_(tar_clear) struct tar twice = {0}, lonely = {0}, global = {0}, huge = {0},
					both = {0};

	(void)state;
	add_pax_text(&twice, "path", "a");
	add_pax_text(&twice, "path", "b");
	add_file(&twice, "c", "x");
	add_end(&twice);
	assert_refused(&twice, &strict, "it has two extended headers");

	add_pax_text(&lonely, "path", "a");
	add_end(&lonely);
	assert_refused(&lonely, &strict, "an extended header without an entry");

	add_records(&global, 'g', "10 path=ab\n", 11);
	add_file(&global, "c", "x");
	add_end(&global);
	assert_refused(&global, &strict, "its extended header is broken");
	global.size = 0;
	memset(global.data, 0, TAR_ROOM);
	add_records(&global, 'g', "11 path=ab\n", 11);
	add_file(&global, "c", "x");
	add_end(&global);
	assert_refused(&global, &strict, "a global header that changes entries");

	add_header(&huge, "PaxHeader", 'x', NULL, TAR_EXTENDED_MAX + 1);
	add_end(&huge);
	assert_refused(&huge, &strict, "over 1 MiB");

	add_header(&both, "././@LongLink", 'L', NULL, 2);
	add_data(&both, "a", 2);
	add_header(&both, "././@LongLink", 'L', NULL, 2);
	add_data(&both, "b", 2);
	add_file(&both, "c", "x");
	add_end(&both);
	assert_refused(&both, &strict, "it has two long names");
}

static void test_global_comment_is_read(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0};

	(void)state;
	add_records(&tar, 'g', "18 comment=0123ab\n", 18);
	add_file(&tar, "c", "x");
	add_end(&tar);
	assert_read(&tar, &strict, "f c 1 [x]\n");
}

static void test_items_of_a_plain_archive(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0};

	(void)state;
	add_entry(&tar, &(struct made){"./", '5'});
	add_entry(&tar, &(struct made){"./a//./b/c", '0', NULL, "hello"});
	add_entry(&tar, &(struct made){"a/", '5'});
	add_entry(&tar, &(struct made){"old/", '0'});
	add_entry(&tar, &(struct made){"l", '2', "../../etc//"});
	add_entry(&tar, &(struct made){"h", '1', "./a/b/c"});
	add_entry(&tar, &(struct made){"h2", '1', "l"});
	add_entry(&tar, &(struct made){"...", '7', NULL, "dots"});
	add_entry(&tar, &(struct made){"v7", '\0', NULL, "v7"});
	add_end(&tar);
	assert_read(&tar, &strict,
		    "d+ .\n"
		    "d? a\n"
		    "d? a/b\n"
		    "f a/b/c 5 [hello]\n"
		    "d+ a\n"
		    "d old\n"
		    "l l -> ../../etc//\n"
		    "h h = 3\n"
		    "h h2 = 5\n"
		    "f ... 4 [dots]\n"
		    "f v7 2 [v7]\n");
}

static const struct archive_item *first_item(struct archive_reader **ret_reader,
					     const struct tar *tar,
					     const struct archive_options *options)
{
	const struct archive_item *item;
	struct err err = {0};

	assert_int_equal(archive_open_memory(tar->data, tar->size, options, ret_reader, &err), 0);
	assert_int_equal(archive_next(*ret_reader, &item, &err), 1);
	return item;
}

static void test_attributes(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0};
	_cleanup_(archive_closep) struct archive_reader *kept = NULL, *dropped = NULL;
	const struct archive_item *item;

	(void)state;
	add_file(&tar, "a", "x");
	add_end(&tar);
	item = first_item(&kept, &tar, &base);
	assert_int_equal(item->mode, 06755);
	assert_int_equal(item->uid, 7);
	assert_int_equal(item->gid, 8);
	assert_int_equal(item->mtime_s, 100);
	assert_int_equal(item->size, 1);
	item = first_item(&dropped, &tar, &strict);
	assert_int_equal(item->mode, 0755);
}

static void test_extended_attributes_of_entries(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0};
	_cleanup_(archive_closep) struct archive_reader *kept = NULL, *dropped = NULL;
	const struct archive_item *item;
	char text[1000];
	size_t size = 0;

	(void)state;
	size += make_record(text + size, "uid", "4294967294", 10);
	size += make_record(text + size, "gid", "100000", 6);
	size += make_record(text + size, "mtime", "-1.25", 5);
	size += make_record(text + size, "path", "n\303\244me", 5);
	size += make_record(text + size, "SCHILY.xattr.user.a", "v\0w", 3);
	size += make_record(text + size, "SCHILY.xattr.security.capability", "cap", 3);
	size += make_record(text + size, "SCHILY.xattr.security.selinux", "ctx", 3);
	size += make_record(text + size, "SCHILY.xattr.trusted.overlay.opaque", "y", 1);
	add_records(&tar, 'x', text, size);
	add_file(&tar, "a", "x");
	add_end(&tar);
	item = first_item(&kept, &tar, &base);
	assert_string_equal(item->path, "n\303\244me");
	assert_int_equal(item->uid, 4294967294u);
	assert_int_equal(item->gid, 100000);
	assert_int_equal(item->mtime_s, -2);
	assert_int_equal(item->mtime_ns, 750000000);
	assert_int_equal(item->xattr_count, 2);
	assert_string_equal(item->xattrs[0].name, "user.a");
	assert_int_equal(item->xattrs[0].size, 3);
	assert_memory_equal(item->xattrs[0].value, "v\0w", 3);
	assert_string_equal(item->xattrs[1].name, "security.capability");
	item = first_item(&dropped, &tar, &strict);
	assert_int_equal(item->xattr_count, 1);
}

static void test_too_many_extended_attributes_are_refused(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0};
	char text[8192];
	size_t size = 0;

	(void)state;
	for (int i = 0; i <= ARCHIVE_XATTRS_MAX; i++) {
		char key[64];

		snprintf(key, sizeof(key), "SCHILY.xattr.user.a%d", i);
		size += make_record(text + size, key, "v", 1);
	}
	add_records(&tar, 'x', text, size);
	add_file(&tar, "a", "x");
	add_end(&tar);
	assert_refused(&tar, &strict, "too many extended attributes");
}

static void test_base_256_numbers(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0}, negative = {0}, huge = {0};
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	const struct archive_item *item;
	uint8_t *block;

	(void)state;
	block = add_header(&tar, "a", '0', NULL, 0);
	memcpy(block + 108, "\x80\0\0\0\xee\xdd\xcc\xbb", 8);
	memset(block + 136, 0xff, 12);
	seal(block);
	add_end(&tar);
	item = first_item(&reader, &tar, &strict);
	assert_int_equal(item->uid, 0xeeddccbbu);
	assert_int_equal(item->mtime_s, -1);

	block = add_header(&negative, "a", '0', NULL, 0);
	memset(block + 124, 0xff, 12);
	seal(block);
	add_end(&negative);
	assert_refused(&negative, &strict, "its size is not a number");

	block = add_header(&huge, "a", '0', NULL, 0);
	memcpy(block + 124, "\x80\0\0\x01\0\0\0\0\0\0\0\0", 12);
	seal(block);
	add_end(&huge);
	assert_refused(&huge, &strict, "its size is not a number");
}

static void test_numbers_that_are_none_are_refused(void **state)
{
	static const struct {
		size_t offset;
		const char *why;
	} fields[] = {
		{100, "its mode is not a number"},  {108, "its owner is not a number"},
		{116, "its owner is not a number"}, {124, "its size is not a number"},
		{136, "its time is not a number"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		_cleanup_(tar_clear) struct tar tar = {0};
		uint8_t *block;

		add_file(&tar, "first", "x");
		block = add_header(&tar, "a", '0', NULL, 0);
		block[fields[i].offset + 3] = '9';
		seal(block);
		add_end(&tar);
		assert_refused(&tar, &strict, fields[i].why);
	}
}

static void test_gnu_long_names(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0};
	char name[301], link[301], wanted[1000];

	(void)state;
	memset(name, 'n', 300);
	name[150] = '/';
	name[300] = '\0';
	memset(link, 'l', 300);
	link[300] = '\0';
	add_header(&tar, "././@LongLink", 'K', NULL, 301);
	add_data(&tar, link, 301);
	add_header(&tar, "././@LongLink", 'L', NULL, 301);
	add_data(&tar, name, 301);
	add_entry(&tar, &(struct made){"nnn", '2', "lll"});
	add_file(&tar, "next", "x");
	add_end(&tar);
	snprintf(wanted, sizeof(wanted), "d? %.150s\nl %s -> %s\nf next 1 [x]\n", name, name, link);
	assert_read(&tar, &strict, wanted);
}

static void test_ustar_prefix(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0}, gnu = {0};
	uint8_t *block;

	(void)state;
	block = add_header(&tar, "name", '0', NULL, 0);
	memcpy(block + 345, "pre/fix", 7);
	seal(block);
	add_end(&tar);
	assert_read(&tar, &strict, "d? pre\nd? pre/fix\nf pre/fix/name 0 []\n");
	/* GNU keeps other things there. */
	block = add_header(&gnu, "name", '0', NULL, 0);
	memcpy(block + 257, "ustar  ", 8);
	memcpy(block + 345, "00000000001", 12);
	seal(block);
	add_end(&gnu);
	assert_read(&gnu, &strict, "f name 0 []\n");
}

static void test_sparse_pax_1_0(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0};
	char text[300];
	size_t size = 0;

	(void)state;
	size += make_record(text + size, "GNU.sparse.major", "1", 1);
	size += make_record(text + size, "GNU.sparse.minor", "0", 1);
	size += make_record(text + size, "GNU.sparse.name", "real", 4);
	size += make_record(text + size, "GNU.sparse.realsize", "20", 2);
	add_records(&tar, 'x', text, size);
	add_header(&tar, "GNUSparseFile.1/real", '0', NULL, 512 + 5);
	add_data(&tar, "3\n2\n3\n10\n2\n20\n0\n", 16);
	add_data(&tar, "abcde", 5);
	add_file(&tar, "next", "x");
	add_end(&tar);
	assert_read(&tar, &strict, "f real 20 [..abc.....de........]\nf next 1 [x]\n");
}

static void test_sparse_pax_0_0_and_0_1(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0};
	char text[400];
	size_t size = 0;

	(void)state;
	size += make_record(text + size, "GNU.sparse.size", "9", 1);
	size += make_record(text + size, "GNU.sparse.numblocks", "2", 1);
	size += make_record(text + size, "GNU.sparse.offset", "1", 1);
	size += make_record(text + size, "GNU.sparse.numbytes", "2", 1);
	size += make_record(text + size, "GNU.sparse.offset", "5", 1);
	size += make_record(text + size, "GNU.sparse.numbytes", "1", 1);
	add_records(&tar, 'x', text, size);
	add_file(&tar, "zero", "abc");
	size = make_record(text, "GNU.sparse.size", "9", 1);
	size += make_record(text + size, "GNU.sparse.name", "one", 3);
	size += make_record(text + size, "GNU.sparse.map", "1,2,5,1", 7);
	add_records(&tar, 'x', text, size);
	add_file(&tar, "x", "abc");
	add_end(&tar);
	assert_read(&tar, &strict, "f zero 9 [.ab..c...]\nf one 9 [.ab..c...]\n");
}

/* An old GNU sparse header; extra blocks follow when there are more than 4 pieces. */
static void add_old_sparse(struct tar *tar, const uint64_t (*pieces)[2], size_t count,
			   uint64_t real_size, uint64_t stored)
{
	uint8_t *block = add_header(tar, "old", 'S', NULL, stored);
	size_t at = 386, limit = 4, more_at = 482, used = 0;
	uint8_t *target = block;

	memcpy(block + 257, "ustar  ", 8);
	snprintf((char *)block + 483, 12, "%011llo", (unsigned long long)real_size);
	for (size_t i = 0; i < count; i++) {
		if (used == limit) {
			target[more_at] = 1;
			seal(block);
			target = add_room(tar, 512);
			at = 0;
			limit = 21;
			more_at = 504;
			used = 0;
		}
		for (size_t j = 0; j < 2; j++, at += 12) {
			snprintf((char *)target + at, 12, "%011llo",
				 (unsigned long long)pieces[i][j]);
		}
		used++;
	}
	seal(block);
}

static void test_sparse_old_gnu(void **state)
{
	static const uint64_t pieces[30][2] = {{0, 1}, {3, 1}, {5, 1}, {7, 1}, {9, 1}, {11, 2}};
	uint64_t many[30][2];
	_cleanup_(tar_clear) struct tar tar = {0}, longer = {0};

	(void)state;
	add_old_sparse(&tar, pieces, 6, 15, 7);
	add_data(&tar, "abcdefg", 7);
	add_file(&tar, "next", "x");
	add_end(&tar);
	assert_read(&tar, &strict, "f old 15 [a..b.c.d.e.fg..]\nf next 1 [x]\n");

	for (size_t i = 0; i < 30; i++) {
		many[i][0] = 2 * i;
		many[i][1] = 1;
	}
	add_old_sparse(&longer, (const uint64_t(*)[2])many, 30, 60, 30);
	add_data(&longer, "abcdefghijklmnopqrstuvwxyzABCD", 30);
	add_end(&longer);
	assert_read(&longer, &strict,
		    "f old 60 "
		    "[a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t.u.v.w.x.y.z.A.B.C.D.]\n");
}

static void test_sparse_maps_that_lie_are_refused(void **state)
{
	static const struct {
		uint64_t pieces[2][2];
		uint64_t real_size, stored;
		const char *why;
	} maps[] = {
		{{{0, 2}, {1, 2}}, 10, 4, "its sparse map lies about its size"},
		{{{5, 1}, {0, 1}}, 10, 2, "its sparse map lies about its size"},
		{{{0, 1}, {9, 2}}, 10, 3, "its sparse map lies about its size"},
		{{{0, 1}, {3, 1}}, 10, 3, "does not match the data"},
		{{{0, 1}, {3, 1}}, 10, 1, "does not match the data"},
		{{{0, 1}, {077777777777, 077777777777}}, 10, 1, "lies about its size"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(maps); i++) {
		_cleanup_(tar_clear) struct tar tar = {0};

		add_old_sparse(&tar, maps[i].pieces, 2, maps[i].real_size, maps[i].stored);
		add_data(&tar, "abcdef", 6);
		add_end(&tar);
		assert_refused(&tar, &strict, maps[i].why);
	}
}

static void test_a_map_in_the_data_may_not_outrun_it(void **state)
{
	static const char *const bodies[] = {"9999999\n", "2\n0\n1\n",
					     "1\n0\n99999999999999999999999\n", "x\n", "\n"};
	char text[300];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
		_cleanup_(tar_clear) struct tar tar = {0};
		size_t size = 0;

		size += make_record(text + size, "GNU.sparse.major", "1", 1);
		size += make_record(text + size, "GNU.sparse.realsize", "20", 2);
		add_records(&tar, 'x', text, size);
		add_header(&tar, "s", '0', NULL, 512);
		add_data(&tar, bodies[i], strlen(bodies[i]));
		add_file(&tar, "next", "x");
		add_end(&tar);
		assert_refused(&tar, &strict, "sparse map");
	}
}

static void test_data_that_is_not_asked_for_is_skipped(void **state)
{
	_cleanup_(tar_clear) struct tar tar = {0};
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	const struct archive_item *item;
	struct err err = {0};
	uint32_t parent;
	enum archive_type type;

	(void)state;
	add_header(&tar, "big", '0', NULL, 100000);
	memset(add_room(&tar, 100352), 'b', 100000);
	add_file(&tar, "d/next", "x");
	add_end(&tar);
	item = first_item(&reader, &tar, &strict);
	assert_int_equal(item->size, 100000);
	assert_int_equal(archive_next(reader, &item, &err), 1);
	assert_true(item->implied);
	assert_int_equal(archive_next(reader, &item, &err), 1);
	assert_string_equal(item->path, "d/next");
	assert_int_equal(archive_next(reader, &item, &err), 0);
	assert_int_equal(archive_next(reader, &item, &err), 0);
	assert_int_equal(archive_bytes_read(reader), tar.size);
	assert_int_equal(archive_entry_count(reader), 2);
	assert_int_equal(archive_name_count(reader), 4);
	assert_string_equal(archive_name(reader, 3, &parent, &type), "next");
	assert_int_equal(parent, 2);
	assert_int_equal(type, ARCHIVE_ITEM_FILE);
}

static void test_many_names(void **state)
{
	struct tree tree;
	uint32_t id;
	char name[32];

	(void)state;
	assert_int_equal(tree_init(&tree), 0);
	for (uint32_t i = 1; i <= 100000; i++) {
		int size = snprintf(name, sizeof(name), "name-%u", i);

		assert_int_equal(
			tree_add(&tree, i / 2, name, (size_t)size, ARCHIVE_ITEM_DIRECTORY, &id), 0);
		assert_int_equal(id, i);
	}
	for (uint32_t i = 1; i <= 100000; i++) {
		int size = snprintf(name, sizeof(name), "name-%u", i);

		assert_int_equal(tree_find(&tree, i / 2, name, (size_t)size), i);
		assert_int_equal(tree_find(&tree, i / 2 + 1, name, (size_t)size), TREE_NONE);
		assert_string_equal(tree_name(&tree, i), name);
	}
	tree_clear(&tree);
}

static void test_quotes(void **state)
{
	char quoted[ARCHIVE_QUOTED_MAX], name[1000];

	(void)state;
	assert_string_equal(archive_quote("plain name", quoted), "\"plain name\"");
	assert_string_equal(archive_quote("a\"b\\c\n\t\033\177\377", quoted),
			    "\"a\\\"b\\\\c\\012\\011\\033\\177\\377\"");
	memset(name, '\001', sizeof(name));
	name[999] = '\0';
	archive_quote(name, quoted);
	assert_true(strlen(quoted) < ARCHIVE_QUOTED_MAX);
	assert_string_equal(quoted + strlen(quoted) - 4, "...\"");
	memset(name, 'x', sizeof(name) - 1);
	archive_quote(name, quoted);
	assert_true(strlen(quoted) < ARCHIVE_QUOTED_MAX);
}

/* A directory of its own below the temporary directory, removed at the end. */
static int make_directory(char *path)
{
	int fd;

	memcpy(path, "/tmp/box-test-archive-XXXXXX", 29);
	assert_non_null(mkdtemp(path));
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static void put_file(int dir, const char *path, const void *data, size_t size)
{
	_cleanup_close_ int fd = openat(dir, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0640);

	assert_true(fd >= 0);
	assert_int_equal(write_full(fd, data, size), 0);
	assert_int_equal(fchmod(fd, 0640), 0);
	/* Not every file system has these. */
	if (fsetxattr(fd, "user.box", "v", 1, 0) < 0) {
		assert_int_equal(errno, ENOTSUP);
	}
}

static void test_a_tree_goes_out_and_comes_back(void **state)
{
	static struct log log;
	size_t with_xattrs;
	char path[64], longest[256];
	_cleanup_close_ int dir = make_directory(path), out = memfd_create("tar", MFD_CLOEXEC);
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	const struct archive_item *item;
	struct err err = {0};
	int rc;

	(void)state;
	memset(longest, 'n', 255);
	longest[255] = '\0';
	assert_int_equal(mkdirat(dir, "d", 0750), 0);
	assert_int_equal(mkdirat(dir, "d/e", 0700), 0);
	put_file(dir, "d/file", "hello", 5);
	put_file(dir, "d/e/\303\244", "umlaut", 6);
	put_file(dir, longest, "", 0);
	assert_int_equal(symlinkat("../no/where", dir, "d/link"), 0);
	assert_int_equal(linkat(dir, "d/file", dir, "again", 0), 0);
	assert_int_equal(mknodat(dir, "pipe", S_IFIFO | 0600, 0), 0);
	assert_int_equal(mknodat(dir, "socket", S_IFSOCK | 0600, 0), 0);

	{
		_cleanup_close_ int fd = openat(dir, "again", O_RDONLY | O_CLOEXEC);

		with_xattrs = fgetxattr(fd, "user.box", NULL, 0) == 1;
	}

	assert_int_equal(archive_write_tree(dir, out, &err), 0);
	assert_int_equal(lseek(out, 0, SEEK_SET), 0);
	assert_int_equal(archive_open_fd(out, &base, &reader, &err), 0);
	while ((rc = archive_next(reader, &item, &err)) > 0) {
		assert_int_equal(log_item(&log, reader, item, &err), 0);
		if (item->type == ARCHIVE_ITEM_FILE) {
			assert_int_equal(item->mode, 0640);
			assert_int_equal(item->uid, getuid());
			assert_int_equal(item->xattr_count, with_xattrs);
		}
	}
	assert_string_equal(err.text, "");
	assert_int_equal(rc, 0);
	assert_int_equal(archive_dropped_count(reader), 1);
	assert_int_equal(remove_tree_at(AT_FDCWD, path), 0);
	assert_true(strncmp(log.text, "d+ .\nf again 5 [hello]\nf nnnnnnn", 32) == 0);
	assert_non_null(strstr(log.text, "\nd d\nh d/file = 1\nl d/link -> ../no/where\nd d/e\n"
					 "f d/e/\303\244 6 [umlaut]\n"));
}

static void test_a_tree_keeps_its_holes(void **state)
{
	char path[64];
	_cleanup_close_ int dir = make_directory(path), out = memfd_create("tar", MFD_CLOEXEC);
	_cleanup_close_ int fd = openat(dir, "s", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	const struct archive_item *item;
	const void *data;
	uint64_t offset, total = 0;
	struct err err = {0};
	struct stat status;
	size_t size;

	(void)state;
	assert_int_equal(ftruncate(fd, 64 << 20), 0);
	assert_int_equal(pwrite(fd, "middle", 6, 32 << 20), 6);
	assert_int_equal(archive_write_tree(dir, out, &err), 0);
	assert_int_equal(fstat(out, &status), 0);
	/* A file system that tells no holes from data gives a large archive, which is right too. */
	if (lseek(fd, 0, SEEK_HOLE) == 0) {
		assert_true(status.st_size < 1 << 20);
	}
	assert_int_equal(lseek(out, 0, SEEK_SET), 0);
	assert_int_equal(archive_open_fd(out, &strict, &reader, &err), 0);
	assert_int_equal(archive_next(reader, &item, &err), 1);
	assert_int_equal(archive_next(reader, &item, &err), 1);
	assert_int_equal(item->size, 64 << 20);
	while (archive_data(reader, &data, &size, &offset, &err) > 0) {
		const char *found = memmem(data, size, "middle", 6);

		if (found) {
			total += offset + (uint64_t)(found - (const char *)data);
		}
	}
	assert_int_equal(total, 32 << 20);
	assert_int_equal(remove_tree_at(AT_FDCWD, path), 0);
}

static void test_writing_fails_when_the_reader_is_gone(void **state)
{
	char path[64];
	_cleanup_close_ int dir = make_directory(path);
	_cleanup_close_ int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
	struct err err = {0};

	(void)state;
	put_file(dir, "f", "x", 1);
	assert_int_equal(archive_write_tree(dir, full, &err), -ENOSPC);
	assert_string_not_equal(err.text, "");
	assert_int_equal(archive_write_tree(-EBADF, full, &err), -EBADF);
	assert_int_equal(remove_tree_at(AT_FDCWD, path), 0);
}

static void test_a_descriptor_that_cannot_be_read(void **state)
{
	_cleanup_close_ int dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct archive_reader *reader = NULL;
	struct err err = {0};

	(void)state;
	assert_int_equal(archive_open_fd(dir, &strict, &reader, &err), -EISDIR);
	assert_null(reader);
	assert_string_equal(err.text, "archive: Is a directory");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hostile_entries_are_refused),
		cmocka_unit_test(test_devices_are_dropped_and_stay_in_the_way),
		cmocka_unit_test(test_names_with_nul_are_refused),
		cmocka_unit_test(test_name_lengths),
		cmocka_unit_test(test_more_than_ten_million_entries_are_refused),
		cmocka_unit_test(test_broken_streams_are_refused),
		cmocka_unit_test(test_nothing_may_follow_the_end),
		cmocka_unit_test(test_broken_records_are_refused),
		cmocka_unit_test(test_records_with_wrong_values_are_refused),
		cmocka_unit_test(test_extended_headers_that_do_not_fit_are_refused),
		cmocka_unit_test(test_global_comment_is_read),
		cmocka_unit_test(test_items_of_a_plain_archive),
		cmocka_unit_test(test_attributes),
		cmocka_unit_test(test_extended_attributes_of_entries),
		cmocka_unit_test(test_too_many_extended_attributes_are_refused),
		cmocka_unit_test(test_base_256_numbers),
		cmocka_unit_test(test_numbers_that_are_none_are_refused),
		cmocka_unit_test(test_gnu_long_names),
		cmocka_unit_test(test_ustar_prefix),
		cmocka_unit_test(test_sparse_pax_1_0),
		cmocka_unit_test(test_sparse_pax_0_0_and_0_1),
		cmocka_unit_test(test_sparse_old_gnu),
		cmocka_unit_test(test_sparse_maps_that_lie_are_refused),
		cmocka_unit_test(test_a_map_in_the_data_may_not_outrun_it),
		cmocka_unit_test(test_data_that_is_not_asked_for_is_skipped),
		cmocka_unit_test(test_many_names),
		cmocka_unit_test(test_quotes),
		cmocka_unit_test(test_a_tree_goes_out_and_comes_back),
		cmocka_unit_test(test_a_tree_keeps_its_holes),
		cmocka_unit_test(test_writing_fails_when_the_reader_is_gone),
		cmocka_unit_test(test_a_descriptor_that_cannot_be_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
