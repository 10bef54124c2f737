/*
 * The Boxfile: what a sandbox is.
 *
 * A struct spec is what a Boxfile says after every key was checked and every default filled in.
 * All strings are NUL-terminated, without control characters unless said otherwise. It is owned by
 * the caller and given back with spec_free. Arrays are NULL when their count is 0.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A Boxfile is written by hand; more than this is a mistake. */
#define SPEC_FILE_MAX ((size_t)1 << 20)
#define SPEC_NAME_MAX 64

enum spec_base_kind {
	/* busybox, built in. */
	SPEC_BASE_TINY,
	/* debian/SUITE; base_value is the suite. */
	SPEC_BASE_DEBIAN,
	/* tar:PATH; base_value is the path as written. */
	SPEC_BASE_TAR,
	/* dir:PATH; base_value is the path as written. */
	SPEC_BASE_DIR,
	/* oci:PATH or a registry reference; parses, not available yet. */
	SPEC_BASE_OCI,
};

enum spec_isolation {
	/* The monitor runs under an ID that no other sandbox has. The default. */
	SPEC_ISOLATION_STRICT,
	/* It runs under the caller's ID, or under one for all when the caller is root. */
	SPEC_ISOLATION_STANDARD,
};

enum spec_engine {
	SPEC_ENGINE_AUTO,
	SPEC_ENGINE_KVM,
	SPEC_ENGINE_QEMU,
};

/* How much of a command's output is kept with the log. */
enum spec_log_output {
	/* The last 64 KiB of each of its two streams (the default). */
	SPEC_LOG_TAIL,
	SPEC_LOG_NONE,
	SPEC_LOG_FULL,
};

/* An entry of `ports`, or what `box forward` is asked for. */
struct spec_port {
	/* Where the host listens: an IPv4 or IPv6 address (without brackets). */
	char address[46];
	/* 0: any free port; never in a Boxfile. */
	uint16_t host;
	/* 1 to 65535, of the guest's own loopback. */
	uint16_t guest;
};

/* The address when none is written: nobody but this host can connect. */
#define SPEC_PORT_ADDRESS "127.0.0.1"

enum spec_network_kind {
	SPEC_NETWORK_NONE,
	SPEC_NETWORK_BRIDGE,
	/* A map of allow, deny, reach, limits. */
	SPEC_NETWORK_LIST,
};

/* What a machine may reach: network and build_network. */
struct spec_network {
	enum spec_network_kind kind;
	char **allow;
	size_t allow_count;
	char **deny;
	size_t deny_count;
	char **reach;
	size_t reach_count;
	/* 0: no limit was written. */
	uint64_t connections_max;
	uint64_t bytes_max;
};

struct spec_user {
	char *name;
	/* 0: the image chooses the next free one from 1000. */
	uint32_t uid;
	/* Login shell, absolute; NULL: /bin/sh. */
	char *shell;
	/* Further groups, added when the image has them. */
	char **groups;
	size_t group_count;
};

struct spec_file {
	/* Absolute guest path. */
	char *path;
	/* Any UTF-8 but NUL, control characters too; size is strlen. Never NULL. */
	char *content;
	/* 0 to 0777; 0644 when nothing is written. */
	uint32_t mode;
	/* "user" or "user:group"; NULL: root:root. */
	char *owner;
};

struct spec_mount {
	/* Absolute, or begins with "~/"; as written. */
	char *host;
	char *guest;
	bool writable;
};

