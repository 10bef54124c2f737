/*
 * Theory of operation.
 *
 * A directory that was moved has another ".." or another name, and either sets the time of its
 * inode. So all that were moved are among the changed inodes that were and are the same directory,
 * and for each of these both paths are asked for by a file handle.
 *
 * Two paths that differ are not yet a rename: what lies in a renamed directory has moved with it.
 * So they are taken in the order of their new paths, which brings a directory before what is in
 * it, and each is seen through the renames that were found so far: its new path must be one that
 * nothing had before, and where its old path leads now there must be nothing.
 *
 * Where this is not so, such as with two directories that have changed places, each is compared
 * with what had its path, and what lies in it has come with it. So then the directories in it,
 * whose inodes have not changed, may be renames of their own, and wait with the others.
 */
#include "guest/diff_renames.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive/archive.h"
#include "base/array.h"
#include "base/cleanup.h"
#include "guest/below.h"

/* FILEID_INO32_GEN of the kernel: inode and generation, 32 bits each. */
#define HANDLE_TYPE 1
#define HANDLE_BYTES 8u

static int no_memory(struct err *err)
{
	return err_set(err, -ENOMEM, "diff-memory",
		       "this machine has too little memory to find what changed");
}

static int fail_path(const char *path, int rc, struct err *err)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(err, rc, "diff-path", "cannot look at %s: %s", archive_quote(path, quoted),
		       rc == -ENAMETOOLONG ? "its path is over 4095 bytes" : strerror(-rc));
}

/* The path that the kernel has for a descriptor. Returns its length or a negative errno. */
static ssize_t path_of_fd(int fd, char *out, size_t capacity)
{
	char name[32];
	ssize_t size;

	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	size = readlink(name, out, capacity);
	if (size < 0) {
		return -errno;
	}
	return (size_t)size == capacity ? -ENAMETOOLONG : size;
}

/*
 * The path of a directory below root_fd. Returns its length, 0 when there is no such directory, or
 * a negative errno.
 */
static ssize_t path_of_inode(int root_fd, uint32_t number, uint32_t generation,
			     char out[DIFF_PATH_MAX + 1])
{
	union {
		struct file_handle handle;
		char bytes[sizeof(struct file_handle) + HANDLE_BYTES];
	} place = {.handle = {.handle_bytes = HANDLE_BYTES, .handle_type = HANDLE_TYPE}};
	/* The root's own path comes before it. */
	char path[2 * CHANGE_PATH_MAX], root[CHANGE_PATH_MAX];
	const uint32_t key[2] = {number, generation};
	_cleanup_close_ int fd = -EBADF;
	ssize_t size, root_size = path_of_fd(root_fd, root, sizeof(root));

	memcpy(place.bytes + offsetof(struct file_handle, f_handle), key, sizeof(key));
	fd = open_by_handle_at(root_fd, &place.handle, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) {
		return errno == ESTALE || errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
	}
	size = path_of_fd(fd, path, sizeof(path));
	if (root_size < 0 || size < 0) {
		return root_size < 0 ? root_size : size;
	}
	/* The root itself has no place among what may have moved. */
	if (size <= root_size + 1 || memcmp(path, root, (size_t)root_size) != 0 ||
	    path[root_size] != '/') {
		return 0;
	}
	size -= root_size + 1;
	if (size > DIFF_PATH_MAX) {
		return -ENAMETOOLONG;
	}
	memcpy(out, path + root_size + 1, (size_t)size);
	out[size] = '\0';
	return size;
}

/* Directories that may be renames: a heap, the first by its new path on top. */
struct candidates {
	struct renamed_directory *list;
	size_t count;
	size_t capacity;
};

static bool comes_before(const struct candidates *candidates, size_t a, size_t b)
{
	return strcmp(candidates->list[a].to, candidates->list[b].to) < 0;
}

static void exchange(struct candidates *candidates, size_t a, size_t b)
{
	struct renamed_directory kept = candidates->list[a];

	candidates->list[a] = candidates->list[b];
	candidates->list[b] = kept;
}

