/*
 * Forks of a machine that is up: /data is frozen under it, and the machine itself may be copied.
 *
 * What flows in: the wish of a client that holds the chain lock, the guest's PAUSED, the monitor's
 * answers. What flows out: a chain with one more layer, and for a copy three descriptors: the
 * machine's state, its root's overlay, and a description of what the new keeper must know.
 *
 * The order is always the same. What the guest has cached is written first, while everything runs.
 * Then the guest keeps still (PAUSE), and the monitor stops it, so that nothing it does by itself
 * can matter. The chain gets its layer, the disk is put on it anew, the state is saved. Then both
 * go on. Whatever fails on the way, they go on as before; only a disk that cannot be put on the new
 * chain ends the machine, with /data whole as of the freeze.
 *
 * What may never happen: that the machine writes to a layer after the client was told, that it
 * stands still for longer than a step's limit, or that a copy starts from other files, another
 * monitor or another kernel than the machine had that was copied.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "keeper/keeper.h"
#include "wire/bytes.h"

/* All that a guest may have cached, on a slow disk. Whoever is root inside may keep it from ending
 * at all, and the chain lock is not to be held for that. */
#define SYNC_LIMIT_MS 60000
/* Writing what was dirtied since the last sync, and stopping every command: seconds at worst. */
#define PAUSE_LIMIT_MS 30000

void live_init(struct keeper *keeper)
{
	keeper->fork.lock_fd = -EBADF;
	keeper->fork.copy = (struct files_copy){
		.state_fd = -EBADF, .overlay_fd = -EBADF, .description_fd = -EBADF};
}

void live_close(struct keeper *keeper)
{
	close_fd(&keeper->fork.lock_fd);
	files_close_copy(&keeper->fork.copy);
}

void live_forget_client(struct client *client)
{
	struct keeper *keeper = client->keeper;

	if (keeper->fork.client == client) {
		keeper->fork.client = NULL;
	}
}

/* ---- What the keeper of a copy has to know ---- */

static void put_exit(struct wire_writer *writer, const struct wire_exit *exit)
{
	wire_put_u32(writer, exit->kind);
	wire_put_u32(writer, exit->value);
}

static void put_command(struct wire_writer *writer, const struct command *command,
			const struct stream_state *state)
{
	static uint8_t request[WIRE_EXEC_MAX];
	int size = record_request(command->record, request);

	wire_put_u32(writer, state->id);
	wire_put_u8(writer, state->has_process);
	wire_put_u8(writer, state->has_log);
	wire_put_u8(writer, state->has_exit);
	wire_put_u8(writer, state->stdin_eof);
	wire_put_u8(writer, state->eof[0]);
	wire_put_u8(writer, state->eof[1]);
	put_exit(writer, &state->exit);
	wire_put_u8(writer, command->terminal);
	wire_put_u8(writer, command->has_stdin);
	wire_put_u8(writer, command->own_program);
	wire_put_string(writer, command->id);
	wire_put_u32(writer, size > 0 ? (uint32_t)size : 0);
	if (size > 0) {
		wire_put_bytes(writer, request, (size_t)size);
	}
}

/* Returns a sealed memory file, or a negative errno. */
static int describe(struct keeper *keeper)
{
	_cleanup_free_ uint8_t *text = malloc(FILES_DESCRIPTION_MAX);
	struct wire_writer writer;

	if (!text) {
		return -ENOMEM;
	}
	writer = wire_writer_over(text, FILES_DESCRIPTION_MAX);
	files_put_identity(&keeper->files, &writer);
	wire_put_u32(&writer, keeper->last_stream);
	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		struct command *command = &keeper->commands[i];
		struct stream_state state;

		if (command->stream && !command->tcp && stream_save(command->stream, &state)) {
			put_command(&writer, command, &state);
		}
	}
	/* No stream has this number. */
	wire_put_u32(&writer, 0);
	return writer.failed ? -EFBIG : ipc_memory_file("copy", text, writer.size);
}

/* ---- The fork ---- */

/* The wish is done with. rc is 0, or the errno that err tells of. */
static void answer(struct keeper *keeper, int rc, const struct err *err)
{
	struct keeper_fork *fork = &keeper->fork;
	const struct ipc_message done = {.type = fork->copies ? IPC_FORKED : IPC_DONE};
	const int fds[IPC_COPY_FDS] = {fork->copy.state_fd, fork->copy.overlay_fd,
				       fork->copy.description_fd};

	if (!fork->client) {
		return;
	}
	if (rc < 0) {
		client_refuse(fork->client, 0, err->code, err->text, err->mend);
	} else if (ipc_send(fork->client->fd, &done, fds, fork->copies ? IPC_COPY_FDS : 0) < 0) {
		client_drop(fork->client);
	}
}

