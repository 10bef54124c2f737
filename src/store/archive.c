/*
 * Archives of /data, and what takes its place.
 *
 *     archive/LABEL.tar.zst        made by a person: a packed tar; LABEL.tar.gz is read as well
 *     archive/undo-TIME/           made by a restore or reset: the chain that was /data before,
 *                                  kept for a day; it costs some links, however large it is
 *     archive/.new-TAG             being made or removed, and locked by whoever makes it
 *
 * A swap of /data first gives the old chain's files second names below archive/, then lets the new
 * chain take its place. Whoever is killed between the two leaves an archive that is /data itself;
 * it is known by the inode of /data's data.qcow2, which is on top of it or, where it was an apply,
 * its last layer, and counts as none. It is removed under the lock of /data alone: without it a
 * swap may be between its two steps, and then the second names are soon the only ones. A freeze
 * removes it first: no file that is an archive's data.qcow2, which may come back to be written to,
 * is ever a layer that others stand on.
 *
 * What may never happen: that /data is neither the old nor the new state, and that an archive under
 * its label is not whole.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/text.h"
#include "spec/spec.h"
#include "store/chain.h"
#include "store/internal.h"

#define ARCHIVE_DIRECTORY "archive"
#define UNDO_TIME "%Y%m%dT%H%M%SZ"
/* Swaps within one second that get names of their own. */
#define UNDO_TRIES 100

_Static_assert(STORE_LABEL_MAX == SPEC_NAME_MAX, "labels are checked as names are");

static const struct kind {
	const char *suffix;
	bool automatic;
} kinds[] = {{".tar.zst", false}, {".tar.gz", false}, {"", true}};

static int fail(int sandbox_fd, int rc, const char *what, struct err *err)
{
	char path[PATH_MAX];

	store_fd_path(sandbox_fd, path);
	return store_fail(err, rc, path, "%s", what);
}

int store_check_label(const char *label, struct err *err)
{
	char quoted[128];
	int rc;

	if (spec_check_name(label, NULL) == 0 &&
	    strncmp(label, STORE_UNDO_PREFIX, strlen(STORE_UNDO_PREFIX)) != 0) {
		return 0;
	}
	text_quote(label, MIN(strlen(label), (size_t)STORE_LABEL_MAX), quoted, sizeof(quoted));
	rc = err_set(err, -EINVAL, "label", "\"%s\" is no label for an archive", quoted);
	err_mend(err,
		 "letters, digits, \".\", \"_\" and \"-\", at most %d, beginning with a "
		 "letter or digit, and not with \"" STORE_UNDO_PREFIX "\"",
		 STORE_LABEL_MAX);
	return rc;
}

/* When an automatic archive was made, as its label says; -1 when it says nothing. */
static int64_t undo_time(const char *label)
{
	struct tm utc = {0};

	if (strncmp(label, STORE_UNDO_PREFIX, strlen(STORE_UNDO_PREFIX)) != 0 ||
	    !strptime(label + strlen(STORE_UNDO_PREFIX), UNDO_TIME, &utc)) {
		return -1;
	}
	return timegm(&utc);
}

/* Takes a name apart. Returns false when it is no archive. */
static bool parse_name(const char *name, struct store_archive *ret_archive)
{
	size_t length = strlen(name);

	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		size_t suffix = strlen(kinds[i].suffix);
		struct store_archive archive = {.automatic = kinds[i].automatic};

		if (length <= suffix || length - suffix > STORE_LABEL_MAX ||
		    strcmp(name + length - suffix, kinds[i].suffix) != 0) {
			continue;
		}
		memcpy(archive.label, name, length - suffix);
		snprintf(archive.path, sizeof(archive.path), ARCHIVE_DIRECTORY "/%s", name);
		archive.created_s = archive.automatic ? undo_time(archive.label) : 0;
		if (archive.automatic
			    ? archive.created_s < 0 || spec_check_name(archive.label, NULL) < 0
			    : store_check_label(archive.label, NULL) < 0) {
			return false;
		}
		archive.expires_s = archive.created_s + STORE_UNDO_SECONDS;
		*ret_archive = archive;
		return true;
	}
	return false;
}

