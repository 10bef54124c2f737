/*
 * The command line: tables of commands and options, from which parsing, help, the man page and
 * completion are all made.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "store/store.h"

struct cli_option {
	/* One letter, or 0. */
	char letter;
	const char *name;
	/* What it takes, as help shows it, or NULL. */
	const char *argument;
	const char *help;
};

enum cli_group {
	CLI_DEFINE,
	CLI_RUN,
	CLI_INSPECT,
	CLI_REMOVE,
	CLI_GROUP_COUNT,
};

struct cli_args;

struct cli_command {
	const char *name;
	enum cli_group group;
	/* Operands as help shows them, such as "NAME [--] COMMAND...". */
	const char *synopsis;
	/* One line, lower case, no full stop. */
	const char *summary;
	const struct cli_option *options;
	size_t option_count;
	/* Whole sentences; paragraphs are divided by an empty line. */
	const char *details;
	/* Lines to type, without a prompt. */
	const char *example;
	int operands_min;
	/* -1: any number. */
	int operands_max;
	/* After the first operand and its options comes a command that is not ours to read. */
	bool command_follows;
	/* The first operand names a sandbox: completion offers those. */
	bool takes_sandbox;
	/* Returns an exit code, or a negative errno with err filled. */
	int (*run)(const struct cli_args *args, struct err *err);
};

struct cli_given {
	const struct cli_option *option;
	/* Into argv; NULL when the option takes nothing. */
	const char *value;
};

struct cli_args {
	const struct cli_command *command;
	struct cli_given *given;
	size_t given_count;
	/* Into argv, NULL-terminated. */
	char **operands;
	int operand_count;
	bool help;
};

extern const struct cli_command cli_commands[];
extern const size_t cli_command_count;
/* Commands that later versions bring, NULL-terminated. */
extern const char *const cli_later_commands[];
extern const char *const cli_group_names[CLI_GROUP_COUNT];

/* The command called name, or NULL. */
const struct cli_command *cli_find_command(const char *name);

/*
 * Reads a command's options and operands; argv[0] is the command's name. Give *ret_args to
 * cli_args_free. Returns 0 or -EINVAL with err filled (code "usage") and a mend.
 */
int cli_parse(const struct cli_command *command, int argc, char **argv, struct cli_args *ret_args,
	      struct err *err);
void cli_args_free(struct cli_args *args);

/* Whether an option was given, and its last value (NULL when not given). */
bool cli_has(const struct cli_args *args, const char *name);
const char *cli_value(const struct cli_args *args, const char *name);

/* Prints an error in box's form: what failed, and the line that mends it. */
void cli_print_error(const struct err *err);

/* True when the stream is a terminal; colours only there, and never with NO_COLOR. */
bool cli_is_terminal(FILE *stream);
bool cli_has_color(FILE *stream);

/* Asks on the terminal; false without a yes. -EINVAL with err filled when there is nobody to ask.
 */
int cli_confirm(const char *question, struct err *err);

/*
 * Rows of cells: aligned under headings on a terminal, separated by tabs otherwise (then without
 * headings). Cells are printed as they are: quote what comes from outside first.
 */
void cli_print_table(const char *const *headings, const char *const *cells, size_t columns,
		     size_t rows);

/* Writes a JSON value to standard output with a newline. Returns 0 or a negative errno. */
struct json;
int cli_print_json(const struct json *value, struct err *err);

/* How far a build has come: one line that is written over on a terminal, plain lines otherwise. */
struct cli_progress;
int cli_progress_start(const char *name, struct cli_progress **ret_progress, struct err *err);
void cli_progress_step(void *progress, const char *text);
void cli_progress_detail(void *progress, const char *text);
void cli_progress_end(struct cli_progress *progress);

/* Says on standard error what of a Boxfile has no effect. */
struct spec;
void cli_print_notices(const struct spec *spec);

/* Refuses a BOX_ENGINE that this version does not have. 0 or -ENOTSUP with err filled. */
int cli_check_engine(struct err *err);

/* CLOCK_MONOTONIC in ns when main began. */
extern uint64_t cli_began_ns;

/* The exit code for a failure: 128+n when signal n ended it (by the code word), else 125. */
int cli_exit_code_of(int rc, const struct err *err);

/* Texts made from the tables, to standard output. */
void cli_print_overview(void);
void cli_print_help(const struct cli_command *command);
void cli_print_boxfile_help(void);
void cli_print_man(void);
void cli_print_completion_bash(void);

/* The commands, one file for each group. */
int cli_new(const struct cli_args *args, struct err *err);
int cli_edit(const struct cli_args *args, struct err *err);
int cli_build(const struct cli_args *args, struct err *err);
int cli_list(const struct cli_args *args, struct err *err);
int cli_run(const struct cli_args *args, struct err *err);
int cli_verify(const struct cli_args *args, struct err *err);
int cli_env(const struct cli_args *args, struct err *err);
int cli_doctor(const struct cli_args *args, struct err *err);
int cli_destroy(const struct cli_args *args, struct err *err);
int cli_help(const struct cli_args *args, struct err *err);
