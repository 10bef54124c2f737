/*
 * Theory of operation.
 *
 * A copy is one stream, an uncompressed tar archive, from a producer to a consumer:
 *
 *     in a machine   box-guest as "box-copy-out" writes, as "box-copy-in" reads and extracts
 *     on the host    a thread of this process writes the user's own tree (src/archive/write.c);
 *                    box-copy, jailed (copy_receive.c), reads and extracts
 *     "-"            standard input or output, as it is
 *
 * Between the two is a pump (copy_pump.c): a thread that moves pages from pipe to pipe and counts
 * them. The keepers read and write the pipes themselves; nothing in this process looks at a byte
 * that came out of a machine.
 *
 * An end at one side ends the other: whoever writes gets EPIPE, whoever reads sees an archive
 * without its end mark, which is refused. So every part is simply waited for, the producer first,
 * and the first cause is what is told: a signal, then the producer, then the consumer.
 */
#include "client/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "archive/archive.h"
#include "archive/target.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "client/copy_pump.h"
#include "client/copy_receive.h"
#include "client/internal.h"
#include "client/task.h"
#include "spec/spec.h"

enum place_kind {
	PLACE_HOST,
	PLACE_GUEST,
	PLACE_STREAM,
};

/* One end of a copy. */
struct place {
	enum place_kind kind;
	char sandbox[SPEC_NAME_MAX + 1];
	/* Of the host or the guest. */
	const char *path;
	struct client_machine *machine;
	char *user;
	/* The guest's messages: a file of a fixed size, so that no guest can fill our memory. */
	int messages_fd;
	/* How its command ended. */
	int rc;
	struct client_result result;
	struct err err;
};

struct copy_job {
	struct store *store;
	const struct client_copy_options *options;
	struct place source;
	struct place target;
	char source_name[ARCHIVE_COMPONENT_MAX + 1];
	/* Our ends of the pipes, until they are given up: the producer writes to produced, the
	 * consumer reads from consumed. */
	int produced_fd;
	int consumed_fd;
	struct copy_pump pump;
	struct copy_receiver receiver;
	/* The host's writer, or the target's command. */
	pthread_t thread;
	bool thread_runs;
	/* Of the host's writer. */
	int write_rc;
	struct err write_err;
	uint64_t left_out;
};

static int refuse(struct err *err, const char *text, const char *mend)
{
	err_set(err, -EINVAL, "copy-path", "%s", text);
	err_mend(err, "%s", mend);
	return -EINVAL;
}

static int parse_guest_path(const char *path, struct err *err)
{
	char quoted[256];

	if (path[0] == '/') {
		return 0;
	}
	text_quote(path, strlen(path), quoted, sizeof(quoted));
	err_set(err, -EINVAL, "copy-path", "\"%s\": a path in a sandbox must be absolute", quoted);
	err_mend(err, "write the whole path, beginning with /, such as NAME:/data/file");
	return -EINVAL;
}

/* A colon before any slash divides a sandbox from a path; "./a:b" is a file of the host. */
static int parse_place(const char *word, struct place *place, struct err *err)
{
	size_t length = strcspn(word, ":/");

	if (strcmp(word, "-") == 0) {
		place->kind = PLACE_STREAM;
		return 0;
	}
	place->path = word;
	if (word[length] != ':') {
		place->kind = PLACE_HOST;
		return 0;
	}
	place->kind = PLACE_GUEST;
	place->path = word + length + 1;
	if (length == 0 || length >= sizeof(place->sandbox)) {
		return refuse(err, "that is no sandbox's name before the colon",
			      "write NAME:/path, or ./FILE for a file with a colon in its name");
	}
	memcpy(place->sandbox, word, length);
	place->sandbox[length] = '\0';
	return parse_guest_path(place->path, err);
}

