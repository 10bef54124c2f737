/*
 * Theory of operation.
 *
 * Out: box-guest writes /data as a tar archive; box-image, jailed, packs it as it comes; the file
 * is synced and gets its label when both have ended well.
 *
 * In: a new empty disk is made beside /data and given to a machine of its own, in which box-guest
 * extracts what box-image unpacks. When all of it is in, the machine has ended and the disk is
 * synced, the disk takes the place of /data in one step (store/archive.c). Until then /data is
 * locked and untouched, so whatever ends a restore earlier, it has not happened.
 *
 * Nothing in this process reads a byte of an archive. All of it streams: no part of it waits for
 * the whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "client/copy.h"
#include "client/copy_pump.h"
#include "client/data.h"
#include "client/internal.h"
#include "client/pack.h"
#include "spec/spec.h"
#include "store/chain.h"

/* How much of a path is repeated in an error. */
#define PATH_SHOWN_MAX 256
#define GUEST_WORD_MAX (SPEC_NAME_MAX + sizeof(":/data/."))

/*
 * Copies with box-image at one end. rc of the copy and of the packer: a signal is told first, then
 * the packer, unless all that failed it was that its other side had gone.
 */
static int copy_packed(struct store *store, struct client_copy_options *copy,
		       const struct client_data_options *options, struct packer *packer,
		       struct err *err)
{
	struct err packer_err = {0};
	int rc, packed;

	copy->user = "root";
	copy->progress = options->progress;
	copy->notice = options->notice;
	copy->data = options->data;
	rc = client_copy(store, copy, err);
	packed = packer_end(packer, rc < 0, &packer_err);
	if (packed < 0 && rc != -EINTR && (rc == 0 || packed != -EPIPE)) {
		*err = packer_err;
		return packed;
	}
	return rc;
}

static int pack(struct store *store, const char *name, const struct client_data_machine *machine,
		const struct store_draft *draft, const struct client_data_options *options,
		struct err *err)
{
	char source[GUEST_WORD_MAX];
	struct client_copy_options out = {
		.source = source, .target = "-", .machine = machine->machine};
	struct packer packer = PACKER_NONE;
	_cleanup_close_ int read_end = -EBADF;
	int rc = copy_pipe(&read_end, &out.stream_fd);

	if (rc < 0) {
		return err_context(err, rc, "snapshot");
	}
	snprintf(source, sizeof(source), "%s:/data/.", name);
	rc = packer_start(true, read_end, draft->fd, &packer, err);
	if (rc < 0) {
		close(out.stream_fd);
		return rc;
	}
	close_fd(&read_end);
	return copy_packed(store, &out, options, &packer, err);
}

int client_archive_make(struct store *store, const char *name, const char *label,
			const struct client_data_options *options, uint64_t *ret_bytes,
			struct err *err)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, err);
	struct client_data_machine machine = {0};
	struct store_draft draft = STORE_DRAFT_NONE;
	struct stat status;
	int rc;

	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	rc = store_begin_archive(sandbox_fd, label, &draft, err);
	if (rc == 0) {
		rc = client_open_data(store, name, options, &machine, err);
	}
	if (rc == 0) {
		rc = pack(store, name, &machine, &draft, options, err);
		client_close_data(&machine, rc < 0, NULL);
	}
	if (rc == 0 && fstat(draft.fd, &status) == 0) {
		*ret_bytes = (uint64_t)status.st_size;
	}
	if (rc == 0) {
		rc = store_commit_archive(sandbox_fd, label, &draft, err);
	}
	store_drop_draft(sandbox_fd, &draft);
	return rc;
}

int client_archive_find(struct store *store, const char *name, const char *word,
			struct client_archive_source *ret_source, struct err *err)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, err);
	struct client_archive_source source = {.file = word};
	int rc;

	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	if (!word || !strchr(word, '/')) {
		rc = store_find_archive(sandbox_fd, word, &source.archive, err);
		if (rc == 0) {
			source.file = NULL;
		} else if (rc != -ENOENT || !word || access(word, F_OK) < 0) {
			return rc;
		}
	}
	*ret_source = source;
	return 0;
}

