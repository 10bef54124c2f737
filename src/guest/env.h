/*
 * The environment of a command: what the host sent, and a few values that every program expects.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "guest/user.h"

/* PATH, HOME, USER, LOGNAME, SHELL, TERM */
#define ENV_DEFAULTS_MAX 6

struct env_defaults {
	/* The longest: a name, "=", and a path. */
	char text[ENV_DEFAULTS_MAX][USER_PATH_MAX + 16];
};

/* The value of key among count strings, or NULL. Of several the last one counts. */
const char *env_get(const char **envp, size_t count, const char *key);

/*
 * Appends to the count strings in envp those defaults whose key is not among them, and the final
 * NULL; envp has room for count + ENV_DEFAULTS_MAX + 1 pointers. The new strings live in
 * *defaults. USER and LOGNAME are left out for a user without a name, TERM without a terminal.
 * Returns the new count.
 */
size_t env_complete(const char **envp, size_t count, const struct user *user, bool terminal,
		    struct env_defaults *defaults);

/*
 * Writes the next candidate for name on a search path to out: the directory up to the next colon
 * (an empty one is the working directory), a slash, name. *path is moved on; it is NULL after the
 * last. Returns 1, 0 when *path is NULL, or -ENAMETOOLONG when the candidate does not fit, after
 * which the search can go on.
 */
int env_next_candidate(const char **path, const char *name, char *out, size_t size);
