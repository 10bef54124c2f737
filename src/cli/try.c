/* `box try`: one command in several forks, and which of them stays. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/io.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "client/fork.h"
#include "client/try.h"
#include "json/json.h"

#define COUNT_DEFAULT 2
#define COLUMNS 5
/* Of a fork that failed: so many of its last lines, and of each no more than this. */
#define LINES_SHOWN 5
#define TAIL_BYTES 4096

/* Which fork is to stay alone. */
enum { KEEP_ALL = -1, KEEP_BEST = -2 };

struct try_job {
	struct run_job run;
	unsigned count;
	/* Of KEEP_..., or the place of a fork. */
	int keep;
	/* The one that stays alone, or -1. */
	int kept;
	struct client_try_result results[CLIENT_FORKS_MAX];
};

static int read_options(struct try_job *job, struct err *err)
{
	const char *count = cli_value(job->run.args, "number");
	const char *keep = cli_value(job->run.args, "keep");
	unsigned number = 0;

	job->count = COUNT_DEFAULT;
	job->keep = KEEP_ALL;
	if (count && cli_read_number(count, CLIENT_FORKS_MAX, &job->count) < 0) {
		err_set(err, -EINVAL, "usage", "try: --number takes a number from 1 to %d",
			CLIENT_FORKS_MAX);
		err_mend(err, "box try NAME -n 3 -- COMMAND");
		return -EINVAL;
	}
	if (keep && strcmp(keep, "best") == 0) {
		job->keep = KEEP_BEST;
	} else if (keep && cli_read_number(keep, job->count, &number) < 0) {
		err_set(err, -EINVAL, "usage",
			"try: --keep takes best, or the number of one of the %u forks", job->count);
		err_mend(err, "box try NAME -n 3 --keep best -- COMMAND");
		return -EINVAL;
	} else if (keep) {
		job->keep = (int)number - 1;
	}
	return 0;
}

static bool went_well(const struct client_try_result *result)
{
	return result->rc == 0 && result->finished && result->exit_code == 0;
}

/* The last lines that a fork's command has written, harmless, on standard error. */
static void print_tail(struct store *store, const struct client_try_result *result)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, result->name, NULL);
	_cleanup_close_ int fd = sandbox_fd < 0 ? -EBADF
						: openat(sandbox_fd, CLIENT_TRY_OUTPUT,
							 O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	char tail[TAIL_BYTES], quoted[TAIL_BYTES * TEXT_QUOTE_GROWTH + 1];
	struct stat status;
	ssize_t size;
	size_t begin, lines = 0;

	if (fd < 0 || fstat(fd, &status) < 0) {
		return;
	}
	size = pread(fd, tail, sizeof(tail), MAX(status.st_size - (off_t)sizeof(tail), (off_t)0));
	begin = size > 0 ? (size_t)size : 0;
	/* Back to the line end before the first of them. */
	while (begin > 0 && lines <= LINES_SHOWN) {
		lines += tail[begin - 1] == '\n' && begin < (size_t)size;
		begin -= lines <= LINES_SHOWN;
	}
	while (size > 0 && begin < (size_t)size) {
		size_t length = 0;

		while (begin + length < (size_t)size && tail[begin + length] != '\n') {
			length++;
		}
		text_quote(tail + begin, length, quoted, sizeof(quoted));
		fprintf(stderr, "%s| %s\n", result->name, quoted);
		begin += length + 1;
	}
}

/* One row of the table, in memory of its own. */
struct row {
	char code[16];
	char took[32];
	char changes[32];
};

static const char *note_of(const struct try_job *job, unsigned at)
{
	const struct client_try_result *result = &job->results[at];

	return result->rc < 0	       ? "box failed"
	       : result->timed_out     ? "out of time"
	       : job->kept == (int)at  ? "kept"
	       : job->keep != KEEP_ALL ? "discarded"
				       : "";
}

static int print_table(const struct try_job *job, struct err *err)
{
	static const char *const headings[] = {"FORK", "EXIT", "TIME", "CHANGES", "NOTE"};
	_cleanup_free_ const char **cells = calloc(job->count * COLUMNS + 1, sizeof(*cells));
	_cleanup_free_ struct row *rows = calloc(job->count + 1, sizeof(*rows));

	if (!cells || !rows) {
		return err_context(err, -ENOMEM, "try");
	}
	for (unsigned i = 0; i < job->count; i++) {
		const struct client_try_result *result = &job->results[i];
		struct row *row = &rows[i];

		if (result->finished) {
			snprintf(row->code, sizeof(row->code), "%d", result->exit_code);
			snprintf(row->took, sizeof(row->took), "%.2f s",
				 (double)result->took_ns / 1e9);
		}
		if (result->rc == 0) {
			snprintf(row->changes, sizeof(row->changes), "%llu",
				 (unsigned long long)result->changes);
		}
		cells[i * COLUMNS] = result->name;
		cells[i * COLUMNS + 1] = row->code[0] ? row->code : "-";
		cells[i * COLUMNS + 2] = row->took[0] ? row->took : "-";
		cells[i * COLUMNS + 3] = row->changes[0] ? row->changes : "-";
		cells[i * COLUMNS + 4] = note_of(job, i);
	}
	cli_print_table(headings, cells, COLUMNS, job->count);
	return 0;
}

