/* The codec of changes: what it carries, and what it refuses. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "wire/change.h"

static uint8_t frame[CHANGE_FRAME_MAX + 4];

#define FILE_SIDE                                                                                  \
	{                                                                                          \
		.type = CHANGE_TYPE_FILE, .mode = 0644, .uid = 1, .gid = 2, .size = 3              \
	}

/* One of each kind, to be changed by the tests. */
static struct change added(void)
{
	return (struct change){.kind = CHANGE_ADDED,
			       .new = FILE_SIDE,
			       .path = "a/b",
			       .from = "",
			       .old_target = "",
			       .new_target = ""};
}

static struct change modified(void)
{
	struct change change = added();

	change.kind = CHANGE_MODIFIED;
	change.flags = CHANGE_FLAG_CONTENT;
	change.old = change.new;
	return change;
}

static struct change renamed(void)
{
	struct change change = modified();

	change.kind = CHANGE_RENAMED;
	change.flags = 0;
	change.from = "old\n\xff";
	return change;
}

static struct change link_modified(void)
{
	struct change change = modified();

	change.old = (struct change_side){.type = CHANGE_TYPE_SYMLINK, .mode = 0777};
	change.new = change.old;
	change.flags = CHANGE_FLAG_TARGET;
	change.old_target = "x";
	change.new_target = "/y";
	return change;
}

static void assert_same(const struct change *a, const struct change *b)
{
	assert_int_equal(a->kind, b->kind);
	assert_int_equal(a->flags, b->flags);
	assert_memory_equal(&a->old, &b->old, sizeof(a->old));
	assert_memory_equal(&a->new, &b->new, sizeof(a->new));
	assert_string_equal(a->path, b->path);
	assert_string_equal(a->from, b->from);
	assert_string_equal(a->old_target, b->old_target);
	assert_string_equal(a->new_target, b->new_target);
}

/* Goes through the codec, and is refused at every other length. */
static void assert_carried(struct change change)
{
	struct change back;
	int size = change_encode(&change, frame);

	assert_true(size > 5);
	assert_int_equal(change_frame_size(frame), size - 4);
	assert_int_equal(frame[4], CHANGE_RECORD);
	assert_int_equal(change_decode(frame + 5, (size_t)size - 5, &back), 0);
	assert_same(&change, &back);
	for (size_t cut = 0; cut <= (size_t)size - 5 + 1; cut++) {
		_cleanup_free_ uint8_t *copy = malloc(cut + 1);

		assert_non_null(copy);
		memcpy(copy, frame + 5, cut);
		assert_int_equal(change_decode(copy, cut, &back),
				 cut == (size_t)size - 5 ? 0 : -EBADMSG);
	}
}

static void assert_refused(struct change change)
{
	assert_int_equal(change_encode(&change, frame), -EINVAL);
}

static void test_carried(void **state)
{
	struct change change;

	(void)state;
	assert_carried(added());
	assert_carried(modified());
	assert_carried(renamed());
	assert_carried(link_modified());
	change = added();
	change.kind = CHANGE_DELETED;
	change.old = change.new;
	change.new = (struct change_side){0};
	assert_carried(change);
	change = modified();
	change.new = link_modified().new;
	change.new_target = "x";
	change.flags = CHANGE_FLAG_TYPE;
	assert_carried(change);
	change = modified();
	change.path = ".";
	change.old = (struct change_side){.type = CHANGE_TYPE_DIRECTORY, .mode = 0755};
	change.new = (struct change_side){.type = CHANGE_TYPE_DIRECTORY, .mode = 07700};
	change.flags = CHANGE_FLAG_MODE;
	assert_carried(change);
}

static void test_paths(void **state)
{
	static const char *const bad[] = {"",	 "/",	"/a",	"a/",	"a//b",	 "..",
					  "a/.", "./a", "a/..", "../a", "a/./b", "a/../b"};
	static const char *const good[] = {"...", "..a/.b", "-", "\x1b[0m\n", "a/ /b"};
	char longest[CHANGE_PATH_MAX + 2], name[CHANGE_COMPONENT_MAX + 2];
	struct change change;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		change = added();
		change.path = bad[i];
		assert_refused(change);
		change = renamed();
		change.from = bad[i];
		assert_refused(change);
	}
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		change = added();
		change.path = good[i];
		assert_carried(change);
	}
	memset(longest, 'x', sizeof(longest));
	for (size_t i = 1; i < sizeof(longest); i += 2) {
		longest[i] = '/';
	}
	longest[CHANGE_PATH_MAX - 1] = 'y';
	longest[CHANGE_PATH_MAX] = '\0';
	change = renamed();
	change.old = change.new = link_modified().new;
	change.flags = CHANGE_FLAG_TARGET;
	change.from = change.old_target = longest;
	change.path = strdup(longest);
	change.new_target = strdup(longest);
	assert_true(change.path && change.new_target);
	((char *)(uintptr_t)change.path)[0] = 'z';
	((char *)(uintptr_t)change.new_target)[0] = 'z';
	assert_true(change_encode(&change, frame) > 4 * CHANGE_PATH_MAX);
	free((char *)(uintptr_t)change.path);
	free((char *)(uintptr_t)change.new_target);
	change = added();
	longest[CHANGE_PATH_MAX] = 'y';
	longest[CHANGE_PATH_MAX + 1] = '\0';
	change.path = longest;
	assert_refused(change);
	memset(name, 'n', sizeof(name));
	name[CHANGE_COMPONENT_MAX + 1] = '\0';
	change.path = name;
	assert_refused(change);
	change.path = name + 1;
	assert_carried(change);
}

