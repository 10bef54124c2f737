/*
 * Chains become shorter: which files can become one, and the chain without the others.
 *
 *     in place      a layer takes what is in the file above it. Seen from above nothing changes
 *                   meanwhile, for what is written there is what the file above hides. So it may be
 *                   ended at any instant. The layer must be this chain's alone (one link), and open
 *                   nowhere: `--data clone` and a look at a base read layers that nobody else
 *                   protects.
 *     a new file    takes what is in several; it belongs to nothing until the chain is exchanged.
 *
 * Two places are never merged over: the base, which is never written to, and the state at the fork
 * of what is a fork.
 *
 * What may never happen: a byte is written to a file that another chain, or a process, sees without
 * what is above it here.
 */
#include "store/chain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "store/internal.h"

/* A chain's files as they are now. */
struct chain {
	int fd;
	size_t count;
	/* Files that are the state at the fork; of what is no fork the base alone. */
	size_t base_count;
	uint64_t bytes[STORE_CHAIN_MAX];
	bool shared[STORE_CHAIN_MAX];
};

static void file_name(const struct chain *chain, size_t at, char out[STORE_LAYER_NAME_SIZE])
{
	if (at + 1 == chain->count) {
		snprintf(out, STORE_LAYER_NAME_SIZE, CHAIN_TOP);
	} else {
		store_layer_name(at, out);
	}
}

