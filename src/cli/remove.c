#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/exit.h"
#include "cli/cli.h"
#include "client/state.h"

int cli_destroy(const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0];
	bool with_data = cli_has(args, "data");
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_close_ int sandbox_fd = -EBADF;
	_cleanup_free_ char *kept = NULL;
	char question[256];
	int rc = store_open(false, &store, err);

	if (rc < 0) {
		return rc;
	}
	sandbox_fd = store_open_sandbox(&store, name, err);
	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	if (!cli_has(args, "yes")) {
		snprintf(question, sizeof(question), "destroy %s%s", name,
			 with_data ? " with all its data?" : "? Its /data is kept.");
		rc = cli_confirm(question, err);
		if (rc < 0) {
			return rc;
		}
		if (rc == 0) {
			fputs("nothing was done\n", stderr);
			return EXIT_NEGATIVE;
		}
	}
	/* A build that was killed may have left a directory outside, which only its stage names. */
	client_build_sweep(sandbox_fd);
	rc = store_destroy(&store, name, with_data, &kept, err);
	if (kept) {
		printf("%s\n", kept);
	}
	if (rc < 0) {
		return rc;
	}
	fprintf(stderr, "%s is gone%s\n", name, kept ? "; its data is kept there" : "");
	return EXIT_OK;
}