/* Each spoils one field of a good change. */
static void test_refused(void **state)
{
	struct change change;

	(void)state;
#define REFUSED(base, spoil)                                                                       \
	do {                                                                                       \
		change = base();                                                                   \
		spoil;                                                                             \
		assert_refused(change);                                                            \
	} while (0)
	REFUSED(added, change.kind = 0);
	REFUSED(added, change.kind = 5);
	REFUSED(added, change.kind = CHANGE_DELETED);
	REFUSED(added, change.kind = CHANGE_RENAMED);
	REFUSED(added, change.flags = CHANGE_FLAG_MODE);
	REFUSED(added, change.from = "x");
	REFUSED(added, change.old = change.new);
	REFUSED(added, change.new.type = 7);
	REFUSED(added, change.new.mode = 010000);
	REFUSED(added, change.new.uid = UINT32_MAX);
	REFUSED(added, change.new.gid = UINT32_MAX);
	REFUSED(added, change.new.type = CHANGE_TYPE_DIRECTORY);
	REFUSED(added, change.new_target = "x");
	REFUSED(added, change.old_target = "x");
	REFUSED(added, change.path = ".");
	REFUSED(modified, change.flags = 0);
	REFUSED(modified, change.flags = 1u << 6);
	REFUSED(modified, change.flags = CHANGE_FLAG_TYPE);
	REFUSED(modified, change.flags |= CHANGE_FLAG_TARGET);
	REFUSED(modified, change.flags |= CHANGE_FLAG_MODE);
	REFUSED(modified, change.flags |= CHANGE_FLAG_OWNER);
	REFUSED(modified, change.new.mode = 0600);
	REFUSED(modified, change.new.gid = 7);
	REFUSED(modified, change.flags = CHANGE_FLAG_XATTRS; change.new.size = 9);
	REFUSED(modified, change.path = ".");
	REFUSED(modified, change.from = "x");
	REFUSED(modified, change.new = (struct change_side){0});
	REFUSED(modified, change.new = (struct change_side){.type = CHANGE_TYPE_FIFO});
	REFUSED(renamed, change.from = "");
	REFUSED(renamed, change.from = "a/b");
	REFUSED(renamed, change.from = ".");
	REFUSED(renamed, change.path = ".");
	REFUSED(renamed, change.new = (struct change_side){.type = CHANGE_TYPE_FIFO};
		change.flags = CHANGE_FLAG_TYPE);
	REFUSED(link_modified, change.new_target = "");
	REFUSED(link_modified, change.new_target = "x");
	REFUSED(link_modified, change.flags |= CHANGE_FLAG_CONTENT);
#undef REFUSED
}

static void test_content(void **state)
{
	struct change change = added();

	(void)state;
	assert_true(change_has_content(&change));
	change.new.type = CHANGE_TYPE_FIFO;
	assert_false(change_has_content(&change));
	change = renamed();
	assert_false(change_has_content(&change));
	change.flags = CHANGE_FLAG_MODE | CHANGE_FLAG_OWNER;
	assert_false(change_has_content(&change));
	change.flags |= CHANGE_FLAG_XATTRS;
	assert_true(change_has_content(&change));
	change.flags = CHANGE_FLAG_TYPE;
	change.new.type = CHANGE_TYPE_SOCKET;
	assert_false(change_has_content(&change));
}

static void test_other_frames(void **state)
{
	static const uint8_t text[CHANGE_FRAME_MAX];
	uint64_t count = 0;
	int size = change_end_encode(77, frame);

	(void)state;
	assert_int_equal(size, 13);
	assert_int_equal(frame[4], CHANGE_END);
	assert_int_equal(change_end_decode(frame + 5, 8, &count), 0);
	assert_int_equal(count, 77);
	assert_int_equal(change_end_decode(frame + 5, 7, &count), -EBADMSG);
	assert_int_equal(change_end_encode(CHANGE_RECORDS_MAX + 1ull, frame), -EINVAL);
	memset(frame + 5, 0xff, 8);
	assert_int_equal(change_end_decode(frame + 5, 8, &count), -EBADMSG);

	assert_int_equal(change_text_encode(text, 0, frame), -EINVAL);
	assert_int_equal(change_text_encode(text, CHANGE_FRAME_MAX, frame), -EMSGSIZE);
	assert_int_equal(change_text_encode(text, CHANGE_FRAME_MAX - 1, frame),
			 CHANGE_FRAME_MAX + 4);
	assert_int_equal(change_frame_size(frame), CHANGE_FRAME_MAX);
	memcpy(frame, "\0\0\0\0", 4);
	assert_int_equal(change_frame_size(frame), -EBADMSG);
	memcpy(frame, "\x01\x50\0\0", 4);
	assert_int_equal(change_frame_size(frame), -EBADMSG);
	memcpy(frame, "\0\0\0\x80", 4);
	assert_int_equal(change_frame_size(frame), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_carried),	     cmocka_unit_test(test_paths),
		cmocka_unit_test(test_refused),	     cmocka_unit_test(test_content),
		cmocka_unit_test(test_other_frames),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
