/*
 * One event loop per process: descriptors and timers, over epoll(7).
 *
 * The table of watches is fixed (LOOP_WATCHES_MAX), so nothing is allocated once hostile bytes
 * flow. Callbacks run from loop_run only. A callback may add, change or remove any watch, its own
 * included; an event that was already collected for a removed watch is dropped.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * A power of two. The keeper of a machine that stays needs most: 256 streams with three descriptors
 * each (768), 320 clients, 64 ports, and some twenty for its own sockets and its monitor.
 */
#define LOOP_WATCHES_MAX 2048
#define LOOP_TIMERS_MAX 512

struct loop;

/* events are EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR as epoll_wait(2) reports them. */
typedef void loop_fd_callback(struct loop *loop, int fd, uint32_t events, void *data);
typedef void loop_timer_callback(struct loop *loop, void *data);

/* Makes a loop. Owned by the caller, given back with loop_free. Returns 0 or a negative errno. */
int loop_new(struct loop **ret_loop);
void loop_free(struct loop *loop);
static inline void loop_freep(struct loop **loop)
{
	loop_free(*loop);
}

/*
 * Watches fd for events (may be 0: only EPOLLHUP and EPOLLERR are then reported). The loop does
 * not own fd: remove the watch before closing it. Returns 0, -EEXIST, -ENOSPC or an errno of
 * epoll_ctl(2).
 */
int loop_add(struct loop *loop, int fd, uint32_t events, loop_fd_callback *callback, void *data);

/* Changes the events of a watch. Asking for what is set already costs nothing. 0 or -ENOENT. */
int loop_modify(struct loop *loop, int fd, uint32_t events);

/* Removes a watch. A descriptor that is not watched is no error. */
void loop_remove(struct loop *loop, int fd);

/*
 * Calls callback once, after delay_ms milliseconds. *ret_timer (never 0) names the timer until it
 * has run or was cancelled. Returns 0 or -ENOSPC.
 */
int loop_timer_add(struct loop *loop, uint64_t delay_ms, loop_timer_callback *callback, void *data,
		   uint64_t *ret_timer);

/* Cancels a timer; 0 or a timer that has run already is no error. Sets *timer to 0. */
void loop_timer_cancel(struct loop *loop, uint64_t *timer);

/* Runs until loop_stop is called or nothing is watched. Returns the status given to loop_stop, 0,
 * or a negative errno. */
int loop_run(struct loop *loop);

/* Makes loop_run return status after the current callback. */
void loop_stop(struct loop *loop, int status);
