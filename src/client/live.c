/*
 * The client's side of a fork of a machine that is up.
 *
 * The keeper that holds /data freezes it, for only it can put the guest's disk on the new chain. It
 * gets the chain lock along, so that the chain is nobody else's until it is done, also when this
 * process is killed. The state of the machine comes back as nameless files: they are gone with the
 * last process that has them, whatever happens. Each copy gets an overlay of its own for the root;
 * the rest is read by all.
 */
#include "client/live.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "client/client.h"
#include "client/internal.h"

/* A keeper that makes a fork, or a copy of /data, for somebody else is asked again. */
#define BUSY_PAUSE_MS 50
#define BUSY_TRIES 600
/* The guest writes what it has cached, then keeps still, then all of its memory is written. */
#define ANSWER_LIMIT_MS 300000

void client_close_saved(struct client_saved *saved)
{
	for (size_t i = 0; i < ARRAY_SIZE(saved->fds); i++) {
		close_fd(&saved->fds[i]);
	}
}

int client_connect_holder(struct store *store, const char *name)
{
	_cleanup_close_ int directory = store_open_run(store, name, false, NULL);
	_cleanup_close_ int peer = -EBADF;

	peer = directory < 0 ? directory : ipc_connect_at(directory, STORE_DATA_SOCKET);
	if (peer < 0 || client_greet(peer, CLIENT_GREETING_LIMIT_MS) < 0) {
		return -EAGAIN;
	}
	return TAKE_FD(peer);
}

/* Waits for the answer. Returns 0, -EAGAIN when the keeper is busy or gone, or another errno. */
static int take_answer(int peer, const char *name, struct client_saved *ret_saved, struct err *err)
{
	struct pollfd wait = {.fd = peer, .events = POLLIN};
	struct ipc_message message;
	int fds[IPC_FDS_MAX];
	int rc = 0;

	if (poll(&wait, 1, ANSWER_LIMIT_MS) <= 0) {
		err_set(err, -ETIMEDOUT, "keeper-silent", "the keeper of %s does not answer", name);
		err_mend(err, "is it stopped? let it go on (kill -CONT) or kill it");
		return -ETIMEDOUT;
	}
	if (ipc_receive(peer, &message, fds) <= 0) {
		return -EAGAIN;
	}
	if (message.type == IPC_FORKED && ret_saved) {
		for (size_t i = 0; i < ARRAY_SIZE(ret_saved->fds); i++) {
			ret_saved->fds[i] = TAKE_FD(fds[i]);
		}
	} else if (message.type == IPC_REFUSED || message.type == IPC_FAILED) {
		rc = strcmp(message.failed.code, IPC_CODE_BUSY) == 0 ||
				     strcmp(message.failed.code, IPC_CODE_STARTING) == 0
			     ? -EAGAIN
			     : client_failed(&message, err);
	} else if (message.type != IPC_DONE || ret_saved) {
		rc = err_set(err, -EPROTO, "internal", "the keeper of %s answers something else",
			     name);
	}
	ipc_close_fds(fds);
	return rc;
}

int client_freeze_running(struct store *store, const char *name, int chain_fd,
			  struct client_saved *ret_saved, struct err *err)
{
	const struct ipc_message order = {.type = ret_saved ? IPC_FORK : IPC_FREEZE_DATA};
	int rc = -EAGAIN;

	for (unsigned i = 0; rc == -EAGAIN && i < BUSY_TRIES; i++) {
		_cleanup_close_ int peer = -EBADF;

		if (i > 0) {
			poll(NULL, 0, BUSY_PAUSE_MS);
		}
		peer = client_connect_holder(store, name);
		if (peer < 0) {
			return peer;
		}
		rc = ipc_send(peer, &order, &chain_fd, 1) < 0
			     ? -EAGAIN
			     : take_answer(peer, name, ret_saved, err);
	}
	if (rc == -EAGAIN) {
		err_set(err, -EBUSY, "busy", "the machine of %s is busy", name);
		err_mend(err, "wait until it has started, or until others have their copies");
		return -EBUSY;
	}
	return rc;
}

int client_start_copy(struct store *store, const char *name, const struct client_saved *saved,
		      struct err *err)
{
	struct client_start_options options = {
		.mode = IPC_START_RUN, .data = CLIENT_DATA_OWN, .stage = ""};
	struct ipc_ready ready;
	int fds[IPC_COPY_FDS];
	int rc;

	memcpy(fds, saved->fds, sizeof(fds));
	/* The second one is the overlay, which the copy writes to. */
	fds[1] = store_temporary_file(store, err);
	if (fds[1] < 0) {
		return fds[1];
	}
	options.saved_fds = fds;
	rc = copy_file_sparse(saved->fds[1], fds[1]);
	rc = rc < 0 ? err_context(err, rc, "%s: the root of the copied machine", name)
		    : client_up(store, name, &options, &ready, err);
	close(fds[1]);
	return rc;
}
