/*
 * Theory of operation.
 *
 * A Boxfile's text comes in, a struct spec goes out, or one message with the place of the first
 * mistake. It goes in three steps, each in a file of its own:
 *
 *   node.c                  text to a small tree with positions; all of YAML that a Boxfile has no
 *                           use for is refused here
 *   keys.c                  the tree to struct members, by tables of keys: spec_keys below,
 *                           network.c, blueprint.c
 *   rules.c                 what a single value may look like
 *
 * A Boxfile is written by the user, who is trusted, but often copied from somewhere, and its values
 * end up in commands, paths and policies. So everything is checked here, once, and what a struct
 * spec holds needs no second look at its shape. Nothing is read or opened besides the text: whether
 * a path or a suite exists is seen when it is used. What this version cannot do yet is parsed all
 * the same, and refused by spec_check_available when a machine would be started.
 *
 * Defaults are the safest values, so that a missing key, a key without a value and an empty file
 * never open anything.
 */
#include "spec/spec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "spec/keys.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define TIB ((uint64_t)1 << 40)

/* One terabyte; QEMU's own limit is of that order, no host that box is for has more. */
#define RAM_MIB_MAX 1048576
/* Below it a Debian kernel with its first programs does not start. */
#define RAM_MIB_MIN 128
/* More vCPUs than a sandbox on a person's machine can use. */
#define CPUS_MAX 16
/* ext4 with a journal of the smallest size; a root overlay with a few changed packages. */
#define DATA_SIZE_MIN (16 * MIB)
#define DISK_SIZE_MIN (64 * MIB)
/* The largest ext4 with 4 KiB blocks that every e2fsprogs of today makes. */
#define DISK_SIZE_MAX (16 * TIB)
/* A year. */
#define TIMEOUT_SECONDS_MAX 31536000
/* Each one holds its RAM. */
#define WARM_MAX 8
/* Half an hour: a person who comes back from something else finds it ready. */
#define WARM_IDLE_SECONDS 1800
/* Less is over before a machine is even made; a day is what somebody would call always. */
#define WARM_IDLE_SECONDS_MIN 10
#define WARM_IDLE_SECONDS_MAX 86400
/* Shell lines; longer builds belong into a script. */
#define LINES_MAX 256
/* All variables together are at most a quarter of the message that starts a command. */
#define ENV_COUNT_MAX 256
#define ENV_BYTES_MAX 65536
/* Linux has about 360 system calls. */
#define SYSCALLS_MAX 512

/* How a base may begin, for a mistyped one. */
static const char *const base_words[] = {"tiny",	  "debian/bookworm", "debian/bullseye",
					 "debian/trixie", "debian/sid",	     NULL};

static int set_base(struct spec *spec, const char *text, enum spec_base_kind kind,
		    const char *value)
{
	char *base = strdup(text), *base_value = strdup(value);

	if (!base || !base_value) {
		free(base);
		free(base_value);
		return -ENOMEM;
	}
	free(spec->base);
	free(spec->base_value);
	spec->base = base;
	spec->base_value = base_value;
	spec->base_kind = kind;
	return 0;
}

static int read_base(struct spec_reader *reader, const struct spec_key *key,
		     const struct spec_node *value, void *target)
{
	static const struct {
		const char *prefix;
		enum spec_base_kind kind;
		spec_rule *rule;
	} forms[] = {
		{"debian/", SPEC_BASE_DEBIAN, spec_rule_suite},
		{"oci:", SPEC_BASE_OCI, spec_rule_line},
		{"tar:", SPEC_BASE_TAR, spec_rule_line},
		{"dir:", SPEC_BASE_DIR, spec_rule_line},
		{"", SPEC_BASE_OCI, spec_rule_image_reference},
	};
	const char *text = value->text, *reason = NULL, *nearest;
	int rc = spec_want(reader, key->name, value, SPEC_NODE_SCALAR);

	if (rc < 0) {
		return rc;
	}
	if (strcmp(text, "tiny") == 0) {
		return set_base(target, text, SPEC_BASE_TINY, "");
	}
	for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
		size_t length = strlen(forms[i].prefix);

		if (strncmp(text, forms[i].prefix, length) != 0) {
			continue;
		}
		reason = forms[i].rule(text + length);
		if (!reason) {
			return set_base(target, text, forms[i].kind, text + length);
		}
		break;
	}
	rc = spec_refuse(reader, key->name, value, reason);
	nearest = text_nearest(text, base_words);
	if (nearest) {
		err_mend(reader->source.err, "did you mean \"%s\"?", nearest);
	} else {
		err_mend(reader->source.err,
			 "write tiny, debian/SUITE, tar:PATH, dir:PATH, oci:PATH, or an OCI "
			 "reference with its registry (docker.io/library/alpine:3.20)");
	}
	return rc;
}

