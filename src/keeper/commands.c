/*
 * What runs in the machine: commands and TCP connections, each with its stream, its record in the
 * log, and the client that it belongs to.
 *
 * A command outlives its client when it was detached: it then writes to its record alone, until
 * somebody attaches. The numbers of streams on the control port are the keeper's own and are never
 * used twice; a client's numbers mean something together with the client only.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "keeper/keeper.h"
#include "wire/bytes.h"

/* What an attaching client's pipe takes at once. */
#define REPLAY_MAX 65536
/* Streams that connections leave to commands: who floods a forwarded port, which any program of the
 * host may do, must not keep the machine's owner out. */
#define COMMANDS_RESERVE 64

struct command *command_find(struct keeper *keeper, uint32_t stream)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		struct command *command = &keeper->commands[i];

		if (command->stream && stream_id(command->stream) == stream) {
			return command;
		}
	}
	return NULL;
}

static struct command *find_own(struct client *client, uint32_t number)
{
	struct keeper *keeper = client->keeper;

	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		struct command *command = &keeper->commands[i];

		if (command->stream && command->client == client && command->number == number) {
			return command;
		}
	}
	return NULL;
}

static struct command *find_called(struct keeper *keeper, const char *id)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		struct command *command = &keeper->commands[i];

		if (command->stream && command->id[0] && strcmp(command->id, id) == 0) {
			return command;
		}
	}
	return NULL;
}

static struct command *find_free(struct keeper *keeper)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		if (!keeper->commands[i].stream) {
			return &keeper->commands[i];
		}
	}
	return NULL;
}

/* Letters and digits that cannot be taken for one another. */
static void choose_id(struct keeper *keeper, char *ret_id)
{
	static const char letters[] = "abcdefghjkmnpqrstuvwxyz23456789";
	uint8_t random[IPC_ID_LENGTH];

	do {
		store_random(random, sizeof(random));
		for (size_t i = 0; i < IPC_ID_LENGTH; i++) {
			ret_id[i] = letters[random[i] % (sizeof(letters) - 1)];
		}
		ret_id[IPC_ID_LENGTH] = '\0';
	} while (find_called(keeper, ret_id));
}

static void send_result(struct keeper *keeper, struct stream *stream)
{
	struct command *command = command_find(keeper, stream_id(stream));
	struct ipc_message message;
	struct command ended;

	ASSERT(command);
	ended = *command;
	*command = (struct command){0};
	stream_result(stream, &message);
	stream_free(stream);
	record_end(ended.record, &message);
	message.stream = ended.number;
	snprintf(message.exited.id, sizeof(message.exited.id), "%s", ended.id);
	client_tell(ended.client, &message);
	if (ended.own_ended) {
		ended.own_ended(keeper);
	}
	if (keeper->leaving && commands_signal(keeper, 0) == 0) {
		keeper_leave(keeper);
	}
}

static void forget_client(struct command *command)
{
	command->client = NULL;
	stream_attach(command->stream, -EBADF, (const int[]){-EBADF, -EBADF});
}

static void on_stream_ended(void *data, struct stream *stream)
{
	const struct command *command = command_find(data, stream_id(stream));
	struct client *client = command && command->is_last ? command->client : NULL;

	send_result(data, stream);
	if (client) {
		client_shut_down(client);
	}
}

/*
 * The guest may be very busy, wait for a slow disk, or have been stopped; or it lies. The other
 * commands of a machine that stays must not suffer: nobody waits for this one any more, and it
 * keeps its stream until the guest ends it.
 */
static void give_up(struct command *command)
{
	struct client *client = command->client;
	struct ipc_message message;

	stream_result(command->stream, &message);
	message.stream = command->number;
	snprintf(message.exited.id, sizeof(message.exited.id), "%s", command->id);
	forget_client(command);
	client_tell(client, &message);
}

static void on_stream_stuck(void *data, struct stream *stream)
{
	struct keeper *keeper = data;

	if (keeper->phase == KEEPER_FREEZING || keeper->phase == KEEPER_GOING_DOWN) {
		/* Its commands are ended without a word, and the time for all of it is limited. */
		return;
	}
	if (keeper->start.stay == IPC_STAY_UP) {
		give_up(command_find(keeper, stream_id(stream)));
		return;
	}
	send_result(keeper, stream);
	keeper_fail_text(keeper, "guest-stuck", "the guest did not end a command when told to",
			 "the machine was ended");
}

