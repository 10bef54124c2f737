/*
 * Theory of operation.
 *
 * Each list gets an index: every path that a change speaks of (a rename speaks of two), sorted.
 * What stands at a path, above it and below it is then found by binary search, since all that is
 * below a path stands together. So the work is that of the changes, times their depth.
 *
 *   same        the other list has the very same change; such changes never contradict anything
 *   clash       a change of the fork's and one of the parent's contradict each other
 *   needs       a change fits only together with others of its own list: what is in a directory
 * with what made that directory, and the end of a directory with the end of all in it
 *
 * Nothing here knows a file system. What may never happen: that a result is given in which a change
 * is taken and one that it needs is not.
 */
#include "client/merge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

/* A path that a change speaks of. */
struct entry {
	const char *key;
	size_t item;
};

struct side {
	const struct changes *list;
	struct entry *entries;
	size_t count;
	/* For each change: the other side has made it too. */
	bool *same;
};

struct job {
	const struct merge_input *input;
	struct merge *out;
	struct side fork;
	struct side parent;
	/* For each of the fork's changes. */
	bool *named;
	bool *clashes;
	bool *theirs;
	/* Changes whose consequences are still to be looked at. Each is put there once at most. */
	size_t *stack;
	size_t depth;
};

/* What a visit of related changes does with each. Returns false to end it. */
typedef bool visitor(struct job *job, const struct side *side, size_t item);

static int compare_entries(const void *left, const void *right)
{
	const struct entry *a = left, *b = right;
	int order = strcmp(a->key, b->key);

	return order != 0 ? order : a->item < b->item ? -1 : a->item > b->item;
}

/* How an entry's key stands to the first length bytes of path. */
static int compare_key(const char *key, const char *path, size_t length)
{
	int order = strncmp(key, path, length);

	return order != 0 ? order : key[length] != '\0';
}

/* The same for everything below that path: 0 for all of it. */
static int compare_below(const char *key, const char *path, size_t length)
{
	int order = strncmp(key, path, length);

	return order != 0 ? order : (unsigned char)key[length] - '/';
}

/* The first entry that compares as 0 or more. */
static size_t lower_bound(const struct side *side,
			  int (*compare)(const char *, const char *, size_t), const char *path,
			  size_t length)
{
	size_t low = 0, high = side->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (compare(side->entries[middle].key, path, length) < 0) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low;
}

static bool visit_range(struct job *job, const struct side *side,
			int (*compare)(const char *, const char *, size_t), const char *path,
			size_t length, visitor *visit)
{
	for (size_t i = lower_bound(side, compare, path, length);
	     i < side->count && compare(side->entries[i].key, path, length) == 0; i++) {
		if (!visit(job, side, side->entries[i].item)) {
			return false;
		}
	}
	return true;
}

static bool visit_at(struct job *job, const struct side *side, const char *path, visitor *visit)
{
	return visit_range(job, side, compare_key, path, strlen(path), visit);
}

static bool visit_below(struct job *job, const struct side *side, const char *path, visitor *visit)
{
	return visit_range(job, side, compare_below, path, strlen(path), visit);
}

/* The directories above path, the nearest last. */
static bool visit_above(struct job *job, const struct side *side, const char *path, visitor *visit)
{
	for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		if (!visit_range(job, side, compare_key, path, (size_t)(slash - path), visit)) {
			return false;
		}
	}
	return true;
}

static bool is_rename(const struct change *change)
{
	return change->kind == CHANGE_RENAMED;
}

/* It ends what was below its paths, or takes that elsewhere. */
static bool claims_below(const struct change *change)
{
	return is_rename(change) || change->new.type != CHANGE_TYPE_DIRECTORY;
}

/* There is a directory at its path that was not there. */
static bool makes_directory(const struct change *change)
{
	return change->new.type == CHANGE_TYPE_DIRECTORY &&
	       (is_rename(change) || change->old.type != CHANGE_TYPE_DIRECTORY);
}

/* There was a directory at its path, and it is gone with all in it. */
static bool ends_directory(const struct change *change)
{
	return !is_rename(change) && change->old.type == CHANGE_TYPE_DIRECTORY &&
	       change->new.type != CHANGE_TYPE_DIRECTORY;
}

