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
 * Whether no thread of the process can run a program's code or is inside a call: each was stopped
 * by a signal, or is on its way out of the kernel (PF_EXITING of the flags in proc(5)). The threads
 * are looked at one after the other, so it is true only of a process that cannot continue itself.
 * False when that cannot be read.
 */
bool process_has_stopped(pid_t pid);
