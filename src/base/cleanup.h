/*
 * Ownership that can be seen where a variable is declared.
 *
 * A variable marked with one of these gives its resource back when it leaves its scope. To hand the
 * resource on, take it out: TAKE_PTR(p) yields p and leaves NULL, TAKE_FD(fd) yields fd and leaves
 * -EBADF, which is how an unset descriptor is written everywhere in box.
 */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Closes *fd when it is a descriptor, keeps errno, and leaves -EBADF. */
static inline void close_fd(int *fd)
{
	if (*fd >= 0) {
		int saved_errno = errno;

		close(*fd);
		errno = saved_errno;
	}
	*fd = -EBADF;
}

/* For the attribute: frees what the marked variable points to. */
static inline void cleanup_free_pointer(void *pointer)
{
	free(*(void **)pointer);
}

/* For the attribute: closes the marked stream when there is one. */
static inline void cleanup_close_file(FILE **file)
{
	if (*file) {
		fclose(*file);
	}
	*file = NULL;
}

#define _cleanup_(function) __attribute__((__cleanup__(function)))
#define _cleanup_free_ _cleanup_(cleanup_free_pointer)
#define _cleanup_close_ _cleanup_(close_fd)
#define _cleanup_fclose_ _cleanup_(cleanup_close_file)

/* The place is looked up once, so it may be written with a side effect. */
#define TAKE_PTR(pointer)                                                                          \
	({                                                                                         \
		__typeof__(pointer) *place_ = &(pointer);                                          \
		__typeof__(pointer) taken_ = *place_;                                              \
		*place_ = NULL;                                                                    \
		taken_;                                                                            \
	})
#define TAKE_FD(fd)                                                                                \
	({                                                                                         \
		int *place_ = &(fd);                                                               \
		int taken_ = *place_;                                                              \
		*place_ = -EBADF;                                                                  \
		taken_;                                                                            \
	})
