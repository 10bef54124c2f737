/* Every exit code of box, as docs and man pages list them. */
#pragma once

enum exit_code {
	EXIT_OK = 0,
	/* A check answered with no: `doctor` or `verify` found a fault, `net --check` a refusal. */
	EXIT_NEGATIVE = 1,
	/* The command ran out of time. */
	EXIT_TIMEOUT = 124,
	/* box itself failed, a command line that it cannot read included. */
	EXIT_BOX_FAILED = 125,
	/* The command was found but could not be executed. */
	EXIT_NOT_EXECUTABLE = 126,
	/* The command was not found. */
	EXIT_NOT_FOUND = 127,
	/* Killed by signal n: EXIT_SIGNAL_BASE + n. */
	EXIT_SIGNAL_BASE = 128,
};
