/*
 * The security report: what this machine's processes were confined to, and what they are now.
 *
 * The description is the very object that the jail was built from; the differences are what /proc
 * says otherwise at this moment. Nothing here is written down a second time, so the report cannot
 * say what was not done. The keeper itself is not jailed and says so; how it has confined itself is
 * reported in the same way.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "json/json.h"
#include "keeper/keeper.h"

/* What /proc/PID/status and the table of mounts take at most. */
#define STATUS_MAX ((size_t)65536)

static struct json *parse(const char *text)
{
	struct json *json = NULL;

	return json_parse(text, strlen(text), &json, NULL) == 0 ? json : NULL;
}

/* Lines of text as an array. */
static struct json *lines_of(const char *text)
{
	_cleanup_(json_freep) struct json *array = json_new_array();

	while (array && *text) {
		_cleanup_free_ char *line = strndup(text, strcspn(text, "\n"));

		if (!line || json_append_string(array, line) < 0) {
			return NULL;
		}
		text += strcspn(text, "\n");
		text += *text == '\n';
	}
	return TAKE_PTR(array);
}

static struct json *list_missing(const struct jail_missing *missing)
{
	_cleanup_(json_freep) struct json *array = json_new_array();

	if ((missing->landlock && json_append_string(array, missing->landlock_reason) < 0) ||
	    (missing->cgroup && json_append_string(array, missing->cgroup_reason) < 0)) {
		return NULL;
	}
	return TAKE_PTR(array);
}

/* Long enough for both reasons. */
#define MISSING_MAX sizeof(struct jail_missing)

static void describe_missing(const struct jail_missing *missing, char out[static MISSING_MAX])
{
	snprintf(out, MISSING_MAX, "%s%s%s", missing->landlock ? missing->landlock_reason : "",
		 missing->landlock && missing->cgroup ? " " : "",
		 missing->cgroup ? missing->cgroup_reason : "");
}

void report_missing(const struct jail_missing *monitor, const struct jail_missing *net, char *out,
		    size_t capacity)
{
	char ours[MISSING_MAX], nets[MISSING_MAX] = "";
	bool same;

	describe_missing(monitor, ours);
	if (net) {
		describe_missing(net, nets);
	}
	same = strcmp(ours, nets) == 0;
	snprintf(out, capacity, "%s%s%s%s", ours, ours[0] && nets[0] ? "; " : "",
		 !nets[0] ? ""
		 : same	  ? "the same for box-net"
			  : "box-net: ",
		 same ? "" : nets);
}

/* What a comparison has found: their number, or a negative errno when it could not be made. */
static int put_differences(struct json *object, int count, const char *text,
			   int64_t *ret_differences)
{
	char unread[96];

	if (count < 0) {
		snprintf(unread, sizeof(unread), "it cannot be read back from /proc: %s",
			 strerror(-count));
		text = unread;
	}
	*ret_differences += count < 0 ? 1 : count;
	return json_set_child(object, "differences", lines_of(text ? text : ""));
}

/*
 * A process in a jail: as described, and as /proc shows it. *ret_differences is increased; a
 * process that cannot be read counts as one.
 */
static struct json *report_jailed(const char *role, const struct jail *jail,
				  const struct jail_process *process, int64_t *ret_differences)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	_cleanup_free_ char *description = NULL;
	_cleanup_free_ char *differences = NULL;
	int count = jail_compare(jail, process, &differences);

	if (jail_describe(jail, &description) < 0 || json_set_string(object, "role", role) < 0 ||
	    json_set_integer(object, "pid", process->pid) < 0 ||
	    json_set_boolean(object, "jailed", true) < 0 ||
	    json_set_child(object, "description", parse(description)) < 0 ||
	    json_set_child(object, "missing", list_missing(&process->missing)) < 0 ||
	    put_differences(object, count, differences, ret_differences) < 0) {
		return NULL;
	}
	return TAKE_PTR(object);
}

/* One field of /proc/self/status, into object under key. */
static int set_status(struct json *object, const char *status, const char *field, const char *key)
{
	const char *line = strstr(status, field);
	char value[128];

	if (!line) {
		return json_set_null(object, key);
	}
	line += strlen(field);
	line += strspn(line, "\t ");
	snprintf(value, sizeof(value), "%.*s", (int)MIN(strcspn(line, "\n"), sizeof(value) - 1),
		 line);
	return json_set_string(object, key, value);
}

static struct json *report_keeper(int64_t *ret_differences)
{
	static const struct {
		const char *field;
		const char *key;
	} fields[] = {
		{"\nUid:", "uids"},
		{"\nGid:", "gids"},
		{"\nCapEff:", "effective_capabilities"},
		{"\nCapBnd:", "bounding_capabilities"},
		{"\nNoNewPrivs:", "no_new_privs"},
		{"\nSeccomp:", "seccomp_mode"},
	};
	_cleanup_(json_freep) struct json *object = json_new_object();
	_cleanup_free_ char *status = NULL;
	_cleanup_free_ char *confinement = NULL;
	_cleanup_free_ char *differences = NULL;
	int count = jail_compare_self(&differences);

