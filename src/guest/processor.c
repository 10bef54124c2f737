#include "guest/processor.h"

#include <cpuid.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "guest/spawn.h"

/* Which processors unbound workers may use, as a mask in hexadecimal (workqueue.rst, 6.1). */
#define WORKERS_PATH "/sys/devices/virtual/workqueue/cpumask"
/* The process ID of kthreadd: new threads of the kernel begin where it may run. */
#define KTHREADD 2

/* Whether there is something to undo in a child. */
static bool gathered;

/* process: 0 is the caller. mask: as long as a Boxfile's 16 processors need. */
static void set_affinity(long process, const uint64_t *mask)
{
	spawn_call(SYS_sched_setaffinity, process, sizeof(*mask), (long)(uintptr_t)mask);
}

bool processor_is_emulated(void)
{
	unsigned words[3], highest;
	char name[sizeof(words) + 1] = "";

	/* What the hypervisor calls itself. */
	__cpuid(0x40000000, highest, words[0], words[1], words[2]);
	(void)highest;
	memcpy(name, words, sizeof(words));
	return strcmp(name, "TCGTCGTCGTCG") == 0;
}

void processor_gather(void)
{
	static const uint64_t first = 1;
	_cleanup_close_ int fd = open(WORKERS_PATH, O_WRONLY | O_CLOEXEC);

	set_affinity(0, &first);
	set_affinity(KTHREADD, &first);
	(void)!write(fd, "1", 1);
	gathered = true;
}

void processor_spread(void)
{
	static const uint64_t all = UINT64_MAX;

	if (gathered) {
		set_affinity(0, &all);
	}
}
