#include "base/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"

/* Some 50 numbers. */
#define STAT_BYTES_MAX 2048

static bool thread_is_in(int tasks_fd, const char *thread, char state)
{
	_cleanup_free_ char *text = NULL;
	const char *after_name;
	char path[64];

	snprintf(path, sizeof(path), "%.32s/stat", thread);
	if (read_file_at(tasks_fd, path, STAT_BYTES_MAX, &text, NULL) < 0) {
		return false;
	}
	/* The name is in parentheses, and may hold some itself. */
	after_name = strrchr(text, ')');
	return after_name && after_name[1] == ' ' && after_name[2] == state;
}

bool process_has_thread_in(pid_t pid, char state)
{
	struct dirent *entry;
	bool found = false;
	char path[64];
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	tasks = opendir(path);
	while (tasks && !found && (entry = readdir(tasks))) {
		found = entry->d_name[0] != '.' && thread_is_in(dirfd(tasks), entry->d_name, state);
	}
	if (tasks) {
		closedir(tasks);
	}
	return found;
}
