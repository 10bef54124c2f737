#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"
#include "json/json.h"
#include "spec/spec.h"

uint64_t cli_began_ns;

/* Columns of the widest table. */
#define COLUMNS_MAX 16
/* For a terminal that does not say how wide it is. */
#define COLUMNS_DEFAULT 80

bool cli_is_terminal(FILE *stream)
{
	return isatty(fileno(stream)) == 1;
}

bool cli_has_color(FILE *stream)
{
	const char *off = getenv("NO_COLOR");
	const char *terminal = getenv("TERM");

	return cli_is_terminal(stream) && !(off && off[0]) && terminal &&
	       strcmp(terminal, "dumb") != 0;
}

/* One line, without anything that could drive a terminal or begin another line. */
static void print_line(FILE *out, const char *prefix, const char *text)
{
	fputs(prefix, out);
	while (*text) {
		uint32_t code_point = 0;
		size_t length = text_utf8_decode(text, strlen(text), &code_point);
		bool control = code_point < ' ' || (code_point >= 0x7f && code_point < 0xa0);

		if (length == 0 || control) {
			fputc('?', out);
			text += length == 0 ? 1 : length;
			continue;
		}
		fwrite(text, 1, length, out);
		text += length;
	}
	fputc('\n', out);
}

void cli_print_error(const struct err *err)
{
	bool color = cli_has_color(stderr);

	fflush(stdout);
	print_line(stderr,
		   color ? "\033[1;31mbox:\033[0m " : "box: ", err->text[0] ? err->text : "failed");
	if (err->mend[0]) {
		print_line(stderr, color ? "\033[1mmend:\033[0m " : "mend: ", err->mend);
	}
}

int cli_confirm(const char *question, struct err *err)
{
	char answer[16] = "";
	int rc;

	if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
		rc = err_set(err, -EINVAL, "no-terminal", "%s: there is no terminal to ask on",
			     question);
		err_mend(err, "add --yes when that is what you want");
		return rc;
	}
	fprintf(stderr, "%s [y/N] ", question);
	if (!fgets(answer, sizeof(answer), stdin)) {
		fputc('\n', stderr);
		return false;
	}
	return answer[0] == 'y' || answer[0] == 'Y';
}

int cli_ask(const struct cli_args *args, const char *question, struct err *err)
{
	int rc = cli_has(args, "yes") ? 1 : cli_confirm(question, err);

	if (rc == 0) {
		fputs("nothing was done\n", stderr);
	}
	return rc;
}

size_t cli_terminal_columns(FILE *stream)
{
	struct winsize size;

	return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
										: COLUMNS_DEFAULT;
}

