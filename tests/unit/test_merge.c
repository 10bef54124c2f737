/* src/client: the merge of a fork's changes into its parent, against a plain model by path. */
#include "client/merge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "merge_tree.h"

/* Rounds of each kind. All of them take some seconds. */
#define ROUNDS 20000
#define FIXED_SEED UINT64_C(0x9e3779b97f4a7c15)

/* One round: a tree and what both sides made of it. */
struct round {
	struct tree base, fork, parent;
	struct changes theirs, ours;
	bool equal[2 * TREE_NODES_MAX];
	struct merge merge;
	bool renames;
	uint64_t seed;
	unsigned number;
};

static void dump_tree(const char *name, const struct tree *tree)
{
	print_message("%s:\n", name);
	for (size_t i = 0; i < tree->count; i++) {
		print_message("  %s type %u mode %o content %u inode %u\n", tree->nodes[i].path,
			      tree->nodes[i].type, tree->nodes[i].mode, tree->nodes[i].content,
			      tree->nodes[i].inode);
	}
}

static void dump_changes(const char *name, const struct changes *changes,
			 const unsigned char *fates, const bool *reverts)
{
	print_message("%s:\n", name);
	for (size_t i = 0; i < changes->count; i++) {
		const struct change *change = &changes->items[i];

		print_message("  kind %u flags %x %s <- %s (%u to %u)%s%c\n", change->kind,
			      change->flags, change->path, change->from, change->old.type,
			      change->new.type, reverts && reverts[i] ? " reverted" : " ",
			      fates ? "-TSOG"[fates[i]] : ' ');
	}
}

static void fail_round(const struct round *round, const char *what, const char *path)
{
	print_message("seed %#llx round %u\n", (unsigned long long)round->seed, round->number);
	dump_tree("base", &round->base);
	dump_tree("fork", &round->fork);
	dump_tree("parent", &round->parent);
	dump_changes("the fork's changes", &round->theirs, round->merge.fates, NULL);
	dump_changes("the parent's changes", &round->ours, NULL, round->merge.reverts);
	fail_msg("%s: %s", what, path);
}

static void end_round(struct round *round)
{
	merge_clear(&round->merge);
	changes_clear(&round->theirs);
	changes_clear(&round->ours);
}

static const bool all_of[2 * TREE_NODES_MAX] = {[0 ... 2 * TREE_NODES_MAX - 1] = true};

/* Whether the changes lead from one tree to the other at all. */
static bool leads(const struct tree *from, const struct changes *changes, const struct tree *to)
{
	struct tree result = *from;

	return !tree_apply(&result, changes, all_of, to) && tree_equal(&result, to);
}

/* Makes a round out of its number; false when its changes are of a kind that change.h leaves open.
 */
static bool begin_round(struct round *round, uint64_t seed, unsigned number, bool renames)
{
	struct dice dice = {.state = seed ^ ((number + 1) * UINT64_C(0xbf58476d1ce4e5b9)),
			    .next_inode = 1};
	unsigned edits = 4 + dice_below(&dice, 14);

	*round = (struct round){.renames = renames, .seed = seed, .number = number};
	for (unsigned i = 0; i < edits; i++) {
		tree_edit(&round->base, &dice, renames);
	}
	round->fork = round->parent = round->base;
	dice.next_inode = 1000;
	edits = dice_below(&dice, 6);
	for (unsigned i = 0; i < edits; i++) {
		tree_edit(&round->fork, &dice, renames);
	}
	dice.next_inode = 2000;
	edits = dice_below(&dice, 6);
	/* Often they do some of the same. */
	if (dice_below(&dice, 4) == 0) {
		round->parent = round->fork;
	}
	for (unsigned i = 0; i < edits; i++) {
		tree_edit(&round->parent, &dice, renames);
	}
	if (!tree_diff(&round->base, &round->fork, true, &round->theirs) ||
	    !tree_diff(&round->base, &round->parent, true, &round->ours) ||
	    !leads(&round->base, &round->theirs, &round->fork) ||
	    !leads(&round->base, &round->ours, &round->parent)) {
		end_round(round);
		return false;
	}
	return true;
}

