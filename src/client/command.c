/*
 * One command in a machine: its three pipes, the caller's three descriptors, and signals.
 *
 * Nothing here may block for long but poll(2): a slow reader of the output must not keep a signal
 * or the end of the machine from being seen. So at most PIPE_BUF bytes go to a descriptor that
 * poll(2) called writable, which it then takes at once. A terminal would not: it is opened once
 * more, without blocking.
 *
 * With "direct" the caller's pipes go to the keeper as they are. Of its output pipe only the end is
 * watched here: that its reader has gone is told to the command, as it is with other descriptors.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/io.h"
#include "client/internal.h"

/* What one read takes; a pipe holds as much. */
#define CHUNK_BYTES 65536
/* A terminal may be called writable with too little room for a line's end; then it is asked again
 * after this, which nobody notices. */
#define TERMINAL_PAUSE_MS 10

/* How often it is looked whether all that was typed has been taken: for half a second. */
#define TYPING_STEP_MS 1
#define TYPING_TRIES 500

/* Bytes on their way from one descriptor to another. */
struct copy {
	int from;
	int to;
	/* Our own descriptor of a terminal, which is then also `to`; else -EBADF. */
	int own;
	/* What one write to `to` may carry without blocking. */
	size_t piece;
	bool ended;
	/* The reader at `to` is gone. */
	bool broken;
	size_t start;
	size_t filled;
	char bytes[CHUNK_BYTES];
};

enum { COPY_STDIN, COPY_STDOUT, COPY_STDERR, COPY_COUNT };

/* The detach key: ctrl-\ and then ctrl-q, as raw terminals send them. */
#define KEY_FIRST 0x1c
#define KEY_SECOND 0x11

struct run {
	struct client_machine *machine;
	const struct client_command *command;
	struct client_result *result;
	uint32_t stream;
	bool exited;
	/* Why there will be no exit, or 0: the machine has ended first. */
	int failure;
	unsigned interrupts;
	/* The first half of the detach key was typed and is held back. */
	bool key_begun;
	bool direct_input;
	bool direct_output;
	bool raw;
	struct termios saved;
	struct copy copies[COPY_COUNT];
};

static void order(struct run *run, uint32_t type, uint32_t number)
{
	struct ipc_message message = {.type = type, .stream = run->stream};

	message.signal.number = number;
	ipc_send(run->machine->socket, &message, NULL, 0);
}

static void send_window_size(struct run *run)
{
	struct ipc_message message = {.type = IPC_WINDOW_SIZE, .stream = run->stream};
	struct winsize size;

	if (run->command->terminal && ioctl(run->command->stdin_fd, TIOCGWINSZ, &size) == 0) {
		message.window.rows = size.ws_row;
		message.window.columns = size.ws_col;
		ipc_send(run->machine->socket, &message, NULL, 0);
	}
}

/* Returns true when the machine shall end now. */
static bool on_signal(struct run *run, int number)
{
	if (number == SIGWINCH) {
		send_window_size(run);
		return false;
	}
	if (!run->command->forward_signals) {
		run->machine->stop_signal = number;
		return true;
	}
	if (number == SIGHUP || (number == SIGINT && ++run->interrupts > 1)) {
		run->machine->stop_signal = number;
		return true;
	}
	run->result->forwarded = number;
	order(run, IPC_SIGNAL, (uint32_t)number);
	return false;
}

static void close_copy(struct copy *copy)
{
	close_fd(&copy->from);
	close_fd(&copy->own);
	copy->filled = 0;
	copy->ended = true;
}

/*
 * Like a local pipe: the command learns of it by SIGPIPE, the rest is dropped. That a reader has
 * gone is for the command alone; that its output has no room is for the caller too. A descriptor
 * that was closed from the start only drops what it gets.
 */
static void take_write_error(struct run *run, const struct copy *copy, int error)
{
	if (copy == &run->copies[COPY_STDIN] || copy->broken) {
		return;
	}
	if (copy == &run->copies[COPY_STDOUT] && error != EPIPE) {
		run->result->output_error = -error;
	}
	if (error != EBADF) {
		order(run, IPC_SIGNAL, SIGPIPE);
	}
}

