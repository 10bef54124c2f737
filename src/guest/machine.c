#include "guest/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"

/* How long commands may take to end by themselves at SHUTDOWN. The caller is waiting. */
#define GRACE_MS 100u
/* How long killed processes may take to be gone: they may wait for a slow disk. */
#define KILL_MS 5000u
/* How many mounts below /data are undone; nobody has that many by accident. */
#define NESTED_MOUNTS_MAX 64
/* /proc/self/mountinfo as far as it is looked at. */
#define MOUNTINFO_MAX 65536

void machine_say(const char *text)
{
	char line[1024];
	size_t length = strnlen(text, sizeof(line) - 16);

	memcpy(line, "box-guest: ", 11);
	memcpy(line + 11, text, length);
	line[11 + length] = '\n';
	/* Where there is no console there is nobody to tell. */
	(void)!write(STDERR_FILENO, line, length + 12);
}

/* Reaps until no child is left. Returns 0 or -ETIMEDOUT. SIGCHLD is blocked. */
static int reap_all(unsigned timeout_ms)
{
	uint64_t end = clock_monotonic_ns() + timeout_ms * UINT64_C(1000000);
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	for (;;) {
		siginfo_t info = {.si_pid = 0};
		struct timespec rest;
		uint64_t now;

		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) < 0) {
			return 0;
		}
		if (info.si_pid != 0) {
			continue;
		}
		now = clock_monotonic_ns();
		if (now >= end) {
			return -ETIMEDOUT;
		}
		rest.tv_sec = (time_t)((end - now) / 1000000000u);
		rest.tv_nsec = (long)((end - now) % 1000000000u);
		sigtimedwait(&signals, NULL, &rest);
	}
}

/* Ends every other process. Only process 1 of a machine may do this. */
static int end_processes(int signal, unsigned timeout_ms)
{
	ASSERT(getpid() == 1);
	kill(-1, signal);
	return reap_all(timeout_ms);
}

/* The mount point of a line of proc(5) mountinfo, terminated in place, or NULL. */
static char *mount_point_of(char *line)
{
	char *field = line;

	for (int i = 0; i < 4 && field; i++) {
		field = strchr(field, ' ');
		if (field) {
			field++;
		}
	}
	if (field) {
		field[strcspn(field, " ")] = '\0';
	}
	return field;
}

/* Unmounts the last mount below /data. Returns whether there was one and it is gone. */
static bool unmount_nested(void)
{
	_cleanup_close_ int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	static char text[MOUNTINFO_MAX];
	char *last = NULL;
	ssize_t got;

	if (fd < 0) {
		return false;
	}
	got = read_full(fd, text, sizeof(text) - 1);
	text[MAX(got, 0)] = '\0';
	for (char *line = text; line;) {
		char *next = strchr(line, '\n');
		char *point;

		if (next) {
			*next++ = '\0';
		}
		point = mount_point_of(line);
		if (point && strncmp(point, "/data/", 6) == 0) {
			last = point;
		}
		line = next;
	}
	return last && umount2(last, UMOUNT_NOFOLLOW) == 0;
}

static int unmount_data(struct machine *machine)
{
	if (!machine->data_mounted) {
		return 0;
	}
	for (int i = 0; umount2("/data", UMOUNT_NOFOLLOW) < 0; i++) {
		if (errno != EBUSY || i >= NESTED_MOUNTS_MAX || !unmount_nested()) {
			return -EBUSY;
		}
	}
	machine->data_mounted = false;
	return 0;
}

/* Whether /data is our disk, and not something that root inside has mounted over it. */
static bool data_in_sight(const struct machine *machine, int fd)
{
	struct stat mounted, disk;

	return fstat(fd, &mounted) == 0 && fstat(machine->data_fd, &disk) == 0 &&
	       mounted.st_dev == disk.st_rdev;
}

/*
 * Leaves the disk of /data clean, with everything written. A file system that becomes read-only is
 * as clean as one that is unmounted, and it is much less work: nothing is torn down, no thread of
 * the kernel is ended. Its last block, which says that it is clean, is on the disk when the mount
 * returns (REQ_FUA), so no flush is left to do. What cannot be written is told here or never.
 */
