/*
 * Differences of texts: every diff, applied by a small patch(1) in here, makes the new text, and
 * has no more lines than the longest common subsequence says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "guest/diff_text.h"
#include "wire/change_text.h"

struct buffer {
	char *bytes;
	size_t size;
	size_t capacity;
};

static int append(void *data, const char *piece, size_t size)
{
	struct buffer *buffer = data;

	if (buffer->size + size + 1 > buffer->capacity) {
		buffer->capacity = (buffer->size + size + 1) * 2;
		buffer->bytes = realloc(buffer->bytes, buffer->capacity);
		assert_non_null(buffer->bytes);
	}
	memcpy(buffer->bytes + buffer->size, piece, size);
	buffer->size += size;
	buffer->bytes[buffer->size] = '\0';
	return 0;
}

static void buffer_clear(struct buffer *buffer)
{
	free(buffer->bytes);
}

/* A generator whose results are the same in every run. */
static uint32_t next_random(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(*state >> 33);
}

static size_t count_lines(const char *text, size_t size)
{
	size_t count = size > 0 && text[size - 1] != '\n';

	for (size_t i = 0; i < size; i++) {
		count += text[i] == '\n';
	}
	return count;
}

/* Where the next line begins. */
static const char *next_line(const char *at, const char *end)
{
	const char *newline = memchr(at, '\n', (size_t)(end - at));

	return newline ? newline + 1 : end;
}

struct patch {
	const char *old_at;
	const char *old_end;
	size_t old_line;
	struct buffer out;
	size_t edits;
};

/* Copies lines of the old text up to a line's number. */
static void copy_until(struct patch *patch, size_t line)
{
	while (patch->old_line < line) {
		const char *next = next_line(patch->old_at, patch->old_end);

		assert_true(patch->old_at < patch->old_end);
		append(&patch->out, patch->old_at, (size_t)(next - patch->old_at));
		patch->old_at = next;
		patch->old_line++;
	}
}

static void begin_hunk(struct patch *patch, const char *at)
{
	unsigned long old = 0, old_count = 1, new = 0, new_count = 1;
	char *end;

	assert_memory_equal(at, "@@ -", 4);
	old = strtoul(at + 4, &end, 10);
	if (*end == ',') {
		old_count = strtoul(end + 1, &end, 10);
	}
	assert_memory_equal(end, " +", 2);
	new = strtoul(end + 2, &end, 10);
	if (*end == ',') {
		new_count = strtoul(end + 1, &end, 10);
	}
	assert_memory_equal(end, " @@\n", 4);
	copy_until(patch, old_count > 0 ? old - 1 : old);
	assert_int_equal(count_lines(patch->out.bytes, patch->out.size),
			 new_count > 0 ? new - 1 : new);
}

/* Applies a diff; asserts that context and deleted lines are those of the old text. */
static void apply(struct patch *patch, const struct buffer *diff)
{
	const char *at = diff->bytes, *end = at + diff->size;

	while (at < end) {
		const char *next = next_line(at, end);
		size_t size = (size_t)(next - at) - 1;

		if (next < end && *next == '\\') {
			size--;
		}
		if (*at == '@') {
			begin_hunk(patch, at);
		} else if (*at == '+') {
			append(&patch->out, at + 1, size);
			patch->edits++;
		} else if (*at != '\\') {
			const char *old_next = next_line(patch->old_at, patch->old_end);

			assert_int_equal(old_next - patch->old_at, size);
			assert_memory_equal(patch->old_at, at + 1, size);
			if (*at == ' ') {
				append(&patch->out, at + 1, size);
			} else {
				assert_int_equal(*at, '-');
				patch->edits++;
			}
			patch->old_at = old_next;
			patch->old_line++;
		}
		at = next;
	}
	append(&patch->out, patch->old_at, (size_t)(patch->old_end - patch->old_at));
}

/* The host, which does not trust it, must take every diff. */
static void assert_host_takes(const struct buffer *diff)
{
	struct change_text text;

	change_text_begin(&text);
	assert_int_equal(change_text_feed(&text, (const uint8_t *)diff->bytes, diff->size), 0);
	assert_true(change_text_is_whole(&text));
}

/* Returns how many lines the diff deletes and inserts. */
static size_t check(const char *old, size_t old_size, const char *new, size_t new_size)
{
	_cleanup_(buffer_clear) struct buffer diff = {0};
	struct patch patch = {.old_at = old, .old_end = old + old_size};
	size_t edits;

	append(&patch.out, "", 0);
	append(&diff, "", 0);
	assert_int_equal(diff_text(old, old_size, new, new_size, append, &diff), 0);
	apply(&patch, &diff);
	assert_host_takes(&diff);
	assert_int_equal(patch.out.size, new_size);
	assert_memory_equal(patch.out.bytes, new, new_size);
	edits = patch.edits;
	assert_int_equal(edits == 0, diff.size == 0);
	free(patch.out.bytes);
	return edits;
}

/* Lines of one or two letters, the last perhaps without its newline. */
static size_t make_text(uint64_t *state, uint32_t lines, uint32_t letters, char *out)
{
	size_t size = 0;

	for (uint32_t i = 0; i < lines; i++) {
		out[size++] = (char)('a' + next_random(state) % letters);
		if (next_random(state) % 4 == 0) {
			out[size++] = 'x';
		}
		out[size++] = '\n';
	}
	return size > 0 && next_random(state) % 3 == 0 ? size - 1 : size;
}