struct spec {
	/* The base as written, and taken apart. */
	char *base;
	enum spec_base_kind base_kind;
	char *base_value;
	uint32_t cpus;
	uint32_t ram_mib;
	uint64_t disk_size_bytes;
	uint64_t data_size_bytes;
	/* With a map of nothing but ports: no network, but these ports of the machine can be
	 * reached from the host while it is up. */
	struct spec_network network;
	char **network_ports;
	size_t network_port_count;
	/* Of the machine that runs the lines of a build. A list has where the base comes from
	 * besides; SPEC_NETWORK_LIST is also what it is when nothing is written. */
	struct spec_network build_network;
	/* True when the key is there at all; its shape is the broker's to define. */
	bool secrets;
	enum spec_isolation isolation;
	enum spec_engine engine;
	bool readonly;
	uint32_t timeout_seconds;
	uint32_t warm;
	/* How long a machine is kept ready without being used; 1,800 when nothing is written. */
	uint32_t warm_idle_seconds;
	enum spec_log_output log_output;
	/*
	 * Shell lines: each is one argument of `sh -c`, so that newlines and tabs are allowed in it
	 * (a block scalar is a script). The same holds for run and runcmd.
	 */
	char **warmup;
	size_t warmup_count;
	char *user;
	char **packages;
	size_t package_count;
	char **run;
	size_t run_count;
	/* "KEY=VALUE", in the order written; no key twice. Values may have tabs. */
	char **env;
	size_t env_count;
	struct spec_user *users;
	size_t user_count;
	struct spec_file *files;
	size_t file_count;
	/* Shell lines. What was written as a list of arguments is quoted into one. */
	char **runcmd;
	size_t runcmd_count;
	struct spec_mount *mounts;
	size_t mount_count;
	/* System calls to take away from the monitor's list. */
	char **seccomp;
	size_t seccomp_count;
	/* One line each, "FILE:LINE:COLUMN: ...", for keys that were read and have no effect here
	 * (older Boxfiles). */
	char **notices;
	size_t notice_count;
};

/*
 * Reads a Boxfile from text (size bytes, not trusted). file_name is used in messages only. Every
 * message is "FILE:LINE:COLUMN: what is wrong" (lines and columns from 1) and names the nearest
 * key or value where a word was mistyped. *ret_spec is owned by the caller. Returns 0, -EINVAL
 * with err filled, or -ENOMEM.
 */
int spec_parse(const char *text, size_t size, const char *file_name, struct spec **ret_spec,
	       struct err *err);

void spec_free(struct spec *spec);
static inline void spec_freep(struct spec **spec)
{
	spec_free(*spec);
}

/*
 * Refuses what the Boxfile may say but this version cannot do yet, naming the key. Called by
 * every command that would start a machine or build. Returns 0 or -ENOTSUP with err filled.
 */
int spec_check_available(const struct spec *spec, const char *file_name, struct err *err);

/* What a machine with this network may reach, as a policy (policy/network.h), the caller's to free.
 * 0 or a negative errno with err filled. */
struct policy_network;
int spec_make_policy(const struct spec_network *network, struct policy_network **ret_policy,
		     struct err *err);

/* Whether its machines reach anything outside, or could once their owner lets them: with ports
 * alone they cannot. */
bool spec_has_network(const struct spec *spec);

/* Whether the machine that runs the lines of a build does: then it comes from somewhere on the
 * network, or build_network says so. */
bool spec_has_build_network(const struct spec *spec);

/* 0 when name follows [A-Za-z0-9][A-Za-z0-9._-]{0,63}, else -EINVAL with err filled. */
int spec_check_name(const char *name, struct err *err);

/* 0 when "KEY=VALUE" has an identifier as key and no newline in the value, else -EINVAL. */
int spec_check_env(const char *assignment, struct err *err);

/*
 * Takes apart PORT:PORT, ADDRESS:PORT:PORT (an IPv4 address or localhost) or [IPV6]:PORT:PORT; the
 * host's port stands before the guest's. text is not trusted. Returns 0, or -EINVAL with err filled
 * ("bad-port") and *ret untouched.
 */
int spec_parse_port(const char *text, struct spec_port *ret, struct err *err);

/*
 * What of the spec the image depends on, as canonical text (stable across versions of libyaml, one
 * "key=value" line each, values quoted). Changing anything else does not make the image stale.
 * *ret_text is owned by the caller. 0 or -ENOMEM.
 */
int spec_image_key(const struct spec *spec, char **ret_text);

/* The same for the snapshot: image key, cpus, ram, data_size, warmup, readonly, engine, and whether
 * there is a network. */
int spec_snapshot_key(const struct spec *spec, char **ret_text);
