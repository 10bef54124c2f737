/*
 * The guest's end of the port box.net: frames in and out, and where they begin.
 *
 * A machine of the pool gets a new agent while the host's end stays. So an agent says HELLO when it
 * begins, with a random token, and drops what comes before the host's answer to it: the rest of a
 * frame that was for an agent before it may be there. Its own frames are never torn, not even when
 * it is killed: each write(2) holds whole frames, and the kernel's driver takes a write of that
 * size in one piece or not at all.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/net.h"

/* Room below which a turn is not begun: the longest frame without data, and data worth a frame. */
#define NET_PORT_ROOM_MIN 4096u
/* A whole HELLO. */
#define NET_HELLO_BYTES (WIRE_HEADER_SIZE + 14)

struct net_port {
	int fd;
	uint64_t token;
	/* The host's HELLO has been found; it has been taken as the first frame. */
	bool open;
	bool greeted;
	size_t out_start;
	size_t out_end;
	/* At most WIRE_FRAME_MAX bytes are in it; behind them is room for any encoder. */
	uint8_t out[2 * WIRE_FRAME_MAX];
	/* The last bytes before a HELLO, which may be its beginning. */
	size_t searched;
	uint8_t search[4096];
	struct wire_decoder decoder;
};

/* Over a non-blocking descriptor, borrowed. HELLO is the first thing that goes out. */
void net_port_init(struct net_port *port, int fd, uint64_t token);

/* How much payload the next frame may have; at most WIRE_PAYLOAD_MAX. */
size_t net_port_room(const struct net_port *port);
/* Where it may be written, and the frame around so many bytes of it. */
uint8_t *net_port_payload(struct net_port *port);
void net_port_commit(struct net_port *port, uint8_t type, uint32_t stream, size_t length);

/* Whether something waits to go out. */
static inline bool net_port_pending(const struct net_port *port)
{
	return port->out_start < port->out_end;
}
/* Writes what the descriptor takes. Returns 0 or a negative errno. */
int net_port_flush(struct net_port *port);

/* Reads once. Returns 1, 0 when nothing is there, -EPIPE at the end, or a negative errno. */
int net_port_receive(struct net_port *port);
/*
 * Takes the next whole frame that the host may send: 1 with *ret_frame, 0 when more bytes are
 * needed, -EBADMSG, or -EPROTONOSUPPORT for a host of another version. HELLO is not among them.
 */
int net_port_next(struct net_port *port, struct wire_frame *ret_frame);
