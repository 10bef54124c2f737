/*
 * Theory of operation.
 *
 * Each fork has a process of its own, since a machine takes the signals of the process that starts
 * it. It runs the command with output to a file, writes /data, counts what has changed, and says
 * all that on a pipe. This process watches the pipes and the signals. A signal ends the others;
 * then all forks go. A child dies when this process does, and its machine when the child does.
 */
#include "client/try.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "client/copy_pump.h"
#include "client/diff.h"
#include "client/task.h"
#include "spec/spec.h"

#define MEMINFO_MAX ((size_t)65536)
/* What a machine takes beside its own memory. */
#define MONITOR_MIB 64
/* A killed keeper and its monitor are gone sooner than this. */
#define DISCARD_TRIES 200
#define DISCARD_PAUSE_MS 50

struct child {
	pid_t pid;
	/* What it says at its end; -EBADF: it does not run. */
	int fd;
};

struct trial {
	struct store *store;
	const char *name;
	const struct client_try_options *options;
	struct client_try_result *results;
	struct child children[CLIENT_FORKS_MAX];
	unsigned started;
	unsigned running;
	unsigned at_once;
	int signal_fd;
	sigset_t old_mask;
	/* The signal that ended it, or 0. */
	int stop_signal;
};

/* Memory that could be had without pushing anything out, in MiB; 0 when nobody says it. */
static uint64_t available_mib(void)
{
	_cleanup_free_ char *text = NULL;
	const char *found;
	size_t size;

	if (read_file_at(AT_FDCWD, "/proc/meminfo", MEMINFO_MAX, &text, &size) < 0) {
		return 0;
	}
	found = strstr(text, "MemAvailable:");
	return found ? strtoull(found + strlen("MemAvailable:"), NULL, 10) / 1024 : 0;
}

static unsigned count_at_once(const struct spec *spec, unsigned count)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t memory = available_mib() / (spec->ram_mib + MONITOR_MIB);
	uint64_t limit = MIN(memory, (uint64_t)MAX(processors, 1L));

	return (unsigned)MIN(MAX(limit, (uint64_t)1), (uint64_t)count);
}

/* What a command writes, on its way to a file that does not grow beyond its limit. */
struct output {
	int file_fd;
	int read_fd;
	int write_fd;
	uint64_t left;
	pthread_t thread;
	bool running;
};

static void *keep_output(void *data)
{
	struct output *output = data;
	char bytes[65536];
	ssize_t got;

	while ((got = read(output->read_fd, bytes, sizeof(bytes))) > 0 ||
	       (got < 0 && errno == EINTR)) {
		size_t kept = got > 0 ? (size_t)MIN((uint64_t)got, output->left) : 0;

		/* A full disk loses output, which the command must not wait for. */
		if (kept > 0 && write_full(output->file_fd, bytes, kept) < 0) {
			output->left = 0;
		} else {
			output->left -= kept;
		}
	}
	return NULL;
}

static void end_output(struct output *output)
{
	close_fd(&output->write_fd);
	if (output->running) {
		pthread_join(output->thread, NULL);
		output->running = false;
	}
	close_fd(&output->read_fd);
	close_fd(&output->file_fd);
}

static int open_output(struct store *store, const char *name, struct err *err)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, err);
	int fd;

	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	fd = openat(sandbox_fd, CLIENT_TRY_OUTPUT,
		    O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? err_context(err, -errno, "the output of %s", name) : fd;
}

static int begin_output(struct store *store, const char *name, struct output *output,
			struct err *err)
{
	sigset_t all, before;
	int rc;

