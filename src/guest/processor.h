/*
 * Emulated processors.
 *
 * Where the processors are software (QEMU's TCG), waking another one that is idle takes some 100
 * microseconds, and a spin lock that another one holds is waited for with QEMU's own lock in the
 * way. Mounting a file system wakes a dozen threads of the kernel. So process 1, and the workers of
 * the kernel that may run anywhere, keep to the first processor, new threads of the kernel begin
 * there, and commands get all of them.
 */
#pragma once

#include <stdbool.h>

/* Whether the processors are software. */
bool processor_is_emulated(void);

/* Keeps the calling process, the kernel's unbound workers and the beginnings of its threads to the
 * first processor. Failing costs only time. */
void processor_gather(void);

/* Gives the calling process every processor again. For each child of one that was kept to the
 * first; elsewhere it does nothing. Leaves errno alone: it may run beside its parent in the same
 * memory. */
void processor_spread(void);
