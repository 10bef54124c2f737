#include "engine/qmp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "json/json.h"
#include "sys/process.h"

/* The answers and events that we ask for are a few hundred bytes each. */
#define LINE_MAX_BYTES 16384
/* Commands under way. Replacing a disk sends most at once: one for each layer, and two. */
#define PENDING_MAX 32
/* The longest command describes ten layers of a disk, some hundred bytes each. */
#define COMMAND_BYTES_MAX 4096

struct qmp {
	int fd;
	struct loop *loop;
	qmp_callback *callback;
	void *data;
	/* Names of the commands under way, oldest first. Literals of our own code. */
	const char *pending[PENDING_MAX];
	size_t pending_count;
	/* The command that was begun, or NULL. */
	const char *begun;
	size_t filled;
	char line[LINE_MAX_BYTES];
	/* Set when the callback freed us while we were reading. */
	bool *freed;
};

static void fail(struct qmp *qmp, const char *why)
{
	loop_remove(qmp->loop, qmp->fd);
	qmp->callback(qmp->data, QMP_FAILED, why);
}

static void on_return(struct qmp *qmp, const struct json *value)
{
	const char *status = json_get_string(value, "status");
	const char *name;

	if (qmp->pending_count == 0) {
		fail(qmp, "an answer to nothing came over QMP");
		return;
	}
	name = qmp->pending[0];
	memmove(qmp->pending, qmp->pending + 1, sizeof(qmp->pending[0]) * --qmp->pending_count);
	if (strcmp(name, "query-status") == 0) {
		qmp->callback(qmp->data, QMP_STATUS, status ? status : "");
	} else if (strcmp(name, "qmp_capabilities") != 0) {
		qmp->callback(qmp->data, QMP_DONE, name);
	}
}

static void on_event(struct qmp *qmp, const char *event, const struct json *data)
{
	const char *status = json_get_string(data, "status");

	if (strcmp(event, "MIGRATION") == 0 && status) {
		if (strcmp(status, "completed") == 0) {
			qmp->callback(qmp->data, QMP_MIGRATED, "migration");
		} else if (strcmp(status, "failed") == 0) {
			qmp->callback(qmp->data, QMP_NOT_MIGRATED,
				      "the machine's state could not be saved or loaded");
		}
	} else if (strcmp(event, "BLOCK_JOB_READY") == 0) {
		qmp->callback(qmp->data, QMP_JOB_READY, event);
	} else if (strcmp(event, "BLOCK_JOB_COMPLETED") == 0 && json_get_string(data, "error")) {
		fail(qmp, json_get_string(data, "error"));
	} else if (strcmp(event, "SHUTDOWN") == 0 || strcmp(event, "RESET") == 0 ||
		   strcmp(event, "GUEST_PANICKED") == 0) {
		qmp->callback(qmp->data, QMP_GUEST_ENDED, event);
	}
}

static void on_line(struct qmp *qmp, const char *line, size_t size)
{
	_cleanup_(json_freep) struct json *message = NULL;
	const struct json *error;
	const char *event;
	char why[256];

	if (json_parse(line, size, &message, NULL) < 0) {
		fail(qmp, "what came over QMP is not JSON");
		return;
	}
	error = json_get_child(message, "error");
	event = json_get_string(message, "event");
	if (json_get_child(message, "QMP")) {
		qmp->callback(qmp->data, QMP_GREETING, "greeting");
	} else if (error) {
		const char *text = json_get_string(error, "desc");

		snprintf(why, sizeof(why), "%s: %s",
			 qmp->pending_count > 0 ? qmp->pending[0] : "QMP",
			 text ? text : "unknown error");
		fail(qmp, why);
	} else if (event) {
		on_event(qmp, event, json_get_child(message, "data"));
	} else if (json_get_child(message, "return")) {
		on_return(qmp, json_get_child(message, "return"));
	}
}

/* Takes whole lines off the front of the buffer. */
static void take_lines(struct qmp *qmp)
{
	bool freed = false;
	char *newline;

	qmp->freed = &freed;
	while ((newline = memchr(qmp->line, '\n', qmp->filled)) != NULL) {
		size_t size = (size_t)(newline - qmp->line);

		on_line(qmp, qmp->line, size);
		if (freed) {
			return;
		}
		qmp->filled -= size + 1;
		memmove(qmp->line, newline + 1, qmp->filled);
	}
	qmp->freed = NULL;
}

