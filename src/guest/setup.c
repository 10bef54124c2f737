/*
 * SETUP: makes a machine distinct and gives it its data. Nothing else runs before it is done.
 *
 * This is the path that a restored machine is waited for on, so it is short: it writes to what
 * boot.c opened, and mounts only /data.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/random.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/mutant.h"
#include "guest/machine.h"
#include "guest/warm.h"

/* The kernel's header for it is not installed: include/uapi/linux/ext4.h has _IOW('f', 16, u64). */
#define EXT4_RESIZE _IOW('f', 16, uint64_t)
/* Where ext4 keeps its sizes (Documentation/filesystems/ext4/super.rst). */
#define EXT4_SUPERBLOCK_OFFSET 1024
#define EXT4_BLOCKS_LOW 0x4
#define EXT4_BLOCK_SHIFT 0x18
#define EXT4_BLOCKS_HIGH 0x150
#define EXT4_SUPERBLOCK_BYTES 1024

#define ID_TEXT_MAX 40

static char hex_digit(unsigned value)
{
	return "0123456789abcdef"[value & 15];
}

unsigned machine_id_text(const uint8_t *id, char *out)
{
	unsigned length = 0;

	for (unsigned i = 0; i < WIRE_MACHINE_ID_SIZE; i++) {
		out[length++] = hex_digit(id[i] >> 4);
		out[length++] = hex_digit(id[i]);
	}
	out[length++] = '\n';
	return length;
}

unsigned machine_uuid_text(const uint8_t *id, char *out)
{
	unsigned length = 0;

	for (unsigned i = 0; i < 16; i++) {
		unsigned byte = id[i];

		if (i == 4 || i == 6 || i == 8 || i == 10) {
			out[length++] = '-';
		}
		if (i == 6) {
			byte = 0x40u | (byte & 0x0fu);
		} else if (i == 8) {
			byte = 0x80u | (byte & 0x3fu);
		}
		out[length++] = hex_digit(byte >> 4);
		out[length++] = hex_digit(byte);
	}
	out[length++] = '\n';
	return length;
}

static int set_clock(uint64_t realtime_ns)
{
	struct timespec now = {
		.tv_sec = (time_t)(realtime_ns / 1000000000u),
		.tv_nsec = (long)(realtime_ns % 1000000000u),
	};

	return clock_settime(CLOCK_REALTIME, &now) < 0 ? -errno : 0;
}

void machine_step_clock(void *data, int64_t step_ns)
{
	int64_t seconds = step_ns / 1000000000;
	int64_t nanoseconds = step_ns % 1000000000;
	/*
	 * The kernel adds in one step, so that no time is lost between reading and setting.
	 * In microseconds: ADJ_NANO would stay set for all programs that read the clock with
	 * adjtimex(2).
	 */
	struct timex step = {.modes = ADJ_SETOFFSET};

	(void)data;
	/* It wants the fraction to be positive. */
	if (nanoseconds < 0) {
		nanoseconds += 1000000000;
		seconds--;
	}
	step.time.tv_sec = seconds;
	step.time.tv_usec = nanoseconds / 1000;
	if (clock_adjtime(CLOCK_REALTIME, &step) < 0) {
		machine_say("the clock cannot be stepped");
	}
}

/* random(4): adds the host's seed as entropy, then makes the generator start from it at once. */
static int reseed(int random_fd, const uint8_t *setup_seed)
{
	/* struct rand_pool_info with its buffer. */
	struct {
		int entropy_bits;
		int bytes;
		uint8_t seed[WIRE_SEED_SIZE];
	} pool = {.entropy_bits = WIRE_SEED_SIZE * 8, .bytes = WIRE_SEED_SIZE};
	int rc = 0;

	_Static_assert(offsetof(__typeof__(pool), seed) == offsetof(struct rand_pool_info, buf),
		       "the seed is the pool's buffer");
	memcpy(pool.seed, setup_seed, sizeof(pool.seed));
	if (!MUTANT("seed") &&
	    (ioctl(random_fd, RNDADDENTROPY, &pool) < 0 || ioctl(random_fd, RNDRESEEDCRNG) < 0)) {
		rc = -errno;
	}
	explicit_bzero(&pool, sizeof(pool));
	return rc;
}

static int write_text(int fd, const char *text, unsigned length)
{
	ssize_t written = pwrite(fd, text, length, 0);

	return written < 0 ? -errno : ((unsigned)written == length ? 0 : -EIO);
}

static int write_ids(const struct machine *machine, const struct wire_setup *setup)
{
	char text[ID_TEXT_MAX];
	uint8_t random[16];
	int rc;

	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
		return -EIO;
	}
	memset(random, 0, MUTANT("boot-id") ? sizeof(random) : 0);
	rc = write_text(machine->boot_id_fd, text, machine_uuid_text(random, text));
	if (rc == 0 && machine->machine_id_fd >= 0) {
		rc = write_text(machine->machine_id_fd, text,
				machine_id_text(setup->machine_id, text));
	}
	return rc;
}

static int make_distinct(const struct machine *machine, const struct wire_setup *setup,
			 struct err *err)
{
	int rc = set_clock(setup->realtime_ns);

