/*
 * Theory of operation.
 *
 * What flows in: items of a checked archive (archive.h): relative plain names, parents before what
 * is in them. What flows out: files below one directory, which others may change at the same time.
 *
 * Every item is made through a descriptor of the directory that it goes into. That descriptor is
 * found from the top by one openat(2) for each component, each with O_DIRECTORY and O_NOFOLLOW: a
 * link is never followed, whenever it came there, and since there is no ".." no step leads out.
 * The last one found is kept, since entries come in the order of their directories.
 *
 * A file or link is made under a temporary name, with its data, attributes and times, and renamed
 * when it is complete; rename(2) replaces a link instead of following it. There is never more than
 * one temporary name, and it is removed on every way out but a killed process.
 *
 * Directories get their modes and times at the end, the deepest first: a directory may forbid
 * writing, and what is made in it changes its time.
 */
#include "archive/extract.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/array.h"
#include "base/check.h"
#include "base/cleanup.h"

/* Two random names that are taken are an accident, so many are not. */
#define TEMPORARY_TRIES 16
#define TEMPORARY_LETTERS 6
/* The name of the top may be longer than the one in the archive. */
#define PATH_BYTES (ARCHIVE_NAME_MAX + ARCHIVE_COMPONENT_MAX + 2)

/* What a directory is to become at the end. */
struct directory {
	uint32_t id;
	/* Nobody said anything about it. */
	bool implied;
	uint32_t mode;
	uint32_t uid;
	uint32_t gid;
	uint32_t mtime_ns;
	int64_t mtime_s;
};

struct extractor {
	struct archive_reader *reader;
	const struct extract_options *options;
	struct extract_result result;
	int dir_fd;
	/* The directory of the current item and its path below dir_fd. */
	int parent_fd;
	char parent[PATH_BYTES];
	/* The current item below dir_fd; its last component is name. */
	char path[PATH_BYTES];
	const char *name;
	struct extract_choice choice;
	/* Of a hard link the file that it names, below dir_fd. */
	char link[PATH_BYTES];
	/* In parent_fd, or empty. */
	char temporary[sizeof(EXTRACT_TEMPORARY) + TEMPORARY_LETTERS];
	/* The only name that may lie in the root of an archive with one top; 0: none yet. */
	uint32_t top;
	/* By ascending number. */
	struct directory *directories;
	size_t directory_count;
	size_t directory_capacity;
};

static int fail(struct extractor *extractor, int rc, struct err *err)
{
	char quoted[ARCHIVE_QUOTED_MAX];
	const char *why = rc == -EISDIR	   ? "a directory is in the way"
			  : rc == -ENOTDIR ? "something that is no directory is in the way"
			  : rc == -ELOOP   ? "a link is in the way"
					   : strerror(-rc);

	return err_set(err, rc, rc == -ENOSPC || rc == -EDQUOT ? "disk-full" : "copy-write",
		       "cannot write %s: %s",
		       archive_quote(extractor->path[0] ? extractor->path : ".", quoted), why);
}

static int refuse(struct err *err, const char *why)
{
	return err_set(err, -EBADMSG, "archive-refused", "archive: %s", why);
}

/*
 * Writes the path of item id below dir_fd: "" for dir_fd itself. Names are put down from the end.
 */
static int path_of(struct extractor *extractor, uint32_t id, char *ret_path)
{
	const struct extract_options *options = extractor->options;
	char path[PATH_BYTES];
	size_t at = sizeof(path) - 1;

	path[at] = '\0';
	for (bool last = false; !last;) {
		enum archive_type type;
		uint32_t parent;
		const char *name = archive_name(extractor->reader, id, &parent, &type);
		size_t size;

		last = id == 0;
		if (options->name && (options->contents ? id == 0 : parent == 0)) {
			name = options->name;
			last = true;
		}
		size = strlen(name);
		if (size == 0) {
			break;
		}
		if (size + 1 > at) {
			return -ENAMETOOLONG;
		}
		if (path[at] != '\0') {
			path[--at] = '/';
		}
		at -= size;
		memcpy(path + at, name, size);
		id = parent;
	}
	memcpy(ret_path, path + at, sizeof(path) - at);
	return 0;
}