static void write_some(struct run *run, struct copy *copy)
{
	ssize_t written;

	written = write(copy->to, copy->bytes + copy->start, MIN(copy->filled, copy->piece));
	if (written < 0) {
		int error = errno;

		if (error == EAGAIN && copy->own >= 0) {
			poll(NULL, 0, TERMINAL_PAUSE_MS);
		}
		if (error == EAGAIN || error == EINTR) {
			return;
		}
		take_write_error(run, copy, error);
		copy->broken = true;
		copy->filled = 0;
		return;
	}
	copy->start += (size_t)written;
	copy->filled -= (size_t)written;
}

/*
 * Looks for the detach key in what was typed, size bytes at copy->bytes, and takes it out. Returns
 * how many bytes are to be passed on.
 */
static size_t watch_keys(struct run *run, char *bytes, size_t size)
{
	char typed[CHUNK_BYTES / 2];
	size_t kept = 0;

	memcpy(typed, bytes, size);
	for (size_t i = 0; i < size && !run->result->detached; i++) {
		if (run->key_begun && typed[i] == KEY_SECOND) {
			run->result->detached = true;
			break;
		}
		if (run->key_begun) {
			bytes[kept++] = KEY_FIRST;
		}
		run->key_begun = typed[i] == KEY_FIRST;
		if (!run->key_begun) {
			bytes[kept++] = typed[i];
		}
	}
	return kept;
}

static void read_some(struct run *run, struct copy *copy)
{
	bool keys = run->raw && run->command->detach_key && copy == &run->copies[COPY_STDIN];
	/* What is held back and given later must find room. */
	size_t room = keys ? sizeof(copy->bytes) / 2 : sizeof(copy->bytes);
	ssize_t got = read(copy->from, copy->bytes, room);

	if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
		return;
	}
	if (got <= 0) {
		copy->ended = true;
		return;
	}
	if (keys) {
		got = (ssize_t)watch_keys(run, copy->bytes, (size_t)got);
	}
	copy->start = 0;
	copy->filled = copy->to < 0 || copy->broken ? 0 : (size_t)got;
}

/* The guest's input ends where ours does: the pipe to the keeper is closed. */
static void finish_stdin(struct run *run)
{
	struct copy *copy = &run->copies[COPY_STDIN];

	if ((copy->ended && copy->filled == 0) || copy->broken) {
		close_fd(&copy->to);
		copy->ended = true;
		copy->filled = 0;
	}
}

/* Which event each copy waits for now: its target when it holds bytes, else its source. */
static nfds_t prepare(struct run *run, struct pollfd *waits)
{
	/* What a machine says while it goes down is for who waits for that. */
	bool deaf = run->failure || run->machine->goes_down;

	waits[0] = (struct pollfd){.fd = deaf ? -1 : run->machine->socket, .events = POLLIN};
	waits[1] = (struct pollfd){.fd = run->machine->signal_fd, .events = POLLIN};
	for (size_t i = 0; i < COPY_COUNT; i++) {
		const struct copy *copy = &run->copies[i];
		struct pollfd *wait = &waits[2 + i];

		*wait = (struct pollfd){.fd = -1};
		if (copy->filled > 0) {
			*wait = (struct pollfd){.fd = copy->to, .events = POLLOUT};
		} else if (!copy->ended) {
			*wait = (struct pollfd){.fd = copy->from, .events = POLLIN};
		}
	}
	if (run->direct_output && !run->copies[COPY_STDOUT].broken) {
		/* POLLERR comes unasked, when the last reader has gone. */
		waits[2 + COPY_STDOUT] = (struct pollfd){.fd = run->command->stdout_fd};
	}
	return 2 + COPY_COUNT;
}

static void move_bytes(struct run *run, const struct pollfd *waits)
{
	for (size_t i = 0; i < COPY_COUNT; i++) {
		struct copy *copy = &run->copies[i];

		if (!waits[2 + i].revents) {
			continue;
		}
		if (run->direct_output && i == COPY_STDOUT) {
			copy->broken = true;
			order(run, IPC_SIGNAL, SIGPIPE);
		} else if (copy->filled > 0) {
			write_some(run, copy);
		} else if (!copy->ended) {
			read_some(run, copy);
		}
	}
	finish_stdin(run);
}

