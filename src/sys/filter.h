/* Seccomp filters and their notifications: seccomp(2), seccomp_unotify(2). */
#pragma once

#include <stdint.h>

/*
 * Installs count classic BPF instructions (struct sock_filter) for the calling thread. When
 * ret_listener is not NULL, the filter's notifications come on *ret_listener (close-on-exec,
 * owned by the caller). Needs no_new_privs. Safe after sys_clone. Returns 0 or a negative errno.
 */
int sys_filter_load(const void *filter, uint16_t count, int *ret_listener);

/* One system call that waits for an answer. The arguments were written by the jailed process. */
struct sys_notification {
	uint64_t id;
	int number;
	uint64_t arguments[6];
};

/*
 * Takes one notification off listener without waiting. Returns 0, -EAGAIN when there is none, or a
 * negative errno (-ENOENT: the process that asked is gone).
 */
int sys_filter_receive(int listener, struct sys_notification *ret_notification);

/*
 * Puts fd into the asking process, close-on-exec, and lets its call return the new number. Returns
 * 0 or a negative errno.
 */
int sys_filter_answer_fd(int listener, uint64_t id, int fd);

/* Lets the asking process's call fail with the positive errno error. 0 or a negative errno. */
int sys_filter_answer_error(int listener, uint64_t id, int error);

/* Lets the asking process's call return 0 without being made. 0 or a negative errno. */
int sys_filter_answer_done(int listener, uint64_t id);

/*
 * Lets the asking process's call be made. Only for calls that are allowed in any case: arguments in
 * memory and descriptors may change after the look. 0 or a negative errno.
 */
int sys_filter_answer_continue(int listener, uint64_t id);
