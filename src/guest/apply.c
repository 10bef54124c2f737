/*
 * Theory of operation.
 *
 * What flows in: records that a person or the host has accepted, and an archive that a hostile
 * machine has made. What flows out: /data with these changes and no other. A record says what was
 * shown, so it is what counts: the type, size and link target of an entry must be those of its
 * record, and its mode and owner are taken from there; its attributes are those that are there,
 * unless the record is new or says that they have changed. What a record says was there must be
 * there: else a new mode or owner could come along with a record that shows a new content alone.
 *
 *   1. What is renamed moves into a directory of our own, the deepest first, so that nothing that
 *      stays in the way or goes with it is left.
 *   2. What is deleted, or makes room for another type, is removed, the deepest first. A directory
 *      must be empty then: what was in it has records of its own.
 *   3. In the order of their paths renames get their new places and new directories are made.
 *   4. Files, links and attributes come out of the archive (archive/extract.h).
 *   5. Modes and owners that changed alone.
 *
 * The path of a record is one of the new tree. Until step 3 what lies in a renamed directory is
 * found where that waits. No step follows a link, and none replaces what it does not know.
 *
 * A hard link may name a file of the archive that was not accepted. The archive says of each file
 * how many names it has; one that is left out and has more is kept in the directory of our own
 * until the end.
 */
#include "guest/apply.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "archive/archive.h"
#include "archive/extract.h"
#include "base/array.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "guest/applet.h"
#include "guest/apply_records.h"
#include "guest/below.h"
#include "guest/xattrs.h"

#define STAGE_PREFIX ".box-apply-"
#define STAGE_RANDOM_BYTES 8u
#define STAGE_NAME_BYTES (sizeof(STAGE_PREFIX) + 2 * (size_t)STAGE_RANDOM_BYTES)
/* A name in the stage: a letter and a number. */
#define STAGED_BYTES 24u
/* struct vfs_cap_data of the kernel, in its longest form. */
#define CAPABILITY_BYTES 64u

struct apply {
	int data_fd;
	int stage_fd;
	char stage[STAGE_NAME_BYTES];
	struct apply_records records;
	/* Renames by their new path, into records. */
	struct path_map renames;
	/* Indexes of renames, descending by their old path. */
	size_t *by_from;
	size_t rename_count;
	struct archive_reader *reader;
	/* Numbers of items that are kept for hard links, ascending. */
	uint32_t *kept;
	size_t kept_count;
	size_t kept_capacity;
	/* What the extractor is told. */
	char choice_path[STAGE_NAME_BYTES + STAGED_BYTES];
};

static int fail(const char *path, int rc, const char *why, struct err *err)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	return err_set(err, rc, rc == -ENOSPC || rc == -EDQUOT ? "disk-full" : "apply",
		       "cannot apply the change of %s: %s", archive_quote(path, quoted),
		       why ? why : strerror(-rc));
}

static int no_memory(struct err *err)
{
	return err_set(err, -ENOMEM, "apply-memory",
		       "this machine has too little memory to apply so many changes");
}

static bool has_flag(const struct apply_record *record, enum change_flags flag)
{
	return (record->flags & (uint32_t)flag) != 0;
}

/* The name of a rename, or of a kept file, in the stage. */
static void staged_name(char letter, size_t number, char out[STAGED_BYTES])
{
	snprintf(out, STAGED_BYTES, "%c%zu", letter, number);
}

/* Whether this is what a record says was there. What has two names may have got its new mode and
 * owner by the other one. */
static bool is_old(const struct stat *status, const struct apply_record *record)
{
	const struct change_side *old = &record->old;
	const struct change_side *new = record->new.type ? &record->new : old;
	uint32_t mode = status->st_mode & 07777;

	return change_type_of(status->st_mode) == old->type &&
	       (old->type == CHANGE_TYPE_SYMLINK || mode == old->mode || mode == new->mode) &&
	       (status->st_uid == old->uid || status->st_uid == new->uid) &&
	       (status->st_gid == old->gid || status->st_gid == new->gid) &&
	       (old->type != CHANGE_TYPE_FILE || (uint64_t)status->st_size == old->size);
}

