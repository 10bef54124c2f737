/*
 * `box net`: what the machines of a sandbox asked for on the network, and what became of it.
 *
 * The log (keeper/net_log.c) is written by keepers, but hosts are words of a guest. They were
 * judged before they were written; here they are quoted once more, for a file may have been changed
 * since.
 */
#include "cli/net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/text.h"
#include "json/json.h"
#include "spec/spec.h"

/* A screen. */
#define LINES_DEFAULT 20
/* All lines of both files. */
#define ROWS_MAX LOG_ENTRIES_MAX
#define WORD_SIZE 48

enum column {
	NET_TIME,
	NET_HOST,
	NET_PORT,
	NET_DECISION,
	NET_RESULT,
	NET_ADDRESS,
	NET_UP,
	NET_DOWN,
	NET_SECONDS,
	NET_COLUMNS,
};

static const char *const headings[NET_COLUMNS] = {
	[NET_TIME] = "TIME",	   [NET_HOST] = "HOST",
	[NET_PORT] = "PORT",	   [NET_DECISION] = "DECISION",
	[NET_RESULT] = "RESULT",   [NET_ADDRESS] = "ADDRESS",
	[NET_UP] = "UP",	   [NET_DOWN] = "DOWN",
	[NET_SECONDS] = "SECONDS",
};

struct row {
	int64_t life;
	int64_t id;
	bool open;
	/* Owned, quoted. */
	char *cells[NET_COLUMNS];
};

struct view {
	struct store store;
	char name[SPEC_NAME_MAX + sizeof(STORE_LOG_NET)];
	bool json;
	bool live;
	bool terminal;
	/* How many of the last lines are wanted. */
	size_t wanted;
	struct row *rows;
	size_t count;
	struct log_lines lines;
};

static void clear_row(struct row *row)
{
	for (size_t i = 0; i < ARRAY_SIZE(row->cells); i++) {
		free(TAKE_PTR(row->cells[i]));
	}
}

static void free_view(struct view *view)
{
	for (size_t i = 0; i < view->count; i++) {
		clear_row(&view->rows[i]);
	}
	free(view->rows);
	log_lines_end(&view->lines);
	store_close(&view->store);
}

/* A cell from a text of the log, which may be anything. NULL without memory. */
static char *quote(const char *text)
{
	size_t size = text ? strlen(text) : 0;
	char *quoted = malloc(size * TEXT_QUOTE_GROWTH + 2);

	if (quoted && size > 0) {
		text_quote(text, size, quoted, size * TEXT_QUOTE_GROWTH + 1);
	} else if (quoted) {
		memcpy(quoted, "-", 2);
	}
	return quoted;
}

static int64_t number_of(const struct json *line, const char *key)
{
	int64_t number = 0;

	json_get_integer(line, key, &number);
	return MAX(number, 0);
}

static char *number_cell(const struct json *line, const char *key)
{
	char *cell = NULL;
	int64_t number;

	if (json_get_integer(line, key, &number) < 0) {
		return strdup("-");
	}
	return asprintf(&cell, "%lld", (long long)number) < 0 ? NULL : cell;
}

/* The rule that made the verdict, or why there is none. */
static char *decision_cell(const struct json *line)
{
	static const struct {
		const char *word, *text;
	} texts[] = {
		{"bridge", "bridge"},
		{"no-rule", "refused: no rule"},
		{"no-name", "refused: not a name"},
		{"no-policy", "refused: no policy yet"},
		{"connections", "refused: limits.connections"},
		{"bytes", "refused: limits.bytes"},
	};
	const char *rule = json_get_string(line, "rule");
	const char *special = json_get_string(line, "special");
	const char *reason = json_get_string(line, "reason");
	char text[WORD_SIZE * 2];

	if (special) {
		snprintf(text, sizeof(text), "refused: %s", special);
		return quote(text);
	}
	for (size_t i = 0; !rule && reason && i < ARRAY_SIZE(texts); i++) {
		if (strcmp(reason, texts[i].word) == 0) {
			return strdup(texts[i].text);
		}
	}
	return quote(rule ? rule : reason);
}

static char *result_cell(const struct json *line, const char *event, bool allowed)
{
	static const struct {
		const char *word, *text;
	} texts[] = {
		{"both", "ok"},
		{"guest", "cut inside"},
		{"server", "cut by server"},
		{"policy", "cut by policy"},
		{"limit", "cut by limit"},
		{"machine", "machine ended"},
	};
	const char *error = json_get_string(line, "error");
	const char *end = json_get_string(line, "end");

	if (!allowed) {
		return strdup("refused");
	}
	if (strcmp(event, "asked") == 0) {
		return quote(json_get_string(line, "status"));
	}
	for (size_t i = 0; !error && end && i < ARRAY_SIZE(texts); i++) {
		if (strcmp(end, texts[i].word) == 0) {
			return strdup(texts[i].text);
		}
	}
	return error ? quote(error) : strdup("open");
}

