#include "guest/warm.h"

#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "guest/processor.h"
#include "guest/spawn.h"

/* execve(2) needs a few hundred bytes of it. */
#define STACK_BYTES 16384

/* Runs beside process 1 in its memory, so it makes its calls without the C library's errno. */
static void enter(void *unused)
{
	static const char *const argv[] = {"box-guest", WARM_ARGUMENT, NULL};
	static const char *const envp[] = {NULL};

	(void)unused;
	processor_spread();
	spawn_call(SYS_execve, (long)(uintptr_t) "/proc/self/exe", (long)(uintptr_t)argv,
		   (long)(uintptr_t)envp);
	for (;;) {
		spawn_call(SYS_exit_group, EXIT_FAILURE, 0, 0);
	}
}

void warm_start(void)
{
	static _Alignas(16) uint8_t stack[STACK_BYTES];
	struct clone_args args = {
		.flags = CLONE_VM,
		.exit_signal = SIGCHLD,
		.stack = (uint64_t)(uintptr_t)stack,
		.stack_size = sizeof(stack),
	};

	/* Failing costs only time. */
	(void)spawn_clone(&args, enter, NULL);
}
