#include "sys/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "sys/scope.h"

/* /proc/self/mountinfo of a container host has some thousand lines of about 200 bytes. */
#define MOUNTINFO_BYTES_MAX ((size_t)4 << 20)
/* A dozen hierarchies with a path each. */
#define CGROUP_FILE_BYTES_MAX ((size_t)64 << 10)
/* The controller and subtree files hold one line of words. */
#define CONTROL_BYTES_MAX ((size_t)4 << 10)
/* A group is let go within a few milliseconds of its last process; 100 tries are 200 ms. */
#define REMOVE_TRIES 100
#define REMOVE_PAUSE_NS 2000000L

static bool has_word(const char *list, const char *separators, const char *word)
{
	size_t length = strlen(word);

	for (const char *at = list; *at;) {
		size_t span = strcspn(at, separators);

		if (span == length && strncmp(at, word, length) == 0) {
			return true;
		}
		at += span;
		at += strspn(at, separators);
	}
	return false;
}

int sys_cgroup_path(const char *pid, const char *controller, char *ret_path, size_t size)
{
	_cleanup_free_ char *text = NULL;
	char file[64];
	char *state = NULL;
	int rc;

	snprintf(file, sizeof(file), "/proc/%s/cgroup", pid);
	rc = read_file_at(AT_FDCWD, file, CGROUP_FILE_BYTES_MAX, &text, NULL);
	if (rc < 0) {
		return rc;
	}
	/* Each line is the kernel's: "ID:controllers:path". */
	for (char *line = strtok_r(text, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
		char *names = strchr(line, ':');
		char *path = names ? strchr(names + 1, ':') : NULL;

		if (!path) {
			continue;
		}
		*names++ = '\0';
		*path++ = '\0';
		if (controller ? !has_word(names, ",", controller) : names[0] != '\0') {
			continue;
		}
		/* A group outside our cgroup namespace is shown with "..": out of reach. */
		if (path[0] != '/' || strstr(path, "/..") ||
		    snprintf(ret_path, size, "%s", path) >= (int)size) {
			return -ENOENT;
		}
		return 0;
	}
	return -ENOENT;
}

struct mount_line {
	char *root;
	char *point;
	char *type;
	char *options;
};

/* Splits "id parent dev root point options [tags] - type source options" (proc(5)). */
static bool split_mount(char *line, struct mount_line *ret_mount)
{
	char *tail = strstr(line, " - ");
	char *state = NULL;
	char *field = strtok_r(line, " ", &state);

	if (!tail || !field) {
		return false;
	}
	*tail = '\0';
	for (int i = 1; i < 5 && field; i++) {
		field = strtok_r(NULL, " ", &state);
		if (i == 3) {
			ret_mount->root = field;
		}
		if (i == 4) {
			ret_mount->point = field;
		}
	}
	ret_mount->type = strtok_r(tail + 3, " ", &state);
	if (!ret_mount->type || !strtok_r(NULL, " ", &state)) {
		return false;
	}
	ret_mount->options = strtok_r(NULL, " ", &state);
	return field && ret_mount->options;
}

/*
 * Finds the mount of a hierarchy. ret_point is its directory, ret_root the group that the
 * directory shows ("/" unless only a part is mounted).
 */
static int find_mount(const char *controller, char *ret_point, char *ret_root, size_t size)
{
	_cleanup_free_ char *text = NULL;
	char *state = NULL;
	int rc = read_file_at(AT_FDCWD, "/proc/self/mountinfo", MOUNTINFO_BYTES_MAX, &text, NULL);

	if (rc < 0) {
		return rc;
	}
	for (char *line = strtok_r(text, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
		struct mount_line mount = {0};

		if (!split_mount(line, &mount) ||
		    strcmp(mount.type, controller ? "cgroup" : "cgroup2") != 0 ||
		    (controller && !has_word(mount.options, ",", controller))) {
			continue;
		}
		if (snprintf(ret_point, size, "%s", mount.point) >= (int)size ||
		    snprintf(ret_root, size, "%s", mount.root) >= (int)size) {
			return -ENAMETOOLONG;
		}
		return 0;
	}
	return -ENOENT;
}

/* The directory of our own group; ret_point_length is how much of it is the mount point. */
static int own_directory(const char *controller, char *ret_directory, size_t size,
			 size_t *ret_point_length)
{
	char path[PATH_MAX], point[PATH_MAX], root[PATH_MAX];
	const char *below = path;
	size_t length;
	int rc = sys_cgroup_path("self", controller, path, sizeof(path));

	if (rc == 0) {
		rc = find_mount(controller, point, root, sizeof(point));
	}
	if (rc < 0) {
		return rc;
	}
	length = strcmp(root, "/") == 0 ? 0 : strlen(root);
	if (strncmp(path, root, length) != 0 || (path[length] != '/' && path[length] != '\0')) {
		return -ENOENT;
	}
	below += length;
	if (strcmp(below, "/") == 0) {
		below = "";
	}
	if (snprintf(ret_directory, size, "%s%s", point, below) >= (int)size) {
		return -ENAMETOOLONG;
	}
	*ret_point_length = strlen(point);
	return 0;
}

static int write_control(const char *directory, const char *file, const char *text)
{
	_cleanup_close_ int fd = -EBADF;
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", directory, file) >= (int)sizeof(path)) {
		return -ENAMETOOLONG;
	}
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) {
		return -errno;
	}
	return write_full(fd, text, strlen(text));
}

