/*
 * An archive that nobody has checked becomes files below a directory. See extract.c for how.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "archive/archive.h"

/* A file that is not complete has this name and six more letters. */
#define EXTRACT_TEMPORARY ".box-copy-"

enum extract_owner {
	EXTRACT_OWNER_CALLER = 0,
	/* The numbers in the archive. */
	EXTRACT_OWNER_ARCHIVE,
	EXTRACT_OWNER_GIVEN,
};

/* How one entry is taken. */
struct extract_choice {
	/* As the entry says it, unless the chooser says otherwise. */
	uint32_t mode;
	uint32_t uid;
	uint32_t gid;
	/* NULL, or where a file or link goes instead of under its own path: a plain path. */
	const char *path;
	/* Of a hard link where the file is that it names, else NULL. */
	const char *link;
};

/*
 * Asked about each entry that the archive names, before anything is done about it. Returns 1 when
 * it is taken as *choice then says, 0 when it is left out, or a negative errno with err filled.
 */
typedef int extract_chooser(void *data, const struct archive_item *item,
			    struct extract_choice *choice, struct err *err);

struct extract_options {
	/*
	 * NULL: everything in the archive goes into the directory. Otherwise one plain name, and
	 * nothing else in the directory is touched: the archive must have one top, which gets this
	 * name whatever it is called there.
	 */
	const char *name;
	/* With a name: that is a directory, and everything in the archive goes into it. */
	bool contents;
	/* Who everything belongs to afterwards. Needs root, but for EXTRACT_OWNER_CALLER. */
	enum extract_owner owner;
	/* Of EXTRACT_OWNER_GIVEN. */
	uint32_t uid;
	uint32_t gid;
	/* Leave mode, time, owner and attributes of the directory itself as they are. */
	bool keep_root;
	/*
	 * Not NULL: only what it chooses is taken, without name and with the owners of the archive.
	 * Directories that no entry names must be there, and none may come twice.
	 */
	extract_chooser *choose;
	void *choose_data;
};

struct extract_result {
	/* Bytes of files, without holes, and entries. */
	uint64_t bytes;
	uint64_t entries;
};

/*
 * Extracts all of reader (opened without drop_devices, and not read from yet; keep_setuid only with
 * EXTRACT_OWNER_ARCHIVE) below dir_fd, which stays the caller's. Files appear under their names
 * when they are complete. Modes, times and user.* attributes are kept, the latter where the file
 * system can. What is in the way is replaced, except that directories and other things never
 * replace each other and a directory is merged. Returns 0 or a negative errno with err filled
 * (-EBADMSG when the archive is refused); what was complete by then stays.
 */
int archive_extract(struct archive_reader *reader, int dir_fd,
		    const struct extract_options *options, struct extract_result *ret_result,
		    struct err *err);
