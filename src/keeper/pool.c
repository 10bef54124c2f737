/*
 * Machines that are kept ready.
 *
 * A warm machine was restored, has mounted an empty /data twice, has run commands and has unmounted
 * again, so that what comes later finds everything translated and cached. It holds the lock of its
 * slot, listens as run/NAME/warm-SLOT, and waits. Whoever renames that socket has it: rename(2)
 * succeeds for one. Its IPC_CLAIM brings the locks and /data; the disk is put in, and from then on
 * the machine is as one that was just started.
 *
 * Who makes them: the keeper of a machine that was used, a moment later or when it ends, for every
 * slot that is free. So there is no daemon; a pool that nobody uses for `warm_idle` is gone, and
 * comes back with the next run. A keeper that has started its machine can start no program any more
 * (policies/keeper.policy), so it has a process for that, made before.
 *
 * What may never happen: a machine of an older snapshot or Boxfile is taken (files_are_current is
 * asked when it is claimed), or one is taken twice.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/io.h"
#include "base/program.h"
#include "keeper/keeper.h"

/* A short command has ended by then, and is not slowed down by its successor's start. */
#define REFILL_AFTER_MS 1000
/* Mounting /data takes milliseconds, after a crash somewhat longer. Less than its client waits
 * (client/pool.c). */
#define ATTACH_LIMIT_MS 20000
/* How often a machine that waits looks whether it can still be found, and after how many looks in
 * vain nobody is coming who has just taken its name. */
#define LOOK_EVERY_MS 2000
#define LOOKS_IN_VAIN 2
/* The first number that is free in a process without anything open. */
#define REFILL_FD 3
/* The last keeper of a sandbox takes the directory away, perhaps just after we have opened it. */
#define TRIES_MAX 16

static const char *socket_name(const struct keeper *keeper, char out[32])
{
	snprintf(out, 32, STORE_WARM_SOCKET, keeper->start.slot);
	return out;
}

int pool_take_slot(struct keeper *keeper, struct err *err)
{
	/* The lock came with the order: who drains the pool sees a machine from its first moment.
	 */
	keeper->run_fd = store_open_run(&keeper->files.store, keeper->start.name, true, err);
	if (keeper->run_fd < 0) {
		return keeper->run_fd;
	}
	return keeper->slot_fd < 0 ? -EPROTO : 0;
}

/* Who was killed while it took us has left our socket under the name that it gave it. */
static void forget_claimer(struct keeper *keeper)
{
	char name[32];

	if (keeper->slot_fd >= 0 && keeper->run_fd >= 0) {
		snprintf(name, sizeof(name), STORE_CLAIMED_SOCKET, keeper->start.slot);
		unlinkat(keeper->run_fd, name, 0);
	}
}

void pool_give_slot(struct keeper *keeper)
{
	char name[32];

	/* The sockets first: without the lock their names may be another's. */
	forget_claimer(keeper);
	listen_close(keeper, socket_name(keeper, name), &keeper->warm_listen_fd);
	if (keeper->slot_fd >= 0 && keeper->run_fd < 0) {
		/* It failed before it came to take the slot. */
		keeper->run_fd =
			store_open_run(&keeper->files.store, keeper->start.name, false, NULL);
	}
	if (keeper->slot_fd >= 0) {
		store_unlock_slot(keeper->run_fd, keeper->start.slot, &keeper->slot_fd);
		store_leave_run(&keeper->files.store, keeper->start.name);
	}
}

/*
 * What a machine does before it waits, so that nothing of a claim is new to it. /data is mounted
 * once by SETUP, as a disk that was never used before, and once by ATTACH. `true` is looked for as
 * any command is, which a shell may do without; a name that nobody knows is looked for everywhere.
 * How they end does not matter: an image may have none of them.
 */
