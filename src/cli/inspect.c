#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "cli/cli.h"
#include "client/client.h"
#include "client/state.h"
#include "engine/kernel.h"
#include "json/json.h"
#include "spec/spec.h"

static void on_notice(void *data, const char *text)
{
	(void)data;
	fprintf(stderr, "box: %s\n", text);
}

int cli_verify(const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0];
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	const struct client_start_options start = {.notice = on_notice};
	struct client_verify_result result;
	const char *line;
	int rc = cli_check_engine(err);

	if (rc == 0) {
		rc = store_open(false, &store, err);
	}
	if (rc == 0) {
		rc = client_verify(&store, name, &start, &result, err);
	}
	if (rc == -EPROTO) {
		/* The proof itself failed: that is an answer, not a failure to look. */
		cli_print_error(err);
		return EXIT_NEGATIVE;
	}
	if (rc < 0) {
		return rc;
	}
	printf("kernel of the machine: %s %s\n", result.now.guest_release,
	       result.now.guest_version);
	printf("kernel of this host:   %s %s\n", result.now.host_release, result.now.host_version);
	printf("boot ID of the machine: %s\n", result.now.guest_boot_id);
	printf("boot ID of this host:   %s\n", result.now.host_boot_id);
	for (line = result.differences; *line;) {
		size_t length = strcspn(line, "\n");

		printf("differs: %.*s\n", (int)length, line);
		line += length + (line[length] != '\0');
	}
	if (result.differences[0]) {
		printf("%s is not as it was built, so nothing is proved; `box build --no-cache %s` "
		       "makes it anew\n",
		       name, name);
		return EXIT_NEGATIVE;
	}
	if (result.changed) {
		printf("changed since the last proof: %s\n", result.changed);
	}
	if (strcmp(result.proved.guest_release, result.now.guest_release) != 0 ||
	    strcmp(result.proved.guest_version, result.now.guest_version) != 0) {
		printf("its kernel was then: %s %s\n", result.proved.guest_release,
		       result.proved.guest_version);
	}
	printf("%s: the machine has a kernel of its own; %s\n", name,
	       result.first	? "this is the first proof with this accelerator"
	       : result.changed ? "it is proved for what runs now"
				: "all is as it was proved before");
	return EXIT_OK;
}

/* KEY='VALUE' as a shell reads it; a value of harmless characters stands as it is. */
static void print_assignment(const char *assignment)
{
	static const char harmless[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				       "0123456789_./:,@%+-";
	size_t length = strcspn(assignment, "=");
	const char *value = assignment + length + (assignment[length] == '=');

	printf("%.*s=", (int)length, assignment);
	if (*value && strspn(value, harmless) == strlen(value)) {
		puts(value);
		return;
	}
	putchar('\'');
	for (; *value; value++) {
		if (*value == '\'') {
			fputs("'\\''", stdout);
		} else {
			putchar(*value);
		}
	}
	puts("'");
}

static int set_strings(struct json *object, const char *key, char *const *strings, size_t count)
{
	struct json *array = json_new_array();

	for (size_t i = 0; i < count; i++) {
		if (json_append_string(array, strings[i]) < 0) {
			json_free(array);
			return -ENOMEM;
		}
	}
	return json_set_child(object, key, array);
}

static int set_texts(struct json *object, const struct spec *spec)
{
	static const char *const networks[] = {"none", "bridge", "list"};
	static const char *const isolations[] = {"strict", "standard"};
	static const char *const engines[] = {"auto", "kvm", "qemu"};
	static const char *const outputs[] = {"tail", "none", "full"};
	const struct {
		const char *key;
		const char *value;
	} texts[] = {
		{"base", spec->base},
		{"network", networks[spec->network.kind]},
		{"isolation", isolations[spec->isolation]},
		{"engine", engines[spec->engine]},
		{"log_output", outputs[spec->log_output]},
		{"user", spec->user},
	};

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
		int rc = json_set_string(object, texts[i].key, texts[i].value);

		if (rc < 0) {
			return rc;
		}
	}
	return json_set_boolean(object, "readonly", spec->readonly);
}

static int set_numbers(struct json *object, const struct spec *spec)
{
	const struct {
		const char *key;
		uint64_t value;
	} numbers[] = {
		{"cpus", spec->cpus},
		{"ram_mib", spec->ram_mib},
		{"disk_size_bytes", spec->disk_size_bytes},
		{"data_size_bytes", spec->data_size_bytes},
		{"timeout_seconds", spec->timeout_seconds},
		{"warm", spec->warm},
		{"warm_idle_seconds", spec->warm_idle_seconds},
	};

	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		int rc = json_set_integer(object, numbers[i].key, (int64_t)numbers[i].value);

		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

static int set_lists(struct json *object, const struct spec *spec)
{
	int rc = set_strings(object, "env", spec->env, spec->env_count);

	if (rc == 0) {
		rc = set_strings(object, "packages", spec->packages, spec->package_count);
	}
	if (rc == 0) {
		rc = set_strings(object, "run", spec->run, spec->run_count);
	}
	if (rc == 0) {
		rc = set_strings(object, "runcmd", spec->runcmd, spec->runcmd_count);
	}
	if (rc == 0) {
		rc = set_strings(object, "warmup", spec->warmup, spec->warmup_count);
	}
	if (rc == 0) {
		rc = set_strings(object, "ports", spec->network_ports, spec->network_port_count);
	}
	return rc;
}

static int set_paths(struct json *object, const struct store *store, const char *name)
{
	struct kernel_paths paths;
	char path[PATH_MAX];
	int rc;

	snprintf(path, sizeof(path), "%s/sandboxes/%s", store->home, name);
	rc = json_set_string(object, "directory", path);
	/* Without a kernel the rest is worth knowing all the same. */
	if (rc == 0 && kernel_find(&paths, NULL) == 0) {
		rc = json_set_string(object, "kernel", paths.kernel);
		if (rc == 0) {
			rc = json_set_string(object, "modules", paths.modules);
		}
	}
	return rc;
}

static int print_env_json(const struct store *store, int sandbox_fd, const char *name,
			  const struct spec *spec, struct err *err)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	int rc = json_set_string(object, "name", name);

	if (rc == 0) {
		rc = json_set_string(object, "state",
				     client_state_name(client_state(sandbox_fd, spec)));
	}
	if (rc == 0) {
		rc = set_texts(object, spec);
	}
	if (rc == 0) {
		rc = set_numbers(object, spec);
	}
	if (rc == 0) {
		rc = set_lists(object, spec);
	}
	if (rc == 0) {
		rc = set_paths(object, store, name);
	}
	return rc < 0 ? err_context(err, rc, "JSON") : cli_print_json(object, err);
}

int cli_env(const struct cli_args *args, struct err *err)
{
	const char *name = args->operands[0];
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_(spec_freep) struct spec *spec = NULL;
	_cleanup_close_ int sandbox_fd = -EBADF;
	int rc;

	sandbox_fd = cli_open_sandbox(name, &store, err);
	if (sandbox_fd < 0) {
		return sandbox_fd;
	}
	rc = store_load_spec(&store, name, &spec, err);
	if (rc < 0) {
		return rc;
	}
	if (cli_has(args, "json")) {
		return print_env_json(&store, sandbox_fd, name, spec, err);
	}
	for (size_t i = 0; i < spec->env_count; i++) {
		print_assignment(spec->env[i]);
	}
	return EXIT_OK;
}
