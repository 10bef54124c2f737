#include "host.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <errno.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/io.h"
#include "guest/session.h"

/* Nothing here takes longer, also under a sanitizer on a loaded machine. */
#define PATIENCE_MS 20000

struct hook_data {
	struct guest_report *report;
};

static int hook_setup(void *data, const struct wire_setup *setup, struct wire_ready *ret_ready,
		      struct err *err)
{
	struct hook_data *hooks = data;

	(void)setup;
	hooks->report->setups++;
	if (hooks->report->setup_error < 0) {
		return err_set(err, hooks->report->setup_error, "test",
			       "the setup hook was told to fail");
	}
	*ret_ready =
		(struct wire_ready){.release = "test", .version = "#1", .boot_id = "the-boot-id"};
	return 0;
}

/* Kills and reaps the children of this process, as process 1 would do with all processes. */
static void end_children(void)
{
	for (;;) {
		char path[64], text[4096] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
		file = fopen(path, "re");
		if (!file || !fgets(text, sizeof(text), file)) {
			text[0] = '\0';
		}
		if (file) {
			fclose(file);
		}
		for (char *word = text, *end; strtol(word, &end, 10) > 0; word = end) {
			kill((pid_t)strtol(word, NULL, 10), SIGKILL);
		}
		if (waitpid(-1, NULL, 0) < 0) {
			return;
		}
	}
}

static int hook_freeze(void *data, struct err *err)
{
	struct hook_data *hooks = data;

	(void)err;
	hooks->report->freezes++;
	end_children();
	return 0;
}

static int hook_attach(void *data, struct err *err)
{
	struct guest_report *report = ((struct hook_data *)data)->report;

	report->attaches++;
	return report->attach_error < 0 ? err_set(err, report->attach_error, "test",
						  "the attach hook was told to fail")
					: 0;
}

static int hook_detach(void *data, struct err *err)
{
	struct guest_report *report = ((struct hook_data *)data)->report;

	report->detaches++;
	end_children();
	return report->detach_error < 0 ? err_set(err, report->detach_error, "test",
						  "the detach hook was told to fail")
					: 0;
}

static int hook_pause(void *data)
{
	struct guest_report *report = ((struct hook_data *)data)->report;

	report->pauses++;
	return report->pause_error;
}

static void hook_resume(void *data)
{
	((struct hook_data *)data)->report->resumes++;
}

static void hook_step_clock(void *data, int64_t step_ns)
{
	((struct hook_data *)data)->report->stepped_ns += step_ns;
}

static int hook_shutdown(void *data, bool root_too, struct err *err)
{
	struct hook_data *hooks = data;
	int rc = hooks->report->shutdown_error;

	hooks->report->shutdowns++;
	hooks->report->root_too = root_too;
	end_children();
	return rc < 0 ? err_set(err, rc, "data", "not all was written") : 0;
}

static _Noreturn void run_guest(int fd, struct guest_report *report)
{
	struct hook_data data = {.report = report};
	const struct session_hooks hooks = {.setup = hook_setup,
					    .freeze = hook_freeze,
					    .attach = hook_attach,
					    .detach = hook_detach,
					    .pause = hook_pause,
					    .resume = hook_resume,
					    .step_clock = hook_step_clock,
					    .shutdown = hook_shutdown,
					    .data = &data};
	const struct session_config config = {
		.port_fd = fd,
		.cgroup_fd = -EBADF,
		.passwd_path = "/etc/passwd",
		.group_path = "/etc/group",
		.absence_ms = 0,
		.pause_max_ms = HOST_PAUSE_MAX_MS,
		.hooks = &hooks,
	};
	struct session *session = NULL;
	sigset_t blocked;

	/* As process 1: orphans come to us, signals are blocked. */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	sigfillset(&blocked);
	sigprocmask(SIG_SETMASK, &blocked, NULL);
	set_nonblocking(fd, true);
	/* What the test itself was started with is not the session's, as in a machine. */
	close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
	report->rc = session_new(&config, &session);
	if (report->rc == 0) {
		report->rc = session_run(session, &report->err);
	}
	session_free(session);
	end_children();
	close(fd);
	_exit(0);
}

struct host *host_new(int setup_error)
{
	struct host *host = calloc(1, sizeof(*host));
	int fds[2];

