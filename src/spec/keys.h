/*
 * Maps as tables: which keys a map may have, and how each is read. Private to this part.
 *
 * A row names a key, the function that reads what stands behind it, and where the result goes in
 * the struct that the map describes. The ready-made functions take all else they need from the row.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "spec/node.h"
#include "spec/rules.h"
#include "spec/spec.h"

/* Notices are read by a person; an older Boxfile has a handful. */
#define SPEC_NOTICES_MAX 64

/* A whole desktop has 3,000. */
#define SPEC_PACKAGES_MAX 4096

struct spec_reader {
	struct spec_source source;
	struct spec *spec;
};

struct spec_key;

/*
 * Reads value, which is not null, into target, the struct that the map describes. Returns 0,
 * -EINVAL with err filled, or -ENOMEM.
 */
typedef int spec_key_reader(struct spec_reader *reader, const struct spec_key *key,
			    const struct spec_node *value, void *target);

struct spec_key {
	/* NULL ends a table. */
	const char *name;
	spec_key_reader *read;
	/* Where the value goes in target, and for lists where their count goes. */
	size_t offset;
	size_t count_offset;
	/* Of a number or a size; maximum is also how many items a list may have. */
	uint64_t minimum;
	uint64_t maximum;
	/* For strings and the items of lists. */
	spec_rule *rule;
};

/*
 * Reads a map by its table. A key without a value keeps its default, so that a list may be
 * commented out item by item. what names the map in messages.
 */
int spec_read_map(struct spec_reader *reader, const char *what, const struct spec_key *keys,
		  const struct spec_node *map, void *target);

/* Ready-made: uint32_t within minimum and maximum. */
spec_key_reader spec_read_u32;
/* uint64_t within minimum and maximum. */
spec_key_reader spec_read_u64;
/* uint64_t, with a unit, within minimum and maximum, in whole blocks of a disk. */
spec_key_reader spec_read_disk_size;
/* uint64_t, with a unit, within minimum and maximum. */
spec_key_reader spec_read_bytes;
/* uint32_t of seconds, with a unit, within minimum and maximum. */
spec_key_reader spec_read_seconds;
/* bool */
spec_key_reader spec_read_boolean;
/* char * that keeps the rule. */
spec_key_reader spec_read_string;
/* char ** and size_t, every item keeps the rule. Items are added to what is there. */
spec_key_reader spec_read_list;

/*
 * Reads a word that must be one of words (NULL-terminated) and gives its place among them; a
 * mistyped one is mended with the nearest.
 */
int spec_read_word(struct spec_reader *reader, const struct spec_key *key,
		   const struct spec_node *value, const char *const *words, unsigned *ret_index);

/* Refuses value, naming key and the quoted text: `KEY: "TEXT" REASON`. Returns -EINVAL. */
int spec_refuse(const struct spec_reader *reader, const char *key, const struct spec_node *value,
		const char *reason);

/* Refuses a value of another kind. what names it ("mounts"). Returns 0 or -EINVAL. */
int spec_want(const struct spec_reader *reader, const char *what, const struct spec_node *value,
	      enum spec_node_kind kind);

/* Adds text, which is taken over in every case and may be NULL, to a list. 0 or -ENOMEM. */
int spec_list_add(char ***list, size_t *count, char *text);

/* Adds a notice for the place of node. Returns 0 or -ENOMEM. */
int spec_notice(struct spec_reader *reader, const struct spec_node *node, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The value of a map's key, or NULL; for checks of several keys together. */
const struct spec_node *spec_find(const struct spec_node *map, const char *name);

/* What stands under blueprint: users, files and commands of the image. */
spec_key_reader spec_read_blueprint;
/* A word or a map of allow, deny, reach, ports and limits; of a build without ports. */
spec_key_reader spec_read_network;
spec_key_reader spec_read_build_network;
/* A list of maps of host, guest and mode. */
spec_key_reader spec_read_mounts;
