/*
 * Theory of operation.
 *
 * A directory of the new state is walked as one of three: as the same as an old one (its inode has
 * not changed, so neither have its names; only inodes below it may have), as a pair with an old one
 * (both are listed and compared by name), or as added. A directory of the old state that is in no
 * pair is walked as deleted. Directories wait in a list, each with its path on either side; no
 * descriptor is open but that of the directory at hand.
 *
 * Directories that are the same come last, but for those that are hinted to hold such inodes
 * (diff_hints): when all names of the inodes that have changed were met, as many as these count
 * themselves, the rest of them is not looked at.
 *
 * Files without a partner of their name are kept apart. At the end those that are one inode in both
 * states become renames, first path with first path, and the rest is added or deleted.
 *
 * The file systems are hostile: a directory may be there twice, or hold itself. Every directory is
 * marked when it is met, and none is walked twice.
 */
#include "guest/diff_walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "archive/archive.h"
#include "base/array.h"
#include "base/cleanup.h"
#include "guest/below.h"
#include "wire/ext4.h"

#define LOST_FOUND "lost+found"

enum task_kind { TASK_SAME, TASK_PAIR, TASK_ADDED, TASK_DELETED };

/* A directory that waits. */
struct task {
	enum task_kind kind;
	/* As a record has it; owned. */
	char *path;
	/* On the old side; owned. NULL: there is none, or it is path. */
	char *old;
};

struct task_list {
	struct task *list;
	size_t count;
	size_t capacity;
};

struct entry {
	const char *name;
	uint32_t number;
	bool is_directory;
};

struct listing {
	struct entry *entries;
	size_t count;
	size_t capacity;
	struct path_store names;
	/* Only directories, and files whose inode has changed: the rest is not even copied. */
	bool only_changed;
	/* Of the new side. */
	bool is_new;
};

/* A file that has no partner of its name. */
struct loose {
	const char *path;
	const char *old;
	uint32_t number;
};

struct loose_list {
	struct loose *list;
	size_t count;
	size_t capacity;
};

struct walk {
	const struct diff_sides *sides;
	struct renames renames;
	struct diff_items *items;
	struct task_list tasks;
	/* Those of TASK_SAME that have no hint. */
	struct task_list same;
	/* Names of changed inodes on the new side that were not met yet. */
	uint64_t names_left;
	struct loose_list added;
	struct loose_list deleted;
	/* Directories that were met on either side, a bit for each inode. */
	uint8_t *old_met;
	uint8_t *new_met;
	/* The directory lost+found that ext4 makes for itself is no news. */
	bool hide_lost_found;
	size_t renames_met;
	struct err *err;
};

static int no_memory(struct walk *walk)
{
	return err_set(walk->err, -ENOMEM, "diff-memory",
		       "this machine has too little memory to find what changed");
}

static int fail(struct walk *walk, const char *path, int rc)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(walk->err, rc, rc == -EBADMSG ? "diff-broken" : "diff-path",
		       "cannot look at %s: %s", archive_quote(path, quoted),
		       rc == -ENAMETOOLONG ? "a path in it is over 4095 bytes"
		       : rc == -EBADMSG	   ? "the file system is broken there"
					   : strerror(-rc));
}

static const char *keep(struct walk *walk, const char *path)
{
	return path_store_add(&walk->items->paths, path, strlen(path));
}

/* Adds an item; old is NULL, path itself or another path. */
static int add_item(struct walk *walk, enum change_kind kind, const char *path, const char *old)
{
	struct diff_items *items = walk->items;
	struct diff_item *grown =
		array_reserve(items->list, items->count, &items->capacity, sizeof(*grown));
	struct diff_item item = {.kind = (uint8_t)kind, .path = keep(walk, path)};

	if (grown) {
		items->list = grown;
	}
	if (old) {
		item.old = strcmp(old, path) == 0 ? item.path : keep(walk, old);
	}
	if (!grown || !item.path || (old && !item.old)) {
		return no_memory(walk);
	}
	items->list[items->count++] = item;
	return 0;
}

static int add_loose(struct walk *walk, struct loose_list *to, const char *path, const char *old,
		     uint32_t number)
{
	struct loose *grown = array_reserve(to->list, to->count, &to->capacity, sizeof(*grown));
	struct loose loose = {.number = number, .path = keep(walk, path)};

	if (grown) {
		to->list = grown;
	}
	if (old) {
		loose.old = strcmp(old, path) == 0 ? loose.path : keep(walk, old);
	}
	if (!grown || !loose.path || (old && !loose.old)) {
		return no_memory(walk);
	}
	to->list[to->count++] = loose;
	return 0;
}

