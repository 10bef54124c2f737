#include "guest/device.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/io.h"

bool device_attribute(const char *directory, const char *device, const char *attribute, char *out,
		      size_t size)
{
	_cleanup_close_ int fd = -EBADF;
	char path[512];
	ssize_t got;

	snprintf(path, sizeof(path), "%s/%s/%s", directory, device, attribute);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		return false;
	}
	got = read_full(fd, out, size - 1);
	if (got < 0) {
		return false;
	}
	if (got > 0 && out[got - 1] == '\n') {
		got--;
	}
	out[got] = '\0';
	return true;
}

bool device_find(const char *directory, const char *attribute, const char *value, char *ret_path,
		 size_t size)
{
	DIR *stream = opendir(directory);
	bool found = false;
	struct dirent *entry;

	while (stream && !found && (entry = readdir(stream))) {
		char text[128];

		if (entry->d_name[0] != '.' && strlen(entry->d_name) < size - strlen("/dev/") &&
		    device_attribute(directory, entry->d_name, attribute, text, sizeof(text)) &&
		    strcmp(text, value) == 0) {
			snprintf(ret_path, size, "/dev/%s", entry->d_name);
			found = true;
		}
	}
	if (stream) {
		closedir(stream);
	}
	return found;
}
