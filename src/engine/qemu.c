/*
 * The engine `qemu`.
 *
 * What flows in: descriptors of disks, memory, device state, control port and console, and the
 * description of a machine. What flows out: events to the keeper. QEMU runs in a jail (jail/jail.h)
 * whose root holds its binary, libraries and firmware; every disk and channel is a descriptor that
 * was open before, so a QEMU that the guest has broken can open nothing that matters.
 *
 * Snapshots use the migration capability x-ignore-shared: guest memory lies in a file of its own,
 * only device state goes through the migration stream. A restore maps that file copy-on-write.
 * QEMU before 8.2 opens the file for writing even then, so its open(2) is answered through a
 * seccomp notification with a descriptor that is open for reading only: a broken QEMU cannot
 * change the snapshot that later machines start from.
 *
 * A restored machine gets no kernel and no initramfs: both are in its memory already.
 */
#include "engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "engine/qmp.h"

#define QEMU_PATH "/usr/bin/qemu-system-x86_64"
#define QEMU_TCG_MODULE "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so"
/* Where firmware lies inside the jail; QEMU is told with -L. */
#define FIRMWARE_INSIDE "/firmware"
/* The memory file has no path in the jail: opening this one is answered with its descriptor. */
#define MEMORY_INSIDE "/memory"

/* The emulator's own translation buffer; larger ones gain nothing and could not be bounded. */
#define TCG_BUFFER_MIB 128
/* Address space beyond guest memory: libraries, thread stacks, translation buffer. */
#define ADDRESS_SPACE_EXTRA ((uint64_t)3 << 30)
/* security.md: guest memory and this much. */
#define CGROUP_MEMORY_EXTRA ((uint64_t)256 << 20)
#define CGROUP_PIDS 512
#define OPEN_FILES 128
#define PROCESSES 256
/* What QEMU says on stderr before it ends; enough for its one line. */
#define COMPLAINT_MAX 1024
/* All generated arguments of one QEMU together. */
#define ARENA_SIZE 16384

static const struct {
	const char *host_path;
	const char *inside_path;
	bool boot_only;
} firmware_files[] = {
	{"/usr/share/seabios/bios-256k.bin", FIRMWARE_INSIDE "/bios-256k.bin", false},
	{"/usr/share/qemu/kvmvapic.bin", FIRMWARE_INSIDE "/kvmvapic.bin", false},
	{"/usr/share/qemu/linuxboot_dma.bin", FIRMWARE_INSIDE "/linuxboot_dma.bin", true},
};

enum phase {
	PHASE_STARTING,
	PHASE_LOADING,
	PHASE_RUNNING,
	PHASE_SAVING,
	PHASE_QUITTING,
	PHASE_ENDED,
};

struct engine {
	struct engine_config config;
	struct engine_events events;
	struct loop *loop;
	struct jail jail;
	struct jail_process process;
	bool spawned;
	struct qmp *qmp;
	enum phase phase;
	bool restoring;
	void (*paused)(void *data);
	void *paused_data;
	int complaint_fd;
	size_t complaint_size;
	char complaint[COMPLAINT_MAX];
	const char *argv[JAIL_ARGS_MAX];
	size_t argc;
	int next_number;
	size_t arena_used;
	char arena[ARENA_SIZE];
};