/* What only a look at the contents can tell. */
static void look(const struct changes *theirs, const struct tree *fork, const struct tree *parent,
		 const struct changes *ours, bool *equal)
{
	assert_true(merge_marks(theirs, ours, equal) >= 0);
	for (size_t i = 0; i < theirs->count; i++) {
		const char *path = theirs->items[i].path;

		equal[i] = equal[i] && node_equal(tree_look(fork, path), tree_look(parent, path));
	}
}

static void merge(struct round *round, enum merge_choice choice, const char *const *paths,
		  size_t count)
{
	look(&round->theirs, &round->fork, &round->parent, &round->ours, round->equal);
	assert_int_equal(merge_make(&(struct merge_input){.fork = &round->theirs,
							  .parent = &round->ours,
							  .equal = round->equal,
							  .paths = paths,
							  .path_count = count,
							  .choice = choice},
				    &round->merge),
			 0);
}

/* ---- the model: what each side has at a path, and nothing of how it came there ---- */

static bool model_changed(const struct tree *base, const struct tree *side, const char *path)
{
	return !node_equal(tree_look(base, path), tree_look(side, path));
}

static bool is_above(const char *path, const char *below)
{
	size_t length = strlen(path);

	return strncmp(path, below, length) == 0 && below[length] == '/';
}

/* Whether one side changed something at path, which is not what the other made of it, and the other
 * has no directory any more where path would be. */
static bool model_torn(const struct round *round, const struct tree *one, const struct tree *other,
		       const char *path)
{
	if (!model_changed(&round->base, one, path) ||
	    node_equal(tree_look(one, path), tree_look(other, path))) {
		return false;
	}
	for (size_t i = 0; i < round->base.count + other->count; i++) {
		const char *above = i < round->base.count
					    ? round->base.nodes[i].path
					    : other->nodes[i - round->base.count].path;
		const struct node *node = tree_look(other, above);

		if (is_above(above, path) && model_changed(&round->base, other, above) &&
		    !node_equal(tree_look(one, above), node) &&
		    (!node || node->type != CHANGE_TYPE_DIRECTORY)) {
			return true;
		}
	}
	return false;
}

static bool model_conflicts_at(const struct round *round, const char *path)
{
	return (model_changed(&round->base, &round->fork, path) &&
		model_changed(&round->base, &round->parent, path) &&
		!node_equal(tree_look(&round->fork, path), tree_look(&round->parent, path))) ||
	       model_torn(round, &round->fork, &round->parent, path) ||
	       model_torn(round, &round->parent, &round->fork, path);
}

/* Calls check for every path of the three trees. */
static bool for_all_paths(const struct round *round,
			  bool (*check)(const struct round *, const char *))
{
	const struct tree *trees[] = {&round->base, &round->fork, &round->parent};

	for (size_t t = 0; t < 3; t++) {
		for (size_t i = 0; i < trees[t]->count; i++) {
			if (check(round, trees[t]->nodes[i].path)) {
				return true;
			}
		}
	}
	return false;
}

static bool model_conflicts(const struct round *round)
{
	return for_all_paths(round, model_conflicts_at);
}

static bool is_rename(const struct change *change)
{
	return change->kind == CHANGE_RENAMED;
}

static bool same_rename(const struct round *round)
{
	for (size_t i = 0; i < round->theirs.count; i++) {
		if (is_rename(&round->theirs.items[i]) && round->merge.fates[i] == MERGE_SAME) {
			return true;
		}
	}
	return false;
}

static void chosen_of(const struct merge *merge, size_t count, bool *ret_chosen)
{
	for (size_t i = 0; i < count; i++) {
		ret_chosen[i] = merge->fates[i] == MERGE_TAKEN;
	}
}

static struct tree result_of(const struct round *round)
{
	struct tree result = round->parent;
	struct changes back = {0};
	bool chosen[2 * TREE_NODES_MAX] = {false};
	const char *why;

