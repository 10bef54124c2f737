/*
 * box-net of this machine: started, told what the machine may reach, listened to.
 *
 * What flows in: the Boxfile's rules, the host's resolv.conf and hosts, and what box-net tells of
 * the connections that it was asked for. What flows out: a policy to box-net, lines to the log.
 * The port box.net itself goes from the monitor to box-net; no byte of it comes through here.
 *
 * What may never happen: that a command of a fresh machine starts before box-net holds the policy,
 * or that a machine outlives its box-net. What box-net says is judged like a guest's word, since it
 * reads what a guest wrote.
 *
 * The machine that runs the lines of a build has the Boxfile's build_network; `box build` adds
 * where the base comes from (client/build_machine.c). While the snapshot is made the policy allows
 * nothing: a connection in it would be one of every machine that begins from it.
 */
#include "ipc/net.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/program.h"
#include "keeper/keeper.h"
#include "store/ids.h"

/* Its own table of streams and one of reports are 5 MiB; bytes that wait for a slow server at most
 * 128 KiB for each of 1,280 connections; a policy or two. */
#define ADDRESS_SPACE ((uint64_t)1 << 30)
#define CGROUP_MEMORY ((uint64_t)256 << 20)
/* Four attempts for each connection, and two sockets for each of 256 questions, would be more than
 * this; box-net makes the last ones wait. */
#define OPEN_FILES 4000
#define PROCESSES 8
/* Events that are written to the log before the guest has its turn again. */
#define MESSAGES_AT_ONCE 32
/* It needs one turn for that; more on a busy host. */
#define LAST_WORDS_MS 500
/* Room for its one line. */
#define COMPLAINT_MAX 256

void net_init(struct keeper *keeper)
{
	struct keeper_net *net = &keeper->net;

	net->port_fd = net->control_fd = net->complaint_fd = -EBADF;
	net->process.pidfd = net->process.notify_fd = -EBADF;
}

bool net_is_ready(const struct keeper *keeper)
{
	const struct keeper_net *net = &keeper->net;

	return !net->spawned || net->ready_serial > 0;
}

/* How this host finds addresses. Both are replaced when it comes to another network. */
static const struct {
	const char *path;
	enum ipc_net_type type;
	int number;
} host_files[] = {
	{"/etc/resolv.conf", IPC_NET_RESOLVER, IPC_NET_RESOLVER_FD},
	{"/etc/hosts", IPC_NET_HOSTS, IPC_NET_HOSTS_FD},
};

static struct keeper_host_file state_of(const struct stat *status)
{
	return (struct keeper_host_file){
		.device = status->st_dev,
		.inode = status->st_ino,
		.size = status->st_size,
		.modified = status->st_mtim,
		.changed = status->st_ctim,
	};
}

static bool is_same_state(const struct keeper_host_file *a, const struct keeper_host_file *b)
{
	return a->device == b->device && a->inode == b->inode && a->size == b->size &&
	       a->modified.tv_sec == b->modified.tv_sec &&
	       a->modified.tv_nsec == b->modified.tv_nsec &&
	       a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

/* A file of the host's, cut after its last whole line; without one, none of its bytes. */
static int copy_host_file(const char *path, struct keeper_host_file *ret_state, struct err *err)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat status;
	_cleanup_free_ char *bytes = malloc(IPC_NET_FILE_MAX + 1);
	ssize_t size = 0;
	int rc;

	if (!bytes) {
		return err_context(err, -ENOMEM, "%s", path);
	}
	*ret_state = (struct keeper_host_file){.inode = 0};
	/* Its state before it is read: what comes meanwhile makes another one. */
	if (fd >= 0 && fstat(fd, &status) == 0) {
		*ret_state = state_of(&status);
		size = read_full(fd, bytes, IPC_NET_FILE_MAX + 1);
	}
	if (size > IPC_NET_FILE_MAX) {
		size = IPC_NET_FILE_MAX;
		while (size > 0 && bytes[size - 1] != '\n') {
			size--;
		}
	}
	/* A host without such a file, or one that cannot be read, is one that lists nothing. */
	rc = ipc_memory_file("box-net", bytes, size < 0 ? 0 : (size_t)size);
	return rc < 0 ? err_context(err, rc, "%s", path) : rc;
}

