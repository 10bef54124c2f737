/*
 * Machines that are kept ready, from the side of who takes one, counts them or ends them.
 *
 * Their keepers listen as run/NAME/warm-N (keeper/pool.c). Renaming that name is the act of taking:
 * it succeeds for one process, and the listener behind it stays the same.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "client/client.h"
#include "client/internal.h"
#include "json/json.h"

/* One that is being made ready is waited for, when all are to go: longer than its keeper gives it
 * (keeper/keeper.c). */
#define DRAIN_STEP_MS 20
#define DRAIN_TRIES 3000
/* One that is ready answers at once. */
#define TAKE_LIMIT_MS 2000
/* Longer than its keeper waits for the guest to mount /data (keeper/pool.c). */
#define CLAIM_LIMIT_MS 25000
/* A killed keeper closes some files. */
#define KILL_LIMIT_MS 5000

/* The process that listens on the socket's other end. A pidfd or a negative errno. */
static int open_peer(int socket)
{
	struct pollfd wait = {.fd = socket};
	int fd = (int)syscall(SYS_pidfd_open, client_peer_of(socket), 0);

	if (fd < 0) {
		return -errno;
	}
	/* While the connection stands it lives, and the number is its own. */
	if (poll(&wait, 1, 0) > 0 && (wait.revents & (POLLHUP | POLLERR))) {
		close(fd);
		return -ESRCH;
	}
	return fd;
}

/* Ends a keeper that may have been stopped, and waits for that. */
static void kill_peer(int peer_fd)
{
	struct pollfd wait = {.fd = peer_fd, .events = POLLIN};

	if (peer_fd >= 0 && syscall(SYS_pidfd_send_signal, peer_fd, SIGKILL, NULL, 0) == 0) {
		poll(&wait, 1, KILL_LIMIT_MS);
	}
}

/* Takes slot's socket for us alone and connects. Returns a greeted socket, or a negative errno. */
static int take(int run_fd, unsigned slot)
{
	_cleanup_close_ int socket = -EBADF;
	char warm[32], claimed[32];
	int rc;

	snprintf(warm, sizeof(warm), STORE_WARM_SOCKET, slot);
	snprintf(claimed, sizeof(claimed), STORE_CLAIMED_SOCKET, slot);
	if (renameat(run_fd, warm, run_fd, claimed) < 0) {
		return -errno;
	}
	socket = ipc_connect_at(run_fd, claimed);
	/* The name has done its duty, and a keeper that was killed leaves nothing else. */
	unlinkat(run_fd, claimed, 0);
	if (socket < 0) {
		return socket;
	}
	rc = client_greet(socket, TAKE_LIMIT_MS);
	if (rc == -ETIMEDOUT) {
		/* Nobody else can find it any more, and it holds nothing of anybody's. */
		_cleanup_close_ int peer_fd = open_peer(socket);

		kill_peer(peer_fd);
	}
	return rc < 0 ? rc : TAKE_FD(socket);
}

/* Returns 0, -ESTALE when the machine was not ours to have, -EINTR, or another errno: then its
 * keeper may have taken what it was sent. */
static int claim(struct client_machine *machine, const struct client_start_options *options,
		 struct err *err)
{
	struct ipc_message message = {.type = IPC_CLAIM};
	struct err refused = {0};
	int fds[IPC_FDS_MAX];
	size_t count = client_fill_start(machine, options, &message, fds);
	int rc = ipc_send(machine->socket, &message, fds, count);

	if (rc == 0) {
		machine->deadline_ns = clock_monotonic_ns() + CLAIM_LIMIT_MS * UINT64_C(1000000);
		rc = client_await(machine, IPC_READY, &message, &refused);
		machine->deadline_ns = 0;
	}
	if (rc < 0 && rc != -EINTR && message.type == IPC_REFUSED) {
		return -ESTALE;
	}
	if (rc == -EINTR && err) {
		*err = refused;
	}
	if (rc == 0) {
		machine->ready = message.ready;
	}
	return rc;
}

int client_pool_claim(struct client_machine *machine, const struct client_start_options *options,
		      struct err *err)
{
	_cleanup_close_ int run_fd = store_open_run(machine->store, machine->name, false, NULL);

