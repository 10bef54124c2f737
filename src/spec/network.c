/*
 * The keys network, build_network and mounts: what a sandbox may reach outside of itself.
 */
#include "spec/keys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "policy/network.h"

/* Rules are looked through for every connection; a person keeps track of fewer. */
#define RULES_MAX 1024
#define PORTS_MAX 64
#define CONNECTIONS_MAX 65536
/* Every mount is a process of its own. */
#define MOUNTS_MAX 16

#define NETWORK(member) offsetof(struct spec_network, member)

static const struct spec_key limit_keys[] = {
	{"connections", spec_read_u64, NETWORK(connections_max), .minimum = 1,
	 .maximum = CONNECTIONS_MAX},
	{"bytes", spec_read_bytes, NETWORK(bytes_max), .minimum = 1, .maximum = UINT64_MAX},
	{0},
};

static int read_limits(struct spec_reader *reader, const struct spec_key *key,
		       const struct spec_node *value, void *target)
{
	return spec_read_map(reader, key->name, limit_keys, value, target);
}

/* A list whose items are rules of one action. What a rule is, src/policy alone knows. */
static int read_rules(struct spec_reader *reader, const struct spec_key *key,
		      const struct spec_node *value, void *target, enum policy_action action)
{
	int rc = spec_read_list(reader, key, value, target);

	for (const struct spec_node *item = value->first; rc == 0 && item; item = item->next) {
		struct policy_rule rule;
		struct err err = {0};

		if (policy_rule_parse(action, item->text, &rule, &err) < 0) {
			rc = spec_fail(&reader->source, item, "%s: %s; %s", key->name, err.text,
				       err.mend);
		}
	}
	return rc;
}

static int read_allow(struct spec_reader *reader, const struct spec_key *key,
		      const struct spec_node *value, void *target)
{
	return read_rules(reader, key, value, target, POLICY_ALLOW);
}

static int read_deny(struct spec_reader *reader, const struct spec_key *key,
		     const struct spec_node *value, void *target)
{
	return read_rules(reader, key, value, target, POLICY_DENY);
}

static int read_reach(struct spec_reader *reader, const struct spec_key *key,
		      const struct spec_node *value, void *target)
{
	return read_rules(reader, key, value, target, POLICY_REACH);
}

/* The list belongs to the spec, whose networks do not differ in their ports. */
static int read_ports(struct spec_reader *reader, const struct spec_key *key,
		      const struct spec_node *value, void *target)
{
	struct spec_key ports = *key;

	(void)target;
	ports.offset = offsetof(struct spec, network_ports);
	ports.count_offset = offsetof(struct spec, network_port_count);
	return spec_read_list(reader, &ports, value, reader->spec);
}

/* Their target is the struct spec_network. */
static const struct spec_key network_keys[] = {
	/* Nobody comes to the machine of a build: its keys are those below. */
	{"ports", read_ports, .maximum = PORTS_MAX, .rule = spec_rule_ports},
	{"allow", read_allow, NETWORK(allow), NETWORK(allow_count), .maximum = RULES_MAX,
	 .rule = spec_rule_line},
	{"deny", read_deny, NETWORK(deny), NETWORK(deny_count), .maximum = RULES_MAX,
	 .rule = spec_rule_line},
	{"reach", read_reach, NETWORK(reach), NETWORK(reach_count), .maximum = RULES_MAX,
	 .rule = spec_rule_line},
	{"limits", read_limits},
	{0},
};
static const struct spec_key *const build_network_keys = &network_keys[1];

static int read_network(struct spec_reader *reader, const struct spec_key *key,
			const struct spec_node *value, const struct spec_key *keys,
			const char *const *words, struct spec_network *network)
{
	unsigned index = SPEC_NETWORK_LIST;
	int rc;

	if (value->kind == SPEC_NODE_LIST) {
		return spec_fail(&reader->source, value,
				 "%s must be none, bridge or a map with allow, not a list",
				 key->name);
	}
	if (value->kind == SPEC_NODE_MAP) {
		rc = spec_read_map(reader, key->name, keys, value, network);
	} else {
		rc = spec_read_word(reader, key, value, words, &index);
	}
	if (rc == 0) {
		network->kind = (enum spec_network_kind)index;
	}
	return rc;
}

int spec_read_network(struct spec_reader *reader, const struct spec_key *key,
		      const struct spec_node *value, void *target)
{
	static const char *const words[] = {
		[SPEC_NETWORK_NONE] = "none", [SPEC_NETWORK_BRIDGE] = "bridge", NULL};
	struct spec *spec = target;

	return read_network(reader, key, value, network_keys, words, &spec->network);
}

int spec_read_build_network(struct spec_reader *reader, const struct spec_key *key,
			    const struct spec_node *value, void *target)
{
	static const char *const words[] = {[SPEC_NETWORK_NONE] = "none",
					    [SPEC_NETWORK_BRIDGE] = "bridge",
					    [SPEC_NETWORK_LIST] = "base",
					    NULL};
	struct spec *spec = target;

	return read_network(reader, key, value, build_network_keys, words, &spec->build_network);
}

int spec_make_policy(const struct spec_network *network, struct policy_network **ret_policy,
		     struct err *err)
{
	static const enum policy_kind kinds[] = {
		[SPEC_NETWORK_NONE] = POLICY_NONE,
		[SPEC_NETWORK_BRIDGE] = POLICY_BRIDGE,
		[SPEC_NETWORK_LIST] = POLICY_LIST,
	};
	const struct policy_source source = {
		.kind = kinds[network->kind],
		.allow = (const char *const *)network->allow,
		.allow_count = network->allow_count,
		.deny = (const char *const *)network->deny,
		.deny_count = network->deny_count,
		.reach = (const char *const *)network->reach,
		.reach_count = network->reach_count,
		.connections_max = network->connections_max,
		.bytes_max = network->bytes_max,
	};

	return policy_make(&source, ret_policy, err);
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
