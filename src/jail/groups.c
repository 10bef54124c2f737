#include "jail/groups.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys/cgroup.h"
#include "sys/scope.h"

/* For a look whether groups can be had: enough for a process that sleeps. */
#define TRY_MEMORY ((uint64_t)64 << 20)
#define TRY_PROCESSES 8

/* The name of a group, which tells its maker. */
#define GROUP_NAME_SIZE 64

static int name_group(char ret_name[static GROUP_NAME_SIZE])
{
	uint64_t random = 0;

	if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
		return -EIO;
	}
	snprintf(ret_name, GROUP_NAME_SIZE, SYS_CGROUP_PREFIX "%d-%016llx", (int)getpid(),
		 (unsigned long long)random);
	return 0;
}

static struct sys_cgroup_limits wanted_limits(const struct jail *jail)
{
	return (struct sys_cgroup_limits){
		.memory_bytes = jail->cgroup_memory_bytes,
		.pids = jail->cgroup_pids,
	};
}

void groups_make(const struct jail *jail, struct jail_process *process)
{
	struct sys_cgroup_limits limits = wanted_limits(jail);
	struct jail_missing *missing = &process->missing;
	char name[GROUP_NAME_SIZE];

	process->cgroups[0] = process->cgroups[1] = '\0';
	if (!limits.memory_bytes && !limits.pids) {
		return;
	}
	if (name_group(name) < 0) {
		missing->cgroup = true;
		snprintf(missing->cgroup_reason, sizeof(missing->cgroup_reason),
			 "no random bytes for its name");
		return;
	}
	missing->cgroup =
		sys_cgroup_make(name, &limits, process->cgroups, sizeof(process->cgroups),
				missing->cgroup_reason, sizeof(missing->cgroup_reason)) < 0;
}

void groups_ask_systemd(const struct jail *jail, struct jail_process *process)
{
	struct sys_cgroup_limits limits = wanted_limits(jail);
	struct jail_missing *missing = &process->missing;
	char name[GROUP_NAME_SIZE];

	if (!missing->cgroup || process->cgroups[0] || !limits.memory_bytes || !limits.pids ||
	    !sys_scope_can_be_asked() || name_group(name) < 0) {
		return;
	}
	/* The list of paths keeps its empty end. */
	memset(process->cgroups, 0, sizeof(process->cgroups));
	if (sys_scope_make(process->pid, name, &limits, process->cgroups,
			   sizeof(process->cgroups) - 1, missing->cgroup_reason) == 0) {
		missing->cgroup = false;
		missing->cgroup_reason[0] = '\0';
	}
}

void groups_miss(struct jail_process *process, int rc)
{
	process->missing.cgroup = true;
	snprintf(process->missing.cgroup_reason, sizeof(process->missing.cgroup_reason),
		 "the process cannot join its group: %s", strerror(-rc));
}

/* A process to be moved, which ends with us. */
static pid_t start_sleeper(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		for (;;) {
			pause();
		}
	}
	return pid;
}

enum jail_groups jail_try_cgroups(char ret_text[static PATH_MAX])
{
	const struct sys_cgroup_limits limits = {.memory_bytes = TRY_MEMORY, .pids = TRY_PROCESSES};
	char paths[sizeof(((struct jail_process *)0)->cgroups)] = "", name[GROUP_NAME_SIZE];
	enum jail_groups found = JAIL_GROUPS_NONE;
	pid_t pid;
	int rc = name_group(name);

	if (rc < 0) {
		snprintf(ret_text, PATH_MAX, "%s", strerror(-rc));
		return found;
	}
	if (sys_cgroup_make(name, &limits, paths, sizeof(paths), ret_text, PATH_MAX) == 0) {
		found = JAIL_GROUPS_OWN;
	} else if (!paths[0] && sys_scope_can_be_asked() && (pid = start_sleeper()) > 0) {
		memset(paths, 0, sizeof(paths));
		if (sys_scope_make(pid, name, &limits, paths, sizeof(paths) - 1, ret_text) == 0) {
			found = JAIL_GROUPS_OF_SYSTEMD;
		}
		kill(pid, SIGKILL);
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
		}
	}
	if (found != JAIL_GROUPS_NONE) {
		snprintf(ret_text, PATH_MAX, "%.*s", (int)(strrchr(paths, '/') - paths), paths);
	}
	(void)sys_cgroup_remove(paths);
	return found;
}

bool jail_has_user_manager(void)
{
	return sys_scope_manager_is_there();
}

void jail_sweep_cgroups(void)
{
	(void)sys_cgroup_leftovers(true);
}

size_t jail_count_leftover_cgroups(void)
{
	return sys_cgroup_leftovers(false);
}
