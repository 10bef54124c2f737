#include "client/diff.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "client/client.h"
#include "client/inside.h"
#include "client/internal.h"
#include "spec/spec.h"
#include "wire/change_stream.h"

#define CHUNK_BYTES 65536
/* What the archive has of an entry beside its content: headers, padding, the attributes of one
 * block. Paths and targets come on top of it, each of them twice at most. */
#define ENTRY_BYTES_MAX ((uint64_t)8192)
/* Of the content it has what takes room on the disk, and a map of the holes of each file: 48 bytes
 * for a piece, of which none is smaller than a block of 1024. */
#define MAP_SHARE 16

/* A stream while it is read. */
struct reading {
	const struct client_diff_options *options;
	struct client_diff_result *result;
	/* How much longer its archive may get. The sender is not trusted, and what it sends goes to
	 * the host's disk. */
	uint64_t room;
	struct change_stream stream;
	struct store_hasher *hasher;
	char bytes[CHUNK_BYTES];
};

static bool has_archive(const struct client_diff_options *options)
{
	return options->mode == CLIENT_DIFF_CONTENT || options->mode == CLIENT_DIFF_BACK;
}

static int broken(struct err *err)
{
	err_set(err, -EBADMSG, "diff-broken",
		"what the machine says of its changes breaks the rules for it");
	err_mend(err,
		 "nothing of it was used; a guest kernel that was taken over may say anything");
	return -EBADMSG;
}

/* What a callback of the caller's has made of it. */
static int refused(int rc, struct err *err)
{
	if (rc == -E2BIG) {
		err_set(err, rc, "too-many-changes",
			"there are too many changes to keep in memory");
		err_mend(err, "`box data export` takes all of /data out instead");
		return rc;
	}
	return err_context(err, rc, "changes");
}

static uint64_t entry_max(const struct change *change)
{
	return change_has_content(change)
		       ? ENTRY_BYTES_MAX + 2 * (strlen(change->path) + strlen(change->new_target))
		       : 0;
}

static int take_event(struct reading *reading, int event, struct err *err)
{
	const struct client_diff_options *options = reading->options;
	const struct change_stream *stream = &reading->stream;
	int rc = 0;

	if (event < 0) {
		return broken(err);
	}
	if (event == CHANGE_EVENT_RECORD) {
		reading->room += entry_max(&stream->change);
	}
	if (event == CHANGE_EVENT_RECORD && options->record) {
		rc = options->record(options->data, &stream->change);
	} else if (event == CHANGE_EVENT_TEXT && options->text) {
		rc = options->text(options->data, stream->text, stream->text_size);
	}
	return rc < 0 ? refused(rc, err) : 0;
}

/* Bytes up to the end of the records go through the decoder; of the archive nothing is looked at.
 */
static int take_bytes(struct reading *reading, size_t size, struct err *err)
{
	size_t at = 0;
	int rc = 0;

	while (rc == 0 && at < size && !reading->stream.ended) {
		size_t used = 0;

		rc = take_event(
			reading,
			change_stream_feed(&reading->stream, reading->bytes + at, size - at, &used),
			err);
		at += used;
		reading->result->archive_offset += used;
	}
	if (rc == 0 && at < size) {
		if (!has_archive(reading->options) || size - at > reading->room) {
			return broken(err);
		}
		reading->room -= size - at;
	}
	return rc;
}

static int keep_bytes(struct reading *reading, size_t size, struct err *err)
{
	int fd = reading->options->copy_fd;
	int rc = 0;

	store_hasher_add(reading->hasher, reading->bytes, size);
	reading->result->size += size;
	if (fd >= 0) {
		rc = write_full(fd, reading->bytes, size);
	}
	if (rc < 0) {
		err_context(err, rc, "cannot keep the changes below BOX_HOME");
		err_mend(err, "look whether there is room for what the fork has changed");
	}
	return rc;
}

