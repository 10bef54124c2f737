/* What the kernel tells everybody of a process. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/*
 * Whether a thread of the process is in this state (proc(5), the third field of /proc/PID/stat):
 * 'D' waits for a disk, 'T' was stopped by a signal. False when that cannot be read.
 */
bool process_has_thread_in(pid_t pid, char state);
