/* `box ls`. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/exit.h"
#include "base/text.h"
#include "cli/cli.h"
#include "client/state.h"
#include "json/json.h"
#include "spec/spec.h"

enum {
	LIST_NAME,
	LIST_STATE,
	LIST_CPUS,
	LIST_RAM,
	LIST_NETWORK,
	LIST_BASE,
	LIST_FORK,
	LIST_MEMORY,
	LIST_COLUMNS,
};

static const char *network_name(enum spec_network_kind network)
{
	static const char *const names[] = {
		[SPEC_NETWORK_NONE] = "none",
		[SPEC_NETWORK_BRIDGE] = "bridge",
		[SPEC_NETWORK_LIST] = "list",
	};

	return names[network];
}

/* "41.0 MiB", "41.0 MiB + 2 warm 80.0 MiB", "2 warm 80.0 MiB", or "-". */
static char *describe_memory(const struct client_usage *usage)
{
	char up[TEXT_BYTES_MAX], pool[TEXT_BYTES_MAX], text[3 * TEXT_BYTES_MAX + 16] = "-";

	text_format_bytes(usage->memory_bytes, up, sizeof(up));
	text_format_bytes(usage->pool_memory_bytes, pool, sizeof(pool));
	if (usage->pool_machines > 0) {
		snprintf(text, sizeof(text), "%s%s%u warm %s", usage->known ? up : "",
			 usage->known ? " + " : "", usage->pool_machines, pool);
	} else if (usage->known) {
		snprintf(text, sizeof(text), "%s", up);
	}
	return strdup(text);
}

/* Fills one row; cells are owned by the caller. */
static int fill_row(struct store *store, const char *name, char **cells,
		    struct client_usage *ret_usage)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, NULL);
	_cleanup_(spec_freep) struct spec *spec = NULL;
	_cleanup_free_ char *parent = NULL;
	char number[16];

	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	store_load_spec(store, name, &spec, NULL);
	cells[LIST_NAME] = strdup(name);
	cells[LIST_STATE] =
		strdup(spec ? client_state_name(client_state(sandbox_fd, spec)) : "broken Boxfile");
	snprintf(number, sizeof(number), "%u", spec ? spec->cpus : 0);
	cells[LIST_CPUS] = strdup(spec ? number : "-");
	snprintf(number, sizeof(number), "%u", spec ? spec->ram_mib : 0);
	cells[LIST_RAM] = strdup(spec ? number : "-");
	cells[LIST_NETWORK] = strdup(spec ? network_name(spec->network.kind) : "-");
	cells[LIST_BASE] = strdup(spec ? spec->base : "-");
	parent = cli_parent_of(sandbox_fd);
	cells[LIST_FORK] = strdup(parent ? parent : "-");
	client_usage(store, name, sandbox_fd, ret_usage);
	cells[LIST_MEMORY] = describe_memory(ret_usage);
	for (size_t i = 0; i < LIST_COLUMNS; i++) {
		if (!cells[i]) {
			return -ENOMEM;
		}
	}
	return 0;
}

static int put_usage(struct json *object, const struct client_usage *usage)
{
	struct json *pool;
	int rc = usage->known
			 ? json_set_integer(object, "memory_bytes", (int64_t)usage->memory_bytes)
			 : json_set_null(object, "memory_bytes");

	if (rc == 0) {
		rc = usage->known
			     ? json_set_integer(object, "up_seconds", (int64_t)usage->up_seconds)
			     : json_set_null(object, "up_seconds");
	}
	if (rc < 0) {
		return rc;
	}
	pool = json_new_object();
	if (json_set_integer(pool, "machines", usage->pool_machines) < 0 ||
	    json_set_integer(pool, "memory_bytes", (int64_t)usage->pool_memory_bytes) < 0) {
		json_free(pool);
		return -ENOMEM;
	}
	return json_set_child(object, "pool", pool);
}

