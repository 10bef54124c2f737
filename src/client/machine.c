/*
 * A machine as a command sees it: the keeper at the other end of a socket. Here is how one is
 * started; connect.c leads to one that is up.
 *
 * What flows in: the caller's descriptors and signals, and the keeper's answers. What flows out:
 * the keeper's orders, and the command's bytes. From client_start to client_machine_free the
 * signals SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGWINCH are blocked and read from a signalfd, so
 * that none of them can end this process while there is something to put back: a terminal, a lock,
 * a keeper.
 */
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/io.h"
#include "base/process.h"
#include "base/program.h"
#include "client/internal.h"
#include "policy/proxy.h"

/* How often, and how long, another keeper is asked for a copy of /data. */
#define COPY_RETRY_MS 50
#define COPY_TRIES 200
/* A killed monitor gives its memory back first; 24 GiB of it take less than this. */
#define MONITOR_DEATH_MS 5000
/* What is left to do for a keeper is to kill its monitor. It may be copying /data for another just
 * now, which is long. */
#define KEEPER_DEATH_MS 30000
#define SWEEP_STEP_MS 5
/* How often it is looked whether the keeper was stopped, and how many looks in a row it may be:
 * somebody may let it go on, as a shell does with all that it has stopped. */
#define LOOK_EVERY_MS 1000
#define STOPPED_LOOKS_MAX 10

/* A signal asked to stop: the code word tells which, so that the exit code can. */
int client_interrupted(const struct client_machine *machine, struct err *err)
{
	const char *code = machine->stop_signal == SIGTERM  ? "terminated"
			   : machine->stop_signal == SIGHUP ? "hung-up"
							    : "interrupted";

	return err_set(err, -EINTR, code, "%s", code);
}

static void notice(const struct client_start_options *options, const char *text)
{
	if (options->notice) {
		options->notice(options->notice_data, text);
	}
}

/* Blocks the signals that client_run forwards and makes them readable. */
int client_take_signals(struct client_machine *machine)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH};
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
		struct sigaction action;

		/* What our caller had ignored (nohup, a shell's background job) stays ignored; a
		 * signalfd would report it all the same. */
		if (sigaction(signals[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
			sigaddset(&set, signals[i]);
		}
	}
	if (sigprocmask(SIG_BLOCK, &set, &machine->old_mask) < 0) {
		return -errno;
	}
	sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &machine->old_pipe_action);
	machine->signals_taken = true;
	machine->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return machine->signal_fd < 0 ? -errno : 0;
}

int client_next_signal(struct client_machine *machine)
{
	struct signalfd_siginfo info;

	return read(machine->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)
		       ? (int)info.ssi_signo
		       : 0;
}

/* True when a signal that means "stop" has come. */
static bool stop_wanted(struct client_machine *machine)
{
	int number;

	while ((number = client_next_signal(machine)) != 0) {
		if (number != SIGWINCH) {
			machine->stop_signal = number;
			return true;
		}
	}
	return false;
}

/* What a try has left is no reason of a later error. */
static void forget(struct err *err)
{
	if (err) {
		*err = (struct err){0};
	}
}

/* Waits for a time, or until a signal comes: then true. */
bool client_pause_ms(struct client_machine *machine, int timeout_ms)
{
	struct pollfd wait = {.fd = machine->signal_fd, .events = POLLIN};

	return poll(&wait, 1, timeout_ms) > 0 && stop_wanted(machine);
}

/* Waits until no build or destroy of the sandbox is under way. Signals are ours, so flock(2) cannot
 * be left to wait: nothing would end it. */
static int hold_live(struct client_machine *machine, struct err *err)
{
	for (;;) {
		int fd = store_lock_live(machine->sandbox_fd, false, false, err);

		if (fd != -EAGAIN) {
			machine->live_fd = fd;
			return fd < 0 ? fd : 0;
		}
		forget(err);
		if (client_pause_ms(machine, COPY_RETRY_MS)) {
			return client_interrupted(machine, err);
		}
	}
}

/* Takes /data for this machine, saying so when it has to wait for its turn. */
static int hold_data(struct client_machine *machine, const struct client_start_options *options,
		     struct err *err)
{
	char text[256];
	bool said = false;

