/*
 * The keys under blueprint, in the spellings of cloud-init where these mean the same here.
 */
#include "spec/keys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

/* People who share one sandbox are few; groups are those of the image. */
#define USERS_MAX 32
#define GROUPS_MAX 32
#define FILES_MAX 256
#define COMMANDS_MAX 256
/* Above it lie the IDs that distributions give away themselves. */
#define UID_MAX 59999

static int ignored(struct spec_reader *reader, const struct spec_key *key,
		   const struct spec_node *value, void *target)
{
	(void)target;
	return spec_notice(reader, value, "%s of a user has no meaning here and is ignored",
			   key->name);
}

/* A list, or one text with commas, as cloud-init allows. */
static int read_groups(struct spec_reader *reader, const struct spec_key *key,
		       const struct spec_node *value, void *target)
{
	_cleanup_free_ char *text = NULL;
	struct spec_user *user = target;
	char *state = NULL;

	if (value->kind != SPEC_NODE_SCALAR) {
		return spec_read_list(reader, key, value, target);
	}
	text = strdup(value->text);
	if (!text) {
		return -ENOMEM;
	}
	for (char *group = strtok_r(text, ", ", &state); group;
	     group = strtok_r(NULL, ", ", &state)) {
		const char *reason = spec_rule_user(group);

		if (reason) {
			return spec_refuse(reader, key->name, value, reason);
		}
		if (user->group_count >= key->maximum) {
			return spec_fail(&reader->source, value, "more than %d groups", GROUPS_MAX);
		}
		if (spec_list_add(&user->groups, &user->group_count, strdup(group)) < 0) {
			return -ENOMEM;
		}
	}
	return 0;
}

#define USER(member) offsetof(struct spec_user, member)

static const struct spec_key user_keys[] = {
	{"name", spec_read_string, USER(name), .rule = spec_rule_user},
	{"uid", spec_read_u32, USER(uid), .minimum = 1, .maximum = UID_MAX},
	{"shell", spec_read_string, USER(shell), .rule = spec_rule_guest_path},
	{"groups", read_groups, USER(groups), USER(group_count), .maximum = GROUPS_MAX,
	 .rule = spec_rule_user},
	/* Of cloud-init. Leaving them out takes nothing away but privilege. */
	{"gecos", ignored},
	{"lock_passwd", ignored},
	{"sudo", ignored},
	{"ssh_authorized_keys", ignored},
	{0},
};

/* A new zeroed element at the end of an array, or NULL. The array belongs to the spec already. */
static void *grow(void **array, size_t *count, size_t size)
{
	char *grown = reallocarray(*array, *count + 1, size);

	if (!grown) {
		return NULL;
	}
	*array = grown;
	memset(grown + *count * size, 0, size);
	return grown + (*count)++ * size;
}

static int check_user(const struct spec_reader *reader, const struct spec_node *node)
{
	const struct spec *spec = reader->spec;
	const struct spec_user *user = &spec->users[spec->user_count - 1];

	if (!user->name) {
		return spec_fail(&reader->source, node, "a user needs a name");
	}
	if (strcmp(user->name, "root") == 0) {
		return spec_fail(&reader->source, node, "root is there already");
	}
	for (const struct spec_user *other = spec->users; other < user; other++) {
		if (strcmp(other->name, user->name) == 0) {
			return spec_fail(&reader->source, node, "the user \"%s\" stands twice",
					 user->name);
		}
		if (user->uid != 0 && other->uid == user->uid) {
			return spec_fail(&reader->source, node, "\"%s\" and \"%s\" have one uid",
					 other->name, user->name);
		}
	}
	return 0;
}

static int read_user(struct spec_reader *reader, const struct spec_key *key,
		     const struct spec_node *item)
{
	struct spec *spec = reader->spec;
	struct spec_user *user;
	int rc;

	if (item->kind == SPEC_NODE_SCALAR && strcmp(item->text, "default") == 0) {
		return spec_notice(reader, item, "there is no default user here; ignored");
	}
	if (spec->user_count >= USERS_MAX) {
		return spec_fail(&reader->source, item, "more than %d users", USERS_MAX);
	}
	user = grow((void **)&spec->users, &spec->user_count, sizeof(*user));
	if (!user) {
		return -ENOMEM;
	}
	if (item->kind == SPEC_NODE_SCALAR) {
		struct spec_key name = user_keys[0];

		name.name = key->name;
		rc = spec_read_string(reader, &name, item, user);
	} else {
		rc = spec_read_map(reader, "a user", user_keys, item, user);
	}
	return rc < 0 ? rc : check_user(reader, item);
}

static int read_users(struct spec_reader *reader, const struct spec_key *key,
		      const struct spec_node *value, void *target)
{
	int rc = spec_want(reader, key->name, value, SPEC_NODE_LIST);

	(void)target;
	for (const struct spec_node *item = value->first; rc == 0 && item; item = item->next) {
		rc = read_user(reader, key, item);
	}
	return rc;
}

/* Octal, with or without a 0 or 0o before it, as YAML writers spell it. */
static int read_mode(struct spec_reader *reader, const struct spec_key *key,
		     const struct spec_node *value, void *target)
{
	struct spec_file *file = target;
	uint64_t mode;
	const char *text;
	int rc = spec_want(reader, key->name, value, SPEC_NODE_SCALAR);

	if (rc < 0) {
		return rc;
	}
	text = strncmp(value->text, "0o", 2) == 0 ? value->text + 2 : value->text;
	/* A file with the setuid bit is made by a run line, where it is seen for what it is. */
	if (strlen(text) < 3 || strlen(text) > 5 ||
	    spec_read_number(text, 8, key->maximum, &mode) < 0) {
		return spec_refuse(reader, key->name, value,
				   "is not an octal mode up to 0777 (such as \"0644\")");
	}
	file->mode = (uint32_t)mode;
	return 0;
}

