/*
 * What the log keeps of one command: two lines, and its output as far as log_output says.
 *
 * Lines (times are RFC 3339 in UTC with milliseconds; "argv" holds strings, bytes that are no UTF-8
 * as U+FFFD; "args_cut" is true when arguments were left out):
 *
 *   {"event":"start","id":ID,"time":T,"machine":"run"|"up","user":U,"directory":D,"terminal":B,
 *    "argv":[...]}
 *   {"event":"end","id":ID,"time":T,"started":T,"duration_ms":N,"exit_code":N or "signal":N or
 *    "error":TEXT,"timed_out":B,"stdout_bytes":N,"stderr_bytes":N,"stdout_kept":N,"stderr_kept":N}
 *   {"event":"up"|"down","time":T, ...}
 *
 * Nothing here ever fails to its caller: a log that cannot be written must not stop a machine. The
 * first failure is told once, by record_failure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/ipc.h"
#include "spec/spec.h"
#include "store/store.h"

struct record_log {
	struct store *store;
	const char *name;
	enum spec_log_output output;
	/* "run", "up" or "build". */
	const char *machine;
	/* The first failure, a negative errno, or 0. */
	int failure;
};

struct record;

/* RFC 3339 with milliseconds, in UTC, of CLOCK_REALTIME. */
#define RECORD_TIME_SIZE 32
void record_format_time(uint64_t realtime_ns, char out[static RECORD_TIME_SIZE]);

/* Takes the object over and appends it to the log called name (store/log.h); rc is what has failed
 * before. */
struct json;
void record_append(struct record_log *log, const char *name, struct json *object, int rc);

/*
 * Begins the record of a command: request is the joined EXEC payload (from the client, already
 * decoded once; size bytes). NULL is returned when there is no memory; all functions take NULL.
 */
struct record *record_begin(struct record_log *log, const char *id, const uint8_t *request,
			    size_t size);

/*
 * Writes an EXEC payload that record_begin would make the same record of, to out (WIRE_EXEC_MAX
 * bytes). Returns its size; 0 without a record, or a negative errno.
 */
int record_request(const struct record *record, uint8_t *out);

/* Bytes of channel 1 or 2 that the guest has sent. Never blocks on anything but the disk. */
void record_output(struct record *record, int channel, const void *bytes, size_t size);

/*
 * Copies what is kept so far of a channel, the newest at most size bytes, to out. Returns how many.
 */
size_t record_kept(const struct record *record, int channel, void *out, size_t size);

/* Writes the last line (exited as stream_result makes it) and frees the record. */
void record_end(struct record *record, const struct ipc_message *exited);

/* The machine itself came up ("up") or went ("down"); text says how, or is NULL. */
void record_event(struct record_log *log, const char *event, const char *text);

/*
 * Fills a JSON object with what IPC_LIST tells of a command: id, argv, user, directory, terminal,
 * started (RFC 3339), seconds, stdout_bytes, stderr_bytes. 0 or -ENOMEM.
 */
int record_to_json(const struct record *record, struct json *object);