/* A change of /data under way. */
struct change {
	struct store *store;
	const char *name;
	const struct client_data_options *options;
	struct client_held held;
	struct spec *spec;
	struct store_draft draft;
};

/* The error for a /data that another has. */
static int refuse_held(int sandbox_fd, const char *name, struct err *err)
{
	if (store_is_up(sandbox_fd)) {
		err_set(err, -EBUSY, "busy", "%s is up", name);
		err_mend(err, "`box down %s` stops it", name);
	} else {
		err_set(err, -EBUSY, "busy", "a machine of %s holds /data", name);
		err_mend(err, "wait for the command that runs in it, or end it");
	}
	return -EBUSY;
}

int client_hold(struct store *store, const char *name, struct client_held *held, struct err *err)
{
	struct err local = {0};

	held->sandbox_fd = store_open_sandbox(store, name, err);
	if (held->sandbox_fd < 0) {
		return held->sandbox_fd;
	}
	held->live_fd = store_lock_live(held->sandbox_fd, false, false, err);
	if (held->live_fd < 0) {
		return held->live_fd;
	}
	/* Before /data is ours: a second name that is left of it goes under its lock only. */
	store_sweep_archives(held->sandbox_fd);
	held->data_fd = store_open_data(held->sandbox_fd, false, &local);
	if (held->data_fd == -EAGAIN) {
		return refuse_held(held->sandbox_fd, name, err);
	}
	if (held->data_fd < 0) {
		*err = local;
		return held->data_fd;
	}
	return 0;
}

void client_let_go(struct client_held *held)
{
	close_fd(&held->data_fd);
	close_fd(&held->live_fd);
	close_fd(&held->sandbox_fd);
}

/* What stands on a state, or is compared with one, is not served by another. */
static int refuse_family(const struct change *change, struct err *err)
{
	struct store_fork fork;
	int rc = store_read_fork(change->held.sandbox_fd, &fork, err);

	if (rc > 0) {
		err_set(err, -EBUSY, "is-fork", "%s is a fork of %s: its /data is not replaced",
			change->name, fork.parent);
		err_mend(err, "`box discard %s`, then `box fork %s %s`", change->name, fork.parent,
			 change->name);
		return -EBUSY;
	}
	return rc < 0 ? rc : store_refuse_forks(change->store, change->name, err);
}

static int begin_change(struct change *change, struct err *err)
{
	int rc = client_hold(change->store, change->name, &change->held, err);

	if (rc == 0) {
		/* With /data in hand: nobody forks it until we are done. */
		rc = refuse_family(change, err);
	}
	return rc < 0 ? rc : store_load_spec(change->store, change->name, &change->spec, err);
}

static void end_change(struct change *change)
{
	store_drop_draft(change->held.sandbox_fd, &change->draft);
	spec_free(change->spec);
	client_let_go(&change->held);
}

#define CHANGE_OF(a_store, a_name)                                                                 \
	{                                                                                          \
		.store = (a_store), .name = (a_name), .held = CLIENT_HELD_NONE,                    \
		.draft = STORE_DRAFT_NONE                                                          \
	}

static int open_source(const struct change *change, const struct client_archive_source *source,
		       struct err *err)
{
	const char *path = source->file ? source->file : source->archive.path;
	int fd = openat(source->file ? AT_FDCWD : change->held.sandbox_fd, path,
			O_RDONLY | O_CLOEXEC);
	char quoted[PATH_SHOWN_MAX * TEXT_QUOTE_GROWTH + 1];
	struct stat status;
	int rc = fd < 0 ? -errno : 0;

	if (rc == 0 && fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
		close_fd(&fd);
		rc = -EISDIR;
	}
	if (rc < 0) {
		text_quote(path, strnlen(path, PATH_SHOWN_MAX), quoted, sizeof(quoted));
		err_set(err, rc, "archive", "cannot read \"%s\": %s", quoted, strerror(-rc));
		err_mend(err, "name an archive: a tar file, plain or packed");
		return rc;
	}
	return fd;
}

