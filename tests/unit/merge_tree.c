#include "merge_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned dice_below(struct dice *dice, unsigned limit)
{
	dice->state ^= dice->state << 13;
	dice->state ^= dice->state >> 7;
	dice->state ^= dice->state << 17;
	return (unsigned)((dice->state >> 20) % limit);
}

struct node *tree_find(struct tree *tree, const char *path)
{
	for (size_t i = 0; i < tree->count; i++) {
		if (strcmp(tree->nodes[i].path, path) == 0) {
			return &tree->nodes[i];
		}
	}
	return NULL;
}

const struct node *tree_look(const struct tree *tree, const char *path)
{
	for (size_t i = 0; i < tree->count; i++) {
		if (strcmp(tree->nodes[i].path, path) == 0) {
			return &tree->nodes[i];
		}
	}
	return NULL;
}

static const struct node *find_inode(const struct tree *tree, unsigned inode)
{
	for (size_t i = 0; i < tree->count; i++) {
		if (tree->nodes[i].inode == inode) {
			return &tree->nodes[i];
		}
	}
	return NULL;
}

bool node_equal(const struct node *a, const struct node *b)
{
	if (!a || !b) {
		return a == b;
	}
	return a->type == b->type && a->mode == b->mode && a->content == b->content;
}

bool tree_equal(const struct tree *a, const struct tree *b)
{
	if (a->count != b->count) {
		return false;
	}
	for (size_t i = 0; i < a->count; i++) {
		if (!node_equal(&a->nodes[i], tree_look(b, a->nodes[i].path))) {
			return false;
		}
	}
	return true;
}

static bool is_below(const char *path, const char *top)
{
	size_t length = strlen(top);

	return strncmp(path, top, length) == 0 && path[length] == '/';
}

static bool is_directory(const struct tree *tree, const char *path, size_t length)
{
	char above[TREE_PATH_MAX];
	const struct node *node;

	snprintf(above, sizeof(above), "%.*s", (int)length, path);
	node = tree_look(tree, above);
	return node && node->type == CHANGE_TYPE_DIRECTORY;
}

/* Whether something may be made at path. */
static bool has_parent(const struct tree *tree, const char *path)
{
	const char *slash = strrchr(path, '/');

	return !slash || is_directory(tree, path, (size_t)(slash - path));
}

static void remove_tree(struct tree *tree, const char *path)
{
	size_t kept = 0;

	for (size_t i = 0; i < tree->count; i++) {
		if (strcmp(tree->nodes[i].path, path) != 0 &&
		    !is_below(tree->nodes[i].path, path)) {
			tree->nodes[kept++] = tree->nodes[i];
		}
	}
	tree->count = kept;
}

static void random_path(struct dice *dice, char *ret_path)
{
	/* Some sort before the slash and some behind it. */
	static const char *const names[] = {"a", "b", "a-", "a0", "c"};
	unsigned depth = 1 + dice_below(dice, 3);
	size_t length = 0;

	for (unsigned i = 0; i < depth; i++) {
		length += (size_t)snprintf(ret_path + length, TREE_PATH_MAX - length, "%s%s",
					   i > 0 ? "/" : "", names[dice_below(dice, 5)]);
	}
}

static void random_node(struct dice *dice, struct node *node)
{
	static const uint32_t types[] = {CHANGE_TYPE_FILE, CHANGE_TYPE_FILE, CHANGE_TYPE_DIRECTORY,
					 CHANGE_TYPE_DIRECTORY, CHANGE_TYPE_SYMLINK};

	node->inode = dice->next_inode++;
	node->type = types[dice_below(dice, 5)];
	node->mode = node->type == CHANGE_TYPE_SYMLINK ? 0777 : 0700 + dice_below(dice, 2);
	node->content = node->type == CHANGE_TYPE_DIRECTORY ? 0 : dice_below(dice, 2);
}

static void rename_node(struct tree *tree, struct node *node, const char *to)
{
	char from[TREE_PATH_MAX], rest[TREE_PATH_MAX];

	snprintf(from, sizeof(from), "%s", node->path);
	for (size_t i = 0; i < tree->count; i++) {
		char *path = tree->nodes[i].path;

		if (strcmp(path, from) == 0 || is_below(path, from)) {
			snprintf(rest, sizeof(rest), "%s", path + strlen(from));
			snprintf(path, TREE_PATH_MAX, "%s%s", to, rest);
		}
	}
}

static void add_or_replace(struct tree *tree, struct dice *dice, const char *path)
{
	if (!has_parent(tree, path) || tree->count == TREE_NODES_MAX) {
		return;
	}
	remove_tree(tree, path);
	snprintf(tree->nodes[tree->count].path, TREE_PATH_MAX, "%s", path);
	random_node(dice, &tree->nodes[tree->count++]);
}

