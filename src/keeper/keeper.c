/*
 * box-keeper: the life of one machine.
 *
 * What flows in: messages of the client that started it and of others that connect (ipc/ipc.h),
 * frames of the guest on the control port (wire/ctl.h), events of the engine. What flows out: the
 * answers to all of them. The keeper starts the engine in its jail, confines itself, makes a
 * restored machine distinct before anything runs in it, and hands out streams. It ends when the
 * client that started it is gone (unless the machine is to stay), when the machine has ended, or
 * when it was told to; the monitor dies with it in every case.
 *
 * What may never happen: that the guest's bytes reach anything but its own streams, or that the
 * keeper's memory grows with what the guest sends.
 */
#include "keeper/keeper.h"

#include <errno.h>
#include <stdio.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/io.h"
#include "base/mutant.h"
#include "store/ids.h"

/* Software emulation on a busy host boots in tens of seconds at worst; a restore takes one. */
#define BOOT_LIMIT_MS 180000
#define RESTORE_LIMIT_MS 60000
/* What making a machine ready may take from its start on, less than pools are drained for
 * (client/pool.c). */
#define WARM_LIMIT_MS 45000
/* What commands get to end by themselves, and then to be killed, before the machine goes down. */
#define LEAVE_GRACE_MS 3000
#define LEAVE_KILL_MS 2000
/* How long a client that was told of its run's end may take to end itself, and what then is enough
 * for whoever waits for it. */
#define CLIENT_GOES_MS 100
#define CALLER_GOES_US 5000
/* Three descriptors for each command, one for each client, and some. */
#define OPEN_FILES_WANTED 4096

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
	if (keeper->log) {
		record_event(keeper->log, "down", err->text);
	}
	clients_broadcast(keeper, &message);
	loop_stop(keeper->loop, EXIT_BOX_FAILED);
}

void keeper_fail_text(struct keeper *keeper, const char *code, const char *text, const char *mend)
{
	struct err err = {0};

	err_set(&err, -EIO, code, "%s: %s", keeper->start.name, text);
	err_mend(&err, "%s", mend);
	keeper_fail(keeper, &err);
}

/* Who has asked is told so; the others learn that their machine is gone. */
static void tell_down(struct keeper *keeper)
{
	const struct ipc_message down = {.type = IPC_DOWN};
	struct ipc_message gone = {.type = IPC_FAILED};

	snprintf(gone.failed.code, sizeof(gone.failed.code), "went-down");
	snprintf(gone.failed.text, sizeof(gone.failed.text), "%s was taken down",
		 keeper->start.name);
	snprintf(gone.failed.mend, sizeof(gone.failed.mend), "`box up %s` starts it again",
		 keeper->start.name);
	for (size_t i = 0; i < ARRAY_SIZE(keeper->clients); i++) {
		struct client *client = &keeper->clients[i];

		if (client->fd >= 0) {
			ipc_send(client->fd, client->wants_down ? &down : &gone, NULL, 0);
		}
	}
}

/* What others may be waiting for: the locks, /data, and the names in run/NAME. The monitor writes
 * nothing any more; what is left to close is ours alone. */
static void let_go(struct keeper *keeper)
{
	ports_close(keeper);
	listen_close(keeper, STORE_UP_SOCKET, &keeper->listen_fd);
	listen_close(keeper, STORE_DATA_SOCKET, &keeper->data_listen_fd);
	if (keeper->start.data_fate != IPC_DATA_NEW) {
		files_unlock_data(&keeper->files);
	}
	files_close_data(&keeper->files);
	close_fd(&keeper->live_fd);
	close_fd(&keeper->up_fd);
}

/* Everything is on the disks: end the machine and tell the clients. */
static void go_down(struct keeper *keeper)
{
	if (keeper->phase == KEEPER_ENDING) {
		return;
	}
	keeper->phase = KEEPER_ENDING;
	engine_stop(keeper->engine);
	keeper->stopped = true;
	if (keeper->start.stay == IPC_STAY_UP) {
		/* Who has taken it down finds its memory free too. A run does not wait for that: a
		 * third of what its end takes is to give pages back one by one. */
		engine_free(TAKE_PTR(keeper->engine));
	}
	if (keeper->start.mode == IPC_START_BUILD) {
		/* The image is kept, unlike the root of a run. */
		fsync(keeper->files.image_fd);
	}
	if (keeper->log && keeper->start.stay == IPC_STAY_UP) {
		record_event(keeper->log, "down", NULL);
	}
	let_go(keeper);
	if (keeper->pool_timer != 0) {
		/* Who drains the pool as soon as we are down must find that it is being filled. */
		pool_reserve(keeper);
	}
	tell_down(keeper);
	loop_stop(keeper->loop, EXIT_OK);
}

