#include "spec/node.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "spec/spec.h"

/* Enough of a word to be recognised in a message. */
#define QUOTED_MAX 96

struct loader {
	const struct spec_source *source;
	yaml_parser_t parser;
	size_t nodes;
};

static int fail_at(const struct spec_source *source, size_t line, size_t column, const char *format,
		   va_list args) __attribute__((format(printf, 4, 0)));

static int fail_at(const struct spec_source *source, size_t line, size_t column, const char *format,
		   va_list args)
{
	char text[sizeof(source->err->text)];

	vsnprintf(text, sizeof(text), format, args);
	err_set(source->err, -EINVAL, "bad-boxfile", "%s:%zu:%zu: %s", source->file_name, line,
		column, text);
	err_mend(source->err, "`box help boxfile` tells what each key takes");
	return -EINVAL;
}

int spec_fail(const struct spec_source *source, const struct spec_node *node, const char *format,
	      ...)
{
	va_list args;

	va_start(args, format);
	fail_at(source, node->line, node->column, format, args);
	va_end(args);
	return -EINVAL;
}

/* The same for a place that has no node; libyaml counts from 0. */
static int fail_mark(const struct loader *loader, yaml_mark_t mark, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static int fail_mark(const struct loader *loader, yaml_mark_t mark, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fail_at(loader->source, mark.line + 1, mark.column + 1, format, args);
	va_end(args);
	return -EINVAL;
}

void spec_node_free(struct spec_node *node)
{
	/* Depth recurses and is bounded; length does not. */
	while (node) {
		struct spec_node *next = node->next;

		spec_node_free(node->first);
		spec_node_free(node->value);
		free(node->text);
		free(node);
		node = next;
	}
}

bool spec_node_is_null(const struct spec_node *node)
{
	return node->kind == SPEC_NODE_SCALAR && node->plain &&
	       (node->text[0] == '\0' || strcmp(node->text, "~") == 0 ||
		strcmp(node->text, "null") == 0 || strcmp(node->text, "Null") == 0 ||
		strcmp(node->text, "NULL") == 0);
}

/*
 * Says what is wrong with the bytes before YAML is thought of: libyaml's own message for these has
 * no line. Control characters are refused outside of escapes, where nobody could see them.
 */
static int check_bytes(const struct spec_source *source, const char *text, size_t size)
{
	struct spec_node place = {.line = 1, .column = 1};
	size_t offset = 0;

	while (offset < size) {
		uint32_t code_point = 0;
		size_t taken = text_utf8_decode(text + offset, size - offset, &code_point);

		if (taken == 0) {
			return spec_fail(source, &place, "this is not UTF-8 (byte 0x%02x)",
					 (unsigned char)text[offset]);
		}
		if ((code_point < 0x20 && !strchr("\t\n\r", (int)code_point)) || code_point == 0 ||
		    (code_point >= 0x7f && code_point < 0xa0)) {
			return spec_fail(source, &place, "control character 0x%02x",
					 (unsigned)code_point);
		}
		offset += taken;
		place.column++;
		if (code_point == '\n') {
			place.line++;
			place.column = 1;
		}
	}
	return 0;
}

static int next_event(struct loader *loader, yaml_event_t *ret_event)
{
	const yaml_parser_t *parser = &loader->parser;

	if (yaml_parser_parse(&loader->parser, ret_event)) {
		return 0;
	}
	if (parser->error == YAML_MEMORY_ERROR) {
		return -ENOMEM;
	}
	return fail_mark(loader, parser->problem_mark, "%s%s%s",
			 parser->problem ? parser->problem : "not YAML", parser->context ? " " : "",
			 parser->context ? parser->context : "");
}

static int new_node(struct loader *loader, yaml_mark_t mark, enum spec_node_kind kind,
		    struct spec_node **ret_node)
{
	struct spec_node *node;

	if (++loader->nodes > SPEC_NODES_MAX) {
		return fail_mark(loader, mark, "more than %d values in one file", SPEC_NODES_MAX);
	}
	node = calloc(1, sizeof(*node));
	if (!node) {
		return -ENOMEM;
	}
	node->kind = kind;
	node->line = mark.line + 1;
	node->column = mark.column + 1;
	*ret_node = node;
	return 0;
}

/* The event that begins a node must not carry what a Boxfile has no use for. */
static int check_plain(const struct loader *loader, const yaml_event_t *event)
{
	const yaml_char_t *anchor = NULL, *tag = NULL;

	if (event->type == YAML_ALIAS_EVENT) {
		return fail_mark(loader, event->start_mark, "aliases are not allowed");
	}
	if (event->type == YAML_SCALAR_EVENT) {
		anchor = event->data.scalar.anchor;
		tag = event->data.scalar.tag;
	} else if (event->type == YAML_SEQUENCE_START_EVENT) {
		anchor = event->data.sequence_start.anchor;
		tag = event->data.sequence_start.tag;
	} else if (event->type == YAML_MAPPING_START_EVENT) {
		anchor = event->data.mapping_start.anchor;
		tag = event->data.mapping_start.tag;
	}
	if (anchor) {
		return fail_mark(loader, event->start_mark, "anchors are not allowed");
	}
	if (tag) {
		return fail_mark(loader, event->start_mark, "tags are not allowed");
	}
	return 0;
}

static int read_scalar(struct loader *loader, const yaml_event_t *event,
		       struct spec_node **ret_node)
{
	_cleanup_(spec_node_freep) struct spec_node *node = NULL;
	const char *value = (const char *)event->data.scalar.value;
	size_t length = event->data.scalar.length;
	int rc;

	if (memchr(value, '\0', length)) {
		return fail_mark(loader, event->start_mark, "a NUL character is not allowed");
	}
	rc = new_node(loader, event->start_mark, SPEC_NODE_SCALAR, &node);
	if (rc < 0) {
		return rc;
	}
	node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
	node->text = strndup(value, length);
	if (!node->text) {
		return -ENOMEM;
	}
	*ret_node = TAKE_PTR(node);
	return 0;
}

static int read_node(struct loader *loader, const yaml_event_t *event, unsigned depth,
		     struct spec_node **ret_node);

/* Reads the node that comes next; *ret_node stays NULL when the list or map ends instead. */
static int read_next(struct loader *loader, unsigned depth, struct spec_node **ret_node)
{
	_cleanup_(yaml_event_delete) yaml_event_t event = {0};
	int rc = next_event(loader, &event);

	if (rc < 0 || event.type == YAML_SEQUENCE_END_EVENT ||
	    event.type == YAML_MAPPING_END_EVENT) {
		return rc;
	}
	return read_node(loader, &event, depth, ret_node);
}

static int check_key(const struct loader *loader, const struct spec_node *map,
		     const struct spec_node *key)
{
	char quoted[QUOTED_MAX];

	if (key->kind != SPEC_NODE_SCALAR) {
		return spec_fail(loader->source, key, "a key must be a word, not a list or a map");
	}
	for (const struct spec_node *other = map->first; other; other = other->next) {
		if (strcmp(other->text, key->text) == 0) {
			text_quote(key->text, strlen(key->text), quoted, sizeof(quoted));
			return spec_fail(loader->source, key,
					 "the key \"%s\" stands twice, first in line %zu", quoted,
					 other->line);
		}
	}
	return 0;
}

/* Reads the items of a list, or the keys and values of a map, up to its end. */
static int read_children(struct loader *loader, struct spec_node *parent, unsigned depth)
{
	size_t limit = parent->kind == SPEC_NODE_MAP ? SPEC_MAP_MAX : SPEC_LIST_MAX;
	struct spec_node **tail = &parent->first;

	for (;;) {
		_cleanup_(spec_node_freep) struct spec_node *child = NULL;
		int rc = read_next(loader, depth + 1, &child);

		if (rc < 0 || !child) {
			return rc;
		}
		if (parent->count == limit) {
			return spec_fail(loader->source, child, "more than %zu entries", limit);
		}
		if (parent->kind == SPEC_NODE_MAP) {
			rc = check_key(loader, parent, child);
			if (rc == 0) {
				rc = read_next(loader, depth + 1, &child->value);
			}
			if (rc < 0) {
				return rc;
			}
		}
		*tail = TAKE_PTR(child);
		tail = &(*tail)->next;
		parent->count++;
	}
}

static int read_node(struct loader *loader, const yaml_event_t *event, unsigned depth,
		     struct spec_node **ret_node)
{
	_cleanup_(spec_node_freep) struct spec_node *node = NULL;
	enum spec_node_kind kind =
		event->type == YAML_MAPPING_START_EVENT ? SPEC_NODE_MAP : SPEC_NODE_LIST;
	int rc = check_plain(loader, event);

	if (rc < 0) {
		return rc;
	}
	if (event->type == YAML_SCALAR_EVENT) {
		return read_scalar(loader, event, ret_node);
	}
	if (depth >= SPEC_DEPTH_MAX) {
		return fail_mark(loader, event->start_mark, "nested deeper than %d levels",
				 SPEC_DEPTH_MAX);
	}
	rc = new_node(loader, event->start_mark, kind, &node);
	if (rc == 0) {
		rc = read_children(loader, node, depth);
	}
	if (rc < 0) {
		return rc;
	}
	*ret_node = TAKE_PTR(node);
	return 0;
}

/* Reads the one document, if there is one, and sees to it that no other follows. */
static int read_stream(struct loader *loader, struct spec_node **ret_root)
{
	_cleanup_(spec_node_freep) struct spec_node *root = NULL;
	unsigned documents = 0;

	for (;;) {
		_cleanup_(yaml_event_delete) yaml_event_t event = {0};
		int rc = next_event(loader, &event);

		if (rc < 0) {
			return rc;
		}
		if (event.type == YAML_STREAM_END_EVENT) {
			*ret_root = TAKE_PTR(root);
			return 0;
		}
		if (event.type != YAML_DOCUMENT_START_EVENT) {
			continue;
		}
		if (++documents > 1) {
			return fail_mark(loader, event.start_mark,
					 "a second document begins; a Boxfile is one");
		}
		if (event.data.document_start.tag_directives.start !=
		    event.data.document_start.tag_directives.end) {
			return fail_mark(loader, event.start_mark, "tags are not allowed");
		}
		rc = read_next(loader, 0, &root);
		if (rc < 0) {
			return rc;
		}
	}
}

int spec_node_read(const struct spec_source *source, const char *text, size_t size,
		   struct spec_node **ret_root)
{
	static const char mark[] = "\xef\xbb\xbf";
	struct loader loader = {.source = source};
	int rc;

	if (size > SPEC_FILE_MAX) {
		struct spec_node place = {.line = 1, .column = 1};

		return spec_fail(source, &place, "larger than %zu bytes", SPEC_FILE_MAX);
	}
	/* Some editors begin a file with a byte order mark. */
	if (size >= strlen(mark) && memcmp(text, mark, strlen(mark)) == 0) {
		text += strlen(mark);
		size -= strlen(mark);
	}
	rc = check_bytes(source, text, size);
	if (rc < 0) {
		return rc;
	}
	if (!yaml_parser_initialize(&loader.parser)) {
		return -ENOMEM;
	}
	yaml_parser_set_encoding(&loader.parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&loader.parser, (const unsigned char *)text, size);
	rc = read_stream(&loader, ret_root);
	yaml_parser_delete(&loader.parser);
	return rc;
}
