#include "cli/cli.h"

#include <string.h>

#include "base/check.h"

#define OPTIONS(table) .options = (table), .option_count = ARRAY_SIZE(table)

const char *const cli_group_names[CLI_GROUP_COUNT] = {
	[CLI_DEFINE] = "Define",
	[CLI_RUN] = "Run",
	[CLI_INSPECT] = "Inspect",
	[CLI_REMOVE] = "Remove",
};

static const struct cli_option new_options[] = {
	{'f', "from", "EXAMPLE|FILE", "begin with an example's Boxfile, or with a file of yours"},
};

static const struct cli_option build_options[] = {
	{'n', "no-cache", NULL, "make everything anew, although nothing has changed"},
};

static const struct cli_option list_options[] = {
	{'j', "json", NULL, "print an array of objects"},
};

static const struct cli_option run_options[] = {
	{'i', "interactive", NULL, "give the command what comes on standard input"},
	{'t', "tty", NULL, "give the command a terminal"},
	{'e', "env", "KEY=VALUE", "set an environment variable (KEY alone: take the value here)"},
	{'w', "workdir", "DIR", "begin in this directory of the machine"},
	{'u', "user", "USER", "run as this user of the machine (a name or a number)"},
	{'T', "timeout", "SECONDS", "end the command and the machine after this time (0: never)"},
	{'d', "data", "own|none|clone",
	 "hold /data (own, the default), leave it out, or take a copy that is thrown away"},
	{'c', "cold", NULL, "boot the machine instead of restoring its snapshot"},
	{'j', "json", NULL, "print one object with the output, exit code and times at the end"},
};

static const struct cli_option env_options[] = {
	{'j', "json", NULL, "print everything about the sandbox as one object"},
};

static const struct cli_option doctor_options[] = {
	{'f', "fix", NULL, "do what is safe: make BOX_HOME, remove what killed commands left"},
	{'j', "json", NULL, "print an object with all checks"},
};

static const struct cli_option destroy_options[] = {
	{'d', "data", NULL, "remove /data as well (otherwise it is kept, and its place printed)"},
	{'y', "yes", NULL, "do not ask"},
};

static const struct cli_option help_options[] = {
	{'m', "man", NULL, "print the manual page as roff"},
	{'c', "completion", "SHELL", "print a completion script (bash)"},
};

