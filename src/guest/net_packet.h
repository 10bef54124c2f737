/*
 * Packets that the agent sends by itself, through a raw socket: a held SYN again, what refuses it,
 * and answers to datagrams that come from the address that was asked. Pure: bytes out only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "guest/net_bpf.h"

/* Headers of IPv6 and UDP. */
#define NET_PACKET_HEADERS_MAX 48
/* Of all but net_packet_datagram. */
#define NET_PACKET_MAX 128

/* Each writes a whole packet, IP's header included, to out and returns its size. */

/* The SYN as it was. From source to destination. */
size_t net_packet_syn(const struct net_syn *syn, uint8_t *out);

/* The answer of a port where nobody listens (RFC 9293, 3.10.7.1). To the SYN's source. */
size_t net_packet_refusal(const struct net_syn *syn, uint8_t *out);

/*
 * "Destination unreachable" (RFC 792, RFC 4443): the network for error ENETUNREACH, otherwise the
 * host. To the SYN's source.
 */
size_t net_packet_unreachable(const struct net_syn *syn, int error, uint8_t *out);

/*
 * A datagram from the tuple's destination to its source. out has room for NET_PACKET_HEADERS_MAX
 * bytes before the payload of size bytes, which stands there already at out +
 * NET_PACKET_HEADERS_MAX. *ret_packet is where in out the packet begins.
 */
size_t net_packet_datagram(const struct net_tuple *tuple, uint8_t *out, size_t size,
			   uint8_t **ret_packet);
