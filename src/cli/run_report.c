/* What `box run` and `box exec` tell when it is over: one object, or where the time went. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "json/json.h"

#define CHUNK_BYTES 65536

static void *read_stream(void *data)
{
	struct capture *capture = data;
	char chunk[CHUNK_BYTES];

	for (;;) {
		ssize_t got = read(capture->read_fd, chunk, sizeof(chunk));
		size_t kept;

		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got <= 0) {
			return NULL;
		}
		/* What is over the limit is read all the same, so that the command goes on. */
		kept = MIN((size_t)got, CAPTURE_MAX - capture->size);
		memcpy(capture->bytes + capture->size, chunk, kept);
		capture->size += kept;
		capture->total += (uint64_t)got;
	}
}

int capture_start(struct capture *capture, struct err *err)
{
	sigset_t all, before;
	int ends[2], rc;

	*capture = (struct capture){.write_fd = -EBADF, .read_fd = -EBADF};
	capture->bytes = malloc(CAPTURE_MAX);
	if (!capture->bytes) {
		return err_context(err, -ENOMEM, "run");
	}
	if (pipe2(ends, O_CLOEXEC) < 0) {
		return err_context(err, -errno, "run");
	}
	capture->read_fd = ends[0];
	capture->write_fd = ends[1];
	/* Signals are for the thread that forwards them. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&capture->thread, NULL, read_stream, capture);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	capture->running = rc == 0;
	return rc < 0 ? err_context(err, rc, "run") : 0;
}

void capture_end(struct capture *capture)
{
	close_fd(&capture->write_fd);
	if (capture->running) {
		pthread_join(capture->thread, NULL);
		capture->running = false;
	}
	close_fd(&capture->read_fd);
}

void capture_free(struct capture *capture)
{
	capture_end(capture);
	free(TAKE_PTR(capture->bytes));
}

/* The length of the valid UTF-8 at the start; a character that the limit cut is left out. */
static bool valid_utf8(const struct capture *capture, size_t *ret_size)
{
	size_t i = 0;

	while (i < capture->size) {
		size_t length = text_utf8_decode(capture->bytes + i, capture->size - i, NULL);

		if (length == 0) {
			*ret_size = i;
			return capture->total > capture->size && capture->size - i < 4;
		}
		i += length;
	}
	*ret_size = i;
	return true;
}

int capture_to_json(const struct capture *capture, const char *key, struct json *object)
{
	_cleanup_free_ char *encoded = NULL;
	char name[64];
	size_t size = 0;
	bool plain = valid_utf8(capture, &size);
	int rc;

	if (plain) {
		rc = json_set_bytes(object, key, capture->bytes ? capture->bytes : "", size);
	} else {
		encoded = text_base64(capture->bytes, capture->size);
		rc = encoded ? json_set_string(object, key, encoded) : -ENOMEM;
	}
	if (rc == 0) {
		snprintf(name, sizeof(name), "%s_encoding", key);
		rc = json_set_string(object, name, plain ? "utf-8" : "base64");
	}
	if (rc == 0) {
		snprintf(name, sizeof(name), "%s_bytes", key);
		rc = json_set_integer(object, name, (int64_t)capture->total);
	}
	if (rc == 0) {
		snprintf(name, sizeof(name), "%s_truncated", key);
		rc = json_set_boolean(object, name, capture->total > capture->size);
	}
	return rc;
}

/* CLOCK_MONOTONIC to "2026-01-31T12:00:00.123Z". */
static int set_time(struct json *object, const char *key, uint64_t monotonic_ns)
{
	uint64_t wall_ns = clock_realtime_ns() - (clock_monotonic_ns() - monotonic_ns);
	time_t seconds = (time_t)(wall_ns / 1000000000u);
	struct tm parts;
	char text[64];
	size_t length;

	if (monotonic_ns == 0 || !gmtime_r(&seconds, &parts)) {
		return json_set_null(object, key);
	}
	length = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
	snprintf(text + length, sizeof(text) - length, ".%03uZ",
		 (unsigned int)(wall_ns / 1000000u % 1000u));
	return json_set_string(object, key, text);
}

static int set_result(struct json *object, const struct run_report *report)
{
	const struct client_result *result = &report->result;
	bool signaled = report->finished && result->exit.kind == WIRE_SIGNALED;
	int rc = json_set_integer(object, "exit_code", report->exit_code);

	if (rc == 0) {
		rc = json_set_string(object, "id", result->id[0] ? result->id : NULL);
	}
	if (rc == 0) {
		rc = json_set_boolean(object, "detached", result->detached);
	}

	if (rc == 0) {
		rc = signaled ? json_set_integer(object, "signal", result->exit.value)
			      : json_set_null(object, "signal");
	}
	if (rc == 0) {
		rc = json_set_boolean(object, "timed_out", result->timed_out);
	}
	if (rc == 0) {
		rc = json_set_string(object, "network_limit",
				     result->limit[0] ? result->limit : NULL);
	}
	if (rc == 0) {
		rc = json_set_boolean(object, "interrupted", result->interrupted);
	}
	if (rc == 0) {
		rc = set_time(object, "started", result->started_ns);
	}
	if (rc == 0) {
		rc = set_time(object, "ended", result->ended_ns);
	}
	if (rc == 0 && result->ended_ns >= result->started_ns && result->ended_ns > 0) {
		rc = json_set_real(object, "duration_ms",
				   (double)(result->ended_ns - result->started_ns) / 1e6);
	}
	return rc;
}

static int set_machine(struct json *object, const struct run_report *report)
{
	const struct ipc_ready *ready = &report->ready;
	int rc;

	if (!report->started) {
		return json_set_null(object, "engine");
	}
	rc = json_set_string(object, "engine", ready->engine);
	if (rc == 0) {
		rc = json_set_boolean(object, "hardware", ready->hardware != 0);
	}
	if (rc == 0) {
		rc = json_set_boolean(object, "restored", ready->restored != 0);
	}
	if (rc == 0) {
		rc = json_set_string(object, "kernel", ready->release);
	}
	if (rc == 0 && ready->missing[0]) {
		rc = json_set_string(object, "missing", ready->missing);
	}
	return rc;
}

static int set_error(struct json *object, const struct run_report *report)
{
	struct json *error;
	int rc;

	if (!report->err.text[0]) {
		return json_set_null(object, "error");
	}
	error = json_new_object();
	rc = json_set_string(error, "code", report->err.code);
	if (rc == 0) {
		rc = json_set_string(error, "text", report->err.text);
	}
	if (rc == 0) {
		rc = json_set_string(error, "mend", report->err.mend);
	}
	if (rc < 0) {
		json_free(error);
		return rc;
	}
	return json_set_child(object, "error", error);
}

int run_print_json(const struct run_report *report, struct err *err)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	int rc = set_result(object, report);

	if (rc == 0) {
		rc = set_machine(object, report);
	}
	if (rc == 0) {
		rc = set_error(object, report);
	}
	if (rc == 0) {
		rc = capture_to_json(&report->out, "stdout", object);
	}
	if (rc == 0) {
		rc = capture_to_json(&report->errors, "stderr", object);
	}
	return rc < 0 ? err_context(err, rc, "JSON") : cli_print_json(object, err);
}

