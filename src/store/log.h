/*
 * The log of a sandbox: log/NAME.jsonl, and what is kept of its commands' output.
 *
 * One line is one JSON object. Lines of several keepers do not mix: each is one write(2) to a file
 * opened for appending. When NAME.jsonl has grown over LOG_SIZE_MAX it becomes NAME.jsonl.1, whose
 * former content goes; outputs of the oldest commands go when there are more than LOG_OUTPUTS_MAX.
 * Files have mode 0600, directories 0700. Nothing is synced: a log may lose its end with the host.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "store/store.h"

/*
 * What a machine asked for on the network is a log of its own, under the sandbox's name with this
 * behind it: no sandbox has a "+" in its name.
 */
#define STORE_LOG_NET "+net"

/* Some 20,000 commands. */
#define LOG_SIZE_MAX ((uint64_t)4 << 20)
/* A line with more is cut by who makes it: arguments first. */
#define LOG_LINE_MAX ((size_t)16384)
#define LOG_OUTPUTS_MAX 1000
/* What log_output: tail keeps of one stream. */
#define LOG_TAIL_BYTES ((uint64_t)65536)

/* Appends one line (size bytes, without a newline at its end). 0 or a negative errno. */
int store_log_append(struct store *store, const char *name, const char *line, size_t size);

/*
 * Opens NAME.jsonl (older = false) or NAME.jsonl.1 for reading. A descriptor or a negative errno,
 * -ENOENT when there is none.
 */
int store_log_open(struct store *store, const char *name, bool older);

/*
 * Output of a command, channel 1 or 2. Creating makes room first (LOG_OUTPUTS_MAX). Returns a
 * descriptor (read-write when created, else read-only) or a negative errno; -ENOENT when nothing
 * was kept under that ID.
 */
int store_log_create_output(struct store *store, const char *name, const char *id, int channel);
int store_log_open_output(struct store *store, const char *name, const char *id, int channel);
