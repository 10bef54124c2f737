#include "cli/changes.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "cli/log_lines.h"
#include "cli/run.h"
#include "client/risk.h"
#include "json/json.h"

/* More is for a program to go through. */
#define RISKS_SHOWN_MAX 200

static const char *const type_names[] = {
	[CHANGE_TYPE_NONE] = "nothing",	       [CHANGE_TYPE_FILE] = "file",
	[CHANGE_TYPE_DIRECTORY] = "directory", [CHANGE_TYPE_SYMLINK] = "link",
	[CHANGE_TYPE_DEVICE] = "device",       [CHANGE_TYPE_FIFO] = "fifo",
	[CHANGE_TYPE_SOCKET] = "socket",
};

static const struct {
	enum change_flags flag;
	const char *name;
} flag_names[] = {
	{CHANGE_FLAG_CONTENT, "content"}, {CHANGE_FLAG_TYPE, "type"},
	{CHANGE_FLAG_MODE, "mode"},	  {CHANGE_FLAG_OWNER, "owner"},
	{CHANGE_FLAG_TARGET, "target"},	  {CHANGE_FLAG_XATTRS, "attributes"},
};

/* Letters, digits and what else stands in usual names. No space: words end there. */
static bool is_plain(const char *path)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "_-+./:,@%=~";

	return path[0] != '\0' && strspn(path, plain) == strlen(path);
}

void changes_put_path(FILE *out, const char *path)
{
	char quoted[CHANGE_PATH_MAX * TEXT_QUOTE_GROWTH + 1];

	if (is_plain(path)) {
		fputs(path, out);
		return;
	}
	text_quote(path, strlen(path), quoted, sizeof(quoted));
	fprintf(out, "\"%s\"", quoted);
}

static void put_octal(FILE *out, unsigned char byte)
{
	static const char letters[] = "\a\b\t\n\v\f\r\"\\", names[] = "abtnvfr\"\\";
	const char *found = byte ? strchr(letters, byte) : NULL;

	if (found) {
		fprintf(out, "\\%c", names[found - letters]);
	} else if (byte >= ' ' && byte < 0x7f) {
		fputc(byte, out);
	} else {
		fprintf(out, "\\%03o", byte);
	}
}

void changes_put_patch_path(FILE *out, const char *prefix, const char *path)
{
	if (is_plain(path)) {
		fprintf(out, "%s%s", prefix, path);
		return;
	}
	fprintf(out, "\"%s", prefix);
	for (; *path; path++) {
		put_octal(out, (unsigned char)*path);
	}
	fputc('"', out);
}

static const char *separator(unsigned *count)
{
	return (*count)++ == 0 ? " (" : ", ";
}

static void put_flags(FILE *out, const struct change *change, unsigned *count)
{
	const struct change_side *old = &change->old, *new = &change->new;

	if (change->flags & CHANGE_FLAG_TYPE) {
		fprintf(out, "%s%s -> %s", separator(count), type_names[old->type],
			type_names[new->type]);
	}
	if (change->flags & CHANGE_FLAG_CONTENT) {
		fprintf(out, "%scontent", separator(count));
	}
	if (change->flags & CHANGE_FLAG_MODE) {
		fprintf(out, "%smode %03o -> %03o", separator(count), old->mode, new->mode);
	}
	if (change->flags & CHANGE_FLAG_OWNER) {
		fprintf(out, "%sowner %u:%u -> %u:%u", separator(count), old->uid, old->gid,
			new->uid, new->gid);
	}
	if (change->flags & CHANGE_FLAG_TARGET) {
		fprintf(out, "%starget ", separator(count));
		changes_put_path(out, change->old_target);
		fputs(" -> ", out);
		changes_put_path(out, change->new_target);
	}
	if (change->flags & CHANGE_FLAG_XATTRS) {
		fprintf(out, "%sattributes", separator(count));
	}
}

static const struct {
	char letter;
	const char *name;
} kinds[] = {
	[CHANGE_ADDED] = {'A', "added"},
	[CHANGE_DELETED] = {'D', "deleted"},
	[CHANGE_MODIFIED] = {'M', "modified"},
	[CHANGE_RENAMED] = {'R', "renamed"},
};

const char *changes_kind_name(uint32_t kind)
{
	return kinds[kind].name;
}

char changes_kind_letter(uint32_t kind)
{
	return kinds[kind].letter;
}