static void refuse_exec(struct client *client, uint32_t number, int error)
{
	struct ipc_message message = {.type = IPC_EXITED, .stream = number};

	message.exited.exit.kind = WIRE_NOT_STARTED;
	message.exited.exit.value = (uint32_t)error;
	client_tell(client, &message);
}

/* A last command that could not be sent has ended too. */
static void refuse_order(struct client *client, const struct ipc_message *order, int error)
{
	refuse_exec(client, order->stream, error);
	if (order->exec.is_last && client == client->keeper->starter) {
		client_shut_down(client);
	}
}

/* A machine for one command is ended soon when that command cannot be; one that stays may only be
 * very busy. */
static uint32_t grace_ms(const struct keeper *keeper)
{
	return keeper->start.stay == IPC_STAY_NO ? 3000 : 30000;
}

/* Opens a stream in a free entry, which *config describes but for its number. */
static int open_stream(struct keeper *keeper, struct command *command, struct stream_config *config)
{
	struct stream_events events = {
		.ended = on_stream_ended, .stuck = on_stream_stuck, .data = keeper};

	do {
		config->id = ++keeper->last_stream;
	} while (config->id == 0 || command_find(keeper, config->id));
	return stream_new(config, keeper->control, keeper->loop, &events, &command->stream);
}

/* Sends the command's request; the memory file is the client's and was sealed by it. */
static int send_exec(struct keeper *keeper, struct command *command, int request_fd)
{
	struct stat status;
	void *payload;
	int rc;

	if (fstat(request_fd, &status) < 0) {
		return -errno;
	}
	if (status.st_size <= 0 || status.st_size > (off_t)WIRE_EXEC_MAX) {
		return -E2BIG;
	}
	payload = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, request_fd, 0);
	if (payload == MAP_FAILED) {
		return -errno;
	}
	rc = control_send_exec(keeper->control, stream_id(command->stream), payload,
			       (size_t)status.st_size);
	if (rc == 0) {
		struct wire_reader reader = wire_reader_over(payload, (size_t)status.st_size);

		uint32_t flags = wire_get_u32(&reader);

		command->has_stdin = (flags & WIRE_EXEC_STDIN) != 0;
		command->own_program = (flags & WIRE_EXEC_SELF) != 0;
	}
	if (rc == 0 && keeper->log) {
		command->record =
			record_begin(keeper->log, command->id, payload, (size_t)status.st_size);
		stream_set_record(command->stream, command->record);
	}
	munmap(payload, (size_t)status.st_size);
	return rc;
}

void command_exec(struct client *client, const struct ipc_message *message, int *fds)
{
	struct keeper *keeper = client->keeper;
	struct command *command = find_free(keeper);
	struct stream_config config = {
		.stdin_fd = -EBADF,
		.output_fds = {-EBADF, -EBADF},
		.timeout_seconds = message->exec.timeout_seconds,
		.grace_ms = grace_ms(keeper),
		.kind = message->exec.on_loss == IPC_LOSS_DETACHES ? STREAM_SESSION
								   : STREAM_COMMAND,
	};
	int next = 1;
	int rc;

	if (!command) {
		client_refuse(client, message->stream, "too-many",
			      "as many commands and connections as the machine takes at once are "
			      "there already",
			      "wait until one has ended, or end one: `box ps` lists them");
		return;
	}
	if (find_own(client, message->stream) || message->stream == 0) {
		refuse_order(client, message, EBUSY);
		return;
	}
	if (message->exec.is_last && client != keeper->starter) {
		refuse_order(client, message, EPERM);
		return;
	}
	if (message->exec.has_stdin) {
		config.stdin_fd = TAKE_FD(fds[next++]);
	}
	if (message->exec.has_output) {
		config.output_fds[0] = TAKE_FD(fds[next++]);
		config.output_fds[1] = TAKE_FD(fds[next]);
	}
	*command = (struct command){
		.client = client,
		.number = message->stream,
		.terminal = message->exec.terminal != 0,
		.detach_on_loss = message->exec.on_loss == IPC_LOSS_DETACHES,
		.is_last = message->exec.is_last != 0,
	};
	choose_id(keeper, command->id);
	rc = open_stream(keeper, command, &config);
	if (rc == 0) {
		rc = send_exec(keeper, command, fds[0]);
		if (rc < 0) {
			stream_free(command->stream);
		}
	}
	if (rc < 0) {
		*command = (struct command){0};
		refuse_order(client, message, -rc);
	}
}