static bool equal_sides(const struct change_side *a, const struct change_side *b)
{
	return a->type == b->type && a->mode == b->mode && a->uid == b->uid && a->gid == b->gid &&
	       a->size == b->size;
}

/* All that the records of the two say is equal. */
static bool equal_records(const struct change *a, const struct change *b)
{
	return a->kind == b->kind && a->flags == b->flags && strcmp(a->from, b->from) == 0 &&
	       equal_sides(&a->new, &b->new) && strcmp(a->new_target, b->new_target) == 0;
}

/* Records say nothing of contents and attributes, and not which device a device is. */
static bool needs_look(const struct change *change)
{
	return change->kind == CHANGE_ADDED ||
	       (change->flags & (CHANGE_FLAG_CONTENT | CHANGE_FLAG_TYPE | CHANGE_FLAG_XATTRS)) != 0;
}

/* Pairs of changes with one path; both lists are in the order of their paths. */
static void pair(const struct changes *fork, const struct changes *parent,
		 void (*found)(void *data, size_t fork, size_t parent), void *data)
{
	size_t i = 0, k = 0;

	while (i < fork->count && k < parent->count) {
		int order = strcmp(fork->items[i].path, parent->items[k].path);

		if (order == 0) {
			found(data, i, k);
		}
		i += order <= 0;
		k += order >= 0;
	}
}

struct marking {
	const struct changes *fork;
	const struct changes *parent;
	bool *marks;
	long count;
};

static void mark_pair(void *data, size_t fork, size_t parent)
{
	struct marking *marking = data;
	const struct change *ours = &marking->fork->items[fork];

	marking->marks[fork] = equal_records(ours, &marking->parent->items[parent]) &&
			       needs_look(ours) && change_has_content(ours);
	marking->count += marking->marks[fork];
}

long merge_marks(const struct changes *fork, const struct changes *parent, bool *marks)
{
	struct marking marking = {.fork = fork, .parent = parent, .marks = marks};

	memset(marks, 0, fork->count * sizeof(*marks));
	pair(fork, parent, mark_pair, &marking);
	return marking.count;
}

static void same_pair(void *data, size_t fork, size_t parent)
{
	struct job *job = data;
	const struct change *change = &job->fork.list->items[fork];
	const bool *equal = job->input->equal;

	if (equal_records(change, &job->parent.list->items[parent]) &&
	    (!needs_look(change) || (change_has_content(change) && equal && equal[fork]))) {
		job->fork.same[fork] = true;
		job->parent.same[parent] = true;
	}
}

static int make_side(const struct changes *list, struct side *side)
{
	side->list = list;
	/* One more, so that an empty list is no failure. */
	side->entries = calloc(2 * list->count + 1, sizeof(*side->entries));
	side->same = calloc(list->count + 1, sizeof(*side->same));
	if (!side->entries || !side->same) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < list->count; i++) {
		side->entries[side->count++] = (struct entry){list->items[i].path, i};
		if (is_rename(&list->items[i])) {
			side->entries[side->count++] = (struct entry){list->items[i].from, i};
		}
	}
	qsort(side->entries, side->count, sizeof(*side->entries), compare_entries);
	return 0;
}

static void push(struct job *job, size_t item)
{
	job->stack[job->depth++] = item;
}

/* Calls visit for both paths of a change. */
static bool visit_keys(struct job *job, const struct side *side, const struct change *change,
		       bool (*walk)(struct job *, const struct side *, const char *, visitor *),
		       visitor *visit)
{
	return walk(job, side, change->path, visit) &&
	       (!is_rename(change) || walk(job, side, change->from, visit));
}

/* ---- which changes were asked for ---- */

static bool select_item(struct job *job, const struct side *side, size_t item)
{
	(void)side;
	if (job->out->fates[item] == MERGE_LEFT_OUT) {
		job->out->fates[item] = MERGE_TAKEN;
		push(job, item);
	}
	return true;
}

static bool select_named(struct job *job, const struct side *side, size_t item)
{
	job->named[item] = true;
	return select_item(job, side, item);
}

static bool select_maker(struct job *job, const struct side *side, size_t item)
{
	return makes_directory(&side->list->items[item]) ? select_item(job, side, item) : true;
}

