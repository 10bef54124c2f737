#include "guest/xattrs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "base/cleanup.h"

static const struct archive_xattr *find(const struct archive_item *item, const char *name)
{
	for (size_t i = 0; i < item->xattr_count; i++) {
		if (strcmp(item->xattrs[i].name, name) == 0) {
			return &item->xattrs[i];
		}
	}
	return NULL;
}

bool xattrs_counts(const char *name, bool lists_count)
{
	return strncmp(name, "user.", 5) == 0 || strcmp(name, "security.capability") == 0 ||
	       (lists_count && strncmp(name, "system.posix_acl", 16) == 0);
}

/* Returns 1, 0 or a negative errno. value holds XATTR_SIZE_MAX bytes. */
static int has_value(int fd, const char *name, const struct archive_xattr *wanted, char *value)
{
	ssize_t got = wanted ? fgetxattr(fd, name, value, XATTR_SIZE_MAX) : 0;

	if (got < 0) {
		return -errno;
	}
	return wanted && (size_t)got == wanted->size &&
	       memcmp(value, wanted->value, wanted->size) == 0;
}

int xattrs_same(int fd, const struct archive_item *item, bool lists_count)
{
	_cleanup_free_ char *names = malloc(XATTR_LIST_MAX);
	_cleanup_free_ char *value = malloc(XATTR_SIZE_MAX);
	size_t found = 0;
	ssize_t size;

	if (!names || !value) {
		return -ENOMEM;
	}
	size = flistxattr(fd, names, XATTR_LIST_MAX);
	if (size < 0) {
		return errno == ENOTSUP ? item->xattr_count == 0 : -errno;
	}
	for (const char *name = names; name < names + size; name += strlen(name) + 1) {
		int rc;

		if (!xattrs_counts(name, lists_count)) {
			continue;
		}
		rc = has_value(fd, name, find(item, name), value);
		if (rc <= 0) {
			return rc;
		}
		found++;
	}
	return found == item->xattr_count;
}
