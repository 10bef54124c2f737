/*
 * A sandbox gets another name.
 *
 * The sandbox is one directory, so its rename is one step. Its log lies elsewhere: the old name is
 * first noted in the sandbox (renamed-from), then the sandbox is renamed, then the log follows, and
 * the note goes. A sweep that finds a note does what is left, but not while the rename is still
 * under way (the lock on the directory), and not when there is a new sandbox of the old name, whose
 * log it would be. A log that an earlier sandbox of the new name has left is put aside under a
 * hidden name, not mixed with this one.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "spec/spec.h"
#include "store/chain.h"
#include "store/ids.h"
#include "store/internal.h"
#include "store/log.h"

#define NOTE "renamed-from"

/* What belongs to a name below log/: the last lines, older ones, output of commands, and the log of
 * the network. */
static const char *const log_suffixes[] = {".jsonl", ".jsonl.1", "", STORE_LOG_NET ".jsonl",
					   STORE_LOG_NET ".jsonl.1"};

static int move_log(int log_fd, const char *from, const char *to, const char *suffix)
{
	char old[SPEC_NAME_MAX + 16], new[SPEC_NAME_MAX + 16];
	char aside[SPEC_NAME_MAX + STORE_TAG_SIZE + 32], tag[STORE_TAG_SIZE];

	snprintf(old, sizeof(old), "%s%s", from, suffix);
	snprintf(new, sizeof(new), "%s%s", to, suffix);
	for (int i = 0; i < STORE_TRIES_MAX; i++) {
		if (renameat2(log_fd, old, log_fd, new, RENAME_NOREPLACE) == 0 || errno == ENOENT) {
			return 0;
		}
		if (errno != EEXIST) {
			return -errno;
		}
		store_random_tag(tag);
		snprintf(aside, sizeof(aside), ".earlier-%s-%s", new, tag);
		if (renameat(log_fd, new, log_fd, aside) < 0 && errno != ENOENT) {
			return -errno;
		}
	}
	return -EEXIST;
}

/* Whether the log of from is still that of a sandbox which is called name now. */
static bool log_is_ours(const struct store *store, const char *from, const char *name)
{
	char path[sizeof("sandboxes/") + SPEC_NAME_MAX];
	struct stat status;

	/* A note of our own name is one of a rename that never came about. */
	if (strcmp(from, name) == 0 || spec_check_name(from, NULL) < 0) {
		return false;
	}
	snprintf(path, sizeof(path), "sandboxes/%s", from);
	return fstatat(store->home_fd, path, &status, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

int store_finish_rename(struct store *store, int sandbox_fd, const char *name)
{
	_cleanup_close_ int log_fd = -EBADF;
	_cleanup_free_ char *from = NULL;
	struct stat status;
	int rc;

	if (fstatat(sandbox_fd, NOTE, &status, AT_SYMLINK_NOFOLLOW) < 0) {
		return errno == ENOENT ? 0 : -errno;
	}
	rc = store_try_lock_directory(sandbox_fd);
	if (rc < 0) {
		/* Somebody is at it. */
		return rc == -EAGAIN ? 0 : rc;
	}
	rc = read_file_at(sandbox_fd, NOTE, SPEC_NAME_MAX, &from, NULL);
	if (rc < 0) {
		return rc == -ENOENT ? 0 : rc;
	}
	log_fd = store_open_directory(store->home_fd, "log");
	if (log_fd >= 0 && log_is_ours(store, from, name)) {
		for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(log_suffixes); i++) {
			rc = move_log(log_fd, from, name, log_suffixes[i]);
		}
	}
	if (rc == 0 && unlinkat(sandbox_fd, NOTE, 0) < 0 && errno != ENOENT) {
		rc = -errno;
	}
	return rc;
}

static int rename_sandbox(struct store *store, int sandbox_fd, const char *from, const char *to)
{
	_cleanup_close_ int sandboxes_fd = store_open_directory(store->home_fd, "sandboxes");
	char run_path[sizeof("run/") + SPEC_NAME_MAX];
	int rc;

	if (sandboxes_fd < 0) {
		return sandboxes_fd;
	}
	/* Nothing lives, so what is in run/ are leftovers of keepers that were killed. */
	snprintf(run_path, sizeof(run_path), "run/%s", from);
	rc = remove_tree_at(store->home_fd, run_path);
	if (rc == 0) {
		rc = write_file_at(sandbox_fd, NOTE, from, strlen(from), 0600);
	}
	if (rc == 0) {
		/* It gets others with its next machine. Before the name is free: a new sandbox of
		 * this name must not lose what it gets. */
		(void)store_ids_free(store, from);
	}
	if (rc == 0 && renameat2(sandboxes_fd, from, sandboxes_fd, to, RENAME_NOREPLACE) < 0) {
		rc = -errno;
		unlinkat(sandbox_fd, NOTE, 0);
	}
	if (rc == 0) {
		rc = store_finish_rename(store, sandbox_fd, to);
	}
	return rc == 0 && fsync(sandboxes_fd) < 0 ? -errno : rc;
}

int store_rename(struct store *store, const char *from, const char *to, struct err *err)
{
	_cleanup_(store_unlock_all) struct store_locks locks = STORE_LOCKS_NONE;
	_cleanup_close_ int sandbox_fd = -EBADF;
	int rc = spec_check_name(to, err);

	if (rc < 0) {
		return rc;
	}
	sandbox_fd = store_open_sandbox(store, from, err);
	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	rc = store_lock_all(sandbox_fd, from, &locks, err);
	if (rc == 0) {
		rc = store_refuse_forks(store, from, err);
	}
	if (rc < 0) {
		return rc;
	}
	/* One that was interrupted comes first, or its log would be left behind. */
	rc = store_finish_rename(store, sandbox_fd, from);
	if (rc == 0) {
		rc = rename_sandbox(store, sandbox_fd, from, to);
	}
	if (rc == -EEXIST) {
		err_set(err, rc, "exists", "there is a sandbox %s already", to);
		err_mend(err, "take another name; `box ls` lists those that are taken");
		return rc;
	}
	return rc < 0 ? store_fail(err, rc, store->home, "cannot rename %s to %s", from, to) : 0;
}