static void take_exit(struct run *run, const struct ipc_message *message)
{
	run->exited = true;
	run->machine->goes_down = run->command->is_last;
	snprintf(run->result->id, sizeof(run->result->id), "%s", message->exited.id);
	run->result->exit = message->exited.exit;
	run->result->timed_out = message->exited.timed_out != 0;
	run->result->stdout_bytes = message->exited.stdout_bytes;
	run->result->stderr_bytes = message->exited.stderr_bytes;
	run->result->started_ns = message->exited.started_ns;
	run->result->ended_ns = message->exited.ended_ns;
}

/* A program that fills the screen draws it anew when its size changes, so it does. */
static void redraw(struct run *run)
{
	struct ipc_message message = {.type = IPC_WINDOW_SIZE, .stream = run->stream};
	struct winsize size;

	if (ioctl(run->command->stdin_fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 1) {
		message.window.rows = (uint16_t)(size.ws_row - 1);
		message.window.columns = size.ws_col;
		ipc_send(run->machine->socket, &message, NULL, 0);
	}
	send_window_size(run);
}

static int take_message(struct run *run, struct err *err)
{
	struct ipc_message message;
	int fds[IPC_FDS_MAX];
	int rc = ipc_receive(run->machine->socket, &message, fds);

	if (rc <= 0) {
		return client_lost(run->machine, err);
	}
	ipc_close_fds(fds);
	if (message.type == IPC_FAILED) {
		return client_failed(&message, err);
	}
	if (message.type == IPC_REFUSED && message.stream == run->stream) {
		return client_failed(&message, err);
	}
	if (message.type == IPC_STARTED && message.stream == run->stream) {
		snprintf(run->result->id, sizeof(run->result->id), "%s", message.command.id);
		if (run->command->attach_id) {
			redraw(run);
		}
	}
	if (message.type == IPC_EXITED && message.stream == run->stream) {
		take_exit(run, &message);
	}
	if (message.type == IPC_NOTICE && message.stream == run->stream) {
		snprintf(run->result->reason, sizeof(run->result->reason), "%s", message.text);
	}
	/* Of the machine, not of its command. The first limit is why the later ones came. */
	if (message.type == IPC_NOTICE && message.stream == 0 && !run->result->limit[0]) {
		snprintf(run->result->limit, sizeof(run->result->limit), "%s", message.text);
	}
	return 0;
}

static bool output_done(const struct run *run)
{
	for (size_t i = COPY_STDOUT; i < COPY_COUNT; i++) {
		if (!run->copies[i].ended || run->copies[i].filled > 0) {
			return false;
		}
	}
	return true;
}

/*
 * What was typed just before the detach key goes to the shell still: the keeper closes the pipe
 * when it is told, whatever is in it. A shell that takes no more input does not hold us up.
 */
static void finish_typing(struct run *run)
{
	struct copy *copy = &run->copies[COPY_STDIN];
	int unread = 0;

	for (int i = 0; i < TYPING_TRIES && copy->to >= 0 && !copy->broken; i++) {
		if (copy->filled > 0) {
			write_some(run, copy);
		}
		if (ioctl(copy->to, FIONREAD, &unread) < 0 || (unread == 0 && copy->filled == 0)) {
			return;
		}
		poll(NULL, 0, TYPING_STEP_MS);
	}
}

/*
 * Copies until the command and its output have ended. What came before the machine failed is still
 * copied. Returns 0, or a negative errno with err filled.
 */
static int pump(struct run *run, struct err *err)
{
	while (!(run->exited || run->failure) || !output_done(run)) {
		struct pollfd waits[2 + COPY_COUNT];
		nfds_t count = prepare(run, waits);
		int number, rc;

		if (run->exited || run->failure) {
			/* Its input interests nobody any more. */
			close_fd(&run->copies[COPY_STDIN].to);
			run->copies[COPY_STDIN].ended = true;
			run->copies[COPY_STDIN].filled = 0;
			waits[2 + COPY_STDIN].fd = -1;
		}
		rc = client_poll(run->machine, run->machine->socket, waits, count, -1, err);
		if (rc < 0) {
			return rc;
		}
		while ((number = client_next_signal(run->machine)) != 0) {
			if (on_signal(run, number)) {
				run->result->interrupted = true;
				run->result->exit.kind = WIRE_SIGNALED;
				run->result->exit.value = (uint32_t)number;
				return 0;
			}
		}
		move_bytes(run, waits);
		if (run->result->detached) {
			finish_typing(run);
			order(run, IPC_DETACH, 0);
			return 0;
		}
		if (waits[0].revents) {
			run->failure = take_message(run, err);
		}
	}
	return run->failure;
}

static int make_pipe(int *ret_read, int *ret_write)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0) {
		return -errno;
	}
	*ret_read = ends[0];
	*ret_write = ends[1];
	return 0;
}