/* What is added where something was can be there only when that has gone elsewhere. */
static bool select_rename(struct job *job, const struct side *side, size_t item)
{
	return is_rename(&side->list->items[item]) ? select_item(job, side, item) : true;
}

static void select_asked(struct job *job)
{
	const struct merge_input *input = job->input;
	size_t all = job->fork.list->count;

	for (size_t i = 0; i < input->path_count; i++) {
		const char *path = input->paths[i];
		size_t before = lower_bound(&job->fork, compare_key, path, strlen(path));
		size_t below = lower_bound(&job->fork, compare_below, path, strlen(path));
		bool root = strcmp(path, ".") == 0;

		if (root && all > 0) {
			for (size_t item = 0; item < all; item++) {
				select_item(job, &job->fork, item);
			}
			visit_at(job, &job->fork, path, select_named);
			continue;
		}
		if ((before == job->fork.count ||
		     compare_key(job->fork.entries[before].key, path, strlen(path)) != 0) &&
		    (below == job->fork.count ||
		     compare_below(job->fork.entries[below].key, path, strlen(path)) != 0)) {
			job->out->unmatched = job->out->unmatched ? job->out->unmatched : path;
		}
		visit_at(job, &job->fork, path, select_named);
		visit_below(job, &job->fork, path, select_item);
	}
	if (input->path_count == 0) {
		for (size_t item = 0; item < all; item++) {
			select_item(job, &job->fork, item);
		}
	}
	while (job->depth > 0) {
		const struct change *change = &job->fork.list->items[job->stack[--job->depth]];

		visit_keys(job, &job->fork, change, visit_above, select_maker);
		visit_at(job, &job->fork, change->path, select_rename);
	}
}

/* ---- what contradicts ---- */

static bool any_clash(struct job *job, const struct side *side, size_t item)
{
	if (side->same[item]) {
		return true;
	}
	/* The parent's change is left on the stack for the caller. */
	push(job, item);
	return false;
}

static bool claiming_clash(struct job *job, const struct side *side, size_t item)
{
	return claims_below(&side->list->items[item]) ? any_clash(job, side, item) : true;
}

static bool find_clash(struct job *job, const struct change *change,
		       struct merge_conflict *conflict)
{
	bool clear = visit_keys(job, &job->parent, change, visit_at, any_clash);

	conflict->reason = MERGE_BOTH_CHANGED;
	if (clear) {
		clear = visit_keys(job, &job->parent, change, visit_above, claiming_clash);
		conflict->reason = MERGE_PARENT_ABOVE;
	}
	if (clear && claims_below(change)) {
		clear = visit_keys(job, &job->parent, change, visit_below, any_clash);
		conflict->reason = MERGE_PARENT_BELOW;
	}
	if (!clear) {
		conflict->parent = job->stack[--job->depth];
	}
	return !clear;
}

static void find_clashes(struct job *job)
{
	struct merge *out = job->out;

	for (size_t i = 0; i < job->fork.list->count; i++) {
		struct merge_conflict conflict = {.fork = i};

		if (job->fork.same[i] && out->fates[i] == MERGE_TAKEN) {
			out->fates[i] = MERGE_SAME;
		}
		if (out->fates[i] != MERGE_TAKEN ||
		    !find_clash(job, &job->fork.list->items[i], &conflict)) {
			continue;
		}
		job->clashes[i] = true;
		out->conflicts[out->conflict_count++] = conflict;
	}
}

/* ---- what is decided ---- */

static bool force(struct job *job, const struct side *side, size_t item)
{
	(void)side;
	if (job->clashes[item] && !job->theirs[item]) {
		job->theirs[item] = true;
		push(job, item);
	}
	return true;
}

static bool give_up(struct job *job, const struct side *side, size_t item)
{
	(void)side;
	if (job->out->fates[item] == MERGE_TAKEN) {
		job->out->fates[item] = MERGE_GIVEN_UP;
		push(job, item);
	}
	return true;
}

static bool give_up_end(struct job *job, const struct side *side, size_t item)
{
	return ends_directory(&side->list->items[item]) ? give_up(job, side, item) : true;
}

static bool is_no_directory(struct job *job, const struct side *side, size_t item)
{
	(void)job;
	return side->list->items[item].new.type != CHANGE_TYPE_DIRECTORY;
}

