#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "cli/cli.h"

/* Options of one command, --help and the end of the table included. */
#define OPTIONS_MAX 32
/* getopt_long returns this plus an option's index for every option, long or short alike. */
#define INDEX_BASE 256
#define HELP_INDEX (INDEX_BASE + OPTIONS_MAX)

/* A command's table in getopt's own form. */
struct forms {
	struct option longs[OPTIONS_MAX];
	/* "+:", two characters for each letter, 'h' and a NUL. */
	char shorts[2 + 2 * OPTIONS_MAX + 2];
};

static void make_forms(const struct cli_command *command, struct forms *forms)
{
	size_t length = 0, i;

	ASSERT(command->option_count + 2 <= OPTIONS_MAX);
	*forms = (struct forms){0};
	/* '+': stop at the first word that is no option, where a command follows. */
	if (command->command_follows) {
		forms->shorts[length++] = '+';
	}
	forms->shorts[length++] = ':';
	for (i = 0; i < command->option_count; i++) {
		const struct cli_option *option = &command->options[i];

		forms->longs[i] = (struct option){
			.name = option->name,
			.has_arg = option->optional   ? optional_argument
				   : option->argument ? required_argument
						      : no_argument,
			.val = INDEX_BASE + (int)i,
		};
		if (option->letter) {
			forms->shorts[length++] = option->letter;
			if (option->argument) {
				forms->shorts[length++] = ':';
			}
		}
	}
	forms->longs[i] = (struct option){.name = "help", .val = HELP_INDEX};
	forms->shorts[length++] = 'h';
}

static const struct cli_option *find_option(const struct cli_command *command, int found)
{
	if (found >= INDEX_BASE) {
		return &command->options[found - INDEX_BASE];
	}
	for (size_t i = 0; i < command->option_count; i++) {
		if (command->options[i].letter == found) {
			return &command->options[i];
		}
	}
	return NULL;
}

static int refuse(const struct cli_command *command, struct err *err, const char *what,
		  const char *word, const char *nearest)
{
	char quoted[256];
	int rc;

	text_quote(word, strlen(word), quoted, sizeof(quoted));
	rc = err_set(err, -EINVAL, "usage", "%s: %s \"%s\"", command->name, what, quoted);
	if (nearest) {
		err_mend(err, "did you mean --%s? `box help %s` lists the options", nearest,
			 command->name);
	} else {
		err_mend(err, "`box help %s` lists the options", command->name);
	}
	return rc;
}

static int refuse_unknown(const struct cli_command *command, char **argv, struct err *err)
{
	const char *names[OPTIONS_MAX + 1];
	char word[64], letter[3] = "-";
	size_t count = 0;

	if (optopt > 0 && optopt < INDEX_BASE) {
		letter[1] = (char)optopt;
		return refuse(command, err, "unknown option", letter, NULL);
	}
	if (optopt >= INDEX_BASE) {
		return refuse(command, err, "this option takes no value:", argv[optind - 1], NULL);
	}
	for (; count < command->option_count; count++) {
		names[count] = command->options[count].name;
	}
	names[count++] = "help";
	names[count] = NULL;
	snprintf(word, sizeof(word), "%s", argv[optind - 1] + 2);
	word[strcspn(word, "=")] = '\0';
	return refuse(command, err, "unknown option", argv[optind - 1], text_nearest(word, names));
}

/* Reads options from argv[0..argc) until getopt stops; leaves optind behind them. */
static int read_options(const struct cli_command *command, int argc, char **argv,
			struct cli_args *args, struct err *err)
{
	struct forms forms;
	int found;

	make_forms(command, &forms);
	/* 0 makes glibc's getopt forget everything about an earlier array. */
	optind = 0;
	opterr = 0;
	while ((found = getopt_long(argc, argv, forms.shorts, forms.longs, NULL)) != -1) {
		const struct cli_option *option;

		if (found == '?') {
			return refuse_unknown(command, argv, err);
		}
		if (found == ':') {
			return refuse(command, err, "no value for the option", argv[optind - 1],
				      NULL);
		}
		if (found == 'h' || found == HELP_INDEX) {
			args->help = true;
			continue;
		}
		option = find_option(command, found);
		ASSERT(option);
		args->given[args->given_count++] = (struct cli_given){option, optarg};
	}
	return 0;
}