static void on_limit(struct loop *loop, void *data)
{
	struct keeper *keeper = data;

	(void)loop;
	keeper->timer = 0;
	if (keeper->start.stay == IPC_STAY_WARM) {
		/* Nobody waits for it, and who drains the pool must not wait for long. */
		keeper_end(keeper);
	} else if (keeper->phase == KEEPER_TAKEN || keeper->attaching) {
		keeper_fail_text(keeper, "guest-silent", "the guest did not mount /data in time",
				 "run the command again");
	} else if (keeper->phase == KEEPER_STARTING) {
		keeper_fail_text(keeper, "guest-silent", "the guest did not answer in time",
				 "look at the host's load; make the snapshot again with "
				 "box build --no-cache");
	} else {
		keeper_fail_text(keeper, "guest-stuck",
				 "the guest did not finish writing its disks in time",
				 "what it had synced before is safe; run the command again");
	}
}

void keeper_set_limit(struct keeper *keeper, uint64_t limit_ms)
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
	} else if (keeper->phase == KEEPER_STARTING && keeper->start.has_copy) {
		err_context(&copy, -EIO, "%s: the copied machine could not be started",
			    keeper->start.name);
	} else if (keeper->phase == KEEPER_STARTING && keeper->files.restore) {
		err_context(&copy, -EIO, "%s: the snapshot could not be restored",
			    keeper->start.name);
		err_mend(&copy, "make it again: box build --no-cache %s", keeper->start.name);
	}
	if (strcmp(err->code, ENGINE_NOT_ON_LIST) == 0 && keeper->files.spec->seccomp_count > 0) {
		err_mend(&copy,
			 "the Boxfile takes calls away from the list with `seccomp`: name fewer");
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
	struct wire_setup setup = {.hostname = MUTANT("host-name") ? "box" : keeper->start.name};
	uint8_t payload[WIRE_PAYLOAD_MAX];
	int size = wire_hello_encode(&hello, payload);

	control_send(keeper->control, WIRE_HELLO, 0, 0, payload, (size_t)size);
	store_random(keeper->nonce, sizeof(keeper->nonce));
	memcpy(setup.nonce, keeper->nonce, sizeof(setup.nonce));
	store_random(setup.seed, sizeof(setup.seed));
	store_random(setup.machine_id, MUTANT("machine-id") ? 0 : sizeof(setup.machine_id));
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
	keeper->phase = KEEPER_FREEZING;
	writing_begin(keeper);
	return control_send(keeper->control, WIRE_FREEZE, 0, 0, NULL, 0);
}

int keeper_shutdown(struct keeper *keeper)
{
	/* In a build the root is kept, so it must be clean as well (channel 1). */
	uint8_t keep_root = keeper->start.mode == IPC_START_RUN ? 0 : 1;

	if (keeper->start.mode == IPC_START_RUN && keeper->start.data_fate == IPC_DATA_DROPPED) {
		/* All that it has written is thrown away. */
		go_down(keeper);
		return 0;
	}
	keeper->phase = KEEPER_GOING_DOWN;
	writing_begin(keeper);
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

/* The commands had their time: now they are killed, and then the machine goes down anyway. */
static void on_leave_limit(struct loop *loop, void *data)
{
	struct keeper *keeper = data;
	bool killed = keeper->leave_killed;

	keeper->leave_timer = 0;
	if (killed) {
		keeper_shutdown(keeper);
		return;
	}
	keeper->leave_killed = true;
	commands_kill(keeper);
	loop_timer_add(loop, LEAVE_KILL_MS, on_leave_limit, keeper, &keeper->leave_timer);
}

void keeper_end(struct keeper *keeper)
{
	keeper->phase = KEEPER_ENDING;
	tell_down(keeper);
	loop_stop(keeper->loop, EXIT_OK);
}

void keeper_leave(struct keeper *keeper)
{
	if (keeper->phase == KEEPER_STARTING || keeper->phase == KEEPER_WARMING ||
	    keeper->phase == KEEPER_WARM) {
		/* Nothing of anybody's runs yet and nothing was written. */
		keeper_end(keeper);
		return;
	}
	if (keeper->phase != KEEPER_RUNNING) {
		return;
	}
	if (commands_signal(keeper, keeper->leaving ? 0 : SIGTERM) == 0) {
		loop_timer_cancel(keeper->loop, &keeper->leave_timer);
		keeper_shutdown(keeper);
		return;
	}
	if (!keeper->leaving) {
		keeper->leaving = true;
		loop_timer_add(keeper->loop, LEAVE_GRACE_MS, on_leave_limit, keeper,
			       &keeper->leave_timer);
	}
}

/* A machine that stays is taken down in good order when the host ends its processes. */
static void on_signal(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct signalfd_siginfo info;

	(void)loop;
	(void)events;
	if (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		keeper_leave(data);
	}
}

void keeper_is_up(struct keeper *keeper)
{
	struct ipc_message message = {.type = IPC_READY, .ready = keeper->ready};

	loop_timer_cancel(keeper->loop, &keeper->timer);
	keeper->phase = KEEPER_RUNNING;
	client_tell(keeper->starter, &message);
	if (keeper->start.mode == IPC_START_RUN && keeper->start.stay == IPC_STAY_NO &&
	    keeper->ready.restored) {
		pool_refill_soon(keeper);
	}
	if (keeper->log && keeper->start.stay == IPC_STAY_UP) {
		record_event(keeper->log, "up", keeper->ready.restored ? "restored" : "booted");
	}
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
	_cleanup_close_ int net_theirs = -EBADF;
	struct store_ids ids;
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
	rc = store_ids_choose(&keeper->files.store, keeper->start.name, keeper->files.spec,
			      STORE_IDS_MONITOR, &ids, err);
	if (rc == 0) {
		rc = net_prepare(keeper, &net_theirs, err);
	}
	if (rc < 0) {
		return rc;
	}
	config.host_uid = ids.uid;
	config.host_gid = ids.gid;
	config.net_fd = net_theirs;
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
	/* While the monitor begins. */
	return rc < 0 ? rc : net_start(keeper, err);
}

void keeper_leave_terminal(void)
{
	int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int fd = 0; null_fd >= 0 && fd <= 2; fd++) {
		dup2(null_fd, fd);
	}
	close_fd(&null_fd);
}

