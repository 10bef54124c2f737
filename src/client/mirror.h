/*
 * Which Debian mirror a base is made from: BOX_MIRROR, or what the host's apt uses.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Long enough for every mirror's URL; longer ones are passed over. */
#define MIRROR_URI_MAX 512

struct mirror {
	char uri[MIRROR_URI_MAX];
	/* Archive of SUITE-security, or empty when the host lists none. */
	char security_uri[MIRROR_URI_MAX];
	/* How well uri fits; 0: nothing found. See mirror_scan. */
	unsigned int score;
};

/*
 * Reads one of apt's source files (text is size bytes, owned by the administrator, but checked all
 * the same) and keeps the best main archive for suite, and the first security archive. deb822: the
 * format of *.sources, otherwise the one-line format, see sources.list(5). Better than nothing is,
 * in this order: a Debian archive that lists the suite, any unsigned-by archive that lists it, a
 * Debian archive that lists another suite. The first of equally good ones stays. Third-party
 * archives with a key of their own are passed over.
 */
void mirror_scan(const char *text, size_t size, bool deb822, const char *suite,
		 struct mirror *mirror);

/* HOST:PORT, a NUL. */
#define MIRROR_RULE_MAX (MIRROR_URI_MAX + 8)

/* Writes where an archive is (uri as mirror_check_uri takes it) as HOST:PORT, a rule of src/policy.
 * false for a file. out holds MIRROR_RULE_MAX bytes. */
bool mirror_rule(const char *uri, char *out);

/* True when the text can stand for an archive in a line of apt's: http, https or file, no spaces,
 * brackets, quotes or control characters. */
bool mirror_check_uri(const char *uri);

/*
 * BOX_MIRROR when it is set, otherwise what /etc/apt says. Returns 0, -EINVAL for a BOX_MIRROR that
 * is no URL, or -ENOENT when apt names no Debian archive; err is then filled.
 */
int mirror_find(const char *suite, struct mirror *ret_mirror, struct err *err);
