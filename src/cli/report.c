/* box inspect: what a sandbox's machine is confined to. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/io.h"
#include "base/text.h"
#include "cli/cli.h"
#include "client/client.h"
#include "engine/proof.h"
#include "json/json.h"

#define PROOF_MAX ((size_t)65536)

static void on_notice(void *data, const char *text)
{
	(void)data;
	fprintf(stderr, "box: %s\n", text);
}

/*
 * The machine that is up; when there is none, one is started for the report alone, since what it
 * gets is what any machine of the sandbox would get. *ret_up says which it is.
 */
static int get_machine(struct store *store, const char *name, struct client_machine **ret_machine,
		       bool *ret_up, struct err *err)
{
	const struct client_start_options options = {
		.mode = IPC_START_RUN,
		.data = CLIENT_DATA_NONE,
		.stage = "",
		.notice = on_notice,
	};
	int rc = client_connect(store, name, ret_machine, err);

	*ret_up = rc == 0;
	if (rc != -ENOENT || !err || strcmp(err->code, "not-up") != 0) {
		return rc;
	}
	*err = (struct err){0};
	fprintf(stderr, "box: %s is not up; a machine is started for the report\n", name);
	return client_start(store, name, &options, ret_machine, err);
}

static bool is_set(const struct json *object, const char *key)
{
	bool value = false;

	json_get_boolean(object, key, &value);
	return value;
}

/* What was last proved about the kernel boundary, as the build or verify wrote it. */
static int add_proof(struct store *store, const char *name, struct json *report)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, NULL);
	_cleanup_free_ char *text = NULL;
	struct json *proof = NULL;
	size_t size;

	if (sandbox_fd < 0 ||
	    read_file_at(sandbox_fd, proof_path(is_set(report, "hardware")), PROOF_MAX, &text,
			 &size) < 0 ||
	    json_parse(text, size, &proof, NULL) < 0) {
		return json_set_null(report, "kernel_proof");
	}
	return json_set_child(report, "kernel_proof", proof);
}

/* Whose fork it is, or null. */
static int add_parent(struct store *store, const char *name, struct json *report)
{
	_cleanup_close_ int sandbox_fd = store_open_sandbox(store, name, NULL);
	_cleanup_free_ char *parent = sandbox_fd < 0 ? NULL : cli_parent_of(sandbox_fd);

	return json_set_string(report, "fork_of", parent);
}

static const char *text_of(const struct json *object, const char *key)
{
	const char *text = json_get_string(object, key);

	return text ? text : "-";
}

static int64_t number_of(const struct json *object, const char *key)
{
	int64_t value = 0;

	json_get_integer(object, key, &value);
	return value;
}

static void print_lines(const char *heading, const struct json *lines)
{
	for (size_t i = 0; i < json_count(lines); i++) {
		const char *line = json_string_of(json_at(lines, i));
		char quoted[1024];

		text_quote(line ? line : "", line ? strlen(line) : 0, quoted, sizeof(quoted));
		printf("  %-14s %s\n", heading, quoted);
	}
}

static void print_limits(const struct json *limits)
{
	const struct json *value;
	void *position = NULL;
	const char *key;
	int64_t number;

	while (json_next(limits, &position, &key, &value)) {
		if (json_integer_of(value, &number) == 0) {
			printf("  %-14s %s = %lld\n", "limit", key, (long long)number);
		}
	}
}

static void print_namespaces(const struct json *jail)
{
	const struct json *list = json_get_child(jail, "namespaces");

	printf("  %-14s", "namespaces");
	for (size_t i = 0; i < json_count(list); i++) {
		const char *name = json_string_of(json_at(list, i));

		printf("%s%s", i == 0 ? " " : ", ", name ? name : "?");
	}
	printf(" of its own; network: %s\n", text_of(jail, "network"));
}

static void print_calls(const struct json *seccomp)
{
	printf("  %-14s list %s, %lld instructions, anything else %ss\n", "system calls",
	       text_of(seccomp, "policy"), (long long)number_of(seccomp, "instructions"),
	       text_of(seccomp, "otherwise"));
	print_lines("taken away", json_get_child(seccomp, "without"));
}