int command_own(struct keeper *keeper, const struct wire_exec *exec, const char *const *argv,
		void (*ended)(struct keeper *keeper))
{
	_cleanup_free_ uint8_t *request = malloc(WIRE_EXEC_MAX);
	struct command *command = find_free(keeper);
	struct stream_config config = {
		.stdin_fd = -EBADF,
		.output_fds = {-EBADF, -EBADF},
		.grace_ms = grace_ms(keeper),
	};
	int size = request ? wire_exec_encode(exec, argv, NULL, request) : -ENOMEM;
	int rc;

	if (size < 0) {
		return size;
	}
	if (!command) {
		return -EBUSY;
	}
	*command = (struct command){.own_ended = ended};
	rc = open_stream(keeper, command, &config);
	if (rc == 0) {
		rc = control_send_exec(keeper->control, config.id, request, (size_t)size);
		if (rc < 0) {
			stream_free(command->stream);
		}
	}
	if (rc < 0) {
		*command = (struct command){0};
	}
	return rc;
}

int command_adopt(struct keeper *keeper, const struct command *command,
		  const struct stream_state *state, const uint8_t *request, size_t size)
{
	struct stream_events events = {
		.ended = on_stream_ended, .stuck = on_stream_stuck, .data = keeper};
	struct stream_config config = {
		.id = state->id,
		.kind = STREAM_SESSION,
		.stdin_fd = -EBADF,
		.output_fds = {-EBADF, -EBADF},
		.grace_ms = grace_ms(keeper),
		.state = state,
	};
	struct command *entry = find_free(keeper);
	struct stream *stream;
	int rc;

	if (!entry || command_find(keeper, state->id)) {
		return -EBADMSG;
	}
	rc = stream_new(&config, keeper->control, keeper->loop, &events, &stream);
	if (rc < 0) {
		return rc;
	}
	*entry = *command;
	entry->stream = stream;
	if (keeper->log && size > 0) {
		entry->record = record_begin(keeper->log, entry->id, request, size);
		stream_set_record(stream, entry->record);
	}
	if (entry->own_program) {
		stream_kill(stream);
	}
	return 0;
}

static size_t connections(const struct keeper *keeper)
{
	size_t count = 0;

	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		count += keeper->commands[i].stream && keeper->commands[i].tcp;
	}
	return count;
}

void command_tcp(struct keeper *keeper, struct client *client, uint32_t number, int fd,
		 uint16_t port)
{
	struct command *command = find_free(keeper);
	struct stream_config config = {
		.stdin_fd = fd,
		.output_fds = {-EBADF, -EBADF},
		.grace_ms = grace_ms(keeper),
		.kind = STREAM_TCP,
	};
	uint8_t payload[8];
	int size = wire_port_encode(port, payload);
	int rc = -EBUSY;

	if (!command || fd < 0 || connections(keeper) >= WIRE_STREAMS_MAX - COMMANDS_RESERVE ||
	    (client && (number == 0 || find_own(client, number)))) {
		close_fd(&fd);
	} else {
		*command = (struct command){.client = client, .number = number, .tcp = true};
		rc = open_stream(keeper, command, &config);
		if (rc == 0) {
			rc = control_send(keeper->control, WIRE_TCP, 0, config.id, payload,
					  (size_t)size);
			if (rc < 0) {
				stream_free(command->stream);
			}
		}
		if (rc < 0) {
			*command = (struct command){0};
		}
	}
	if (rc < 0 && client) {
		refuse_exec(client, number, -rc);
	}
}

void command_detach(struct client *client, uint32_t number)
{
	struct command *command = find_own(client, number);

	if (command) {
		forget_client(command);
	}
}

/* What was kept of the output comes first; a pipe that is new takes all of it, unless its owner has
 * so many that they are small: then the newest. */
static void replay(const struct command *command, int fd, int channel)
{
	static uint8_t kept[REPLAY_MAX];
	int capacity = fcntl(fd, F_GETPIPE_SZ);
	size_t size =
		record_kept(command->record, channel, kept,
			    capacity > 0 ? MIN((size_t)capacity, sizeof(kept)) : sizeof(kept));

	if (size > 0 && set_nonblocking(fd, true) == 0) {
		/* A reader that takes less loses the rest: it has just come. */
		(void)!write(fd, kept, size);
	}
}

