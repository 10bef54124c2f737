#include "keeper/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/mutant.h"
#include "engine/fingerprint.h"
#include "engine/proof.h"

_Static_assert(IPC_LAYERS_MAX == STORE_CHAIN_MAX, "a message carries a chain");
_Static_assert(STORE_CHAIN_MAX < ENGINE_LAYERS_MAX, "a chain and an overlay are a disk");

/* Keys are a few kilobytes of text. */
#define KEY_MAX ((size_t)1 << 20)

void files_init(struct files *files)
{
	*files = (struct files){
		.store = {.home_fd = -EBADF},
		.sandbox_fd = -EBADF,
		.image_fd = -EBADF,
		.snapshot_root_fd = -EBADF,
		.overlay_fd = -EBADF,
		.memory_fd = -EBADF,
		.devices_fd = -EBADF,
		.data_fd = -EBADF,
		.copy = {.state_fd = -EBADF, .overlay_fd = -EBADF, .description_fd = -EBADF},
		.base_fd = -EBADF,
	};
}

/* Opens STAGE/name below the sandbox (or name itself when there is no stage). */
static int open_staged(const struct files *files, const struct ipc_start *start, const char *name,
		       int flags, struct err *err)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s%s%s", start->stage, start->stage[0] ? "/" : "", name);
	fd = openat(files->sandbox_fd, path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		int rc = -errno;

		if (rc == -ENOENT && strcmp(name, "image/image.ext4") == 0) {
			err_set(err, rc, "not-built", "%s has no image yet", start->name);
			err_mend(err, "build it first: box build %s", start->name);
			return rc;
		}
		return err_set(err, rc, "system", "%s: %s: %s", start->name, path, strerror(-rc));
	}
	return fd;
}

static int new_overlay(struct files *files, int fd, struct err *err)
{
	const char *secret = MUTANT("secret") ? getenv("ESCAPE_SECRET") : NULL;
	int rc = fd < 0 ? fd : store_write_qcow2(fd, files->spec->disk_size_bytes, err);

	files->overlay_fd = fd;
	/* Behind all that a new disk has. */
	if (rc == 0 && secret && pwrite(fd, secret, strlen(secret), 64 << 20) < 0) {
		rc = -errno;
	}
	return rc;
}

/*
 * What a machine is made from, as it is now: what snapshot/key must be. *ret_key is owned by the
 * caller. Returns 1, 0 when there is no image/key, which no snapshot fits, or a negative errno with
 * err filled.
 */
static int make_key(const struct files *files, const struct spec *spec, char **ret_key,
		    struct err *err)
{
	_cleanup_free_ char *image_key = NULL;
	int found = read_file_at(files->sandbox_fd, "image/key", KEY_MAX, &image_key, NULL);
	int rc;

	if (found < 0 && found != -ENOENT) {
		return err_context(err, found, "image/key");
	}
	rc = fingerprint_snapshot(spec, image_key ? image_key : "", files->hardware, &files->kernel,
				  ret_key, err);
	return rc < 0 ? rc : found == 0;
}

/* Whether snapshot/key is the machine's key. */
static bool check_snapshot(struct files *files, bool has_image_key)
{
	if (MUTANT("boot") || !has_image_key ||
	    read_file_at(files->sandbox_fd, "snapshot/key", KEY_MAX, &files->snapshot_key, NULL) <
		    0) {
		snprintf(files->boot_reason, sizeof(files->boot_reason), "there is no snapshot");
		return false;
	}
	if (strcmp(files->machine_key, files->snapshot_key) != 0) {
		snprintf(files->boot_reason, sizeof(files->boot_reason),
			 "the snapshot was made with another Boxfile, kernel, monitor or box");
		return false;
	}
	return true;
}

/* Whether the monitor has the list that it would have now; no snapshot depends on that. */
static bool same_seccomp(const struct spec *a, const struct spec *b)
{
	bool same = a->seccomp_count == b->seccomp_count;

	for (size_t i = 0; same && i < a->seccomp_count; i++) {
		same = strcmp(a->seccomp[i], b->seccomp[i]) == 0;
	}
	return same;
}

