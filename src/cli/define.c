#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/io.h"
#include "base/program.h"
#include "base/text.h"
#include "cli/cli.h"
#include "client/client.h"
#include "client/state.h"
#include "json/json.h"
#include "spec/spec.h"
#include "store/ids.h"

/* More examples than ever come with box. */
#define EXAMPLES_MAX 64
#define EDIT_NAME "Boxfile.edit"

static const char default_boxfile[] =
	"# What this sandbox is. Every key has a default; `box help boxfile` tells them all.\n"
	"\n"
	"# tiny (busybox, built in), debian/SUITE, tar:PATH or dir:PATH\n"
	"base: debian/bookworm\n"
	"cpus: 2\n"
	"ram_mib: 1024\n"
	"\n"
	"# packages: [python3]\n"
	"# run:\n"
	"#   - echo made inside a machine >/etc/motd\n"
	"# env:\n"
	"#   GREETING: hello\n"
	"# warmup:\n"
	"#   - python3 -c pass\n";

/* Names of the examples that are installed, NULL-terminated, each owned by the caller. */
static size_t list_examples(char **names)
{
	char path[PATH_MAX];
	size_t count = 0;
	const struct dirent *entry;
	DIR *directory;

	names[0] = NULL;
	if (program_share_path("examples", path, sizeof(path)) < 0) {
		return 0;
	}
	directory = opendir(path);
	if (!directory) {
		return 0;
	}
	while (count + 1 < EXAMPLES_MAX && (entry = readdir(directory))) {
		if (entry->d_name[0] != '.') {
			names[count] = strdup(entry->d_name);
			count += names[count] != NULL;
		}
	}
	closedir(directory);
	names[count] = NULL;
	return count;
}

static int refuse_example(const char *wanted, struct err *err)
{
	char *names[EXAMPLES_MAX];
	char quoted[256], all[256] = "";
	size_t count = list_examples(names), length = 0;
	const char *nearest = text_nearest(wanted, (const char *const *)names);
	int rc;

	for (size_t i = 0; i < count && length < sizeof(all); i++) {
		length += (size_t)snprintf(all + length, sizeof(all) - length, "%s%s",
					   i > 0 ? ", " : "", names[i]);
	}
	text_quote(wanted, strlen(wanted), quoted, sizeof(quoted));
	rc = err_set(err, -ENOENT, "no-example", "there is no example or file \"%s\"", quoted);
	if (nearest) {
		err_mend(err, "did you mean %s? There are: %s", nearest, all);
	} else if (count > 0) {
		err_mend(err, "there are: %s", all);
	} else {
		err_mend(err, "no examples are installed; run `make install`, or name a file");
	}
	for (size_t i = 0; i < count; i++) {
		free(names[i]);
	}
	return rc;
}

/* The text of an example, or of a file when the word looks like one. */
static int read_source(const char *wanted, char **ret_text, size_t *ret_size, struct err *err)
{
	char relative[256], path[PATH_MAX];
	int rc;

	if (strchr(wanted, '/') || access(wanted, F_OK) == 0) {
		snprintf(path, sizeof(path), "%s", wanted);
	} else {
		snprintf(relative, sizeof(relative), "examples/%s/Boxfile", wanted);
		rc = program_share_path(relative, path, sizeof(path));
		if (rc < 0 || access(path, F_OK) < 0) {
			return refuse_example(wanted, err);
		}
	}
	rc = read_file_at(AT_FDCWD, path, SPEC_FILE_MAX, ret_text, ret_size);
	if (rc < 0) {
		char quoted[512];

		text_quote(wanted, strlen(wanted), quoted, sizeof(quoted));
		rc = err_set(err, rc, "no-example", "cannot read \"%s\": %s", quoted,
			     rc == -EFBIG ? "a Boxfile has at most 1 MiB" : strerror(-rc));
		err_mend(err, "name a Boxfile, or one of the examples");
	}
	return rc;
}

