/*
 * Theory of operation. mmdebstrap makes a Debian system as a tar stream on its standard output. It
 * runs without root on the host in every case: in a user namespace whose IDs are the subordinate
 * ones of the caller. Root mostly has none written down; then mmdebstrap sees, in a mount namespace
 * of its own, an /etc/subuid and /etc/subgid that give root a range which nobody has, and the
 * host's files stay as they are.
 *
 * The system is unpacked in a directory of ours below TMPDIR or /var/tmp, not in BOX_HOME: the
 * unpacking IDs are not the user's, and BOX_HOME lets nobody else pass. The directory's path is
 * kept in the stage as a symbolic link, so that it is found again when everything was killed.
 *
 * What is left out of the image: package lists and caches (mmdebstrap drops them), manual pages,
 * documentation but for the copyright files, and translations. It halves the time of unpacking, and
 * nobody reads them in a sandbox.
 */
#include "client/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "client/mirror.h"
#include "store/subids.h"

#define MMDEBSTRAP "/usr/bin/mmdebstrap"
#define KEYRING "/usr/share/keyrings/debian-archive-keyring.gpg"
#define TEMPORARY_LINK "bootstrap"
#define SUBIDS_FILE "subids"

static const char *const fixed_arguments[] = {
	MMDEBSTRAP,
	"--mode=unshare",
	"--variant=minbase",
	"--format=tar",
	"--dpkgopt=path-exclude=/usr/share/man/*",
	"--dpkgopt=path-exclude=/usr/share/doc/*",
	"--dpkgopt=path-include=/usr/share/doc/*/copyright",
	"--dpkgopt=path-exclude=/usr/share/info/*",
	"--dpkgopt=path-exclude=/usr/share/locale/*",
	/* The unpacked system is thrown away after it became a stream. */
	"--dpkgopt=force-unsafe-io",
};

/* Fixed ones, --include, suite, "-", two archive lines, NULL. */
#define ARGUMENTS_MAX (ARRAY_SIZE(fixed_arguments) + 6)

/* What the child needs between fork and exec. */
struct debian_job {
	/* A file to be seen as /etc/subuid and /etc/subgid; -EBADF: the host's are right. */
	int subids_fd;
	char temporary[PATH_MAX];
};

static int enter_child(void *data, struct err *err)
{
	const struct debian_job *job = data;
	static const char *const files[] = {"/etc/subuid", "/etc/subgid"};
	char link[64], source[PATH_MAX];
	ssize_t length;

	if (setenv("TMPDIR", job->temporary, 1) < 0) {
		return err_context(err, -errno, "cannot set TMPDIR");
	}
	if (job->subids_fd < 0) {
		return 0;
	}
	if (unshare(CLONE_NEWNS) < 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
		return err_context(err, -errno, "cannot make a mount namespace for mmdebstrap");
	}
	/* By its path: the descriptor itself belongs to the mounts of the namespace left behind. */
	snprintf(link, sizeof(link), "/proc/self/fd/%d", job->subids_fd);
	length = readlink(link, source, sizeof(source) - 1);
	if (length < 0) {
		return err_context(err, -errno, "cannot find the staging directory");
	}
	source[length] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		if (mount(source, files[i], NULL, MS_BIND, NULL) < 0) {
			return err_context(err, -errno, "cannot show mmdebstrap another %s",
					   files[i]);
		}
	}
	return 0;
}

/* Refuses with the line that would mend it; root gets a range of its own instead. */
static int prepare_subids(int stage_fd, int *ret_fd, struct err *err)
{
	struct subids ids;
	char user[256], text[512];
	int fd, rc;

	*ret_fd = -EBADF;
	rc = subids_check_helpers(err);
	if (rc == 0) {
		rc = subids_read(&ids, err);
	}
	if (rc < 0 || ids.enough) {
		return rc;
	}
	if (geteuid() != 0) {
		subids_user_name(user, sizeof(user));
		rc = err_set(err, -EPERM, "no-subids",
			     "user %s has no %u subordinate IDs, which a Debian base is unpacked "
			     "with",
			     user, SUBIDS_NEEDED);
		subids_usermod(&ids, text, sizeof(text));
		err_mend(err, "%s", text);
		return rc;
	}
	snprintf(text, sizeof(text), "root:%llu:%u\n", (unsigned long long)ids.free_start,
		 SUBIDS_NEEDED);
	rc = write_file_at(stage_fd, SUBIDS_FILE, text, strlen(text), 0644);
	if (rc < 0) {
		return err_context(err, rc, "cannot write the staging directory");
	}
	fd = openat(stage_fd, SUBIDS_FILE, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		return err_context(err, -errno, "cannot open the staging directory");
	}
	*ret_fd = fd;
	return 0;
}

