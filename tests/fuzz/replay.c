/*
 * Runs a fuzz target over every file of a corpus directory, so that what fuzzing once found is
 * looked at again in every test run. Exits 1 when the corpus is empty: a replay of nothing proves
 * nothing.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "fuzz.h"

int main(int argc, char **argv)
{
	DIR *directory = argc == 2 ? opendir(argv[1]) : NULL;
	unsigned count = 0;
	struct dirent *entry;

	if (!directory) {
		fprintf(stderr, "usage: replay CORPUS-DIRECTORY\n");
		return 2;
	}
	while ((entry = readdir(directory))) {
		_cleanup_free_ char *data = NULL;
		_cleanup_free_ uint8_t *exact = NULL;
		size_t size;

		if (entry->d_name[0] == '.') {
			continue;
		}
		if (read_file_at(dirfd(directory), entry->d_name, (size_t)1 << 26, &data, &size) <
		    0) {
			fprintf(stderr, "cannot read %s\n", entry->d_name);
			return 2;
		}
		/* A block of exactly that size, so that a sanitizer sees a read beyond its end. */
		exact = malloc(size > 0 ? size : 1);
		if (!exact) {
			return 2;
		}
		memcpy(exact, data, size);
		LLVMFuzzerTestOneInput(exact, size);
		count++;
	}
	closedir(directory);
	printf("%u inputs\n", count);
	return count > 0 ? 0 : 1;
}
