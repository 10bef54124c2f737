/* Programs of the host that do for a normal user what only they may. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#define SYS_HELPERS_MAX 2

/*
 * Runs up to SYS_HELPERS_MAX programs side by side, with an empty environment and without input,
 * and waits until all have ended. An argv begins with the program's path. ret_words gets the first
 * line of what they say. Returns 0 when all have ended with 0, else a negative errno: -ETIMEDOUT
 * when they took longer than limit_ms and were killed, -ENOENT when one is not there.
 */
int sys_run_helpers(const char *const *const argvs[], size_t count, int limit_ms, char *ret_words,
		    size_t size);
