#include "store/subids.h"

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

static void scan_line(const char *line, const char *user, const char *digits,
		      struct subids_list *list, uint64_t *free_start)
{
	char owner[256];
	uint64_t start, count, end;

	/* UINT32_MAX itself stands for "no ID" in system calls. */
	if (sscanf(line, "%255[^:]:%" SCNu64 ":%" SCNu64, owner, &start, &count) != 3 ||
	    ADD_OVERFLOWS(start, count, &end) || end > UINT32_MAX) {
		return;
	}
	if (start > 0 && count > 0 && list->count < ARRAY_SIZE(list->ranges) &&
	    (strcmp(owner, user) == 0 || strcmp(owner, digits) == 0)) {
		list->ranges[list->count++] =
			(struct subids_range){(uint32_t)start, (uint32_t)count};
	}
	if (end > *free_start) {
		*free_start = (end + SUBIDS_NEEDED - 1) / SUBIDS_NEEDED * SUBIDS_NEEDED;
	}
}

void subids_scan(const char *text, size_t size, const char *user, uint64_t uid,
		 struct subids_list *list, uint64_t *free_start)
{
	_cleanup_free_ char *copy = strndup(text, size);
	char digits[24];
	char *state = NULL;

	if (!copy) {
		return;
	}
	snprintf(digits, sizeof(digits), "%" PRIu64, uid);
	for (char *line = strtok_r(copy, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
		scan_line(line, user, digits, list, free_start);
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

static int scan_file(const char *path, const char *user, struct subids_list *list,
		     uint64_t *free_start, struct err *err)
{
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	int rc = read_file_at(AT_FDCWD, path, SUBIDS_FILE_MAX, &text, &size);

	if (rc == -ENOENT) {
		return 0;
	}
	if (rc < 0) {
		rc = err_set(err, rc, "no-subids", "cannot read %s: %s", path, strerror(-rc));
		err_mend(err, "make it a file that everybody may read: see subuid(5)");
		return rc;
	}
	subids_scan(text, size, user, getuid(), list, free_start);
	return 0;
}

static bool has_needed(const struct subids_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		if (list->ranges[i].count >= SUBIDS_NEEDED) {
			return true;
		}
	}
	return false;
}

int subids_read(struct subids *ret_ids, struct err *err)
{
	struct subids ids = {.free_start = SUBIDS_FIRST};
	char user[256];
	int rc;

	subids_user_name(user, sizeof(user));
	rc = scan_file("/etc/subuid", user, &ids.uids, &ids.free_start, err);
	if (rc == 0) {
		rc = scan_file("/etc/subgid", user, &ids.gids, &ids.free_start, err);
	}
	if (rc < 0) {
		return rc;
	}
	ids.enough = has_needed(&ids.uids) && has_needed(&ids.gids);
	*ret_ids = ids;
	return 0;
}

int subids_check_helpers(struct err *err)
{
	if (access("/usr/bin/newuidmap", X_OK) == 0 && access("/usr/bin/newgidmap", X_OK) == 0) {
		return 0;
	}
	err_set(err, -ENOENT, "no-uidmap", "newuidmap and newgidmap are not installed");
	err_mend(err, "sudo apt-get install uidmap");
	return -ENOENT;
}

void subids_usermod(const struct subids *ids, char *ret_line, size_t size)
{
	uint64_t first = ids->free_start, last = first + SUBIDS_NEEDED - 1;
	char user[256];

	subids_user_name(user, sizeof(user));
	snprintf(ret_line, size,
		 "sudo usermod --add-subuids %" PRIu64 "-%" PRIu64 " --add-subgids %" PRIu64
		 "-%" PRIu64 " %s",
		 first, last, first, last, user);
}
