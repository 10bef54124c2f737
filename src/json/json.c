/*
 * Theory of operation.
 *
 * A struct json is never defined: its pointers are libjansson's json_t pointers under another
 * name, turned around in two functions here, so that no other part depends on that library.
 *
 * Going in, every string passes through repair(), for libjansson refuses what is not UTF-8, and an
 * answer must not fail because of a file name. Coming from text, nesting is counted before
 * the parser runs: libjansson recurses up to 2,048 levels, more than a stack that others share
 * should be asked for.
 */
#include "json/json.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"

/* U+FFFD in UTF-8. */
static const char replacement[] = "\xef\xbf\xbd";

static json_t *inner(struct json *json)
{
	return (json_t *)json;
}

/* libjansson's readers take const pointers but hand out others; nothing is changed through them. */
static const json_t *inner_const(const struct json *json)
{
	return (const json_t *)json;
}

struct json *json_new_object(void)
{
	return (struct json *)json_object();
}

struct json *json_new_array(void)
{
	return (struct json *)json_array();
}

void json_free(struct json *json)
{
	json_decref(inner(json));
}

/* A copy of size bytes that is valid UTF-8. NULL when there is no memory. */
static char *repair(const char *bytes, size_t size, size_t *ret_size)
{
	size_t capacity, length = 0;
	char *out;

	if (MUL_OVERFLOWS(size, sizeof(replacement) - 1, &capacity) ||
	    ADD_OVERFLOWS(capacity, 1u, &capacity)) {
		return NULL;
	}
	out = malloc(capacity);
	if (!out) {
		return NULL;
	}
	for (size_t offset = 0; offset < size;) {
		size_t taken = text_utf8_decode(bytes + offset, size - offset, NULL);
		const char *piece = taken > 0 ? bytes + offset : replacement;
		size_t piece_length = taken > 0 ? taken : sizeof(replacement) - 1;

		memcpy(out + length, piece, piece_length);
		length += piece_length;
		offset += MAX(taken, (size_t)1);
	}
	out[length] = '\0';
	*ret_size = length;
	return out;
}

static json_t *new_string(const char *bytes, size_t size)
{
	_cleanup_free_ char *repaired = NULL;
	size_t length;

	if (!bytes) {
		return json_null();
	}
	repaired = repair(bytes, size, &length);
	return repaired ? json_stringn(repaired, length) : NULL;
}

/* Takes value over, which may be NULL. */
static int set(struct json *object, const char *key, json_t *value)
{
	_cleanup_free_ char *repaired = NULL;
	size_t length;
	int rc;

	ASSERT(!object || json_is_object(inner(object)));
	repaired = repair(key, strlen(key), &length);
	if (!object || !value || !repaired) {
		json_decref(value);
		return -ENOMEM;
	}
	rc = json_object_set_new(inner(object), repaired, value);
	return rc < 0 ? -ENOMEM : 0;
}

int json_set_string(struct json *object, const char *key, const char *value)
{
	return set(object, key, new_string(value, value ? strlen(value) : 0));
}

int json_set_bytes(struct json *object, const char *key, const char *bytes, size_t size)
{
	return set(object, key, new_string(bytes, size));
}

int json_set_integer(struct json *object, const char *key, int64_t value)
{
	return set(object, key, json_integer(value));
}

int json_set_boolean(struct json *object, const char *key, bool value)
{
	return set(object, key, json_boolean(value));
}

int json_set_real(struct json *object, const char *key, double value)
{
	return set(object, key, isfinite(value) ? json_real(value) : json_null());
}

int json_set_null(struct json *object, const char *key)
{
	return set(object, key, json_null());
}

int json_set_child(struct json *object, const char *key, struct json *child)
{
	return set(object, key, inner(child));
}

/* Takes value over, which may be NULL. */
static int append(struct json *array, json_t *value)
{
	ASSERT(!array || json_is_array(inner(array)));
	if (!array || !value) {
		json_decref(value);
		return -ENOMEM;
	}
	return json_array_append_new(inner(array), value) < 0 ? -ENOMEM : 0;
}

int json_append_string(struct json *array, const char *value)
{
	return append(array, new_string(value, value ? strlen(value) : 0));
}

int json_append_integer(struct json *array, int64_t value)
{
	return append(array, json_integer(value));
}

int json_append_child(struct json *array, struct json *child)
{
	return append(array, inner(child));
}

enum json_kind json_kind(const struct json *json)
{
	switch (json_typeof(inner_const(json))) {
	case JSON_OBJECT:
		return JSON_KIND_OBJECT;
	case JSON_ARRAY:
		return JSON_KIND_ARRAY;
	case JSON_STRING:
		return JSON_KIND_STRING;
	case JSON_INTEGER:
		return JSON_KIND_INTEGER;
	case JSON_REAL:
		return JSON_KIND_REAL;
	case JSON_TRUE:
	case JSON_FALSE:
		return JSON_KIND_BOOLEAN;
	case JSON_NULL:
		break;
	}
	return JSON_KIND_NULL;
}