static int read_chain(int sandbox_fd, struct chain *chain, struct err *err)
{
	struct store_fork fork;
	size_t below = 0;
	int rc = store_read_fork(sandbox_fd, &fork, err);

	if (rc < 0) {
		return rc;
	}
	chain->base_count = rc > 0 ? fork.base_count : 1;
	chain->fd = store_open_directory(sandbox_fd, CHAIN_DIRECTORY);
	rc = chain->fd < 0 ? chain->fd : store_count_layers(chain->fd, &below);
	chain->count = below + 1;
	for (size_t i = 0; rc == 0 && i < chain->count; i++) {
		char name[STORE_LAYER_NAME_SIZE];
		struct stat status;

		file_name(chain, i, name);
		if (fstatat(chain->fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
			rc = -errno;
		} else {
			chain->bytes[i] = (uint64_t)status.st_blocks * 512;
			chain->shared[i] = status.st_nlink > 1;
		}
	}
	if (rc == 0 && chain->base_count > below) {
		rc = -EBADMSG;
	}
	return rc < 0 ? store_fail_chain(sandbox_fd, rc, "cannot look at what is below /data", err)
		      : 0;
}

/* Opens one of the chain's files for reading. */
static int open_file(const struct chain *chain, size_t at)
{
	char name[STORE_LAYER_NAME_SIZE];
	int fd;

	file_name(chain, at, name);
	fd = openat(chain->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Opens a layer to write to, when nobody else has it open. -EAGAIN otherwise. */
static int open_target(const struct chain *chain, size_t at)
{
	char name[STORE_LAYER_NAME_SIZE];

	file_name(chain, at, name);
	return store_open_locked(chain->fd, name, O_RDWR, LOCK_EX | LOCK_NB);
}

/* Whether file at + 1 can go into file at in its place. */
static bool fits_in_place(const struct chain *chain, size_t at)
{
	return at > 0 && at + 1 < chain->count && at + 1 != chain->base_count && !chain->shared[at];
}

/* Finds the cheapest of them whose target can be had. 1 with merge filled, 0, or an errno. */
static int find_in_place(const struct chain *chain, struct store_merge *merge)
{
	bool tried[STORE_CHAIN_MAX] = {false};

	for (;;) {
		size_t best = 0;
		int fd;

		for (size_t i = 1; i < chain->count; i++) {
			if (!tried[i] && fits_in_place(chain, i) &&
			    (best == 0 || chain->bytes[i + 1] < chain->bytes[best + 1])) {
				best = i;
			}
		}
		if (best == 0) {
			return 0;
		}
		fd = open_target(chain, best);
		if (fd >= 0) {
			merge->first = best;
			merge->last = best + 1;
			merge->fds[best] = fd;
			return 1;
		}
		if (fd != -EAGAIN) {
			return fd;
		}
		tried[best] = true;
	}
}

/* Finds several that can become a new file. */
static bool find_room(const struct chain *chain, struct store_merge *merge)
{
	if (chain->count - chain->base_count > 1) {
		merge->first = chain->base_count;
		merge->last = chain->count - 1;
		return true;
	}
	merge->first = 1;
	merge->last = chain->base_count - 1;
	return merge->last > merge->first;
}

/* Opens what is below the target and what goes into it. New files have no place in the chain. */
static int open_others(const struct chain *chain, struct store_merge *merge, size_t into)
{
	for (size_t i = 0; i < merge->first; i++) {
		merge->fds[i] = open_file(chain, i);
		if (merge->fds[i] < 0) {
			return merge->fds[i];
		}
	}
	merge->target = merge->first;
	merge->fd_count = merge->first + 1;
	for (size_t i = into; i <= merge->last; i++) {
		merge->fds[merge->fd_count] = open_file(chain, i);
		if (merge->fds[merge->fd_count] < 0) {
			return merge->fds[merge->fd_count];
		}
		merge->fd_count++;
	}
	return 0;
}

/* What the target must become as large as. */
static int read_size(int sandbox_fd, const struct chain *chain, struct store_merge *merge,
		     struct err *err)
{
	_cleanup_close_ int fd = open_file(chain, merge->last);

	return fd < 0 ? store_fail_chain(sandbox_fd, fd, "cannot open what is below /data", err)
		      : store_disk_size(fd, &merge->size_bytes, err);
}

/* The place of a file in the chain that will be; the target's is first. */
static size_t new_place(const struct store_merge *merge, size_t at)
{
	return at <= merge->first ? at : at - (merge->last - merge->first);
}

/* The name of a place in the chain that will be. */
static void new_name(const struct store_merge *merge, size_t at, char out[STORE_LAYER_NAME_SIZE])
{
	if (at + 1 == merge->count - (merge->last - merge->first)) {
		snprintf(out, STORE_LAYER_NAME_SIZE, CHAIN_TOP);
	} else {
		store_layer_name(at, out);
	}
}

static int make_target(int sandbox_fd, struct store_merge *merge, struct err *err)
{
	char name[STORE_LAYER_NAME_SIZE];
	int rc = store_begin_chain(sandbox_fd, &merge->draft);

	if (rc == 0) {
		new_name(merge, merge->first, name);
		rc = store_open_locked(merge->draft.dir_fd, name, O_RDWR | O_CREAT | O_EXCL,
				       LOCK_EX | LOCK_NB);
	}
	if (rc < 0) {
		return store_fail_chain(sandbox_fd, rc, "cannot merge what is below /data", err);
	}
	merge->fds[merge->first] = rc;
	return store_write_qcow2(merge->fds[merge->first], merge->size_bytes, err);
}

static int begin(int sandbox_fd, const struct chain *chain, enum store_merge_way way,
		 struct store_merge *merge, struct err *err)
{
	int found, rc;

	merge->count = chain->count;
	rc = found = find_in_place(chain, merge);
	if (rc == 0 && (way != STORE_MERGE_ROOM || !find_room(chain, merge))) {
		return 0;
	}
	if (rc >= 0) {
		rc = open_others(chain, merge, found ? merge->first + 1 : merge->first);
	}
	if (rc < 0) {
		return store_fail_chain(sandbox_fd, rc, "cannot open what is below /data", err);
	}
	rc = read_size(sandbox_fd, chain, merge, err);
	if (rc == 0) {
		rc = found ? store_fit_disk(merge->fds[merge->first], merge->size_bytes, err)
			   : make_target(sandbox_fd, merge, err);
	}
	return rc < 0 ? rc : 1;
}

int store_begin_merge(int sandbox_fd, enum store_merge_way way, struct store_merge *ret_merge,
		      struct err *err)
{
	struct store_merge merge = STORE_MERGE_NONE;
	struct chain chain = {.fd = -EBADF};
	int rc = store_drop_second_names(sandbox_fd);

	rc = rc < 0 ? store_fail_chain(sandbox_fd, rc, "cannot look at the archives", err)
		    : read_chain(sandbox_fd, &chain, err);
	if (rc == 0) {
		rc = begin(sandbox_fd, &chain, way, &merge, err);
	}
	close_fd(&chain.fd);
	if (rc > 0) {
		*ret_merge = merge;
	} else {
		store_drop_merge(sandbox_fd, &merge);
	}
	return rc;
}

void store_drop_merge(int sandbox_fd, struct store_merge *merge)
{
	for (size_t i = 0; i < ARRAY_SIZE(merge->fds); i++) {
		close_fd(&merge->fds[i]);
	}
	store_drop_draft(sandbox_fd, &merge->draft);
}

/* Gives the files that stay their names in the new chain. A new target has its name. */
static int link_files(const struct chain *chain, const struct store_merge *merge, bool in_place)
{
	for (size_t i = 0; i < chain->count; i++) {
		char from[STORE_LAYER_NAME_SIZE], to[STORE_LAYER_NAME_SIZE];

		if (i >= merge->first && i <= merge->last && !(in_place && i == merge->first)) {
			continue;
		}
		file_name(chain, i, from);
		new_name(merge, new_place(merge, i), to);
		if (linkat(chain->fd, from, merge->draft.dir_fd, to, 0) < 0) {
			return -errno;
		}
	}
	return store_copy_fork(chain->fd, merge->draft.dir_fd,
			       (uint32_t)new_place(merge, chain->base_count - 1) + 1);
}

static int commit(int sandbox_fd, const struct chain *chain, struct store_merge *merge)
{
	bool in_place = merge->draft.dir_fd < 0;
	int rc = in_place ? store_begin_chain(sandbox_fd, &merge->draft) : 0;

	if (rc == 0) {
		rc = link_files(chain, merge, in_place);
	}
	return rc == 0 ? store_exchange_chain(sandbox_fd, &merge->draft) : rc;
}

int store_commit_merge(int sandbox_fd, struct store_merge *merge, int *ret_top_fd, struct err *err)
{
	struct chain chain = {.fd = -EBADF};
	int rc = read_chain(sandbox_fd, &chain, err);

	*ret_top_fd = -EBADF;
	if (rc == 0) {
		ASSERT(chain.count == merge->count);
		rc = commit(sandbox_fd, &chain, merge);
		rc = rc < 0 ? store_fail_chain(sandbox_fd, rc, "cannot make its chain shorter", err)
			    : 0;
	}
	close_fd(&chain.fd);
	if (rc == 0 && merge->last + 1 == merge->count) {
		*ret_top_fd = TAKE_FD(merge->fds[merge->target]);
	}
	store_drop_merge(sandbox_fd, merge);
	return rc;
}