static int parse(struct copy_job *job, struct err *err)
{
	int rc = parse_place(job->options->source, &job->source, err);

	if (rc == 0) {
		rc = parse_place(job->options->target, &job->target, err);
	}
	if (rc == 0 && job->source.kind != PLACE_GUEST && job->target.kind != PLACE_GUEST) {
		rc = refuse(err, "neither of the two is in a sandbox",
			    "write one of them as NAME:/path; cp(1) copies on the host");
	}
	if (rc == 0 && job->source.kind != PLACE_STREAM) {
		rc = copy_source_name(job->source.path, job->source_name, err);
	}
	if (job->options->stream_fd > 0) {
		return rc;
	}
	if (rc == 0 && job->source.kind == PLACE_STREAM && isatty(STDIN_FILENO)) {
		rc = refuse(err, "there is a terminal on standard input, not an archive",
			    "give it one: box cp - NAME:/data < FILE.tar");
	}
	if (rc == 0 && job->target.kind == PLACE_STREAM && isatty(STDOUT_FILENO)) {
		rc = refuse(err, "an archive is nothing for a terminal",
			    "send it somewhere: box cp NAME:/data - > FILE.tar");
	}
	return rc;
}

/* Finds the machine of an end that is in one. */
static int connect_place(struct copy_job *job, struct place *place, struct err *err)
{
	_cleanup_(spec_freep) struct spec *spec = NULL;
	int rc;

	if (place->kind != PLACE_GUEST) {
		return 0;
	}
	rc = store_load_spec(job->store, place->sandbox, &spec, err);
	if (rc < 0) {
		return rc;
	}
	place->user = strdup(job->options->user ? job->options->user : spec->user);
	place->messages_fd = copy_open_messages();
	if (!place->user || place->messages_fd < 0) {
		return err_context(err, place->user ? place->messages_fd : -ENOMEM, "copy");
	}
	if (job->options->machine) {
		place->machine = job->options->machine;
		return 0;
	}
	return client_connect(job->store, place->sandbox, &place->machine, err);
}

/* Runs a copying command inside. One of the descriptors is a pipe, the other -EBADF. */
static void run_inside(struct place *place, const char *const *argv, int stdin_fd, int stdout_fd)
{
	struct client_command command = {
		.argv = argv,
		.user = place->user,
		.directory = "/",
		.stdin_fd = stdin_fd,
		.stdout_fd = stdout_fd,
		.stderr_fd = place->messages_fd,
		.self = true,
		.direct = true,
		.forward_signals = true,
	};

	while (argv[command.argc]) {
		command.argc++;
	}
	place->rc = client_run(place->machine, &command, &place->result, &place->err);
}

static void consume_inside(struct copy_job *job)
{
	const char *const stream[] = {"box-copy-in", "stream", job->target.path, NULL};
	const char *const contents[] = {"box-copy-in", "contents", job->target.path, NULL};
	const char *const name[] = {"box-copy-in", "name", job->target.path, job->source_name,
				    NULL};
	const char *const whole[] = {"box-copy-in", job->options->verb, job->target.path,
				     job->options->give_to, NULL};

	run_inside(&job->target,
		   job->options->verb		      ? whole
		   : job->source.kind == PLACE_STREAM ? stream
		   : job->source_name[0]	      ? name
						      : contents,
		   job->consumed_fd, -EBADF);
	close_fd(&job->consumed_fd);
}

static void produce_inside(struct copy_job *job)
{
	const char *const argv[] = {"box-copy-out", job->source.path, NULL};

	run_inside(&job->source, argv, -EBADF, job->produced_fd);
	close_fd(&job->produced_fd);
}

static void *consume_in_thread(void *data)
{
	consume_inside(data);
	return NULL;
}

static void *write_in_thread(void *data)
{
	struct copy_job *job = data;

	job->write_rc = archive_write_path(AT_FDCWD, job->source.path,
					   job->source_name[0] ? job->source_name : NULL,
					   job->produced_fd, &job->left_out, &job->write_err);
	close_fd(&job->produced_fd);
	return NULL;
}

/* Makes the pipes that are needed and the pump between them. */
static int connect_ends(struct copy_job *job, struct err *err)
{
	int rc = 0;

	job->pump.from = STDIN_FILENO;
	job->pump.to = STDOUT_FILENO;
	if (job->options->stream_fd > 0 && job->source.kind == PLACE_STREAM) {
		job->pump.from = job->options->stream_fd;
	} else if (job->options->stream_fd > 0 && job->target.kind == PLACE_STREAM) {
		job->pump.to = job->options->stream_fd;
	}
	if (job->source.kind != PLACE_STREAM) {
		rc = copy_pipe(&job->pump.from, &job->produced_fd);
	}
	if (rc == 0 && job->target.kind != PLACE_STREAM) {
		rc = copy_pipe(&job->consumed_fd, &job->pump.to);
		if (rc < 0 && job->source.kind != PLACE_STREAM) {
			close_fd(&job->pump.from);
		}
	}
	return rc < 0 ? err_context(err, rc, "copy") : 0;
}

