#include "keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"

#define SOCKET_NAME "sock"
/* Pausing writes what is under way to the disk; a monitor that needs longer does not answer. */
#define PAUSE_LIMIT_MS 60000

static void answer(struct keeper *keeper, int rc, int copy_fd)
{
	struct ipc_message message = {.type = rc < 0 ? IPC_FAILED : IPC_DATA_COPY};

	if (rc < 0) {
		snprintf(message.failed.code, sizeof(message.failed.code), "%s",
			 rc == -EAGAIN ? IPC_CODE_BUSY : "data-copy");
		snprintf(message.failed.text, sizeof(message.failed.text),
			 "%s: /data could not be copied: %s", keeper->start.name, strerror(-rc));
	}
	ipc_send(keeper->asker_fd, &message, &copy_fd, rc < 0 ? 0 : 1);
	loop_remove(keeper->loop, keeper->asker_fd);
	close_fd(&keeper->asker_fd);
	loop_timer_cancel(keeper->loop, &keeper->pause_timer);
}

static void on_pause_limit(struct loop *loop, void *data)
{
	(void)loop;
	answer(data, -ETIMEDOUT, -EBADF);
}

/* The machine stands still and all it has written is in the file: take the copy, let it go on. */
static void on_paused(void *data)
{
	struct keeper *keeper = data;
	_cleanup_close_ int copy_fd = store_temporary_file(&keeper->files.store, NULL);
	struct err err = {0};
	int rc = copy_fd < 0 ? copy_fd : copy_file_sparse(keeper->files.data_fd, copy_fd);

	keeper->pausing = false;
	answer(keeper, rc, copy_fd);
	if (engine_resume(keeper->engine, &err) < 0) {
		keeper_fail(keeper, &err);
	}
}

static void on_asker(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct keeper *keeper = data;
	struct ipc_message message;
	int fds[IPC_FDS_MAX];
	int rc = ipc_receive(fd, &message, fds);

	(void)events;
	if (rc == -EAGAIN) {
		return;
	}
	if (rc > 0) {
		ipc_close_fds(fds);
	}
	/* No more is read until the answer is out. */
	loop_modify(loop, fd, 0);
	if (rc <= 0 || message.type != IPC_COPY_DATA || keeper->phase != KEEPER_RUNNING) {
		answer(keeper, -EAGAIN, -EBADF);
		return;
	}
	/* An asker before may have gone without waiting; its pause is ours then. */
	rc = keeper->pausing ? 0 : engine_pause(keeper->engine, on_paused, keeper, NULL);
	if (rc == 0) {
		keeper->pausing = true;
		rc = loop_timer_add(loop, PAUSE_LIMIT_MS, on_pause_limit, keeper,
				    &keeper->pause_timer);
	}
	if (rc < 0) {
		answer(keeper, rc, -EBADF);
	}
}

static void on_listener(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct keeper *keeper = data;
	int asker = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)events;
	if (asker < 0) {
		return;
	}
	/* One at a time: others are told to ask again. */
	if (keeper->asker_fd >= 0 || loop_add(loop, asker, EPOLLIN, on_asker, keeper) < 0) {
		close(asker);
		return;
	}
	keeper->asker_fd = asker;
}

int keeper_listen(struct keeper *keeper, struct err *err)
{
	char directory[128];

	keeper->asker_fd = -EBADF;
	snprintf(directory, sizeof(directory), "run/%s", keeper->start.name);
	if (mkdirat(keeper->files.store.home_fd, directory, 0700) < 0 && errno != EEXIST) {
		return err_context(err, -errno, "%s", directory);
	}
	keeper->run_fd = openat(keeper->files.store.home_fd, directory,
				O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (keeper->run_fd < 0) {
		return err_context(err, -errno, "%s", directory);
	}
	/* We hold the lock of /data, so a socket that is there belongs to nobody who lives. */
	unlinkat(keeper->run_fd, SOCKET_NAME, 0);
	keeper->listen_fd = ipc_listen_at(keeper->run_fd, SOCKET_NAME);
	if (keeper->listen_fd < 0) {
		return err_context(err, keeper->listen_fd, "%s/%s", directory, SOCKET_NAME);
	}
	return loop_add(keeper->loop, keeper->listen_fd, EPOLLIN, on_listener, keeper);
}

void keeper_stop_listening(struct keeper *keeper)
{
	char directory[128];

	if (keeper->listen_fd < 0) {
		return;
	}
	loop_remove(keeper->loop, keeper->listen_fd);
	close_fd(&keeper->listen_fd);
	if (keeper->asker_fd >= 0) {
		loop_remove(keeper->loop, keeper->asker_fd);
		close_fd(&keeper->asker_fd);
	}
	unlinkat(keeper->run_fd, SOCKET_NAME, 0);
	close_fd(&keeper->run_fd);
	snprintf(directory, sizeof(directory), "run/%s", keeper->start.name);
	unlinkat(keeper->files.store.home_fd, directory, AT_REMOVEDIR);
}
