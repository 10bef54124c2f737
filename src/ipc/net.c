#include "ipc/net.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "sys/process.h"

/* Beyond this no errno is (asm-generic/errno.h ends at 133). */
#define ERRNO_MAX 4095u

/* Whether a text ends within size bytes and is made of letters, digits and further characters. */
static bool is_text(const char *text, size_t size, const char *further)
{
	const char *end = memchr(text, '\0', size);

	for (const char *at = text; end && at < end; at++) {
		bool plain = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') ||
			     (*at >= '0' && *at <= '9');

		if (!plain && !strchr(further, *at)) {
			return false;
		}
	}
	return end != NULL;
}

/* One line of printable ASCII. */
static bool is_line(const char *text, size_t size)
{
	const char *end = memchr(text, '\0', size);

	for (const char *at = text; end && at < end; at++) {
		if (*at < ' ' || *at > '~') {
			return false;
		}
	}
	return end != NULL;
}

static bool is_event(const struct ipc_net_event *event)
{
	bool ended = event->kind == IPC_NET_ENDED;

	if (event->kind < IPC_NET_ASKED || event->kind > IPC_NET_ENDED || event->allowed > 1 ||
	    event->note > IPC_NET_NOTE_SNI || event->end > IPC_NET_END_PORT ||
	    event->error > ERRNO_MAX || event->reason > IPC_NET_NO_BYTES ||
	    event->proxy > IPC_NET_PROXY_STATUS_MAX) {
		return false;
	}
	if (ended != (event->end != 0) || (ended && !event->allowed) ||
	    (event->kind == IPC_NET_ASKED) != (event->port == 0)) {
		return false;
	}
	return is_text(event->host, sizeof(event->host), "-_.:") &&
	       is_text(event->address, sizeof(event->address), ".:") &&
	       is_text(event->rule, sizeof(event->rule), "-_.:*/[] ") &&
	       is_line(event->special, sizeof(event->special)) &&
	       is_text(event->sni, sizeof(event->sni), "-_.:");
}

static bool is_proxy(const struct ipc_net_proxy *proxy)
{
	return proxy->port != 0 && proxy->host[0] != '\0' &&
	       is_text(proxy->host, sizeof(proxy->host), "-_.:") &&
	       is_text(proxy->authorization, sizeof(proxy->authorization), "+/=");
}

static bool is_message(const struct ipc_net_message *message, bool has_fd)
{
	bool wants_fd = message->type >= IPC_NET_POLICY && message->type <= IPC_NET_HOSTS;

	if (has_fd != wants_fd) {
		return false;
	}
	switch (message->type) {
	case IPC_NET_POLICY:
	case IPC_NET_RESOLVER:
	case IPC_NET_HOSTS:
	case IPC_NET_READY:
	case IPC_NET_LOOK:
		return true;
	case IPC_NET_PROXY:
		return is_proxy(&message->proxy);
	case IPC_NET_EVENT:
		return is_event(&message->event);
	case IPC_NET_LIMIT:
		return message->limit.kind >= IPC_NET_LIMIT_CONNECTIONS &&
		       message->limit.kind <= IPC_NET_LIMIT_CLOSED &&
		       is_line(message->limit.text, sizeof(message->limit.text));
	default:
		return false;
	}
}

int ipc_net_decode(const void *packet, size_t size, bool has_fd,
		   struct ipc_net_message *ret_message)
{
	struct ipc_net_message message;

	if (size != sizeof(message)) {
		return -EBADMSG;
	}
	memcpy(&message, packet, sizeof(message));
	if (!is_message(&message, has_fd)) {
		return -EBADMSG;
	}
	*ret_message = message;
	return 0;
}

int ipc_net_send(int socket, const struct ipc_net_message *message, int fd)
{
	int rc;

	ASSERT(is_message(message, fd >= 0));
	do {
		rc = sys_send_fd(socket, message, sizeof(*message), fd);
	} while (rc == -EINTR);
	/* The peer closed and had not read everything; it is gone all the same. */
	return rc == -ECONNRESET ? -EPIPE : rc;
}

int ipc_net_receive(int socket, struct ipc_net_message *ret_message, int *ret_fd)
{
	/* One byte more, so that a longer packet is not taken for a whole one. */
	char packet[sizeof(*ret_message) + 1];
	_cleanup_close_ int fd = -EBADF;
	ssize_t size = sys_receive_fd(socket, packet, sizeof(packet), &fd);

	*ret_fd = -EBADF;
	if (size == -ECONNRESET) {
		/* Said once when the peer closed with unread messages; its own last ones are still
		 * there. */
		size = sys_receive_fd(socket, packet, sizeof(packet), &fd);
	}
	if (size <= 0) {
		return size == -ECONNRESET ? 0 : (int)size;
	}
	if (ipc_net_decode(packet, (size_t)size, fd >= 0, ret_message) < 0) {
		return -EBADMSG;
	}
	*ret_fd = TAKE_FD(fd);
	return 1;
}