static void print_jailed(const struct json *process)
{
	const struct json *jail = json_get_child(process, "description");
	const char *role = text_of(process, "role");

	printf("%s (process %lld)\n", strcmp(role, "net") == 0 ? "box-net" : role,
	       (long long)number_of(process, "pid"));
	printf("  %-14s %s\n", "program", text_of(jail, "program"));
	printf("  %-14s uid %lld, gid %lld of the host; %lld inside its own user namespace\n", "ID",
	       (long long)number_of(jail, "host_uid"), (long long)number_of(jail, "host_gid"),
	       (long long)number_of(jail, "inside_uid"));
	printf("  %-14s none, in no set; no_new_privs; securebits locked\n", "capabilities");
	print_namespaces(jail);
	printf("  %-14s %s; %zu files\n", "root", text_of(jail, "root"),
	       json_count(json_get_child(jail, "files")));
	print_calls(json_get_child(jail, "seccomp"));
	printf("  %-14s %s\n", "landlock", text_of(jail, "landlock"));
	printf("  %-14s %zu handed over\n", "descriptors",
	       json_count(json_get_child(jail, "descriptors")));
	print_limits(json_get_child(jail, "limits"));
	print_lines("missing here", json_get_child(process, "missing"));
	print_lines("DIFFERENCE", json_get_child(process, "differences"));
}

static void print_keeper(const struct json *process)
{
	const struct json *confinement = json_get_child(process, "confinement");

	printf("keeper (process %lld)\n", (long long)number_of(process, "pid"));
	printf("  %-14s %s\n", "uids", text_of(process, "uids"));
	printf("  %-14s %s effective; no_new_privs; not dumpable\n", "capabilities",
	       text_of(process, "effective_capabilities"));
	print_calls(json_get_child(confinement, "seccomp"));
	print_limits(json_get_child(confinement, "limits"));
	printf("  %-14s not jailed: it is the part of you that starts the jail\n", "jail");
	print_lines("DIFFERENCE", json_get_child(process, "differences"));
}

static void print_report(const struct json *report)
{
	const struct json *processes = json_get_child(report, "processes");
	const struct json *proof = json_get_child(report, "kernel_proof");
	const struct json *network = json_get_child(report, "network");
	const char *parent = json_get_string(report, "fork_of");
	const char *proxy = json_get_string(network, "proxy");

	printf("%s: engine %s %s, isolation %s\n", text_of(report, "name"),
	       text_of(report, "engine"),
	       is_set(report, "hardware") ? "with KVM" : "in software emulation",
	       text_of(report, "isolation"));
	printf("kernel of its own: %s, boot ID %s\n", text_of(report, "guest_kernel"),
	       text_of(report, "guest_boot_id"));
	printf("last proved for:   %s (image %.16s…, kernel %.16s…)\n",
	       text_of(proof, "guest_release"), text_of(proof, "image_digest"),
	       text_of(proof, "kernel_digest"));
	printf("network: no card, outgoing: %s%s%s, %zu rules, %zu ports into the machine\n",
	       text_of(network, "outgoing"), proxy ? " through the proxy " : "", proxy ? proxy : "",
	       json_count(json_get_child(network, "rules")),
	       json_count(json_get_child(network, "ports")));
	printf("/data: %s%s%s; root %s; no host directory is shared\n", text_of(report, "data"),
	       parent ? ", a fork of that of " : "", parent ? parent : "",
	       is_set(report, "root_read_only") ? "read-only" : "thrown away with the machine");
	for (size_t i = 0; i < json_count(processes); i++) {
		const struct json *process = json_at(processes, i);

		if (is_set(process, "jailed")) {
			print_jailed(process);
		} else {
			print_keeper(process);
		}
	}
	if (number_of(report, "differences") == 0) {
		puts("every process is as it was described");
	} else {
		printf("%lld differences between the description and the processes\n",
		       (long long)number_of(report, "differences"));
	}
}

int cli_inspect(const struct cli_args *args, struct err *err)
{
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	_cleanup_(json_freep) struct json *report = NULL;
	_cleanup_free_ char *text = NULL;
	const char *name = args->operands[0];
	const char *format = cli_value(args, "security-report");
	size_t size = 0;
	bool up = false;
	int rc = 0;

	if (format && strcmp(format, "json") != 0) {
		rc = err_set(err, -EINVAL, "usage",
			     "inspect: --security-report: only =json is known");
		err_mend(err, "write --security-report or --security-report=json");
		return rc;
	}
	rc = store_open(false, &store, err);
	if (rc == 0) {
		rc = get_machine(&store, name, &machine, &up, err);
	}
	if (rc == 0) {
		rc = client_report(machine, &text, &size, err);
	}
	if (rc == 0) {
		rc = json_parse(text, size, &report, err);
	}
	if (rc < 0) {
		return rc;
	}
	if (add_proof(&store, name, report) < 0 || add_parent(&store, name, report) < 0) {
		return err_context(err, -ENOMEM, "inspect");
	}
	if (format || cli_has(args, "json")) {
		rc = cli_print_json(report, err);
		if (rc < 0) {
			return rc;
		}
	} else {
		print_report(report);
	}
	return number_of(report, "differences") == 0 ? EXIT_OK : EXIT_NEGATIVE;
}