static char *host_cell(const struct json *line)
{
	_cleanup_free_ char *host = quote(json_get_string(line, "host"));
	_cleanup_free_ char *sni = quote(json_get_string(line, "sni"));
	char *cell = NULL;

	if (!host || !sni || strcmp(sni, "-") == 0) {
		return TAKE_PTR(host);
	}
	return asprintf(&cell, "%s (TLS: %s)", host, sni) < 0 ? NULL : cell;
}

static int fill_row(struct row *row, const struct json *line, const char *event)
{
	int64_t duration = number_of(line, "duration_ms");
	bool allowed = false, asked = strcmp(event, "asked") == 0;

	json_get_boolean(line, "allowed", &allowed);
	row->life = number_of(line, "life");
	row->id = number_of(line, "id");
	row->open = strcmp(event, "connected") == 0 && allowed && !json_get_string(line, "error");
	row->cells[NET_TIME] = quote(json_get_string(line, "time"));
	row->cells[NET_HOST] = host_cell(line);
	row->cells[NET_PORT] = asked ? strdup("name") : number_cell(line, "port");
	row->cells[NET_DECISION] = decision_cell(line);
	row->cells[NET_RESULT] = result_cell(line, event, allowed);
	row->cells[NET_ADDRESS] = number_of(line, "proxy") > 0
					  ? strdup("by proxy")
					  : quote(json_get_string(line, "address"));
	row->cells[NET_UP] = number_cell(line, "bytes_up");
	row->cells[NET_DOWN] = number_cell(line, "bytes_down");
	if (row->open) {
		row->cells[NET_SECONDS] = strdup("-");
	} else if (asprintf(&row->cells[NET_SECONDS], "%lld.%03lld", (long long)duration / 1000,
			    (long long)duration % 1000) < 0) {
		row->cells[NET_SECONDS] = NULL;
	}
	for (size_t i = 0; i < NET_COLUMNS; i++) {
		if (!row->cells[i]) {
			return -ENOMEM;
		}
	}
	return 0;
}

/* The row of a connection that was made and has not ended. */
static struct row *find_open(const struct view *view, const struct json *line)
{
	int64_t life = number_of(line, "life"), id = number_of(line, "id");

	for (size_t i = view->count; i > 0; i--) {
		struct row *row = &view->rows[i - 1];

		if (row->open && row->life == life && row->id == id) {
			return row;
		}
	}
	return NULL;
}

static struct row *add_row(struct view *view)
{
	if (!view->rows) {
		/* Pages that are not used cost nothing. */
		view->rows = calloc(ROWS_MAX, sizeof(*view->rows));
		if (!view->rows) {
			return NULL;
		}
	}
	if (view->count == ROWS_MAX) {
		size_t half = ROWS_MAX / 2;

		for (size_t i = 0; i < half; i++) {
			clear_row(&view->rows[i]);
		}
		memmove(view->rows, view->rows + half, half * sizeof(*view->rows));
		view->count = half;
	}
	view->rows[view->count] = (struct row){0};
	return &view->rows[view->count++];
}

/* A limit, or a change of the policy: the line's own text in the place of a host. */
static int fill_remark(struct row *row, const struct json *line, const char *event)
{
	const char *text = json_get_string(line, strcmp(event, "limit") == 0 ? "text" : "rule");

	for (size_t i = 0; i < NET_COLUMNS; i++) {
		row->cells[i] = i == NET_TIME	    ? quote(json_get_string(line, "time"))
				: i == NET_DECISION ? quote(text)
				: i == NET_RESULT   ? strdup(event)
						    : strdup("-");
		if (!row->cells[i]) {
			return -ENOMEM;
		}
	}
	return 0;
}

/* Columns as wide as most rows need: what comes later is not known yet. */
static void print_at_once(const struct view *view, const struct row *row)
{
	static const int widths[NET_COLUMNS] = {24, 30, 5, 28, 13, 15, 9, 9, 8};

	for (size_t i = 0; i < NET_COLUMNS; i++) {
		if (view->terminal) {
			printf("%-*s%s", widths[i], row->cells[i],
			       i + 1 < NET_COLUMNS ? "  " : "\n");
		} else {
			printf("%s%c", row->cells[i], i + 1 < NET_COLUMNS ? '\t' : '\n');
		}
	}
}

/* A name that was found is left out: the connection to it is a row. */
static bool is_shown(const struct json *line, const char *event)
{
	const char *status = json_get_string(line, "status");

	if (strcmp(event, "asked") == 0) {
		return !status || strcmp(status, "found") != 0;
	}
	return strcmp(event, "connected") == 0 || strcmp(event, "ended") == 0;
}

