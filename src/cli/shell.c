/*
 * `box shell`: a login terminal in a machine that stays.
 *
 * The shell outlives its terminal: the detach key leaves it running, and so does a terminal or a
 * client that is lost. `--attach` takes it over again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "client/client.h"
#include "json/json.h"

/* The user's own shell, which box-guest has from the image's passwd file. */
static const char *const shell_argv[] = {"/bin/sh", "-c", "exec \"${SHELL:-/bin/sh}\" -l"};

/* What a program that was left at work may have switched on in our terminal: bracketed paste, mouse
 * reports, a hidden cursor, colours (xterm's control sequences, which most terminals know). */
#define TERMINAL_RESET "\033[?2004l\033[?1000l\033[?1002l\033[?1003l\033[?1006l\033[?25h\033[0m"

static int check_terminal(const char *name, struct err *err)
{
	int rc;

	if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
		return 0;
	}
	rc = err_set(err, -EINVAL, "no-terminal",
		     "shell: standard input and standard output are no terminal");
	err_mend(err, "`box exec -i %s -- sh` works without one", name);
	return rc;
}

static int check_words(const struct cli_args *args, struct err *err)
{
	int rc;

	if (args->operand_count < 2 || cli_has(args, "attach")) {
		return 0;
	}
	rc = err_set(err, -EINVAL, "usage", "shell: an ID goes with --attach only");
	err_mend(err,
		 "`box exec %s -- COMMAND` runs a command, `box shell --attach %s ID` goes "
		 "back to one",
		 args->operands[0], args->operands[0]);
	return rc;
}

/* A terminal that nobody is attached to. */
static bool is_left_alone(const struct json *command)
{
	bool attached = true, terminal = false;

	json_get_boolean(command, "attached", &attached);
	json_get_boolean(command, "terminal", &terminal);
	return terminal && !attached;
}

/* The newest terminal that nobody is attached to, or NULL, and how many there are. */
static const struct json *find_left_alone(const struct json *listing, size_t *ret_count)
{
	const struct json *commands = json_get_child(listing, "commands");
	const struct json *found = NULL;
	const char *newest = "";

	*ret_count = 0;
	for (size_t i = 0; i < json_count(commands); i++) {
		const struct json *command = json_at(commands, i);
		const char *started = json_get_string(command, "started");

		if (!is_left_alone(command) || !started) {
			continue;
		}
		++*ret_count;
		/* RFC 3339 in UTC sorts as text. */
		if (strcmp(started, newest) >= 0) {
			newest = started;
			found = command;
		}
	}
	return found;
}

/* Whether the session that is named can be taken over. */
static int check_session(const struct cli_args *args, const struct json *listing, struct err *err)
{
	const char *name = args->operands[0], *id = args->operands[1];
	const struct json *commands = json_get_child(listing, "commands");
	int rc;

	for (size_t i = 0; i < json_count(commands); i++) {
		const struct json *command = json_at(commands, i);
		const char *called = json_get_string(command, "id");
		bool terminal = false;

		if (!called || strcmp(called, id) != 0) {
			continue;
		}
		json_get_boolean(command, "terminal", &terminal);
		if (terminal) {
			return 0;
		}
		rc = err_set(err, -EINVAL, "no-terminal", "%s of %s has no terminal", id, name);
		err_mend(err, "`box logs %s %s` shows its output", name, id);
		return rc;
	}
	return cli_no_command(name, id, err);
}

/* Which session --attach means: the one that is named, or the newest. */
static int choose_session(const struct cli_args *args, const struct json *listing, char *ret_id,
			  struct err *err)
{
	const char *name = args->operands[0];
	const struct json *session;
	size_t count;
	int rc;

	if (args->operand_count > 1) {
		rc = check_session(args, listing, err);
		if (rc == 0) {
			snprintf(ret_id, IPC_ID_SIZE, "%s", args->operands[1]);
		}
		return rc;
	}
	session = find_left_alone(listing, &count);
	if (session && json_get_string(session, "id")) {
		snprintf(ret_id, IPC_ID_SIZE, "%s", json_get_string(session, "id"));
		return 0;
	}
	rc = err_set(err, -ESRCH, "no-session", "there is no detached shell in %s", name);
	err_mend(err, "`box shell %s` opens a new one", name);
	return rc;
}