static int make_temporary(int stage_fd, char *ret_path, size_t size, struct err *err)
{
	const char *parent = getenv("TMPDIR");
	int rc;

	if (!parent || parent[0] != '/') {
		parent = "/var/tmp";
	}
	if (snprintf(ret_path, size, "%s/box-build-XXXXXX", parent) >= (int)size) {
		return err_context(err, -ENAMETOOLONG, "TMPDIR");
	}
	if (!mkdtemp(ret_path)) {
		rc = err_set(err, -errno, "no-temporary", "cannot make a directory in %s: %s",
			     parent, strerror(errno));
		err_mend(err, "set TMPDIR to a directory with room that others may pass");
		return rc;
	}
	/* The subordinate IDs must pass; what is inside is theirs. */
	if (chmod(ret_path, 0711) < 0 || symlinkat(ret_path, stage_fd, TEMPORARY_LINK) < 0) {
		rc = -errno;
		rmdir(ret_path);
		return err_context(err, rc, "cannot prepare %s", ret_path);
	}
	return 0;
}

static int check_programs(struct err *err)
{
	int rc;

	if (access(MMDEBSTRAP, X_OK) < 0) {
		rc = err_set(err, -ENOENT, "no-mmdebstrap",
			     "mmdebstrap, which makes Debian bases, is not installed");
		err_mend(err, "sudo apt-get install mmdebstrap uidmap");
		return rc;
	}
	if (access(KEYRING, R_OK) < 0) {
		rc = err_set(err, -ENOENT, "no-keyring",
			     "the keys of Debian's archive are not installed (%s)", KEYRING);
		err_mend(err, "sudo apt-get install debian-archive-keyring");
		return rc;
	}
	return 0;
}

/* "--include=a,b,c" for the packages; owned by the caller. NULL without memory. */
static char *include_argument(const struct spec *spec)
{
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);

	if (!out) {
		return NULL;
	}
	fputs("--include=", out);
	for (size_t i = 0; i < spec->package_count; i++) {
		fprintf(out, "%s%s", i > 0 ? "," : "", spec->packages[i]);
	}
	if (fclose(out) != 0) {
		return NULL;
	}
	return TAKE_PTR(text);
}

static int start_mmdebstrap(const struct spec *spec, struct debian_job *job, int stdout_fd,
			    struct base_input *ret_input, struct err *err)
{
	_cleanup_free_ char *include = include_argument(spec);
	const char *argv[ARGUMENTS_MAX];
	char archive[MIRROR_URI_MAX + 256], security[MIRROR_URI_MAX + 256];
	struct mirror mirror;
	size_t count = 0;
	int rc = mirror_find(spec->base_value, &mirror, err);

	if (rc < 0) {
		return rc;
	}
	if (!include) {
		return err_context(err, -ENOMEM, "mmdebstrap");
	}
	snprintf(ret_input->label, sizeof(ret_input->label), "base %s from %s", spec->base,
		 mirror.uri);
	for (; count < ARRAY_SIZE(fixed_arguments); count++) {
		argv[count] = fixed_arguments[count];
	}
	if (spec->package_count > 0) {
		argv[count++] = include;
	}
	argv[count++] = spec->base_value;
	argv[count++] = "-";
	snprintf(archive, sizeof(archive), "deb [signed-by=" KEYRING "] %s %s main", mirror.uri,
		 spec->base_value);
	argv[count++] = archive;
	if (mirror.security_uri[0]) {
		snprintf(security, sizeof(security),
			 "deb [signed-by=" KEYRING "] %s %s-security main", mirror.security_uri,
			 spec->base_value);
		argv[count++] = security;
	}
	argv[count] = NULL;
	ASSERT(count < ARGUMENTS_MAX);
	return task_start(&(struct task_options){.name = "mmdebstrap",
						 .argv = argv,
						 .stdout_fd = stdout_fd,
						 .body = enter_child,
						 .data = job},
			  &ret_input->producer, err);
}

