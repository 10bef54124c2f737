/* Capabilities, given up for good: capabilities(7). Safe after sys_clone. */
#pragma once

/*
 * Empties the bounding set, the ambient set and the thread's permitted, effective and inheritable
 * sets, and locks the securebits so that no later execve(2) of root or set-user-ID files brings
 * anything back. Needs CAP_SETPCAP. Returns 0 or a negative errno.
 */
int sys_caps_drop_all(void);

/* no_new_privs: execve(2) can never give more than the process has. 0 or a negative errno. */
int sys_no_new_privs(void);
