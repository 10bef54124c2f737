/*
 * Subordinate IDs: the ranges in /etc/subuid and /etc/subgid that a user may map into a user
 * namespace with newuidmap(1), see subuid(5).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A whole system inside a user namespace needs IDs 0 to 65535. */
#define SUBIDS_NEEDED 65536u
/* Where usermod and adduser begin by default is 100000; this leaves room for eight users below. */
#define SUBIDS_FIRST 524288u
/* A user has one, or one more for each time that somebody added some. */
#define SUBIDS_RANGES_MAX 64

struct subids_range {
	uint32_t first;
	uint32_t count;
};

/* What one file gives one user. */
struct subids_list {
	struct subids_range ranges[SUBIDS_RANGES_MAX];
	size_t count;
};

struct subids {
	struct subids_list uids;
	struct subids_list gids;
	/* The user has at least SUBIDS_NEEDED IDs in one range of each. */
	bool enough;
	/* The first ID from SUBIDS_FIRST up that no range touches, with SUBIDS_NEEDED free ones. */
	uint64_t free_start;
};

/*
 * Reads one file's text ("USER:START:COUNT" lines; lines that are not so are passed over, as are
 * the IDs 0 and 4294967295) for a user given by name and by ID, and adds to list. *free_start is
 * SUBIDS_FIRST at first and only moves up, so that it is free in several files.
 */
void subids_scan(const char *text, size_t size, const char *user, uint64_t uid,
		 struct subids_list *list, uint64_t *free_start);

/* Reads both files for the user who runs box. One that is missing gives nothing. 0 or -errno. */
int subids_read(struct subids *ret_ids, struct err *err);

/* Whether newuidmap(1) and newgidmap(1) are there. 0, or -ENOENT with the mend ("no-uidmap"). */
int subids_check_helpers(struct err *err);

/* The usermod(8) line that gives the user who runs box SUBIDS_NEEDED more of each. */
void subids_usermod(const struct subids *ids, char *ret_line, size_t size);

/* The name of the user who runs box, or the ID in digits when there is none. */
void subids_user_name(char *ret_name, size_t size);
