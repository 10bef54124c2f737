/*
 * Theory of operation.
 *
 * A fork freezes the parent's /data and begins on what was frozen. The parent's chain lock is held
 * from before the freeze until the last fork is made: so nobody changes the chain, and all forks of
 * one command stand on one state. It is taken first and waited for, and the lock on /data is then
 * taken at once or not at all; the other way round (a restore) /data is held and the chain lock is
 * waited for, and neither waits for the other's.
 *
 * Each freeze makes the chain one longer. It becomes shorter when a fork goes: what only this chain
 * stands on is written into what is below it, or, where all of it is shared and there is no room
 * left, what was written since the last fork is copied to a file of its own. QEMU does that in its
 * jail (engine/merge.h), the store says what and puts the result in place (store/merge.c).
 *
 * What may never happen: a fork of a state that nobody has seen, or one that a person has named and
 * that is half there.
 */
#include "client/fork.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "client/client.h"
#include "client/live.h"
#include "client/state.h"
#include "engine/merge.h"
#include "spec/spec.h"
#include "store/chain.h"
#include "store/ids.h"

/* A look at /data (a start, `box ls`, a sweep) holds its lock for an instant. */
#define LOOK_PAUSE_MS 20
#define LOOK_TRIES 25
/* A machine that starts or ends holds /data without listening, for seconds at most. */
#define HOLDER_TRIES 500

/* A sandbox whose chain is being changed. */
struct family {
	struct store *store;
	const char *name;
	struct spec *spec;
	int sandbox_fd;
	/* Nobody removes the sandbox, changes the chain, and holds /data. */
	int live_fd;
	int chain_fd;
	int data_fd;
	/* The machine as it was at the freeze, if it is wanted. */
	struct client_saved saved;
};

#define FAMILY_OF(a_store, a_name)                                                                 \
	{                                                                                          \
		.store = (a_store), .name = (a_name), .sandbox_fd = -EBADF, .live_fd = -EBADF,     \
		.chain_fd = -EBADF, .data_fd = -EBADF, .saved = CLIENT_SAVED_NONE                  \
	}

static void close_family(struct family *family)
{
	client_close_saved(&family->saved);
	close_fd(&family->data_fd);
	close_fd(&family->chain_fd);
	close_fd(&family->live_fd);
	close_fd(&family->sandbox_fd);
	spec_free(TAKE_PTR(family->spec));
}

static int open_family(struct family *family, struct err *err)
{
	int rc;

	family->sandbox_fd = store_open_sandbox(family->store, family->name, err);
	if (family->sandbox_fd < 0) {
		return family->sandbox_fd;
	}
	family->live_fd = store_lock_live(family->sandbox_fd, false, false, err);
	if (family->live_fd < 0) {
		return family->live_fd;
	}
	/* What killed commands have left has links to layers, which would count as needed. */
	store_sweep_archives(family->sandbox_fd);
	rc = store_load_spec(family->store, family->name, &family->spec, err);
	if (rc == 0) {
		family->chain_fd = store_lock_chain(family->sandbox_fd, true, true, err);
		rc = family->chain_fd < 0 ? family->chain_fd : 0;
	}
	return rc;
}

/* Takes /data at once or not at all, but for those who only look at it. */
static int hold_data(struct family *family, struct err *err)
{
	for (unsigned i = 0; i < LOOK_TRIES; i++) {
		if (i > 0) {
			poll(NULL, 0, LOOK_PAUSE_MS);
		}
		family->data_fd = store_open_data(family->sandbox_fd, false, err);
		if (family->data_fd != -EAGAIN || store_is_up(family->sandbox_fd)) {
			break;
		}
	}
	return family->data_fd < 0 ? family->data_fd : 0;
}

/* Carries over what a merge has begun. */
static int carry(const struct family *family, const struct store_merge *merge, struct err *err)
{
	struct engine_merge job = {
		.count = merge->fd_count,
		.target = merge->target,
		.size_bytes = merge->size_bytes,
	};
	struct store_ids ids = {0};
	int rc = store_ids_choose(family->store, family->name, family->spec, STORE_IDS_MONITOR,
				  &ids, err);

	_Static_assert(ARRAY_SIZE(merge->fds) <= ARRAY_SIZE(job.fds), "they fit");
	job.host_uid = ids.uid;
	job.host_gid = ids.gid;
	memcpy(job.fds, merge->fds, sizeof(merge->fds));
	return rc < 0 ? rc : engine_merge(&job, err);
}

