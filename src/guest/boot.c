/*
 * Theory of operation.
 *
 * box-guest is /init of a small initramfs that also holds the modules which the kernel needs to see
 * its disks and ports. It mounts the kernel's file systems, loads the modules in the order of their
 * names, opens the control port, mounts the disk with serial "root", and makes that the root. The
 * initramfs is then covered by it, and no descriptor leads back.
 *
 * What every later SETUP needs is opened here. Two values that programs see must be new in every
 * life of a machine, also of one restored from a snapshot: /etc/machine-id and the kernel's
 * boot_id. A small file on /run is mounted over each, once, and a life only writes to the file. So
 * FREEZE has nothing of this to unmount, and the kernel's own boot_id is read before.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "guest/device.h"
#include "guest/machine.h"
#include "guest/processor.h"
#include "wire/net.h"

/* The initramfs holds about ten. */
#define MODULES_MAX 64
#define MODULES_DIRECTORY "/modules"
/* Emulation on a loaded host is slow; without the devices there is nothing to do anyway. */
#define DEVICES_TIMEOUT_MS 20000u
#define DEVICES_POLL_NS 2000000
#define RUN_DIRECTORY "/run/box"
#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"
#define MACHINE_ID_PATH "/etc/machine-id"
#define PORTS_CLASS "/sys/class/virtio-ports"
#define RESOLVER_PATH "/etc/resolv.conf"

static int make_directory(const char *path, mode_t mode)
{
	struct stat status;

	if (mkdir(path, mode) == 0) {
		return 0;
	}
	if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
		return 0;
	}
	return -errno;
}

struct mount_point {
	const char *path;
	const char *type;
	const char *options;
	unsigned long flags;
	mode_t mode;
	/* The machine is of use without it. */
	bool optional;
};

static int mount_points(const struct mount_point *points, size_t count, struct err *err)
{
	for (size_t i = 0; i < count; i++) {
		const struct mount_point *point = &points[i];
		int rc = make_directory(point->path, point->mode);

		if (rc == 0 && mount(point->type, point->path, point->type, point->flags,
				     point->options) < 0) {
			rc = -errno;
		}
		if (rc < 0 && !point->optional) {
			return err_set(err, rc, "mount", "cannot mount %s at %s: %s", point->type,
				       point->path, strerrordesc_np(-rc));
		}
	}
	return 0;
}

/* ---- Modules ---- */

static int compare_names(const void *a, const void *b)
{
	return strcmp(a, b);
}

static int load_module(int directory_fd, const char *name)
{
	_cleanup_close_ int fd = openat(directory_fd, name, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST)) {
		return -errno;
	}
	return 0;
}

static int load_modules(struct err *err)
{
	char names[MODULES_MAX][NAME_MAX + 1];
	size_t count = 0;
	struct dirent *entry;
	DIR *directory = opendir(MODULES_DIRECTORY);
	int rc = 0;

	if (!directory) {
		/* A kernel may have everything built in. */
		return errno == ENOENT ? 0 : -errno;
	}
	while ((entry = readdir(directory)) && count < MODULES_MAX) {
		if (entry->d_name[0] != '.') {
			snprintf(names[count++], sizeof(names[0]), "%s", entry->d_name);
		}
	}
	qsort(names, count, sizeof(names[0]), compare_names);
	for (size_t i = 0; i < count && rc == 0; i++) {
		rc = load_module(dirfd(directory), names[i]);
		if (rc < 0) {
			err_set(err, rc, "module", "cannot load the kernel module %s: %s", names[i],
				strerrordesc_np(-rc));
		}
	}
	closedir(directory);
	return rc;
}

/* ---- Devices ---- */

/*
 * Waits until the device is there. Short sleeps rather than uevents: the drivers are loaded, so it
 * is a matter of milliseconds, once per boot.
 */