/* Whatever stands still goes on, and the client is told. */
static void finish(struct keeper *keeper, int rc, struct err *err)
{
	struct keeper_fork *fork = &keeper->fork;
	bool ended = keeper->phase == KEEPER_ENDING;
	struct err failure = {0};

	loop_timer_cancel(keeper->loop, &fork->timer);
	if (!ended && fork->stage > FORK_PAUSING && engine_resume(keeper->engine, &failure) < 0) {
		keeper_fail(keeper, &failure);
		ended = true;
	}
	control_go_on(keeper->control, WIRE_RESUME);
	fork->stage = FORK_NONE;
	if (!ended) {
		answer(keeper, rc, err);
	}
	fork->client = NULL;
	close_fd(&fork->lock_fd);
	files_close_copy(&fork->copy);
	/* It stood still for a while, and its clock with it. */
	clock_ask(keeper);
}

static void on_saved(void *data, int rc)
{
	struct keeper *keeper = data;
	struct err err = {0};

	if (rc < 0) {
		err_set(&err, rc, "not-saved",
			"%s: the memory of the machine could not be written to a file",
			keeper->start.name);
		err_mend(&err, "make room on the disk of %s: up to `ram_mib` is needed",
			 keeper->files.store.home);
	}
	finish(keeper, rc, &err);
}

/* The machine stands still: what makes it up is written down. */
static int copy_machine(struct keeper *keeper, struct err *err)
{
	struct files_copy *copy = &keeper->fork.copy;
	struct store *store = &keeper->files.store;
	int rc;

	keeper->fork.stage = FORK_SAVING;
	copy->overlay_fd = store_temporary_file(store, err);
	if (copy->overlay_fd < 0) {
		return copy->overlay_fd;
	}
	rc = copy_file_sparse(keeper->files.overlay_fd, copy->overlay_fd);
	if (rc == 0) {
		rc = copy->description_fd = describe(keeper);
	}
	if (rc < 0) {
		return err_context(err, rc, "%s: copying the machine", keeper->start.name);
	}
	copy->state_fd = store_temporary_file(store, err);
	return copy->state_fd < 0
		       ? copy->state_fd
		       : engine_save(keeper->engine, copy->state_fd, on_saved, keeper, err);
}

/* /data is frozen. What else is wanted? */
static void go_further(struct keeper *keeper)
{
	struct err err = {0};
	int rc = 0;

	if (!keeper->fork.copies) {
		finish(keeper, 0, &err);
		return;
	}
	rc = copy_machine(keeper, &err);
	if (rc < 0) {
		finish(keeper, rc, &err);
	}
}

static void on_switched(void *data)
{
	go_further(data);
}

/*
 * The guest's disk is put on the chain as it is now. Until that is done what the machine writes
 * would go into a layer, so a failure is its end.
 */
static void switch_disk(struct keeper *keeper, int top_fd)
{
	struct files *files = &keeper->files;
	struct engine_disk disk;
	struct err err = {0};
	int rc;

	keeper->fork.stage = FORK_SWITCHING;
	files_close_data(files);
	files->data_fd = top_fd;
	rc = store_open_layers(files->sandbox_fd, &files->data_layers, &err);
	if (rc == 0) {
		files_describe_data(files, &disk);
		rc = engine_replace_disk(keeper->engine, &disk, false, on_switched, keeper, &err);
	}
	if (rc < 0) {
		keeper_fail(keeper, &err);
	}
}

static void on_stopped(void *data)
{
	struct keeper *keeper = data;
	struct files *files = &keeper->files;
	struct err err = {0};
	int top_fd, rc;

	if (keeper->phase == KEEPER_ENDING) {
		return;
	}
	rc = store_freeze_data(files->sandbox_fd, files->data_fd, &top_fd, &err);
	if (rc < 0) {
		finish(keeper, rc, &err);
	} else if (rc == 1) {
		go_further(keeper);
	} else {
		switch_disk(keeper, top_fd);
	}
}

static void refuse_pause(struct keeper *keeper, int error)
{
	struct err err = {0};

	err_set(&err, -error, "not-paused", "%s: the guest could not be made to keep still: %s",
		keeper->start.name, strerror(error));
	err_mend(&err, "%s",
		 error == EBUSY ? "has somebody frozen or unmounted /data inside?" : "try again");
	finish(keeper, -error, &err);
}

static void on_pause_limit(struct loop *loop, void *data)
{
	struct keeper *keeper = data;

	(void)loop;
	keeper->fork.timer = 0;
	/* The answer may come yet, and means nothing then. */
	keeper->fork.late_answer = true;
	refuse_pause(keeper, ETIMEDOUT);
}

int live_paused(struct keeper *keeper, const struct wire_frame *frame)
{
	struct keeper_fork *fork = &keeper->fork;
	struct err err = {0};
	uint32_t error;
	int rc;

	if (wire_u32_decode(frame->payload, frame->length, &error) < 0 || error > 4095) {
		return -EBADMSG;
	}
	if (fork->late_answer) {
		fork->late_answer = false;
		return 0;
	}
	if (fork->stage != FORK_PAUSING) {
		return -EBADMSG;
	}
	loop_timer_cancel(keeper->loop, &fork->timer);
	if (error != 0) {
		refuse_pause(keeper, (int)error);
		return 0;
	}
	rc = engine_pause(keeper->engine, on_stopped, keeper, &err);
	if (rc < 0) {
		finish(keeper, rc, &err);
		return 0;
	}
	fork->stage = FORK_STOPPING;
	return 0;
}