/* A regular file takes any amount at once; all else is asked for PIPE_BUF at a time. */
static size_t piece_of(int fd)
{
	struct stat status;

	return fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) ? CHUNK_BYTES
									     : PIPE_BUF;
}

static void prepare_output(struct copy *copy, int fd)
{
	char path[32];

	copy->from = copy->own = -EBADF;
	copy->piece = piece_of(fd);
	if (fd >= 0 && isatty(fd)) {
		/* A flag on the caller's own description would be seen by its shell as well. */
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		copy->own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	}
	copy->to = copy->own >= 0 ? copy->own : fd;
}

static int encode_request(const struct client_command *command, int *ret_fd, struct err *err)
{
	_cleanup_free_ uint8_t *payload = malloc(WIRE_EXEC_MAX);
	struct wire_exec exec = {
		.user = command->user,
		.directory = command->directory,
		.argc = (uint32_t)MIN(command->argc, (size_t)UINT32_MAX),
		.envc = (uint32_t)MIN(command->env_count, (size_t)UINT32_MAX),
	};
	struct winsize size = {0};
	int length;

	if (!payload) {
		return err_context(err, -ENOMEM, "command");
	}
	exec.flags |= command->terminal ? WIRE_EXEC_TERMINAL : 0u;
	exec.flags |= command->stdin_fd >= 0 ? WIRE_EXEC_STDIN : 0u;
	exec.flags |= command->self ? WIRE_EXEC_SELF : 0u;
	if (command->terminal && command->stdin_fd >= 0) {
		ioctl(command->stdin_fd, TIOCGWINSZ, &size);
	}
	exec.rows = size.ws_row ? size.ws_row : 24;
	exec.columns = size.ws_col ? size.ws_col : 80;
	length = command->argc > WIRE_ARGS_MAX || command->env_count > WIRE_ARGS_MAX
			 ? -EMSGSIZE
			 : wire_exec_encode(&exec, command->argv, command->env, payload);
	if (length < 0) {
		err_set(err, -E2BIG, "too-many-arguments",
			"the command's arguments and environment are larger than %u bytes or more "
			"than %u strings",
			WIRE_EXEC_MAX, WIRE_ARGS_MAX);
		err_mend(err, "pass them through a file in /data or through -i");
		return -E2BIG;
	}
	*ret_fd = ipc_memory_file("exec", payload, (size_t)length);
	return *ret_fd < 0 ? err_context(err, *ret_fd, "command") : 0;
}

/* Asks the keeper to start a command that goes on without us, and waits until it runs. */
static int begin_detached(struct run *run, struct err *err)
{
	struct ipc_message message = {.type = IPC_EXEC, .stream = run->stream};
	_cleanup_close_ int request = -EBADF;
	int rc = encode_request(run->command, &request, err);

	if (rc < 0) {
		return rc;
	}
	message.exec.terminal = run->command->terminal;
	message.exec.timeout_seconds = run->command->timeout_seconds;
	message.exec.on_loss = IPC_LOSS_DETACHES;
	if (ipc_send(run->machine->socket, &message, &request, 1) < 0) {
		return client_lost(run->machine, err);
	}
	while (!run->exited && !run->result->id[0]) {
		rc = client_await_answer(run->machine, run->machine->socket, err);
		if (rc == 0) {
			rc = take_message(run, err);
		}
		if (rc < 0) {
			return rc;
		}
	}
	run->result->detached = !run->exited;
	return 0;
}

