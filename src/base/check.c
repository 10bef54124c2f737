#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void assert_failed(const char *condition, const char *file, int line)
{
	fprintf(stderr, "box: internal error: %s does not hold at %s:%d\n", condition, file, line);
	abort();
}
