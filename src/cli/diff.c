/* `box diff`: what a fork has changed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/changes.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "client/diff.h"
#include "json/json.h"

static int only_one_form(const struct cli_args *args, struct err *err)
{
	static const char *const forms[] = {"list", "stat", "patch", "json", "null"};
	unsigned count = 0;
	int rc;

	for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
		count += cli_has(args, forms[i]);
	}
	if (count > 1) {
		rc = err_set(err, -EINVAL, "usage", "diff: more than one form of output");
		err_mend(err, "take one of --list, --stat, --patch, --json and --null");
		return rc;
	}
	if (cli_has(args, "digest") && (cli_has(args, "patch") || cli_has(args, "null"))) {
		rc = err_set(err, -EINVAL, "usage", "diff: --digest does not go with %s",
			     cli_has(args, "patch") ? "--patch" : "--null");
		err_mend(err, "take it alone, or with one of --list, --stat and --json");
		return rc;
	}
	return 0;
}

/* What one kind of change amounts to. */
struct sum {
	uint64_t count;
	uint64_t old_bytes;
	uint64_t new_bytes;
};

static void print_stat(const struct changes *changes)
{
	struct sum sums[CHANGE_RENAMED + 1] = {0};

	for (size_t i = 0; i < changes->count; i++) {
		const struct change *change = &changes->items[i];
		struct sum *sum = &sums[change->kind];

		/* Of hostile sizes a sum may run over; it is shown, nothing more. */
		sum->count++;
		sum->old_bytes += change->old.size;
		sum->new_bytes += change->new.size;
	}
	for (size_t kind = CHANGE_ADDED; kind < ARRAY_SIZE(sums); kind++) {
		char old[TEXT_BYTES_MAX], new[TEXT_BYTES_MAX];

		text_format_bytes(sums[kind].old_bytes, old, sizeof(old));
		text_format_bytes(sums[kind].new_bytes, new, sizeof(new));
		printf("%8llu %s (%s%s%s)\n", (unsigned long long)sums[kind].count,
		       changes_kind_name((uint32_t)kind), kind == CHANGE_ADDED ? new : old,
		       kind == CHANGE_MODIFIED || kind == CHANGE_RENAMED ? " -> " : "",
		       kind == CHANGE_MODIFIED || kind == CHANGE_RENAMED ? new : "");
	}
}

static void print_null(const struct changes *changes)
{
	for (size_t i = 0; i < changes->count; i++) {
		const struct change *change = &changes->items[i];

		printf("%c%c", changes_kind_letter(change->kind), '\0');
		if (change->kind == CHANGE_RENAMED) {
			fwrite(change->from, 1, strlen(change->from) + 1, stdout);
		}
		fwrite(change->path, 1, strlen(change->path) + 1, stdout);
	}
}

static int print_json(const char *name, const struct changes *changes, const char *digest,
		      struct err *err)
{
	_cleanup_(json_freep) struct json *array = json_new_array();
	_cleanup_(json_freep) struct json *object = json_new_object();
	int rc = array && object ? 0 : -ENOMEM;

	for (size_t i = 0; i < changes->count && rc == 0; i++) {
		rc = json_append_child(array, changes_to_json(&changes->items[i]));
	}
	if (rc == 0) {
		rc = json_set_string(object, "fork", name);
	}
	if (rc == 0) {
		rc = json_set_integer(object, "count", (int64_t)changes->count);
	}
	if (rc == 0 && digest) {
		rc = json_set_string(object, "digest", digest);
	}
	if (rc == 0) {
		rc = json_set_child(object, "changes", TAKE_PTR(array));
	}
	return rc < 0 ? err_context(err, rc, "diff") : cli_print_json(object, err);
}

static void print_lines(const struct changes *changes)
{
	for (size_t i = 0; i < changes->count; i++) {
		changes_put_line(stdout, &changes->items[i]);
	}
	changes_put_risks(stdout, changes);
}

/*
 * Everything is there before anything is printed, so what is cut short is not taken for whole. A
 * digest is of the very run that is shown: a machine that was taken over may say something else the
 * next time.
 */
static int show_kept(struct store *store, const struct cli_args *args, uint64_t *ret_count,
		     struct err *err)
{
	const char *name = args->operands[0];
	bool digest = cli_has(args, "digest"), json = cli_has(args, "json");
	bool stat = cli_has(args, "stat"), null = cli_has(args, "null");
	bool list = cli_has(args, "list") || !(digest || json || stat || null);
	_cleanup_(changes_clear) struct changes changes = {0};
	const struct client_diff_options options = {
		.mode = digest ? CLIENT_DIFF_CONTENT : CLIENT_DIFF_RECORDS,
		.record = list || json || stat || null ? client_diff_keep : NULL,
		.notice = run_notice,
		.data = &changes,
		.copy_fd = -EBADF,
	};
	struct client_diff_result result;
	int rc = client_diff(store, name, &options, &result, err);

	if (rc < 0) {
		return rc;
	}
	*ret_count = result.records;
	if (json) {
		return print_json(name, &changes, digest ? result.digest : NULL, err);
	}
	if (stat) {
		print_stat(&changes);
	} else if (null) {
		print_null(&changes);
	} else if (list) {
		print_lines(&changes);
	}
	if (digest) {
		/* No line of a change begins so. */
		printf("%s%s\n", list || stat ? "digest: " : "", result.digest);
	}
	return 0;
}

static int on_record(void *data, const struct change *change)
{
	return patch_put_record(data, change);
}

static int on_text(void *data, const void *bytes, size_t size)
{
	return patch_put_text(data, bytes, size);
}

/* Printed as it comes: nobody knows how long it gets. */
static int show_patch(struct store *store, const char *name, uint64_t *ret_count, struct err *err)
{
	_cleanup_free_ struct patch_writer *writer = calloc(1, sizeof(*writer));
	const struct client_diff_options options = {
		.mode = CLIENT_DIFF_PATCH,
		.record = on_record,
		.text = on_text,
		.notice = run_notice,
		.data = writer,
		.copy_fd = -EBADF,
	};
	struct client_diff_result result;
	int rc;

	if (!writer) {
		return err_context(err, -ENOMEM, "diff");
	}
	writer->out = stdout;
	writer->terminal = cli_is_terminal(stdout);
	rc = client_diff(store, name, &options, &result, err);
	if (rc == 0) {
		rc = patch_end(writer);
		*ret_count = result.records;
	}
	return rc;
}

int cli_diff(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	const char *name = args->operands[0];
	uint64_t count = 0;
	int rc = only_one_form(args, err);

	if (rc == 0) {
		rc = store_open(false, &store, err);
	}
	if (rc < 0) {
		return rc;
	}
	if (cli_has(args, "patch")) {
		rc = show_patch(&store, name, &count, err);
	} else {
		rc = show_kept(&store, args, &count, err);
	}
	if (rc < 0) {
		return rc;
	}
	return cli_has(args, "exit-code") && count > 0 ? EXIT_NEGATIVE : EXIT_OK;
}
