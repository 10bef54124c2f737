/*
 * Logs (store/log.h), line by line, for the commands that show them.
 *
 * What stands in a log was said by commands and guests. So a line that is none is left out, and
 * nothing of it reaches a terminal that could drive it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "cli/cli.h"
#include "store/log.h"

/* Both files of a log hold some 40,000 lines of the shortest kind. */
#define LOG_ENTRIES_MAX 65536

struct log_lines {
	struct store *store;
	/* Of the log: a sandbox's name, or with STORE_LOG_NET. */
	const char *name;
	/* Called for each line that is a JSON object. 0, or a negative errno, which ends the
	 * reading. */
	int (*take)(void *data, const struct json *object, const char *line, size_t size);
	void *data;
	/* -EBADF at first. */
	int fd;
	size_t start;
	size_t filled;
	/* In the middle of a line that is too long to be one. */
	bool skipping;
	char bytes[2 * LOG_LINE_MAX];
};

/* Both files from their beginning. The reader stays at the end of the newer one. 0 or a negative
 * errno. */
int log_lines_read(struct log_lines *lines);
/* Prints the last wanted lines as they are (SIZE_MAX: all), in place of calling take, and with
 * follow what comes after them. 0 or a negative errno. */
int log_lines_print(struct log_lines *lines, size_t wanted, bool terminal, bool follow);
/* What comes from there on, until nobody reads standard output any more. */
int log_lines_follow(struct log_lines *lines);
/* Closes what is open; reading may begin anew. */
void log_lines_end(struct log_lines *lines);

/* 0 when there is a log, or at least the sandbox; else a negative errno with err filled. */
int log_lines_check(struct log_lines *lines, const char *sandbox, struct err *err);

/* How many lines --lines asks for, or unsaid without it. 0 or -EINVAL with err filled. */
int log_lines_wanted(const struct cli_args *args, size_t unsaid, size_t *ret_lines,
		     struct err *err);

/* Prints the text, or its beginning with dots when it has more characters than columns. */
void log_print_cut(const char *text, size_t columns);
/* Writes one character, as \u00NN in JSON and as text_quote has it otherwise when it is harmful. */
void log_put_harmless(FILE *out, const char *bytes, size_t length, bool json);
/* Prints a line that was parsed, and a newline. */
void log_print_line(const char *line, size_t size, bool terminal);