static int describe_program(struct keeper *keeper, struct jail *jail, struct err *err)
{
	static const char *const argv[] = {"box-net", NULL};
	char program[PATH_MAX];
	struct store_ids ids;
	int rc = program_path("box-net", program, sizeof(program));

	if (rc < 0) {
		return err_context(err, rc, "box-net");
	}
	rc = store_ids_choose(&keeper->files.store, keeper->start.name, keeper->files.spec,
			      STORE_IDS_NET, &ids, err);
	if (rc == 0) {
		rc = jail_add_program(jail, program, err);
	}
	if (rc < 0) {
		return rc;
	}
	jail->name = "net";
	/* The list of files keeps the path as long as the jail. */
	jail->program =
		jail->binds[0].inside_path ? jail->binds[0].inside_path : jail->binds[0].host_path;
	jail->argv = argv;
	jail->policy = &jail_policy_net;
	jail->network = true;
	jail->host_uid = ids.uid;
	jail->host_gid = ids.gid;
	jail->address_space_bytes = ADDRESS_SPACE;
	jail->open_files = OPEN_FILES;
	jail->processes = PROCESSES;
	jail->cgroup_memory_bytes = CGROUP_MEMORY;
	jail->cgroup_pids = PROCESSES;
	return 0;
}

/* Adds its descriptors and starts it. The ends that are given stay the caller's. */
static int spawn(struct keeper *keeper, int port_fd, int control_fd, int complaint_fd,
		 struct err *err)
{
	struct keeper_net *net = &keeper->net;
	_cleanup_close_ int resolver_fd =
		copy_host_file(host_files[0].path, &net->host_files[0], err);
	_cleanup_close_ int hosts_fd =
		resolver_fd < 0 ? resolver_fd
				: copy_host_file(host_files[1].path, &net->host_files[1], err);
	const struct {
		int fd;
		int number;
	} given[] = {
		{complaint_fd, STDERR_FILENO},	  {port_fd, IPC_NET_PORT_FD},
		{control_fd, IPC_NET_CONTROL_FD}, {resolver_fd, host_files[0].number},
		{hosts_fd, host_files[1].number},
	};
	int rc = hosts_fd < 0 ? hosts_fd : describe_program(keeper, &net->jail, err);

	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(given); i++) {
		rc = jail_add_fd(&net->jail, given[i].fd, given[i].number, err);
	}
	if (rc == 0) {
		rc = jail_spawn(&net->jail, &net->process, err);
	}
	net->spawned = rc == 0;
	return rc;
}

/* What the machine may reach, as its Boxfile says. */
static int make_policy(const struct keeper *keeper, struct policy_network **ret_policy,
		       struct err *err)
{
	static const struct spec_network nothing = {.kind = SPEC_NETWORK_NONE};
	const struct spec *spec = keeper->files.spec;

	return spec_make_policy(keeper->start.mode == IPC_START_RUN	? &spec->network
				: keeper->start.mode == IPC_START_BUILD ? &spec->build_network
									: &nothing,
				ret_policy, err);
}

/* A message with a policy as its memory file. */
static int send_with_policy(struct keeper_net *net, const struct ipc_net_message *message,
			    const struct policy_network *policy, struct err *err)
{
	_cleanup_free_ uint8_t *bytes = malloc(POLICY_ENCODED_MAX);
	_cleanup_close_ int fd = -EBADF;
	int rc;

	if (!bytes) {
		return err_context(err, -ENOMEM, "box-net");
	}
	fd = ipc_memory_file("box-policy", bytes, policy_encode(policy, bytes));
	rc = fd < 0 ? fd : ipc_net_send(net->control_fd, message, fd);
	return rc < 0 ? err_context(err, rc, "box-net") : 0;
}

