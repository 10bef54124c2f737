/*
 * Tar archives, in and out.
 *
 * Reading: bytes of a tar archive that nobody has checked, plain or compressed, come out as items
 * that obey every rule of docs/security.md ("Archives and names"). The first thing that breaks a
 * rule ends the whole archive with an error that names the entry, quoted. Writing: a directory of
 * the user goes out as a pax archive.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/* security.md: a name, or the target of a link, over this many bytes is refused. */
#define ARCHIVE_NAME_MAX 4096
/* What every Linux file system takes for one component of a name. */
#define ARCHIVE_COMPONENT_MAX 255
/* security.md: more entries are refused. Directories that are only implied count as well. */
#define ARCHIVE_ENTRIES_MAX 10000000u
/* A file has a handful; more come only from an archive made to be awkward. */
#define ARCHIVE_XATTRS_MAX 64

enum archive_type {
	ARCHIVE_ITEM_DIRECTORY = 1,
	ARCHIVE_ITEM_FILE,
	ARCHIVE_ITEM_SYMLINK,
	/* A further name of the item link_id. Carries no attributes of its own. */
	ARCHIVE_ITEM_HARDLINK,
	/* Only in the name table: a device or fifo that was left out. Never handed out. */
	ARCHIVE_ITEM_DROPPED,
};

struct archive_xattr {
	const char *name;
	const void *value;
	size_t size;
};

/* One checked entry. Strings and attributes live until the next call of archive_next. */
struct archive_item {
	enum archive_type type;
	/*
	 * Names are numbered: the root is 0, every new name gets the next number, and a parent
	 * always comes before what is in it.
	 */
	uint32_t id;
	uint32_t parent_id;
	/* Relative, without "." and empty components; "." is the root itself. */
	const char *path;
	/* A directory that came before, and now brings (other) attributes. */
	bool again;
	/* A directory that no entry named: mode 0755, owner 0, no time. */
	bool implied;
	/* Permission bits, sticky included; setuid and setgid only with keep_setuid. */
	uint32_t mode;
	uint32_t uid;
	uint32_t gid;
	/* Seconds since 1970, and nanoseconds below 1,000,000,000. */
	int64_t mtime_s;
	uint32_t mtime_ns;
	/* Of a file: its whole length, holes included. Otherwise 0. */
	uint64_t size;
	/* Target of a symbolic link as written (1 to 4096 bytes), or NULL. */
	const char *link;
	/* Of a hard link: number of the earlier item, which is a file or a symbolic link. */
	uint32_t link_id;
	/* How many names a file or symbolic link has, where the archive says so, else 0. */
	uint32_t links;
	/* user.* always, security.capability with keep_setuid; others are left out. */
	const struct archive_xattr *xattrs;
	size_t xattr_count;
};

struct archive_options {
	/* Keep setuid and setgid bits and file capabilities (image bases). */
	bool keep_setuid;
	/* Leave devices and fifos out and count them (image bases); otherwise they are refused. */
	bool drop_devices;
};

struct archive_reader;

/*
 * Starts reading an archive from fd (pipe or file, from where it stands): plain, gzip, bzip2, xz,
 * zstd or lz4, found out by itself and unpacked in this process. fd stays the caller's and must
 * outlive the reader, which is given back with archive_close. Returns 0 or a negative errno.
 */
int archive_open_fd(int fd, const struct archive_options *options,
		    struct archive_reader **ret_reader, struct err *err);

/* The same over bytes in memory, which must outlive the reader. */
int archive_open_memory(const void *data, size_t size, const struct archive_options *options,
			struct archive_reader **ret_reader, struct err *err);

/*
 * The same for archives that are not packed, without libarchive (library archive_plain): a packed
 * one is refused as no tar archive.
 */
int archive_open_plain_fd(int fd, const struct archive_options *options,
			  struct archive_reader **ret_reader, struct err *err);
int archive_open_plain_memory(const void *data, size_t size, const struct archive_options *options,
			      struct archive_reader **ret_reader, struct err *err);

