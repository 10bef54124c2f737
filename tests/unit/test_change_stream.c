/* src/wire: streams of changes, as they arrive. */
#include "wire/change_stream.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROOM ((size_t)1 << 17)

static uint8_t bytes[ROOM];
static size_t filled;
static struct change_stream stream;

static void add_record(const char *path)
{
	struct change change = {
		.kind = CHANGE_ADDED,
		.new = {.type = CHANGE_TYPE_FILE, .mode = 0644},
		.path = path,
		.from = "",
		.old_target = "",
		.new_target = "",
	};
	int size = change_encode(&change, bytes + filled);

	assert_true(size > 0);
	filled += (size_t)size;
}

static void add_text(const char *text)
{
	filled += (size_t)change_text_encode(text, strlen(text), bytes + filled);
}

static void add_end(uint64_t count)
{
	filled += (size_t)change_end_encode(count, bytes + filled);
}

/* Feeds all of it in pieces and writes a letter for each event; "!" for a refusal. */
static const char *feed(size_t piece, bool with_text)
{
	static char letters[64];
	size_t at = 0, count = 0;
	int event = 0;

	change_stream_begin(&stream, with_text);
	while (at < filled && !stream.ended && event >= 0) {
		size_t used = 0, left = filled - at;

		event = change_stream_feed(&stream, bytes + at, left < piece ? left : piece, &used);
		at += used;
		if (event != CHANGE_EVENT_NONE) {
			assert_true(event > 0 || event == -EBADMSG);
			letters[count++] = event < 0 ? '!' : " RTE"[event];
		}
	}
	letters[count] = '\0';
	return letters;
}

static int begin(void **state)
{
	(void)state;
	filled = 0;
	return 0;
}

static void whole_streams(void **state)
{
	(void)state;
	add_record("a");
	add_text("@@ -1 +1,2 @@\n-on");
	add_text("e\n+two\n+three\n\\ No newline at end of file\n");
	add_record("a/b");
	add_end(2);
	for (size_t piece = 1; piece < filled + 2; piece++) {
		assert_string_equal(feed(piece, true), "RTTRE");
		assert_int_equal(stream.count, 2);
		assert_string_equal(stream.last_path, "a/b");
	}
}

static void what_follows_is_not_touched(void **state)
{
	size_t used, whole;

	(void)state;
	add_end(0);
	whole = filled;
	memset(bytes + filled, 0xff, 100);
	change_stream_begin(&stream, false);
	assert_int_equal(change_stream_feed(&stream, bytes, whole + 100, &used), CHANGE_EVENT_END);
	assert_int_equal(used, whole);
}

static void order_is_held(void **state)
{
	(void)state;
	add_record("b");
	add_record("a");
	add_end(2);
	assert_string_equal(feed(7, false), "R!");
	filled = 0;
	add_record("a");
	add_record("a");
	assert_string_equal(feed(7, false), "R!");
	/* Bytes count, not letters. */
	filled = 0;
	add_record("a/b");
	add_record("a-");
	assert_string_equal(feed(7, false), "R!");
	filled = 0;
	add_record("\x7f");
	add_record("\x80");
	add_end(2);
	assert_string_equal(feed(7, false), "RRE");
}

static void counts_are_held(void **state)
{
	(void)state;
	add_record("a");
	add_end(2);
	assert_string_equal(feed(100, false), "R!");
	filled = 0;
	add_end(1);
	assert_string_equal(feed(100, false), "!");
}

static void text_only_where_it_was_asked_for(void **state)
{
	(void)state;
	add_record("a");
	add_text("@");
	assert_string_equal(feed(100, true), "RT");
	assert_int_equal(stream.text_size, 1);
	assert_string_equal(feed(100, false), "R!");
	filled = 0;
	add_text("@");
	assert_string_equal(feed(100, true), "!");
}

