/*
 * Users and groups as the image's /etc/passwd and /etc/group have them.
 *
 * The C library's functions would load modules from the image into this process, so the files are
 * read here, line by line through a fixed buffer. Both are input that a command may have written:
 * a line that is too long or malformed is skipped.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Longer ones do not occur; useradd(8) stops at 32. */
#define USER_NAME_MAX 64
/* More than the supplementary groups of any user of an ordinary image. */
#define USER_GROUPS_MAX 256
/* A home or shell. Longer paths make the line invalid. */
#define USER_PATH_MAX 1024

struct user {
	uid_t uid;
	gid_t gid;
	/* Supplementary groups, gid first. */
	gid_t groups[USER_GROUPS_MAX];
	size_t group_count;
	/* Empty when a decimal user ID has no line in the file. */
	char name[USER_NAME_MAX + 1];
	char home[USER_PATH_MAX];
	char shell[USER_PATH_MAX];
};

/*
 * Reads one line of passwd(5), without its newline, into *ret_user (all but the supplementary
 * groups). The line is taken apart in place. Returns false when it is malformed.
 */
bool user_parse_passwd(char *line, struct user *ret_user);

/*
 * Whether the line of group(5), without its newline, lists name as a member; then *ret_gid is the
 * group's ID. The line is taken apart in place.
 */
bool user_parse_group(char *line, const char *name, gid_t *ret_gid);

/* A decimal ID from 0 to 4294967294, nothing else around it. */
bool user_parse_id(const char *text, unsigned *ret_id);

/*
 * Finds name, or a decimal user ID, in the two files. A decimal ID that has no line is a user all
 * the same: its group has the same number, it has no name, home is / and the shell is /bin/sh.
 * Returns 0, -ENOENT when a name has no line, or a negative errno. A missing group file means that
 * nobody has supplementary groups; so does a missing passwd file for decimal IDs and for root.
 */
int user_resolve(const char *passwd_path, const char *group_path, const char *name,
		 struct user *ret_user);