/* Formats one string into the engine's arena. Too small an arena is our own mistake. */
static const char *arena_print(struct engine *engine, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static const char *arena_print(struct engine *engine, const char *format, ...)
{
	char *start = engine->arena + engine->arena_used;
	size_t left = sizeof(engine->arena) - engine->arena_used;
	va_list args;
	int length;

	va_start(args, format);
	length = vsnprintf(start, left, format, args);
	va_end(args);
	ASSERT(length >= 0 && (size_t)length < left);
	engine->arena_used += (size_t)length + 1;
	return start;
}

static void add_argument(struct engine *engine, const char *argument)
{
	ASSERT(engine->argc + 1 < JAIL_ARGS_MAX);
	engine->argv[engine->argc++] = argument;
}

static void add_option(struct engine *engine, const char *option, const char *value)
{
	add_argument(engine, option);
	add_argument(engine, value);
}

/* Hands a descriptor to the jail under the next free number, which is returned. */
static int pass_fd(struct engine *engine, int fd, struct err *err)
{
	int rc = jail_add_fd(&engine->jail, fd, engine->next_number, err);

	return rc < 0 ? rc : engine->next_number++;
}

static int add_layer(struct engine *engine, const struct engine_disk *disk, size_t layer,
		     struct err *err)
{
	const struct engine_layer *what = &disk->layers[layer];
	bool writable = layer + 1 == disk->layer_count && !disk->read_only;
	const char *access = writable ? "discard=unmap" : "read-only=on";
	const char *backing = "";
	int number = pass_fd(engine, what->fd, err);

	if (number < 0) {
		return number;
	}
	add_option(engine, "-add-fd", arena_print(engine, "fd=%d,set=%d", number, number));
	add_option(
		engine, "-blockdev",
		arena_print(engine,
			    "driver=file,node-name=%s-f%zu,filename=/dev/fdset/%d,locking=off,%s",
			    disk->serial, layer, number, access));
	if (what->qcow2 && layer > 0) {
		backing = arena_print(engine, ",backing=%s-%zu", disk->serial, layer - 1);
	}
	add_option(engine, "-blockdev",
		   arena_print(engine, "driver=%s,node-name=%s-%zu,file=%s-f%zu,%s%s",
			       what->qcow2 ? "qcow2" : "raw", disk->serial, layer, disk->serial,
			       layer, access, backing));
	return 0;
}

static int add_disk(struct engine *engine, const struct engine_disk *disk, struct err *err)
{
	size_t top = disk->layer_count > 0 ? disk->layer_count - 1 : 0;

	for (size_t i = 0; i < disk->layer_count; i++) {
		int rc = add_layer(engine, disk, i, err);

		if (rc < 0) {
			return rc;
		}
	}
	if (disk->layer_count == 0) {
		add_option(engine, "-blockdev",
			   arena_print(engine,
				       "driver=null-co,node-name=%s-0,size=%llu,read-zeroes=on",
				       disk->serial, (unsigned long long)disk->size_bytes));
	}
	/* By default QEMU pauses the machine when the host's disk is full, and nobody would ever
	 * let it go on. The guest is told of the error instead. */
	add_option(engine, "-device",
		   arena_print(engine,
			       "virtio-blk-pci,drive=%s-%zu,serial=%s,werror=report,rerror=report",
			       disk->serial, top, disk->serial));
	return 0;
}

static void add_machine(struct engine *engine)
{
	const struct engine_config *config = &engine->config;

	add_argument(engine, QEMU_PATH);
	add_option(engine, "-L", FIRMWARE_INSIDE);
	add_option(engine, "-M",
		   "q35,memory-backend=m0,sata=off,smbus=off,i8042=off,vmport=off,usb=off");
	if (config->hardware) {
		add_option(engine, "-accel", "kvm");
		/* Nested virtualization is a large part of KVM that no sandbox needs. */
		add_option(engine, "-cpu", "host,-vmx,-svm");
	} else {
		add_option(engine, "-accel",
			   arena_print(engine, "tcg,thread=multi,tb-size=%d", TCG_BUFFER_MIB));
		/* Not "max,-svm": with that QEMU 7.2 gives programs wrong results (readlink(2)
		 * fails). */
		add_option(engine, "-cpu", "max");
	}
	add_option(engine, "-m", arena_print(engine, "%u", config->ram_mib));
	add_option(engine, "-smp", arena_print(engine, "%u", config->cpus));
	if (config->memory_fd >= 0) {
		add_option(engine, "-object",
			   arena_print(engine,
				       "memory-backend-file,id=m0,size=%uM,mem-path=%s,share=%s",
				       config->ram_mib, MEMORY_INSIDE,
				       engine->restoring ? "off" : "on"));
	} else {
		add_option(
			engine, "-object",
			arena_print(engine, "memory-backend-ram,id=m0,size=%uM", config->ram_mib));
	}
	add_argument(engine, "-nodefaults");
	add_argument(engine, "-no-user-config");
	add_argument(engine, "-no-reboot");
	add_option(engine, "-display", "none");
	add_option(engine, "-device", "virtio-rng-pci");
}

static int add_channels(struct engine *engine, int qmp_fd, struct err *err)
{
	int ctl = pass_fd(engine, engine->config.ctl_fd, err);
	int console = ctl < 0 ? ctl : pass_fd(engine, engine->config.console_fd, err);
	int qmp = console < 0 ? console : pass_fd(engine, qmp_fd, err);

	if (qmp < 0) {
		return qmp;
	}
	add_option(engine, "-chardev", arena_print(engine, "socket,id=ctl,fd=%d", ctl));
	add_option(engine, "-chardev", arena_print(engine, "socket,id=console,fd=%d", console));
	add_option(engine, "-chardev", arena_print(engine, "socket,id=qmp,fd=%d", qmp));
	add_option(engine, "-device", "virtio-serial-pci,max_ports=8");
	add_option(engine, "-device", "virtserialport,chardev=ctl,name=box.ctl");
	add_option(engine, "-serial", "chardev:console");
	add_option(engine, "-mon", "chardev=qmp,mode=control");
	return 0;
}

static int add_start(struct engine *engine, struct err *err)
{
	const struct engine_config *config = &engine->config;
	int rc;

	if (engine->restoring) {
		rc = pass_fd(engine, config->devices_fd, err);
		add_option(engine, "-incoming", "defer");
		return rc;
	}
	rc = jail_add_bind(&engine->jail, config->kernel_path, "/kernel", false, err);
	if (rc == 0) {
		rc = jail_add_bind(&engine->jail, config->initrd_path, "/initramfs", false, err);
	}
	add_option(engine, "-kernel", "/kernel");
	add_option(engine, "-initrd", "/initramfs");
	/* A panic ends the machine at once (-no-reboot); the console says why. */
	add_option(engine, "-append", "console=ttyS0 quiet panic=-1 reboot=t");
	return rc;
}

static int describe_files(struct engine *engine, struct err *err)
{
	int rc = jail_add_program(&engine->jail, QEMU_PATH, err);

	if (rc == 0 && !engine->config.hardware && access(QEMU_TCG_MODULE, R_OK) == 0) {
		rc = jail_add_program(&engine->jail, QEMU_TCG_MODULE, err);
	}
	if (rc == 0 && engine->config.hardware) {
		rc = jail_add_bind(&engine->jail, "/dev/kvm", NULL, true, err);
	}
	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(firmware_files); i++) {
		if (!firmware_files[i].boot_only || !engine->restoring) {
			rc = jail_add_bind(&engine->jail, firmware_files[i].host_path,
					   firmware_files[i].inside_path, false, err);
		}
	}
	return rc;
}

