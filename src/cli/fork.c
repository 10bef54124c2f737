/* `box fork` and `box discard`. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "client/fork.h"
#include "store/chain.h"

const struct client_fork_options cli_fork_options = {.notice = run_notice};

char *cli_parent_of(int sandbox_fd)
{
	struct store_fork fork;

	return store_read_fork(sandbox_fd, &fork, NULL) > 0 ? strdup(fork.parent) : NULL;
}

/* How many forks are wanted, or 0 when one of the very name is. */
static int read_count(const char *text, unsigned *ret_count, struct err *err)
{
	*ret_count = 0;
	if (text && cli_read_number(text, CLIENT_FORKS_MAX, ret_count) < 0) {
		err_set(err, -EINVAL, "usage", "fork: --number takes a number from 1 to %d",
			CLIENT_FORKS_MAX);
		err_mend(err, "box fork NAME NEW -n 3 makes NEW-1, NEW-2 and NEW-3");
		return -EINVAL;
	}
	return 0;
}

int cli_fork(const struct cli_args *args, struct err *err)
{
	const char *parent = args->operands[0], *name = args->operands[1];
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	struct client_fork_options options = cli_fork_options;
	unsigned count = 0;
	int rc = read_count(cli_value(args, "number"), &count, err);

	options.live = cli_has(args, "live");
	if (rc == 0) {
		rc = store_open(false, &store, err);
	}
	if (rc == 0) {
		rc = client_fork(&store, parent, name, count, &options, err);
	}
	if (rc < 0) {
		return rc;
	}
	for (unsigned i = 0; i < MAX(count, 1u); i++) {
		char each[STORE_LABEL_MAX + 1];

		client_fork_name(name, count, i, each);
		puts(each);
	}
	return EXIT_OK;
}

int cli_discard(const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0];
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_close_ int sandbox_fd = -EBADF;
	struct store_fork fork;
	char question[256];
	int rc;

	sandbox_fd = cli_open_sandbox(name, &store, err);
	rc = sandbox_fd < 0 ? sandbox_fd : store_read_fork(sandbox_fd, &fork, err);
	if (rc < 0) {
		return rc;
	}
	if (rc > 0) {
		snprintf(question, sizeof(question), "discard %s, a fork of %s, with all its data?",
			 name, fork.parent);
		rc = cli_ask(args, question, err);
		if (rc <= 0) {
			return rc < 0 ? rc : EXIT_NEGATIVE;
		}
	}
	rc = client_discard(&store, name, &cli_fork_options, err);
	if (rc < 0) {
		return rc;
	}
	fprintf(stderr, "%s is gone\n", name);
	return EXIT_OK;
}
