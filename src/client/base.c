#include "client/base.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive/archive.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/program.h"
#include "client/mirror.h"
#include "store/store.h"

int base_check(const struct spec *spec, struct err *err)
{
	int rc;

	if (spec->package_count > 0 && spec->base_kind != SPEC_BASE_DEBIAN) {
		rc = err_set(err, -EINVAL, "no-packages",
			     "packages: the base %s has no package manager that box knows",
			     spec->base);
		err_mend(err, "use base: debian/bookworm, or take the key packages out");
		return rc;
	}
	if ((spec->base_kind == SPEC_BASE_TAR || spec->base_kind == SPEC_BASE_DIR) &&
	    spec->base_value[0] != '/') {
		rc = err_set(err, -EINVAL, "relative-path", "base: the path %s is not absolute",
			     spec->base_value);
		err_mend(err, "write the whole path, beginning with /");
		return rc;
	}
	return 0;
}

static void print_times(FILE *out, const struct stat *status)
{
	fprintf(out, " %" PRIu64 " %lld.%09ld %lld.%09ld", (uint64_t)status->st_size,
		(long long)status->st_mtim.tv_sec, status->st_mtim.tv_nsec,
		(long long)status->st_ctim.tv_sec, status->st_ctim.tv_nsec);
}

static int open_base_path(const struct spec *spec, int flags, struct err *err)
{
	int fd = open(spec->base_value, flags | O_RDONLY | O_CLOEXEC);
	struct stat status;

	if (fd < 0) {
		int rc = err_set(err, -errno, "no-base", "base: cannot open %s: %s",
				 spec->base_value, strerror(errno));

		err_mend(err, "check the path in the Boxfile");
		return rc;
	}
	if (!(flags & O_DIRECTORY) && (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))) {
		int rc = err_set(err, -EINVAL, "no-base", "base: %s is not a regular file",
				 spec->base_value);

		close(fd);
		err_mend(err, "for a directory write dir: instead of tar:");
		return rc;
	}
	return fd;
}

static int identify_tar(const struct spec *spec, FILE *out, struct err *err)
{
	_cleanup_close_ int fd = open_base_path(spec, 0, err);
	struct stat status;

	if (fd < 0) {
		return fd;
	}
	if (fstat(fd, &status) < 0) {
		return err_context(err, -errno, "base: %s", spec->base_value);
	}
	fprintf(out, "base.tar=%" PRIu64, (uint64_t)status.st_ino);
	print_times(out, &status);
	fputc('\n', out);
	return 0;
}

static int compare_names(const FTSENT **left, const FTSENT **right)
{
	return strcmp((*left)->fts_name, (*right)->fts_name);
}

/* One line for each entry of the tree: name, type and mode, owner, size, times. */
static int print_tree(const struct spec *spec, FILE *out, struct err *err)
{
	char *paths[] = {spec->base_value, NULL};
	FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, compare_names);
	const FTSENT *entry;
	int rc = 0;

	if (!tree) {
		return err_context(err, -errno, "base: %s", spec->base_value);
	}
	while (rc == 0 && (errno = 0, entry = fts_read(tree))) {
		if (entry->fts_info == FTS_DP) {
			continue;
		}
		if (entry->fts_errno != 0) {
			rc = err_set(err, -entry->fts_errno, "no-base", "base: cannot read %s: %s",
				     entry->fts_path, strerror(entry->fts_errno));
			continue;
		}
		/* NUL ends a name here, so that no name can look like two. */
		fprintf(out, "%s%c%o %u %u", entry->fts_path, 0, entry->fts_statp->st_mode,
			entry->fts_statp->st_uid, entry->fts_statp->st_gid);
		print_times(out, entry->fts_statp);
		fputc('\n', out);
	}
	if (rc == 0 && errno != 0) {
		rc = err_context(err, -errno, "base: %s", spec->base_value);
	}
	fts_close(tree);
	return rc;
}

static int identify_dir(const struct spec *spec, FILE *out, struct err *err)
{
	_cleanup_close_ int fd = open_base_path(spec, O_DIRECTORY, err);
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	char digest[65];
	FILE *tree;
	int rc;

	if (fd < 0) {
		return fd;
	}
	tree = open_memstream(&text, &size);
	if (!tree) {
		return err_context(err, -ENOMEM, "base");
	}
	rc = print_tree(spec, tree, err);
	if (fclose(tree) != 0 && rc == 0) {
		rc = err_context(err, -ENOMEM, "base");
	}
	if (rc < 0) {
		return rc;
	}
	store_digest(text, size, digest);
	fprintf(out, "base.dir=%s\n", digest);
	return 0;
}