static int await_device(const char *directory, const char *attribute, const char *value,
			char *ret_path, size_t size)
{
	uint64_t end = clock_monotonic_ns() + DEVICES_TIMEOUT_MS * UINT64_C(1000000);

	while (!device_find(directory, attribute, value, ret_path, size)) {
		if (clock_monotonic_ns() >= end) {
			return -ENODEV;
		}
		nanosleep(&(struct timespec){.tv_nsec = DEVICES_POLL_NS}, NULL);
	}
	return 0;
}

static int open_port(struct machine *machine, struct err *err)
{
	char path[32];
	int rc = await_device(PORTS_CLASS, "name", WIRE_CTL_PORT_NAME, path, sizeof(path));

	if (rc < 0) {
		return err_set(err, rc, "no-port", "this machine has no port named %s",
			       WIRE_CTL_PORT_NAME);
	}
	machine->port_fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (machine->port_fd < 0) {
		return err_set(err, -errno, "no-port", "cannot open %s: %s", path,
			       strerrordesc_np(errno));
	}
	return 0;
}

/* The data disk is optional, and there when the root disk is. */
static void open_data(struct machine *machine)
{
	if (!device_find("/sys/block", "serial", "data", machine->data_path,
			 sizeof(machine->data_path))) {
		return;
	}
	machine->data_fd = open(machine->data_path, O_RDONLY | O_CLOEXEC);
	if (machine->data_fd >= 0) {
		ioctl(machine->data_fd, BLKGETSIZE64, &machine->data_bytes);
	}
}

/* ---- Root ---- */

/*
 * noatime: reading a file must not write to the overlay. noinit_itable: no kernel thread that
 * zeroes inode tables behind our back; a new image is sparse, so they are zeros already.
 */
static int mount_root(struct machine *machine, struct err *err)
{
	char path[32];
	int rc = await_device("/sys/block", "serial", "root", path, sizeof(path));

	if (rc < 0) {
		return err_set(err, rc, "no-root", "this machine has no disk with serial \"root\"");
	}
	rc = make_directory("/root", 0755);
	if (rc == 0 && mount(path, "/root", "ext4", MS_NOATIME, "noinit_itable") < 0) {
		rc = -errno;
	}
	if (rc == -EACCES || rc == -EROFS) {
		/* The disk itself cannot be written: the Boxfile says `readonly`. */
		machine->root_readonly = true;
		rc = mount(path, "/root", "ext4", MS_RDONLY | MS_NOATIME, "noinit_itable") < 0
			     ? -errno
			     : 0;
	}
	if (rc < 0) {
		return err_set(err, rc, "mount", "cannot mount the root file system of %s: %s",
			       path, strerrordesc_np(-rc));
	}
	return 0;
}

static int switch_root(struct err *err)
{
	static const char *const moved[] = {"/dev", "/proc", "/sys"};

	for (size_t i = 0; i < ARRAY_SIZE(moved); i++) {
		char target[32];
		int rc;

		snprintf(target, sizeof(target), "/root%s", moved[i]);
		rc = make_directory(target, 0755);
		if (rc == 0 && mount(moved[i], target, NULL, MS_MOVE, NULL) < 0) {
			rc = -errno;
		}
		if (rc < 0) {
			return err_set(err, rc, "mount",
				       "the image needs a directory %s and cannot get one: %s",
				       moved[i], strerrordesc_np(-rc));
		}
	}
	if (chdir("/root") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
	    chdir("/") < 0) {
		return err_set(err, -errno, "mount", "cannot switch to the image's root: %s",
			       strerrordesc_np(errno));
	}
	return 0;
}

/* ---- Inside the image ---- */

static int mount_inside(struct err *err)
{
	static const struct mount_point points[] = {
		{"/dev/pts", "devpts", "newinstance,gid=5,mode=0620,ptmxmode=0666",
		 MS_NOSUID | MS_NOEXEC, 0755},
		{"/dev/shm", "tmpfs", "mode=1777", MS_NOSUID | MS_NODEV, 01777},
		{"/run", "tmpfs", "mode=0755", MS_NOSUID | MS_NODEV, 0755},
		{"/sys/fs/cgroup", "cgroup2", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0755, true},
	};
	static const char *const links[][2] = {
		{"/proc/self/fd", "/dev/fd"},
		{"fd/0", "/dev/stdin"},
		{"fd/1", "/dev/stdout"},
		{"fd/2", "/dev/stderr"},
	};
	int rc = mount_points(points, ARRAY_SIZE(points), err);

	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(links); i++) {
		if (symlink(links[i][0], links[i][1]) < 0 && errno != EEXIST) {
			rc = err_set(err, -errno, "mount", "cannot make %s: %s", links[i][1],
				     strerrordesc_np(errno));
		}
	}
	return rc;
}

