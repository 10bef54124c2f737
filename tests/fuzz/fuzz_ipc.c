/*
 * A received packet, judged by ipc_decode. The first byte is the number of descriptors that came
 * with it. Since most of a message's types need the exact size, a short input is tried a second
 * time, continued with a byte of its own up to that size.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ipc/ipc.h"

/* Reads all texts that an accepted message of this type may be read for; ASan watches the ends. */
static size_t read_texts(const struct ipc_message *message)
{
	switch (message->type) {
	case IPC_START:
	case IPC_CLAIM:
		return strlen(message->start.name) + strlen(message->start.stage);
	case IPC_READY:
		return strlen(message->ready.engine) + strlen(message->ready.release) +
		       strlen(message->ready.version) + strlen(message->ready.boot_id) +
		       strlen(message->ready.boot_reason) + strlen(message->ready.missing);
	case IPC_STARTED:
	case IPC_ATTACH:
	case IPC_KILL:
		return strlen(message->command.id);
	case IPC_EXITED:
		return strlen(message->exited.id);
	case IPC_NOTICE:
	case IPC_GREETING:
		return strlen(message->text);
	case IPC_FAILED:
	case IPC_REFUSED:
		return strlen(message->failed.code) + strlen(message->failed.text) +
		       strlen(message->failed.mend);
	default:
		return 0;
	}
}

static void decode(const uint8_t *packet, size_t size, size_t fd_count)
{
	/* On the heap, so that a read past the message is noticed. */
	struct ipc_message *message = calloc(1, sizeof(*message));

	ASSERT(message);
	message->type = UINT32_MAX;
	if (ipc_decode(packet, size, fd_count, message) == 0) {
		ASSERT(size == sizeof(*message));
		ASSERT(memcmp(message, packet, size) == 0);
		ASSERT(message->type >= IPC_START && message->type <= IPC_FORKED);
		ASSERT(fd_count <= IPC_FDS_MAX);
		ASSERT(read_texts(message) < sizeof(*message));
	} else {
		ASSERT(message->type == UINT32_MAX);
	}
	free(message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *padded;

	if (size < 1) {
		return 0;
	}
	decode(data + 1, size - 1, data[0]);
	if (size - 1 < sizeof(struct ipc_message)) {
		padded = malloc(sizeof(struct ipc_message));
		ASSERT(padded);
		memset(padded, data[size - 1], sizeof(struct ipc_message));
		memcpy(padded, data + 1, size - 1);
		decode(padded, sizeof(struct ipc_message), data[0]);
		free(padded);
	}
	return 0;
}
