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
 * A machine that is copied while it runs cannot leave its memory behind so: what it has changed is
 * its own. There all of it goes through the stream, and the copy has it in anonymous memory. Since
 * it was saved while it stood still, it is told to go on when all has been loaded.
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
#include "base/mutant.h"
#include "engine/disk.h"
#include "engine/kernel.h"
#include "engine/monitor.h"
#include "engine/qmp.h"
#include "engine/replace.h"

/* The memory file has no path in the jail: opening this one is answered with its descriptor. */
#define MEMORY_INSIDE "/memory"

/* The emulator's own translation buffer; larger ones gain nothing and could not be bounded. */
#define TCG_BUFFER_MIB 128
/* What QEMU says on stderr before it ends; enough for its one line. */
#define COMPLAINT_MAX 1024
/* All generated arguments of one QEMU together. */
#define ARENA_SIZE 16384
/* How often the monitor is asked whether it has come to the end of saving, and how long at most. */
#define STATUS_STEP_MS 1
#define STATUS_TRIES 10000

enum phase {
	PHASE_STARTING,
	PHASE_LOADING,
	PHASE_RUNNING,
	PHASE_SAVING,
	PHASE_QUITTING,
	PHASE_ENDED,
};

/* A state that is being saved. */
struct saving {
	/* NULL: there is none. */
	void (*done)(void *data, int rc);
	void *data;
	/* The file, of which the monitor has a descriptor meanwhile. */
	uint64_t device;
	uint64_t inode;
	/* How it ended, and how often the monitor was asked since whether it has put all away. */
	int rc;
	unsigned asked;
	uint64_t timer;
};

struct engine {
	struct engine_config config;
	struct engine_events events;
	struct loop *loop;
	struct jail jail;
	/* Its list when the Boxfile takes calls away, or NULL. */
	struct jail_policy *narrowed;
	struct jail_process process;
	bool spawned;
	struct qmp *qmp;
	enum phase phase;
	bool restoring;
	void (*paused)(void *data);
	void *paused_data;
	struct disk_state disks[ENGINE_DISKS_MAX];
	struct replacer replacer;
	struct saving saving;
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

static int add_layers(struct engine *engine, const struct engine_disk *disk,
		      struct disk_state *state, struct err *err)
{
	for (size_t i = 0; i < disk->layer_count; i++) {
		int number = pass_fd(engine, disk->layers[i].fd, err);
		int rc;

		if (number < 0) {
			return number;
		}
		rc = replace_note_layer(state, disk->layers[i].fd, number);
		if (rc < 0) {
			return err_context(err, rc, "disk %s", disk->serial);
		}
		add_option(engine, "-add-fd", arena_print(engine, "fd=%d,set=%d", number, number));
	}
	return 0;
}

static int add_disk(struct engine *engine, const struct engine_disk *disk, struct disk_state *state,
		    struct err *err)
{
	char node[DISK_NODE_MAX], text[DISK_TEXT_MAX];
	int rc = add_layers(engine, disk, state, err);