/*
 * The next item. Data of the item before that was not asked for is skipped. Returns 1 with
 * *ret_item, 0 at the end of the archive (everything was read, to the last byte), -EBADMSG when
 * the archive is refused or broken, or another negative errno. After a failure only
 * archive_close may follow.
 */
int archive_next(struct archive_reader *reader, const struct archive_item **ret_item,
		 struct err *err);

/*
 * The next piece of data of the current file: *ret_size bytes (at least 1) at *ret_offset, offsets
 * ascending; what lies between the pieces and before item->size is a hole. Valid until the next
 * call. Returns 1, 0 when there is no more, or a negative errno as archive_next.
 */
int archive_data(struct archive_reader *reader, const void **ret_data, size_t *ret_size,
		 uint64_t *ret_offset, struct err *err);

/* Bytes of input used so far, before unpacking. */
uint64_t archive_bytes_read(const struct archive_reader *reader);
/* Entries seen so far, those that were dropped included. */
uint64_t archive_entry_count(const struct archive_reader *reader);
/* Devices and fifos left out so far. */
uint64_t archive_dropped_count(const struct archive_reader *reader);

/* How many names there are: 1 (the root) and up. */
uint32_t archive_name_count(const struct archive_reader *reader);
/*
 * Name number id: its last component (valid until the next archive_next), the number of its
 * parent, and what it is; a hard link has the type of its target. The root's name is "".
 */
const char *archive_name(const struct archive_reader *reader, uint32_t id, uint32_t *ret_parent_id,
			 enum archive_type *ret_type);

void archive_close(struct archive_reader *reader);
static inline void archive_closep(struct archive_reader **reader)
{
	archive_close(*reader);
}

/* A quoted name for messages takes at most this, the NUL included. */
#define ARCHIVE_QUOTED_MAX 200

/*
 * Writes name in double quotes with everything but printable ASCII as octal escapes, cut with
 * "..." where it is long, so that no name can forge a line or drive a terminal. Returns ret_text.
 */
const char *archive_quote(const char *name, char ret_text[ARCHIVE_QUOTED_MAX]);

/*
 * Writes the tree below dir_fd to out_fd as an uncompressed pax archive: directories before what
 * is in them, names sorted, the tree itself as "./". Links stay links, owners are numbers, further
 * names of one file are hard links, holes stay holes, user.* and security.capability are kept,
 * sockets are left out, and so is an empty lost+found of an ext4. A file that changes its length
 * meanwhile is an error. Returns 0 or a negative errno.
 */
int archive_write_tree(int dir_fd, int out_fd, struct err *err);

/*
 * The same for a copy: the file, link or directory at path (relative to dir_fd or AT_FDCWD), which
 * is called top in the archive; top NULL: path is a directory that goes out as "./". Devices and
 * fifos are left out and counted in *ret_left_out. A link at the end of path stays one.
 */
int archive_write_path(int dir_fd, const char *path, const char *top, int out_fd,
		       uint64_t *ret_left_out, struct err *err);

/* Gives the next path below dir_fd, plain and valid until the next call, or NULL at the end. */
typedef const char *archive_path_source(void *data);

/*
 * The same for single paths: each gets an entry under its own name, in the order of next, a
 * directory without what is in it. Says how many names a file has (archive_item.links), so that a
 * reader who leaves entries out knows what later hard links may need. A path that is not there, or
 * is no file, directory or link, is an error.
 */
int archive_write_chosen(int dir_fd, archive_path_source *next, void *data, int out_fd,
			 struct err *err);

/*
 * Packs all of in_fd into out_fd with zstd, or unpacks it: plain, gzip, bzip2, xz, zstd or lz4,
 * found out by itself. The bytes of an archive are not looked at. For a process of its own, since
 * input to unpack may be made to hurt. Memory does not depend on the length. An empty input, and
 * one that is cut short, cannot be unpacked. Returns 0 or a negative errno; -EPIPE when the reader
 * of out_fd has gone.
 */
int archive_pack_fd(int in_fd, int out_fd, struct err *err);
int archive_unpack_fd(int in_fd, int out_fd, struct err *err);