	if (round->merge.revert_count > 0) {
		assert_true(tree_diff(&round->parent, &round->base, false, &back));
		assert_int_equal(merge_back(&round->merge, &round->ours, &back, chosen), 0);
		why = tree_apply(&result, &back, chosen, &round->base);
		if (why) {
			fail_round(round, "taking back", why);
		}
	}
	changes_clear(&back);
	memset(chosen, 0, sizeof(chosen));
	chosen_of(&round->merge, round->theirs.count, chosen);
	why = tree_apply(&result, &round->theirs, chosen, &round->fork);
	if (why) {
		fail_round(round, "applying", why);
	}
	return result;
}

static void check_equals_model(const struct round *round, const struct tree *result)
{
	const struct tree *trees[] = {&round->base, &round->fork, &round->parent, result};

	for (size_t t = 0; t < 4; t++) {
		for (size_t i = 0; i < trees[t]->count; i++) {
			const char *path = trees[t]->nodes[i].path;
			bool fork_changed = model_changed(&round->base, &round->fork, path);
			const struct tree *right = fork_changed ? &round->fork : &round->parent;

			if (!node_equal(tree_look(right, path), tree_look(result, path))) {
				fail_round(round, "the result is another than the model's", path);
			}
		}
	}
}

/* The parent's changes brought to the fork give the same as the fork's brought to the parent. */
static void check_other_way(struct round *round, const struct tree *result)
{
	struct round other = {
		.base = round->base,
		.fork = round->parent,
		.parent = round->fork,
		.theirs = round->ours,
		.ours = round->theirs,
		.seed = round->seed,
		.number = round->number,
	};
	struct tree mirrored;

	merge(&other, MERGE_ASK, NULL, 0);
	if ((other.merge.conflict_count > 0) != (round->merge.conflict_count > 0)) {
		fail_round(round, "one way is a conflict and the other is none", "");
	}
	if (result) {
		mirrored = result_of(&other);
		if (!tree_equal(&mirrored, result)) {
			fail_round(&other, "the other way gives something else", "");
		}
	}
	merge_clear(&other.merge);
}

static void ask_round(struct round *round)
{
	bool conflict;
	struct tree result;

	merge(round, MERGE_ASK, NULL, 0);
	conflict = round->merge.conflict_count > 0;
	assert_int_equal(round->merge.conflict_count, round->merge.open_count);
	if (!round->renames && conflict != model_conflicts(round)) {
		fail_round(round, conflict ? "a conflict that is none" : "a conflict is missed",
			   "");
	}
	if (conflict) {
		check_other_way(round, NULL);
		return;
	}
	if (!same_rename(round) && model_conflicts(round)) {
		fail_round(round, "a conflict is missed", "");
	}
	result = result_of(round);
	if (!same_rename(round)) {
		check_equals_model(round, &result);
	}
	check_other_way(round, &result);
}

static bool touches(const struct change *change, const char *path)
{
	return strcmp(change->path, path) == 0 || is_above(change->path, path) ||
	       is_above(path, change->path) ||
	       (is_rename(change) &&
		(strcmp(change->from, path) == 0 || is_above(change->from, path) ||
		 is_above(path, change->from)));
}

static void expect(const struct round *round, const struct tree *result, const struct tree *right,
		   const char *path)
{
	if (!node_equal(tree_look(right, path), tree_look(result, path))) {
		fail_round(round, "it is not whose it should be", path);
	}
}

/* What is taken of the fork is as the fork has it, all else as the parent has it. */
static void check_sides(const struct round *round, const struct tree *result)
{
	for (size_t i = 0; i < round->theirs.count; i++) {
		const struct change *change = &round->theirs.items[i];

		if (round->merge.fates[i] != MERGE_TAKEN && round->merge.fates[i] != MERGE_SAME) {
			continue;
		}
		expect(round, result, &round->fork, change->path);
		/* Something else may have taken its place since. */
		if (is_rename(change) && round->merge.fates[i] == MERGE_TAKEN &&
		    !tree_look(&round->fork, change->from)) {
			expect(round, result, &round->fork, change->from);
		}
	}
	for (size_t i = 0; i < round->ours.count; i++) {
		const struct change *change = &round->ours.items[i];
		bool touched = round->merge.reverts[i];

		for (size_t k = 0; k < round->theirs.count && !touched; k++) {
			touched = round->merge.fates[k] == MERGE_TAKEN &&
				  touches(&round->theirs.items[k], change->path);
		}
		if (!touched) {
			expect(round, result, &round->parent, change->path);
		}
	}
}