/* Makes the pipes and asks the keeper to start the command, or to hand over a detached one. */
static int begin(struct run *run, struct err *err)
{
	const struct client_command *command = run->command;
	struct ipc_message message = {.type = IPC_EXEC, .stream = run->stream};
	struct copy *in = &run->copies[COPY_STDIN];
	_cleanup_close_ int request = -EBADF;
	_cleanup_close_ int stdin_read = -EBADF;
	_cleanup_close_ int stdout_write = -EBADF;
	_cleanup_close_ int stderr_write = -EBADF;
	int fds[4];
	size_t count = 0;
	int rc = command->attach_id ? 0 : encode_request(command, &request, err);

	if (rc < 0) {
		return rc;
	}
	if (run->direct_output) {
		rc = 0;
		run->copies[COPY_STDOUT].ended = true;
	} else {
		rc = make_pipe(&run->copies[COPY_STDOUT].from, &stdout_write);
	}
	if (rc == 0) {
		rc = make_pipe(&run->copies[COPY_STDERR].from, &stderr_write);
	}
	if (command->attach_id) {
		message.type = IPC_ATTACH;
		snprintf(message.command.id, sizeof(message.command.id), "%s", command->attach_id);
	} else {
		fds[count++] = request;
		message.exec.has_stdin = command->stdin_fd >= 0;
		message.exec.has_output = 1;
		message.exec.terminal = command->terminal;
		message.exec.timeout_seconds = command->timeout_seconds;
		message.exec.on_loss = command->keep_on_loss ? IPC_LOSS_DETACHES : IPC_LOSS_KILLS;
		message.exec.is_last = command->is_last;
	}
	if (rc == 0 && run->direct_input) {
		fds[count++] = command->stdin_fd;
	} else if (rc == 0 && command->stdin_fd >= 0) {
		rc = make_pipe(&stdin_read, &in->to);
		fds[count++] = stdin_read;
	}
	if (rc == 0 && in->to >= 0) {
		/* Only our end: the keeper must read without blocking as well, and sets its own. */
		rc = set_nonblocking(in->to, true);
	}
	if (rc < 0) {
		return err_context(err, rc, "command");
	}
	fds[count++] = run->direct_output ? command->stdout_fd : stdout_write;
	fds[count++] = stderr_write;
	in->ended = in->to < 0;
	rc = ipc_send(run->machine->socket, &message, fds, count);
	return rc < 0 ? client_lost(run->machine, err) : 0;
}

static void set_raw(struct run *run)
{
	struct termios raw;

	if (!run->command->terminal || run->command->stdin_fd < 0 ||
	    tcgetattr(run->command->stdin_fd, &run->saved) < 0) {
		return;
	}
	raw = run->saved;
	cfmakeraw(&raw);
	run->raw = tcsetattr(run->command->stdin_fd, TCSADRAIN, &raw) == 0;
}

int client_run(struct client_machine *machine, const struct client_command *command,
	       struct client_result *ret_result, struct err *err)
{
	struct run *run = calloc(1, sizeof(*run));
	int rc;

	if (!run) {
		return err_context(err, -ENOMEM, "command");
	}
	*ret_result = (struct client_result){0};
	run->machine = machine;
	run->command = command;
	run->result = ret_result;
	run->stream = ++machine->last_stream;
	run->direct_input = command->direct && command->stdin_fd >= 0;
	run->direct_output = command->direct && command->stdout_fd >= 0;
	run->copies[COPY_STDIN].from = command->stdin_fd;
	run->copies[COPY_STDIN].to = -EBADF;
	run->copies[COPY_STDIN].piece = PIPE_BUF;
	run->copies[COPY_STDIN].own = -EBADF;
	prepare_output(&run->copies[COPY_STDOUT], command->stdout_fd);
	prepare_output(&run->copies[COPY_STDERR], command->stderr_fd);
	if (command->detached) {
		rc = begin_detached(run, err);
	} else {
		rc = begin(run, err);
		if (rc == 0) {
			set_raw(run);
			rc = pump(run, err);
		}
	}
	if (run->raw) {
		tcsetattr(command->stdin_fd, TCSADRAIN, &run->saved);
	}
	close_fd(&run->copies[COPY_STDIN].to);
	close_copy(&run->copies[COPY_STDOUT]);
	close_copy(&run->copies[COPY_STDERR]);
	free(run);
	return rc;
}

int client_exit_code(const struct client_result *result)
{
	if (result->timed_out) {
		return EXIT_TIMEOUT;
	}
	switch (result->exit.kind) {
	case WIRE_EXITED:
		return (int)result->exit.value;
	case WIRE_SIGNALED:
		return EXIT_SIGNAL_BASE + (int)result->exit.value;
	default:
		break;
	}
	if (result->reason[0]) {
		/* The machine could not even try: no such user, no such directory. */
		return EXIT_BOX_FAILED;
	}
	return result->exit.value == ENOENT || result->exit.value == ENOTDIR ? EXIT_NOT_FOUND
									     : EXIT_NOT_EXECUTABLE;
}
