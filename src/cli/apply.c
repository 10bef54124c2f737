/* `box apply`: what a fork has changed goes to its parent. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/exit.h"
#include "cli/changes.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "client/apply.h"
#include "json/json.h"

static int usage(struct err *err, const char *text, const char *mend)
{
	err_set(err, -EINVAL, "usage", "apply: %s", text);
	err_mend(err, "%s", mend);
	return -EINVAL;
}

static int read_options(const struct cli_args *args, struct client_apply_options *ret_options,
			struct err *err)
{
	const char *expect = cli_value(args, "expect");
	bool ours = cli_has(args, "ours"), theirs = cli_has(args, "theirs");

	if (ours && theirs) {
		return usage(err, "--ours and --theirs contradict each other",
			     "take one of them, or name the paths of the fork's side");
	}
	if (expect && (strlen(expect) != STORE_DIGEST_SIZE - 1 ||
		       strspn(expect, "0123456789abcdefABCDEF") != strlen(expect))) {
		return usage(err, "--expect takes a digest", "`box diff FORK --digest` prints it");
	}
	*ret_options = (struct client_apply_options){
		.paths = (const char *const *)args->operands + 1,
		.path_count = (size_t)args->operand_count - 1,
		.choice = ours	   ? MERGE_OURS
			  : theirs ? MERGE_THEIRS
				   : MERGE_ASK,
		.expect = expect,
		.notice = run_notice,
	};
	return 0;
}

static const char *reason_text(enum merge_reason reason)
{
	return reason == MERGE_BOTH_CHANGED   ? "both changed it"
	       : reason == MERGE_PARENT_ABOVE ? "what it is in was deleted, renamed or replaced"
					      : "something in it was changed";
}

static const char *reason_word(enum merge_reason reason)
{
	return reason == MERGE_BOTH_CHANGED   ? "both-changed"
	       : reason == MERGE_PARENT_ABOVE ? "parent-above"
					      : "parent-below";
}

static bool is_open(const struct client_apply_result *result, size_t at)
{
	return result->merge.fates[result->merge.conflicts[at].fork] == MERGE_OPEN;
}

static void print_conflicts(const struct client_apply_result *result)
{
	for (size_t i = 0; i < result->merge.conflict_count; i++) {
		const struct merge_conflict *conflict = &result->merge.conflicts[i];

		if (!is_open(result, i)) {
			continue;
		}
		fputs("conflict: ", stdout);
		changes_put_line(stdout, &result->fork_changes.items[conflict->fork]);
		printf("      %s: ", reason_text(conflict->reason));
		changes_put_line(stdout, &result->parent_changes.items[conflict->parent]);
	}
}

static int add_conflict(struct json *array, const struct client_apply_result *result, size_t at)
{
	const struct merge_conflict *conflict = &result->merge.conflicts[at];
	_cleanup_(json_freep) struct json *object = json_new_object();
	int rc = json_set_string(object, "reason", reason_word(conflict->reason));

	if (rc == 0) {
		rc = json_set_child(object, "fork",
				    changes_to_json(&result->fork_changes.items[conflict->fork]));
	}
	if (rc == 0) {
		rc = json_set_child(
			object, "parent",
			changes_to_json(&result->parent_changes.items[conflict->parent]));
	}
	return rc == 0 ? json_append_child(array, TAKE_PTR(object)) : rc;
}

static uint64_t count_fates(const struct client_apply_result *result, enum merge_fate fate)
{
	uint64_t count = 0;

	for (size_t i = 0; i < result->fork_changes.count; i++) {
		count += result->merge.fates[i] == fate;
	}
	return count;
}

static int print_json(const char *name, const struct client_apply_result *result, struct err *err)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	_cleanup_(json_freep) struct json *conflicts = json_new_array();
	bool open = result->merge.open_count > 0;
	int rc = object && conflicts ? 0 : -ENOMEM;

	for (size_t i = 0; i < result->merge.conflict_count && rc == 0; i++) {
		rc = is_open(result, i) ? add_conflict(conflicts, result, i) : 0;
	}
	if (rc == 0) {
		rc = json_set_string(object, "fork", name);
	}
	if (rc == 0) {
		rc = json_set_string(object, "parent", result->parent);
	}
	if (rc == 0) {
		rc = json_set_string(object, "digest", result->digest);
	}
	if (rc == 0) {
		rc = json_set_string(object, "code", open ? "conflicts" : "");
	}
	if (rc == 0) {
		rc = json_set_integer(object, "applied",
				      open ? 0 : (int64_t)result->merge.taken_count);
	}
	if (rc == 0) {
		rc = json_set_integer(object, "same", (int64_t)count_fates(result, MERGE_SAME));
	}
	if (rc == 0) {
		rc = json_set_integer(object, "given_up",
				      (int64_t)count_fates(result, MERGE_GIVEN_UP));
	}
	if (rc == 0) {
		rc = json_set_integer(object, "replaced", (int64_t)result->merge.revert_count);
	}
	if (rc == 0) {
		rc = result->undo[0] ? json_set_string(object, "undo", result->undo)
				     : json_set_null(object, "undo");
	}
	if (rc == 0) {
		rc = json_set_child(object, "conflicts", TAKE_PTR(conflicts));
	}
	return rc < 0 ? err_context(err, rc, "apply") : cli_print_json(object, err);
}

static void tell_conflicts(const char *name, const struct client_apply_result *result)
{
	struct err err = {0};

	err_set(&err, 0, "conflicts",
		"%s: nothing was applied, there %s %zu conflict%s (conflicts)", name,
		result->merge.open_count == 1 ? "is" : "are", result->merge.open_count,
		result->merge.open_count == 1 ? "" : "s");
	err_mend(&err,
		 "--theirs takes the fork's side, --ours that of %s; or name the paths that are to "
		 "be the fork's",
		 result->parent);
	cli_print_error(&err);
}

static void tell_applied(const char *name, const struct client_apply_result *result)
{
	unsigned long long given_up = count_fates(result, MERGE_GIVEN_UP);

	if (given_up > 0) {
		fprintf(stderr, "%llu changes of %s were left out for those of %s\n", given_up,
			name, result->parent);
	}
	if (result->merge.revert_count > 0) {
		fprintf(stderr, "%zu changes of %s were replaced\n", result->merge.revert_count,
			result->parent);
	}
	if (result->undo[0] == '\0') {
		fprintf(stderr, "%s: nothing to apply, it is all in %s\n", name, result->parent);
		return;
	}
	fprintf(stderr, "%s: %zu changes applied to %s\n", name, result->merge.taken_count,
		result->parent);
	fprintf(stderr, "its state before is kept for a day: box apply --undo %s\n",
		result->parent);
}

static int undo(struct store *store, const struct cli_args *args, struct err *err)
{
	const struct client_apply_options options = {.notice = run_notice};
	char parent[sizeof(((struct store_fork *)NULL)->parent)], label[STORE_LABEL_MAX + 1];
	int rc = client_apply_undo(store, args->operands[0], &options, parent, label, err);

	if (rc < 0) {
		return rc;
	}
	fprintf(stderr, "%s: /data is as it was before the apply\n", parent);
	fprintf(stderr, "the state that was undone is kept for a day: box restore %s %s\n", parent,
		label);
	return EXIT_OK;
}

static int apply(struct store *store, const struct cli_args *args, struct err *err)
{
	_cleanup_(client_apply_clear) struct client_apply_result result = {0};
	struct client_apply_options options;
	const char *name = args->operands[0];
	bool json = cli_has(args, "json");
	int rc = read_options(args, &options, err);

	if (rc == 0) {
		rc = client_apply(store, name, &options, &result, err);
	}
	if (rc < 0) {
		return rc;
	}
	if (json && print_json(name, &result, err) < 0) {
		return -ENOMEM;
	}
	if (rc > 0) {
		if (!json) {
			print_conflicts(&result);
			tell_conflicts(name, &result);
		}
		return EXIT_NEGATIVE;
	}
	if (!json) {
		tell_applied(name, &result);
	}
	return EXIT_OK;
}

int cli_apply(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	bool undoes = cli_has(args, "undo");
	int rc;

	if (undoes && (args->given_count > 1 || args->operand_count > 1)) {
		return usage(err, "--undo takes a name and nothing else", "box apply --undo NAME");
	}
	rc = store_open(false, &store, err);
	if (rc < 0) {
		return rc;
	}
	return undoes ? undo(&store, args, err) : apply(&store, args, err);
}
