#include "store/applied.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "json/json.h"
#include "spec/spec.h"
#include "store/internal.h"

#define APPLIED_PATH "applied.json"
/* Two names, a digest and two numbers. */
#define APPLIED_TEXT_MAX ((size_t)4096)

_Static_assert(sizeof(((struct store_applied *)NULL)->fork) > SPEC_NAME_MAX, "names fit");

/* Copies a member that is a string, or returns false when it is none or too long. */
static bool take_string(const struct json *json, const char *key, char *out, size_t size)
{
	const char *text = json_get_string(json, key);

	return text && (size_t)snprintf(out, size, "%s", text) < size;
}

/* 1 with *ret_applied, 0 when there is none, -EBADMSG for what box has not written. */
static int read_applied(int sandbox_fd, struct store_applied *ret_applied)
{
	_cleanup_(json_freep) struct json *json = NULL;
	struct store_applied applied = {0};
	int64_t layers = 0;
	int rc = store_read_json(sandbox_fd, APPLIED_PATH, APPLIED_TEXT_MAX, &json);

	if (rc <= 0) {
		return rc;
	}
	if (!take_string(json, "fork", applied.fork, sizeof(applied.fork)) ||
	    !take_string(json, "undo", applied.undo, sizeof(applied.undo)) ||
	    !take_string(json, "digest", applied.digest, sizeof(applied.digest)) ||
	    spec_check_name(applied.fork, NULL) < 0 || spec_check_name(applied.undo, NULL) < 0 ||
	    json_get_integer(json, "layers", &layers) < 0 || layers < 1 ||
	    layers >= STORE_CHAIN_MAX ||
	    json_get_integer(json, "applied", &applied.applied_s) < 0) {
		return -EBADMSG;
	}
	applied.layers = (uint32_t)layers;
	*ret_applied = applied;
	return 1;
}

int store_read_applied(int sandbox_fd, struct store_applied *ret_applied, struct err *err)
{
	char path[PATH_MAX];
	int rc = read_applied(sandbox_fd, ret_applied);

	if (rc >= 0) {
		return rc;
	}
	store_fd_path(sandbox_fd, path);
	if (rc == -EBADMSG) {
		err_set(err, rc, "applied-broken", "%s/" APPLIED_PATH " is not as box writes it",
			path);
		err_mend(err, "remove it: the state before is still an archive, `box snapshot NAME "
			      "-l` lists it");
		return rc;
	}
	return store_fail(err, rc, path, "cannot read %s/" APPLIED_PATH, path);
}

static int write_applied(int sandbox_fd, const struct store_applied *applied)
{
	_cleanup_(json_freep) struct json *json = json_new_object();
	_cleanup_free_ char *text = NULL;

	if (json_set_string(json, "fork", applied->fork) < 0 ||
	    json_set_integer(json, "applied", applied->applied_s) < 0 ||
	    json_set_integer(json, "layers", applied->layers) < 0 ||
	    json_set_string(json, "undo", applied->undo) < 0 ||
	    json_set_string(json, "digest", applied->digest) < 0 ||
	    json_dump(json, JSON_DUMP_NEWLINE, &text) < 0) {
		return -ENOMEM;
	}
	return write_file_at(sandbox_fd, APPLIED_PATH, text, strlen(text), 0600);
}

int store_swap_stacked(int sandbox_fd, struct store_draft *draft, struct store_applied *applied,
		       struct err *err)
{
	char path[PATH_MAX];
	int rc = fsync(draft->fd) < 0 ? -errno : 0;

	if (rc == 0) {
		rc = store_keep_frozen(sandbox_fd, draft->dir_fd, applied->layers, applied->undo,
				       err);
		if (rc < 0) {
			return rc;
		}
		/* Before the step: who is killed between the two leaves a note whose digest is not
		 * that of /data, which undoes nothing. */
		rc = write_applied(sandbox_fd, applied);
		if (rc == 0) {
			rc = store_exchange_chain(sandbox_fd, draft);
		}
		if (rc < 0) {
			/* Its last layer is still what /data is written to. */
			store_drop_frozen(sandbox_fd, applied->undo);
		}
	}
	if (rc < 0) {
		store_fd_path(sandbox_fd, path);
		return store_fail(err, rc, path, "cannot put the new /data in its place");
	}
	store_drop_draft(sandbox_fd, draft);
	return 0;
}

int store_undo_applied(int sandbox_fd, const struct store_applied *applied, char *ret_undo,
		       struct err *err)
{
	struct store_draft draft = STORE_DRAFT_NONE;
	_cleanup_close_ int chain_fd = store_open_directory(sandbox_fd, CHAIN_DIRECTORY);
	struct store_archive archive;
	char path[PATH_MAX];
	int rc = store_find_archive(sandbox_fd, applied->undo, &archive, err);

	if (rc == 0) {
		rc = store_begin_undo(sandbox_fd, &archive, &draft, err);
	}
	if (rc < 0) {
		return rc;
	}
	/* What a fork is of is no part of an archive, and the same before and after. */
	rc = chain_fd < 0 ? chain_fd : store_copy_fork(chain_fd, draft.dir_fd, 0);
	if (rc < 0) {
		store_fd_path(sandbox_fd, path);
		store_fail(err, rc, path, "cannot bring the state before back");
	} else {
		rc = store_swap_data(sandbox_fd, &draft, ret_undo, err);
	}
	store_drop_draft(sandbox_fd, &draft);
	if (rc == 0) {
		/* One that stays would not fit what is /data now. */
		(void)unlinkat(sandbox_fd, APPLIED_PATH, 0);
	}
	return rc;
}
