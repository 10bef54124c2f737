#include "cli/run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/mutant.h"
#include "base/text.h"
#include "cli/cli.h"
#include "client/client.h"
#include "spec/spec.h"

void run_notice(void *data, const char *text)
{
	(void)data;
	fprintf(stderr, "box: %s\n", text);
}

static int parse_data(const char *text, enum client_data *ret_data, struct err *err)
{
	static const char *const names[] = {
		[CLIENT_DATA_OWN] = "own",
		[CLIENT_DATA_NONE] = "none",
		[CLIENT_DATA_CLONE] = "clone",
	};
	char quoted[128];
	int rc;

	*ret_data = CLIENT_DATA_OWN;
	for (size_t i = 0; text && i < ARRAY_SIZE(names); i++) {
		if (strcmp(text, names[i]) == 0) {
			*ret_data = (enum client_data)i;
			return 0;
		}
	}
	if (!text) {
		return 0;
	}
	text_quote(text, strlen(text), quoted, sizeof(quoted));
	rc = err_set(err, -EINVAL, "usage", "run: --data: \"%s\" is none of own, none and clone",
		     quoted);
	err_mend(err, "`box help run` tells what they mean");
	return rc;
}

/* A user name or number as the guest looks it up; there it is checked again. */
static int check_user(const char *command, const char *user, struct err *err)
{
	int rc;

	if (user[0] && strspn(user, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "._-") == strlen(user)) {
		return 0;
	}
	rc = err_set(err, -EINVAL, "usage", "%s: --user: that is no user's name or number",
		     command);
	err_mend(err, "name a user of the machine, such as --user root or --user 1000");
	return rc;
}

static int parse_place(struct run_job *job, struct err *err)
{
	const char *user = cli_value(job->args, "user");
	const char *directory = cli_value(job->args, "workdir");
	int rc;

	job->user = user ? user : job->spec->user;
	job->directory = directory ? directory : "";
	if (directory && directory[0] != '/') {
		rc = err_set(err, -EINVAL, "usage", "%s: --workdir: the path is not absolute",
			     job->args->command->name);
		err_mend(err, "write the whole path inside the machine, beginning with /");
		return rc;
	}
	return user ? check_user(job->args->command->name, user, err) : 0;
}

static int parse_env(struct run_job *job, struct err *err)
{
	const struct cli_args *args = job->args;
	_cleanup_free_ const char **options = calloc(args->given_count + 1, sizeof(*options));
	size_t count = 0;

	if (!options) {
		return err_context(err, -ENOMEM, "%s", args->command->name);
	}
	for (size_t i = 0; i < args->given_count; i++) {
		if (strcmp(args->given[i].option->name, "env") == 0) {
			options[count++] = args->given[i].value;
		}
	}
	return env_list_make(&(struct env_input){.base = job->spec->env,
						 .base_count = job->spec->env_count,
						 .options = options,
						 .option_count = count,
						 .terminal = job->terminal,
						 .login = job->login},
			     &job->env, err);
}

/* Options that contradict one another. */
static int check_together(const struct run_job *job, struct err *err)
{
	const char *command = job->args->command->name;
	bool detach = cli_has(job->args, "detach");
	int rc = 0;

	if (job->json && job->terminal) {
		rc = err_set(err, -EINVAL, "usage", "%s: --json and --tty do not go together",
			     command);
		err_mend(err, "leave --tty out");
	} else if (detach && cli_has(job->args, "interactive") && !job->terminal) {
		rc = err_set(err, -EINVAL, "usage",
			     "%s: --detach and --interactive do not go together", command);
		err_mend(err, "let the command read a file of the machine instead");
	}
	return rc;
}

