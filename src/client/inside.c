#include "client/inside.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "client/copy_pump.h"
#include "client/copy_receive.h"
#include "client/internal.h"

/* One thread and its end of a stream. */
struct worker {
	const struct client_inside *inside;
	int (*work)(void *data, const struct inside_end *end, struct err *err);
	struct inside_end end;
	pthread_t thread;
	bool running;
	int rc;
	struct err err;
};

struct talk {
	const struct client_inside *inside;
	struct client_machine *machine;
	int stop_fd;
	int messages_fd;
	struct worker writer;
	struct worker reader;
	struct client_result result;
};

/* Waits until the end is ready. 0, or -ECANCELED when it is to stop. */
static int await(const struct inside_end *end, short events)
{
	struct pollfd waits[] = {
		{.fd = end->stop_fd, .events = POLLIN},
		{.fd = end->fd, .events = events},
	};

	for (;;) {
		if (poll(waits, ARRAY_SIZE(waits), -1) < 0) {
			if (errno == EINTR) {
				continue;
			}
			return -errno;
		}
		if (waits[0].revents) {
			return -ECANCELED;
		}
		if (waits[1].revents) {
			return 0;
		}
	}
}

ssize_t inside_read(const struct inside_end *end, void *data, size_t size)
{
	for (;;) {
		ssize_t got;
		int rc = await(end, POLLIN);

		if (rc < 0) {
			return rc;
		}
		got = read(end->fd, data, size);
		if (got >= 0 || (errno != EAGAIN && errno != EINTR)) {
			return got < 0 ? -errno : got;
		}
	}
}

int inside_write(const struct inside_end *end, const void *data, size_t size)
{
	const char *at = data;

	while (size > 0) {
		ssize_t written;
		int rc = await(end, POLLOUT);

		if (rc < 0) {
			return rc;
		}
		written = write(end->fd, at, size);
		if (written < 0 && errno != EAGAIN && errno != EINTR) {
			return -errno;
		}
		if (written > 0) {
			at += written;
			size -= (size_t)written;
		}
	}
	return 0;
}

static void *work(void *data)
{
	struct worker *worker = data;

	worker->rc = worker->work(worker->inside->data, &worker->end, &worker->err);
	/* The program sees the end of its input, or that nobody reads its output. */
	close_fd(&worker->end.fd);
	return NULL;
}

/* Makes the pipe of one stream and starts its thread; *ret_fd is the program's end. */
static int start_worker(struct talk *talk, struct worker *worker, bool writes, int *ret_fd)
{
	int read_end = -EBADF, write_end = -EBADF, rc;

	*ret_fd = -EBADF;
	if (!worker->work) {
		return 0;
	}
	worker->inside = talk->inside;
	rc = copy_pipe(&read_end, &write_end);
	if (rc < 0) {
		return rc;
	}
	worker->end =
		(struct inside_end){.fd = writes ? write_end : read_end, .stop_fd = talk->stop_fd};
	*ret_fd = writes ? read_end : write_end;
	/* Our end alone: the two have descriptions of their own. */
	rc = set_nonblocking(worker->end.fd, true);
	if (rc == 0) {
		rc = -pthread_create(&worker->thread, NULL, work, worker);
	}
	worker->running = rc == 0;
	if (rc < 0) {
		close_fd(&worker->end.fd);
		close_fd(ret_fd);
	}
	return rc;
}

static void end_worker(struct worker *worker)
{
	if (worker->running) {
		pthread_join(worker->thread, NULL);
		worker->running = false;
	}
}

static int judge_program(const struct talk *talk, struct err *err)
{
	const struct client_result *result = &talk->result;
	const char *name = talk->machine->name;
	char line[COPY_MESSAGE_MAX];

	if (result->exit.kind == WIRE_EXITED && result->exit.value == 0) {
		return 0;
	}
	copy_read_message(talk->messages_fd, line, sizeof(line));
	if (result->reason[0] || line[0]) {
		err_set(err, -EIO, "inside", "%s: %s", name,
			result->reason[0] ? result->reason : line);
	} else {
		err_set(err, -EIO, "inside", "%s: %s inside %s %u", name, talk->inside->argv[0],
			copy_exit_words(result), result->exit.value);
	}
	err_mend(err,
		 "that is what the machine says of its /data; `box build %s` if it was built "
		 "by an older box",
		 name);
	return -EIO;
}

static bool was_cut(const struct client_result *result)
{
	return result->exit.kind == WIRE_SIGNALED && result->exit.value == SIGPIPE;
}

/* The first cause of all. */
static int judge(struct talk *talk, int rc, struct err *run_err, struct err *err)
{
	const struct worker *reader = &talk->reader, *writer = &talk->writer;

	if (talk->result.interrupted) {
		return client_interrupted(talk->machine, err);
	}
	if (rc < 0) {
		*err = *run_err;
		return rc;
	}
	if (!was_cut(&talk->result)) {
		rc = judge_program(talk, err);
	}
	if (rc == 0 && reader->rc < 0) {
		*err = reader->err;
		return reader->rc;
	}
	if (rc == 0 && writer->rc < 0 && writer->rc != -EPIPE) {
		*err = writer->err;
		return writer->rc;
	}
	return rc == 0 ? judge_program(talk, err) : rc;
}

static int run(struct talk *talk, int stdin_fd, int stdout_fd, struct err *err)
{
	struct client_command command = {
		.argv = talk->inside->argv,
		.user = "root",
		.directory = "/",
		.stdin_fd = stdin_fd,
		.stdout_fd = stdout_fd,
		.stderr_fd = talk->messages_fd,
		.self = true,
		.direct = true,
	};

	while (command.argv[command.argc]) {
		command.argc++;
	}
	return client_run(talk->machine, &command, &talk->result, err);
}

int client_run_inside(struct client_machine *machine, const struct client_inside *inside,
		      struct err *err)
{
	struct talk talk = {
		.inside = inside,
		.machine = machine,
		.messages_fd = -EBADF,
		.writer = {.work = inside->write, .end = {.fd = -EBADF}},
		.reader = {.work = inside->read, .end = {.fd = -EBADF}},
	};
	_cleanup_close_ int stdin_fd = -EBADF;
	_cleanup_close_ int stdout_fd = -EBADF;
	struct err run_err = {0};
	const uint64_t one = 1;
	int rc;

	talk.stop_fd = eventfd(0, EFD_CLOEXEC);
	rc = talk.stop_fd < 0 ? -errno : copy_open_messages();
	talk.messages_fd = rc;
	if (rc >= 0) {
		rc = start_worker(&talk, &talk.writer, true, &stdin_fd);
	}
	if (rc == 0) {
		rc = start_worker(&talk, &talk.reader, false, &stdout_fd);
	}
	if (rc < 0) {
		err_context(&run_err, rc, "%s", inside->argv[0]);
	} else {
		rc = run(&talk, stdin_fd, stdout_fd, &run_err);
	}
	if (rc < 0 || talk.result.interrupted) {
		(void)!write(talk.stop_fd, &one, sizeof(one));
	}
	close_fd(&stdin_fd);
	close_fd(&stdout_fd);
	end_worker(&talk.writer);
	end_worker(&talk.reader);
	rc = judge(&talk, rc, &run_err, err);
	close_fd(&talk.stop_fd);
	close_fd(&talk.messages_fd);
	return rc;
}
