/* The child's side of jail_spawn: the steps into the jail, in their one order. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "jail/jail.h"
#include "sys/cgroup.h"

/* Who the process is inside, whatever it is on the host. */
#define ENTER_ID_INSIDE 1000
/* The group of a bound device, where the caller may give it: see enter_plan. */
#define ENTER_DEVICE_GROUP_INSIDE 1001

/*
 * The number that holds the program for execveat(2). The policies allow the call for this number
 * only. It is the highest that the kernel's default hard limit (INR_OPEN_MAX, 4096) permits, and
 * RLIMIT_NOFILE of a jail may not reach it, so after the start no descriptor has it again.
 */
#define ENTER_PROGRAM_FD 4095
/* The socket to the parent, beside it. */
#define ENTER_REPORT_FD 4094
/* Listed descriptors wait from here on until their numbers are free. Numbers stay below. */
#define ENTER_STAGE_FD 2048

struct enter_plan {
	const struct jail *jail;
	/* The child's end of a SOCK_SEQPACKET pair. One byte from the parent lets it go on. */
	int report_fd;
	int null_fd;
	int parent_pidfd;
	/* Where the jail's directory is on the host, or NULL. */
	const char *tree_path;
	/* The process keeps no group of the caller: see jail_keeps_groups. */
	bool replace_groups;
	/* The process keeps ENTER_DEVICE_GROUP_INSIDE, to open a bound device. */
	bool device_group;
	/* Into the control groups that were made for it. */
	struct sys_cgroup_way cgroups;
};

/*
 * Whether the process keeps all supplementary groups of the caller. A normal user may take none
 * away under an ID of the user's own (user_namespaces(7)), and gives none that may open a bound
 * device when they are taken away.
 */
bool jail_keeps_groups(const struct jail *jail);

#define JAIL_LIMITS 5

struct jail_limit {
	/* As /proc/PID/limits calls it. */
	const char *name;
	/* RLIMIT_*. */
	int resource;
	uint64_t value;
	/* Set even when the value is 0. */
	bool always;
};

/* The limits that a description stands for. Fills up to JAIL_LIMITS and returns how many. */
size_t jail_limits(const struct jail *jail, struct jail_limit *ret_limits);

enum enter_report_kind {
	/* The child has ended at step with error. */
	ENTER_FAILED = 1,
	/* There is no landlock here: error says why. The child goes on. */
	ENTER_NO_LANDLOCK = 2,
	/* The message carries the seccomp notification descriptor. */
	ENTER_LISTENER = 3,
	/* It could not move into its control groups: error says why. The child goes on. */
	ENTER_NO_CGROUP = 4,
};

/* What the child tells. The end of the stream without ENTER_FAILED means that it runs. */
struct enter_report {
	uint32_t kind;
	uint32_t step;
	/* A negative errno. */
	int32_t error;
	/* Number of the bind that the step was at, or -1. */
	int32_t bind;
};

/* Takes all steps and executes the program. Call in the child of sys_clone. */
_Noreturn void enter_jail(const struct enter_plan *plan);

/* What a step does, for a message, or "unknown step". step need not be in range. */
const char *enter_step_name(uint32_t step);
