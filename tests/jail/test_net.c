/*
 * The jail of box-net: it connects in the network of its caller, and does nothing else there.
 * Each act of net_probe is tried behind the real list, behind one that allows everything (where
 * the rest of the jail must refuse it, unless only the list can), and outside of any jail, where it
 * must succeed, so that the check is known to be able to fail.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "jail/act.h"
#include "jail/allow.h"
#include "jail/jail.h"
#include "jail/tap.h"
#include "sys/landlock.h"

/* An ID that no account of a Debian system has. */
#define USER_ID 1876544
/* Of the kernel's landlock that knows TCP. */
#define LANDLOCK_TCP 4

enum kind {
	/* It is what box-net is for. */
	WORK,
	/* Only the list of system calls refuses it. */
	BY_LIST,
	/* Landlock refuses it too, where it can. */
	BY_LANDLOCK,
	/* So does all of the jail. */
	BY_ALL,
};

static const struct {
	const char *name;
	enum kind kind;
} acts[] = {
	{"success", WORK},     {"connect", WORK},	{"ask", WORK},
	{"bind", BY_LANDLOCK}, {"bind-udp", BY_LIST},	{"listen", BY_LIST},
	{"accept", BY_LIST},   {"send-to", BY_LIST},	{"send-message", BY_LIST},
	{"unix", BY_LIST},     {"unix-pair", BY_LIST},	{"netlink", BY_LIST},
	{"protocol", BY_LIST}, {"blocking", BY_LIST},	{"option", BY_LIST},
	{"open", BY_ALL},      {"stat", BY_LIST},	{"fork", BY_LIST},
	{"execute", BY_ALL},   {"run-memory", BY_LIST}, {"kill", BY_ALL},
};

static char port[8];

static int run_jailed(const char *program, const char *act, const struct jail_policy *policy,
		      bool network)
{
	const char *argv[] = {"probe", act, port, NULL};
	struct jail jail = {.name = "net", .policy = policy, .argv = argv, .network = network};
	struct jail_process process;
	struct err err = {0};
	struct pollfd ended = {.events = POLLIN};
	int status = -1;

	jail.host_uid = jail.host_gid = geteuid() == 0 ? USER_ID : geteuid();
	jail.open_files = 16;
	if (jail_add_program(&jail, program, &err) == 0) {
		jail.program = jail.binds[0].inside_path;
		if (jail_spawn(&jail, &process, &err) == 0) {
			ended.fd = process.pidfd;
			(void)poll(&ended, 1, 20000);
			status = jail_end(&process);
			close_fd(&process.pidfd);
		} else if (strstr(err.text, "killed it at its start")) {
			/* The list was faster than the look at whether it runs. */
			status = SIGSYS;
		} else {
			tap_note("%s", err.text);
		}
	}
	jail_clear(&jail);
	return status;
}

static int run_outside(const char *program, const char *act)
{
	pid_t pid = fork();
	int status = -1;

	if (pid == 0) {
		execl(program, "probe", act, port, (char *)NULL);
		_exit(3);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
	}
	return status;
}

static void try_act(const char *program, size_t i)
{
	const char *name = acts[i].name;
	enum kind kind = acts[i].kind;
	bool work = kind == WORK;
	int status = run_jailed(program, name, &jail_policy_net, true);

	tap(work ? succeeded(status) : refused(status), "%s %s in the jail", name,
	    work ? "succeeds" : "is refused");
	if (kind == BY_LANDLOCK && sys_landlock_abi() < LANDLOCK_TCP) {
		tap_skip(name, "this kernel's landlock does not know TCP");
	} else {
		bool open = kind == WORK || kind == BY_LIST;

		status = run_jailed(program, name, &allow_everything, true);
		tap(open ? succeeded(status) : refused(status), "%s %s without the list", name,
		    open ? "succeeds" : "is refused");
	}
	tap(succeeded(run_outside(program, name)), "%s succeeds outside", name);
}

static int listen_somewhere(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) < 0 || listen(fd, 64) < 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
		close_fd(&fd);
		return -errno;
	}
	snprintf(port, sizeof(port), "%u", ntohs(address.sin_port));
	return fd;
}

int main(int argc, char **argv)
{
	_cleanup_close_ int listener = listen_somewhere();
	char program[PATH_MAX];

	if (argc != 2 || !realpath(argv[1], program) || listener < 0) {
		return 2;
	}
	for (size_t i = 0; i < ARRAY_SIZE(acts); i++) {
		try_act(program, i);
	}
	tap(refused(run_jailed(program, "connect", &jail_policy_net, false)),
	    "connect is refused in a jail without network");
	tap(refused(run_jailed(program, "connect", &allow_everything, false)),
	    "connect is refused in a jail without network and list");
	/* Of UDP only the network namespace knows. */
	tap(refused(run_jailed(program, "ask", &allow_everything, false)),
	    "ask is refused in a jail without network and list");
	return tap_done();
}
