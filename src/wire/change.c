#include "wire/change.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "wire/bytes.h"

#define HEADER_BYTES 4u
#define FLAGS_ALL                                                                                  \
	((uint32_t)(CHANGE_FLAG_CONTENT | CHANGE_FLAG_TYPE | CHANGE_FLAG_MODE |                    \
		    CHANGE_FLAG_OWNER | CHANGE_FLAG_TARGET | CHANGE_FLAG_XATTRS))

uint32_t change_type_of(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return CHANGE_TYPE_FILE;
	case S_IFDIR:
		return CHANGE_TYPE_DIRECTORY;
	case S_IFLNK:
		return CHANGE_TYPE_SYMLINK;
	case S_IFIFO:
		return CHANGE_TYPE_FIFO;
	case S_IFSOCK:
		return CHANGE_TYPE_SOCKET;
	default:
		return CHANGE_TYPE_DEVICE;
	}
}

bool change_has_content(const struct change *change)
{
	const uint32_t flags =
		CHANGE_FLAG_CONTENT | CHANGE_FLAG_TYPE | CHANGE_FLAG_TARGET | CHANGE_FLAG_XATTRS;

	if (change->new.type != CHANGE_TYPE_FILE && change->new.type != CHANGE_TYPE_DIRECTORY &&
	    change->new.type != CHANGE_TYPE_SYMLINK) {
		return false;
	}
	return change->kind == CHANGE_ADDED || (change->flags & flags) != 0;
}

static bool is_root(const char *path)
{
	return strcmp(path, ".") == 0;
}

/* Plain components with one slash between them; the root is not meant. */
static bool path_is_plain(const char *path)
{
	size_t total = strlen(path);

	if (total == 0 || total > CHANGE_PATH_MAX) {
		return false;
	}
	for (;;) {
		size_t size = strcspn(path, "/");

		if (size == 0 || size > CHANGE_COMPONENT_MAX || (size == 1 && path[0] == '.') ||
		    (size == 2 && path[0] == '.' && path[1] == '.')) {
			return false;
		}
		if (path[size] == '\0') {
			return true;
		}
		path += size + 1;
	}
}

static bool side_is_valid(const struct change_side *side, const char *target)
{
	size_t target_size = strlen(target);

	if (side->type == CHANGE_TYPE_NONE) {
		return side->mode == 0 && side->uid == 0 && side->gid == 0 && side->size == 0 &&
		       target_size == 0;
	}
	if (side->type > CHANGE_TYPE_SOCKET || side->mode > 07777 || side->uid == UINT32_MAX ||
	    side->gid == UINT32_MAX || (side->size != 0 && side->type != CHANGE_TYPE_FILE)) {
		return false;
	}
	return side->type == CHANGE_TYPE_SYMLINK ? target_size > 0 && target_size <= CHANGE_PATH_MAX
						 : target_size == 0;
}

static bool has(const struct change *change, enum change_flags flag)
{
	return (change->flags & (uint32_t)flag) != 0;
}

/* The flags of a change with both sides: each says what the sides say, as far as they do. */
static bool flags_are_valid(const struct change *change)
{
	const struct change_side *old = &change->old, *new = &change->new;

	if (old->type != new->type) {
		return change->flags == CHANGE_FLAG_TYPE;
	}
	if (has(change, CHANGE_FLAG_TYPE) ||
	    has(change, CHANGE_FLAG_MODE) != (old->mode != new->mode) ||
	    has(change, CHANGE_FLAG_OWNER) != (old->uid != new->uid || old->gid != new->gid) ||
	    has(change, CHANGE_FLAG_TARGET) !=
		    (strcmp(change->old_target, change->new_target) != 0)) {
		return false;
	}
	if (has(change, CHANGE_FLAG_CONTENT)) {
		return new->type == CHANGE_TYPE_FILE || new->type == CHANGE_TYPE_DEVICE;
	}
	return old->size == new->size;
}

