#include "cli/cli.h"

#include <string.h>

#include "base/check.h"

#define OPTIONS(table) .options = (table), .option_count = ARRAY_SIZE(table)

const char *const cli_group_names[CLI_GROUP_COUNT] = {
	[CLI_DEFINE] = "Define",   [CLI_RUN] = "Run",	    [CLI_STATE] = "State",
	[CLI_INSPECT] = "Inspect", [CLI_REMOVE] = "Remove",
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

static const struct cli_option up_options[] = {
	{'d', "data", "own|none|clone",
	 "hold /data (own, the default), leave it out, or take a copy that is thrown away"},
	{'c', "cold", NULL, "boot the machine instead of restoring its snapshot"},
	{'j', "json", NULL, "print one object"},
};

static const struct cli_option down_options[] = {
	{'p', "pool", NULL, "end the machines that are kept ready (`warm`) as well"},
};

static const struct cli_option exec_options[] = {
	{'i', "interactive", NULL, "give the command what comes on standard input"},
	{'t', "tty", NULL, "give the command a terminal"},
	{'e', "env", "KEY=VALUE", "set an environment variable (KEY alone: take the value here)"},
	{'w', "workdir", "DIR", "begin in this directory of the machine"},
	{'u', "user", "USER", "run as this user of the machine (a name or a number)"},
	{'T', "timeout", "SECONDS", "end the command after this time (0: never)"},
	{'d', "detach", NULL, "leave it running, and print its ID"},
	{'j', "json", NULL, "print one object with the output, exit code and times at the end"},
};

static const struct cli_option shell_options[] = {
	{'a', "attach", NULL, "go back to a detached shell: the one called ID, or the newest"},
	{'e', "env", "KEY=VALUE", "set an environment variable (KEY alone: take the value here)"},
	{'w', "workdir", "DIR", "begin in this directory of the machine"},
	{'u', "user", "USER", "log in as this user of the machine (a name or a number)"},
};

static const struct cli_option ps_options[] = {
	{'j', "json", NULL, "print an array of objects"},
};

static const struct cli_option kill_options[] = {
	{'s', "signal", "SIGNAL", "a name, with or without SIG, or a number (TERM)"},
};

static const struct cli_option copy_options[] = {
	{'u', "user", "USER", "read and write as this user of the machine (a name or a number)"},
	{'q', "quiet", NULL, "show no progress"},
};

static const struct cli_option logs_options[] = {
	{'f', "follow", NULL, "go on with what is added, until Ctrl-C"},
	{'n', "lines", "N", "the last N commands (20)"},
	{'j', "json", NULL, "the lines of the log as they are, one JSON object each"},
	{'r', "raw", NULL, "output byte for byte, also on a terminal"},
};

static const struct cli_option net_options[] = {
	{'f', "follow", NULL, "go on with what is added, until Ctrl-C"},
	{'n', "lines", "N", "the last N connections (20)"},
	{'j', "json", NULL, "the lines of the log as they are, one JSON object each"},
	{'c', "check", "HOST[:PORT]",
	 "say what the Boxfile lets a machine do there, and why (443)"},
	{'l', "learn", NULL, "print the smallest list that allows what was connected to"},
	{'a', "allow", "RULE", "let the machine that is up reach this too (repeatable)"},
	{'d', "deny", "RULE", "and this no more (repeatable)"},
};

static const struct cli_option inspect_options[] = {
	{0, "security-report", "json", "the report (the default); =json prints it as an object",
	 .optional = true},
	{'j', "json", NULL, "print one object"},
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

static const struct cli_option fork_options[] = {
	{0, "live", NULL, "copy the machine that is up, with its memory and all that runs in it"},
	{'n', "number", "N", "make N of them, NEW-1 to NEW-N, all from one state (at most 100)"},
};

static const struct cli_option discard_options[] = {
	{'y', "yes", NULL, "do not ask"},
};

static const struct cli_option data_options[] = {
	{'q', "quiet", NULL, "show no progress"},
};

static const struct cli_option snapshot_options[] = {
	{'l', "list", NULL, "list the archives instead of making one"},
	{'j', "json", NULL, "with --list: print an array of objects"},
	{'q', "quiet", NULL, "show no progress"},
};

static const struct cli_option restore_options[] = {
	{'y', "yes", NULL, "do not ask"},
	{'q', "quiet", NULL, "show no progress"},
};

static const struct cli_option reset_options[] = {
	{'y', "yes", NULL, "do not ask"},
};

static const struct cli_option nuke_options[] = {
	{'y', "yes", NULL, "do not ask for the word"},
};

static const struct cli_option help_options[] = {
	{'m', "man", NULL, "print the manual page as roff"},
	{'c', "completion", "SHELL", "print a completion script (bash)"},
};

static const struct cli_option diff_options[] = {
	{'l', "list", NULL, "print one line for each change; it is so without other options"},
	{'s', "stat", NULL, "print how many changes of each kind there are, and their bytes"},
	{'p', "patch", NULL, "print what changed in text files as a patch"},
	{'j', "json", NULL, "print one object"},
	{'0', "null", NULL, "print kind and path, each with a NUL behind it (R: two paths)"},
	{'D', "digest", NULL,
	 "print the digest of all changes for `box apply --expect`: alone, or of what --list, "
	 "--stat or --json shows"},
	{'e', "exit-code", NULL, "exit with 1 when there are changes"},
};

static const struct cli_option apply_options[] = {
	{'t', "theirs", NULL, "take the fork's side of every conflict"},
	{'o', "ours", NULL, "take the parent's side of every conflict"},
	{'x', "expect", "DIGEST", "refuse when the fork's changes have another digest"},
	{'u', "undo", NULL, "bring back what was there before the last apply"},
	{'j', "json", NULL, "print one object, with the conflicts when there are some"},
};

static const struct cli_option try_options[] = {
	{'n', "number", "N", "how many forks (2)"},
	{'k', "keep", "best|K", "keep the quickest that ended with 0, or number K, alone"},
	{'e', "env", "KEY=VALUE", "set an environment variable (KEY alone: take the value here)"},
	{'w', "workdir", "DIR", "begin in this directory of the machine"},
	{'u', "user", "USER", "run as this user of the machine (a name or a number)"},
	{'T', "timeout", "SECONDS", "end a command after this time (0: never)"},
	{'j', "json", NULL, "print one object with all results"},
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
			"a file with an owner waits for the users. All lines run inside a machine. "
			"It reaches the mirror that a Debian base comes from, and what "
			"build_network in the Boxfile says; `box net` shows what it asked for. "
			"`warmup` lines reach nothing. A Debian base leaves out manual pages, "
			"documentation and "
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
		.details = "The columns are name, state (not built, stale, built, running, up), "
			   "cpus, ram in MiB, network, base, the sandbox that it is a fork of, and "
			   "the memory that the machine that is up and those kept ready use. In a "
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
		.name = "up",
		.group = CLI_RUN,
		.synopsis = "NAME",
		.summary = "start a machine that stays, for exec and shell",
		OPTIONS(up_options),
		.details = "It stays until `box down`, also when the terminal is closed. The "
			   "addresses of network.ports in the Boxfile lead into it. What is "
			   "written outside /data is lost when it goes down. When it is up "
			   "already nothing is done.",
		.example = "box up py",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_up,
	},
	{
		.name = "down",
		.group = CLI_RUN,
		.synopsis = "NAME",
		.summary = "end the machine that stays",
		OPTIONS(down_options),
		.details = "Commands get SIGTERM, 3 seconds, and then SIGKILL; /data is written "
			   "and unmounted. When the machine is not up nothing is done.",
		.example = "box down py",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_down,
	},
	{
		.name = "exec",
		.group = CLI_RUN,
		.synopsis = "NAME [--] COMMAND [ARGUMENT...]",
		.summary = "run a command in the machine that is up",
		OPTIONS(exec_options),
		.details = "Streams, exit codes and signals are as for `box run`. Any number of "
			   "commands run at once. When box is killed or loses its terminal, the "
			   "command is killed; with --detach it goes on, `box ps` shows it, and "
			   "`box logs NAME ID` has its output. Defaults for user, environment and "
			   "time limit come from the Boxfile.",
		.example = "box exec py -- python3 -c 'print(6*7)'\n"
			   "box exec --detach py -- sh -c 'sleep 5; echo done'",
		.operands_min = 2,
		.operands_max = -1,
		.command_follows = true,
		.takes_sandbox = true,
		.run = cli_exec,
	},
	{
		.name = "shell",
		.group = CLI_RUN,
		.synopsis = "NAME [ID]",
		.summary =
			"open a login terminal in the machine, which is started when it is not up",
		OPTIONS(shell_options),
		.details =
			"ctrl-\\ ctrl-q detaches: the shell goes on, and so it does when the "
			"terminal is lost. --attach goes back to it. TERM, COLORTERM and LANG are "
			"taken from here. The exit code is the shell's own.",
		.example = "box shell py\n"
			   "box shell py --attach",
		.operands_min = 1,
		.operands_max = 2,
		.takes_sandbox = true,
		.run = cli_shell,
	},
	{
		.name = "ps",
		.group = CLI_RUN,
		.synopsis = "NAME",
		.summary = "list the commands that run in the machine that is up",
		OPTIONS(ps_options),
		.details =
			"The columns are ID, user, time since it began, attached or detached, how "
			"much it has written, and the command.",
		.example = "box ps py",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_ps,
	},
	{
		.name = "kill",
		.group = CLI_RUN,
		.synopsis = "[-SIGNAL] NAME ID",
		.summary = "send a signal to a command that runs in the machine",
		OPTIONS(kill_options),
		.details = "ID is that of `box ps`. The signal goes to the command's whole process "
			   "group; KILL ends also what has left the group.",
		.example = "box kill -KILL py k3fx7a",
		.operands_min = 2,
		.operands_max = 2,
		.takes_signal = true,
		.takes_sandbox = true,
		.run = cli_kill,
	},
	{
		.name = "cp",
		.group = CLI_RUN,
		.synopsis = "SOURCE DESTINATION",
		.summary =
			"copy files and trees into a machine that is up, out of it, or between two",
		OPTIONS(copy_options),
		.details =
			"NAME:PATH is a path inside, all else one of this host, `-` a tar stream "
			"on standard input or output. Modes, times, links and holes are kept; "
			"links of the machine are never followed on the host.",
		.example = "box cp ./project py:/data/\n"
			   "box cp py:/data/report.pdf .",
		.operands_min = 2,
		.operands_max = 2,
		.run = cli_copy,
	},
	{
		.name = "forward",
		.group = CLI_RUN,
		.synopsis = "NAME [HOST:]PORT:PORT",
		.summary = "reach a port inside the machine from this host, until Ctrl-C",
		.details =
			"The first port is this host's (0: any free one, which is printed), the "
			"second the machine's. HOST is an address of this host, 127.0.0.1 when it "
			"is left out.",
		.example = "box forward py 8080:80",
		.operands_min = 2,
		.operands_max = 2,
		.takes_sandbox = true,
		.run = cli_forward,
	},
	{
		.name = "data",
		.group = CLI_STATE,
		.synopsis = "import|export NAME DIRECTORY",
		.summary = "copy a whole directory into /data, or all of /data out of it",
		OPTIONS(data_options),
		.details =
			"import merges what is in DIRECTORY into /data, as `cp -a` does; files "
			"belong to the user of the Boxfile afterwards. export writes into a "
			"directory that is new or empty; files are yours, setuid bits are dropped. "
			"Devices and fifos are left out, and counted. It works in the machine that "
			"is up, or else in one that is started for it when it is its turn.",
		.example = "box data import py ./project\n"
			   "box data export py ./result",
		.operands_min = 3,
		.operands_max = 3,
		.run = cli_data,
	},
	{
		.name = "snapshot",
		.group = CLI_STATE,
		.synopsis = "NAME [LABEL]",
		.summary = "archive /data, or list the archives",
		OPTIONS(snapshot_options),
		.details =
			"The archive is archive/LABEL.tar.zst in the sandbox's directory, which is "
			"printed; `tar --zstd` reads it. Without LABEL the time is taken. Owners, "
			"modes, times, links, holes and attributes are kept; devices, fifos and "
			"sockets are left out. While a machine is up the archive is read in it, "
			"file by file.",
		.example = "box snapshot py before-upgrade\n"
			   "box snapshot py -l",
		.operands_min = 1,
		.operands_max = 2,
		.takes_sandbox = true,
		.run = cli_snapshot,
	},
	{
		.name = "restore",
		.group = CLI_STATE,
		.synopsis = "NAME [LABEL|FILE]",
		.summary = "replace all of /data by an archive",
		OPTIONS(restore_options),
		.details =
			"Without LABEL it takes the newest archive of yours. A FILE is any tar "
			"archive, plain or packed with gzip, zstd, xz, bzip2 or lz4; its setuid "
			"bits are dropped. Either all of it is restored or nothing has changed, "
			"also when box is killed. The state before is kept for a day as an archive "
			"undo-TIME. Refuses while a machine holds /data; asks first.",
		.example = "box restore py before-upgrade\n"
			   "box restore --yes py ./data.tar.gz",
		.operands_min = 1,
		.operands_max = 2,
		.takes_sandbox = true,
		.run = cli_restore,
	},
	{
		.name = "reset",
		.group = CLI_STATE,
		.synopsis = "NAME",
		.summary = "empty /data",
		OPTIONS(reset_options),
		.details = "The state before is kept for a day as an archive undo-TIME, which `box "
			   "restore` brings back. Refuses while a machine holds /data; asks first.",
		.example = "box reset py --yes",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_reset,
	},
	{
		.name = "fork",
		.group = CLI_STATE,
		.synopsis = "NAME NEW",
		.summary = "make a sandbox that begins with the state of another",
		OPTIONS(fork_options),
		.details =
			"The fork has the Boxfile, image, snapshot and /data of NAME as they are "
			"now. Nothing is copied, so it takes an instant and no room however large "
			"/data is; from then on each writes to its own. Prints the names of what "
			"it made; all are made or none. A machine of NAME that is up keeps still "
			"for a moment and then goes on. With --live the fork is up afterwards, and "
			"every process runs on in it from the same instant, with host name, IDs "
			"and random numbers of its own; `box ps` lists commands as detached, TCP "
			"connections are closed, and ports of the Boxfile stay those of NAME. A "
			"fork is a sandbox like any other, and "
			"can be forked itself. `box discard` ends it. While NAME has forks it "
			"cannot be destroyed, renamed, restored or reset.",
		.example = "box fork py try-it\n"
			   "box run try-it -- sh -c 'rm -r /data/*'\n"
			   "box discard --yes try-it",
		.operands_min = 2,
		.operands_max = 2,
		.takes_sandbox = true,
		.run = cli_fork,
	},
	{
		.name = "diff",
		.group = CLI_STATE,
		.synopsis = "FORK",
		.summary = "show what a fork has changed in /data since it was made",
		OPTIONS(diff_options),
		.details =
			"One line for each change: A added, M modified (and what of it), D "
			"deleted, R renamed. Names that are not plain stand in double quotes, with "
			"escapes. Below it says what deserves a look: what can be executed, links "
			"that lead out, devices, what git, a shell or a CI service would run. A "
			"machine of the fork finds it, from a copy of its /data; the fork may be "
			"up.\n"
			"\n"
			"A machine that was taken over may say something else the next time. A "
			"digest that is printed together with --list or --json is that of what is "
			"shown there, so `box apply --expect` with it applies that or nothing. The "
			"text of --patch is what the machine says, and no digest holds it to "
			"that.\n"
			"\n"
			"With --json, text that is not UTF-8 is also there as base64, under "
			"path_base64, from_base64 and target_base64.",
		.example = "box diff try-it --patch\n"
			   "box diff try-it --list --digest",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_diff,
	},
	{
		.name = "apply",
		.group = CLI_STATE,
		.synopsis = "FORK [PATH...]",
		.summary = "bring what a fork has changed to the sandbox that it is a fork of",
		OPTIONS(apply_options),
		.details =
			"What only the fork changed is taken; what both changed to the same is "
			"nothing to do. Where both changed something differently, or one works in "
			"what the other deleted, renamed or replaced, there is a conflict: all are "
			"listed, nothing is applied, and the exit code is 1.\n"
			"\n"
			"With PATHs, as `box diff` shows them, only these and what is below are "
			"applied, with the new directories that they are in; a conflict at a named "
			"path is decided for the fork. Devices, fifos and sockets are refused.\n"
			"\n"
			"Either all of it is applied or nothing has changed, also when box is "
			"killed. The parent must be down. --undo takes its name, or the fork's, "
			"and is refused when anything in /data has changed since.",
		.example = "box apply try-it\n"
			   "box apply try-it src README --ours\n"
			   "box apply --undo py",
		.operands_min = 1,
		.operands_max = -1,
		.takes_sandbox = true,
		.run = cli_apply,
	},
	{
		.name = "try",
		.group = CLI_STATE,
		.synopsis = "NAME [--] COMMAND [ARGUMENT...]",
		.summary = "run a command in several forks side by side, and keep one of them",
		OPTIONS(try_options),
		.details =
			"Makes the forks NAME-try-1 to NAME-try-N from one state, and runs the "
			"command in each, as many at once as there are processors and memory for. "
			"Then it prints a table: fork, exit code, time, number of changes. What "
			"the command wrote is in the file `output` of the fork's directory; of one "
			"that failed the last lines are shown. Without --keep all forks stay. "
			"Ctrl-C ends all of it and discards them.\n"
			"\n"
			"The exit code is 0 when one was kept, or, without --keep, when the "
			"command ended with 0 in all of them; otherwise 1.",
		.example = "box try py -n 3 --keep best -- sh -c './build && ./test'",
		.operands_min = 2,
		.operands_max = -1,
		.command_follows = true,
		.takes_sandbox = true,
		.run = cli_try,
	},
	{
		.name = "discard",
		.group = CLI_STATE,
		.synopsis = "FORK",
		.summary = "end a fork with all that was written in it",
		OPTIONS(discard_options),
		.details =
			"Asks first; without a terminal it needs --yes. Refuses while a machine of "
			"the fork runs, and while it has forks itself. What only this fork needed "
			"of its parent's disks is merged, when no machine has the parent's /data.",
		.example = "box discard try-it --yes",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_discard,
	},
	{
		.name = "inspect",
		.group = CLI_INSPECT,
		.synopsis = "NAME",
		.summary = "show what a sandbox's machine is confined to, and hold it against "
			   "/proc",
		OPTIONS(inspect_options),
		.details =
			"For the monitor of the machine that is up: its IDs, capabilities, "
			"namespaces, root, system calls, descriptors and limits, as the jail was "
			"built, and every difference that /proc shows now. When no machine is up "
			"one is started for the report, without /data. Also: the network, /data, "
			"and "
			"what was last proved about the kernel. Exits with 1 when something "
			"differs. docs/security-report.schema.json describes the object.",
		.example = "box inspect py --security-report",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_inspect,
	},
	{
		.name = "verify",
		.group = CLI_INSPECT,
		.synopsis = "NAME",
		.summary = "boot once more and prove that the machine's kernel is its own",
		.details =
			"Prints the kernels of the guest and of the host. The proof covers what "
			"runs: the machine monitor, its firmware, the kernel, the initramfs and "
			"box-guest. When a byte of these has changed, no machine of the sandbox "
			"is started until verify or build has proved them again. A proof with KVM "
			"does not count for software emulation, or the other way round. Exits "
			"with 1 when the machine has no kernel of its own, or the image is not "
			"that of the build.",
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
		.name = "logs",
		.group = CLI_INSPECT,
		.synopsis = "NAME [ID]",
		.summary = "show what ran in a sandbox, or the output of one command again",
		OPTIONS(logs_options),
		.details = "Without ID one line for each command: when it began, its ID, how it "
			   "ended, how long it took, how much it wrote, and what it was. With ID "
			   "what is kept of its output, as log_output in the Boxfile says.",
		.example = "box logs py -n 50",
		.operands_min = 1,
		.operands_max = 2,
		.takes_sandbox = true,
		.run = cli_logs,
	},
	{
		.name = "net",
		.group = CLI_INSPECT,
		.synopsis = "NAME",
		.summary = "show what a sandbox asked for on the network, and what was decided",
		OPTIONS(net_options),
		.details =
			"One line for each connection: when, the host and port that were asked "
			"for, "
			"the rule that decided, what came of it, the address that was used, bytes "
			"from and to the machine, and how long it took. A name that was refused or "
			"not found is a line too.\n\n"
			"--check needs no machine, and exits with 1 when the answer is no. An "
			"allowed name is decided once more for each address that it leads to. "
			"--learn leaves out what was refused, and lists what builds connected to "
			"under build_network.\n\n"
			"With BOX_PROXY, `by proxy` stands in the place of the address: the proxy "
			"resolves the name, so reserved addresses and rules for addresses are not "
			"looked at for it.\n\n"
			"--allow and --deny change what the machine that is up may reach: rules as "
			"under network in the Boxfile. What was denied stays denied. A connection "
			"that is not allowed any more is cut. Nothing of it is kept when the "
			"machine goes down, and nothing inside can ask for it.",
		.example = "box net py --check pypi.org:443",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_net,
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
			"the sandbox runs, and while it has forks. Archives are kept with /data, "
			"and go with it.",
		.example = "box destroy py --data --yes",
		.operands_min = 1,
		.operands_max = 1,
		.takes_sandbox = true,
		.run = cli_destroy,
	},
	{
		.name = "rename",
		.group = CLI_REMOVE,
		.synopsis = "OLD NEW",
		.summary = "give a sandbox another name",
		.details = "Its data, archives and log go along. Machines have the new name from "
			   "their next start on. Refuses while a machine of the sandbox runs, and "
			   "while it has forks.",
		.example = "box rename py python",
		.operands_min = 2,
		.operands_max = 2,
		.takes_sandbox = true,
		.run = cli_rename,
	},
	{
		.name = "nuke",
		.group = CLI_REMOVE,
		.synopsis = "",
		.summary =
			"remove everything that box keeps: all sandboxes, data, archives and logs",
		OPTIONS(nuke_options),
		.details =
			"Lists what would go and asks for the word `nuke`. Refuses while a machine "
			"runs or a build goes on. There is no way back.",
		.example = "box nuke",
		.operands_max = 0,
		.run = cli_nuke,
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
	"serve",
	"mcp",
	NULL,
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
