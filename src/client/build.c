/*
 * Theory of operation. A build makes everything in a staging directory of its own,
 * sandboxes/NAME/build-XXXXXXXX, with the same folders as the sandbox: image/ and snapshot/. Only
 * when all is complete are the two exchanged with the old ones, image first, by one rename each. A
 * crash between the two leaves the new image with the old snapshot; the snapshot's key holds the
 * image's key, so the next run sees that they do not belong together and boots. Whatever ends a
 * build earlier leaves the old ones as they were. /data is made once and never touched again.
 *
 * What may never happen: that a line of the Boxfile, or a byte of the image, is interpreted on the
 * host. Archives are unpacked by box-image in its jail, lines run inside a machine.
 *
 * One build at a time has the build lock, so every staging directory that the holder finds belongs
 * to a build that was killed: it is removed. SIGINT, SIGTERM and SIGHUP are blocked during a build
 * and taken from a signalfd by whoever waits, so that everything started is ended again in order.
 */
#include "client/build.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "client/base.h"
#include "client/state.h"
#include "engine/engine.h"
#include "engine/fingerprint.h"

#define STAGE_PREFIX "build-"
/* A step names a line of a Boxfile, cut. */
#define STEP_MAX 1024

static void log_line(struct build *build, const char *prefix, const char *text)
{
	double seconds = (double)(clock_monotonic_ns() - build->began_ns) / 1e9;

	if (build->log_fd >= 0) {
		/* A log that cannot be written is not worth failing for: the disk is full, and the
		 * step itself will say so. */
		dprintf(build->log_fd, "%8.2f %s%s\n", seconds, prefix, text);
	}
}

