/*
 * box-keeper: the life of one machine.
 *
 * What flows in: messages of the client that started it (ipc/ipc.h), frames of the guest on the
 * control port (wire/ctl.h), events of the engine. What flows out: the answers to both. The keeper
 * starts the engine in its jail, makes a restored machine distinct before anything runs in it, and
 * hands out streams. It ends when its client is gone, when the machine has ended, or when it was
 * told to; the monitor dies with it in every case.
 *
 * What may never happen: that the guest's bytes reach anything but its own streams, or that the
 * keeper's memory grows with what the guest sends.
 */
#include "keeper/keeper.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/io.h"

/* Software emulation on a busy host boots in tens of seconds at worst; a restore takes one. */
#define BOOT_LIMIT_MS 180000
#define RESTORE_LIMIT_MS 60000
/* Writing everything that the guest has cached can take long on a slow disk. */
#define SHUTDOWN_LIMIT_MS 300000

/* Ends the keeper with a reason for the client. The first one counts. */
void keeper_fail(struct keeper *keeper, const struct err *err)
{
	struct ipc_message message = {.type = IPC_FAILED};

	if (keeper->phase == KEEPER_ENDING) {
		return;
	}
	keeper->phase = KEEPER_ENDING;
	snprintf(message.failed.code, sizeof(message.failed.code), "%s", err->code);
	snprintf(message.failed.text, sizeof(message.failed.text), "%s", err->text);
	snprintf(message.failed.mend, sizeof(message.failed.mend), "%s", err->mend);
	ipc_send(keeper->client_fd, &message, NULL, 0);
	loop_stop(keeper->loop, EXIT_BOX_FAILED);
}

void keeper_tell(struct keeper *keeper, const struct ipc_message *message)
{
	if (ipc_send(keeper->client_fd, message, NULL, 0) < 0 && keeper->phase != KEEPER_ENDING) {
		keeper->phase = KEEPER_ENDING;
		loop_stop(keeper->loop, EXIT_BOX_FAILED);
	}
}

void keeper_fail_text(struct keeper *keeper, const char *code, const char *text, const char *mend)
{
	struct err err = {0};

	err_set(&err, -EIO, code, "%s: %s", keeper->start.name, text);
	err_mend(&err, "%s", mend);
	keeper_fail(keeper, &err);
}

/* Everything is on the disks: end the machine and tell the client. */
static void go_down(struct keeper *keeper)
{
	struct ipc_message message = {.type = IPC_DOWN};

	if (keeper->phase == KEEPER_ENDING) {
		return;
	}
	keeper->phase = KEEPER_ENDING;
	engine_free(TAKE_PTR(keeper->engine));
	if (keeper->start.mode == IPC_START_BUILD) {
		/* The image is kept, unlike the root of a run. */
		fsync(keeper->files.image_fd);
	}
	ipc_send(keeper->client_fd, &message, NULL, 0);
	loop_stop(keeper->loop, EXIT_OK);
}

static void on_limit(struct loop *loop, void *data)
{
	struct keeper *keeper = data;

	(void)loop;
	keeper->timer = 0;
	if (keeper->phase == KEEPER_STARTING) {
		keeper_fail_text(keeper, "guest-silent", "the guest did not answer in time",
				 "look at the host's load; make the snapshot again with "
				 "box build --no-cache");
	} else {
		keeper_fail_text(keeper, "guest-stuck",
				 "the guest did not finish writing its disks in time",
				 "what it had synced before is safe; run the command again");
	}
}

static void set_limit(struct keeper *keeper, uint64_t limit_ms)
{
	loop_timer_cancel(keeper->loop, &keeper->timer);
	loop_timer_add(keeper->loop, limit_ms, on_limit, keeper, &keeper->timer);
}

static void on_snapshot_done(void *data)
{
	struct keeper *keeper = data;
	struct err err = {0};

	if (files_sync_snapshot(&keeper->files, keeper->snapshot_fd, &err) < 0) {
		keeper_fail(keeper, &err);
		return;
	}
	go_down(keeper);
}

static void on_engine_running(void *data)
{
	struct keeper *keeper = data;

	keeper->ready.monitor_ns = clock_monotonic_ns();
}

/* The line of the console that says why the kernel stopped, or NULL. */
static const char *panic_line(struct keeper *keeper)
{
	char *line;

	keeper->console[keeper->console_size] = '\0';
	line = strstr(keeper->console, "Kernel panic");
	if (!line) {
		line = strstr(keeper->console, "box-guest:");
	}
	if (line) {
		line[strcspn(line, "\r\n")] = '\0';
		for (char *c = line; *c; c++) {
			/* A guest's text is shown to a person: nothing in it may drive a terminal.
			 */
			if (*c < ' ' || *c > '~') {
				*c = '?';
			}
		}
	}
	return line;
}