	if (rc < 0) {
		return err_set(err, rc, "setup", "cannot set the clock: %s", strerrordesc_np(-rc));
	}
	rc = reseed(machine->random_fd, setup->seed);
	if (rc < 0) {
		return err_set(err, rc, "setup", "cannot seed the random generator: %s",
			       strerrordesc_np(-rc));
	}
	if (sethostname(setup->hostname, strlen(setup->hostname)) < 0) {
		return err_set(err, -errno, "setup", "cannot set the host name: %s",
			       strerrordesc_np(errno));
	}
	rc = write_ids(machine, setup);
	if (rc < 0) {
		return err_set(err, rc, "setup", "cannot set machine and boot ID: %s",
			       strerrordesc_np(-rc));
	}
	return 0;
}

static int set_root_readonly(struct machine *machine, bool readonly, struct err *err)
{
	unsigned long flags = MS_REMOUNT | MS_NOATIME | (readonly ? MS_RDONLY : 0ul);

	if (readonly && !machine->tmp_mounted) {
		if (mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") < 0) {
			return err_set(err, -errno, "mount", "cannot mount tmpfs at /tmp: %s",
				       strerrordesc_np(errno));
		}
		machine->tmp_mounted = true;
	}
	if (readonly != machine->root_readonly) {
		if (mount(NULL, "/", NULL, flags, NULL) < 0) {
			return err_set(err, -errno, "mount", "cannot make the root %s: %s",
				       readonly ? "read-only" : "writable", strerrordesc_np(errno));
		}
		machine->root_readonly = readonly;
	}
	return 0;
}

static uint32_t get_u32(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
	       (uint32_t)bytes[3] << 24;
}

/* Lets the file system grow to the size of its disk, while it is mounted. */
static int grow_data(const struct machine *machine)
{
	_cleanup_close_ int fd = -EBADF;
	uint8_t superblock[EXT4_SUPERBLOCK_BYTES];
	uint64_t blocks, wanted;
	uint32_t shift;

	if (pread(machine->data_fd, superblock, sizeof(superblock), EXT4_SUPERBLOCK_OFFSET) !=
	    (ssize_t)sizeof(superblock)) {
		return -EIO;
	}
	/* The kernel has mounted it, so the field is sane; a wrong shift must not be undefined. */
	shift = 10 + MIN(get_u32(superblock + EXT4_BLOCK_SHIFT), 6u);
	blocks = get_u32(superblock + EXT4_BLOCKS_LOW) |
		 (uint64_t)get_u32(superblock + EXT4_BLOCKS_HIGH) << 32;
	wanted = machine->data_bytes >> shift;
	if (blocks >= wanted) {
		return 0;
	}
	fd = open("/data", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || ioctl(fd, EXT4_RESIZE, &wanted) < 0) {
		return -errno;
	}
	return 0;
}

/*
 * noatime: reading must not write to what is kept. noinit_itable: as for the root; a fork's disk
 * would otherwise grow by itself. no_prefetch_block_bitmaps: many commands never write,
 * and whoever does reads the few that are needed. nosuid and nodev: a kept disk brings no
 * privileges into the next life. The rest is ext4's default (data=ordered, barriers, commit every 5
 * seconds): what a program has synced is on the disk.
 */
static int mount_data(struct machine *machine, struct err *err)
{
	int rc;

	if (machine->data_fd < 0) {
		return err_set(err, -ENODEV, "no-data",
			       "this machine has no disk with serial "
			       "\"data\"");
	}
	/* Blocks that were cached in an earlier life may be of another disk. */
	if (ioctl(machine->data_fd, BLKFLSBUF, 0) < 0 ||
	    mount(machine->data_path, "/data", "ext4", MS_NOATIME | MS_NOSUID | MS_NODEV,
		  "noinit_itable,no_prefetch_block_bitmaps") < 0) {
		return err_set(err, -errno, "mount", "cannot mount %s at /data: %s",
			       machine->data_path, strerrordesc_np(errno));
	}
	machine->data_mounted = true;
	/* The disk may be another than the one at boot. */
	ioctl(machine->data_fd, BLKGETSIZE64, &machine->data_bytes);
	rc = grow_data(machine);
	if (rc < 0) {
		return err_set(err, rc, "grow", "cannot grow /data to the size of its disk: %s",
			       strerrordesc_np(-rc));
	}
	return 0;
}

int machine_setup(void *data, const struct wire_setup *setup, struct wire_ready *ret_ready,
		  struct err *err)
{
	struct machine *machine = data;
	int rc;

	if (machine->failure.text[0] != '\0') {
		*err = machine->failure;
		return -EIO;
	}
	rc = make_distinct(machine, setup, err);
	if (rc == 0) {
		rc = set_root_readonly(machine, setup->flags & WIRE_SETUP_READONLY, err);
	}
	if (rc == 0) {
		rc = machine_start_net(machine, err);
	}
	/* In a copy of a paused machine it is mounted. */
	if (rc == 0 && (setup->flags & WIRE_SETUP_DATA) && !machine->data_mounted) {
		if (machine->emulated) {
			warm_start();
		}
		rc = mount_data(machine, err);
	}
	if (rc < 0) {
		return rc;
	}
	*ret_ready = (struct wire_ready){
		.release = machine->uts.release,
		.version = machine->uts.version,
		.boot_id = machine->boot_id,
	};
	return 0;
}

int machine_attach(void *data, struct err *err)
{
	struct machine *machine = data;

	if (machine->data_mounted) {
		return err_set(err, -EBUSY, "attach", "/data is mounted already");
	}
	return mount_data(machine, err);
}
