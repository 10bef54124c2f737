/*
 * Any bytes as what a proxy answers. A head that was found does not change with what follows it,
 * and a status that is told stays so.
 */
#include "fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "wire/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned status, shorter;
	int rc = http_response_head(data, size, &status);

	ASSERT(rc <= (int)size && (rc >= 0 || rc == -EBADMSG));
	ASSERT(status == 0 || (status >= 100 && status <= 599));
	ASSERT(rc <= 0 || (status != 0 && data[rc - 1] == '\n'));
	for (size_t i = 0; i < size; i += 1 + size / 64) {
		/* On the heap, so that a read past the end is noticed. */
		uint8_t *copy = malloc(i + 1);
		int before;

		ASSERT(copy);
		memcpy(copy, data, i);
		before = http_response_head(copy, i, &shorter);
		ASSERT(before == 0 || before == rc);
		ASSERT(shorter == 0 || shorter == status);
		free(copy);
	}
	return 0;
}