void command_attach(struct client *client, const struct ipc_message *message, int *fds)
{
	struct command *command = find_called(client->keeper, message->command.id);
	struct ipc_message answer = {.type = IPC_STARTED, .stream = message->stream};
	int outputs[2];

	if (!command) {
		client_refuse(client, message->stream, "no-command", "no command of that name runs",
			      "`box ps` lists what runs");
		return;
	}
	if (command->client || fds[2] < 0 || find_own(client, message->stream)) {
		client_refuse(client, message->stream, "attached",
			      "somebody is attached to that command already",
			      "detach there first, with ctrl-\\ ctrl-q");
		return;
	}
	for (int channel = 1; channel <= 2; channel++) {
		outputs[channel - 1] = TAKE_FD(fds[channel]);
		replay(command, outputs[channel - 1], channel);
	}
	if (stream_attach(command->stream, command->has_stdin ? TAKE_FD(fds[0]) : -EBADF, outputs) <
	    0) {
		client_refuse(client, message->stream, "attach", "the keeper has no room for it",
			      "end other commands first");
		return;
	}
	if (!command->stream) {
		/* Unreachable as long as what is detached drops its output as it comes. */
		client_refuse(client, message->stream, "no-command", "the command has just ended",
			      "`box ps` lists what runs");
		return;
	}
	command->client = client;
	command->number = message->stream;
	snprintf(answer.command.id, sizeof(answer.command.id), "%s", command->id);
	client_tell(client, &answer);
}

static void send_signal(struct keeper *keeper, const struct command *command, uint32_t number)
{
	uint8_t payload[4];
	int size = wire_u32_encode(number, payload);

	if (number == SIGKILL || command->tcp) {
		stream_kill(command->stream);
	} else {
		control_send(keeper->control, WIRE_SIGNAL, 0, stream_id(command->stream), payload,
			     (size_t)size);
	}
}

void command_kill(struct client *client, const struct ipc_message *message)
{
	struct command *command = find_called(client->keeper, message->command.id);
	struct ipc_message answer = {.type = IPC_DONE, .stream = message->stream};

	if (!command || message->command.number < 1 || message->command.number > 64) {
		client_refuse(client, message->stream, "no-command", "no command of that name runs",
			      "`box ps` lists what runs");
		return;
	}
	send_signal(client->keeper, command, message->command.number);
	client_tell(client, &answer);
}

void command_order(struct client *client, const struct ipc_message *message)
{
	struct keeper *keeper = client->keeper;
	struct command *command = find_own(client, message->stream);
	uint8_t payload[8];
	int size;

	if (!command) {
		/* It has just ended; the two sides cross on the way. */
		return;
	}
	if (message->type == IPC_WINDOW_SIZE) {
		size = wire_window_size_encode(message->window.rows, message->window.columns,
					       payload);
		control_send(keeper->control, WIRE_WINDOW_SIZE, 0, stream_id(command->stream),
			     payload, (size_t)size);
	} else if (message->type == IPC_CLOSE) {
		send_signal(keeper, command, SIGKILL);
	} else if (message->signal.number >= 1 && message->signal.number <= 64) {
		send_signal(keeper, command, message->signal.number);
	}
}

void commands_lost(struct client *client)
{
	struct keeper *keeper = client->keeper;

	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		struct command *command = &keeper->commands[i];

		if (!command->stream || command->client != client) {
			continue;
		}
		/* With nobody to write to it may end here and now. */
		forget_client(command);
		if (command->stream && !command->detach_on_loss) {
			stream_kill(command->stream);
		}
	}
}

size_t commands_signal(struct keeper *keeper, int number)
{
	size_t count = 0;

	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		struct command *command = &keeper->commands[i];

		if (!command->stream) {
			continue;
		}
		count++;
		if (number > 0) {
			/* An interactive shell does not mind SIGTERM; its terminal's end it does.
			 */
			if (command->terminal) {
				send_signal(keeper, command, SIGHUP);
			}
			send_signal(keeper, command, (uint32_t)number);
		}
	}
	return count;
}

void commands_kill(struct keeper *keeper)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		if (keeper->commands[i].stream) {
			stream_kill(keeper->commands[i].stream);
		}
	}
}

void commands_close(struct keeper *keeper)
{
	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		struct command *command = &keeper->commands[i];
		struct ipc_message message;

		if (command->stream) {
			/* It ended with its machine: that is what the log will say. */
			stream_result(command->stream, &message);
			stream_free(command->stream);
			record_end(command->record, &message);
		}
		*command = (struct command){0};
	}
}
