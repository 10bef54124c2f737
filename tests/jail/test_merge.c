/*
 * Layers merged by QEMU in the monitor's jail: real qcow2 files, written by hand, whose clusters
 * are looked at afterwards.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "engine/merge.h"
#include "jail/tap.h"
#include "store/store.h"

#define QEMU "/usr/bin/qemu-system-x86_64"
#define STRICT_ID 1876546
#define DISK_BYTES ((uint64_t)8 << 20)
#define CLUSTER ((uint64_t)65536)
#define CLUSTERS (DISK_BYTES / CLUSTER)
/* As store/qcow2.c makes a small disk: its first free cluster is 4, which gets the only L2 table
 * here. */
#define REFCOUNTS_AT (2 * CLUSTER)
#define L1_AT (3 * CLUSTER)
#define L2_AT (4 * CLUSTER)
#define COPIED (UINT64_C(1) << 63)
#define READS_AS_ZEROS UINT64_C(1)
#define OFFSET_MASK UINT64_C(0x00fffffffffffe00)

static void put(int fd, const void *data, size_t size, uint64_t at)
{
	ASSERT(pwrite(fd, data, size, (off_t)at) == (ssize_t)size);
}

static uint64_t entry_at(int fd, uint64_t at)
{
	uint64_t entry = 0;

	return pread(fd, &entry, sizeof(entry), (off_t)at) == (ssize_t)sizeof(entry)
		       ? be64toh(entry)
		       : 0;
}

static void set_entry(int fd, uint64_t at, uint64_t value)
{
	uint64_t entry = htobe64(value);

	put(fd, &entry, sizeof(entry), at);
}

/* A file whose descriptors can be opened again with less. */
static int make_file(void)
{
	int fd = memfd_create("layer", MFD_CLOEXEC);

	ASSERT(fd >= 0);
	return fd;
}

/* Every letter of content is a cluster filled with it; "." is one of zeros that hides what is
 * below, and a blank none at all. */
static int make_layer(const char *content)
{
	uint64_t next = 5;
	uint16_t one = htobe16(1);
	char bytes[CLUSTER];
	int fd = make_file();

	ASSERT(store_write_qcow2(fd, DISK_BYTES, NULL) == 0);
	set_entry(fd, L1_AT, L2_AT | COPIED);
	put(fd, &one, sizeof(one), REFCOUNTS_AT + 4 * sizeof(one));
	ASSERT(ftruncate(fd, (off_t)(5 * CLUSTER)) == 0);
	for (uint64_t i = 0; content[i]; i++) {
		if (content[i] == '.') {
			set_entry(fd, L2_AT + i * 8, READS_AS_ZEROS);
		} else if (content[i] != ' ') {
			memset(bytes, content[i], sizeof(bytes));
			put(fd, bytes, sizeof(bytes), next * CLUSTER);
			put(fd, &one, sizeof(one), REFCOUNTS_AT + next * sizeof(one));
			set_entry(fd, L2_AT + i * 8, next * CLUSTER | COPIED);
			next++;
		}
	}
	return fd;
}

/* The same text for what a file holds itself, wherever it has put that; "?" for a mixture. */
static void read_layer(int fd, char ret_content[CLUSTERS + 1])
{
	uint64_t table = entry_at(fd, L1_AT) & OFFSET_MASK;
	char bytes[CLUSTER];

	for (uint64_t i = 0; i < CLUSTERS; i++) {
		uint64_t entry = table ? entry_at(fd, table + i * 8) : 0;
		uint64_t at = entry & OFFSET_MASK;

		if (entry & READS_AS_ZEROS || at == 0) {
			ret_content[i] = entry & READS_AS_ZEROS ? '.' : ' ';
			continue;
		}
		ASSERT(pread(fd, bytes, sizeof(bytes), (off_t)at) == (ssize_t)sizeof(bytes));
		ret_content[i] = bytes[0];
		for (size_t j = 1; j < sizeof(bytes); j++) {
			ret_content[i] = bytes[j] == bytes[0] ? ret_content[i] : '?';
		}
	}
	while (ret_content[0] && ret_content[strlen(ret_content) - 1] == ' ') {
		ret_content[strlen(ret_content) - 1] = '\0';
	}
}

