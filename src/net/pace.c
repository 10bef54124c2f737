#include "net/pace.h"

#include "base/check.h"

#define TOKEN UINT64_C(1000000000)

struct pace pace_make(uint32_t rate, uint32_t burst, uint64_t now_ns)
{
	return (struct pace){
		.rate = rate,
		.burst = burst,
		.level = burst * TOKEN,
		.filled_ns = now_ns,
	};
}

bool pace_take(struct pace *pace, uint64_t now_ns)
{
	uint64_t full = pace->burst * TOKEN;
	uint64_t gone = now_ns - pace->filled_ns;

	/* A rate of tokens a second is as many billionths a nanosecond. After the time that fills
	 * an empty bucket there is no more to add, and nothing that could overflow. */
	pace->level =
		gone >= full / pace->rate + 1 ? full : MIN(full, pace->level + gone * pace->rate);
	pace->filled_ns = now_ns;
	if (pace->level < TOKEN) {
		return false;
	}
	pace->level -= TOKEN;
	return true;
}