static int read_stream(void *data, const struct inside_end *end, struct err *err)
{
	struct reading *reading = data;

	for (;;) {
		ssize_t got = inside_read(end, reading->bytes, sizeof(reading->bytes));
		int rc = 0;

		if (got < 0) {
			return err_context(err, (int)got, "changes");
		}
		if (got == 0) {
			break;
		}
		rc = take_bytes(reading, (size_t)got, err);
		if (rc == 0) {
			rc = keep_bytes(reading, (size_t)got, err);
		}
		if (rc < 0) {
			return rc;
		}
	}
	if (!reading->stream.ended) {
		return broken(err);
	}
	reading->result->records = reading->stream.count;
	store_hasher_end(reading->hasher, reading->result->digest);
	return 0;
}

int client_diff_inside(struct client_machine *machine, const struct client_diff_options *options,
		       struct client_diff_result *ret_result, struct err *err)
{
	static const char *const argvs[][4] = {
		[CLIENT_DIFF_RECORDS] = {"box-diff"},
		[CLIENT_DIFF_PATCH] = {"box-diff", "patch"},
		[CLIENT_DIFF_CONTENT] = {"box-diff", "content"},
		[CLIENT_DIFF_BACK] = {"box-diff", "back"},
	};
	_cleanup_(store_hasher_freep) struct store_hasher *hasher = store_hasher_new();
	_cleanup_free_ struct reading *reading = calloc(1, sizeof(*reading));
	_cleanup_(spec_freep) struct spec *spec = NULL;
	struct client_diff_result result = {0};
	int rc;

	if (!hasher || !reading) {
		return err_context(err, -ENOMEM, "changes");
	}
	rc = store_load_spec(machine->store, machine->name, &spec, err);
	if (rc < 0) {
		return rc;
	}
	/* Its disks are not larger than that, or it had not started. The end of an archive is two
	 * blocks of zeros. */
	reading->room = spec->data_size_bytes + spec->data_size_bytes / MAP_SHARE + ENTRY_BYTES_MAX;
	reading->options = options;
	reading->result = &result;
	reading->hasher = hasher;
	change_stream_begin(&reading->stream, options->mode == CLIENT_DIFF_PATCH);
	rc = client_run_inside(machine,
			       &(struct client_inside){.argv = argvs[options->mode],
						       .read = read_stream,
						       .data = reading},
			       err);
	if (rc == 0 && ret_result) {
		*ret_result = result;
	}
	return rc;
}

int client_open_fork(int sandbox_fd, const char *name, struct store_fork *ret_fork,
		     struct store_layers *ret_layers, struct err *err)
{
	_cleanup_close_ int chain_fd = -EBADF;
	int rc = store_read_fork(sandbox_fd, ret_fork, err);

	if (rc < 0) {
		return rc;
	}
	if (rc == 0) {
		err_set(err, -ENOTSUP, "no-fork", "%s is no fork of another sandbox", name);
		err_mend(err, "`box fork PARENT NAME` makes one; `box ls` shows what is one");
		return -ENOTSUP;
	}
	chain_fd = store_lock_chain(sandbox_fd, false, true, err);
	if (chain_fd < 0) {
		return chain_fd;
	}
	rc = store_open_layers(sandbox_fd, ret_layers, err);
	if (rc == 0) {
		store_trim_layers(ret_layers, ret_fork->base_count);
	}
	return rc;
}

int client_diff(struct store *store, const char *name, const struct client_diff_options *options,
		struct client_diff_result *ret_result, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	_cleanup_(store_close_layers) struct store_layers base = {.count = 0};
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, err);
	struct client_start_options start = {
		.mode = IPC_START_RUN,
		.data = CLIENT_DATA_CLONE,
		.base = &base,
		.helper = true,
		.stage = "",
		.notice = options->notice,
		.notice_data = options->data,
	};
	struct store_fork fork;
	int rc =
		sandbox_fd < 0 ? sandbox_fd : client_open_fork(sandbox_fd, name, &fork, &base, err);

	if (rc == 0) {
		rc = client_start(store, name, &start, &machine, err);
	}
	return rc == 0 ? client_diff_inside(machine, options, ret_result, err) : rc;
}

int client_diff_keep(void *changes, const struct change *change)
{
	return changes_add(changes, change);
}