static int take_row(struct view *view, const struct json *line)
{
	const char *event = json_get_string(line, "event");
	struct row *row = NULL;
	int rc;

	if (!event) {
		return 0;
	}
	if (strcmp(event, "limit") == 0 || strcmp(event, "policy") == 0) {
		row = add_row(view);
		rc = row ? fill_remark(row, line, event) : -ENOMEM;
	} else if (is_shown(line, event)) {
		row = strcmp(event, "ended") == 0 ? find_open(view, line) : NULL;
		if (row) {
			clear_row(row);
		} else {
			row = add_row(view);
		}
		rc = row ? fill_row(row, line, event) : -ENOMEM;
	} else {
		return 0;
	}
	if (rc == 0 && view->live && !row->open) {
		print_at_once(view, row);
	}
	return rc;
}

static int take(void *data, const struct json *object, const char *line, size_t size)
{
	(void)line;
	(void)size;
	return take_row(data, object);
}

static int print_rows(struct view *view, const char *sandbox)
{
	int rc = log_lines_read(&view->lines);
	size_t first = view->count - MIN(view->count, view->wanted);
	_cleanup_free_ const char **cells = NULL;

	if (rc < 0) {
		return rc;
	}
	if (view->count == 0 && view->terminal) {
		fprintf(stderr, "%s has asked for nothing yet\n", sandbox);
		return 0;
	}
	cells = calloc(view->count - first + 1, sizeof(view->rows[0].cells));
	if (!cells) {
		return -ENOMEM;
	}
	for (size_t i = first; i < view->count; i++) {
		for (size_t column = 0; column < NET_COLUMNS; column++) {
			cells[(i - first) * NET_COLUMNS + column] = view->rows[i].cells[column];
		}
	}
	cli_print_table(headings, cells, NET_COLUMNS, view->count - first);
	return 0;
}

static int show(const struct cli_args *args, struct view *view, struct err *err)
{
	const char *sandbox = args->operands[0];
	int rc;

	if (cli_has(args, "learn")) {
		return net_learn(&view->lines, err);
	}
	rc = view->json ? log_lines_print(&view->lines, view->wanted, view->terminal,
					  cli_has(args, "follow"))
			: print_rows(view, sandbox);
	if (rc == 0 && !view->json && cli_has(args, "follow")) {
		view->live = true;
		rc = log_lines_follow(&view->lines);
	}
	return rc < 0 ? err_context(err, rc, "the network log of %s", sandbox) : EXIT_OK;
}

/* Those that are each a thing of its own to do. */
static int check_options(const struct cli_args *args, struct err *err)
{
	static const char *const names[] = {"check", "learn", "allow", "follow", "json", "lines"};
	const char *doing = cli_has(args, "check")			      ? "check"
			    : cli_has(args, "learn")			      ? "learn"
			    : cli_has(args, "allow") || cli_has(args, "deny") ? "allow and --deny"
									      : NULL;

	for (size_t i = 0; doing && i < ARRAY_SIZE(names); i++) {
		bool fits = strcmp(names[i], doing) == 0 ||
			    (strcmp(names[i], "allow") == 0 && strncmp(doing, "allow", 5) == 0) ||
			    (strcmp(names[i], "json") == 0 && strcmp(doing, "check") == 0);

		if (!fits && cli_has(args, names[i])) {
			err_set(err, -EINVAL, "usage", "net: --%s goes not with --%s", names[i],
				doing);
			err_mend(err, "leave one of them out");
			return -EINVAL;
		}
	}
	return 0;
}

int cli_net(const struct cli_args *args, struct err *err)
{
	_cleanup_(free_view) struct view view = {
		.store = {.home_fd = -EBADF},
		.json = cli_has(args, "json"),
		.terminal = cli_is_terminal(stdout),
		.lines = {.fd = -EBADF},
	};
	int rc = spec_check_name(args->operands[0], err);

	if (rc == 0) {
		rc = check_options(args, err);
	}
	if (rc == 0 && cli_has(args, "check")) {
		return net_check(args, err);
	}
	if (rc == 0 && (cli_has(args, "allow") || cli_has(args, "deny"))) {
		return net_change(args, err);
	}
	if (rc == 0) {
		rc = log_lines_wanted(args, view.json ? SIZE_MAX : LINES_DEFAULT, &view.wanted,
				      err);
	}
	if (rc == 0) {
		rc = store_open(false, &view.store, err);
	}
	snprintf(view.name, sizeof(view.name), "%s" STORE_LOG_NET, args->operands[0]);
	view.lines.store = &view.store;
	view.lines.name = view.name;
	view.lines.take = take;
	view.lines.data = &view;
	if (rc == 0) {
		rc = log_lines_check(&view.lines, args->operands[0], err);
	}
	return rc < 0 ? rc : show(args, &view, err);
}
