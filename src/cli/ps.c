/* What runs in a machine that is up: `box ps`, `box kill`. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"
#include "client/client.h"
#include "json/json.h"

/* Of one argument, and of a whole command line, in a table. */
#define ARGUMENT_SHOWN 256
#define COMMAND_SHOWN 1024
/* Signals of Linux, the realtime ones included. */
#define SIGNAL_MAX 64

enum {
	PS_ID,
	PS_USER,
	PS_TIME,
	PS_STATE,
	PS_OUT,
	PS_COMMAND,
	PS_COLUMNS,
};

int cli_parse_signal(const char *text)
{
	char *end;
	long number;

	if (text[0] >= '0' && text[0] <= '9') {
		number = strtol(text, &end, 10);
		return *end == '\0' && number >= 1 && number <= SIGNAL_MAX ? (int)number : -EINVAL;
	}
	if (strncasecmp(text, "SIG", 3) == 0) {
		text += 3;
	}
	for (int i = 1; i <= SIGNAL_MAX; i++) {
		const char *name = sigabbrev_np(i);

		if (name && strcasecmp(name, text) == 0) {
			return i;
		}
	}
	return -EINVAL;
}

int cli_connect_and_list(const char *name, struct store *store, struct client_machine **ret_machine,
			 struct json **ret_listing, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	int rc = client_connect(store, name, &machine, err);

	if (rc == 0) {
		rc = client_list(machine, &text, &size, err);
	}
	if (rc == 0) {
		rc = json_parse(text, size, ret_listing, err);
	}
	if (rc == 0) {
		*ret_machine = TAKE_PTR(machine);
	}
	return rc;
}

/* What is left of a terminal's line for the last column. */
static size_t room_for_command(void)
{
	size_t columns = cli_terminal_columns(stdout), others = 48;

	if (!cli_is_terminal(stdout)) {
		return COMMAND_SHOWN;
	}
	return columns < others + 20 ? 32 : columns - others;
}

/* Cuts at a whole character, so that what is left is UTF-8 still. */
static void cut(char *text, size_t room)
{
	size_t length = 0;

	if (strlen(text) <= room) {
		return;
	}
	while (text[length]) {
		size_t step = text_utf8_decode(text + length, strlen(text + length), NULL);

		if (step == 0 || length + step > room - 3) {
			break;
		}
		length += step;
	}
	snprintf(text + length, 4, "...");
}

static int fill_row(const struct json *command, char **cells)
{
	const char *id = json_get_string(command, "id");
	const char *user = json_get_string(command, "user");
	int64_t seconds = 0, out = 0, errors = 0;
	bool attached = false;
	char time[32], sent[TEXT_BYTES_MAX], quoted[128];

	json_get_integer(command, "seconds", &seconds);
	json_get_integer(command, "stdout_bytes", &out);
	json_get_integer(command, "stderr_bytes", &errors);
	json_get_boolean(command, "attached", &attached);
	snprintf(time, sizeof(time), "%lld:%02lld:%02lld", (long long)seconds / 3600,
		 (long long)seconds / 60 % 60, (long long)seconds % 60);
	text_format_bytes((uint64_t)(out + errors), sent, sizeof(sent));
	text_quote(user ? user : "?", strlen(user ? user : "?"), quoted, sizeof(quoted));
	cells[PS_ID] = strdup(id ? id : "?");
	cells[PS_USER] = strdup(quoted);
	cells[PS_TIME] = strdup(time);
	cells[PS_STATE] = strdup(attached ? "attached" : "detached");
	cells[PS_OUT] = strdup(sent);
	cells[PS_COMMAND] = cli_command_line(command, ARGUMENT_SHOWN);
	for (size_t i = 0; i < PS_COLUMNS; i++) {
		if (!cells[i]) {
			return -ENOMEM;
		}
	}
	cut(cells[PS_COMMAND], room_for_command());
	return 0;
}

static int print_commands(const struct json *commands, struct err *err)
{
	static const char *const headings[] = {"ID", "USER", "TIME", "STATE", "OUTPUT", "COMMAND"};
	size_t count = json_count(commands);
	char **cells = calloc(count * PS_COLUMNS + 1, sizeof(*cells));
	int rc = cells ? 0 : -ENOMEM;

	for (size_t i = 0; rc == 0 && i < count; i++) {
		rc = fill_row(json_at(commands, i), cells + i * PS_COLUMNS);
	}
	if (rc == 0) {
		cli_print_table(headings, (const char *const *)cells, PS_COLUMNS, count);
	}
	for (size_t i = 0; cells && i < count * PS_COLUMNS; i++) {
		free(cells[i]);
	}
	free(cells);
	return rc < 0 ? err_context(err, rc, "ps") : EXIT_OK;
}

int cli_ps(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	_cleanup_(json_freep) struct json *listing = NULL;
	const struct json *commands;
	int rc = store_open(false, &store, err);

	if (rc == 0) {
		rc = cli_connect_and_list(args->operands[0], &store, &machine, &listing, err);
	}
	if (rc < 0) {
		return rc;
	}
	commands = json_get_child(listing, "commands");
	if (!commands) {
		return err_set(err, -EBADMSG, "internal",
			       "ps: the keeper's answer has no commands");
	}
	return cli_has(args, "json") ? cli_print_json(commands, err)
				     : print_commands(commands, err);
}

int cli_kill(const struct cli_args *args, struct err *err)
{
	const char *wanted = cli_value(args, "signal");
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	char quoted[128];
	int number = wanted ? cli_parse_signal(wanted) : SIGTERM;
	int rc;

	if (number < 0) {
		text_quote(wanted, strlen(wanted), quoted, sizeof(quoted));
		rc = err_set(err, -EINVAL, "usage", "kill: there is no signal \"%s\"", quoted);
		err_mend(err, "name one, such as TERM, KILL or HUP, or a number from 1 to %d",
			 SIGNAL_MAX);
		return rc;
	}
	rc = store_open(false, &store, err);
	if (rc == 0) {
		rc = client_connect(&store, args->operands[0], &machine, err);
	}
	if (rc == 0 && strlen(args->operands[1]) != IPC_ID_LENGTH) {
		/* It would be cut to one that may be there. */
		rc = cli_no_command(args->operands[0], args->operands[1], err);
	}
	if (rc == 0) {
		rc = client_kill(machine, args->operands[1], number, err);
	}
	return rc < 0 ? rc : EXIT_OK;
}

int cli_no_command(const char *name, const char *id, struct err *err)
{
	char quoted[128];
	int rc;

	text_quote(id, strlen(id), quoted, sizeof(quoted));
	rc = err_set(err, -ESRCH, "no-command", "no command of %s is called \"%s\"", name, quoted);
	err_mend(err, "`box ps %s` lists what runs", name);
	return rc;
}
