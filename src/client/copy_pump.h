/*
 * A thread that moves a stream from one descriptor to another and counts it.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct copy_pump {
	/* Descriptors that are not standard ones are taken over and closed at the end. */
	int from;
	int to;
	/* As in client_copy_options. */
	void (*progress)(void *data, uint64_t bytes);
	void *data;

	/* Afterwards: what failed, as a negative errno. A reader that is gone is no failure. */
	int read_error;
	int write_error;

	/* Its own. */
	int stop_fd;
	bool running;
	pthread_t thread;
	uint64_t total;
	uint64_t told_ns;
	bool no_splice;
};

/* Starts it. Returns 0 or a negative errno; the descriptors are closed then. */
int copy_pump_start(struct copy_pump *pump);

/* Waits until the stream has ended, or with stop, ends it. Safe when it never ran. */
void copy_pump_end(struct copy_pump *pump, bool stop);

/* Makes a close-on-exec pipe that holds much, where the system grants it. 0 or a negative errno. */
int copy_pipe(int *ret_read, int *ret_write);
