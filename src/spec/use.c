/*
 * What others ask about a spec: whether this version can do it, whether names are well formed, and
 * what an image and a snapshot depend on.
 */
#include "spec/spec.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/text.h"
#include "spec/rules.h"

/* Whether anything was written but "none" and an empty map. */
static bool is_written(const struct spec_network *network)
{
	return network->kind == SPEC_NETWORK_BRIDGE || network->allow_count > 0 ||
	       network->deny_count > 0 || network->reach_count > 0 ||
	       network->connections_max > 0 || network->bytes_max > 0;
}

bool spec_has_network(const struct spec *spec)
{
	return MUTANT("network") || is_written(&spec->network);
}

bool spec_has_build_network(const struct spec *spec)
{
	return is_written(&spec->build_network) ||
	       (spec->build_network.kind == SPEC_NETWORK_LIST &&
		(spec->base_kind == SPEC_BASE_DEBIAN || spec->base_kind == SPEC_BASE_OCI));
}

int spec_check_available(const struct spec *spec, const char *file_name, struct err *err)
{
	const struct {
		bool wanted;
		const char *key;
		const char *what;
		const char *instead;
	} missing[] = {
		{spec->secrets, "secrets", "a broker for secrets", "sandboxes without `secrets`"},
		{spec->mount_count > 0, "mounts", "sharing host directories",
		 "sandboxes without `mounts`"},
		{spec->base_kind == SPEC_BASE_OCI, "base", "an OCI image",
		 "`tiny`, `debian/SUITE`, `tar:PATH` and `dir:PATH`"},
		{spec->engine == SPEC_ENGINE_KVM, "engine", "kvm",
		 "`engine: auto` and `engine: qemu`"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(missing); i++) {
		if (!missing[i].wanted) {
			continue;
		}
		err_set(err, -ENOTSUP, "not-available-yet",
			"%s: %s: %s is not available yet; this version has only %s", file_name,
			missing[i].key, missing[i].what, missing[i].instead);
		err_mend(err, "take the key `%s` out of the Boxfile, or change its value",
			 missing[i].key);
		return -ENOTSUP;
	}
	return 0;
}

int spec_check_name(const char *name, struct err *err)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
	char quoted[4 * SPEC_NAME_MAX];
	size_t length = strlen(name), good = 0;

	while (good < length &&
	       (strchr(letters, name[good]) || (good > 0 && strchr("._-", name[good])))) {
		good++;
	}
	if (length > 0 && length <= SPEC_NAME_MAX && good == length) {
		return 0;
	}
	text_quote(name, length, quoted, sizeof(quoted));
	err_set(err, -EINVAL, "bad-name", "\"%s\" is not a name", quoted);
	err_mend(err, "a name has letters, digits, . _ and -, at most %d, a letter or digit first",
		 SPEC_NAME_MAX);
	return -EINVAL;
}

int spec_check_env(const char *assignment, struct err *err)
{
	const char *reason = spec_rule_env(assignment);
	char quoted[128];

	if (!reason) {
		return 0;
	}
	/* The key only: the value may be a secret. */
	text_quote(assignment, strcspn(assignment, "="), quoted, sizeof(quoted));
	err_set(err, -EINVAL, "bad-env", "the variable \"%s\" %s", quoted, reason);
	err_mend(err, "write KEY=VALUE");
	return -EINVAL;
}

/* Lines of "key=value", all values quoted, so that no value can look like a line of its own. */
struct canon {
	FILE *stream;
	bool failed;
};

static void put_text(struct canon *canon, const char *key, const char *value)
{
	_cleanup_free_ char *quoted = NULL;
	size_t length = value ? strlen(value) : 0;

	if (!value) {
		/* Without quotation marks: told apart from an empty value. */
		fprintf(canon->stream, "%s=\n", key);
		return;
	}
	quoted = malloc(length * TEXT_QUOTE_GROWTH + 1);
	if (!quoted) {
		canon->failed = true;
		return;
	}
	text_quote(value, length, quoted, length * TEXT_QUOTE_GROWTH + 1);
	fprintf(canon->stream, "%s=\"%s\"\n", key, quoted);
}

static void put_list(struct canon *canon, const char *key, char *const *list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		put_text(canon, key, list[i]);
	}
}