static int write_number(const char *directory, const char *file, uint64_t number)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
	return write_control(directory, file, text);
}

static bool listed(const char *paths, const char *path)
{
	for (const char *at = paths; *at; at += strlen(at) + 1) {
		if (strcmp(at, path) == 0) {
			return true;
		}
	}
	return false;
}

/* Appends path to the NUL-separated list, which always keeps its empty end. */
static int append(char *paths, size_t size, const char *path)
{
	size_t used = 0;

	while (paths[used]) {
		used += strlen(paths + used) + 1;
	}
	if (used + strlen(path) + 2 > size) {
		return -ENOSPC;
	}
	memcpy(paths + used, path, strlen(path) + 1);
	paths[used + strlen(path) + 1] = '\0';
	return 0;
}

/* Makes directory/name and notes it in paths. Hierarchies mounted together share one directory. */
static int make_group(const char *directory, const char *name, char *paths, size_t size,
		      char *ret_group)
{
	int rc;

	if (snprintf(ret_group, PATH_MAX, "%s/%s", directory, name) >= PATH_MAX) {
		return -ENAMETOOLONG;
	}
	if (listed(paths, ret_group)) {
		return 0;
	}
	if (mkdir(ret_group, 0755) < 0) {
		return -errno;
	}
	rc = append(paths, size, ret_group);
	if (rc < 0) {
		rmdir(ret_group);
	}
	return rc;
}

static int make_version_1(const char *controller, const char *name, uint64_t limit, char *paths,
			  size_t size)
{
	char directory[PATH_MAX], group[PATH_MAX];
	size_t point_length;
	int rc = own_directory(controller, directory, sizeof(directory), &point_length);

	if (rc == 0) {
		rc = make_group(directory, name, paths, size, group);
	}
	if (rc < 0) {
		return rc;
	}
	if (strcmp(controller, "pids") == 0) {
		return write_number(group, "pids.max", limit);
	}
	rc = write_number(group, "memory.limit_in_bytes", limit);
	if (rc == 0) {
		/* Only where swap is accounted; without the file there is nothing to limit. */
		(void)write_number(group, "memory.memsw.limit_in_bytes", limit);
	}
	return rc;
}