static int put_argument(FILE *out, const char *argument, size_t argument_max)
{
	static const char plain[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:,@%=";
	_cleanup_free_ char *quoted = NULL;
	size_t length = strlen(argument);
	size_t shown = argument_max > 0 ? MIN(length, argument_max) : length;

	if (length > 0 && shown == length && strspn(argument, plain) == length) {
		fputs(argument, out);
		return 0;
	}
	quoted = malloc(shown * TEXT_QUOTE_GROWTH + 1);
	if (!quoted) {
		return -ENOMEM;
	}
	text_quote(argument, shown, quoted, shown * TEXT_QUOTE_GROWTH + 1);
	fprintf(out, "\"%s%s\"", quoted, shown < length ? "..." : "");
	return 0;
}

char *cli_command_line(const struct json *command, size_t argument_max)
{
	const struct json *argv = json_get_child(command, "argv");
	char *text = NULL;
	size_t size = 0;
	bool cut = false;
	FILE *out = open_memstream(&text, &size);
	int rc = 0;

	if (!out) {
		return NULL;
	}
	for (size_t i = 0; rc == 0 && i < json_count(argv); i++) {
		const char *argument = json_string_of(json_at(argv, i));

		fputs(i > 0 ? " " : "", out);
		rc = put_argument(out, argument ? argument : "", argument_max);
	}
	if (json_get_boolean(command, "args_cut", &cut) == 0 && cut) {
		fputs(" ...", out);
	}
	if (fclose(out) != 0 || rc < 0) {
		free(text);
		return NULL;
	}
	return text;
}

int cli_open_sandbox(const char *name, struct store *ret_store, struct err *err)
{
	int rc = store_open(false, ret_store, err);

	return rc < 0 ? rc : store_open_sandbox(ret_store, name, err);
}

/* Characters, as a terminal counts them for the names that box allows. */
static size_t width_of(const char *text)
{
	size_t width = 0;

	for (; *text; text++) {
		width += ((unsigned char)*text & 0xc0) != 0x80;
	}
	return width;
}

static void print_row(const char *const *cells, const size_t *widths, size_t columns)
{
	for (size_t i = 0; i < columns; i++) {
		fputs(cells[i], stdout);
		if (i + 1 < columns) {
			printf("%*s", (int)(widths[i] - width_of(cells[i]) + 2), "");
		}
	}
	putchar('\n');
}

static void print_plain(const char *const *cells, size_t columns, size_t rows)
{
	for (size_t i = 0; i < rows * columns; i++) {
		fputs(cells[i], stdout);
		putchar((i + 1) % columns == 0 ? '\n' : '\t');
	}
}

void cli_print_table(const char *const *headings, const char *const *cells, size_t columns,
		     size_t rows)
{
	size_t widths[COLUMNS_MAX];
	bool bold = cli_has_color(stdout);

	ASSERT(columns > 0 && columns <= COLUMNS_MAX);
	if (!cli_is_terminal(stdout)) {
		print_plain(cells, columns, rows);
		return;
	}
	for (size_t i = 0; i < columns; i++) {
		widths[i] = width_of(headings[i]);
		for (size_t row = 0; row < rows; row++) {
			widths[i] = MAX(widths[i], width_of(cells[row * columns + i]));
		}
	}
	fputs(bold ? "\033[1m" : "", stdout);
	print_row(headings, widths, columns);
	fputs(bold ? "\033[0m" : "", stdout);
	for (size_t row = 0; row < rows; row++) {
		print_row(cells + row * columns, widths, columns);
	}
}

int cli_print_json(const struct json *value, struct err *err)
{
	_cleanup_free_ char *text = NULL;
	/* It is for programs, and is looked at on terminals all the same. */
	int rc = json_dump(value, JSON_DUMP_INDENT | JSON_DUMP_NEWLINE | JSON_DUMP_ASCII, &text);

	if (rc < 0) {
		return err_context(err, rc, "JSON");
	}
	fputs(text, stdout);
	return 0;
}

void cli_print_notices(const struct spec *spec)
{
	for (size_t i = 0; i < spec->notice_count; i++) {
		print_line(stderr, "box: ", spec->notices[i]);
	}
}

int cli_check_engine(struct err *err)
{
	const char *engine = getenv("BOX_ENGINE");
	char quoted[128];
	int rc;

	if (!engine || !engine[0] || strcmp(engine, "auto") == 0 || strcmp(engine, "qemu") == 0) {
		return 0;
	}
	text_quote(engine, strlen(engine), quoted, sizeof(quoted));
	rc = err_set(err, -ENOTSUP, "not-available-yet",
		     "BOX_ENGINE: the engine \"%s\" is not available yet", quoted);
	err_mend(err, "unset BOX_ENGINE, or set it to qemu");
	return rc;
}

int cli_exit_code_of(int rc, const struct err *err)
{
	static const struct {
		const char *code;
		int number;
	} signals[] = {
		{"interrupted", SIGINT},
		{"terminated", SIGTERM},
		{"hung-up", SIGHUP},
	};

	if (rc >= 0) {
		return rc;
	}
	for (size_t i = 0; rc == -EINTR && i < ARRAY_SIZE(signals); i++) {
		if (strcmp(err->code, signals[i].code) == 0) {
			return EXIT_SIGNAL_BASE + signals[i].number;
		}
	}
	return EXIT_BOX_FAILED;
}
