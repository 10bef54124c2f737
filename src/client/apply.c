/*
 * Theory of operation.
 *
 * Two file systems are involved, and either may be hostile: the fork's and the parent's. They never
 * meet in one machine.
 *
 *   1. A machine of the fork's, with a copy of its /data, says what it has changed: records and an
 *      archive, into a nameless file. A digest of all of it binds what is applied to what was
 *      shown. The machine ends.
 *   2. The parent's /data is locked. A chain of its own is begun beside it: what is /data, frozen,
 *      with an empty disk on it (store/applied.h). A machine of the parent's gets that, and the
 *      state at the fork, and says what the parent has changed.
 *   3. A pure function decides (merge.c). Where records alone cannot tell whether both have done
 *      the same, box-same looks at the contents. What of the parent's is in the way of a conflict
 *      that was decided for the fork is taken back first, out of the state at the fork.
 *   4. box-apply gets the records that are taken, and the archive as it is: what nobody took of it
 *      is left out inside.
 *   5. The machine writes everything and ends. Another one, of that chain's two states, gives the
 *      digest by which an undo knows that nothing has changed since. Then the chain takes the place
 *      of /data in one step.
 *
 * Until that step nothing of the parent's is touched, so whoever is killed earlier has done
 * nothing. Nothing here looks at a byte of the archive.
 */
#include "client/apply.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/text.h"
#include "client/client.h"
#include "client/diff.h"
#include "client/fork.h"
#include "client/inside.h"
#include "client/internal.h"
#include "wire/change_stream.h"

#define CHUNK_BYTES 65536
/* How much of a path is repeated in an error. */
#define PATH_SHOWN_MAX 256

/* A stream of changes that was kept: its records in memory, all of it in a nameless file. */
struct kept {
	struct changes *changes;
	struct client_diff_result result;
	int fd;
};

struct apply {
	struct store *store;
	const char *name;
	const struct client_apply_options *options;
	struct client_apply_result *result;
	struct store_fork fork;
	/* The state at the fork. */
	struct store_layers base;
	struct kept theirs;
	/* For each of the fork's changes. */
	bool *marks;
	bool *equal;
	char **paths;
	/* The parent. */
	struct client_held held;
	struct store_draft draft;
	struct store_layers layers;
	struct client_machine *machine;
};

static int parse_paths(struct apply *apply, struct err *err)
{
	const struct client_apply_options *options = apply->options;
	char quoted[PATH_SHOWN_MAX * TEXT_QUOTE_GROWTH + 1];

	apply->paths = calloc(options->path_count + 1, sizeof(*apply->paths));
	if (!apply->paths) {
		return err_context(err, -ENOMEM, "apply");
	}
	for (size_t i = 0; i < options->path_count; i++) {
		const char *word = options->paths[i];
		char path[CHANGE_PATH_MAX + 1];

		if (merge_path(word, path) < 0) {
			text_quote(word, strnlen(word, PATH_SHOWN_MAX), quoted, sizeof(quoted));
			err_set(err, -EINVAL, "usage", "apply: \"%s\" is no path below /data",
				quoted);
			err_mend(err, "write it as `box diff %s` shows it", apply->name);
			return -EINVAL;
		}
		apply->paths[i] = strdup(path);
		if (!apply->paths[i]) {
			return err_context(err, -ENOMEM, "apply");
		}
	}
	return 0;
}