	for (unsigned slot = 0; run_fd >= 0 && slot < STORE_SLOTS_MAX; slot++) {
		int rc = take(run_fd, slot);

		if (rc < 0) {
			continue;
		}
		machine->socket = rc;
		machine->keeper_pidfd = open_peer(machine->socket);
		rc = claim(machine, options, err);
		if (rc == 0) {
			return 1;
		}
		if (rc == -EINTR) {
			return rc;
		}
		/* Not what it would be now: the next one, or a new one. */
		close_fd(&machine->socket);
		if (rc != -ESTALE) {
			/* Two machines must not have /data. Who gets its lock anew knows that
			 * neither the keeper nor its monitor has it any more. */
			kill_peer(machine->keeper_pidfd);
			close_fd(&machine->keeper_pidfd);
			close_fd(&machine->data_fd);
			break;
		}
		close_fd(&machine->keeper_pidfd);
	}
	return 0;
}

/* Whether the slot is free: nobody has it, or makes a machine for it. */
static bool is_free(int run_fd, unsigned slot)
{
	char name[32];
	int lock_fd;

	snprintf(name, sizeof(name), STORE_SLOT_LOCK, slot);
	if (faccessat(run_fd, name, F_OK, 0) < 0) {
		return true;
	}
	lock_fd = store_lock_slot(run_fd, slot);
	if (lock_fd < 0) {
		return lock_fd != -EAGAIN;
	}
	store_unlock_slot(run_fd, slot, &lock_fd);
	return true;
}

static void end_one(int socket)
{
	const struct ipc_message order = {.type = IPC_SHUTDOWN};
	_cleanup_close_ int peer_fd = open_peer(socket);
	struct pollfd wait = {.fd = peer_fd, .events = POLLIN};

	if (ipc_send(socket, &order, NULL, 0) == 0 && peer_fd >= 0) {
		poll(&wait, 1, DRAIN_STEP_MS * DRAIN_TRIES);
	}
}

/* Ends what is ready. Returns how many there were. */
static int drain_ready(int run_fd)
{
	int count = 0;

	for (unsigned slot = 0; slot < STORE_SLOTS_MAX; slot++) {
		_cleanup_close_ int socket = take(run_fd, slot);

		if (socket >= 0) {
			end_one(socket);
			count++;
		}
	}
	return count;
}

int client_pool_drain(struct store *store, const char *name, struct err *err)
{
	_cleanup_close_ int run_fd = store_open_run(store, name, false, NULL);
	int count = 0;
	bool done = run_fd < 0;

	for (int i = 0; !done && i < DRAIN_TRIES; i++) {
		count += drain_ready(run_fd);
		done = true;
		for (unsigned slot = 0; slot < STORE_SLOTS_MAX; slot++) {
			done = done && is_free(run_fd, slot);
		}
		if (!done) {
			poll(NULL, 0, DRAIN_STEP_MS);
		}
	}
	if (!done) {
		err_set(err, -ETIMEDOUT, "pool", "the machines that %s keeps ready do not end",
			name);
		err_mend(err, "try again; `box doctor` lists what is left");
		return -ETIMEDOUT;
	}
	if (run_fd >= 0) {
		store_leave_run(store, name);
		jail_sweep_cgroups();
	}
	return count;
}

void client_pool_count(struct store *store, const char *name, unsigned *ret_count,
		       uint64_t *ret_memory_bytes)
{
	_cleanup_close_ int run_fd = store_open_run(store, name, false, NULL);

	*ret_count = 0;
	*ret_memory_bytes = 0;
	for (unsigned slot = 0; run_fd >= 0 && slot < STORE_SLOTS_MAX; slot++) {
		_cleanup_(json_freep) struct json *listing = NULL;
		_cleanup_close_ int socket = -EBADF;
		int64_t bytes = 0;
		char warm[32];

		snprintf(warm, sizeof(warm), STORE_WARM_SOCKET, slot);
		socket = ipc_connect_at(run_fd, warm);
		if (socket < 0) {
			continue;
		}
		/* One that was stopped is there all the same. */
		++*ret_count;
		listing = client_ask_soon(socket);
		if (json_get_integer(listing, "memory_bytes", &bytes) == 0) {
			*ret_memory_bytes += (uint64_t)bytes;
		}
	}
}
