/*
 * Whole reads and writes over descriptors, and files that are replaced whole.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Writes all size bytes, retrying after signals and short writes. Returns 0 or a negative errno. */
int write_full(int fd, const void *data, size_t size);

/*
 * Reads until size bytes are there or the end of file. Returns the number of bytes read (less than
 * size only at the end of file) or a negative errno.
 */
ssize_t read_full(int fd, void *data, size_t size);

/*
 * Reads a whole file below dir_fd (or AT_FDCWD). The file may hold at most max_bytes, otherwise
 * -EFBIG. *ret_data is NUL-terminated (the NUL is not counted), owned by the caller, freed by
 * free(). Returns 0 or a negative errno.
 */
int read_file_at(int dir_fd, const char *path, size_t max_bytes, char **ret_data, size_t *ret_size);

/*
 * Replaces the file path below dir_fd: writes a temporary name in the same directory, syncs it,
 * renames it over path and syncs the directory. A reader sees the old or the new content, never a
 * part. Returns 0 or a negative errno; on failure the temporary name is removed.
 */
int write_file_at(int dir_fd, const char *path, const void *data, size_t size, mode_t mode);

/* Sets or clears O_NONBLOCK on the file description behind fd. Returns 0 or a negative errno. */
int set_nonblocking(int fd, bool on);

/* Sets or clears FD_CLOEXEC on fd. Returns 0 or a negative errno. */
int set_cloexec(int fd, bool on);

/*
 * Copies the whole of from_fd into the empty file to_fd: as a reflink where the file system can,
 * otherwise the data regions only, so that holes stay holes. Both are regular files. The offset of
 * neither is used. Returns 0 or a negative errno.
 */
int copy_file_sparse(int from_fd, int to_fd);

/*
 * Removes a directory tree below dir_fd without following links. A missing tree is no error.
 * Returns 0 or the first negative errno.
 */
int remove_tree_at(int dir_fd, const char *name);