/* Gives a sandbox IDs of its own, unless it wants none. */
static int give_ids(struct store *store, const char *name, const struct spec *spec, struct err *err)
{
	struct store_ids ids;

	return spec->isolation == SPEC_ISOLATION_STRICT ? store_ids_take(store, name, &ids, err)
							: 0;
}

int cli_new(const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0], *from = cli_value(args, "from");
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_(spec_freep) struct spec *spec = NULL;
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	int rc = spec_check_name(name, err);

	if (rc == 0 && from) {
		rc = read_source(from, &text, &size, err);
	} else if (rc == 0) {
		text = strdup(default_boxfile);
		size = sizeof(default_boxfile) - 1;
		rc = text ? 0 : err_context(err, -ENOMEM, "new");
	}
	if (rc == 0) {
		rc = spec_parse(text, size, from ? from : "Boxfile", &spec, err);
	}
	if (rc == 0) {
		rc = store_open(true, &store, err);
	}
	if (rc == 0) {
		rc = store_create(&store, name, text, size, err);
	}
	if (rc < 0) {
		return rc;
	}
	printf("%s/sandboxes/%s/Boxfile\n", store.home, name);
	rc = give_ids(&store, name, spec, err);
	if (rc < 0) {
		/* It is there, and its Boxfile can be edited; only a start will be refused. */
		err_context(err, rc, "%s cannot be started yet", name);
		cli_print_error(err);
	}
	return EXIT_OK;
}

/* Waits for what fork(2) returned. */
static int wait_for(pid_t pid, int *ret_status)
{
	int rc = pid < 0 ? -errno : 0;

	while (rc == 0 && waitpid(pid, ret_status, 0) < 0) {
		rc = errno == EINTR ? 0 : -errno;
	}
	return rc;
}

/* Runs the editor, which may be written with arguments, through the shell. */
static int run_editor(const char *path, struct err *err)
{
	const char *editor = getenv("VISUAL");
	struct sigaction ignore = {.sa_handler = SIG_IGN}, interrupt, quit;
	char command[1024];
	int status, rc;
	pid_t pid;

	if (!editor || !editor[0]) {
		editor = getenv("EDITOR");
	}
	if (!editor || !editor[0]) {
		editor = "vi";
	}
	/* The shell in between must outlive Ctrl-C as well, and the editor must not ignore it. */
	if (snprintf(command, sizeof(command), "trap : INT QUIT; %s \"$1\"", editor) >=
	    (int)sizeof(command)) {
		return err_context(err, -ENAMETOOLONG, "EDITOR");
	}
	/* Ctrl-C is the editor's: it goes to all of the foreground, and we must outlive it. */
	sigaction(SIGINT, &ignore, &interrupt);
	sigaction(SIGQUIT, &ignore, &quit);
	pid = fork();
	if (pid == 0) {
		sigaction(SIGINT, &interrupt, NULL);
		sigaction(SIGQUIT, &quit, NULL);
		execl("/bin/sh", "sh", "-c", command, "sh", path, (char *)NULL);
		_exit(EXIT_NOT_FOUND);
	}
	rc = wait_for(pid, &status);
	sigaction(SIGINT, &interrupt, NULL);
	sigaction(SIGQUIT, &quit, NULL);
	if (rc < 0) {
		return err_context(err, rc, "cannot start the editor");
	}
	if (status == 0) {
		return 0;
	}
	rc = err_set(err, -EIO, "editor", "the editor failed (%s); the Boxfile is unchanged",
		     editor);
	err_mend(err, "set EDITOR to the editor that you use");
	return rc;
}

/* One round: edit, read, parse. Returns 0 with the new text, or a negative errno. */
static int edit_once(int sandbox_fd, const char *path, char **ret_text, size_t *ret_size,
		     struct err *err)
{
	_cleanup_(spec_freep) struct spec *spec = NULL;
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	int rc = run_editor(path, err);

