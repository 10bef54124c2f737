/* src/store: subordinate IDs, and which sandbox has which of them. */
#include "store/ids.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "store_home.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "store/internal.h"
#include "store/store.h"
#include "store/subids.h"

/* What Debian gives a user. */
#define DEBIAN_FIRST 100000u
#define DEBIAN_SLOTS 2560u
#define RACERS 50

/* The same range of users and of groups. */
static struct subids range(uint32_t first, uint32_t count)
{
	struct subids ids = {.free_start = SUBIDS_FIRST};

	ids.uids.ranges[0] = ids.gids.ranges[0] = (struct subids_range){first, count};
	ids.uids.count = ids.gids.count = 1;
	return ids;
}

static struct store_ids take(const char *name, const struct subids *subids)
{
	struct store_ids ids = {0};

	if (store_ids_take_from(&store, name, subids, &ids, &err) != 0) {
		fail_msg("%s", err.text);
	}
	return ids;
}

static void create(const char *name)
{
	assert_int_equal(store_create(&store, name, "cpus: 2\n", 8, &err), 0);
}

static void put_ids(const char *text)
{
	assert_int_equal(write_file_at(store.home_fd, "ids.json", text, strlen(text), 0600), 0);
}

static void files_of_subordinate_ids(void **state)
{
	static const char text[] = "first:100000:65536\n"
				   "me:165536:1000\n"
				   "# nothing\n"
				   "broken:x:y\n"
				   "me:0:70\n"
				   "me:5\n"
				   "me:4294967295:1\n"
				   "me:18446744073709551615:2\n"
				   "77:300000:16\n"
				   "1234:524288:65536\n"
				   "far:589824:70000";
	struct subids_list me = {0}, nobody = {0}, number = {0};
	uint64_t free_start = SUBIDS_FIRST;

	(void)state;
	/* By name and by number; neither root's own ID nor the one that stands for none. */
	subids_scan(text, sizeof(text) - 1, "me", 77, &me, &free_start);
	assert_int_equal(me.count, 2);
	assert_int_equal(me.ranges[0].first, 165536);
	assert_int_equal(me.ranges[0].count, 1000);
	assert_int_equal(me.ranges[1].first, 300000);
	assert_int_equal(me.ranges[1].count, 16);
	/* 589824 + 70000 ends in the third slot behind. */
	assert_int_equal(free_start, 720896);
	subids_scan(text, sizeof(text) - 1, "someone", 1234, &number, &free_start);
	assert_int_equal(number.count, 1);
	assert_int_equal(number.ranges[0].count, 65536);
	free_start = SUBIDS_FIRST;
	subids_scan("", 0, "first", 5, &nobody, &free_start);
	assert_int_equal(nobody.count, 0);
	assert_int_equal(free_start, SUBIDS_FIRST);
}

static void too_many_ranges(void **state)
{
	char text[SUBIDS_RANGES_MAX * 2 * 24];
	struct subids_list list = {0};
	uint64_t free_start = SUBIDS_FIRST;
	size_t length = 0;

	(void)state;
	for (unsigned i = 0; i < 2 * SUBIDS_RANGES_MAX; i++) {
		length += (size_t)snprintf(text + length, sizeof(text) - length, "me:%u:16\n",
					   100000 + 16 * i);
	}
	subids_scan(text, length, "me", 7, &list, &free_start);
	assert_int_equal(list.count, SUBIDS_RANGES_MAX);
}

static void how_many_slots(void **state)
{
	struct subids ids = range(DEBIAN_FIRST, 65536);

	(void)state;
	assert_int_equal(store_ids_slots(&ids), DEBIAN_SLOTS);
	/* A small range is used whole, and a slot is in one range. */
	ids = range(1000000, 100);
	assert_int_equal(store_ids_slots(&ids), 6);
	ids = range(1000000, 15);
	assert_int_equal(store_ids_slots(&ids), 0);
	ids = range(1, UINT32_MAX - 1);
	assert_int_equal(store_ids_slots(&ids), STORE_IDS_SLOTS_MAX);
	/* As many as both files have. */
	ids = range(1000000, 64);
	ids.gids.count = 0;
	assert_int_equal(store_ids_slots(&ids), 0);
	ids.gids.ranges[0] = (struct subids_range){2000000, 20};
	ids.gids.ranges[1] = (struct subids_range){3000000, 40};
	ids.gids.count = 2;
	assert_int_equal(store_ids_slots(&ids), 3);
}

