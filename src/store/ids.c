/*
 * BOX_HOME/ids.json: {"version": 1, "slots": {"NAME": {"uid": FIRST, "gid": FIRST}, ...}}.
 *
 * In: the caller's ranges in /etc/subuid and /etc/subgid, and what was recorded before. Out: the
 * first IDs of the slot that belongs to a sandbox. What may never happen: two sandboxes that are
 * there with an ID in common. So the file is changed under the lock of ids.lock alone, replaced
 * whole, and a file that cannot be understood, or that gives an ID twice, is refused and left as it
 * is.
 *
 * A slot is STORE_IDS_PER_SLOT IDs, not 65,536: a machine has a handful of processes on the host,
 * which are one ID each and become no other, and Debian gives a user 65,536 in all. The free slot
 * that is taken is a random one, so that an ID which was freed is not the next to be given, and two
 * homes of one user, which know nothing of each other, hardly ever meet.
 */
#include "store/ids.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/mutant.h"
#include "json/json.h"
#include "spec/spec.h"
#include "store/internal.h"
#include "store/subids.h"

#define IDS_FILE "ids.json"
#define IDS_LOCK "ids.lock"
#define IDS_VERSION 1

/*
 * Of a whole range (SUBIDS_NEEDED) these many at its ends are left alone. Containers of other tools
 * and a base that is being built have files there: system accounts and people's from 0, those of
 * systemd from 61184, nobody at 65534.
 */
#define RANGE_LOW 16384u
#define RANGE_HIGH 8192u

/*
 * Root without a range of its own takes these: the last of those that systemd keeps for containers
 * (524288 to 1879048191), above all that useradd gives to people (SUB_UID_MAX, 600100000).
 */
#define ROOT_FIRST 0x6ff00000u
#define ROOT_COUNT 0x100000u

struct entry {
	char name[SPEC_NAME_MAX + 1];
	struct store_ids ids;
};

/* What ids.json says, in memory. */
struct table {
	struct entry *entries;
	size_t count;
	/* All first IDs, each sorted. */
	uint32_t *uids;
	uint32_t *gids;
};

static void clear_table(struct table *table)
{
	free(table->entries);
	free(table->uids);
	free(table->gids);
	*table = (struct table){0};
}

static int compare_ids(const void *left, const void *right)
{
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

	return (a > b) - (a < b);
}

static bool overlap(const uint32_t *sorted, size_t count)
{
	for (size_t i = 1; i < count; i++) {
		if (sorted[i] - sorted[i - 1] < STORE_IDS_PER_SLOT) {
			return true;
		}
	}
	return false;
}

/* Whether a slot that begins at first would share an ID with one of sorted. */
static bool is_taken(const uint32_t *sorted, size_t count, uint32_t first)
{
	size_t low = 0, high = count;

	/* The first of them that does not end before. */
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (sorted[middle] + STORE_IDS_PER_SLOT <= first) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low < count && sorted[low] < first + STORE_IDS_PER_SLOT;
}

static int refuse_file(const struct store *store, const char *why, struct err *err)
{
	err_set(err, -EBADMSG, "bad-ids", "%s/" IDS_FILE " cannot be understood: %s", store->home,
		why);
	err_mend(err, "stop all machines (`box ls`, `box down`), then remove the file: every "
		      "sandbox gets "
		      "other IDs at its next start");
	return -EBADMSG;
}

static bool read_first(const struct json *json, const char *key, uint32_t *ret_first)
{
	int64_t value;

	if (json_get_integer(json, key, &value) < 0 || value < 1 ||
	    value > (int64_t)UINT32_MAX - STORE_IDS_PER_SLOT) {
		return false;
	}
	*ret_first = (uint32_t)value;
	return true;
}

/* Fills the table from the "slots" member. Returns what is wrong with it, or NULL. */
static const char *read_entries(const struct json *slots, struct table *table)
{
	const struct json *slot;
	void *position = NULL;
	const char *name;

	while (json_next(slots, &position, &name, &slot)) {
		struct entry *entry = &table->entries[table->count];

		if (spec_check_name(name, NULL) < 0) {
			return "a key is no name of a sandbox";
		}
		if (!read_first(slot, "uid", &entry->ids.uid) ||
		    !read_first(slot, "gid", &entry->ids.gid)) {
			return "a slot is without its IDs";
		}
		snprintf(entry->name, sizeof(entry->name), "%s", name);
		table->count++;
	}
	return NULL;
}

