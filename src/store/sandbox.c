/* Sandboxes by name: make, open, read, list. */
#include "store/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/text.h"
#include "spec/spec.h"
#include "store/internal.h"

/* Far more sandboxes than one person has; a directory with more is not ours. */
#define NAMES_MAX ((size_t)1 << 16)
/* What most people's sandboxes fit in; the buffer doubles from here. */
#define NAMES_FIRST_BYTES ((size_t)4096)

struct name_buffer {
	/* Names one after the other, each with its NUL. */
	char *bytes;
	size_t size;
	size_t capacity;
	size_t count;
};

static void cleanup_name_buffer(struct name_buffer *buffer)
{
	free(buffer->bytes);
}

static void cleanup_directory(DIR **directory)
{
	if (*directory) {
		closedir(*directory);
	}
}

static int add_name(struct name_buffer *buffer, const char *name)
{
	size_t size = strlen(name) + 1;

	if (buffer->count >= NAMES_MAX) {
		return -E2BIG;
	}
	if (buffer->capacity - buffer->size < size) {
		size_t capacity = buffer->capacity ? 2 * buffer->capacity : NAMES_FIRST_BYTES;
		char *grown = realloc(buffer->bytes, capacity);

		if (!grown) {
			return -ENOMEM;
		}
		buffer->bytes = grown;
		buffer->capacity = capacity;
	}
	memcpy(buffer->bytes + buffer->size, name, size);
	buffer->size += size;
	buffer->count++;
	return 0;
}

static int compare_names(const void *left, const void *right)
{
	return strcmp(*(char *const *)left, *(char *const *)right);
}

/* An array of pointers with the names behind it, in one block. */
static int pack_names(const struct name_buffer *buffer, char ***ret_names)
{
	size_t pointers_size = (buffer->count + 1) * sizeof(char *);
	char **names = malloc(pointers_size + buffer->size);
	char *next;

	if (!names) {
		return -ENOMEM;
	}
	next = (char *)names + pointers_size;
	if (buffer->size > 0) {
		memcpy(next, buffer->bytes, buffer->size);
	}
	for (size_t i = 0; i < buffer->count; i++) {
		names[i] = next;
		next += strlen(next) + 1;
	}
	names[buffer->count] = NULL;
	qsort(names, buffer->count, sizeof(names[0]), compare_names);
	*ret_names = names;
	return 0;
}

int store_read_names(int dir_fd, const char *path, int (*wanted)(int dir_fd, const char *name),
		     char ***ret_names, size_t *ret_count)
{
	_cleanup_(cleanup_name_buffer) struct name_buffer buffer = {0};
	_cleanup_(cleanup_directory) DIR *directory = NULL;
	_cleanup_close_ int fd = store_open_directory(dir_fd, path);
	struct dirent *entry;
	int rc;

	if (fd < 0) {
		return fd;
	}
	directory = fdopendir(fd);
	if (!directory) {
		return -errno;
	}
	fd = -EBADF;
	for (errno = 0; (entry = readdir(directory)); errno = 0) {
		rc = wanted(dirfd(directory), entry->d_name);
		if (rc > 0) {
			rc = add_name(&buffer, entry->d_name);
		}
		if (rc < 0) {
			return rc;
		}
	}
	if (errno != 0) {
		return -errno;
	}
	rc = pack_names(&buffer, ret_names);
	if (rc == 0) {
		*ret_count = buffer.count;
	}
	return rc;
}

