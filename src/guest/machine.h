/*
 * The machine that process 1 looks after: what it opened while booting, and what it does to the
 * whole machine. Only for process 1: most of these functions act on every process and mount.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/utsname.h>

#include "base/err.h"
#include "guest/net.h"
#include "wire/ctl.h"

/*
 * Set at boot, so that SETUP after a restore only writes to what is open. Descriptors that could
 * not be had are -EBADF.
 */
struct machine {
	/* processor_is_emulated() */
	bool emulated;
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
	/* The port box.net, such as /dev/vport1p2, or empty: the machine has no network. */
	char net_path[32];
	struct net net;
	struct utsname uts;
	/* The kernel's own, as text. */
	char boot_id[40];
	bool data_mounted;
	/* /data while it is frozen, otherwise -EBADF: an open one could not be unmounted. */
	int frozen_fd;
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
int machine_attach(void *data, struct err *err);
int machine_detach(void *data, struct err *err);
int machine_pause(void *data);
void machine_resume(void *data);
void machine_step_clock(void *data, int64_t step_ns);
int machine_shutdown(void *data, bool root_too, struct err *err);

/*
 * Starts the network's agent if the machine has the port for it: for SETUP, and for DETACH, so that
 * whoever takes a machine from the pool finds it running. In a copy of a paused machine there is
 * one, of the life before, and it is ended. Returns 0 or a negative errno with err filled.
 */
int machine_start_net(struct machine *machine, struct err *err);

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
