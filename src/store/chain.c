/*
 * The files of a chain: opened, frozen, and changed whole.
 *
 * A change begins with a directory of its own (store_begin_chain), which gets links to the files
 * that stay and new ones for what is new; when all of it is on the disk it changes places with
 * data/ (store_exchange_chain). What was there before is then under the draft's name, and is
 * removed. Whoever is killed leaves one of the two under that name, which a sweep removes, since
 * nobody holds its lock.
 *
 * What may never happen: that data/ is not a whole chain, or that a file with a second name in
 * another chain is opened for writing.
 */
#include "store/chain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "store/applied.h"
#include "store/internal.h"

_Static_assert(STORE_CHAIN_MAX < 10, "a layer's number is one digit");

int store_lock_chain(int sandbox_fd, bool exclusive, bool wait, struct err *err)
{
	int operation = (exclusive ? LOCK_EX : LOCK_SH) | (wait ? 0 : LOCK_NB);
	int fd = store_open_locked(sandbox_fd, "chain.lock", O_RDWR | O_CREAT, operation);

	if (fd < 0) {
		store_lock_failed(sandbox_fd, fd, "has its /data forked or changed just now", err);
		if (fd == -EAGAIN) {
			err_mend(err, "wait until that is over and try again");
		}
	}
	return fd;
}

static int no_data(int sandbox_fd, struct err *err)
{
	char path[PATH_MAX];
	const char *name = store_sandbox_label(sandbox_fd, path);

	err_set(err, -ENOENT, "no-data", "%s has no /data yet", name);
	err_mend(err, "`box build %s` makes it", name);
	return -ENOENT;
}

int store_fail_chain(int sandbox_fd, int rc, const char *what, struct err *err)
{
	char path[PATH_MAX];
	const char *name = store_sandbox_label(sandbox_fd, path);

	if (rc == -ENOENT) {
		return no_data(sandbox_fd, err);
	}
	if (rc == -EBADMSG) {
		err_set(err, rc, "chain-broken", "a disk is missing below /data of %s", name);
		err_mend(err, "bring the files back into the sandbox's data/, or `box destroy %s`",
			 name);
		return rc;
	}
	store_fail(err, rc, path, "%s: %s", name, what);
	if (rc == -EINVAL) {
		err_mend(err, "the file system cannot exchange two directories in one step; set "
			      "BOX_HOME to a directory on ext4, xfs or btrfs");
	}
	return rc;
}

void store_layer_name(size_t at, char out[STORE_LAYER_NAME_SIZE])
{
	if (at == 0) {
		snprintf(out, STORE_LAYER_NAME_SIZE, CHAIN_BASE);
	} else {
		snprintf(out, STORE_LAYER_NAME_SIZE, "layer-%zu.qcow2", at);
	}
}

static int is_layer(int dir_fd, const char *name)
{
	(void)dir_fd;
	return strncmp(name, "layer-", strlen("layer-")) == 0;
}

