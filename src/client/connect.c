/*
 * The machine that stays: how a command finds it, looks at it and takes it down.
 *
 * Its keeper listens as run/NAME/sock and holds sandboxes/NAME/up.lock from before it listens until
 * after everything of the machine is gone. So the lock is the truth, and a socket that nobody
 * answers on while the lock can be had is what a killed keeper has left.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/mutant.h"
#include "client/client.h"
#include "client/internal.h"
#include "client/state.h"

/* A keeper takes its lock a moment before it listens. */
#define APPEAR_STEP_MS 10
#define APPEAR_TRIES 500
/* A boot takes three minutes at the very most, then its keeper gives up. */
#define START_STEP_MS 50
#define START_TRIES 4000
/* A listing holds a line of 16 KiB for each of 256 commands at the very most. */
#define LISTING_MAX ((size_t)8 << 20)

pid_t client_peer_of(int socket)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ? 0 : peer.pid;
}

int client_greet(int socket, int limit_ms)
{
	struct pollfd wait = {.fd = socket, .events = POLLIN};
	struct ipc_message message;
	int fds[IPC_FDS_MAX];
	int rc;

	if (poll(&wait, 1, limit_ms) <= 0) {
		return -ETIMEDOUT;
	}
	rc = ipc_receive(socket, &message, fds);
	if (rc == 0) {
		return -ECONNRESET;
	}
	if (rc > 0) {
		ipc_close_fds(fds);
	}
	if (rc < 0 || message.type != IPC_GREETING || strcmp(message.text, IPC_BUILD) != 0) {
		return -EPROTO;
	}
	return message.stream == 1 ? 1 : 0;
}

/* Connects to run/NAME/sock. Returns a socket, -ENOENT, -ECONNREFUSED or another errno. */
static int connect_socket(struct client_machine *machine)
{
	_cleanup_close_ int directory = store_open_run(machine->store, machine->name, false, NULL);

	return directory < 0 ? directory : ipc_connect_at(directory, STORE_UP_SOCKET);
}

/* What a killed keeper has left goes, unless one has taken its place meanwhile. */
static void sweep(struct client_machine *machine)
{
	if (client_stale_sockets(machine->store, machine->name, machine->sandbox_fd, true) > 0) {
		/* Its monitor may still be dying, with the lock of /data. */
		client_sweep_socket(machine);
		jail_sweep_cgroups();
	}
}

/*
 * Finds the keeper. Returns 0 with machine->socket, 1 when its machine is still starting, -ENOENT
 * (err is untouched) when there is none, or another negative errno with err filled. -EPROTO leaves
 * the socket open all the same.
 */
static int find(struct client_machine *machine, struct err *err)
{
	for (int i = 0; i < APPEAR_TRIES; i++) {
		_cleanup_close_ int lock = -EBADF;
		int rc = connect_socket(machine);

		if (rc >= 0) {
			machine->socket = rc;
			rc = client_greet(rc, CLIENT_GREETING_LIMIT_MS);
			if (rc >= 0 || rc == -EPROTO) {
				return rc;
			}
			close_fd(&machine->socket);
		}
		if (rc == -ETIMEDOUT || rc == -EAGAIN) {
			err_set(err, -ETIMEDOUT, "keeper-silent",
				"the keeper of %s does not answer", machine->name);
			err_mend(err, "is it stopped? let it go on (kill -CONT) or kill it");
			return -ETIMEDOUT;
		}
		if (rc != -ENOENT && rc != -ECONNREFUSED && rc != -ECONNRESET) {
			return err_context(err, rc, "%s", machine->name);
		}
		/* A starting machine must not be kept from it by a look. */
		if (rc == -ENOENT && !store_is_up(machine->sandbox_fd)) {
			client_sweep_socket(machine);
			return -ENOENT;
		}
		lock = store_lock_down(machine->sandbox_fd);
		if (lock >= 0) {
			sweep(machine);
			return -ENOENT;
		}
		if (lock != -EAGAIN) {
			return err_context(err, lock, "%s", machine->name);
		}
		if (client_pause_ms(machine, APPEAR_STEP_MS)) {
			return client_interrupted(machine, err);
		}
	}
	err_set(err, -ETIMEDOUT, "keeper-silent", "the keeper of %s does not listen",
		machine->name);
	err_mend(err, "wait a moment and try again");
	return -ETIMEDOUT;
}

