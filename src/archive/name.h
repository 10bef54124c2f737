/* Names as archives write them, made plain. */
#pragma once

#include "archive/archive.h"

/*
 * Takes "." and empty components out of name and gives "a/b/c", or "" for the root. Returns 0 or
 * -EBADMSG with *ret_why: absolute, a ".." component, too long, or empty.
 */
int name_normalize(const char *name, char ret_path[ARCHIVE_NAME_MAX + 1], const char **ret_why);