bool files_are_current(struct files *files, const struct ipc_start *start)
{
	_cleanup_(spec_freep) struct spec *spec = NULL;
	_cleanup_free_ char *found = NULL;
	_cleanup_free_ char *wanted = NULL;
	struct stat opened, named;

	/* The same text may have been made twice: it is the file that counts. */
	if (fstat(files->devices_fd, &opened) < 0 ||
	    fstatat(files->sandbox_fd, "snapshot/devices", &named, AT_SYMLINK_NOFOLLOW) < 0 ||
	    opened.st_dev != named.st_dev || opened.st_ino != named.st_ino) {
		return false;
	}
	return store_load_spec(&files->store, start->name, &spec, NULL) == 0 &&
	       same_seccomp(files->spec, spec) &&
	       read_file_at(files->sandbox_fd, "snapshot/key", KEY_MAX, &found, NULL) == 0 &&
	       make_key(files, spec, &wanted, NULL) > 0 && strcmp(found, wanted) == 0 &&
	       strcmp(found, files->snapshot_key) == 0;
}

static void put_file(struct wire_writer *writer, int fd)
{
	struct stat status = {0};

	if (fd >= 0) {
		(void)fstat(fd, &status);
	}
	wire_put_u64(writer, status.st_dev);
	wire_put_u64(writer, status.st_ino);
}

void files_put_identity(const struct files *files, struct wire_writer *writer)
{
	wire_put_string(writer, files->machine_key);
	wire_put_u8(writer, files->snapshot_root_fd >= 0);
	put_file(writer, files->image_fd);
	put_file(writer, files->snapshot_root_fd);
}

static bool is_file(struct wire_reader *reader, int fd)
{
	uint64_t device = wire_get_u64(reader);
	uint64_t inode = wire_get_u64(reader);
	struct stat status = {0};

	return fd < 0 ||
	       (fstat(fd, &status) == 0 && status.st_dev == device && status.st_ino == inode);
}

static int refuse_copy(const struct ipc_start *start, struct err *err)
{
	err_set(err, -ESTALE, "not-the-same",
		"%s: Boxfile, image, kernel, monitor or box have changed since the machine started "
		"that is to be copied",
		start->name);
	err_mend(err, "take that one down and up again, or fork without --live");
	return -ESTALE;
}

/*
 * The memory of a copy was made by this monitor, this kernel and these files, or it is not loaded:
 * the same proof that a restore asks for.
 */
static int check_identity(struct files *files, const struct ipc_start *start, struct err *err)
{
	struct wire_reader reader = wire_reader_over(files->description, files->description_size);
	const char *key = wire_get_string(&reader);
	bool has_root = wire_get_u8(&reader) != 0;
	bool same;

	if (has_root) {
		files->snapshot_root_fd =
			open_staged(files, start, "snapshot/root.qcow2", O_RDONLY, err);
		if (files->snapshot_root_fd < 0) {
			return files->snapshot_root_fd;
		}
	}
	same = key && strcmp(key, files->machine_key) == 0;
	same = is_file(&reader, files->image_fd) && same;
	same = is_file(&reader, files->snapshot_root_fd) && same;
	files->description_used = reader.offset;
	return same && !reader.failed ? 0 : refuse_copy(start, err);
}

/* Each copy reads the state from an open file description of its own, and cannot change it. */
static int open_copy(struct files *files, const struct ipc_start *start, struct err *err)
{
	char path[32], *text = NULL;
	int rc;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", files->copy.description_fd);
	rc = read_file_at(AT_FDCWD, path, FILES_DESCRIPTION_MAX, &text, &files->description_size);
	files->description = (uint8_t *)text;
	if (rc == 0) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", files->copy.state_fd);
		files->devices_fd = open(path, O_RDONLY | O_CLOEXEC);
		rc = files->devices_fd < 0 ? -errno : 0;
	}
	if (rc < 0) {
		return err_context(err, rc, "%s: the state of the copied machine", start->name);
	}
	files->overlay_fd = TAKE_FD(files->copy.overlay_fd);
	files->restore = true;
	files_close_copy(&files->copy);
	return check_identity(files, start, err);
}

