#include "base/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"

/* Enough to serve all streams in one turn without a large array on the stack. */
#define EVENTS_PER_WAIT 64

/* A hundred years: a longer delay is never, and must not wrap around to at once. */
#define DELAY_MAX_MS (UINT64_C(100) * 365 * 24 * 3600 * 1000)

struct watch {
	int fd;
	/* Told apart from an earlier watch of the same slot, so that stale events are dropped. */
	uint32_t generation;
	uint32_t events;
	loop_fd_callback *callback;
	void *data;
};

struct timer {
	uint64_t id;
	uint64_t due_ns;
	loop_timer_callback *callback;
	void *data;
};

struct loop {
	int epoll_fd;
	bool stopped;
	int status;
	unsigned watch_count;
	unsigned timer_count;
	uint64_t next_timer_id;
	struct watch watches[LOOP_WATCHES_MAX];
	struct timer timers[LOOP_TIMERS_MAX];
};

int loop_new(struct loop **ret_loop)
{
	struct loop *loop = calloc(1, sizeof(*loop));

	if (!loop) {
		return -ENOMEM;
	}
	loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epoll_fd < 0) {
		free(loop);
		return -errno;
	}
	for (unsigned i = 0; i < LOOP_WATCHES_MAX; i++) {
		loop->watches[i].fd = -EBADF;
	}
	*ret_loop = loop;
	return 0;
}

void loop_free(struct loop *loop)
{
	if (loop) {
		close_fd(&loop->epoll_fd);
		free(loop);
	}
}

static struct watch *find_watch(struct loop *loop, int fd)
{
	for (unsigned i = 0; i < LOOP_WATCHES_MAX; i++) {
		if (loop->watches[i].fd == fd) {
			return &loop->watches[i];
		}
	}
	return NULL;
}

static uint64_t event_key(const struct loop *loop, const struct watch *watch)
{
	return ((uint64_t)watch->generation << 32) | (uint64_t)(watch - loop->watches);
}

int loop_add(struct loop *loop, int fd, uint32_t events, loop_fd_callback *callback, void *data)
{
	struct epoll_event event = {.events = events};
	struct watch *watch;

	ASSERT(fd >= 0 && callback);
	if (find_watch(loop, fd)) {
		return -EEXIST;
	}
	watch = find_watch(loop, -EBADF);
	if (!watch) {
		return -ENOSPC;
	}
	watch->generation++;
	event.data.u64 = event_key(loop, watch);
	if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
		return -errno;
	}
	watch->fd = fd;
	watch->events = events;
	watch->callback = callback;
	watch->data = data;
	loop->watch_count++;
	return 0;
}

int loop_modify(struct loop *loop, int fd, uint32_t events)
{
	struct watch *watch = find_watch(loop, fd);
	struct epoll_event event = {.events = events};

	if (fd < 0 || !watch) {
		return -ENOENT;
	}
	if (watch->events == events) {
		return 0;
	}
	event.data.u64 = event_key(loop, watch);
	if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, fd, &event) < 0) {
		return -errno;
	}
	watch->events = events;
	return 0;
}

void loop_remove(struct loop *loop, int fd)
{
	struct watch *watch = fd >= 0 ? find_watch(loop, fd) : NULL;

	if (watch) {
		epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
		watch->fd = -EBADF;
		loop->watch_count--;
	}
}

int loop_timer_add(struct loop *loop, uint64_t delay_ms, loop_timer_callback *callback, void *data,
		   uint64_t *ret_timer)
{
	for (unsigned i = 0; i < LOOP_TIMERS_MAX; i++) {
		struct timer *timer = &loop->timers[i];

		if (timer->id != 0) {
			continue;
		}
		timer->id = ++loop->next_timer_id;
		timer->due_ns = clock_monotonic_ns() + MIN(delay_ms, DELAY_MAX_MS) * 1000000u;
		timer->callback = callback;
		timer->data = data;
		loop->timer_count++;
		*ret_timer = timer->id;
		return 0;
	}
	return -ENOSPC;
}

void loop_timer_cancel(struct loop *loop, uint64_t *timer)
{
	for (unsigned i = 0; *timer != 0 && i < LOOP_TIMERS_MAX; i++) {
		if (loop->timers[i].id == *timer) {
			loop->timers[i].id = 0;
			loop->timer_count--;
			break;
		}
	}
	*timer = 0;
}

/* Milliseconds until the next timer, rounded up, or -1 when there is none. */
static int next_timeout_ms(const struct loop *loop)
{
	uint64_t now = clock_monotonic_ns();
	uint64_t nearest = UINT64_MAX;

	if (loop->timer_count == 0) {
		return -1;
	}
	for (unsigned i = 0; i < LOOP_TIMERS_MAX; i++) {
		if (loop->timers[i].id != 0) {
			nearest = MIN(nearest, loop->timers[i].due_ns);
		}
	}
	if (nearest <= now) {
		return 0;
	}
	return (int)MIN((nearest - now + 999999u) / 1000000u, (uint64_t)60000);
}

static void run_due_timers(struct loop *loop)
{
	uint64_t now = clock_monotonic_ns();

	if (loop->timer_count == 0) {
		return;
	}
	for (unsigned i = 0; i < LOOP_TIMERS_MAX && !loop->stopped; i++) {
		struct timer timer = loop->timers[i];

		if (timer.id != 0 && timer.due_ns <= now) {
			loop->timers[i].id = 0;
			loop->timer_count--;
			timer.callback(loop, timer.data);
		}
	}
}

static void dispatch(struct loop *loop, const struct epoll_event *event)
{
	uint64_t key = event->data.u64;
	struct watch *watch = &loop->watches[key & (LOOP_WATCHES_MAX - 1)];

	if (watch->fd >= 0 && event_key(loop, watch) == key) {
		watch->callback(loop, watch->fd, event->events, watch->data);
	}
}

int loop_run(struct loop *loop)
{
	struct epoll_event events[EVENTS_PER_WAIT];

	loop->stopped = false;
	loop->status = 0;
	while (!loop->stopped && (loop->watch_count > 0 || loop->timer_count > 0)) {
		int count =
			epoll_wait(loop->epoll_fd, events, EVENTS_PER_WAIT, next_timeout_ms(loop));

		if (count < 0 && errno != EINTR) {
			return -errno;
		}
		for (int i = 0; i < count && !loop->stopped; i++) {
			dispatch(loop, &events[i]);
		}
		run_due_timers(loop);
	}
	return loop->status;
}

void loop_stop(struct loop *loop, int status)
{
	loop->stopped = true;
	loop->status = status;
}
