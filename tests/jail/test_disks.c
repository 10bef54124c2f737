/*
 * The engine's monitor in its jail, with a disk whose layers are replaced while it runs. The guest
 * is a few bytes that halt: what it would see on the disk is tests/vm's part. Here is what the
 * monitor holds before and after, as /proc shows it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/loop.h"
#include "engine/engine.h"
#include "jail/tap.h"

#define QEMU "/usr/bin/qemu-system-x86_64"
#define STRICT_ID 1876546
#define DISK_BYTES ((uint64_t)1 << 20)
#define LIMIT_MS 20000
/* Of a machine's descriptors; far above what is used. */
#define NUMBERS_MAX 128

struct scene {
	char directory[64];
	char kernel[96];
	char initrd[96];
	struct loop *loop;
	struct engine *engine;
	int host_ends[2];
	int monitor_ends[2];
	bool failed;
};

static void stop_loop(void *data)
{
	loop_stop(((struct scene *)data)->loop, 0);
}

static void on_ended(void *data, const struct err *err)
{
	struct scene *scene = data;

	tap_note("ended: %s", err->text);
	scene->failed = true;
	loop_stop(scene->loop, 0);
}

static void on_limit(struct loop *loop, void *data)
{
	struct scene *scene = data;

	tap_note("nothing came in time");
	scene->failed = true;
	loop_stop(loop, 0);
}

/* Runs the loop until one of the functions above ends it. */
static bool await(struct scene *scene)
{
	uint64_t timer = 0;

	if (loop_timer_add(scene->loop, LIMIT_MS, on_limit, scene, &timer) < 0 ||
	    loop_run(scene->loop) < 0) {
		return false;
	}
	loop_timer_cancel(scene->loop, &timer);
	return !scene->failed;
}

/* A Linux kernel by its header (Documentation/arch/x86/boot.rst), whose setup code halts. */
static int write_kernel(const char *path)
{
	static const char start[] = "\xeb\x6e"
				    "HdrS\x0c\x02";
	static const char halt[] = "\xfa\xf4\xeb\xfd";
	char bytes[16384] = {0};

	bytes[0x1f1] = 4;
	memcpy(bytes + 0x200, start, sizeof(start) - 1);
	/* Where an initial RAM disk may end: anywhere. */
	memcpy(bytes + 0x22c, "\xff\xff\xff\x37", 4);
	memcpy(bytes + 0x270, halt, sizeof(halt) - 1);
	return write_file_at(AT_FDCWD, path, bytes, sizeof(bytes), 0644);
}

static int set_scene(struct scene *scene)
{
	snprintf(scene->directory, sizeof(scene->directory), "/tmp/box-disks-test-XXXXXX");
	if (!mkdtemp(scene->directory) || chmod(scene->directory, 0755) < 0) {
		return -errno;
	}
	snprintf(scene->kernel, sizeof(scene->kernel), "%s/kernel", scene->directory);
	snprintf(scene->initrd, sizeof(scene->initrd), "%s/initrd", scene->directory);
	for (int i = 0; i < 2; i++) {
		int ends[2];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) {
			return -errno;
		}
		scene->host_ends[i] = ends[0];
		scene->monitor_ends[i] = ends[1];
	}
	if (write_kernel(scene->kernel) < 0 ||
	    write_file_at(AT_FDCWD, scene->initrd, "initrd", 6, 0644) < 0) {
		return -EIO;
	}
	return loop_new(&scene->loop);
}

/* With first, it is the disk's one layer, and another is to take its place soon. */
static int start(struct scene *scene, int first, struct err *err)
{
	struct engine_config config = {
		.name = "disks",
		.cpus = 1,
		.ram_mib = 32,
		.kernel_path = scene->kernel,
		.initrd_path = scene->initrd,
		.disks = {{.serial = "data",
			   .size_bytes = DISK_BYTES,
			   .layers = {{.fd = first}},
			   .layer_count = first >= 0}},
		.disk_count = 1,
		.replaced_soon = first >= 0 ? "data" : NULL,
		.memory_fd = -EBADF,
		.devices_fd = -EBADF,
		.ctl_fd = scene->monitor_ends[0],
		.net_fd = -EBADF,
		.console_fd = scene->monitor_ends[1],
		.host_uid = geteuid() ? geteuid() : STRICT_ID,
		.host_gid = geteuid() ? getegid() : STRICT_ID,
	};
	struct engine_events events = {
		.running = stop_loop,
		.snapshot_done = stop_loop,
		.ended = on_ended,
		.data = scene,
	};

	return engine_start(&config, scene->loop, &events, &scene->engine, err);
}

/* How many of the monitor's descriptors are that file. */
static unsigned count_descriptors(const struct scene *scene, int file)
{
	struct stat ours, theirs;
	unsigned count = 0;

	if (fstat(file, &ours) < 0) {
		return 0;
	}
	for (int number = 0; number < NUMBERS_MAX; number++) {
		char path[64];

		snprintf(path, sizeof(path), "/proc/%d/fd/%d",
			 (int)engine_process(scene->engine)->pid, number);
		count += stat(path, &theirs) == 0 && theirs.st_dev == ours.st_dev &&
			 theirs.st_ino == ours.st_ino;
	}
	return count;
}

