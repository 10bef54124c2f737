#include "guest/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "archive/archive.h"
#include "archive/extract.h"
#include "archive/target.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "guest/user.h"

/* What any user may make a pipe hold. More is faster, less works. */
#define PIPE_BYTES (1 << 20)

/* The signal that came, and what then takes the place of standard input. */
static volatile sig_atomic_t stopped_by;
static int null_fd = -EBADF;

/*
 * Ends the input, so that whoever reads it sees an archive that is cut short, cleans up and fails.
 * A call that waits for input returns by it; none can begin to wait after it.
 */
static void on_stop(int number)
{
	int saved_errno = errno;

	stopped_by = number;
	dup2(null_fd, STDIN_FILENO);
	errno = saved_errno;
}

static void watch_signals(void)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
	struct sigaction action = {.sa_handler = on_stop};

	null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < ARRAY_SIZE(signals) && null_fd >= 0; i++) {
		sigaction(signals[i], &action, NULL);
	}
}

/* Ends as the signal would have ended it. */
static void end_by_signal(int number)
{
	sigaction(number, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
	raise(number);
}

static int fail(const struct err *err)
{
	dprintf(STDERR_FILENO, "%s\n", err->text);
	return 1;
}

static int usage(void)
{
	struct err err = {0};

	err_set(&err, -EINVAL, "usage", "the command line of the copy cannot be read");
	return fail(&err);
}

int copy_out_main(int argc, char **argv)
{
	char name[ARCHIVE_COMPONENT_MAX + 1];
	uint64_t left_out = 0;
	struct err err = {0};
	int rc;

	if (argc != 2) {
		return usage();
	}
	(void)fcntl(STDOUT_FILENO, F_SETPIPE_SZ, PIPE_BYTES);
	rc = copy_source_name(argv[1], name, &err);
	if (rc == 0) {
		rc = archive_write_path(AT_FDCWD, argv[1], name[0] ? name : NULL, STDOUT_FILENO,
					&left_out, &err);
	}
	if (rc == 0 && left_out > 0) {
		dprintf(STDERR_FILENO, "%llu devices or fifos were left out\n",
			(unsigned long long)left_out);
	}
	return rc < 0 ? fail(&err) : 0;
}

/* How an archive is taken in. */
struct mode {
	const char *word;
	/* A name to give to the top, or a user. */
	bool has_name;
	bool has_user;
	/* The target must be a directory that is there. */
	bool into;
	enum extract_owner owner;
	bool keep_setuid;
};

static const struct mode modes[] = {
	{.word = "name", .has_name = true},
	{.word = "contents"},
	{.word = "stream", .into = true},
	{.word = "give", .has_user = true, .into = true, .owner = EXTRACT_OWNER_GIVEN},
	{.word = "owners", .into = true, .owner = EXTRACT_OWNER_ARCHIVE},
	{.word = "state", .into = true, .owner = EXTRACT_OWNER_ARCHIVE, .keep_setuid = true},
};

/* The mode that the command line asks for, or NULL when it cannot be read. */
static const struct mode *find_mode(int argc, char **argv)
{
	for (size_t i = 0; argc > 2 && i < ARRAY_SIZE(modes); i++) {
		if (strcmp(argv[1], modes[i].word) == 0 &&
		    argc == 3 + (modes[i].has_name || modes[i].has_user)) {
			return &modes[i];
		}
	}
	return NULL;
}

static int find_owner(const char *name, struct extract_options *options, struct err *err)
{
	struct user user;
	int rc = user_resolve("/etc/passwd", "/etc/group", name, &user);

	if (rc < 0) {
		char quoted[ARCHIVE_QUOTED_MAX];

		return err_set(err, rc, "no-user", "there is no user %s",
			       archive_quote(name, quoted));
	}
	options->uid = user.uid;
	options->gid = user.gid;
	options->keep_root = true;
	return 0;
}

static int extract(const struct mode *mode, const struct copy_target *target,
		   struct extract_options *options, struct err *err)
{
	const struct archive_options strict = {.keep_setuid = mode->keep_setuid};
	_cleanup_(archive_closep) struct archive_reader *reader = NULL;
	struct extract_result result;
	int rc;

	options->name = target->name[0] ? target->name : NULL;
	options->contents = target->contents;
	options->owner = mode->owner;
	rc = archive_open_plain_fd(STDIN_FILENO, &strict, &reader, err);
	if (rc == 0) {
		rc = archive_extract(reader, target->dir_fd, options, &result, err);
	}
	/* A disk that fails, or a host that is full, is seen by nobody afterwards: the way down of
	 * a machine has no place for errors, and then a half /data would take the whole one's. */
	if (rc == 0 && mode->owner != EXTRACT_OWNER_CALLER && syncfs(target->dir_fd) < 0) {
		rc = err_set(err, -errno, "copy-write",
			     "what was copied cannot be written to the disk: %s", strerror(errno));
	}
	return rc;
}

int copy_in_main(int argc, char **argv)
{
	const struct mode *mode = find_mode(argc, argv);
	struct extract_options options = {0};
	struct copy_target target;
	struct err err = {0};
	int rc;

	if (!mode) {
		return usage();
	}
	(void)fcntl(STDIN_FILENO, F_SETPIPE_SZ, PIPE_BYTES);
	rc = mode->has_user ? find_owner(argv[3], &options, &err) : 0;
	if (rc == 0) {
		rc = copy_target_open(argv[2], mode->has_name ? argv[3] : "", mode->into, &target,
				      &err);
	}
	if (rc == 0) {
		watch_signals();
		rc = extract(mode, &target, &options, &err);
		close_fd(&target.dir_fd);
		if (rc < 0 && stopped_by) {
			end_by_signal(stopped_by);
		}
	}
	return rc < 0 ? fail(&err) : 0;
}