	if (read_file_at(AT_FDCWD, "/proc/self/status", STATUS_MAX, &status, NULL) < 0 ||
	    json_set_string(object, "role", "keeper") < 0 ||
	    json_set_integer(object, "pid", getpid()) < 0 ||
	    json_set_boolean(object, "jailed", false) < 0 ||
	    jail_describe_self(&jail_policy_keeper, &confinement) < 0 ||
	    json_set_child(object, "confinement", parse(confinement)) < 0 ||
	    put_differences(object, count, differences, ret_differences) < 0) {
		return NULL;
	}
	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		if (set_status(object, status, fields[i].field, fields[i].key) < 0) {
			return NULL;
		}
	}
	return TAKE_PTR(object);
}

static struct json *report_processes(struct keeper *keeper, int64_t *ret_differences)
{
	_cleanup_(json_freep) struct json *array = json_new_array();

	if (json_append_child(array,
			      report_jailed("monitor", engine_jail(keeper->engine),
					    engine_process(keeper->engine), ret_differences)) < 0 ||
	    (keeper->net.spawned &&
	     json_append_child(array, report_jailed("net", &keeper->net.jail, &keeper->net.process,
						    ret_differences)) < 0) ||
	    json_append_child(array, report_keeper(ret_differences)) < 0) {
		return NULL;
	}
	return TAKE_PTR(array);
}

/* The policy that is in force, as rules. */
static struct json *report_rules(const struct policy_network *policy)
{
	_cleanup_(json_freep) struct json *array = json_new_array();

	for (size_t i = 0; policy && i < policy->rule_count; i++) {
		char text[POLICY_RULE_LINE];

		policy_rule_describe(&policy->rules[i], text);
		if (json_append_string(array, text) < 0) {
			return NULL;
		}
	}
	return TAKE_PTR(array);
}

static const char *outgoing(const struct policy_network *policy)
{
	static const char *const kinds[] = {
		[POLICY_NONE] = "none",
		[POLICY_BRIDGE] = "bridge",
		[POLICY_LIST] = "list",
	};

	return policy ? kinds[policy->kind] : "none";
}

/* What leads into the machine and out of it. */
static struct json *report_network(const struct spec *spec, const struct keeper_net *net,
				   bool ports_are_open)
{
	char proxy[DNS_NAME_MAX + 16];

	_cleanup_(json_freep) struct json *object = json_new_object();
	struct json *ports = json_new_array();

	for (size_t i = 0; ports_are_open && i < spec->network_port_count; i++) {
		if (json_append_string(ports, spec->network_ports[i]) < 0) {
			json_free(ports);
			return NULL;
		}
	}
	snprintf(proxy, sizeof(proxy), "%s port %u", net->proxy.host, (unsigned)net->proxy.port);
	if (json_set_child(object, "ports", ports) < 0 ||
	    json_set_string(object, "proxy", net->proxy.direct ? proxy : NULL) < 0 ||
	    json_set_boolean(object, "card", false) < 0 ||
	    json_set_string(object, "outgoing", outgoing(net->policy)) < 0 ||
	    json_set_child(object, "rules", report_rules(net->policy)) < 0) {
		return NULL;
	}
	return TAKE_PTR(object);
}

static const char *data_kind(const struct keeper *keeper)
{
	if (!keeper->start.has_data) {
		return "none";
	}
	return keeper->start.data_fate == IPC_DATA_DROPPED ? "a copy that is thrown away" : "own";
}

int report_make(struct keeper *keeper, char **ret_text)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	const struct spec *spec = keeper->files.spec;
	int64_t differences = 0;

	if (!keeper->engine) {
		return -EAGAIN;
	}
	if (json_set_string(object, "name", keeper->start.name) < 0 ||
	    json_set_boolean(object, "up", keeper->start.stay == IPC_STAY_UP) < 0 ||
	    json_set_string(object, "engine", keeper->ready.engine) < 0 ||
	    json_set_boolean(object, "hardware", keeper->ready.hardware != 0) < 0 ||
	    json_set_boolean(object, "restored", keeper->ready.restored != 0) < 0 ||
	    json_set_string(object, "isolation",
			    spec->isolation == SPEC_ISOLATION_STANDARD ? "standard" : "strict") <
		    0 ||
	    json_set_string(object, "guest_boot_id", keeper->ready.boot_id) < 0 ||
	    json_set_string(object, "guest_kernel", keeper->ready.release) < 0 ||
	    json_set_string(object, "data", data_kind(keeper)) < 0 ||
	    json_set_boolean(object, "root_read_only", spec->readonly) < 0 ||
	    json_set_integer(object, "mounts", 0) < 0 ||
	    json_set_child(object, "network",
			   report_network(spec, &keeper->net, keeper->start.stay == IPC_STAY_UP)) <
		    0 ||
	    json_set_child(object, "processes", report_processes(keeper, &differences)) < 0 ||
	    json_set_integer(object, "differences", differences) < 0) {
		return -ENOMEM;
	}
	return json_dump(object, 0, ret_text);
}