/* Puts one raw file under the disk, or with -EBADF none. */
static bool replace(struct scene *scene, int file)
{
	uint64_t start = clock_monotonic_ns();
	const struct engine_disk disk = {
		.serial = "data",
		.layers = {{.fd = file}},
		.layer_count = file >= 0,
	};
	struct err err = {0};
	bool good = engine_replace_disk(scene->engine, &disk, false, stop_loop, scene, &err) == 0;

	/* One at a time. */
	good = good &&
	       engine_replace_disk(scene->engine, &disk, false, stop_loop, scene, NULL) == -EBUSY;
	good = good && await(scene);
	tap_note("it took %llu us %s", (unsigned long long)((clock_monotonic_ns() - start) / 1000),
		 err.text);
	return good;
}

static bool agrees(const struct scene *scene)
{
	_cleanup_free_ char *text = NULL;
	int count = jail_compare(engine_jail(scene->engine), engine_process(scene->engine), &text);

	if (count != 0) {
		tap_note("%s", text ? text : "");
	}
	return count == 0;
}

static int make_disk(int access)
{
	_cleanup_close_ int file = memfd_create("disk", MFD_CLOEXEC);
	char path[64];

	if (file < 0 || ftruncate(file, DISK_BYTES) < 0) {
		return -EIO;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	return open(path, access | O_CLOEXEC);
}

static void try_replacing(struct scene *scene)
{
	_cleanup_close_ int first = make_disk(O_RDWR);
	_cleanup_close_ int second = make_disk(O_RDWR);
	struct engine_disk unwritable = {.serial = "data", .layer_count = 1};
	struct err err = {0};

	tap(agrees(scene), "/proc agrees with the description");
	tap(engine_private_bytes(scene->engine) > DISK_BYTES &&
		    engine_private_bytes(scene->engine) < (uint64_t)1 << 30,
	    "it uses memory of its own");
	tap(replace(scene, first) && count_descriptors(scene, first) >= 1,
	    "a disk of nothing gets a layer");
	tap(agrees(scene), "/proc agrees with the description");
	tap(replace(scene, second) && count_descriptors(scene, second) >= 1,
	    "another takes its place");
	tap(count_descriptors(scene, first) == 0, "of the first nothing is left open");
	tap(agrees(scene), "/proc agrees with the description");
	tap(replace(scene, -EBADF) && count_descriptors(scene, second) == 0,
	    "a disk of nothing again");
	/* A file that may only be read cannot be written to: the machine ends and says why. */
	close_fd(&first);
	first = make_disk(O_RDONLY);
	unwritable.layers[0].fd = first;
	tap(engine_replace_disk(scene->engine, &unwritable, false, stop_loop, scene, &err) == 0 &&
		    !await(scene),
	    "what cannot be opened ends the machine");
	tap(engine_replace_disk(scene->engine, &unwritable, false, stop_loop, scene, &err) ==
		    -EPROTO,
	    "which takes no disk then");
}

static void end_scene(struct scene *scene)
{
	engine_free(TAKE_PTR(scene->engine));
	loop_free(TAKE_PTR(scene->loop));
	for (int i = 0; i < 2; i++) {
		close_fd(&scene->host_ends[i]);
		close_fd(&scene->monitor_ends[i]);
	}
	scene->failed = false;
	(void)remove_tree_at(AT_FDCWD, scene->directory);
}

/* The first replacement has its commands ready, and the next has not. */
static void try_soon(void)
{
	static struct scene scene;
	_cleanup_close_ int first = make_disk(O_RDWR);
	_cleanup_close_ int second = make_disk(O_RDWR);
	struct err err = {0};

	if (!tap(set_scene(&scene) == 0 && start(&scene, first, &err) == 0 && await(&scene),
		 "a monitor that is to get another disk runs %s", err.text)) {
		return;
	}
	tap(agrees(&scene), "/proc agrees with the description");
	tap(replace(&scene, second) && count_descriptors(&scene, second) >= 1 &&
		    count_descriptors(&scene, first) == 0,
	    "it gets it, and nothing of the first is left open");
	tap(agrees(&scene), "/proc agrees with the description");
	tap(replace(&scene, first) && count_descriptors(&scene, second) == 0, "and back");
	tap(agrees(&scene), "/proc agrees with the description");
	end_scene(&scene);
	tap(set_scene(&scene) == 0 && start(&scene, first, &err) == 0 && await(&scene) &&
		    replace(&scene, -EBADF) && count_descriptors(&scene, first) == 0,
	    "one that was to get another gets none %s", err.text);
	end_scene(&scene);
}

int main(void)
{
	static struct scene scene;
	struct err err = {0};
	int rc;

	if (access(QEMU, X_OK) < 0) {
		tap_skip("disks", "qemu-system-x86 is not installed");
		return tap_done();
	}
	rc = set_scene(&scene);
	if (rc < 0) {
		printf("Bail out! the scene could not be set: %s\n", strerror(-rc));
		return 1;
	}
	if (tap(start(&scene, -EBADF, &err) == 0 && await(&scene), "the monitor runs %s",
		err.text)) {
		try_replacing(&scene);
	}
	end_scene(&scene);
	try_soon();
	return tap_done();
}