int run_prepare(struct run_job *job, struct err *err)
{
	const char *timeout = cli_value(job->args, "timeout");
	int rc = parse_data(cli_value(job->args, "data"), &job->data, err);

	if (rc == 0 && timeout) {
		rc = run_parse_timeout(job->args->command->name, timeout, &job->timeout_seconds,
				       err);
	}
	if (rc == 0) {
		rc = check_together(job, err);
	}
	if (rc == 0) {
		rc = cli_check_engine(err);
	}
	if (rc == 0) {
		rc = store_open(false, &job->store, err);
	}
	if (rc == 0) {
		rc = store_load_spec(&job->store, job->args->operands[0], &job->spec, err);
	}
	if (rc == 0) {
		rc = spec_check_available(job->spec, "Boxfile", err);
	}
	if (rc == 0) {
		cli_print_notices(job->spec);
		rc = parse_place(job, err);
	}
	if (rc == 0) {
		rc = parse_env(job, err);
	}
	if (rc == 0 && !timeout) {
		job->timeout_seconds = job->spec->timeout_seconds;
	}
	return rc;
}

/* is_last: the machine was started for this command, and goes down with it. */
static int run_command(struct run_job *job, struct client_machine *machine, bool is_last,
		       struct err *err)
{
	struct run_report *report = &job->report;
	bool detached = cli_has(job->args, "detach");
	/* Somebody may attach to a terminal that is left alone, and type. */
	bool wants_stdin = cli_has(job->args, "interactive") || (detached && job->terminal);
	const struct client_command command = {
		.argv = (const char *const *)job->args->operands + 1,
		.argc = (size_t)job->args->operand_count - 1,
		.env = job->env.items,
		.env_count = job->env.count,
		.user = job->user,
		.directory = job->directory,
		.terminal = job->terminal,
		.stdin_fd = wants_stdin ? STDIN_FILENO : -EBADF,
		.stdout_fd = job->json ? report->out.write_fd : STDOUT_FILENO,
		.stderr_fd = job->json ? report->errors.write_fd : STDERR_FILENO,
		.timeout_seconds = job->timeout_seconds,
		.detached = detached,
		.is_last = is_last,
		.forward_signals = true,
	};
	int rc;

	if (MUTANT("kernel")) {
		/* Here, as a sandbox without a kernel of its own would. */
		execvpe(job->args->operands[1], job->args->operands + 1,
			(char **)(uintptr_t)job->env.items);
	}
	rc = client_run(machine, &command, &report->result, err);
	if (rc == 0) {
		report->finished = true;
		report->exit_code =
			report->result.detached ? EXIT_OK : client_exit_code(&report->result);
	}
	return rc;
}

/* That the command's output could not be written is a failure, though the command ended well. */
static int check_output(const struct run_job *job, struct err *err)
{
	int rc = job->report.result.output_error;

	if (rc < 0) {
		err_set(err, rc, "output", "cannot write the command's output: %s", strerror(-rc));
		err_mend(err, "look at where standard output and standard error go");
	}
	return rc;
}

static int start_and_run(struct run_job *job, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	const struct client_start_options options = {
		.mode = IPC_START_RUN,
		.data = job->data,
		.stage = "",
		.force_boot = cli_has(job->args, "cold"),
		.notice = run_notice,
	};
	int rc = client_start(&job->store, job->args->operands[0], &options, &machine, err);

	if (rc < 0) {
		return rc;
	}
	job->report.started = true;
	job->report.ready = *client_ready(machine);
	rc = run_command(job, machine, true, err);
	if (rc < 0 || job->report.result.interrupted) {
		return rc;
	}
	/* Only now is /data complete on the disk. */
	rc = client_stop(machine, err);
	return rc < 0 ? rc : check_output(job, err);
}

/* The machine that is up stays as it is; our going kills the command, unless it is detached. */
static int connect_and_run(struct run_job *job, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	int rc = client_connect(&job->store, job->args->operands[0], &machine, err);

	if (rc == 0) {
		rc = run_command(job, machine, false, err);
	}
	if (rc < 0 || job->report.result.interrupted) {
		return rc;
	}
	if (job->report.result.detached && !job->json) {
		puts(job->report.result.id);
	}
	return check_output(job, err);
}

