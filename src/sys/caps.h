/* Capabilities, given up for good: capabilities(7). Safe after sys_clone. */
#pragma once

/*
 * Empties the bounding set, the ambient set and the thread's permitted, effective and inheritable
 * sets, and locks the securebits so that no later execve(2) of root or set-user-ID files brings
 * anything back. Needs CAP_SETPCAP. Returns 0 or a negative errno.
 */
int sys_caps_drop_all(void);

/*
 * Empties the ambient set and the thread's permitted, effective and inheritable sets. Needs
 * nothing; the bounding set stays. Returns 0 or a negative errno.
 */
int sys_caps_drop_held(void);

/* As sys_caps_drop_all, but CAP_DAC_OVERRIDE stays permitted and effective. It must be held. */
int sys_caps_keep_dac_override(void);

/* no_new_privs: execve(2) can never give more than the process has. 0 or a negative errno. */
int sys_no_new_privs(void);