static int send_policy(struct keeper_net *net, const struct policy_network *policy, struct err *err)
{
	struct ipc_net_message message = {.type = IPC_NET_POLICY};
	int rc;

	message.policy.serial = net->sent_serial + 1;
	rc = send_with_policy(net, &message, policy, err);
	if (rc == 0) {
		net->sent_serial++;
	}
	return rc;
}

/* The proxy that this process' environment says, which is the one of the `box` that started it. */
static int send_proxy(struct keeper_net *net, struct err *err)
{
	struct ipc_net_message message = {.type = IPC_NET_PROXY};
	int rc = policy_proxy_find(getenv, &net->proxy, err);

	if (rc <= 0) {
		return rc;
	}
	message.proxy.port = net->proxy.port;
	snprintf(message.proxy.host, sizeof(message.proxy.host), "%s", net->proxy.host);
	snprintf(message.proxy.authorization, sizeof(message.proxy.authorization), "%s",
		 net->proxy.authorization);
	return send_with_policy(net, &message, net->proxy.direct, err);
}

void net_forget_client(struct client *client)
{
	struct keeper_net *net = &client->keeper->net;

	net->asker = net->asker == client ? NULL : net->asker;
}

void net_add_rule(struct client *client, const struct ipc_message *message)
{
	struct keeper *keeper = client->keeper;
	struct keeper_net *net = &keeper->net;
	char rule[POLICY_RULE_LINE];
	struct err err = {0};
	int rc;

	if (!net->spawned) {
		client_refuse(client, 0, "no-network", "the machine has no network",
			      "give it one: `network` in the Boxfile, then `box build`");
		return;
	}
	if (net->asker) {
		client_refuse(client, 0, "net-busy", "another rule is on its way", "try again");
		return;
	}
	rc = policy_append(net->policy, (enum policy_action)message->rule.action,
			   message->rule.text, &err);
	if (rc == 0) {
		rc = send_policy(net, net->policy, &err);
	}
	if (rc < 0) {
		client_refuse(client, 0, err.code, err.text, err.mend);
		return;
	}
	net->asker = client;
	policy_rule_describe(&net->policy->rules[net->policy->rule_count - 1], rule);
	net_log_rule(keeper, rule);
}

bool net_is_current(struct keeper *keeper, const struct ipc_start *start)
{
	_cleanup_(spec_freep) struct spec *spec = NULL;
	_cleanup_free_ struct policy_network *policy = NULL;
	_cleanup_free_ uint8_t *ours = NULL;
	_cleanup_free_ uint8_t *now = NULL;
	size_t size;

	const struct policy_proxy *proxy = &keeper->net.proxy;

	if (!keeper->net.policy) {
		return true;
	}
	if (start->proxy_mark != (proxy->direct ? policy_proxy_mark(proxy) : 0)) {
		return false;
	}
	ours = malloc(POLICY_ENCODED_MAX);
	now = malloc(POLICY_ENCODED_MAX);
	if (!ours || !now ||
	    store_load_spec(&keeper->files.store, keeper->start.name, &spec, NULL) < 0 ||
	    spec_make_policy(&spec->network, &policy, NULL) < 0) {
		return false;
	}
	size = policy_encode(keeper->net.policy, ours);
	return policy_encode(policy, now) == size && memcmp(ours, now, size) == 0;
}

/* The line that it has left, made harmless: whoever took it over may have written it. */
static void read_complaint(struct keeper_net *net, char out[COMPLAINT_MAX])
{
	ssize_t got = read(net->complaint_fd, out, COMPLAINT_MAX - 1);

	out[MAX(got, 0)] = '\0';
	out[strcspn(out, "\n")] = '\0';
	for (char *c = out; *c; c++) {
		*c = *c >= ' ' && *c <= '~' ? *c : '?';
	}
}