static void a_slot_stays(void **state)
{
	struct subids ids = range(DEBIAN_FIRST, 65536);
	struct store_ids first = take("web", &ids), other = take("other", &ids);
	struct store_ids again = take("web", &ids);
	struct stat status;

	(void)state;
	assert_memory_equal(&first, &again, sizeof(first));
	assert_true(first.uid != other.uid && first.gid != other.gid);
	/* Where a base that is being built, or another tool, has no files. */
	assert_true(first.uid >= DEBIAN_FIRST + 16384);
	assert_true(first.uid + STORE_IDS_PER_SLOT <= DEBIAN_FIRST + 65536 - 8192);
	assert_int_equal((first.uid - DEBIAN_FIRST) % STORE_IDS_PER_SLOT, 0);
	assert_int_equal(fstatat(store.home_fd, "ids.json", &status, 0), 0);
	assert_int_equal(status.st_mode & 07777, 0600);
}

static void ranges_of_users_and_groups_differ(void **state)
{
	struct subids ids = range(1000000, 16);
	struct store_ids slot;

	(void)state;
	ids.gids.ranges[0].first = 2000000;
	slot = take("web", &ids);
	assert_int_equal(slot.uid, 1000000);
	assert_int_equal(slot.gid, 2000000);
}

/* usermod --del-subuids took the range away, or another user had it. */
static void a_slot_that_may_not_be_mapped_any_more(void **state)
{
	struct subids old = range(1000000, 16), new = range(2000000, 16);

	(void)state;
	assert_int_equal(take("web", &old).uid, 1000000);
	assert_int_equal(take("web", &new).uid, 2000000);
	assert_int_equal(take("web", &new).uid, 2000000);
	/* Only a part of it is left. */
	new.uids.ranges[0].count = 15;
	assert_int_equal(store_ids_take_from(&store, "web", &new, &(struct store_ids){0}, &err),
			 -ENOSPC);
}

static void full(void **state)
{
	struct subids ids = range(1000000, 48);
	struct store_ids slot = {7, 7};

	(void)state;
	ids.free_start = 655360;
	create("a");
	create("b");
	create("c");
	take("a", &ids);
	take("b", &ids);
	take("c", &ids);
	assert_int_equal(store_ids_take_from(&store, "d", &ids, &slot, &err), -ENOSPC);
	assert_string_equal(err.code, "no-ids");
	assert_non_null(strstr(err.text, "all 3 slots"));
	assert_non_null(strstr(err.mend, "`sudo usermod --add-subuids 655360-720895 "
					 "--add-subgids 655360-720895 "));
	assert_non_null(strstr(err.mend, "`isolation: standard`"));
	assert_int_equal(slot.uid, 7);
	/* Whoever has one keeps it. */
	assert_true(take("a", &ids).uid >= 1000000);
	/* A destroyed one makes room, and so does one that somebody removed by hand. */
	slot = take("b", &ids);
	assert_int_equal(store_destroy(&store, "b", false, NULL, &err), 0);
	create("d");
	assert_int_equal(take("d", &ids).uid, slot.uid);
	slot = take("c", &ids);
	assert_int_equal(remove_tree_at(store.home_fd, "sandboxes/c"), 0);
	create("e");
	assert_int_equal(take("e", &ids).uid, slot.uid);
	/* No IDs at all. */
	ids.uids.count = 0;
	assert_int_equal(store_ids_take_from(&store, "f", &ids, &slot, &err), -ENOSPC);
	assert_non_null(strstr(err.text, "has no subordinate IDs"));
}

