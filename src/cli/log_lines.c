/*
 * Logs, line by line (see log_lines.h).
 */
#include "cli/log_lines.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "json/json.h"

/* Soon enough for a person, and nothing to speak of for the machine. */
#define FOLLOW_MS 200

void log_lines_end(struct log_lines *lines)
{
	close_fd(&lines->fd);
	lines->start = lines->filled = 0;
	lines->skipping = false;
}

/* The next whole line: 1, 0 when there is none now, or a negative errno. */
static int next_line(struct log_lines *lines, const char **ret_line, size_t *ret_size)
{
	for (;;) {
		const char *line = lines->bytes + lines->start;
		size_t left = lines->filled - lines->start;
		const char *end = memchr(line, '\n', left);
		ssize_t got;

		if (end) {
			bool skipped = lines->skipping;

			lines->skipping = false;
			lines->start += (size_t)(end - line) + 1;
			if (skipped) {
				continue;
			}
			*ret_line = line;
			*ret_size = (size_t)(end - line);
			return 1;
		}
		memmove(lines->bytes, line, left);
		lines->start = 0;
		lines->filled = left;
		if (left == sizeof(lines->bytes)) {
			lines->skipping = true;
			lines->filled = 0;
		}
		got = read(lines->fd, lines->bytes + lines->filled,
			   sizeof(lines->bytes) - lines->filled);
		if (got < 0 && errno != EINTR) {
			return -errno;
		}
		if (got == 0) {
			return 0;
		}
		lines->filled += got > 0 ? (size_t)got : 0;
	}
}

static bool is_same_file(int a, int b)
{
	struct stat first, second;

	return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
	       first.st_ino == second.st_ino;
}

/* Opens both files of the log; when one was put aside between the two, once more. */
static int open_both(struct log_lines *lines, int *ret_older)
{
	for (int i = 0; i < 3; i++) {
		_cleanup_close_ int current = store_log_open(lines->store, lines->name, false);
		_cleanup_close_ int older = store_log_open(lines->store, lines->name, true);

		if (current < 0 && current != -ENOENT) {
			return current;
		}
		if (older < 0 && older != -ENOENT) {
			return older;
		}
		if (current < 0 || older < 0 || !is_same_file(current, older)) {
			lines->fd = TAKE_FD(current);
			*ret_older = TAKE_FD(older);
			return 0;
		}
	}
	return -EAGAIN;
}

/* What there is to the end of the file. Lines that are no JSON object are left out. */
static int read_file(struct log_lines *lines)
{
	const char *line = NULL;
	size_t size = 0;
	int rc;

	while ((rc = next_line(lines, &line, &size)) > 0) {
		_cleanup_(json_freep) struct json *object = NULL;

		rc = json_parse(line, size, &object, NULL);
		if (rc == -EBADMSG || (rc == 0 && json_kind(object) != JSON_KIND_OBJECT)) {
			continue;
		}
		rc = rc < 0 ? rc : lines->take(lines->data, object, line, size);
		if (rc < 0) {
			return rc;
		}
	}
	return rc;
}

int log_lines_read(struct log_lines *lines)
{
	_cleanup_close_ int older = -EBADF;
	int current, rc;

	log_lines_end(lines);
	rc = open_both(lines, &older);
	if (rc < 0) {
		return rc;
	}
	current = TAKE_FD(lines->fd);
	if (older >= 0) {
		lines->fd = TAKE_FD(older);
		rc = read_file(lines);
		log_lines_end(lines);
	}
	lines->fd = current;
	return rc == 0 && current >= 0 ? read_file(lines) : rc;
}

/* Waits a moment. False when nobody reads standard output any more. */
static bool wait_for_more(void)
{
	struct pollfd out = {.fd = STDOUT_FILENO};

	fflush(stdout);
	return poll(&out, 1, FOLLOW_MS) <= 0 && !ferror(stdout);
}

int log_lines_follow(struct log_lines *lines)
{
	int rc = 0;

	while (rc == 0 && wait_for_more()) {
		_cleanup_close_ int fd = store_log_open(lines->store, lines->name, false);

		/* First: what came before the file was put aside is in the one that is open. */
		if (lines->fd >= 0) {
			rc = read_file(lines);
		}
		if (rc == 0 && fd >= 0 && (lines->fd < 0 || !is_same_file(fd, lines->fd))) {
			log_lines_end(lines);
			lines->fd = TAKE_FD(fd);
			rc = read_file(lines);
		}
	}
	return rc;
}

