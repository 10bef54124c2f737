/* How changes of /data are shown. Names are hostile: none may forge a line or drive a terminal. */
#pragma once

#include <stdio.h>

#include "base/err.h"
#include "client/changes.h"

struct json;

/*
 * Writes a path as one word: as it is when it is plain, else in double quotes with escapes
 * (base/text.h). changes_put_patch_path uses the escapes that git and patch read.
 */
void changes_put_path(FILE *out, const char *path);
void changes_put_patch_path(FILE *out, const char *prefix, const char *path);

/* "added" and 'A', and so on. */
const char *changes_kind_name(uint32_t kind);
char changes_kind_letter(uint32_t kind);

/* One line: "A path", "M path (content, mode 644 -> 755)", "R old -> new". */
void changes_put_line(FILE *out, const struct change *change);

/* The lines for what deserves a look, after the changes themselves. */
void changes_put_risks(FILE *out, const struct changes *changes);

/* A change as an object; NULL without memory. Text that is not UTF-8 is there a second time as
 * base64, under KEY_base64. */
struct json *changes_to_json(const struct change *change);

/* Sets KEY, and KEY_base64 when it is not UTF-8. 0 or -ENOMEM. */
int changes_set_path(struct json *object, const char *key, const char *path);

/*
 * Writes changes as a patch, as they come. terminal: control characters in what the files hold are
 * escaped.
 */
struct patch_writer {
	FILE *out;
	bool terminal;
	/* The change at hand, and whether its two header lines are still to come. */
	bool open;
	bool waits_for_text;
	bool has_content;
	char path[CHANGE_PATH_MAX + 1];
	char from[CHANGE_PATH_MAX + 1];
	bool is_new;
	bool is_gone;
	/* Of a terminal: the line so far. */
	size_t filled;
	char line[4096];
};
/* Return 0, or a negative errno when the output cannot be written. */
int patch_put_record(struct patch_writer *writer, const struct change *change);
int patch_put_text(struct patch_writer *writer, const char *text, size_t size);
int patch_end(struct patch_writer *writer);
