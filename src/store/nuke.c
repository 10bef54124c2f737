/* Everything goes. */
#include "store/store.h"

#include <dirent.h>
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
#include "store/internal.h"

/* Deeper than anything that box puts into BOX_HOME. */
#define DEPTH_MAX 16

/* What box keeps in BOX_HOME besides sandboxes. */
static const char *const home_trees[] = {"kept", "cache", "log", "run"};

static uint64_t tree_bytes(int dir_fd, const char *name, int depth)
{
	int fd = store_open_directory(dir_fd, name);
	DIR *directory = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	uint64_t bytes = 0;

	if (!directory) {
		close_fd(&fd);
		return 0;
	}
	while ((entry = readdir(directory))) {
		struct stat status;

		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
		    fstatat(fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
			continue;
		}
		/* What forks share counts once in all of them together. */
		bytes += (uint64_t)status.st_blocks * 512 /
			 (S_ISREG(status.st_mode) ? (uint64_t)status.st_nlink : 1);
		if (S_ISDIR(status.st_mode) && depth < DEPTH_MAX) {
			bytes += tree_bytes(fd, entry->d_name, depth + 1);
		}
	}
	closedir(directory);
	return bytes;
}

uint64_t store_tree_bytes(int dir_fd, const char *name)
{
	return tree_bytes(dir_fd, name, 0);
}

/* The sandboxes, each locked. */
struct victims {
	char **names;
	size_t count;
	int *fds;
	struct store_locks *locks;
	size_t locked;
};

static void clear_victims(struct victims *victims)
{
	for (size_t i = 0; i < victims->locked; i++) {
		store_unlock_all(&victims->locks[i]);
		close_fd(&victims->fds[i]);
	}
	free(victims->names);
	free(victims->fds);
	free(victims->locks);
}

static int lock_victims(struct store *store, struct victims *victims, struct err *err)
{
	int rc = store_list(store, &victims->names, &victims->count, err);

	if (rc < 0) {
		return rc;
	}
	victims->fds = calloc(victims->count + 1, sizeof(*victims->fds));
	victims->locks = calloc(victims->count + 1, sizeof(*victims->locks));
	if (!victims->fds || !victims->locks) {
		return err_context(err, -ENOMEM, "nuke");
	}
	for (size_t i = 0; i < victims->count; i++) {
		victims->fds[i] = store_open_sandbox(store, victims->names[i], err);
		if (victims->fds[i] < 0) {
			return victims->fds[i];
		}
		victims->locks[i] = (struct store_locks)STORE_LOCKS_NONE;
		victims->locked++;
		rc = store_lock_all(victims->fds[i], victims->names[i], &victims->locks[i], err);
		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

int store_nuke(struct store *store, struct err *err)
{
	_cleanup_close_ int sandboxes_fd = store_open_directory(store->home_fd, "sandboxes");
	_cleanup_(clear_victims) struct victims victims = {0};
	int first_error;
	int rc = lock_victims(store, &victims, err);

	if (rc < 0) {
		return rc;
	}
	/* First what would bring data into kept/. An ids.json that cannot be understood goes as
	 * well. */
	rc = store_sweep(store);
	first_error = rc == -EBADMSG ? 0 : rc;
	for (size_t i = 0; i < victims.count; i++) {
		rc = store_throw_away(sandboxes_fd, victims.names[i]);
		first_error = first_error < 0 ? first_error : rc;
	}
	for (size_t i = 0; i < ARRAY_SIZE(home_trees); i++) {
		rc = remove_tree_at(store->home_fd, home_trees[i]);
		first_error = first_error < 0 ? first_error : rc;
	}
	if (first_error < 0) {
		return store_fail(err, first_error, store->home, "cannot remove everything in %s",
				  store->home);
	}
	/* One that was made meanwhile stays, with its IDs. */
	if (unlinkat(store->home_fd, "sandboxes", AT_REMOVEDIR) == 0 || errno == ENOENT) {
		store_ids_forget(store);
	}
	return 0;
}