static void describe_limits(struct engine *engine)
{
	const struct engine_config *config = &engine->config;
	uint64_t memory = (uint64_t)config->ram_mib << 20;
	uint64_t largest = 0;

	for (size_t i = 0; i < config->disk_count; i++) {
		largest = MAX(largest, config->disks[i].size_bytes);
	}
	engine->jail.name = "qemu";
	engine->jail.program = QEMU_PATH;
	engine->jail.argv = engine->argv;
	engine->jail.host_uid = config->host_uid;
	engine->jail.host_gid = config->host_gid;
	engine->jail.policy = &jail_policy_qemu;
	engine->jail.notify = true;
	engine->jail.address_space_bytes = memory + ADDRESS_SPACE_EXTRA;
	/* A full qcow2 is larger than its disk by its tables, which stay well below a 64th. */
	engine->jail.file_size_bytes = largest + largest / 64 + ((uint64_t)1 << 30);
	engine->jail.open_files = OPEN_FILES;
	engine->jail.processes = PROCESSES;
	engine->jail.cgroup_memory_bytes = memory + CGROUP_MEMORY_EXTRA;
	engine->jail.cgroup_pids = CGROUP_PIDS;
}

static void drop_watches(struct engine *engine)
{
	if (engine->spawned) {
		loop_remove(engine->loop, engine->process.pidfd);
		loop_remove(engine->loop, engine->process.notify_fd);
	}
	if (engine->complaint_fd >= 0) {
		loop_remove(engine->loop, engine->complaint_fd);
	}
	qmp_free(TAKE_PTR(engine->qmp));
}

