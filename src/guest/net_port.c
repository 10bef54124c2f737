#include "guest/net_port.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"

/* The header, the magic and the token; behind them is the version. */
#define HELLO_MARK_BYTES (WIRE_HEADER_SIZE + 12u)

static void encode_hello(uint64_t token, uint8_t *out)
{
	const struct net_hello hello = {
		.magic = NET_MAGIC,
		.token = token,
		.version = NET_VERSION,
	};
	uint8_t payload[WIRE_PAYLOAD_MAX];
	int size = net_hello_encode(&hello, payload);

	ASSERT(size == NET_HELLO_BYTES - WIRE_HEADER_SIZE);
	wire_header_encode(out, NET_HELLO, 0, 0, (uint32_t)size);
	memcpy(out + WIRE_HEADER_SIZE, payload, (size_t)size);
}

void net_port_init(struct net_port *port, int fd, uint64_t token)
{
	port->fd = fd;
	port->token = token;
	port->greeted = false;
	port->open = false;
	port->out_start = 0;
	port->out_end = NET_HELLO_BYTES;
	port->searched = 0;
	encode_hello(token, port->out);
	wire_decoder_reset(&port->decoder);
}

size_t net_port_room(const struct net_port *port)
{
	size_t left = WIRE_FRAME_MAX - port->out_end;

	return left > WIRE_HEADER_SIZE ? left - WIRE_HEADER_SIZE : 0;
}

uint8_t *net_port_payload(struct net_port *port)
{
	return port->out + port->out_end + WIRE_HEADER_SIZE;
}

void net_port_commit(struct net_port *port, uint8_t type, uint32_t stream, size_t length)
{
	ASSERT(length <= net_port_room(port));
	wire_header_encode(port->out + port->out_end, type, 0, stream, (uint32_t)length);
	port->out_end += WIRE_HEADER_SIZE + length;
}

int net_port_flush(struct net_port *port)
{
	while (net_port_pending(port)) {
		ssize_t written = write(port->fd, port->out + port->out_start,
					port->out_end - port->out_start);

		if (written < 0 && errno != EINTR) {
			return errno == EAGAIN ? 0 : -errno;
		}
		port->out_start += written > 0 ? (size_t)written : 0;
	}
	port->out_start = 0;
	port->out_end = 0;
	return 0;
}

/* Looks for the host's answer among the bytes read. Nobody else knows the token. */
static void search_hello(struct net_port *port)
{
	uint8_t mark[NET_HELLO_BYTES], *found, *space;
	size_t size, kept;

	encode_hello(port->token, mark);
	found = memmem(port->search, port->searched, mark, HELLO_MARK_BYTES);
	kept = found ? port->searched - (size_t)(found - port->search)
		     : MIN(port->searched, (size_t)HELLO_MARK_BYTES - 1);
	memmove(port->search, port->search + port->searched - kept, kept);
	port->searched = kept;
	if (found) {
		port->open = true;
		space = wire_decoder_space(&port->decoder, &size);
		ASSERT(size >= kept);
		memcpy(space, port->search, kept);
		wire_decoder_filled(&port->decoder, kept);
	}
}

int net_port_receive(struct net_port *port)
{
	size_t size = sizeof(port->search) - port->searched;
	uint8_t *space = port->search + port->searched;
	ssize_t got;

	if (port->open) {
		space = wire_decoder_space(&port->decoder, &size);
	}
	got = read(port->fd, space, size);
	if (got < 0) {
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	}
	if (got == 0) {
		return -EPIPE;
	}
	if (port->open) {
		wire_decoder_filled(&port->decoder, (size_t)got);
	} else {
		port->searched += (size_t)got;
		search_hello(port);
	}
	return 1;
}

/* The first frame: the host's answer, at whose beginning the search has ended. */
static int take_hello(struct net_port *port, const struct wire_frame *frame)
{
	struct net_hello hello;
	int rc = frame->type == NET_HELLO ? net_frame_check(frame, false) : -EBADMSG;

	if (rc == 0) {
		rc = net_hello_decode(frame->payload, frame->length, &hello);
	}
	if (rc == 0 && hello.version != NET_VERSION) {
		rc = -EPROTONOSUPPORT;
	}
	port->greeted = rc == 0;
	return rc;
}

int net_port_next(struct net_port *port, struct wire_frame *ret_frame)
{
	int rc = port->open ? wire_decoder_next(&port->decoder, ret_frame) : 0;

	if (rc > 0 && !port->greeted) {
		rc = take_hello(port, ret_frame);
		if (rc == 0) {
			rc = wire_decoder_next(&port->decoder, ret_frame);
		}
	}
	if (rc <= 0) {
		return rc;
	}
	return net_frame_check(ret_frame, false) < 0 || ret_frame->type == NET_HELLO ? -EBADMSG : 1;
}
