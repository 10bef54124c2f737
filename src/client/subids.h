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

struct subids {
	/* The user has at least SUBIDS_NEEDED IDs in one range. */
	bool enough;
	/* The first ID from SUBIDS_FIRST up that no range touches, with SUBIDS_NEEDED free ones. */
	uint64_t free_start;
};

/*
 * Reads one file's text ("USER:START:COUNT" lines; lines that are not so are passed over) for a
 * user given by name and by ID. ids must be {false, SUBIDS_FIRST} or an earlier result: free_start
 * only moves up, so that it is free in several files.
 */
void subids_scan(const char *text, size_t size, const char *user, uint64_t uid, struct subids *ids);

/*
 * Looks at both files for the user who runs box. Returns 0 with *ret_ids (enough only when both
 * files have a range), or a negative errno with err filled when newuidmap or the files are missing.
 */
int subids_find(struct subids *ret_ids, struct err *err);

/* The name of the user who runs box, or the ID in digits when there is none. */
void subids_user_name(char *ret_name, size_t size);