/* Fills the sorted lists. Returns 0, -EEXIST when an ID is there twice, or -ENOMEM. */
static int sort_table(struct table *table)
{
	free(table->uids);
	free(table->gids);
	table->uids = calloc(table->count + 1, sizeof(table->uids[0]));
	table->gids = calloc(table->count + 1, sizeof(table->gids[0]));
	if (!table->uids || !table->gids) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < table->count; i++) {
		table->uids[i] = table->entries[i].ids.uid;
		table->gids[i] = table->entries[i].ids.gid;
	}
	qsort(table->uids, table->count, sizeof(table->uids[0]), compare_ids);
	qsort(table->gids, table->count, sizeof(table->gids[0]), compare_ids);
	return overlap(table->uids, table->count) || overlap(table->gids, table->count) ? -EEXIST
											: 0;
}

static int load(const struct store *store, struct table *ret_table, struct err *err)
{
	_cleanup_(clear_table) struct table table = {0};
	_cleanup_(json_freep) struct json *json = NULL;
	_cleanup_free_ char *text = NULL;
	const struct json *slots;
	struct err reason = {0};
	const char *wrong;
	int64_t version;
	size_t size = 0;
	int rc = read_file_at(store->home_fd, IDS_FILE, JSON_TEXT_MAX, &text, &size);

	if (rc == -EFBIG) {
		return refuse_file(store, "it is too large", err);
	}
	if (rc < 0 && rc != -ENOENT) {
		return store_fail(err, rc, store->home, "cannot read %s/" IDS_FILE, store->home);
	}
	rc = rc == -ENOENT ? 0 : json_parse(text, size, &json, &reason);
	if (rc == -EBADMSG) {
		return refuse_file(store, reason.text, err);
	}
	if (rc < 0) {
		return err_context(err, rc, IDS_FILE);
	}
	slots = json_get_child(json, "slots");
	if (json && (json_get_integer(json, "version", &version) < 0 || version != IDS_VERSION ||
		     !slots || json_kind(slots) != JSON_KIND_OBJECT)) {
		return refuse_file(store, "it has no slots, or is of another version", err);
	}
	/* One more, for a sandbox that gets a slot. */
	table.entries = calloc(json_count(slots) + 1, sizeof(table.entries[0]));
	if (!table.entries) {
		return err_context(err, -ENOMEM, IDS_FILE);
	}
	wrong = read_entries(slots, &table);
	if (wrong) {
		return refuse_file(store, wrong, err);
	}
	rc = sort_table(&table);
	if (rc == -EEXIST) {
		return refuse_file(store, "two sandboxes have an ID in common", err);
	}
	if (rc < 0) {
		return err_context(err, rc, IDS_FILE);
	}
	*ret_table = table;
	table = (struct table){0};
	return 0;
}

static int put_entry(struct json *slots, const struct entry *entry)
{
	struct json *slot = json_new_object();

	if (json_set_integer(slot, "uid", entry->ids.uid) < 0 ||
	    json_set_integer(slot, "gid", entry->ids.gid) < 0) {
		json_free(slot);
		return -ENOMEM;
	}
	return json_set_child(slots, entry->name, slot);
}

static int save(const struct store *store, const struct table *table, struct err *err)
{
	_cleanup_(json_freep) struct json *json = json_new_object();
	_cleanup_free_ char *text = NULL;
	struct json *slots = json_new_object();
	int rc = slots ? 0 : -ENOMEM;

	for (size_t i = 0; i < table->count && rc == 0; i++) {
		rc = put_entry(slots, &table->entries[i]);
	}
	if (rc < 0) {
		json_free(slots);
		return err_context(err, rc, IDS_FILE);
	}
	rc = json_set_child(json, "slots", slots);
	if (rc == 0) {
		rc = json_set_integer(json, "version", IDS_VERSION);
	}
	if (rc == 0) {
		rc = json_dump(json, JSON_DUMP_INDENT | JSON_DUMP_NEWLINE, &text);
	}
	if (rc < 0) {
		return err_context(err, rc, IDS_FILE);
	}
	rc = write_file_at(store->home_fd, IDS_FILE, text, strlen(text), 0600);
	return rc < 0 ? store_fail(err, rc, store->home, "cannot write %s/" IDS_FILE, store->home)
		      : 0;
}

static struct entry *find_entry(const struct table *table, const char *name)
{
	for (size_t i = 0; i < table->count; i++) {
		if (strcmp(table->entries[i].name, name) == 0) {
			return &table->entries[i];
		}
	}
	return NULL;
}

static void drop_entry(struct table *table, struct entry *entry)
{
	*entry = table->entries[--table->count];
}

/* Drops the entries of sandboxes that are gone. Returns how many. */
static size_t drop_gone(const struct store *store, struct table *table)
{
	size_t dropped = 0;

	for (size_t i = 0; i < table->count;) {
		char path[sizeof("sandboxes/") + SPEC_NAME_MAX];
		struct stat status;

		snprintf(path, sizeof(path), "sandboxes/%s", table->entries[i].name);
		if (fstatat(store->home_fd, path, &status, AT_SYMLINK_NOFOLLOW) < 0 &&
		    errno == ENOENT) {
			drop_entry(table, &table->entries[i]);
			dropped++;
		} else {
			i++;
		}
	}
	return dropped;
}

