#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"

/* Width of help on a terminal, so that it reads well in any. */
#define HELP_COLUMNS 80
#define OPTION_COLUMNS 26

/* Prints words from text, broken at HELP_COLUMNS, each line after the first indented. */
static void print_wrapped(const char *text, size_t indent, size_t column)
{
	while (*text) {
		size_t length = strcspn(text, " \n");

		if (column > indent && column + length + 1 > HELP_COLUMNS) {
			printf("\n%*s", (int)indent, "");
			column = indent;
		} else if (column > indent) {
			putchar(' ');
			column++;
		}
		printf("%.*s", (int)length, text);
		column += length;
		text += length;
		if (text[0] == '\n' && text[1] == '\n') {
			printf("\n\n%*s", (int)indent, "");
			column = indent;
		} else if (text[0] == '\n' && text[1] == ' ') {
			printf("\n%*s", (int)indent, "");
			column = indent;
		}
		text += strspn(text, " \n");
	}
	putchar('\n');
}

void cli_print_overview(void)
{
	puts("box gives a command, or an agent, a machine of its own: a virtual machine with its\n"
	     "own kernel, made new for every run.\n\n"
	     "usage: box COMMAND [OPTIONS] [WORDS]");
	for (int group = 0; group < CLI_GROUP_COUNT; group++) {
		printf("\n%s\n", cli_group_names[group]);
		for (size_t i = 0; i < cli_command_count; i++) {
			const struct cli_command *command = &cli_commands[i];

			if ((int)command->group == group) {
				printf("  %-9s ", command->name);
				print_wrapped(command->summary, 12, 12);
			}
		}
	}
	puts("\nA first sandbox:\n"
	     "  box new py --from python\n"
	     "  box build py\n"
	     "  box run py -- python3 -c 'print(6*7)'\n\n"
	     "`box help COMMAND` tells about one, `box help boxfile` about the Boxfile.");
}

static void print_option(const struct cli_option *option)
{
	char left[128];
	int length;

	length = option->letter ? snprintf(left, sizeof(left), "  -%c, ", option->letter)
				: snprintf(left, sizeof(left), "      ");
	length += snprintf(left + length, sizeof(left) - (size_t)length, "--%s%s%s", option->name,
			   option->argument ? " " : "", option->argument ? option->argument : "");
	if (length + 2 > OPTION_COLUMNS) {
		printf("%s\n%*s", left, OPTION_COLUMNS, "");
	} else {
		printf("%-*s", OPTION_COLUMNS, left);
	}
	print_wrapped(option->help, OPTION_COLUMNS, OPTION_COLUMNS);
}

void cli_print_help(const struct cli_command *command)
{
	static const struct cli_option help = {'h', "help", NULL, "print this"};

	printf("box %s: %s\n\nusage: box %s [OPTIONS] %s\n\n", command->name, command->summary,
	       command->name, command->synopsis);
	print_wrapped(command->details, 0, 0);
	puts("\nOptions");
	for (size_t i = 0; i < command->option_count; i++) {
		print_option(&command->options[i]);
	}
	print_option(&help);
	puts("\nExample");
	for (const char *line = command->example; line;) {
		size_t length = strcspn(line, "\n");

		printf("  %.*s\n", (int)length, line);
		line = line[length] ? line + length + 1 : NULL;
	}
}

int cli_help(const struct cli_args *args, struct err *err)
{
	const char *shell = cli_value(args, "completion");
	const char *topic = args->operand_count > 0 ? args->operands[0] : NULL;
	const struct cli_command *command;
	const char *names[64] = {"boxfile"};
	const char *nearest;
	char quoted[256];
	int rc;

	if (cli_has(args, "man")) {
		cli_print_man();
		return EXIT_OK;
	}
	if (shell) {
		if (strcmp(shell, "bash") != 0) {
			rc = err_set(err, -EINVAL, "usage", "help: no completion for that shell");
			err_mend(err, "there is one for bash: box help --completion bash");
			return rc;
		}
		cli_print_completion_bash();
		return EXIT_OK;
	}
	if (!topic) {
		cli_print_overview();
		return EXIT_OK;
	}
	if (strcmp(topic, "boxfile") == 0) {
		cli_print_boxfile_help();
		return EXIT_OK;
	}
	command = cli_find_command(topic);
	if (command) {
		cli_print_help(command);
		return EXIT_OK;
	}
	for (size_t i = 0; i < cli_command_count; i++) {
		names[i + 1] = cli_commands[i].name;
	}
	nearest = text_nearest(topic, names);
	text_quote(topic, strlen(topic), quoted, sizeof(quoted));
	rc = err_set(err, -EINVAL, "usage", "help: there is no command \"%s\"", quoted);
	err_mend(err, "%s%s%s`box help` lists the commands", nearest ? "did you mean " : "",
		 nearest ? nearest : "", nearest ? "? " : "");
	return rc;
}