static void tell_sessions(const char *name, const struct json *listing)
{
	size_t count;
	const struct json *session = find_left_alone(listing, &count);
	const char *id = json_get_string(session, "id");

	if (count > 0 && id) {
		fprintf(stderr,
			"box: %zu detached shell%s in %s, the newest is %s; "
			"`box shell %s --attach` goes back to it\n",
			count, count == 1 ? "" : "s", name, id, name);
	}
}

/* Connects, starting the machine when it is not up. */
static int connect_or_start(struct run_job *job, struct client_machine **ret_machine,
			    struct json **ret_listing, struct err *err)
{
	const char *name = job->args->operands[0];
	const struct client_start_options options = {
		.mode = IPC_START_RUN,
		.data = CLIENT_DATA_OWN,
		.stage = "",
		.notice = run_notice,
	};
	struct err first = {0};
	struct ipc_ready ready;
	uint64_t began = clock_monotonic_ns();
	int rc = cli_connect_and_list(name, &job->store, ret_machine, ret_listing, &first);

	if (rc != -ENOENT || strcmp(first.code, "not-up") != 0 || cli_has(job->args, "attach")) {
		*err = rc < 0 ? first : *err;
		return rc;
	}
	rc = cli_ensure_up(&job->store, name, &options, &ready, err);
	if (rc == 0) {
		cli_print_up(stderr, name, job->spec, &ready, clock_monotonic_ns() - began);
	} else if (rc != -EALREADY) {
		return rc;
	}
	return cli_connect_and_list(name, &job->store, ret_machine, ret_listing, err);
}

static int run_shell(struct run_job *job, struct client_machine *machine, const char *attach_id,
		     struct err *err)
{
	const struct client_command command = {
		.argv = shell_argv,
		.argc = ARRAY_SIZE(shell_argv),
		.env = job->env.items,
		.env_count = job->env.count,
		.user = job->user,
		.directory = job->directory,
		.terminal = true,
		.stdin_fd = STDIN_FILENO,
		.stdout_fd = STDOUT_FILENO,
		.stderr_fd = STDERR_FILENO,
		.keep_on_loss = true,
		.detach_key = true,
		.attach_id = attach_id,
		.forward_signals = true,
	};
	struct client_result *result = &job->report.result;
	int rc = client_run(machine, &command, result, err);

	if (rc < 0) {
		return rc;
	}
	job->report.finished = true;
	if (result->detached) {
		const char *kind = getenv("TERM");

		fputs(kind && strcmp(kind, "dumb") != 0 ? TERMINAL_RESET : "", stdout);
		fflush(stdout);
		fprintf(stderr, "\r\ndetached; `box shell %s --attach %s` goes back\n",
			job->args->operands[0], result->id);
		return EXIT_OK;
	}
	run_explain(job, shell_argv[0]);
	return client_exit_code(result);
}

int cli_shell(const struct cli_args *args, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	_cleanup_(json_freep) struct json *listing = NULL;
	char attach_id[IPC_ID_SIZE] = "";
	bool attach = cli_has(args, "attach");
	struct run_job job;
	int rc = check_words(args, err);

	if (rc == 0) {
		rc = check_terminal(args->operands[0], err);
	}
	if (rc < 0) {
		return rc;
	}
	run_job_init(&job, args);
	job.login = true;
	rc = run_prepare(&job, err);
	/* A person's terminal has no limit: timeout_seconds is for commands. */
	if (rc == 0) {
		rc = connect_or_start(&job, &machine, &listing, err);
	}
	if (rc == 0 && attach) {
		rc = choose_session(args, listing, attach_id, err);
	} else if (rc == 0) {
		tell_sessions(args->operands[0], listing);
	}
	if (rc == 0) {
		rc = run_shell(&job, machine, attach ? attach_id : NULL, err);
	}
	run_job_free(&job);
	return rc;
}