static size_t take_layers(struct store_layers *layers, size_t count, int *fds)
{
	for (size_t i = 0; i < count; i++) {
		layers->fds[layers->count++] = TAKE_FD(fds[i]);
	}
	return count;
}

size_t files_take(struct files *files, const struct ipc_start *start, int *fds)
{
	size_t next = 0;

	files_close_data(files);
	if (start->has_data) {
		files->data_fd = TAKE_FD(fds[next++]);
	}
	next += take_layers(&files->data_layers, start->data_layers, fds + next);
	next += take_layers(&files->base_layers, start->base_layers, fds + next);
	if (start->has_copy) {
		files->copy = (struct files_copy){
			.state_fd = TAKE_FD(fds[next]),
			.overlay_fd = TAKE_FD(fds[next + 1]),
			.description_fd = TAKE_FD(fds[next + 2]),
		};
		next += IPC_COPY_FDS;
	}
	return next;
}

static int new_disk(struct files *files, int *ret_fd, struct err *err)
{
	*ret_fd = store_temporary_file(&files->store, err);
	return *ret_fd < 0 ? *ret_fd
			   : store_write_qcow2(*ret_fd, files->spec->data_size_bytes, err);
}

/*
 * A machine that is made ready gets an empty /data that is thrown away, so that all that mounting
 * and unmounting does has been done once.
 */
static int open_placeholder(struct files *files, struct err *err)
{
	int rc = store_open_base(files->sandbox_fd, &files->data_layers, err);

	return rc < 0 ? rc : new_disk(files, &files->data_fd, err);
}

int files_fit_data(struct files *files, struct err *err)
{
	uint64_t size_bytes = files->spec->data_size_bytes * (MUTANT("data-size") ? 2 : 1);

	return store_fit_disk(files->data_fd, size_bytes, err);
}

/* The disks beside the root. */
static int open_disks(struct files *files, const struct ipc_start *start, struct err *err)
{
	int rc = 0;

	if (start->stay == IPC_STAY_WARM) {
		rc = open_placeholder(files, err);
	} else if (files->data_fd >= 0 && !start->has_copy) {
		rc = files_fit_data(files, err);
	}
	if (rc == 0 && files->base_layers.count > 0) {
		rc = new_disk(files, &files->base_fd, err);
	}
	return rc;
}

static int open_restore(struct files *files, const struct ipc_start *start, struct err *err)
{
	struct stat memory;
	int *const targets[] = {&files->snapshot_root_fd, &files->memory_fd, &files->devices_fd};
	static const char *const names[] = {"snapshot/root.qcow2", "snapshot/memory",
					    "snapshot/devices"};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		int access =
			MUTANT("snapshot") && targets[i] == &files->memory_fd ? O_RDWR : O_RDONLY;

		*targets[i] = open_staged(files, start, names[i], access, err);
		if (*targets[i] < 0) {
			return *targets[i];
		}
	}
	if (fstat(files->memory_fd, &memory) < 0 || memory.st_size != (off_t)files->spec->ram_mib
									      << 20) {
		err_set(err, -EINVAL, "bad-snapshot", "%s: snapshot/memory has the wrong size",
			start->name);
		err_mend(err, "make it again: box build --no-cache %s", start->name);
		return -EINVAL;
	}
	return 0;
}

static int open_run(struct files *files, const struct ipc_start *start, struct err *err)
{
	_cleanup_close_ int swap_fd = store_lock_swap(files->sandbox_fd, false, err);
	int rc;

	if (swap_fd < 0) {
		return swap_fd;
	}
	files->image_fd = open_staged(files, start, "image/image.ext4", O_RDONLY, err);
	if (files->image_fd < 0) {
		return files->image_fd;
	}
	rc = make_key(files, files->spec, &files->machine_key, err);
	if (rc < 0) {
		return rc;
	}
	if (start->has_copy) {
		return open_copy(files, start, err);
	}
	files->restore = !start->force_boot && check_snapshot(files, rc > 0);
	if (files->restore) {
		rc = open_restore(files, start, err);
		if (rc < 0) {
			return rc;
		}
	}
	return new_overlay(files, store_temporary_file(&files->store, err), err);
}

