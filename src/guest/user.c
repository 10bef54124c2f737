#include "guest/user.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"

/* The longest line that is looked at. A group with some hundred members fits. */
#define LINE_MAX_BYTES 4096
/* What is read of a file at most, so that a huge one cannot keep process 1 busy. */
#define FILE_MAX_BYTES ((size_t)4 << 20)

struct lines {
	int fd;
	size_t start;
	size_t filled;
	size_t total;
	/* The rest of a line that was too long is being passed over. */
	bool skipping;
	char data[LINE_MAX_BYTES];
};

/* Reads more. False at the end of the file, on an error, and when the file is too large. */
static bool lines_fill(struct lines *lines)
{
	ssize_t got;

	if (lines->start > 0) {
		memmove(lines->data, lines->data + lines->start, lines->filled - lines->start);
		lines->filled -= lines->start;
		lines->start = 0;
	}
	if (lines->filled == sizeof(lines->data) - 1) {
		lines->filled = 0;
		lines->skipping = true;
	}
	do {
		got = read(lines->fd, lines->data + lines->filled,
			   sizeof(lines->data) - 1 - lines->filled);
	} while (got < 0 && errno == EINTR);
	if (got <= 0) {
		return false;
	}
	if (lines->total + (size_t)got > FILE_MAX_BYTES) {
		/* What was collected so far may be the first half of a line. */
		lines->skipping = true;
		return false;
	}
	lines->total += (size_t)got;
	lines->filled += (size_t)got;
	return true;
}

/* The next line, terminated in place, or NULL. */
static char *lines_next(struct lines *lines)
{
	for (;;) {
		char *line = lines->data + lines->start;
		char *newline = memchr(line, '\n', lines->filled - lines->start);

		if (newline) {
			bool whole = !lines->skipping;

			*newline = '\0';
			lines->start = (size_t)(newline - lines->data) + 1;
			lines->skipping = false;
			if (whole) {
				return line;
			}
			continue;
		}
		if (!lines_fill(lines)) {
			break;
		}
	}
	/* A last line without a newline counts. */
	if (lines->start == lines->filled || lines->skipping) {
		return NULL;
	}
	lines->data[lines->filled] = '\0';
	lines->filled = lines->start;
	return lines->data + lines->start;
}

bool user_parse_id(const char *text, unsigned *ret_id)
{
	unsigned id = 0;

	if (*text == '\0') {
		return false;
	}
	for (; *text != '\0'; text++) {
		if (*text < '0' || *text > '9' || MUL_OVERFLOWS(id, 10u, &id) ||
		    ADD_OVERFLOWS(id, (unsigned)(*text - '0'), &id)) {
			return false;
		}
	}
	/* The largest number means "no change" to the kernel. */
	if (id == (unsigned)-1) {
		return false;
	}
	*ret_id = id;
	return true;
}

/* Takes the text up to the next colon, or to the end, off *rest. NULL when nothing is left. */
static char *take_field(char **rest)
{
	char *field = *rest;
	char *colon = field ? strchr(field, ':') : NULL;

	if (colon) {
		*colon = '\0';
	}
	*rest = colon ? colon + 1 : NULL;
	return field;
}

static bool copy_text(char *out, size_t size, const char *text)
{
	size_t length = strlen(text);

	if (length >= size) {
		return false;
	}
	memcpy(out, text, length + 1);
	return true;
}

bool user_parse_passwd(char *line, struct user *ret_user)
{
	char *fields[7];
	char *rest = line;
	unsigned uid, gid;

	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		fields[i] = take_field(&rest);
		if (!fields[i]) {
			return false;
		}
	}
	if (rest || fields[0][0] == '\0' || !user_parse_id(fields[2], &uid) ||
	    !user_parse_id(fields[3], &gid) ||
	    !copy_text(ret_user->name, sizeof(ret_user->name), fields[0]) ||
	    !copy_text(ret_user->home, sizeof(ret_user->home), fields[5][0] ? fields[5] : "/") ||
	    !copy_text(ret_user->shell, sizeof(ret_user->shell),
		       fields[6][0] ? fields[6] : "/bin/sh")) {
		return false;
	}
	ret_user->uid = uid;
	ret_user->gid = gid;
	return true;
}

bool user_parse_group(char *line, const char *name, gid_t *ret_gid)
{
	char *fields[4];
	char *rest = line;
	unsigned gid;

	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		fields[i] = take_field(&rest);
		if (!fields[i]) {
			return false;
		}
	}
	if (rest || !user_parse_id(fields[2], &gid)) {
		return false;
	}
	for (char *member = fields[3]; member;) {
		char *comma = strchr(member, ',');

		if (comma) {
			*comma = '\0';
		}
		if (strcmp(member, name) == 0) {
			*ret_gid = gid;
			return true;
		}
		member = comma ? comma + 1 : NULL;
	}
	return false;
}

/*
 * Opens a file of the image, where whoever has been root inside may have put anything. Only a
 * regular file is read: process 1 must not wait for the writer of a fifo.
 */
static int open_regular(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat status;

	if (fd < 0 || fstat(fd, &status) < 0) {
		return -errno;
	}
	return S_ISREG(status.st_mode) ? TAKE_FD(fd) : -ENOENT;
}

/* 1 when a line was found, 0 when there is none, or a negative errno. */
static int find_user(const char *path, const char *name, struct user *ret_user)
{
	_cleanup_close_ int fd = open_regular(path);
	struct lines lines = {.fd = fd};
	unsigned id = 0;
	bool by_id = user_parse_id(name, &id);
	char *line;

	if (fd < 0) {
		return fd == -ENOENT ? 0 : fd;
	}
	while ((line = lines_next(&lines))) {
		if (user_parse_passwd(line, ret_user) &&
		    (by_id ? ret_user->uid == id : strcmp(ret_user->name, name) == 0)) {
			return 1;
		}
	}
	return 0;
}

static int find_groups(const char *path, struct user *user)
{
	_cleanup_close_ int fd = open_regular(path);
	struct lines lines = {.fd = fd};
	char *line;

	if (fd < 0) {
		return fd == -ENOENT ? 0 : fd;
	}
	while (user->group_count < USER_GROUPS_MAX && (line = lines_next(&lines))) {
		gid_t gid;

		if (user_parse_group(line, user->name, &gid) && gid != user->gid) {
			user->groups[user->group_count++] = gid;
		}
	}
	return 0;
}

/* A user that the image does not know: root always exists, and so does every number. */
static int unknown_user(const char *name, struct user *ret_user)
{
	unsigned id = 0;

	if (strcmp(name, "root") != 0 && !user_parse_id(name, &id)) {
		return -ENOENT;
	}
	ret_user->uid = id;
	ret_user->gid = id;
	copy_text(ret_user->name, sizeof(ret_user->name), id == 0 ? "root" : "");
	copy_text(ret_user->home, sizeof(ret_user->home), id == 0 ? "/root" : "/");
	copy_text(ret_user->shell, sizeof(ret_user->shell), "/bin/sh");
	return 0;
}

int user_resolve(const char *passwd_path, const char *group_path, const char *name,
		 struct user *ret_user)
{
	int rc = find_user(passwd_path, name, ret_user);

	if (rc < 0) {
		return rc;
	}
	if (rc == 0) {
		rc = unknown_user(name, ret_user);
		if (rc < 0) {
			return rc;
		}
	}
	ret_user->groups[0] = ret_user->gid;
	ret_user->group_count = 1;
	return ret_user->name[0] != '\0' ? find_groups(group_path, ret_user) : 0;
}