static int append_task(struct walk *walk, struct task_list *tasks, enum task_kind kind,
		       const char *path, const char *old)
{
	struct task *grown =
		array_reserve(tasks->list, tasks->count, &tasks->capacity, sizeof(*grown));
	struct task task = {.kind = kind, .path = strdup(path)};
	bool needs_old = old && strcmp(old, path) != 0;

	if (grown) {
		tasks->list = grown;
	}
	if (needs_old) {
		task.old = strdup(old);
	}
	if (!grown || !task.path || (needs_old && !task.old)) {
		free(task.path);
		free(task.old);
		return no_memory(walk);
	}
	tasks->list[tasks->count++] = task;
	return 0;
}

static int add_task(struct walk *walk, enum task_kind kind, const char *path, const char *old)
{
	return append_task(walk, &walk->tasks, kind, path, old);
}

static int add_same(struct walk *walk, const char *path, const char *old, uint32_t number)
{
	bool first = inode_changes_hint(&walk->sides->changes, number);

	return append_task(walk, first ? &walk->tasks : &walk->same, TASK_SAME, path, old);
}

/* Marks a directory as met; the second time the file system is broken. */
static int meet(struct walk *walk, uint8_t *met, uint32_t number, const char *path)
{
	uint8_t bit = (uint8_t)(1u << number % 8);

	if (met[number / 8] & bit) {
		return fail(walk, path, -EBADMSG);
	}
	met[number / 8] |= bit;
	return 0;
}

/* ---- Listings ---- */

static void listing_clear(struct listing *listing)
{
	free(listing->entries);
	path_store_clear(&listing->names);
	*listing = (struct listing){0};
}