	for (;;) {
		int fd = store_open_data(machine->sandbox_fd, false, err);

		if (fd >= 0) {
			machine->data_fd = fd;
			return 0;
		}
		if (fd != -EAGAIN) {
			return fd;
		}
		if (!said) {
			snprintf(text, sizeof(text),
				 "/data of %s is held by another machine; waiting for it%s",
				 machine->name,
				 options->helper ? ""
						 : " (--data none or --data clone would not wait)");
			notice(options, text);
			said = true;
		}
		forget(err);
		if (client_pause_ms(machine, COPY_RETRY_MS)) {
			return client_interrupted(machine, err);
		}
	}
}

/* For poll(2): until the deadline, or -1 without one. */
static int time_left_ms(const struct client_machine *machine)
{
	uint64_t now = clock_monotonic_ns();

	if (machine->deadline_ns == 0) {
		return -1;
	}
	return machine->deadline_ns <= now
		       ? 0
		       : (int)MIN((machine->deadline_ns - now) / 1000000 + 1, (uint64_t)60000);
}

static int keeper_stopped(struct client_machine *machine, pid_t pid, struct err *err)
{
	err_set(err, -ETIMEDOUT, "keeper-stopped",
		"%s: a signal has stopped its keeper, process %d", machine->name, (int)pid);
	if (machine->keeper_pid > 0 || machine->keeper_pidfd >= 0) {
		machine->keeper_is_stopped = true;
		err_mend(err, "its machine was ended; what was synced in /data is safe");
	} else {
		err_mend(err,
			 "let it go on (kill -CONT %d), or end it with its machine (kill -KILL %d)",
			 (int)pid, (int)pid);
	}
	return -ETIMEDOUT;
}

int client_poll(struct client_machine *machine, int socket, struct pollfd *waits, nfds_t count,
		int limit_ms, struct err *err)
{
	int looks = 0;

	for (;;) {
		int step_ms = limit_ms < 0 ? LOOK_EVERY_MS : MIN(limit_ms, LOOK_EVERY_MS);
		int rc = poll(waits, count, step_ms);
		pid_t keeper;

		if (rc < 0 && errno != EINTR) {
			return err_context(err, -errno, "%s", machine->name);
		}
		limit_ms -= limit_ms < 0 ? 0 : step_ms;
		if (rc > 0 || limit_ms == 0) {
			return MAX(rc, 0);
		}
		keeper = socket == machine->socket && machine->keeper_pid > 0
				 ? machine->keeper_pid
				 : client_peer_of(socket);
		looks = process_has_thread_in(keeper, 'T') ? looks + 1 : 0;
		if (looks >= STOPPED_LOOKS_MAX) {
			return keeper_stopped(machine, keeper, err);
		}
	}
}

int client_await_answer(struct client_machine *machine, int socket, struct err *err)
{
	struct pollfd waits[2] = {
		{.fd = socket, .events = POLLIN},
		{.fd = machine->signal_fd, .events = POLLIN},
	};

	for (;;) {
		int count = client_poll(machine, socket, waits, 2, time_left_ms(machine), err);

		if (count < 0) {
			return count;
		}
		if (count == 0 && time_left_ms(machine) == 0) {
			err_set(err, -ETIMEDOUT, "keeper-silent",
				"the keeper of %s does not answer", machine->name);
			err_mend(err, "is it stopped? `box down %s` or kill it", machine->name);
			return -ETIMEDOUT;
		}
		if (waits[1].revents && stop_wanted(machine)) {
			return client_interrupted(machine, err);
		}
		if (waits[0].revents) {
			return 0;
		}
	}
}

/* Asks the keeper that holds /data for a copy. -EAGAIN when it is coming or going. */
static int ask_for_copy(struct client_machine *machine, struct err *err)
{
	struct ipc_message message = {.type = IPC_COPY_DATA};
	_cleanup_close_ int peer = client_connect_holder(machine->store, machine->name);
	int fds[IPC_FDS_MAX];
	int rc;

	if (peer < 0 || ipc_send(peer, &message, NULL, 0) < 0) {
		return -EAGAIN;
	}
	rc = client_await_answer(machine, peer, err);
	if (rc < 0) {
		return rc;
	}
	rc = ipc_receive(peer, &message, fds);
	if (rc <= 0) {
		return -EAGAIN;
	}
	if (message.type == IPC_DATA_COPY && fds[0] >= 0) {
		machine->data_fd = TAKE_FD(fds[0]);
		ipc_close_fds(fds);
		return 0;
	}
	ipc_close_fds(fds);
	if (message.type == IPC_REFUSED && strcmp(message.failed.code, IPC_CODE_BUSY) == 0) {
		return -EAGAIN;
	}
	err_set(err, -EIO, "data-copy", "%s", message.failed.text);
	err_mend(err, "try again, or run without it: --data none");
	return -EIO;
}

