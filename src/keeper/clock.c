/*
 * The guest's clock follows the host's.
 *
 * A machine that was stopped, or whose host slept, goes on where it was. So the keeper asks the
 * guest for its time now and then, and at once when the kernel says that the host's clock has
 * jumped. The answer is as exact as the way was short: what comes late is asked again, and only a
 * difference that the way cannot explain is corrected, by a step that does not depend on when it
 * arrives. A guest that lies about its time gets a wrong clock and nothing else.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "keeper/keeper.h"

#define ASK_EVERY_MS 10000
/* A way of this length is good enough; a longer one is tried again, so often. */
#define WAY_GOOD_NS UINT64_C(10000000)
#define TRIES_MAX 8
/* What is not worth a step: programs notice steps. */
#define OFF_ALLOWED_NS INT64_C(5000000)

static void on_ask_timer(struct loop *loop, void *data)
{
	struct keeper *keeper = data;

	(void)loop;
	keeper->clock.timer = 0;
	clock_ask(keeper);
}

static void ask(struct keeper *keeper)
{
	uint8_t payload[8];
	int size = wire_time_encode(++keeper->clock.token, payload);

	keeper->clock.asked_ns = clock_monotonic_ns();
	if (control_send(keeper->control, WIRE_TIME, 0, 0, payload, (size_t)size) < 0) {
		/* It was not asked, so it will not answer. */
		keeper->clock.asked_ns = 0;
	}
}

/* Nothing is asked of a guest that has other answers to give. */
static bool may_ask(const struct keeper *keeper)
{
	return (keeper->phase == KEEPER_RUNNING && keeper->fork.stage <= FORK_SYNCING) ||
	       keeper->phase == KEEPER_WARM || keeper->phase == KEEPER_TAKEN;
}

void clock_ask(struct keeper *keeper)
{
	if (!may_ask(keeper)) {
		return;
	}
	loop_timer_cancel(keeper->loop, &keeper->clock.timer);
	loop_timer_add(keeper->loop, ASK_EVERY_MS, on_ask_timer, keeper, &keeper->clock.timer);
	if (keeper->clock.asked_ns == 0) {
		keeper->clock.tries = 0;
		ask(keeper);
	}
}

static void step(struct keeper *keeper, int64_t by_ns)
{
	uint8_t payload[8];
	int size = wire_clock_encode(by_ns, payload);

	control_send(keeper->control, WIRE_CLOCK, 0, 0, payload, (size_t)size);
}

int clock_answer(struct keeper *keeper, const struct wire_frame *frame)
{
	struct guest_clock *clock = &keeper->clock;
	uint64_t now_ns = clock_realtime_ns();
	uint64_t token, guest_ns, way_ns;
	int64_t ahead_ns;

	if (wire_time_answer_decode(frame->payload, frame->length, &token, &guest_ns) < 0 ||
	    clock->asked_ns == 0 || token != clock->token) {
		return -EBADMSG;
	}
	way_ns = clock_monotonic_ns() - clock->asked_ns;
	clock->asked_ns = 0;
	if (!may_ask(keeper)) {
		return 0;
	}
	ahead_ns = (int64_t)(guest_ns - (now_ns - way_ns / 2));
	if (way_ns > WAY_GOOD_NS && clock->tries < TRIES_MAX) {
		clock->tries++;
		ask(keeper);
	} else if (ahead_ns > OFF_ALLOWED_NS + (int64_t)(way_ns / 2) ||
		   ahead_ns < -OFF_ALLOWED_NS - (int64_t)(way_ns / 2)) {
		step(keeper, (int64_t)(0 - (uint64_t)ahead_ns));
	}
	return 0;
}

/* timerfd_create(2): a timer with TFD_TIMER_CANCEL_ON_SET ends with ECANCELED at each jump. */
static int arm(int fd)
{
	struct itimerspec never = {.it_value = {.tv_sec = INT32_MAX}};
	int flags = TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET;

	return timerfd_settime(fd, flags, &never, NULL) < 0 ? -errno : 0;
}

static void on_jump(struct loop *loop, int fd, uint32_t events, void *data)
{
	uint64_t count;

	(void)events;
	if (read(fd, &count, sizeof(count)) < 0 && errno == ECANCELED) {
		if (arm(fd) < 0) {
			loop_remove(loop, fd);
		}
		clock_ask(data);
	}
}

int clock_open(struct keeper *keeper)
{
	int rc;

	keeper->clock.jump_fd = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK | TFD_CLOEXEC);
	if (keeper->clock.jump_fd < 0) {
		return -errno;
	}
	rc = arm(keeper->clock.jump_fd);
	return rc < 0 ? rc
		      : loop_add(keeper->loop, keeper->clock.jump_fd, EPOLLIN, on_jump, keeper);
}

void clock_close(struct keeper *keeper)
{
	if (keeper->clock.jump_fd >= 0) {
		loop_remove(keeper->loop, keeper->clock.jump_fd);
	}
	close_fd(&keeper->clock.jump_fd);
}
