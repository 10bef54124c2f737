#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/exit.h"
#include "base/io.h"
#include "base/program.h"
#include "keeper/keeper.h"

int main(int argc, char **argv)
{
	int client_fd = argc == 2 ? (int)strtol(argv[1], NULL, 10) : -1;

	if (client_fd < 3 || set_cloexec(client_fd, true) < 0) {
		fprintf(stderr, "box-keeper: it is started by box, not by hand\n");
		return EXIT_BOX_FAILED;
	}
	program_begin();
	/* Signals of the client's terminal are the client's to forward. */
	setsid();
	sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
	umask(077);
	return keeper_run(client_fd);
}