/* What of the fork's cannot be without a change that was given up. */
static void give_up_needing(struct job *job)
{
	while (job->depth > 0) {
		const struct change *change = &job->fork.list->items[job->stack[--job->depth]];

		/* The parent may have made a directory there itself. */
		if (is_rename(change) ||
		    (makes_directory(change) &&
		     visit_at(job, &job->parent, change->path, is_no_directory))) {
			visit_keys(job, &job->fork, change, visit_below, give_up);
		}
		if (is_rename(change)) {
			visit_at(job, &job->fork, change->from, give_up);
		}
		visit_keys(job, &job->fork, change, visit_above, give_up_end);
	}
}

static void decide(struct job *job)
{
	const struct merge_input *input = job->input;
	struct merge *out = job->out;

	for (size_t i = 0; i < out->conflict_count; i++) {
		size_t fork = out->conflicts[i].fork;

		if (job->named[fork] || input->choice == MERGE_THEIRS) {
			force(job, &job->fork, fork);
		}
	}
	while (job->depth > 0) {
		const struct change *change = &job->fork.list->items[job->stack[--job->depth]];

		/* Who names a directory that is gone means all of it. */
		if (ends_directory(change)) {
			visit_keys(job, &job->fork, change, visit_below, force);
		}
	}
	for (size_t i = 0; i < out->conflict_count; i++) {
		size_t fork = out->conflicts[i].fork;

		if (job->theirs[fork]) {
			continue;
		}
		if (input->choice == MERGE_OURS) {
			give_up(job, &job->fork, fork);
		} else {
			out->fates[fork] = MERGE_OPEN;
			out->open_count++;
		}
	}
	give_up_needing(job);
}

/* ---- what of the parent's is taken back ---- */

static bool revert(struct job *job, const struct side *side, size_t item)
{
	(void)side;
	if (!job->out->reverts[item]) {
		job->out->reverts[item] = true;
		push(job, item);
	}
	return true;
}

static bool revert_clash(struct job *job, const struct side *side, size_t item)
{
	return side->same[item] ? true : revert(job, side, item);
}

static bool revert_claiming(struct job *job, const struct side *side, size_t item)
{
	return claims_below(&side->list->items[item]) ? revert(job, side, item) : true;
}

static bool revert_claiming_clash(struct job *job, const struct side *side, size_t item)
{
	return side->same[item] ? true : revert_claiming(job, side, item);
}

static bool revert_rename(struct job *job, const struct side *side, size_t item)
{
	return is_rename(&side->list->items[item]) ? revert(job, side, item) : true;
}

/* What the parent's change cannot be taken back without. */
static void revert_needed(struct job *job)
{
	while (job->depth > 0) {
		const struct change *change = &job->parent.list->items[job->stack[--job->depth]];

		visit_keys(job, &job->parent, change, visit_above, revert_claiming);
		if (makes_directory(change) || is_rename(change)) {
			visit_keys(job, &job->parent, change, visit_below, revert);
		}
		/* What was there before it comes back to its place, from wherever it went. */
		visit_at(job, &job->parent, change->path, revert_rename);
		/* What stands where it goes back to makes room. */
		if (is_rename(change)) {
			visit_at(job, &job->parent, change->from, revert);
		}
	}
}

static void retake_pair(void *data, size_t fork, size_t parent)
{
	struct job *job = data;

	if (job->fork.same[fork] && job->out->reverts[parent]) {
		job->out->fates[fork] = MERGE_TAKEN;
	}
}

static void find_reverts(struct job *job)
{
	for (size_t i = 0; i < job->fork.list->count; i++) {
		const struct change *change = &job->fork.list->items[i];

		if (!job->theirs[i] || job->out->fates[i] != MERGE_TAKEN) {
			continue;
		}
		visit_keys(job, &job->parent, change, visit_at, revert_clash);
		visit_keys(job, &job->parent, change, visit_above, revert_claiming_clash);
		if (claims_below(change)) {
			visit_keys(job, &job->parent, change, visit_below, revert_clash);
		}
		revert_needed(job);
	}
	/* What both had done is done again. */
	pair(job->fork.list, job->parent.list, retake_pair, job);
}

