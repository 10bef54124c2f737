#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "client/base.h"
#include "client/build.h"

/* A key names every line of a Boxfile once, and a digest for a tree. */
#define KEY_FILE_MAX (2 * SPEC_FILE_MAX)

/*
 * The recipe's number: raised when box makes another image from the same words, so that older
 * images are made anew although box's version is the same during development.
 */
#define RECIPE 1

int build_image_key(const struct spec *spec, char **ret_text, struct err *err)
{
	_cleanup_free_ char *spec_key = NULL;
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	FILE *out;
	int rc;

	rc = spec_image_key(spec, &spec_key);
	if (rc < 0) {
		return err_context(err, rc, "image key");
	}
	out = open_memstream(&text, &size);
	if (!out) {
		return err_context(err, -ENOMEM, "image key");
	}
	fprintf(out, "box=%s\nrecipe=%d\n", BOX_VERSION, RECIPE);
	rc = base_identity(spec, out, err);
	/* The spec's part stands last: `box ls` compares the end alone. */
	fputs(spec_key, out);
	if (fclose(out) != 0 && rc == 0) {
		rc = err_context(err, -ENOMEM, "image key");
	}
	if (rc < 0) {
		return rc;
	}
	*ret_text = TAKE_PTR(text);
	return 0;
}

bool build_key_is(int dir_fd, const char *path, const char *text)
{
	_cleanup_free_ char *there = NULL;
	size_t size = 0;

	return read_file_at(dir_fd, path, KEY_FILE_MAX, &there, &size) == 0 &&
	       size == strlen(text) && memcmp(there, text, size) == 0;
}