static void read_complaint(struct engine *engine)
{
	size_t room = sizeof(engine->complaint) - 1 - engine->complaint_size;
	ssize_t got = room > 0 ? read(engine->complaint_fd,
				      engine->complaint + engine->complaint_size, room)
			       : 0;

	if (got > 0) {
		engine->complaint_size += (size_t)got;
		engine->complaint[engine->complaint_size] = '\0';
		return;
	}
	if (got == 0) {
		loop_remove(engine->loop, engine->complaint_fd);
	}
}

/* Ends the machine once, with a reason; later reasons are consequences and are dropped. */
static void end(struct engine *engine, const char *code, const char *reason)
{
	struct err err = {0};
	char *newline;

	if (engine->phase == PHASE_ENDED) {
		return;
	}
	engine->phase = PHASE_ENDED;
	if (engine->complaint_fd >= 0) {
		read_complaint(engine);
	}
	drop_watches(engine);
	newline = strchr(engine->complaint, '\n');
	if (newline) {
		*newline = '\0';
	}
	err_set(&err, -EIO, code, "machine monitor: %s%s%s", reason,
		engine->complaint[0] ? ": " : "", engine->complaint);
	engine->events.ended(engine->events.data, &err);
}

static void on_monitor_exit(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct engine *engine = data;
	siginfo_t info = {0};
	char reason[96];

	(void)loop;
	(void)events;
	if (waitid(P_PIDFD, (id_t)fd, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0) {
		return;
	}
	if (info.si_code == CLD_EXITED) {
		snprintf(reason, sizeof(reason), "ended with exit code %d", info.si_status);
	} else {
		snprintf(reason, sizeof(reason), "was killed by signal %d", info.si_status);
	}
	end(engine, "monitor-died", reason);
}

static void on_notification(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct engine *engine = data;

	if (!(events & EPOLLIN) || jail_answer_open(fd, engine->config.memory_fd) == -ENOENT) {
		loop_remove(loop, fd);
	}
}

static void on_complaint(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct engine *engine = data;

	(void)fd;
	if (events & EPOLLIN && engine->complaint_size < sizeof(engine->complaint) - 1) {
		read_complaint(engine);
	} else {
		loop_remove(loop, engine->complaint_fd);
	}
}

/*
 * Starts loading the snapshot as soon as QEMU listens. All goes out at once, and no byte more than
 * is needed, for QEMU reads this channel byte by byte. When the state cannot be loaded QEMU ends.
 */
static int send_restore(struct engine *engine)
{
	char uri[64];
	int number = engine->next_number - 1;
	int rc;

	snprintf(uri, sizeof(uri), "{\"uri\":\"fd:%d\"}", number);
	rc = qmp_send(engine->qmp, "migrate-set-capabilities",
		      "{\"capabilities\":[{\"capability\":\"x-ignore-shared\",\"state\":true}]}",
		      -1);
	return rc < 0 ? rc : qmp_send(engine->qmp, "migrate-incoming", uri, -1);
}

static void on_greeting(struct engine *engine)
{
	if (!engine->restoring && engine->phase == PHASE_STARTING) {
		engine->phase = PHASE_RUNNING;
		engine->events.running(engine->events.data);
	}
}

static void on_done(struct engine *engine, const char *command)
{
	void (*paused)(void *) = engine->paused;

	if (engine->phase == PHASE_LOADING && strcmp(command, "migrate-incoming") == 0) {
		engine->phase = PHASE_RUNNING;
		engine->events.running(engine->events.data);
	} else if (strcmp(command, "stop") == 0 && paused) {
		engine->paused = NULL;
		paused(engine->paused_data);
	}
}

static void on_migrated(struct engine *engine)
{
	if (engine->phase == PHASE_SAVING) {
		engine->phase = PHASE_QUITTING;
		engine->events.snapshot_done(engine->events.data);
	}
}

static void on_qmp(void *data, enum qmp_event event, const char *text)
{
	struct engine *engine = data;

	switch (event) {
	case QMP_GREETING:
		on_greeting(engine);
		break;
	case QMP_DONE:
		on_done(engine, text);
		break;
	case QMP_MIGRATED:
		on_migrated(engine);
		break;
	case QMP_FAILED:
		end(engine, "monitor-failed", text);
		break;
	case QMP_GUEST_ENDED:
		end(engine, "guest-ended", "the guest's kernel stopped");
		break;
	case QMP_CLOSED:
		/* The monitor is ending; its exit status tells more. */
		break;
	}
}

static int spawn(struct engine *engine, int complaint_write_fd, struct err *err)
{
	int rc = jail_add_fd(&engine->jail, complaint_write_fd, 2, err);

	if (rc == 0) {
		rc = jail_spawn(&engine->jail, &engine->process, err);
	}
	if (rc < 0) {
		return rc;
	}
	engine->spawned = true;
	rc = loop_add(engine->loop, engine->process.pidfd, EPOLLIN, on_monitor_exit, engine);
	if (rc == 0 && engine->process.notify_fd >= 0) {
		rc = loop_add(engine->loop, engine->process.notify_fd, EPOLLIN, on_notification,
			      engine);
	}
	if (rc == 0) {
		rc = loop_add(engine->loop, engine->complaint_fd, EPOLLIN, on_complaint, engine);
	}
	return rc < 0 ? err_context(err, rc, "machine monitor") : 0;
}

static int describe(struct engine *engine, int qmp_fd, struct err *err)
{
	int rc = describe_files(engine, err);

	add_machine(engine);
	for (size_t i = 0; rc == 0 && i < engine->config.disk_count; i++) {
		rc = add_disk(engine, &engine->config.disks[i], err);
	}
	if (rc == 0) {
		rc = add_channels(engine, qmp_fd, err);
	}
	if (rc == 0) {
		/* The device state gets the last number: send_restore counts on it. */
		rc = add_start(engine, err);
	}
	engine->argv[engine->argc] = NULL;
	describe_limits(engine);
	return rc < 0 ? rc : 0;
}

static int start(struct engine *engine, struct err *err)
{
	_cleanup_close_ int qmp_theirs = -EBADF;
	_cleanup_close_ int qmp_ours = -EBADF;
	_cleanup_close_ int complaint_write = -EBADF;
	int pair[2], complaints[2], rc;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		return err_context(err, -errno, "machine monitor");
	}
	qmp_ours = pair[0];
	qmp_theirs = pair[1];
	if (pipe2(complaints, O_CLOEXEC | O_NONBLOCK) < 0) {
		return err_context(err, -errno, "machine monitor");
	}
	engine->complaint_fd = complaints[0];
	complaint_write = complaints[1];
	rc = describe(engine, qmp_theirs, err);
	if (rc == 0) {
		rc = spawn(engine, complaint_write, err);
	}
	if (rc < 0) {
		return rc;
	}
	rc = qmp_new(qmp_ours, engine->loop, on_qmp, engine, &engine->qmp);
	if (rc < 0) {
		return err_context(err, rc, "machine monitor");
	}
	TAKE_FD(qmp_ours);
	if (engine->restoring) {
		engine->phase = PHASE_LOADING;
		rc = send_restore(engine);
	}
	return rc < 0 ? err_context(err, rc, "machine monitor") : 0;
}

