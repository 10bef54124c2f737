#include "spec/keys.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"

/* Enough of a word to be recognised in a message. */
#define QUOTED_MAX 96
/* Disks are made of blocks of this size; the guest could not use a part of one. */
#define DISK_BLOCK 4096u

int spec_refuse(const struct spec_reader *reader, const char *key, const struct spec_node *value,
		const char *reason)
{
	char quoted[QUOTED_MAX];
	size_t length = strlen(value->text);
	bool cut = text_quote(value->text, length, quoted, sizeof(quoted)) >= sizeof(quoted);

	return spec_fail(&reader->source, value, "%s: \"%s%s\" %s", key, quoted, cut ? "..." : "",
			 reason);
}

int spec_want(const struct spec_reader *reader, const char *what, const struct spec_node *value,
	      enum spec_node_kind kind)
{
	static const char *const names[] = {
		[SPEC_NODE_SCALAR] = "a single value",
		[SPEC_NODE_LIST] = "a list",
		[SPEC_NODE_MAP] = "a map",
	};

	if (value->kind == kind) {
		return 0;
	}
	return spec_fail(&reader->source, value, "%s must be %s, not %s", what, names[kind],
			 names[value->kind]);
}

const struct spec_node *spec_find(const struct spec_node *map, const char *name)
{
	for (const struct spec_node *key = map ? map->first : NULL; key; key = key->next) {
		if (strcmp(key->text, name) == 0) {
			return key->value;
		}
	}
	return NULL;
}

static int unknown_key(const struct spec_reader *reader, const char *what,
		       const struct spec_key *keys, const struct spec_node *key)
{
	/* The largest table has not half as many. */
	const char *names[64];
	const char *nearest;
	char quoted[QUOTED_MAX];
	size_t count = 0;

	for (; keys[count].name; count++) {
		ASSERT(count + 1 < ARRAY_SIZE(names));
		names[count] = keys[count].name;
	}
	names[count] = NULL;
	text_quote(key->text, strlen(key->text), quoted, sizeof(quoted));
	spec_fail(&reader->source, key, "unknown key \"%s\" in %s", quoted, what);
	nearest = text_nearest(key->text, names);
	if (nearest) {
		err_mend(reader->source.err, "did you mean \"%s\"?", nearest);
	}
	return -EINVAL;
}

int spec_read_map(struct spec_reader *reader, const char *what, const struct spec_key *keys,
		  const struct spec_node *map, void *target)
{
	int rc = spec_want(reader, what, map, SPEC_NODE_MAP);

	for (const struct spec_node *node = map->first; rc == 0 && node; node = node->next) {
		const struct spec_key *key = keys;

		while (key->name && strcmp(key->name, node->text) != 0) {
			key++;
		}
		if (!key->name) {
			return unknown_key(reader, what, keys, node);
		}
		if (!spec_node_is_null(node->value)) {
			rc = key->read(reader, key, node->value, target);
		}
	}
	return rc;
}

static int out_of_range(const struct spec_reader *reader, const struct spec_key *key,
			const struct spec_node *value)
{
	char reason[96];

	snprintf(reason, sizeof(reason), "is not within %llu and %llu",
		 (unsigned long long)key->minimum, (unsigned long long)key->maximum);
	return spec_refuse(reader, key->name, value, reason);
}

static int read_number(const struct spec_reader *reader, const struct spec_key *key,
		       const struct spec_node *value, uint64_t *ret_number)
{
	uint64_t number;
	int rc = spec_want(reader, key->name, value, SPEC_NODE_SCALAR);

	if (rc < 0) {
		return rc;
	}
	rc = spec_read_number(value->text, 10, key->maximum, &number);
	if (rc == -EINVAL) {
		return spec_refuse(reader, key->name, value, "is not a whole number");
	}
	if (rc < 0 || number < key->minimum) {
		return out_of_range(reader, key, value);
	}
	*ret_number = number;
	return 0;
}

static void *place(void *target, size_t offset)
{
	return (char *)target + offset;
}

int spec_read_u32(struct spec_reader *reader, const struct spec_key *key,
		  const struct spec_node *value, void *target)
{
	uint64_t number;
	int rc;

	ASSERT(key->maximum <= UINT32_MAX);
	rc = read_number(reader, key, value, &number);
	if (rc == 0) {
		*(uint32_t *)place(target, key->offset) = (uint32_t)number;
	}
	return rc;
}

int spec_read_u64(struct spec_reader *reader, const struct spec_key *key,
		  const struct spec_node *value, void *target)
{
	return read_number(reader, key, value, place(target, key->offset));
}

int spec_read_bytes(struct spec_reader *reader, const struct spec_key *key,
		    const struct spec_node *value, void *target)
{
	char minimum[TEXT_BYTES_MAX], maximum[TEXT_BYTES_MAX], reason[96];
	uint64_t bytes;
	int rc = spec_want(reader, key->name, value, SPEC_NODE_SCALAR);

	if (rc < 0) {
		return rc;
	}
	rc = spec_read_size(value->text, &bytes);
	if (rc == -EINVAL) {
		return spec_refuse(reader, key->name, value,
				   "is not a size (such as 512M, 8G or a number of bytes)");
	}
	if (rc < 0 || bytes < key->minimum || bytes > key->maximum) {
		text_format_bytes(key->minimum, minimum, sizeof(minimum));
		text_format_bytes(key->maximum, maximum, sizeof(maximum));
		snprintf(reason, sizeof(reason), "is not within %s and %s", minimum, maximum);
		return spec_refuse(reader, key->name, value, reason);
	}
	*(uint64_t *)place(target, key->offset) = bytes;
	return 0;
}

