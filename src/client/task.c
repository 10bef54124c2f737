/*
 * Theory of operation. A build's helpers (mmdebstrap, the writer of a tree, box-image) are children
 * that talk to each other through pipes which this process does not hold, so the end of one is seen
 * by the other. Here only their standard error is read and their end awaited, with poll(2) over
 * pidfds, pipes and a signalfd. No helper outlives tasks_wait, whatever happens, and none outlives
 * this process: an ordinary child asks for SIGTERM at its parent's death, a jailed one for SIGKILL.
 */
#include "client/task.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/io.h"
#include "base/text.h"

/* How long the others may take to end by themselves after one has failed. */
#define FAIL_GRACE_MS 1000
/* How long a program may clean up after SIGTERM; mmdebstrap removes a whole system in it. */
#define TERM_GRACE_MS 10000
/* Output that a dead task's own children may still hold open is not waited for longer. */
#define OUTPUT_GRACE_MS 1000

static void reset_signals(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t none;

	for (int number = 1; number < NSIG; number++) {
		sigaction(number, &action, NULL);
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/*
 * Stands between us and a program: a SIGTERM, also the one that the kernel sends when we die, goes
 * to everything that the program has started, for programs like mmdebstrap wait for a child that
 * got none. Ends as the program does.
 */
_Noreturn static void supervise(pid_t program, const sigset_t *signals)
{
	bool told = false;
	int number, status;

	for (;;) {
		if (sigwait(signals, &number) != 0) {
			continue;
		}
		if (number == SIGTERM && !told) {
			told = true;
			kill(0, SIGTERM);
		}
		if (waitpid(program, &status, WNOHANG) == program) {
			_exit(WIFEXITED(status) ? WEXITSTATUS(status)
						: EXIT_SIGNAL_BASE + WTERMSIG(status));
		}
	}
}

_Noreturn static void run_program(const char *const *argv)
{
	sigset_t signals, none;
	pid_t program;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	program = fork();
	if (program > 0) {
		supervise(program, &signals);
	}
	if (program < 0) {
		_exit(EXIT_NEGATIVE);
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execv(argv[0], (char *const *)(uintptr_t)argv);
	dprintf(STDERR_FILENO, "cannot execute %s: %s\n", argv[0], strerror(errno));
	_exit(EXIT_NOT_FOUND);
}

_Noreturn static void run_child(const struct task_options *options, pid_t parent, int output)
{
	struct err err = {0};
	_cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int rc = 0;

	setpgid(0, 0);
	reset_signals();
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent || null < 0) {
		_exit(1);
	}
	if (dup2(null, STDIN_FILENO) < 0 ||
	    dup2(options->stdout_fd >= 0 ? options->stdout_fd : output, STDOUT_FILENO) < 0 ||
	    dup2(output, STDERR_FILENO) < 0) {
		_exit(1);
	}
	if (options->body) {
		rc = options->body(options->data, &err);
		if (rc < 0) {
			dprintf(STDERR_FILENO, "%s\n", err.text[0] ? err.text : strerror(-rc));
			_exit(1);
		}
	}
	if (options->argv) {
		run_program(options->argv);
	}
	_exit(0);
}

int task_start(const struct task_options *options, struct task *ret_task, struct err *err)
{
	int output[2];
	pid_t parent = getpid(), pid;

	if (pipe2(output, O_CLOEXEC) < 0) {
		return err_context(err, -errno, "cannot make a pipe for %s", options->name);
	}
	pid = fork();
	if (pid < 0) {
		int rc = -errno;

		close(output[0]);
		close(output[1]);
		return err_context(err, rc, "cannot start %s", options->name);
	}
	if (pid == 0) {
		run_child(options, parent, output[1]);
	}
	close(output[1]);
	*ret_task = (struct task){
		.name = options->name,
		.pid = pid,
		.pidfd = (int)syscall(SYS_pidfd_open, pid, 0),
		.output_fd = output[0],
	};
	if (ret_task->pidfd < 0) {
		int rc = -errno;

		ret_task->pidfd = -EBADF;
		task_end(ret_task);
		return err_context(err, rc, "cannot watch %s", options->name);
	}
	return 0;
}

static void kill_task(struct task *task, int number)
{
	if (task->ended || task->pid <= 0) {
		return;
	}
	task->killed = true;
	if (task->jail) {
		/* PID 1 of a namespace takes no SIGTERM that it did not ask for. */
		kill(task->pid, SIGKILL);
		return;
	}
	if (number == SIGKILL) {
		/* The group exists once the child has come as far as setpgid. */
		kill(-task->pid, number);
	}
	kill(task->pid, number);
}

static void reap_task(struct task *task)
{
	if (task->ended || task->pid <= 0) {
		return;
	}
	if (task->jail) {
		task->status = jail_end(task->jail);
	} else {
		while (waitpid(task->pid, &task->status, 0) < 0 && errno == EINTR) {
		}
		close_fd(&task->pidfd);
	}
	task->ended = true;
}

/* Keeps the line as the reason of a failure, unless a better one was there: one that names the
 * program ("box-image: …", and what to do below it) or is marked as an error ("E: …"). Of several
 * errors the first says what went wrong; those behind it tell what that made impossible. */
static void keep_line(struct task *task)
{
	char *line = task->line;
	size_t prefix = strlen(task->name);
	bool named, marked;

	line[task->filled] = '\0';
	named = strncmp(line, task->name, prefix) == 0 && line[prefix] == ':';
	marked = strncmp(line, "E: ", 3) == 0;
	if (named) {
		line += prefix + 1 + (line[prefix + 1] == ' ');
	}
	if (named || !task->reason_found) {
		snprintf(task->last_line, sizeof(task->last_line), "%s", line);
		task->mend[0] = '\0';
	} else if (task->reason_named) {
		snprintf(task->mend, sizeof(task->mend), "%s", line);
	}
	task->reason_found = task->reason_found || named || marked;
	task->reason_named = named;
}

static void emit_line(struct task *task, const struct task_watch *watch)
{
	char quoted[TASK_LINE_MAX * TEXT_QUOTE_GROWTH + 1];

	while (task->filled > 0 && strchr(" \r\t", task->line[task->filled - 1])) {
		task->filled--;
	}
	if (task->filled > 0) {
		keep_line(task);
		text_quote(task->line, task->filled, quoted, sizeof(quoted));
		if (watch && watch->line) {
			watch->line(watch->data, task, quoted);
		}
	}
	task->filled = 0;
}

/* Reads what is there. Closes the pipe at its end. */
static void read_output(struct task *task, const struct task_watch *watch)
{
	char chunk[4096];
	ssize_t got = read(task->output_fd, chunk, sizeof(chunk));

	if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
		return;
	}
	if (got <= 0) {
		emit_line(task, watch);
		close_fd(&task->output_fd);
		return;
	}
	for (ssize_t i = 0; i < got; i++) {
		if (chunk[i] == '\n') {
			emit_line(task, watch);
			continue;
		}
		task->line[task->filled++] = chunk[i];
		if (task->filled == sizeof(task->line) - 1) {
			emit_line(task, watch);
		}
	}
}

static bool task_failed(const struct task *task)
{
	return task->ended && !task->killed && task->status != 0;
}

/* The state of one tasks_wait. */
struct wait {
	struct task *tasks;
	size_t count;
	const struct task_watch *watch;
	/* CLOCK_MONOTONIC in ns of the next harsher step; 0: none. */
	uint64_t deadline_ns;
	bool terminating;
	/* The signal that ended it, or 0. */
	int interrupted;
};

static void set_deadline(struct wait *wait, uint64_t delay_ms)
{
	wait->deadline_ns = clock_monotonic_ns() + delay_ms * 1000000u;
}

static bool all_done(const struct wait *wait)
{
	for (size_t i = 0; i < wait->count; i++) {
		if (!wait->tasks[i].ended || wait->tasks[i].output_fd >= 0) {
			return false;
		}
	}
	return true;
}

static void escalate(struct wait *wait)
{
	bool running = false;

	for (size_t i = 0; i < wait->count; i++) {
		struct task *task = &wait->tasks[i];

		running = running || !task->ended;
		kill_task(task, wait->terminating ? SIGKILL : SIGTERM);
		if (task->ended) {
			/* Nobody is left whose output would matter. */
			close_fd(&task->output_fd);
		}
	}
	if (running) {
		set_deadline(wait, TERM_GRACE_MS);
		wait->terminating = true;
	} else {
		wait->deadline_ns = 0;
	}
}

static int poll_once(struct wait *wait, struct pollfd *polled)
{
	int timeout = -1;

	polled[0] = (struct pollfd){.fd = wait->interrupted ? -1 : wait->watch->signal_fd,
				    .events = POLLIN};
	for (size_t i = 0; i < wait->count; i++) {
		const struct task *task = &wait->tasks[i];

		polled[1 + 2 * i] = (struct pollfd){.fd = task->output_fd, .events = POLLIN};
		polled[2 + 2 * i] =
			(struct pollfd){.fd = task->ended ? -1 : task->pidfd, .events = POLLIN};
	}
	if (wait->deadline_ns > 0) {
		uint64_t now = clock_monotonic_ns();

		timeout = now >= wait->deadline_ns
				  ? 0
				  : (int)((wait->deadline_ns - now) / 1000000u) + 1;
	}
	return poll(polled, (nfds_t)(1 + 2 * wait->count), timeout);
}

static void handle_events(struct wait *wait, const struct pollfd *polled)
{
	struct signalfd_siginfo signal_info;

	if (polled[0].revents && read(polled[0].fd, &signal_info, sizeof(signal_info)) > 0) {
		wait->interrupted = (int)signal_info.ssi_signo;
		escalate(wait);
	}
	for (size_t i = 0; i < wait->count; i++) {
		struct task *task = &wait->tasks[i];

		if (polled[1 + 2 * i].revents && task->output_fd >= 0) {
			read_output(task, wait->watch);
		}
		if (polled[2 + 2 * i].revents && !task->ended) {
			reap_task(task);
			if (task_failed(task) && !wait->terminating) {
				set_deadline(wait, FAIL_GRACE_MS);
			} else if (wait->deadline_ns == 0) {
				set_deadline(wait, OUTPUT_GRACE_MS);
			}
		}
	}
}

/* The deadline has passed: what that means depends on who is left. */
static void handle_deadline(struct wait *wait)
{
	bool failed = wait->interrupted != 0 || wait->terminating;

	for (size_t i = 0; i < wait->count; i++) {
		failed = failed || task_failed(&wait->tasks[i]);
	}
	if (failed) {
		escalate(wait);
		return;
	}
	/* Only the output of tasks that ended well is waited for. */
	for (size_t i = 0; i < wait->count; i++) {
		if (wait->tasks[i].ended) {
			close_fd(&wait->tasks[i].output_fd);
		}
	}
	wait->deadline_ns = 0;
}

static void describe_failure(const struct task *task, char *text, size_t size)
{
	size_t length = strlen(text);
	char quoted[TASK_LINE_MAX];

	text_quote(task->last_line, strlen(task->last_line), quoted, sizeof(quoted));
	snprintf(text + length, size - length, "%s%s %s %d%s%s", length > 0 ? "; " : "", task->name,
		 WIFSIGNALED(task->status) ? "was killed by signal" : "ended with",
		 WIFSIGNALED(task->status) ? WTERMSIG(task->status) : WEXITSTATUS(task->status),
		 quoted[0] ? ": " : "", quoted);
}

int task_interrupted(int number, struct err *err)
{
	const char *code = number == SIGTERM  ? "terminated"
			   : number == SIGHUP ? "hung-up"
					      : "interrupted";

	return err_set(err, -EINTR, code, "%s", code);
}

static int judge(const struct wait *wait, struct err *err)
{
	char text[sizeof(err->text)] = "";
	bool disk_full = false;

	if (wait->interrupted) {
		return task_interrupted(wait->interrupted, err);
	}
	for (size_t i = 0; i < wait->count; i++) {
		const struct task *task = &wait->tasks[i];

		if (task_failed(task)) {
			describe_failure(task, text, sizeof(text));
			disk_full = disk_full || strcasestr(task->last_line, "no space left");
		}
	}
	if (text[0] == '\0') {
		return 0;
	}
	if (disk_full) {
		int rc = err_set(err, -ENOSPC, "disk-full", "the disk is full: %s", text);

		err_mend(err, "free some space, or set BOX_HOME to a directory on another disk");
		return rc;
	}
	err_set(err, -EIO, "build-failed", "%s", text);
	for (size_t i = 0; i < wait->count; i++) {
		if (task_failed(&wait->tasks[i]) && wait->tasks[i].mend[0]) {
			err_mend(err, "%s", wait->tasks[i].mend);
		}
	}
	return -EIO;
}

int tasks_wait(struct task *tasks, size_t count, const struct task_watch *watch, struct err *err)
{
	struct wait wait = {.tasks = tasks, .count = count, .watch = watch};
	struct pollfd polled[1 + 2 * TASKS_MAX];

	ASSERT(count <= TASKS_MAX);
	while (!all_done(&wait)) {
		if (poll_once(&wait, polled) < 0) {
			if (errno == EINTR) {
				continue;
			}
			break;
		}
		handle_events(&wait, polled);
		if (wait.deadline_ns > 0 && clock_monotonic_ns() >= wait.deadline_ns) {
			handle_deadline(&wait);
		}
	}
	for (size_t i = 0; i < count; i++) {
		task_end(&tasks[i]);
	}
	return judge(&wait, err);
}

void task_end(struct task *task)
{
	if (!task->ended && task->pid > 0) {
		struct pollfd polled = {.fd = task->pidfd, .events = POLLIN};

		if (poll(&polled, 1, 0) == 0) {
			kill_task(task, SIGTERM);
			if (poll(&polled, 1, TERM_GRACE_MS) <= 0) {
				kill_task(task, SIGKILL);
			}
		}
		reap_task(task);
	}
	close_fd(&task->output_fd);
	if (!task->jail) {
		close_fd(&task->pidfd);
	}
}

int task_spawn_jail(struct jail *jail, struct jail_process *ret_process, int *ret_messages_fd,
		    struct err *err)
{
	_cleanup_close_ int read_end = -EBADF;
	_cleanup_close_ int write_end = -EBADF;
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC) < 0) {
		rc = err_context(err, -errno, "box-%s", jail->name);
		jail_clear(jail);
		return rc;
	}
	read_end = ends[0];
	write_end = ends[1];
	rc = jail_add_fd(jail, write_end, STDERR_FILENO, err);
	if (rc == 0) {
		rc = jail_spawn(jail, ret_process, err);
	}
	jail_clear(jail);
	if (rc == 0) {
		*ret_messages_fd = TAKE_FD(read_end);
	}
	return rc;
}