/* One component down, never through a link. Returns a descriptor or a negative errno. */
static int step_down(int dir_fd, const char *name)
{
	int fd = openat(dir_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/* Finds the directory that path (size bytes of it) leads to. */
static int find_directory(struct extractor *extractor, const char *path, size_t size, int *ret_fd)
{
	_cleanup_close_ int fd = step_down(extractor->dir_fd, ".");
	char part[ARCHIVE_COMPONENT_MAX + 1];

	while (fd >= 0 && size > 0) {
		const char *slash = memchr(path, '/', size);
		size_t length = slash ? (size_t)(slash - path) : size;
		int next;

		ASSERT(length > 0 && length < sizeof(part));
		memcpy(part, path, length);
		part[length] = '\0';
		next = step_down(fd, part);
		close(fd);
		fd = next;
		length += slash ? 1 : 0;
		path += length;
		size -= length;
	}
	if (fd < 0) {
		return fd;
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* Splits extractor->path and opens what the last component lies in. */
static int enter_parent(struct extractor *extractor)
{
	char *slash = strrchr(extractor->path, '/');
	size_t size = slash ? (size_t)(slash - extractor->path) : 0;
	int rc;

	extractor->name = slash ? slash + 1 : extractor->path;
	if (extractor->parent_fd >= 0 && strlen(extractor->parent) == size &&
	    memcmp(extractor->parent, extractor->path, size) == 0) {
		return 0;
	}
	close_fd(&extractor->parent_fd);
	rc = find_directory(extractor, extractor->path, size, &extractor->parent_fd);
	if (rc == 0) {
		memcpy(extractor->parent, extractor->path, size);
		extractor->parent[size] = '\0';
	}
	return rc;
}

/* Sets path, name and parent_fd for an item. Returns 0 or a failure with err filled. */
static int locate(struct extractor *extractor, const struct archive_item *item, struct err *err)
{
	const struct extract_options *options = extractor->options;
	int rc;

	if (options->name && !options->contents) {
		if (item->id == 0) {
			return refuse(err, "it holds a whole tree instead of one name");
		}
		if (item->parent_id == 0 && extractor->top != 0 && extractor->top != item->id) {
			return refuse(err, "it holds more than the one name that was asked for");
		}
		extractor->top = item->parent_id == 0 ? item->id : extractor->top;
	}
	if (extractor->choice.path) {
		rc = snprintf(extractor->path, PATH_BYTES, "%s", extractor->choice.path) <
				     PATH_BYTES
			     ? 0
			     : -ENAMETOOLONG;
	} else {
		rc = path_of(extractor, item->id, extractor->path);
	}
	if (rc == 0 && extractor->path[0]) {
		rc = enter_parent(extractor);
	}
	return rc < 0 ? fail(extractor, rc, err) : 0;
}

/* Puts a name that nothing has into extractor->temporary; make is tried until it takes it. */
static int make_temporary(struct extractor *extractor,
			  int (*make)(int dir_fd, const char *name, const void *data),
			  const void *data)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789__";
	char *tail = extractor->temporary + strlen(EXTRACT_TEMPORARY);
	int rc = -EEXIST;

	for (int i = 0; i < TEMPORARY_TRIES && rc == -EEXIST; i++) {
		uint8_t random[TEMPORARY_LETTERS];

		if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
			return -EIO;
		}
		memcpy(extractor->temporary, EXTRACT_TEMPORARY, strlen(EXTRACT_TEMPORARY));
		for (size_t k = 0; k < sizeof(random); k++) {
			tail[k] = letters[random[k] % 64];
		}
		tail[TEMPORARY_LETTERS] = '\0';
		rc = make(extractor->parent_fd, extractor->temporary, data);
	}
	if (rc < 0) {
		extractor->temporary[0] = '\0';
	}
	return rc;
}

static void drop_temporary(struct extractor *extractor)
{
	if (extractor->temporary[0]) {
		unlinkat(extractor->parent_fd, extractor->temporary, 0);
		extractor->temporary[0] = '\0';
	}
}

/* Gives what is complete its name. */
static int commit(struct extractor *extractor)
{
	if (renameat(extractor->parent_fd, extractor->temporary, extractor->parent_fd,
		     extractor->name) < 0) {
		struct stat status;
		int rc = -errno;

		/* Landlock calls it a lack of rights. */
		return fstatat(extractor->parent_fd, extractor->name, &status,
			       AT_SYMLINK_NOFOLLOW) == 0 &&
				       S_ISDIR(status.st_mode)
			       ? -EISDIR
			       : rc;
	}
	/* rename(2) does nothing at all when both are names of one file. */
	drop_temporary(extractor);
	return 0;
}

static int make_file(int dir_fd, const char *name, const void *data)
{
	int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

	(void)data;
	return fd < 0 ? -errno : fd;
}

static int write_at(int fd, const char *data, size_t size, uint64_t offset)
{
	while (size > 0) {
		ssize_t written = pwrite(fd, data, size, (off_t)offset);

		if (written < 0 && errno == EINTR) {
			continue;
		}
		if (written < 0) {
			return -errno;
		}
		data += written;
		size -= (size_t)written;
		offset += (uint64_t)written;
	}
	return 0;
}

/* What the file system cannot keep is left out; what it has no room for is an error. */
static int set_xattrs(int fd, const struct archive_item *item)
{
	for (size_t i = 0; i < item->xattr_count; i++) {
		const struct archive_xattr *xattr = &item->xattrs[i];

		if (fsetxattr(fd, xattr->name, xattr->value, xattr->size, 0) < 0 &&
		    errno != ENOTSUP && errno != EPERM) {
			return -errno;
		}
	}
	return 0;
}

static struct timespec time_of(int64_t seconds, uint32_t ns)
{
	return (struct timespec){.tv_sec = seconds, .tv_nsec = ns};
}

/* Before modes and attributes: a new owner takes setuid bits and file capabilities away. */
static int set_owner(const struct extractor *extractor, int dir_fd, const char *name, uint32_t uid,
		     uint32_t gid)
{
	const struct extract_options *options = extractor->options;
	bool given = options->owner == EXTRACT_OWNER_GIVEN;

	if (options->owner == EXTRACT_OWNER_CALLER) {
		return 0;
	}
	return fchownat(dir_fd, name, given ? options->uid : uid, given ? options->gid : gid,
			AT_SYMLINK_NOFOLLOW | (name[0] ? 0 : AT_EMPTY_PATH)) < 0
		       ? -errno
		       : 0;
}

static int set_attributes(int fd, uint32_t mode, int64_t mtime_s, uint32_t mtime_ns)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, time_of(mtime_s, mtime_ns)};

	return fchmod(fd, mode) < 0 || futimens(fd, times) < 0 ? -errno : 0;
}

