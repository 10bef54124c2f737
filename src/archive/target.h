/*
 * Where a copy goes, and what it is called there: the rules of cp(1) for two names. Used on either
 * side, each for paths of its own; they are its user's, so links in them are followed.
 */
#pragma once

#include <stdbool.h>

#include "archive/archive.h"

struct copy_target {
	/* Owned by whoever asked. */
	int dir_fd;
	/* The name in it, or "": the directory itself. As extract_options want it. */
	char name[ARCHIVE_COMPONENT_MAX + 1];
	bool contents;
};

/*
 * The last name of a source, which its copy gets in a directory. "/", "." and what ends with "/."
 * stand for what is in a directory: ret_name is then "". Returns 0, or -EINVAL with err filled for
 * names that end with ".." or are too long or empty.
 */
int copy_source_name(const char *path, char ret_name[ARCHIVE_COMPONENT_MAX + 1], struct err *err);

/*
 * Finds where something called source_name ("": what is in a directory) goes when it is copied to
 * path: into that directory under its own name, or else to that name in the directory above. With
 * must_be_directory, or a slash at its end, path is a directory or -ENOTDIR. Returns 0 or a
 * negative errno with err filled.
 */
int copy_target_open(const char *path, const char *source_name, bool must_be_directory,
		     struct copy_target *ret_target, struct err *err);
