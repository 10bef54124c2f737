#include "archive/name.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Where a quoted name is cut, so that the dots and the last quote still fit. */
#define QUOTED_CUT (ARCHIVE_QUOTED_MAX - 10)

int name_normalize(const char *name, char ret_path[ARCHIVE_NAME_MAX + 1], const char **ret_why)
{
	size_t length = 0;
	const char *at = name;

	if (*name == '\0') {
		*ret_why = "the name is empty";
		return -EBADMSG;
	}
	if (*name == '/') {
		*ret_why = "the name is absolute";
		return -EBADMSG;
	}
	if (strnlen(name, ARCHIVE_NAME_MAX + 1) > ARCHIVE_NAME_MAX) {
		*ret_why = "the name is over 4096 bytes";
		return -EBADMSG;
	}
	while (*at) {
		size_t size = strcspn(at, "/");

		if (size == 2 && at[0] == '.' && at[1] == '.') {
			*ret_why = "the name goes up with \"..\"";
			return -EBADMSG;
		}
		if (size > ARCHIVE_COMPONENT_MAX) {
			*ret_why = "a part of the name is over 255 bytes";
			return -EBADMSG;
		}
		if (size > 0 && !(size == 1 && at[0] == '.')) {
			if (length > 0) {
				ret_path[length++] = '/';
			}
			memcpy(ret_path + length, at, size);
			length += size;
		}
		at += size;
		at += strspn(at, "/");
	}
	ret_path[length] = '\0';
	return 0;
}

const char *archive_quote(const char *name, char ret_text[ARCHIVE_QUOTED_MAX])
{
	size_t length = 0;

	ret_text[length++] = '"';
	for (const char *p = name; *p; p++) {
		unsigned char byte = (unsigned char)*p;

		if (length > QUOTED_CUT) {
			memcpy(ret_text + length, "...", 3);
			length += 3;
			break;
		}
		if (byte == '"' || byte == '\\') {
			ret_text[length++] = '\\';
			ret_text[length++] = *p;
		} else if (byte >= ' ' && byte < 0x7f) {
			ret_text[length++] = *p;
		} else {
			length += (size_t)snprintf(ret_text + length, 5, "\\%03o", byte);
		}
	}
	ret_text[length++] = '"';
	ret_text[length] = '\0';
	return ret_text;
}
