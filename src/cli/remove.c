#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"
#include "client/client.h"
#include "client/fork.h"
#include "client/state.h"
#include "spec/spec.h"

int cli_destroy(const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0];
	bool with_data = cli_has(args, "data");
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_close_ int sandbox_fd = -EBADF;
	_cleanup_free_ char *kept = NULL;
	char question[256];
	int rc;

	sandbox_fd = cli_open_sandbox(name, &store, err);
	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	snprintf(question, sizeof(question), "destroy %s%s", name,
		 with_data ? " with all its data?" : "? Its /data is kept.");
	rc = cli_ask(args, question, err);
	if (rc <= 0) {
		return rc < 0 ? rc : EXIT_NEGATIVE;
	}
	rc = client_destroy(&store, name, with_data, &kept, &cli_fork_options, err);
	if (kept) {
		printf("%s\n", kept);
	}
	if (rc < 0) {
		return rc;
	}
	fprintf(stderr, "%s is gone%s\n", name, kept ? "; its data is kept there" : "");
	return EXIT_OK;
}

int cli_rename(const struct cli_args *args, struct err *err)
{
	const char *from = args->operands[0], *to = args->operands[1];
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_close_ int sandbox_fd = -EBADF;
	int rc;

	sandbox_fd = cli_open_sandbox(from, &store, err);
	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	client_build_sweep(sandbox_fd);
	rc = client_pool_drain(&store, from, err);
	if (rc >= 0) {
		rc = store_rename(&store, from, to, err);
	}
	return rc < 0 ? rc : EXIT_OK;
}

static void print_size(const char *what, uint64_t bytes)
{
	char size[TEXT_BYTES_MAX];

	text_format_bytes(bytes, size, sizeof(size));
	fprintf(stderr, "  %-24s %s\n", what, size);
}

/* Says what would go. */
static void list_victims(struct store *store, char *const *names, size_t count)
{
	static const char *const others[] = {"kept", "cache", "log"};

	fprintf(stderr, "this removes from %s, for good:\n", store->home);
	for (size_t i = 0; i < count; i++) {
		char path[sizeof("sandboxes/") + SPEC_NAME_MAX], what[SPEC_NAME_MAX + 16];

		snprintf(path, sizeof(path), "sandboxes/%s", names[i]);
		snprintf(what, sizeof(what), "sandbox %s", names[i]);
		print_size(what, store_tree_bytes(store->home_fd, path));
	}
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		print_size(others[i], store_tree_bytes(store->home_fd, others[i]));
	}
}

/* Not a letter that a finger may slip to: the word. */
static int ask_for_word(struct err *err)
{
	char answer[16] = "";

	if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
		err_set(err, -EINVAL, "no-terminal", "nuke: there is no terminal to ask on");
		err_mend(err, "add --yes when that is what you want");
		return -EINVAL;
	}
	fputs("type the word nuke to do it: ", stderr);
	if (!fgets(answer, sizeof(answer), stdin)) {
		fputc('\n', stderr);
	}
	answer[strcspn(answer, "\n")] = '\0';
	return strcmp(answer, "nuke") == 0;
}

int cli_nuke(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_free_ char **names = NULL;
	size_t count = 0;
	int rc = store_open(false, &store, err);

	if (rc == 0) {
		rc = store_list(&store, &names, &count, err);
	}
	if (rc < 0) {
		return rc;
	}
	list_victims(&store, names, count);
	rc = cli_has(args, "yes") ? 1 : ask_for_word(err);
	if (rc <= 0) {
		fputs(rc < 0 ? "" : "nothing was done\n", stderr);
		return rc < 0 ? rc : EXIT_NEGATIVE;
	}
	for (size_t i = 0; i < count && rc >= 0; i++) {
		_cleanup_close_ int sandbox_fd = store_open_sandbox(&store, names[i], err);

		if (sandbox_fd >= 0) {
			client_build_sweep(sandbox_fd);
		}
		rc = sandbox_fd < 0 ? sandbox_fd : client_pool_drain(&store, names[i], err);
	}
	if (rc >= 0) {
		rc = store_nuke(&store, err);
	}
	if (rc < 0) {
		return rc;
	}
	fprintf(stderr, "all of it is gone\n");
	return EXIT_OK;
}
