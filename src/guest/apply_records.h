/*
 * The changes that were accepted, read from a stream of wire/change.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "guest/diff_paths.h"
#include "wire/change.h"

/* 96 bytes, and its paths. */
struct apply_record {
	const char *path;
	/* Where it was, with CHANGE_RENAMED. */
	const char *from;
	/* Of a new symbolic link. */
	const char *target;
	/* What was there; of the type CHANGE_TYPE_NONE with CHANGE_ADDED. */
	struct change_side old;
	struct change_side new;
	/* As in struct change. */
	uint32_t kind;
	uint32_t flags;
	/* The archive must have an entry for it, and has had one. */
	bool has_content;
	bool has_come;
};

struct apply_records {
	/* Ascending by path. */
	struct apply_record *list;
	size_t count;
	size_t capacity;
	struct path_store paths;
};

/*
 * Reads records up to the end mark, and not a byte more. Refuses (-EBADMSG) what is not ascending
 * or not complete, and (-EINVAL) a change that would make a device, fifo or socket. *ret_records,
 * which starts as zeros, is the caller's, also after a failure. Returns 0 or a negative errno with
 * err filled.
 */
int apply_records_read(int fd, struct apply_records *ret_records, struct err *err);

/* The record of a path, or NULL. */
struct apply_record *apply_records_find(const struct apply_records *records, const char *path);

void apply_records_clear(struct apply_records *records);