static void theirs_round(struct round *round)
{
	struct tree result;

	merge(round, MERGE_THEIRS, NULL, 0);
	assert_int_equal(round->merge.open_count, 0);
	for (size_t i = 0; i < round->theirs.count; i++) {
		if (round->merge.fates[i] != MERGE_TAKEN && round->merge.fates[i] != MERGE_SAME) {
			fail_round(round, "left out", round->theirs.items[i].path);
		}
	}
	result = result_of(round);
	check_sides(round, &result);
}

static void ours_round(struct round *round)
{
	struct tree result;

	merge(round, MERGE_OURS, NULL, 0);
	assert_int_equal(round->merge.open_count, 0);
	assert_int_equal(round->merge.revert_count, 0);
	result = result_of(round);
	check_sides(round, &result);
	for (size_t i = 0; i < round->merge.conflict_count; i++) {
		size_t fork = round->merge.conflicts[i].fork;

		if (round->merge.fates[fork] != MERGE_GIVEN_UP) {
			fail_round(round, "not given up", round->theirs.items[fork].path);
		}
	}
}

static void paths_round(struct round *round)
{
	struct dice dice = {.state = round->seed + round->number + 1};
	const char *paths[2];
	size_t count = 0;
	enum merge_choice choice;
	struct tree result;

	for (size_t i = 0; i < 2 && round->theirs.count > 0; i++) {
		const struct change *change =
			&round->theirs.items[dice_below(&dice, (unsigned)round->theirs.count)];

		paths[count++] =
			is_rename(change) && dice_below(&dice, 2) ? change->from : change->path;
	}
	if (count == 0) {
		return;
	}
	choice = (enum merge_choice)dice_below(&dice, 3);
	merge(round, choice, paths, count);
	assert_null(round->merge.unmatched);
	for (size_t i = 0; i < round->theirs.count; i++) {
		const struct change *change = &round->theirs.items[i];

		for (size_t k = 0; k < count; k++) {
			/* It may need what is given up for the parent. */
			if (strcmp(change->path, paths[k]) == 0 && choice != MERGE_OURS &&
			    round->merge.fates[i] != MERGE_TAKEN &&
			    round->merge.fates[i] != MERGE_SAME && round->merge.open_count == 0) {
				fail_round(round, "named and not taken", paths[k]);
			}
		}
	}
	if (round->merge.open_count == 0) {
		result = result_of(round);
		check_sides(round, &result);
	}
}

static void run_rounds(uint64_t seed, bool renames, void (*check)(struct round *))
{
	unsigned made = 0, conflicts = 0;

	for (unsigned number = 0; number < ROUNDS; number++) {
		static struct round round;

		if (!begin_round(&round, seed, number, renames)) {
			continue;
		}
		check(&round);
		made++;
		conflicts += round.merge.conflict_count > 0;
		end_round(&round);
	}
	/* A generator that makes nothing, or always the same, tests nothing. */
	print_message("# seed %#llx: %u rounds, %u with conflicts\n", (unsigned long long)seed,
		      made, conflicts);
	assert_true(made > ROUNDS * 3 / 4);
	assert_true(conflicts > made / 20 && conflicts < made);
}

/* The same rounds in every run; MERGE_SEED names further ones, for a search by hand. */
static void run_all(void (*check)(struct round *))
{
	const char *given = getenv("MERGE_SEED");
	uint64_t seeds[] = {FIXED_SEED, given ? strtoull(given, NULL, 0) : 0};

	for (size_t i = 0; i < (given ? 2u : 1u); i++) {
		run_rounds(seeds[i], false, check);
		run_rounds(seeds[i], true, check);
	}
}

static void merges_as_the_model_does(void **state)
{
	(void)state;
	run_all(ask_round);
}

static void theirs_is_what_the_fork_has(void **state)
{
	(void)state;
	run_all(theirs_round);
}