/* A machine whose box-net has ended would go on with a network that is dead in its hands. */
static void end_machine(struct keeper *keeper, const char *why)
{
	struct keeper_net *net = &keeper->net;
	char complaint[COMPLAINT_MAX], text[COMPLAINT_MAX + 64];
	const char *signal = NULL;
	int status;

	loop_remove(keeper->loop, net->control_fd);
	read_complaint(net, complaint);
	status = jail_end(&net->process);
	net->spawned = false;
	if (status > 0 && WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
		signal = sigabbrev_np(WTERMSIG(status));
	}
	snprintf(text, sizeof(text), "box-net, which makes its connections, %s%s%s%s%s", why,
		 signal ? ": SIG" : "", signal ? signal : "", complaint[0] ? ": " : "", complaint);
	keeper_fail_text(keeper, "net-ended", text, "start it again; what was synced is safe");
}

static void take_ready(struct keeper *keeper, uint32_t serial)
{
	struct keeper_net *net = &keeper->net;

	if (serial != net->ready_serial + 1 || serial > net->sent_serial) {
		end_machine(keeper, "has answered what it was not asked");
		return;
	}
	net->ready_serial = serial;
	if (net->asker && serial == net->sent_serial) {
		const struct ipc_message done = {.type = IPC_DONE};

		client_tell(net->asker, &done);
		net->asker = NULL;
	}
	if (net->guest_waits) {
		net->guest_waits = false;
		keeper_guest_ready(keeper);
	}
}

/* The owner is told at once and finds it later; the program inside sees refusals. */
static void take_limit(struct keeper *keeper, const struct ipc_net_limit *limit)
{
	struct ipc_message message = {.type = IPC_NOTICE};

	if (limit->kind == IPC_NET_LIMIT_CLOSED || limit->kind == IPC_NET_LIMIT_PROTOCOL) {
		keeper->net.port_closed = true;
	}
	if (limit->kind == IPC_NET_LIMIT_CLOSED) {
		/* The monitor ends, which tells more. */
		return;
	}
	net_log_limit(keeper, limit);
	if (limit->kind == IPC_NET_LIMIT_PROTOCOL) {
		keeper_guest_broken(keeper, "network", limit->text);
		return;
	}
	snprintf(message.text, sizeof(message.text), "network: %s", limit->text);
	clients_broadcast(keeper, &message);
}

