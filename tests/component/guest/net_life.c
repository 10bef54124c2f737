/*
 * Process 1's part of box's network, for tests: in the network namespace that it is started in, it
 * sets up what a machine sets up at boot, and starts and ends agents as lives do.
 *
 *     net_life        messages on stdin, a SOCK_SEQPACKET socket; each is answered by one line
 *     start           an agent on the descriptor that comes with the message: "pid N"
 *     stop            kills the agent and reaps it: "stopped"
 *     reap            waits until the agent has ended: "ended"
 *     forget          forgets the names, as when no program is left: "forgotten"
 *     detach          takes the BPF program out of the namespace: "detached"
 */
#include <net/if.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "guest/net.h"

static int bring_up_loopback(void)
{
	_cleanup_close_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};

	return fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;
}

static void start(struct net *net, int port_fd, pid_t *pid)
{
	struct err err = {.code = ""};

	if (set_nonblocking(port_fd, true) < 0 || net_start(net, port_fd, pid, &err) < 0) {
		printf("failed: %s\n", err.text);
	} else {
		printf("pid %d\n", (int)*pid);
	}
}

static void obey(struct net *net, const char *command, int port_fd, pid_t *pid)
{
	if (strcmp(command, "start") == 0) {
		net_stop(net);
		start(net, port_fd, pid);
	} else if (strcmp(command, "stop") == 0) {
		kill(*pid, SIGKILL);
		waitpid(*pid, NULL, 0);
		puts("stopped");
	} else if (strcmp(command, "reap") == 0) {
		waitpid(*pid, NULL, 0);
		puts("ended");
	} else if (strcmp(command, "forget") == 0) {
		net_forget_names(net);
		puts("forgotten");
	} else if (strcmp(command, "detach") == 0) {
		close_fd(&net->bpf.link_fd);
		puts("detached");
	} else {
		puts("what?");
	}
	fflush(stdout);
}

/* Takes one message, and the descriptor that is with it. False at the end. */
static bool next_command(char *command, size_t size, int *ret_fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	struct iovec vector = {.iov_base = command, .iov_len = size - 1};
	struct msghdr message = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t got = recvmsg(STDIN_FILENO, &message, MSG_CMSG_CLOEXEC);
	const struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	if (got <= 0) {
		return false;
	}
	command[got] = '\0';
	*ret_fd = -EBADF;
	if (head && head->cmsg_type == SCM_RIGHTS) {
		memcpy(ret_fd, CMSG_DATA(head), sizeof(*ret_fd));
	}
	return true;
}

int main(void)
{
	struct net net = NET_NONE;
	struct err err = {.code = ""};
	char command[64];
	int port_fd = -EBADF;
	pid_t pid = -1;

	if (bring_up_loopback() < 0 || net_boot(&net, &err) < 0) {
		printf("failed: %s\n", err.text);
		return EXIT_FAILURE;
	}
	puts("booted");
	fflush(stdout);
	while (next_command(command, sizeof(command), &port_fd)) {
		obey(&net, command, port_fd, &pid);
		close_fd(&port_fd);
	}
	net_stop(&net);
	return EXIT_SUCCESS;
}