const struct cli_command cli_commands[] = {
	{
		.name = "new",
		.group = CLI_DEFINE,
		.synopsis = "NAME",
		.summary = "make a sandbox: write its Boxfile and print where it is",
		OPTIONS(new_options),
		.details =
			"Nothing is built yet. Without --from the Boxfile holds the defaults, with "
			"comments. The examples are in PREFIX/share/box/examples.",
		.example = "box new py --from python",
		.operands_min = 1,
		.operands_max = 1,
		.run = cli_new,
	},
	{
		.name = "edit",
		.group = CLI_DEFINE,
		.synopsis = "NAME",
		.summary = "open a sandbox's Boxfile in an editor and check it afterwards",
		.details = "The editor is $VISUAL, $EDITOR, or vi. It works on a copy, which takes "
			   "the Boxfile's place only when it can be read. `box help boxfile` "
			   "tells the keys.",
		.example = "EDITOR=nano box edit py",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_edit,
	},
	{
		.name = "build",
		.group = CLI_DEFINE,
		.synopsis = "NAME",
		.summary = "make a sandbox's image, the proof of its kernel, and its snapshot",
		OPTIONS(build_options),
		.details =
			"What was built before stays usable until the new one is complete, also "
			"when "
			"the build fails or is interrupted. With nothing changed it takes under a "
			"second. The log is image/build.log in the sandbox's directory, after a "
			"failure "
			"build.log.\n"
			"\n"
			"The order is: base and packages, the user agent when commands run as it, "
			"`run` "
			"lines, then the blueprint as cloud-init does it: write_files, users, "
			"runcmd; "
			"a file with an owner waits for the users. All lines run inside a machine, "
			"without network. A Debian base leaves out manual pages, documentation and "
			"translations.",
		.example = "box build py",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_build,
	},
	{
		.name = "ls",
		.group = CLI_DEFINE,
		.synopsis = "",
		.summary = "list the sandboxes",
		OPTIONS(list_options),
		.details = "The columns are name, state (not built, stale, built, running), cpus, "
			   "ram in MiB, network, base, and the sandbox that it is a fork of. In a "
			   "pipe "
			   "they are separated by tabs, without headings. Stale means that the "
			   "Boxfile "
			   "has changed since the build.",
		.example = "box ls --json",
		.operands_max = 0,
		.run = cli_list,
	},
	{
		.name = "run",
		.group = CLI_RUN,
		.synopsis = "NAME [--] COMMAND [ARGUMENT...]",
		.summary = "run one command in a fresh machine that is thrown away afterwards",
		OPTIONS(run_options),
		.details = "Everything but /data is as it was built, each time. Options may stand "
			   "before or "
			   "after NAME; they end at `--` or at the first word that is none.\n"
			   "\n"
			   "The exit code is the command's own; 124 when it ran out of time, 125 "
			   "when box "
			   "itself failed, 126 when it cannot be executed, 127 when it is not "
			   "found, and "
			   "128+n when signal n killed it. Ctrl-C reaches the command; a second "
			   "one ends "
			   "the machine. BOX_TRACE=1 tells on standard error where the time went.",
		.example = "box run py -- python3 -c 'print(6*7)'\n"
			   "echo hello | box run -i py -- tr a-z A-Z",
		.operands_min = 2,
		.operands_max = -1,
		.command_follows = true,
		.takes_sandbox = true,
		.run = cli_run,
	},
	{
		.name = "verify",
		.group = CLI_INSPECT,
		.synopsis = "NAME",
		.summary = "boot once more and hold the machine's kernel against the build's proof",
		.details = "Prints the kernels of the guest and of the host. Exits with 1 when "
			   "something is not what it was when the sandbox was built.",
		.example = "box verify py",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_verify,
	},
	{
		.name = "env",
		.group = CLI_INSPECT,
		.synopsis = "NAME",
		.summary = "show the environment of a sandbox's commands",
		OPTIONS(env_options),
		.details =
			"Prints the variables that the Boxfile sets, as KEY=VALUE lines quoted for "
			"a shell. The machine adds PATH, HOME, USER, LOGNAME and SHELL where they "
			"are "
			"not set. With --json it prints everything that the Boxfile says with all "
			"defaults, and the paths of kernel and sandbox.",
		.example = "box env py --json",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_env,
	},
	{
		.name = "doctor",
		.group = CLI_INSPECT,
		.synopsis = "",
		.summary =
			"look whether this host has all that box needs, and say what would mend it",
		OPTIONS(doctor_options),
		.details =
			"One line for each check. Exits with 1 when one failed; a warning, such as "
			"no hardware virtualization, is no failure.",
		.example = "box doctor --fix",
		.operands_max = 0,
		.run = cli_doctor,
	},
	{
		.name = "destroy",
		.group = CLI_REMOVE,
		.synopsis = "NAME",
		.summary = "remove a sandbox with its image and snapshot",
		OPTIONS(destroy_options),
		.details =
			"Asks first; without a terminal it needs --yes. Refuses while a machine of "
			"the sandbox runs.",
		.example = "box destroy py --data --yes",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_destroy,
	},
	{
		.name = "help",
		.group = CLI_INSPECT,
		.synopsis = "[COMMAND|boxfile]",
		.summary = "tell about a command, or about the keys of a Boxfile",
		OPTIONS(help_options),
		.details = "Without a name it lists the commands.",
		.example = "box help run",
		.operands_max = 1,
		.run = cli_help,
	},
};

const size_t cli_command_count = ARRAY_SIZE(cli_commands);

const char *const cli_later_commands[] = {
	"up",	    "down",    "exec",	"shell", "ps",	   "kill",  "cp",      "forward", "data",
	"snapshot", "restore", "reset", "fork",	 "diff",   "apply", "discard", "try",	  "inspect",
	"logs",	    "net",     "serve", "mcp",	 "rename", "nuke",  NULL,
};

const struct cli_command *cli_find_command(const char *name)
{
	for (size_t i = 0; i < cli_command_count; i++) {
		if (strcmp(cli_commands[i].name, name) == 0) {
			return &cli_commands[i];
		}
	}
	return NULL;
}