/* 1: what the fork has changed. */
static int read_fork(struct apply *apply, struct err *err)
{
	struct kept *theirs = &apply->theirs;
	const char *expect = apply->options->expect;
	int rc;

	theirs->changes = &apply->result->fork_changes;
	theirs->fd = store_temporary_file(apply->store, err);
	if (theirs->fd < 0) {
		return theirs->fd;
	}
	rc = client_diff(apply->store, apply->name,
			 &(struct client_diff_options){.mode = CLIENT_DIFF_CONTENT,
						       .record = client_diff_keep,
						       .data = theirs->changes,
						       .copy_fd = theirs->fd},
			 &theirs->result, err);
	if (rc < 0) {
		return rc;
	}
	memcpy(apply->result->digest, theirs->result.digest, sizeof(apply->result->digest));
	if (expect && strcasecmp(expect, theirs->result.digest) != 0) {
		err_set(err, -ESTALE, "fork-moved",
			"%s has changed since: its changes have the digest %s now", apply->name,
			theirs->result.digest);
		err_mend(err, "look at them again: box diff %s", apply->name);
		return -ESTALE;
	}
	apply->marks = calloc(theirs->changes->count + 1, sizeof(*apply->marks));
	apply->equal = calloc(theirs->changes->count + 1, sizeof(*apply->equal));
	return apply->marks && apply->equal ? 0 : err_context(err, -ENOMEM, "apply");
}

static int start_machine(struct apply *apply, int data_fd, const struct store_layers *base,
			 struct err *err)
{
	const struct client_start_options start = {
		.mode = IPC_START_RUN,
		.data = CLIENT_DATA_GIVEN,
		.data_fd = data_fd,
		.data_layers = &apply->layers,
		.base = base,
		.helper = true,
		.stage = "",
		.notice = apply->options->notice,
		.notice_data = apply->options->data,
	};

	return client_start(apply->store, apply->result->parent, &start, &apply->machine, err);
}

/* Everything that it has written is on its disk then. */
static int end_machine(struct apply *apply, struct err *err)
{
	int rc = client_stop(apply->machine, err);

	client_machine_free(apply->machine);
	apply->machine = NULL;
	return rc;
}

/* The chain that is to be; where there is no room for one more disk, room is made. */
static int begin_stacked(struct apply *apply, struct err *err)
{
	struct err local = {0};
	int rc = store_begin_stacked(apply->held.sandbox_fd, apply->held.data_fd, &apply->draft,
				     &apply->layers, &local);

	if (rc == -EMLINK) {
		rc = client_make_room(apply->store, apply->fork.parent, apply->held.sandbox_fd,
				      &apply->held.data_fd, err);
		return rc < 0 ? rc
			      : store_begin_stacked(apply->held.sandbox_fd, apply->held.data_fd,
						    &apply->draft, &apply->layers, err);
	}
	if (rc < 0) {
		*err = local;
	}
	return rc;
}

/* 2: what the parent has changed. */
static int read_parent(struct apply *apply, struct err *err)
{
	int rc = begin_stacked(apply, err);

	if (rc == 0) {
		rc = start_machine(apply, apply->draft.fd, &apply->base, err);
	}
	if (rc < 0) {
		return rc;
	}
	return client_diff_inside(
		apply->machine,
		&(struct client_diff_options){.mode = CLIENT_DIFF_RECORDS,
					      .record = client_diff_keep,
					      .data = &apply->result->parent_changes,
					      .copy_fd = -EBADF},
		NULL, err);
}

/* ---- what is sent into the machine ---- */

/* Chosen records of a stream, and its archive. */
struct sending {
	const struct kept *kept;
	const bool *chosen;
	/* Of box-same: where its answer goes. */
	bool *answer;
	uint8_t frame[4 + CHANGE_FRAME_MAX];
	struct change_stream stream;
	/* Of the thread that writes, and of the one that reads. */
	char bytes[CHUNK_BYTES];
	char answers[CHUNK_BYTES];
};

static int send_frame(struct sending *sending, const struct inside_end *end, int size)
{
	ASSERT(size > 0);
	return inside_write(end, sending->frame, (size_t)size);
}

static int send_records(struct sending *sending, const struct inside_end *end)
{
	const struct changes *changes = sending->kept->changes;
	uint64_t count = 0;
	int rc = 0;

	for (size_t i = 0; i < changes->count && rc == 0; i++) {
		if (sending->chosen[i]) {
			rc = send_frame(sending, end,
					change_encode(&changes->items[i], sending->frame));
			count++;
		}
	}
	return rc == 0 ? send_frame(sending, end, change_end_encode(count, sending->frame)) : rc;
}