static const struct rehearsal {
	/* Take /data away and mount it anew before. */
	bool attach;
	uint32_t argc;
	const char *argv[3];
} rehearsals[] = {
	{false, 3, {"sh", "-c", "exec true"}},
	{true, 1, {"true"}},
	{false, 1, {"box-no-such-command"}},
};

static void on_rehearsed(struct keeper *keeper);

static void rehearse(struct keeper *keeper)
{
	const struct rehearsal *rehearsal = &rehearsals[keeper->rehearsed++];
	const struct wire_exec exec = {
		.user = keeper->files.spec->user,
		.directory = "",
		.argc = rehearsal->argc,
	};

	if (command_own(keeper, &exec, rehearsal->argv, on_rehearsed) < 0) {
		keeper_end(keeper);
	}
}

static void on_rehearsed(struct keeper *keeper)
{
	bool more = keeper->rehearsed < ARRAY_SIZE(rehearsals);

	if (keeper->phase != KEEPER_WARMING) {
		return;
	}
	if (more && !rehearsals[keeper->rehearsed].attach) {
		rehearse(keeper);
	} else if (control_send(keeper->control, WIRE_DETACH, 0, 0, NULL, 0) < 0) {
		keeper_end(keeper);
	}
}

void pool_started(struct keeper *keeper)
{
	keeper->phase = KEEPER_WARMING;
	rehearse(keeper);
}

static void on_idle(struct loop *loop, void *data)
{
	struct keeper *keeper = data;

	(void)loop;
	keeper->timer = 0;
	keeper_end(keeper);
}

static void look_later(struct keeper *keeper);

/*
 * Who takes a machine renames its socket, connects and claims it. Killed in between it would leave
 * a machine that nobody finds; that one offers itself again. A claim that comes late after all is
 * as good as any: the first one counts.
 */
