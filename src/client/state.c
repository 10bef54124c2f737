#include "client/state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "client/build.h"
#include "client/internal.h"
#include "engine/engine.h"
#include "engine/fingerprint.h"
#include "engine/kernel.h"
#include "ipc/ipc.h"
#include "json/json.h"

/* How long `box ls` waits for a keeper that answers in a tenth of a millisecond when it can. */
#define USAGE_LIMIT_MS 250
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

	if (store_is_up(sandbox_fd)) {
		return CLIENT_STATE_UP;
	}
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
		[CLIENT_STATE_UP] = "up",
	};

	return names[state];
}

struct json *client_ask_soon(int socket)
{
	const struct ipc_message order = {.type = IPC_LIST};
	struct pollfd wait = {.fd = socket, .events = POLLIN};
	_cleanup_close_ int fd = -EBADF;
	_cleanup_free_ char *text = NULL;
	struct ipc_message answer;
	struct json *listing = NULL;
	int fds[IPC_FDS_MAX];
	size_t size;

	if (client_greet(socket, USAGE_LIMIT_MS) < 0 || ipc_send(socket, &order, NULL, 0) < 0 ||
	    poll(&wait, 1, USAGE_LIMIT_MS) <= 0 || ipc_receive(socket, &answer, fds) <= 0) {
		return NULL;
	}
	if (answer.type == IPC_LISTING) {
		fd = TAKE_FD(fds[0]);
	}
	ipc_close_fds(fds);
	if (fd < 0 || client_read_listing(fd, &text, &size) < 0) {
		return NULL;
	}
	return json_parse(text, size, &listing, NULL) < 0 ? NULL : listing;
}

void client_usage(struct store *store, const char *name, int sandbox_fd,
		  struct client_usage *ret_usage)
{
	_cleanup_close_ int run_fd = store_open_run(store, name, false, NULL);
	int64_t memory = 0, seconds = 0;

	*ret_usage = (struct client_usage){0};
	if (run_fd < 0) {
		/* No keeper of this sandbox has a socket. */
		return;
	}
	if (store_is_up(sandbox_fd)) {
		_cleanup_close_ int socket = ipc_connect_at(run_fd, STORE_UP_SOCKET);
		_cleanup_(json_freep) struct json *listing =
			socket < 0 ? NULL : client_ask_soon(socket);

		ret_usage->known = json_get_integer(listing, "memory_bytes", &memory) == 0 &&
				   json_get_integer(listing, "up_seconds", &seconds) == 0;
		ret_usage->memory_bytes = (uint64_t)memory;
		ret_usage->up_seconds = (uint64_t)seconds;
	}
	client_pool_count(store, name, &ret_usage->pool_machines, &ret_usage->pool_memory_bytes);
}

/* Whether a socket is there and nobody listens on it. */
static bool is_stale(int run_fd, const char *socket_name)
{
	_cleanup_close_ int peer = ipc_connect_at(run_fd, socket_name);

	return peer == -ECONNREFUSED;
}

size_t client_stale_sockets(struct store *store, const char *name, int sandbox_fd, bool remove)
{
	static const char *const sockets[] = {STORE_UP_SOCKET, STORE_DATA_SOCKET};
	_cleanup_close_ int run_fd = store_open_run(store, name, false, NULL);
	size_t count = 0;

	for (size_t i = 0; run_fd >= 0 && i < ARRAY_SIZE(sockets); i++) {
		/* Each stands for a lock: whoever holds that may take its socket's place. */
		_cleanup_close_ int lock = strcmp(sockets[i], STORE_UP_SOCKET) == 0
						   ? store_lock_down(sandbox_fd)
						   : store_open_data(sandbox_fd, false, NULL);

		if (lock < 0 || !is_stale(run_fd, sockets[i])) {
			continue;
		}
		count++;
		if (remove) {
			unlinkat(run_fd, sockets[i], 0);
		}
	}
	if (count > 0 && remove) {
		store_leave_run(store, name);
	}
	return count;
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

/* What only a build may change. */
static void compare(struct client_verify_result *result)
{
	const struct proof *built = &result->proved;
	const struct proof *now = &result->now;

	if (strcmp(built->image_digest, now->image_digest) != 0) {
		differ(result, "the image has changed since the build");
	}
	if (strcmp(built->guest_boot_id, now->guest_boot_id) == 0) {
		differ(result, "the boot ID is that of the last proof: this was not a new boot");
	}
}

static void check_key(int sandbox_fd, const struct spec *spec, struct client_verify_result *result)
{
	_cleanup_free_ char *image_key = NULL;
	struct err err = {0};
	int rc = build_image_key(spec, &image_key, &err);

	if (rc < 0) {
		differ(result, "%s", err.text);
	} else if (!build_key_is(sandbox_fd, "image/key", image_key)) {
		differ(result, "the Boxfile or its base has changed since the build");
	}
}

/* The last proof on either accelerator: a build has left one. */
static int read_proof(int sandbox_fd, const char *name, bool hardware,
		      struct client_verify_result *result, struct err *err)
{
	struct err local = {0};
	int rc = proof_read(sandbox_fd, proof_path(hardware), &result->proved, &local);

	if (rc == -ENOENT) {
		result->first = true;
		rc = proof_read(sandbox_fd, proof_path(!hardware), &result->proved, &local);
	}
	if (rc == -ENOENT) {
		err_set(err, rc, "not-built", "%s has no proof: it was not built", name);
		err_mend(err, "box build %s", name);
	} else if (rc < 0) {
		*err = local;
	}
	return rc;
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
	options.for_proof = true;
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
	bool hardware;
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
	snprintf(cache, sizeof(cache), "%s/cache", store->home);
	hardware = engine_hardware(cache);
	rc = read_proof(sandbox_fd, name, hardware, &result, err);
	if (rc == 0) {
		rc = kernel_initramfs(&paths, cache, err);
	}
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
	check_key(sandbox_fd, spec, &result);
	result.changed = proof_difference(&result.proved, &result.now);
	if (!result.differences[0]) {
		rc = proof_write(sandbox_fd, proof_path(hardware), &result.now, err);
	}
	*ret_result = result;
	return rc;
}