void tree_edit(struct tree *tree, struct dice *dice, bool renames)
{
	char path[TREE_PATH_MAX];
	struct node *node =
		tree->count > 0 ? &tree->nodes[dice_below(dice, (unsigned)tree->count)] : NULL;

	random_path(dice, path);
	switch (node ? dice_below(dice, 7) : 0) {
	case 0:
	case 1:
		if (!tree_find(tree, path)) {
			add_or_replace(tree, dice, path);
		}
		break;
	case 2:
		snprintf(path, sizeof(path), "%s", node->path);
		remove_tree(tree, path);
		break;
	case 3:
		if (node->type != CHANGE_TYPE_DIRECTORY) {
			node->content = 1 + dice_below(dice, 3);
		}
		break;
	case 4:
		if (node->type != CHANGE_TYPE_SYMLINK) {
			node->mode = 0700 + dice_below(dice, 3);
		}
		break;
	case 5:
		snprintf(path, sizeof(path), "%s", node->path);
		add_or_replace(tree, dice, path);
		break;
	default:
		if (renames && !tree_find(tree, path) && has_parent(tree, path) &&
		    !is_below(path, node->path) &&
		    strlen(path) < TREE_PATH_MAX - 20 /* what is below it needs room too */) {
			rename_node(tree, node, path);
		}
		break;
	}
}

static int compare_nodes(const void *left, const void *right)
{
	const struct node *a = left, *b = right;

	return strcmp(a->path, b->path);
}

static int compare_changes(const void *left, const void *right)
{
	const struct change *a = left, *b = right;

	return strcmp(a->path, b->path);
}

static const char *target_of(const struct node *node)
{
	static const char *const targets[] = {"t0", "t1", "t2", "t3"};

	return node && node->type == CHANGE_TYPE_SYMLINK ? targets[node->content] : "";
}

static struct change_side side_of(const struct node *node)
{
	if (!node) {
		return (struct change_side){0};
	}
	return (struct change_side){
		.type = node->type,
		.mode = node->mode,
		.size = node->type == CHANGE_TYPE_FILE ? 1 : 0,
	};
}

/* Adds the change from one node to another, when there is one. */
static bool add_change(struct changes *changes, const struct node *old, const struct node *new,
		       const char *path)
{
	struct change change = {
		.old = side_of(old),
		.new = side_of(new),
		.path = path,
		.from = "",
		.old_target = target_of(old),
		.new_target = target_of(new),
	};
	bool renamed = old && new && old->held[0] == 'r';

	change.kind = !old ? CHANGE_ADDED : !new ? CHANGE_DELETED : CHANGE_MODIFIED;
	if (old && new && old->type != new->type) {
		change.flags = CHANGE_FLAG_TYPE;
	} else if (old && new) {
		change.flags |= old->mode != new->mode ? CHANGE_FLAG_MODE : 0u;
		change.flags |= old->content == new->content	   ? 0u
				: new->type == CHANGE_TYPE_SYMLINK ? CHANGE_FLAG_TARGET
								   : CHANGE_FLAG_CONTENT;
	}
	if (renamed) {
		change.kind = CHANGE_RENAMED;
		change.from = old->path;
	}
	if (old && new && !renamed && change.flags == 0) {
		return true;
	}
	return changes_add(changes, &change) == 0;
}

/*
 * Where each node of old is in new goes to `held` of a copy of old, behind one letter: 'p' at the
 * path that its directory leads to, 'r' renamed, 'd' deleted, and then the path where it would be.
 */
static void locate(struct tree *old, const struct tree *new, bool renames)
{
	qsort(old->nodes, old->count, sizeof(old->nodes[0]), compare_nodes);
	for (size_t i = 0; i < old->count; i++) {
		struct node *node = &old->nodes[i];
		const char *slash = strrchr(node->path, '/');
		char expected[TREE_PATH_MAX];
		const struct node *moved = find_inode(new, node->inode);

		snprintf(expected, sizeof(expected), "%s", node->path);
		if (slash) {
			char above[TREE_PATH_MAX];

			snprintf(above, sizeof(above), "%.*s", (int)(slash - node->path),
				 node->path);
			snprintf(expected, sizeof(expected), "%.20s%.19s",
				 tree_find(old, above)->held + 1, slash);
		}
		/* A directory is known by its inode, also where another has taken its place. */
		if (renames && moved && node->type == CHANGE_TYPE_DIRECTORY &&
		    moved->type == node->type && !tree_find(old, moved->path) &&
		    strcmp(moved->path, expected) != 0) {
			snprintf(node->held, sizeof(node->held), "r%.38s", moved->path);
		} else if (tree_look(new, expected)) {
			snprintf(node->held, sizeof(node->held), "p%.38s", expected);
		} else if (renames && moved && moved->type == node->type &&
			   !tree_find(old, moved->path) && !tree_look(new, node->path)) {
			snprintf(node->held, sizeof(node->held), "r%.38s", moved->path);
		} else {
			snprintf(node->held, sizeof(node->held), "d%.38s", expected);
		}
	}
}

bool tree_diff(const struct tree *old_tree, const struct tree *new, bool renames,
	       struct changes *ret_changes)
{
	struct tree old = *old_tree;
	bool used[TREE_NODES_MAX] = {false};