/* Carries the archive into the machine. */
static int unpack(const struct change *change, struct client_machine *machine, int archive_fd,
		  bool ours, struct err *err)
{
	char target[GUEST_WORD_MAX];
	/* What comes from outside brings no setuid bits (docs/security.md); a state that is brought
	 * back has them as it had. */
	struct client_copy_options in = {.source = "-",
					 .target = target,
					 .machine = machine,
					 .verb = ours ? "state" : "owners"};
	struct packer packer = PACKER_NONE;
	_cleanup_close_ int write_end = -EBADF;
	int rc = copy_pipe(&in.stream_fd, &write_end);

	if (rc < 0) {
		return err_context(err, rc, "restore");
	}
	snprintf(target, sizeof(target), "%s:/data", change->name);
	rc = packer_start(false, archive_fd, write_end, &packer, err);
	if (rc < 0) {
		close(in.stream_fd);
		return rc;
	}
	close_fd(&write_end);
	return copy_packed(change->store, &in, change->options, &packer, err);
}

/* Puts the new chain in the place of /data. */
static int swap(struct change *change, char *ret_undo, struct err *err)
{
	_cleanup_close_ int chain_fd = store_lock_chain(change->held.sandbox_fd, true, true, err);

	return chain_fd < 0
		       ? chain_fd
		       : store_swap_data(change->held.sandbox_fd, &change->draft, ret_undo, err);
}

/* Makes the new disk, with all that is in the archive. */
static int fill_disk(struct change *change, int archive_fd, bool ours, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	struct client_start_options start = {
		.mode = IPC_START_RUN,
		.data = CLIENT_DATA_GIVEN,
		.helper = true,
		.stage = "",
		.notice = change->options->notice,
		.notice_data = change->options->data,
	};
	int rc = store_begin_data(change->held.sandbox_fd, change->spec->data_size_bytes,
				  &change->draft, err);

	if (rc < 0) {
		return rc;
	}
	start.data_fd = change->draft.fd;
	rc = client_start(change->store, change->name, &start, &machine, err);
	if (rc == 0) {
		rc = unpack(change, machine, archive_fd, ours, err);
	}
	return rc == 0 ? client_stop(machine, err) : rc;
}

/* Brings a disk back as it was. One that is too large would not start. */
static int take_disk(struct change *change, const struct store_archive *archive, struct err *err)
{
	uint64_t size;
	int rc = store_begin_undo(change->held.sandbox_fd, archive, &change->draft, err);

	if (rc == 0) {
		rc = store_disk_size(change->draft.fd, &size, err);
	}
	if (rc == 0 && size > change->spec->data_size_bytes) {
		rc = store_refuse_shrink(size, change->spec->data_size_bytes, err);
	}
	return rc;
}

int client_archive_restore(struct store *store, const char *name,
			   const struct client_archive_source *source,
			   const struct client_data_options *options, char *ret_undo,
			   struct err *err)
{
	_cleanup_(end_change) struct change change = CHANGE_OF(store, name);
	_cleanup_close_ int archive_fd = -EBADF;
	bool ours = !source->file;
	int rc;

	change.options = options;
	rc = begin_change(&change, err);
	if (rc < 0) {
		return rc;
	}
	if (ours && source->archive.automatic) {
		rc = take_disk(&change, &source->archive, err);
	} else {
		archive_fd = open_source(&change, source, err);
		rc = archive_fd < 0 ? archive_fd : fill_disk(&change, archive_fd, ours, err);
	}
	return rc == 0 ? swap(&change, ret_undo, err) : rc;
}

int client_data_reset(struct store *store, const char *name, char *ret_undo, struct err *err)
{
	_cleanup_(end_change) struct change change = CHANGE_OF(store, name);
	int rc = begin_change(&change, err);

	if (rc == 0) {
		rc = store_begin_data(change.held.sandbox_fd, change.spec->data_size_bytes,
				      &change.draft, err);
	}
	return rc == 0 ? swap(&change, ret_undo, err) : rc;
}