/* Copies the data of the current item. What is a hole in the archive is one in the file. */
static int fill_file(struct extractor *extractor, int fd, const struct archive_item *item,
		     struct err *err)
{
	uint64_t end = 0, offset;
	const void *data;
	size_t size;
	int rc;

	while ((rc = archive_data(extractor->reader, &data, &size, &offset, err)) > 0) {
		rc = write_at(fd, data, size, offset);
		if (rc < 0) {
			return fail(extractor, rc, err);
		}
		end = offset + size;
		extractor->result.bytes += size;
	}
	if (rc < 0) {
		return rc;
	}
	if (end < item->size && ftruncate(fd, (off_t)item->size) < 0) {
		return fail(extractor, -errno, err);
	}
	return 0;
}

static int extract_file(struct extractor *extractor, const struct archive_item *item,
			struct err *err)
{
	_cleanup_close_ int fd = make_temporary(extractor, make_file, NULL);
	int rc;

	if (fd < 0) {
		return fail(extractor, fd, err);
	}
	rc = fill_file(extractor, fd, item, err);
	if (rc < 0) {
		return rc;
	}
	rc = set_owner(extractor, fd, "", extractor->choice.uid, extractor->choice.gid);
	if (rc == 0) {
		rc = set_xattrs(fd, item);
	}
	if (rc == 0) {
		rc = set_attributes(fd, extractor->choice.mode, item->mtime_s, item->mtime_ns);
	}
	if (rc == 0) {
		rc = commit(extractor);
	}
	return rc < 0 ? fail(extractor, rc, err) : 0;
}

static int make_symlink(int dir_fd, const char *name, const void *data)
{
	return symlinkat(data, dir_fd, name) < 0 ? -errno : 0;
}

static int extract_symlink(struct extractor *extractor, const struct archive_item *item,
			   struct err *err)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
					  time_of(item->mtime_s, item->mtime_ns)};
	int rc = make_temporary(extractor, make_symlink, item->link);

	if (rc == 0) {
		rc = set_owner(extractor, extractor->parent_fd, extractor->temporary,
			       extractor->choice.uid, extractor->choice.gid);
	}
	if (rc == 0 &&
	    utimensat(extractor->parent_fd, extractor->temporary, times, AT_SYMLINK_NOFOLLOW) < 0) {
		rc = -errno;
	}
	if (rc == 0) {
		rc = commit(extractor);
	}
	return rc < 0 ? fail(extractor, rc, err) : 0;
}

