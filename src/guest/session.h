/*
 * The guest's end of the control port: the state machine of wire/ctl.h over any descriptor.
 *
 * What touches the machine itself (its clock, mounts, other processes) is done by hooks, so that a
 * session also runs in an ordinary process over a socket.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/ctl.h"

struct session;

struct session_hooks {
	/*
	 * SETUP: makes the machine distinct, mounts /data, which in a copy of a paused machine is
	 * mounted and frozen already: resume follows. Strings of *ret_ready stay valid.
	 * Returns 0 or a negative errno with err filled.
	 */
	int (*setup)(void *data, const struct wire_setup *setup, struct wire_ready *ret_ready,
		     struct err *err);
	/* FREEZE: ends and reaps all other processes, unmounts /data, syncs. As setup. */
	int (*freeze)(void *data, struct err *err);
	/* ATTACH: mounts the disk "data" at /data. As setup; -EBUSY when it is mounted. */
	int (*attach)(void *data, struct err *err);
	/* DETACH: ends and reaps all other processes, unmounts /data if it is mounted. As setup. */
	int (*detach)(void *data, struct err *err);
	/* PAUSE: freezes the file system of /data, if it is mounted. Returns 0 or a negative errno;
	 * then it is not frozen. Nothing is written to /data before resume. */
	int (*pause)(void *data);
	/* Thaws what pause has frozen. */
	void (*resume)(void *data);
	/* CLOCK: steps CLOCK_REALTIME. There is nobody to tell when that fails. */
	void (*step_clock)(void *data, int64_t step_ns);
	/* SHUTDOWN: ends all other processes and puts /data, and the root too, on the disks. A
	 * failure says that something of /data is not there; all else was done. As setup. */
	int (*shutdown)(void *data, bool root_too, struct err *err);
	void *data;
};

struct session_config {
	/* Non-blocking; a virtio port or a stream socket. Borrowed. */
	int port_fd;
	/* The mounted cgroup2, or -EBADF to do without. Borrowed. */
	int cgroup_fd;
	/* passwd(5) and group(5) of the image. Borrowed. */
	const char *passwd_path;
	const char *group_path;
	/* How long the host's end may be away while nothing runs, before session_run gives up. */
	unsigned absence_ms;
	/* How long a pause lasts without a word of the host: WIRE_PAUSE_MAX_MS. */
	unsigned pause_max_ms;
	const struct session_hooks *hooks;
};

/*
 * Makes a session. SIGCHLD must be blocked in the caller, and every child of the process is the
 * session's to reap. *ret_session is freed with session_free. Returns 0 or a negative errno.
 */
int session_new(const struct session_config *config, struct session **ret_session);

/*
 * Serves the host until it is gone: after SHUTDOWN, after an ERROR, or by closing its end. Returns
 * 0, or a negative errno with err filled: -EBADMSG when the host broke the protocol, others when
 * the port failed. Nothing is left to do then but to power the machine off.
 */
int session_run(struct session *session, struct err *err);

void session_free(struct session *session);
static inline void session_freep(struct session **session)
{
	session_free(*session);
}
