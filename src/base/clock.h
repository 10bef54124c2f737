/* Time as box counts it. */
#pragma once

#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t clock_monotonic_ns(void);

/* Nanoseconds since 1970-01-01 00:00 UTC, CLOCK_REALTIME. */
uint64_t clock_realtime_ns(void);
