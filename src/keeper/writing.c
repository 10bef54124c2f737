/*
 * The guest was told to write its disks, and to say when that is done. How long that takes is its
 * memory's and the host's disk's matter, so a guest that writes is waited for, up to a limit that
 * no honest one needs. One that does nothing is not: perhaps it only says that it obeys.
 *
 * What counts is what the host sees: a file of the machine's disks has changed, or the monitor
 * waits for the host's disk, as it does while much is flushed. Nothing that the guest says counts.
 */
#include <sys/stat.h>

#include "base/check.h"
#include "base/process.h"
#include "keeper/keeper.h"

/* Writing everything that the guest has cached can take long on a slow disk. */
#define WRITING_LIMIT_MS 300000
/* Ending thousands of processes and unmounting, in software emulation on a busy host, takes a few
 * seconds without a byte to write. */
#define IDLE_LOOKS_MAX 20
#define LOOK_EVERY_MS 1000

/* Something that is another number whenever a disk of the machine was written to. */
static uint64_t disks_stamp(const struct files *files)
{
	const int fds[] = {files->data_fd, files->base_fd, files->overlay_fd, files->image_fd};
	uint64_t stamp = 0;

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		struct stat status;

		if (fds[i] >= 0 && fstat(fds[i], &status) == 0) {
			stamp += (uint64_t)status.st_mtim.tv_sec * 1000000000u +
				 (uint64_t)status.st_mtim.tv_nsec + (uint64_t)status.st_blocks;
		}
	}
	return stamp;
}

static bool monitor_waits(const struct keeper *keeper)
{
	return keeper->engine && process_has_thread_in(engine_process(keeper->engine)->pid, 'D');
}

static void on_look(struct loop *loop, void *data)
{
	struct keeper *keeper = data;
	struct disk_watch *watch = &keeper->disk_watch;
	uint64_t stamp = disks_stamp(&keeper->files);

	watch->timer = 0;
	/* What is left to do once the guest has answered is the host's own. */
	if (keeper->snapshot_fd >= 0 ||
	    (keeper->phase != KEEPER_FREEZING && keeper->phase != KEEPER_GOING_DOWN)) {
		return;
	}
	watch->idle_looks++;
	if (stamp != watch->stamp || monitor_waits(keeper)) {
		watch->stamp = stamp;
		watch->idle_looks = 0;
	}
	if (watch->idle_looks >= IDLE_LOOKS_MAX) {
		keeper_fail_text(keeper, "guest-stuck",
				 "the guest was told to write its disks; it writes nothing, and "
				 "does not say that it is done",
				 "the machine was ended; what had been synced before is safe");
		return;
	}
	loop_timer_add(loop, LOOK_EVERY_MS, on_look, keeper, &watch->timer);
}

void writing_begin(struct keeper *keeper)
{
	struct disk_watch *watch = &keeper->disk_watch;

	keeper_set_limit(keeper, WRITING_LIMIT_MS);
	loop_timer_cancel(keeper->loop, &watch->timer);
	watch->stamp = disks_stamp(&keeper->files);
	watch->idle_looks = 0;
	loop_timer_add(keeper->loop, LOOK_EVERY_MS, on_look, keeper, &watch->timer);
}