static void on_look(struct loop *loop, void *data)
{
	struct keeper *keeper = data;
	char name[32];

	(void)loop;
	keeper->pool_timer = 0;
	socket_name(keeper, name);
	if (faccessat(keeper->run_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
		keeper->pool_looks = 0;
	} else if (++keeper->pool_looks >= LOOKS_IN_VAIN) {
		keeper->pool_looks = 0;
		forget_claimer(keeper);
		listen_close(keeper, name, &keeper->warm_listen_fd);
		if (listen_open(keeper, name, &keeper->warm_listen_fd, NULL) < 0) {
			keeper_end(keeper);
			return;
		}
	}
	look_later(keeper);
}

static void look_later(struct keeper *keeper)
{
	loop_timer_add(keeper->loop, LOOK_EVERY_MS, on_look, keeper, &keeper->pool_timer);
}

/* A command may come while the guest mounts: the guest takes one frame after the other. */
static int attach(struct keeper *keeper)
{
	int rc = control_send(keeper->control, WIRE_ATTACH, 0, 0, NULL, 0);

	keeper->attaching = rc == 0;
	return rc;
}

void pool_detached(struct keeper *keeper)
{
	char name[32];
	struct err err = {0};
	int rc;

	if (keeper->rehearsed < ARRAY_SIZE(rehearsals)) {
		if (attach(keeper) < 0) {
			keeper_end(keeper);
		} else {
			rehearse(keeper);
		}
		return;
	}
	keeper->phase = KEEPER_WARM;
	loop_timer_cancel(keeper->loop, &keeper->timer);
	rc = loop_timer_add(keeper->loop, (uint64_t)keeper->files.spec->warm_idle_seconds * 1000,
			    on_idle, keeper, &keeper->timer);
	/* A build or a removal that came meanwhile did not find us yet. */
	if (rc == 0 && !files_are_current(&keeper->files, &keeper->start)) {
		rc = -ESTALE;
	}
	if (rc == 0) {
		rc = listen_open(keeper, socket_name(keeper, name), &keeper->warm_listen_fd, &err);
	}
	if (rc < 0) {
		keeper_end(keeper);
		return;
	}
	look_later(keeper);
	clock_ask(keeper);
}

/* The machine is the client's now. What nobody waits for comes after it was told so. */
static void finish_claim(struct keeper *keeper)
{
	struct err err = {0};

	keeper->ready.warm = 1;
	keeper->ready.ready_ns = clock_monotonic_ns();
	keeper_is_up(keeper);
	if (keeper_open_doors(keeper, &err) < 0) {
		keeper_fail(keeper, &err);
	}
	pool_give_slot(keeper);
}

static void on_replaced(void *data)
{
	struct keeper *keeper = data;

	if (attach(keeper) < 0) {
		keeper_fail_text(keeper, "guest-silent", "the guest does not read its control port",
				 "run the command again");
		return;
	}
	finish_claim(keeper);
	keeper_set_limit(keeper, ATTACH_LIMIT_MS);
}

void pool_attached(struct keeper *keeper)
{
	keeper->attaching = false;
	if (keeper->phase == KEEPER_RUNNING) {
		loop_timer_cancel(keeper->loop, &keeper->timer);
	}
}

static int put_data_in(struct keeper *keeper, struct err *err)
{
	struct engine_disk disk;
	int rc = files_fit_data(&keeper->files, err);

	if (rc < 0) {
		return rc;
	}
	files_describe_data(&keeper->files, &disk);
	return engine_replace_disk(keeper->engine, &disk, true, on_replaced, keeper, err);
}

void pool_claim(struct client *client, const struct ipc_message *message, int *fds)
{
	struct keeper *keeper = client->keeper;
	uint64_t now_ns = clock_monotonic_ns();
	unsigned slot = keeper->start.slot;
	struct err err = {0};
	size_t next;

	if (keeper->phase != KEEPER_WARM || message->start.base_layers > 0 ||
	    strcmp(message->start.name, keeper->start.name) != 0 ||
	    !files_are_current(&keeper->files, &keeper->start) ||
	    !net_is_current(keeper, &message->start)) {
		client_refuse(client, 0, "stale", "the machine is not what it would be now",
			      "start one anew");
		if (keeper->phase == KEEPER_WARM) {
			keeper_end(keeper);
		}
		return;
	}
	keeper_set_limit(keeper, ATTACH_LIMIT_MS);
	loop_timer_cancel(keeper->loop, &keeper->pool_timer);
	keeper->start = message->start;
	keeper->start.slot = slot;
	keeper->log_store.machine = "run";
	keeper->starter = client;
	keeper->phase = KEEPER_TAKEN;
	keeper->ready.began_ns = keeper->ready.spawned_ns = keeper->ready.monitor_ns = now_ns;
	next = files_take(&keeper->files, &message->start, fds);
	if (message->start.has_live) {
		keeper->live_fd = TAKE_FD(fds[next]);
	}
	/* While the disk is put in, the guest has nothing else to do. */
	clock_ask(keeper);
	if (!message->start.has_data) {
		finish_claim(keeper);
	} else if (put_data_in(keeper, &err) < 0) {
		keeper_fail(keeper, &err);
	}
}

/* A negative errno when somebody has the slot. */
static int lock_slot(struct keeper *keeper, unsigned slot)
{
	int rc = -ENOENT;

	for (int i = 0; i < TRIES_MAX && rc == -ENOENT; i++) {
		_cleanup_close_ int run_fd =
			store_open_run(&keeper->files.store, keeper->start.name, true, NULL);

		rc = run_fd < 0 ? run_fd : store_lock_slot(run_fd, slot);
	}
	return rc;
}

/* The slot's lock goes along, so that there is no moment in which the slot seems free. */
static void spawn_warm(const char *name, const char *path, unsigned slot, int lock_fd)
{
	struct ipc_message message = {.type = IPC_START};
	int pair[2];
	pid_t child;

	message.start.mode = IPC_START_RUN;
	message.start.stay = IPC_STAY_WARM;
	message.start.slot = slot;
	message.start.has_up = 1;
	snprintf(message.start.name, sizeof(message.start.name), "%s", name);
	if (ipc_pair(pair) < 0) {
		return;
	}
	child = fork();
	if (child == 0) {
		if (fork() == 0) {
			ipc_exec_keeper(path, pair[1]);
		}
		_exit(EXIT_OK);
	}
	if (child > 0) {
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
		}
		ipc_send(pair[0], &message, &lock_fd, 1);
	}
	close(pair[0]);
	close(pair[1]);
}