/* What was cached inside is on the disk, so that the pause is short. */
static void on_synced(struct keeper *keeper)
{
	struct keeper_fork *fork = &keeper->fork;
	struct err err = {0};
	int rc = keeper->phase == KEEPER_RUNNING ? 0 : -EAGAIN;

	if (fork->late_sync) {
		fork->late_sync = false;
		return;
	}
	loop_timer_cancel(keeper->loop, &fork->timer);
	if (rc == 0) {
		rc = control_send(keeper->control, WIRE_PAUSE, fork->copies ? 1 : 0, 0, NULL, 0);
	}
	if (rc < 0) {
		err_set(&err, rc, IPC_CODE_BUSY, "%s is going down", keeper->start.name);
		finish(keeper, rc, &err);
		return;
	}
	control_hold(keeper->control);
	fork->stage = FORK_PAUSING;
	loop_timer_add(keeper->loop, PAUSE_LIMIT_MS, on_pause_limit, keeper, &fork->timer);
}

static void on_sync_limit(struct loop *loop, void *data)
{
	struct keeper *keeper = data;

	(void)loop;
	keeper->fork.timer = 0;
	/* It may end yet. Until then nothing is forked: a copy would have it as a command. */
	keeper->fork.late_sync = true;
	refuse_pause(keeper, ETIMEDOUT);
}

/* Why it cannot be forked now, or 0. */
static int check_wish(const struct keeper *keeper, bool copies, struct err *err)
{
	const struct keeper_fork *fork = &keeper->fork;

	if (keeper->phase != KEEPER_RUNNING || keeper->leaving || keeper->pausing ||
	    fork->stage != FORK_NONE || fork->late_answer || fork->late_sync) {
		return err_set(err, -EAGAIN, IPC_CODE_BUSY, "%s is busy", keeper->start.name);
	}
	if (keeper->start.mode != IPC_START_RUN || keeper->start.data_fate != IPC_DATA_OWN ||
	    (copies && keeper->start.stay != IPC_STAY_UP)) {
		err_set(err, -EINVAL, "no-own-data", "%s is not up with its own /data",
			keeper->start.name);
		err_mend(err, "`box down %s`, then `box up %s` without --data", keeper->start.name,
			 keeper->start.name);
		return -EINVAL;
	}
	return 0;
}

void live_fork(struct client *client, bool copies, int lock_fd)
{
	struct keeper *keeper = client->keeper;
	struct keeper_fork *fork = &keeper->fork;
	struct err err = {0};

	if (lock_fd < 0) {
		/* No client of ours. */
		client_drop(client);
		return;
	}
	if (check_wish(keeper, copies, &err) < 0) {
		close_fd(&lock_fd);
		client_refuse(client, 0, err.code, err.text, err.mend);
		return;
	}
	fork->client = client;
	fork->copies = copies;
	fork->lock_fd = lock_fd;
	fork->stage = FORK_SYNCING;
	loop_timer_add(keeper->loop, SYNC_LIMIT_MS, on_sync_limit, keeper, &fork->timer);
	if (data_sync_inside(keeper, on_synced) < 0) {
		/* As many commands run as can. The pause writes the same, and takes longer. */
		on_synced(keeper);
	}
}

/* ---- The keeper of a copy ---- */

/* One command of the machine that was copied. What its end was told there is told here again. */
static int adopt(struct keeper *keeper, struct wire_reader *reader, uint32_t id)
{
	struct stream_state state = {.id = id};
	struct command command = {0};
	const uint8_t *request;
	const char *called;
	uint32_t size;

	state.has_process = wire_get_u8(reader) != 0;
	state.has_log = wire_get_u8(reader) != 0;
	state.has_exit = wire_get_u8(reader) != 0;
	state.stdin_eof = wire_get_u8(reader) != 0;
	state.eof[0] = wire_get_u8(reader) != 0;
	state.eof[1] = wire_get_u8(reader) != 0;
	state.exit.kind = wire_get_u32(reader);
	state.exit.value = wire_get_u32(reader);
	command.terminal = wire_get_u8(reader) != 0;
	command.has_stdin = wire_get_u8(reader) != 0;
	command.own_program = wire_get_u8(reader) != 0;
	called = wire_get_string(reader);
	snprintf(command.id, sizeof(command.id), "%s", called ? called : "");
	size = wire_get_u32(reader);
	request = size > 0 ? wire_get_bytes(reader, size) : NULL;
	return reader->failed ? -EBADMSG : command_adopt(keeper, &command, &state, request, size);
}

int live_adopt(struct keeper *keeper)
{
	struct files *files = &keeper->files;
	struct wire_reader reader =
		wire_reader_over(files->description + files->description_used,
				 files->description_size - files->description_used);
	uint32_t id;
	int rc = 0;

	keeper->last_stream = wire_get_u32(&reader);
	while (rc == 0 && (id = wire_get_u32(&reader)) != 0) {
		rc = adopt(keeper, &reader, id);
	}
	free(TAKE_PTR(files->description));
	return rc < 0 ? rc : (reader.failed ? -EBADMSG : 0);
}