static int start_thread(struct copy_job *job, void *(*run)(void *data), struct err *err)
{
	int rc = -pthread_create(&job->thread, NULL, run, job);

	job->thread_runs = rc == 0;
	return rc < 0 ? err_context(err, rc, "copy") : 0;
}

/* Starts box-copy. It must be this thread's child: it ends when the thread does. */
static int start_receiver(struct copy_job *job, struct err *err)
{
	struct copy_target target;
	int rc = copy_target_open(job->target.path, job->source_name, false, &target, err);

	if (rc < 0) {
		return rc;
	}
	rc = copy_receive_start(&target, job->consumed_fd, &job->receiver, err);
	close_fd(&target.dir_fd);
	close_fd(&job->consumed_fd);
	return rc;
}

static bool was_signalled(const struct place *place, int number)
{
	return place->rc == 0 && place->result.exit.kind == WIRE_SIGNALED &&
	       (int)place->result.exit.value == number;
}

/* The signal of ours that ended an end, or 0: one that came to it otherwise, as at `box down`, is
 * a failure like any other. */
static int signal_of(const struct place *place)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

	if (!place->result.interrupted && place->result.forwarded == 0) {
		return 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
		if (was_signalled(place, signals[i])) {
			return signals[i];
		}
	}
	return 0;
}

/* Whether the end that is in a machine failed by itself; then err says how. */
static int judge_place(const struct place *place, struct err *err)
{
	const struct client_result *result = &place->result;
	char line[COPY_MESSAGE_MAX];

	if (place->kind != PLACE_GUEST || was_signalled(place, SIGPIPE)) {
		return 0;
	}
	if (place->rc < 0) {
		*err = place->err;
		return place->rc;
	}
	if (result->exit.kind == WIRE_EXITED && result->exit.value == 0) {
		return 0;
	}
	copy_read_message(place->messages_fd, line, sizeof(line));
	if (result->reason[0]) {
		err_set(err, -EIO, "copy-inside", "%s: %s", place->sandbox, result->reason);
		err_mend(err, "look at --user, and at what the image holds");
	} else if (line[0]) {
		err_set(err, -EIO, "copy-inside", "%s: %s", place->sandbox, line);
		err_mend(err, "that is what the sandbox says; look there, or copy as another "
			      "user with --user");
	} else {
		err_set(err, -EIO, "copy-inside", "%s: the copying inside %s %u", place->sandbox,
			copy_exit_words(result), result->exit.value);
		err_mend(err, "build the sandbox again if it was built by an older box");
	}
	return -EIO;
}

static int judge_stream(const struct copy_job *job, struct err *err)
{
	if (job->pump.read_error < 0) {
		return err_context(err, job->pump.read_error, "cannot read standard input");
	}
	if (job->pump.write_error < 0) {
		err_context(err, job->pump.write_error, "cannot write standard output");
		err_mend(err, "look at where standard output goes");
		return job->pump.write_error;
	}
	return 0;
}

/* The first cause of all. received is how box-copy ended. */
static int judge(const struct copy_job *job, int received, const struct err *receive_err,
		 struct err *err)
{
	int number = signal_of(&job->source) ? signal_of(&job->source) : signal_of(&job->target);
	int rc;

	if (number != 0) {
		return task_interrupted(number, err);
	}
	if (job->write_rc < 0 && job->write_rc != -EPIPE) {
		*err = job->write_err;
		return job->write_rc;
	}
	rc = judge_place(&job->source, err);
	if (rc == 0) {
		rc = judge_stream(job, err);
	}
	if (rc == 0) {
		rc = judge_place(&job->target, err);
	}
	if (rc == 0 && received < 0) {
		*err = *receive_err;
		rc = received;
	}
	if (rc == 0 && was_signalled(&job->source, SIGPIPE) && job->target.kind == PLACE_STREAM) {
		/* As any program whose reader has gone. */
		rc = err_set(err, -EPIPE, "output", "cannot write standard output: %s",
			     strerror(EPIPE));
		err_mend(err, "its reader ended early");
	}
	return rc;
}

