#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "engine/engine.h"

/* Seven numbers. */
#define STATM_BYTES_MAX 256

uint64_t engine_private_bytes(const struct engine *engine)
{
	_cleanup_free_ char *text = NULL;
	unsigned long long resident, shared;
	pid_t pid = engine_process(engine)->pid;
	char path[64];

	if (pid <= 0) {
		return 0;
	}
	/* Any user may read this one, also where the monitor runs under an ID of its own. */
	snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
	if (read_file_at(AT_FDCWD, path, STATM_BYTES_MAX, &text, NULL) < 0 ||
	    sscanf(text, "%*u %llu %llu", &resident, &shared) != 2 || shared > resident) {
		return 0;
	}
	return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}