static void on_engine_ended(void *data, const struct err *err)
{
	struct keeper *keeper = data;
	struct err copy = *err;
	const char *line;

	/* What the guest had said before is still on its way; it comes before the end. */
	control_drain(keeper->control);
	keeper_read_console(keeper);
	line = panic_line(keeper);
	if (line) {
		err_set(&copy, -EIO, "guest-ended", "%s: the guest's kernel stopped: %s",
			keeper->start.name, line);
	} else if (strcmp(err->code, "guest-ended") == 0) {
		err_set(&copy, -EIO, "guest-ended",
			"%s: the guest switched its machine off or restarted it",
			keeper->start.name);
	} else if (keeper->phase == KEEPER_STARTING && keeper->files.restore) {
		err_context(&copy, -EIO, "%s: the snapshot could not be restored",
			    keeper->start.name);
		err_mend(&copy, "make it again: box build --no-cache %s", keeper->start.name);
	}
	keeper_fail(keeper, &copy);
}

static void on_console(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct keeper *keeper = data;

	(void)events;
	if (keeper_read_console(keeper) == 0) {
		loop_remove(loop, fd);
	}
}

ssize_t keeper_read_console(struct keeper *keeper)
{
	size_t half = (sizeof(keeper->console) - 1) / 2;
	ssize_t got;

	/* Only the end is of interest: drop the older half when it is full. */
	if (keeper->console_size == sizeof(keeper->console) - 1) {
		memmove(keeper->console, keeper->console + half, keeper->console_size - half);
		keeper->console_size -= half;
	}
	got = recv(keeper->console_fd, keeper->console + keeper->console_size,
		   sizeof(keeper->console) - 1 - keeper->console_size, MSG_DONTWAIT);
	for (ssize_t i = 0; i < got; i++) {
		char *c = &keeper->console[keeper->console_size + (size_t)i];

		*c = *c ? *c : ' ';
	}
	if (got > 0) {
		keeper->console_size += (size_t)got;
	}
	return got;
}

static int send_setup(struct keeper *keeper)
{
	struct wire_hello hello = {.magic = WIRE_MAGIC, .version = WIRE_VERSION};
	struct wire_setup setup = {.hostname = keeper->start.name};
	uint8_t payload[WIRE_PAYLOAD_MAX];
	int size = wire_hello_encode(&hello, payload);

	control_send(keeper->control, WIRE_HELLO, 0, 0, payload, (size_t)size);
	store_random(keeper->nonce, sizeof(keeper->nonce));
	memcpy(setup.nonce, keeper->nonce, sizeof(setup.nonce));
	store_random(setup.seed, sizeof(setup.seed));
	store_random(setup.machine_id, sizeof(setup.machine_id));
	setup.realtime_ns = clock_realtime_ns();
	if (keeper->files.data_fd >= 0) {
		setup.flags |= WIRE_SETUP_DATA;
	}
	if (keeper->files.spec->readonly && keeper->start.mode != IPC_START_BUILD) {
		setup.flags |= WIRE_SETUP_READONLY;
	}
	size = wire_setup_encode(&setup, payload);
	return size < 0 ? size
			: control_send(keeper->control, WIRE_SETUP, 0, 0, payload, (size_t)size);
}

int keeper_freeze(struct keeper *keeper)
{
	set_limit(keeper, SHUTDOWN_LIMIT_MS);
	keeper->phase = KEEPER_FREEZING;
	return control_send(keeper->control, WIRE_FREEZE, 0, 0, NULL, 0);
}

int keeper_shutdown(struct keeper *keeper)
{
	/* In a build the root is kept, so it must be clean as well (channel 1). */
	uint8_t keep_root = keeper->start.mode == IPC_START_RUN ? 0 : 1;

	set_limit(keeper, SHUTDOWN_LIMIT_MS);
	keeper->phase = KEEPER_GOING_DOWN;
	return control_send(keeper->control, WIRE_SHUTDOWN, keep_root, 0, NULL, 0);
}

void keeper_frozen(struct keeper *keeper)
{
	struct err err = {0};
	int rc;

	keeper->snapshot_fd = files_create_devices(&keeper->files, &keeper->start, &err);
	rc = keeper->snapshot_fd < 0 ? keeper->snapshot_fd
				     : engine_snapshot(keeper->engine, keeper->snapshot_fd, &err);
	if (rc < 0) {
		keeper_fail(keeper, &err);
	}
}

void keeper_gone_down(struct keeper *keeper)
{
	go_down(keeper);
}

static void on_client(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct keeper *keeper = data;
	struct ipc_message message;
	int fds[IPC_FDS_MAX];
	int rc = ipc_receive(fd, &message, fds);

	(void)events;
	if (rc == -EAGAIN) {
		return;
	}
	if (rc <= 0) {
		/* The client is gone, and with it the only one who wants this machine. */
		keeper->phase = KEEPER_ENDING;
		loop_stop(loop, EXIT_OK);
		return;
	}
	keeper_message(keeper, &message, fds);
	ipc_close_fds(fds);
}

