#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/array.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/io.h"
#include "keeper/keeper.h"

/* Beginning and end of each stream there can be; who lets more wait takes nothing any more. */
#define WAITING_MAX (2 * (size_t)WIRE_STREAMS_MAX)

void clients_init(struct keeper *keeper)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->clients); i++) {
		keeper->clients[i] = (struct client){.keeper = keeper, .fd = -EBADF};
	}
}

static int keep(struct client *client, const struct ipc_message *message)
{
	struct ipc_message *grown;

	if (client->waiting_count == WAITING_MAX) {
		return -ENOBUFS;
	}
	grown = array_reserve(client->waiting, client->waiting_count, &client->waiting_capacity,
			      sizeof(*grown));
	if (!grown) {
		return -ENOMEM;
	}
	client->waiting = grown;
	client->waiting[client->waiting_count++] = *message;
	return loop_modify(client->keeper->loop, client->fd, EPOLLIN | EPOLLOUT);
}

/* Sends what has room. Returns 0 or a negative errno. */
static int send_waiting(struct client *client)
{
	size_t sent = 0;
	int rc = 0;

	while (rc == 0 && sent < client->waiting_count) {
		rc = ipc_send(client->fd, &client->waiting[sent], NULL, 0);
		sent += rc == 0;
	}
	client->waiting_count -= sent;
	if (client->waiting_count > 0) {
		memmove(client->waiting, client->waiting + sent,
			client->waiting_count * sizeof(*client->waiting));
		return rc == -EAGAIN ? 0 : rc;
	}
	return loop_modify(client->keeper->loop, client->fd, EPOLLIN);
}

static void forget_waiting(struct client *client)
{
	free(TAKE_PTR(client->waiting));
	client->waiting_count = client->waiting_capacity = 0;
}

void client_tell(struct client *client, const struct ipc_message *message)
{
	int rc;

	if (!client || client->fd < 0) {
		return;
	}
	rc = client->waiting_count > 0 ? -EAGAIN : ipc_send(client->fd, message, NULL, 0);
	if (rc == -EAGAIN) {
		rc = keep(client, message);
	}
	if (rc < 0) {
		client_drop(client);
	}
}

void client_refuse(struct client *client, uint32_t stream, const char *code, const char *text,
		   const char *mend)
{
	struct ipc_message message = {.type = IPC_REFUSED, .stream = stream};

	snprintf(message.failed.code, sizeof(message.failed.code), "%s", code);
	snprintf(message.failed.text, sizeof(message.failed.text), "%s", text);
	snprintf(message.failed.mend, sizeof(message.failed.mend), "%s", mend);
	client_tell(client, &message);
}

void clients_broadcast(struct keeper *keeper, const struct ipc_message *message)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->clients); i++) {
		if (keeper->clients[i].fd >= 0) {
			ipc_send(keeper->clients[i].fd, message, NULL, 0);
		}
	}
}

void client_drop(struct client *client)
{
	struct keeper *keeper = client->keeper;

	if (client->fd < 0) {
		return;
	}
	loop_remove(keeper->loop, client->fd);
	close_fd(&client->fd);
	forget_waiting(client);
	client->wants_down = client->wants_copy = false;
	live_forget_client(client);
	net_forget_client(client);
	commands_lost(client);
	if (keeper->starter != client) {
		return;
	}
	keeper->starter = NULL;
	/* The only one who wants this machine is gone, or does not want to wait for it any more. */
	if (keeper->phase != KEEPER_ENDING &&
	    (keeper->start.stay == IPC_STAY_NO || keeper->phase == KEEPER_STARTING)) {
		keeper->phase = KEEPER_ENDING;
		loop_stop(keeper->loop, EXIT_OK);
	}
}

void clients_close(struct keeper *keeper)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->clients); i++) {
		if (keeper->clients[i].fd >= 0) {
			loop_remove(keeper->loop, keeper->clients[i].fd);
			close_fd(&keeper->clients[i].fd);
			forget_waiting(&keeper->clients[i]);
		}
	}
}

void client_shut_down(struct client *client)
{
	client->wants_down = true;
	keeper_leave(client->keeper);
}

/* What may be asked for at any time. Returns whether it was such a message. */
static bool take_look(struct client *client, const struct ipc_message *message)
{
	switch (message->type) {
	case IPC_LIST:
		listing_send(client);
		return true;
	case IPC_REPORT:
		listing_send_report(client);
		return true;
	case IPC_COPY_DATA:
		data_copy(client);
		return true;
	case IPC_SHUTDOWN:
		client_shut_down(client);
		return true;
	default:
		return false;
	}
}

static void take_order(struct client *client, const struct ipc_message *message, int *fds)
{
	switch (message->type) {
	case IPC_EXEC:
		command_exec(client, message, fds);
		break;
	case IPC_ATTACH:
		command_attach(client, message, fds);
		break;
	case IPC_DETACH:
		command_detach(client, message->stream);
		break;
	case IPC_KILL:
		command_kill(client, message);
		break;
	case IPC_SIGNAL:
	case IPC_WINDOW_SIZE:
	case IPC_CLOSE:
		command_order(client, message);
		break;
	case IPC_FREEZE_DATA:
	case IPC_FORK:
		live_fork(client, message->type == IPC_FORK, TAKE_FD(fds[0]));
		break;
	case IPC_NET_RULE:
		net_add_rule(client, message);
		break;
	case IPC_TCP:
		command_tcp(client->keeper, client, message->stream, TAKE_FD(fds[0]),
			    message->tcp.port);
		break;
	case IPC_SNAPSHOT:
		if (client == client->keeper->starter) {
			client->wants_down = true;
			keeper_freeze(client->keeper);
		}
		break;
	default:
		/* Of another build, or no client of ours at all. */
		client_drop(client);
		break;
	}
}

static void on_client(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct client *client = data;
	struct keeper *keeper = client->keeper;
	struct ipc_message message;
	int fds[IPC_FDS_MAX];
	int rc = events & EPOLLOUT ? send_waiting(client) : 0;

	(void)loop;
	if (rc < 0) {
		client_drop(client);
		return;
	}
	rc = ipc_receive(fd, &message, fds);
	if (rc == -EAGAIN) {
		return;
	}
	if (rc <= 0) {
		client_drop(client);
		return;
	}
	if (message.type == IPC_CLAIM) {
		pool_claim(client, &message, fds);
	} else if (!take_look(client, &message)) {
		if (keeper->phase == KEEPER_RUNNING && !keeper->leaving) {
			take_order(client, &message, fds);
		} else if (message.type == IPC_EXEC || message.type == IPC_ATTACH ||
			   message.type == IPC_KILL || message.type == IPC_TCP ||
			   message.type == IPC_NET_RULE || message.type == IPC_FREEZE_DATA ||
			   message.type == IPC_FORK) {
			bool starting = keeper->phase == KEEPER_STARTING;

			client_refuse(
				client, message.stream, starting ? IPC_CODE_STARTING : "going-down",
				starting ? "the machine is starting" : "the machine is going down",
				"try again in a moment");
		}
	}
	ipc_close_fds(fds);
}

struct client *client_add(struct keeper *keeper, int fd)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->clients); i++) {
		struct client *client = &keeper->clients[i];

		if (client->fd >= 0) {
			continue;
		}
		if (set_nonblocking(fd, true) < 0 ||
		    loop_add(keeper->loop, fd, EPOLLIN, on_client, client) < 0) {
			break;
		}
		*client = (struct client){.keeper = keeper, .fd = fd};
		return client;
	}
	close(fd);
	return NULL;
}
