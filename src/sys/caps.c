#include "sys/caps.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mutant.h"

/* Capability numbers are bits of a 64-bit set; the kernel says EINVAL after its last one. */
#define CAPABILITY_NUMBERS 64

/* Leaves the capabilities of a mask, of the first 32, and none else. */
static int hold(uint32_t mask)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {
		{.effective = mask, .permitted = mask}};

	return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ||
			       syscall(SYS_capset, &header, data) < 0
		       ? -errno
		       : 0;
}

static int empty_bounding_set(void)
{
	unsigned long securebits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
				   SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
				   SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;

	for (unsigned long number = 0; number < CAPABILITY_NUMBERS; number++) {
		if (prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0) {
			if (errno == EINVAL && number > 0) {
				break;
			}
			return -errno;
		}
	}
	return prctl(PR_SET_SECUREBITS, securebits, 0, 0, 0) < 0 ? -errno : 0;
}

int sys_caps_drop_held(void)
{
	return hold(0);
}

int sys_caps_drop_all(void)
{
	int rc = empty_bounding_set();

	/* Without no_new_privs a list of system calls takes CAP_SYS_ADMIN. */
	return rc < 0 || MUTANT("no-new-privs") ? rc : hold(0);
}

int sys_caps_keep_dac_override(void)
{
	int rc = empty_bounding_set();

	return rc < 0 ? rc : hold(1U << CAP_DAC_OVERRIDE);
}

int sys_no_new_privs(void)
{
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}
