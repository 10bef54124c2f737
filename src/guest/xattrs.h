/*
 * Extended attributes of a file, held against those that an archive brings.
 */
#pragma once

#include <stdbool.h>

#include "archive/archive.h"

/*
 * Whether an attribute is of a kind that an archive carries (user.*, security.capability), or, with
 * lists_count, an access list.
 */
bool xattrs_counts(const char *name, bool lists_count);

/*
 * Whether the open file has the attributes of the item, each with its value, and no other that
 * counts. With lists_count a file with an access list, which
 * no archive carries, is never the same. Returns 1, 0 or a negative errno.
 */
int xattrs_same(int fd, const struct archive_item *item, bool lists_count);
