#include "base/mutant.h"

#ifdef BOX_MUTANTS

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "BOX_MUTANT"
/* A few names. */
#define VALUE_MAX 256

bool mutant_is_on(const char *name)
{
	const char *names = getenv(VARIABLE);
	size_t length = strlen(name);

	while (names && *names) {
		size_t span = strcspn(names, ",");

		if (span == length && strncmp(names, name, length) == 0) {
			return true;
		}
		names += span + (names[span] == ',');
	}
	return false;
}

char *const *mutant_environment(void)
{
	static char assignment[sizeof(VARIABLE) + VALUE_MAX];
	static char *environment[] = {assignment, NULL};
	const char *names = getenv(VARIABLE);

	snprintf(assignment, sizeof(assignment), VARIABLE "=%s", names ? names : "");
	return environment;
}

#endif
