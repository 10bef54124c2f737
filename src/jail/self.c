/*
 * A process that confines itself, once it has done what needs more: the keeper.
 *
 * It keeps its ID, its files and its network, so this is no jail. What is gone is every way to
 * start a program, to gain a privilege, and to ask the kernel for what is not on the list. The list
 * comes last, for it forbids the steps before it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"
#include "base/mutant.h"
#include "jail/jail.h"
#include "sys/caps.h"
#include "sys/filter.h"
#include "sys/process.h"

/* Root's control groups lie in directories that not even root may write to without it. */
static int drop_capabilities(const struct jail_policy *policy)
{
	(void)policy;
	return geteuid() == 0 ? sys_caps_keep_dac_override() : sys_caps_drop_held();
}

static int forbid_privileges(const struct jail_policy *policy)
{
	(void)policy;
	return sys_no_new_privs();
}

static int hide_memory(const struct jail_policy *policy)
{
	(void)policy;
	return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ? -errno : 0;
}

static int forbid_cores(const struct jail_policy *policy)
{
	(void)policy;
	return sys_limit(RLIMIT_CORE, 0);
}

static int enter_seccomp(const struct jail_policy *policy)
{
	return sys_filter_load(policy->filter, policy->count, NULL);
}

static const struct {
	const char *name;
	int (*run)(const struct jail_policy *policy);
	const char *mend;
} steps[] = {
	{"drop all capabilities", drop_capabilities,
	 "root needs CAP_SETPCAP and CAP_DAC_OVERRIDE for that; a container must leave it both"},
	{"set no_new_privs", forbid_privileges, NULL},
	{"hide its memory", hide_memory, NULL},
	{"forbid core dumps", forbid_cores, NULL},
	{"enter seccomp", enter_seccomp, "a kernel with CONFIG_SECCOMP_FILTER=y; see `box doctor`"},
};

int jail_confine_self(const struct jail_policy *policy, struct err *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		int rc = MUTANT("keeper") ? 0 : steps[i].run(policy);

		if (rc < 0) {
			err_set(err, rc, "jail", "confining the %s: %s: %s", policy->name,
				steps[i].name, strerror(-rc));
			if (steps[i].mend) {
				err_mend(err, "%s", steps[i].mend);
			}
			return rc;
		}
	}
	return 0;
}

int jail_describe_self(const struct jail_policy *policy, char **ret_text)
{
	int size =
		asprintf(ret_text,
			 "{\"capabilities\": [%s], \"no_new_privs\": true, \"dumpable\": false,\n"
			 " \"seccomp\": {\"policy\": \"%s\", \"instructions\": %u, "
			 "\"otherwise\": \"kill\", \"notify\": false, \"without\": []},\n"
			 " \"limits\": {\"Max core file size\": 0}}\n",
			 geteuid() == 0 ? "\"CAP_DAC_OVERRIDE\"" : "", policy->name, policy->count);

	return size < 0 ? -ENOMEM : 0;
}
