#include "client/state.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "client/build.h"
#include "engine/fingerprint.h"
#include "engine/kernel.h"

/* As build_key.c writes it. */
#define KEY_FILE_MAX (2 * SPEC_FILE_MAX)

static bool is_running(int sandbox_fd)
{
	_cleanup_close_ int fd = store_lock_live(sandbox_fd, true, false, NULL);

	return fd == -EAGAIN;
}

/* The image's key begins with the version and ends with the spec's own part. */
static bool key_fits(const char *key, size_t size, const char *spec_key)
{
	static const char version[] = "box=" BOX_VERSION "\n";
	size_t length = strlen(spec_key);

	return size >= length && strncmp(key, version, sizeof(version) - 1) == 0 &&
	       memcmp(key + size - length, spec_key, length) == 0;
}

enum client_state client_state(int sandbox_fd, const struct spec *spec)
{
	_cleanup_free_ char *key = NULL;
	_cleanup_free_ char *spec_key = NULL;
	size_t size = 0;

	if (is_running(sandbox_fd)) {
		return CLIENT_STATE_RUNNING;
	}
	if (read_file_at(sandbox_fd, "image/key", KEY_FILE_MAX, &key, &size) < 0) {
		return CLIENT_STATE_NOT_BUILT;
	}
	if (!spec || spec_image_key(spec, &spec_key) < 0 || !key_fits(key, size, spec_key)) {
		return CLIENT_STATE_STALE;
	}
	return CLIENT_STATE_BUILT;
}

const char *client_state_name(enum client_state state)
{
	static const char *const names[] = {
		[CLIENT_STATE_NOT_BUILT] = "not built",
		[CLIENT_STATE_STALE] = "stale",
		[CLIENT_STATE_BUILT] = "built",
		[CLIENT_STATE_RUNNING] = "running",
	};

	return names[state];
}

static void __attribute__((format(printf, 2, 3)))
differ(struct client_verify_result *result, const char *format, ...)
{
	size_t length = strlen(result->differences);
	va_list args;

	if (length > 0 && length + 1 < sizeof(result->differences)) {
		result->differences[length++] = '\n';
		result->differences[length] = '\0';
	}
	va_start(args, format);
	vsnprintf(result->differences + length, sizeof(result->differences) - length, format, args);
	va_end(args);
}

static void compare(struct client_verify_result *result)
{
	const struct proof *built = &result->built;
	const struct proof *now = &result->now;

	if (strcmp(built->guest_release, now->guest_release) != 0 ||
	    strcmp(built->guest_version, now->guest_version) != 0) {
		differ(result, "the guest's kernel was %s at the build and is %s now",
		       built->guest_release, now->guest_release);
	} else if (strcmp(built->kernel_digest, now->kernel_digest) != 0) {
		differ(result, "the kernel's file has changed since the build");
	}
	if (strcmp(built->initramfs_digest, now->initramfs_digest) != 0) {
		differ(result, "the initramfs has changed since the build");
	}
	if (strcmp(built->image_digest, now->image_digest) != 0) {
		differ(result, "the image has changed since the build");
	}
	if (strcmp(built->guest_digest, now->guest_digest) != 0) {
		differ(result, "box-guest has changed since the build");
	}
	if (strcmp(built->monitor, now->monitor) != 0) {
		differ(result, "the machine monitor has changed since the build");
	}
	if (strcmp(built->guest_boot_id, now->guest_boot_id) == 0) {
		differ(result, "the boot ID is that of the build: this was not a new boot");
	}
}

static void check_keys(int sandbox_fd, const struct spec *spec, const struct kernel_paths *paths,
		       bool hardware, struct client_verify_result *result)
{
	_cleanup_free_ char *image_key = NULL;
	_cleanup_free_ char *snapshot_key = NULL;
	struct err err = {0};
	int rc = build_image_key(spec, &image_key, &err);

	if (rc == 0 && !build_key_is(sandbox_fd, "image/key", image_key)) {
		differ(result, "the Boxfile or its base has changed since the build");
		return;
	}
	if (rc == 0) {
		rc = fingerprint_snapshot(spec, image_key, hardware, paths, &snapshot_key, &err);
	}
	if (rc == 0 && !build_key_is(sandbox_fd, "snapshot/key", snapshot_key)) {
		differ(result, "the snapshot was made with other parts than are there now");
	}
	if (rc < 0) {
		differ(result, "%s", err.text);
	}
}

/* Boots once, without the snapshot and without /data. */
static int boot(struct store *store, const char *name, const struct client_start_options *start,
		struct ipc_ready *ret_ready, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	struct client_start_options options = *start;
	int rc;

	options.mode = IPC_START_RUN;
	options.data = CLIENT_DATA_NONE;
	options.stage = "";
	options.force_boot = true;
	rc = client_start(store, name, &options, &machine, err);
	if (rc == 0) {
		*ret_ready = *client_ready(machine);
	}
	return rc;
}

int client_verify(struct store *store, const char *name, const struct client_start_options *start,
		  struct client_verify_result *ret_result, struct err *err)
{
	_cleanup_(spec_freep) struct spec *spec = NULL;
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, err);
	struct client_verify_result result = {0};
	struct kernel_paths paths;
	char cache[PATH_MAX];
	struct ipc_ready ready;
	int rc;

	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	rc = store_load_spec(store, name, &spec, err);
	if (rc == 0) {
		rc = kernel_find(&paths, err);
	}
	if (rc < 0) {
		return rc;
	}
	if (proof_read(sandbox_fd, "snapshot/proof.json", &result.built, NULL) < 0) {
		rc = err_set(err, -ENOENT, "not-built", "%s has no proof: it was not built", name);
		err_mend(err, "box build %s", name);
		return rc;
	}
	snprintf(cache, sizeof(cache), "%s/cache", store->home);
	rc = kernel_initramfs(&paths, cache, err);
	if (rc == 0) {
		rc = boot(store, name, start, &ready, err);
	}
	if (rc == 0) {
		rc = proof_take(&ready, &paths, &result.now, err);
	}
	if (rc == 0) {
		rc = proof_add_image(sandbox_fd, "image/image.ext4", &result.now, err);
	}
	if (rc < 0) {
		return rc;
	}
	compare(&result);
	check_keys(sandbox_fd, spec, &paths, ready.hardware != 0, &result);
	*ret_result = result;
	return 0;
}
