/*
 * What a keeper does for its box-net, as far as its tests in Python cannot do it itself.
 *
 *     net_host policy KIND CONNECTIONS BYTES [allow|deny|reach RULE]...
 *         writes an encoded policy to standard output
 *     net_host run BOX-NET ID PORT-FD CONTROL-FD RESOLVER-FD HOSTS-FD
 *         starts box-net in its jail with these descriptors; says on standard output that it runs,
 *         in which ways it differs from its description, and how it ended
 *     net_host bare ...
 *         the same without a jail, for a sanitizer, whose own system calls are not in the list
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "ipc/net.h"
#include "jail/jail.h"
#include "policy/network.h"

static int number(const char *text)
{
	return (int)strtol(text, NULL, 10);
}

static int write_policy(int count, char **words)
{
	static const char *const actions[] = {"allow", "deny", "reach"};
	_cleanup_free_ struct policy_network *policy = NULL;
	_cleanup_free_ uint8_t *out = malloc(POLICY_ENCODED_MAX);
	struct policy_source source = {
		.kind = strcmp(words[0], "bridge") == 0 ? POLICY_BRIDGE
			: strcmp(words[0], "list") == 0 ? POLICY_LIST
							: POLICY_NONE,
		.connections_max = strtoull(words[1], NULL, 10),
		.bytes_max = strtoull(words[2], NULL, 10),
	};
	struct err err = {0};

	if (!out || policy_make(&source, &policy, &err) < 0) {
		return 1;
	}
	for (int i = 3; i + 1 < count; i += 2) {
		for (int action = 0; action < 3; action++) {
			if (strcmp(words[i], actions[action]) == 0 &&
			    policy_append(policy, (enum policy_action)action, words[i + 1], &err) <
				    0) {
				fprintf(stderr, "%s\n", err.text);
				return 1;
			}
		}
	}
	return write_full(STDOUT_FILENO, out, policy_encode(policy, out)) < 0;
}

static int wait_for_end(struct jail_process *process)
{
	struct pollfd ended = {.fd = process->pidfd, .events = POLLIN};
	int status;

	(void)poll(&ended, 1, -1);
	status = jail_end(process);
	close_fd(&process->pidfd);
	if (WIFSIGNALED(status)) {
		printf("signal %d\n", WTERMSIG(status));
	} else {
		printf("exit %d\n", WEXITSTATUS(status));
	}
	return 0;
}

static int run(char **words)
{
	static const char *const argv[] = {"box-net", NULL};
	struct jail jail = {
		.name = "net",
		.argv = argv,
		.network = true,
		.may_be_root = true,
		.policy = &jail_policy_net,
		.open_files = 2200,
		.processes = 0,
		.address_space_bytes = (uint64_t)512 << 20,
	};
	struct jail_process process;
	struct err err = {0};
	_cleanup_free_ char *differences = NULL;
	int rc;

	jail.host_uid = (uid_t)number(words[1]);
	jail.host_gid = (gid_t)number(words[1]);
	rc = jail_add_program(&jail, words[0], &err);
	if (rc == 0) {
		jail.program = jail.binds[0].inside_path;
		rc = jail_add_fd(&jail, STDERR_FILENO, STDERR_FILENO, &err);
	}
	for (int i = 0; i < 4 && rc == 0; i++) {
		rc = jail_add_fd(&jail, number(words[2 + i]), IPC_NET_PORT_FD + i, &err);
	}
	if (rc == 0) {
		rc = jail_spawn(&jail, &process, &err);
	}
	for (int i = 0; i < 4; i++) {
		close(number(words[2 + i]));
	}
	if (rc < 0) {
		printf("failed: %s\n", err.text);
		return 1;
	}
	printf("pid %d\n", (int)process.pid);
	(void)jail_compare(&jail, &process, &differences);
	for (char *at = differences; at && *at; at++) {
		*at = *at == '\n' ? ';' : *at;
	}
	printf("differs %s\n", differences ? differences : "cannot be compared");
	fflush(stdout);
	jail_clear(&jail);
	return wait_for_end(&process);
}

/* The descriptors go up, out of each other's way, and come down at their places. */
static int run_bare(char **words)
{
	int status = -1, staged[4];
	pid_t pid = fork();

	if (pid == 0) {
		for (int i = 0; i < 4; i++) {
			staged[i] = fcntl(number(words[2 + i]), F_DUPFD_CLOEXEC, 100);
		}
		for (int i = 0; i < 4; i++) {
			dup2(staged[i], IPC_NET_PORT_FD + i);
		}
		close_range(IPC_NET_HOSTS_FD + 1, 99, 0);
		execl(words[0], "box-net", (char *)NULL);
		_exit(3);
	}
	for (int i = 0; i < 4; i++) {
		close(number(words[2 + i]));
	}
	printf("pid %d\ndiffers bare\n", (int)pid);
	fflush(stdout);
	(void)waitpid(pid, &status, 0);
	printf("exit %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 5 && strcmp(argv[1], "policy") == 0) {
		return write_policy(argc - 2, argv + 2);
	}
	if (argc == 8 && strcmp(argv[1], "run") == 0) {
		return run(argv + 2);
	}
	if (argc == 8 && strcmp(argv[1], "bare") == 0) {
		return run_bare(argv + 2);
	}
	fprintf(stderr, "usage: net_host policy|run ...\n");
	return 2;
}