static void freed(void **state)
{
	struct subids ids = range(1000000, 16);
	size_t total, taken;

	(void)state;
	create("a");
	take("a", &ids);
	assert_int_equal(store_ids_count(&store, &total, &taken, &err), 0);
	assert_int_equal(taken, 1);
	assert_int_equal(store_ids_free(&store, "nobody"), 0);
	assert_int_equal(store_ids_free(&store, "a"), 0);
	assert_int_equal(store_ids_free(&store, "a"), 0);
	assert_int_equal(store_ids_count(&store, &total, &taken, &err), 0);
	assert_int_equal(taken, 0);
	/* The sweep leaves those that are there. */
	take("a", &ids);
	assert_int_equal(store_sweep(&store), 0);
	assert_int_equal(store_ids_count(&store, &total, &taken, &err), 0);
	assert_int_equal(taken, 1);
	assert_int_equal(remove_tree_at(store.home_fd, "sandboxes/a"), 0);
	assert_int_equal(store_sweep(&store), 0);
	assert_int_equal(store_ids_count(&store, &total, &taken, &err), 0);
	assert_int_equal(taken, 0);
}

/* Each is refused and left as it is, whatever is asked. */
static void files_that_are_refused(void **state)
{
	static const char *const texts[] = {
		"",
		"{",
		"[]",
		"{}",
		"{\"version\": 1}",
		"{\"version\": 2, \"slots\": {}}",
		"{\"version\": \"1\", \"slots\": {}}",
		"{\"version\": 1, \"slots\": []}",
		"{\"version\": 1, \"slots\": {\"a\": 5}}",
		"{\"version\": 1, \"slots\": {\"a\": {\"uid\": 1000000}}}",
		"{\"version\": 1, \"slots\": {\"a\": {\"uid\": 0, \"gid\": 1000000}}}",
		"{\"version\": 1, \"slots\": {\"a\": {\"uid\": -16, \"gid\": 1000000}}}",
		"{\"version\": 1, \"slots\": {\"a\": {\"uid\": 1000000, \"gid\": 4294967290}}}",
		"{\"version\": 1, \"slots\": {\"a\": {\"uid\": 1e6, \"gid\": 1000000}}}",
		"{\"version\": 1, \"slots\": {\"../a\": {\"uid\": 1000000, \"gid\": 1000000}}}",
		"{\"version\": 1, \"slots\": {\"\": {\"uid\": 1000000, \"gid\": 1000000}}}",
		"{\"version\": 1, \"slots\": {\"a\": {\"uid\": 1000000, \"gid\": 1000000}, "
		"\"b\": {\"uid\": 1000000, \"gid\": 1000016}}}",
		"{\"version\": 1, \"slots\": {\"a\": {\"uid\": 1000000, \"gid\": 1000000}, "
		"\"b\": {\"uid\": 1000016, \"gid\": 1000015}}}",
		"{\"version\": 1, \"slots\": {\"a\": {\"uid\": 1000000, \"gid\": 1000000}, "
		"\"a\": {\"uid\": 1000016, \"gid\": 1000016}}}",
	};
	struct subids ids = range(1000000, 48);

	(void)state;
	create("c");
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		_cleanup_free_ char *left = NULL;
		struct store_ids slot = {7, 7};
		size_t size, total, taken;

		put_ids(texts[i]);
		memset(&err, 0, sizeof(err));
		assert_int_equal(store_ids_take_from(&store, "c", &ids, &slot, &err), -EBADMSG);
		assert_string_equal(err.code, "bad-ids");
		assert_non_null(strstr(err.text, "ids.json"));
		assert_true(err.mend[0] != '\0');
		assert_int_equal(slot.uid, 7);
		assert_int_equal(store_ids_free(&store, "c"), -EBADMSG);
		assert_int_equal(store_ids_sweep(&store), -EBADMSG);
		assert_int_equal(store_ids_count(&store, &total, &taken, &err), -EBADMSG);
		assert_int_equal(read_file_at(store.home_fd, "ids.json", 4096, &left, &size), 0);
		assert_string_equal(left, texts[i]);
	}
	/* It is in nobody's way who wants the sandbox gone. */
	assert_int_equal(store_destroy(&store, "c", true, NULL, &err), 0);
}