static int prepare(struct store *store, const char *name, struct client_machine **ret_machine,
		   struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine =
		client_machine_new(store, name, err);
	int rc = machine ? client_take_signals(machine) : -ENOMEM;

	if (rc < 0) {
		return machine ? err_context(err, rc, "signals") : rc;
	}
	machine->sandbox_fd = store_open_sandbox(store, name, err);
	if (machine->sandbox_fd < 0) {
		return machine->sandbox_fd;
	}
	*ret_machine = TAKE_PTR(machine);
	return 0;
}

/* Finds the keeper of a machine that has come up: one that is just starting is waited for. */
static int find_started(struct client_machine *machine, struct err *err)
{
	for (int i = 0; i < START_TRIES; i++) {
		int rc = find(machine, err);

		if (rc <= 0) {
			return rc;
		}
		close_fd(&machine->socket);
		if (client_pause_ms(machine, START_STEP_MS)) {
			return client_interrupted(machine, err);
		}
	}
	err_set(err, -ETIMEDOUT, IPC_CODE_STARTING, "%s is still starting", machine->name);
	err_mend(err, "wait a moment and try again");
	return -ETIMEDOUT;
}

int client_connect(struct store *store, const char *name, struct client_machine **ret_machine,
		   struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	/* Else one machine for all sandboxes, as containers share a kernel. */
	int rc = prepare(store, MUTANT("machine") ? "first" : name, &machine, err);

	if (rc < 0) {
		return rc;
	}
	rc = find_started(machine, err);
	if (rc == -ENOENT) {
		err_set(err, rc, "not-up", "%s is not up", name);
		err_mend(err, "`box up %s` starts it, `box run %s` needs no machine that is up",
			 name, name);
	} else if (rc == -EPROTO) {
		err_set(err, rc, "other-version", "%s was started by another version of box", name);
		err_mend(err, "`box down %s` ends it all the same, then `box up %s`", name, name);
	} else if (rc == 0) {
		*ret_machine = TAKE_PTR(machine);
	}
	return rc;
}

/* Waits until the keeper has closed the socket, which is the last thing it does. */
static int wait_for_end(struct client_machine *machine, struct err *err)
{
	int failure = 0;

	for (;;) {
		struct ipc_message message;
		int fds[IPC_FDS_MAX];
		int rc = client_await_answer(machine, machine->socket, err);

		if (rc < 0) {
			return rc;
		}
		rc = ipc_receive(machine->socket, &message, fds);
		if (rc == 0 || rc == -ECONNRESET || rc == -EPIPE) {
			return failure;
		}
		if (rc > 0) {
			ipc_close_fds(fds);
			/* Another `down` was faster: that is what we want as well. */
			if (message.type == IPC_FAILED &&
			    strcmp(message.failed.code, "went-down") != 0) {
				failure = client_failed(&message, err);
			}
		}
	}
}

/* Messages of another version mean something else; its keeper understands a signal. */
static int order_down(struct client_machine *machine, bool understands)
{
	const struct ipc_message message = {.type = IPC_SHUTDOWN};
	pid_t peer;

	if (understands) {
		return ipc_send(machine->socket, &message, NULL, 0);
	}
	/* The socket is open, so the process that listens on it lives and its number is its own. */
	peer = client_peer_of(machine->socket);
	if (peer == 0) {
		return -ESRCH;
	}
	return kill(peer, SIGTERM) < 0 ? -errno : 0;
}

int client_down(struct store *store, const char *name, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	int rc = prepare(store, name, &machine, err);
	int found;

	if (rc < 0) {
		return rc;
	}
	found = find(machine, err);
	if (found == -ENOENT) {
		return 0;
	}
	if (found < 0 && found != -EPROTO) {
		return found;
	}
	/* A keeper that is just ending is on its way to where we want it. */
	rc = order_down(machine, found >= 0);
	if (rc < 0 && rc != -EPIPE && rc != -ESRCH) {
		return err_context(err, rc, "%s", name);
	}
	rc = wait_for_end(machine, err);
	jail_sweep_cgroups();
	return rc < 0 ? rc : 1;
}

int client_read_listing(int fd, char **ret_text, size_t *ret_size)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return read_file_at(AT_FDCWD, path, LISTING_MAX, ret_text, ret_size);
}

