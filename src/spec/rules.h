/*
 * What a value may look like: pure checks of one string each. Private to this part.
 *
 * Every rule returns NULL when text is fine, otherwise what is wrong with it, to stand behind the
 * quoted text in a message ("is not ..."). Text is not trusted; it is NUL-terminated.
 */
#pragma once

#include <stdint.h>

/* NULL when text is fine, else what is wrong with it. */
typedef const char *spec_rule(const char *text);

/* One argument of the machine's shell with room for a script in it. */
#define SPEC_LINE_MAX 65536
/* PATH_MAX of Linux. */
#define SPEC_PATH_MAX 4096

/* One line of text, without control characters, at most SPEC_PATH_MAX bytes, not empty. */
spec_rule spec_rule_line;
/* A shell line; newlines and tabs are allowed, other control characters are not. */
spec_rule spec_rule_shell;
/* A Debian package: name, then optionally :ARCHITECTURE, then optionally =VERSION. */
spec_rule spec_rule_package;
/* KEY=VALUE. */
spec_rule spec_rule_env;
/* A user or group name: a-z or _, then a-z 0-9 _ -, at most 32 (useradd(8)). */
spec_rule spec_rule_user;
/* USER or USER:GROUP. */
spec_rule spec_rule_owner;
/* An absolute path inside, without . and .. and double slashes, of A-Z a-z 0-9 . _ + @ - /. */
spec_rule spec_rule_guest_path;
/* An absolute path on the host, or one that begins with ~/. */
spec_rule spec_rule_host_path;
/* What spec_parse_port reads, with a host port other than 0. */
spec_rule spec_rule_ports;
/* The name of a system call. */
spec_rule spec_rule_syscall;
/* A suite of Debian's archive. */
spec_rule spec_rule_suite;
/* REGISTRY/NAME[:TAG][@DIGEST]. */
spec_rule spec_rule_image_reference;

/*
 * Reads digits in base (8 or 10) and nothing else, without sign. Returns 0, -EINVAL when there is
 * anything else, -ERANGE above maximum. A decimal number may not begin with a needless 0, which
 * YAML readers disagree about.
 */
int spec_read_number(const char *text, unsigned base, uint64_t maximum, uint64_t *ret_number);

/*
 * Reads a number of bytes: digits, then optionally K, M, G or T (powers of 1,024, upper or lower
 * case), then optionally i, iB or B. Returns 0, -EINVAL, or -ERANGE when it does not fit.
 */
int spec_read_size(const char *text, uint64_t *ret_bytes);

/*
 * Reads a time: digits, then optionally s, m or h. Returns 0, -EINVAL, or -ERANGE when the seconds
 * do not fit.
 */
int spec_read_duration(const char *text, uint64_t *ret_seconds);
