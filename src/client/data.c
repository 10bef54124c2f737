#include "client/data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "archive/target.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "client/copy.h"
#include "client/internal.h"
#include "spec/spec.h"

/* How much of a path is repeated in an error. */
#define PATH_SHOWN_MAX 256
#define GUEST_WORD_MAX (SPEC_NAME_MAX + sizeof(":/data/."))

/* Whether the machine that is up is the one that holds /data: it may have been started without. */
static bool holds_data(const struct client_machine *machine)
{
	_cleanup_close_ int run_fd = store_open_run(machine->store, machine->name, false, NULL);
	_cleanup_close_ int holder =
		run_fd < 0 ? run_fd : ipc_connect_at(run_fd, STORE_DATA_SOCKET);

	return holder >= 0 && client_peer_of(holder) != 0 &&
	       client_peer_of(holder) == client_peer_of(machine->socket);
}

/* Returns 1 with the machine that is up and holds /data, 0 when it is another one's. */
static int connect_up(struct store *store, const char *name, struct client_machine **ret_machine,
		      struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	struct err local = {0};
	int rc = client_connect(store, name, &machine, &local);

	if (rc == -ENOENT) {
		return 0;
	}
	if (rc < 0) {
		*err = local;
		return rc;
	}
	if (!holds_data(machine)) {
		return 0;
	}
	*ret_machine = TAKE_PTR(machine);
	return 1;
}

int client_open_data(struct store *store, const char *name,
		     const struct client_data_options *options,
		     struct client_data_machine *ret_machine, struct err *err)
{
	const struct client_start_options start = {
		.mode = IPC_START_RUN,
		.data = CLIENT_DATA_OWN,
		.helper = true,
		.stage = "",
		.notice = options->notice,
		.notice_data = options->data,
	};
	struct client_data_machine machine = {0};
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, err);
	struct err local = {0};
	int rc, lock;

	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	lock = store_open_data(sandbox_fd, false, &local);
	if (lock < 0 && lock != -EAGAIN) {
		*err = local;
		return lock;
	}
	rc = lock == -EAGAIN && store_is_up(sandbox_fd)
		     ? connect_up(store, name, &machine.machine, err)
		     : 0;
	close_fd(&lock);
	if (rc == 0) {
		machine.helper = true;
		rc = client_start(store, name, &start, &machine.machine, err);
	}
	if (rc < 0) {
		return rc;
	}
	*ret_machine = machine;
	return 0;
}

int client_close_data(struct client_data_machine *machine, bool failed, struct err *err)
{
	int rc = 0;

	if (machine->machine && machine->helper && !failed) {
		rc = client_stop(machine->machine, err);
	}
	client_machine_free(machine->machine);
	machine->machine = NULL;
	return rc;
}

/* A path of the host as client_copy takes it for one: without a colon before the first slash, and
 * without slashes at its end. */
static int host_word(const char *path, const char *suffix, char ret_word[PATH_MAX + 8],
		     struct err *err)
{
	size_t length = strlen(path);

	while (length > 1 && path[length - 1] == '/') {
		length--;
	}
	if (length == 0 || length >= PATH_MAX) {
		err_set(err, -EINVAL, "data-path", "that is no path of a directory");
		err_mend(err, "name a directory of this host");
		return -EINVAL;
	}
	snprintf(ret_word, PATH_MAX + 8, "%s%.*s%s", path[0] == '/' ? "" : "./", (int)length, path,
		 suffix);
	return 0;
}

static int path_failed(const char *path, int rc, const char *why, struct err *err)
{
	char quoted[PATH_SHOWN_MAX * TEXT_QUOTE_GROWTH + 1];

	text_quote(path, strnlen(path, PATH_SHOWN_MAX), quoted, sizeof(quoted));
	return err_set(err, rc, rc == -ENOTEMPTY ? "not-empty" : "data-path", "\"%s\": %s", quoted,
		       why);
}

static int check_source(const char *path, struct err *err)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = fd < 0 ? -errno : 0;

	if (rc < 0) {
		path_failed(path, rc, strerror(-rc), err);
		err_mend(err, "name a directory; `box cp` copies single files");
	}
	return rc;
}

/* New, or a directory with nothing in it. */
static int check_target(const char *path, struct err *err)
{
	DIR *directory = opendir(path);
	const struct dirent *entry;
	struct copy_target target;
	int rc = directory || errno == ENOENT ? 0 : -errno;

	if (!directory && rc == 0) {
		/* Whether it can be made is better known before a machine is started. */
		rc = copy_target_open(path, "", false, &target, err);
		if (rc < 0) {
			return rc;
		}
		close(target.dir_fd);
	}

	while (directory && (entry = readdir(directory))) {
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
			rc = -ENOTEMPTY;
		}
	}
	if (directory) {
		closedir(directory);
	}
	if (rc == -ENOTEMPTY) {
		path_failed(path, rc, "it is not empty", err);
		err_mend(err, "name a new directory, or an empty one; `box cp NAME:/data/. DIR` "
			      "writes into one with something in it");
	} else if (rc < 0) {
		path_failed(path, rc, strerror(-rc), err);
		err_mend(err, "name a new directory, or an empty one");
	}
	return rc;
}

/* One copy in or out, with a machine that has /data. */
static int copy(struct store *store, const char *name, struct client_copy_options *copy,
		const struct client_data_options *options, struct err *err)
{
	struct client_data_machine machine = {0};
	struct err stop_err = {0};
	int rc = client_open_data(store, name, options, &machine, err);
	int stopped;

	if (rc < 0) {
		return rc;
	}
	copy->machine = machine.machine;
	copy->user = "root";
	copy->progress = options->progress;
	copy->notice = options->notice;
	copy->data = options->data;
	rc = client_copy(store, copy, err);
	/* What was copied before a failure is to stay, so it is written all the same. */
	stopped = client_close_data(&machine, rc == -EINTR, &stop_err);
	if (rc == 0 && stopped < 0) {
		*err = stop_err;
		rc = stopped;
	}
	return rc;
}

int client_data_import(struct store *store, const char *name, const char *directory,
		       const struct client_data_options *options, struct err *err)
{
	_cleanup_(spec_freep) struct spec *spec = NULL;
	char source[PATH_MAX + 8], target[GUEST_WORD_MAX];
	struct client_copy_options into = {.source = source, .target = target, .verb = "give"};
	int rc = host_word(directory, "/.", source, err);

	if (rc == 0) {
		rc = check_source(directory, err);
	}
	if (rc == 0) {
		rc = store_load_spec(store, name, &spec, err);
	}
	if (rc < 0) {
		return rc;
	}
	into.give_to = spec->user;
	snprintf(target, sizeof(target), "%s:/data", name);
	return copy(store, name, &into, options, err);
}

int client_data_export(struct store *store, const char *name, const char *directory,
		       const struct client_data_options *options, struct err *err)
{
	char source[GUEST_WORD_MAX], target[PATH_MAX + 8];
	struct client_copy_options out = {.source = source, .target = target};
	int rc = host_word(directory, "", target, err);

	if (rc == 0) {
		/* Without slashes at its end. */
		rc = check_target(target, err);
	}
	if (rc < 0) {
		return rc;
	}
	snprintf(source, sizeof(source), "%s:/data/.", name);
	return copy(store, name, &out, options, err);
}
