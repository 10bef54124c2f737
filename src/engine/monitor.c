#include "engine/monitor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "engine/engine.h"
#include "store/store.h"

/* Address space beyond guest memory: libraries, thread stacks, translation buffer. */
#define ADDRESS_SPACE_EXTRA ((uint64_t)3 << 30)
/* security.md: guest memory and this much. */
#define CGROUP_MEMORY_EXTRA ((uint64_t)256 << 20)
#define CGROUP_PIDS 512
#define OPEN_FILES 128
#define PROCESSES 256

/* Raised whenever machines get other devices: a snapshot only loads into the devices that it was
 * made with. */
#define DEVICES_VERSION 3

static const struct {
	const char *host_path;
	const char *inside_path;
	bool boot_only;
} firmware_files[] = {
	{"/usr/share/seabios/bios-256k.bin", MONITOR_FIRMWARE "/bios-256k.bin", false},
	{"/usr/share/qemu/kvmvapic.bin", MONITOR_FIRMWARE "/kvmvapic.bin", false},
	{"/usr/share/qemu/linuxboot_dma.bin", MONITOR_FIRMWARE "/linuxboot_dma.bin", true},
};

#define MONITOR_FILES (ARRAY_SIZE(firmware_files) + 2)

int monitor_check(struct err *err)
{
	int rc = access(QEMU_PATH, X_OK) < 0 ? -errno : 0;

	if (rc < 0) {
		err_set(err, rc, "no-qemu", "machine monitor: %s: %s", QEMU_PATH, strerror(-rc));
		err_mend(err, "install it: sudo apt install qemu-system-x86");
	}
	return rc;
}

int monitor_add_program(struct jail *jail, bool emulates, struct err *err)
{
	int rc = jail_add_program(jail, QEMU_PATH, err);

	if (rc == 0 && emulates && access(QEMU_TCG_MODULE, R_OK) == 0) {
		rc = jail_add_program(jail, QEMU_TCG_MODULE, err);
	}
	return rc;
}

int monitor_add_firmware(struct jail *jail, bool boots, struct err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(firmware_files); i++) {
		if (boots || !firmware_files[i].boot_only) {
			rc = jail_add_bind(jail, firmware_files[i].host_path,
					   firmware_files[i].inside_path, false, err);
		}
	}
	return rc;
}

int engine_check_seccomp(char *const *names, size_t count, struct err *err)
{
	struct jail_policy *narrowed = NULL;
	int rc = jail_narrow(&jail_policy_qemu, names, count, &narrowed, err);

	free(narrowed);
	return rc;
}

int monitor_narrow(struct jail *jail, const struct engine_config *config,
		   struct jail_policy **ret_policy, struct err *err)
{
	int rc;

	if (config->seccomp_count == 0) {
		return 0;
	}
	rc = jail_narrow(jail->policy, config->seccomp, config->seccomp_count, ret_policy, err);
	if (rc == 0) {
		jail->policy = *ret_policy;
	}
	return rc;
}

const char *monitor_describe_end(const siginfo_t *info, char *text, size_t size)
{
	if (info->si_code == CLD_EXITED) {
		snprintf(text, size, "ended with exit code %d", info->si_status);
	} else if (info->si_status == SIGSYS) {
		snprintf(text, size, "made a system call that its list does not have");
		return ENGINE_NOT_ON_LIST;
	} else {
		snprintf(text, size, "was killed by signal %d", info->si_status);
	}
	return "monitor-died";
}

void monitor_limit(struct jail *jail, uint64_t memory_bytes, uint64_t disk_bytes)
{
	jail->name = "qemu";
	jail->program = QEMU_PATH;
	jail->policy = &jail_policy_qemu;
	jail->notify = true;
	jail->address_space_bytes = memory_bytes + ADDRESS_SPACE_EXTRA;
	/* A full qcow2 is larger than its disk by its tables, which stay well below a 64th. */
	jail->file_size_bytes = disk_bytes + disk_bytes / 64 + ((uint64_t)1 << 30);
	jail->open_files = OPEN_FILES;
	jail->processes = PROCESSES;
	jail->cgroup_memory_bytes = memory_bytes + CGROUP_MEMORY_EXTRA;
	jail->cgroup_pids = CGROUP_PIDS;
}

/* What a monitor is made of. */
static const char *monitor_file(size_t at)
{
	return at == 0 ? QEMU_PATH : at == 1 ? QEMU_TCG_MODULE : firmware_files[at - 2].host_path;
}

int engine_digest(char *ret_hex, struct err *err)
{
	char digests[MONITOR_FILES][STORE_DIGEST_SIZE] = {0};
	int found = monitor_check(err);

	if (found < 0) {
		return found;
	}
	for (size_t i = 0; i < MONITOR_FILES; i++) {
		int rc = store_digest_path(monitor_file(i), digests[i], err);

		/* A QEMU of one piece has no module; what it cannot do without it says itself. */
		if (rc < 0 && rc != -ENOENT) {
			return rc;
		}
	}
	store_digest(digests, sizeof(digests), ret_hex);
	return 0;
}

int engine_identity(char **ret_text, struct err *err)
{
	_cleanup_free_ char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out) {
		return err_context(err, -ENOMEM, "machine monitor");
	}
	fprintf(out, "devices=%d\n", DEVICES_VERSION);
	for (size_t i = 0; i < MONITOR_FILES; i++) {
		const char *path = monitor_file(i);
		struct stat status = {0};

		if (stat(path, &status) < 0) {
			status.st_size = -1;
		}
		fprintf(out, "monitor=%s %llx %lld %lld.%09ld %lld.%09ld\n", path,
			(unsigned long long)status.st_ino, (long long)status.st_size,
			(long long)status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
			(long long)status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
	}
	if (fclose(out) != 0) {
		return err_context(err, -ENOMEM, "machine monitor");
	}
	*ret_text = TAKE_PTR(text);
	return 0;
}

const char *engine_missing_part(void)
{
	if (access(QEMU_PATH, X_OK) < 0) {
		return QEMU_PATH;
	}
	for (size_t i = 0; i < ARRAY_SIZE(firmware_files); i++) {
		if (access(firmware_files[i].host_path, R_OK) < 0) {
			return firmware_files[i].host_path;
		}
	}
	return NULL;
}
