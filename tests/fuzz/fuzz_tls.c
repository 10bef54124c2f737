/*
 * Any bytes as the beginning of a stream. What is told of a beginning holds for all that begins so:
 * a name that was found, or that there is none, does not change with what follows.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "wire/tls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char name[DNS_NAME_MAX + 1], shorter[DNS_NAME_MAX + 1];
	int rc = tls_server_name(data, size, name);

	if (rc == 1) {
		ASSERT(dns_name_valid(name));
	}
	for (size_t i = 0; i < size; i += 1 + size / 16) {
		/* On the heap, so that a read past the end is noticed. */
		uint8_t *copy = malloc(i + 1);
		int before;

		ASSERT(copy);
		memcpy(copy, data, i);
		before = tls_server_name(copy, i, shorter);
		ASSERT(before == 0 || before == rc);
		ASSERT(before != 1 || strcmp(shorter, name) == 0);
		free(copy);
	}
	return 0;
}
