/* The manual page, the completion script and the Boxfile's keys, made from the tables. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "cli/cli.h"

/* What a person may write in a Boxfile; src/spec holds the rules. */
static const struct {
	const char *key;
	const char *value;
	const char *help;
} boxfile_keys[] = {
	{"base", "debian/bookworm",
	 "tiny (busybox, built in, needs no network), debian/SUITE, tar:PATH, dir:PATH"},
	{"cpus", "2", "1 to 16"},
	{"ram_mib", "1024", "memory in MiB, at least 128"},
	{"disk_size", "8G", "room of the root file system"},
	{"data_size", "10G", "exact size of /data, the only thing that lasts"},
	{"network", "none",
	 "none; bridge: every name and public address; or {allow: [RULE], deny: [RULE], reach: "
	 "[RANGE], limits: {connections, bytes}, ports: [\"[ADDRESS:]HOSTPORT:PORT\"]}: what is "
	 "listed, and these ports can be reached from this host while the machine is up"},
	{"build_network", "base",
	 "what `run` and `runcmd` lines may reach while the image is made. base: where the base "
	 "comes from, which is the mirror of a Debian base; none; bridge; or a map as under "
	 "network, without ports, of what is allowed besides"},
	{"isolation", "strict",
	 "strict: the process that runs the machine has IDs that no other sandbox has, out of "
	 "yours in "
	 "/etc/subuid and /etc/subgid; standard: it has your own ID"},
	{"seccomp", "[]",
	 "system calls to take away from what the process that runs the machine may ask of this "
	 "host; "
	 "one that it makes all the same ends the machine"},
	{"engine", "auto", "auto or qemu"},
	{"readonly", "false", "a read-only root; /tmp, /run and /data stay writable"},
	{"timeout_seconds", "0", "limit for each command; 0 is none"},
	{"warm", "0", "how many machines are kept ready for the next `box run`, at most 8"},
	{"warm_idle", "30m", "how long they are kept without being used: 10s to 24h"},
	{"log_output", "tail",
	 "what `box logs` keeps of each command's output: none, tail (64 KiB) or full (1 GiB)"},
	{"warmup", "[]", "shell lines that run once, just before the snapshot"},
	{"user", "root", "who commands run as; agent is made with the ID 1000"},
	{"packages", "[]", "Debian packages that go into the image"},
	{"run", "[]", "shell lines that run inside a machine while the image is made"},
	{"env", "{}", "environment of every command"},
	{"blueprint", "{}", "users, write_files and runcmd, as cloud-init writes them"},
};

/* Environment variables that box reads. */
static const struct {
	const char *name;
	const char *help;
} variables[] = {
	{"BOX_HOME", "where sandboxes are kept; ~/.box when not set"},
	{"BOX_KERNEL", "the guest's kernel (a bzImage) in place of the installed one"},
	{"BOX_MODULES", "the directory of that kernel's modules"},
	{"BOX_MIRROR", "the Debian mirror for bases, in place of the one that apt uses here"},
	{"BOX_PROXY",
	 "the HTTP proxy that connections of machines go through, as http://[USER:WORD@]HOST:PORT; "
	 "environment: the one that https_proxy, all_proxy or http_proxy says. no_proxy lists what "
	 "is "
	 "reached without"},
	{"BOX_ENGINE", "the engine, in place of the Boxfile's"},
	{"BOX_TRACE", "1: `box run` and `box exec` tell on standard error where the time went"},
	{"TMPDIR", "where Debian bases are unpacked; /var/tmp when not set"},
	{"NO_COLOR", "no colours"},
	{"VISUAL", "the editor of `box edit`"},
	{"EDITOR", "the same, when VISUAL is not set"},
};

static const struct {
	const char *code;
	const char *help;
} exit_codes[] = {
	{"0", "success"},
	{"1", "doctor or verify found a fault, destroy was not confirmed; or the command's own"},
	{"124", "the command ran out of time"},
	{"125", "box itself failed"},
	{"126", "the command was found and cannot be executed"},
	{"127", "the command was not found"},
	{"128+n", "the command was killed by signal n"},
};

void cli_print_boxfile_help(void)
{
	puts("A Boxfile is YAML; an empty one is all defaults. Unknown keys are errors.\n");
	for (size_t i = 0; i < ARRAY_SIZE(boxfile_keys); i++) {
		printf("  %-16s %-16s %s\n", boxfile_keys[i].key, boxfile_keys[i].value,
		       boxfile_keys[i].help);
	}
	puts("\nExample\n"
	     "  base: debian/bookworm\n"
	     "  packages: [python3-minimal]\n"
	     "  env: {GREETING: hello}\n"
	     "  warmup: [\"python3 -c pass\"]");
}