int store_count_layers(int chain_fd, size_t *ret_count)
{
	_cleanup_free_ char **names = NULL;
	char name[STORE_LAYER_NAME_SIZE];
	size_t count = 0;
	int rc = store_read_names(chain_fd, ".", is_layer, &names, &count);

	if (rc < 0) {
		return rc;
	}
	/* What stood on a layer that is gone would read wrongly, and be written so. */
	for (size_t i = 1; i <= count; i++) {
		store_layer_name(i, name);
		if (faccessat(chain_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0) {
			return errno == ENOENT ? -EBADMSG : -errno;
		}
	}
	*ret_count = count + 1;
	/* data.qcow2 is one more. */
	return *ret_count < STORE_CHAIN_MAX ? 0 : -EBADMSG;
}

static int open_layer(int chain_fd, size_t at)
{
	char name[STORE_LAYER_NAME_SIZE];

	store_layer_name(at, name);
	return store_open_locked(chain_fd, name, O_RDONLY, LOCK_SH | LOCK_NB);
}

/* Opens count files from the bottom up; 0: all that are below data.qcow2. */
static int open_layers(int chain_fd, size_t count, struct store_layers *ret_layers)
{
	_cleanup_(store_close_layers) struct store_layers layers = {.count = 0};
	int rc = count > 0 ? 0 : store_count_layers(chain_fd, &count);

	for (size_t i = 0; rc == 0 && i < count; i++) {
		int fd = open_layer(chain_fd, i);

		if (fd < 0) {
			rc = fd;
		} else {
			layers.fds[layers.count++] = fd;
		}
	}
	if (rc < 0) {
		return rc;
	}
	*ret_layers = layers;
	layers.count = 0;
	return 0;
}

int store_open_layers(int sandbox_fd, struct store_layers *ret_layers, struct err *err)
{
	_cleanup_close_ int chain_fd = store_open_directory(sandbox_fd, CHAIN_DIRECTORY);
	int rc = chain_fd < 0 ? chain_fd : open_layers(chain_fd, 0, ret_layers);

	return rc < 0 ? store_fail_chain(sandbox_fd, rc, "cannot open what is below /data", err)
		      : 0;
}

int store_open_undo(int sandbox_fd, const struct store_applied *applied,
		    struct store_layers *ret_layers, struct err *err)
{
	_cleanup_close_ int chain_fd = -EBADF;
	struct store_archive archive;
	int rc = store_find_archive(sandbox_fd, applied->undo, &archive, err);

	if (rc < 0) {
		return rc;
	}
	chain_fd = store_open_directory(sandbox_fd, archive.path);
	rc = chain_fd < 0 ? chain_fd : open_layers(chain_fd, applied->layers, ret_layers);
	return rc < 0 ? store_fail_chain(sandbox_fd, rc, "cannot open the state before", err) : 0;
}

int store_open_base(int sandbox_fd, struct store_layers *ret_layers, struct err *err)
{
	int fd = openat(sandbox_fd, DATA_BASE_PATH, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0) {
		return store_fail_chain(sandbox_fd, -errno, "cannot open the base of /data", err);
	}
	*ret_layers = (struct store_layers){.fds = {fd}, .count = 1};
	return 0;
}

void store_trim_layers(struct store_layers *layers, size_t count)
{
	while (layers->count > count) {
		close_fd(&layers->fds[--layers->count]);
	}
}

void store_close_layers(struct store_layers *layers)
{
	store_trim_layers(layers, 0);
}

int store_begin_chain(int sandbox_fd, struct store_draft *ret_draft)
{
	return store_make_draft(sandbox_fd, NEW_CHAIN_PREFIX, true, ret_draft);
}

int store_link_layers(int from_fd, int to_fd, size_t count)
{
	char name[STORE_LAYER_NAME_SIZE];

	for (size_t i = 0; i < count; i++) {
		store_layer_name(i, name);
		if (linkat(from_fd, name, to_fd, name, 0) < 0) {
			return -errno;
		}
	}
	return 0;
}

int store_open_top(int chain_fd, int flags)
{
	return store_open_locked(chain_fd, CHAIN_TOP, O_RDWR | flags, LOCK_EX | LOCK_NB);
}

int store_make_top(int chain_fd, uint64_t size_bytes, int *ret_fd, struct err *err)
{
	_cleanup_close_ int fd = store_open_top(chain_fd, O_CREAT | O_EXCL);
	int rc;

	if (fd < 0) {
		return store_fail_chain(chain_fd, fd, "cannot make a disk for /data", err);
	}
	rc = store_write_qcow2(fd, size_bytes, err);
	if (rc < 0) {
		return rc;
	}
	if (fsync(fd) < 0) {
		return store_fail_chain(chain_fd, -errno, "cannot write a disk for /data", err);
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int exchange(int sandbox_fd, const struct store_draft *draft)
{
	return renameat2(sandbox_fd, draft->path, sandbox_fd, CHAIN_DIRECTORY, RENAME_EXCHANGE) < 0
		       ? -errno
		       : 0;
}

int store_exchange_chain(int sandbox_fd, const struct store_draft *draft)
{
	int rc = fsync(draft->dir_fd) < 0 ? -errno : exchange(sandbox_fd, draft);

	if (rc == 0 && fsync(sandbox_fd) < 0) {
		rc = -errno;
		/* Not certain to last: better what was there before. Where that cannot be had
		 * either, the new one is what there is. */
		rc = exchange(sandbox_fd, draft) == 0 ? rc : 0;
	}
	return rc;
}

/* Fills the new directory: everything there is one layer lower, and nothing on top. */
static int stack(int chain_fd, int new_fd, size_t count)
{
	char name[STORE_LAYER_NAME_SIZE];
	int rc = store_link_layers(chain_fd, new_fd, count);

	store_layer_name(count, name);
	if (rc == 0 && linkat(chain_fd, CHAIN_TOP, new_fd, name, 0) < 0) {
		rc = -errno;
	}
	return rc == 0 ? store_copy_fork(chain_fd, new_fd, 0) : rc;
}

static int refuse_long(int sandbox_fd, struct err *err)
{
	char path[PATH_MAX];
	const char *name = store_sandbox_label(sandbox_fd, path);

	err_set(err, -EMLINK, "chain-long", "/data of %s stands on %d disks already", name,
		STORE_CHAIN_MAX - 1);
	err_mend(err, "`box down %s` and try again: at rest they are merged", name);
	return -EMLINK;
}

/* What is to be frozen: nothing else may have data.qcow2 as something to write to. */
static int check_freeze(int sandbox_fd, int data_fd, uint64_t *ret_size, struct err *err)
{
	int rc = store_is_current(data_fd, sandbox_fd, DATA_PATH);

	if (rc == 0) {
		rc = -ESTALE;
	}
	if (rc > 0) {
		rc = store_drop_second_names(sandbox_fd);
	}
	if (rc < 0) {
		return store_fail_chain(sandbox_fd, rc, "cannot freeze /data", err);
	}
	rc = store_disk_size(data_fd, ret_size, err);
	return rc < 0 ? rc : store_disk_is_empty(data_fd, err);
}

static int freeze(int sandbox_fd, int chain_fd, uint64_t size_bytes, struct store_draft *draft,
		  struct err *err)
{
	size_t count = 0;
	int rc = store_count_layers(chain_fd, &count);

	if (rc == 0 && count + 1 == STORE_CHAIN_MAX) {
		return refuse_long(sandbox_fd, err);
	}
	if (rc == 0) {
		rc = store_begin_chain(sandbox_fd, draft);
	}
	if (rc == 0) {
		rc = stack(chain_fd, draft->dir_fd, count);
	}
	if (rc < 0) {
		return store_fail_chain(sandbox_fd, rc, "cannot freeze /data", err);
	}
	rc = store_make_top(draft->dir_fd, size_bytes, &draft->fd, err);
	if (rc < 0) {
		return rc;
	}
	rc = store_exchange_chain(sandbox_fd, draft);
	return rc < 0 ? store_fail_chain(sandbox_fd, rc, "cannot freeze /data", err) : 0;
}

int store_freeze_data(int sandbox_fd, int data_fd, int *ret_top_fd, struct err *err)
{
	_cleanup_close_ int chain_fd = -EBADF;
	struct store_draft draft = STORE_DRAFT_NONE;
	uint64_t size_bytes;
	int rc = check_freeze(sandbox_fd, data_fd, &size_bytes, err);

	*ret_top_fd = -EBADF;
	if (rc != 0) {
		return rc;
	}
	chain_fd = store_open_directory(sandbox_fd, CHAIN_DIRECTORY);
	/* A layer is on the disk before a chain says so. */
	rc = chain_fd < 0 ? chain_fd : fdatasync(data_fd) < 0 ? -errno : 0;
	if (rc < 0) {
		return store_fail_chain(sandbox_fd, rc, "cannot freeze /data", err);
	}
	rc = freeze(sandbox_fd, chain_fd, size_bytes, &draft, err);
	if (rc == 0) {
		*ret_top_fd = TAKE_FD(draft.fd);
		/* It is a layer now, which forks open while its machine still has it. */
		flock(data_fd, LOCK_SH | LOCK_NB);
	}
	store_drop_draft(sandbox_fd, &draft);
	return rc;
}

/* Opens what the draft's disk stands on. The last may be the caller's own data.qcow2, which is
 * locked. */
static int open_stacked(int sandbox_fd, const struct store_draft *draft, size_t count,
			struct store_layers *layers, struct err *err)
{
	char name[STORE_LAYER_NAME_SIZE];

	while (layers->count < count) {
		int fd;

		store_layer_name(layers->count, name);
		fd = openat(draft->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0) {
			return store_fail_chain(sandbox_fd, -errno,
						"cannot open what is below /data", err);
		}
		layers->fds[layers->count++] = fd;
		/* Nobody merges layers while the lock on /data is held; this lasts longer. */
		(void)flock(fd, LOCK_SH | LOCK_NB);
	}
	return 0;
}

/* Fills the draft's directory. *ret_count is how many files are below its disk. */
static int fill_stacked(int sandbox_fd, int data_fd, bool empty, const struct store_draft *draft,
			size_t *ret_count, struct err *err)
{
	_cleanup_close_ int chain_fd = store_open_directory(sandbox_fd, CHAIN_DIRECTORY);
	int rc = chain_fd < 0 ? chain_fd : store_count_layers(chain_fd, ret_count);

	if (rc == 0 && !empty && *ret_count + 1 == STORE_CHAIN_MAX) {
		return refuse_long(sandbox_fd, err);
	}
	if (rc == 0 && empty) {
		rc = store_link_layers(chain_fd, draft->dir_fd, *ret_count);
		rc = rc == 0 ? store_copy_fork(chain_fd, draft->dir_fd, 0) : rc;
	} else if (rc == 0) {
		rc = stack(chain_fd, draft->dir_fd, (*ret_count)++);
	}
	if (rc == 0 && fdatasync(data_fd) < 0) {
		rc = -errno;
	}
	return rc < 0 ? store_fail_chain(sandbox_fd, rc, "cannot freeze /data", err) : 0;
}

int store_begin_stacked(int sandbox_fd, int data_fd, struct store_draft *ret_draft,
			struct store_layers *ret_layers, struct err *err)
{
	_cleanup_(store_close_layers) struct store_layers layers = {.count = 0};
	struct store_draft draft = STORE_DRAFT_NONE;
	uint64_t size_bytes;
	size_t count = 0;
	int empty = check_freeze(sandbox_fd, data_fd, &size_bytes, err);
	int rc = empty < 0 ? empty : store_begin_chain(sandbox_fd, &draft);

	if (rc < 0) {
		return empty < 0 ? rc
				 : store_fail_chain(sandbox_fd, rc, "cannot freeze /data", err);
	}
	rc = fill_stacked(sandbox_fd, data_fd, empty > 0, &draft, &count, err);
	if (rc == 0) {
		rc = store_make_top(draft.dir_fd, size_bytes, &draft.fd, err);
	}
	if (rc == 0) {
		rc = open_stacked(sandbox_fd, &draft, count, &layers, err);
	}
	if (rc < 0) {
		store_drop_draft(sandbox_fd, &draft);
		return rc;
	}
	*ret_draft = draft;
	*ret_layers = layers;
	layers.count = 0;
	return 0;
}