void build_step(struct build *build, const char *format, ...)
{
	char text[STEP_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	log_line(build, "== ", text);
	if (build->options->step) {
		build->options->step(build->options->data, text);
	}
}

void build_detail(struct build *build, const char *line)
{
	log_line(build, "   ", line);
	if (build->options->detail) {
		build->options->detail(build->options->data, line);
	}
}

/* Removes staging directories of builds that were killed. The build lock is held. */
static void sweep(int sandbox_fd)
{
	int fd = openat(sandbox_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *directory = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!directory) {
		close_fd(&fd);
		return;
	}
	while ((entry = readdir(directory))) {
		_cleanup_close_ int stage_fd = -EBADF;

		if (strncmp(entry->d_name, STAGE_PREFIX, strlen(STAGE_PREFIX)) != 0) {
			continue;
		}
		stage_fd = openat(sandbox_fd, entry->d_name,
				  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (stage_fd >= 0) {
			base_sweep_debian(stage_fd);
			remove_tree_at(sandbox_fd, entry->d_name);
		}
	}
	closedir(directory);
}

void client_build_sweep(int sandbox_fd)
{
	_cleanup_close_ int lock_fd = store_lock_build(sandbox_fd, false, NULL);

	if (lock_fd >= 0) {
		sweep(sandbox_fd);
	}
}

static int make_stage(struct build *build, struct err *err)
{
	uint32_t random;

	store_random(&random, sizeof(random));
	snprintf(build->stage, sizeof(build->stage), STAGE_PREFIX "%08x", random);
	if (mkdirat(build->sandbox_fd, build->stage, 0700) < 0) {
		int rc = -errno;

		build->stage[0] = '\0';
		return err_context(err, rc, "cannot make a staging directory in %s/sandboxes/%s",
				   build->store->home, build->name);
	}
	build->stage_fd = openat(build->sandbox_fd, build->stage,
				 O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (build->stage_fd < 0) {
		return err_context(err, -errno, "cannot open the staging directory");
	}
	build->log_fd = openat(build->stage_fd, "build.log",
			       O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
	if (build->log_fd < 0) {
		return err_context(err, -errno, "cannot make the build's log");
	}
	return 0;
}

/* The image that is there, under a second name: a snapshot alone is to be made anew. */
static int reuse_image(struct build *build, struct err *err)
{
	static const char *const files[] = {"image.ext4", "key"};

	build_step(build, "image: unchanged");
	if (mkdirat(build->stage_fd, "image", 0700) < 0) {
		return err_context(err, -errno, "cannot make a directory for the image");
	}
	for (size_t i = 0; i < 2; i++) {
		char from[64], to[64];

		snprintf(from, sizeof(from), "image/%s", files[i]);
		snprintf(to, sizeof(to), "image/%s", files[i]);
		if (linkat(build->sandbox_fd, from, build->stage_fd, to, 0) < 0) {
			return err_context(err, -errno, "cannot use the image again");
		}
	}
	return 0;
}

static int make_image(struct build *build, struct err *err)
{
	int rc;

	if (build->image_fresh) {
		return reuse_image(build, err);
	}
	rc = build_image(build, err);
	if (rc == 0) {
		rc = build_customize(build, err);
	}
	if (rc < 0) {
		return rc;
	}
	rc = write_file_at(build->stage_fd, "image/key", build->image_key, strlen(build->image_key),
			   0600);
	return rc < 0 ? err_context(err, rc, "cannot write the image's key") : 0;
}

/* Puts what was staged in the place of what was there; the old one is then in the stage. */
static int exchange(struct build *build, const char *name, struct err *err)
{
	if (renameat2(build->stage_fd, name, build->sandbox_fd, name, RENAME_EXCHANGE) == 0) {
		return 0;
	}
	if (errno == EINVAL) {
		/* A file system that cannot exchange: for an instant there is none. */
		char old[64];

		snprintf(old, sizeof(old), "old-%s", name);
		renameat(build->sandbox_fd, name, build->stage_fd, old);
	} else if (errno != ENOENT) {
		return err_context(err, -errno, "cannot put the new %s in its place", name);
	}
	if (renameat(build->stage_fd, name, build->sandbox_fd, name) < 0) {
		return err_context(err, -errno, "cannot put the new %s in its place", name);
	}
	return 0;
}

static int publish(struct build *build, struct err *err)
{
	_cleanup_close_ int swap_fd = -EBADF;
	struct stat status;
	int rc;

	if (fstatat(build->stage_fd, "image/image.ext4", &status, 0) == 0) {
		build->result->image_bytes = (uint64_t)status.st_blocks * 512;
	}
	build_step(build, "done");
	renameat(build->stage_fd, "build.log", build->stage_fd, "image/build.log");
	swap_fd = store_lock_swap(build->sandbox_fd, true, err);
	rc = swap_fd < 0 ? swap_fd : exchange(build, "image", err);
	if (rc == 0) {
		rc = exchange(build, "snapshot", err);
	}
	if (rc == 0 && fsync(build->sandbox_fd) < 0) {
		rc = err_context(err, -errno, "cannot write the sandbox's directory");
	}
	/* The log of an earlier failure says nothing any more. */
	unlinkat(build->sandbox_fd, "build.log", 0);
	return rc;
}

/* Keeps the log of a failure where it is found, and names it. */
static void keep_log(struct build *build, int rc, struct err *err)
{
	if (build->log_fd < 0 || rc == -EINTR) {
		return;
	}
	if (err) {
		log_line(build, "!! ", err->text);
	}
	if (renameat(build->stage_fd, "build.log", build->sandbox_fd, "build.log") < 0 || !err) {
		return;
	}
	if (err->mend[0] == '\0') {
		err_mend(err, "read the log: %s/sandboxes/%s/build.log", build->store->home,
			 build->name);
	} else {
		char mend[sizeof(err->mend)];

		snprintf(mend, sizeof(mend), "%s", err->mend);
		err_mend(err, "%s (log: %s/sandboxes/%s/build.log)", mend, build->store->home,
			 build->name);
	}
}

static int build_everything(struct build *build, struct err *err)
{
	int rc;

	sweep(build->sandbox_fd);
	rc = make_stage(build, err);
	if (rc == 0) {
		rc = make_image(build, err);
	}
	if (rc == 0) {
		rc = build_data(build, err);
	}
	if (rc == 0) {
		rc = build_snapshot(build, err);
	}
	if (rc == 0) {
		rc = publish(build, err);
	}
	if (rc < 0) {
		keep_log(build, rc, err);
	} else {
		/* Nobody would take them any more: they are of the snapshot before. */
		client_pool_drain(build->store, build->name, NULL);
	}
	if (build->stage[0]) {
		remove_tree_at(build->sandbox_fd, build->stage);
	}
	return rc;
}

/* A signal that the caller has switched off, as nohup(1) does, stays so: one that is blocked would
 * be read from the signalfd all the same. */
static void add_signal(sigset_t *signals, int number)
{
	struct sigaction action;

	if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
		sigaddset(signals, number);
	}
}

/* Runs the build with signals held back, and leaves none of them pending. */
static int build_guarded(struct build *build, struct err *err)
{
	struct timespec none = {0};
	sigset_t signals, before;
	int rc;

	sigemptyset(&signals);
	add_signal(&signals, SIGINT);
	add_signal(&signals, SIGTERM);
	add_signal(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, &before);
	build->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	if (build->signal_fd < 0) {
		rc = err_context(err, -errno, "signalfd");
	} else {
		rc = build_everything(build, err);
	}
	close_fd(&build->signal_fd);
	while (sigtimedwait(&signals, NULL, &none) > 0) {
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return rc;
}

/* Finds what is there already and still right. */
static int plan(struct build *build, bool *ret_up_to_date, struct err *err)
{
	_cleanup_free_ char *snapshot_key = NULL;
	char cache[PATH_MAX];
	int rc;

	*ret_up_to_date = false;
	rc = build_image_key(build->spec, &build->image_key, err);
	if (rc < 0 || build->options->no_cache) {
		return rc;
	}
	build->image_fresh = build_key_is(build->sandbox_fd, "image/key", build->image_key) &&
			     faccessat(build->sandbox_fd, "image/image.ext4", R_OK, 0) == 0;
	if (!build->image_fresh || faccessat(build->sandbox_fd, "data/data.qcow2", R_OK, 0) < 0 ||
	    faccessat(build->sandbox_fd, "snapshot/memory", R_OK, 0) < 0) {
		return 0;
	}
	snprintf(cache, sizeof(cache), "%s/cache", build->store->home);
	rc = fingerprint_snapshot(build->spec, build->image_key, engine_hardware(cache),
				  &build->paths, &snapshot_key, err);
	if (rc < 0) {
		return rc;
	}
	*ret_up_to_date = build_key_is(build->sandbox_fd, "snapshot/key", snapshot_key);
	return 0;
}

static int open_build(struct build *build, struct err *err)
{
	int rc;

	build->sandbox_fd = store_open_sandbox(build->store, build->name, err);
	if (build->sandbox_fd < 0) {
		return build->sandbox_fd;
	}
	rc = store_load_spec(build->store, build->name, &build->spec, err);
	if (rc == 0) {
		rc = spec_check_available(build->spec, "Boxfile", err);
	}
	if (rc == 0) {
		rc = engine_check_seccomp(build->spec->seccomp, build->spec->seccomp_count, err);
	}
	if (rc == 0) {
		rc = base_check(build->spec, err);
	}
	if (rc == 0) {
		rc = kernel_find(&build->paths, err);
	}
	if (rc < 0) {
		return rc;
	}
	build->lock_fd = store_lock_build(build->sandbox_fd, false, err);
	if (build->lock_fd == -EAGAIN) {
		build_step(build, "waiting for another build of %s", build->name);
		build->lock_fd = store_lock_build(build->sandbox_fd, true, err);
	}
	return build->lock_fd < 0 ? build->lock_fd : 0;
}

static void close_build(struct build *build)
{
	close_fd(&build->log_fd);
	close_fd(&build->stage_fd);
	close_fd(&build->lock_fd);
	close_fd(&build->sandbox_fd);
	spec_free(build->spec);
	free(build->image_key);
}

int client_build(struct store *store, const char *name, const struct client_build_options *options,
		 struct client_build_result *ret_result, struct err *err)
{
	struct client_build_result result = {0};
	struct build build = {
		.store = store,
		.name = name,
		.options = options,
		.result = &result,
		.sandbox_fd = -EBADF,
		.lock_fd = -EBADF,
		.stage_fd = -EBADF,
		.log_fd = -EBADF,
		.signal_fd = -EBADF,
		.began_ns = clock_monotonic_ns(),
	};
	int rc = open_build(&build, err);

	if (rc == 0) {
		rc = plan(&build, &result.up_to_date, err);
	}
	if (rc == 0 && !result.up_to_date) {
		char cache[PATH_MAX];

		rc = snprintf(cache, sizeof(cache), "%s/cache", store->home) < (int)sizeof(cache)
			     ? kernel_initramfs(&build.paths, cache, err)
			     : err_context(err, -ENAMETOOLONG, "BOX_HOME");
		if (rc == 0) {
			rc = build_guarded(&build, err);
		}
	}
	result.took_ns = clock_monotonic_ns() - build.began_ns;
	close_build(&build);
	if (rc == 0) {
		*ret_result = result;
	}
	return rc;
}
