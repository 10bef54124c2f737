/* Processes, their limits and their descriptors. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A descriptor for pid, close-on-exec: pidfd_open(2). Returns it or a negative errno. */
int sys_pidfd_open(pid_t pid);

/* Sends a signal to the process behind pidfd. 0 or a negative errno (-ESRCH: it has ended). */
int sys_pidfd_signal(int pidfd, int signal_number);

/* True when the process behind pidfd has ended. Safe after sys_clone. */
bool sys_pidfd_ended(int pidfd);

/*
 * True when the child behind pidfd was stopped by a signal, or has ended: no thread of it can run a
 * program's code or make a call any more. The kernel says so of a child when the last of its
 * threads has stopped on its way out of a call (wait(2)).
 */
bool sys_pidfd_stopped(int pidfd);

/*
 * A descriptor of ours for what the process behind pidfd has as number: pidfd_getfd(2), which a
 * caller may do who could trace the process. Unlike a look at /proc/PID/fd that is so for the owner
 * of its user namespace too, whatever ID it has. Returns it, close-on-exec, -EBADF when it has none
 * of that number, or another negative errno.
 */
int sys_pidfd_copy_fd(int pidfd, int number);

/* Closes all descriptors from first to last, both included. Returns 0 or a negative errno. */
int sys_close_range(unsigned first, unsigned last);

/*
 * Sets soft and hard limit of resource (RLIMIT_*) to value, or leaves the hard limit where it is
 * lower already. Returns 0 or a negative errno.
 */
int sys_limit(int resource, uint64_t value);

/* Gives every signal its default action and blocks none, as a new program expects. */
int sys_reset_signals(void);

/*
 * Sends data with one descriptor (or none: -EBADF) over a Unix socket as one message. Returns 0 or
 * a negative errno: -EIO when a stream took only a part. Safe after sys_clone.
 */
int sys_send_fd(int socket_fd, const void *data, size_t size, int fd);

/*
 * Receives one message of at most size bytes. *ret_fd is its descriptor, close-on-exec and owned
 * by the caller, or -EBADF. Returns the number of bytes, 0 at the end, or a negative errno.
 */
ssize_t sys_receive_fd(int socket_fd, void *data, size_t size, int *ret_fd);
