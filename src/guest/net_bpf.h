/*
 * The two programs that the guest's kernel runs for box's network, and their maps.
 *
 * One (BPF_PROG_TYPE_SK_LOOKUP) gives every TCP connection, and every datagram to UDP port 53, that
 * is for an address which is not the machine's own to a socket of the agent. The other (a socket
 * filter on the listener) holds each SYN back: it puts a copy into a ring buffer and drops it, so
 * that connect(2) is not answered before the host has answered. A SYN of a connection that the
 * agent has released passes.
 *
 * Programs, maps and the link belong to process 1 and are made once, before a snapshot. The sockets
 * are the agent's. While there is no agent the map of sockets is empty, and the kernel refuses
 * connections as it does where nobody listens.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Addresses of the machine's own. Each network that it makes itself has one or two. */
#define NET_OWN_MAX 1024
/* Held SYNs that the agent has not looked at yet: some 600. One that finds no room is lost, and its
 * sender repeats it after a second. */
#define NET_RING_BYTES 65536u

/* A connection: addresses of 16 bytes, IPv4 as ::ffff:a.b.c.d; ports in network order. */
struct net_tuple {
	uint8_t source[16];
	uint8_t destination[16];
	uint8_t source_port[2];
	uint8_t destination_port[2];
};

/* The longest header of TCP (RFC 9293, 3.1). */
#define NET_TCP_HEADER_MAX 60

/* What the filter puts into the ring buffer; the header with its options, then zeros. */
struct net_syn {
	struct net_tuple tuple;
	uint8_t tcp[NET_TCP_HEADER_MAX];
};

/* Which socket of the agent gets what. */
enum net_socket {
	NET_SOCKET_TCP = 0,
	/* TCP to port 53. */
	NET_SOCKET_DNS = 1,
	/* UDP to port 53. */
	NET_SOCKET_UDP = 2,
	NET_SOCKETS = 3,
};

struct net_bpf {
	/* Sockets by enum net_socket. */
	int sockets_fd;
	/* Own addresses. */
	int own_fd;
	/* Tuples whose SYN passes. */
	int released_fd;
	/* The ring buffer of struct net_syn. */
	int held_fd;
	/* The filter. */
	int filter_fd;
	/* The other program, in its network namespace. */
	int link_fd;
};

#define NET_BPF_NONE                                                                               \
	{                                                                                          \
		.sockets_fd = -EBADF, .own_fd = -EBADF, .released_fd = -EBADF, .held_fd = -EBADF,  \
		.filter_fd = -EBADF, .link_fd = -EBADF,                                            \
	}

/*
 * Makes the maps, loads the programs and attaches the first one to the caller's network namespace.
 * They are process 1's until the machine ends. Returns 0 or a negative errno
 * with err filled.
 */
int net_bpf_open(struct net_bpf *ret_bpf, struct err *err);

/* Gives a listening or bound socket its place. It leaves by itself when it is closed. */
int net_bpf_put_socket(const struct net_bpf *bpf, enum net_socket place, int fd);
/* Adds an address of the machine's own, or takes one away. */
int net_bpf_own(const struct net_bpf *bpf, const uint8_t *address, bool own);
/* Lets the SYN of a connection pass, or not any more. */
int net_bpf_release(const struct net_bpf *bpf, const struct net_tuple *tuple, bool pass);
/* Forgets all own addresses and all releases, of an agent before. */
void net_bpf_forget(const struct net_bpf *bpf);

/* The agent's view of the ring buffer. */
struct net_ring {
	/* A page that we write and a page that the kernel writes, then the data, twice in a row. */
	uint8_t *consumer;
	uint8_t *producer;
};

/* Maps it. What is in it is of an agent before, and is dropped. Returns 0 or a negative errno. */
int net_ring_open(const struct net_bpf *bpf, struct net_ring *ret_ring);
void net_ring_close(struct net_ring *ring);
/* Takes the next held SYN. False when there is none. */
bool net_ring_next(struct net_ring *ring, struct net_syn *ret_syn);