static int read_secrets(struct spec_reader *reader, const struct spec_key *key,
			const struct spec_node *value, void *target)
{
	struct spec *spec = target;

	(void)reader;
	(void)key;
	(void)value;
	spec->secrets = true;
	return 0;
}

static int read_isolation(struct spec_reader *reader, const struct spec_key *key,
			  const struct spec_node *value, void *target)
{
	static const char *const words[] = {"strict", "standard", NULL};
	static const enum spec_isolation meanings[] = {SPEC_ISOLATION_STRICT,
						       SPEC_ISOLATION_STANDARD};
	struct spec *spec = target;
	unsigned index;
	int rc = spec_read_word(reader, key, value, words, &index);

	if (rc == 0) {
		spec->isolation = meanings[index];
	}
	return rc;
}

static int read_engine(struct spec_reader *reader, const struct spec_key *key,
		       const struct spec_node *value, void *target)
{
	static const char *const words[] = {[SPEC_ENGINE_AUTO] = "auto",
					    [SPEC_ENGINE_KVM] = "kvm",
					    [SPEC_ENGINE_QEMU] = "qemu",
					    NULL};
	struct spec *spec = target;
	unsigned index;
	int rc = spec_read_word(reader, key, value, words, &index);

	if (rc == 0) {
		spec->engine = (enum spec_engine)index;
	}
	return rc;
}

static int read_log_output(struct spec_reader *reader, const struct spec_key *key,
			   const struct spec_node *value, void *target)
{
	static const char *const words[] = {
		[SPEC_LOG_TAIL] = "tail", [SPEC_LOG_NONE] = "none", [SPEC_LOG_FULL] = "full", NULL};
	struct spec *spec = target;
	unsigned index;
	int rc = spec_read_word(reader, key, value, words, &index);

	if (rc == 0) {
		spec->log_output = (enum spec_log_output)index;
	}
	return rc;
}

/* Of the earlier box. All its backends are gone; engine keeps what it says or its default. */
static int read_backend(struct spec_reader *reader, const struct spec_key *key,
			const struct spec_node *value, void *target)
{
	static const char *const words[] = {"podman", "krun", "firecracker", NULL};
	unsigned index;
	int rc = spec_read_word(reader, key, value, words, &index);

	(void)target;
	if (rc < 0) {
		return rc;
	}
	return spec_notice(reader, value,
			   "backend: %s is not there any more; it is ignored, and engine decides",
			   words[index]);
}

/* Of the earlier box. */
static int read_ignored(struct spec_reader *reader, const struct spec_key *key,
			const struct spec_node *value, void *target)
{
	(void)target;
	return spec_notice(reader, value, "%s has no meaning here and is ignored", key->name);
}

static int add_env(struct spec_reader *reader, const struct spec_node *node, const char *assignment)
{
	struct spec *spec = reader->spec;
	const char *reason = spec_rule_env(assignment);
	size_t key_length = strcspn(assignment, "=") + 1;
	size_t total = strlen(assignment);

	if (reason) {
		/* The value may be a secret that was put here by mistake: name the key only. */
		struct spec_node shown = *node;
		char key[64];

		snprintf(key, sizeof(key), "%.*s", (int)MIN(key_length - 1, sizeof(key) - 1),
			 assignment);
		shown.text = key;
		return spec_refuse(reader, "env", &shown, reason);
	}
	for (size_t i = 0; i < spec->env_count; i++) {
		total += strlen(spec->env[i]);
		if (strncmp(spec->env[i], assignment, key_length) == 0) {
			return spec_fail(&reader->source, node, "env: %.*s stands twice",
					 (int)key_length - 1, assignment);
		}
	}
	if (spec->env_count >= ENV_COUNT_MAX || total > ENV_BYTES_MAX) {
		return spec_fail(&reader->source, node,
				 "env: more than %d variables or %d bytes in all", ENV_COUNT_MAX,
				 ENV_BYTES_MAX);
	}
	return spec_list_add(&spec->env, &spec->env_count, strdup(assignment));
}

