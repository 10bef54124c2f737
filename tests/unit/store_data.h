/* A sandbox "a" with a /data, for each test of what becomes of it. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store_home.h"

#include "base/cleanup.h"
#include "base/io.h"

#define MIB (UINT64_C(1) << 20)
/* The first entry of a disk's first table. */
#define TABLE_OFFSET 0x30000

static int sandbox = -EBADF;

static inline int data_set_up(void **state)
{
	_cleanup_close_ int fd = -EBADF;

	if (home_set_up(state) < 0 || store_create(&store, "a", "cpus: 3\n", 8, &err) < 0) {
		return -1;
	}
	sandbox = store_open_sandbox(&store, "a", &err);
	if (sandbox < 0 || mkdirat(sandbox, "data", 0700) < 0 ||
	    write_file_at(sandbox, "data/base-0.ext4", "base", 4, 0600) < 0) {
		return -1;
	}
	fd = openat(sandbox, "data/data.qcow2", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return store_write_qcow2(fd, 64 * MIB, &err);
}

static inline int data_tear_down(void **state)
{
	close_fd(&sandbox);
	return home_tear_down(state);
}

static inline int take_data(void)
{
	int fd = store_open_data(sandbox, false, &err);

	assert_true(fd >= 0);
	return fd;
}

static inline void write_something(int fd)
{
	assert_int_equal(pwrite(fd, "x", 1, TABLE_OFFSET), 1);
}