int base_open_debian(const struct spec *spec, int stage_fd, struct base_input *ret_input,
		     struct err *err)
{
	_cleanup_close_ int subids_fd = -EBADF;
	_cleanup_close_ int read_end = -EBADF;
	_cleanup_close_ int write_end = -EBADF;
	struct debian_job job;
	int ends[2];
	int rc = check_programs(err);

	if (rc == 0) {
		rc = prepare_subids(stage_fd, &subids_fd, err);
	}
	if (rc == 0) {
		rc = make_temporary(stage_fd, job.temporary, sizeof(job.temporary), err);
	}
	if (rc < 0) {
		return rc;
	}
	if (pipe2(ends, O_CLOEXEC) < 0) {
		return err_context(err, -errno, "mmdebstrap");
	}
	read_end = ends[0];
	write_end = ends[1];
	job.subids_fd = subids_fd;
	rc = start_mmdebstrap(spec, &job, write_end, ret_input, err);
	if (rc == 0) {
		ret_input->fd = TAKE_FD(read_end);
	}
	return rc;
}

void base_mend_debian(struct err *err)
{
	/* What apt says, and what it means to whoever wrote the Boxfile. */
	static const struct {
		const char *said;
		const char *mend;
	} known[] = {
		{"Unable to locate package", "look at the names under packages in the Boxfile"},
		{"has no installation candidate",
		 "look at the names under packages in the Boxfile"},
		{"Failed to fetch", "see whether the mirror can be reached from here, or set "
				    "BOX_MIRROR to the URL of another one"},
		{"does not have a Release file", "look at the suite in the Boxfile, or set "
						 "BOX_MIRROR to the URL of a mirror that has it"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(known) && err && err->mend[0] == '\0'; i++) {
		if (strstr(err->text, known[i].said)) {
			err_mend(err, "%s", known[i].mend);
		}
	}
}

/* Removes a tree whose files belong to subordinate IDs, by the program that made it. */
static void remove_as_subids(int stage_fd, const char *path)
{
	const char *argv[] = {MMDEBSTRAP, "--unshare-helper", "rm", "-rf", "--", path, NULL};
	_cleanup_close_ int subids_fd = -EBADF;
	struct debian_job job;
	struct task task = TASK_NONE;

	if (prepare_subids(stage_fd, &subids_fd, NULL) < 0) {
		return;
	}
	job.subids_fd = subids_fd;
	snprintf(job.temporary, sizeof(job.temporary), "%s", path);
	if (task_start(&(struct task_options){.name = "mmdebstrap",
					      .argv = argv,
					      .stdout_fd = -EBADF,
					      .body = enter_child,
					      .data = &job},
		       &task, NULL) == 0) {
		tasks_wait(&task, 1, &(struct task_watch){.signal_fd = -EBADF}, NULL);
	}
}

/* Every entry of ours holds nothing but directories that mmdebstrap made. */
static void remove_temporary(int stage_fd, const char *path)
{
	DIR *directory = opendir(path);
	const struct dirent *entry;

	if (!directory) {
		return;
	}
	while ((entry = readdir(directory))) {
		char inner[PATH_MAX];

		if (strncmp(entry->d_name, "mmdebstrap.", 11) == 0 &&
		    snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name) <
			    (int)sizeof(inner)) {
			remove_as_subids(stage_fd, inner);
		}
	}
	closedir(directory);
	remove_tree_at(AT_FDCWD, path);
}

void base_sweep_debian(int stage_fd)
{
	char path[PATH_MAX];
	ssize_t length = readlinkat(stage_fd, TEMPORARY_LINK, path, sizeof(path) - 1);
	struct stat status;

	if (length <= 0) {
		return;
	}
	path[length] = '\0';
	/* The link is ours, but what it names lies where others may write: look at it first. */
	if (strstr(path, "/box-build-") && lstat(path, &status) == 0 && S_ISDIR(status.st_mode) &&
	    status.st_uid == geteuid()) {
		remove_temporary(stage_fd, path);
	}
	unlinkat(stage_fd, TEMPORARY_LINK, 0);
}