/* One try. -EAGAIN: somebody has /data, or its chain, and is coming or going. */
static int try_clone(struct client_machine *machine, struct err *err)
{
	/* Until the layers are open: the copy stands on those that are there now. */
	_cleanup_close_ int chain_fd = store_lock_chain(machine->sandbox_fd, false, false, err);
	_cleanup_close_ int fd = -EBADF;
	int rc = chain_fd;

	if (chain_fd >= 0) {
		rc = fd = store_open_data(machine->sandbox_fd, false, err);
	}
	if (rc == -EAGAIN && chain_fd >= 0) {
		rc = ask_for_copy(machine, err);
	} else if (fd >= 0) {
		rc = machine->data_fd = store_temporary_file(machine->store, err);
		if (rc >= 0) {
			rc = copy_file_sparse(fd, machine->data_fd);
			rc = rc < 0 ? err_context(err, rc, "copying /data of %s", machine->name)
				    : 0;
		}
	}
	return rc < 0 ? rc : store_open_layers(machine->sandbox_fd, &machine->data_layers, err);
}

static int clone_data(struct client_machine *machine, struct err *err)
{
	for (unsigned i = 0; i < COPY_TRIES; i++) {
		int rc = try_clone(machine, err);

		if (rc != -EAGAIN) {
			return rc;
		}
		forget(err);
		if (client_pause_ms(machine, COPY_RETRY_MS)) {
			return client_interrupted(machine, err);
		}
	}
	err_set(err, -EAGAIN, "data-copy", "/data of %s is held, and its machine does not answer",
		machine->name);
	err_mend(err, "try again, or run without it: --data none");
	return -EAGAIN;
}

static int give_data(struct client_machine *machine, const struct client_start_options *options,
		     struct err *err)
{
	const struct store_layers *given = options->data_layers;
	struct store_layers *layers = &machine->data_layers;

	machine->data_fd = fcntl(options->data_fd, F_DUPFD_CLOEXEC, 3);
	if (machine->data_fd < 0) {
		return err_context(err, -errno, "/data");
	}
	if (!given) {
		return store_open_base(machine->sandbox_fd, layers, err);
	}
	while (layers->count < given->count) {
		int fd = fcntl(given->fds[layers->count], F_DUPFD_CLOEXEC, 3);

		if (fd < 0) {
			return err_context(err, -errno, "/data");
		}
		layers->fds[layers->count++] = fd;
	}
	return 0;
}

static int take_data(struct client_machine *machine, const struct client_start_options *options,
		     struct err *err)
{
	int rc;

	store_close_layers(&machine->data_layers);
	if (options->mode != IPC_START_RUN || options->data == CLIENT_DATA_NONE) {
		return 0;
	}
	if (options->data == CLIENT_DATA_GIVEN) {
		return give_data(machine, options, err);
	}
	if (options->data == CLIENT_DATA_CLONE) {
		return clone_data(machine, err);
	}
	rc = hold_data(machine, options, err);
	return rc < 0 ? rc : store_open_layers(machine->sandbox_fd, &machine->data_layers, err);
}

static int spawn_keeper(struct client_machine *machine, struct err *err)
{
	char path[PATH_MAX];
	int pair[2];
	int rc = program_path("box-keeper", path, sizeof(path));

	if (rc == 0 && access(path, X_OK) < 0) {
		rc = -errno;
	}
	if (rc < 0) {
		err_set(err, rc, "bad-install", "box-keeper: %s: %s", path, strerror(-rc));
		err_mend(err, "install box again: make install");
		return rc;
	}
	rc = ipc_pair(pair);
	if (rc < 0) {
		return err_context(err, rc, "box-keeper");
	}
	machine->socket = pair[0];
	machine->keeper_is_stopped = false;
	machine->keeper_pid = fork();
	if (machine->keeper_pid == 0) {
		ipc_exec_keeper(path, pair[1]);
	}
	rc = machine->keeper_pid < 0 ? -errno : 0;
	close(pair[1]);
	return rc < 0 ? err_context(err, rc, "box-keeper") : 0;
}