/* How many slots a range has, the first at *ret_first. */
static size_t slots_in(const struct subids_range *range, uint32_t *ret_first)
{
	bool whole = range->count >= SUBIDS_NEEDED;

	*ret_first = range->first + (whole ? RANGE_LOW : 0);
	return (range->count - (whole ? RANGE_LOW + RANGE_HIGH : 0)) / STORE_IDS_PER_SLOT;
}

static size_t slots_in_list(const struct subids_list *list)
{
	size_t total = 0;
	uint32_t first;

	for (size_t i = 0; i < list->count; i++) {
		total += slots_in(&list->ranges[i], &first);
	}
	return total;
}

size_t store_ids_slots(const struct subids *ids)
{
	size_t uids = slots_in_list(&ids->uids), gids = slots_in_list(&ids->gids);

	return MIN(MIN(uids, gids), (size_t)STORE_IDS_SLOTS_MAX);
}

/* The first ID of slot index, which is below slots_in_list. */
static uint32_t first_of_slot(const struct subids_list *list, size_t index)
{
	for (size_t i = 0; i < list->count; i++) {
		uint32_t first;
		size_t count = slots_in(&list->ranges[i], &first);

		if (index < count) {
			return first + (uint32_t)index * STORE_IDS_PER_SLOT;
		}
		index -= count;
	}
	ASSERT(false);
}

static bool may_map(const struct subids_list *list, uint32_t first)
{
	for (size_t i = 0; i < list->count; i++) {
		const struct subids_range *range = &list->ranges[i];

		if (first >= range->first && first - range->first < range->count &&
		    range->count - (first - range->first) >= STORE_IDS_PER_SLOT) {
			return true;
		}
	}
	return false;
}

static int find_free(const struct subids *ids, const struct table *table, struct store_ids *ret_ids)
{
	size_t total = store_ids_slots(ids);
	uint64_t start;

	store_random(&start, sizeof(start));
	for (size_t i = 0; i < total; i++) {
		size_t index = (size_t)((start % total + i) % total);
		struct store_ids slot = {first_of_slot(&ids->uids, index),
					 first_of_slot(&ids->gids, index)};

		if (!is_taken(table->uids, table->count, slot.uid) &&
		    !is_taken(table->gids, table->count, slot.gid)) {
			*ret_ids = slot;
			return 0;
		}
	}
	return -ENOSPC;
}

static int lock(const struct store *store, struct err *err)
{
	int fd;

	do {
		fd = store_open_locked(store->home_fd, IDS_LOCK, O_RDWR | O_CREAT, LOCK_EX);
	} while (fd == -EINTR);
	return fd < 0 ? store_fail(err, fd, store->home, "cannot lock %s/" IDS_LOCK, store->home)
		      : fd;
}

/* Puts a free slot for name into the table. 0, -ENOSPC, or another negative errno. */
static int add_slot(const struct store *store, const char *name, const struct subids *subids,
		    struct table *table, struct store_ids *ret_ids)
{
	int rc = find_free(subids, table, ret_ids);

	if (rc == -ENOSPC && drop_gone(store, table) > 0) {
		rc = sort_table(table);
		rc = rc < 0 ? rc : find_free(subids, table, ret_ids);
	}
	if (rc == 0) {
		struct entry *entry = &table->entries[table->count++];

		snprintf(entry->name, sizeof(entry->name), "%s", name);
		entry->ids = *ret_ids;
	}
	return rc;
}

static int refuse_full(const struct subids *subids, struct err *err)
{
	size_t total = store_ids_slots(subids);
	char line[512], user[256];

	subids_user_name(user, sizeof(user));
	subids_usermod(subids, line, sizeof(line));
	if (total == 0) {
		err_set(err, -ENOSPC, "no-ids",
			"user %s has no subordinate IDs, of which isolation: strict gives every "
			"sandbox some of its own",
			user);
	} else {
		err_set(err, -ENOSPC, "no-ids",
			"all %zu slots in the subordinate IDs of user %s are taken", total, user);
	}
	err_mend(err, "`%s`, or put `isolation: standard` into the Boxfile", line);
	return -ENOSPC;
}

int store_ids_take_from(struct store *store, const char *name, const struct subids *subids,
			struct store_ids *ret_ids, struct err *err)
{
	_cleanup_close_ int lock_fd = -EBADF;
	_cleanup_(clear_table) struct table table = {0};
	struct entry *entry;
	int rc = spec_check_name(name, err);