static int send_archive(struct sending *sending, const struct inside_end *end)
{
	uint64_t at = sending->kept->result.archive_offset;

	while (at < sending->kept->result.size) {
		ssize_t got =
			pread(sending->kept->fd, sending->bytes, sizeof(sending->bytes), (off_t)at);
		int rc;

		if (got <= 0) {
			return got < 0 ? -errno : -EIO;
		}
		rc = inside_write(end, sending->bytes, (size_t)got);
		if (rc < 0) {
			return rc;
		}
		at += (uint64_t)got;
	}
	return 0;
}

static int write_stream(void *data, const struct inside_end *end, struct err *err)
{
	struct sending *sending = data;
	int rc = send_records(sending, end);

	if (rc == 0) {
		rc = send_archive(sending, end);
	}
	return rc < 0 ? err_context(err, rc, "changes") : 0;
}

static int compare_paths(const void *left, const void *right)
{
	const struct change *a = left, *b = right;

	return strcmp(a->path, b->path);
}

/* One answer of box-same: that of a change it was asked about. */
static int take_answer(struct sending *sending)
{
	const struct changes *changes = sending->kept->changes;
	const struct change *found = bsearch(&sending->stream.change, changes->items,
					     changes->count, sizeof(*found), compare_paths);

	if (!found || !sending->chosen[found - changes->items]) {
		return -EBADMSG;
	}
	sending->answer[found - changes->items] = true;
	return 0;
}

static int take_answers(struct sending *sending, size_t size)
{
	int rc = 0;

	for (size_t at = 0; at < size && rc == 0;) {
		size_t used = 0;

		if (sending->stream.ended) {
			return -EBADMSG;
		}
		rc = change_stream_feed(&sending->stream, sending->answers + at, size - at, &used);
		at += used;
		if (rc >= 0) {
			rc = rc == CHANGE_EVENT_RECORD ? take_answer(sending) : 0;
		}
	}
	return rc;
}

static int read_answers(void *data, const struct inside_end *end, struct err *err)
{
	struct sending *sending = data;
	ssize_t got = 0;
	int rc = 0;

	while (rc == 0 &&
	       (got = inside_read(end, sending->answers, sizeof(sending->answers))) > 0) {
		rc = take_answers(sending, (size_t)got);
	}
	if (rc == 0 && got < 0) {
		return err_context(err, (int)got, "changes");
	}
	if (rc == 0 && !sending->stream.ended) {
		rc = -EBADMSG;
	}
	if (rc < 0) {
		err_set(err, rc, "diff-broken", "what the machine answers breaks the rules for it");
		err_mend(err, "nothing was applied; a guest kernel that was taken over may say "
			      "anything");
	}
	return rc;
}

/* Sends to box-apply, or with answer to box-same. */
static int send_chosen(struct apply *apply, const struct kept *kept, const bool *chosen,
		       bool *answer, struct err *err)
{
	static const char *const apply_argv[] = {"box-apply", NULL};
	static const char *const same_argv[] = {"box-same", NULL};
	_cleanup_free_ struct sending *sending = calloc(1, sizeof(*sending));

	if (!sending) {
		return err_context(err, -ENOMEM, "apply");
	}
	sending->kept = kept;
	sending->chosen = chosen;
	sending->answer = answer;
	change_stream_begin(&sending->stream, false);
	return client_run_inside(apply->machine,
				 &(struct client_inside){
					 .argv = answer ? same_argv : apply_argv,
					 .write = write_stream,
					 .read = answer ? read_answers : NULL,
					 .data = sending,
				 },
				 err);
}

