#include "client/copy_pump.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"

/* What an ordinary user may make a pipe hold: fs.pipe-max-size is 1 MiB by default. */
#define PIPE_BYTES (1 << 20)
/* Where the kernel cannot move pages itself. */
#define CHUNK_BYTES 65536
#define PROGRESS_NS 200000000u

int copy_pipe(int *ret_read, int *ret_write)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0) {
		return -errno;
	}
	/* More is faster, less works. */
	(void)fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES);
	*ret_read = ends[0];
	*ret_write = ends[1];
	return 0;
}

/*
 * Waits until fd is ready for events. Returns false when the other end of the target has gone, or
 * when it is to stop.
 */
static bool await(struct copy_pump *pump, int fd, short events)
{
	struct pollfd waits[3] = {
		{.fd = pump->stop_fd, .events = POLLIN},
		{.fd = fd, .events = events},
		{.fd = pump->to, .events = 0},
	};

	for (;;) {
		if (poll(waits, ARRAY_SIZE(waits), -1) < 0) {
			if (errno == EINTR) {
				continue;
			}
			return false;
		}
		if (waits[0].revents || (waits[2].revents & (POLLERR | POLLNVAL))) {
			return false;
		}
		if (waits[1].revents) {
			return true;
		}
	}
}

static void count(struct copy_pump *pump, size_t size)
{
	uint64_t now = pump->progress ? clock_monotonic_ns() : 0;

	pump->total += size;
	if (pump->progress && now - pump->told_ns >= PROGRESS_NS) {
		pump->told_ns = now;
		pump->progress(pump->data, pump->total);
	}
}

/* A regular file takes any amount at once; all else is asked for PIPE_BUF at a time. */
static size_t piece_of(int fd)
{
	struct stat status;

	return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) ? CHUNK_BYTES : PIPE_BUF;
}

static bool write_chunk(struct copy_pump *pump, const char *bytes, size_t size)
{
	size_t piece = piece_of(pump->to);

	while (size > 0) {
		ssize_t written;

		if (!await(pump, pump->to, POLLOUT)) {
			return false;
		}
		written = write(pump->to, bytes, MIN(size, piece));
		if (written < 0 && (errno == EINTR || errno == EAGAIN)) {
			continue;
		}
		if (written < 0) {
			pump->write_error = errno == EPIPE ? 0 : -errno;
			return false;
		}
		bytes += written;
		size -= (size_t)written;
		count(pump, (size_t)written);
	}
	return true;
}

/* Returns false when nothing more is to be done. */
static bool copy_chunk(struct copy_pump *pump)
{
	char bytes[CHUNK_BYTES];
	ssize_t got;

	if (!await(pump, pump->from, POLLIN)) {
		return false;
	}
	got = read(pump->from, bytes, sizeof(bytes));
	if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
		return true;
	}
	if (got < 0) {
		pump->read_error = -errno;
	}
	return got > 0 && write_chunk(pump, bytes, (size_t)got);
}

/* The same without a copy. */
static bool splice_chunk(struct copy_pump *pump)
{
	ssize_t moved;

	if (!await(pump, pump->from, POLLIN) || !await(pump, pump->to, POLLOUT)) {
		return false;
	}
	moved = splice(pump->from, NULL, pump->to, NULL, PIPE_BYTES, SPLICE_F_NONBLOCK);
	if (moved > 0) {
		count(pump, (size_t)moved);
		return true;
	}
	if (moved < 0 && (errno == EINTR || errno == EAGAIN)) {
		return true;
	}
	if (moved < 0 && errno != EPIPE) {
		/* Not with these two; the other way also tells which of them fails. */
		pump->no_splice = true;
		return true;
	}
	return false;
}

static void close_ours(int *fd)
{
	if (*fd > STDERR_FILENO) {
		close_fd(fd);
	}
}

static void *run(void *data)
{
	struct copy_pump *pump = data;

	while (pump->no_splice ? copy_chunk(pump) : splice_chunk(pump)) {
	}
	close_ours(&pump->from);
	close_ours(&pump->to);
	return NULL;
}

int copy_pump_start(struct copy_pump *pump)
{
	int rc = 0;

	pump->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (pump->stop_fd < 0) {
		rc = -errno;
	} else {
		rc = -pthread_create(&pump->thread, NULL, run, pump);
	}
	pump->running = rc == 0;
	if (rc < 0) {
		close_fd(&pump->stop_fd);
		close_ours(&pump->from);
		close_ours(&pump->to);
	}
	return rc;
}

void copy_pump_end(struct copy_pump *pump, bool stop)
{
	const uint64_t one = 1;

	if (!pump->running) {
		return;
	}
	if (stop) {
		(void)!write(pump->stop_fd, &one, sizeof(one));
	}
	pthread_join(pump->thread, NULL);
	pump->running = false;
	close_fd(&pump->stop_fd);
}
