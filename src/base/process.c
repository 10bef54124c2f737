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

/* What proc(5) tells of a thread behind its name: state, and then numbers. The caller frees. NULL
 * for what is no thread, or not there any more. */
static char *read_thread(int tasks_fd, const char *thread, const char **ret_state)
{
	_cleanup_free_ char *text = NULL;
	const char *after_name;
	char path[64];

	if (thread[0] == '.') {
		return NULL;
	}
	snprintf(path, sizeof(path), "%.32s/stat", thread);
	if (read_file_at(tasks_fd, path, STAT_BYTES_MAX, &text, NULL) < 0) {
		return NULL;
	}
	/* The name is in parentheses, and may hold some itself. */
	after_name = strrchr(text, ')');
	if (!after_name || after_name[1] != ' ') {
		return NULL;
	}
	*ret_state = after_name + 2;
	return TAKE_PTR(text);
}

static DIR *open_threads(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	return opendir(path);
}

bool process_has_thread_in(pid_t pid, char state)
{
	DIR *threads = open_threads(pid);
	struct dirent *entry;
	bool found = false;

	while (threads && !found && (entry = readdir(threads))) {
		const char *its_state;
		_cleanup_free_ char *text = read_thread(dirfd(threads), entry->d_name, &its_state);

		found = text && its_state[0] == state;
	}
	if (threads) {
		closedir(threads);
	}
	return found;
}
