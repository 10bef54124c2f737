/*
 * Makes the n-th call fail.
 *
 * An operation is run again and again in a fresh place: the first time its first call of libc that
 * can fail does so, then its second, until it gets through without a failure. After each run the
 * place is looked at: nothing lost, nothing left over, no descriptor kept. Memory is left to
 * LeakSanitizer, in the builds that have it.
 */
#pragma once

#include <stdbool.h>

enum fault_mode {
	/* One call fails with the given error, everything after it works. */
	FAULT_ONCE,
	/* From that call on, everything that needs room fails with ENOSPC; the rest works. */
	FAULT_NO_ROOM,
	/* The process is killed instead of that call. */
	FAULT_DEATH,
};

/* What a case's check gets for a run that was killed. */
#define FAULT_DIED (-4095)

struct fault_case {
	const char *name;
	/* Makes the place. No call fails here. */
	void (*prepare)(void);
	/* The operation. Returns 0 or a negative errno. */
	int (*run)(void);
	/* Looks at the place; rc is what run returned. */
	void (*check)(int rc);
	/* Removes the place. */
	void (*clean)(void);
	/* Also look at the place after a kill at each call. */
	bool dies;
};

/*
 * Whether a call that a test has put in the place of a library's own is to fail; errno is then set.
 * room: it needs room on the disk.
 */
bool fault_now(bool room);

/* How many names are in a directory, "." and ".." left out. */
int fault_count_entries(const char *path);

/*
 * Runs a case with every call failing in turn, with EIO, ENOSPC, EINTR and EOPNOTSUPP, then with no
 * room from every call on; with `dies` also with the process killed at every call. Fails the
 * current cmocka test when something is not as it must be.
 */
void fault_run(const struct fault_case *fault_case);
