/* ID maps that only newuidmap(1) and newgidmap(1) may write. */
#include <stdio.h>

#include "base/check.h"
#include "sys/helper.h"
#include "sys/namespace.h"

/* Where Debian has them. Not looked for in PATH: what is run here decides who one becomes. */
#define NEWUIDMAP "/usr/bin/newuidmap"
#define NEWGIDMAP "/usr/bin/newgidmap"
/* Milliseconds in practice; longer where the user's name comes over a network. */
#define HELPER_LIMIT_MS 20000
/* Ten digits and a NUL. */
#define NUMBER_SIZE 12

/* The argv of a helper: its path, the process, and three numbers for each range. */
struct command {
	char numbers[1 + 3 * SYS_ID_MAP_MAX][NUMBER_SIZE];
	const char *argv[3 + 3 * SYS_ID_MAP_MAX];
};

static void write_command(struct command *command, const char *path, pid_t pid,
			  const struct sys_id_map *map)
{
	size_t count = 0;

	ASSERT(map->count <= SYS_ID_MAP_MAX);
	snprintf(command->numbers[count++], NUMBER_SIZE, "%d", (int)pid);
	for (unsigned i = 0; i < map->count; i++) {
		snprintf(command->numbers[count++], NUMBER_SIZE, "%u", map->ranges[i].inside);
		snprintf(command->numbers[count++], NUMBER_SIZE, "%u", map->ranges[i].outside);
		snprintf(command->numbers[count++], NUMBER_SIZE, "%u", map->ranges[i].count);
	}
	command->argv[0] = path;
	for (size_t i = 0; i < count; i++) {
		command->argv[1 + i] = command->numbers[i];
	}
	command->argv[1 + count] = NULL;
}

int sys_write_id_maps_by_helpers(pid_t pid, const struct sys_id_map *uids,
				 const struct sys_id_map *gids, char *ret_words, size_t size)
{
	struct command of_uids, of_gids;
	const char *const *const argvs[] = {of_uids.argv, of_gids.argv};

	write_command(&of_uids, NEWUIDMAP, pid, uids);
	write_command(&of_gids, NEWGIDMAP, pid, gids);
	/* Side by side: neither needs what the other does. */
	return sys_run_helpers(argvs, ARRAY_SIZE(argvs), HELPER_LIMIT_MS, ret_words, size);
}
