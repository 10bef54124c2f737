/*
 * The network port `box.net`: what box-guest and box-net say to each other. box-guest ends every
 * connection that a program inside makes; box-net makes the real one, when the policy lets it.
 *
 * Which message is legal when (anything else: -EBADMSG, the port is closed):
 *
 *   state of the port   from the host (box-net)              from the guest
 *   new                 HELLO (answer)                       HELLO
 *   open                RESOLVED for a RESOLVE, and what     RESOLVE, OPEN, and what the stream
 *                       the stream allows                    allows; HELLO
 *
 *   state of a stream   from the host                        from the guest
 *   asked (OPEN)        OPENED or FAILED                     RESET
 *   connected           DATA, EOF, CREDIT, RESET             DATA, EOF, CREDIT, RESET
 *   after own EOF       CREDIT, RESET                        CREDIT, RESET
 *   ended               nothing                              nothing
 *
 * The guest's end is a process that may be another one later while the host's stays (in a machine
 * of the pool). It begins with a HELLO and a random token, and drops all bytes before the host's
 * HELLO with that token: answers to the process before, and the rest of a frame. Its own frames are
 * whole. The host never says HELLO by itself. It answers each one, in any state, after it has
 * forgotten all streams and questions of before; so the two always agree where they begin. A HELLO
 * of another version closes the port.
 *
 * A stream is one TCP connection. The guest chooses its number: 1, then always the next, and after
 * the largest u32 1 again; one that is still in use is passed over. It may not be in use; at most
 * NET_STREAMS_MAX are. A stream has ended when RESET or FAILED went either way, or EOF both ways.
 * What crosses with its end is dropped without complaint, so DATA for a stream that there is not is
 * no error; numbers come back so late that nothing can still be under way from their life before.
 *
 * The host may have at most NET_WINDOW bytes of a stream under way, the guest NET_UP_WINDOW; the
 * receiver grants more with CREDIT when it has passed bytes on. DATA is never empty and counts from
 * OPENED on. EOF is a half-close.
 *
 * A question has a token that the guest chooses, not in use by another that was not answered. At
 * most NET_QUESTIONS_MAX are. Each is answered once, in any order.
 *
 * The guest is told as much as an ordinary host on the Internet would learn. A refusal by policy
 * looks like a refusing host; the reason is in the host's log.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/dns.h"
#include "wire/frame.h"

#define NET_PORT_NAME "box.net"
#define NET_MAGIC 0x6e786f62u
#define NET_VERSION 2

/* A stream's bytes under way to the guest, which keeps what its program does not read. */
#define NET_WINDOW 131072u
/* And to the host. It keeps what a server does not read, of all streams at once: 40 MiB. */
#define NET_UP_WINDOW 32768u
/* A browser opens a hundred connections, a crawler some hundreds. */
#define NET_STREAMS_MAX 1024u
/* Each may be a socket at the host; resolvers stop answering a client that asks more at once. */
#define NET_QUESTIONS_MAX 256u

enum net_type {
	/* Both ways. struct net_hello */
	NET_HELLO = 1,
	/* From the guest, stream 0. struct net_resolve */
	NET_RESOLVE = 2,
	/* From the host, stream 0. struct net_resolved */
	NET_RESOLVED = 3,
	/* From the guest. struct net_open */
	NET_OPEN = 4,
	/* From the host. Empty: connected */
	NET_OPENED = 5,
	/* From the host. u32 errno, see net_failed_encode */
	NET_FAILED = 6,
	/* Both ways. Bytes of the stream, at least one */
	NET_DATA = 7,
	/* Both ways. Empty: no more bytes will come from here */
	NET_EOF = 8,
	/* Both ways. u32 bytes, 1 to NET_WINDOW, that may be sent in addition */
	NET_CREDIT = 9,
	/* Both ways. Empty: the stream is gone, as by a TCP reset */
	NET_RESET = 10,
};

struct net_hello {
	uint32_t magic;
	/* The guest's, random; the host repeats it. */
	uint64_t token;
	uint16_t version;
};

struct net_resolve {
	uint32_t token;
	/* dns_name_valid. Points into the payload when decoded. */
	const char *name;
};

enum net_status {
	/* The name exists. It may have no address of either kind. */
	NET_OK = 0,
	NET_NXDOMAIN = 1,
	/* The policy does not let this machine ask for it. */
	NET_DENIED = 2,
	/* No answer, or one that makes no sense: asking again may help. */
	NET_TEMPORARY = 3,
};

struct net_resolved {
	uint32_t token;
	/* enum net_status */
	uint8_t status;
	/* Which kinds of address the name has; false unless status is NET_OK. */
	bool has_v4;
	bool has_v6;
};

enum net_kind {
	NET_KIND_NAME = 0,
	NET_KIND_V4 = 4,
	NET_KIND_V6 = 6,
};

struct net_open {
	/* enum net_kind */
	uint8_t kind;
	/* 1 to 65535. */
	uint16_t port;
	/* With NET_KIND_NAME: dns_name_valid; points into the payload when decoded. Else NULL. */
	const char *name;
	/* 4 bytes with NET_KIND_V4, 16 with NET_KIND_V6; the rest is zero. */
	uint8_t address[16];
};

/*
 * Checks what can be told from a frame's head alone: a known type that this side may send, channel
 * 0, stream 0 exactly for HELLO, RESOLVE and RESOLVED, and a payload exactly where there must be
 * one. Payloads other than DATA are then decoded below. Returns 0 or -EBADMSG.
 */
int net_frame_check(const struct wire_frame *frame, bool from_guest);

/*
 * Encoders write one payload to out, which holds WIRE_PAYLOAD_MAX bytes, and return its size. What
 * they are given is legal; anything else is our own mistake. Decoders check everything that can be
 * checked without the frames before, and that no byte is left over: 0 or -EBADMSG.
 */
int net_hello_encode(const struct net_hello *hello, uint8_t *out);
/* Any version, so that the two sides can say which they are. */
int net_hello_decode(const uint8_t *payload, size_t size, struct net_hello *ret_hello);
int net_resolve_encode(const struct net_resolve *resolve, uint8_t *out);
int net_resolve_decode(const uint8_t *payload, size_t size, struct net_resolve *ret_resolve);
int net_resolved_encode(const struct net_resolved *resolved, uint8_t *out);
int net_resolved_decode(const uint8_t *payload, size_t size, struct net_resolved *ret_resolved);
int net_open_encode(const struct net_open *open, uint8_t *out);
int net_open_decode(const uint8_t *payload, size_t size, struct net_open *ret_open);
int net_credit_encode(uint32_t bytes, uint8_t *out);
int net_credit_decode(const uint8_t *payload, size_t size, uint32_t *ret_bytes);

/*
 * error is any errno above 0. Told is ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT or
 * ECONNRESET as it is, EACCES and EPERM (the policy, or the host's own firewall) as ECONNREFUSED,
 * and everything else, which is the host's trouble and none of the guest's business, as
 * EHOSTUNREACH. Only those five are decoded.
 */
int net_failed_encode(int error, uint8_t *out);
int net_failed_decode(const uint8_t *payload, size_t size, int *ret_error);