static int close_data(const struct machine *machine)
{
	if (!machine->data_mounted) {
		return 0;
	}
	for (int i = 0; i < NESTED_MOUNTS_MAX; i++) {
		/* Errors of writing from here on are told to it, also those of the mount. */
		_cleanup_close_ int fd = open("/data", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		int rc = 0;

		if (fd >= 0 && data_in_sight(machine, fd)) {
			if (mount(NULL, "/data", NULL,
				  MS_REMOUNT | MS_RDONLY | MS_NOATIME | MS_NOSUID | MS_NODEV,
				  NULL) < 0) {
				rc = -errno;
			}
			if (rc == -EBUSY) {
				machine_say("/data is in use; it was synced");
				rc = 0;
			}
			return syncfs(fd) < 0 ? -errno : rc;
		}
		/* What root inside has mounted over it; or it is not mounted any more. */
		if (umount2("/data", UMOUNT_NOFOLLOW | MNT_DETACH) < 0) {
			break;
		}
	}
	sync();
	return fsync(machine->data_fd) < 0 ? -errno : 0;
}

/* Ends every other process, then unmounts /data. code is the error's. */
static int come_to_rest(struct machine *machine, const char *code, struct err *err)
{
	int rc = end_processes(SIGKILL, KILL_MS);

	if (rc < 0) {
		return err_set(err, rc, code, "processes could not be killed");
	}
	net_stop(&machine->net);
	net_forget_names(&machine->net);
	/* First as at the end of a run, which a machine of the pool has then done before. */
	rc = close_data(machine);
	if (rc < 0) {
		return err_set(err, rc, code, "/data cannot be written: %s", strerrordesc_np(-rc));
	}
	rc = unmount_data(machine);
	if (rc < 0) {
		return err_set(err, rc, code, "/data cannot be unmounted: it is in use");
	}
	return 0;
}

int machine_freeze(void *data, struct err *err)
{
	int rc = come_to_rest(data, "freeze", err);

	if (rc == 0) {
		sync();
	}
	return rc;
}

int machine_start_net(struct machine *machine, struct err *err)
{
	_cleanup_close_ int port_fd = -EBADF;

	if (machine->net_path[0] == '\0') {
		return 0;
	}
	net_stop(&machine->net);
	port_fd = open(machine->net_path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (port_fd < 0) {
		return err_set(err, -errno, "network", "cannot open %s: %s", machine->net_path,
			       strerrordesc_np(errno));
	}
	return net_start(&machine->net, port_fd, NULL, err);
}

int machine_detach(void *data, struct err *err)
{
	struct machine *machine = data;
	int rc = come_to_rest(machine, "detach", err);

	/* The last blocks of an unmount are written without a flush of the disk's cache. Then what
	 * is cached of the disk is forgotten: its place may be taken by another. */
	if (rc == 0 && machine->data_fd >= 0 &&
	    (fsync(machine->data_fd) < 0 || ioctl(machine->data_fd, BLKFLSBUF, 0) < 0)) {
		rc = err_set(err, -errno, "detach", "cannot write %s: %s", machine->data_path,
			     strerrordesc_np(errno));
	}
	return rc == 0 ? machine_start_net(machine, err) : rc;
}

int machine_pause(void *data)
{
	struct machine *machine = data;
	_cleanup_close_ int fd = -EBADF;

	if (!machine->data_mounted) {
		return 0;
	}
	fd = open("/data", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) {
		return -errno;
	}
	if (!data_in_sight(machine, fd)) {
		return -EBUSY;
	}
	if (ioctl(fd, FIFREEZE, 0) < 0) {
		return -errno;
	}
	machine->frozen_fd = TAKE_FD(fd);
	return 0;
}

void machine_resume(void *data)
{
	struct machine *machine = data;

	/* Root inside may have been faster; then it is what we want. */
	if (machine->frozen_fd >= 0 && ioctl(machine->frozen_fd, FITHAW, 0) < 0 &&
	    errno != EINVAL) {
		machine_say("/data cannot be thawed");
	}
	close_fd(&machine->frozen_fd);
}

int machine_shutdown(void *data, bool root_too, struct err *err)
{
	struct machine *machine = data;
	int rc;

	if (end_processes(SIGTERM, GRACE_MS) < 0) {
		end_processes(SIGKILL, KILL_MS);
	}
	rc = close_data(machine);
	if (root_too) {
		sync();
		if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY | MS_NOATIME, NULL) == 0) {
			machine->root_readonly = true;
		} else {
			machine_say("the root cannot be made read-only; it was synced");
		}
	}
	return rc < 0 ? err_set(err, rc, "data", "not all of /data could be written") : 0;
}

void machine_power_off(void)
{
	ASSERT(getpid() == 1);
	kill(-1, SIGKILL);
	sync();
	for (;;) {
		reboot(RB_POWER_OFF);
		/* The kernel could not. Process 1 must not end; the host will end the machine. */
		pause();
	}
}
