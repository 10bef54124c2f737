/*
 * `box logs`: what ran in a sandbox, and what is kept of its output.
 *
 * The log is written by keepers, but what stands in it was said by commands and guests. So a line
 * that is none is left out, and nothing of it reaches a terminal that could drive it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/log_lines.h"
#include "json/json.h"
#include "spec/spec.h"
#include "store/log.h"

/* A screen. */
#define LINES_DEFAULT 20
#define CHUNK_BYTES 65536
#define ID_SIZE 16

/* One command. */
struct entry {
	char time[40];
	char id[ID_SIZE];
	bool ended;
	char exit[24];
	int64_t duration_ms;
	/* Of both streams: what the guest sent. */
	int64_t sent[2];
	/* Quoted, owned. */
	char *command;
};

struct logs {
	struct store store;
	const char *name;
	bool json;
	bool follow;
	bool terminal;
	/* How many of the last lines are wanted. */
	size_t lines;
	struct entry *entries;
	size_t count;
	/* --follow: commands that end are printed at once. */
	bool live;
	struct log_lines reader;
};

static void free_logs(struct logs *logs)
{
	for (size_t i = 0; i < logs->count; i++) {
		free(logs->entries[i].command);
	}
	free(logs->entries);
	log_lines_end(&logs->reader);
	store_close(&logs->store);
}

static void copy_time(struct entry *entry, const struct json *line, const char *key)
{
	const char *time = json_get_string(line, key);

	text_quote(time ? time : "-", time ? strlen(time) : 1, entry->time, sizeof(entry->time));
}

static void copy_exit(struct entry *entry, const struct json *line)
{
	const char *signal = NULL;
	bool timed_out = false;
	int64_t number;

	json_get_boolean(line, "timed_out", &timed_out);
	if (timed_out) {
		snprintf(entry->exit, sizeof(entry->exit), "timeout");
	} else if (json_get_integer(line, "exit_code", &number) == 0) {
		snprintf(entry->exit, sizeof(entry->exit), "%lld", (long long)number);
	} else if (json_get_integer(line, "signal", &number) == 0) {
		signal = number > 0 && number < 65 ? sigabbrev_np((int)number) : NULL;
		if (signal) {
			snprintf(entry->exit, sizeof(entry->exit), "SIG%s", signal);
		} else {
			snprintf(entry->exit, sizeof(entry->exit), "signal %lld",
				 (long long)number);
		}
	} else {
		snprintf(entry->exit, sizeof(entry->exit), "failed");
	}
}

static int64_t number_of(const struct json *line, const char *key)
{
	int64_t number = 0;

	json_get_integer(line, key, &number);
	return MAX(number, 0);
}

/* The last command of that ID that has not ended, or of any state when ended is set. */
static struct entry *find_entry(const struct logs *logs, const char *id, bool ended)
{
	for (size_t i = logs->count; i > 0; i--) {
		struct entry *entry = &logs->entries[i - 1];

		if (strcmp(entry->id, id) == 0 && (ended || !entry->ended)) {
			return entry;
		}
	}
	return NULL;
}

static struct entry *add_entry(struct logs *logs, const char *id)
{
	struct entry *entry;

	if (!logs->entries) {
		/* Pages that are not used cost nothing. */
		logs->entries = calloc(LOG_ENTRIES_MAX, sizeof(*logs->entries));
		if (!logs->entries) {
			return NULL;
		}
	}
	if (logs->count == LOG_ENTRIES_MAX) {
		size_t half = LOG_ENTRIES_MAX / 2;

		for (size_t i = 0; i < half; i++) {
			free(logs->entries[i].command);
		}
		memmove(logs->entries, logs->entries + half, half * sizeof(*logs->entries));
		logs->count = half;
	}
	entry = &logs->entries[logs->count++];
	*entry = (struct entry){.exit = "running?"};
	snprintf(entry->id, sizeof(entry->id), "%s", id);
	return entry;
}

static bool is_id(const char *id)
{
	return id && id[0] != '\0' && strlen(id) < ID_SIZE &&
	       id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789")] == '\0';
}

