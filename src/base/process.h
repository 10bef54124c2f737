/* What the kernel tells everybody of a process. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/*
 * Whether a thread of the process is in this state (proc(5), the third field of /proc/PID/stat):
 * 'D' waits for a disk, 'T' was stopped by a signal. False when that cannot be read.
 */
bool process_has_thread_in(pid_t pid, char state);

/*
 * Whether every thread of the process is on its way out of the kernel (PF_EXITING of the flags in
 * proc(5)): none can run a program's code or make a call any more; what is left is to give its
 * memory and its files back. False when that cannot be read.
 */
bool process_is_exiting(pid_t pid);
