#include "guest/env.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"

/* As login(1) has them: administration programs are only in root's path. */
#define ENV_PATH_ROOT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define ENV_PATH_USER "/usr/local/bin:/usr/bin:/bin"
/* What a terminal of our time understands, when the host does not say which it is. */
#define ENV_TERM "xterm-256color"

const char *env_get(const char **envp, size_t count, const char *key)
{
	size_t length = strlen(key);

	for (size_t i = count; i > 0; i--) {
		const char *entry = envp[i - 1];

		if (strncmp(entry, key, length) == 0 && entry[length] == '=') {
			return entry + length + 1;
		}
	}
	return NULL;
}

size_t env_complete(const char **envp, size_t count, const struct user *user, bool terminal,
		    struct env_defaults *defaults)
{
	const char *name = user->name[0] != '\0' ? user->name : NULL;
	const struct {
		const char *key;
		const char *value;
	} wanted[ENV_DEFAULTS_MAX] = {
		{"PATH", user->uid == 0 ? ENV_PATH_ROOT : ENV_PATH_USER},
		{"HOME", user->home},
		{"USER", name},
		{"LOGNAME", name},
		{"SHELL", user->shell},
		{"TERM", terminal ? ENV_TERM : NULL},
	};
	size_t sent = count;

	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		char *text = defaults->text[i];
		size_t key_length = strlen(wanted[i].key);

		if (!wanted[i].value || env_get(envp, sent, wanted[i].key)) {
			continue;
		}
		ASSERT(key_length + 1 + strlen(wanted[i].value) < sizeof(defaults->text[i]));
		memcpy(text, wanted[i].key, key_length);
		text[key_length] = '=';
		memcpy(text + key_length + 1, wanted[i].value, strlen(wanted[i].value) + 1);
		envp[count++] = text;
	}
	envp[count] = NULL;
	return count;
}

int env_next_candidate(const char **path, const char *name, char *out, size_t size)
{
	const char *directory = *path;
	const char *colon;
	size_t length, name_size = strlen(name) + 1;

	if (!directory) {
		return 0;
	}
	colon = strchr(directory, ':');
	length = colon ? (size_t)(colon - directory) : strlen(directory);
	*path = colon ? colon + 1 : NULL;
	if (length == 0) {
		directory = ".";
		length = 1;
	}
	if (length >= size || name_size >= size - length) {
		return -ENAMETOOLONG;
	}
	memcpy(out, directory, length);
	out[length] = '/';
	memcpy(out + length + 1, name, name_size);
	return 1;
}