	assert_non_null(host);
	host->report = mmap(NULL, sizeof(*host->report), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(host->report != MAP_FAILED);
	host->report->rc = 1;
	host->report->setup_error = setup_error;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	fflush(NULL);
	host->guest = fork();
	assert_true(host->guest >= 0);
	if (host->guest == 0) {
		/* As the kernel starts process 1. A make that used posix_spawn(3) has left signals
		 * ignored that sigaction(3) does not touch. */
		static const uint64_t action[4];

		for (int number = 1; number < NSIG; number++) {
			syscall(SYS_rt_sigaction, number, action, NULL, sizeof(action[3]));
		}
		close(fds[0]);
		run_guest(fds[1], host->report);
	}
	close(fds[1]);
	host->fd = fds[0];
	host->generous = true;
	return host;
}

void host_await_end(struct host *host)
{
	if (host->guest > 0) {
		int status = 0;

		assert_int_equal(waitpid(host->guest, &status, 0), host->guest);
		host->guest = 0;
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

void host_finish(struct host *host)
{
	if (host->fd >= 0) {
		close(host->fd);
		host->fd = -EBADF;
	}
	host_await_end(host);
}

void host_free(struct host *host)
{
	host_finish(host);
	for (size_t i = 0; i < HOST_STREAMS_MAX; i++) {
		free(host->results[i].data[1]);
		free(host->results[i].data[2]);
	}
	munmap(host->report, sizeof(*host->report));
	free(host);
}

void host_send(struct host *host, uint8_t type, uint8_t channel, uint32_t stream, const void *data,
	       size_t size)
{
	uint8_t frame[WIRE_FRAME_MAX];
	size_t sent = 0;

	wire_header_encode(frame, type, channel, stream, (uint32_t)size);
	if (size > 0) {
		memcpy(frame + WIRE_HEADER_SIZE, data, size);
	}
	size += WIRE_HEADER_SIZE;
	while (sent < size) {
		ssize_t put = send(host->fd, frame + sent, size - sent, MSG_NOSIGNAL);

		if (put < 0 && errno == EPIPE) {
			return;
		}
		assert_true(put > 0);
		sent += (size_t)put;
	}
}

void host_send_u32(struct host *host, uint8_t type, uint8_t channel, uint32_t stream,
		   uint32_t value)
{
	uint8_t payload[WIRE_PAYLOAD_MAX];

	host_send(host, type, channel, stream, payload, (size_t)wire_u32_encode(value, payload));
}

void host_greet(struct host *host)
{
	const struct wire_hello hello = {.magic = WIRE_MAGIC, .version = WIRE_VERSION};
	uint8_t payload[WIRE_PAYLOAD_MAX];

	host_send(host, WIRE_HELLO, 0, 0, payload, (size_t)wire_hello_encode(&hello, payload));
	host_await_port(host, WIRE_HELLO);
}

void host_setup(struct host *host, uint32_t flags)
{
	struct wire_setup setup = {.flags = flags, .hostname = "test", .nonce = {1, 2, 3}};
	uint8_t payload[WIRE_PAYLOAD_MAX];

	setup.nonce[WIRE_NONCE_SIZE - 1] = 0xaa;
	host_send(host, WIRE_SETUP, 0, 0, payload, (size_t)wire_setup_encode(&setup, payload));
}

void host_start(struct host *host)
{
	host_greet(host);
	host_setup(host, 0);
	host_await_port(host, WIRE_READY);
}

void host_exec(struct host *host, uint32_t stream, const struct command *command)
{
	static uint8_t payload[WIRE_EXEC_MAX];
	struct wire_exec exec = {
		.flags = command->flags,
		.rows = command->rows,
		.columns = command->columns,
		.user = command->user ? command->user : "root",
		.directory = command->directory ? command->directory : "/",
	};
	size_t offset = 0;
	int size;

	while (command->argv[exec.argc]) {
		exec.argc++;
	}
	while (command->envp && command->envp[exec.envc]) {
		exec.envc++;
	}
	size = wire_exec_encode(&exec, command->argv, command->envp, payload);
	assert_true(size > 0);
	for (;;) {
		size_t piece = MIN((size_t)size - offset, (size_t)WIRE_PAYLOAD_MAX);
		bool more = offset + piece < (size_t)size;

		host_send(host, WIRE_EXEC, more ? 1 : 0, stream, payload + offset, piece);
		offset += piece;
		if (!more) {
			break;
		}
	}
}

void host_shell(struct host *host, uint32_t stream, const char *script, uint32_t flags)
{
	const char *const argv[] = {"/bin/sh", "-c", script, NULL};

	host_exec(host, stream, &(struct command){.argv = argv, .flags = flags});
}

static void keep(struct result *result, uint8_t channel, const uint8_t *data, size_t size)
{
	if (result->size[channel] + size > result->capacity[channel]) {
		result->capacity[channel] = 2 * (result->size[channel] + size);
		result->data[channel] = realloc(result->data[channel], result->capacity[channel]);
		assert_non_null(result->data[channel]);
	}
	memcpy(result->data[channel] + result->size[channel], data, size);
	result->size[channel] += size;
}

static void book(struct host *host, const struct wire_frame *frame)
{
	struct result *result = &host->results[frame->stream];
	uint32_t value;

	assert_true(frame->stream < HOST_STREAMS_MAX);
	/* After its end a stream says nothing. */
	assert_false(host_ended(host, frame->stream));
	switch (frame->type) {
	case WIRE_STARTED:
		assert_int_equal(wire_u32_decode(frame->payload, frame->length, &result->pid), 0);
		assert_int_equal(result->started++, 0);
		assert_int_equal(result->size[1] + result->size[2], 0);
		break;
	case WIRE_DATA:
		assert_true(frame->channel == 1 || frame->channel == 2);
		assert_false(result->eof[frame->channel]);
		assert_true(frame->length > 0);
		result->frames++;
		keep(result, frame->channel, frame->payload, frame->length);
		if (host->generous) {
			host_send_u32(host, WIRE_CREDIT, frame->channel, frame->stream,
				      frame->length);
		}
		break;
	case WIRE_EOF:
		assert_int_equal(frame->length, 0);
		assert_true(frame->channel == 1 || frame->channel == 2);
		assert_false(result->eof[frame->channel]);
		result->eof[frame->channel] = true;
		break;
	case WIRE_EXIT:
		assert_int_equal(wire_exit_decode(frame->payload, frame->length, &result->exit), 0);
		assert_int_equal(result->exits++, 0);
		break;
	case WIRE_CREDIT:
		assert_int_equal(frame->channel, 0);
		assert_int_equal(wire_u32_decode(frame->payload, frame->length, &value), 0);
		result->granted += value;
		break;
	case WIRE_LOG:
		assert_true(frame->length <= 1024);
		memcpy(result->log, frame->payload, frame->length);
		result->log[frame->length] = '\0';
		break;
	default:
		fail_msg("type %u for a stream", frame->type);
	}
}

int host_next(struct host *host, int timeout_ms)
{
	struct wire_frame frame;
	int rc;

	while ((rc = wire_decoder_next(&host->decoder, &frame)) == 0) {
		struct pollfd port = {.fd = host->fd, .events = POLLIN};
		uint8_t *target;
		size_t space;
		ssize_t got;

		if (poll(&port, 1, timeout_ms) == 0) {
			return 0;
		}
		target = wire_decoder_space(&host->decoder, &space);
		got = read(host->fd, target, space);
		if (got <= 0) {
			return -1;
		}
		wire_decoder_filled(&host->decoder, (size_t)got);
	}
	assert_int_equal(rc, 1);
	if (frame.stream != 0) {
		book(host, &frame);
	} else {
		host->frame = frame;
		memcpy(host->payload, frame.payload, frame.length);
		host->frame.payload = host->payload;
	}
	return frame.type;
}

bool host_ended(const struct host *host, uint32_t stream)
{
	const struct result *result = &host->results[stream];

	return result->exits == 1 && result->eof[1] && result->eof[2];
}

struct result *host_await(struct host *host, uint32_t stream)
{
	while (!host_ended(host, stream)) {
		int type = host_next(host, PATIENCE_MS);

		if (type <= 0) {
			fail_msg("stream %u does not end (%d)", stream, type);
		}
	}
	return &host->results[stream];
}

void host_await_port(struct host *host, uint8_t type)
{
	do {
		int got = host_next(host, PATIENCE_MS);

		if (got <= 0) {
			fail_msg("type %u does not come (%d)", type, got);
		}
		host->frame.type = (uint8_t)got;
	} while (host->frame.type != type);
}

void host_await_started(struct host *host, uint32_t stream)
{
	while (host->results[stream].started == 0) {
		assert_true(host_next(host, 20000) > 0);
	}
}

int host_set_up(void **state)
{
	*state = host_new(0);
	host_start(*state);
	return 0;
}

int host_tear_down(void **state)
{
	host_free(*state);
	return 0;
}

void host_assert_exit(const struct result *result, uint32_t kind, uint32_t value)
{
	assert_int_equal(result->exit.kind, kind);
	assert_int_equal(result->exit.value, value);
}

bool host_is_gone(uint32_t pid)
{
	for (int i = 0; i < 200; i++) {
		if (kill((pid_t)pid, 0) < 0 && errno == ESRCH) {
			return true;
		}
		usleep(10000);
	}
	return false;
}