/* Directories that later mounts need; made now, while the root can be written. */
static int make_inside(struct err *err)
{
	static const struct {
		const char *path;
		mode_t mode;
	} wanted[] = {{"/data", 0755}, {"/tmp", 01777}};

	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		int rc = make_directory(wanted[i].path, wanted[i].mode);

		if (rc < 0) {
			return err_set(err, rc, "mount",
				       "the image needs a directory %s and cannot get one: %s",
				       wanted[i].path, strerrordesc_np(-rc));
		}
	}
	return 0;
}

static void bring_up_loopback(void)
{
	_cleanup_close_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0) {
		machine_say("the loopback interface cannot be brought up");
	}
}

/* Makes a file on /run that everyone may read, and mounts it over path. Returns it opened. */
static int cover(const char *file, const char *path, struct err *err)
{
	_cleanup_close_ int fd = open(file, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0444);

	if (fd < 0 || mount(file, path, NULL, MS_BIND, NULL) < 0) {
		return err_set(err, -errno, "mount", "cannot put %s over %s: %s", file, path,
			       strerrordesc_np(errno));
	}
	return TAKE_FD(fd);
}

static int cover_ids(struct machine *machine, struct err *err)
{
	_cleanup_close_ int target = -EBADF;

	if (mkdir(RUN_DIRECTORY, 0755) < 0 && errno != EEXIST) {
		return err_set(err, -errno, "mount", "cannot make %s: %s", RUN_DIRECTORY,
			       strerrordesc_np(errno));
	}
	machine->boot_id_fd = cover(RUN_DIRECTORY "/boot-id", BOOT_ID_PATH, err);
	if (machine->boot_id_fd < 0) {
		return machine->boot_id_fd;
	}
	/* An image without /etc has no use for a machine ID. A link would lead elsewhere, and a
	 * fifo must not be waited for. */
	target = open(MACHINE_ID_PATH, O_RDONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
		      0444);
	if (target < 0) {
		return 0;
	}
	machine->machine_id_fd = cover(RUN_DIRECTORY "/machine-id", MACHINE_ID_PATH, err);
	return machine->machine_id_fd < 0 ? machine->machine_id_fd : 0;
}

static int open_inside(struct machine *machine, struct err *err)
{
	if (!device_attribute("/proc/sys/kernel", "random", "boot_id", machine->boot_id,
			      sizeof(machine->boot_id)) ||
	    uname(&machine->uts) < 0) {
		return err_set(err, -errno, "boot", "cannot read the kernel's boot_id: %s",
			       strerrordesc_np(errno));
	}
	machine->random_fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
	if (machine->random_fd < 0) {
		return err_set(err, -errno, "boot", "cannot open /dev/urandom: %s",
			       strerrordesc_np(errno));
	}
	machine->cgroup_fd = open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return cover_ids(machine, err);
}

/* ---- Network ---- */

/* Whether each port of the console device has been told its name. */
static bool ports_named(void)
{
	DIR *stream = opendir(PORTS_CLASS);
	struct dirent *entry;
	bool named = true;

	while (stream && named && (entry = readdir(stream))) {
		char text[128];

		named = entry->d_name[0] == '.' ||
			device_attribute(PORTS_CLASS, entry->d_name, "name", text, sizeof(text));
	}
	if (stream) {
		closedir(stream);
	}
	return named;
}

/*
 * Finds the port box.net if this machine has one. The monitor tells of all ports before it names
 * one of them, and the control port has its name; so it is here, and only its name may not be.
 */
