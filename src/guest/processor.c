#include "guest/processor.h"

#include <cpuid.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

/* Which processors unbound workers may use, as a mask in hexadecimal (workqueue.rst, 6.1). */
#define WORKERS_PATH "/sys/devices/virtual/workqueue/cpumask"
/* The process ID of kthreadd: new threads of the kernel begin where it may run. */
#define KTHREADD 2

/* sched_setaffinity(2), 0 being the caller, without the C library's errno. */
__attribute__((no_sanitize("address"))) static long set_affinity(long process, const void *mask,
								 size_t size)
{
	long result = SYS_sched_setaffinity;

	__asm__ volatile("syscall"
			 : "+a"(result)
			 : "D"(process), "S"(size), "d"(mask)
			 : "rcx", "r11", "memory");
	return result;
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

	set_affinity(0, &first, sizeof(first));
	set_affinity(KTHREADD, &first, sizeof(first));
	(void)!write(fd, "1", 1);
}

__attribute__((no_sanitize("address"))) void processor_spread(void)
{
	/* A Boxfile gives a machine 16 at most. */
	static const uint64_t all = UINT64_MAX;

	set_affinity(0, &all, sizeof(all));
}
