/*
 * Forks: a sandbox that begins with the state of another one.
 *
 * A fork is made as every sandbox is, in a hidden directory that gets its name when all of it is
 * there. What never changes is not copied: image and snapshot are replaced whole by a build, in
 * either sandbox, and layers are never written to while a second chain has them; so all of these
 * get second names. A restore does not ask which file it stands on but what was made from what
 * (snapshot/key), so a fork restores from the same snapshot.
 *
 * Who a sandbox's forks are is written in the forks alone, so nothing has to be kept in step: the
 * parent's end and its other names wait until there are none.
 */
#include "store/chain.h"

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
#include "json/json.h"
#include "spec/spec.h"
#include "store/internal.h"

#define FORK_PATH CHAIN_DIRECTORY "/" CHAIN_FORK
/* A name and two numbers. */
#define FORK_TEXT_MAX ((size_t)4096)
/* How many names an error has room for. */
#define NAMES_SHOWN 4

_Static_assert(sizeof(((struct store_fork *)NULL)->parent) > SPEC_NAME_MAX, "names fit");

/* 1 with *ret_fork, 0 when there is none, -EBADMSG for what box has not written. */
static int read_fork(int dir_fd, const char *path, struct store_fork *ret_fork)
{
	_cleanup_(json_freep) struct json *json = NULL;
	int64_t base_count = 0, created = 0;
	const char *parent;
	int rc = store_read_json(dir_fd, path, FORK_TEXT_MAX, &json);

	if (rc <= 0) {
		return rc;
	}
	parent = json_get_string(json, "parent");
	if (!parent || spec_check_name(parent, NULL) < 0 ||
	    json_get_integer(json, "base_count", &base_count) < 0 || base_count < 1 ||
	    base_count >= STORE_CHAIN_MAX || json_get_integer(json, "created", &created) < 0) {
		return -EBADMSG;
	}
	*ret_fork = (struct store_fork){.base_count = (uint32_t)base_count, .created_s = created};
	snprintf(ret_fork->parent, sizeof(ret_fork->parent), "%s", parent);
	return 1;
}

static int write_fork(int chain_fd, const struct store_fork *fork)
{
	_cleanup_(json_freep) struct json *json = json_new_object();
	_cleanup_free_ char *text = NULL;

	if (json_set_string(json, "parent", fork->parent) < 0 ||
	    json_set_integer(json, "base_count", fork->base_count) < 0 ||
	    json_set_integer(json, "created", fork->created_s) < 0 ||
	    json_dump(json, JSON_DUMP_NEWLINE, &text) < 0) {
		return -ENOMEM;
	}
	return write_file_at(chain_fd, CHAIN_FORK, text, strlen(text), 0600);
}

int store_read_fork(int sandbox_fd, struct store_fork *ret_fork, struct err *err)
{
	char path[PATH_MAX];
	int rc = read_fork(sandbox_fd, FORK_PATH, ret_fork);

	if (rc >= 0) {
		return rc;
	}
	store_fd_path(sandbox_fd, path);
	if (rc == -EBADMSG) {
		err_set(err, rc, "fork-broken", "%s/" FORK_PATH " is not as box writes it", path);
		err_mend(err, "bring it back from a copy, or remove it: the sandbox is then no "
			      "fork any more");
		return rc;
	}
	return store_fail(err, rc, path, "cannot read %s/" FORK_PATH, path);
}

int store_copy_fork(int from_fd, int to_fd, uint32_t base_count)
{
	struct store_fork fork;
	int rc = read_fork(from_fd, CHAIN_FORK, &fork);

	if (rc <= 0) {
		return rc;
	}
	fork.base_count = base_count ? base_count : fork.base_count;
	return write_fork(to_fd, &fork);
}

