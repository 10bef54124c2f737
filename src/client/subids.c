#include "client/subids.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

/* A line for each user; a file for ten thousand users fits. */
#define SUBIDS_FILE_MAX ((size_t)1 << 20)

static void scan_line(const char *line, const char *user, const char *digits, struct subids *ids)
{
	char owner[256];
	uint64_t start, count, end;

	if (sscanf(line, "%255[^:]:%" SCNu64 ":%" SCNu64, owner, &start, &count) != 3 ||
	    ADD_OVERFLOWS(start, count, &end) || end > UINT32_MAX) {
		return;
	}
	if (count >= SUBIDS_NEEDED && (strcmp(owner, user) == 0 || strcmp(owner, digits) == 0)) {
		ids->enough = true;
	}
	if (end > ids->free_start) {
		ids->free_start = (end + SUBIDS_NEEDED - 1) / SUBIDS_NEEDED * SUBIDS_NEEDED;
	}
}

void subids_scan(const char *text, size_t size, const char *user, uint64_t uid, struct subids *ids)
{
	_cleanup_free_ char *copy = strndup(text, size);
	char digits[24];
	char *state = NULL;

	if (!copy) {
		return;
	}
	snprintf(digits, sizeof(digits), "%" PRIu64, uid);
	for (char *line = strtok_r(copy, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
		scan_line(line, user, digits, ids);
	}
}

void subids_user_name(char *ret_name, size_t size)
{
	const struct passwd *user = getpwuid(getuid());

	if (user) {
		snprintf(ret_name, size, "%s", user->pw_name);
	} else {
		snprintf(ret_name, size, "%u", (unsigned int)getuid());
	}
}

static int scan_file(const char *path, const char *user, struct subids *ids, struct err *err)
{
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	int rc = read_file_at(AT_FDCWD, path, SUBIDS_FILE_MAX, &text, &size);

	if (rc < 0) {
		rc = err_set(err, rc, "no-subids", "cannot read %s: %s", path, strerror(-rc));
		err_mend(err, "install the package uidmap and run: touch /etc/subuid /etc/subgid");
		return rc;
	}
	ids->enough = false;
	subids_scan(text, size, user, getuid(), ids);
	return 0;
}

int subids_find(struct subids *ret_ids, struct err *err)
{
	struct subids ids = {.free_start = SUBIDS_FIRST};
	char user[256];
	bool uids_enough;
	int rc;

	if (access("/usr/bin/newuidmap", X_OK) < 0) {
		rc = err_set(err, -ENOENT, "no-uidmap", "newuidmap is not installed");
		err_mend(err, "sudo apt-get install uidmap");
		return rc;
	}
	subids_user_name(user, sizeof(user));
	rc = scan_file("/etc/subuid", user, &ids, err);
	if (rc < 0) {
		return rc;
	}
	uids_enough = ids.enough;
	rc = scan_file("/etc/subgid", user, &ids, err);
	if (rc < 0) {
		return rc;
	}
	ids.enough = ids.enough && uids_enough;
	*ret_ids = ids;
	return 0;
}
