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
	/* The argument may be left out; it is then given as --name=ARGUMENT. No letter. */
	bool optional;
};

enum cli_group {
	CLI_DEFINE,
	CLI_RUN,
	CLI_STATE,
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
	/* "-KILL" and "-9" stand for --signal, as for kill(1). */
	bool takes_signal;
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

/* How wide the stream's terminal is; 80 when nobody can say. */
size_t cli_terminal_columns(FILE *stream);

/*
 * The "argv" of a command's JSON on one line, quoted where it must be, harmless on a terminal. Of
 * each argument at most argument_max bytes are shown (0: all). Owned by the caller; NULL without
 * memory.
 */
struct json;
char *cli_command_line(const struct json *command, size_t argument_max);

/* Opens BOX_HOME and a sandbox in it; the caller closes both, also on failure. A descriptor of the
 * sandbox, or a negative errno with err filled. */
int cli_open_sandbox(const char *name, struct store *ret_store, struct err *err);

/* Asks unless --yes was given. 1: go on; 0: no, and it was said that nothing is done; -EINVAL with
 * err filled when there is nobody to ask. */
int cli_ask(const struct cli_args *args, const char *question, struct err *err);

/* Asks on the terminal; false without a yes. -EINVAL with err filled when there is nobody to ask.
 */
int cli_confirm(const char *question, struct err *err);

/* How far a copy has come, on a terminal; on_progress and on_notice take a struct cli_meter. */
struct cli_meter {
	bool shown;
	uint64_t began_ns;
};
void cli_meter_progress(void *meter, uint64_t bytes);
void cli_meter_notice(void *meter, const char *text);
void cli_meter_clear(struct cli_meter *meter);

/*
 * Rows of cells: aligned under headings on a terminal, separated by tabs otherwise (then without
 * headings). Cells are printed as they are: quote what comes from outside first.
 */
void cli_print_table(const char *const *headings, const char *const *cells, size_t columns,
		     size_t rows);

/* Writes a JSON value to standard output with a newline. Returns 0 or a negative errno. */
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

/* A number of a person, 1 to limit, in decimal digits. 0, or -EINVAL with *ret_number untouched. */
int cli_read_number(const char *text, unsigned limit, unsigned *ret_number);

/* The number of a signal, from a name with or without SIG or from a number; else -EINVAL. */
int cli_parse_signal(const char *text);

/* The error for an ID that no command has. Returns -ESRCH. */
int cli_no_command(const char *name, const char *id, struct err *err);

/* Connects to the machine of a sandbox that is up and asks what runs in it. Both results are the
 * caller's. 0 or a negative errno with err filled. */
struct client_machine;
int cli_connect_and_list(const char *name, struct store *store, struct client_machine **ret_machine,
			 struct json **ret_listing, struct err *err);

/* What work on forks has to say goes to standard error. */
struct client_fork_options;
extern const struct client_fork_options cli_fork_options;

/* The sandbox that this one is a fork of, owned by the caller, or NULL. */
char *cli_parent_of(int sandbox_fd);

/* Says that a machine has come up, and which ports lead into it; what this host cannot give goes
 * to standard error. */
struct ipc_ready;
void cli_print_up(FILE *out, const char *name, const struct spec *spec,
		  const struct ipc_ready *ready, uint64_t took_ns);

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
int cli_up(const struct cli_args *args, struct err *err);
int cli_down(const struct cli_args *args, struct err *err);
int cli_exec(const struct cli_args *args, struct err *err);
int cli_shell(const struct cli_args *args, struct err *err);
int cli_ps(const struct cli_args *args, struct err *err);
int cli_kill(const struct cli_args *args, struct err *err);
int cli_forward(const struct cli_args *args, struct err *err);
int cli_run(const struct cli_args *args, struct err *err);
int cli_copy(const struct cli_args *args, struct err *err);
int cli_verify(const struct cli_args *args, struct err *err);
int cli_env(const struct cli_args *args, struct err *err);
int cli_net(const struct cli_args *args, struct err *err);
int cli_logs(const struct cli_args *args, struct err *err);
int cli_doctor(const struct cli_args *args, struct err *err);
int cli_data(const struct cli_args *args, struct err *err);
int cli_snapshot(const struct cli_args *args, struct err *err);
int cli_restore(const struct cli_args *args, struct err *err);
int cli_reset(const struct cli_args *args, struct err *err);
int cli_fork(const struct cli_args *args, struct err *err);
int cli_discard(const struct cli_args *args, struct err *err);
int cli_rename(const struct cli_args *args, struct err *err);
int cli_nuke(const struct cli_args *args, struct err *err);
int cli_inspect(const struct cli_args *args, struct err *err);
int cli_destroy(const struct cli_args *args, struct err *err);
int cli_diff(const struct cli_args *args, struct err *err);
int cli_apply(const struct cli_args *args, struct err *err);
int cli_try(const struct cli_args *args, struct err *err);
int cli_help(const struct cli_args *args, struct err *err);