/* Has directory hand the wanted controllers to its children? Asks it to when it has not. */
static int hand_down(const char *directory, const struct sys_cgroup_limits *limits)
{
	_cleanup_free_ char *handed = NULL;
	char path[PATH_MAX];
	int rc;

	if (snprintf(path, sizeof(path), "%s/cgroup.subtree_control", directory) >=
	    (int)sizeof(path)) {
		return -ENAMETOOLONG;
	}
	rc = read_file_at(AT_FDCWD, path, CONTROL_BYTES_MAX, &handed, NULL);
	if (rc == 0 && limits->memory_bytes && !has_word(handed, " \n", "memory")) {
		rc = write_control(directory, "cgroup.subtree_control", "+memory");
	}
	if (rc == 0 && limits->pids && !has_word(handed, " \n", "pids")) {
		rc = write_control(directory, "cgroup.subtree_control", "+pids");
	}
	return rc;
}

static int limit_version_2(const char *group, const struct sys_cgroup_limits *limits)
{
	int rc = 0;

	if (limits->memory_bytes) {
		rc = write_number(group, "memory.max", limits->memory_bytes);
		/* Both are refinements: without swap accounting the first does not exist. */
		(void)write_control(group, "memory.swap.max", "0");
		(void)write_control(group, "memory.oom.group", "1");
	}
	if (rc == 0 && limits->pids) {
		rc = write_number(group, "pids.max", limits->pids);
	}
	return rc;
}

/*
 * A group that holds processes cannot hand controllers down, so the place for ours is the nearest
 * group above us that does: for a user's session the slice that systemd delegates.
 */
static int make_version_2(const char *name, const struct sys_cgroup_limits *limits, char *paths,
			  size_t size)
{
	char directory[PATH_MAX], group[PATH_MAX];
	size_t point_length;
	int rc = own_directory(NULL, directory, sizeof(directory), &point_length);

	if (rc < 0) {
		return rc;
	}
	for (;;) {
		int made = hand_down(directory, limits);

		if (made == 0) {
			made = make_group(directory, name, paths, size, group);
		}
		if (made == 0) {
			return limit_version_2(group, limits);
		}
		/* The reason that matters is that of the nearest group. */
		if (rc == 0) {
			rc = made;
		}
		if (strlen(directory) <= point_length) {
			return rc;
		}
		*strrchr(directory, '/') = '\0';
	}
}

static int note(char *reason, size_t size, const char *what, int rc)
{
	if (rc < 0 && reason[0] == '\0') {
		snprintf(reason, size, "%s: %s", what,
			 rc == -ENOENT ? "this host has no such control group" : strerror(-rc));
	}
	return rc;
}

int sys_cgroup_make(const char *name, const struct sys_cgroup_limits *limits, char *paths,
		    size_t paths_size, char *reason, size_t reason_size)
{
	struct sys_cgroup_limits rest = *limits;
	char path[PATH_MAX];
	int first = 0, rc = 0;

	ASSERT(paths_size >= 2 && reason_size > 0);
	paths[0] = paths[1] = reason[0] = '\0';
	if (rest.memory_bytes && sys_cgroup_path("self", "memory", path, sizeof(path)) == 0) {
		rc = make_version_1("memory", name, rest.memory_bytes, paths, paths_size);
		first = note(reason, reason_size, "memory", rc);
		rest.memory_bytes = 0;
	}
	if (rest.pids && sys_cgroup_path("self", "pids", path, sizeof(path)) == 0) {
		rc = make_version_1("pids", name, rest.pids, paths, paths_size);
		first = first ? first : rc;
		(void)note(reason, reason_size, "pids", rc);
		rest.pids = 0;
	}
	if (rest.memory_bytes || rest.pids) {
		rc = make_version_2(name, &rest, paths, paths_size);
		first = first ? first : rc;
		(void)note(reason, reason_size, "memory and pids", rc);
	}
	return first;
}

int sys_cgroup_open(const char *paths, struct sys_cgroup_way *ret_way)
{
	char tasks[PATH_MAX];

	*ret_way = (struct sys_cgroup_way){.born_in_fd = -EBADF};
	for (const char *path = paths; *path; path += strlen(path) + 1) {
		int fd;

		if (snprintf(tasks, sizeof(tasks), "%s/tasks", path) >= (int)sizeof(tasks)) {
			return -ENAMETOOLONG;
		}
		/* Only version 1 has this file. */
		fd = open(tasks, O_WRONLY | O_CLOEXEC);
		if (fd >= 0 && ret_way->self_count < SYS_CGROUP_FDS_MAX) {
			ret_way->self_fds[ret_way->self_count++] = fd;
			continue;
		}
		if (fd >= 0 || errno != ENOENT || ret_way->born_in_fd >= 0) {
			int rc = fd >= 0 ? -E2BIG : -errno;

			close_fd(&fd);
			return rc;
		}
		ret_way->born_in_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (ret_way->born_in_fd < 0) {
			return -errno;
		}
	}
	return 0;
}