/* 3: what is to be done. Returns 0, or 1 when there are conflicts. */
static int decide(struct apply *apply, struct err *err)
{
	struct client_apply_result *result = apply->result;
	char quoted[PATH_SHOWN_MAX * TEXT_QUOTE_GROWTH + 1];
	long marked = merge_marks(&result->fork_changes, &result->parent_changes, apply->marks);
	int rc = marked < 0 ? (int)marked : 0;

	if (marked > 0) {
		rc = send_chosen(apply, &apply->theirs, apply->marks, apply->equal, err);
	}
	if (rc < 0) {
		return rc;
	}
	rc = merge_make(&(struct merge_input){.fork = &result->fork_changes,
					      .parent = &result->parent_changes,
					      .equal = apply->equal,
					      .paths = (const char *const *)apply->paths,
					      .path_count = apply->options->path_count,
					      .choice = apply->options->choice},
			&result->merge);
	if (rc < 0) {
		return err_context(err, rc, "apply");
	}
	if (result->merge.unmatched) {
		const char *path = result->merge.unmatched;

		text_quote(path, strnlen(path, PATH_SHOWN_MAX), quoted, sizeof(quoted));
		result->merge.unmatched = NULL;
		err_set(err, -ENOENT, "no-change", "%s has changed nothing at \"%s\"", apply->name,
			quoted);
		err_mend(err, "`box diff %s` shows what it has changed", apply->name);
		return -ENOENT;
	}
	return result->merge.open_count > 0 ? 1 : 0;
}

/* Archives have no devices, fifos and sockets (docs/security.md). */
static int refuse_special(const struct apply *apply, const struct changes *changes,
			  const bool *chosen, bool back, struct err *err)
{
	char quoted[PATH_SHOWN_MAX * TEXT_QUOTE_GROWTH + 1];

	for (size_t i = 0; i < changes->count; i++) {
		const char *path = changes->items[i].path;

		if (!chosen[i] || changes->items[i].new.type < CHANGE_TYPE_DEVICE) {
			continue;
		}
		text_quote(path, strnlen(path, PATH_SHOWN_MAX), quoted, sizeof(quoted));
		err_set(err, -EINVAL, "special-file", "\"%s\" is a device, a fifo or a socket%s",
			quoted, back ? " that would have to be made again" : "");
		err_mend(err,
			 back ? "decide for the parent there (--ours), or name other paths of %s"
			      : "delete it in %s, or name the paths that are to be applied",
			 apply->name);
		return -EINVAL;
	}
	return 0;
}

/* Takes back what of the parent's is in the way. */
static int take_back(struct apply *apply, struct err *err)
{
	struct client_apply_result *result = apply->result;
	struct changes changes = {0};
	struct kept back = {.changes = &changes, .fd = store_temporary_file(apply->store, err)};
	_cleanup_free_ bool *chosen = NULL;
	int rc = back.fd < 0 ? back.fd : 0;

	if (rc == 0) {
		rc = client_diff_inside(apply->machine,
					&(struct client_diff_options){.mode = CLIENT_DIFF_BACK,
								      .record = client_diff_keep,
								      .data = &changes,
								      .copy_fd = back.fd},
					&back.result, err);
	}
	if (rc == 0) {
		chosen = calloc(changes.count + 1, sizeof(*chosen));
		rc = chosen ? merge_back(&result->merge, &result->parent_changes, &changes, chosen)
			    : -ENOMEM;
		rc = rc < 0 ? err_context(err, rc, "apply")
			    : refuse_special(apply, &changes, chosen, true, err);
	}
	if (rc == 0) {
		rc = send_chosen(apply, &back, chosen, NULL, err);
	}
	close_fd(&back.fd);
	changes_clear(&changes);
	return rc;
}

/* 4: does it. */
static int carry_out(struct apply *apply, struct err *err)
{
	struct client_apply_result *result = apply->result;
	_cleanup_free_ bool *chosen = calloc(result->fork_changes.count + 1, sizeof(*chosen));
	int rc = chosen ? 0 : err_context(err, -ENOMEM, "apply");

	for (size_t i = 0; i < result->fork_changes.count && rc == 0; i++) {
		chosen[i] = result->merge.fates[i] == MERGE_TAKEN;
	}
	if (rc == 0) {
		rc = refuse_special(apply, &result->fork_changes, chosen, false, err);
	}
	if (rc == 0 && result->merge.revert_count > 0) {
		rc = take_back(apply, err);
	}
	if (rc == 0) {
		rc = send_chosen(apply, &apply->theirs, chosen, NULL, err);
	}
	return rc == 0 ? end_machine(apply, err) : rc;
}