static int push(struct candidates *candidates, struct path_store *paths, const char *from,
		const char *to)
{
	struct renamed_directory place = {
		.from = path_store_add(paths, from, strlen(from)),
		.to = path_store_add(paths, to, strlen(to)),
	};
	struct renamed_directory *grown = array_reserve(candidates->list, candidates->count,
							&candidates->capacity, sizeof(*grown));
	size_t at = candidates->count;

	if (grown) {
		candidates->list = grown;
	}
	if (!grown || !place.from || !place.to) {
		return -ENOMEM;
	}
	candidates->list[candidates->count++] = place;
	for (; at > 0 && comes_before(candidates, at, (at - 1) / 2); at = (at - 1) / 2) {
		exchange(candidates, at, (at - 1) / 2);
	}
	return 0;
}

static struct renamed_directory pop(struct candidates *candidates)
{
	struct renamed_directory first = candidates->list[0];
	size_t at = 0;

	candidates->list[0] = candidates->list[--candidates->count];
	for (;;) {
		size_t child = 2 * at + 1;

		if (child + 1 < candidates->count && comes_before(candidates, child + 1, child)) {
			child++;
		}
		if (child >= candidates->count || !comes_before(candidates, child, at)) {
			return first;
		}
		exchange(candidates, at, child);
		at = child;
	}
}

/* Makes a candidate of an inode if it is a directory whose path has changed. */
static int consider(const struct diff_sides *sides, const struct inode_change *change,
		    struct path_store *paths, struct candidates *candidates, struct err *err)
{
	char from[DIFF_PATH_MAX + 1], to[DIFF_PATH_MAX + 1];
	ssize_t size;
	int rc;

	if (!S_ISDIR(change->old_mode) || !S_ISDIR(change->new_mode) ||
	    change->old_generation != change->new_generation) {
		return 0;
	}
	size = path_of_inode(sides->new_fd, change->number, change->new_generation, to);
	if (size > 0) {
		size = path_of_inode(sides->old_fd, change->number, change->old_generation, from);
	}
	if (size < 0) {
		return err_set(err, (int)size, "diff-path", "cannot find the directory %u: %s",
			       change->number,
			       size == -ENAMETOOLONG ? "its path is over 4095 bytes"
						     : strerror((int)-size));
	}
	if (size == 0 || strcmp(from, to) == 0) {
		return 0;
	}
	rc = push(candidates, paths, from, to);
	return rc < 0 ? no_memory(err) : 0;
}

/* What a path becomes by the nearest rename at or above it. False when that is too long. */
static bool translate(const struct renames *renames, bool to_new, const char *path, bool proper,
		      char out[DIFF_PATH_MAX + 1])
{
	const struct path_map *map = to_new ? &renames->sources : &renames->targets;
	const char *begin = "", *rest = path;
	size_t size, index;

	if (path_map_find_above(map, path, proper, &size, &index)) {
		begin = to_new ? renames->list[index].to : renames->list[index].from;
		rest = path + size;
	}
	return snprintf(out, DIFF_PATH_MAX + 1, "%s%s", begin, rest) <= DIFF_PATH_MAX;
}

/* Whether there was nothing where the directory is now. Returns 1, 0 or a negative errno. */
static int is_new_place(const struct diff_sides *sides, const struct renames *renames,
			const char *to)
{
	char before[DIFF_PATH_MAX + 1], after[DIFF_PATH_MAX + 1];
	int there;

	if (!translate(renames, false, to, true, before)) {
		return 1;
	}
	there = below_exists(sides->old_fd, before);
	if (there <= 0) {
		return there < 0 ? there : 1;
	}
	/* What was there may itself have gone elsewhere. */
	return !translate(renames, true, before, false, after) || strcmp(after, to) != 0;
}

/* Whether there is nothing where the directory was. Returns 1, 0 or a negative errno. */
static int is_gone(const struct diff_sides *sides, const struct renames *renames, const char *from)
{
	char after[DIFF_PATH_MAX + 1];
	int there;

	if (renames_is_source(renames, from)) {
		return 0;
	}
	if (!translate(renames, true, from, false, after)) {
		return 1;
	}
	there = below_exists(sides->new_fd, after);
	return there < 0 ? there : !there;
}

/* Returns 1 when a candidate is a rename, 0, or a negative errno. */
static int judge(const struct diff_sides *sides, const struct renames *renames,
		 const struct renamed_directory *candidate, struct err *err)
{
	int rc = is_new_place(sides, renames, candidate->to);

	if (rc > 0) {
		rc = is_gone(sides, renames, candidate->from);
	}
	return rc < 0 ? fail_path(candidate->to, rc, err) : rc;
}

