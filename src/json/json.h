/*
 * JSON in and out (RFC 8259), for `--json`, QMP and our own files.
 *
 * A struct json is one value and all that is below it. Whoever made a value owns it, until it is
 * put into another value with json_set_child or json_append_child; from then on the outer one owns
 * it. Values that the json_get_... and json_at functions return are borrowed: they live as long as
 * the outermost value is left unchanged.
 *
 * Text that goes in may hold any bytes: what is not valid UTF-8 is replaced by U+FFFD, one for each
 * byte. So what comes out is valid JSON whatever a guest or a file system said.
 *
 * The names keep clear of those of libjansson, which stands behind this and is included nowhere
 * else.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* QMP's largest answer, its own schema, is a tenth of this; our own files are far smaller. */
#define JSON_TEXT_MAX ((size_t)4 << 20)
/* Nothing that box reads is nested deeper than ten; parsing and freeing recurse. */
#define JSON_DEPTH_MAX 64

struct json;

enum json_kind {
	JSON_KIND_NULL,
	JSON_KIND_BOOLEAN,
	JSON_KIND_INTEGER,
	JSON_KIND_REAL,
	JSON_KIND_STRING,
	JSON_KIND_ARRAY,
	JSON_KIND_OBJECT,
};

/* An empty object or array, owned by the caller. NULL when there is no memory. */
struct json *json_new_object(void);
struct json *json_new_array(void);

/* Gives a value that the caller owns back, with all below it. NULL is no error. */
void json_free(struct json *json);
static inline void json_freep(struct json **json)
{
	json_free(*json);
}

/*
 * Set a member of an object, in place of an earlier one of that key. object may be NULL: so the
 * result of json_new_object may be passed on and only the calls that set be checked, as in
 * `if (json_set_string(o, "a", a) < 0 || json_set_integer(o, "b", b) < 0)`. Return 0 or -ENOMEM;
 * on failure object is as before.
 */
#define JSON_CHECKED __attribute__((warn_unused_result))
/* value is NUL-terminated, any bytes; NULL sets null. */
JSON_CHECKED int json_set_string(struct json *object, const char *key, const char *value);
/* size bytes, NUL bytes among them too. */
JSON_CHECKED int json_set_bytes(struct json *object, const char *key, const char *bytes,
				size_t size);
JSON_CHECKED int json_set_integer(struct json *object, const char *key, int64_t value);
JSON_CHECKED int json_set_boolean(struct json *object, const char *key, bool value);
/* What is not a number or not finite sets null, for JSON cannot say it. */
JSON_CHECKED int json_set_real(struct json *object, const char *key, double value);
JSON_CHECKED int json_set_null(struct json *object, const char *key);
/* Takes child over in every case, also on failure. child may be NULL: -ENOMEM. */
JSON_CHECKED int json_set_child(struct json *object, const char *key, struct json *child);

/* The same for the end of an array. */
JSON_CHECKED int json_append_string(struct json *array, const char *value);
JSON_CHECKED int json_append_integer(struct json *array, int64_t value);
JSON_CHECKED int json_append_child(struct json *array, struct json *child);

/* What kind of value it is. json is not NULL. */
enum json_kind json_kind(const struct json *json);

/*
 * Read a member of an object. A NULL object, or a value that is no object, has no members, so that
 * a path of several json_get_child may be followed and checked once.
 */
/* The member, borrowed, or NULL when there is none. */
const struct json *json_get_child(const struct json *object, const char *key);
/* The string, borrowed, valid UTF-8 without NUL; NULL when there is none or it is no string. */
const char *json_get_string(const struct json *object, const char *key);
/* 0, -ENOENT when there is no such member, -EBADMSG when it is of another kind. */
int json_get_integer(const struct json *object, const char *key, int64_t *ret_value);
int json_get_boolean(const struct json *object, const char *key, bool *ret_value);
/* Takes an integer too. */
int json_get_real(const struct json *object, const char *key, double *ret_value);

/* How many elements or members; 0 for every other kind and for NULL. */
size_t json_count(const struct json *json);
/* An array's element, borrowed; NULL when index is not below json_count. */
const struct json *json_at(const struct json *array, size_t index);
/* The value itself: NULL, or -EBADMSG, when it is of another kind (NULL included). */
const char *json_string_of(const struct json *json);
int json_integer_of(const struct json *json, int64_t *ret_value);

/*
 * Goes through an object's members in no particular order. *position is NULL at first. Returns
 * false at the end; *ret_key and *ret_value are then untouched. Both are borrowed.
 */
bool json_next(const struct json *object, void **position, const char **ret_key,
	       const struct json **ret_value);

/*
 * Parses text (size bytes, not trusted, no NUL needed): one object or array with only white space
 * around it. Refused with -EBADMSG and err filled ("line L, column C: why"): what is not JSON, is
 * not UTF-8, is larger than JSON_TEXT_MAX, deeper than JSON_DEPTH_MAX, has a key twice, or a NUL
 * (\u0000) in a string. -ENOMEM. *ret_json is owned by the caller.
 */
int json_parse(const char *text, size_t size, struct json **ret_json, struct err *err);

enum json_dump_flags {
	/* Two spaces a level, one member a line; otherwise all on one line. */
	JSON_DUMP_INDENT = 1u << 0,
	/* A newline at the end. */
	JSON_DUMP_NEWLINE = 1u << 1,
	/* Characters beyond ASCII as \uXXXX: among them are some that drive a terminal. */
	JSON_DUMP_ASCII = 1u << 2,
};

/*
 * Writes an object or array as UTF-8 text, members sorted by key, so that equal values give equal
 * text. *ret_text is NUL-terminated, owned by the caller, freed by free(). json may be NULL:
 * -ENOMEM, as for every other failure.
 */
JSON_CHECKED int json_dump(const struct json *json, unsigned flags, char **ret_text);
