/*
 * Warming up an emulated processor.
 *
 * It translates code when that first runs after a restore, and this is most of what a machine's
 * first command waits for. So while process 1 mounts /data on one processor, another one runs a
 * process of box-guest itself that only starts and ends. The first command then finds the code of
 * the kernel that it needs translated. The machine is distinct by then, and nothing of the image is
 * run.
 */
#pragma once

/* The argument with which box-guest is then started; it ends at once. */
#define WARM_ARGUMENT "warm-up"

/* Starts the process and does not wait. It ends by itself and is reaped like any orphan. */
void warm_start(void);
