/*
 * Packing and unpacking of whole archives, as bytes. libarchive's "raw" format is one nameless
 * member around a compression filter; no name and no header is read or written here.
 */
#include "archive/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archive/unpack.h"
#include "base/cleanup.h"
#include "base/io.h"

/* The fastest of zstd's levels: a machine writes slower than this packs, and the next levels save
 * little. */
#define PACK_LEVEL "1"

struct output {
	struct archive *archive;
	int fd;
	/* errno of a write that failed, negative. */
	int rc;
};

static la_ssize_t on_write(struct archive *archive, void *data, const void *bytes, size_t size)
{
	struct output *output = data;

	output->rc = write_full(output->fd, bytes, size);
	if (output->rc < 0) {
		archive_set_error(archive, -output->rc, "cannot write it");
		return ARCHIVE_FATAL;
	}
	return (la_ssize_t)size;
}

static int pack_failed(const struct output *output, struct err *err)
{
	int number = output->rc < 0 ? -output->rc : archive_errno(output->archive);

	number = number > 0 ? number : EIO;
	return err_set(err, -number, number == ENOSPC || number == EDQUOT ? "disk-full" : "pack",
		       "cannot write the archive: %s", strerror(number));
}

static void cleanup_entry(struct archive_entry **entry)
{
	archive_entry_free(*entry);
}

static int open_output(struct output *output, struct err *err)
{
	_cleanup_(cleanup_entry) struct archive_entry *entry = archive_entry_new();

	output->archive = archive_write_new();
	if (!output->archive || !entry) {
		return err_set(err, -ENOMEM, "pack", "cannot write the archive: %s",
			       strerror(ENOMEM));
	}
	archive_entry_set_filetype(entry, AE_IFREG);
	if (archive_write_set_format_raw(output->archive) != ARCHIVE_OK ||
	    archive_write_add_filter_zstd(output->archive) != ARCHIVE_OK ||
	    archive_write_set_filter_option(output->archive, "zstd", "compression-level",
					    PACK_LEVEL) != ARCHIVE_OK ||
	    archive_write_set_bytes_in_last_block(output->archive, 1) != ARCHIVE_OK ||
	    archive_write_open(output->archive, output, NULL, on_write, NULL) != ARCHIVE_OK ||
	    archive_write_header(output->archive, entry) != ARCHIVE_OK) {
		return pack_failed(output, err);
	}
	return 0;
}

static int pack(struct output *output, struct archive_stream *input, struct err *err)
{
	const uint8_t *data;
	size_t size;
	int rc;

	while ((rc = archive_stream_take(input, STREAM_READ_BYTES, &data, &size, err)) > 0) {
		while (size > 0) {
			la_ssize_t written = archive_write_data(output->archive, data, size);

			if (written <= 0) {
				return pack_failed(output, err);
			}
			data += written;
			size -= (size_t)written;
		}
	}
	if (rc < 0) {
		return rc;
	}
	return archive_write_close(output->archive) == ARCHIVE_OK ? 0 : pack_failed(output, err);
}

int archive_pack_fd(int in_fd, int out_fd, struct err *err)
{
	const struct stream_input from = {.fd = in_fd};
	struct archive_stream input;
	struct output output = {.fd = out_fd};
	int rc = archive_stream_open_plain(&input, &from, err);

	if (rc == 0) {
		rc = open_output(&output, err);
	}
	if (rc == 0) {
		rc = pack(&output, &input, err);
	}
	archive_write_free(output.archive);
	archive_stream_close(&input);
	return rc;
}

static int unpack(struct archive_stream *input, int out_fd, struct err *err)
{
	const uint8_t *data;
	size_t size;
	int rc;

	while ((rc = archive_stream_take(input, STREAM_READ_BYTES, &data, &size, err)) > 0) {
		rc = write_full(out_fd, data, size);
		if (rc < 0) {
			return err_set(err, rc, "pack", "cannot hand the archive on: %s",
				       strerror(-rc));
		}
	}
	return rc;
}

int archive_unpack_fd(int in_fd, int out_fd, struct err *err)
{
	const struct stream_input from = {.fd = in_fd};
	struct archive_stream input;
	int rc = unpack_open(&input, &from, err);

	if (rc == 0) {
		rc = unpack(&input, out_fd, err);
	}
	archive_stream_close(&input);
	return rc;
}