static void odd_files(void **state)
{
	struct subids ids = range(1000000, 48);
	struct store_ids slot;

	(void)state;
	/* A neighbour that is not aligned takes the two slots that it touches. */
	put_ids("{\"version\": 1, \"slots\": {\"a\": {\"uid\": 1000008, \"gid\": 5}}, \"more\": "
		"1}");
	create("a");
	create("c");
	assert_int_equal(take("c", &ids).uid, 1000032);
	assert_int_equal(store_ids_take_from(&store, "d", &ids, &slot, &err), -ENOSPC);
	/* A link is not followed out of the home when the file is replaced. */
	assert_int_equal(unlinkat(store.home_fd, "ids.lock", 0), 0);
	assert_int_equal(symlinkat("/etc/passwd", store.home_fd, "ids.lock"), 0);
	assert_int_equal(store_ids_take_from(&store, "c", &ids, &slot, &err), -ELOOP);
	assert_int_equal(store_ids_take_from(&store, "../c", &ids, &slot, &err), -EINVAL);
}

static void racer(unsigned number, int go_fd, int result_fd, const struct subids *ids)
{
	struct store own = {.home_fd = -EBADF};
	struct store_ids slot;
	char name[32], byte;

	snprintf(name, sizeof(name), "racer-%u", number);
	/* All at once, when the other end is closed. */
	(void)read_full(go_fd, &byte, 1);
	if (store_open(false, &own, NULL) < 0 ||
	    store_create(&own, name, "cpus: 2\n", 8, NULL) < 0) {
		_exit(2);
	}
	if (store_ids_take_from(&own, name, ids, &slot, NULL) < 0) {
		_exit(3);
	}
	/* In one piece, for it is smaller than PIPE_BUF. */
	_exit(write_full(result_fd, &slot, sizeof(slot)) == 0 ? 0 : 4);
}

/* There are just as many slots. What each was told counts, not what the file says in the end. */
static void race(uint32_t first)
{
	struct subids ids = range(first, RACERS * STORE_IDS_PER_SLOT);
	bool seen[RACERS] = {false};
	pid_t pids[RACERS];
	int go[2], results[2];

	assert_int_equal(pipe2(go, O_CLOEXEC), 0);
	assert_int_equal(pipe2(results, O_CLOEXEC), 0);
	for (unsigned i = 0; i < RACERS; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0) {
			close(go[1]);
			racer(first + i, go[0], results[1], &ids);
		}
	}
	close(go[0]);
	close(go[1]);
	close(results[1]);
	for (unsigned i = 0; i < RACERS; i++) {
		struct store_ids slot;
		unsigned index;

		assert_int_equal(read_full(results[0], &slot, sizeof(slot)), sizeof(slot));
		index = (slot.uid - first) / STORE_IDS_PER_SLOT;
		assert_true(index < RACERS && !seen[index]);
		assert_int_equal(slot.gid, slot.uid);
		seen[index] = true;
	}
	close(results[0]);
	for (unsigned i = 0; i < RACERS; i++) {
		int status;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
}

/* A race that is lost every other time is lost in one of these. */
static void fifty_at_once(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 5; i++) {
		race(1000000 + i * 65536);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_of_subordinate_ids),
		cmocka_unit_test(too_many_ranges),
		cmocka_unit_test(how_many_slots),
		cmocka_unit_test_setup_teardown(a_slot_stays, home_set_up, home_tear_down),
		cmocka_unit_test_setup_teardown(ranges_of_users_and_groups_differ, home_set_up,
						home_tear_down),
		cmocka_unit_test_setup_teardown(a_slot_that_may_not_be_mapped_any_more, home_set_up,
						home_tear_down),
		cmocka_unit_test_setup_teardown(full, home_set_up, home_tear_down),
		cmocka_unit_test_setup_teardown(freed, home_set_up, home_tear_down),
		cmocka_unit_test_setup_teardown(files_that_are_refused, home_set_up,
						home_tear_down),
		cmocka_unit_test_setup_teardown(odd_files, home_set_up, home_tear_down),
		cmocka_unit_test_setup_teardown(fifty_at_once, home_set_up, home_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