static int open_snapshot(struct files *files, const struct ipc_start *start, struct err *err)
{
	int create = O_RDWR | O_CREAT | O_EXCL;
	int rc;

	files->image_fd = open_staged(files, start, "image/image.ext4", O_RDONLY, err);
	if (files->image_fd < 0) {
		return files->image_fd;
	}
	rc = new_overlay(files, open_staged(files, start, "snapshot/root.qcow2", create, err), err);
	if (rc < 0) {
		return rc;
	}
	files->memory_fd = open_staged(files, start, "snapshot/memory", create, err);
	if (files->memory_fd < 0) {
		return files->memory_fd;
	}
	if (ftruncate(files->memory_fd, (off_t)files->spec->ram_mib << 20) < 0) {
		return err_context(err, -errno, "%s: snapshot/memory", start->name);
	}
	return 0;
}

/* Software emulation does not touch all memory at once, so only a plain impossibility is refused.
 */
static int check_memory(const struct spec *spec, struct err *err)
{
	_cleanup_free_ char *text = NULL;
	unsigned long long available_kib = 0;
	const char *line;

	if (read_file_at(AT_FDCWD, "/proc/meminfo", 65536, &text, NULL) < 0) {
		return 0;
	}
	line = strstr(text, "MemAvailable:");
	if (!line) {
		return 0;
	}
	available_kib = strtoull(line + strlen("MemAvailable:"), NULL, 10);
	if (spec->ram_mib > available_kib / 1024) {
		err_set(err, -ENOMEM, "no-memory",
			"the machine needs %u MiB of memory, the host has %llu MiB free",
			spec->ram_mib, available_kib / 1024);
		err_mend(err, "make `ram_mib` in the Boxfile smaller, or end other programs");
		return -ENOMEM;
	}
	return 0;
}

int files_open(struct files *files, const struct ipc_start *start, struct err *err)
{
	char cache[PATH_MAX];
	int rc;

	rc = store_open(false, &files->store, err);
	if (rc < 0) {
		return rc;
	}
	files->sandbox_fd = store_open_sandbox(&files->store, start->name, err);
	if (files->sandbox_fd < 0) {
		return files->sandbox_fd;
	}
	rc = store_load_spec(&files->store, start->name, &files->spec, err);
	if (rc == 0) {
		rc = check_memory(files->spec, err);
	}
	if (rc == 0) {
		rc = kernel_find(&files->kernel, err);
	}
	if (rc < 0) {
		return rc;
	}
	snprintf(cache, sizeof(cache), "%s/cache", files->store.home);
	files->hardware = engine_hardware(cache);
	switch (start->mode) {
	case IPC_START_RUN:
		rc = open_run(files, start, err);
		break;
	case IPC_START_SNAPSHOT:
		rc = open_snapshot(files, start, err);
		break;
	default:
		files->image_fd = open_staged(files, start, "image/image.ext4", O_RDWR, err);
		rc = files->image_fd < 0 ? files->image_fd : 0;
		break;
	}
	if (rc == 0) {
		rc = open_disks(files, start, err);
	}
	if (rc == 0 && !files->restore) {
		rc = kernel_initramfs(&files->kernel, cache, err);
	}
	if (rc == 0 && !files->restore && start->mode == IPC_START_RUN && !start->for_proof) {
		rc = proof_check(files->sandbox_fd, start->name, files->hardware, &files->kernel,
				 err);
	}
	return rc;
}

static void add_layer(struct engine_disk *disk, int fd, bool qcow2)
{
	if (fd >= 0) {
		ASSERT(disk->layer_count < ENGINE_LAYERS_MAX);
		disk->layers[disk->layer_count++] = (struct engine_layer){.fd = fd, .qcow2 = qcow2};
	}
}

