#include "guest/net_pool.h"

#include <string.h>

#define MAPPED 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff
#define PREFIX 0xfd, 0x62, 0x6f, 0x78, 0x6e, 0x65, 0x74, 0x00

const uint8_t net_pool_own_v4[16] = {MAPPED, 198, 18, 0, 2};
const uint8_t net_pool_own_v6[16] = {PREFIX, 0, 0, 0, 0, 0, 0, 0, 2};

static const uint8_t mapped[] = {MAPPED};
static const uint8_t prefix[] = {PREFIX};

void net_pool_v4(uint32_t number, uint8_t *out)
{
	uint32_t place = number + NET_POOL_FIRST;

	out[0] = 198;
	out[1] = (uint8_t)(18 + (place >> 16));
	out[2] = (uint8_t)(place >> 8);
	out[3] = (uint8_t)place;
}

void net_pool_v6(uint32_t number, uint8_t *out)
{
	uint32_t place = number + NET_POOL_FIRST;

	memset(out, 0, 16);
	memcpy(out, prefix, sizeof(prefix));
	for (int i = 0; i < 4; i++) {
		out[15 - i] = (uint8_t)(place >> (8 * i));
	}
}

bool net_pool_contains(const uint8_t *address, uint32_t *ret_number)
{
	uint64_t place = 0;

	if (net_pool_is_v4(address)) {
		if (address[12] != 198 || (address[13] & 0xfe) != 18) {
			return false;
		}
		place = (uint64_t)(address[13] & 1) << 16 | (uint64_t)address[14] << 8 |
			address[15];
	} else {
		if (memcmp(address, prefix, sizeof(prefix)) != 0) {
			return false;
		}
		for (int i = 8; i < 16; i++) {
			place = place << 8 | address[i];
		}
	}
	*ret_number = place >= NET_POOL_FIRST && place - NET_POOL_FIRST < NET_POOL_NAMES
			      ? (uint32_t)(place - NET_POOL_FIRST)
			      : NET_POOL_NAMES;
	return true;
}

void net_pool_widen(const uint8_t *address, size_t size, uint8_t *out)
{
	if (size == 4) {
		memcpy(out, mapped, sizeof(mapped));
		memcpy(out + sizeof(mapped), address, 4);
	} else {
		memcpy(out, address, 16);
	}
}

bool net_pool_is_v4(const uint8_t *address)
{
	return memcmp(address, mapped, sizeof(mapped)) == 0;
}
