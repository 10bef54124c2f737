/*
 * A build's steps as they happen. On a terminal a thread writes one line over and over, so that the
 * time in it moves while the build itself waits; otherwise each step is a line of its own.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"

/* Fast enough to be seen moving, slow enough to cost nothing. */
#define TICK_NS 200000000
#define TEXT_SIZE 512

struct cli_progress {
	const char *name;
	bool terminal;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool ending;
	uint64_t began_ns;
	char step[TEXT_SIZE];
	char detail[TEXT_SIZE];
};

/*
 * Cuts text to a number of columns, whole characters only. From Hangul Jamo on a character is taken
 * to be two columns wide: many are, and a line that wraps could not be written over.
 */
static void cut(char *text, size_t columns)
{
	size_t seen = 0, i = 0, size = strlen(text);

	while (text[i]) {
		uint32_t code_point = 0;
		size_t length = text_utf8_decode(text + i, size - i, &code_point);

		seen += code_point >= 0x1100 ? 2 : 1;
		if (seen > columns) {
			break;
		}
		i += length > 0 ? length : 1;
	}
	text[i] = '\0';
}

/* The mutex is held. */
static void draw(const struct cli_progress *progress)
{
	char line[3 * TEXT_SIZE];
	double seconds = (double)(clock_monotonic_ns() - progress->began_ns) / 1e9;

	snprintf(line, sizeof(line), "%s: %5.1f s  %s%s%s", progress->name, seconds, progress->step,
		 progress->detail[0] ? ": " : "", progress->detail);
	cut(line, cli_terminal_columns(stderr) - 1);
	fprintf(stderr, "\r%s\033[K", line);
	fflush(stderr);
}

static void *tick(void *data)
{
	struct cli_progress *progress = data;

	pthread_mutex_lock(&progress->mutex);
	while (!progress->ending) {
		struct timespec until;

		draw(progress);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += TICK_NS;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		pthread_cond_timedwait(&progress->changed, &progress->mutex, &until);
	}
	pthread_mutex_unlock(&progress->mutex);
	return NULL;
}

static int start_thread(struct cli_progress *progress)
{
	sigset_t all, before;
	int rc;

	/* Signals are for the thread that waits for them. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&progress->thread, NULL, tick, progress);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

int cli_progress_start(const char *name, struct cli_progress **ret_progress, struct err *err)
{
	struct cli_progress *progress = calloc(1, sizeof(*progress));
	const char *terminal = getenv("TERM");
	int rc;

	if (!progress) {
		return err_context(err, -ENOMEM, "progress");
	}
	progress->name = name;
	progress->began_ns = clock_monotonic_ns();
	progress->terminal = cli_is_terminal(stderr) && terminal && strcmp(terminal, "dumb") != 0;
	pthread_mutex_init(&progress->mutex, NULL);
	pthread_cond_init(&progress->changed, NULL);
	rc = progress->terminal ? start_thread(progress) : 0;
	if (rc < 0) {
		free(progress);
		return err_context(err, rc, "progress");
	}
	*ret_progress = progress;
	return 0;
}

void cli_progress_step(void *data, const char *text)
{
	struct cli_progress *progress = data;

	if (!progress->terminal) {
		fprintf(stderr, "%s: %s\n", progress->name, text);
		return;
	}
	pthread_mutex_lock(&progress->mutex);
	snprintf(progress->step, sizeof(progress->step), "%s", text);
	progress->detail[0] = '\0';
	draw(progress);
	pthread_mutex_unlock(&progress->mutex);
}

void cli_progress_detail(void *data, const char *text)
{
	struct cli_progress *progress = data;

	/* A pipe gets the steps alone; the log has everything. */
	if (!progress->terminal) {
		return;
	}
	pthread_mutex_lock(&progress->mutex);
	snprintf(progress->detail, sizeof(progress->detail), "%s", text);
	pthread_mutex_unlock(&progress->mutex);
}

void cli_progress_end(struct cli_progress *progress)
{
	if (!progress) {
		return;
	}
	if (progress->terminal) {
		pthread_mutex_lock(&progress->mutex);
		progress->ending = true;
		pthread_cond_signal(&progress->changed);
		pthread_mutex_unlock(&progress->mutex);
		pthread_join(progress->thread, NULL);
		fputs("\r\033[K", stderr);
		fflush(stderr);
	}
	free(progress);
}
