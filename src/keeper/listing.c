#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "json/json.h"
#include "keeper/keeper.h"

static const char *state_of(const struct keeper *keeper)
{
	if (keeper->leaving) {
		return "going down";
	}
	switch (keeper->phase) {
	case KEEPER_STARTING:
		return "starting";
	case KEEPER_WARMING:
	case KEEPER_WARM:
		return "warm";
	case KEEPER_TAKEN:
	case KEEPER_RUNNING:
		return keeper->start.stay == IPC_STAY_UP ? "up" : "running";
	default:
		return "going down";
	}
}

static struct json *list_commands(struct keeper *keeper, int64_t *ret_connections)
{
	_cleanup_(json_freep) struct json *array = json_new_array();

	for (size_t i = 0; i < ARRAY_SIZE(keeper->commands); i++) {
		const struct command *command = &keeper->commands[i];
		struct json *object;

		if (!command->stream || command->own_ended) {
			continue;
		}
		if (command->tcp) {
			++*ret_connections;
			continue;
		}
		object = json_new_object();
		if (json_set_string(object, "id", command->id) < 0 ||
		    json_set_boolean(object, "attached", command->client != NULL) < 0 ||
		    json_set_boolean(object, "session", command->detach_on_loss) < 0 ||
		    (command->record && record_to_json(command->record, object) < 0)) {
			json_free(object);
			return NULL;
		}
		if (json_append_child(array, object) < 0) {
			return NULL;
		}
	}
	return TAKE_PTR(array);
}

static int64_t up_seconds(const struct keeper *keeper)
{
	uint64_t now = clock_monotonic_ns();

	return keeper->ready.ready_ns ? (int64_t)((now - keeper->ready.ready_ns) / 1000000000) : 0;
}

static int describe(struct keeper *keeper, char **ret_text)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	int64_t connections = 0;
	uint64_t memory = keeper->engine ? engine_private_bytes(keeper->engine) : 0;

	if (json_set_string(object, "name", keeper->start.name) < 0 ||
	    json_set_string(object, "state", state_of(keeper)) < 0 ||
	    json_set_integer(object, "pid", getpid()) < 0 ||
	    json_set_integer(object, "monitor_pid", keeper->ready.monitor_pid) < 0 ||
	    json_set_string(object, "engine", keeper->ready.engine) < 0 ||
	    json_set_boolean(object, "hardware", keeper->ready.hardware != 0) < 0 ||
	    json_set_boolean(object, "restored", keeper->ready.restored != 0) < 0 ||
	    json_set_string(object, "missing_confinement", keeper->ready.missing) < 0 ||
	    json_set_integer(object, "up_seconds", up_seconds(keeper)) < 0 ||
	    json_set_integer(object, "memory_bytes", (int64_t)memory) < 0 ||
	    json_set_child(object, "commands", list_commands(keeper, &connections)) < 0 ||
	    json_set_integer(object, "connections", connections) < 0) {
		return -ENOMEM;
	}
	return json_dump(object, 0, ret_text);
}

/* Sends text (may be NULL: there is none) in a sealed memory file. */
static void send_text(struct client *client, const char *text)
{
	const struct ipc_message message = {.type = IPC_LISTING};
	_cleanup_close_ int fd = text ? ipc_memory_file("listing", text, strlen(text)) : -EBADF;

	if (fd < 0) {
		client_refuse(client, 0, "no-memory", "the keeper has no memory for an answer",
			      "end other programs");
		return;
	}
	if (ipc_send(client->fd, &message, &fd, 1) < 0) {
		client_drop(client);
	}
}

void listing_send(struct client *client)
{
	_cleanup_free_ char *text = NULL;

	send_text(client, describe(client->keeper, &text) == 0 ? text : NULL);
}

void listing_send_report(struct client *client)
{
	_cleanup_free_ char *text = NULL;

	send_text(client, report_make(client->keeper, &text) == 0 ? text : NULL);
}
