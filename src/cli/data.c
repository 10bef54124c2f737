/* All of /data: `box data`, `box snapshot`, `box restore`, `box reset`. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"
#include "client/data.h"
#include "json/json.h"

#define LIST_COLUMNS 4
#define TIME_TEXT_MAX 32
#define SHOWN_MAX 256

static struct client_data_options options_for(const struct cli_args *args, struct cli_meter *meter)
{
	bool quiet = cli_has(args, "quiet");

	*meter = (struct cli_meter){.began_ns = clock_monotonic_ns()};
	return (struct client_data_options){
		.progress = !quiet && isatty(STDERR_FILENO) ? cli_meter_progress : NULL,
		.notice = cli_meter_notice,
		.data = meter,
	};
}

int cli_data(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	const char *verb = args->operands[0], *name = args->operands[1];
	bool import = strcmp(verb, "import") == 0;
	struct client_data_options options;
	struct cli_meter meter;
	int rc;

	if (!import && strcmp(verb, "export") != 0) {
		err_set(err, -EINVAL, "usage", "data: the first word is import or export");
		err_mend(err, "box data import NAME DIRECTORY, or box data export NAME DIRECTORY");
		return -EINVAL;
	}
	rc = store_open(false, &store, err);
	if (rc < 0) {
		return rc;
	}
	options = options_for(args, &meter);
	rc = import ? client_data_import(&store, name, args->operands[2], &options, err)
		    : client_data_export(&store, name, args->operands[2], &options, err);
	cli_meter_clear(&meter);
	return rc < 0 ? rc : EXIT_OK;
}

static void format_time(int64_t seconds, char ret_text[TIME_TEXT_MAX])
{
	time_t at = (time_t)seconds;
	struct tm local;

	localtime_r(&at, &local);
	strftime(ret_text, TIME_TEXT_MAX, "%Y-%m-%d %H:%M:%S", &local);
}

static int print_archives_json(const char *directory, const struct store_archive *archives,
			       size_t count, struct err *err)
{
	_cleanup_(json_freep) struct json *array = json_new_array();
	int rc = array ? 0 : -ENOMEM;

	for (size_t i = 0; i < count && rc == 0; i++) {
		const struct store_archive *archive = &archives[i];
		_cleanup_(json_freep) struct json *object = json_new_object();
		char path[PATH_MAX];

		snprintf(path, sizeof(path), "%s/%s", directory, archive->path);
		rc = object ? json_set_string(object, "label", archive->label) : -ENOMEM;
		if (rc == 0) {
			rc = json_set_string(object, "path", path);
		}
		if (rc == 0) {
			rc = json_set_integer(object, "created", archive->created_s);
		}
		if (rc == 0) {
			rc = json_set_integer(object, "size_bytes", (int64_t)archive->size_bytes);
		}
		if (rc == 0) {
			rc = json_set_boolean(object, "automatic", archive->automatic);
		}
		if (rc == 0 && archive->automatic) {
			rc = json_set_integer(object, "expires", archive->expires_s);
		}
		if (rc == 0) {
			rc = json_append_child(array, TAKE_PTR(object));
		}
	}
	return rc < 0 ? err_context(err, rc, "snapshot") : cli_print_json(array, err);
}

/* One row of the table, in memory of its own. */
struct row {
	char created[TIME_TEXT_MAX];
	char size[TEXT_BYTES_MAX];
	char note[TIME_TEXT_MAX + 32];
};

static int print_archives(const struct store_archive *archives, size_t count, struct err *err)
{
	static const char *const headings[] = {"LABEL", "MADE", "SIZE", "NOTE"};
	_cleanup_free_ const char **cells = calloc(count * LIST_COLUMNS + 1, sizeof(*cells));
	_cleanup_free_ struct row *rows = calloc(count + 1, sizeof(*rows));

	if (!cells || !rows) {
		return err_context(err, -ENOMEM, "snapshot");
	}
	for (size_t i = 0; i < count; i++) {
		char until[TIME_TEXT_MAX];

		format_time(archives[i].created_s, rows[i].created);
		text_format_bytes(archives[i].size_bytes, rows[i].size, sizeof(rows[i].size));
		if (archives[i].automatic) {
			format_time(archives[i].expires_s, until);
			snprintf(rows[i].note, sizeof(rows[i].note), "automatic, until %s", until);
		}
		cells[i * LIST_COLUMNS] = archives[i].label;
		cells[i * LIST_COLUMNS + 1] = rows[i].created;
		cells[i * LIST_COLUMNS + 2] = rows[i].size;
		cells[i * LIST_COLUMNS + 3] = rows[i].note;
	}
	cli_print_table(headings, cells, LIST_COLUMNS, count);
	return 0;
}