void changes_put_line(FILE *out, const struct change *change)
{
	const struct change_side *side =
		change->new.type != CHANGE_TYPE_NONE ? &change->new : &change->old;
	unsigned count = 0;

	fprintf(out, "%c ", changes_kind_letter(change->kind));
	if (change->kind == CHANGE_RENAMED) {
		changes_put_path(out, change->from);
		fputs(" -> ", out);
	}
	changes_put_path(out, change->path);
	if (change->kind == CHANGE_ADDED && side->type == CHANGE_TYPE_SYMLINK) {
		fprintf(out, "%slink to ", separator(&count));
		changes_put_path(out, change->new_target);
	} else if (side->type != CHANGE_TYPE_FILE && !(change->flags & CHANGE_FLAG_TYPE)) {
		fprintf(out, "%s%s", separator(&count), type_names[side->type]);
	}
	put_flags(out, change, &count);
	fputs(count > 0 ? ")\n" : "\n", out);
}

static void put_risk(FILE *out, const struct change *change, unsigned risks)
{
	unsigned count = 0;

	fputs("! ", out);
	changes_put_path(out, change->path);
	fputs(": ", out);
	for (size_t i = 0; i < RISK_COUNT; i++) {
		if (risks & (1u << i)) {
			fprintf(out, "%s%s", count++ > 0 ? "; " : "", risk_text(i));
		}
	}
	fputc('\n', out);
}

void changes_put_risks(FILE *out, const struct changes *changes)
{
	size_t count = 0;

	for (size_t i = 0; i < changes->count; i++) {
		unsigned risks = risk_of(&changes->items[i]);

		if (risks == 0) {
			continue;
		}
		if (count == 0) {
			fputs("\nLook at these before they are used:\n", out);
		}
		if (++count <= RISKS_SHOWN_MAX) {
			put_risk(out, &changes->items[i], risks);
		}
	}
	if (count > RISKS_SHOWN_MAX) {
		fprintf(out, "! and %zu more (--json has all)\n", count - RISKS_SHOWN_MAX);
	}
}

static bool is_utf8(const char *text)
{
	size_t left = strlen(text);

	while (left > 0) {
		size_t size = text_utf8_decode(text, left, NULL);

		if (size == 0) {
			return false;
		}
		text += size;
		left -= size;
	}
	return true;
}

int changes_set_path(struct json *object, const char *key, const char *path)
{
	_cleanup_free_ char *base64 = NULL;
	char second[64];
	int rc = json_set_string(object, key, path);

	if (rc < 0 || is_utf8(path)) {
		return rc;
	}
	base64 = text_base64(path, strlen(path));
	snprintf(second, sizeof(second), "%s_base64", key);
	return base64 ? json_set_string(object, second, base64) : -ENOMEM;
}

static int set_side(struct json *object, const char *key, const struct change_side *side,
		    const char *target)
{
	_cleanup_(json_freep) struct json *json = NULL;
	char mode[16];
	int rc;

	if (side->type == CHANGE_TYPE_NONE) {
		return json_set_null(object, key);
	}
	json = json_new_object();
	snprintf(mode, sizeof(mode), "%04o", side->mode);
	rc = json_set_string(json, "type", type_names[side->type]);
	if (rc == 0) {
		rc = json_set_string(json, "mode", mode);
	}
	if (rc == 0) {
		rc = json_set_integer(json, "uid", side->uid);
	}
	if (rc == 0) {
		rc = json_set_integer(json, "gid", side->gid);
	}
	if (rc == 0 && side->type == CHANGE_TYPE_FILE) {
		/* The guest says it; what does not fit is not there. */
		rc = json_set_integer(json, "size", (int64_t)MIN(side->size, (uint64_t)INT64_MAX));
	}
	if (rc == 0 && side->type == CHANGE_TYPE_SYMLINK) {
		rc = changes_set_path(json, "target", target);
	}
	return rc == 0 ? json_set_child(object, key, TAKE_PTR(json)) : rc;
}

static int set_words(struct json *object, const struct change *change)
{
	_cleanup_(json_freep) struct json *flags = json_new_array();
	_cleanup_(json_freep) struct json *found = json_new_array();
	unsigned risks = risk_of(change);
	int rc = flags && found ? 0 : -ENOMEM;

	for (size_t i = 0; i < ARRAY_SIZE(flag_names) && rc == 0; i++) {
		if (change->flags & (uint32_t)flag_names[i].flag) {
			rc = json_append_string(flags, flag_names[i].name);
		}
	}
	for (size_t i = 0; i < RISK_COUNT && rc == 0; i++) {
		if (risks & (1u << i)) {
			rc = json_append_string(found, risk_word(i));
		}
	}
	if (rc == 0) {
		rc = json_set_child(object, "changed", TAKE_PTR(flags));
	}
	return rc == 0 ? json_set_child(object, "risks", TAKE_PTR(found)) : rc;
}

