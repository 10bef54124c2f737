/*
 * The job is QEMU's block-commit from the top layer into the target, which first copies all and
 * then waits to be told to go over to the target. It never is: the files are put together by the
 * store, so QEMU ends there, and closing writes what it had still in memory. Nothing in a file
 * comes to name another one that way.
 *
 * What may never happen: success is told, and something was not copied or not written.
 */
#include "engine/merge.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/loop.h"
#include "engine/monitor.h"
#include "engine/qmp.h"

/* "node", and a number of a layer. */
#define NODE_MAX 16
/* One node's description, and the pair of -add-fd. */
#define TEXT_MAX 256
/* 0 to 2 are standard streams. */
#define QMP_NUMBER 3
#define FIRST_LAYER_NUMBER 4
#define COMPLAINT_MAX 512

struct run {
	const struct engine_merge *merge;
	struct err *err;
	struct loop *loop;
	struct jail jail;
	struct jail_process process;
	struct qmp *qmp;
	int complaint_fd;
	bool ready;
	int rc;
	const char *argv[JAIL_ARGS_MAX];
	size_t argc;
	char fd_texts[ENGINE_LAYERS_MAX][TEXT_MAX];
	char node_texts[ENGINE_LAYERS_MAX][TEXT_MAX];
	char chardev[TEXT_MAX];
};

static void add_option(struct run *run, const char *option, const char *value)
{
	ASSERT(run->argc + 2 < JAIL_ARGS_MAX);
	run->argv[run->argc++] = option;
	run->argv[run->argc++] = value;
}

/* One layer on the one before. Only the target may be written to. */
static int add_layer(struct run *run, size_t at, struct err *err)
{
	int number = FIRST_LAYER_NUMBER + (int)at;
	char backing[NODE_MAX + 16] = "";

	if (at > 0) {
		snprintf(backing, sizeof(backing), ",\"backing\":\"node%zu\"", at - 1);
	}
	snprintf(run->fd_texts[at], TEXT_MAX, "fd=%d,set=%d", number, number);
	snprintf(run->node_texts[at], TEXT_MAX,
		 "{\"driver\":\"%s\",\"node-name\":\"node%zu\",\"read-only\":%s,\"file\":{"
		 "\"driver\":"
		 "\"file\",\"filename\":\"/dev/fdset/%d\",\"locking\":\"off\"}%s}",
		 at > 0 ? "qcow2" : "raw", at, at == run->merge->target ? "false" : "true", number,
		 backing);
	add_option(run, "-add-fd", run->fd_texts[at]);
	add_option(run, "-blockdev", run->node_texts[at]);
	return jail_add_fd(&run->jail, run->merge->fds[at], number, err);
}

static int describe(struct run *run, int qmp_fd, int complaint_fd, struct err *err)
{
	int rc = monitor_add_program(&run->jail, true, err);

	if (rc == 0) {
		rc = jail_add_fd(&run->jail, complaint_fd, STDERR_FILENO, err);
	}
	if (rc == 0) {
		rc = jail_add_fd(&run->jail, qmp_fd, QMP_NUMBER, err);
	}
	run->argv[run->argc++] = QEMU_PATH;
	add_option(run, "-machine", "none");
	add_option(run, "-accel", "tcg,tb-size=1");
	run->argv[run->argc++] = "-nodefaults";
	run->argv[run->argc++] = "-no-user-config";
	add_option(run, "-display", "none");
	for (size_t i = 0; rc == 0 && i < run->merge->count; i++) {
		rc = add_layer(run, i, err);
	}
	snprintf(run->chardev, sizeof(run->chardev), "socket,id=qmp,fd=%d", QMP_NUMBER);
	add_option(run, "-chardev", run->chardev);
	add_option(run, "-mon", "chardev=qmp,mode=control");
	run->argv[run->argc] = NULL;
	run->jail.argv = run->argv;
	run->jail.host_uid = run->merge->host_uid;
	run->jail.host_gid = run->merge->host_gid;
	monitor_limit(&run->jail, 0, run->merge->size_bytes);
	return rc;
}

/* Ends the run with a reason; later ones are consequences. */
static void fail(struct run *run, int rc, const char *why)
{
	if (run->rc == 0) {
		run->rc = rc;
		err_set(run->err, rc, "merge-failed", "merging disks: %s", why);
		err_mend(run->err, "is the host's disk full? nothing was lost; try again");
	}
	loop_stop(run->loop, 0);
}

static void start_job(struct run *run)
{
	char text[TEXT_MAX];
	int rc;

	snprintf(text, sizeof(text),
		 "{\"job-id\":\"merge\",\"device\":\"node%zu\",\"base-node\":\"node%zu\"}",
		 run->merge->count - 1, run->merge->target);
	rc = qmp_send(run->qmp, "block-commit", text, -1);
	if (rc < 0) {
		fail(run, rc, strerror(-rc));
	}
}