const struct json *json_get_child(const struct json *object, const char *key)
{
	return (const struct json *)json_object_get(inner_const(object), key);
}

const char *json_get_string(const struct json *object, const char *key)
{
	return json_string_of(json_get_child(object, key));
}

int json_get_integer(const struct json *object, const char *key, int64_t *ret_value)
{
	const struct json *member = json_get_child(object, key);

	return member ? json_integer_of(member, ret_value) : -ENOENT;
}

int json_get_boolean(const struct json *object, const char *key, bool *ret_value)
{
	const json_t *member = inner_const(json_get_child(object, key));

	if (!member) {
		return -ENOENT;
	}
	if (!json_is_boolean(member)) {
		return -EBADMSG;
	}
	*ret_value = json_is_true(member);
	return 0;
}

int json_get_real(const struct json *object, const char *key, double *ret_value)
{
	const json_t *member = inner_const(json_get_child(object, key));

	if (!member) {
		return -ENOENT;
	}
	if (!json_is_number(member)) {
		return -EBADMSG;
	}
	*ret_value = json_number_value(member);
	return 0;
}

size_t json_count(const struct json *json)
{
	const json_t *value = inner_const(json);

	return json_is_object(value) ? json_object_size(value) : json_array_size(value);
}

const struct json *json_at(const struct json *array, size_t index)
{
	return (const struct json *)json_array_get(inner_const(array), index);
}

const char *json_string_of(const struct json *json)
{
	return json_string_value(inner_const(json));
}

int json_integer_of(const struct json *json, int64_t *ret_value)
{
	const json_t *value = inner_const(json);

	if (!json_is_integer(value)) {
		return -EBADMSG;
	}
	*ret_value = json_integer_value(value);
	return 0;
}

bool json_next(const struct json *object, void **position, const char **ret_key,
	       const struct json **ret_value)
{
	/* The iteration changes nothing, but libjansson's type says that it may. */
	json_t *value = (json_t *)(uintptr_t)object;

	*position = *position ? json_object_iter_next(value, *position) : json_object_iter(value);
	if (!*position) {
		return false;
	}
	*ret_key = json_object_iter_key(*position);
	*ret_value = (const struct json *)json_object_iter_value(*position);
	return true;
}

/* The deepest nesting of brackets outside strings; for what is no JSON any number will do. */
static size_t nesting_depth(const char *text, size_t size)
{
	size_t depth = 0, deepest = 0;
	bool in_string = false;

	for (size_t i = 0; i < size; i++) {
		if (in_string) {
			if (text[i] == '\\') {
				i++;
			} else if (text[i] == '"') {
				in_string = false;
			}
			continue;
		}
		if (text[i] == '"') {
			in_string = true;
		} else if (text[i] == '[' || text[i] == '{') {
			depth++;
			deepest = MAX(deepest, depth);
		} else if ((text[i] == ']' || text[i] == '}') && depth > 0) {
			depth--;
		}
	}
	return deepest;
}

int json_parse(const char *text, size_t size, struct json **ret_json, struct err *err)
{
	char reason[sizeof(err->text) / 2];
	json_error_t error;
	json_t *value;

	if (size > JSON_TEXT_MAX) {
		return err_set(err, -EBADMSG, "bad-json", "larger than %zu bytes", JSON_TEXT_MAX);
	}
	if (nesting_depth(text, size) > JSON_DEPTH_MAX) {
		return err_set(err, -EBADMSG, "bad-json", "nested deeper than %d levels",
			       JSON_DEPTH_MAX);
	}
	value = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
	if (value) {
		*ret_json = (struct json *)value;
		return 0;
	}
	if (json_error_code(&error) == json_error_out_of_memory) {
		return err_set(err, -ENOMEM, "no-memory", "out of memory");
	}
	/* The library's text repeats what stood in the input. */
	text_quote(error.text, strnlen(error.text, sizeof(error.text)), reason, sizeof(reason));
	return err_set(err, -EBADMSG, "bad-json", "line %d, column %d: %s", error.line,
		       error.column, reason);
}

int json_dump(const struct json *json, unsigned flags, char **ret_text)
{
	/* 15 digits are what a double holds of any decimal number: 0.1 is written as 0.1. */
	size_t layout = JSON_SORT_KEYS | JSON_REAL_PRECISION(15) |
			((flags & JSON_DUMP_INDENT) ? JSON_INDENT(2) : JSON_COMPACT) |
			((flags & JSON_DUMP_ASCII) ? JSON_ENSURE_ASCII : 0);
	size_t length;
	char *text, *longer;

	if (!json) {
		return -ENOMEM;
	}
	text = json_dumps(inner_const(json), layout);
	if (!text) {
		return -ENOMEM;
	}
	if (flags & JSON_DUMP_NEWLINE) {
		length = strlen(text);
		longer = realloc(text, length + 2);
		if (!longer) {
			free(text);
			return -ENOMEM;
		}
		text = longer;
		memcpy(text + length, "\n", 2);
	}
	*ret_text = text;
	return 0;
}