/*
 * What lines of a build could reach is one of the things that made the image, as the lines are: one
 * that goes on without what it did not get makes another image with it. Nothing is put where nobody
 * could have used it.
 */
static void put_build_network(struct canon *canon, const struct spec *spec)
{
	static const char *const kinds[] = {[SPEC_NETWORK_NONE] = "none",
					    [SPEC_NETWORK_BRIDGE] = "bridge",
					    [SPEC_NETWORK_LIST] = "base"};
	const struct spec_network *network = &spec->build_network;

	if (spec->run_count + spec->runcmd_count == 0 ||
	    (network->kind == SPEC_NETWORK_LIST && !is_written(network))) {
		return;
	}
	put_text(canon, "build_network", kinds[network->kind]);
	put_list(canon, "build_network.allow", network->allow, network->allow_count);
	put_list(canon, "build_network.deny", network->deny, network->deny_count);
	put_list(canon, "build_network.reach", network->reach, network->reach_count);
	fprintf(canon->stream, "build_network.connections=\"%llu\"\nbuild_network.bytes=\"%llu\"\n",
		(unsigned long long)network->connections_max,
		(unsigned long long)network->bytes_max);
}

static void put_image(struct canon *canon, const struct spec *spec)
{
	put_text(canon, "base", spec->base);
	put_list(canon, "packages", spec->packages, spec->package_count);
	put_list(canon, "run", spec->run, spec->run_count);
	put_list(canon, "env", spec->env, spec->env_count);
	for (size_t i = 0; i < spec->user_count; i++) {
		const struct spec_user *user = &spec->users[i];

		put_text(canon, "user.name", user->name);
		fprintf(canon->stream, "user.uid=\"%u\"\n", user->uid);
		put_text(canon, "user.shell", user->shell);
		put_list(canon, "user.group", user->groups, user->group_count);
	}
	for (size_t i = 0; i < spec->file_count; i++) {
		const struct spec_file *file = &spec->files[i];

		put_text(canon, "file.path", file->path);
		fprintf(canon->stream, "file.mode=\"%04o\"\n", file->mode);
		put_text(canon, "file.owner", file->owner);
		put_text(canon, "file.content", file->content);
	}
	put_list(canon, "runcmd", spec->runcmd, spec->runcmd_count);
	put_build_network(canon, spec);
	/* The file system is made of that size. */
	fprintf(canon->stream, "disk_size=\"%llu\"\n", (unsigned long long)spec->disk_size_bytes);
}

static void put_snapshot(struct canon *canon, const struct spec *spec)
{
	static const char *const engines[] = {[SPEC_ENGINE_AUTO] = "auto",
					      [SPEC_ENGINE_KVM] = "kvm",
					      [SPEC_ENGINE_QEMU] = "qemu"};

	put_image(canon, spec);
	fprintf(canon->stream, "cpus=\"%u\"\nram_mib=\"%u\"\n", spec->cpus, spec->ram_mib);
	fprintf(canon->stream, "data_size=\"%llu\"\n", (unsigned long long)spec->data_size_bytes);
	put_list(canon, "warmup", spec->warmup, spec->warmup_count);
	fprintf(canon->stream, "readonly=\"%s\"\n", spec->readonly ? "true" : "false");
	put_text(canon, "engine", engines[spec->engine]);
	/* A device of the machine. What may be reached through it is not in the snapshot. */
	fprintf(canon->stream, "network=\"%s\"\n", spec_has_network(spec) ? "true" : "false");
}

static int write_canon(const struct spec *spec,
		       void (*put)(struct canon *canon, const struct spec *spec), char **ret_text)
{
	char *text = NULL;
	size_t size = 0;
	struct canon canon = {.stream = open_memstream(&text, &size)};

	if (!canon.stream) {
		return -ENOMEM;
	}
	put(&canon, spec);
	canon.failed = ferror(canon.stream) || canon.failed;
	canon.failed = fclose(canon.stream) != 0 || canon.failed;
	if (canon.failed) {
		free(text);
		return -ENOMEM;
	}
	*ret_text = text;
	return 0;
}

int spec_image_key(const struct spec *spec, char **ret_text)
{
	return write_canon(spec, put_image, ret_text);
}

int spec_snapshot_key(const struct spec *spec, char **ret_text)
{
	return write_canon(spec, put_snapshot, ret_text);
}