static void count(struct job *job)
{
	struct merge *out = job->out;

	for (size_t i = 0; i < job->fork.list->count; i++) {
		out->taken_count += out->fates[i] == MERGE_TAKEN;
	}
	for (size_t i = 0; i < job->parent.list->count; i++) {
		out->revert_count += out->reverts[i];
	}
}

static int prepare(struct job *job)
{
	size_t fork = job->input->fork->count, parent = job->input->parent->count;
	int rc = make_side(job->input->fork, &job->fork);

	if (rc == 0) {
		rc = make_side(job->input->parent, &job->parent);
	}
	job->named = calloc(fork + 1, sizeof(*job->named));
	job->clashes = calloc(fork + 1, sizeof(*job->clashes));
	job->theirs = calloc(fork + 1, sizeof(*job->theirs));
	job->stack = calloc(fork + parent + 1, sizeof(*job->stack));
	job->out->fates = calloc(fork + 1, sizeof(*job->out->fates));
	job->out->reverts = calloc(parent + 1, sizeof(*job->out->reverts));
	job->out->conflicts = calloc(fork + 1, sizeof(*job->out->conflicts));
	if (rc < 0 || !job->named || !job->clashes || !job->theirs || !job->stack ||
	    !job->out->fates || !job->out->reverts || !job->out->conflicts) {
		return -ENOMEM;
	}
	pair(job->input->fork, job->input->parent, same_pair, job);
	return 0;
}

static void clear_side(struct side *side)
{
	free(side->entries);
	free(side->same);
}

int merge_make(const struct merge_input *input, struct merge *ret_merge)
{
	struct merge merge = {0};
	struct job job = {.input = input, .out = &merge};
	int rc = prepare(&job);

	if (rc == 0) {
		select_asked(&job);
		find_clashes(&job);
		decide(&job);
		if (merge.open_count == 0) {
			find_reverts(&job);
		}
		count(&job);
	}
	clear_side(&job.fork);
	clear_side(&job.parent);
	free(job.named);
	free(job.clashes);
	free(job.theirs);
	free(job.stack);
	if (rc < 0) {
		merge_clear(&merge);
		return rc;
	}
	*ret_merge = merge;
	return 0;
}

void merge_clear(struct merge *merge)
{
	free(merge->fates);
	free(merge->reverts);
	free(merge->conflicts);
	*merge = (struct merge){0};
}

static bool choose(struct job *job, const struct side *side, size_t item)
{
	(void)side;
	job->named[item] = true;
	return true;
}

int merge_back(const struct merge *merge, const struct changes *parent, const struct changes *back,
	       bool *ret_chosen)
{
	struct job job = {.named = ret_chosen};
	struct side side = {0};
	int rc = make_side(back, &side);

	memset(ret_chosen, 0, back->count * sizeof(*ret_chosen));
	for (size_t i = 0; i < parent->count && rc == 0; i++) {
		const struct change *change = &parent->items[i];

		if (!merge->reverts[i]) {
			continue;
		}
		visit_keys(&job, &side, change, visit_at, choose);
		/* All that the parent changed below a rename is taken back with it. */
		if (is_rename(change)) {
			visit_keys(&job, &side, change, visit_below, choose);
		}
	}
	clear_side(&side);
	return rc;
}

int merge_path(const char *word, char ret_path[CHANGE_PATH_MAX + 1])
{
	size_t length = 0;

	if (word[0] == '/') {
		if (strncmp(word, "/data", 5) != 0 || (word[5] != '/' && word[5] != '\0')) {
			return -EINVAL;
		}
		word += 5;
	} else if (word[0] == '\0') {
		return -EINVAL;
	}
	while (*word) {
		size_t size = strcspn(word, "/");

		if (size == 2 && strncmp(word, "..", 2) == 0) {
			return -EINVAL;
		}
		if (size > 0 && !(size == 1 && word[0] == '.')) {
			if (length + (length > 0) + size > CHANGE_PATH_MAX) {
				return -EINVAL;
			}
			if (length > 0) {
				ret_path[length++] = '/';
			}
			memcpy(ret_path + length, word, size);
			length += size;
		}
		word += size + (word[size] == '/');
	}
	if (length == 0) {
		ret_path[length++] = '.';
	}
	ret_path[length] = '\0';
	return 0;
}