/* Takes in one line. *ret_ended is the command that it ends, or NULL. 0 or -ENOMEM. */
static int take_line(struct logs *logs, const struct json *line, struct entry **ret_ended)
{
	const char *event = json_get_string(line, "event");
	const char *id = json_get_string(line, "id");
	struct entry *entry;

	*ret_ended = NULL;
	if (!event || !is_id(id)) {
		return 0;
	}
	if (strcmp(event, "start") == 0) {
		entry = add_entry(logs, id);
		if (entry) {
			copy_time(entry, line, "time");
			entry->command = cli_command_line(line, 0);
		}
		return entry && entry->command ? 0 : -ENOMEM;
	}
	if (strcmp(event, "end") != 0) {
		return 0;
	}
	entry = find_entry(logs, id, false);
	if (!entry) {
		/* Its beginning went with an older file. */
		entry = add_entry(logs, id);
		if (!entry) {
			return -ENOMEM;
		}
		copy_time(entry, line, "started");
		entry->command = strdup("-");
	}
	entry->ended = true;
	copy_exit(entry, line);
	entry->duration_ms = number_of(line, "duration_ms");
	entry->sent[0] = number_of(line, "stdout_bytes");
	entry->sent[1] = number_of(line, "stderr_bytes");
	*ret_ended = entry;
	return entry->command ? 0 : -ENOMEM;
}

static void print_headings(const struct logs *logs)
{
	bool bold = cli_has_color(stdout);

	if (logs->terminal) {
		printf("%s%-24s  %-6s  %-8s  %9s  %12s  %s%s\n", bold ? "\033[1m" : "", "TIME",
		       "ID", "EXIT", "SECONDS", "BYTES", "COMMAND", bold ? "\033[0m" : "");
	}
}

static void print_entry(const struct logs *logs, const struct entry *entry)
{
	uint64_t bytes = (uint64_t)entry->sent[0] + (uint64_t)entry->sent[1];
	char duration[32] = "-", size[32] = "-";
	int used;

	if (entry->ended) {
		snprintf(duration, sizeof(duration), "%lld.%03lld",
			 (long long)entry->duration_ms / 1000,
			 (long long)entry->duration_ms % 1000);
		snprintf(size, sizeof(size), "%llu", (unsigned long long)bytes);
	}
	if (!logs->terminal) {
		printf("%s\t%s\t%s\t%s\t%s\t%s\n", entry->time, entry->id, entry->exit, duration,
		       size, entry->command);
		return;
	}
	used = printf("%-24s  %-6s  %-8s  %9s  %12s  ", entry->time, entry->id, entry->exit,
		      duration, size);
	log_print_cut(entry->command,
		      used < 0 ? 0
			       : cli_terminal_columns(stdout) -
					 MIN(cli_terminal_columns(stdout), (size_t)used));
	putchar('\n');
}

static int take_entry(void *data, const struct json *object, const char *line, size_t size)
{
	struct logs *logs = data;
	struct entry *ended = NULL;
	int rc;

	(void)line;
	(void)size;
	rc = take_line(logs, object, &ended);
	if (rc == 0 && logs->live && ended) {
		print_entry(logs, ended);
	}
	return rc;
}

/* Both files. live: what there is to print is printed at once. */
static int read_all(struct logs *logs, bool live)
{
	logs->live = live;
	return log_lines_read(&logs->reader);
}

static int print_table(struct logs *logs)
{
	int rc = read_all(logs, false);

	if (rc < 0) {
		return rc;
	}
	if (logs->count > 0 || logs->follow) {
		print_headings(logs);
	} else if (logs->terminal) {
		fprintf(stderr, "nothing has run in %s yet\n", logs->name);
	}
	for (size_t i = logs->count - MIN(logs->count, logs->lines); i < logs->count; i++) {
		print_entry(logs, &logs->entries[i]);
	}
	return 0;
}

/* Copies what is whole of the bytes and returns how many these were; with last, all. */
static size_t put_text(FILE *out, const char *bytes, size_t size, bool last)
{
	size_t i = 0;

	while (i < size) {
		size_t length = text_utf8_decode(bytes + i, size - i, NULL);

		if (!last && size - i < 4 && (length == 0 || bytes[i] == '\r')) {
			break;
		}
		if (bytes[i] == '\r' && i + 1 < size && bytes[i + 1] == '\n') {
			/* As a terminal writes the end of a line. */
			fputc('\r', out);
		} else {
			log_put_harmless(out, bytes + i, MAX(length, (size_t)1), false);
		}
		i += MAX(length, (size_t)1);
	}
	return i;
}

static int copy_output(int fd, FILE *out, bool raw)
{
	_cleanup_free_ char *chunk = malloc(CHUNK_BYTES);
	size_t filled = 0, used;

	if (!chunk) {
		return -ENOMEM;
	}
	for (;;) {
		ssize_t got = read(fd, chunk + filled, CHUNK_BYTES - filled);

		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got < 0) {
			return -errno;
		}
		filled += (size_t)got;
		used = raw ? fwrite(chunk, 1, filled, out) : put_text(out, chunk, filled, got == 0);
		if (got == 0 || ferror(out)) {
			break;
		}
		memmove(chunk, chunk + used, filled - used);
		filled -= used;
	}
	return fflush(out) == 0 ? 0 : -errno;
}

