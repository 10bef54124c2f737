#include "guest/apply_records.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "base/array.h"
#include "base/cleanup.h"
#include "base/io.h"

#define HEADER_BYTES 4u

static int refuse(struct err *err, const char *why)
{
	return err_set(err, -EBADMSG, "apply-refused", "the changes to apply are refused: %s", why);
}

static int no_memory(struct err *err)
{
	return err_set(err, -ENOMEM, "apply-memory",
		       "this machine has too little memory to apply so many changes");
}

static int read_exactly(int fd, void *data, size_t size, struct err *err)
{
	ssize_t got = read_full(fd, data, size);

	if (got < 0) {
		return err_set(err, (int)got, "apply-read", "cannot read the changes to apply: %s",
			       strerror((int)-got));
	}
	return got < (ssize_t)size ? refuse(err, "they are cut short") : 0;
}

static bool would_be_made(const struct change *change)
{
	const uint32_t flags = CHANGE_FLAG_TYPE | CHANGE_FLAG_CONTENT;

	return change->kind == CHANGE_ADDED || (change->flags & flags) != 0;
}

static int check_record(const struct apply_records *records, const struct change *change,
			struct err *err)
{
	char quoted[ARCHIVE_QUOTED_MAX];

	if (records->count == CHANGE_RECORDS_MAX) {
		return refuse(err, "there are more than 10 million");
	}
	if (records->count > 0 &&
	    strcmp(records->list[records->count - 1].path, change->path) >= 0) {
		return refuse(err, "they are not in the order of their paths");
	}
	if (change->new.type > CHANGE_TYPE_SYMLINK && would_be_made(change)) {
		int rc = err_set(err, -EINVAL, "apply-device",
				 "%s is a device, fifo or socket, which is never carried over",
				 archive_quote(change->path, quoted));

		err_mend(err, "leave it out, or delete it in the fork");
		return rc;
	}
	return 0;
}

/* Keeps a string that may be empty. */
static const char *keep(struct apply_records *records, const char *text)
{
	return text[0] ? path_store_add(&records->paths, text, strlen(text)) : "";
}

static int add_record(struct apply_records *records, const struct change *change, struct err *err)
{
	struct apply_record *record, *grown;
	int rc = check_record(records, change, err);

	if (rc < 0) {
		return rc;
	}
	grown = array_reserve(records->list, records->count, &records->capacity, sizeof(*grown));
	if (!grown) {
		return no_memory(err);
	}
	records->list = grown;
	record = &records->list[records->count];
	*record = (struct apply_record){
		.path = keep(records, change->path),
		.from = keep(records, change->from),
		.target = keep(records, change->new_target),
		.old = change->old,
		.new = change->new,
		.kind = change->kind,
		.flags = change->flags,
		.has_content = change_has_content(change),
	};
	if (!record->path || !record->from || !record->target) {
		return no_memory(err);
	}
	records->count++;
	return 0;
}

/* Takes one frame. Returns 1 when it was the last, 0, or a negative errno. */
static int take_frame(struct apply_records *records, const uint8_t *body, size_t size,
		      struct err *err)
{
	struct change change;
	uint64_t count;

	if (body[0] == CHANGE_RECORD && change_decode(body + 1, size - 1, &change) == 0) {
		return add_record(records, &change, err);
	}
	if (body[0] == CHANGE_END && change_end_decode(body + 1, size - 1, &count) == 0) {
		return count == records->count ? 1 : refuse(err, "their number is a lie");
	}
	return refuse(err, "one of them cannot be read");
}

int apply_records_read(int fd, struct apply_records *ret_records, struct err *err)
{
	_cleanup_free_ uint8_t *body = malloc(CHANGE_FRAME_MAX + HEADER_BYTES);
	uint8_t header[HEADER_BYTES];
	int rc = body ? read_exactly(fd, header, sizeof(header), err) : no_memory(err);

	while (rc == 0) {
		int size = change_frame_size(header);
		bool more;

		if (size < 0) {
			return refuse(err, "one of them has an odd size");
		}
		rc = read_exactly(fd, body, 1, err);
		if (rc < 0) {
			return rc;
		}
		/* After a record there is always another header; it comes along. */
		more = body[0] != CHANGE_END;
		rc = read_exactly(fd, body + 1, (size_t)size - 1 + (more ? HEADER_BYTES : 0), err);
		if (rc < 0) {
			return rc;
		}
		if (more) {
			memcpy(header, body + size, HEADER_BYTES);
		}
		rc = take_frame(ret_records, body, (size_t)size, err);
	}
	return rc < 0 ? rc : 0;
}

struct apply_record *apply_records_find(const struct apply_records *records, const char *path)
{
	size_t low = 0, high = records->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(records->list[middle].path, path);

		if (order == 0) {
			return &records->list[middle];
		}
		if (order < 0) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return NULL;
}

void apply_records_clear(struct apply_records *records)
{
	free(records->list);
	path_store_clear(&records->paths);
	*records = (struct apply_records){0};
}