#define LINES_MAX 40

/* Lines less twice the longest common subsequence, by the table that everybody knows. */
static size_t shortest(const char *old, size_t old_size, const char *new, size_t new_size)
{
	size_t rows = count_lines(old, old_size), columns = count_lines(new, new_size);
	size_t table[LINES_MAX + 1][LINES_MAX + 1] = {{0}};
	const char *a = old;

	for (size_t i = 1; i <= rows; i++) {
		const char *a_next = next_line(a, old + old_size), *b = new;

		for (size_t k = 1; k <= columns; k++) {
			const char *b_next = next_line(b, new + new_size);

			table[i][k] = MAX(table[i - 1][k], table[i][k - 1]);
			if (a_next - a == b_next - b && memcmp(a, b, (size_t)(a_next - a)) == 0) {
				table[i][k] = MAX(table[i][k], table[i - 1][k - 1] + 1);
			}
			b = b_next;
		}
		a = a_next;
	}
	return rows + columns - 2 * table[rows][columns];
}

static void test_random(void **state)
{
	uint64_t random = 20260101;
	char old[3 * LINES_MAX], new[3 * LINES_MAX];

	(void)state;
	for (int round = 0; round < 20000; round++) {
		uint32_t letters = 1 + next_random(&random) % 6;
		size_t old_size =
			make_text(&random, next_random(&random) % LINES_MAX, letters, old);
		size_t new_size =
			make_text(&random, next_random(&random) % LINES_MAX, letters, new);

		assert_int_equal(check(old, old_size, new, new_size),
				 shortest(old, old_size, new, new_size));
	}
}

static void assert_diff(const char *old, const char *new, const char *expected)
{
	_cleanup_(buffer_clear) struct buffer diff = {0};

	append(&diff, "", 0);
	assert_int_equal(diff_text(old, strlen(old), new, strlen(new), append, &diff), 0);
	assert_string_equal(diff.bytes, expected);
}

static void test_form(void **state)
{
	(void)state;
	assert_diff("", "", "");
	assert_diff("a\n", "a\n", "");
	assert_diff("", "a\n", "@@ -0,0 +1 @@\n+a\n");
	assert_diff("a\nb\n", "", "@@ -1,2 +0,0 @@\n-a\n-b\n");
	assert_diff("a", "a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n");
	assert_diff("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\n5x\n6\n7\n8\n9\n",
		    "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+5x\n 6\n 7\n 8\n");
	/* Six lines between two changes are one hunk, seven are two. */
	assert_diff("a\n1\n2\n3\n4\n5\n6\nb\n", "A\n1\n2\n3\n4\n5\n6\nB\n",
		    "@@ -1,8 +1,8 @@\n-a\n+A\n 1\n 2\n 3\n 4\n 5\n 6\n-b\n+B\n");
	assert_diff("a\n1\n2\n3\n4\n5\n6\n7\nb\n", "A\n1\n2\n3\n4\n5\n6\n7\nB\n",
		    "@@ -1,4 +1,4 @@\n-a\n+A\n 1\n 2\n 3\n"
		    "@@ -6,4 +6,4 @@\n 5\n 6\n 7\n-b\n+B\n");
}

/* Texts that would take hours in full: the diff is long, but right, and it comes. */
static void test_limit(void **state)
{
	size_t size = DIFF_TEXT_MAX;
	_cleanup_free_ char *old = malloc(size), *new = malloc(size);
	uint64_t random = 7;
	size_t edits;

	(void)state;
	assert_non_null(old);
	assert_non_null(new);
	for (size_t i = 0; i < size; i++) {
		old[i] = i % 8 == 7 ? '\n' : (char)('a' + next_random(&random) % 2);
		new[i] = i % 8 == 7 ? '\n' : (char)('a' + next_random(&random) % 2);
	}
	edits = check(old, size, new, size);
	assert_true(edits > size / 8 && edits <= size / 4);
	memset(old, '\n', size);
	memset(new, '\n', size);
	assert_int_equal(check(old, size, new, size), 0);
	new[size / 2] = 'x';
	assert_int_equal(check(old, size, new, size - 100), 103);
}

static int refuse(void *data, const char *piece, size_t size)
{
	(void)data;
	(void)piece;
	(void)size;
	return -5;
}

static void test_sink_fails(void **state)
{
	(void)state;
	assert_int_equal(diff_text("a\n", 2, "b\n", 2, refuse, NULL), -5);
	assert_int_equal(diff_text("a\n", 2, "a\n", 2, refuse, NULL), 0);
}

static void test_is_text(void **state)
{
	_cleanup_free_ char *bytes = malloc(65537);

	(void)state;
	assert_non_null(bytes);
	memset(bytes, 0xff, 65537);
	bytes[65536] = '\0';
	assert_true(diff_text_is_text(bytes, 65537));
	assert_true(diff_text_is_text(bytes, 0));
	bytes[65535] = '\0';
	assert_false(diff_text_is_text(bytes, 65537));
	assert_true(diff_text_is_text(bytes, 65535));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),	cmocka_unit_test(test_form),
		cmocka_unit_test(test_limit),	cmocka_unit_test(test_sink_fails),
		cmocka_unit_test(test_is_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