/* Takes the process away from the terminal it was started in, and makes room for its work. */
static int settle(struct keeper *keeper)
{
	struct rlimit files;
	sigset_t set;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < OPEN_FILES_WANTED) {
		files.rlim_cur = MIN(files.rlim_max, (rlim_t)OPEN_FILES_WANTED);
		setrlimit(RLIMIT_NOFILE, &files);
	}
	if (keeper->start.stay == IPC_STAY_NO) {
		return 0;
	}
	keeper_leave_terminal();
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	if (chdir("/") < 0 || sigprocmask(SIG_BLOCK, &set, NULL) < 0) {
		return -errno;
	}
	keeper->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return keeper->signal_fd < 0
		       ? -errno
		       : loop_add(keeper->loop, keeper->signal_fd, EPOLLIN, on_signal, keeper);
}

static void open_log(struct keeper *keeper)
{
	keeper->log_store = (struct record_log){
		.store = &keeper->files.store,
		.name = keeper->start.name,
		.output = keeper->files.spec->log_output,
		.machine = keeper->start.mode == IPC_START_BUILD ? "build"
			   : keeper->start.stay == IPC_STAY_NO	 ? "run"
								 : "up",
	};
	/* What the lines of a build do is in the build's own log. */
	keeper->log = keeper->start.mode == IPC_START_RUN ? &keeper->log_store : NULL;
	keeper->net.log = keeper->start.mode == IPC_START_SNAPSHOT ? NULL : &keeper->log_store;
}

int keeper_open_doors(struct keeper *keeper, struct err *err)
{
	int rc = 0;

	if (keeper->start.has_data && keeper->start.data_fate == IPC_DATA_OWN) {
		rc = listen_open(keeper, STORE_DATA_SOCKET, &keeper->data_listen_fd, err);
	}
	/* Those of the Boxfile are its parent's, which runs on. */
	if (rc == 0 && keeper->start.stay == IPC_STAY_UP && !keeper->start.has_copy) {
		rc = ports_open(keeper, err);
	}
	if (rc == 0 && keeper->start.stay == IPC_STAY_UP) {
		rc = listen_open(keeper, STORE_UP_SOCKET, &keeper->listen_fd, err);
	}
	return rc;
}