static int reopen(int fd, int access)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, access | O_CLOEXEC);
}

/* Merges all above the target, which is the second, into it. */
static int merge(int *layers, size_t count, int target_access, struct err *err)
{
	struct engine_merge job = {
		.count = count,
		.target = 1,
		.size_bytes = DISK_BYTES,
		.host_uid = geteuid() ? geteuid() : STRICT_ID,
		.host_gid = geteuid() ? getegid() : STRICT_ID,
	};
	int rc;

	for (size_t i = 0; i < count; i++) {
		job.fds[i] = reopen(layers[i], i == 1 ? target_access : O_RDONLY);
	}
	rc = engine_merge(&job, err);
	for (size_t i = 0; i < count; i++) {
		close(job.fds[i]);
	}
	return rc;
}

static int make_base(void)
{
	int fd = make_file();
	char bytes[CLUSTER];

	memset(bytes, 'B', sizeof(bytes));
	ASSERT(ftruncate(fd, (off_t)DISK_BYTES) == 0);
	for (uint64_t i = 0; i < CLUSTERS; i++) {
		put(fd, bytes, sizeof(bytes), i * CLUSTER);
	}
	return fd;
}

static void try_it(const char *what, const char *target, const char *const *above,
		   const char *wanted)
{
	int layers[4] = {make_base(), make_layer(target)};
	char found[CLUSTERS + 1] = "", top[CLUSTERS + 1] = "";
	struct err err = {0};
	size_t count = 2;
	uint64_t size = 0;

	for (; above[count - 2]; count++) {
		layers[count] = make_layer(above[count - 2]);
	}
	tap(merge(layers, count, O_RDWR, &err) == 0, "%s %s", what, err.text);
	read_layer(layers[1], found);
	if (!tap(strcmp(found, wanted) == 0, "%s: what it holds", what)) {
		tap_note("\"%s\", wanted \"%s\"", found, wanted);
	}
	read_layer(layers[count - 1], top);
	tap(strcmp(top, above[count - 3]) == 0, "%s: what was above is as it was", what);
	/* It names nothing, and is as box makes its disks. */
	tap(store_disk_size(layers[1], &size, &err) == 0 && size == DISK_BYTES,
	    "%s: it is a disk of box %s", what, err.text);
	for (size_t i = 0; i < count; i++) {
		close(layers[i]);
	}
}

static void try_what_fails(void)
{
	int layers[3] = {make_base(), make_layer("aaa"), make_layer(" bb")};
	static const char garbage[4096] = "no disk";
	char found[CLUSTERS + 1] = "";
	struct err err = {0};

	tap(merge(layers, 3, O_RDONLY, &err) < 0 && strcmp(err.code, "merge-failed") == 0,
	    "a target that cannot be written to: %s", err.text);
	err = (struct err){0};
	put(layers[2], garbage, sizeof(garbage), 0);
	tap(merge(layers, 3, O_RDWR, &err) < 0 && strcmp(err.code, "merge-failed") == 0,
	    "what is no disk: %s", err.text);
	read_layer(layers[1], found);
	tap(strcmp(found, "aaa") == 0, "the target is as it was: \"%s\"", found);
	for (size_t i = 0; i < 3; i++) {
		close(layers[i]);
	}
}

int main(void)
{
	if (access(QEMU, X_OK) < 0) {
		tap_skip("merge", "qemu-system-x86 is not installed");
		return tap_done();
	}
	try_it("one into the next", "aaaa  ", (const char *const[]){" bb.b", NULL}, "abb.b");
	try_it("two into a new one", "", (const char *const[]){"aaa", " b.", NULL}, "ab.");
	try_it("one with nothing in it", "aa", (const char *const[]){"", NULL}, "aa");
	try_what_fails();
	return tap_done();
}