/* Makes the chain one file shorter, or more. Returns 1, 0 when it cannot become so, or an errno. */
static int merge_once(struct family *family, enum store_merge_way way, struct err *err)
{
	struct store_merge merge = STORE_MERGE_NONE;
	int top_fd = -EBADF;
	int rc = store_begin_merge(family->sandbox_fd, way, &merge, err);

	if (rc <= 0) {
		return rc;
	}
	rc = carry(family, &merge, err);
	if (rc == 0) {
		rc = store_commit_merge(family->sandbox_fd, &merge, &top_fd, err);
	}
	store_drop_merge(family->sandbox_fd, &merge);
	if (rc == 0 && top_fd >= 0) {
		close_fd(&family->data_fd);
		family->data_fd = top_fd;
	}
	return rc < 0 ? rc : 1;
}

static int merge_unused(struct family *family, struct err *err)
{
	int rc;

	do {
		rc = merge_once(family, STORE_MERGE_UNUSED, err);
	} while (rc > 0);
	return rc;
}

void client_shorten_chain(struct store *store, const char *name,
			  const struct client_fork_options *options)
{
	struct family family = FAMILY_OF(store, name);
	struct err err = {0};
	char text[sizeof(err.text) + 64];
	int rc;

	/* Forks that killed commands were making have links as well. */
	(void)store_sweep(store);
	rc = open_family(&family, &err);

	if (rc == 0) {
		rc = hold_data(&family, &err);
	}
	if (rc == 0) {
		rc = merge_unused(&family, &err);
	}
	close_family(&family);
	/* It is in use, or gone; the next one who comes finds the same. */
	if (rc < 0 && rc != -EAGAIN && rc != -ENOENT && options->notice) {
		snprintf(text, sizeof(text), "%s keeps more disks than it needs: %s", name,
			 err.text);
		options->notice(options->data, text);
	}
}

int client_make_room(struct store *store, const char *name, int sandbox_fd, int *data_fd,
		     struct err *err)
{
	struct family family = FAMILY_OF(store, name);
	int rc = store_load_spec(store, name, &family.spec, err);

	family.sandbox_fd = sandbox_fd;
	family.data_fd = TAKE_FD(*data_fd);
	if (rc == 0) {
		family.chain_fd = store_lock_chain(sandbox_fd, true, true, err);
		rc = family.chain_fd < 0 ? family.chain_fd : 0;
	}
	if (rc == 0) {
		rc = merge_once(&family, STORE_MERGE_ROOM, err);
	}
	if (rc == 0) {
		rc = err_set(err, -EMLINK, "chain-long",
			     "%s: its chain of disks cannot be made shorter", name);
	}
	*data_fd = TAKE_FD(family.data_fd);
	family.sandbox_fd = -EBADF;
	close_family(&family);
	return rc < 0 ? rc : 0;
}

static int freeze_at_rest(struct family *family, const struct client_fork_options *options,
			  struct err *err)
{
	int top_fd = -EBADF;
	int rc = store_freeze_data(family->sandbox_fd, family->data_fd, &top_fd, err);

	if (rc == -EMLINK && options->notice) {
		options->notice(options->data,
				"its chain of disks is at its longest; merging some of them first");
	}
	while (rc == -EMLINK) {
		*err = (struct err){0};
		rc = merge_once(family, STORE_MERGE_ROOM, err);
		if (rc == 0) {
			/* Longer than a chain of three that is not shared it cannot be. */
			return err_set(err, -EMLINK, "chain-long",
				       "%s: its chain of disks cannot be made shorter",
				       family->name);
		}
		if (rc > 0) {
			rc = store_freeze_data(family->sandbox_fd, family->data_fd, &top_fd, err);
		}
	}
	if (top_fd >= 0) {
		close_fd(&family->data_fd);
		family->data_fd = top_fd;
	}
	return rc;
}

static int freeze(struct family *family, const struct client_fork_options *options, struct err *err)
{
	for (unsigned i = 0; i < HOLDER_TRIES; i++) {
		struct err local = {0};
		int rc = options->live ? -EAGAIN : hold_data(family, &local);

		if (rc != -EAGAIN) {
			*err = rc < 0 ? local : *err;
			return rc < 0 ? rc : freeze_at_rest(family, options, err);
		}
		/* Only the keeper of that machine can. It may be coming or going just now. */
		rc = client_freeze_running(family->store, family->name, family->chain_fd,
					   options->live ? &family->saved : NULL, err);
		if (rc != -EAGAIN) {
			return rc;
		}
		if (options->live && !store_is_up(family->sandbox_fd)) {
			err_set(err, -ENOENT, "not-up", "%s is not up", family->name);
			err_mend(err,
				 "`box up %s` starts it; a fork without --live needs no machine",
				 family->name);
			return -ENOENT;
		}
		poll(NULL, 0, LOOK_PAUSE_MS);
	}
	err_set(err, -EBUSY, "busy", "a machine holds /data of %s and does not answer",
		family->name);
	err_mend(err, "wait for the command that runs in it, or end it");
	return -EBUSY;
}