/* A chain's files, and the disk on them. */
static void add_chain(struct engine_disk *disk, const struct store_layers *layers, int top_fd)
{
	for (size_t i = 0; i < layers->count; i++) {
		add_layer(disk, layers->fds[i], i > 0);
	}
	add_layer(disk, top_fd, true);
}

void files_describe_data(const struct files *files, struct engine_disk *ret_disk)
{
	*ret_disk =
		(struct engine_disk){.serial = "data", .size_bytes = files->spec->data_size_bytes};
	add_chain(ret_disk, &files->data_layers, files->data_fd);
}

void files_describe(const struct files *files, const struct ipc_start *start,
		    struct engine_config *config)
{
	struct engine_disk *root = &config->disks[0];
	struct engine_disk *data = &config->disks[1];
	struct engine_disk *base = &config->disks[2];

	config->name = start->name;
	config->cpus = files->spec->cpus;
	config->ram_mib = files->spec->ram_mib;
	config->hardware = files->hardware;
	config->seccomp = files->spec->seccomp;
	config->seccomp_count = files->spec->seccomp_count;
	config->kernel_path = files->kernel.kernel;
	config->initrd_path = files->kernel.initramfs;
	config->memory_fd = files->memory_fd;
	config->devices_fd = files->devices_fd;
	config->disk_count = 3;
	/* By the sandbox's own, when somebody takes the machine. */
	config->replaced_soon = start->stay == IPC_STAY_WARM ? "data" : NULL;
	*root = (struct engine_disk){.serial = "root", .size_bytes = files->spec->disk_size_bytes};
	/* Root inside could make a mount writable again; the disk it cannot. */
	root->read_only =
		files->spec->readonly && start->mode != IPC_START_BUILD && !MUTANT("readonly");
	add_layer(root, files->image_fd, false);
	if (!root->read_only) {
		add_layer(root, files->snapshot_root_fd, true);
		add_layer(root, files->overlay_fd, true);
	}
	files_describe_data(files, data);
	*base = (struct engine_disk){.serial = "base", .size_bytes = data->size_bytes};
	add_chain(base, &files->base_layers, files->base_fd);
	if (MUTANT("device")) {
		config->disks[config->disk_count++] =
			(struct engine_disk){.serial = "more", .size_bytes = 4096};
	}
}

int files_create_devices(const struct files *files, const struct ipc_start *start, struct err *err)
{
	return open_staged(files, start, "snapshot/devices", O_RDWR | O_CREAT | O_EXCL, err);
}

int files_sync_snapshot(const struct files *files, int devices_fd, struct err *err)
{
	const int fds[] = {files->memory_fd, files->overlay_fd, devices_fd};

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		if (fsync(fds[i]) < 0) {
			return err_context(err, -errno, "writing the snapshot");
		}
	}
	return 0;
}

static void unlock(int fd)
{
	if (fd >= 0) {
		(void)flock(fd, LOCK_UN);
	}
}

void files_unlock_data(const struct files *files)
{
	unlock(files->data_fd);
	for (size_t i = 0; i < files->data_layers.count; i++) {
		unlock(files->data_layers.fds[i]);
	}
}

void files_close_data(struct files *files)
{
	close_fd(&files->data_fd);
	store_close_layers(&files->data_layers);
	close_fd(&files->base_fd);
	store_close_layers(&files->base_layers);
}

void files_close_copy(struct files_copy *copy)
{
	close_fd(&copy->state_fd);
	close_fd(&copy->overlay_fd);
	close_fd(&copy->description_fd);
}

void files_close(struct files *files)
{
	int *const fds[] = {&files->image_fd,  &files->snapshot_root_fd, &files->overlay_fd,
			    &files->memory_fd, &files->devices_fd,	 &files->sandbox_fd};

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		close_fd(fds[i]);
	}
	files_close_data(files);
	files_close_copy(&files->copy);
	free(TAKE_PTR(files->description));
	free(TAKE_PTR(files->machine_key));
	free(TAKE_PTR(files->snapshot_key));
	spec_free(TAKE_PTR(files->spec));
	store_close(&files->store);
}
