/*
 * The part of QEMU's machine protocol (QMP, docs/interop/qmp-spec.txt) that the engine needs.
 *
 * Commands are sent in one go and answered in order. The monitor counts as hostile: a line that is
 * too long, is not JSON or has not the expected shape ends the machine.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/loop.h"

struct qmp;

enum qmp_event {
	/* The greeting has come. */
	QMP_GREETING,
	/* A command sent with qmp_send has succeeded; name is its. */
	QMP_DONE,
	/* A migration, in or out, has completed. */
	QMP_MIGRATED,
	/* The answer to query-status: text is the word for what the machine does. */
	QMP_STATUS,
	/* A migration has failed; text says so. */
	QMP_NOT_MIGRATED,
	/* A command has failed, or the monitor broke the protocol; text says how. */
	QMP_FAILED,
	/* A block job has copied all that there was to copy (merge.c). */
	QMP_JOB_READY,
	/* The guest was reset, shut down or panicked; text is the event's name. */
	QMP_GUEST_ENDED,
	/* The connection has closed. */
	QMP_CLOSED,
};

/* Called from the loop. text is borrowed for the call; the callback may free the qmp. */
typedef void qmp_callback(void *data, enum qmp_event event, const char *text);

/* Takes the connected socket fd. Returns 0 or a negative errno; then fd is still the caller's. */
int qmp_new(int fd, struct loop *loop, qmp_callback *callback, void *data, struct qmp **ret_qmp);
void qmp_free(struct qmp *qmp);

/*
 * Sends one command. arguments is JSON text, or NULL. pass_fd goes along when it is not negative
 * (for getfd). The name comes back with QMP_DONE. Returns 0 or a negative errno.
 */
int qmp_send(struct qmp *qmp, const char *name, const char *arguments, int pass_fd);

/*
 * The same in two steps: all of a command but its last byte, and that byte, with which it takes
 * effect. QEMU has then read it already, which takes it 5 microseconds for each byte. One at a
 * time, and nothing else may be sent in between. Both return 0 or a negative errno.
 */
int qmp_begin(struct qmp *qmp, const char *name, const char *arguments);
int qmp_finish(struct qmp *qmp, int pass_fd);