static int is_sandbox(int dir_fd, const char *name)
{
	struct stat status;

	if (spec_check_name(name, NULL) < 0) {
		return 0;
	}
	if (fstatat(dir_fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
		/* Removed since it was read. */
		return errno == ENOENT ? 0 : -errno;
	}
	return S_ISDIR(status.st_mode);
}

int store_list(struct store *store, char ***ret_names, size_t *ret_count, struct err *err)
{
	int rc = store_read_names(store->home_fd, "sandboxes", is_sandbox, ret_names, ret_count);

	return rc < 0 ? store_fail(err, rc, store->home, "cannot list the sandboxes in %s",
				   store->home)
		      : 0;
}

/* Says that there is no such sandbox, and which one may have been meant. */
static int no_sandbox(struct store *store, const char *name, struct err *err)
{
	_cleanup_free_ char **names = NULL;
	const char *nearest;
	size_t count = 0;

	err_set(err, -ENOENT, "no-sandbox", "there is no sandbox %s", name);
	if (store_list(store, &names, &count, NULL) < 0) {
		return -ENOENT;
	}
	nearest = text_nearest(name, (const char *const *)names);
	if (nearest) {
		err_mend(err, "did you mean %s? `box ls` lists them", nearest);
	} else if (count > 0) {
		err_mend(err, "`box ls` lists what there is, `box new %s` makes it", name);
	} else {
		err_mend(err, "`box new %s` makes it", name);
	}
	return -ENOENT;
}

int store_open_sandbox(struct store *store, const char *name, struct err *err)
{
	_cleanup_close_ int sandboxes_fd = -EBADF;
	int fd, rc;

	rc = spec_check_name(name, err);
	if (rc < 0) {
		return rc;
	}
	sandboxes_fd = store_open_directory(store->home_fd, "sandboxes");
	if (sandboxes_fd < 0) {
		return store_fail(err, sandboxes_fd, store->home, "cannot open %s/sandboxes",
				  store->home);
	}
	fd = store_open_directory(sandboxes_fd, name);
	if (fd == -ENOENT) {
		return no_sandbox(store, name, err);
	}
	if (fd < 0) {
		return store_fail(err, fd, store->home, "cannot open %s/sandboxes/%s", store->home,
				  name);
	}
	return fd;
}

int store_load_spec(struct store *store, const char *name, struct spec **ret_spec, struct err *err)
{
	_cleanup_close_ int fd = store_open_sandbox(store, name, err);
	_cleanup_free_ char *text = NULL;
	char path[PATH_MAX];
	size_t size;
	int rc;

	if (fd < 0) {
		return fd;
	}
	snprintf(path, sizeof(path), "%s/sandboxes/%s/Boxfile", store->home, name);
	rc = read_file_at(fd, "Boxfile", SPEC_FILE_MAX, &text, &size);
	if (rc == -ENOENT) {
		err_set(err, rc, "no-boxfile", "%s is missing", path);
		err_mend(err, "`box edit %s` writes a new one", name);
		return rc;
	}
	if (rc == -EFBIG) {
		err_set(err, rc, "boxfile-size", "%s has more than %zu bytes", path, SPEC_FILE_MAX);
		err_mend(err, "a Boxfile is written by hand; `box edit %s` opens it", name);
		return rc;
	}
	if (rc < 0) {
		return store_fail(err, rc, path, "cannot read %s", path);
	}
	return spec_parse(text, size, path, ret_spec, err);
}

/* A sweep may be faster than our lock: then another name is tried. */
int store_make_hidden(int sandboxes_fd, char *out)
{
	for (int i = 0; i < STORE_TRIES_MAX; i++) {
		_cleanup_close_ int fd = -EBADF;
		char tag[STORE_TAG_SIZE];
		struct stat status;
		int rc;

		store_random_tag(tag);
		snprintf(out, NAME_MAX + 1, NEW_PREFIX "%s", tag);
		if (mkdirat(sandboxes_fd, out, 0700) < 0) {
			if (errno == EEXIST) {
				continue;
			}
			return -errno;
		}
		fd = store_open_directory(sandboxes_fd, out);
		rc = fd < 0 ? fd : store_try_lock_directory(fd);
		if (rc == 0 && fstat(fd, &status) < 0) {
			rc = -errno;
		}
		if (rc == 0 && status.st_nlink > 0) {
			return TAKE_FD(fd);
		}
		unlinkat(sandboxes_fd, out, AT_REMOVEDIR);
		if (rc < 0 && rc != -ENOENT && rc != -EAGAIN) {
			return rc;
		}
	}
	return -EAGAIN;
}

static int write_sandbox(int sandboxes_fd, const char *name, const char *boxfile, size_t size)
{
	_cleanup_close_ int fd = -EBADF;
	char hidden[NAME_MAX + 1];
	int rc;

	fd = store_make_hidden(sandboxes_fd, hidden);
	if (fd < 0) {
		return fd;
	}
	rc = write_file_at(fd, "Boxfile", boxfile, size, 0600);
	if (rc == 0 && renameat2(sandboxes_fd, hidden, sandboxes_fd, name, RENAME_NOREPLACE) < 0) {
		rc = -errno;
	}
	if (rc < 0) {
		remove_tree_at(sandboxes_fd, hidden);
		return rc;
	}
	if (fsync(sandboxes_fd) < 0) {
		rc = -errno;
		/* Not certain to last: better none than one that may vanish. */
		if (renameat(sandboxes_fd, name, sandboxes_fd, hidden) == 0) {
			remove_tree_at(sandboxes_fd, hidden);
		}
	}
	return rc;
}

int store_create(struct store *store, const char *name, const char *boxfile, size_t size,
		 struct err *err)
{
	_cleanup_close_ int sandboxes_fd = -EBADF;
	int rc;

	rc = spec_check_name(name, err);
	if (rc < 0) {
		return rc;
	}
	if (size > SPEC_FILE_MAX) {
		return err_set(err, -EFBIG, "boxfile-size", "the Boxfile has more than %zu bytes",
			       SPEC_FILE_MAX);
	}
	sandboxes_fd = store_open_directory(store->home_fd, "sandboxes");
	if (sandboxes_fd < 0) {
		return store_fail(err, sandboxes_fd, store->home, "cannot open %s/sandboxes",
				  store->home);
	}
	rc = write_sandbox(sandboxes_fd, name, boxfile, size);
	if (rc == -EEXIST) {
		err_set(err, rc, "exists", "there is a sandbox %s already", name);
		err_mend(err, "`box edit %s` changes it, `box destroy %s` removes it", name, name);
		return rc;
	}
	return rc < 0 ? store_fail(err, rc, store->home, "cannot make the sandbox %s", name) : 0;
}