static enum ipc_data_fate data_fate(const struct client_machine *machine,
				    const struct client_start_options *options)
{
	if (machine->data_fd < 0 || options->data == CLIENT_DATA_CLONE) {
		return IPC_DATA_DROPPED;
	}
	return options->data == CLIENT_DATA_GIVEN ? IPC_DATA_NEW : IPC_DATA_OWN;
}

static size_t add_layers(const struct store_layers *layers, int *fds, size_t count)
{
	for (size_t i = 0; i < layers->count; i++) {
		fds[count++] = layers->fds[i];
	}
	return count;
}

size_t client_fill_start(const struct client_machine *machine,
			 const struct client_start_options *options, struct ipc_message *message,
			 int *fds)
{
	struct ipc_start *start = &message->start;
	size_t count = 0;

	start->mode = options->mode;
	start->proxy_mark = machine->proxy_mark;
	start->force_boot = options->force_boot;
	start->for_proof = options->for_proof;
	start->has_data = machine->data_fd >= 0;
	start->has_live = machine->live_fd >= 0;
	start->has_up = machine->up_fd >= 0;
	start->stay = machine->up_fd >= 0 ? IPC_STAY_UP : IPC_STAY_NO;
	start->data_fate = data_fate(machine, options);
	snprintf(start->name, sizeof(start->name), "%s", machine->name);
	snprintf(start->stage, sizeof(start->stage), "%s", options->stage);
	if (machine->data_fd >= 0) {
		fds[count++] = machine->data_fd;
		start->data_layers = (uint32_t)machine->data_layers.count;
		count = add_layers(&machine->data_layers, fds, count);
	}
	if (options->base) {
		start->base_layers = (uint32_t)options->base->count;
		count = add_layers(options->base, fds, count);
	}
	if (options->saved_fds) {
		start->has_copy = 1;
		memcpy(fds + count, options->saved_fds, IPC_COPY_FDS * sizeof(*fds));
		count += IPC_COPY_FDS;
	}
	if (machine->live_fd >= 0) {
		fds[count++] = machine->live_fd;
	}
	if (machine->up_fd >= 0) {
		fds[count++] = machine->up_fd;
	}
	return count;
}

/* The locks are the keeper's and the monitor's now: they end when the machine does. */
static void hand_over_locks(struct client_machine *machine)
{
	close_fd(&machine->data_fd);
	store_close_layers(&machine->data_layers);
	close_fd(&machine->live_fd);
	close_fd(&machine->up_fd);
}

static int send_start(struct client_machine *machine, const struct client_start_options *options,
		      struct err *err)
{
	struct ipc_message message = {.type = IPC_START};
	int fds[IPC_FDS_MAX];
	size_t count = client_fill_start(machine, options, &message, fds);
	int rc = ipc_send(machine->socket, &message, fds, count);

	hand_over_locks(machine);
	return rc < 0 ? err_context(err, rc, "box-keeper") : 0;
}

int client_lost(struct client_machine *machine, struct err *err)
{
	err_set(err, -EPIPE, "keeper-died", "the keeper of %s's machine ended unexpectedly",
		machine->name);
	err_mend(err, "run the command again; what was synced in /data is safe");
	return -EPIPE;
}

int client_failed(const struct ipc_message *message, struct err *err)
{
	err_set(err, -EIO, message->failed.code, "%s", message->failed.text);
	err_mend(err, "%s", message->failed.mend);
	return -EIO;
}

int client_await(struct client_machine *machine, uint32_t wanted, struct ipc_message *ret_message,
		 struct err *err)
{
	for (;;) {
		int fds[IPC_FDS_MAX];
		int rc;

		rc = client_await_answer(machine, machine->socket, err);
		if (rc < 0) {
			return rc;
		}
		rc = ipc_receive(machine->socket, ret_message, fds);
		if (rc <= 0) {
			return client_lost(machine, err);
		}
		ipc_close_fds(fds);
		if (ret_message->type == IPC_FAILED || ret_message->type == IPC_REFUSED) {
			return client_failed(ret_message, err);
		}
		if (ret_message->type == wanted) {
			return 0;
		}
	}
}

static void tell_start(const struct client_machine *machine,
		       const struct client_start_options *options)
{
	char text[512];

	if (!machine->ready.restored && machine->ready.boot_reason[0] &&
	    options->mode == IPC_START_RUN) {
		snprintf(text, sizeof(text), "booted %s instead of restoring it: %s (box build %s)",
			 machine->name, machine->ready.boot_reason, machine->name);
		notice(options, text);
	}
}

