/*
 * box-net: makes the connections of one machine, as its policy allows. Runs jailed, in the host's
 * network. It takes no arguments; src/ipc/net.h says which descriptors it is given.
 */
#include <signal.h>
#include <stdio.h>

#include "base/exit.h"
#include "net/net.h"

int main(void)
{
	const struct sigaction ignore = {.sa_handler = SIG_IGN};
	struct err err = {0};

	sigaction(SIGPIPE, &ignore, NULL);
	if (net_run(&err) < 0) {
		fprintf(stderr, "box-net: %s\n", err.text);
		return EXIT_NEGATIVE;
	}
	return EXIT_OK;
}