int client_fork_name(const char *name, unsigned count, unsigned at,
		     char ret_name[static STORE_LABEL_MAX + 1])
{
	int length = count == 0 ? snprintf(ret_name, STORE_LABEL_MAX + 1, "%s", name)
				: snprintf(ret_name, STORE_LABEL_MAX + 1, "%s-%u", name, at + 1);

	return length > STORE_LABEL_MAX ? -ENAMETOOLONG : 0;
}

/* Before anything is frozen: what is wrong with the names. */
static int check_names(struct store *store, const char *name, unsigned count, struct err *err)
{
	char each[STORE_LABEL_MAX + 1];
	int rc = spec_check_name(name, err);

	for (unsigned i = 0; rc == 0 && i < MAX(count, 1u); i++) {
		_cleanup_close_ int fd = -EBADF;

		if (client_fork_name(name, count, i, each) < 0) {
			err_set(err, -ENAMETOOLONG, "name", "%s-%u is too long for a name", name,
				count);
			err_mend(err, "a name has at most %d characters", STORE_LABEL_MAX);
			return -ENAMETOOLONG;
		}
		fd = store_open_sandbox(store, each, NULL);
		if (fd >= 0) {
			err_set(err, -EEXIST, "exists", "there is a sandbox %s already", each);
			err_mend(err, "take another name; `box ls` lists those that are taken");
			return -EEXIST;
		}
	}
	return rc;
}

/* All of them, or those that were made go again. */
static int make_forks(struct family *family, const char *name, unsigned count, struct err *err)
{
	char each[STORE_LABEL_MAX + 1];
	unsigned made = 0;
	int rc = 0;

	while (rc == 0 && made < MAX(count, 1u)) {
		client_fork_name(name, count, made, each);
		rc = store_create_fork(family->store, family->name, each, err);
		made += rc == 0;
	}
	for (unsigned i = 0; rc < 0 && i < made; i++) {
		client_fork_name(name, count, i, each);
		store_destroy(family->store, each, true, NULL, NULL);
	}
	return rc;
}

/* All copies come up, or none is left. */
static int start_copies(struct family *family, const char *name, unsigned count, struct err *err)
{
	char each[STORE_LABEL_MAX + 1];
	unsigned up = 0;
	int rc = 0;

	while (rc == 0 && up < MAX(count, 1u)) {
		client_fork_name(name, count, up, each);
		rc = client_start_copy(family->store, each, &family->saved, err);
		up += rc == 0;
	}
	for (unsigned i = 0; rc < 0 && i < MAX(count, 1u); i++) {
		client_fork_name(name, count, i, each);
		if (i < up) {
			client_down(family->store, each, NULL);
		}
		store_destroy(family->store, each, true, NULL, NULL);
	}
	return rc;
}

int client_fork(struct store *store, const char *parent, const char *name, unsigned count,
		const struct client_fork_options *options, struct err *err)
{
	_cleanup_(close_family) struct family family = FAMILY_OF(store, parent);
	int rc = open_family(&family, err);

	ASSERT(count <= CLIENT_FORKS_MAX);
	if (rc == 0) {
		rc = check_names(store, name, count, err);
	}
	if (rc == 0) {
		rc = freeze(&family, options, err);
	}
	if (rc >= 0) {
		rc = make_forks(&family, name, count, err);
	}
	if (rc == 0 && options->live) {
		/* The chain may change again: the copies hold what they stand on. */
		close_fd(&family.chain_fd);
		rc = start_copies(&family, name, count, err);
	}
	return rc;
}

int client_destroy(struct store *store, const char *name, bool with_data, char **ret_kept,
		   const struct client_fork_options *options, struct err *err)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, err);
	struct store_fork fork;
	bool is_fork;
	int rc;

	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	/* A build that was killed may have left a directory outside, which only its stage names. */
	client_build_sweep(sandbox_fd);
	rc = client_pool_drain(store, name, err);
	if (rc < 0) {
		return rc;
	}
	is_fork = store_read_fork(sandbox_fd, &fork, NULL) > 0;
	rc = store_destroy(store, name, with_data, ret_kept, err);
	if (rc == 0 && is_fork) {
		client_shorten_chain(store, fork.parent, options);
	}
	return rc;
}

int client_discard(struct store *store, const char *name, const struct client_fork_options *options,
		   struct err *err)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, err);
	struct store_fork fork;
	int rc = sandbox_fd < 0 ? sandbox_fd : store_read_fork(sandbox_fd, &fork, err);

	if (rc == 0) {
		err_set(err, -EINVAL, "not-fork", "%s is no fork", name);
		err_mend(err, "`box destroy %s` removes it", name);
		return -EINVAL;
	}
	return rc < 0 ? rc : client_destroy(store, name, true, NULL, options, err);
}
