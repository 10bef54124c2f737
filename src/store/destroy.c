/*
 * The end of a sandbox, and what an interrupted end leaves behind.
 *
 *     sandboxes/NAME -> sandboxes/.keep-NAME-TIME -> sandboxes/.trash-TAG -> gone
 *
 * The first rename takes the sandbox away in one step. With .keep- its data directory is still to
 * be moved to kept/NAME-TIME/; without data to keep that state is left out. A sweep carries on
 * from whichever state it finds, when no process holds the lock on the directory.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "spec/spec.h"
#include "store/chain.h"
#include "store/internal.h"

/* "-YYYYmmddTHHMMSSZ-" and a tag, behind a name. */
#define KEPT_NAME_SIZE (SPEC_NAME_MAX + 32 + STORE_TAG_SIZE)

/* A destroy under way. */
struct destroy {
	const char *name;
	int sandboxes_fd;
	/* The sandbox's directory, locked. */
	int sandbox_fd;
	/* BOX_HOME/kept, or -EBADF when there is nothing to keep. */
	int kept_fd;
	/* Directory below kept/. */
	char kept[KEPT_NAME_SIZE];
};

static bool has_prefix(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

static int move(int dir_fd, const char *from, const char *to)
{
	return renameat2(dir_fd, from, dir_fd, to, RENAME_NOREPLACE) < 0 ? -errno : 0;
}

static int make_directory(int dir_fd, const char *name)
{
	return mkdirat(dir_fd, name, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

int store_throw_away(int sandboxes_fd, const char *name)
{
	char trash[sizeof(TRASH_PREFIX) + STORE_TAG_SIZE] = TRASH_PREFIX;
	int rc;

	store_random_tag(trash + strlen(TRASH_PREFIX));
	rc = move(sandboxes_fd, name, trash);
	return rc < 0 ? rc : remove_tree_at(sandboxes_fd, trash);
}

/* What is kept. */
static const char *const kept_parts[] = {"archive", "data"};

/* Moves the data of sandboxes/hidden, and its archives, to kept/kept_name. What is missing was
 * moved before. */
static int put_data_aside(int sandboxes_fd, const char *hidden, int kept_fd, const char *kept_name)
{
	_cleanup_close_ int from_fd = -EBADF;
	_cleanup_close_ int to_fd = -EBADF;
	int rc;

	from_fd = store_open_directory(sandboxes_fd, hidden);
	if (from_fd < 0) {
		return from_fd;
	}
	rc = make_directory(kept_fd, kept_name);
	if (rc < 0) {
		return rc;
	}
	to_fd = store_open_directory(kept_fd, kept_name);
	if (to_fd < 0) {
		return to_fd;
	}
	for (size_t i = 0; i < ARRAY_SIZE(kept_parts); i++) {
		if (renameat2(from_fd, kept_parts[i], to_fd, kept_parts[i], RENAME_NOREPLACE) < 0 &&
		    errno != ENOENT) {
			return -errno;
		}
	}
	/* The data must be safe in its new place before the old one is removed. */
	return fsync(to_fd) < 0 || fsync(kept_fd) < 0 ? -errno : 0;
}

/* Takes the sandbox away with its data put aside; undoes everything on failure. */
static int destroy_keeping_data(const struct destroy *destroy)
{
	char hidden[sizeof(KEEP_PREFIX) + KEPT_NAME_SIZE];
	int rc;

	snprintf(hidden, sizeof(hidden), KEEP_PREFIX "%s", destroy->kept);
	rc = move(destroy->sandboxes_fd, destroy->name, hidden);
	if (rc < 0) {
		return rc;
	}
	rc = put_data_aside(destroy->sandboxes_fd, hidden, destroy->kept_fd, destroy->kept);
	if (rc < 0) {
		_cleanup_close_ int kept = store_open_directory(destroy->kept_fd, destroy->kept);

		for (size_t i = 0; kept >= 0 && i < ARRAY_SIZE(kept_parts); i++) {
			renameat2(kept, kept_parts[i], destroy->sandbox_fd, kept_parts[i],
				  RENAME_NOREPLACE);
		}
		if (kept >= 0) {
			unlinkat(destroy->kept_fd, destroy->kept, AT_REMOVEDIR);
		}
		move(destroy->sandboxes_fd, hidden, destroy->name);
		return rc;
	}
	return store_throw_away(destroy->sandboxes_fd, hidden);
}

/* Fills in what is needed to keep data, if there is any. */
static int prepare_kept(struct store *store, struct destroy *destroy)
{
	char stamp[32], tag[STORE_TAG_SIZE];
	struct stat status;
	struct tm utc;
	time_t now = time(NULL);
	int rc;

	if (fstatat(destroy->sandbox_fd, "data", &status, AT_SYMLINK_NOFOLLOW) < 0) {
		return errno == ENOENT ? 0 : -errno;
	}
	gmtime_r(&now, &utc);
	strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", &utc);
	snprintf(destroy->kept, sizeof(destroy->kept), "%s-%s", destroy->name, stamp);
	rc = make_directory(store->home_fd, "kept");
	if (rc < 0) {
		return rc;
	}
	destroy->kept_fd = store_open_directory(store->home_fd, "kept");
	if (destroy->kept_fd < 0) {
		return destroy->kept_fd;
	}
	if (fstatat(destroy->kept_fd, destroy->kept, &status, AT_SYMLINK_NOFOLLOW) == 0) {
		/* The second one of that name within a second. */
		store_random_tag(tag);
		snprintf(destroy->kept, sizeof(destroy->kept), "%s-%s-%s", destroy->name, stamp,
			 tag);
	}
	return 0;
}

void store_unlock_all(struct store_locks *locks)
{
	close_fd(&locks->chain);
	close_fd(&locks->live);
	close_fd(&locks->build);
	close_fd(&locks->up);
}

int store_lock_all(int sandbox_fd, const char *name, struct store_locks *ret_locks, struct err *err)
{
	_cleanup_(store_unlock_all) struct store_locks locks = STORE_LOCKS_NONE;
	int live, rc;

	/* First: a machine that stays also lives, and this tells which command ends it. */
	locks.up = store_lock_up(sandbox_fd, err);
	if (locks.up == -EAGAIN) {
		err_set(err, -EBUSY, "busy", "%s is up", name);
		err_mend(err, "`box down %s` stops it", name);
		return -EBUSY;
	}
	if (locks.up < 0) {
		return locks.up;
	}
	locks.build = store_lock_build(sandbox_fd, false, err);
	if (locks.build < 0) {
		return locks.build == -EAGAIN ? -EBUSY : locks.build;
	}
	locks.chain = store_lock_chain(sandbox_fd, true, false, err);
	if (locks.chain < 0) {
		return locks.chain == -EAGAIN ? -EBUSY : locks.chain;
	}
	live = locks.live = store_lock_live(sandbox_fd, true, false, err);
	rc = live < 0 ? live : store_try_lock_directory(sandbox_fd);
	if (rc == -EAGAIN) {
		err_set(err, -EBUSY, "busy", "a machine of %s is running", name);
		err_mend(err, "wait for the commands that use %s, or end them", name);
		return -EBUSY;
	}
	if (rc < 0) {
		return live < 0 ? rc : store_fail(err, rc, name, "cannot lock %s", name);
	}
	*ret_locks = locks;
	locks = (struct store_locks)STORE_LOCKS_NONE;
	return 0;
}

static int remove_sandbox(struct store *store, struct destroy *destroy, bool with_data,
			  char **ret_kept)
{
	_cleanup_free_ char *kept = NULL;
	char run_path[sizeof("run/") + SPEC_NAME_MAX];
	size_t size;
	int rc = with_data ? 0 : prepare_kept(store, destroy);

	if (rc < 0) {
		return rc;
	}
	if (destroy->kept_fd >= 0) {
		size = strlen(store->home) + sizeof("/kept//data") + strlen(destroy->kept);
		kept = malloc(size);
		if (!kept) {
			return -ENOMEM;
		}
		snprintf(kept, size, "%s/kept/%s/data", store->home, destroy->kept);
	}
	/* Nothing lives, so what is in run/ are leftovers of keepers that were killed. */
	snprintf(run_path, sizeof(run_path), "run/%s", destroy->name);
	rc = remove_tree_at(store->home_fd, run_path);
	if (rc == 0) {
		rc = kept ? destroy_keeping_data(destroy)
			  : store_throw_away(destroy->sandboxes_fd, destroy->name);
	}
	/* Once the data is in its new place the caller is told so, whatever else failed. */
	if (ret_kept && kept && access(kept, F_OK) == 0) {
		*ret_kept = TAKE_PTR(kept);
	}
	return rc;
}

int store_destroy(struct store *store, const char *name, bool with_data, char **ret_kept,
		  struct err *err)
{
	_cleanup_close_ int sandboxes_fd = -EBADF;
	_cleanup_close_ int sandbox_fd = -EBADF;
	_cleanup_(store_unlock_all) struct store_locks locks = STORE_LOCKS_NONE;
	struct destroy destroy = {.name = name, .kept_fd = -EBADF};
	int rc;

	if (ret_kept) {
		*ret_kept = NULL;
	}
	sandbox_fd = store_open_sandbox(store, name, err);
	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	sandboxes_fd = store_open_directory(store->home_fd, "sandboxes");
	if (sandboxes_fd < 0) {
		return store_fail(err, sandboxes_fd, store->home, "cannot open %s/sandboxes",
				  store->home);
	}
	destroy.sandboxes_fd = sandboxes_fd;
	destroy.sandbox_fd = sandbox_fd;
	rc = store_lock_all(sandbox_fd, name, &locks, err);
	if (rc == 0) {
		rc = store_refuse_forks(store, name, err);
	}
	if (rc < 0) {
		return rc;
	}
	/*
	 * Before the name is free: a new sandbox of this name must not lose what it gets. When that
	 * fails the slot is freed once the slots run out, as one of a sandbox that is gone.
	 */
	(void)store_ids_free(store, name);
	rc = remove_sandbox(store, &destroy, with_data, ret_kept);
	close_fd(&destroy.kept_fd);
	return rc < 0 ? store_fail(err, rc, store->home, "cannot remove the sandbox %s", name) : 0;
}

static int is_hidden_leftover(int dir_fd, const char *name)
{
	(void)dir_fd;
	return has_prefix(name, NEW_PREFIX) || has_prefix(name, TRASH_PREFIX) ||
	       has_prefix(name, KEEP_PREFIX);
}

static int is_stage(int dir_fd, const char *name)
{
	(void)dir_fd;
	return has_prefix(name, STAGE_PREFIX);
}

static int is_temporary(int dir_fd, const char *name)
{
	(void)dir_fd;
	return has_prefix(name, TEMPORARY_PREFIX);
}

/* Ends what another process began, unless that process is still at it. */
static int sweep_hidden(struct store *store, int sandboxes_fd, const char *name)
{
	_cleanup_close_ int fd = store_open_directory(sandboxes_fd, name);
	_cleanup_close_ int kept_fd = -EBADF;
	int rc;

	rc = fd < 0 ? fd : store_try_lock_directory(fd);
	if (rc < 0) {
		/* Gone, or somebody is at it. */
		return rc == -ENOENT || rc == -EAGAIN ? 0 : rc;
	}
	if (has_prefix(name, KEEP_PREFIX)) {
		rc = make_directory(store->home_fd, "kept");
		if (rc == 0) {
			kept_fd = store_open_directory(store->home_fd, "kept");
			rc = kept_fd < 0 ? kept_fd
					 : put_data_aside(sandboxes_fd, name, kept_fd,
							  name + strlen(KEEP_PREFIX));
		}
		if (rc < 0) {
			return rc;
		}
	}
	return has_prefix(name, TRASH_PREFIX) ? remove_tree_at(sandboxes_fd, name)
					      : store_throw_away(sandboxes_fd, name);
}

/* Removes what builds, archives and renames of a sandbox that were interrupted have left. */
static int sweep_sandbox(struct store *store, int sandboxes_fd, const char *name)
{
	_cleanup_close_ int sandbox_fd = store_open_directory(sandboxes_fd, name);
	_cleanup_close_ int build_fd = -EBADF;
	_cleanup_free_ char **stages = NULL;
	size_t count = 0;
	int first_error = 0;
	int rc;

	if (sandbox_fd < 0) {
		return sandbox_fd == -ENOENT ? 0 : sandbox_fd;
	}
	store_sweep_archives(sandbox_fd);
	first_error = store_finish_rename(store, sandbox_fd, name);
	rc = store_read_names(sandbox_fd, ".", is_stage, &stages, &count);
	if (rc < 0 || count == 0) {
		return rc < 0 ? rc : first_error;
	}
	build_fd = store_lock_build(sandbox_fd, false, NULL);
	if (build_fd < 0) {
		return build_fd == -EAGAIN ? first_error : build_fd;
	}
	for (size_t i = 0; i < count; i++) {
		rc = remove_tree_at(sandbox_fd, stages[i]);
		first_error = first_error < 0 ? first_error : rc;
	}
	return first_error;
}

static int sweep_temporaries(struct store *store)
{
	_cleanup_free_ char **names = NULL;
	size_t count = 0;
	int rc = store_read_names(store->home_fd, ".", is_temporary, &names, &count);

	for (size_t i = 0; i < count && rc == 0; i++) {
		if (unlinkat(store->home_fd, names[i], 0) < 0 && errno != ENOENT) {
			rc = -errno;
		}
	}
	return rc;
}

int store_sweep(struct store *store)
{
	_cleanup_close_ int sandboxes_fd = store_open_directory(store->home_fd, "sandboxes");
	_cleanup_free_ char **hidden = NULL;
	_cleanup_free_ char **names = NULL;
	size_t hidden_count = 0, count = 0;
	int first_error;
	int rc;

	if (sandboxes_fd < 0) {
		return sandboxes_fd;
	}
	first_error = sweep_temporaries(store);
	rc = store_read_names(store->home_fd, "sandboxes", is_hidden_leftover, &hidden,
			      &hidden_count);
	first_error = first_error < 0 ? first_error : rc;
	for (size_t i = 0; i < hidden_count; i++) {
		rc = sweep_hidden(store, sandboxes_fd, hidden[i]);
		first_error = first_error < 0 ? first_error : rc;
	}
	rc = store_list(store, &names, &count, NULL);
	first_error = first_error < 0 ? first_error : rc;
	for (size_t i = 0; i < count; i++) {
		rc = sweep_sandbox(store, sandboxes_fd, names[i]);
		first_error = first_error < 0 ? first_error : rc;
	}
	rc = store_ids_sweep(store);
	return first_error < 0 ? first_error : rc;
}

size_t store_count_leftovers(struct store *store)
{
	_cleanup_close_ int sandboxes_fd = store_open_directory(store->home_fd, "sandboxes");
	_cleanup_free_ char **hidden = NULL, **temporary = NULL, **names = NULL;
	size_t hidden_count = 0, temporary_count = 0, count = 0, found;

	if (sandboxes_fd < 0) {
		return 0;
	}
	store_read_names(store->home_fd, "sandboxes", is_hidden_leftover, &hidden, &hidden_count);
	store_read_names(store->home_fd, ".", is_temporary, &temporary, &temporary_count);
	store_list(store, &names, &count, NULL);
	found = temporary_count;
	for (size_t i = 0; i < hidden_count; i++) {
		_cleanup_close_ int fd = store_open_directory(sandboxes_fd, hidden[i]);

		found += fd >= 0 && store_try_lock_directory(fd) == 0;
	}
	for (size_t i = 0; i < count; i++) {
		_cleanup_close_ int fd = store_open_directory(sandboxes_fd, names[i]);

		found += fd >= 0 ? store_count_drafts(fd) : 0;
	}
	return found;
}