static int start_machine(struct keeper *keeper, struct err *err)
{
	struct engine_config config = {0};
	struct engine_events engine_events = {
		.running = on_engine_running,
		.snapshot_done = on_snapshot_done,
		.ended = on_engine_ended,
		.data = keeper,
	};
	struct control_events control_events = {
		.frame = keeper_frame,
		.broken = keeper_port_broken,
		.writable = keeper_port_writable,
		.data = keeper,
	};
	_cleanup_close_ int ctl_theirs = -EBADF;
	_cleanup_close_ int console_theirs = -EBADF;
	int ctl[2], console[2], rc;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ctl) < 0) {
		return err_context(err, -errno, "%s", keeper->start.name);
	}
	ctl_theirs = ctl[1];
	rc = control_new(ctl[0], keeper->loop, &control_events, &keeper->control);
	if (rc < 0) {
		close(ctl[0]);
		return err_context(err, rc, "%s", keeper->start.name);
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, console) < 0) {
		return err_context(err, -errno, "%s", keeper->start.name);
	}
	keeper->console_fd = console[0];
	console_theirs = console[1];
	files_describe(&keeper->files, &keeper->start, &config);
	config.ctl_fd = ctl_theirs;
	config.console_fd = console_theirs;
	config.host_uid = geteuid() == 0 ? KEEPER_ROOT_DROPS_TO : geteuid();
	config.host_gid = geteuid() == 0 ? KEEPER_ROOT_DROPS_TO : getegid();
	/* Queued before the monitor runs, so that a restored guest finds them at once. */
	rc = send_setup(keeper);
	if (rc == 0) {
		rc = loop_add(keeper->loop, keeper->console_fd, EPOLLIN, on_console, keeper);
	}
	if (rc < 0) {
		return err_context(err, rc, "%s", keeper->start.name);
	}
	rc = engine_start(&config, keeper->loop, &engine_events, &keeper->engine, err);
	keeper->ready.spawned_ns = clock_monotonic_ns();
	return rc;
}

/* Waits for IPC_START, which is the first message, and opens what it names. */
static int begin(struct keeper *keeper, struct err *err)
{
	struct ipc_message message;
	int fds[IPC_FDS_MAX];
	int rc = ipc_receive(keeper->client_fd, &message, fds);

	if (rc <= 0 || message.type != IPC_START) {
		if (rc > 0) {
			ipc_close_fds(fds);
		}
		return err_set(err, -EPROTO, "internal", "keeper: no start message");
	}
	keeper->start = message.start;
	keeper->live_fd = TAKE_FD(fds[message.start.has_data ? 1 : 0]);
	rc = files_open(&keeper->files, &keeper->start,
			message.start.has_data ? TAKE_FD(fds[0]) : -EBADF, err);
	ipc_close_fds(fds);
	if (rc == 0 && keeper->start.has_data && keeper->start.data_is_own) {
		rc = keeper_listen(keeper, err);
	}
	if (rc == 0) {
		rc = start_machine(keeper, err);
	}
	return rc;
}

static int run(struct keeper *keeper)
{
	struct err err = {0};
	int rc = begin(keeper, &err);

	if (rc == 0) {
		rc = set_nonblocking(keeper->client_fd, true);
	}
	if (rc == 0) {
		rc = loop_add(keeper->loop, keeper->client_fd, EPOLLIN, on_client, keeper);
	}
	if (rc < 0) {
		err_context(&err, rc, "keeper");
		/* The context names a part of box that a person need not know when there is a text.
		 */
		if (strncmp(err.text, "keeper: ", 8) == 0 && strcmp(err.code, "system") != 0) {
			memmove(err.text, err.text + 8, strlen(err.text + 8) + 1);
		}
		keeper_fail(keeper, &err);
		return EXIT_BOX_FAILED;
	}
	set_limit(keeper, keeper->files.restore ? RESTORE_LIMIT_MS : BOOT_LIMIT_MS);
	rc = loop_run(keeper->loop);
	return rc < 0 ? EXIT_BOX_FAILED : rc;
}

static void close_keeper(struct keeper *keeper)
{
	engine_free(TAKE_PTR(keeper->engine));
	keeper_close_streams(keeper);
	control_free(TAKE_PTR(keeper->control));
	keeper_stop_listening(keeper);
	close_fd(&keeper->console_fd);
	close_fd(&keeper->snapshot_fd);
	files_close(&keeper->files);
	close_fd(&keeper->live_fd);
	close_fd(&keeper->client_fd);
	loop_free(TAKE_PTR(keeper->loop));
}

int keeper_run(int client_fd)
{
	struct keeper *keeper = calloc(1, sizeof(*keeper));
	int status;

	if (!keeper) {
		return EXIT_BOX_FAILED;
	}
	files_init(&keeper->files);
	keeper->client_fd = client_fd;
	keeper->console_fd = keeper->snapshot_fd = keeper->live_fd = -EBADF;
	keeper->listen_fd = keeper->run_fd = keeper->asker_fd = -EBADF;
	keeper->ready.began_ns = clock_monotonic_ns();
	status = loop_new(&keeper->loop) < 0 ? EXIT_BOX_FAILED : run(keeper);
	close_keeper(keeper);
	free(keeper);
	return status;
}
