#include "sys/caps.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Capability numbers are bits of a 64-bit set; the kernel says EINVAL after its last one. */
#define CAPABILITY_NUMBERS 64

int sys_caps_drop_all(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
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
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECUREBITS, securebits, 0, 0, 0) < 0 ||
	    syscall(SYS_capset, &header, data) < 0) {
		return -errno;
	}
	return 0;
}

int sys_no_new_privs(void)
{
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}
