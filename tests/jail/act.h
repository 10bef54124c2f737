/* What came of an act that a probe has tried; a wait status, or below zero for none. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>

static inline bool succeeded(int status)
{
	return status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static inline bool refused(int status)
{
	return status >= 0 && ((WIFEXITED(status) && WEXITSTATUS(status) == 1) ||
			       (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS));
}
