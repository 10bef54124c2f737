/*
 * What flows in: the request of a command, which its client has made, and its output, which the
 * guest has made. What flows out: lines and files of the log (store/log.h). What may never happen:
 * a value of the environment in the log, a line that another line can be hidden in, and a machine
 * that stops because its log cannot be written.
 */
#include "keeper/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/mutant.h"
#include "json/json.h"
#include "store/log.h"
#include "wire/ctl.h"

/* What log_output: full keeps of one stream. A command that writes more writes without end. */
#define FULL_MAX ((uint64_t)1 << 30)
/* What a terminal shows to somebody who attaches again: a few screens and what scrolled by. */
#define RING_BYTES ((size_t)65536)
/* What a file with the tail may grow to before it is cut back: cutting costs three system calls,
 * and so they are rare beside the writes. */
#define TAIL_ROOM (16 * LOG_TAIL_BYTES)

/*
 * How the room of a line is shared out, in bytes as JSON writes them. What is left over is for the
 * keys, the ID and the times.
 */
#define USER_ROOM ((size_t)512)
#define DIRECTORY_ROOM ((size_t)4096)
#define ARGS_ROOM ((size_t)11000)
/* Of the text of an event or error. */
#define TEXT_ROOM ((size_t)4096)

/* One of the two streams. */
struct kept {
	/* -EBADF until the first byte. */
	int fd;
	/* A write has failed: what is in the file stays, nothing more is written. */
	bool failed;
	/* What the guest has sent. */
	uint64_t total;
	/* Bytes in the file. */
	uint64_t size;
};

struct record {
	struct record_log *log;
	char id[IPC_ID_SIZE];
	char *user;
	char *directory;
	bool terminal;
	/* NUL-terminated strings one after the other. */
	char *args;
	size_t arg_count;
	bool args_cut;
	uint64_t began_ns;
	char began[RECORD_TIME_SIZE];
	struct kept kept[2];
	/* The last bytes of a terminal, or NULL; filled up to its size, then a ring. */
	uint8_t *ring;
	size_t ring_next;
	size_t ring_filled;
};

static void note_failure(struct record_log *log, int rc)
{
	if (rc < 0 && log->failure == 0) {
		log->failure = rc;
	}
}

void record_format_time(uint64_t realtime_ns, char out[static RECORD_TIME_SIZE])
{
	time_t seconds = (time_t)(realtime_ns / 1000000000u);
	struct tm utc;
	size_t length;

	gmtime_r(&seconds, &utc);
	length = strftime(out, RECORD_TIME_SIZE, "%Y-%m-%dT%H:%M:%S", &utc);
	snprintf(out + length, RECORD_TIME_SIZE - length, ".%03uZ",
		 (unsigned)(realtime_ns / 1000000u % 1000u));
}

/* What JSON makes of a byte, at most: an escape, or U+FFFD for what is no UTF-8. */
static size_t weight_of(unsigned char byte)
{
	if (byte < 0x20) {
		return 6;
	}
	if (byte >= 0x80) {
		return 3;
	}
	return byte == '"' || byte == '\\' ? 2 : 1;
}

/* How many bytes of text fit into *room, which becomes less by them. Cuts between characters. */
static size_t fit(const char *text, size_t *room)
{
	size_t length = 0, used = 0, ends[4];

	while (text[length] && used + weight_of((unsigned char)text[length]) <= *room) {
		ends[length % ARRAY_SIZE(ends)] = used;
		used += weight_of((unsigned char)text[length]);
		length++;
	}
	/* The next byte continues a character: that one goes, if it is one of four bytes at most.
	 */
	for (size_t i = 0;
	     text[length] && i < 3 && length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80;
	     i++) {
		length--;
		used = ends[length % ARRAY_SIZE(ends)];
	}
	*room -= used;
	return length;
}

static char *copy_cut(const char *text, size_t room)
{
	return strndup(text, fit(text, &room));
}

/* Copies as much of the arguments as a line can hold; the last one may be a beginning. */
static int copy_args(struct record *record, const char *const *argv, size_t count)
{
	size_t room = ARGS_ROOM, filled = 0;

	/* No byte has a weight below 1, so no more than the room is ever copied, with its NULs. */
	record->args = malloc(ARGS_ROOM + 1);
	if (!record->args) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < count && !record->args_cut; i++) {
		size_t length;

		/* Two quotation marks and a comma. */
		if (room < 3) {
			record->args_cut = true;
			break;
		}
		room -= 3;
		length = fit(argv[i], &room);
		record->args_cut = argv[i][length] != '\0';
		memcpy(record->args + filled, argv[i], length);
		record->args[filled + length] = '\0';
		filled += length + 1;
		record->arg_count++;
	}
	return 0;
}

