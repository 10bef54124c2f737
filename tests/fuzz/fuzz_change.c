/*
 * Any bytes as a stream of changes. What decodes must encode to the same bytes, and keeps the
 * promises of change.h.
 */
#include "fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "wire/change.h"

static void try_record(const uint8_t *payload, size_t size, uint8_t *out)
{
	struct change change;
	int rc = change_decode(payload, size, &change);

	if (rc < 0) {
		ASSERT(rc == -EBADMSG);
		return;
	}
	ASSERT(change.path[0] != '/' && change.path[0] != '\0' && !strstr(change.path, "//"));
	ASSERT(!change_has_content(&change) || change.kind != CHANGE_DELETED);
	rc = change_encode(&change, out);
	ASSERT(rc == (int)size + 5 && memcmp(out + 5, payload, size) == 0);
}

static void try_end(const uint8_t *payload, size_t size, uint8_t *out)
{
	uint64_t count;
	int rc = change_end_decode(payload, size, &count);

	if (rc == 0) {
		rc = change_end_encode(count, out);
		ASSERT(rc == (int)size + 5 && memcmp(out + 5, payload, size) == 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_free_ uint8_t *out = malloc(CHANGE_FRAME_MAX + 4);

	ASSERT(out);
	while (size >= 4) {
		int frame = change_frame_size(data);
		_cleanup_free_ uint8_t *payload = NULL;
		size_t left;

		if (frame < 0 || (size_t)frame > size - 4) {
			return 0;
		}
		/* A copy of exactly that size, so that a sanitizer sees a read of one byte more. */
		left = (size_t)frame - 1;
		payload = malloc(left > 0 ? left : 1);
		ASSERT(payload);
		memcpy(payload, data + 5, left);
		if (data[4] == CHANGE_RECORD) {
			try_record(payload, left, out);
		} else if (data[4] == CHANGE_END) {
			try_end(payload, left, out);
		}
		data += 4 + frame;
		size -= 4 + (size_t)frame;
	}
	return 0;
}