/*
 * The life of the process that starts the keepers of warm machines. It takes a slot and its lock
 * from ours and nothing else, and ends with it.
 */
_Noreturn static void serve_refills(int socket, const char *name, const char *path)
{
	struct ipc_message wish;
	int fds[IPC_FDS_MAX];

	prctl(PR_SET_NAME, "box-refill");
	keeper_leave_terminal();
	/* Locks end when nobody holds their files any more. */
	if (dup2(socket, REFILL_FD) < 0 || close_range(REFILL_FD + 1, UINT_MAX, 0) < 0 ||
	    set_cloexec(REFILL_FD, true) < 0) {
		_exit(EXIT_BOX_FAILED);
	}
	while (ipc_receive(REFILL_FD, &wish, fds) > 0) {
		if (wish.type == IPC_START && wish.start.slot < STORE_SLOTS_MAX && fds[0] >= 0) {
			spawn_warm(name, path, wish.start.slot, fds[0]);
		}
		ipc_close_fds(fds);
	}
	_exit(EXIT_OK);
}

int pool_prepare(struct keeper *keeper)
{
	char path[PATH_MAX];
	int pair[2], rc;
	pid_t child;

	if (keeper->files.spec->warm == 0 || keeper->start.mode != IPC_START_RUN ||
	    keeper->start.stay == IPC_STAY_UP ||
	    program_path("box-keeper", path, sizeof(path)) < 0) {
		return 0;
	}
	rc = ipc_pair(pair);
	if (rc < 0) {
		return rc;
	}
	child = fork();
	if (child == 0) {
		serve_refills(pair[1], keeper->start.name, path);
	}
	rc = child < 0 ? -errno : 0;
	close(pair[1]);
	keeper->refill_fd = pair[0];
	return rc;
}

void pool_reserve(struct keeper *keeper)
{
	_cleanup_(spec_freep) struct spec *spec = NULL;

	/* A machine that has waited may know an older Boxfile, with another number. */
	if (store_load_spec(&keeper->files.store, keeper->start.name, &spec, NULL) < 0) {
		return;
	}
	for (unsigned slot = 0; slot < MIN(spec->warm, STORE_SLOTS_MAX); slot++) {
		if (keeper->reserved_fds[slot] < 0) {
			keeper->reserved_fds[slot] = lock_slot(keeper, slot);
		}
	}
}

void pool_refill(struct keeper *keeper)
{
	struct ipc_message wish = {.type = IPC_START};

	snprintf(wish.start.name, sizeof(wish.start.name), "%s", keeper->start.name);
	wish.start.has_up = 1;
	loop_timer_cancel(keeper->loop, &keeper->pool_timer);
	pool_reserve(keeper);
	for (unsigned slot = 0; slot < STORE_SLOTS_MAX; slot++) {
		wish.start.slot = slot;
		if (keeper->reserved_fds[slot] >= 0) {
			ipc_send(keeper->refill_fd, &wish, &keeper->reserved_fds[slot], 1);
		}
		close_fd(&keeper->reserved_fds[slot]);
	}
}

static void on_refill(struct loop *loop, void *data)
{
	struct keeper *keeper = data;

	(void)loop;
	keeper->pool_timer = 0;
	pool_refill(keeper);
}

void pool_refill_soon(struct keeper *keeper)
{
	if (keeper->refill_fd >= 0) {
		loop_timer_add(keeper->loop, REFILL_AFTER_MS, on_refill, keeper,
			       &keeper->pool_timer);
	}
}