static void free_record(struct record *record)
{
	if (record) {
		close_fd(&record->kept[0].fd);
		close_fd(&record->kept[1].fd);
		free(record->user);
		free(record->directory);
		free(record->args);
		free(record->ring);
		free(record);
	}
}

static void free_recordp(struct record **record)
{
	free_record(*record);
}

static int fill_record(struct record *record, const uint8_t *request, size_t size)
{
	_cleanup_free_ const char **argv = calloc(WIRE_ARGS_MAX + 1, sizeof(*argv));
	_cleanup_free_ const char **envp = calloc(WIRE_ARGS_MAX + 1, sizeof(*envp));
	struct wire_exec exec;
	int rc;

	if (!argv || !envp) {
		return -ENOMEM;
	}
	rc = wire_exec_decode(request, size, &exec, argv, envp);
	if (rc < 0) {
		return rc;
	}
	record->terminal = (exec.flags & WIRE_EXEC_TERMINAL) != 0;
	record->user = copy_cut(exec.user, USER_ROOM);
	record->directory = copy_cut(exec.directory, DIRECTORY_ROOM);
	record->ring = record->terminal ? malloc(RING_BYTES) : NULL;
	if (!record->user || !record->directory || (record->terminal && !record->ring)) {
		return -ENOMEM;
	}
	return copy_args(record, argv, exec.argc);
}

int record_request(const struct record *record, uint8_t *out)
{
	_cleanup_free_ const char **argv = NULL;
	struct wire_exec exec = {0};
	const char *arg;

	if (!record) {
		return 0;
	}
	argv = calloc(record->arg_count + 1, sizeof(*argv));
	if (!argv) {
		return -ENOMEM;
	}
	arg = record->args;
	for (size_t i = 0; i < record->arg_count; i++) {
		argv[i] = arg;
		arg += strlen(arg) + 1;
	}
	exec.flags = record->terminal ? WIRE_EXEC_TERMINAL : 0;
	exec.user = record->user;
	exec.directory = record->directory;
	exec.argc = (uint32_t)record->arg_count;
	return wire_exec_encode(&exec, argv, NULL, out);
}

/* Appends an object as a line and frees it. rc is what making it has come to. */
void record_append(struct record_log *log, const char *name, struct json *object, int rc)
{
	_cleanup_free_ char *line = NULL;

	if (rc == 0) {
		rc = json_dump(object, 0, &line);
	}
	json_free(object);
	if (rc == 0) {
		rc = store_log_append(log->store, name, line, strlen(line));
	}
	note_failure(log, rc);
}

static struct json *args_to_json(const struct record *record)
{
	_cleanup_(json_freep) struct json *array = json_new_array();
	const char *arg = record->args;

	for (size_t i = 0; array && i < record->arg_count; i++) {
		if (json_append_string(array, arg) < 0) {
			return NULL;
		}
		arg += strlen(arg) + 1;
	}
	return TAKE_PTR(array);
}

/* What is known of a command from its beginning on. */
static int put_command(const struct record *record, struct json *object)
{
	if (json_set_string(object, "id", record->id) < 0 ||
	    json_set_string(object, "user", record->user) < 0 ||
	    json_set_string(object, "directory", record->directory) < 0 ||
	    json_set_boolean(object, "terminal", record->terminal) < 0 ||
	    json_set_child(object, "argv", args_to_json(record)) < 0 ||
	    (record->args_cut && json_set_boolean(object, "args_cut", true) < 0)) {
		return -ENOMEM;
	}
	return 0;
}

static void write_start(const struct record *record)
{
	struct json *object = json_new_object();
	int rc = put_command(record, object);

	if (rc == 0 && (json_set_string(object, "event", "start") < 0 ||
			json_set_string(object, "time", record->began) < 0 ||
			json_set_string(object, "machine", record->log->machine) < 0)) {
		rc = -ENOMEM;
	}
	record_append(record->log, record->log->name, object, rc);
}

struct record *record_begin(struct record_log *log, const char *id, const uint8_t *request,
			    size_t size)
{
	_cleanup_(free_recordp) struct record *record = calloc(1, sizeof(*record));
	int rc;

	if (!record) {
		note_failure(log, -ENOMEM);
		return NULL;
	}
	record->log = log;
	record->kept[0].fd = record->kept[1].fd = -EBADF;
	record->began_ns = clock_monotonic_ns();
	record_format_time(clock_realtime_ns(), record->began);
	snprintf(record->id, sizeof(record->id), "%s", id);
	rc = fill_record(record, request, size);
	if (rc < 0) {
		note_failure(log, rc);
		return NULL;
	}
	write_start(record);
	return TAKE_PTR(record);
}

