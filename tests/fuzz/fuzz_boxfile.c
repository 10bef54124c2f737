/*
 * Any bytes as a Boxfile. What parses must have well-formed keys for image and snapshot, and must
 * give the same answer when it is read once more; what does not must say where and why.
 */
#include "fuzz.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "spec/spec.h"

/* Every line of a key is NAME= or NAME="...", printable: nothing can end it early. */
static void check_lines(const char *text)
{
	size_t length = strlen(text);

	ASSERT(length > 0 && text[length - 1] == '\n');
	for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
		const char *end = strchr(line, '\n');
		const char *equals = memchr(line, '=', (size_t)(end - line));

		ASSERT(equals);
		ASSERT(equals + 1 == end || (equals[1] == '"' && end[-1] == '"'));
		for (const char *at = line; at < end; at++) {
			ASSERT((unsigned char)*at >= 0x20 && *at != 0x7f);
		}
	}
}

static void check_limits(const struct spec *spec)
{
	ASSERT(spec->base && spec->base_value && spec->user);
	ASSERT(spec->cpus >= 1 && spec->cpus <= 16);
	ASSERT(spec->ram_mib >= 128 && spec->ram_mib <= 1048576);
	ASSERT(spec->warm <= 8);
	ASSERT(spec->warm_idle_seconds >= 10 && spec->warm_idle_seconds <= 86400);
	ASSERT(spec->log_output <= SPEC_LOG_FULL);
	for (size_t i = 0; i < spec->network_port_count; i++) {
		struct spec_port port;

		ASSERT(spec_parse_port(spec->network_ports[i], &port, NULL) == 0);
		ASSERT(port.host != 0 && port.guest != 0 && port.address[0] != '\0');
	}
	for (size_t i = 0; i < spec->env_count; i++) {
		ASSERT(spec_check_env(spec->env[i], NULL) == 0);
	}
	for (size_t i = 0; i < spec->file_count; i++) {
		ASSERT(spec->files[i].path[0] == '/' && spec->files[i].mode <= 0777);
		ASSERT(spec->files[i].content);
	}
	for (size_t i = 0; i < spec->user_count; i++) {
		ASSERT(spec->users[i].name);
	}
	for (size_t i = 0; i < spec->mount_count; i++) {
		ASSERT(spec->mounts[i].host && spec->mounts[i].guest[0] == '/');
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_(spec_freep) struct spec *spec = NULL, *again = NULL;
	_cleanup_free_ char *image = NULL, *snapshot = NULL, *snapshot_again = NULL;
	struct err err = {0};
	int rc = spec_parse((const char *)data, size, "F", &spec, &err);

	if (rc < 0) {
		ASSERT(rc == -EINVAL && !spec);
		ASSERT(strncmp(err.text, "F:", 2) == 0 && err.text[2] >= '1' && err.text[2] <= '9');
		for (const char *at = err.text; *at; at++) {
			ASSERT((unsigned char)*at >= 0x20 && *at != 0x7f);
		}
		return 0;
	}
	ASSERT(err.text[0] == '\0');
	check_limits(spec);
	spec_check_available(spec, "F", &err);
	ASSERT(spec_image_key(spec, &image) == 0);
	ASSERT(spec_snapshot_key(spec, &snapshot) == 0);
	ASSERT(strncmp(snapshot, image, strlen(image)) == 0);
	check_lines(snapshot);
	ASSERT(spec_parse((const char *)data, size, "F", &again, NULL) == 0);
	ASSERT(spec_snapshot_key(again, &snapshot_again) == 0);
	ASSERT(strcmp(snapshot, snapshot_again) == 0);
	return 0;
}