static int start_anew(struct client_machine *machine, const struct client_start_options *options,
		      struct err *err)
{
	struct ipc_message message;
	int rc = spawn_keeper(machine, err);

	if (rc == 0) {
		rc = send_start(machine, options, err);
	}
	if (rc == 0) {
		rc = client_await(machine, IPC_READY, &message, err);
	}
	if (rc == 0) {
		machine->ready = message.ready;
	}
	return rc;
}

/* The host's proxy, which the keeper finds as we do: one that is wrong is told before anything
 * starts. */
static int find_proxy(struct client_machine *machine, struct err *err)
{
	struct policy_proxy proxy = {.port = 0};
	int rc = policy_proxy_find(getenv, &proxy, err);

	if (rc == 1) {
		machine->proxy_mark = policy_proxy_mark(&proxy);
		free(proxy.direct);
	}
	return MIN(rc, 0);
}

static int start(struct client_machine *machine, const struct client_start_options *options,
		 bool stays, struct err *err)
{
	int rc = client_take_signals(machine);

	if (rc < 0) {
		return err_context(err, rc, "signals");
	}
	machine->sandbox_fd = store_open_sandbox(machine->store, machine->name, err);
	if (machine->sandbox_fd < 0) {
		return machine->sandbox_fd;
	}
	if (stays) {
		machine->up_fd = store_lock_up(machine->sandbox_fd, err);
		if (machine->up_fd < 0) {
			return machine->up_fd;
		}
	}
	rc = find_proxy(machine, err);
	if (rc == 0) {
		rc = hold_live(machine, err);
	}
	if (rc == 0) {
		rc = take_data(machine, options, err);
	}
	if (rc == 0 && !stays && options->mode == IPC_START_RUN && !options->force_boot &&
	    !options->base) {
		bool had_data = machine->data_fd >= 0;

		rc = client_pool_claim(machine, options, err);
		if (rc == 0 && had_data && machine->data_fd < 0) {
			rc = take_data(machine, options, err);
		}
	}
	if (rc == 0) {
		rc = start_anew(machine, options, err);
	}
	if (rc < 0) {
		return rc;
	}
	hand_over_locks(machine);
	machine->monitor_pidfd = (int)syscall(SYS_pidfd_open, machine->ready.monitor_pid, 0);
	tell_start(machine, options);
	return 0;
}

struct client_machine *client_machine_new(struct store *store, const char *name, struct err *err)
{
	struct client_machine *machine = calloc(1, sizeof(*machine));

	if (!machine) {
		err_context(err, -ENOMEM, "%s", name);
		return NULL;
	}
	machine->store = store;
	snprintf(machine->name, sizeof(machine->name), "%s", name);
	machine->socket = machine->signal_fd = machine->sandbox_fd = -EBADF;
	machine->keeper_pidfd = -EBADF;
	machine->data_fd = machine->live_fd = machine->up_fd = machine->monitor_pidfd = -EBADF;
	return machine;
}

int client_start(struct store *store, const char *name, const struct client_start_options *options,
		 struct client_machine **ret_machine, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine =
		client_machine_new(store, name, err);
	int rc = machine ? start(machine, options, false, err) : -ENOMEM;

	if (rc == 0) {
		*ret_machine = TAKE_PTR(machine);
	}
	return rc;
}

int client_up(struct store *store, const char *name, const struct client_start_options *options,
	      struct ipc_ready *ret_ready, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine =
		client_machine_new(store, name, err);
	int rc = machine ? start(machine, options, true, err) : -ENOMEM;

	if (rc < 0 && machine && machine->socket >= 0) {
		/* It may have come up just when we were told to stop, and would stay. */
		const struct ipc_message order = {.type = IPC_SHUTDOWN};

		ipc_send(machine->socket, &order, NULL, 0);
	}
	if (rc < 0) {
		return rc == -EAGAIN ? -EALREADY : rc;
	}
	*ret_ready = machine->ready;
	/* It is nobody's child any more: the keeper stays when our socket closes. */
	machine->keeper_pid = 0;
	return 0;
}

const struct ipc_ready *client_ready(const struct client_machine *machine)
{
	return &machine->ready;
}