/* Writes at an offset, all of it; on failure the file is left with what it had before. */
static int write_at(int fd, const void *bytes, size_t size, uint64_t offset)
{
	const uint8_t *at = bytes;

	while (size > 0) {
		ssize_t written = pwrite(fd, at, size, (off_t)offset);

		if (written < 0 && errno == EINTR) {
			continue;
		}
		if (written <= 0) {
			return written < 0 ? -errno : -ENOSPC;
		}
		at += written;
		offset += (uint64_t)written;
		size -= (size_t)written;
	}
	return 0;
}

/* Moves the last LOG_TAIL_BYTES of the file to its front and cuts it there. */
static int cut_to_tail(struct kept *kept)
{
	uint8_t bytes[LOG_TAIL_BYTES];
	ssize_t got = pread(kept->fd, bytes, sizeof(bytes), (off_t)(kept->size - sizeof(bytes)));
	int rc;

	if (got != (ssize_t)sizeof(bytes)) {
		return got < 0 ? -errno : -EIO;
	}
	rc = write_at(kept->fd, bytes, sizeof(bytes), 0);
	if (rc < 0) {
		return rc;
	}
	if (ftruncate(kept->fd, (off_t)sizeof(bytes)) < 0) {
		return -errno;
	}
	kept->size = sizeof(bytes);
	return 0;
}

static int keep_full(struct kept *kept, const uint8_t *bytes, size_t size)
{
	size = (size_t)MIN((uint64_t)size, FULL_MAX - kept->size);
	if (size > 0) {
		int rc = write_at(kept->fd, bytes, size, kept->size);

		if (rc < 0) {
			return rc;
		}
		kept->size += size;
	}
	return 0;
}

/*
 * Lets the file grow to TAIL_ROOM before its end is moved to the front: so hardly a byte is written
 * twice, and nearly every call is one pwrite(2).
 */
static int keep_tail(struct kept *kept, const uint8_t *bytes, size_t size)
{
	while (size > 0) {
		size_t part = MIN(size, (size_t)LOG_TAIL_BYTES);
		int rc = 0;

		if (kept->size + part > TAIL_ROOM) {
			rc = cut_to_tail(kept);
		}
		if (rc == 0) {
			rc = write_at(kept->fd, bytes, part, kept->size);
		}
		if (rc < 0) {
			return rc;
		}
		kept->size += part;
		bytes += part;
		size -= part;
	}
	return 0;
}

static void fill_ring(struct record *record, const uint8_t *bytes, size_t size)
{
	size_t first;

	if (size > RING_BYTES) {
		bytes += size - RING_BYTES;
		size = RING_BYTES;
	}
	first = MIN(size, RING_BYTES - record->ring_next);
	memcpy(record->ring + record->ring_next, bytes, first);
	memcpy(record->ring, bytes + first, size - first);
	record->ring_next = (record->ring_next + size) % RING_BYTES;
	record->ring_filled = MIN(record->ring_filled + size, RING_BYTES);
}

void record_output(struct record *record, int channel, const void *bytes, size_t size)
{
	struct kept *kept;
	int rc = 0;

	if (!record || size == 0) {
		return;
	}
	ASSERT(channel == 1 || channel == 2);
	kept = &record->kept[channel - 1];
	kept->total += size;
	if (record->ring && channel == 1) {
		fill_ring(record, bytes, size);
	}
	if (record->log->output == SPEC_LOG_NONE || kept->failed) {
		return;
	}
	if (kept->fd < 0) {
		kept->fd = store_log_create_output(record->log->store, record->log->name,
						   record->id, channel);
		rc = kept->fd < 0 ? kept->fd : 0;
	}
	if (rc == 0) {
		rc = record->log->output == SPEC_LOG_FULL || MUTANT("log")
			     ? keep_full(kept, bytes, size)
			     : keep_tail(kept, bytes, size);
	}
	if (rc < 0) {
		kept->failed = true;
		note_failure(record->log, rc);
	}
}

static size_t read_ring(const struct record *record, uint8_t *out, size_t size)
{
	size_t wanted = MIN(size, record->ring_filled);
	size_t start = (record->ring_next + RING_BYTES - wanted) % RING_BYTES;
	size_t first = MIN(wanted, RING_BYTES - start);

	memcpy(out, record->ring + start, first);
	memcpy(out + first, record->ring, wanted - first);
	return wanted;
}

size_t record_kept(const struct record *record, int channel, void *out, size_t size)
{
	const struct kept *kept;
	size_t wanted, filled = 0;
	uint8_t *bytes = out;

	if (!record) {
		return 0;
	}
	ASSERT(channel == 1 || channel == 2);
	if (record->ring && channel == 1) {
		return read_ring(record, out, size);
	}
	kept = &record->kept[channel - 1];
	wanted = (size_t)MIN((uint64_t)size, kept->fd < 0 ? 0 : kept->size);
	while (filled < wanted) {
		ssize_t got = pread(kept->fd, bytes + filled, wanted - filled,
				    (off_t)(kept->size - wanted + filled));

		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got <= 0) {
			break;
		}
		filled += (size_t)got;
	}
	return filled;
}