static const char *any_text(const char *text)
{
	(void)text;
	return NULL;
}

static int read_encoding(struct spec_reader *reader, const struct spec_key *key,
			 const struct spec_node *value, void *target)
{
	static const char *const words[] = {"text/plain", NULL};
	unsigned index;

	(void)target;
	return spec_read_word(reader, key, value, words, &index);
}

#define FILE_(member) offsetof(struct spec_file, member)

static const struct spec_key file_keys[] = {
	{"path", spec_read_string, FILE_(path), .rule = spec_rule_guest_path},
	{"content", spec_read_string, FILE_(content), .rule = any_text},
	{"permissions", read_mode, .maximum = 0777},
	{"mode", read_mode, .maximum = 0777},
	{"owner", spec_read_string, FILE_(owner), .rule = spec_rule_owner},
	{"encoding", read_encoding},
	{0},
};

static int read_file(struct spec_reader *reader, const struct spec_node *item)
{
	struct spec *spec = reader->spec;
	struct spec_file *file;
	int rc;

	if (spec->file_count >= FILES_MAX) {
		return spec_fail(&reader->source, item, "more than %d files", FILES_MAX);
	}
	file = grow((void **)&spec->files, &spec->file_count, sizeof(*file));
	if (!file) {
		return -ENOMEM;
	}
	file->mode = 0644;
	rc = spec_read_map(reader, "a file", file_keys, item, file);
	if (rc < 0) {
		return rc;
	}
	if (!file->path) {
		return spec_fail(&reader->source, item, "a file needs a path");
	}
	if (spec_find(item, "permissions") && spec_find(item, "mode")) {
		return spec_fail(&reader->source, item,
				 "permissions and mode are the same; write one");
	}
	if (!file->content) {
		file->content = strdup("");
	}
	return file->content ? 0 : -ENOMEM;
}

static int read_files(struct spec_reader *reader, const struct spec_key *key,
		      const struct spec_node *value, void *target)
{
	int rc = spec_want(reader, key->name, value, SPEC_NODE_LIST);

	(void)target;
	for (const struct spec_node *item = value->first; rc == 0 && item; item = item->next) {
		rc = read_file(reader, item);
	}
	return rc;
}

/* Writes one argument so that a shell reads back exactly it; returns the new end of line. */
static char *quote_argument(char *end, const char *argument)
{
	static const char safe[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:,@%";

	if (argument[0] != '\0' && argument[strspn(argument, safe)] == '\0') {
		return (char *)mempcpy(end, argument, strlen(argument) + 1) - 1;
	}
	*end++ = '\'';
	for (; *argument; argument++) {
		if (*argument == '\'') {
			end = mempcpy(end, "'\\''", 4);
		} else {
			*end++ = *argument;
		}
	}
	*end++ = '\'';
	*end = '\0';
	return end;
}

/* Makes one shell line of a list of arguments. */
static int join_arguments(struct spec_reader *reader, const struct spec_node *list, char **ret_line)
{
	_cleanup_free_ char *line = NULL;
	/* For an empty list already wrong, but terminated. */
	size_t capacity = 1;
	char *end;

	for (const struct spec_node *item = list->first; item; item = item->next) {
		int rc = spec_want(reader, "an argument of runcmd", item, SPEC_NODE_SCALAR);

		if (rc < 0) {
			return rc;
		}
		/* At worst every letter is a quotation mark of four, between two and a space. */
		capacity += 4 * strlen(item->text) + 3;
	}
	line = malloc(capacity);
	if (!line) {
		return -ENOMEM;
	}
	end = line;
	*end = '\0';
	for (const struct spec_node *item = list->first; item; item = item->next) {
		if (item != list->first) {
			*end++ = ' ';
		}
		end = quote_argument(end, item->text);
	}
	*ret_line = TAKE_PTR(line);
	return 0;
}

static int read_runcmd(struct spec_reader *reader, const struct spec_key *key,
		       const struct spec_node *value, void *target)
{
	struct spec *spec = target;
	int rc = spec_want(reader, key->name, value, SPEC_NODE_LIST);

	for (const struct spec_node *item = value->first; rc == 0 && item; item = item->next) {
		_cleanup_free_ char *line = NULL;
		const char *reason;

		if (spec->runcmd_count >= COMMANDS_MAX) {
			return spec_fail(&reader->source, item, "more than %d commands",
					 COMMANDS_MAX);
		}
		if (item->kind == SPEC_NODE_LIST) {
			rc = join_arguments(reader, item, &line);
			if (rc < 0) {
				return rc;
			}
		} else if (item->kind == SPEC_NODE_MAP) {
			return spec_want(reader, "a command", item, SPEC_NODE_SCALAR);
		}
		reason = spec_rule_shell(line ? line : item->text);
		if (reason) {
			return spec_fail(&reader->source, item, "runcmd: the command %s", reason);
		}
		rc = spec_list_add(&spec->runcmd, &spec->runcmd_count,
				   line ? TAKE_PTR(line) : strdup(item->text));
	}
	return rc;
}

/* target is the spec itself. */
static const struct spec_key blueprint_keys[] = {
	{"users", read_users},
	{"write_files", read_files},
	{"files", read_files},
	{"runcmd", read_runcmd},
	{"packages", spec_read_list, offsetof(struct spec, packages),
	 offsetof(struct spec, package_count), .maximum = SPEC_PACKAGES_MAX,
	 .rule = spec_rule_package},
	{0},
};

int spec_read_blueprint(struct spec_reader *reader, const struct spec_key *key,
			const struct spec_node *value, void *target)
{
	return spec_read_map(reader, key->name, blueprint_keys, value, target);
}
