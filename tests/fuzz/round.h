/* For targets that read one payload: what decodes must encode to the same bytes. */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

/* round decodes the payload; when that works it encodes it into out and returns the size. */
static inline void fuzz_round(int (*round)(const uint8_t *payload, size_t size),
			      const uint8_t *payload, size_t size, const uint8_t *out)
{
	/* A copy of exactly that size, so that a sanitizer sees a read of one byte more. */
	_cleanup_free_ uint8_t *copy = malloc(size > 0 ? size : 1);
	int rc;

	ASSERT(copy);
	memcpy(copy, payload, size);
	rc = round(copy, size);
	if (rc < 0) {
		ASSERT(rc == -EBADMSG);
		return;
	}
	ASSERT((size_t)rc == size && memcmp(out, copy, size) == 0);
}
