/*
 * clone3(2), which has no function in the C library, and calls for a process that it made.
 */
#pragma once

struct clone_args;

/*
 * Makes a process or thread as args says; it begins in entry(argument), which must not return, on
 * the stack of args, which must be given. Returns its ID in the caller, or a negative errno.
 *
 * With CLONE_VM both share all memory, errno included: without CLONE_VFORK entry must therefore not
 * call anything that may set it.
 */
long spawn_clone(const struct clone_args *args, void (*entry)(void *), void *argument);

/* A system call that leaves errno alone. Returns what the kernel does: a negative errno when it
 * failed. */
long spawn_call(long number, long first, long second, long third);