/* Opens what a path lies in and makes sure that what the record says was there is there. */
static int open_parent_of(int root_fd, const char *path, const struct apply_record *record,
			  const char **ret_name)
{
	_cleanup_close_ int fd = below_open_parent(root_fd, path, ret_name);
	struct stat status;

	if (fd < 0) {
		return fd;
	}
	if (fstatat(fd, *ret_name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
		return -errno;
	}
	return is_old(&status, record) ? TAKE_FD(fd) : -ESTALE;
}

/* ---- 1: renames go away ---- */

static int compare_from(const void *a, const void *b, void *data)
{
	const struct apply_record *list = data;

	return -strcmp(list[*(const size_t *)a].from, list[*(const size_t *)b].from);
}

static int collect_renames(struct apply *apply, struct err *err)
{
	const struct apply_records *records = &apply->records;

	apply->by_from = calloc(records->count + 1, sizeof(*apply->by_from));
	if (!apply->by_from) {
		return no_memory(err);
	}
	for (size_t i = 0; i < records->count; i++) {
		if (records->list[i].kind != CHANGE_RENAMED) {
			continue;
		}
		apply->by_from[apply->rename_count++] = i;
		if (path_map_add(&apply->renames, records->list[i].path, i) < 0) {
			return no_memory(err);
		}
	}
	qsort_r(apply->by_from, apply->rename_count, sizeof(*apply->by_from), compare_from,
		records->list);
	return 0;
}

static int stage_renames(struct apply *apply, struct err *err)
{
	for (size_t i = 0; i < apply->rename_count; i++) {
		const struct apply_record *record = &apply->records.list[apply->by_from[i]];
		_cleanup_close_ int parent_fd = -EBADF;
		char staged[STAGED_BYTES];
		const char *name;

		parent_fd = open_parent_of(apply->data_fd, record->from, record, &name);
		if (parent_fd < 0) {
			return fail(record->path, parent_fd,
				    parent_fd == -ENOENT ? "what it was renamed from is not there"
				    : parent_fd == -ESTALE
					    ? "what it was renamed from is another than it says"
					    : NULL,
				    err);
		}
		staged_name('r', apply->by_from[i], staged);
		if (renameat(parent_fd, name, apply->stage_fd, staged) < 0) {
			return fail(record->path, -errno, NULL, err);
		}
	}
	return 0;
}

/* ---- 2: deletions ---- */

/* Where a path of the new tree is while renames wait. Returns false when that is too long. */
static bool waiting_path(const struct apply *apply, const char *path, char out[CHANGE_PATH_MAX + 1])
{
	char staged[STAGED_BYTES];
	size_t size, index;
	int length;

	if (path_map_find_above(&apply->renames, path, true, &size, &index)) {
		staged_name('r', index, staged);
		length = snprintf(out, CHANGE_PATH_MAX + 1, "%s/%s%s", apply->stage, staged,
				  path + size);
	} else {
		length = snprintf(out, CHANGE_PATH_MAX + 1, "%s", path);
	}
	return length <= CHANGE_PATH_MAX;
}

static int delete_one(struct apply *apply, const struct apply_record *record, struct err *err)
{
	_cleanup_close_ int parent_fd = -EBADF;
	char path[CHANGE_PATH_MAX + 1];
	const char *name, *why = NULL;
	bool directory = record->old.type == CHANGE_TYPE_DIRECTORY;
	int rc;

	if (!waiting_path(apply, record->path, path)) {
		return fail(record->path, -ENAMETOOLONG, NULL, err);
	}
	parent_fd = open_parent_of(apply->data_fd, path, record, &name);
	if (parent_fd < 0) {
		why = parent_fd == -ENOENT   ? "what it deletes is not there"
		      : parent_fd == -ESTALE ? "what it deletes is another than it says"
					     : NULL;
		return fail(record->path, parent_fd, why, err);
	}
	if (unlinkat(parent_fd, name, directory ? AT_REMOVEDIR : 0) < 0) {
		rc = -errno;
		why = rc == -ENOTEMPTY ? "it deletes a directory in which something stays" : NULL;
		return fail(record->path, rc, why, err);
	}
	return 0;
}

static int delete_all(struct apply *apply, struct err *err)
{
	int rc = 0;

	for (size_t i = apply->records.count; i > 0 && rc == 0; i--) {
		const struct apply_record *record = &apply->records.list[i - 1];

		if (record->kind == CHANGE_DELETED || has_flag(record, CHANGE_FLAG_TYPE)) {
			rc = delete_one(apply, record, err);
		}
	}
	return rc;
}

/* ---- 3: places ---- */

static bool is_new_directory(const struct apply_record *record)
{
	return record->new.type == CHANGE_TYPE_DIRECTORY &&
	       (record->kind == CHANGE_ADDED || has_flag(record, CHANGE_FLAG_TYPE));
}

/* Puts a rename in its place, or makes a directory whose attributes come later. */
static int place_one(struct apply *apply, size_t index, struct err *err)
{
	const struct apply_record *record = &apply->records.list[index];
	_cleanup_close_ int parent_fd = -EBADF;
	char staged[STAGED_BYTES];
	const char *name;
	int rc = 0;

	if (record->kind != CHANGE_RENAMED && !is_new_directory(record)) {
		return 0;
	}
	parent_fd = below_open_parent(apply->data_fd, record->path, &name);
	if (parent_fd < 0) {
		return fail(record->path, parent_fd, NULL, err);
	}
	if (record->kind == CHANGE_RENAMED) {
		staged_name('r', index, staged);
		rc = renameat2(apply->stage_fd, staged, parent_fd, name, RENAME_NOREPLACE);
	} else {
		rc = mkdirat(parent_fd, name, 0700);
	}
	return rc < 0 ? fail(record->path, -errno,
			     errno == EEXIST ? "something is there already" : NULL, err)
		      : 0;
}

static int place_all(struct apply *apply, struct err *err)
{
	int rc = 0;

	for (size_t i = 0; i < apply->records.count && rc == 0; i++) {
		rc = place_one(apply, i, err);
	}
	return rc;
}

/* ---- 4: the archive ---- */

static int compare_numbers(const void *a, const void *b)
{
	uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

	return left < right ? -1 : left > right;
}

static bool is_kept(const struct apply *apply, uint32_t id)
{
	return apply->kept_count > 0 &&
	       bsearch(&id, apply->kept, apply->kept_count, sizeof(*apply->kept), compare_numbers);
}

static void kept_path(struct apply *apply, uint32_t id)
{
	char staged[STAGED_BYTES];

	staged_name('k', id, staged);
	snprintf(apply->choice_path, sizeof(apply->choice_path), "%s/%s", apply->stage, staged);
}

/* An entry without a record. Only what a later hard link may name is kept for the time being. */
static int leave_out(struct apply *apply, const struct archive_item *item,
		     struct extract_choice *choice, struct err *err)
{
	uint32_t *grown;

	if ((item->type != ARCHIVE_ITEM_FILE && item->type != ARCHIVE_ITEM_SYMLINK) ||
	    item->links < 2) {
		return 0;
	}
	grown = array_reserve(apply->kept, apply->kept_count, &apply->kept_capacity,
			      sizeof(*grown));
	if (!grown) {
		return no_memory(err);
	}
	apply->kept = grown;
	/* Numbers come ascending. */
	apply->kept[apply->kept_count++] = item->id;
	kept_path(apply, item->id);
	choice->path = apply->choice_path;
	return 1;
}

static int fail_entry(const struct apply_record *record, const char *why, struct err *err)
{
	return fail(record->path, -EBADMSG, why, err);
}

/* Whether a file that is there already is what a record says. */
static bool is_as_shown(int fd, const struct stat *status, const struct apply_record *record)
{
	char target[CHANGE_PATH_MAX + 1];
	ssize_t size;

	if (change_type_of(status->st_mode) != record->new.type ||
	    status->st_uid != record->new.uid || status->st_gid != record->new.gid ||
	    (status->st_mode & 07777) != record->new.mode) {
		return false;
	}
	if (!S_ISLNK(status->st_mode)) {
		return (uint64_t)status->st_size == record->new.size;
	}
	size = readlinkat(fd, "", target, sizeof(target));
	return size >= 0 && (size_t)size == strlen(record->target) &&
	       memcmp(target, record->target, (size_t)size) == 0;
}

/*
 * A further name of a file: that file must be what the record says. And it must have come out of
 * this archive: what was left out and not kept is not there, but something of the parent's may have
 * its path.
 */
static int check_link(struct apply *apply, const struct archive_item *item,
		      const struct apply_record *record, struct extract_choice *choice,
		      struct err *err)
{
	const struct apply_record *named = apply_records_find(&apply->records, choice->link);
	bool kept = is_kept(apply, item->link_id);
	_cleanup_close_ int fd = -EBADF;
	struct stat status;

	if (kept) {
		kept_path(apply, item->link_id);
		choice->link = apply->choice_path;
	}
	if (kept || (named && named->has_come)) {
		fd = below_open(apply->data_fd, choice->link, O_PATH);
	}
	if (fd < 0 || fstat(fd, &status) < 0) {
		return fail_entry(record, "the file that it is a name of is not there", err);
	}
	return is_as_shown(fd, &status, record)
		       ? 0
		       : fail_entry(record, "the file that it is a name of is another one", err);
}

/* What the archive has under the path must be what the record says. */
static int check_entry(const struct archive_item *item, const struct apply_record *record,
		       struct err *err)
{
	bool fits = true;

	switch (item->type) {
	case ARCHIVE_ITEM_FILE:
		fits = record->new.type == CHANGE_TYPE_FILE && record->new.size == item->size;
		break;
	case ARCHIVE_ITEM_DIRECTORY:
		fits = record->new.type == CHANGE_TYPE_DIRECTORY;
		break;
	case ARCHIVE_ITEM_SYMLINK:
		fits = record->new.type ==
		       CHANGE_TYPE_SYMLINK &&strcmp(record->target, item->link) == 0;
		break;
	default:
		/* What a hard link leads to is looked at where it is. */
		break;
	}
	if (!record->has_content || record->has_come) {
		return fail_entry(record, "the archive has an entry too many for it", err);
	}
	return fits ? 0 : fail_entry(record, "the archive has something else there", err);
}

/* What was there must be there, and nothing else. */
static int check_place(struct apply *apply, const struct apply_record *record, struct err *err)
{
	_cleanup_close_ int fd = below_open(apply->data_fd, record->path, O_PATH);
	bool is_new = record->kind == CHANGE_ADDED || has_flag(record, CHANGE_FLAG_TYPE);
	struct stat status;

	if (fd < 0 && fd != -ENOENT) {
		return fail(record->path, fd, NULL, err);
	}
	/* A new directory was made by us. */
	if (is_new && record->new.type != CHANGE_TYPE_DIRECTORY) {
		return fd < 0 ? 0 : fail(record->path, -EEXIST, "something is there already", err);
	}
	if (fd < 0 || fstat(fd, &status) < 0) {
		return fail(record->path, -ENOENT, "what it changes is not there", err);
	}
	return (is_new ? change_type_of(status.st_mode) == record->new.type
		       : is_old(&status, record))
		       ? 0
		       : fail(record->path, -ESTALE, "what it changes is another than it says",
			      err);
}

/* Where the record says nothing of attributes, the archive must bring those that are there. A
 * further name of a file has those of its file. */
static int check_xattrs(struct apply *apply, const struct archive_item *item,
			const struct apply_record *record, struct err *err)
{
	bool has_own = item->type == ARCHIVE_ITEM_FILE || item->type == ARCHIVE_ITEM_DIRECTORY;
	_cleanup_close_ int fd = -EBADF;
	int rc;

	if (!has_own || record->kind == CHANGE_ADDED || has_flag(record, CHANGE_FLAG_TYPE) ||
	    has_flag(record, CHANGE_FLAG_XATTRS)) {
		return 0;
	}
	fd = below_open(apply->data_fd, record->path, O_RDONLY | O_NONBLOCK);
	rc = fd < 0 ? fd : xattrs_same(fd, item, false);
	if (rc < 0) {
		return fail(record->path, rc, NULL, err);
	}
	return rc > 0 ? 0 : fail_entry(record, "the archive has other attributes for it", err);
}

/* Attributes of a directory are set anew; those that are gone must go. */
static int clear_xattrs(struct apply *apply, const struct apply_record *record, struct err *err)
{
	_cleanup_close_ int fd = below_open(apply->data_fd, record->path, O_RDONLY | O_DIRECTORY);
	_cleanup_free_ char *names = malloc(XATTR_LIST_MAX);
	ssize_t size;

	if (fd < 0 || !names) {
		return fail(record->path, fd < 0 ? fd : -ENOMEM, NULL, err);
	}
	size = flistxattr(fd, names, XATTR_LIST_MAX);
	for (const char *name = names; size > 0 && name < names + size; name += strlen(name) + 1) {
		if (strncmp(name, "user.", 5) == 0 && fremovexattr(fd, name) < 0) {
			return fail(record->path, -errno, NULL, err);
		}
	}
	return size < 0 && errno != ENOTSUP ? fail(record->path, -errno, NULL, err) : 0;
}

static int choose(void *data, const struct archive_item *item, struct extract_choice *choice,
		  struct err *err)
{
	struct apply *apply = data;
	struct apply_record *record = apply_records_find(&apply->records, item->path);
	int rc;

	if (!record) {
		return leave_out(apply, item, choice, err);
	}
	rc = check_entry(item, record, err);
	if (rc == 0) {
		rc = check_place(apply, record, err);
	}
	if (rc == 0) {
		rc = check_xattrs(apply, item, record, err);
	}
	if (rc == 0 && item->type == ARCHIVE_ITEM_HARDLINK) {
		rc = check_link(apply, item, record, choice, err);
	}
	if (rc == 0 && item->type == ARCHIVE_ITEM_DIRECTORY) {
		rc = clear_xattrs(apply, record, err);
	}
	if (rc < 0) {
		return rc;
	}
	choice->mode = record->new.mode;
	choice->uid = record->new.uid;
	choice->gid = record->new.gid;
	record->has_come = true;
	return 1;
}

static int extract(struct apply *apply, int in_fd, struct err *err)
{
	/* Modes come from the records; this is for file capabilities, and for what is kept. */
	const struct archive_options options = {.keep_setuid = true};
	const struct extract_options how = {
		.owner = EXTRACT_OWNER_ARCHIVE,
		.choose = choose,
		.choose_data = apply,
	};
	struct extract_result result;
	int rc = archive_open_plain_fd(in_fd, &options, &apply->reader, err);

	if (rc == 0) {
		rc = archive_extract(apply->reader, apply->data_fd, &how, &result, err);
	}
	for (size_t i = 0; i < apply->records.count && rc == 0; i++) {
		const struct apply_record *record = &apply->records.list[i];

		if (record->has_content && !record->has_come) {
			rc = fail_entry(record, "the archive has no entry for it", err);
		}
	}
	return rc;
}

/* ---- 5: modes and owners ---- */

static int set_owner(int fd, const char *self, const struct apply_record *record)
{
	char capability[CAPABILITY_BYTES];
	ssize_t size = -1;

	/* The kernel takes it away with the old owner. */
	if (record->new.type == CHANGE_TYPE_FILE) {
		size = getxattr(self, "security.capability", capability, sizeof(capability));
	}
	if (fchownat(fd, "", record->new.uid, record->new.gid,
		     AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0) {
		return -errno;
	}
	return size >= 0 && setxattr(self, "security.capability", capability, (size_t)size, 0) < 0
		       ? -errno
		       : 0;
}

static int set_attributes(struct apply *apply, const struct apply_record *record, struct err *err)
{
	_cleanup_close_ int fd = below_open(apply->data_fd, record->path, O_PATH);
	struct stat status;
	char self[32];
	int rc = 0;

	if (fd < 0 || fstat(fd, &status) < 0) {
		return fail(record->path, fd < 0 ? fd : -errno, NULL, err);
	}
	if (!is_old(&status, record)) {
		return fail(record->path, -ESTALE, "what it changes is another than it says", err);
	}
	/* The file itself, whatever has its path. */
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	if (has_flag(record, CHANGE_FLAG_OWNER)) {
		rc = set_owner(fd, self, record);
	}
	/* A new owner takes setuid bits away, so the mode is set in any case. A link has none. */
	if (rc == 0 && record->new.type != CHANGE_TYPE_SYMLINK &&
	    chmod(self, record->new.mode) < 0) {
		rc = -errno;
	}
	return rc < 0 ? fail(record->path, rc, NULL, err) : 0;
}

static int set_all_attributes(struct apply *apply, struct err *err)
{
	int rc = 0;

	for (size_t i = 0; i < apply->records.count && rc == 0; i++) {
		const struct apply_record *record = &apply->records.list[i];

		if (!record->has_content &&
		    (has_flag(record, CHANGE_FLAG_MODE) || has_flag(record, CHANGE_FLAG_OWNER))) {
			rc = set_attributes(apply, record, err);
		}
	}
	return rc;
}

/* ---- All of it ---- */

static int begin(struct apply *apply, struct err *err)
{
	uint8_t random[STAGE_RANDOM_BYTES];
	size_t at = strlen(STAGE_PREFIX);

	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
		return fail(".", -EIO, NULL, err);
	}
	memcpy(apply->stage, STAGE_PREFIX, at + 1);
	for (size_t i = 0; i < sizeof(random); i++, at += 2) {
		snprintf(apply->stage + at, sizeof(apply->stage) - at, "%02x", random[i]);
	}
	if (mkdirat(apply->data_fd, apply->stage, 0700) < 0) {
		return fail(".", -errno, NULL, err);
	}
	apply->stage_fd = below_open(apply->data_fd, apply->stage, O_RDONLY | O_DIRECTORY);
	return apply->stage_fd < 0 ? fail(".", apply->stage_fd, NULL, err) : 0;
}

static int finish(struct apply *apply, struct err *err)
{
	for (size_t i = 0; i < apply->kept_count; i++) {
		char staged[STAGED_BYTES];

		staged_name('k', apply->kept[i], staged);
		if (unlinkat(apply->stage_fd, staged, 0) < 0) {
			return fail(".", -errno, NULL, err);
		}
	}
	if (unlinkat(apply->data_fd, apply->stage, AT_REMOVEDIR) < 0) {
		return fail(".", -errno, NULL, err);
	}
	/* Nobody sees a failing disk afterwards: the way down of a machine has no place for it. */
	return syncfs(apply->data_fd) < 0 ? fail(".", -errno, NULL, err) : 0;
}

static void apply_free(struct apply *apply)
{
	archive_close(apply->reader);
	close_fd(&apply->stage_fd);
	apply_records_clear(&apply->records);
	path_map_clear(&apply->renames);
	free(apply->by_from);
	free(apply->kept);
	free(apply);
}

int apply_run(int data_fd, int in_fd, struct err *err)
{
	static int (*const steps[])(struct apply * apply, struct err * err) = {
		collect_renames, begin, stage_renames, delete_all, place_all,
	};
	struct apply *apply = calloc(1, sizeof(*apply));
	int rc;

	if (!apply) {
		return no_memory(err);
	}
	apply->data_fd = data_fd;
	apply->stage_fd = -EBADF;
	rc = apply_records_read(in_fd, &apply->records, err);
	for (size_t i = 0; i < ARRAY_SIZE(steps) && rc == 0; i++) {
		rc = steps[i](apply, err);
	}
	if (rc == 0) {
		rc = extract(apply, in_fd, err);
	}
	if (rc == 0) {
		rc = set_all_attributes(apply, err);
	}
	if (rc == 0) {
		rc = finish(apply, err);
	}
	apply_free(apply);
	return rc;
}

static int run(int data_fd, struct err *err)
{
	umask(0);
	return apply_run(data_fd, STDIN_FILENO, err);
}

int apply_main(int argc, char **argv)
{
	return applet_on_data(argc, argv, run);
}