/* Waits for IPC_START, which is the first message, and opens what it names. */
static int begin(struct keeper *keeper, int client_fd, struct err *err)
{
	struct ipc_message message;
	int fds[IPC_FDS_MAX];
	size_t next;
	int rc = ipc_receive(client_fd, &message, fds);

	if (rc <= 0 || message.type != IPC_START) {
		if (rc > 0) {
			ipc_close_fds(fds);
		}
		return err_set(err, -EPROTO, "internal", "keeper: no start message");
	}
	keeper->start = message.start;
	next = files_take(&keeper->files, &message.start, fds);
	if (message.start.has_live) {
		keeper->live_fd = TAKE_FD(fds[next++]);
	}
	if (message.start.has_up) {
		*(message.start.stay == IPC_STAY_WARM ? &keeper->slot_fd : &keeper->up_fd) =
			TAKE_FD(fds[next]);
	}
	ipc_close_fds(fds);
	rc = files_open(&keeper->files, &keeper->start, err);
	if (rc == 0) {
		open_log(keeper);
		rc = settle(keeper);
	}
	if (rc == 0 && keeper->start.stay == IPC_STAY_WARM) {
		rc = keeper->files.restore ? pool_take_slot(keeper, err) : -EAGAIN;
	}
	if (rc == 0) {
		rc = keeper_open_doors(keeper, err);
	}
	if (rc == 0) {
		rc = clock_open(keeper);
	}
	if (rc == 0) {
		rc = pool_prepare(keeper);
	}
	if (rc == 0) {
		rc = start_machine(keeper, err);
	}
	/* Nothing that the guest says has been read so far. */
	return rc < 0 ? rc : jail_confine_self(&jail_policy_keeper, err);
}

static int run(struct keeper *keeper, int client_fd)
{
	struct err err = {0};
	int rc = begin(keeper, client_fd, &err);

	if (keeper->start.stay == IPC_STAY_WARM) {
		/* Nobody waits for it, nor would hear why it cannot be. */
		close(client_fd);
		if (rc < 0) {
			return EXIT_BOX_FAILED;
		}
		keeper_set_limit(keeper, WARM_LIMIT_MS);
		return loop_run(keeper->loop) < 0 ? EXIT_BOX_FAILED : EXIT_OK;
	}
	keeper->starter = client_add(keeper, client_fd);
	if (rc == 0 && !keeper->starter) {
		rc = -ENOSPC;
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
	keeper_set_limit(keeper, keeper->files.restore ? RESTORE_LIMIT_MS : BOOT_LIMIT_MS);
	rc = loop_run(keeper->loop);
	return rc < 0 ? EXIT_BOX_FAILED : rc;
}

/*
 * A run is over for its client, and the monitor stands still. To give its memory back takes a
 * processor milliseconds, to make the next machine of the pool ready takes more, and the kernel
 * would let the client, or the program that waits for it, wait for that processor. So they go
 * first.
 */
static void let_client_go(const struct keeper *keeper)
{
	struct pollfd client = {.fd = keeper->starter ? keeper->starter->fd : -EBADF};

	if (keeper->stopped && client.fd >= 0 && poll(&client, 1, CLIENT_GOES_MS) > 0) {
		usleep(CALLER_GOES_US);
	}
}

/* The clients' sockets close last: who waits for that finds everything gone. */
static void close_keeper(struct keeper *keeper)
{
	let_client_go(keeper);
	if (keeper->stopped && keeper->pool_timer != 0) {
		pool_refill(keeper);
	}
	engine_free(TAKE_PTR(keeper->engine));
	net_close(keeper);
	commands_close(keeper);
	control_free(TAKE_PTR(keeper->control));
	ports_close(keeper);
	clock_close(keeper);
	pool_give_slot(keeper);
	close_fd(&keeper->refill_fd);
	listen_close(keeper, STORE_UP_SOCKET, &keeper->listen_fd);
	listen_close(keeper, STORE_DATA_SOCKET, &keeper->data_listen_fd);
	close_fd(&keeper->run_fd);
	close_fd(&keeper->console_fd);
	close_fd(&keeper->snapshot_fd);
	close_fd(&keeper->signal_fd);
	live_close(keeper);
	files_close(&keeper->files);
	close_fd(&keeper->live_fd);
	close_fd(&keeper->up_fd);
	clients_close(keeper);
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
	clients_init(keeper);
	live_init(keeper);
	net_init(keeper);
	keeper->console_fd = keeper->snapshot_fd = keeper->live_fd = keeper->up_fd = -EBADF;
	keeper->listen_fd = keeper->data_listen_fd = keeper->run_fd = -EBADF;
	keeper->signal_fd = keeper->clock.jump_fd = -EBADF;
	keeper->slot_fd = keeper->warm_listen_fd = keeper->refill_fd = -EBADF;
	for (size_t i = 0; i < ARRAY_SIZE(keeper->reserved_fds); i++) {
		keeper->reserved_fds[i] = -EBADF;
	}
	for (size_t i = 0; i < ARRAY_SIZE(keeper->port_fds); i++) {
		keeper->port_fds[i] = -EBADF;
	}
	keeper->ready.began_ns = clock_monotonic_ns();
	status = loop_new(&keeper->loop) < 0 ? EXIT_BOX_FAILED : run(keeper, client_fd);
	close_keeper(keeper);
	free(keeper);
	return status;
}
