#include "wire/change_text.h"

#include <errno.h>
#include <string.h>

#define DIGITS_MAX 8

void change_text_begin(struct change_text *text)
{
	*text = (struct change_text){0};
}

static bool take(const char **at, const char *word)
{
	size_t size = strlen(word);

	if (strncmp(*at, word, size) != 0) {
		return false;
	}
	*at += size;
	return true;
}

static bool take_number(const char **at, uint32_t *ret_number)
{
	uint32_t number = 0;
	unsigned digits = 0;

	for (; **at >= '0' && **at <= '9'; (*at)++) {
		if (++digits > DIGITS_MAX) {
			return false;
		}
		number = number * 10 + (uint32_t)(**at - '0');
	}
	*ret_number = number;
	return digits > 0;
}

/* "12,3", or "12" for one line. Where the range begins is of no interest here. */
static bool take_range(const char **at, uint32_t *ret_count)
{
	uint32_t first;

	*ret_count = 1;
	return take_number(at, &first) && (!take(at, ",") || take_number(at, ret_count));
}

/* A line that was kept, with a NUL instead of its newline. */
static int judge(struct change_text *text)
{
	const char *at = text->line;

	if (strlen(text->line) + 1 != text->filled) {
		return -EBADMSG;
	}
	if (text->line[0] == '\\') {
		return strcmp(at, "\\ No newline at end of file") == 0 ? 0 : -EBADMSG;
	}
	if (!take(&at, "@@ -") || !take_range(&at, &text->old_left) || !take(&at, " +") ||
	    !take_range(&at, &text->new_left) || strcmp(at, " @@") != 0) {
		return -EBADMSG;
	}
	return text->old_left > 0 || text->new_left > 0 ? 0 : -EBADMSG;
}

static int begin_line(struct change_text *text, uint8_t sign)
{
	bool in_hunk = text->old_left > 0 || text->new_left > 0;
	bool takes_old = sign == ' ' || sign == '-', takes_new = sign == ' ' || sign == '+';

	text->kept = (sign == '@' && !in_hunk) || (sign == '\\' && text->may_be_marked);
	text->may_be_marked = !text->kept;
	text->in_line = true;
	text->filled = 0;
	if (text->kept) {
		return 0;
	}
	if ((!takes_old && !takes_new) || (takes_old && text->old_left == 0) ||
	    (takes_new && text->new_left == 0)) {
		return -EBADMSG;
	}
	text->old_left -= takes_old;
	text->new_left -= takes_new;
	return 0;
}

/* Up to the end of the line, if it is there. Returns how many bytes, or -EBADMSG. */
static long take_rest(struct change_text *text, const uint8_t *bytes, size_t size)
{
	const uint8_t *end = memchr(bytes, '\n', size);
	size_t taken = end ? (size_t)(end - bytes) + 1 : size;
	int rc = 0;

	if (text->kept) {
		if (taken > sizeof(text->line) - text->filled) {
			return -EBADMSG;
		}
		memcpy(text->line + text->filled, bytes, taken);
		text->filled += taken;
		if (end) {
			text->line[text->filled - 1] = '\0';
			rc = judge(text);
		}
	}
	text->in_line = !end;
	return rc < 0 ? rc : (long)taken;
}

int change_text_feed(struct change_text *text, const uint8_t *bytes, size_t size)
{
	while (size > 0) {
		long taken;
		int rc = text->in_line ? 0 : begin_line(text, bytes[0]);

		if (rc < 0) {
			return rc;
		}
		taken = take_rest(text, bytes, size);
		if (taken < 0) {
			return (int)taken;
		}
		bytes += taken;
		size -= (size_t)taken;
	}
	return 0;
}

bool change_text_is_whole(const struct change_text *text)
{
	return !text->in_line && text->old_left == 0 && text->new_left == 0;
}