/* 5: the digest, and the step. */
static int put_in_place(struct apply *apply, struct err *err)
{
	struct store_applied applied = {
		.applied_s = (int64_t)(clock_realtime_ns() / 1000000000u),
		.layers = (uint32_t)apply->layers.count,
	};
	_cleanup_close_ int chain_fd = -EBADF;
	struct client_diff_result diff;
	int rc = start_machine(apply, apply->draft.fd, &apply->layers, err);

	if (rc == 0) {
		rc = client_diff_inside(apply->machine,
					&(struct client_diff_options){.mode = CLIENT_DIFF_CONTENT,
								      .copy_fd = -EBADF},
					&diff, err);
	}
	if (rc == 0) {
		rc = end_machine(apply, err);
	}
	if (rc < 0) {
		return rc;
	}
	snprintf(applied.fork, sizeof(applied.fork), "%s", apply->name);
	memcpy(applied.digest, diff.digest, sizeof(applied.digest));
	chain_fd = store_lock_chain(apply->held.sandbox_fd, true, true, err);
	if (chain_fd < 0) {
		return chain_fd;
	}
	store_close_layers(&apply->layers);
	rc = store_swap_stacked(apply->held.sandbox_fd, &apply->draft, &applied, err);
	if (rc == 0) {
		memcpy(apply->result->undo, applied.undo, sizeof(applied.undo));
	}
	return rc;
}

static int run(struct apply *apply, struct err *err)
{
	_cleanup_close_ int fork_fd = store_open_sandbox(apply->store, apply->name, err);
	int rc = fork_fd < 0
			 ? fork_fd
			 : client_open_fork(fork_fd, apply->name, &apply->fork, &apply->base, err);

	if (rc == 0) {
		snprintf(apply->result->parent, sizeof(apply->result->parent), "%s",
			 apply->fork.parent);
		rc = parse_paths(apply, err);
	}
	if (rc == 0) {
		rc = client_hold(apply->store, apply->fork.parent, &apply->held, err);
	}
	if (rc == 0) {
		rc = read_fork(apply, err);
	}
	if (rc == 0) {
		rc = read_parent(apply, err);
	}
	if (rc == 0) {
		rc = decide(apply, err);
	}
	if (rc != 0 || apply->result->merge.taken_count == 0) {
		return rc;
	}
	rc = carry_out(apply, err);
	return rc == 0 ? put_in_place(apply, err) : rc;
}

static void end(struct apply *apply)
{
	client_machine_free(apply->machine);
	store_drop_draft(apply->held.sandbox_fd, &apply->draft);
	store_close_layers(&apply->layers);
	store_close_layers(&apply->base);
	for (size_t i = 0; apply->paths && i < apply->options->path_count; i++) {
		free(apply->paths[i]);
	}
	free(apply->paths);
	free(apply->marks);
	free(apply->equal);
	close_fd(&apply->theirs.fd);
	client_let_go(&apply->held);
}

#define APPLY_OF(a_store, a_name, the_options)                                                     \
	{                                                                                          \
		.store = (a_store), .name = (a_name), .options = (the_options),                    \
		.theirs = {.fd = -EBADF}, .held = CLIENT_HELD_NONE, .draft = STORE_DRAFT_NONE      \
	}

int client_apply(struct store *store, const char *name, const struct client_apply_options *options,
		 struct client_apply_result *ret_result, struct err *err)
{
	struct apply apply = APPLY_OF(store, name, options);
	int rc;

	*ret_result = (struct client_apply_result){0};
	apply.result = ret_result;
	rc = run(&apply, err);
	end(&apply);
	return rc;
}

void client_apply_clear(struct client_apply_result *result)
{
	changes_clear(&result->fork_changes);
	changes_clear(&result->parent_changes);
	merge_clear(&result->merge);
}

/* ---- undo ---- */

static int nothing_applied(const char *name, struct err *err)
{
	err_set(err, -ENOENT, "nothing-applied", "nothing was applied to %s, or by it", name);
	err_mend(err, "`box snapshot %s -l` lists states of /data that are kept", name);
	return -ENOENT;
}