int spec_read_disk_size(struct spec_reader *reader, const struct spec_key *key,
			const struct spec_node *value, void *target)
{
	int rc = spec_read_bytes(reader, key, value, target);

	if (rc == 0 && *(uint64_t *)place(target, key->offset) % DISK_BLOCK != 0) {
		return spec_refuse(reader, key->name, value, "is not a multiple of 4096 bytes");
	}
	return rc;
}

int spec_read_seconds(struct spec_reader *reader, const struct spec_key *key,
		      const struct spec_node *value, void *target)
{
	uint64_t seconds;
	char reason[96];
	int rc = spec_want(reader, key->name, value, SPEC_NODE_SCALAR);

	ASSERT(key->maximum <= UINT32_MAX);
	if (rc < 0) {
		return rc;
	}
	rc = spec_read_duration(value->text, &seconds);
	if (rc == -EINVAL) {
		return spec_refuse(reader, key->name, value,
				   "is not a time (such as 90s, 30m, 2h or a number of seconds)");
	}
	if (rc < 0 || seconds < key->minimum || seconds > key->maximum) {
		snprintf(reason, sizeof(reason), "is not within %llu and %llu seconds",
			 (unsigned long long)key->minimum, (unsigned long long)key->maximum);
		return spec_refuse(reader, key->name, value, reason);
	}
	*(uint32_t *)place(target, key->offset) = (uint32_t)seconds;
	return 0;
}

int spec_read_boolean(struct spec_reader *reader, const struct spec_key *key,
		      const struct spec_node *value, void *target)
{
	/* Every spelling of YAML 1.1 that is a word. */
	static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
	int rc = spec_want(reader, key->name, value, SPEC_NODE_SCALAR);

	if (rc < 0) {
		return rc;
	}
	for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
		if (strcasecmp(value->text, words[i]) == 0) {
			*(bool *)place(target, key->offset) = i % 2 == 1;
			return 0;
		}
	}
	return spec_refuse(reader, key->name, value, "is neither true nor false");
}

int spec_read_word(struct spec_reader *reader, const struct spec_key *key,
		   const struct spec_node *value, const char *const *words, unsigned *ret_index)
{
	char reason[160] = "is none of";
	const char *nearest;
	int rc = spec_want(reader, key->name, value, SPEC_NODE_SCALAR);

	if (rc < 0) {
		return rc;
	}
	for (unsigned i = 0; words[i]; i++) {
		size_t length = strlen(reason);

		if (strcmp(value->text, words[i]) == 0) {
			*ret_index = i;
			return 0;
		}
		snprintf(reason + length, sizeof(reason) - length, "%s %s", i > 0 ? "," : "",
			 words[i]);
	}
	spec_refuse(reader, key->name, value, reason);
	nearest = text_nearest(value->text, words);
	if (nearest) {
		err_mend(reader->source.err, "did you mean \"%s\"?", nearest);
	}
	return -EINVAL;
}

int spec_read_string(struct spec_reader *reader, const struct spec_key *key,
		     const struct spec_node *value, void *target)
{
	char **slot = place(target, key->offset);
	const char *reason;
	char *copy;
	int rc = spec_want(reader, key->name, value, SPEC_NODE_SCALAR);

	if (rc < 0) {
		return rc;
	}
	reason = key->rule(value->text);
	if (reason) {
		return spec_refuse(reader, key->name, value, reason);
	}
	copy = strdup(value->text);
	if (!copy) {
		return -ENOMEM;
	}
	free(*slot);
	*slot = copy;
	return 0;
}

int spec_list_add(char ***list, size_t *count, char *text)
{
	char **grown = text ? reallocarray(*list, *count + 1, sizeof(**list)) : NULL;

	if (!grown) {
		free(text);
		return -ENOMEM;
	}
	*list = grown;
	grown[(*count)++] = text;
	return 0;
}

int spec_read_list(struct spec_reader *reader, const struct spec_key *key,
		   const struct spec_node *value, void *target)
{
	char ***list = place(target, key->offset);
	size_t *count = place(target, key->count_offset);
	int rc = spec_want(reader, key->name, value, SPEC_NODE_LIST);

	for (const struct spec_node *item = value->first; rc == 0 && item; item = item->next) {
		char what[QUOTED_MAX];
		const char *reason;

		snprintf(what, sizeof(what), "an item of %s", key->name);
		rc = spec_want(reader, what, item, SPEC_NODE_SCALAR);
		if (rc < 0) {
			return rc;
		}
		if (*count >= key->maximum) {
			return spec_fail(&reader->source, item, "%s: more than %llu items",
					 key->name, (unsigned long long)key->maximum);
		}
		reason = key->rule(item->text);
		if (reason) {
			return spec_refuse(reader, key->name, item, reason);
		}
		rc = spec_list_add(list, count, strdup(item->text));
	}
	return rc;
}

int spec_notice(struct spec_reader *reader, const struct spec_node *node, const char *format, ...)
{
	struct spec *spec = reader->spec;
	char text[256];
	char *line = NULL;
	va_list args;

	if (spec->notice_count >= SPEC_NOTICES_MAX) {
		return 0;
	}
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (asprintf(&line, "%s:%zu:%zu: %s", reader->source.file_name, node->line, node->column,
		     text) < 0) {
		return -ENOMEM;
	}
	return spec_list_add(&spec->notices, &spec->notice_count, line);
}
