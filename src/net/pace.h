/* How often something may be begun: a bucket of tokens that fills at a steady rate. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pace {
	/* Tokens a second, and how many there can be. */
	uint32_t rate;
	uint32_t burst;
	/* Of tokens: billionths. Never more than burst of them. */
	uint64_t level;
	uint64_t filled_ns;
};

/* A full bucket. rate and burst are at most a million, and not 0. */
struct pace pace_make(uint32_t rate, uint32_t burst, uint64_t now_ns);

/* Takes a token when there is one. now_ns never goes back. */
bool pace_take(struct pace *pace, uint64_t now_ns);