/* The file as it stays: whole, or its tail. */
static void finish_kept(struct record_log *log, struct kept *kept)
{
	int rc = 0;

	if (kept->fd < 0) {
		return;
	}
	if (log->output == SPEC_LOG_TAIL && kept->size > LOG_TAIL_BYTES) {
		rc = cut_to_tail(kept);
	} else if (kept->failed && ftruncate(kept->fd, (off_t)kept->size) < 0) {
		/* What a failed write has left behind does not count. */
		rc = -errno;
	}
	note_failure(log, rc);
	close_fd(&kept->fd);
}

static int put_integer(struct json *object, const char *key, uint64_t value)
{
	return json_set_integer(object, key, (int64_t)MIN(value, (uint64_t)INT64_MAX));
}

static int put_exit(struct json *object, const struct wire_exit *exit)
{
	switch (exit->kind) {
	case WIRE_EXITED:
		return put_integer(object, "exit_code", exit->value);
	case WIRE_SIGNALED:
		return put_integer(object, "signal", exit->value);
	default:
		return json_set_string(object, "error", strerror((int)MIN(exit->value, 4095u)));
	}
}

/* The result, for a machine that went down with its command too (exited is NULL). */
static int put_result(const struct record *record, struct json *object,
		      const struct ipc_message *exited)
{
	uint64_t duration_ns = clock_monotonic_ns() - record->began_ns;
	uint64_t totals[2] = {record->kept[0].total, record->kept[1].total};
	int rc;

	if (exited) {
		totals[0] = exited->exited.stdout_bytes;
		totals[1] = exited->exited.stderr_bytes;
		rc = put_exit(object, &exited->exited.exit);
		if (exited->exited.started_ns != 0 &&
		    exited->exited.ended_ns >= exited->exited.started_ns) {
			duration_ns = exited->exited.ended_ns - exited->exited.started_ns;
		}
	} else {
		rc = json_set_string(object, "error", "the machine ended before the command");
	}
	if (rc < 0 || put_integer(object, "duration_ms", duration_ns / 1000000u) < 0 ||
	    json_set_boolean(object, "timed_out", exited && exited->exited.timed_out) < 0 ||
	    put_integer(object, "stdout_bytes", totals[0]) < 0 ||
	    put_integer(object, "stderr_bytes", totals[1]) < 0 ||
	    put_integer(object, "stdout_kept", record->kept[0].size) < 0 ||
	    put_integer(object, "stderr_kept", record->kept[1].size) < 0) {
		return -ENOMEM;
	}
	return 0;
}

void record_end(struct record *record, const struct ipc_message *exited)
{
	struct json *object;
	char now[RECORD_TIME_SIZE];
	int rc = 0;

	if (!record) {
		return;
	}
	for (size_t i = 0; i < ARRAY_SIZE(record->kept); i++) {
		finish_kept(record->log, &record->kept[i]);
	}
	record_format_time(clock_realtime_ns(), now);
	object = json_new_object();
	if (json_set_string(object, "event", "end") < 0 ||
	    json_set_string(object, "id", record->id) < 0 ||
	    json_set_string(object, "time", now) < 0 ||
	    json_set_string(object, "started", record->began) < 0) {
		rc = -ENOMEM;
	}
	if (rc == 0) {
		rc = put_result(record, object, exited);
	}
	record_append(record->log, record->log->name, object, rc);
	free_record(record);
}

void record_event(struct record_log *log, const char *event, const char *text)
{
	_cleanup_free_ char *cut = text ? copy_cut(text, TEXT_ROOM) : NULL;
	struct json *object = json_new_object();
	char now[RECORD_TIME_SIZE];
	int rc = 0;

	record_format_time(clock_realtime_ns(), now);
	if (json_set_string(object, "event", event) < 0 ||
	    json_set_string(object, "time", now) < 0 ||
	    json_set_string(object, "machine", log->machine) < 0 ||
	    (cut && json_set_string(object, "text", cut) < 0)) {
		rc = -ENOMEM;
	}
	record_append(log, log->name, object, rc);
}

int record_to_json(const struct record *record, struct json *object)
{
	uint64_t now = clock_monotonic_ns();

	if (!record) {
		return -ENOMEM;
	}
	if (put_command(record, object) < 0 ||
	    json_set_string(object, "started", record->began) < 0 ||
	    put_integer(object, "seconds", (now - record->began_ns) / 1000000000u) < 0 ||
	    put_integer(object, "stdout_bytes", record->kept[0].total) < 0 ||
	    put_integer(object, "stderr_bytes", record->kept[1].total) < 0) {
		return -ENOMEM;
	}
	return 0;
}