/* Both renamed a directory, and each made something else where it had been. */
static void what_came_behind_a_rename_goes_back_with_it(void **state)
{
	static struct round round;

	(void)state;
	assert_true(begin_round(&round, UINT64_C(0xd61a166d), 4550, true));
	theirs_round(&round);
	end_round(&round);
}

static void ours_keeps_the_parent(void **state)
{
	(void)state;
	run_all(ours_round);
}

static void paths_take_what_they_need(void **state)
{
	(void)state;
	run_all(paths_round);
}

/* ---- by hand ---- */

static const struct change_side a_file = {.type = CHANGE_TYPE_FILE, .mode = 0644, .size = 3};
static const struct change_side a_directory = {.type = CHANGE_TYPE_DIRECTORY, .mode = 0755};

static void add(struct changes *list, uint32_t kind, const char *path, const char *from,
		const struct change_side *side)
{
	const struct change_side none = {0};
	struct change change = {
		.kind = kind,
		.path = path,
		.from = from,
		.old = kind == CHANGE_ADDED ? none : *side,
		.new = kind == CHANGE_DELETED ? none : *side,
		.flags = kind == CHANGE_MODIFIED ? CHANGE_FLAG_CONTENT : 0,
		.old_target = "",
		.new_target = "",
	};

	assert_int_equal(changes_add(list, &change), 0);
}

static void reasons_and_indexes(void **state)
{
	struct changes fork = {0}, parent = {0};
	struct merge result;

	(void)state;
	add(&fork, CHANGE_MODIFIED, "both", "", &a_file);
	add(&fork, CHANGE_DELETED, "dir", "", &a_directory);
	add(&fork, CHANGE_ADDED, "gone/new", "", &a_file);
	add(&fork, CHANGE_ADDED, "mine", "", &a_file);
	add(&parent, CHANGE_MODIFIED, "both", "", &a_file);
	add(&parent, CHANGE_ADDED, "dir/new", "", &a_file);
	add(&parent, CHANGE_DELETED, "gone", "", &a_directory);
	assert_int_equal(
		merge_make(&(struct merge_input){.fork = &fork, .parent = &parent}, &result), 0);
	assert_int_equal(result.conflict_count, 3);
	assert_int_equal(result.open_count, 3);
	for (size_t i = 0; i < 3; i++) {
		static const enum merge_reason reasons[] = {MERGE_BOTH_CHANGED, MERGE_PARENT_BELOW,
							    MERGE_PARENT_ABOVE};

		assert_int_equal(result.conflicts[i].fork, i);
		assert_int_equal(result.conflicts[i].parent, i);
		assert_int_equal(result.conflicts[i].reason, reasons[i]);
		assert_int_equal(result.fates[i], MERGE_OPEN);
	}
	assert_int_equal(result.fates[3], MERGE_TAKEN);
	merge_clear(&result);
	changes_clear(&fork);
	changes_clear(&parent);
}

/* What goes out of a directory stays in it when its new place is the parent's. */
static void a_directory_stays_for_what_stays_in_it(void **state)
{
	struct changes fork = {0}, parent = {0};
	struct merge result;

	(void)state;
	add(&fork, CHANGE_DELETED, "dir", "", &a_directory);
	add(&fork, CHANGE_RENAMED, "out", "dir/in", &a_file);
	add(&parent, CHANGE_ADDED, "out", "", &a_file);
	assert_int_equal(merge_make(&(struct merge_input){.fork = &fork,
							  .parent = &parent,
							  .choice = MERGE_OURS},
				    &result),
			 0);
	assert_int_equal(result.conflict_count, 1);
	assert_int_equal(result.fates[0], MERGE_GIVEN_UP);
	assert_int_equal(result.fates[1], MERGE_GIVEN_UP);
	merge_clear(&result);
	changes_clear(&fork);
	changes_clear(&parent);
}