/* Takes "-KILL" and "-9" out of argv, as values of --signal. Returns how many words are left. */
static int take_signals(const struct cli_command *command, int argc, char **argv,
			struct cli_args *args)
{
	int left = 1;
	bool dashes = false;

	for (int i = 1; i < argc; i++) {
		dashes = dashes || strcmp(argv[i], "--") == 0;
		if (!dashes && argv[i][0] == '-' && cli_parse_signal(argv[i] + 1) > 0) {
			args->given[args->given_count++] =
				(struct cli_given){find_option(command, 's'), argv[i] + 1};
		} else {
			argv[left++] = argv[i];
		}
	}
	argv[left] = NULL;
	return left;
}

static int check_operands(const struct cli_args *args, struct err *err)
{
	const struct cli_command *command = args->command;
	int rc;

	if (args->help) {
		return 0;
	}
	if (args->operand_count < command->operands_min) {
		rc = err_set(err, -EINVAL, "usage", "%s: too few words: box %s %s", command->name,
			     command->name, command->synopsis);
	} else if (command->operands_max >= 0 && args->operand_count > command->operands_max) {
		char quoted[256];
		const char *extra = args->operands[command->operands_max];

		text_quote(extra, strlen(extra), quoted, sizeof(quoted));
		rc = err_set(err, -EINVAL, "usage", "%s: \"%s\" is one word too many",
			     command->name, quoted);
	} else {
		return 0;
	}
	err_mend(err, "`box help %s` shows an example", command->name);
	return rc;
}

int cli_parse(const struct cli_command *command, int argc, char **argv, struct cli_args *ret_args,
	      struct err *err)
{
	struct cli_args args = {.command = command};
	bool dashes;
	int rc, name;

	args.given = calloc((size_t)argc * 2 + 1, sizeof(*args.given));
	if (!args.given) {
		return err_context(err, -ENOMEM, "%s", command->name);
	}
	if (command->takes_signal) {
		argc = take_signals(command, argc, argv, &args);
	}
	rc = read_options(command, argc, argv, &args, err);
	name = optind;
	args.operands = argv + name;
	args.operand_count = argc - name;
	if (rc == 0 && command->command_follows && args.operand_count > 1) {
		/*
		 * The name has been reached; its options may follow. The name's own place stands
		 * for argv[0] in the second reading. Behind a `--` before the name all is the
		 * command's.
		 */
		dashes = name > 0 && strcmp(argv[name - 1], "--") == 0;
		if (!dashes) {
			rc = read_options(command, argc - name, argv + name, &args, err);
			/* The words of the command move up behind the name. */
			argv[name + optind - 1] = argv[name];
			args.operands = argv + name + optind - 1;
			args.operand_count = argc - name - optind + 1;
		}
	}
	if (rc == 0) {
		rc = check_operands(&args, err);
	}
	if (rc < 0) {
		cli_args_free(&args);
		return rc;
	}
	*ret_args = args;
	return 0;
}

void cli_args_free(struct cli_args *args)
{
	free(TAKE_PTR(args->given));
}

bool cli_has(const struct cli_args *args, const char *name)
{
	for (size_t i = 0; i < args->given_count; i++) {
		if (strcmp(args->given[i].option->name, name) == 0) {
			return true;
		}
	}
	return false;
}

const char *cli_value(const struct cli_args *args, const char *name)
{
	const char *value = NULL;

	for (size_t i = 0; i < args->given_count; i++) {
		if (strcmp(args->given[i].option->name, name) == 0) {
			value = args->given[i].value;
		}
	}
	return value;
}

int cli_read_number(const char *text, unsigned limit, unsigned *ret_number)
{
	char *end = NULL;
	unsigned long number = 0;

	errno = 0;
	if (*text >= '0' && *text <= '9') {
		number = strtoul(text, &end, 10);
	}
	if (!end || *end || errno || number < 1 || number > limit) {
		return -EINVAL;
	}
	*ret_number = (unsigned)number;
	return 0;
}