	output->left = CLIENT_TRY_OUTPUT_MAX;
	output->file_fd = open_output(store, name, err);
	if (output->file_fd < 0) {
		return output->file_fd;
	}
	rc = copy_pipe(&output->read_fd, &output->write_fd);
	if (rc == 0) {
		/* Signals are for the thread that has the machine. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		rc = -pthread_create(&output->thread, NULL, keep_output, output);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		output->running = rc == 0;
	}
	return rc < 0 ? err_context(err, rc, "the output of %s", name) : 0;
}

static int run_machine(struct trial *trial, struct client_try_result *result, int output_fd,
		       struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	const struct client_start_options start = {
		.mode = IPC_START_RUN,
		.data = CLIENT_DATA_OWN,
		.stage = "",
		.notice = trial->options->notice,
		.notice_data = trial->options->data,
	};
	struct client_command command = trial->options->command;
	struct client_result ended;
	int rc = client_start(trial->store, result->name, &start, &machine, err);

	command.stdin_fd = -EBADF;
	command.stdout_fd = command.stderr_fd = output_fd;
	if (rc == 0) {
		rc = client_run(machine, &command, &ended, err);
	}
	if (rc < 0) {
		return rc;
	}
	if (ended.interrupted) {
		return err_set(err, -EINTR, "interrupted", "interrupted");
	}
	result->finished = true;
	result->exit_code = client_exit_code(&ended);
	result->timed_out = ended.timed_out;
	result->took_ns = ended.ended_ns - ended.started_ns;
	/* Only then /data is complete on the disk. */
	return client_stop(machine, err);
}

static int run_command(struct trial *trial, struct client_try_result *result, struct err *err)
{
	struct output output = {.file_fd = -EBADF, .read_fd = -EBADF, .write_fd = -EBADF};
	int rc = begin_output(trial->store, result->name, &output, err);

	if (rc == 0) {
		rc = run_machine(trial, result, output.write_fd, err);
	}
	end_output(&output);
	return rc;
}

static int try_one(struct trial *trial, struct client_try_result *result, struct err *err)
{
	struct client_diff_result diff;
	int rc = run_command(trial, result, err);

	if (rc == 0) {
		rc = client_diff(trial->store, result->name,
				 &(struct client_diff_options){.copy_fd = -EBADF}, &diff, err);
	}
	if (rc == 0) {
		result->changes = diff.records;
	}
	return rc;
}

_Noreturn static void run_child(struct trial *trial, unsigned at, pid_t parent, int report_fd)
{
	struct client_try_result *result = &trial->results[at];

	/* What comes from the terminal is for this process's parent. */
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close_fd(&trial->signal_fd);
	sigprocmask(SIG_SETMASK, &trial->old_mask, NULL);
	if (getppid() != parent) {
		_exit(1);
	}
	result->rc = try_one(trial, result, &result->err);
	_exit(write_full(report_fd, result, sizeof(*result)) < 0);
}

static int start_child(struct trial *trial, struct err *err)
{
	struct child *child = &trial->children[trial->started];
	pid_t parent = getpid();
	int ends[2], rc = 0;

	if (pipe2(ends, O_CLOEXEC) < 0) {
		return err_context(err, -errno, "%s", trial->name);
	}
	child->pid = fork();
	if (child->pid == 0) {
		run_child(trial, trial->started, parent, ends[1]);
	}
	rc = child->pid < 0 ? -errno : 0;
	close(ends[1]);
	if (rc < 0) {
		close(ends[0]);
		return err_context(err, rc, "%s", trial->name);
	}
	child->fd = ends[0];
	trial->started++;
	trial->running++;
	return 0;
}

static void tell_end(const struct trial *trial, const struct client_try_result *result)
{
	char text[STORE_LABEL_MAX + 64];

	if (trial->options->notice && result->finished) {
		snprintf(text, sizeof(text), "%s ended with %d after %.2f s", result->name,
			 result->exit_code, (double)result->took_ns / 1e9);
		trial->options->notice(trial->options->data, text);
	}
}

/* Reads what a child says, and collects it. */
static void end_child(struct trial *trial, unsigned at)
{
	struct client_try_result *result = &trial->results[at], said;
	struct child *child = &trial->children[at];
	ssize_t got = read_full(child->fd, &said, sizeof(said));

	if (got == (ssize_t)sizeof(said)) {
		*result = said;
	} else {
		result->rc = err_set(&result->err, -EIO, "child-died",
				     "the process that tried %s has ended early", result->name);
	}
	close_fd(&child->fd);
	while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) {
	}
	trial->running--;
	if (trial->stop_signal == 0) {
		tell_end(trial, result);
	}
}

static void stop_all(struct trial *trial)
{
	for (unsigned i = 0; i < trial->started; i++) {
		if (trial->children[i].fd >= 0) {
			kill(trial->children[i].pid, SIGTERM);
		}
	}
}

/* Waits until a child has ended or a signal has come. */
static void await(struct trial *trial)
{
	struct pollfd waits[1 + CLIENT_FORKS_MAX];
	struct signalfd_siginfo info;

	waits[0] = (struct pollfd){.fd = trial->signal_fd, .events = POLLIN};
	for (unsigned i = 0; i < trial->started; i++) {
		waits[1 + i] = (struct pollfd){.fd = trial->children[i].fd, .events = POLLIN};
	}
	if (poll(waits, 1 + trial->started, -1) < 0) {
		return;
	}
	if (waits[0].revents && read(trial->signal_fd, &info, sizeof(info)) > 0) {
		trial->stop_signal = (int)info.ssi_signo;
		stop_all(trial);
	}
	for (unsigned i = 0; i < trial->started; i++) {
		if (waits[1 + i].revents) {
			end_child(trial, i);
		}
	}
}