	if (rc < 0) {
		return rc;
	}
	replace_print_node(disk->serial, state->generation, node);
	disk_describe(disk, node, state->sets, text);
	add_option(engine, "-blockdev", arena_print(engine, "%s", text));
	/* By default QEMU pauses the machine when the host's disk is full, and nobody would ever
	 * let it go on. The guest is told of the error instead. */
	add_option(
		engine, "-device",
		arena_print(engine,
			    "virtio-blk-pci,id=%s,drive=%s,serial=%s,werror=report,rerror=report",
			    disk->serial, node, disk->serial));
	return 0;
}

static void add_machine(struct engine *engine)
{
	const struct engine_config *config = &engine->config;

	add_argument(engine, QEMU_PATH);
	add_option(engine, "-L", MONITOR_FIRMWARE);
	add_option(engine, "-M",
		   "q35,memory-backend=m0,sata=off,smbus=off,i8042=off,vmport=off,usb=off");
	if (config->hardware) {
		add_option(engine, "-accel", "kvm");
		/* Nested virtualization is a large part of KVM that no sandbox needs. */
		add_option(engine, "-cpu", "host,-vmx,-svm");
		add_option(engine, "-smp", arena_print(engine, "%u", config->cpus));
	} else {
		add_option(engine, "-accel",
			   arena_print(engine, "tcg,thread=multi,tb-size=%d", TCG_BUFFER_MIB));
		/* Not "max,-svm": with that QEMU 7.2 gives programs wrong results (readlink(2)
		 * fails). */
		add_option(engine, "-cpu", "max");
		/* Without a cache in common: so the guest does not wake another processor whenever
		 * one is idle, which takes longer than what it is woken for. */
		add_option(engine, "-smp",
			   arena_print(engine, "%u,sockets=%u", config->cpus, config->cpus));
	}
	add_option(engine, "-m", arena_print(engine, "%u", config->ram_mib));
	if (config->memory_fd >= 0) {
		add_option(engine, "-object",
			   arena_print(engine,
				       "memory-backend-file,id=m0,size=%uM,mem-path=%s,share=%s",
				       config->ram_mib, MEMORY_INSIDE,
				       engine->restoring && !MUTANT("snapshot") ? "off" : "on"));
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
	/*
	 * Memory that the guest frees goes back to the host. What comes back later holds what the
	 * snapshot had there, not zeros: without page-poison a guest that counts on the contents of
	 * free pages (init_on_free) reports none.
	 */
	add_option(engine, "-device", "virtio-balloon-pci,free-page-reporting=on,page-poison=off");
}

/* Those that have the commands for another disk ready. */
static int add_ready_channels(struct engine *engine, struct err *err)
{
	const struct engine_config *config = &engine->config;
	struct replacer *replacer = &engine->replacer;
	int rc = 0;

	for (size_t i = 0; rc == 0 && config->replaced_soon && i < config->disk_count; i++) {
		if (strcmp(config->disks[i].serial, config->replaced_soon) == 0) {
			rc = replace_open(replacer, &config->disks[i]);
		}
	}
	if (rc < 0) {
		return err_context(err, rc, "machine monitor");
	}
	for (size_t i = 0; i < replacer->channel_count; i++) {
		int number = pass_fd(engine, replacer->theirs[i], err);

		if (number < 0) {
			return number;
		}
		add_option(engine, "-chardev",
			   arena_print(engine, "socket,id=qmp%zu,fd=%d", i, number));
		add_option(engine, "-mon", arena_print(engine, "chardev=qmp%zu,mode=control", i));
	}
	return 0;
}

static int add_channels(struct engine *engine, int qmp_fd, struct err *err)
{
	int ctl = pass_fd(engine, engine->config.ctl_fd, err);
	int console = ctl < 0 ? ctl : pass_fd(engine, engine->config.console_fd, err);
	int qmp = console < 0 ? console : pass_fd(engine, qmp_fd, err);
	bool has_net = engine->config.net_fd >= 0;
	int net = qmp < 0 || !has_net ? qmp : pass_fd(engine, engine->config.net_fd, err);

	if (net < 0) {
		return net;
	}
	add_option(engine, "-chardev", arena_print(engine, "socket,id=ctl,fd=%d", ctl));
	add_option(engine, "-chardev", arena_print(engine, "socket,id=console,fd=%d", console));
	add_option(engine, "-chardev", arena_print(engine, "socket,id=qmp,fd=%d", qmp));
	add_option(engine, "-device", "virtio-serial-pci,max_ports=8");
	add_option(engine, "-device", "virtserialport,chardev=ctl,name=box.ctl");
	if (has_net) {
		add_option(engine, "-chardev", arena_print(engine, "socket,id=net,fd=%d", net));
		add_option(engine, "-device", "virtserialport,chardev=net,name=box.net");
	}
	add_option(engine, "-serial", "chardev:console");
	add_option(engine, "-mon", "chardev=qmp,mode=control");
	return add_ready_channels(engine, err);
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
	add_option(engine, "-append", kernel_words());
	return rc;
}

static int describe_files(struct engine *engine, struct err *err)
{
	int rc = monitor_add_program(&engine->jail, !engine->config.hardware, err);

	if (rc == 0 && engine->config.hardware) {
		rc = jail_add_bind(&engine->jail, "/dev/kvm", NULL, true, err);
	}
	return rc < 0 ? rc : monitor_add_firmware(&engine->jail, !engine->restoring, err);
}

static void describe_limits(struct engine *engine)
{
	const struct engine_config *config = &engine->config;
	uint64_t memory = (uint64_t)config->ram_mib << 20;
	uint64_t largest = 0;

	for (size_t i = 0; i < config->disk_count; i++) {
		largest = MAX(largest, config->disks[i].size_bytes);
	}
	/* The memory of a machine that is copied goes into one file as well. */
	monitor_limit(&engine->jail, memory, MAX(largest, memory));
	engine->jail.argv = engine->argv;
	engine->jail.host_uid = config->host_uid;
	engine->jail.host_gid = config->host_gid;
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
	loop_timer_cancel(engine->loop, &engine->saving.timer);
	qmp_free(TAKE_PTR(engine->qmp));
	replace_close(&engine->replacer);
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
	end(engine, monitor_describe_end(&info, reason, sizeof(reason)), reason);
}

static void on_notification(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct engine *engine = data;

	if (!(events & EPOLLIN) ||
	    jail_answer(&engine->process, engine->config.memory_fd) == -ENOENT) {
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
	/* The end of loading memory is waited for, so it has to be told. */
	const char *capability = engine->config.memory_fd < 0 ? "events" : "x-ignore-shared";
	char uri[64], capabilities[128];
	int number = engine->next_number - 1;
	int rc;

	snprintf(uri, sizeof(uri), "{\"uri\":\"fd:%d\"}", number);
	snprintf(capabilities, sizeof(capabilities),
		 "{\"capabilities\":[{\"capability\":\"%s\",\"state\":true}]}", capability);
	rc = qmp_send(engine->qmp, "migrate-set-capabilities", capabilities, -1);
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

	if (engine->phase == PHASE_LOADING && engine->config.memory_fd >= 0 &&
	    strcmp(command, "migrate-incoming") == 0) {
		engine->phase = PHASE_RUNNING;
		engine->events.running(engine->events.data);
	} else if (strcmp(command, "stop") == 0 && paused) {
		engine->paused = NULL;
		paused(engine->paused_data);
	} else if (replace_on_done(&engine->replacer, command) < 0) {
		end(engine, "monitor-failed", "it takes no command for its disk");
	}
}

static void ask_status(struct loop *loop, void *data)
{
	struct engine *engine = data;

	(void)loop;
	engine->saving.timer = 0;
	if (qmp_send(engine->qmp, "query-status", NULL, -1) < 0) {
		end(engine, "monitor-failed", "it does not say what it does");
	}
}

static void end_saving(struct engine *engine, int rc)
{
	struct saving done = engine->saving;

	loop_timer_cancel(engine->loop, &engine->saving.timer);
	engine->saving = (struct saving){0};
	jail_forget_file(&engine->process, done.device, done.inode);
	done.done(done.data, rc);
}

static void on_migrated(struct engine *engine)
{
	if (engine->phase == PHASE_SAVING) {
		engine->phase = PHASE_QUITTING;
		engine->events.snapshot_done(engine->events.data);
	} else if (engine->phase == PHASE_LOADING) {
		engine->phase = PHASE_RUNNING;
		if (qmp_send(engine->qmp, "cont", NULL, -1) < 0) {
			end(engine, "monitor-failed", "it does not take the order to go on");
			return;
		}
		engine->events.running(engine->events.data);
	} else if (engine->saving.done) {
		ask_status(engine->loop, engine);
	}
}

/* The word that a migration is over comes a moment before the machine may go on. */
static void on_status(struct engine *engine, const char *status)
{
	struct saving *saving = &engine->saving;

	if (!saving->done) {
		return;
	}
	if (strcmp(status, "finish-migrate") != 0) {
		end_saving(engine, saving->rc);
	} else if (++saving->asked < STATUS_TRIES) {
		loop_timer_add(engine->loop, STATUS_STEP_MS, ask_status, engine, &saving->timer);
	} else {
		end(engine, "monitor-failed", "it does not come to the end of saving");
	}
}

static void on_not_migrated(struct engine *engine, const char *text)
{
	if (engine->saving.done) {
		engine->saving.rc = -EIO;
		ask_status(engine->loop, engine);
	} else {
		end(engine, "monitor-failed", text);
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
	case QMP_STATUS:
		on_status(engine, text);
		break;
	case QMP_NOT_MIGRATED:
		on_not_migrated(engine, text);
		break;
	case QMP_FAILED:
		end(engine, "monitor-failed", text);
		break;
	case QMP_GUEST_ENDED:
		end(engine, "guest-ended", "the guest's kernel stopped");
		break;
	case QMP_JOB_READY:
		/* A machine has no jobs. */
		break;
	case QMP_CLOSED:
		/* The monitor is ending; its exit status tells more. */
		break;
	}
}

/* What the channels say that have only commands for a disk. The rest comes over the other one. */
static void on_ready_channel(void *data, enum qmp_event event, const char *text)
{
	if (event == QMP_DONE || event == QMP_FAILED) {
		on_qmp(data, event, text);
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
		rc = add_disk(engine, &engine->config.disks[i], &engine->disks[i], err);
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
	return rc < 0 ? rc : monitor_narrow(&engine->jail, &engine->config, &engine->narrowed, err);
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
	engine->replacer.qmp = engine->qmp;
	engine->replacer.process = &engine->process;
	/* The descriptors' numbers name the first sets. QEMU reads every digit by itself. */
	rc = replace_get_ready(&engine->replacer, engine->next_number, engine->loop,
			       on_ready_channel, engine);
	if (rc == 0 && engine->restoring) {
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
	rc = monitor_check(err);
	if (rc < 0) {
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

int engine_save(struct engine *engine, int state_fd, void (*done)(void *data, int rc), void *data,
		struct err *err)
{
	static const struct {
		const char *name, *arguments;
	} commands[] = {
		{"migrate-set-capabilities",
		 "{\"capabilities\":[{\"capability\":\"x-ignore-shared\",\"state\":false},"
		 "{\"capability\":\"events\",\"state\":true}]}"},
		/* By default it holds itself back, for the sake of a network. */
		{"migrate-set-parameters", "{\"max-bandwidth\":1099511627776}"},
		{"getfd", "{\"fdname\":\"state\"}"},
		{"migrate", "{\"uri\":\"fd:state\"}"},
	};
	struct stat status;
	int rc = 0;

	if (engine->phase != PHASE_RUNNING || engine->saving.done) {
		return err_set(err, -EBUSY, "monitor-busy",
			       "machine monitor: the machine cannot be saved now");
	}
	if (fstat(state_fd, &status) < 0) {
		return err_context(err, -errno, "saving the machine");
	}
	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(commands); i++) {
		bool passes = strcmp(commands[i].name, "getfd") == 0;

		rc = qmp_send(engine->qmp, commands[i].name, commands[i].arguments,
			      passes ? state_fd : -1);
	}
	if (rc < 0) {
		return err_context(err, rc, "saving the machine");
	}
	engine->saving = (struct saving){
		.done = done, .data = data, .device = status.st_dev, .inode = status.st_ino};
	jail_note_file(&engine->process, status.st_dev, status.st_ino);
	return 0;
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

int engine_replace_disk(struct engine *engine, const struct engine_disk *disk, bool keep_old,
			void (*done)(void *data), void *data, struct err *err)
{
	struct engine_disk next;
	size_t at = 0;
	int rc;

	ASSERT(disk->layer_count <= ENGINE_LAYERS_MAX);
	while (at < engine->config.disk_count &&
	       strcmp(engine->config.disks[at].serial, disk->serial) != 0) {
		at++;
	}
	ASSERT(at < engine->config.disk_count);
	if (engine->phase != PHASE_RUNNING) {
		return err_set(err, -EPROTO, "monitor-failed",
			       "machine monitor: the machine does not run");
	}
	if (engine->replacer.disk) {
		return err_set(err, -EBUSY, "monitor-busy",
			       "machine monitor: a disk is being replaced already");
	}
	next = engine->config.disks[at];
	memcpy(next.layers, disk->layers, sizeof(next.layers));
	next.layer_count = disk->layer_count;
	rc = replace_begin(&engine->replacer, &engine->disks[at], &next, keep_old, done, data);
	return rc < 0 ? err_context(err, rc, "disk %s", disk->serial) : 0;
}

const struct jail *engine_jail(const struct engine *engine)
{
	return &engine->jail;
}

const struct jail_process *engine_process(const struct engine *engine)
{
	return &engine->process;
}

void engine_stop(struct engine *engine)
{
	if (!engine) {
		return;
	}
	if (engine->spawned) {
		jail_begin_stop(&engine->process);
	}
	drop_watches(engine);
	if (engine->spawned) {
		jail_stop(&engine->process);
	}
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
	free(engine->narrowed);
	free(engine);
}