/* A map of KEY: VALUE, or a list of KEY=VALUE. */
static int read_env(struct spec_reader *reader, const struct spec_key *key,
		    const struct spec_node *value, void *target)
{
	int rc = 0;

	(void)target;
	if (value->kind == SPEC_NODE_SCALAR) {
		return spec_fail(&reader->source, value,
				 "%s must be a map (KEY: VALUE) or a list (KEY=VALUE)", key->name);
	}
	for (const struct spec_node *item = value->first; rc == 0 && item; item = item->next) {
		_cleanup_free_ char *joined = NULL;
		const struct spec_node *text = item->value ? item->value : item;

		rc = spec_want(reader, "a value of env", text, SPEC_NODE_SCALAR);
		if (rc < 0) {
			return rc;
		}
		if (item->value && strchr(item->text, '=')) {
			return spec_refuse(reader, key->name, item,
					   "has a key that is no identifier (A-Z a-z 0-9 _)");
		}
		if (item->value && asprintf(&joined, "%s=%s", item->text,
					    spec_node_is_null(text) ? "" : text->text) < 0) {
			joined = NULL;
			return -ENOMEM;
		}
		rc = add_env(reader, item, joined ? joined : text->text);
	}
	return rc;
}

#define AT(member) offsetof(struct spec, member)

static const struct spec_key spec_keys[] = {
	{"base", read_base},
	{"cpus", spec_read_u32, AT(cpus), .minimum = 1, .maximum = CPUS_MAX},
	{"ram_mib", spec_read_u32, AT(ram_mib), .minimum = RAM_MIB_MIN, .maximum = RAM_MIB_MAX},
	{"disk_size", spec_read_disk_size, AT(disk_size_bytes), .minimum = DISK_SIZE_MIN,
	 .maximum = DISK_SIZE_MAX},
	{"data_size", spec_read_disk_size, AT(data_size_bytes), .minimum = DATA_SIZE_MIN,
	 .maximum = DISK_SIZE_MAX},
	{"network", spec_read_network},
	{"build_network", spec_read_build_network},
	{"secrets", read_secrets},
	{"isolation", read_isolation},
	{"engine", read_engine},
	{"readonly", spec_read_boolean, AT(readonly)},
	{"timeout_seconds", spec_read_u32, AT(timeout_seconds), .maximum = TIMEOUT_SECONDS_MAX},
	{"warm", spec_read_u32, AT(warm), .maximum = WARM_MAX},
	{"warm_idle", spec_read_seconds, AT(warm_idle_seconds), .minimum = WARM_IDLE_SECONDS_MIN,
	 .maximum = WARM_IDLE_SECONDS_MAX},
	{"log_output", read_log_output},
	{"warmup", spec_read_list, AT(warmup), AT(warmup_count), .maximum = LINES_MAX,
	 .rule = spec_rule_shell},
	{"user", spec_read_string, AT(user), .rule = spec_rule_user},
	{"packages", spec_read_list, AT(packages), AT(package_count), .maximum = SPEC_PACKAGES_MAX,
	 .rule = spec_rule_package},
	{"run", spec_read_list, AT(run), AT(run_count), .maximum = LINES_MAX,
	 .rule = spec_rule_shell},
	{"env", read_env},
	{"blueprint", spec_read_blueprint},
	{"mounts", spec_read_mounts},
	{"seccomp", spec_read_list, AT(seccomp), AT(seccomp_count), .maximum = SYSCALLS_MAX,
	 .rule = spec_rule_syscall},
	/* Of the earlier box. */
	{"backend", read_backend},
	{"passt", read_ignored},
	{"pkgmgr", read_ignored},
	{0},
};

