/*
 * The machine that process 1 looks after: what it opened while booting, and what it does to the
 * whole machine. Only for process 1: most of these functions act on every process and mount.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/utsname.h>

#include "base/err.h"
#include "wire/ctl.h"

/*
 * Set at boot, so that SETUP after a restore only writes to what is open. Descriptors that could
 * not be had are -EBADF.
 */
struct machine {
	/* warm_useful() */
	bool warm_up;
	int port_fd;
	int random_fd;
	/* The disk with serial "data" and its size. */
	int data_fd;
	uint64_t data_bytes;
	char data_path[32];
	/* Files on /run that are mounted over /etc/machine-id and boot_id. */
	int machine_id_fd;
	int boot_id_fd;
	/* The mounted cgroup2. */
	int cgroup_fd;
	struct utsname uts;
	/* The kernel's own, as text. */
	char boot_id[40];
	bool data_mounted;
	bool root_readonly;
	bool tmp_mounted;
	/* Why the machine is not usable, told in answer to SETUP; empty when all is well. */
	struct err failure;
};

/*
 * From the start of process 1 in the initramfs to the root of the image: loads modules, finds the
 * control port and the disks, mounts everything. Returns 0 when the control port is open (what
 * failed after that is in machine->failure), or a negative errno with err filled.
 */
int machine_boot(struct machine *machine, struct err *err);

/* The hooks of session.h; data is the struct machine. */
int machine_setup(void *data, const struct wire_setup *setup, struct wire_ready *ret_ready,
		  struct err *err);
int machine_freeze(void *data, struct err *err);
void machine_shutdown(void *data, bool root_too);

/* Writes "box-guest: text" to the console. */
void machine_say(const char *text);

/* Kills everything, writes the disks, switches the machine off. */
_Noreturn void machine_power_off(void);

/*
 * Writes a 16-byte ID as 32 hex digits and a newline (machine-id(5)) or as a UUID, version 4 and
 * variant set (RFC 9562), and a newline. Return the size, 33 or 37.
 */
unsigned machine_id_text(const uint8_t *id, char *out);
unsigned machine_uuid_text(const uint8_t *id, char *out);