/* Why a command did not begin is told as a shell would. */
void run_explain(const struct run_job *job, const char *name)
{
	const struct client_result *result = &job->report.result;
	char quoted[512];
	struct err err = {0};

	if (!job->report.finished || job->json || result->detached) {
		return;
	}
	if (result->limit[0]) {
		run_notice(NULL, result->limit);
	}
	if (result->timed_out) {
		err_set(&err, 0, "timeout", "the command ran out of time (%u s)",
			job->timeout_seconds);
		err_mend(&err, "give it more with --timeout, or timeout_seconds in the Boxfile");
	} else if (result->exit.kind == WIRE_NOT_STARTED) {
		text_quote(name, strlen(name), quoted, sizeof(quoted));
		if (result->reason[0]) {
			err_set(&err, 0, "not-started", "cannot run the command: %s",
				result->reason);
		} else {
			err_set(&err, 0, "not-started", "cannot run \"%s\": %s", quoted,
				strerror((int)result->exit.value));
		}
		if (result->reason[0]) {
			err_mend(&err, "look at --user and --workdir, and at what the image holds");
		} else if (result->exit.value != ENOENT) {
			err_mend(&err, "look at its mode, and whether it is a program at all");
		} else {
			err_mend(&err,
				 "is it installed in the sandbox? `packages` and `run` in the "
				 "Boxfile put things there");
		}
	} else {
		return;
	}
	cli_print_error(&err);
}

static void fill_error(struct run_job *job, const struct err *err)
{
	struct run_report *report = &job->report;
	const struct client_result *result = &report->result;

	if (!report->finished) {
		report->err = *err;
		return;
	}
	if (result->exit.kind == WIRE_NOT_STARTED) {
		err_set(&report->err, 0, "not-started", "cannot run the command: %s",
			result->reason[0] ? result->reason : strerror((int)result->exit.value));
	}
}

static int run_job(struct run_job *job, bool stays, struct err *err)
{
	struct run_report *report = &job->report;
	const char *trace = getenv("BOX_TRACE");
	int rc = run_prepare(job, err);

	if (rc == 0 && job->json) {
		rc = capture_start(&report->out, err);
		if (rc == 0) {
			rc = capture_start(&report->errors, err);
		}
	}
	if (rc == 0) {
		rc = stays ? connect_and_run(job, err) : start_and_run(job, err);
	}
	/* A guest that was too busy to end its command was ended with its machine; what a person
	 * asked for, the limit, has been kept all the same. */
	if (rc < 0 && report->finished && report->result.timed_out &&
	    strcmp(err->code, "guest-stuck") == 0) {
		*err = (struct err){0};
		rc = 0;
	}
	report->gone_ns = clock_monotonic_ns();
	capture_end(&report->out);
	capture_end(&report->errors);
	if (rc < 0) {
		report->exit_code = cli_exit_code_of(rc, err);
	}
	run_explain(job, job->args->operands[1]);
	if (trace && strcmp(trace, "1") == 0) {
		run_print_trace(report);
	}
	if (job->json) {
		struct err unsaid = {0};

		fill_error(job, err);
		/* The object is the answer, also to a failure: the code says which it was. */
		return run_print_json(report, &unsaid) < 0 ? EXIT_BOX_FAILED : report->exit_code;
	}
	return rc < 0 ? rc : report->exit_code;
}

void run_job_init(struct run_job *job, const struct cli_args *args)
{
	*job = (struct run_job){
		.args = args,
		.json = cli_has(args, "json"),
		.terminal = cli_has(args, "tty"),
		.store = {.home_fd = -EBADF},
		.report = {.out = {.write_fd = -EBADF, .read_fd = -EBADF},
			   .errors = {.write_fd = -EBADF, .read_fd = -EBADF}},
	};
}

void run_job_free(struct run_job *job)
{
	capture_free(&job->report.out);
	capture_free(&job->report.errors);
	env_list_free(&job->env);
	spec_free(job->spec);
	store_close(&job->store);
}

int cli_run(const struct cli_args *args, struct err *err)
{
	struct run_job job;
	int rc;

	run_job_init(&job, args);
	rc = run_job(&job, false, err);
	run_job_free(&job);
	return rc;
}

int cli_exec(const struct cli_args *args, struct err *err)
{
	struct run_job job;
	int rc;

	run_job_init(&job, args);
	rc = run_job(&job, true, err);
	run_job_free(&job);
	return rc;
}