/* What a program that reads patches could take for another file, or for the end of this one. */
static void text_is_whole_hunks(void **state)
{
	static const char *const good[] = {
		"@@ -1 +0,0 @@\n--- a/x\n",
		"@@ -0,0 +1 @@\n+++ b/x\n\\ No newline at end of file\n",
		"@@ -1,2 +1,2 @@\n-a\n\\ No newline at end of file\n+b\n c\n@@ -9 +8,0 @@\n-d\n",
		"@@ -99999999,1 +1,1 @@\n \n",
	};
	static const char *const bad[] = {
		"x",
		"\n",
		"-a\n",
		"--- a/x\n+++ b/x\n",
		"diff --git a/x b/x\n",
		"\\ No newline at end of file\n",
		"@@ -1 +1 @@\n-a\n",
		"@@ -1 +1 @@\n-a\n+b",
		"@@ -1 +1 @@\n-a\n-b\n",
		"@@ -1 +1 @@\n-a\n+b\n+c\n",
		"@@ -1 +1 @@\n-a\n+b\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
		"@@ -1 +1 @@\n-a\n+b\ndiff --git a/x b/x\n",
		"@@ -1 +1 @@\n-a\n+b\n\n",
		"@@ -1 +1 @@\n-a\n@@ -1 +1 @@\n+b\n",
		"@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file, but more\n",
		"@@ -1 +1 @@\n-a\n+b\n\\ x\n",
		"@@ -1 +1 @@ more\n-a\n+b\n",
		"@@ -0,0 +0,0 @@\n",
		"@@ -1 +1\n",
		"@@ -100000000 +1 @@\n-a\n+b\n",
		"@@ -1,0000000000000000000000000000000000000000000000000000000001 +1 @@\n-a\n+b\n",
		"@@ -1 +1 @@",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		filled = 0;
		add_record("a");
		add_text(good[i]);
		add_record("b");
		add_text(good[i]);
		add_end(2);
		assert_string_equal(feed(5, true), "RTRTE");
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		for (unsigned end = 0; end < 2; end++) {
			const char *events;

			filled = 0;
			add_record("a");
			add_text(bad[i]);
			if (end > 0) {
				add_end(1);
			} else {
				add_record("b");
			}
			events = feed(1000, true);
			assert_int_equal(events[strlen(events) - 1], '!');
		}
	}
}

static void no_byte_hides_in_a_header(void **state)
{
	static const char text[] = "@@ -1 +1 @@\0hidden\n-a\n+b\n";

	(void)state;
	add_record("a");
	filled += (size_t)change_text_encode(text, sizeof(text) - 1, bytes + filled);
	assert_string_equal(feed(1000, true), "R!");
}

static void sizes_and_types(void **state)
{
	static const uint8_t none[] = {0, 0, 0, 0}, huge[] = {0, 0, 1, 0},
			     unknown[] = {1, 0, 0, 0, 9};

	(void)state;
	memcpy(bytes, none, filled = sizeof(none));
	assert_string_equal(feed(1, true), "!");
	memcpy(bytes, huge, filled = sizeof(huge));
	assert_string_equal(feed(1, true), "!");
	memcpy(bytes, unknown, filled = sizeof(unknown));
	assert_string_equal(feed(1, true), "!");
}

static void too_many_records(void **state)
{
	(void)state;
	add_record("b");
	change_stream_begin(&stream, false);
	stream.count = CHANGE_RECORDS_MAX;
	assert_int_equal(change_stream_feed(&stream, bytes, filled, &(size_t){0}), -EBADMSG);
	change_stream_begin(&stream, false);
	stream.count = CHANGE_RECORDS_MAX - 1;
	assert_int_equal(change_stream_feed(&stream, bytes, filled, &(size_t){0}),
			 CHANGE_EVENT_RECORD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(whole_streams, begin),
		cmocka_unit_test_setup(what_follows_is_not_touched, begin),
		cmocka_unit_test_setup(order_is_held, begin),
		cmocka_unit_test_setup(counts_are_held, begin),
		cmocka_unit_test_setup(text_only_where_it_was_asked_for, begin),
		cmocka_unit_test_setup(text_is_whole_hunks, begin),
		cmocka_unit_test_setup(no_byte_hides_in_a_header, begin),
		cmocka_unit_test_setup(sizes_and_types, begin),
		cmocka_unit_test_setup(too_many_records, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