static int type_of(int dir_fd, const struct dirent *found, bool *ret_is_directory)
{
	struct stat status;

	if (found->d_type != DT_UNKNOWN) {
		*ret_is_directory = found->d_type == DT_DIR;
		return 0;
	}
	if (fstatat(dir_fd, found->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
		return -errno;
	}
	*ret_is_directory = S_ISDIR(status.st_mode);
	return 0;
}

static bool has_changed(const struct walk *walk, uint32_t number)
{
	return inode_changes_find(&walk->sides->changes, number) != NULL;
}

static int add_entry(struct walk *walk, int dir_fd, const struct dirent *found,
		     struct listing *listing)
{
	size_t size = strlen(found->d_name);
	struct entry entry = {.number = (uint32_t)found->d_ino};
	struct entry *grown;
	bool changed;
	int rc;

	if (found->d_ino == 0 || found->d_ino > walk->sides->changes.last || size == 0 ||
	    size > CHANGE_COMPONENT_MAX || memchr(found->d_name, '/', size)) {
		return -EBADMSG;
	}
	rc = type_of(dir_fd, found, &entry.is_directory);
	changed = has_changed(walk, entry.number);
	if (rc < 0 || (listing->only_changed && !entry.is_directory && !changed)) {
		return rc;
	}
	walk->names_left -= listing->is_new && changed && walk->names_left > 0;
	grown = array_reserve(listing->entries, listing->count, &listing->capacity, sizeof(*grown));
	if (!grown) {
		return -ENOMEM;
	}
	listing->entries = grown;
	entry.name = path_store_add(&listing->names, found->d_name, size);
	if (!entry.name) {
		return -ENOMEM;
	}
	listing->entries[listing->count++] = entry;
	return 0;
}

static int compare_entries(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* Lists a directory of one side, sorted by name. */
static int list(struct walk *walk, int root_fd, const char *path, struct listing *ret_listing)
{
	int fd = below_open(root_fd, path, O_RDONLY | O_DIRECTORY);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *found;
	int rc = 0;

	if (!stream) {
		rc = fd < 0 ? fd : -errno;
		close_fd(&fd);
		return fail(walk, path, rc);
	}
	while (rc == 0) {
		errno = 0;
		found = readdir(stream);
		if (!found) {
			rc = -errno;
			break;
		}
		if (strcmp(found->d_name, ".") != 0 && strcmp(found->d_name, "..") != 0) {
			rc = add_entry(walk, dirfd(stream), found, ret_listing);
		}
	}
	closedir(stream);
	if (rc < 0) {
		return fail(walk, path, rc);
	}
	if (ret_listing->count > 1) {
		qsort(ret_listing->entries, ret_listing->count, sizeof(struct entry),
		      compare_entries);
	}
	return 0;
}

/* ---- Names ---- */

/* The paths of one name on the two sides. */
struct place {
	char path[DIFF_PATH_MAX + 1];
	char old[DIFF_PATH_MAX + 1];
};

static int join(struct walk *walk, const struct task *task, const char *name, struct place *place)
{
	const char *old = task->old ? task->old : task->path;

	if (!path_join(task->path, name, place->path) || !path_join(old, name, place->old)) {
		return fail(walk, task->path, -ENAMETOOLONG);
	}
	return 0;
}

static bool is_hidden(const struct walk *walk, const struct place *place)
{
	return walk->hide_lost_found && strcmp(place->path, LOST_FOUND) == 0;
}

/* A name that the new side alone has. */
static int meet_new(struct walk *walk, const struct place *place, const struct entry *entry)
{
	const char *from;
	int rc;

	if (!entry->is_directory) {
		return add_loose(walk, &walk->added, place->path, NULL, entry->number);
	}
	rc = meet(walk, walk->new_met, entry->number, place->path);
	if (rc < 0) {
		return rc;
	}
	from = renames_from(&walk->renames, place->path);
	if (!from) {
		rc = add_item(walk, CHANGE_ADDED, place->path, NULL);
		return rc < 0 ? rc : add_task(walk, TASK_ADDED, place->path, NULL);
	}
	walk->renames_met++;
	rc = meet(walk, walk->old_met, entry->number, from);
	if (rc == 0) {
		rc = add_item(walk, CHANGE_RENAMED, place->path, from);
	}
	return rc < 0 ? rc : add_task(walk, TASK_PAIR, place->path, from);
}

/* A name that the old side alone has. */
static int meet_old(struct walk *walk, const struct place *place, const struct entry *entry)
{
	int rc;

	if (!entry->is_directory) {
		return add_loose(walk, &walk->deleted, place->path, place->old, entry->number);
	}
	if (renames_is_source(&walk->renames, place->old)) {
		return 0;
	}
	rc = meet(walk, walk->old_met, entry->number, place->old);
	if (rc == 0) {
		rc = add_item(walk, CHANGE_DELETED, place->path, place->old);
	}
	return rc < 0 ? rc : add_task(walk, TASK_DELETED, place->path, place->old);
}

/* A name that both sides have. */
static int meet_both(struct walk *walk, const struct place *place, const struct entry *old,
		     const struct entry *new)
{
	bool same = old->number == new->number && old->is_directory == new->is_directory &&
		    !has_changed(walk, new->number);
	int rc = 0;

	if (old->is_directory && renames_is_source(&walk->renames, place->old)) {
		return meet_new(walk, place, new);
	}
	if (!same) {
		rc = add_item(walk, CHANGE_MODIFIED, place->path, place->old);
	}
	if (rc == 0 && old->is_directory) {
		rc = meet(walk, walk->old_met, old->number, place->old);
	}
	if (rc == 0 && new->is_directory) {
		rc = meet(walk, walk->new_met, new->number, place->path);
	}
	if (rc < 0) {
		return rc;
	}
	if (old->is_directory && new->is_directory) {
		return same ? add_same(walk, place->path, place->old, new->number)
			    : add_task(walk, TASK_PAIR, place->path, place->old);
	}
	if (old->is_directory) {
		return add_task(walk, TASK_DELETED, place->path, place->old);
	}
	return new->is_directory ? add_task(walk, TASK_ADDED, place->path, NULL) : 0;
}

/* ---- Directories ---- */

static int walk_pair(struct walk *walk, const struct task *task, const struct listing *old,
		     const struct listing *new)
{
	size_t i = 0, k = 0;
	int rc = 0;

	while (rc == 0 && (i < old->count || k < new->count)) {
		const struct entry *a = i < old->count ? &old->entries[i] : NULL;
		const struct entry *b = k < new->count ? &new->entries[k] : NULL;
		int order = !a ? 1 : !b ? -1 : strcmp(a->name, b->name);
		struct place place;

		rc = join(walk, task, order <= 0 ? a->name : b->name, &place);
		i += order <= 0;
		k += order >= 0;
		if (rc < 0 || (is_hidden(walk, &place) &&
			       !(order >= 0 && renames_from(&walk->renames, place.path)))) {
			continue;
		}
		rc = order < 0	 ? meet_old(walk, &place, a)
		     : order > 0 ? meet_new(walk, &place, b)
				 : meet_both(walk, &place, a, b);
	}
	return rc;
}

/* Of a directory whose names are as they were; only what has changed is looked at further. */
static int walk_same(struct walk *walk, const struct task *task, const struct listing *new)
{
	int rc = 0;

	for (size_t i = 0; i < new->count &&rc == 0; i++) {
		struct place place;

		rc = join(walk, task, new->entries[i].name, &place);
		if (rc == 0 && !is_hidden(walk, &place)) {
			rc = meet_both(walk, &place, &new->entries[i], &new->entries[i]);
		}
	}
	return rc;
}

static int walk_alone(struct walk *walk, const struct task *task, const struct listing *listing)
{
	int rc = 0;

	for (size_t i = 0; i < listing->count && rc == 0; i++) {
		struct place place;

		rc = join(walk, task, listing->entries[i].name, &place);
		if (rc == 0) {
			rc = task->kind == TASK_ADDED
				     ? meet_new(walk, &place, &listing->entries[i])
				     : meet_old(walk, &place, &listing->entries[i]);
		}
	}
	return rc;
}

static int run_task(struct walk *walk, const struct task *task)
{
	_cleanup_(listing_clear) struct listing old = {0};
	_cleanup_(listing_clear) struct listing new = {
		.only_changed = task->kind == TASK_SAME,
		.is_new = true,
	};
	const char *old_path = task->old ? task->old : task->path;
	int rc = 0;

	if (task->kind == TASK_PAIR || task->kind == TASK_DELETED) {
		rc = list(walk, walk->sides->old_fd, old_path, &old);
	}
	if (rc == 0 && task->kind != TASK_DELETED) {
		rc = list(walk, walk->sides->new_fd, task->path, &new);
	}
	if (rc < 0) {
		return rc;
	}
	switch (task->kind) {
	case TASK_SAME:
		return walk_same(walk, task, &new);
	case TASK_PAIR:
		return walk_pair(walk, task, &old, &new);
	case TASK_ADDED:
		return walk_alone(walk, task, &new);
	default:
		return walk_alone(walk, task, &old);
	}
}

/* ---- Files without a partner ---- */

static int compare_loose(const void *left, const void *right)
{
	const struct loose *a = left, *b = right;

	if (a->number != b->number) {
		return a->number < b->number ? -1 : 1;
	}
	/* The path that it has on its own side. */
	return strcmp(a->old ? a->old : a->path, b->old ? b->old : b->path);
}

/* Whether the number stands for one file in both states; it has not changed, or not that. */
static bool is_one_file(const struct walk *walk, uint32_t number)
{
	const struct inode_change *change = inode_changes_find(&walk->sides->changes, number);

	if (walk->sides->without_renames) {
		return false;
	}
	return !change || (change->old_generation == change->new_generation &&
			   (change->old_mode & S_IFMT) == (change->new_mode & S_IFMT));
}

/* Of each inode the first path on either side belong together. */
static int pair_loose(struct walk *walk)
{
	const struct loose_list *old = &walk->deleted, *new = &walk->added;
	size_t i = 0, k = 0;
	uint32_t done = 0;
	int rc = 0;

	if (old->count > 1) {
		qsort(old->list, old->count, sizeof(*old->list), compare_loose);
	}
	if (new->count > 1) {
		qsort(new->list, new->count, sizeof(*new->list), compare_loose);
	}
	while (rc == 0 && (i < old->count || k < new->count)) {
		const struct loose *a = i < old->count ? &old->list[i] : NULL;
		const struct loose *b = k < new->count ? &new->list[k] : NULL;

		if (a && b && a->number == b->number && a->number != done &&
		    is_one_file(walk, a->number)) {
			rc = add_item(walk, CHANGE_RENAMED, b->path, a->old);
			done = a->number;
			i++;
			k++;
		} else if (a && (!b || a->number <= b->number)) {
			rc = add_item(walk, CHANGE_DELETED, a->path, a->old);
			i++;
		} else {
			rc = add_item(walk, CHANGE_ADDED, b->path, NULL);
			k++;
		}
	}
	return rc;
}

/* ---- All of it ---- */

/* Whether lost+found is not there, or an empty directory. */
static int is_empty_or_absent(struct walk *walk, int root_fd, bool *ret_is)
{
	_cleanup_(listing_clear) struct listing listing = {0};
	_cleanup_close_ int fd = below_open(root_fd, LOST_FOUND, O_PATH);
	struct stat status;
	int rc;

	if (fd == -ENOENT) {
		*ret_is = true;
		return 0;
	}
	if (fd < 0 || fstat(fd, &status) < 0) {
		return fail(walk, LOST_FOUND, fd < 0 ? fd : -errno);
	}
	*ret_is = false;
	if (!S_ISDIR(status.st_mode)) {
		return 0;
	}
	rc = list(walk, root_fd, LOST_FOUND, &listing);
	*ret_is = listing.count == 0;
	return rc;
}

static int begin(struct walk *walk)
{
	size_t bytes = (size_t)walk->sides->changes.last / 8 + 1;
	bool changed = has_changed(walk, EXT4_ROOT_INODE);
	bool old_hidden = false, new_hidden = false;
	int rc = is_empty_or_absent(walk, walk->sides->old_fd, &old_hidden);

	if (rc == 0) {
		rc = is_empty_or_absent(walk, walk->sides->new_fd, &new_hidden);
	}
	walk->hide_lost_found = old_hidden && new_hidden;
	if (rc == 0) {
		walk->old_met = calloc(bytes, 1);
		walk->new_met = calloc(bytes, 1);
		rc = walk->old_met && walk->new_met ? 0 : no_memory(walk);
	}
	if (rc == 0) {
		rc = meet(walk, walk->old_met, EXT4_ROOT_INODE, ".");
	}
	if (rc == 0) {
		rc = meet(walk, walk->new_met, EXT4_ROOT_INODE, ".");
	}
	if (rc == 0 && changed) {
		rc = add_item(walk, CHANGE_MODIFIED, ".", ".");
	}
	walk->names_left = walk->sides->changes.new_names;
	if (rc < 0) {
		return rc;
	}
	return changed ? add_task(walk, TASK_PAIR, ".", NULL)
		       : add_same(walk, ".", NULL, EXT4_ROOT_INODE);
}

static void task_clear(struct task *task)
{
	free(task->path);
	free(task->old);
}

static void task_list_clear(struct task_list *tasks)
{
	for (size_t i = 0; i < tasks->count; i++) {
		task_clear(&tasks->list[i]);
	}
	free(tasks->list);
}

static void walk_clear(struct walk *walk)
{
	task_list_clear(&walk->tasks);
	task_list_clear(&walk->same);
	free(walk->added.list);
	free(walk->deleted.list);
	free(walk->old_met);
	free(walk->new_met);
	renames_clear(&walk->renames);
}

static int compare_items(const void *a, const void *b)
{
	return strcmp(((const struct diff_item *)a)->path, ((const struct diff_item *)b)->path);
}

/* Sorts, and makes sure that no path is there twice. */
static int finish(struct walk *walk)
{
	struct diff_items *items = walk->items;

	if (items->count > 1) {
		qsort(items->list, items->count, sizeof(*items->list), compare_items);
	}
	for (size_t i = 1; i < items->count; i++) {
		if (strcmp(items->list[i - 1].path, items->list[i].path) == 0) {
			return fail(walk, items->list[i].path, -EBADMSG);
		}
	}
	return walk->renames_met == walk->renames.count ? 0 : fail(walk, ".", -EBADMSG);
}

int diff_walk(const struct diff_sides *sides, struct diff_items *ret_items, struct err *err)
{
	_cleanup_(walk_clear) struct walk walk = {.sides = sides, .items = ret_items, .err = err};
	int rc = sides->without_renames ? 0 : renames_find(sides, &walk.renames, err);

	if (rc == 0) {
		rc = begin(&walk);
	}
	while (rc == 0 && (walk.tasks.count > 0 || (walk.same.count > 0 && walk.names_left > 0))) {
		struct task_list *tasks = walk.tasks.count > 0 ? &walk.tasks : &walk.same;
		_cleanup_(task_clear) struct task task = tasks->list[--tasks->count];

		rc = run_task(&walk, &task);
	}
	if (rc == 0) {
		rc = pair_loose(&walk);
	}
	return rc < 0 ? rc : finish(&walk);
}

void diff_items_clear(struct diff_items *items)
{
	free(items->list);
	path_store_clear(&items->paths);
	*items = (struct diff_items){0};
}
