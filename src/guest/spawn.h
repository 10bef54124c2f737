/*
 * clone3(2), which has no function in the C library.
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
