/*
 * Control groups for a user's login session, where only systemd can make them.
 *
 * A session is a group of root's (user-UID.slice/session-N.scope), and to move a process out of it
 * into the groups that are the user's (user@UID.service) takes root as well. systemd does it for
 * the user: it makes a scope (systemd.scope(5)) with the limits and moves the process there.
 *
 * The process that is moved is the one to be limited, and never its maker. A session lasts for as
 * long as a process is in it, and the user's systemd for as long as a session: a keeper that left
 * the session would lose its machine when the user logs out.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "sys/cgroup.h"

/*
 * The ending of a scope's name. systemd removes a scope when its last process has ended. Nobody
 * else may: it would then never learn of the end.
 */
#define SYS_SCOPE_SUFFIX ".scope"

#define SYS_SCOPE_REASON_SIZE 128

/* Whether the calling user's systemd listens, and counts processes as the caller does. */
bool sys_scope_manager_is_there(void);

/* Whether systemd may be asked: the caller is a user in a login session, with a systemd. */
bool sys_scope_can_be_asked(void);

/*
 * Has systemd move pid into a new scope named name.scope with limits, and looks whether they are
 * there. pid is a process of the calling user's ID. ret_path is the scope's directory. Returns 0,
 * or a negative errno with the reason.
 */
int sys_scope_make(pid_t pid, const char *name, const struct sys_cgroup_limits *limits,
		   char *ret_path, size_t size, char reason[static SYS_SCOPE_REASON_SIZE]);