static struct json *row_to_json(char *const *cell, const struct client_usage *usage)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	/* No sandbox is called "-". */
	const char *parent = strcmp(cell[LIST_FORK], "-") == 0 ? NULL : cell[LIST_FORK];

	if (json_set_string(object, "name", cell[LIST_NAME]) < 0 ||
	    json_set_string(object, "state", cell[LIST_STATE]) < 0 ||
	    json_set_integer(object, "cpus", strtol(cell[LIST_CPUS], NULL, 10)) < 0 ||
	    json_set_integer(object, "ram_mib", strtol(cell[LIST_RAM], NULL, 10)) < 0 ||
	    json_set_string(object, "network", cell[LIST_NETWORK]) < 0 ||
	    json_set_string(object, "base", cell[LIST_BASE]) < 0 ||
	    json_set_string(object, "fork_of", parent) < 0 || put_usage(object, usage) < 0) {
		return NULL;
	}
	return TAKE_PTR(object);
}

/* All rows of a list. */
struct list {
	char **cells;
	struct client_usage *usages;
	size_t rows;
};

static int print_list_json(const struct list *list, struct err *err)
{
	_cleanup_(json_freep) struct json *array = json_new_array();

	for (size_t row = 0; row < list->rows; row++) {
		struct json *object =
			row_to_json(list->cells + row * LIST_COLUMNS, &list->usages[row]);

		if (json_append_child(array, object) < 0) {
			return err_context(err, -ENOMEM, "ls");
		}
	}
	return cli_print_json(array, err);
}

static int fill_list(struct store *store, char *const *names, size_t count, struct list *list,
		     struct err *err)
{
	for (size_t i = 0; i < count; i++) {
		int rc = fill_row(store, names[i], list->cells + list->rows * LIST_COLUMNS,
				  &list->usages[list->rows]);

		/* One that vanishes meanwhile is not there. */
		if (rc == -ENOMEM) {
			return err_context(err, -ENOMEM, "ls");
		}
		list->rows += rc == 0;
	}
	return 0;
}

static int print_list(struct store *store, char *const *names, size_t count, bool json,
		      struct err *err)
{
	static const char *const headings[] = {"NAME",	  "STATE", "CPUS",    "RAM MiB",
					       "NETWORK", "BASE",  "FORK OF", "MEMORY"};
	struct list list = {
		.cells = calloc(count * LIST_COLUMNS + 1, sizeof(*list.cells)),
		.usages = calloc(count + 1, sizeof(*list.usages)),
	};
	int rc = list.cells && list.usages ? fill_list(store, names, count, &list, err)
					   : err_context(err, -ENOMEM, "ls");

	if (rc == 0 && json) {
		rc = print_list_json(&list, err);
	} else if (rc == 0) {
		cli_print_table(headings, (const char *const *)list.cells, LIST_COLUMNS, list.rows);
	}
	for (size_t i = 0; list.cells && i < count * LIST_COLUMNS; i++) {
		free(list.cells[i]);
	}
	free(list.cells);
	free(list.usages);
	return rc;
}

int cli_list(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_free_ char **names = NULL;
	size_t count = 0;
	bool json = cli_has(args, "json");
	struct err local = {0};
	int rc = store_open(false, &store, &local);

	if (rc == -ENOENT && strcmp(local.code, "no-home") == 0) {
		/* Nothing was made yet: an empty list, not a failure. */
		if (json) {
			puts("[]");
		} else if (cli_is_terminal(stdout)) {
			fprintf(stderr, "no sandboxes yet; `box new NAME` makes one\n");
		}
		return EXIT_OK;
	}
	if (rc < 0) {
		*err = local;
		return rc;
	}
	rc = store_list(&store, &names, &count, err);
	if (rc == 0) {
		rc = print_list(&store, names, count, json, err);
	}
	return rc < 0 ? rc : EXIT_OK;
}