	locate(&old, new, renames);
	for (size_t i = 0; i < old.count; i++) {
		const struct node *node = &old.nodes[i];
		const struct node *now =
			node->held[0] == 'd' ? NULL : tree_look(new, node->held + 1);

		if (now && used[now - new->nodes]) {
			return false;
		}
		if (now) {
			used[now - new->nodes] = true;
		}
		if (!add_change(ret_changes, node, now, node->held + 1)) {
			return false;
		}
	}
	for (size_t i = 0; i < new->count; i++) {
		if (!used[i] &&
		    !add_change(ret_changes, NULL, &new->nodes[i], new->nodes[i].path)) {
			return false;
		}
	}
	if (ret_changes->count > 0) {
		qsort(ret_changes->items, ret_changes->count, sizeof(ret_changes->items[0]),
		      compare_changes);
	}
	for (size_t i = 1; i < ret_changes->count; i++) {
		if (strcmp(ret_changes->items[i - 1].path, ret_changes->items[i].path) == 0) {
			return false;
		}
	}
	return true;
}

/* Takes what is renamed out of the tree: the path of each node goes behind a mark. The deepest
 * first, so that what leaves a directory that is itself renamed does not go along. */
static const char *pull_out(struct tree *tree, const struct changes *changes, const bool *chosen)
{
	for (unsigned slashes = 4; slashes-- > 0;) {
		for (size_t i = 0; i < changes->count; i++) {
			const struct change *change = &changes->items[i];
			char to[TREE_PATH_MAX];
			unsigned depth = 0;

			for (const char *c = change->from; *c; c++) {
				depth += *c == '/';
			}
			if (!chosen[i] || change->kind != CHANGE_RENAMED || depth != slashes) {
				continue;
			}
			if (!tree_find(tree, change->from)) {
				return "what is to be renamed is not there";
			}
			snprintf(to, sizeof(to), "#%zu", i);
			rename_node(tree, tree_find(tree, change->from), to);
		}
	}
	return NULL;
}

static bool is_leaf(const struct tree *tree, const char *path)
{
	for (size_t i = 0; i < tree->count; i++) {
		if (is_below(tree->nodes[i].path, path)) {
			return false;
		}
	}
	return true;
}

static const char *put(struct tree *tree, const struct change *change, const struct node *content)
{
	struct node *node = tree_find(tree, change->path);

	if (!has_parent(tree, change->path)) {
		return "there is no directory for it";
	}
	if ((change->kind == CHANGE_ADDED) != !node) {
		return node ? "it is there already" : "it is not there";
	}
	if (!content || tree->count == TREE_NODES_MAX) {
		return "there is no content for it";
	}
	if (node && change->flags == CHANGE_FLAG_MODE) {
		node->mode = change->new.mode;
		return NULL;
	}
	if (node && content->type != CHANGE_TYPE_DIRECTORY && !is_leaf(tree, change->path)) {
		return "something is in it";
	}
	node = node ? node : &tree->nodes[tree->count++];
	snprintf(node->path, sizeof(node->path), "%s", change->path);
	node->type = content->type;
	node->mode = content->mode;
	node->content = content->content;
	node->inode = content->inode;
	return NULL;
}

static bool makes_directory(const struct change *change)
{
	return change->new.type == CHANGE_TYPE_DIRECTORY && change->kind != CHANGE_RENAMED &&
	       change->old.type != CHANGE_TYPE_DIRECTORY;
}

static const char *place(struct tree *tree, const struct change *change, size_t item,
			 const struct tree *source)
{
	char held[TREE_PATH_MAX];

	if (makes_directory(change)) {
		return put(tree, change, tree_look(source, change->path));
	}
	if (change->kind != CHANGE_RENAMED) {
		return NULL;
	}
	snprintf(held, sizeof(held), "#%zu", item);
	if (tree_find(tree, change->path) || !has_parent(tree, change->path)) {
		return "it cannot be renamed to that";
	}
	rename_node(tree, tree_find(tree, held), change->path);
	return change->flags != 0 ? put(tree, change, tree_look(source, change->path)) : NULL;
}

const char *tree_apply(struct tree *tree, const struct changes *changes, const bool *chosen,
		       const struct tree *source)
{
	const char *why = pull_out(tree, changes, chosen);

	for (size_t i = 0; i < changes->count && !why; i++) {
		why = chosen[i] ? place(tree, &changes->items[i], i, source) : NULL;
	}
	for (size_t i = changes->count; i > 0 && !why; i--) {
		const struct change *change = &changes->items[i - 1];

		if (!chosen[i - 1] || change->kind != CHANGE_DELETED) {
			continue;
		}
		if (!tree_find(tree, change->path) || !is_leaf(tree, change->path)) {
			why = "it cannot be deleted";
		} else {
			remove_tree(tree, change->path);
		}
	}
	for (size_t i = 0; i < changes->count && !why; i++) {
		const struct change *change = &changes->items[i];

		if (chosen[i] && !makes_directory(change) &&
		    (change->kind == CHANGE_ADDED || change->kind == CHANGE_MODIFIED)) {
			why = put(tree, change, tree_look(source, change->path));
		}
	}
	return why;
}
