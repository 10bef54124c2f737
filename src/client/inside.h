/*
 * Runs one of box-guest's own programs in a machine, as root, with this process at both ends of its
 * streams.
 */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

struct client_machine;

/* This process's end of one stream. */
struct inside_end {
	int fd;
	/* Readable when all is to end. */
	int stop_fd;
};

/* As read(2) and write_full, but for the stop: then -ECANCELED. */
ssize_t inside_read(const struct inside_end *end, void *data, size_t size);
int inside_write(const struct inside_end *end, const void *data, size_t size);

struct client_inside {
	/* NULL-terminated; the first says which program. */
	const char *const *argv;
	/*
	 * Called in threads of their own, with the program's input to write and its output to
	 * read. NULL: it has none. They return 0 or a negative errno with err filled; a reader that
	 * returns early ends the program.
	 */
	int (*write)(void *data, const struct inside_end *end, struct err *err);
	int (*read)(void *data, const struct inside_end *end, struct err *err);
	void *data;
};

/*
 * Runs it to its end. Returns 0 when it and both threads have ended well, else a negative errno
 * with err filled: -EINTR after a signal, -EIO ("inside") with what the program said on its
 * standard error, or what a thread returned.
 */
int client_run_inside(struct client_machine *machine, const struct client_inside *inside,
		      struct err *err);