void run_print_trace(const struct run_report *report)
{
	const struct ipc_ready *ready = &report->ready;
	const struct {
		const char *what;
		uint64_t at_ns;
	} points[] = {
		{"client began", cli_began_ns},
		{"keeper began", ready->began_ns},
		{"monitor spawned", ready->spawned_ns},
		{ready->restored ? "snapshot restored" : "monitor running, booting",
		 ready->monitor_ns},
		{"guest ready", ready->ready_ns},
		{"command started", report->result.started_ns},
		{"command ended", report->result.ended_ns},
		{report->started ? "machine gone" : "all over", report->gone_ns},
	};
	uint64_t before = cli_began_ns;

	/* The first is where the others count from. */
	for (size_t i = 1; i < ARRAY_SIZE(points); i++) {
		uint64_t at = points[i].at_ns;

		if (at < before) {
			/* A point that was never reached. */
			continue;
		}
		fprintf(stderr, "box: trace: %9.2f ms  %s\n", (double)(at - before) / 1e6,
			points[i].what);
		before = at;
	}
	fprintf(stderr, "box: trace: %9.2f ms  in all\n", (double)(before - cli_began_ns) / 1e6);
	if (report->started && ready->boot_reason[0]) {
		fprintf(stderr, "box: trace: booted, not restored: %s\n", ready->boot_reason);
	}
}
