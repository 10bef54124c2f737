/*
 * Theory of operation. `box` reads one command, carries it out and ends; nothing of it stays. What
 * flows in: the command line, the environment and Boxfiles, all of the user. What flows out: the
 * answer on standard output, everything else on standard error. Commands, options and their help
 * are tables (commands.c); the functions behind them return an exit code or an error, and only main
 * prints errors. A command initialises what it needs itself, so that `box ls` answers at once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exit.h"
#include "base/program.h"
#include "base/text.h"
#include "cli/cli.h"

/* All command names and a few more. */
#define NAMES_MAX 64

static bool is_later(const char *name)
{
	for (size_t i = 0; cli_later_commands[i]; i++) {
		if (strcmp(cli_later_commands[i], name) == 0) {
			return true;
		}
	}
	return false;
}

static int refuse_command(const char *word, struct err *err)
{
	const char *names[NAMES_MAX];
	const char *nearest;
	char quoted[256];
	size_t count = 0;
	int rc;

	if (is_later(word)) {
		rc = err_set(err, -ENOTSUP, "not-available-yet", "%s: not available yet", word);
		err_mend(err, "`box help` lists what this version can do");
		return rc;
	}
	for (; count < cli_command_count; count++) {
		names[count] = cli_commands[count].name;
	}
	names[count] = NULL;
	text_quote(word, strlen(word), quoted, sizeof(quoted));
	rc = err_set(err, -EINVAL, "usage", "unknown %s \"%s\"",
		     word[0] == '-' ? "option" : "command", quoted);
	nearest = word[0] == '-' ? NULL : text_nearest(word, names);
	if (nearest) {
		err_mend(err, "did you mean `box %s`? `box help` lists the commands", nearest);
	} else {
		err_mend(err, "`box help` lists the commands");
	}
	return rc;
}

static int run_command(int argc, char **argv, struct err *err)
{
	const struct cli_command *command = cli_find_command(argv[1]);
	struct cli_args args;
	int rc;

	if (!command) {
		return refuse_command(argv[1], err);
	}
	rc = cli_parse(command, argc - 1, argv + 1, &args, err);
	if (rc < 0) {
		return rc;
	}
	if (args.help) {
		cli_print_help(command);
		rc = EXIT_OK;
	} else {
		rc = command->run(&args, err);
	}
	cli_args_free(&args);
	return rc;
}

static int dispatch(int argc, char **argv, struct err *err)
{
	int rc;

	if (argc < 2) {
		rc = err_set(err, -EINVAL, "usage", "no command given");
		err_mend(err, "`box help` lists the commands");
		return rc;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		cli_print_overview();
		return EXIT_OK;
	}
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
		printf("box %s\n", BOX_VERSION);
		return EXIT_OK;
	}
	return run_command(argc, argv, err);
}

/* Every error says what to do; where a part knew nothing better, this is where to go on. */
static void complete_mend(struct err *err)
{
	if (err->mend[0]) {
		return;
	}
	if (strcmp(err->code, "bad-boxfile") == 0) {
		err_mend(err, "correct it with `box edit`; `box help boxfile` tells the keys");
	} else {
		err_mend(err, "`box doctor` looks whether this host has all that box needs");
	}
}

int main(int argc, char **argv)
{
	struct err err = {0};
	int rc;

	program_begin();
	cli_began_ns = clock_monotonic_ns();
	rc = dispatch(argc, argv, &err);
	if (rc < 0) {
		if (rc != -EINTR) {
			complete_mend(&err);
		}
		cli_print_error(&err);
	}
	/* An answer that could not be written is no answer. */
	if (fflush(stdout) != 0 && rc == EXIT_OK) {
		err_set(&err, -errno, "system", "standard output: %s", strerror(errno));
		cli_print_error(&err);
		rc = -EIO;
	}
	return cli_exit_code_of(rc, &err);
}