static int is_archive(int dir_fd, const char *name)
{
	struct store_archive unused;

	(void)dir_fd;
	return parse_name(name, &unused);
}

static int is_draft(int dir_fd, const char *name)
{
	(void)dir_fd;
	return strncmp(name, DRAFT_PREFIX, strlen(DRAFT_PREFIX)) == 0;
}

static int is_new_chain(int dir_fd, const char *name)
{
	(void)dir_fd;
	return strncmp(name, NEW_CHAIN_PREFIX, strlen(NEW_CHAIN_PREFIX)) == 0;
}

/* Takes it away under a name that a sweep knows, so that it is whole or gone. */
static int remove_undo(int sandbox_fd, const char *path)
{
	char hidden[sizeof(ARCHIVE_DIRECTORY "/" DRAFT_PREFIX) + STORE_TAG_SIZE],
		tag[STORE_TAG_SIZE];

	store_random_tag(tag);
	snprintf(hidden, sizeof(hidden), ARCHIVE_DIRECTORY "/" DRAFT_PREFIX "%s", tag);
	if (renameat(sandbox_fd, path, sandbox_fd, hidden) < 0) {
		return errno == ENOENT ? 0 : -errno;
	}
	/* What is left of it a sweep removes. */
	remove_tree_at(sandbox_fd, hidden);
	return 0;
}

/*
 * Whether an archive is a second name of /data: one of its files, on top or, of an apply that was
 * killed, below that, is what the next machine writes to. 1 with the file's name, 0, or a negative
 * errno.
 */
static int find_data(int sandbox_fd, const struct store_archive *archive,
		     char ret_name[static STORE_LAYER_NAME_SIZE])
{
	_cleanup_close_ int chain_fd = store_open_directory(sandbox_fd, archive->path);
	struct stat data, file;

	if (chain_fd < 0) {
		return chain_fd == -ENOENT || chain_fd == -ENOTDIR ? 0 : chain_fd;
	}
	if (fstatat(sandbox_fd, DATA_PATH, &data, AT_SYMLINK_NOFOLLOW) < 0) {
		return errno == ENOENT ? 0 : -errno;
	}
	for (size_t i = 0; i < STORE_CHAIN_MAX; i++) {
		/* The base is nobody's to write to, so its place stands for the top. */
		if (i == 0) {
			snprintf(ret_name, STORE_LAYER_NAME_SIZE, CHAIN_TOP);
		} else {
			store_layer_name(i, ret_name);
		}
		if (fstatat(chain_fd, ret_name, &file, AT_SYMLINK_NOFOLLOW) < 0) {
			if (errno != ENOENT) {
				return -errno;
			}
		} else if (file.st_dev == data.st_dev && file.st_ino == data.st_ino) {
			return 1;
		}
	}
	return 0;
}

/* Removes second names of /data, unless somebody has /data and may be about to swap it. */
static void remove_second_name(int sandbox_fd, const struct store_archive *archive,
			       const char *name)
{
	_cleanup_close_ int chain_fd = store_open_directory(sandbox_fd, archive->path);
	_cleanup_close_ int fd =
		chain_fd < 0 ? chain_fd : openat(chain_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
	    store_is_current(fd, sandbox_fd, DATA_PATH) > 0) {
		remove_undo(sandbox_fd, archive->path);
	}
}