static int open_tiny(struct err *err)
{
	char path[4096];
	int rc = program_path("tiny.tar", path, sizeof(path));
	int fd;

	if (rc < 0) {
		return err_context(err, rc, "base tiny");
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		rc = err_set(err, -errno, "no-base", "base tiny: cannot open %s: %s", path,
			     strerror(errno));
		err_mend(err, "run `make install` again");
		return rc;
	}
	return fd;
}

static int identify_tiny(FILE *out, struct err *err)
{
	_cleanup_close_ int fd = open_tiny(err);
	char digest[65];
	int rc;

	if (fd < 0) {
		return fd;
	}
	rc = store_digest_file(fd, digest, err);
	if (rc < 0) {
		return err_context(err, rc, "base tiny");
	}
	fprintf(out, "base.tiny=%s\n", digest);
	return 0;
}

static int identify_debian(const struct spec *spec, FILE *out, struct err *err)
{
	struct mirror mirror;
	int rc = mirror_find(spec->base_value, &mirror, err);

	if (rc < 0) {
		return rc;
	}
	fprintf(out, "base.debian=%s\nbase.mirror=%s\nbase.security=%s\n", spec->base_value,
		mirror.uri, mirror.security_uri);
	return 0;
}

int base_identity(const struct spec *spec, FILE *out, struct err *err)
{
	switch (spec->base_kind) {
	case SPEC_BASE_TINY:
		return identify_tiny(out, err);
	case SPEC_BASE_TAR:
		return identify_tar(spec, out, err);
	case SPEC_BASE_DIR:
		return identify_dir(spec, out, err);
	case SPEC_BASE_DEBIAN:
		return identify_debian(spec, out, err);
	case SPEC_BASE_OCI:
		break;
	}
	return err_set(err, -ENOTSUP, "not-available", "base: %s is not available yet", spec->base);
}

/* What the child that writes a tree needs. */
struct tree_job {
	int dir_fd;
	int out_fd;
};

static int write_tree(void *data, struct err *err)
{
	const struct tree_job *job = data;

	return archive_write_tree(job->dir_fd, job->out_fd, err);
}

static int open_dir(const struct spec *spec, struct base_input *ret_input, struct err *err)
{
	_cleanup_close_ int dir_fd = open_base_path(spec, O_DIRECTORY, err);
	_cleanup_close_ int read_end = -EBADF;
	_cleanup_close_ int write_end = -EBADF;
	struct tree_job job;
	int ends[2], rc;

	if (dir_fd < 0) {
		return dir_fd;
	}
	if (pipe2(ends, O_CLOEXEC) < 0) {
		return err_context(err, -errno, "base");
	}
	read_end = ends[0];
	write_end = ends[1];
	job = (struct tree_job){.dir_fd = dir_fd, .out_fd = STDOUT_FILENO};
	rc = task_start(&(struct task_options){.name = "the writer of the tree",
					       .stdout_fd = write_end,
					       .body = write_tree,
					       .data = &job},
			&ret_input->producer, err);
	if (rc == 0) {
		ret_input->fd = TAKE_FD(read_end);
	}
	return rc;
}

int base_open(const struct spec *spec, int stage_fd, struct base_input *ret_input, struct err *err)
{
	int fd;

	*ret_input = (struct base_input){.fd = -EBADF, .producer = TASK_NONE};
	snprintf(ret_input->label, sizeof(ret_input->label), "base %s", spec->base);
	switch (spec->base_kind) {
	case SPEC_BASE_TINY:
		fd = open_tiny(err);
		break;
	case SPEC_BASE_TAR:
		fd = open_base_path(spec, 0, err);
		break;
	case SPEC_BASE_DIR:
		return open_dir(spec, ret_input, err);
	case SPEC_BASE_DEBIAN:
		return base_open_debian(spec, stage_fd, ret_input, err);
	case SPEC_BASE_OCI:
	default:
		return err_set(err, -ENOTSUP, "not-available", "base: %s is not available yet",
			       spec->base);
	}
	if (fd < 0) {
		return fd;
	}
	ret_input->fd = fd;
	return 0;
}

void base_close(struct base_input *input)
{
	/* Closed first, so that a writer who waits for its reader sees that there is none. */
	close_fd(&input->fd);
	task_end(&input->producer);
}
