/* What every run of QEMU has in common, with a machine or without. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/engine.h"
#include "jail/jail.h"

#define QEMU_PATH "/usr/bin/qemu-system-x86_64"
#define QEMU_TCG_MODULE "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so"
/* Where firmware lies inside the jail; QEMU is told with -L. */
#define MONITOR_FIRMWARE "/firmware"

/* Whether it is installed. 0 or a negative errno with err filled ("no-qemu"). */
int monitor_check(struct err *err);

/* Puts its program into a jail, and what it emulates processors with. 0 or a negative errno. */
int monitor_add_program(struct jail *jail, bool emulates, struct err *err);

/* The same for the firmware of a machine; boots: one that does not restore a snapshot. */
int monitor_add_firmware(struct jail *jail, bool boots, struct err *err);

/* Sets policy and limits for so much guest memory, and disks of at most disk_bytes. */
void monitor_limit(struct jail *jail, uint64_t memory_bytes, uint64_t disk_bytes);

/*
 * Takes the calls that config names away from the list. *ret_policy stays NULL when it names none;
 * else it is the caller's, for as long as the jail. 0 or a negative errno with err filled.
 */
int monitor_narrow(struct jail *jail, const struct engine_config *config,
		   struct jail_policy **ret_policy, struct err *err);

/* How a monitor has ended, as the rest of a sentence. Returns the code of that error. */
const char *monitor_describe_end(const siginfo_t *info, char *text, size_t size);
