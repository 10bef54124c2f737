#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "client/build.h"

/* Renames are only whole once their directory is on the disk. */
static int sync_directory(int dir_fd, const char *path)
{
	_cleanup_close_ int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static int make_base(struct build *build, struct err *err)
{
	_cleanup_close_ int fd = openat(build->stage_fd, "data-base.ext4",
					O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int rc;

	if (fd < 0) {
		return err_context(err, -errno, "cannot make the file of /data");
	}
	rc = build_run_image(build,
			     &(struct image_job){.verb = "empty",
						 .input_fd = -EBADF,
						 .output_fd = fd,
						 .size_bytes = build->spec->data_size_bytes},
			     err);
	if (rc < 0) {
		return err_context(err, rc, "/data");
	}
	return fsync(fd) < 0 ? err_context(err, -errno, "/data") : 0;
}

static int make_layer(struct build *build, struct err *err)
{
	_cleanup_close_ int fd =
		openat(build->stage_fd, "data.qcow2", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int rc;

	if (fd < 0) {
		return err_context(err, -errno, "cannot make the file of /data");
	}
	rc = store_write_qcow2(fd, build->spec->data_size_bytes, err);
	if (rc < 0) {
		return err_context(err, rc, "/data");
	}
	return fsync(fd) < 0 ? err_context(err, -errno, "/data") : 0;
}

/* /data that is there grows at the next start of a machine, which holds it; a build does not. */
static int check_size(const struct build *build, struct err *err)
{
	_cleanup_close_ int fd =
		openat(build->sandbox_fd, "data/data.qcow2", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	uint64_t size;
	int rc;

	if (fd < 0) {
		return err_context(err, -errno, "/data");
	}
	rc = store_disk_size(fd, &size, err);
	if (rc == 0 && build->spec->data_size_bytes < size) {
		rc = store_refuse_shrink(size, build->spec->data_size_bytes, err);
	}
	return rc;
}

int build_data(struct build *build, struct err *err)
{
	int rc;

	if (faccessat(build->sandbox_fd, "data/data.qcow2", F_OK, 0) == 0) {
		return check_size(build, err);
	}
	if (errno != ENOENT) {
		return err_context(err, -errno, "/data");
	}
	build_step(build, "data: making an empty /data");
	rc = make_base(build, err);
	if (rc == 0) {
		rc = make_layer(build, err);
	}
	if (rc < 0) {
		return rc;
	}
	if (mkdirat(build->sandbox_fd, "data", 0700) < 0 && errno != EEXIST) {
		return err_context(err, -errno, "/data");
	}
	/* data.qcow2 comes last: where it is, the base below it is whole. */
	if (renameat(build->stage_fd, "data-base.ext4", build->sandbox_fd, "data/base-0.ext4") <
		    0 ||
	    renameat(build->stage_fd, "data.qcow2", build->sandbox_fd, "data/data.qcow2") < 0) {
		return err_context(err, -errno, "/data");
	}
	rc = sync_directory(build->sandbox_fd, "data");
	return rc < 0 ? err_context(err, rc, "/data") : 0;
}