static int list_archives(struct store *store, const char *name, bool json, struct err *err)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, err);
	_cleanup_free_ struct store_archive *archives = NULL;
	char directory[PATH_MAX];
	size_t count;
	int rc;

	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	rc = store_list_archives(sandbox_fd, &archives, &count, err);
	if (rc < 0) {
		return rc;
	}
	snprintf(directory, sizeof(directory), "%s/sandboxes/%s", store->home, name);
	return json ? print_archives_json(directory, archives, count, err)
		    : print_archives(archives, count, err);
}

static int make_archive(struct store *store, const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0];
	const char *label = args->operand_count > 1 ? args->operands[1] : NULL;
	struct client_data_options options;
	char now[TIME_TEXT_MAX], size[TEXT_BYTES_MAX];
	struct cli_meter meter;
	uint64_t bytes = 0;
	int rc;

	if (!label) {
		time_t at = time(NULL);
		struct tm utc;

		gmtime_r(&at, &utc);
		strftime(now, sizeof(now), "%Y%m%dT%H%M%SZ", &utc);
		label = now;
	}
	options = options_for(args, &meter);
	rc = client_archive_make(store, name, label, &options, &bytes, err);
	cli_meter_clear(&meter);
	if (rc < 0) {
		return rc;
	}
	text_format_bytes(bytes, size, sizeof(size));
	printf("%s/sandboxes/%s/archive/%s.tar.zst\n", store->home, name, label);
	fprintf(stderr, "%s: archived as %s (%s)\n", name, label, size);
	return 0;
}

int cli_snapshot(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	bool list = cli_has(args, "list"), json = cli_has(args, "json");
	int rc;

	if ((list && args->operand_count > 1) || (json && !list)) {
		err_set(err, -EINVAL, "usage", "snapshot: %s",
			json && !list ? "--json goes with --list" : "--list takes no label");
		err_mend(err, "box snapshot NAME [LABEL], or box snapshot NAME --list [--json]");
		return -EINVAL;
	}
	rc = store_open(false, &store, err);
	if (rc == 0) {
		rc = list ? list_archives(&store, args->operands[0], json, err)
			  : make_archive(&store, args, err);
	}
	return rc < 0 ? rc : EXIT_OK;
}

static void tell_undo(const char *name, const char *undo)
{
	fprintf(stderr, "its state before is kept for a day: box restore %s %s\n", name, undo);
}

int cli_restore(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	const char *name = args->operands[0];
	const char *word = args->operand_count > 1 ? args->operands[1] : NULL;
	char what[SHOWN_MAX * TEXT_QUOTE_GROWTH + 1], question[sizeof(what) + 160];
	char undo[STORE_LABEL_MAX + 1];
	struct client_archive_source source;
	struct client_data_options options;
	struct cli_meter meter;
	int rc = store_open(false, &store, err);

	if (rc == 0) {
		rc = client_archive_find(&store, name, word, &source, err);
	}
	if (rc < 0) {
		return rc;
	}
	word = source.file ? source.file : source.archive.label;
	text_quote(word, strnlen(word, SHOWN_MAX), what, sizeof(what));
	snprintf(question, sizeof(question), "replace all of /data of %s by %s?", name, what);
	rc = cli_ask(args, question, err);
	if (rc <= 0) {
		return rc < 0 ? rc : EXIT_NEGATIVE;
	}
	options = options_for(args, &meter);
	rc = client_archive_restore(&store, name, &source, &options, undo, err);
	cli_meter_clear(&meter);
	if (rc < 0) {
		return rc;
	}
	fprintf(stderr, "%s: /data is now %s\n", name, what);
	tell_undo(name, undo);
	return EXIT_OK;
}

int cli_reset(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_close_ int sandbox_fd = -EBADF;
	const char *name = args->operands[0];
	char question[160], undo[STORE_LABEL_MAX + 1];
	int rc;

	sandbox_fd = cli_open_sandbox(name, &store, err);
	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	snprintf(question, sizeof(question), "empty /data of %s?", name);
	rc = cli_ask(args, question, err);
	if (rc <= 0) {
		return rc < 0 ? rc : EXIT_NEGATIVE;
	}
	rc = client_data_reset(&store, name, undo, err);
	if (rc < 0) {
		return rc;
	}
	fprintf(stderr, "%s: /data is empty\n", name);
	tell_undo(name, undo);
	return EXIT_OK;
}