int engine_start(const struct engine_config *config, struct loop *loop,
		 const struct engine_events *events, struct engine **ret_engine, struct err *err)
{
	struct engine *engine;
	int rc;

	ASSERT(config->disk_count <= ENGINE_DISKS_MAX);
	if (access(QEMU_PATH, X_OK) < 0) {
		rc = -errno;
		err_set(err, rc, "no-qemu", "machine monitor: %s: %s", QEMU_PATH, strerror(-rc));
		err_mend(err, "install it: sudo apt install qemu-system-x86");
		return rc;
	}
	engine = calloc(1, sizeof(*engine));
	if (!engine) {
		return err_context(err, -ENOMEM, "machine monitor");
	}
	engine->config = *config;
	engine->events = *events;
	engine->loop = loop;
	engine->restoring = config->devices_fd >= 0;
	engine->process.pidfd = -EBADF;
	engine->process.notify_fd = -EBADF;
	engine->complaint_fd = -EBADF;
	engine->next_number = 3;
	rc = start(engine, err);
	if (rc < 0) {
		engine_free(engine);
		return rc;
	}
	*ret_engine = engine;
	return 0;
}

int engine_snapshot(struct engine *engine, int devices_fd, struct err *err)
{
	int rc;

	if (engine->phase != PHASE_RUNNING) {
		/* The guest's word came before the monitor's own: one of them is not what it was.
		 */
		return err_set(err, -EPROTO, "monitor-failed",
			       "machine monitor: the machine does not run");
	}
	engine->phase = PHASE_SAVING;
	rc = qmp_send(engine->qmp, "migrate-set-capabilities",
		      "{\"capabilities\": [{\"capability\": \"x-ignore-shared\", \"state\": true},"
		      " {\"capability\": \"events\", \"state\": true}]}",
		      -1);
	if (rc == 0) {
		rc = qmp_send(engine->qmp, "getfd", "{\"fdname\": \"devices\"}", devices_fd);
	}
	if (rc == 0) {
		rc = qmp_send(engine->qmp, "migrate", "{\"uri\": \"fd:devices\"}", -1);
	}
	return rc < 0 ? err_context(err, rc, "snapshot") : 0;
}