/* Asks a question that is answered by text in a memory file. */
static int ask(struct client_machine *machine, uint32_t type, char **ret_text, size_t *ret_size,
	       struct err *err)
{
	const struct ipc_message order = {.type = type};

	if (ipc_send(machine->socket, &order, NULL, 0) < 0) {
		return client_lost(machine, err);
	}
	for (;;) {
		_cleanup_close_ int fd = -EBADF;
		struct ipc_message message;
		int fds[IPC_FDS_MAX];
		int rc = client_await_answer(machine, machine->socket, err);

		if (rc < 0) {
			return rc;
		}
		if (ipc_receive(machine->socket, &message, fds) <= 0) {
			return client_lost(machine, err);
		}
		if (message.type == IPC_LISTING) {
			fd = TAKE_FD(fds[0]);
		}
		ipc_close_fds(fds);
		if (message.type == IPC_FAILED || message.type == IPC_REFUSED) {
			return client_failed(&message, err);
		}
		if (fd < 0) {
			continue;
		}
		rc = client_read_listing(fd, ret_text, ret_size);
		return rc < 0 ? err_context(err, rc, "%s", machine->name) : 0;
	}
}

int client_list(struct client_machine *machine, char **ret_text, size_t *ret_size, struct err *err)
{
	return ask(machine, IPC_LIST, ret_text, ret_size, err);
}

int client_report(struct client_machine *machine, char **ret_text, size_t *ret_size,
		  struct err *err)
{
	return ask(machine, IPC_REPORT, ret_text, ret_size, err);
}

int client_kill(struct client_machine *machine, const char *id, int number, struct err *err)
{
	struct ipc_message message = {.type = IPC_KILL};
	int rc;

	message.command.number = (uint32_t)number;
	snprintf(message.command.id, sizeof(message.command.id), "%s", id);
	if (ipc_send(machine->socket, &message, NULL, 0) < 0) {
		return client_lost(machine, err);
	}
	rc = client_await(machine, IPC_DONE, &message, err);
	if (rc < 0 && err && strcmp(err->code, "no-command") == 0) {
		err_set(err, -ESRCH, "no-command", "no command of %s is called %s", machine->name,
			id);
		err_mend(err, "`box ps %s` lists what runs", machine->name);
		return -ESRCH;
	}
	return rc;
}

int client_net_rule(struct client_machine *machine, enum ipc_rule_action action, const char *rule,
		    struct err *err)
{
	struct ipc_message message = {.type = IPC_NET_RULE};

	message.rule.action = action;
	snprintf(message.rule.text, sizeof(message.rule.text), "%s", rule);
	if (ipc_send(machine->socket, &message, NULL, 0) < 0) {
		return client_lost(machine, err);
	}
	return client_await(machine, IPC_DONE, &message, err);
}

static int pass_connection(struct client_machine *machine, int listen_fd, uint16_t port)
{
	_cleanup_close_ int peer = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct ipc_message message = {.type = IPC_TCP};

	if (peer < 0) {
		return 0;
	}
	message.stream = ++machine->last_stream;
	message.tcp.port = port;
	return ipc_send(machine->socket, &message, &peer, 1);
}

int client_forward(struct client_machine *machine, int listen_fd, uint16_t port, struct err *err)
{
	for (;;) {
		struct pollfd waits[] = {
			{.fd = machine->socket, .events = POLLIN},
			{.fd = machine->signal_fd, .events = POLLIN},
			{.fd = listen_fd, .events = POLLIN},
		};
		struct ipc_message message;
		int fds[IPC_FDS_MAX];
		int rc;

		rc = client_poll(machine, machine->socket, waits, ARRAY_SIZE(waits), -1, err);
		if (rc < 0) {
			return rc;
		}
		if (waits[1].revents && client_pause_ms(machine, 0)) {
			return 0;
		}
		if (waits[0].revents) {
			if (ipc_receive(machine->socket, &message, fds) <= 0) {
				return client_lost(machine, err);
			}
			ipc_close_fds(fds);
			if (message.type == IPC_FAILED) {
				return client_failed(&message, err);
			}
		}
		if (waits[2].revents && pass_connection(machine, listen_fd, port) < 0) {
			return client_lost(machine, err);
		}
	}
}