static int add_result(struct json *array, const struct try_job *job, unsigned at)
{
	const struct client_try_result *result = &job->results[at];
	_cleanup_(json_freep) struct json *object = json_new_object();
	bool stays = job->keep == KEEP_ALL || job->kept == (int)at;
	char path[1024];
	int rc = json_set_string(object, "fork", result->name);

	snprintf(path, sizeof(path), "%s/sandboxes/%s/" CLIENT_TRY_OUTPUT, job->run.store.home,
		 result->name);
	if (rc == 0) {
		rc = result->finished ? json_set_integer(object, "exit_code", result->exit_code)
				      : json_set_null(object, "exit_code");
	}
	if (rc == 0) {
		rc = json_set_real(object, "seconds", (double)result->took_ns / 1e9);
	}
	if (rc == 0) {
		rc = json_set_boolean(object, "timed_out", result->timed_out);
	}
	if (rc == 0) {
		rc = result->rc == 0 ? json_set_integer(object, "changes", (int64_t)result->changes)
				     : json_set_null(object, "changes");
	}
	if (rc == 0) {
		rc = json_set_string(object, "error", result->rc < 0 ? result->err.text : NULL);
	}
	if (rc == 0) {
		rc = json_set_boolean(object, "kept", stays);
	}
	if (rc == 0) {
		rc = json_set_string(object, "output", stays ? path : NULL);
	}
	return rc == 0 ? json_append_child(array, TAKE_PTR(object)) : rc;
}

static int print_json(const struct try_job *job, struct err *err)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	_cleanup_(json_freep) struct json *array = json_new_array();
	int rc = object && array ? 0 : -ENOMEM;

	for (unsigned i = 0; i < job->count && rc == 0; i++) {
		rc = add_result(array, job, i);
	}
	if (rc == 0) {
		rc = json_set_string(object, "parent", job->run.args->operands[0]);
	}
	if (rc == 0) {
		rc = json_set_string(object, "kept",
				     job->kept >= 0 ? job->results[job->kept].name : NULL);
	}
	if (rc == 0) {
		rc = json_set_child(object, "forks", TAKE_PTR(array));
	}
	return rc < 0 ? err_context(err, rc, "try") : cli_print_json(object, err);
}

/* Ends all forks but the one that stays. */
static void discard_others(struct try_job *job)
{
	for (unsigned i = 0; i < job->count && job->keep != KEEP_ALL; i++) {
		struct err err = {0};

		if ((int)i != job->kept && client_discard(&job->run.store, job->results[i].name,
							  &cli_fork_options, &err) < 0) {
			cli_print_error(&err);
		}
	}
}

static void print_steps(const struct try_job *job)
{
	const char *name = job->results[job->kept >= 0 ? job->kept : 0].name;

	if (job->keep != KEEP_ALL && job->kept < 0) {
		fputs("none of them ended with 0: all were discarded\n", stderr);
		return;
	}
	fprintf(stderr,
		"box diff %s shows what it changed, box apply %s brings that to %s, "
		"box discard %s ends it\n",
		name, name, job->run.args->operands[0], name);
}

static int finish(struct try_job *job, struct err *err)
{
	bool failed = false, all_well = true;
	int rc;

	for (unsigned i = 0; i < job->count; i++) {
		const struct client_try_result *result = &job->results[i];

		failed = failed || result->rc < 0;
		all_well = all_well && went_well(result);
		if (result->rc < 0 && !job->run.json) {
			cli_print_error(&result->err);
		}
		if (result->finished && !went_well(result) && !job->run.json) {
			print_tail(&job->run.store, result);
		}
	}
	job->kept = job->keep == KEEP_BEST ? client_try_best(job->results, job->count) : job->keep;
	discard_others(job);
	rc = job->run.json ? print_json(job, err) : print_table(job, err);
	if (rc < 0) {
		return rc;
	}
	if (!job->run.json) {
		print_steps(job);
	}
	if (failed) {
		return EXIT_BOX_FAILED;
	}
	if (job->keep != KEEP_ALL) {
		return job->kept >= 0 ? EXIT_OK : EXIT_NEGATIVE;
	}
	return all_well ? EXIT_OK : EXIT_NEGATIVE;
}

static int try_all(struct try_job *job, struct err *err)
{
	const struct cli_args *args = job->run.args;
	struct client_try_options options = {.notice = run_notice};
	int rc = read_options(job, err);

	if (rc == 0) {
		rc = run_prepare(&job->run, err);
	}
	if (rc < 0) {
		return rc;
	}
	options.count = job->count;
	options.command = (struct client_command){
		.argv = (const char *const *)args->operands + 1,
		.argc = (size_t)args->operand_count - 1,
		.env = job->run.env.items,
		.env_count = job->run.env.count,
		.user = job->run.user,
		.directory = job->run.directory,
		.timeout_seconds = job->run.timeout_seconds,
	};
	rc = client_try(&job->run.store, args->operands[0], &options, job->results, err);
	return rc < 0 ? rc : finish(job, err);
}

int cli_try(const struct cli_args *args, struct err *err)
{
	struct try_job *job = calloc(1, sizeof(*job));
	int rc;

	if (!job) {
		return err_context(err, -ENOMEM, "try");
	}
	run_job_init(&job->run, args);
	job->kept = -1;
	rc = try_all(job, err);
	run_job_free(&job->run);
	free(job);
	return rc;
}
