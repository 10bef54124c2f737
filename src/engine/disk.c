#include "engine/disk.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

/* Appends to a text. Too small a buffer is our own mistake. */
static void add(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(char *text, const char *format, ...)
{
	size_t used = strlen(text);
	va_list args;
	int length;

	va_start(args, format);
	length = vsnprintf(text + used, DISK_TEXT_MAX - used, format, args);
	va_end(args);
	ASSERT(length >= 0 && (size_t)length < DISK_TEXT_MAX - used);
}

/* Blocks that the guest discards leave the file. What is below the last layer is opened for
 * reading anyway. */
static const char *access_of(const struct engine_disk *disk)
{
	return disk->read_only ? "\"read-only\":true" : "\"discard\":\"unmap\"";
}

void disk_describe(const struct engine_disk *disk, const char *node, const int *sets,
		   char ret_text[static DISK_TEXT_MAX])
{
	size_t depth = 0;

	ret_text[0] = '\0';
	if (disk->layer_count == 0) {
		add(ret_text,
		    "{\"driver\":\"null-co\",\"node-name\":\"%s\",\"size\":%llu,"
		    "\"read-zeroes\":true}",
		    node, (unsigned long long)disk->size_bytes);
		return;
	}
	for (size_t i = disk->layer_count; i-- > 0; depth++) {
		bool qcow2 = disk->layers[i].qcow2;

		/* Only a qcow2 layer has something below it. */
		ASSERT(qcow2 || i == 0);
		/* A raw layer is its file. */
		add(ret_text,
		    "%s%s{\"driver\":\"file\",\"filename\":\"/dev/fdset/%d\","
		    "\"locking\":\"off\"%s",
		    depth > 0 ? ",\"backing\":" : "",
		    qcow2 ? "{\"driver\":\"qcow2\",\"file\":" : "", sets[i], qcow2 ? "}" : "");
		if (depth == 0) {
			add(ret_text, ",\"node-name\":\"%s\",%s", node, access_of(disk));
		}
	}
	while (depth-- > 0) {
		add(ret_text, "}");
	}
}