	if (rc < 0) {
		return rc == -EINVAL ? -EIO : rc;
	}
	rc = read_file_at(sandbox_fd, EDIT_NAME, SPEC_FILE_MAX, &text, &size);
	if (rc < 0) {
		return err_context(err, rc, "cannot read what was edited");
	}
	rc = spec_parse(text, size, "Boxfile", &spec, err);
	if (rc < 0) {
		return rc;
	}
	*ret_text = TAKE_PTR(text);
	*ret_size = size;
	return 0;
}

static int edit_copy(int sandbox_fd, const char *path, struct err *err)
{
	_cleanup_free_ char *before = NULL;
	_cleanup_free_ char *text = NULL;
	size_t before_size = 0, size = 0;
	int rc = read_file_at(sandbox_fd, "Boxfile", SPEC_FILE_MAX, &before, &before_size);

	if (rc == 0) {
		rc = write_file_at(sandbox_fd, EDIT_NAME, before, before_size, 0600);
	}
	if (rc < 0) {
		return err_context(err, rc, "cannot copy the Boxfile");
	}
	while ((rc = edit_once(sandbox_fd, path, &text, &size, err)) == -EINVAL) {
		if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
			return rc;
		}
		cli_print_error(err);
		if (cli_confirm("edit it again?", NULL) <= 0) {
			return rc;
		}
	}
	if (rc < 0) {
		return rc;
	}
	if (size == before_size && memcmp(text, before, size) == 0) {
		fputs("nothing changed\n", stderr);
		return 0;
	}
	rc = write_file_at(sandbox_fd, "Boxfile", text, size, 0600);
	return rc < 0 ? err_context(err, rc, "cannot write the Boxfile") : 0;
}

int cli_edit(const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0];
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_close_ int sandbox_fd = -EBADF;
	char path[PATH_MAX];
	int rc;

	sandbox_fd = cli_open_sandbox(name, &store, err);
	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	snprintf(path, sizeof(path), "%s/sandboxes/%s/" EDIT_NAME, store.home, name);
	rc = edit_copy(sandbox_fd, path, err);
	unlinkat(sandbox_fd, EDIT_NAME, 0);
	return rc < 0 ? rc : EXIT_OK;
}

static void print_built(const char *name, const struct client_build_result *result)
{
	char image[TEXT_BYTES_MAX], snapshot[TEXT_BYTES_MAX];

	if (result->up_to_date) {
		printf("%s: nothing has changed (%.2f s)\n", name, (double)result->took_ns / 1e9);
		return;
	}
	text_format_bytes(result->image_bytes, image, sizeof(image));
	text_format_bytes(result->snapshot_bytes, snapshot, sizeof(snapshot));
	printf("%s: built in %.1f s (image %s, snapshot %s)\n", name, (double)result->took_ns / 1e9,
	       image, snapshot);
	printf("kernel of the machine: %s\n", result->guest_kernel);
	printf("kernel of this host:   %s\n", result->host_kernel);
}

int cli_build(const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0];
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_(spec_freep) struct spec *spec = NULL;
	struct client_build_result result;
	struct cli_progress *progress = NULL;
	struct client_build_options options = {
		.no_cache = cli_has(args, "no-cache"),
		.step = cli_progress_step,
		.detail = cli_progress_detail,
	};
	int rc = cli_check_engine(err);

	if (rc == 0) {
		rc = store_open(false, &store, err);
	}
	if (rc == 0) {
		rc = store_load_spec(&store, name, &spec, err);
	}
	if (rc == 0) {
		cli_print_notices(spec);
		/* What its machine would be refused for only after the image is made. */
		rc = give_ids(&store, name, spec, err);
	}
	if (rc == 0) {
		rc = cli_progress_start(name, &progress, err);
	}
	if (rc < 0) {
		return rc;
	}
	options.data = progress;
	rc = client_build(&store, name, &options, &result, err);
	cli_progress_end(progress);
	if (rc < 0) {
		return rc;
	}
	print_built(name, &result);
	return EXIT_OK;
}
