#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/text.h"
#include "cli/run.h"
#include "spec/spec.h"

/* TERM, COLORTERM and LANG; never 0, so that nothing is of size 0. */
#define CALLER_KEYS 3

static size_t key_length(const char *assignment)
{
	return strcspn(assignment, "=");
}

static void set_item(struct env_list *list, const char *assignment)
{
	size_t length = key_length(assignment);

	for (size_t i = 0; i < list->count; i++) {
		if (key_length(list->items[i]) == length &&
		    strncmp(list->items[i], assignment, length) == 0) {
			list->items[i] = assignment;
			return;
		}
	}
	list->items[list->count++] = assignment;
}

/* KEY alone: the caller's own value. */
static int set_from_caller(struct env_list *list, const char *key, struct err *err)
{
	const char *value = getenv(key);
	char *assignment;
	int rc;

	if (!value) {
		return 0;
	}
	if (asprintf(&assignment, "%s=%s", key, value) < 0) {
		return err_context(err, -ENOMEM, "environment");
	}
	list->made[list->made_count++] = assignment;
	rc = spec_check_env(assignment, err);
	if (rc == 0) {
		set_item(list, assignment);
	}
	return rc;
}

static int check_key(const char *key, struct err *err)
{
	_cleanup_free_ char *probe = NULL;

	if (asprintf(&probe, "%s=", key) < 0) {
		return err_context(err, -ENOMEM, "environment");
	}
	return spec_check_env(probe, err);
}

static int set_option(struct env_list *list, const char *option, struct err *err)
{
	int rc = strchr(option, '=') ? spec_check_env(option, err) : check_key(option, err);

	if (rc < 0) {
		return rc == -EINVAL ? err_context(err, rc, "--env") : rc;
	}
	if (strchr(option, '=')) {
		set_item(list, option);
		return 0;
	}
	return set_from_caller(list, option, err);
}

static bool has_key(const struct env_list *list, const char *key)
{
	size_t length = strlen(key);

	for (size_t i = 0; i < list->count; i++) {
		if (strncmp(list->items[i], key, length) == 0 && list->items[i][length] == '=') {
			return true;
		}
	}
	return false;
}

static int set_missing(struct env_list *list, const char *key, struct err *err)
{
	return has_key(list, key) ? 0 : set_from_caller(list, key, err);
}

int env_list_make(const struct env_input *input, struct env_list *ret_list, struct err *err)
{
	struct env_list list = {0};
	int rc = 0;

	list.items =
		calloc(input->base_count + input->option_count + CALLER_KEYS, sizeof(*list.items));
	list.made = calloc(input->option_count + CALLER_KEYS, sizeof(*list.made));
	if (!list.items || !list.made) {
		rc = err_context(err, -ENOMEM, "environment");
	}
	for (size_t i = 0; rc == 0 && i < input->base_count; i++) {
		set_item(&list, input->base[i]);
	}
	for (size_t i = 0; rc == 0 && i < input->option_count; i++) {
		rc = set_option(&list, input->options[i], err);
	}
	if (rc == 0 && (input->terminal || input->login)) {
		rc = set_missing(&list, "TERM", err);
	}
	if (rc == 0 && input->login) {
		rc = set_missing(&list, "COLORTERM", err);
	}
	if (rc == 0 && input->login) {
		rc = set_missing(&list, "LANG", err);
	}
	if (rc == 0 && MUTANT("environment-inside")) {
		rc = set_missing(&list, "ESCAPE_SECRET", err);
	}
	if (rc < 0) {
		env_list_free(&list);
		return rc;
	}
	*ret_list = list;
	return 0;
}

void env_list_free(struct env_list *list)
{
	for (size_t i = 0; i < list->made_count; i++) {
		free(list->made[i]);
	}
	free(list->made);
	free(list->items);
	*list = (struct env_list){0};
}

int run_parse_timeout(const char *command, const char *text, uint32_t *ret_seconds, struct err *err)
{
	char quoted[128];
	char *end;
	unsigned long long value;
	int rc;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && value <= UINT32_MAX) {
		*ret_seconds = (uint32_t)value;
		return 0;
	}
	text_quote(text, strlen(text), quoted, sizeof(quoted));
	rc = err_set(err, -EINVAL, "usage", "%s: --timeout: \"%s\" is no number of seconds",
		     command, quoted);
	err_mend(err, "write whole seconds, such as --timeout 30");
	return rc;
}
