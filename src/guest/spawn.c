#include "guest/spawn.h"

#include <linux/sched.h>
#include <sys/syscall.h>

long spawn_clone(const struct clone_args *args, void (*entry)(void *), void *argument)
{
	register void (*entry_register)(void *) __asm__("r8") = entry;
	register void *argument_register __asm__("r9") = argument;
	long result = SYS_clone3;

	/* The child has another stack, so it must not go on in this function: it calls entry here.
	 */
	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %%r9, %%rdi\n\t"
			 "call *%%r8\n\t"
			 "ud2\n"
			 "1:"
			 : "+a"(result)
			 : "D"(args), "S"(sizeof(*args)), "r"(entry_register),
			   "r"(argument_register)
			 : "rcx", "r11", "memory", "cc");
	return result;
}

long spawn_call(long number, long first, long second, long third)
{
	__asm__ volatile("syscall"
			 : "+a"(number)
			 : "D"(first), "S"(second), "d"(third)
			 : "rcx", "r11", "memory");
	return number;
}
