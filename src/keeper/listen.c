#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/mutant.h"
#include "keeper/keeper.h"

/* The last keeper of a sandbox takes the directory away, perhaps just after we have made it. */
#define TRIES_MAX 16
#define ACCEPT_REST_MS 100

static void on_rested(struct loop *loop, void *data)
{
	struct keeper *keeper = data;
	const int fds[] = {keeper->listen_fd, keeper->data_listen_fd, keeper->warm_listen_fd};

	keeper->accept_timer = 0;
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		loop_modify(loop, fds[i], EPOLLIN);
	}
	for (size_t i = 0; i < ARRAY_SIZE(keeper->port_fds); i++) {
		loop_modify(loop, keeper->port_fds[i], EPOLLIN);
	}
}

int listen_accept(struct keeper *keeper, int listen_fd)
{
	int peer = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	/* Without a descriptor for it the connection stays where it is, and would be reported for
	 * ever. */
	if (peer < 0 &&
	    (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
		if (keeper->accept_timer == 0 &&
		    loop_timer_add(keeper->loop, ACCEPT_REST_MS, on_rested, keeper,
				   &keeper->accept_timer) < 0) {
			return -EBADF;
		}
		loop_modify(keeper->loop, listen_fd, 0);
	}
	return peer < 0 ? -EBADF : peer;
}

static void on_listener(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct keeper *keeper = data;
	struct ipc_message greeting = {.type = IPC_GREETING};
	int peer = listen_accept(keeper, fd);

	(void)loop;
	(void)events;
	if (peer >= 0) {
		greeting.stream = keeper->phase == KEEPER_STARTING;
		snprintf(greeting.text, sizeof(greeting.text), "%s", IPC_BUILD);
		client_tell(client_add(keeper, peer), &greeting);
	}
}

int listen_open(struct keeper *keeper, const char *name, int *ret_fd, struct err *err)
{
	int rc = -ENOENT;

	for (int i = 0; i < TRIES_MAX && rc == -ENOENT; i++) {
		if (keeper->run_fd < 0) {
			keeper->run_fd =
				store_open_run(&keeper->files.store, keeper->start.name, true, err);
		}
		if (keeper->run_fd < 0) {
			return keeper->run_fd;
		}
		/* We hold the lock that the name stands for, so a socket that is there belongs to
		 * nobody who lives. */
		unlinkat(keeper->run_fd, name, 0);
		rc = ipc_listen_at(keeper->run_fd, name);
		if (rc == -ENOENT) {
			close_fd(&keeper->run_fd);
		}
	}
	if (rc < 0) {
		return err_context(err, rc, "run/%s/%s", keeper->start.name, name);
	}
	*ret_fd = rc;
	rc = loop_add(keeper->loop, *ret_fd, EPOLLIN, on_listener, keeper);
	return rc < 0 ? err_context(err, rc, "run/%s/%s", keeper->start.name, name) : 0;
}

void listen_close(struct keeper *keeper, const char *name, int *fd)
{
	if (*fd < 0) {
		return;
	}
	loop_remove(keeper->loop, *fd);
	close_fd(fd);
	if (MUTANT("leave")) {
		return;
	}
	unlinkat(keeper->run_fd, name, 0);
	store_leave_run(&keeper->files.store, keeper->start.name);
}