/* Says what of a stream is not there. */
static void tell_missing(const struct entry *entry, int channel, uint64_t size)
{
	const char *stream = channel == 1 ? "output" : "error";
	uint64_t sent = entry && entry->ended ? (uint64_t)entry->sent[channel - 1] : 0;

	if (sent <= size) {
		return;
	}
	if (size == 0) {
		fprintf(stderr, "box: none of the %llu bytes of standard %s are kept\n",
			(unsigned long long)sent, stream);
		return;
	}
	/* More than a tail is there only when all was to be kept; then the end is missing. */
	fprintf(stderr, "box: the %s %llu bytes of standard %s were not kept\n",
		size > LOG_TAIL_BYTES ? "last" : "first", (unsigned long long)(sent - size),
		stream);
}

/* Prints one stream. 1 when it is there, 0 when nothing is kept, or a negative errno. */
static int print_output(struct logs *logs, const char *id, int channel, bool raw)
{
	_cleanup_close_ int fd = store_log_open_output(&logs->store, logs->name, id, channel);
	FILE *out = channel == 1 ? stdout : stderr;
	struct stat status = {0};
	int rc;

	if (fd < 0 && fd != -ENOENT) {
		return fd;
	}
	if (fd >= 0 && fstat(fd, &status) < 0) {
		return -errno;
	}
	tell_missing(find_entry(logs, id, true), channel, (uint64_t)status.st_size);
	if (fd < 0) {
		return 0;
	}
	rc = copy_output(fd, out, raw || !cli_is_terminal(out));
	return rc < 0 ? rc : 1;
}

static int print_command(struct logs *logs, const char *id, bool raw, struct err *err)
{
	char quoted[64];
	int out = 0, error = 0;
	int rc = is_id(id) ? read_all(logs, false) : 0;

	if (rc == 0 && is_id(id)) {
		out = print_output(logs, id, 1, raw);
		error = out < 0 ? 0 : print_output(logs, id, 2, raw);
		rc = MIN(MIN(out, error), 0);
	}
	if (rc < 0) {
		return err_context(err, rc, "the log of %s", logs->name);
	}
	if (out == 0 && error == 0 && (!is_id(id) || !find_entry(logs, id, true))) {
		text_quote(id, strlen(id), quoted, sizeof(quoted));
		rc = err_set(err, -ENOENT, "no-command", "no command \"%s\" is in the log of %s",
			     quoted, logs->name);
		err_mend(err, "`box logs -n 1000 %s` lists the commands with their IDs",
			 logs->name);
	}
	return rc;
}

static int check_args(const struct cli_args *args, struct logs *logs, struct err *err)
{
	static const char *const of_lists[] = {"follow", "lines", "json"};
	int rc = spec_check_name(logs->name, err);

	for (size_t i = 0; rc == 0 && args->operand_count > 1 && i < ARRAY_SIZE(of_lists); i++) {
		if (cli_has(args, of_lists[i])) {
			rc = err_set(err, -EINVAL, "usage",
				     "--%s is for the list of commands, not for one command",
				     of_lists[i]);
			err_mend(err, "leave out --%s or the ID", of_lists[i]);
		}
	}
	return rc == 0 ? log_lines_wanted(args, logs->json ? SIZE_MAX : LINES_DEFAULT, &logs->lines,
					  err)
		       : rc;
}

int cli_logs(const struct cli_args *args, struct err *err)
{
	_cleanup_(free_logs) struct logs logs = {
		.store = {.home_fd = -EBADF},
		.name = args->operands[0],
		.json = cli_has(args, "json"),
		.follow = cli_has(args, "follow"),
		.terminal = cli_is_terminal(stdout),
		.reader = {.fd = -EBADF},
	};
	int rc = check_args(args, &logs, err);

	logs.reader.store = &logs.store;
	logs.reader.name = logs.name;
	logs.reader.take = take_entry;
	logs.reader.data = &logs;
	if (rc == 0) {
		rc = store_open(false, &logs.store, err);
	}
	if (rc == 0) {
		rc = log_lines_check(&logs.reader, logs.name, err);
	}
	if (rc < 0) {
		return rc;
	}
	if (args->operand_count > 1) {
		return print_command(&logs, args->operands[1], cli_has(args, "raw"), err);
	}
	rc = logs.json ? log_lines_print(&logs.reader, logs.lines, logs.terminal, logs.follow)
		       : print_table(&logs);
	if (rc == 0 && logs.follow && !logs.json) {
		logs.live = true;
		rc = log_lines_follow(&logs.reader);
	}
	return rc < 0 ? err_context(err, rc, "the log of %s", logs.name) : EXIT_OK;
}