	if (rc < 0) {
		return rc;
	}
	lock_fd = lock(store, err);
	if (lock_fd < 0) {
		return lock_fd;
	}
	rc = load(store, &table, err);
	if (rc < 0) {
		return rc;
	}
	entry = find_entry(&table, name);
	if (entry && may_map(&subids->uids, entry->ids.uid) &&
	    may_map(&subids->gids, entry->ids.gid)) {
		*ret_ids = entry->ids;
		return 0;
	}
	if (entry) {
		drop_entry(&table, entry);
		rc = sort_table(&table);
	}
	rc = rc < 0 ? rc : add_slot(store, name, subids, &table, ret_ids);
	if (rc == -ENOSPC) {
		return refuse_full(subids, err);
	}
	return rc < 0 ? err_context(err, rc, IDS_FILE) : save(store, &table, err);
}

/* The ranges of whoever runs box. */
static int find_ranges(struct subids *ret_subids, struct err *err)
{
	int rc = subids_read(ret_subids, err);

	if (rc == 0 && geteuid() == 0 && store_ids_slots(ret_subids) == 0) {
		const struct subids_list own = {.ranges = {{ROOT_FIRST, ROOT_COUNT}}, .count = 1};

		ret_subids->uids = ret_subids->gids = own;
	}
	return rc;
}

int store_ids_take(struct store *store, const char *name, struct store_ids *ret_ids,
		   struct err *err)
{
	struct subids subids;
	int rc = geteuid() == 0 ? 0 : subids_check_helpers(err);

	if (rc < 0) {
		err_mend(err,
			 "`sudo apt-get install uidmap`, or put `isolation: standard` into the "
			 "Boxfile");
		return rc;
	}
	rc = find_ranges(&subids, err);
	return rc < 0 ? rc : store_ids_take_from(store, name, &subids, ret_ids, err);
}

int store_ids_choose(struct store *store, const char *name, const struct spec *spec, uint32_t which,
		     struct store_ids *ret_ids, struct err *err)
{
	struct store_ids ids = {.uid = STORE_IDS_ROOT_DROPS_TO, .gid = STORE_IDS_ROOT_DROPS_TO};
	bool standard = spec->isolation == SPEC_ISOLATION_STANDARD || MUTANT("ids");
	int rc;

	ASSERT(which < STORE_IDS_PER_SLOT);
	if (standard && geteuid() != 0) {
		*ret_ids = (struct store_ids){.uid = geteuid(), .gid = getegid()};
		return 0;
	}
	rc = standard ? 0 : store_ids_take(store, name, &ids, err);
	if (rc < 0) {
		return rc;
	}
	*ret_ids = (struct store_ids){.uid = ids.uid + which, .gid = ids.gid + which};
	return 0;
}

int store_ids_free(struct store *store, const char *name)
{
	_cleanup_close_ int lock_fd = lock(store, NULL);
	_cleanup_(clear_table) struct table table = {0};
	struct entry *entry;
	int rc = lock_fd < 0 ? lock_fd : load(store, &table, NULL);

	if (rc < 0) {
		return rc;
	}
	entry = find_entry(&table, name);
	if (!entry || MUTANT("slots")) {
		return 0;
	}
	drop_entry(&table, entry);
	return save(store, &table, NULL);
}

int store_ids_sweep(struct store *store)
{
	_cleanup_close_ int lock_fd = lock(store, NULL);
	_cleanup_(clear_table) struct table table = {0};
	int rc = lock_fd < 0 ? lock_fd : load(store, &table, NULL);

	return rc < 0 || drop_gone(store, &table) == 0 ? rc : save(store, &table, NULL);
}

size_t store_ids_gone(struct store *store)
{
	_cleanup_(clear_table) struct table table = {0};

	/* A reader needs no lock: the file is replaced whole. */
	return load(store, &table, NULL) < 0 ? 0 : drop_gone(store, &table);
}

void store_ids_forget(struct store *store)
{
	_cleanup_close_ int lock_fd = lock(store, NULL);

	/* Under the lock, which goes last: whoever waits for it sees that it is gone, and two who
	 * hold different locks never change one file. */
	if (lock_fd >= 0) {
		unlinkat(store->home_fd, IDS_FILE, 0);
		unlinkat(store->home_fd, IDS_LOCK, 0);
	}
}

int store_ids_count(struct store *store, size_t *ret_total, size_t *ret_taken, struct err *err)
{
	_cleanup_(clear_table) struct table table = {0};
	struct subids subids;
	int rc = find_ranges(&subids, err);

	/* A reader needs no lock: the file is replaced whole. */
	if (rc == 0 && store) {
		rc = load(store, &table, err);
	}
	if (rc == 0) {
		*ret_total = store_ids_slots(&subids);
		*ret_taken = table.count;
	}
	return rc;
}