static int any_file(int dir_fd, const char *name)
{
	struct stat status;

	return fstatat(dir_fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0 ? -errno
								       : S_ISREG(status.st_mode);
}

/* Gives all files in a directory of the parent second names. What is not there is not needed. */
static int link_directory(int parent_fd, int hidden_fd, const char *name)
{
	_cleanup_close_ int from_fd = store_open_directory(parent_fd, name);
	_cleanup_close_ int to_fd = -EBADF;
	_cleanup_free_ char **names = NULL;
	size_t count = 0;
	int rc;

	if (from_fd < 0) {
		return from_fd == -ENOENT ? 0 : from_fd;
	}
	if (mkdirat(hidden_fd, name, 0700) < 0) {
		return -errno;
	}
	to_fd = store_open_directory(hidden_fd, name);
	rc = to_fd < 0 ? to_fd : store_read_names(from_fd, ".", any_file, &names, &count);
	for (size_t i = 0; rc == 0 && i < count; i++) {
		if (linkat(from_fd, names[i], to_fd, names[i], 0) < 0) {
			rc = -errno;
		}
	}
	return rc == 0 && fsync(to_fd) < 0 ? -errno : rc;
}

/* The image and the snapshot of one build. */
static int link_build(int parent_fd, int hidden_fd)
{
	_cleanup_close_ int swap_fd = store_lock_swap(parent_fd, false, NULL);
	int rc = swap_fd < 0 ? swap_fd : link_directory(parent_fd, hidden_fd, "image");

	return rc == 0 ? link_directory(parent_fd, hidden_fd, "snapshot") : rc;
}

static int copy_boxfile(int parent_fd, int hidden_fd)
{
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	int rc = read_file_at(parent_fd, "Boxfile", SPEC_FILE_MAX, &text, &size);

	return rc < 0 ? rc : write_file_at(hidden_fd, "Boxfile", text, size, 0600);
}

static int parent_size(int parent_fd, uint64_t *ret_size, struct err *err)
{
	_cleanup_close_ int fd = openat(parent_fd, DATA_PATH, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? store_fail_chain(parent_fd, -errno, "cannot open /data", err)
		      : store_disk_size(fd, ret_size, err);
}

/* The chain: what is below the parent's data.qcow2, and an empty disk of the same size on it. */
static int make_chain(int parent_fd, int hidden_fd, const char *parent, struct err *err)
{
	_cleanup_close_ int from_fd = store_open_directory(parent_fd, CHAIN_DIRECTORY);
	_cleanup_close_ int to_fd = -EBADF;
	_cleanup_close_ int top_fd = -EBADF;
	struct store_fork fork = {.created_s = time(NULL)};
	uint64_t size_bytes;
	size_t count = 0;
	int rc = from_fd < 0 ? from_fd : store_count_layers(from_fd, &count);

	if (rc == 0 && mkdirat(hidden_fd, CHAIN_DIRECTORY, 0700) < 0) {
		rc = -errno;
	}
	if (rc == 0) {
		to_fd = store_open_directory(hidden_fd, CHAIN_DIRECTORY);
		rc = to_fd < 0 ? to_fd : store_link_layers(from_fd, to_fd, count);
	}
	snprintf(fork.parent, sizeof(fork.parent), "%s", parent);
	fork.base_count = (uint32_t)count;
	if (rc == 0) {
		rc = write_fork(to_fd, &fork);
	}
	if (rc < 0) {
		return store_fail_chain(parent_fd, rc, "cannot fork /data", err);
	}
	rc = parent_size(parent_fd, &size_bytes, err);
	if (rc == 0) {
		rc = store_make_top(to_fd, size_bytes, &top_fd, err);
	}
	if (rc == 0 && fsync(to_fd) < 0) {
		rc = store_fail_chain(parent_fd, -errno, "cannot fork /data", err);
	}
	return rc;
}

static int fill_fork(struct store *store, int parent_fd, int hidden_fd, const char *parent,
		     struct err *err)
{
	int rc = copy_boxfile(parent_fd, hidden_fd);

	if (rc == 0) {
		rc = link_build(parent_fd, hidden_fd);
	}
	if (rc < 0) {
		return store_fail(err, rc, store->home, "cannot fork %s", parent);
	}
	rc = make_chain(parent_fd, hidden_fd, parent, err);
	if (rc == 0 && fsync(hidden_fd) < 0) {
		rc = store_fail(err, -errno, store->home, "cannot fork %s", parent);
	}
	return rc;
}

static int refuse_name(const char *name, struct err *err)
{
	err_set(err, -EEXIST, "exists", "there is a sandbox %s already", name);
	err_mend(err, "take another name; `box ls` lists those that are taken");
	return -EEXIST;
}

int store_create_fork(struct store *store, const char *parent, const char *name, struct err *err)
{
	_cleanup_close_ int parent_fd = store_open_sandbox(store, parent, err);
	_cleanup_close_ int sandboxes_fd = -EBADF;
	_cleanup_close_ int hidden_fd = -EBADF;
	char hidden[NAME_MAX + 1];
	struct stat status;
	int rc = parent_fd < 0 ? parent_fd : spec_check_name(name, err);

	if (rc < 0) {
		return rc;
	}
	sandboxes_fd = store_open_directory(store->home_fd, "sandboxes");
	if (sandboxes_fd >= 0 && fstatat(sandboxes_fd, name, &status, AT_SYMLINK_NOFOLLOW) == 0) {
		return refuse_name(name, err);
	}
	hidden_fd = sandboxes_fd < 0 ? sandboxes_fd : store_make_hidden(sandboxes_fd, hidden);
	if (hidden_fd < 0) {
		return store_fail(err, hidden_fd, store->home, "cannot fork %s", parent);
	}
	rc = fill_fork(store, parent_fd, hidden_fd, parent, err);
	if (rc == 0 && renameat2(sandboxes_fd, hidden, sandboxes_fd, name, RENAME_NOREPLACE) < 0) {
		rc = errno == EEXIST
			     ? refuse_name(name, err)
			     : store_fail(err, -errno, store->home, "cannot fork %s", parent);
	}
	if (rc == 0 && fsync(sandboxes_fd) < 0) {
		rc = store_fail(err, -errno, store->home, "cannot fork %s", parent);
		/* Not certain to last: better none than one that may vanish. */
		renameat(sandboxes_fd, name, sandboxes_fd, hidden);
	}
	if (rc < 0) {
		remove_tree_at(sandboxes_fd, hidden);
	}
	return rc;
}

/* Whether a sandbox is a fork of parent. 1, 0, or a negative errno with err filled. */
static int is_fork_of(int sandboxes_fd, const char *name, const char *parent, struct err *err)
{
	_cleanup_close_ int fd = store_open_directory(sandboxes_fd, name);
	struct store_fork fork;
	int rc;

	if (fd < 0) {
		/* Removed since it was listed. */
		return fd == -ENOENT ? 0 : store_fail(err, fd, name, "cannot open %s", name);
	}
	rc = store_read_fork(fd, &fork, err);
	return rc > 0 ? strcmp(fork.parent, parent) == 0 : rc;
}

int store_list_forks(struct store *store, const char *parent, char ***ret_names, size_t *ret_count,
		     struct err *err)
{
	_cleanup_close_ int sandboxes_fd = store_open_directory(store->home_fd, "sandboxes");
	_cleanup_free_ char **names = NULL;
	size_t count = 0, found = 0;
	int rc = store_list(store, &names, &count, err);

	if (rc == 0 && sandboxes_fd < 0) {
		rc = store_fail(err, sandboxes_fd, store->home, "cannot open %s/sandboxes",
				store->home);
	}
	for (size_t i = 0; rc >= 0 && i < count; i++) {
		rc = is_fork_of(sandboxes_fd, names[i], parent, err);
		if (rc > 0) {
			names[found++] = names[i];
		}
	}
	if (rc < 0) {
		return rc;
	}
	names[found] = NULL;
	*ret_names = TAKE_PTR(names);
	*ret_count = found;
	return 0;
}

int store_refuse_forks(struct store *store, const char *name, struct err *err)
{
	char shown[NAMES_SHOWN * (SPEC_NAME_MAX + 2) + 32] = "";
	_cleanup_free_ char **names = NULL;
	size_t count = 0, length = 0;
	int rc = store_list_forks(store, name, &names, &count, err);

	if (rc < 0 || count == 0) {
		return rc;
	}
	for (size_t i = 0; i < MIN(count, (size_t)NAMES_SHOWN); i++) {
		length += (size_t)snprintf(shown + length, sizeof(shown) - length, "%s%s",
					   i > 0 ? ", " : "", names[i]);
	}
	if (count > NAMES_SHOWN) {
		snprintf(shown + length, sizeof(shown) - length, " and %zu more",
			 count - NAMES_SHOWN);
	}
	err_set(err, -EBUSY, "has-forks", "%s has %s: %s", name, count == 1 ? "a fork" : "forks",
		shown);
	err_mend(err, "`box discard %s` ends %s", names[0],
		 count == 1 ? "it" : "the first of them");
	return -EBUSY;
}