static int await_down(struct client_machine *machine, struct err *err)
{
	struct ipc_message message;
	int rc = client_await(machine, IPC_DOWN, &message, err);

	if (rc == 0) {
		close_fd(&machine->keeper_pidfd);
	}
	return rc;
}

static int order_and_wait(struct client_machine *machine, uint32_t order, struct err *err)
{
	const struct ipc_message message = {.type = order};

	if (ipc_send(machine->socket, &message, NULL, 0) < 0) {
		return client_lost(machine, err);
	}
	return await_down(machine, err);
}

int client_snapshot(struct client_machine *machine, struct err *err)
{
	return order_and_wait(machine, IPC_SNAPSHOT, err);
}

int client_stop(struct client_machine *machine, struct err *err)
{
	return machine->goes_down ? await_down(machine, err)
				  : order_and_wait(machine, IPC_SHUTDOWN, err);
}

/* The monitor of a keeper that was killed dies with it, but not at the same instant. */
static void wait_for_monitor(struct client_machine *machine)
{
	struct pollfd wait = {.fd = machine->monitor_pidfd, .events = POLLIN};

	if (machine->monitor_pidfd >= 0) {
		poll(&wait, 1, MONITOR_DEATH_MS);
	}
}

/* Whether run/NAME/data is there and nobody listens on it. */
static bool socket_is_stale(const struct client_machine *machine)
{
	_cleanup_close_ int directory = -EBADF;
	_cleanup_close_ int peer = -EBADF;
	char path[128];

	snprintf(path, sizeof(path), "run/%s", machine->name);
	directory = openat(machine->store->home_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0) {
		return false;
	}
	peer = ipc_connect_at(directory, STORE_DATA_SOCKET);
	return peer == -ECONNREFUSED;
}

/*
 * A keeper that was killed could not take its socket away. Only the holder of /data may, so this
 * waits for the lock until the dying monitor has let it go, or until another machine has it.
 */
void client_sweep_socket(const struct client_machine *machine)
{
	for (int i = 0; i < MONITOR_DEATH_MS / SWEEP_STEP_MS && socket_is_stale(machine); i++) {
		_cleanup_close_ int lock = store_open_data(machine->sandbox_fd, false, NULL);
		char path[128];

		if (lock < 0) {
			poll(NULL, 0, SWEEP_STEP_MS);
			continue;
		}
		snprintf(path, sizeof(path), "run/%s/" STORE_DATA_SOCKET, machine->name);
		unlinkat(machine->store->home_fd, path, 0);
		store_leave_run(machine->store, machine->name);
	}
}

/* A keeper without its starter ends by itself; one that was stopped is made to. */
static void wait_for_keeper(const struct client_machine *machine)
{
	_cleanup_close_ int child = machine->keeper_pid > 0
					    ? (int)syscall(SYS_pidfd_open, machine->keeper_pid, 0)
					    : -EBADF;
	struct pollfd wait = {.fd = child >= 0 ? child : machine->keeper_pidfd, .events = POLLIN};
	int limit_ms = machine->keeper_is_stopped ? 0 : KEEPER_DEATH_MS;

	if (wait.fd >= 0 && poll(&wait, 1, limit_ms) == 0 &&
	    syscall(SYS_pidfd_send_signal, wait.fd, SIGKILL, NULL, 0) == 0) {
		poll(&wait, 1, KEEPER_DEATH_MS);
	}
	if (machine->keeper_pid > 0) {
		while (waitpid(machine->keeper_pid, NULL, 0) < 0 && errno == EINTR) {
		}
	}
}

void client_machine_free(struct client_machine *machine)
{
	if (!machine) {
		return;
	}
	/* The keeper ends when the socket closes; its monitor ends with it. */
	close_fd(&machine->socket);
	wait_for_keeper(machine);
	if (machine->keeper_pid > 0 || machine->keeper_pidfd >= 0) {
		wait_for_monitor(machine);
		if (machine->sandbox_fd >= 0) {
			client_sweep_socket(machine);
		}
		jail_sweep_cgroups();
	}
	hand_over_locks(machine);
	close_fd(&machine->sandbox_fd);
	close_fd(&machine->signal_fd);
	close_fd(&machine->monitor_pidfd);
	close_fd(&machine->keeper_pidfd);
	if (machine->signals_taken) {
		sigaction(SIGPIPE, &machine->old_pipe_action, NULL);
		sigprocmask(SIG_SETMASK, &machine->old_mask, NULL);
	}
	free(machine);
}