static void tell_left_out(const struct copy_job *job)
{
	char text[COPY_MESSAGE_MAX] = "";

	if (!job->options->notice) {
		return;
	}
	if (job->left_out > 0) {
		snprintf(text, sizeof(text), "%llu devices or fifos were left out",
			 (unsigned long long)job->left_out);
	} else if (job->source.kind == PLACE_GUEST) {
		copy_read_message(job->source.messages_fd, text, sizeof(text));
	}
	if (text[0]) {
		job->options->notice(job->options->data, text);
	}
}

/* Starts what runs beside this thread. */
static int begin(struct copy_job *job, struct err *err)
{
	int rc = connect_ends(job, err);

	if (rc < 0) {
		return rc;
	}
	if (job->target.kind == PLACE_HOST) {
		rc = start_receiver(job, err);
	}
	if (rc < 0) {
		if (job->source.kind != PLACE_STREAM || job->options->stream_fd > 0) {
			close_fd(&job->pump.from);
		}
		close_fd(&job->pump.to);
		return rc;
	}
	job->pump.progress = job->options->progress;
	job->pump.data = job->options->data;
	rc = copy_pump_start(&job->pump);
	if (rc < 0) {
		return err_context(err, rc, "copy");
	}
	if (job->source.kind == PLACE_HOST) {
		return start_thread(job, write_in_thread, err);
	}
	return job->source.kind == PLACE_GUEST && job->target.kind == PLACE_GUEST
		       ? start_thread(job, consume_in_thread, err)
		       : 0;
}

/* Waits for everything that begin has started. stop: it is to end at once. */
static int finish(struct copy_job *job, bool stop, struct err *err)
{
	const struct client_machine *machine = job->source.machine;

	/* What a thread works on it closes itself. */
	if (!job->thread_runs) {
		close_fd(&job->produced_fd);
		close_fd(&job->consumed_fd);
	}
	copy_pump_end(&job->pump, stop);
	if (job->thread_runs) {
		pthread_join(job->thread, NULL);
		job->thread_runs = false;
	}
	return copy_receive_end(&job->receiver, machine ? machine->signal_fd : -EBADF, err);
}

static int carry_out(struct copy_job *job, struct err *err)
{
	struct err receive_err = {0};
	bool stop;
	int received;
	int rc = begin(job, err);

	if (rc < 0) {
		finish(job, true, NULL);
		return rc;
	}
	if (job->source.kind == PLACE_GUEST) {
		produce_inside(job);
	} else {
		consume_inside(job);
	}
	stop = job->source.result.interrupted || job->target.result.interrupted ||
	       signal_of(&job->source) || job->source.rc < 0;
	received = finish(job, stop, &receive_err);
	rc = judge(job, received, &receive_err, err);
	if (rc == 0) {
		tell_left_out(job);
	}
	return rc;
}

static void place_clear(const struct copy_job *job, struct place *place)
{
	if (!job->options->machine) {
		client_machine_free(place->machine);
	}
	free(place->user);
	close_fd(&place->messages_fd);
}

int client_copy(struct store *store, const struct client_copy_options *options, struct err *err)
{
	struct copy_job *job = calloc(1, sizeof(*job));
	int rc;

	if (!job) {
		return err_context(err, -ENOMEM, "copy");
	}
	job->store = store;
	job->options = options;
	job->source.messages_fd = -EBADF;
	job->target.messages_fd = -EBADF;
	job->produced_fd = -EBADF;
	job->consumed_fd = -EBADF;
	job->receiver = (struct copy_receiver)COPY_RECEIVER_NONE;
	rc = parse(job, err);
	if (rc == 0) {
		rc = connect_place(job, &job->source, err);
	}
	if (rc == 0) {
		rc = connect_place(job, &job->target, err);
	}
	if (rc == 0) {
		rc = carry_out(job, err);
	}
	place_clear(job, &job->target);
	place_clear(job, &job->source);
	free(job);
	return rc;
}