static void find_net(struct machine *machine)
{
	uint64_t end = clock_monotonic_ns() + DEVICES_TIMEOUT_MS * UINT64_C(1000000);

	while (!ports_named() && clock_monotonic_ns() < end) {
		nanosleep(&(struct timespec){.tv_nsec = DEVICES_POLL_NS}, NULL);
	}
	if (!device_find(PORTS_CLASS, "name", NET_PORT_NAME, machine->net_path,
			 sizeof(machine->net_path))) {
		machine->net_path[0] = '\0';
	}
}

/*
 * Says in /etc/resolv.conf whom to ask. In an image it is often a link to a file on /run that a
 * daemon would make, and the directory is made for that. An image without /etc has no use for it.
 */
static int cover_resolver(const char *text, struct err *err)
{
	_cleanup_close_ int file_fd = -EBADF, target_fd = -EBADF;
	char link[256];
	ssize_t size = readlink(RESOLVER_PATH, link, sizeof(link) - 1);
	int rc;

	if (size > 0) {
		link[size] = '\0';
		for (char *slash = strchr(link + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
			_cleanup_close_ int etc_fd = open("/etc", O_PATH | O_DIRECTORY | O_CLOEXEC);

			*slash = '\0';
			/* One that cannot be made shows below. */
			(void)mkdirat(etc_fd, link, 0755);
			*slash = '/';
		}
	}
	target_fd = open(RESOLVER_PATH, O_RDONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0644);
	if (target_fd < 0) {
		return 0;
	}
	file_fd = cover(RUN_DIRECTORY "/resolv.conf", RESOLVER_PATH, err);
	if (file_fd < 0) {
		return file_fd;
	}
	rc = fchmod(file_fd, 0644) < 0 ? -errno : write_full(file_fd, text, strlen(text));
	return rc < 0 ? err_set(err, rc, "boot", "cannot write %s: %s", RESOLVER_PATH,
				strerrordesc_np(-rc))
		      : 0;
}

static int boot_net(struct machine *machine, struct err *err)
{
	int rc;

	bring_up_loopback();
	find_net(machine);
	rc = cover_resolver(machine->net_path[0] != '\0' ? NET_RESOLVER : NET_NO_RESOLVER, err);
	if (rc == 0 && machine->net_path[0] != '\0') {
		rc = net_boot(&machine->net, err);
	}
	return rc;
}

/* Everything that the host can be told about once the control port is open. */
static int boot_root(struct machine *machine, struct err *err)
{
	int rc = mount_root(machine, err);

	if (rc < 0) {
		return rc;
	}
	open_data(machine);
	rc = switch_root(err);
	if (rc == 0) {
		rc = mount_inside(err);
	}
	if (rc == 0) {
		rc = make_inside(err);
	}
	if (rc == 0) {
		rc = open_inside(machine, err);
	}
	return rc == 0 ? boot_net(machine, err) : rc;
}

int machine_boot(struct machine *machine, struct err *err)
{
	static const struct mount_point early[] = {
		{"/dev", "devtmpfs", "mode=0755", MS_NOSUID, 0755},
		{"/proc", "proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0755},
		{"/sys", "sysfs", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0755},
	};
	int rc;

	*machine = (struct machine){
		.emulated = processor_is_emulated(),
		.port_fd = -EBADF,
		.random_fd = -EBADF,
		.data_fd = -EBADF,
		.frozen_fd = -EBADF,
		.machine_id_fd = -EBADF,
		.boot_id_fd = -EBADF,
		.cgroup_fd = -EBADF,
		.net = NET_NONE,
	};
	reboot(RB_DISABLE_CAD);
	rc = mount_points(early, ARRAY_SIZE(early), err);
	if (machine->emulated) {
		processor_gather();
	}
	if (rc == 0) {
		rc = load_modules(err);
	}
	if (rc == 0) {
		rc = open_port(machine, err);
	}
	if (rc < 0) {
		return rc;
	}
	rc = boot_root(machine, &machine->failure);
	if (rc < 0) {
		machine_say(machine->failure.text);
	}
	return 0;
}
