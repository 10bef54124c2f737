/*
 * The connections of the guest's programs, each a stream of the port box.net.
 *
 * A stream begins with a SYN that the filter holds back. The host is asked; when it has connected,
 * the SYN is let through, the kernel completes the handshake, and the connection that accept4(2)
 * then returns is found by its addresses and ports. When the host could not connect, the program
 * gets the packet that gives it the same error.
 *
 * Bytes for the program that its socket does not take are kept in a buffer of one window, which
 * exists only while there are some. Bytes for the host stay in the socket until the host has given
 * credit and the port has room. So a slow side stops the other one, and nothing grows.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "guest/net_bpf.h"
#include "wire/net.h"

struct net_agent;

enum net_stream_state {
	NET_STREAM_FREE = 0,
	/* Its SYN is held. */
	NET_STREAM_ASKED,
	/* The host has connected; the program's connection is not there yet. */
	NET_STREAM_RELEASED,
	NET_STREAM_CONNECTED,
	/* The host gave up after a long time. The number is free again; the program's SYNs are
	 * dropped until it gives up too. */
	NET_STREAM_TIMED_OUT,
};

enum net_stream_due {
	NET_DUE_OPEN = 1u << 0,
	NET_DUE_CREDIT = 1u << 1,
	NET_DUE_EOF = 1u << 2,
	/* The last one: the stream ends with it. */
	NET_DUE_RESET = 1u << 3,
};

struct net_stream {
	enum net_stream_state state;
	uint32_t number;
	struct net_syn syn;
	/* When it ends unless it has moved on. */
	uint64_t deadline_ns;
	/* The next one in its list of streams with the same hash, plus 1; 0 ends it. */
	uint16_t next_by_tuple;
	uint16_t next_by_number;
	bool queued;
	uint8_t due;
	int fd;

	/* To the host. */
	bool readable;
	bool eof_sent;
	uint32_t credit;

	/* To the program: a ring of NET_WINDOW bytes, or NULL. */
	uint8_t *ring;
	uint32_t ring_start;
	uint32_t ring_filled;
	/* Bytes that the host may still send; and that were passed on since it was told. */
	uint32_t window;
	uint32_t owed;
	bool writable;
	bool eof_received;
	bool reset_received;
	bool shut;
};

struct net_streams {
	struct net_stream table[NET_STREAMS_MAX];
	uint32_t last_number;
	/* Where the search for a free place begins. */
	unsigned hint;
	uint16_t by_tuple[NET_STREAMS_MAX];
	uint16_t by_number[NET_STREAMS_MAX];
	/* Streams that have something to send, each once. */
	uint16_t queue[NET_STREAMS_MAX];
	unsigned queue_start;
	unsigned queue_count;
	/* Some have a deadline. */
	bool ticking;
};

/* Takes all SYNs that the filter has held. */
void net_streams_held(struct net_agent *agent);
/* Takes connections whose SYN was let through. */
void net_streams_accept(struct net_agent *agent);
/* Something happened on a stream's connection. */
void net_streams_event(struct net_agent *agent, unsigned index, uint32_t events);
/* Takes a frame of a stream. Returns 0 or -EBADMSG. */
int net_streams_frame(struct net_agent *agent, const struct wire_frame *frame);
/* Puts frames while there is room. */
void net_streams_emit(struct net_agent *agent);
/* Ends streams that have waited too long. */
void net_streams_tick(struct net_agent *agent, uint64_t now_ns);