/* Hands over those of the host's files that are not as box-net has them. */
static int look_at_host_files(struct keeper_net *net)
{
	for (size_t i = 0; i < ARRAY_SIZE(host_files); i++) {
		const struct ipc_net_message message = {.type = host_files[i].type};
		struct keeper_host_file now = {.inode = 0};
		_cleanup_close_ int fd = -EBADF;
		struct stat status;
		int rc;

		if (stat(host_files[i].path, &status) == 0) {
			now = state_of(&status);
		}
		if (is_same_state(&now, &net->host_files[i])) {
			continue;
		}
		fd = copy_host_file(host_files[i].path, &net->host_files[i], NULL);
		rc = fd < 0 ? fd : ipc_net_send(net->control_fd, &message, fd);
		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

static void take_message(struct keeper *keeper, const struct ipc_net_message *message)
{
	switch (message->type) {
	case IPC_NET_READY:
		take_ready(keeper, message->policy.serial);
		break;
	case IPC_NET_EVENT:
		net_log_event(keeper, &message->event);
		break;
	case IPC_NET_LIMIT:
		take_limit(keeper, &message->limit);
		break;
	case IPC_NET_LOOK:
		if (look_at_host_files(&keeper->net) < 0) {
			end_machine(keeper, "does not take the host's resolv.conf");
		}
		break;
	default:
		end_machine(keeper, "has sent what only the keeper may send");
		break;
	}
}

static void on_control(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct keeper *keeper = data;

	(void)loop;
	(void)events;
	for (int i = 0; i < MESSAGES_AT_ONCE && keeper->net.spawned; i++) {
		_cleanup_close_ int with_fd = -EBADF;
		struct ipc_net_message message;
		int rc = ipc_net_receive(fd, &message, &with_fd);

		if (rc == -EAGAIN) {
			return;
		}
		if (rc <= 0) {
			end_machine(keeper, rc == 0 ? "has ended" : "has sent what is no message");
			return;
		}
		take_message(keeper, &message);
	}
}

/* Makes the control socket and the pipe, and starts box-net with its ends. */
static int start(struct keeper *keeper, struct err *err)
{
	struct keeper_net *net = &keeper->net;
	_cleanup_close_ int control_theirs = -EBADF, complaint_theirs = -EBADF;
	int control[2], complaint[2];
	int rc = ipc_pair(control);

	if (rc < 0) {
		return rc;
	}
	net->control_fd = control[0];
	control_theirs = control[1];
	if (pipe2(complaint, O_CLOEXEC | O_NONBLOCK) < 0) {
		return -errno;
	}
	net->complaint_fd = complaint[0];
	complaint_theirs = complaint[1];
	rc = spawn(keeper, net->port_fd, control_theirs, complaint_theirs, err);
	close_fd(&net->port_fd);
	return rc == 0 ? set_nonblocking(net->control_fd, true) : rc;
}

int net_prepare(struct keeper *keeper, int *ret_port_fd, struct err *err)
{
	struct keeper_net *net = &keeper->net;
	int port[2], rc;

	*ret_port_fd = -EBADF;
	if (keeper->start.mode == IPC_START_BUILD ? !spec_has_build_network(keeper->files.spec)
						  : !spec_has_network(keeper->files.spec)) {
		return 0;
	}
	store_random(&net->life, sizeof(net->life));
	rc = make_policy(keeper, &net->policy, err);
	if (rc == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, port) < 0) {
		rc = -errno;
	}
	if (rc < 0) {
		return err_context(err, rc, "box-net");
	}
	*ret_port_fd = port[0];
	net->port_fd = port[1];
	return 0;
}

int net_start(struct keeper *keeper, struct err *err)
{
	struct keeper_net *net = &keeper->net;
	int rc;

	if (net->port_fd < 0) {
		return 0;
	}
	rc = start(keeper, err);
	if (rc == 0) {
		rc = send_proxy(net, err);
	}
	if (rc == 0) {
		rc = send_policy(net, net->policy, err);
	}
	if (rc == 0) {
		rc = loop_add(keeper->loop, net->control_fd, EPOLLIN, on_control, keeper);
	}
	return rc < 0 ? err_context(err, rc, "box-net") : 0;
}

/* The monitor has ended: how each of its connections did is still on its way. */
static void hear_out(struct keeper *keeper)
{
	struct keeper_net *net = &keeper->net;
	struct pollfd control = {.fd = net->control_fd, .events = POLLIN};
	uint64_t until_ns = clock_monotonic_ns() + LAST_WORDS_MS * 1000000;

	while (net->spawned && !net->port_closed && clock_monotonic_ns() < until_ns &&
	       poll(&control, 1, LAST_WORDS_MS) > 0) {
		on_control(keeper->loop, net->control_fd, 0, keeper);
	}
}

void net_close(struct keeper *keeper)
{
	struct keeper_net *net = &keeper->net;

	if (net->control_fd >= 0) {
		hear_out(keeper);
		loop_remove(keeper->loop, net->control_fd);
	}
	if (net->spawned) {
		jail_end(&net->process);
		net->spawned = false;
	}
	close_fd(&net->port_fd);
	close_fd(&net->control_fd);
	close_fd(&net->complaint_fd);
	close_fd(&net->process.pidfd);
	close_fd(&net->process.notify_fd);
	jail_clear(&net->jail);
	free(TAKE_PTR(net->policy));
	free(TAKE_PTR(net->proxy.direct));
}