static void a_named_directory_that_is_gone_means_all_of_it(void **state)
{
	static const char *const paths[] = {"dir", "dir/file"};
	struct changes fork = {0}, parent = {0};
	struct merge result;

	(void)state;
	add(&fork, CHANGE_DELETED, "dir", "", &a_directory);
	add(&fork, CHANGE_DELETED, "dir/file", "", &a_file);
	add(&parent, CHANGE_MODIFIED, "dir/file", "", &a_file);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(merge_make(&(struct merge_input){.fork = &fork,
								  .parent = &parent,
								  .paths = paths + i,
								  .path_count = 1},
					    &result),
				 0);
		assert_int_equal(result.open_count, 0);
		assert_int_equal(result.taken_count, 2 - i);
		assert_int_equal(result.revert_count, 1);
		merge_clear(&result);
	}
	changes_clear(&fork);
	changes_clear(&parent);
}

static void a_path_without_a_change_is_told(void **state)
{
	static const char *const paths[] = {"mine", "min", "mine-", "."};
	struct changes fork = {0}, parent = {0};
	struct merge result;

	(void)state;
	add(&fork, CHANGE_ADDED, "mine", "", &a_file);
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(merge_make(&(struct merge_input){.fork = &fork,
								  .parent = &parent,
								  .paths = paths + i,
								  .path_count = 1},
					    &result),
				 0);
		if (i == 0 || i == 3) {
			assert_null(result.unmatched);
			assert_int_equal(result.taken_count, 1);
		} else {
			assert_string_equal(result.unmatched, paths[i]);
			assert_int_equal(result.taken_count, 0);
		}
		merge_clear(&result);
	}
	changes_clear(&fork);
}

static void words_become_paths(void **state)
{
	static const struct {
		const char *word, *path;
	} cases[] = {
		{"a", "a"},
		{"./a/", "a"},
		{"/data/a//b/./c", "a/b/c"},
		{"/data", "."},
		{".", "."},
		{"/data/", "."},
		{"..a/b..", "..a/b.."},
		{" ", " "},
		{"data/x", "data/x"},
		{"", NULL},
		{"/etc", NULL},
		{"/database", NULL},
		{"a/../b", NULL},
		{"..", NULL},
		{"/data/..", NULL},
	};
	char path[CHANGE_PATH_MAX + 1], longest[CHANGE_PATH_MAX + 3];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int rc = merge_path(cases[i].word, path);

		assert_int_equal(rc, cases[i].path ? 0 : -22);
		if (cases[i].path) {
			assert_string_equal(path, cases[i].path);
		}
	}
	memset(longest, 'x', sizeof(longest));
	longest[CHANGE_PATH_MAX] = '\0';
	assert_int_equal(merge_path(longest, path), 0);
	longest[CHANGE_PATH_MAX] = 'x';
	longest[CHANGE_PATH_MAX + 1] = '\0';
	assert_int_equal(merge_path(longest, path), -22);
}

static void a_list_has_a_limit(void **state)
{
	static char name[CHANGE_PATH_MAX + 1];
	struct changes list = {0};
	struct change change = {.path = name, .from = name, .old_target = name, .new_target = name};
	int rc = 0;

	(void)state;
	memset(name, 'n', CHANGE_PATH_MAX);
	while (rc == 0) {
		rc = changes_add(&list, &change);
		assert_true(list.bytes <= CHANGES_BYTES_MAX);
	}
	assert_int_equal(rc, -7);
	assert_true(list.count > 1000);
	assert_string_equal(list.items[0].path, name);
	assert_string_equal(list.items[list.count - 1].new_target, name);
	changes_clear(&list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reasons_and_indexes),
		cmocka_unit_test(a_directory_stays_for_what_stays_in_it),
		cmocka_unit_test(a_named_directory_that_is_gone_means_all_of_it),
		cmocka_unit_test(a_path_without_a_change_is_told),
		cmocka_unit_test(words_become_paths),
		cmocka_unit_test(a_list_has_a_limit),
		cmocka_unit_test(merges_as_the_model_does),
		cmocka_unit_test(theirs_is_what_the_fork_has),
		cmocka_unit_test(what_came_behind_a_rename_goes_back_with_it),
		cmocka_unit_test(ours_keeps_the_parent),
		cmocka_unit_test(paths_take_what_they_need),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