static void on_qmp(void *data, enum qmp_event event, const char *text)
{
	struct run *run = data;

	switch (event) {
	case QMP_GREETING:
		start_job(run);
		break;
	case QMP_JOB_READY:
		run->ready = true;
		if (qmp_send(run->qmp, "quit", NULL, -1) < 0) {
			fail(run, -EIO, "QEMU does not listen");
		}
		break;
	case QMP_FAILED:
		fail(run, -EIO, text);
		break;
	case QMP_GUEST_ENDED:
	case QMP_DONE:
	case QMP_MIGRATED:
	case QMP_NOT_MIGRATED:
	case QMP_STATUS:
	case QMP_CLOSED:
		/* How it ends tells more. */
		break;
	}
}

static void on_exit_of(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct run *run = data;
	siginfo_t info = {0};
	char why[COMPLAINT_MAX + 64], complaint[COMPLAINT_MAX] = "";
	ssize_t got;

	(void)events;
	if (waitid(P_PIDFD, (id_t)fd, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0) {
		return;
	}
	if (info.si_code == CLD_EXITED && info.si_status == 0 && run->ready) {
		loop_stop(loop, 0);
		return;
	}
	got = read(run->complaint_fd, complaint, sizeof(complaint) - 1);
	complaint[got > 0 ? got : 0] = '\0';
	complaint[strcspn(complaint, "\n")] = '\0';
	snprintf(why, sizeof(why), "QEMU %s %d%s%s",
		 info.si_code == CLD_EXITED ? "ended with" : "was killed by signal", info.si_status,
		 complaint[0] ? ": " : "", complaint);
	fail(run, -EIO, why);
}

static void on_notification(struct loop *loop, int fd, uint32_t events, void *data)
{
	struct run *run = data;

	if (!(events & EPOLLIN) || jail_answer(&run->process, -EBADF) == -ENOENT) {
		loop_remove(loop, fd);
	}
}

static int watch(struct run *run, int *qmp_fd)
{
	int rc = loop_add(run->loop, run->process.pidfd, EPOLLIN, on_exit_of, run);

	if (rc == 0 && run->process.notify_fd >= 0) {
		rc = loop_add(run->loop, run->process.notify_fd, EPOLLIN, on_notification, run);
	}
	if (rc == 0) {
		rc = qmp_new(*qmp_fd, run->loop, on_qmp, run, &run->qmp);
	}
	if (rc == 0) {
		*qmp_fd = -EBADF;
		rc = loop_run(run->loop);
	}
	return rc;
}

static int spawn_and_wait(struct run *run, struct err *err)
{
	_cleanup_close_ int ours = -EBADF;
	_cleanup_close_ int theirs = -EBADF;
	_cleanup_close_ int complaint_write = -EBADF;
	int pair[2], complaints[2];
	int rc;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		return err_context(err, -errno, "merging disks");
	}
	ours = pair[0];
	theirs = pair[1];
	if (pipe2(complaints, O_CLOEXEC | O_NONBLOCK) < 0) {
		return err_context(err, -errno, "merging disks");
	}
	run->complaint_fd = complaints[0];
	complaint_write = complaints[1];
	rc = describe(run, theirs, complaint_write, err);
	if (rc == 0) {
		rc = jail_spawn(&run->jail, &run->process, err);
	}
	if (rc < 0) {
		return rc;
	}
	close_fd(&theirs);
	close_fd(&complaint_write);
	rc = watch(run, &ours);
	qmp_free(TAKE_PTR(run->qmp));
	loop_remove(run->loop, run->process.pidfd);
	loop_remove(run->loop, run->process.notify_fd);
	jail_end(&run->process);
	close_fd(&run->process.pidfd);
	close_fd(&run->process.notify_fd);
	return rc < 0 ? err_context(err, rc, "merging disks") : run->rc;
}

int engine_merge(const struct engine_merge *merge, struct err *err)
{
	_cleanup_free_ struct run *run = calloc(1, sizeof(*run));
	struct err local = {0};
	int rc = monitor_check(err);

	ASSERT(merge->count <= ENGINE_LAYERS_MAX && merge->target > 0 &&
	       merge->target + 1 < merge->count);
	if (rc < 0) {
		return rc;
	}
	if (!run) {
		return err_context(err, -ENOMEM, "merging disks");
	}
	run->merge = merge;
	run->err = err ? err : &local;
	run->complaint_fd = run->process.pidfd = run->process.notify_fd = -EBADF;
	rc = loop_new(&run->loop);
	rc = rc < 0 ? err_context(err, rc, "merging disks") : spawn_and_wait(run, run->err);
	loop_free(run->loop);
	close_fd(&run->complaint_fd);
	jail_clear(&run->jail);
	if (rc == 0 && fsync(merge->fds[merge->target]) < 0) {
		rc = err_context(err, -errno, "merging disks");
	}
	return rc;
}
