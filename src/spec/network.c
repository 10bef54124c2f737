/*
 * The keys network and mounts: what a sandbox may reach outside of itself.
 */
#include "spec/keys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

/* Rules are looked through for every connection; a person keeps track of fewer. */
#define RULES_MAX 1024
#define PORTS_MAX 64
#define CONNECTIONS_MAX 65536
/* Every mount is a process of its own. */
#define MOUNTS_MAX 16

#define SPEC(member) offsetof(struct spec, member)

/* target is the spec itself. */
static const struct spec_key limit_keys[] = {
	{"connections", spec_read_u64, SPEC(network_connections_max), .minimum = 1,
	 .maximum = CONNECTIONS_MAX},
	{"bytes", spec_read_bytes, SPEC(network_bytes_max), .minimum = 1, .maximum = UINT64_MAX},
	{0},
};

static int read_limits(struct spec_reader *reader, const struct spec_key *key,
		       const struct spec_node *value, void *target)
{
	return spec_read_map(reader, key->name, limit_keys, value, target);
}

/* target is the spec itself. */
static const struct spec_key network_keys[] = {
	{"allow", spec_read_list, SPEC(network_allow), SPEC(network_allow_count),
	 .maximum = RULES_MAX, .rule = spec_rule_host_pattern},
	{"deny", spec_read_list, SPEC(network_deny), SPEC(network_deny_count), .maximum = RULES_MAX,
	 .rule = spec_rule_host_pattern},
	{"reach", spec_read_list, SPEC(network_reach), SPEC(network_reach_count),
	 .maximum = RULES_MAX, .rule = spec_rule_cidr},
	{"ports", spec_read_list, SPEC(network_ports), SPEC(network_port_count),
	 .maximum = PORTS_MAX, .rule = spec_rule_ports},
	{"limits", read_limits},
	{0},
};

int spec_read_network(struct spec_reader *reader, const struct spec_key *key,
		      const struct spec_node *value, void *target)
{
	static const char *const words[] = {
		[SPEC_NETWORK_NONE] = "none", [SPEC_NETWORK_BRIDGE] = "bridge", NULL};
	struct spec *spec = target;
	unsigned index = SPEC_NETWORK_LIST;
	int rc;

	if (value->kind == SPEC_NODE_LIST) {
		return spec_fail(&reader->source, value,
				 "network must be none, bridge or a map with allow, not a list");
	}
	if (value->kind == SPEC_NODE_MAP) {
		rc = spec_read_map(reader, key->name, network_keys, value, target);
	} else {
		rc = spec_read_word(reader, key, value, words, &index);
	}
	if (rc == 0) {
		spec->network = (enum spec_network)index;
	}
	return rc;
}

static int read_mount_mode(struct spec_reader *reader, const struct spec_key *key,
			   const struct spec_node *value, void *target)
{
	static const char *const words[] = {"ro", "rw", NULL};
	struct spec_mount *mount = target;
	unsigned index;
	int rc = spec_read_word(reader, key, value, words, &index);

	if (rc == 0) {
		mount->writable = index == 1;
	}
	return rc;
}

#define MOUNT(member) offsetof(struct spec_mount, member)

static const struct spec_key mount_keys[] = {
	{"host", spec_read_string, MOUNT(host), .rule = spec_rule_host_path},
	{"guest", spec_read_string, MOUNT(guest), .rule = spec_rule_guest_path},
	{"mode", read_mount_mode},
	{0},
};

/* Directories that the guest's own start needs, and all below them. */
static bool is_taken(const char *path)
{
	static const char *const taken[] = {"/data", "/dev", "/proc", "/sys"};

	for (size_t i = 0; i < ARRAY_SIZE(taken); i++) {
		size_t length = strlen(taken[i]);

		if (strncmp(path, taken[i], length) == 0 &&
		    (path[length] == '/' || path[length] == '\0')) {
			return true;
		}
	}
	return false;
}

static int check_mount(const struct spec_reader *reader, const struct spec_node *item)
{
	const struct spec *spec = reader->spec;
	const struct spec_mount *mount = &spec->mounts[spec->mount_count - 1];

	if (!mount->host || !mount->guest) {
		return spec_fail(&reader->source, item, "a mount needs host and guest");
	}
	if (is_taken(mount->guest)) {
		return spec_refuse(reader, "guest", spec_find(item, "guest"),
				   "is used by the machine itself");
	}
	for (const struct spec_mount *other = spec->mounts; other < mount; other++) {
		if (strcmp(other->guest, mount->guest) == 0) {
			return spec_refuse(reader, "guest", spec_find(item, "guest"),
					   "stands twice");
		}
	}
	return 0;
}

int spec_read_mounts(struct spec_reader *reader, const struct spec_key *key,
		     const struct spec_node *value, void *target)
{
	struct spec *spec = target;
	int rc = spec_want(reader, key->name, value, SPEC_NODE_LIST);

	for (const struct spec_node *item = value->first; rc == 0 && item; item = item->next) {
		struct spec_mount *grown;

		if (spec->mount_count >= MOUNTS_MAX) {
			return spec_fail(&reader->source, item, "more than %d mounts", MOUNTS_MAX);
		}
		grown = reallocarray(spec->mounts, spec->mount_count + 1, sizeof(*grown));
		if (!grown) {
			return -ENOMEM;
		}
		spec->mounts = grown;
		grown += spec->mount_count++;
		*grown = (struct spec_mount){0};
		rc = spec_read_map(reader, "a mount", mount_keys, item, grown);
		if (rc == 0) {
			rc = check_mount(reader, item);
		}
	}
	return rc;
}