/* Finds whose /data was changed: that of name, or of the parent that name was applied to. */
static int find_applied(struct store *store, const char *name, struct store_applied *ret_applied,
			char *ret_parent, struct err *err)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, err);
	_cleanup_close_ int parent_fd = -EBADF;
	struct store_fork fork = {0};
	int rc = sandbox_fd < 0 ? sandbox_fd : store_read_applied(sandbox_fd, ret_applied, err);

	if (rc != 0) {
		snprintf(ret_parent, sizeof(fork.parent), "%s", name);
		return rc < 0 ? rc : 0;
	}
	rc = store_read_fork(sandbox_fd, &fork, err);
	if (rc <= 0) {
		return rc < 0 ? rc : nothing_applied(name, err);
	}
	parent_fd = store_open_sandbox(store, fork.parent, err);
	rc = parent_fd < 0 ? parent_fd : store_read_applied(parent_fd, ret_applied, err);
	if (rc < 0) {
		return rc;
	}
	if (rc == 0 || strcmp(ret_applied->fork, name) != 0) {
		return nothing_applied(name, err);
	}
	memcpy(ret_parent, fork.parent, sizeof(fork.parent));
	return 0;
}

/* Makes a copy of /data for a machine, as theirs.fd; the layers stay as they are. */
static int copy_data(struct apply *apply, struct err *err)
{
	int rc = store_open_layers(apply->held.sandbox_fd, &apply->layers, err);

	if (rc < 0) {
		return rc;
	}
	apply->theirs.fd = store_temporary_file(apply->store, err);
	if (apply->theirs.fd < 0) {
		return apply->theirs.fd;
	}
	rc = copy_file_sparse(apply->held.data_fd, apply->theirs.fd);
	return rc < 0 ? err_context(err, rc, "copying /data of %s", apply->result->parent) : 0;
}

/* Whether /data is still what the apply has made of it. */
static int check_unchanged(struct apply *apply, const struct store_applied *applied,
			   struct err *err)
{
	struct client_diff_result diff;
	int rc = store_open_undo(apply->held.sandbox_fd, applied, &apply->base, err);

	if (rc == 0) {
		rc = copy_data(apply, err);
	}
	if (rc == 0) {
		rc = start_machine(apply, apply->theirs.fd, &apply->base, err);
	}
	if (rc == 0) {
		rc = client_diff_inside(apply->machine,
					&(struct client_diff_options){.mode = CLIENT_DIFF_CONTENT,
								      .copy_fd = -EBADF},
					&diff, err);
	}
	client_machine_free(apply->machine);
	apply->machine = NULL;
	if (rc < 0) {
		return rc;
	}
	if (strcmp(diff.digest, applied->digest) != 0) {
		err_set(err, -ESTALE, "changed-since",
			"/data of %s has changed since %s was applied to it", apply->result->parent,
			applied->fork);
		err_mend(err, "that would be lost; `box restore %s %s` replaces /data all the same",
			 apply->result->parent, applied->undo);
		return -ESTALE;
	}
	return 0;
}

int client_apply_undo(struct store *store, const char *name,
		      const struct client_apply_options *options, char *ret_parent, char *ret_undo,
		      struct err *err)
{
	struct apply apply = APPLY_OF(store, name, options);
	struct client_apply_result result = {0};
	_cleanup_close_ int chain_fd = -EBADF;
	struct store_applied applied;
	int rc = find_applied(store, name, &applied, result.parent, err);

	apply.result = &result;
	if (rc == 0) {
		memcpy(ret_parent, result.parent, sizeof(result.parent));
		rc = client_hold(store, result.parent, &apply.held, err);
	}
	if (rc == 0) {
		rc = check_unchanged(&apply, &applied, err);
	}
	if (rc == 0) {
		rc = chain_fd = store_lock_chain(apply.held.sandbox_fd, true, true, err);
	}
	if (rc >= 0) {
		rc = store_undo_applied(apply.held.sandbox_fd, &applied, ret_undo, err);
	}
	end(&apply);
	return rc;
}