int engine_pause(struct engine *engine, void (*paused)(void *data), void *data, struct err *err)
{
	int rc;

	engine->paused = paused;
	engine->paused_data = data;
	rc = qmp_send(engine->qmp, "stop", NULL, -1);
	return rc < 0 ? err_context(err, rc, "pausing the machine") : 0;
}

int engine_resume(struct engine *engine, struct err *err)
{
	int rc = qmp_send(engine->qmp, "cont", NULL, -1);

	return rc < 0 ? err_context(err, rc, "resuming the machine") : 0;
}

const struct jail *engine_jail(const struct engine *engine)
{
	return &engine->jail;
}

const struct jail_process *engine_process(const struct engine *engine)
{
	return &engine->process;
}

int engine_identity(char **ret_text, struct err *err)
{
	_cleanup_free_ char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out) {
		return err_context(err, -ENOMEM, "machine monitor");
	}
	for (size_t i = 0; i < ARRAY_SIZE(firmware_files) + 2; i++) {
		const char *path = i == 0   ? QEMU_PATH
				   : i == 1 ? QEMU_TCG_MODULE
					    : firmware_files[i - 2].host_path;
		struct stat status = {0};

		if (stat(path, &status) < 0) {
			status.st_size = -1;
		}
		fprintf(out, "monitor=%s %llx %lld %lld.%09ld %lld.%09ld\n", path,
			(unsigned long long)status.st_ino, (long long)status.st_size,
			(long long)status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
			(long long)status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
	}
	if (fclose(out) != 0) {
		return err_context(err, -ENOMEM, "machine monitor");
	}
	*ret_text = TAKE_PTR(text);
	return 0;
}

void engine_free(struct engine *engine)
{
	if (!engine) {
		return;
	}
	drop_watches(engine);
	if (engine->spawned) {
		jail_end(&engine->process);
		close_fd(&engine->process.pidfd);
		close_fd(&engine->process.notify_fd);
	}
	close_fd(&engine->complaint_fd);
	jail_clear(&engine->jail);
	free(engine);
}