static void on_readable(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct qmp *qmp = data;
	size_t room = sizeof(qmp->line) - qmp->filled;
	ssize_t got;

	(void)events;
	if (room == 0) {
		fail(qmp, "a line over QMP is too long");
		return;
	}
	got = read(fd, qmp->line + qmp->filled, room);
	if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
		return;
	}
	if (got <= 0) {
		loop_remove(loop, fd);
		qmp->callback(qmp->data, QMP_CLOSED, "closed");
		return;
	}
	qmp->filled += (size_t)got;
	take_lines(qmp);
}

int qmp_new(int fd, struct loop *loop, qmp_callback *callback, void *data, struct qmp **ret_qmp)
{
	_cleanup_free_ struct qmp *qmp = calloc(1, sizeof(*qmp));
	int rc;

	if (!qmp) {
		return -ENOMEM;
	}
	qmp->fd = fd;
	qmp->loop = loop;
	qmp->callback = callback;
	qmp->data = data;
	rc = set_nonblocking(fd, true);
	if (rc == 0) {
		rc = loop_add(loop, fd, EPOLLIN, on_readable, qmp);
	}
	if (rc == 0) {
		rc = qmp_send(qmp, "qmp_capabilities", NULL, -1);
	}
	if (rc < 0) {
		loop_remove(loop, fd);
		return rc;
	}
	*ret_qmp = TAKE_PTR(qmp);
	return 0;
}

void qmp_free(struct qmp *qmp)
{
	if (!qmp) {
		return;
	}
	if (qmp->freed) {
		*qmp->freed = true;
	}
	loop_remove(qmp->loop, qmp->fd);
	close(qmp->fd);
	free(qmp);
}

/* Returns the length of the text. */
static size_t print_command(const char *name, const char *arguments,
			    char ret_text[static COMMAND_BYTES_MAX])
{
	int length = snprintf(ret_text, COMMAND_BYTES_MAX, "{\"execute\":\"%s\"%s%s}", name,
			      arguments ? ",\"arguments\":" : "", arguments ? arguments : "");

	ASSERT(length > 0 && length < COMMAND_BYTES_MAX);
	return (size_t)length;
}

/* Whether the monitor answers. To be asked before the first byte of a command, which cannot be
 * taken back. */
static bool has_room(const struct qmp *qmp)
{
	return qmp->pending_count < PENDING_MAX;
}

/* Sends the last part of a command. A command is far smaller than the socket's buffer. */
static int send_last(struct qmp *qmp, const char *name, const char *part, size_t size, int pass_fd)
{
	int rc = sys_send_fd(qmp->fd, part, size, pass_fd);

	if (rc == 0) {
		qmp->pending[qmp->pending_count++] = name;
	}
	return rc;
}

int qmp_begin(struct qmp *qmp, const char *name, const char *arguments)
{
	char text[COMMAND_BYTES_MAX];
	int rc;

	ASSERT(!qmp->begun);
	if (!has_room(qmp)) {
		return -ENOBUFS;
	}
	rc = sys_send_fd(qmp->fd, text, print_command(name, arguments, text) - 1, -EBADF);
	if (rc == 0) {
		qmp->begun = name;
	}
	return rc;
}

int qmp_finish(struct qmp *qmp, int pass_fd)
{
	ASSERT(qmp->begun);
	return send_last(qmp, TAKE_PTR(qmp->begun), "}", 1, pass_fd);
}

/*
 * QEMU reads this channel byte by byte, so no byte is sent that it can do without: its parser needs
 * no line's end. With a descriptor that it has not used yet every byte takes it twice as long, so
 * that goes with the last one.
 */
int qmp_send(struct qmp *qmp, const char *name, const char *arguments, int pass_fd)
{
	char text[COMMAND_BYTES_MAX];
	int rc;

	ASSERT(!qmp->begun);
	if (pass_fd >= 0) {
		rc = qmp_begin(qmp, name, arguments);
		return rc < 0 ? rc : qmp_finish(qmp, pass_fd);
	}
	if (!has_room(qmp)) {
		return -ENOBUFS;
	}
	return send_last(qmp, name, text, print_command(name, arguments, text), -EBADF);
}
