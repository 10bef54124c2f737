/* A list of system calls without some of its calls. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "jail/jail.h"

/* The kernel's own limit for one filter (BPF_MAXINSNS). */
#define INSTRUCTIONS_MAX 4096

/* What jail_spawn itself does behind the list. */
static const char *const needed[] = {"execveat", "exit_group", "sendmsg", "write"};

static int refuse(const struct jail_policy *policy, const char *name, const char *why,
		  struct err *err)
{
	err_set(err, -EINVAL, "bad-seccomp", "seccomp: %s %s %s", name, why, policy->name);
	err_mend(err, "take %s out of `seccomp` in the Boxfile", name);
	return -EINVAL;
}

static int find_call(const struct jail_policy *policy, const char *name, struct jail_call *ret_call,
		     struct err *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(needed); i++) {
		if (strcmp(needed[i], name) == 0) {
			return refuse(policy, name, "cannot be taken away: it starts", err);
		}
	}
	for (size_t i = 0; i < policy->call_count; i++) {
		if (strcmp(policy->calls[i].name, name) == 0) {
			*ret_call = policy->calls[i];
			return 0;
		}
	}
	return refuse(policy, name, "is not on the list of system calls of", err);
}

int jail_narrow(const struct jail_policy *policy, char *const *names, size_t count,
		struct jail_policy **ret_policy, struct err *err)
{
	/* One load, two for each name, and then the list as it is: its jumps are relative. */
	size_t before = 1 + 2 * count, instructions = before + policy->count;
	struct {
		struct jail_policy policy;
		struct sock_filter filter[INSTRUCTIONS_MAX];
		struct jail_call without[INSTRUCTIONS_MAX / 2];
	} * narrow;

	if (instructions > INSTRUCTIONS_MAX) {
		return err_set(err, -E2BIG, "bad-seccomp", "seccomp: too many names");
	}
	narrow = calloc(1, sizeof(*narrow));
	if (!narrow) {
		return err_context(err, -ENOMEM, "seccomp");
	}
	narrow->filter[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
							 offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < count; i++) {
		int rc = find_call(policy, names[i], &narrow->without[i], err);

		if (rc < 0) {
			free(narrow);
			return rc;
		}
		narrow->filter[1 + 2 * i] = (struct sock_filter)BPF_JUMP(
			BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)narrow->without[i].number, 0, 1);
		narrow->filter[2 + 2 * i] =
			(struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	}
	memcpy(narrow->filter + before, policy->filter, policy->count * sizeof(narrow->filter[0]));
	narrow->policy = *policy;
	narrow->policy.filter = narrow->filter;
	narrow->policy.count = (uint16_t)instructions;
	narrow->policy.without = narrow->without;
	narrow->policy.without_count = count;
	*ret_policy = &narrow->policy;
	return 0;
}
