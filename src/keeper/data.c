#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "keeper/keeper.h"

/* Pausing writes what is under way to the disk; a monitor that needs longer does not answer. */
#define PAUSE_LIMIT_MS 60000

static void answer(struct client *client, int rc, int copy_fd)
{
	struct ipc_message message = {.type = IPC_DATA_COPY};
	char text[256];

	client->wants_copy = false;
	if (rc == 0) {
		if (ipc_send(client->fd, &message, &copy_fd, 1) < 0) {
			client_drop(client);
		}
		return;
	}
	snprintf(text, sizeof(text), "%s: /data could not be copied: %s",
		 client->keeper->start.name, strerror(-rc));
	client_refuse(client, 0, rc == -EAGAIN ? IPC_CODE_BUSY : "data-copy", text, "");
}

/* A copy is written to by whoever gets it, so one asker gets it; the others ask again. */
static void answer_all(struct keeper *keeper, int rc, int copy_fd)
{
	loop_timer_cancel(keeper->loop, &keeper->pause_timer);
	for (size_t i = 0; i < ARRAY_SIZE(keeper->clients); i++) {
		if (keeper->clients[i].fd >= 0 && keeper->clients[i].wants_copy) {
			answer(&keeper->clients[i], rc, copy_fd);
			copy_fd = -EBADF;
			rc = rc == 0 ? -EAGAIN : rc;
		}
	}
}

static void on_pause_limit(struct loop *loop, void *data)
{
	struct keeper *keeper = data;

	(void)loop;
	keeper->pause_timer = 0;
	answer_all(keeper, -ETIMEDOUT, -EBADF);
}

/* The machine stands still and all it has written is in the file: take the copy, let it go on. */
static void on_paused(void *data)
{
	struct keeper *keeper = data;
	_cleanup_close_ int copy_fd = store_temporary_file(&keeper->files.store, NULL);
	struct err err = {0};
	int rc = copy_fd < 0 ? copy_fd : copy_file_sparse(keeper->files.data_fd, copy_fd);

	keeper->pausing = false;
	answer_all(keeper, rc, copy_fd);
	if (keeper->phase != KEEPER_ENDING && engine_resume(keeper->engine, &err) < 0) {
		keeper_fail(keeper, &err);
	}
}

/* What the guest had cached is on its disk now: stop it. */
static void on_synced(struct keeper *keeper)
{
	int rc = keeper->phase == KEEPER_RUNNING
			 ? engine_pause(keeper->engine, on_paused, keeper, NULL)
			 : -EAGAIN;

	if (rc < 0) {
		keeper->pausing = false;
		answer_all(keeper, rc, -EBADF);
	}
}

/* A copy holds what had been written before it was asked for, synced by its writer or not. */
int data_sync_inside(struct keeper *keeper, void (*ended)(struct keeper *keeper))
{
	static const char *const argv[] = {"box-sync"};
	const struct wire_exec exec = {
		.flags = WIRE_EXEC_SELF,
		.user = "root",
		.directory = "/",
		.argc = ARRAY_SIZE(argv),
	};

	return command_own(keeper, &exec, argv, ended);
}

void data_copy(struct client *client)
{
	struct keeper *keeper = client->keeper;
	int rc = 0;

	if (keeper->phase != KEEPER_RUNNING || keeper->files.data_fd < 0 ||
	    keeper->fork.stage != FORK_NONE) {
		answer(client, -EAGAIN, -EBADF);
		return;
	}
	client->wants_copy = true;
	/* An asker before may have gone without waiting; its pause is ours then. */
	if (!keeper->pausing) {
		rc = data_sync_inside(keeper, on_synced);
		keeper->pausing = rc == 0;
	}
	if (rc == 0 && keeper->pause_timer == 0) {
		rc = loop_timer_add(keeper->loop, PAUSE_LIMIT_MS, on_pause_limit, keeper,
				    &keeper->pause_timer);
	}
	if (rc < 0) {
		answer(client, rc, -EBADF);
	}
}