/* Whether a directory is where the renames so far have brought it. */
static bool has_come_along(const struct renames *renames, const struct renamed_directory *moved)
{
	char after[DIFF_PATH_MAX + 1];

	return translate(renames, true, moved->from, false, after) && strcmp(after, moved->to) == 0;
}

/* Makes candidates of the directories in a moved one that have come with it. */
static int expand(const struct diff_sides *sides, struct renames *renames,
		  const struct renamed_directory *moved, struct candidates *candidates,
		  struct err *err)
{
	int fd = below_open(sides->new_fd, moved->to, O_RDONLY | O_DIRECTORY);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	char from[DIFF_PATH_MAX + 1], to[DIFF_PATH_MAX + 1];
	int rc = 0;

	if (!stream) {
		rc = fd < 0 ? fd : -errno;
		close_fd(&fd);
		return fail_path(moved->to, rc, err);
	}
	for (const struct dirent *found; rc == 0 && (found = readdir(stream));) {
		if (found->d_type != DT_DIR || strcmp(found->d_name, ".") == 0 ||
		    strcmp(found->d_name, "..") == 0 ||
		    inode_changes_find(&sides->changes, found->d_ino)) {
			continue;
		}
		rc = path_join(moved->from, found->d_name, from) &&
				     path_join(moved->to, found->d_name, to)
			     ? push(candidates, &renames->paths, from, to)
			     : -ENAMETOOLONG;
		/* There are no more directories than inodes, unless one holds another twice. */
		if (rc == 0 && candidates->count > sides->changes.last) {
			rc = -EBADMSG;
		}
	}
	closedir(stream);
	return rc == -ENOMEM ? no_memory(err) : rc < 0 ? fail_path(moved->to, rc, err) : 0;
}

static int add_rename(struct renames *renames, const struct renamed_directory *found,
		      struct err *err)
{
	struct renamed_directory *grown =
		array_reserve(renames->list, renames->count, &renames->capacity, sizeof(*grown));
	int rc = grown ? 0 : -ENOMEM;

	if (rc == 0) {
		renames->list = grown;
		renames->list[renames->count] = *found;
		rc = path_map_add(&renames->sources, found->from, renames->count);
	}
	if (rc == 0) {
		rc = path_map_add(&renames->targets, found->to, renames->count);
	}
	if (rc < 0) {
		return no_memory(err);
	}
	renames->count++;
	return 0;
}

static int judge_all(const struct diff_sides *sides, struct renames *renames,
		     struct candidates *candidates, struct err *err)
{
	uint32_t judged = 0;
	int rc = 0;

	while (rc == 0 && candidates->count > 0) {
		const struct renamed_directory candidate = pop(candidates);
		size_t unused;

		/* Only a broken file system has two directories at one path, or one at two. */
		if (judged++ > sides->changes.last ||
		    path_map_find(&renames->targets, candidate.to, strlen(candidate.to), &unused)) {
			return err_set(err, -EBADMSG, "diff-broken",
				       "the file system of /data is broken: a directory is there "
				       "twice");
		}
		rc = judge(sides, renames, &candidate, err);
		if (rc > 0) {
			rc = add_rename(renames, &candidate, err);
		} else if (rc == 0 && !has_come_along(renames, &candidate)) {
			rc = expand(sides, renames, &candidate, candidates, err);
		}
	}
	return rc;
}

int renames_find(const struct diff_sides *sides, struct renames *ret_renames, struct err *err)
{
	struct candidates candidates = {0};
	int rc = 0;

	for (size_t i = 0; i < sides->changes.count && rc == 0; i++) {
		rc = consider(sides, &sides->changes.list[i], &ret_renames->paths, &candidates,
			      err);
	}
	if (rc == 0) {
		rc = judge_all(sides, ret_renames, &candidates, err);
	}
	free(candidates.list);
	return rc;
}

bool renames_is_source(const struct renames *renames, const char *old_path)
{
	size_t unused;

	return path_map_find(&renames->sources, old_path, strlen(old_path), &unused);
}

const char *renames_from(const struct renames *renames, const char *new_path)
{
	size_t index;

	return path_map_find(&renames->targets, new_path, strlen(new_path), &index)
		       ? renames->list[index].from
		       : NULL;
}

void renames_clear(struct renames *renames)
{
	free(renames->list);
	path_store_clear(&renames->paths);
	path_map_clear(&renames->sources);
	path_map_clear(&renames->targets);
	*renames = (struct renames){0};
}