/* What would be free without it: layers that others stand on stay. */
static uint64_t undo_bytes(int sandbox_fd, const struct store_archive *archive)
{
	_cleanup_close_ int chain_fd = store_open_directory(sandbox_fd, archive->path);
	uint64_t bytes = 0;
	size_t count = 0;

	if (chain_fd < 0 || store_count_layers(chain_fd, &count) < 0) {
		return 0;
	}
	for (size_t i = 0; i <= count; i++) {
		char name[STORE_LAYER_NAME_SIZE] = CHAIN_TOP;
		struct stat status;

		if (i < count) {
			store_layer_name(i, name);
		}
		if (fstatat(chain_fd, name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
		    status.st_nlink == 1) {
			/* A disk is mostly holes. */
			bytes += (uint64_t)status.st_blocks * 512;
		}
	}
	return bytes;
}

static bool look_at_undo(int sandbox_fd, struct store_archive *archive)
{
	char path[sizeof(archive->path) + sizeof(CHAIN_TOP) + 1], name[STORE_LAYER_NAME_SIZE];
	struct stat top;
	int rc;

	snprintf(path, sizeof(path), "%s/" CHAIN_TOP, archive->path);
	if (fstatat(sandbox_fd, path, &top, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(top.st_mode)) {
		return false;
	}
	rc = find_data(sandbox_fd, archive, name);
	if (rc > 0) {
		remove_second_name(sandbox_fd, archive, name);
	}
	if (rc != 0) {
		return false;
	}
	if (archive->expires_s < time(NULL)) {
		remove_undo(sandbox_fd, archive->path);
		return false;
	}
	archive->size_bytes = undo_bytes(sandbox_fd, archive);
	return true;
}

/* Fills in what the archive itself says. Returns false when it does not count. */
static bool look_at(int sandbox_fd, struct store_archive *archive)
{
	struct stat status;

	if (archive->automatic) {
		return look_at_undo(sandbox_fd, archive);
	}
	if (fstatat(sandbox_fd, archive->path, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISREG(status.st_mode)) {
		return false;
	}
	archive->size_bytes = (uint64_t)status.st_size;
	archive->created_s = status.st_mtim.tv_sec;
	archive->expires_s = 0;
	return true;
}

int store_drop_second_names(int sandbox_fd)
{
	_cleanup_free_ char **names = NULL;
	size_t count = 0;
	int rc = store_read_names(sandbox_fd, ARCHIVE_DIRECTORY, is_archive, &names, &count);

	for (size_t i = 0; rc == 0 && i < count; i++) {
		char name[STORE_LAYER_NAME_SIZE];
		struct store_archive archive;

		if (!parse_name(names[i], &archive) || !archive.automatic) {
			continue;
		}
		rc = find_data(sandbox_fd, &archive, name);
		if (rc > 0) {
			rc = remove_undo(sandbox_fd, archive.path);
		}
	}
	return rc == -ENOENT ? 0 : rc;
}

static int compare_archives(const void *left, const void *right)
{
	const struct store_archive *a = left, *b = right;

	if (a->created_s != b->created_s) {
		return a->created_s < b->created_s ? -1 : 1;
	}
	return strcmp(a->label, b->label);
}

/* The oldest automatic ones go when there are too many. */
static size_t limit_undos(int sandbox_fd, struct store_archive *archives, size_t count)
{
	size_t undos = 0, kept = 0;

	for (size_t i = 0; i < count; i++) {
		undos += archives[i].automatic;
	}
	for (size_t i = 0; i < count; i++) {
		if (archives[i].automatic && undos > STORE_UNDO_MAX) {
			remove_undo(sandbox_fd, archives[i].path);
			undos--;
		} else {
			archives[kept++] = archives[i];
		}
	}
	return kept;
}

int store_list_archives(int sandbox_fd, struct store_archive **ret_archives, size_t *ret_count,
			struct err *err)
{
	_cleanup_free_ struct store_archive *archives = NULL;
	_cleanup_free_ char **names = NULL;
	size_t count = 0, found = 0;
	int rc = store_read_names(sandbox_fd, ARCHIVE_DIRECTORY, is_archive, &names, &count);

	if (rc < 0 && rc != -ENOENT) {
		return fail(sandbox_fd, rc, "cannot list the archives", err);
	}
	archives = calloc(count + 1, sizeof(*archives));
	if (!archives) {
		return err_context(err, -ENOMEM, "archives");
	}
	for (size_t i = 0; i < count; i++) {
		if (parse_name(names[i], &archives[found]) &&
		    look_at(sandbox_fd, &archives[found])) {
			found++;
		}
	}
	qsort(archives, found, sizeof(*archives), compare_archives);
	*ret_count = limit_undos(sandbox_fd, archives, found);
	*ret_archives = TAKE_PTR(archives);
	return 0;
}

static int no_archive(const struct store_archive *archives, size_t count, const char *label,
		      struct err *err)
{
	_cleanup_free_ const char **labels = calloc(count + 1, sizeof(*labels));
	const char *nearest;
	char quoted[256];

	if (!label) {
		err_set(err, -ENOENT, "no-archive", "there is no archive yet");
		err_mend(err, "`box snapshot NAME` makes one");
		return -ENOENT;
	}
	for (size_t i = 0; labels && i < count; i++) {
		labels[i] = archives[i].label;
	}
	nearest = labels ? text_nearest(label, labels) : NULL;
	text_quote(label, MIN(strlen(label), (size_t)STORE_LABEL_MAX), quoted, sizeof(quoted));
	err_set(err, -ENOENT, "no-archive", "there is no archive or file \"%s\"", quoted);
	if (nearest) {
		err_mend(err, "did you mean %s? `box snapshot NAME -l` lists them", nearest);
	} else {
		err_mend(err, "`box snapshot NAME -l` lists what there is");
	}
	return -ENOENT;
}

int store_find_archive(int sandbox_fd, const char *label, struct store_archive *ret_archive,
		       struct err *err)
{
	_cleanup_free_ struct store_archive *archives = NULL;
	size_t count = 0;
	int rc = store_list_archives(sandbox_fd, &archives, &count, err);

	if (rc < 0) {
		return rc;
	}
	/* The newest first. */
	for (size_t i = count; i > 0; i--) {
		if (label ? strcmp(archives[i - 1].label, label) == 0
			  : !archives[i - 1].automatic) {
			*ret_archive = archives[i - 1];
			return 0;
		}
	}
	return no_archive(archives, count, label, err);
}

static int make_directory(int sandbox_fd)
{
	if (mkdirat(sandbox_fd, ARCHIVE_DIRECTORY, 0700) < 0) {
		return errno == EEXIST ? 0 : -errno;
	}
	/* What is put there must not be lost with it. */
	return fsync(sandbox_fd) < 0 ? -errno : 0;
}

static void close_draft(struct store_draft *draft)
{
	close_fd(&draft->fd);
	close_fd(&draft->dir_fd);
}

/* Makes one under a random name and locks it. A sweep may have removed it before it was locked: 64
 * random bits are nobody else's. */
static int try_draft(int sandbox_fd, const char *prefix, bool directory, struct store_draft *draft)
{
	char tag[STORE_TAG_SIZE];
	int fd;

	store_random_tag(tag);
	snprintf(draft->path, sizeof(draft->path), "%s%s", prefix, tag);
	if (directory && mkdirat(sandbox_fd, draft->path, 0700) < 0) {
		draft->path[0] = '\0';
		return -errno;
	}
	fd = directory ? store_open_directory(sandbox_fd, draft->path)
		       : openat(sandbox_fd, draft->path,
				O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 && !directory) {
		draft->path[0] = '\0';
		return -errno;
	}
	if (fd < 0) {
		return fd == -ENOENT ? -EAGAIN : fd;
	}
	*(directory ? &draft->dir_fd : &draft->fd) = fd;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		return -errno;
	}
	return store_is_current(fd, sandbox_fd, draft->path) > 0 ? 0 : -EAGAIN;
}

int store_make_draft(int sandbox_fd, const char *prefix, bool directory,
		     struct store_draft *ret_draft)
{
	struct store_draft draft = STORE_DRAFT_NONE;
	int rc = -EAGAIN;

	for (int i = 0; i < STORE_TRIES_MAX && rc == -EAGAIN; i++) {
		rc = try_draft(sandbox_fd, prefix, directory, &draft);
		if (rc < 0) {
			close_draft(&draft);
		}
	}
	if (rc == 0) {
		*ret_draft = draft;
	} else if (draft.path[0]) {
		remove_tree_at(sandbox_fd, draft.path);
	}
	return rc;
}

void store_drop_draft(int sandbox_fd, struct store_draft *draft)
{
	if (draft->fd >= 0 || draft->dir_fd >= 0) {
		remove_tree_at(sandbox_fd, draft->path);
	}
	close_draft(draft);
}

static int sync_directory(int sandbox_fd, const char *name)
{
	_cleanup_close_ int fd = store_open_directory(sandbox_fd, name);

	return fd < 0 ? fd : fsync(fd) < 0 ? -errno : 0;
}

static int label_is_taken(const char *label, struct err *err)
{
	err_set(err, -EEXIST, "exists", "there is an archive %s already", label);
	err_mend(err, "take another label; `box snapshot NAME -l` lists them");
	return -EEXIST;
}

int store_begin_archive(int sandbox_fd, const char *label, struct store_draft *ret_draft,
			struct err *err)
{
	struct store_archive archive;
	int rc = store_check_label(label, err);

	if (rc < 0) {
		return rc;
	}
	if (store_find_archive(sandbox_fd, label, &archive, NULL) == 0) {
		return label_is_taken(label, err);
	}
	rc = make_directory(sandbox_fd);
	if (rc == 0) {
		rc = store_make_draft(sandbox_fd, ARCHIVE_DIRECTORY "/" DRAFT_PREFIX, false,
				      ret_draft);
	}
	return rc < 0 ? fail(sandbox_fd, rc, "cannot make an archive", err) : 0;
}

int store_commit_archive(int sandbox_fd, const char *label, struct store_draft *draft,
			 struct err *err)
{
	char path[STORE_LABEL_MAX + 32];
	int rc = 0;

	snprintf(path, sizeof(path), ARCHIVE_DIRECTORY "/%s.tar.zst", label);
	if (fsync(draft->fd) < 0 ||
	    renameat2(sandbox_fd, draft->path, sandbox_fd, path, RENAME_NOREPLACE) < 0) {
		rc = -errno;
	}
	if (rc == -EEXIST) {
		return label_is_taken(label, err);
	}
	if (rc == 0) {
		close_draft(draft);
		rc = sync_directory(sandbox_fd, ARCHIVE_DIRECTORY);
	}
	return rc < 0 ? fail(sandbox_fd, rc, "cannot make an archive", err) : 0;
}

/* Begins a chain on the base of the one that is there. */
static int begin_on_base(int sandbox_fd, struct store_draft *ret_draft)
{
	_cleanup_close_ int from_fd = store_open_directory(sandbox_fd, CHAIN_DIRECTORY);
	struct store_draft draft = STORE_DRAFT_NONE;
	int rc = from_fd < 0 ? from_fd : store_begin_chain(sandbox_fd, &draft);

	if (rc == 0) {
		rc = store_link_layers(from_fd, draft.dir_fd, 1);
	}
	if (rc < 0) {
		store_drop_draft(sandbox_fd, &draft);
		return rc;
	}
	*ret_draft = draft;
	return 0;
}

int store_begin_data(int sandbox_fd, uint64_t size_bytes, struct store_draft *ret_draft,
		     struct err *err)
{
	struct store_draft draft = STORE_DRAFT_NONE;
	struct stat base;
	int rc;

	if (fstatat(sandbox_fd, DATA_BASE_PATH, &base, AT_SYMLINK_NOFOLLOW) < 0) {
		return fail(sandbox_fd, -errno, "cannot look at the base of /data", err);
	}
	/* The file system below it begins with that size. */
	if (size_bytes < (uint64_t)base.st_size) {
		rc = store_refuse_shrink((uint64_t)base.st_size, size_bytes, err);
		err_mend(err, "set data_size back to at least what /data had when it was made");
		return rc;
	}
	rc = begin_on_base(sandbox_fd, &draft);
	if (rc < 0) {
		return fail(sandbox_fd, rc, "cannot make a disk for /data", err);
	}
	rc = store_make_top(draft.dir_fd, size_bytes, &draft.fd, err);
	if (rc < 0) {
		store_drop_draft(sandbox_fd, &draft);
		return rc;
	}
	*ret_draft = draft;
	return 0;
}

/* Gives data.qcow2 and everything below it second names. */
static int link_chain(int from_fd, int to_fd)
{
	size_t count = 0;
	int rc = store_count_layers(from_fd, &count);

	if (rc == 0) {
		rc = store_link_layers(from_fd, to_fd, count);
	}
	if (rc == 0 && linkat(from_fd, CHAIN_TOP, to_fd, CHAIN_TOP, 0) < 0) {
		rc = -errno;
	}
	return rc;
}

int store_begin_undo(int sandbox_fd, const struct store_archive *archive,
		     struct store_draft *ret_draft, struct err *err)
{
	_cleanup_close_ int undo_fd = store_open_directory(sandbox_fd, archive->path);
	struct store_draft draft = STORE_DRAFT_NONE;
	int rc = undo_fd < 0 ? undo_fd : store_begin_chain(sandbox_fd, &draft);

	ASSERT(archive->automatic);
	if (rc == 0) {
		rc = link_chain(undo_fd, draft.dir_fd);
	}
	if (rc == 0) {
		/* Who removes an archive takes its name away first. With its name it was whole
		 * while its files were linked; without, a layer may be missing. */
		rc = store_is_current(undo_fd, sandbox_fd, archive->path);
		rc = rc == 0 ? -ENOENT : MIN(rc, 0);
	}
	if (rc == 0) {
		draft.fd = store_open_top(draft.dir_fd, 0);
		rc = draft.fd < 0 ? draft.fd : 0;
	}
	if (rc < 0) {
		store_drop_draft(sandbox_fd, &draft);
		return fail(sandbox_fd, rc, "cannot bring the state back", err);
	}
	*ret_draft = draft;
	return 0;
}

/* Gives a chain that is being made below archive/ its label. */
static int name_undo(int sandbox_fd, const struct store_draft *draft, char *ret_label,
		     char *ret_path, size_t size)
{
	char stamp[32];
	struct tm utc;
	time_t now = time(NULL);

	gmtime_r(&now, &utc);
	strftime(stamp, sizeof(stamp), STORE_UNDO_PREFIX UNDO_TIME, &utc);
	for (int i = 1; i <= UNDO_TRIES; i++) {
		if (i == 1) {
			snprintf(ret_label, STORE_LABEL_MAX + 1, "%s", stamp);
		} else {
			snprintf(ret_label, STORE_LABEL_MAX + 1, "%s-%d", stamp, i);
		}
		snprintf(ret_path, size, ARCHIVE_DIRECTORY "/%s", ret_label);
		if (renameat2(sandbox_fd, draft->path, sandbox_fd, ret_path, RENAME_NOREPLACE) ==
		    0) {
			return sync_directory(sandbox_fd, ARCHIVE_DIRECTORY);
		}
		if (errno != EEXIST) {
			return -errno;
		}
	}
	return -EEXIST;
}

/* Gives the files that are /data their second names. */
static int keep_undo(int sandbox_fd, char *ret_label, char *ret_path, size_t size)
{
	_cleanup_close_ int chain_fd = store_open_directory(sandbox_fd, CHAIN_DIRECTORY);
	struct store_draft draft = STORE_DRAFT_NONE;
	int rc = chain_fd < 0 ? chain_fd
			      : store_make_draft(sandbox_fd, ARCHIVE_DIRECTORY "/" DRAFT_PREFIX,
						 true, &draft);

	if (rc == 0) {
		rc = link_chain(chain_fd, draft.dir_fd);
	}
	if (rc == 0 && fsync(draft.dir_fd) < 0) {
		rc = -errno;
	}
	if (rc == 0) {
		rc = name_undo(sandbox_fd, &draft, ret_label, ret_path, size);
	}
	/* Under its label it is nothing that the draft's name would remove. */
	store_drop_draft(sandbox_fd, &draft);
	return rc;
}

/* How large the disk is that stands on a chain's directory. */
static int top_size(int chain_fd, uint64_t *ret_size_bytes, struct err *err)
{
	_cleanup_close_ int fd = openat(chain_fd, CHAIN_TOP, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? store_fail_chain(chain_fd, -errno, "cannot read a disk of /data", err)
		      : store_disk_size(fd, ret_size_bytes, err);
}

int store_keep_frozen(int sandbox_fd, int chain_fd, size_t count, char *ret_label, struct err *err)
{
	struct store_draft draft = STORE_DRAFT_NONE;
	char path[STORE_LABEL_MAX + 32];
	uint64_t size_bytes;
	int rc = top_size(chain_fd, &size_bytes, err);

	if (rc < 0) {
		return rc;
	}
	rc = make_directory(sandbox_fd);
	if (rc == 0) {
		rc = store_make_draft(sandbox_fd, ARCHIVE_DIRECTORY "/" DRAFT_PREFIX, true, &draft);
	}
	if (rc == 0) {
		rc = store_link_layers(chain_fd, draft.dir_fd, count);
	}
	if (rc < 0) {
		store_drop_draft(sandbox_fd, &draft);
		return fail(sandbox_fd, rc, "cannot keep the state before", err);
	}
	rc = store_make_top(draft.dir_fd, size_bytes, &draft.fd, err);
	if (rc == 0) {
		rc = fsync(draft.dir_fd) < 0
			     ? -errno
			     : name_undo(sandbox_fd, &draft, ret_label, path, sizeof(path));
		rc = rc < 0 ? fail(sandbox_fd, rc, "cannot keep the state before", err) : 0;
	}
	/* Under its label it is nothing that the draft's name would remove. */
	store_drop_draft(sandbox_fd, &draft);
	return rc;
}

void store_drop_frozen(int sandbox_fd, const char *label)
{
	char path[STORE_LABEL_MAX + 32];

	snprintf(path, sizeof(path), ARCHIVE_DIRECTORY "/%s", label);
	(void)remove_undo(sandbox_fd, path);
}

int store_swap_data(int sandbox_fd, struct store_draft *draft, char *ret_undo, struct err *err)
{
	_cleanup_free_ struct store_archive *archives = NULL;
	char path[STORE_LABEL_MAX + 32] = "";
	size_t count;
	int rc = make_directory(sandbox_fd);

	if (rc == 0 && fsync(draft->fd) < 0) {
		rc = -errno;
	}
	if (rc == 0) {
		rc = keep_undo(sandbox_fd, ret_undo, path, sizeof(path));
	}
	if (rc == 0) {
		rc = store_exchange_chain(sandbox_fd, draft);
		if (rc < 0) {
			remove_undo(sandbox_fd, path);
		}
	}
	if (rc < 0) {
		return fail(sandbox_fd, rc, "cannot put the new /data in its place", err);
	}
	/* What was there goes, and its lock is free for the next machine. */
	store_drop_draft(sandbox_fd, draft);
	/* The automatic archive that this came from is /data now, and there may be too many. */
	store_list_archives(sandbox_fd, &archives, &count, NULL);
	return 0;
}

/* Counts what is called so in directory and is locked by nobody; with remove it goes. */
static size_t find_drafts(int sandbox_fd, const char *directory,
			  int (*wanted)(int dir_fd, const char *name), bool remove)
{
	_cleanup_close_ int dir_fd = store_open_directory(sandbox_fd, directory);
	_cleanup_free_ char **names = NULL;
	size_t count = 0, found = 0;

	if (dir_fd < 0 || store_read_names(dir_fd, ".", wanted, &names, &count) < 0) {
		return 0;
	}
	for (size_t i = 0; i < count; i++) {
		_cleanup_close_ int fd =
			openat(dir_fd, names[i], O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

		if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
			continue;
		}
		found++;
		if (remove) {
			remove_tree_at(dir_fd, names[i]);
		}
	}
	return found;
}

size_t store_count_drafts(int sandbox_fd)
{
	return find_drafts(sandbox_fd, ARCHIVE_DIRECTORY, is_draft, false) +
	       find_drafts(sandbox_fd, ".", is_new_chain, false);
}

void store_sweep_archives(int sandbox_fd)
{
	_cleanup_free_ struct store_archive *archives = NULL;
	size_t count;

	find_drafts(sandbox_fd, ARCHIVE_DIRECTORY, is_draft, true);
	find_drafts(sandbox_fd, ".", is_new_chain, true);
	store_list_archives(sandbox_fd, &archives, &count, NULL);
}