static int set_defaults(struct spec *spec)
{
	spec->cpus = 2;
	spec->ram_mib = 1024;
	spec->isolation = SPEC_ISOLATION_STRICT;
	spec->disk_size_bytes = 8 * GIB;
	spec->data_size_bytes = 10 * GIB;
	spec->warm_idle_seconds = WARM_IDLE_SECONDS;
	spec->build_network.kind = SPEC_NETWORK_LIST;
	spec->user = strdup("root");
	return spec->user ? set_base(spec, "debian/bookworm", SPEC_BASE_DEBIAN, "bookworm")
			  : -ENOMEM;
}

/* What no key can be blamed for alone. */
static int check_together(const struct spec_reader *reader, const struct spec_node *root)
{
	const struct spec *spec = reader->spec;

	if (spec->base_kind == SPEC_BASE_TINY && spec->package_count > 0) {
		const struct spec_node *packages = spec_find(root, "packages");

		return spec_fail(&reader->source, packages ? packages : root,
				 "packages: base: tiny has no package manager");
	}
	for (size_t i = 0; i < spec->mount_count; i++) {
		if (spec->mounts[i].writable && spec->isolation == SPEC_ISOLATION_STRICT) {
			return spec_fail(&reader->source, spec_find(root, "mounts"),
					 "mounts: rw is refused under isolation: strict");
		}
	}
	return 0;
}

int spec_parse(const char *text, size_t size, const char *file_name, struct spec **ret_spec,
	       struct err *err)
{
	_cleanup_(spec_node_freep) struct spec_node *root = NULL;
	_cleanup_(spec_freep) struct spec *spec = calloc(1, sizeof(*spec));
	struct spec_reader reader = {.source = {.file_name = file_name, .err = err}, .spec = spec};
	int rc = spec ? set_defaults(spec) : -ENOMEM;

	if (rc == 0) {
		rc = spec_node_read(&reader.source, text, size, &root);
	}
	if (rc == 0 && root && !spec_node_is_null(root)) {
		rc = spec_read_map(&reader, "a Boxfile", spec_keys, root, spec);
		if (rc == 0) {
			rc = check_together(&reader, root);
		}
	}
	if (rc == -ENOMEM) {
		return err_set(err, rc, "no-memory", "%s: out of memory", file_name);
	}
	if (rc < 0) {
		return rc;
	}
	*ret_spec = TAKE_PTR(spec);
	return 0;
}

static void free_list(char **list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		free(list[i]);
	}
	free(list);
}

static void free_network(struct spec_network *network)
{
	free_list(network->allow, network->allow_count);
	free_list(network->deny, network->deny_count);
	free_list(network->reach, network->reach_count);
}

void spec_free(struct spec *spec)
{
	if (!spec) {
		return;
	}
	for (size_t i = 0; i < spec->user_count; i++) {
		free(spec->users[i].name);
		free(spec->users[i].shell);
		free_list(spec->users[i].groups, spec->users[i].group_count);
	}
	for (size_t i = 0; i < spec->file_count; i++) {
		free(spec->files[i].path);
		free(spec->files[i].content);
		free(spec->files[i].owner);
	}
	for (size_t i = 0; i < spec->mount_count; i++) {
		free(spec->mounts[i].host);
		free(spec->mounts[i].guest);
	}
	free(spec->users);
	free(spec->files);
	free(spec->mounts);
	free(spec->base);
	free(spec->base_value);
	free(spec->user);
	free_network(&spec->network);
	free_network(&spec->build_network);
	free_list(spec->network_ports, spec->network_port_count);
	free_list(spec->warmup, spec->warmup_count);
	free_list(spec->packages, spec->package_count);
	free_list(spec->run, spec->run_count);
	free_list(spec->env, spec->env_count);
	free_list(spec->runcmd, spec->runcmd_count);
	free_list(spec->seccomp, spec->seccomp_count);
	free_list(spec->notices, spec->notice_count);
	free(spec);
}