static bool change_is_valid(const struct change *change)
{
	bool has_old = change->old.type != CHANGE_TYPE_NONE;
	bool has_new = change->new.type != CHANGE_TYPE_NONE;

	if (!side_is_valid(&change->old, change->old_target) ||
	    !side_is_valid(&change->new, change->new_target) || (change->flags & ~FLAGS_ALL) != 0) {
		return false;
	}
	if (is_root(change->path)) {
		return change->kind == CHANGE_MODIFIED && change->from[0] == '\0' &&
		       change->old.type == CHANGE_TYPE_DIRECTORY &&
		       change->new.type == CHANGE_TYPE_DIRECTORY && change->flags != 0 &&
		       flags_are_valid(change);
	}
	if (!path_is_plain(change->path)) {
		return false;
	}
	switch (change->kind) {
	case CHANGE_ADDED:
		return !has_old && has_new && change->flags == 0 && change->from[0] == '\0';
	case CHANGE_DELETED:
		return has_old && !has_new && change->flags == 0 && change->from[0] == '\0';
	case CHANGE_MODIFIED:
		return has_old && has_new && change->flags != 0 && change->from[0] == '\0' &&
		       flags_are_valid(change);
	case CHANGE_RENAMED:
		return has_old && has_new &&
		       change->old.type == change->new.type &&path_is_plain(change->from) &&
		       strcmp(change->from, change->path) != 0 && flags_are_valid(change);
	default:
		return false;
	}
}

static void put_side(struct wire_writer *writer, const struct change_side *side)
{
	wire_put_u32(writer, side->type);
	wire_put_u32(writer, side->mode);
	wire_put_u32(writer, side->uid);
	wire_put_u32(writer, side->gid);
	wire_put_u64(writer, side->size);
}

/* Begins a frame; its size is set by end_frame. */
static struct wire_writer begin_frame(uint8_t *out, enum change_frame_type type)
{
	struct wire_writer writer = wire_writer_over(out, HEADER_BYTES + CHANGE_FRAME_MAX);

	wire_put_u32(&writer, 0);
	wire_put_u8(&writer, (uint8_t)type);
	return writer;
}

static int end_frame(const struct wire_writer *writer)
{
	struct wire_writer header = wire_writer_over(writer->data, HEADER_BYTES);

	if (writer->failed) {
		return -EMSGSIZE;
	}
	wire_put_u32(&header, (uint32_t)(writer->size - HEADER_BYTES));
	return (int)writer->size;
}

int change_encode(const struct change *change, uint8_t *out)
{
	struct wire_writer writer = begin_frame(out, CHANGE_RECORD);

	if (!change_is_valid(change)) {
		return -EINVAL;
	}
	wire_put_u32(&writer, change->kind);
	wire_put_u32(&writer, change->flags);
	put_side(&writer, &change->old);
	put_side(&writer, &change->new);
	wire_put_string(&writer, change->path);
	wire_put_string(&writer, change->from);
	wire_put_string(&writer, change->old_target);
	wire_put_string(&writer, change->new_target);
	return end_frame(&writer);
}

int change_end_encode(uint64_t count, uint8_t *out)
{
	struct wire_writer writer = begin_frame(out, CHANGE_END);

	if (count > CHANGE_RECORDS_MAX) {
		return -EINVAL;
	}
	wire_put_u64(&writer, count);
	return end_frame(&writer);
}

int change_text_encode(const void *text, size_t size, uint8_t *out)
{
	struct wire_writer writer = begin_frame(out, CHANGE_TEXT);

	if (size == 0) {
		return -EINVAL;
	}
	wire_put_bytes(&writer, text, size);
	return end_frame(&writer);
}

int change_frame_size(const uint8_t header[4])
{
	struct wire_reader reader = wire_reader_over(header, HEADER_BYTES);
	uint32_t size = wire_get_u32(&reader);

	return size >= 1 && size <= CHANGE_FRAME_MAX ? (int)size : -EBADMSG;
}

static void get_side(struct wire_reader *reader, struct change_side *ret_side)
{
	ret_side->type = wire_get_u32(reader);
	ret_side->mode = wire_get_u32(reader);
	ret_side->uid = wire_get_u32(reader);
	ret_side->gid = wire_get_u32(reader);
	ret_side->size = wire_get_u64(reader);
}

int change_decode(const uint8_t *payload, size_t size, struct change *ret_change)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	struct change change;

	change.kind = wire_get_u32(&reader);
	change.flags = wire_get_u32(&reader);
	get_side(&reader, &change.old);
	get_side(&reader, &change.new);
	change.path = wire_get_string(&reader);
	change.from = wire_get_string(&reader);
	change.old_target = wire_get_string(&reader);
	change.new_target = wire_get_string(&reader);
	if (!wire_reader_done(&reader) || !change_is_valid(&change)) {
		return -EBADMSG;
	}
	*ret_change = change;
	return 0;
}

int change_end_decode(const uint8_t *payload, size_t size, uint64_t *ret_count)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	uint64_t count = wire_get_u64(&reader);

	if (!wire_reader_done(&reader) || count > CHANGE_RECORDS_MAX) {
		return -EBADMSG;
	}
	*ret_count = count;
	return 0;
}
