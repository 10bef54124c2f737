#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"
#include "client/copy.h"

void cli_meter_progress(void *data, uint64_t bytes)
{
	struct cli_meter *meter = data;
	uint64_t passed_ms = (clock_monotonic_ns() - meter->began_ns) / 1000000u + 1;
	char size[TEXT_BYTES_MAX], rate[TEXT_BYTES_MAX];

	text_format_bytes(bytes, size, sizeof(size));
	text_format_bytes((uint64_t)((double)bytes * 1000 / (double)passed_ms), rate, sizeof(rate));
	fprintf(stderr, "\r\033[K%s, %s/s", size, rate);
	fflush(stderr);
	meter->shown = true;
}

void cli_meter_clear(struct cli_meter *meter)
{
	if (meter->shown) {
		fputs("\r\033[K", stderr);
		meter->shown = false;
	}
}

void cli_meter_notice(void *data, const char *text)
{
	cli_meter_clear(data);
	fprintf(stderr, "box: note: %s\n", text);
}

/* A user name or number as the guest looks it up; there it is checked again. */
static int check_user(const char *user, struct err *err)
{
	if (user[0] && strspn(user, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "._-") == strlen(user)) {
		return 0;
	}
	err_set(err, -EINVAL, "usage", "cp: --user: that is no user's name or number");
	err_mend(err, "name a user of the machine, such as --user root or --user 1000");
	return -EINVAL;
}

int cli_copy(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	struct cli_meter meter = {.began_ns = clock_monotonic_ns()};
	bool quiet = cli_has(args, "quiet");
	const struct client_copy_options options = {
		.source = args->operands[0],
		.target = args->operands[1],
		.user = cli_value(args, "user"),
		.progress = !quiet && isatty(STDERR_FILENO) ? cli_meter_progress : NULL,
		.notice = quiet ? NULL : cli_meter_notice,
		.data = &meter,
	};
	int rc = options.user ? check_user(options.user, err) : 0;

	if (rc == 0) {
		rc = store_open(false, &store, err);
	}
	if (rc == 0) {
		rc = client_copy(&store, &options, err);
	}
	cli_meter_clear(&meter);
	return rc < 0 ? rc : EXIT_OK;
}