struct json *changes_to_json(const struct change *change)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	int rc = json_set_string(object, "kind", changes_kind_name(change->kind));

	if (rc == 0) {
		rc = changes_set_path(object, "path", change->path);
	}
	if (rc == 0 && change->kind == CHANGE_RENAMED) {
		rc = changes_set_path(object, "from", change->from);
	}
	if (rc == 0) {
		rc = set_side(object, "old", &change->old, change->old_target);
	}
	if (rc == 0) {
		rc = set_side(object, "new", &change->new, change->new_target);
	}
	if (rc == 0) {
		rc = set_words(object, change);
	}
	return rc == 0 ? TAKE_PTR(object) : NULL;
}

/* ---- patches ---- */

static int written(const struct patch_writer *writer)
{
	return ferror(writer->out) ? -EIO : 0;
}

/* A line of a file's text, for a terminal: what could drive it is escaped. */
static void flush_line(struct patch_writer *writer)
{
	const char *at = writer->line;
	size_t left = writer->filled;

	while (left > 0) {
		size_t size = MAX(text_utf8_decode(at, left, NULL), (size_t)1);

		log_put_harmless(writer->out, at, size, false);
		at += size;
		left -= size;
	}
	writer->filled = 0;
}

static void put_name(struct patch_writer *writer, const char *mark, const char *prefix,
		     const char *path, bool there)
{
	fprintf(writer->out, "%s ", mark);
	if (there) {
		changes_put_patch_path(writer->out, prefix, path);
	} else {
		fputs("/dev/null", writer->out);
	}
	fputc('\n', writer->out);
}

int patch_put_text(struct patch_writer *writer, const char *text, size_t size)
{
	if (writer->waits_for_text) {
		put_name(writer, "---", "a/", writer->from, !writer->is_new);
		put_name(writer, "+++", "b/", writer->path, !writer->is_gone);
		writer->waits_for_text = false;
	}
	if (!writer->terminal) {
		fwrite(text, 1, size, writer->out);
		return written(writer);
	}
	for (size_t i = 0; i < size; i++) {
		writer->line[writer->filled++] = text[i];
		if (text[i] == '\n' || writer->filled == sizeof(writer->line)) {
			flush_line(writer);
		}
	}
	return written(writer);
}

int patch_end(struct patch_writer *writer)
{
	flush_line(writer);
	if (writer->open && writer->waits_for_text && writer->has_content) {
		fputs("Binary files differ\n", writer->out);
	}
	writer->open = false;
	return written(writer);
}

static unsigned git_mode(const struct change_side *side)
{
	return (side->type == CHANGE_TYPE_SYMLINK     ? 0120000u
		: side->type == CHANGE_TYPE_DIRECTORY ? 0040000u
		: side->type == CHANGE_TYPE_FILE      ? 0100000u
						      : 0u) |
	       side->mode;
}

static void put_headers(struct patch_writer *writer, const struct change *change)
{
	FILE *out = writer->out;
	const struct change_side *old = &change->old, *new = &change->new;
	const char *kind = type_names[new->type ? new->type : old->type];

	fputs("diff --git ", out);
	changes_put_patch_path(out, "a/", writer->from);
	fputc(' ', out);
	changes_put_patch_path(out, "b/", writer->path);
	fputc('\n', out);
	if (writer->is_new) {
		fprintf(out, "new %s mode %06o\n", kind, git_mode(new));
	} else if (writer->is_gone) {
		fprintf(out, "deleted %s mode %06o\n", kind, git_mode(old));
	} else if (git_mode(old) != git_mode(new)) {
		fprintf(out, "old mode %06o\nnew mode %06o\n", git_mode(old), git_mode(new));
	}
	if (change->kind == CHANGE_RENAMED) {
		fputs("rename from ", out);
		changes_put_patch_path(out, "", change->from);
		fputs("\nrename to ", out);
		changes_put_patch_path(out, "", change->path);
		fputc('\n', out);
	}
	if (change->old_target[0] && strcmp(change->old_target, change->new_target) != 0) {
		put_name(writer, "old target", "", change->old_target, true);
	}
	if (change->new_target[0] && strcmp(change->old_target, change->new_target) != 0) {
		put_name(writer, "new target", "", change->new_target, true);
	}
}

int patch_put_record(struct patch_writer *writer, const struct change *change)
{
	const char *from = change->kind == CHANGE_RENAMED ? change->from : change->path;

	patch_end(writer);
	snprintf(writer->path, sizeof(writer->path), "%s", change->path);
	snprintf(writer->from, sizeof(writer->from), "%s", from);
	writer->is_new = change->old.type == CHANGE_TYPE_NONE;
	writer->is_gone = change->new.type == CHANGE_TYPE_NONE;
	writer->has_content =
		(change->flags & CHANGE_FLAG_CONTENT) != 0 ||
		((writer->is_new || writer->is_gone) && change->old.size + change->new.size > 0);
	writer->open = true;
	writer->waits_for_text = true;
	put_headers(writer, change);
	return written(writer);
}
