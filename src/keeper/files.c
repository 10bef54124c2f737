#include "keeper/files.h"

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
#include "engine/fingerprint.h"

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
		.data_base_fd = -EBADF,
		.data_fd = -EBADF,
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
	files->overlay_fd = fd;
	return fd < 0 ? fd : store_write_qcow2(fd, files->spec->disk_size_bytes, err);
}

/* Whether snapshot/key is what would be made from what is there now. */
static int check_snapshot(struct files *files, bool *ret_valid, struct err *err)
{
	_cleanup_free_ char *image_key = NULL;
	_cleanup_free_ char *wanted = NULL;
	_cleanup_free_ char *found = NULL;
	int rc;

	*ret_valid = false;
	if (read_file_at(files->sandbox_fd, "snapshot/key", KEY_MAX, &found, NULL) < 0 ||
	    read_file_at(files->sandbox_fd, "image/key", KEY_MAX, &image_key, NULL) < 0) {
		snprintf(files->boot_reason, sizeof(files->boot_reason), "there is no snapshot");
		return 0;
	}
	rc = fingerprint_snapshot(files->spec, image_key, files->hardware, &files->kernel, &wanted,
				  err);
	if (rc < 0) {
		return rc;
	}
	*ret_valid = strcmp(wanted, found) == 0;
	if (!*ret_valid) {
		snprintf(files->boot_reason, sizeof(files->boot_reason),
			 "the snapshot was made with another Boxfile, kernel, monitor or box");
	}
	return 0;
}

static int open_restore(struct files *files, const struct ipc_start *start, struct err *err)
{
	struct stat memory;
	int *const targets[] = {&files->snapshot_root_fd, &files->memory_fd, &files->devices_fd};
	static const char *const names[] = {"snapshot/root.qcow2", "snapshot/memory",
					    "snapshot/devices"};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		*targets[i] = open_staged(files, start, names[i], O_RDONLY, err);
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
	bool valid = false;
	int rc;

	if (swap_fd < 0) {
		return swap_fd;
	}
	files->image_fd = open_staged(files, start, "image/image.ext4", O_RDONLY, err);
	if (files->image_fd < 0) {
		return files->image_fd;
	}
	if (!start->force_boot) {
		rc = check_snapshot(files, &valid, err);
		if (rc < 0) {
			return rc;
		}
	}
	files->restore = valid;
	if (valid) {
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

int files_open(struct files *files, const struct ipc_start *start, int data_fd, struct err *err)
{
	char cache[PATH_MAX];
	int rc;

	files->data_fd = data_fd;
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
	if (rc == 0 && data_fd >= 0) {
		files->data_base_fd = store_open_data_base(files->sandbox_fd, err);
		rc = files->data_base_fd < 0 ? files->data_base_fd : 0;
	}
	if (rc == 0 && !files->restore) {
		rc = kernel_initramfs(&files->kernel, cache, err);
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

void files_describe(const struct files *files, const struct ipc_start *start,
		    struct engine_config *config)
{
	struct engine_disk *root = &config->disks[0];
	struct engine_disk *data = &config->disks[1];

	config->name = start->name;
	config->cpus = files->spec->cpus;
	config->ram_mib = files->spec->ram_mib;
	config->hardware = files->hardware;
	config->kernel_path = files->kernel.kernel;
	config->initrd_path = files->kernel.initramfs;
	config->memory_fd = files->memory_fd;
	config->devices_fd = files->devices_fd;
	config->disk_count = 2;
	*root = (struct engine_disk){.serial = "root", .size_bytes = files->spec->disk_size_bytes};
	/* Root inside could make a mount writable again; the disk it cannot. */
	root->read_only = files->spec->readonly && start->mode != IPC_START_BUILD;
	add_layer(root, files->image_fd, false);
	if (!root->read_only) {
		add_layer(root, files->snapshot_root_fd, true);
		add_layer(root, files->overlay_fd, true);
	}
	*data = (struct engine_disk){.serial = "data", .size_bytes = files->spec->data_size_bytes};
	add_layer(data, files->data_base_fd, false);
	add_layer(data, files->data_fd, true);
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

void files_close(struct files *files)
{
	int *const fds[] = {&files->image_fd,  &files->snapshot_root_fd, &files->overlay_fd,
			    &files->memory_fd, &files->devices_fd,	 &files->data_base_fd,
			    &files->data_fd,   &files->sandbox_fd};

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		close_fd(fds[i]);
	}
	spec_free(TAKE_PTR(files->spec));
	store_close(&files->store);
}