void sys_cgroup_close(struct sys_cgroup_way *way)
{
	close_fd(&way->born_in_fd);
	for (unsigned i = 0; i < way->self_count; i++) {
		close_fd(&way->self_fds[i]);
	}
	way->self_count = 0;
}

int sys_cgroup_move_self(const struct sys_cgroup_way *way)
{
	for (unsigned i = 0; i < way->self_count; i++) {
		/* 0 stands for the thread that writes. */
		if (write(way->self_fds[i], "0", 1) < 0) {
			return -errno;
		}
	}
	return 0;
}

static bool is_scope(const char *path)
{
	size_t length = strlen(path), suffix = strlen(SYS_SCOPE_SUFFIX);

	return length > suffix && strcmp(path + length - suffix, SYS_SCOPE_SUFFIX) == 0;
}

/* 0 when the group is gone. One of systemd's goes by itself. */
static int remove_group(const char *path)
{
	struct stat status;

	if (is_scope(path)) {
		return stat(path, &status) == 0 ? -EBUSY : 0;
	}
	return rmdir(path) < 0 ? -errno : 0;
}

int sys_cgroup_remove(const char *paths)
{
	struct timespec pause = {.tv_nsec = REMOVE_PAUSE_NS};
	int first = 0;

	for (const char *path = paths; *path; path += strlen(path) + 1) {
		int rc = -EBUSY;

		for (int i = 0; i < REMOVE_TRIES && rc == -EBUSY; i++) {
			if (i > 0) {
				nanosleep(&pause, NULL);
			}
			rc = remove_group(path);
		}
		if (rc < 0 && rc != -ENOENT && first == 0) {
			first = rc;
		}
	}
	return first;
}

static bool maker_is_dead(const char *name)
{
	char *end;
	long pid;

	if (strncmp(name, SYS_CGROUP_PREFIX, strlen(SYS_CGROUP_PREFIX)) != 0 || is_scope(name)) {
		return false;
	}
	pid = strtol(name + strlen(SYS_CGROUP_PREFIX), &end, 10);
	if (*end != '-' || pid <= 0 || pid > INT_MAX) {
		return false;
	}
	return kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

static size_t sweep_directory(const char *path, bool remove)
{
	DIR *directory = opendir(path);
	struct dirent *entry;
	size_t count = 0;

	if (!directory) {
		return 0;
	}
	while ((entry = readdir(directory))) {
		char group[PATH_MAX] = {0};

		/*
		 * A group that still holds processes cannot be removed: that is safe. What its dead
		 * maker ran was killed with it, and its threads are out of the group in a moment.
		 */
		if (!maker_is_dead(entry->d_name)) {
			continue;
		}
		count++;
		if (remove && snprintf(group, sizeof(group), "%s/%s", path, entry->d_name) <
				      (int)sizeof(group) - 1) {
			(void)sys_cgroup_remove(group);
		}
	}
	closedir(directory);
	return count;
}

size_t sys_cgroup_leftovers(bool remove)
{
	static const char *const controllers[] = {"memory", "pids", NULL};
	char directory[PATH_MAX];
	size_t point_length, count = 0;

	for (size_t i = 0; i < ARRAY_SIZE(controllers); i++) {
		if (own_directory(controllers[i], directory, sizeof(directory), &point_length) <
		    0) {
			continue;
		}
		count += sweep_directory(directory, remove);
		while (!controllers[i] && strlen(directory) > point_length) {
			*strrchr(directory, '/') = '\0';
			count += sweep_directory(directory, remove);
		}
	}
	return count;
}
