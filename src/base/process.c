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

/* The state of a thread, as proc(5) has it, or NUL for what is no thread or not there any more. */
static char state_of(int tasks_fd, const char *thread)
{
	_cleanup_free_ char *text = NULL;
	const char *after_name;
	char path[64];

	if (thread[0] == '.') {
		return '\0';
	}
	snprintf(path, sizeof(path), "%.32s/stat", thread);
	if (read_file_at(tasks_fd, path, STAT_BYTES_MAX, &text, NULL) < 0) {
		return '\0';
	}
	/* The name is in parentheses, and may hold some itself. */
	after_name = strrchr(text, ')');
	return after_name && after_name[1] == ' ' ? after_name[2] : '\0';
}

bool process_has_thread_in(pid_t pid, char state)
{
	struct dirent *entry;
	bool found = false;
	char path[64];
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	threads = opendir(path);
	while (threads && !found && (entry = readdir(threads))) {
		found = state_of(dirfd(threads), entry->d_name) == state;
	}
	if (threads) {
		closedir(threads);
	}
	return found;
}