/* Text as roff takes it: no line begins with a control character, backslashes and dashes stay. */
static void print_roff(const char *text)
{
	bool line_start = true;

	for (; *text; text++) {
		if (line_start && (*text == '.' || *text == '\'')) {
			fputs("\\&", stdout);
		}
		if (*text == '\\') {
			fputs("\\e", stdout);
		} else if (*text == '-') {
			fputs("\\-", stdout);
		} else if (*text == '\n' && text[1] == '\n') {
			fputs("\n.PP\n", stdout);
			text++;
		} else {
			putchar(*text);
		}
		line_start = *text == '\n';
	}
	putchar('\n');
}

static void print_pair(const char *term, const char *help)
{
	fputs(".TP\n.B ", stdout);
	print_roff(term);
	print_roff(help);
}

static void print_man_command(const struct cli_command *command)
{
	printf(".SS ");
	printf("box %s %s%s\n", command->name, command->option_count > 0 ? "[OPTIONS] " : "",
	       command->synopsis);
	print_roff(command->summary);
	fputs(".PP\n", stdout);
	print_roff(command->details);
	for (size_t i = 0; i < command->option_count; i++) {
		const struct cli_option *option = &command->options[i];
		char term[128];
		int length =
			option->letter ? snprintf(term, sizeof(term), "-%c, ", option->letter) : 0;

		snprintf(term + length, sizeof(term) - (size_t)length, "--%s%s%s", option->name,
			 option->argument ? " " : "", option->argument ? option->argument : "");
		print_pair(term, option->help);
	}
	fputs(".PP\nExample:\n.PP\n.nf\n", stdout);
	print_roff(command->example);
	fputs(".fi\n", stdout);
}

void cli_print_man(void)
{
	printf(".TH BOX 1 \"\" \"box %s\" \"User Commands\"\n", BOX_VERSION);
	puts(".SH NAME\nbox \\- run commands in virtual machines of their own\n"
	     ".SH SYNOPSIS\n.B box\n.I COMMAND\n[OPTIONS] [WORDS]\n.SH DESCRIPTION\n"
	     "Each sandbox is a virtual machine with its own kernel. A Boxfile says what is in "
	     "it,\n"
	     ".B box build\nmakes it, and\n.B box run\n"
	     "runs a command in a fresh copy that is thrown away afterwards;\n.B box up\n"
	     "keeps one, for\n.B box exec\nand\n.BR \"box shell\" .\n.SH COMMANDS");
	for (size_t i = 0; i < cli_command_count; i++) {
		print_man_command(&cli_commands[i]);
	}
	puts(".SH BOXFILE\nYAML; every key has a default.");
	for (size_t i = 0; i < ARRAY_SIZE(boxfile_keys); i++) {
		char term[64];

		snprintf(term, sizeof(term), "%s: %s", boxfile_keys[i].key, boxfile_keys[i].value);
		print_pair(term, boxfile_keys[i].help);
	}
	puts(".SH ENVIRONMENT");
	for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
		print_pair(variables[i].name, variables[i].help);
	}
	puts(".SH EXIT STATUS");
	for (size_t i = 0; i < ARRAY_SIZE(exit_codes); i++) {
		print_pair(exit_codes[i].code, exit_codes[i].help);
	}
}

static void print_completion_options(const struct cli_command *command)
{
	printf("\t%s) options=\"--help", command->name);
	for (size_t i = 0; i < command->option_count; i++) {
		printf(" --%s", command->options[i].name);
	}
	puts("\" ;;");
}

void cli_print_completion_bash(void)
{
	puts("# Completion of box for bash, made by `box help --completion bash`.\n"
	     "_box() {\n"
	     "\tlocal word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} options= words=");
	fputs("\tif [ \"$COMP_CWORD\" -eq 1 ]; then\n\t\tCOMPREPLY=($(compgen -W \"--help "
	      "--version",
	      stdout);
	for (size_t i = 0; i < cli_command_count; i++) {
		printf(" %s", cli_commands[i].name);
	}
	puts("\" -- \"$word\"))\n\t\treturn\n\tfi\n\tcase $command in");
	for (size_t i = 0; i < cli_command_count; i++) {
		print_completion_options(&cli_commands[i]);
	}
	fputs("\tesac\n\tcase $command in\n\t", stdout);
	for (size_t i = 0, count = 0; i < cli_command_count; i++) {
		if (cli_commands[i].takes_sandbox) {
			printf("%s%s", count++ > 0 ? "|" : "", cli_commands[i].name);
		}
	}
	puts(") words=$(box ls 2>/dev/null | cut -f1) ;;");
	fputs("\thelp) words=\"boxfile", stdout);
	for (size_t i = 0; i < cli_command_count; i++) {
		printf(" %s", cli_commands[i].name);
	}
	puts("\" ;;\n\tesac\n"
	     "\tcase $word in\n"
	     "\t-*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
	     "\t*) COMPREPLY=($(compgen -W \"$words\" -- \"$word\")) ;;\n"
	     "\tesac\n"
	     "}\n"
	     "complete -o default -F _box box");
}
