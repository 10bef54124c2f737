/* The description of a jail: filled in by its maker, printed for people and programs. */
#include "jail/jail.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "jail/enter.h"

int jail_add_bind(struct jail *jail, const char *host_path, const char *inside_path, bool device,
		  struct err *err)
{
	_cleanup_free_ char *host = NULL;
	_cleanup_free_ char *inside = NULL;

	if (!inside_path) {
		inside_path = host_path;
	}
	for (size_t i = 0; i < jail->bind_count; i++) {
		const struct jail_bind *bind = &jail->binds[i];

		if (strcmp(bind->inside_path, inside_path) != 0) {
			continue;
		}
		/* Programs share libraries. */
		if (strcmp(bind->host_path, host_path) == 0 && bind->device == device) {
			return 0;
		}
		return err_set(err, -EEXIST, "jail", "%s and %s would both be %s in the jail",
			       bind->host_path, host_path, inside_path);
	}
	if (jail->bind_count == JAIL_BINDS_MAX) {
		return err_set(err, -ENOSPC, "jail", "more than %d files in a jail",
			       JAIL_BINDS_MAX);
	}
	host = strdup(host_path);
	inside = strdup(inside_path);
	if (!host || !inside) {
		return err_set(err, -ENOMEM, "jail", "no memory for the jail's files");
	}
	jail->binds[jail->bind_count++] = (struct jail_bind){
		.host_path = TAKE_PTR(host),
		.inside_path = TAKE_PTR(inside),
		.device = device,
	};
	return 0;
}

int jail_add_fd(struct jail *jail, int fd, int number, struct err *err)
{
	if (jail->fd_count == JAIL_FDS_MAX) {
		return err_set(err, -ENOSPC, "jail", "more than %d descriptors in a jail",
			       JAIL_FDS_MAX);
	}
	jail->fds[jail->fd_count].fd = fd;
	jail->fds[jail->fd_count].number = number;
	jail->fd_count++;
	return 0;
}

int jail_add_tree(struct jail *jail, int fd, int number, struct err *err)
{
	if (jail->tree.wanted) {
		return err_set(err, -ENOSPC, "jail", "more than one directory in a jail");
	}
	jail->tree.wanted = true;
	jail->tree.fd = fd;
	jail->tree.number = number;
	return 0;
}

void jail_clear(struct jail *jail)
{
	for (size_t i = 0; i < jail->bind_count; i++) {
		/* jail_add_bind allocated both; readers of the description get them const. */
		free((void *)(uintptr_t)jail->binds[i].host_path);
		free((void *)(uintptr_t)jail->binds[i].inside_path);
		jail->binds[i] = (struct jail_bind){0};
	}
	jail->bind_count = 0;
	jail->fd_count = 0;
	jail->tree.wanted = false;
}

/* RFC 8259, section 7. Bytes above 127 are passed on: paths are usually UTF-8. */
static void put_string(FILE *out, const char *text)
{
	fputc('"', out);
	for (const unsigned char *at = (const unsigned char *)(text ? text : ""); *at; at++) {
		if (*at == '"' || *at == '\\') {
			fprintf(out, "\\%c", *at);
		} else if (*at < 0x20 || *at == 0x7f) {
			fprintf(out, "\\u%04x", *at);
		} else {
			fputc(*at, out);
		}
	}
	fputc('"', out);
}

static void put_field(FILE *out, const char *key, const char *value)
{
	fprintf(out, "\"%s\": ", key);
	put_string(out, value);
}

static void put_files(FILE *out, const struct jail *jail)
{
	fprintf(out, "  \"files\": [");
	for (size_t i = 0; i < jail->bind_count; i++) {
		fprintf(out, "%s\n    {", i ? "," : "");
		put_field(out, "host", jail->binds[i].host_path);
		fprintf(out, ", ");
		put_field(out, "inside", jail->binds[i].inside_path);
		fprintf(out, ", ");
		put_field(out, "access", jail->binds[i].device ? "device" : "read-only");
		fprintf(out, "}");
	}
	fprintf(out, "\n  ],\n  \"descriptors\": [");
	for (size_t i = 0; i < jail->fd_count; i++) {
		fprintf(out, "%s%d", i ? ", " : "", jail->fds[i].number);
	}
	fprintf(out, "],\n");
	if (jail->tree.wanted) {
		fprintf(out, "  \"writable_directory\": %d,\n", jail->tree.number);
	}
}

static void put_limits(FILE *out, const struct jail *jail)
{
	struct jail_limit limits[JAIL_LIMITS];
	size_t count = jail_limits(jail, limits);

	fprintf(out, "  \"limits\": {");
	for (size_t i = 0; i < count; i++) {
		fprintf(out, "%s\"%s\": %llu", i ? ", " : "", limits[i].name,
			(unsigned long long)limits[i].value);
	}
	fprintf(out, "},\n  \"cgroup\": {\"memory_bytes\": %llu, \"pids\": %llu}\n",
		(unsigned long long)jail->cgroup_memory_bytes,
		(unsigned long long)jail->cgroup_pids);
}

int jail_describe(const struct jail *jail, char **ret_text)
{
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	bool failed;

	if (!out) {
		return -ENOMEM;
	}
	fprintf(out, "{\n  ");
	put_field(out, "name", jail->name);
	fprintf(out, ",\n  ");
	put_field(out, "program", jail->program);
	fprintf(out, ",\n  \"arguments\": [");
	for (size_t i = 0; jail->argv && jail->argv[i]; i++) {
		fprintf(out, "%s", i ? ", " : "");
		put_string(out, jail->argv[i]);
	}
	fprintf(out,
		"],\n  \"environment\": [],\n"
		"  \"host_uid\": %u, \"host_gid\": %u, \"inside_uid\": %d, \"inside_gid\": %d,\n"
		"  \"supplementary_groups\": \"%s\",\n"
		"  \"namespaces\": [\"user\", \"mnt\", \"pid\", %s\"ipc\", \"uts\", "
		"\"cgroup\"],\n"
		"  \"network\": \"%s\",\n"
		"  \"root\": \"tmpfs, read-only, nosuid, nodev, noexec\",\n"
		"  \"capabilities\": [], \"no_new_privs\": true, \"securebits_locked\": true,\n"
		"  \"landlock\": \"read and execute the files, use the devices%s%s\",\n"
		"  \"seccomp\": {",
		jail->host_uid, jail->host_gid, ENTER_ID_INSIDE, ENTER_ID_INSIDE,
		jail_keeps_groups(jail) ? "the caller's" : "none but a device's",
		jail->network ? "" : "\"net\", ", jail->network ? "the host's" : "none",
		jail->tree.wanted ? ", change the directory" : "",
		jail->network ? ", connect over TCP" : "");
	put_field(out, "policy", jail->policy ? jail->policy->name : "");
	fprintf(out,
		", \"instructions\": %u, \"otherwise\": \"kill\", \"notify\": %s, \"without\": [",
		jail->policy ? jail->policy->count : 0U, jail->notify ? "true" : "false");
	for (size_t i = 0; jail->policy && i < jail->policy->without_count; i++) {
		fprintf(out, "%s", i ? ", " : "");
		put_string(out, jail->policy->without[i].name);
	}
	fprintf(out, "]},\n");
	put_files(out, jail);
	put_limits(out, jail);
	fprintf(out, "}\n");
	failed = ferror(out) != 0;
	if (fclose(out) != 0 || failed) {
		free(text);
		return -ENOMEM;
	}
	*ret_text = text;
	return 0;
}