struct link_source {
	int dir_fd;
	const char *name;
};

/* Without AT_SYMLINK_FOLLOW a link that came there meanwhile is linked itself. */
static int make_hard_link(int dir_fd, const char *name, const void *data)
{
	const struct link_source *source = data;

	return linkat(source->dir_fd, source->name, dir_fd, name, 0) < 0 ? -errno : 0;
}

static int extract_hard_link(struct extractor *extractor, struct err *err)
{
	_cleanup_close_ int target_fd = -EBADF;
	const char *target = extractor->choice.link;
	const char *slash = strrchr(target, '/');
	int rc =
		find_directory(extractor, target, slash ? (size_t)(slash - target) : 0, &target_fd);

	if (rc == 0) {
		const struct link_source source = {target_fd, slash ? slash + 1 : target};

		rc = make_temporary(extractor, make_hard_link, &source);
	}
	if (rc == 0) {
		rc = commit(extractor);
	}
	return rc < 0 ? fail(extractor, rc, err) : 0;
}

static struct directory *find_noted(struct extractor *extractor, uint32_t id)
{
	size_t low = 0, high = extractor->directory_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (extractor->directories[middle].id < id) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	ASSERT(low < extractor->directory_count && extractor->directories[low].id == id);
	return &extractor->directories[low];
}

/* Numbers come ascending, so the list stays sorted. */
static struct directory *note_new(struct extractor *extractor, uint32_t id)
{
	struct directory *grown = array_reserve(extractor->directories, extractor->directory_count,
						&extractor->directory_capacity, sizeof(*grown));

	if (!grown) {
		return NULL;
	}
	extractor->directories = grown;
	extractor->directories[extractor->directory_count] =
		(struct directory){.id = id, .implied = true};
	return &extractor->directories[extractor->directory_count++];
}

/* Makes a directory, or takes the one that is there. Returns an open one or a negative errno. */
static int make_directory(struct extractor *extractor, const struct archive_item *item)
{
	const char *name = extractor->path[0] ? extractor->name : ".";
	int dir_fd = extractor->path[0] ? extractor->parent_fd : extractor->dir_fd;
	struct stat status;
	int fd;

	/* Until the end nobody else looks in, and its own mode might keep us out. */
	if (extractor->path[0] && mkdirat(dir_fd, name, item->implied ? 0755 : 0700) < 0 &&
	    errno != EEXIST) {
		return -errno;
	}
	fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		return -errno;
	}
	if (item->id == 0 && extractor->options->keep_root) {
		return fd;
	}
	/* A copy of a tree that forbids writing can be made again. At the end it gets its mode. */
	if (!item->implied && fstat(fd, &status) == 0 && status.st_uid == geteuid() &&
	    (status.st_mode & S_IRWXU) != S_IRWXU) {
		(void)fchmod(fd, (status.st_mode & 01777) | S_IRWXU);
	}
	return fd;
}

static int extract_directory(struct extractor *extractor, const struct archive_item *item,
			     struct err *err)
{
	_cleanup_close_ int fd = make_directory(extractor, item);
	struct directory *noted;
	int rc;

	if (fd < 0) {
		return fail(extractor, fd, err);
	}
	noted = item->again ? find_noted(extractor, item->id) : note_new(extractor, item->id);
	if (!noted) {
		return fail(extractor, -ENOMEM, err);
	}
	if (!item->implied) {
		*noted = (struct directory){
			.id = item->id,
			.mode = extractor->choice.mode,
			.uid = extractor->choice.uid,
			.gid = extractor->choice.gid,
			.mtime_s = item->mtime_s,
			.mtime_ns = item->mtime_ns,
		};
	}
	rc = item->id == 0 && extractor->options->keep_root ? 0 : set_xattrs(fd, item);
	return rc < 0 ? fail(extractor, rc, err) : 0;
}