static int run_all(struct trial *trial, struct err *err)
{
	int rc = 0;

	while (trial->running > 0 ||
	       (trial->started < trial->options->count && rc == 0 && trial->stop_signal == 0)) {
		if (rc == 0 && trial->stop_signal == 0 && trial->running < trial->at_once &&
		    trial->started < trial->options->count) {
			rc = start_child(trial, err);
			if (rc < 0) {
				stop_all(trial);
			}
			continue;
		}
		await(trial);
	}
	return trial->stop_signal ? task_interrupted(trial->stop_signal, err) : rc;
}

/* The machine of a child that died in between is on its way out. */
static int discard(struct trial *trial, const char *name, struct err *err)
{
	const struct client_fork_options options = {.notice = NULL};
	int rc = -EBUSY;

	for (unsigned i = 0; i < DISCARD_TRIES && rc == -EBUSY; i++) {
		if (i > 0) {
			poll(NULL, 0, DISCARD_PAUSE_MS);
		}
		*err = (struct err){0};
		rc = client_discard(trial->store, name, &options, err);
	}
	return rc;
}

/* Nothing is to be left; what is all the same is told. */
static void discard_all(struct trial *trial)
{
	for (unsigned i = 0; i < trial->options->count; i++) {
		struct err err = {0};
		char text[sizeof(err.text) + STORE_LABEL_MAX + 64];

		if (discard(trial, trial->results[i].name, &err) < 0 && trial->options->notice) {
			snprintf(text, sizeof(text), "%s could not be discarded: %s",
				 trial->results[i].name, err.text);
			trial->options->notice(trial->options->data, text);
		}
	}
}

static int take_signals(struct trial *trial, struct err *err)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, &trial->old_mask) < 0) {
		return err_context(err, -errno, "signals");
	}
	trial->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
	if (trial->signal_fd < 0) {
		int rc = -errno;

		sigprocmask(SIG_SETMASK, &trial->old_mask, NULL);
		return err_context(err, rc, "signals");
	}
	return 0;
}

static int make_forks(struct trial *trial, struct err *err)
{
	const struct client_fork_options options = {
		.notice = trial->options->notice,
		.data = trial->options->data,
	};
	_cleanup_(spec_freep) struct spec *spec = NULL;
	char name[STORE_LABEL_MAX + 16];
	unsigned count = trial->options->count;
	int rc = store_load_spec(trial->store, trial->name, &spec, err);

	if (rc < 0) {
		return rc;
	}
	trial->at_once = count_at_once(spec, count);
	snprintf(name, sizeof(name), "%s-try", trial->name);
	rc = client_fork(trial->store, trial->name, name, count, &options, err);
	if (rc == -EEXIST) {
		err_mend(err, "those of an earlier try are still there: `box discard` ends one");
	}
	for (unsigned i = 0; i < count && rc == 0; i++) {
		trial->results[i] = (struct client_try_result){0};
		trial->children[i].fd = -EBADF;
		client_fork_name(name, count, i, trial->results[i].name);
	}
	return rc;
}

int client_try(struct store *store, const char *name, const struct client_try_options *options,
	       struct client_try_result *ret_results, struct err *err)
{
	struct trial *trial = calloc(1, sizeof(*trial));
	int rc;

	ASSERT(options->count >= 1 && options->count <= CLIENT_FORKS_MAX);
	if (!trial) {
		return err_context(err, -ENOMEM, "%s", name);
	}
	trial->store = store;
	trial->name = name;
	trial->options = options;
	trial->results = ret_results;
	rc = take_signals(trial, err);
	if (rc < 0) {
		free(trial);
		return rc;
	}
	rc = make_forks(trial, err);
	if (rc == 0) {
		rc = run_all(trial, err);
		if (rc < 0) {
			discard_all(trial);
		}
	}
	close_fd(&trial->signal_fd);
	sigprocmask(SIG_SETMASK, &trial->old_mask, NULL);
	free(trial);
	return rc;
}

int client_try_best(const struct client_try_result *results, unsigned count)
{
	int best = -1;

	for (unsigned i = 0; i < count; i++) {
		const struct client_try_result *result = &results[i];

		if (result->rc == 0 && result->finished && result->exit_code == 0 &&
		    !result->timed_out && (best < 0 || result->took_ns < results[best].took_ns)) {
			best = (int)i;
		}
	}
	return best;
}
