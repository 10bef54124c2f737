/*
 * What changed between two states of /data: records that box-diff inside a machine writes and the
 * host reads, and that the host sends back to box-apply. Pure: bytes in, bytes out.
 *
 * A stream of changes is a sequence of frames. A frame is a little-endian u32 size of what follows
 * (1 to CHANGE_FRAME_MAX), a u8 type, and the payload.
 *
 *   CHANGE_RECORD   one struct change. Strictly ascending by path (bytewise, as strcmp(3)).
 *   CHANGE_TEXT     bytes of a unified diff of the record before it, without its two header lines.
 *                   Only where a patch was asked for. All of a record are whole hunks
 *                   (wire/change_text.h).
 *   CHANGE_END      u64 number of records. The last frame, and never missing.
 *
 * Where content was asked for, a plain pax archive follows the CHANGE_END, to the end of the
 * stream. It has an entry for each record that change_has_content() names, in the order of the
 * records, under the record's path; nothing else is in it.
 *
 * Which records there are:
 *   - A directory that is new, or gone, is a record, and so is everything in it.
 *   - A path with the same type on both sides and other content, mode, owner, link target or
 *     extended attributes is CHANGE_MODIFIED; flags say which. An inode that was replaced counts
 *     only where something of that differs. Times alone are no change, nor is a directory whose
 *     entries alone differ.
 *   - A path with another type on each side is CHANGE_MODIFIED with CHANGE_FLAG_TYPE; when the old
 *     or the new one is a directory, what was or is in it are records of their own.
 *   - An inode (same number, same generation, same type) whose path is gone, and that has a new
 *     path that was not there, is CHANGE_RENAMED, with flags for what else differs. What is in a
 *     renamed directory has records only where it changed; these have the new path and are compared
 *     with the old one. Of several names the first by path counts, the rest is added and deleted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A path of Linux, without its NUL. */
#define CHANGE_PATH_MAX 4096
/* NAME_MAX of Linux. */
#define CHANGE_COMPONENT_MAX 255
/* A renamed link has four names of CHANGE_PATH_MAX, and its numbers. CHANGE_TEXT is cut to pieces.
 */
#define CHANGE_FRAME_MAX 20480
/* security.md: no more entries than an archive may have. */
#define CHANGE_RECORDS_MAX 10000000u

enum change_frame_type {
	CHANGE_RECORD = 1,
	CHANGE_TEXT = 2,
	CHANGE_END = 3,
};

enum change_kind {
	CHANGE_ADDED = 1,
	CHANGE_DELETED = 2,
	CHANGE_MODIFIED = 3,
	CHANGE_RENAMED = 4,
};

enum change_flags {
	/* Of a file; of a device it is the number. */
	CHANGE_FLAG_CONTENT = 1u << 0,
	/* Stands alone: with another type all else is new. */
	CHANGE_FLAG_TYPE = 1u << 1,
	CHANGE_FLAG_MODE = 1u << 2,
	CHANGE_FLAG_OWNER = 1u << 3,
	/* Of a symbolic link. */
	CHANGE_FLAG_TARGET = 1u << 4,
	CHANGE_FLAG_XATTRS = 1u << 5,
};

enum change_type {
	CHANGE_TYPE_NONE = 0,
	CHANGE_TYPE_FILE = 1,
	CHANGE_TYPE_DIRECTORY = 2,
	CHANGE_TYPE_SYMLINK = 3,
	/* Shown, and never carried over: archives have no such entries (security.md). */
	CHANGE_TYPE_DEVICE = 4,
	CHANGE_TYPE_FIFO = 5,
	CHANGE_TYPE_SOCKET = 6,
};

/* One side of a change. All zero where there is nothing on that side. */
struct change_side {
	/* enum change_type */
	uint32_t type;
	/* Permission bits with setuid, setgid and sticky: at most 07777. */
	uint32_t mode;
	/* Not UINT32_MAX, which is Linux's "no ID". */
	uint32_t uid;
	uint32_t gid;
	/* Of a file; otherwise 0. */
	uint64_t size;
};

struct change {
	/* enum change_kind */
	uint32_t kind;
	/* 0 with CHANGE_ADDED and CHANGE_DELETED; not 0 with CHANGE_MODIFIED. TYPE, MODE, OWNER and
	 * TARGET say what the two sides say; CONTENT is there at least when the sizes differ. */
	uint32_t flags;
	struct change_side old;
	struct change_side new;
	/* Below /data: no slash at the begin or end, no empty, "." or ".." component. With the root
	 * itself (its mode or owner) it is ".". Any other bytes but NUL. */
	const char *path;
	/* Of CHANGE_RENAMED the path before, otherwise "". */
	const char *from;
	/* Targets of symbolic links on either side, otherwise "". */
	const char *old_target;
	const char *new_target;
};

/* The enum change_type of a mode as stat(2) gives it. */
uint32_t change_type_of(mode_t mode);

/* Whether the archive has an entry for it: CHANGE_ADDED, or flags CONTENT, TYPE, TARGET or XATTRS,
 * and the new side is a file, directory or symbolic link. */
bool change_has_content(const struct change *change);

/* Write a whole frame to out, which holds CHANGE_FRAME_MAX + 4 bytes, and return its size, or
 * -EINVAL for a change that change_decode would refuse, or -EMSGSIZE for a text that is too long.
 */
int change_encode(const struct change *change, uint8_t *out);
int change_end_encode(uint64_t count, uint8_t *out);
/* 1 to CHANGE_FRAME_MAX - 1 bytes of text. */
int change_text_encode(const void *text, size_t size, uint8_t *out);

/*
 * The size of the frame's body that a header of 4 bytes announces, 1 to CHANGE_FRAME_MAX, or
 * -EBADMSG.
 */
int change_frame_size(const uint8_t header[4]);

/*
 * Decode what follows the type byte. Everything that can be checked without the other records is:
 * ranges, kinds and flags that go together, paths and targets as said above, no byte left over. 0
 * or -EBADMSG. Strings point into the payload.
 */
int change_decode(const uint8_t *payload, size_t size, struct change *ret_change);
int change_end_decode(const uint8_t *payload, size_t size, uint64_t *ret_count);
