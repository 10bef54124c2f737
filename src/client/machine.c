/*
 * A machine as a command sees it: the keeper at the other end of a socket.
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
#include "base/program.h"
#include "client/internal.h"

/* How often, and how long, another keeper is asked for a copy of /data. */
#define COPY_RETRY_MS 50
#define COPY_TRIES 200
/* A killed monitor gives its memory back first; 24 GiB of it take less than this. */
#define MONITOR_DEATH_MS 5000
#define SWEEP_STEP_MS 5

/* A signal asked to stop: the code word tells which, so that the exit code can. */
static int interrupted(const struct client_machine *machine, struct err *err)
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
static int take_signals(struct client_machine *machine)
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
static bool pause_ms(struct client_machine *machine, int timeout_ms)
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
		if (pause_ms(machine, COPY_RETRY_MS)) {
			return interrupted(machine, err);
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
				 "/data of %s is held by another machine; waiting for it "
				 "(--data none or --data clone would not wait)",
				 machine->name);
			notice(options, text);
			said = true;
		}
		forget(err);
		if (pause_ms(machine, COPY_RETRY_MS)) {
			return interrupted(machine, err);
		}
	}
}

/* Waits until the socket can be read; a keeper copies for as long as its disk takes. */
static int await_answer(struct client_machine *machine, int socket, struct err *err)
{
	struct pollfd waits[2] = {
		{.fd = socket, .events = POLLIN},
		{.fd = machine->signal_fd, .events = POLLIN},
	};

	for (;;) {
		if (poll(waits, 2, -1) < 0) {
			if (errno != EINTR) {
				return err_context(err, -errno, "box-keeper");
			}
			continue;
		}
		if (waits[1].revents && stop_wanted(machine)) {
			return interrupted(machine, err);
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
	_cleanup_close_ int directory = -EBADF;
	_cleanup_close_ int peer = -EBADF;
	char path[128];
	int fds[IPC_FDS_MAX];
	int rc;

	snprintf(path, sizeof(path), "run/%s", machine->name);
	directory = openat(machine->store->home_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0) {
		return -EAGAIN;
	}
	peer = ipc_connect_at(directory, "sock");
	if (peer < 0 || ipc_send(peer, &message, NULL, 0) < 0) {
		return -EAGAIN;
	}
	rc = await_answer(machine, peer, err);
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
	if (message.type == IPC_FAILED && strcmp(message.failed.code, IPC_CODE_BUSY) == 0) {
		return -EAGAIN;
	}
	err_set(err, -EIO, "data-copy", "%s", message.failed.text);
	err_mend(err, "try again, or run without it: --data none");
	return -EIO;
}

static int clone_data(struct client_machine *machine, struct err *err)
{
	for (unsigned i = 0; i < COPY_TRIES; i++) {
		_cleanup_close_ int fd = store_open_data(machine->sandbox_fd, false, err);
		int rc;

		if (fd >= 0) {
			machine->data_fd = store_temporary_file(machine->store, err);
			if (machine->data_fd < 0) {
				return machine->data_fd;
			}
			rc = copy_file_sparse(fd, machine->data_fd);
			return rc < 0 ? err_context(err, rc, "copying /data of %s", machine->name)
				      : 0;
		}
		if (fd != -EAGAIN) {
			return fd;
		}
		rc = ask_for_copy(machine, err);
		if (rc != -EAGAIN) {
			return rc;
		}
		forget(err);
		if (pause_ms(machine, COPY_RETRY_MS)) {
			return interrupted(machine, err);
		}
	}
	err_set(err, -EAGAIN, "data-copy", "/data of %s is held, and its machine does not answer",
		machine->name);
	err_mend(err, "try again, or run without it: --data none");
	return -EAGAIN;
}

static int take_data(struct client_machine *machine, const struct client_start_options *options,
		     struct err *err)
{
	if (options->mode != IPC_START_RUN || options->data == CLIENT_DATA_NONE) {
		return 0;
	}
	return options->data == CLIENT_DATA_OWN ? hold_data(machine, options, err)
						: clone_data(machine, err);
}

/* In the child: nothing but the socket goes along. */
_Noreturn static void exec_keeper(const char *path, int fd)
{
	char number[16];
	char *const argv[] = {(char[]){"box-keeper"}, number, NULL};
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	snprintf(number, sizeof(number), "%d", fd);
	set_cloexec(fd, false);
	execv(path, argv);
	_exit(EXIT_BOX_FAILED);
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
	machine->keeper_pid = fork();
	if (machine->keeper_pid == 0) {
		exec_keeper(path, pair[1]);
	}
	rc = machine->keeper_pid < 0 ? -errno : 0;
	close(pair[1]);
	return rc < 0 ? err_context(err, rc, "box-keeper") : 0;
}

static int send_start(struct client_machine *machine, const struct client_start_options *options,
		      struct err *err)
{
	struct ipc_message message = {.type = IPC_START};
	int fds[2];
	size_t count = 0;
	int rc;

	message.start.mode = options->mode;
	message.start.force_boot = options->force_boot;
	message.start.has_data = machine->data_fd >= 0;
	message.start.data_is_own = machine->data_fd >= 0 && options->data == CLIENT_DATA_OWN;
	snprintf(message.start.name, sizeof(message.start.name), "%s", machine->name);
	snprintf(message.start.stage, sizeof(message.start.stage), "%s", options->stage);
	if (machine->data_fd >= 0) {
		fds[count++] = machine->data_fd;
	}
	if (machine->live_fd >= 0) {
		fds[count++] = machine->live_fd;
	}
	rc = ipc_send(machine->socket, &message, fds, count);
	/* The locks are the keeper's and the monitor's now: they end when the machine does. */
	close_fd(&machine->data_fd);
	close_fd(&machine->live_fd);
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

		rc = await_answer(machine, machine->socket, err);
		if (rc < 0) {
			return rc;
		}
		rc = ipc_receive(machine->socket, ret_message, fds);
		if (rc <= 0) {
			return client_lost(machine, err);
		}
		ipc_close_fds(fds);
		if (ret_message->type == IPC_FAILED) {
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

static int start(struct client_machine *machine, const struct client_start_options *options,
		 struct err *err)
{
	struct ipc_message message;
	int rc = take_signals(machine);

	if (rc < 0) {
		return err_context(err, rc, "signals");
	}
	machine->sandbox_fd = store_open_sandbox(machine->store, machine->name, err);
	if (machine->sandbox_fd < 0) {
		return machine->sandbox_fd;
	}
	rc = hold_live(machine, err);
	if (rc == 0) {
		rc = take_data(machine, options, err);
	}
	if (rc == 0) {
		rc = spawn_keeper(machine, err);
	}
	if (rc == 0) {
		rc = send_start(machine, options, err);
	}
	if (rc == 0) {
		rc = client_await(machine, IPC_READY, &message, err);
	}
	if (rc < 0) {
		return rc;
	}
	machine->ready = message.ready;
	machine->monitor_pidfd = (int)syscall(SYS_pidfd_open, message.ready.monitor_pid, 0);
	tell_start(machine, options);
	return 0;
}

int client_start(struct store *store, const char *name, const struct client_start_options *options,
		 struct client_machine **ret_machine, struct err *err)
{
	struct client_machine *machine = calloc(1, sizeof(*machine));
	int rc;

	if (!machine) {
		return err_context(err, -ENOMEM, "%s", name);
	}
	machine->store = store;
	snprintf(machine->name, sizeof(machine->name), "%s", name);
	machine->socket = machine->signal_fd = machine->sandbox_fd = -EBADF;
	machine->data_fd = machine->live_fd = machine->monitor_pidfd = -EBADF;
	rc = start(machine, options, err);
	if (rc < 0) {
		client_machine_free(machine);
		return rc;
	}
	*ret_machine = machine;
	return 0;
}

const struct ipc_ready *client_ready(const struct client_machine *machine)
{
	return &machine->ready;
}

static int order_and_wait(struct client_machine *machine, uint32_t order, struct err *err)
{
	struct ipc_message message = {.type = order};
	int rc = ipc_send(machine->socket, &message, NULL, 0);

	if (rc < 0) {
		return client_lost(machine, err);
	}
	return client_await(machine, IPC_DOWN, &message, err);
}

int client_snapshot(struct client_machine *machine, struct err *err)
{
	return order_and_wait(machine, IPC_SNAPSHOT, err);
}

int client_stop(struct client_machine *machine, struct err *err)
{
	return order_and_wait(machine, IPC_SHUTDOWN, err);
}

/* The monitor of a keeper that was killed dies with it, but not at the same instant. */
static void wait_for_monitor(struct client_machine *machine)
{
	struct pollfd wait = {.fd = machine->monitor_pidfd, .events = POLLIN};

	if (machine->monitor_pidfd >= 0) {
		poll(&wait, 1, MONITOR_DEATH_MS);
	}
}

/* Whether run/NAME/sock is there and nobody listens on it. */
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
	peer = ipc_connect_at(directory, "sock");
	return peer == -ECONNREFUSED;
}

/*
 * A keeper that was killed could not take its socket away. Only the holder of /data may, so this
 * waits for the lock until the dying monitor has let it go, or until another machine has it.
 */
static void sweep_socket(const struct client_machine *machine)
{
	for (int i = 0; i < MONITOR_DEATH_MS / SWEEP_STEP_MS && socket_is_stale(machine); i++) {
		_cleanup_close_ int lock = store_open_data(machine->sandbox_fd, false, NULL);
		char path[128];

		if (lock < 0) {
			poll(NULL, 0, SWEEP_STEP_MS);
			continue;
		}
		snprintf(path, sizeof(path), "run/%s/sock", machine->name);
		unlinkat(machine->store->home_fd, path, 0);
		*strrchr(path, '/') = '\0';
		unlinkat(machine->store->home_fd, path, AT_REMOVEDIR);
	}
}

void client_machine_free(struct client_machine *machine)
{
	if (!machine) {
		return;
	}
	/* The keeper ends when the socket closes; its monitor ends with it. */
	close_fd(&machine->socket);
	if (machine->keeper_pid > 0) {
		while (waitpid(machine->keeper_pid, NULL, 0) < 0 && errno == EINTR) {
		}
		wait_for_monitor(machine);
		if (machine->sandbox_fd >= 0) {
			sweep_socket(machine);
		}
		jail_sweep_cgroups();
	}
	close_fd(&machine->data_fd);
	close_fd(&machine->live_fd);
	close_fd(&machine->sandbox_fd);
	close_fd(&machine->signal_fd);
	close_fd(&machine->monitor_pidfd);
	if (machine->signals_taken) {
		sigaction(SIGPIPE, &machine->old_pipe_action, NULL);
		sigprocmask(SIG_SETMASK, &machine->old_mask, NULL);
	}
	free(machine);
}