/* Whether and how an item is taken. Returns 1, 0 or a negative errno. */
static int choose(struct extractor *extractor, const struct archive_item *item, struct err *err)
{
	const struct extract_options *options = extractor->options;

	extractor->choice =
		(struct extract_choice){.mode = item->mode, .uid = item->uid, .gid = item->gid};
	if (item->type == ARCHIVE_ITEM_HARDLINK) {
		int rc = path_of(extractor, item->link_id, extractor->link);

		if (rc < 0) {
			snprintf(extractor->path, PATH_BYTES, "%s", item->path);
			return fail(extractor, rc, err);
		}
		extractor->choice.link = extractor->link;
	}
	if (!options->choose) {
		return 1;
	}
	if (item->implied) {
		return 0;
	}
	/* What was left out is not noted, so nothing more could be said about it. */
	if (item->again && item->id != 0) {
		return refuse(err, "a directory comes twice in it, or after what it holds");
	}
	return options->choose(options->choose_data, item, &extractor->choice, err);
}

static int extract_item(struct extractor *extractor, const struct archive_item *item,
			struct err *err)
{
	int rc = choose(extractor, item, err);

	if (rc > 0) {
		rc = locate(extractor, item, err);
	} else if (rc == 0) {
		return 0;
	}
	if (rc < 0) {
		return rc;
	}
	switch (item->type) {
	case ARCHIVE_ITEM_DIRECTORY:
		return extract_directory(extractor, item, err);
	case ARCHIVE_ITEM_FILE:
		return extract_file(extractor, item, err);
	case ARCHIVE_ITEM_SYMLINK:
		return extract_symlink(extractor, item, err);
	case ARCHIVE_ITEM_HARDLINK:
		return extract_hard_link(extractor, err);
	default:
		return refuse(err, "an entry of a kind that is not handed out");
	}
}

/* Modes and times of directories. */
static int finish_directories(struct extractor *extractor, struct err *err)
{
	for (size_t i = extractor->directory_count; i > 0; i--) {
		const struct directory *directory = &extractor->directories[i - 1];
		_cleanup_close_ int fd = -EBADF;
		bool root;
		int rc;

		if (directory->implied || (directory->id == 0 && extractor->options->keep_root)) {
			continue;
		}
		rc = path_of(extractor, directory->id, extractor->path);
		root = extractor->path[0] == '\0';
		if (rc == 0 && !root) {
			rc = enter_parent(extractor);
		}
		if (rc == 0) {
			fd = openat(root ? extractor->dir_fd : extractor->parent_fd,
				    root ? "." : extractor->name,
				    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			rc = fd < 0 ? -errno
				    : set_owner(extractor, fd, "", directory->uid, directory->gid);
		}
		if (rc == 0) {
			rc = set_attributes(fd, directory->mode, directory->mtime_s,
					    directory->mtime_ns);
		}
		if (rc < 0) {
			return fail(extractor, rc, err);
		}
	}
	return 0;
}

/* A directory of the given name is there even when the archive says nothing about itself. */
static int begin(struct extractor *extractor, struct err *err)
{
	const struct extract_options *options = extractor->options;

	/* The root came before any entry. */
	if (!note_new(extractor, 0)) {
		return fail(extractor, -ENOMEM, err);
	}
	if (options->name && options->contents &&
	    mkdirat(extractor->dir_fd, options->name, 0755) < 0 && errno != EEXIST) {
		snprintf(extractor->path, sizeof(extractor->path), "%s", options->name);
		return fail(extractor, -errno, err);
	}
	return 0;
}

int archive_extract(struct archive_reader *reader, int dir_fd,
		    const struct extract_options *options, struct extract_result *ret_result,
		    struct err *err)
{
	struct extractor *extractor = calloc(1, sizeof(*extractor));
	const struct archive_item *item;
	int rc;

	if (!extractor) {
		return err_set(err, -ENOMEM, "copy-write", "archive: %s", strerror(ENOMEM));
	}
	extractor->reader = reader;
	extractor->options = options;
	extractor->dir_fd = dir_fd;
	extractor->parent_fd = -EBADF;
	rc = begin(extractor, err);
	while (rc == 0 && (rc = archive_next(reader, &item, err)) > 0) {
		extractor->result.entries++;
		rc = extract_item(extractor, item, err);
		drop_temporary(extractor);
	}
	if (rc == 0) {
		rc = finish_directories(extractor, err);
	}
	*ret_result = extractor->result;
	close_fd(&extractor->parent_fd);
	free(extractor->directories);
	free(extractor);
	return rc;
}
