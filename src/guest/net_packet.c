#include "guest/net_packet.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>

#include "base/check.h"

#define IPV4_HEADER 20u
#define IPV6_HEADER 40u
#define TCP_HEADER 20u
#define UDP_HEADER 8u
#define ICMP_HEADER 8u
/* What an error repeats of a packet behind IP's header, at least (RFC 792). */
#define HEAD_BYTES 8u
#define HOPS 64
#define TCP_RST 0x04
#define TCP_ACK 0x10

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

static bool is_ipv4(const struct net_tuple *tuple)
{
	return memcmp(tuple->destination, mapped, sizeof(mapped)) == 0;
}

static void put_u16(uint8_t *out, size_t value)
{
	out[0] = (uint8_t)(value >> 8);
	out[1] = (uint8_t)value;
}

static void put_u32(uint8_t *out, uint32_t value)
{
	put_u16(out, value >> 16);
	put_u16(out + 2, value & 0xffff);
}

static uint32_t get_u32(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 |
	       bytes[3];
}

/* The sum of 16-bit words (RFC 1071), not folded yet. Messages are too short to overflow it. */
static uint32_t sum(uint32_t start, const uint8_t *bytes, size_t size)
{
	for (size_t i = 0; i + 1 < size; i += 2) {
		start += (uint32_t)bytes[i] << 8 | bytes[i + 1];
	}
	return start + (size % 2 != 0 ? (uint32_t)bytes[size - 1] << 8 : 0u);
}

static uint16_t checksum(uint32_t total)
{
	while (total > 0xffff) {
		total = (total & 0xffff) + (total >> 16);
	}
	return (uint16_t)~total;
}

/* The header of a packet of size bytes behind it. Returns the header's size. */
static size_t put_ip(uint8_t *out, const uint8_t *source, const uint8_t *destination,
		     uint8_t protocol, size_t size)
{
	if (memcmp(destination, mapped, sizeof(mapped)) == 0) {
		memset(out, 0, IPV4_HEADER);
		out[0] = 0x45;
		put_u16(out + 2, IPV4_HEADER + size);
		/* Don't fragment. */
		out[6] = 0x40;
		out[8] = HOPS;
		out[9] = protocol;
		memcpy(out + 12, source + 12, 4);
		memcpy(out + 16, destination + 12, 4);
		put_u16(out + 10, checksum(sum(0, out, IPV4_HEADER)));
		return IPV4_HEADER;
	}
	memset(out, 0, IPV6_HEADER);
	out[0] = 0x60;
	put_u16(out + 4, size);
	out[6] = protocol;
	out[7] = HOPS;
	memcpy(out + 8, source, 16);
	memcpy(out + 24, destination, 16);
	return IPV6_HEADER;
}

/* With the pseudo header of TCP, UDP and ICMPv6; that of IPv4 gives the same sum when its zeros are
 * left out, but has only the last 4 bytes of the addresses. */
static uint16_t transport_checksum(const uint8_t *source, const uint8_t *destination,
				   uint8_t protocol, const uint8_t *bytes, size_t size)
{
	size_t skip = memcmp(destination, mapped, sizeof(mapped)) == 0 ? sizeof(mapped) : 0;
	uint32_t total = sum(0, source + skip, 16 - skip);

	total = sum(total, destination + skip, 16 - skip);
	total += protocol;
	total += (uint32_t)size;
	return checksum(sum(total, bytes, size));
}

static size_t tcp_size(const struct net_syn *syn)
{
	size_t size = (size_t)(syn->tcp[12] >> 4) * 4;

	/* The filter has looked. */
	ASSERT(size >= TCP_HEADER && size <= NET_TCP_HEADER_MAX);
	return size;
}

size_t net_packet_syn(const struct net_syn *syn, uint8_t *out)
{
	const struct net_tuple *tuple = &syn->tuple;
	size_t size = tcp_size(syn);
	size_t offset = put_ip(out, tuple->source, tuple->destination, IPPROTO_TCP, size);
	uint8_t *tcp = out + offset;

	memcpy(tcp, syn->tcp, size);
	/* The kernel has left it to a network card. */
	put_u16(tcp + 16, 0);
	put_u16(tcp + 16,
		transport_checksum(tuple->source, tuple->destination, IPPROTO_TCP, tcp, size));
	return offset + size;
}

size_t net_packet_refusal(const struct net_syn *syn, uint8_t *out)
{
	const struct net_tuple *tuple = &syn->tuple;
	size_t offset = put_ip(out, tuple->destination, tuple->source, IPPROTO_TCP, TCP_HEADER);
	uint8_t *tcp = out + offset;

	memset(tcp, 0, TCP_HEADER);
	memcpy(tcp, tuple->destination_port, 2);
	memcpy(tcp + 2, tuple->source_port, 2);
	/* The SYN is acknowledged, which counts as one byte. */
	put_u32(tcp + 8, get_u32(syn->tcp + 4) + 1);
	tcp[12] = (TCP_HEADER / 4) << 4;
	tcp[13] = TCP_RST | TCP_ACK;
	put_u16(tcp + 16, transport_checksum(tuple->destination, tuple->source, IPPROTO_TCP, tcp,
					     TCP_HEADER));
	return offset + TCP_HEADER;
}

size_t net_packet_unreachable(const struct net_syn *syn, int error, uint8_t *out)
{
	const struct net_tuple *tuple = &syn->tuple;
	bool ipv4 = is_ipv4(tuple);
	uint8_t protocol = ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6;
	size_t size = ICMP_HEADER + (ipv4 ? IPV4_HEADER : IPV6_HEADER) + HEAD_BYTES;
	size_t offset = put_ip(out, tuple->destination, tuple->source, protocol, size);
	uint8_t *icmp = out + offset;
	size_t inner;

	memset(icmp, 0, ICMP_HEADER);
	icmp[0] = ipv4 ? 3 : 1;
	if (error != ENETUNREACH) {
		icmp[1] = ipv4 ? 1 : 3;
	}
	inner = put_ip(icmp + ICMP_HEADER, tuple->source, tuple->destination, IPPROTO_TCP,
		       HEAD_BYTES);
	memcpy(icmp + ICMP_HEADER + inner, syn->tcp, HEAD_BYTES);
	put_u16(icmp + 2,
		ipv4 ? checksum(sum(0, icmp, size))
		     : transport_checksum(tuple->destination, tuple->source, protocol, icmp, size));
	return offset + size;
}

size_t net_packet_datagram(const struct net_tuple *tuple, uint8_t *out, size_t size,
			   uint8_t **ret_packet)
{
	size_t headers = UDP_HEADER + (is_ipv4(tuple) ? IPV4_HEADER : IPV6_HEADER);
	uint8_t *packet = out + NET_PACKET_HEADERS_MAX - headers;
	uint8_t *udp = packet + put_ip(packet, tuple->destination, tuple->source, IPPROTO_UDP,
				       UDP_HEADER + size);
	uint16_t check;

	memcpy(udp, tuple->destination_port, 2);
	memcpy(udp + 2, tuple->source_port, 2);
	put_u16(udp + 4, UDP_HEADER + size);
	put_u16(udp + 6, 0);
	check = transport_checksum(tuple->destination, tuple->source, IPPROTO_UDP, udp,
				   UDP_HEADER + size);
	/* Zero would mean none (RFC 768). */
	put_u16(udp + 6, check == 0 ? 0xffff : check);
	*ret_packet = packet;
	return headers + size;
}
