#include "sys/landlock.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "uapi/landlock.h"

/* All thirteen rights of ABI 1 are the lowest bits. */
#define RIGHTS_ABI_1 ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1)

int sys_landlock_abi(void)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

	return abi < 0 ? -errno : (int)abi;
}

static uint64_t rights_of(int abi)
{
	uint64_t rights = RIGHTS_ABI_1;

	if (abi >= 2) {
		rights |= LANDLOCK_ACCESS_FS_REFER;
	}
	if (abi >= 3) {
		rights |= LANDLOCK_ACCESS_FS_TRUNCATE;
	}
	if (abi >= 5) {
		rights |= LANDLOCK_ACCESS_FS_IOCTL_DEV;
	}
	return rights;
}

int sys_landlock_new(bool connects, int *ret_fd)
{
	struct uapi_landlock_ruleset_attr attr = {0};
	size_t size = offsetof(struct uapi_landlock_ruleset_attr, handled_access_net);
	int abi = sys_landlock_abi();
	long fd;

	if (abi < 0) {
		return abi;
	}
	attr.handled_access_fs = rights_of(abi);
	if (abi >= 4) {
		attr.handled_access_net = LANDLOCK_ACCESS_NET_BIND_TCP;
		if (!connects) {
			attr.handled_access_net |= LANDLOCK_ACCESS_NET_CONNECT_TCP;
		}
		size = offsetof(struct uapi_landlock_ruleset_attr, scoped);
	}
	if (abi >= 6) {
		attr.scoped = LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL;
		size = sizeof(attr);
	}
	fd = syscall(SYS_landlock_create_ruleset, &attr, size, 0);
	if (fd < 0) {
		return -errno;
	}
	*ret_fd = (int)fd;
	return 0;
}

static int add_rule(int ruleset_fd, const struct landlock_path_beneath_attr *rule)
{
	return syscall(SYS_landlock_add_rule, ruleset_fd, LANDLOCK_RULE_PATH_BENEATH, rule, 0) < 0
		       ? -errno
		       : 0;
}

int sys_landlock_allow_tree(int ruleset_fd, int tree_fd)
{
	struct landlock_path_beneath_attr rule = {
		.allowed_access = LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_READ_FILE |
				  LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG |
				  LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_SYM |
				  LANDLOCK_ACCESS_FS_REMOVE_FILE,
		.parent_fd = tree_fd,
	};
	int abi = sys_landlock_abi();

	if (abi >= 2) {
		rule.allowed_access |= LANDLOCK_ACCESS_FS_REFER;
	}
	if (abi >= 3) {
		rule.allowed_access |= LANDLOCK_ACCESS_FS_TRUNCATE;
	}
	return add_rule(ruleset_fd, &rule);
}

int sys_landlock_allow(int ruleset_fd, int path_fd, bool device)
{
	struct landlock_path_beneath_attr rule = {
		.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE,
		.parent_fd = path_fd,
	};

	if (device) {
		rule.allowed_access |= LANDLOCK_ACCESS_FS_WRITE_FILE;
		if (sys_landlock_abi() >= 5) {
			rule.allowed_access |= LANDLOCK_ACCESS_FS_IOCTL_DEV;
		}
	} else {
		rule.allowed_access |= LANDLOCK_ACCESS_FS_EXECUTE;
	}
	return add_rule(ruleset_fd, &rule);
}

int sys_landlock_enter(int ruleset_fd)
{
	return syscall(SYS_landlock_restrict_self, ruleset_fd, 0) < 0 ? -errno : 0;
}