/* The log of a sandbox that was removed stays; without a log there must be a sandbox. */
struct printer {
	/* Lines so far, and how many of these are left out. */
	size_t seen;
	size_t skip;
	bool counts;
	bool terminal;
};

static int print_one(void *data, const struct json *object, const char *line, size_t size)
{
	struct printer *printer = data;

	(void)object;
	if (!printer->counts && printer->seen >= printer->skip) {
		log_print_line(line, size, printer->terminal);
	}
	printer->seen++;
	return 0;
}

int log_lines_print(struct log_lines *lines, size_t wanted, bool terminal, bool follow)
{
	struct printer printer = {.terminal = terminal};
	int rc = 0;

	lines->take = print_one;
	lines->data = &printer;
	if (wanted < SIZE_MAX) {
		printer.counts = true;
		rc = log_lines_read(lines);
		printer = (struct printer){
			.skip = printer.seen - MIN(printer.seen, wanted),
			.terminal = terminal,
		};
	}
	if (rc == 0) {
		rc = log_lines_read(lines);
	}
	if (rc == 0 && follow) {
		rc = log_lines_follow(lines);
	}
	lines->data = NULL;
	return rc;
}

int log_lines_check(struct log_lines *lines, const char *sandbox, struct err *err)
{
	_cleanup_close_ int current = store_log_open(lines->store, lines->name, false);
	_cleanup_close_ int older = store_log_open(lines->store, lines->name, true);
	_cleanup_close_ int sandbox_fd = -EBADF;

	if (current != -ENOENT || older != -ENOENT) {
		return 0;
	}
	sandbox_fd = store_open_sandbox(lines->store, sandbox, err);
	return sandbox_fd < 0 ? sandbox_fd : 0;
}

int log_lines_wanted(const struct cli_args *args, size_t unsaid, size_t *ret_lines, struct err *err)
{
	const char *text = cli_value(args, "lines");
	char *end = NULL;
	unsigned long number;
	int rc;

	*ret_lines = unsaid;
	if (!text) {
		return 0;
	}
	errno = 0;
	number = strtoul(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 ||
	    number > LOG_ENTRIES_MAX) {
		char quoted[64];

		text_quote(text, strlen(text), quoted, sizeof(quoted));
		rc = err_set(err, -EINVAL, "usage", "--lines: \"%s\" is not a number of lines",
			     quoted);
		err_mend(err, "write a number from 0 to %d", LOG_ENTRIES_MAX);
		return rc;
	}
	*ret_lines = number;
	return 0;
}

void log_print_cut(const char *text, size_t columns)
{
	size_t width = 0, length = 0, keep = 0;

	for (; text[length]; length++) {
		if (((unsigned char)text[length] & 0xc0) != 0x80) {
			if (width + 3 <= columns) {
				keep = length;
			}
			width++;
		}
	}
	if (width <= columns) {
		fputs(text, stdout);
	} else {
		printf("%.*s%.*s", columns > 3 ? (int)keep : 0, text, (int)MIN(columns, (size_t)3),
		       "...");
	}
}

void log_put_harmless(FILE *out, const char *bytes, size_t length, bool json)
{
	char quoted[4 * TEXT_QUOTE_GROWTH + 1];
	uint32_t code_point = 0;

	text_quote(bytes, length, quoted, sizeof(quoted));
	if ((length == 1 && strchr("\n\t\\\"", bytes[0]) && bytes[0] != '\0') ||
	    strncmp(quoted, bytes, length) == 0) {
		fwrite(bytes, 1, length, out);
	} else if (!json) {
		fputs(quoted, out);
	} else if (text_utf8_decode(bytes, length, &code_point) > 0 && code_point < 0x10000) {
		fprintf(out, "\\u%04x", code_point);
	} else {
		code_point -= 0x10000;
		fprintf(out, "\\u%04x\\u%04x", 0xd800 + (code_point >> 10),
			0xdc00 + (code_point & 0x3ff));
	}
}

void log_print_line(const char *line, size_t size, bool terminal)
{
	size_t length;

	if (!terminal) {
		fwrite(line, 1, size, stdout);
	}
	/* It was parsed: valid UTF-8. */
	for (size_t i = 0; terminal && i < size; i += length) {
		length = MAX(text_utf8_decode(line + i, size - i, NULL), (size_t)1);
		log_put_harmless(stdout, line + i, length, true);
	}
	putchar('\n');
}
