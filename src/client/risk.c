#include "client/risk.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/check.h"

static const struct {
	const char *word;
	const char *text;
} risks[RISK_COUNT] = {
	{"executable", "can be executed"},
	{"setid", "runs with the rights of its owner or group (setuid, setgid)"},
	{"link-absolute", "is a link to an absolute path"},
	{"link-out", "is a link that leads out of /data"},
	{"special", "is a device, a fifo or a socket"},
	{"git", "is run by git, or says what git runs"},
	{"ci", "is run by a CI service"},
	{"start-up", "is read by a shell, ssh or an editor as it starts"},
};

/* Names that mean something wherever they stand. A directory's name means all in it too. */
static const struct {
	const char *name;
	enum risk risk;
} names[] = {
	{".gitmodules", RISK_GIT},
	{".gitconfig", RISK_GIT},
	{".gitlab-ci.yml", RISK_CI},
	{"Jenkinsfile", RISK_CI},
	{".ci", RISK_CI},
	{".circleci", RISK_CI},
	{".travis.yml", RISK_CI},
	{".drone.yml", RISK_CI},
	{".woodpecker", RISK_CI},
	{".woodpecker.yml", RISK_CI},
	{"azure-pipelines.yml", RISK_CI},
	{".buildkite", RISK_CI},
	{".bashrc", RISK_START_UP},
	{".bash_profile", RISK_START_UP},
	{".bash_login", RISK_START_UP},
	{".bash_logout", RISK_START_UP},
	{".bash_aliases", RISK_START_UP},
	{".profile", RISK_START_UP},
	{".zshrc", RISK_START_UP},
	{".zshenv", RISK_START_UP},
	{".zprofile", RISK_START_UP},
	{".zlogin", RISK_START_UP},
	{".cshrc", RISK_START_UP},
	{".login", RISK_START_UP},
	{".kshrc", RISK_START_UP},
	{".ssh", RISK_START_UP},
	{".envrc", RISK_START_UP},
	{".direnvrc", RISK_START_UP},
	{".vimrc", RISK_START_UP},
	{".exrc", RISK_START_UP},
	{".vscode", RISK_START_UP},
	{".pam_environment", RISK_START_UP},
	{".xprofile", RISK_START_UP},
	{".inputrc", RISK_START_UP},
};

/* Names that mean something right below another. */
static const struct {
	const char *above;
	const char *name;
	enum risk risk;
} pairs[] = {
	{".github", "workflows", RISK_CI},
	{".config", "fish", RISK_START_UP},
	{".config", "git", RISK_GIT},
};

static bool is_name(const char *at, size_t size, const char *name)
{
	return strlen(name) == size && memcmp(at, name, size) == 0;
}

/* One component of a path; before is the one above it. in_git: one above is ".git". */
static unsigned risk_of_name(const char *at, size_t size, const char *before, size_t before_size,
			     bool in_git)
{
	unsigned found = 0;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		found |= is_name(at, size, names[i].name) ? (unsigned)names[i].risk : 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
		found |= before && is_name(before, before_size, pairs[i].above) &&
					 is_name(at, size, pairs[i].name)
				 ? (unsigned)pairs[i].risk
				 : 0;
	}
	/* Modules and work trees have hooks and settings deeper inside. */
	if (in_git && (is_name(at, size, "hooks") || is_name(at, size, "config") ||
		       is_name(at, size, "config.worktree") || is_name(at, size, "info"))) {
		found |= RISK_GIT;
	}
	return found;
}

static unsigned risk_of_path(const struct change *change)
{
	const char *before = NULL, *at = change->path;
	size_t before_size = 0;
	bool in_git = false;
	unsigned found = 0;

	for (;;) {
		size_t size = strcspn(at, "/");
		bool is_git = is_name(at, size, ".git");

		found |= risk_of_name(at, size, before, before_size, in_git);
		if (at[size] == '\0') {
			/* What is in a renamed directory comes along unseen, and a file of this
			 * name says where the real one is. */
			bool unseen = change->kind == CHANGE_RENAMED ||
				      change->new.type != CHANGE_TYPE_DIRECTORY;

			found |= is_git && unseen ? (unsigned)RISK_GIT : 0;
			found |= is_name(at, size, ".github") && unseen ? (unsigned)RISK_CI : 0;
			return found;
		}
		in_git = in_git || is_git;
		before = at;
		before_size = size;
		at += size + 1;
	}
}

/* Whether a relative target leads above /data, as it is written. */
static bool leads_out(const char *path, const char *target)
{
	long depth = 0;

	for (; *path; path++) {
		depth += *path == '/';
	}
	while (*target) {
		size_t size = strcspn(target, "/");

		if (is_name(target, size, "..")) {
			depth--;
		} else if (size > 0 && !is_name(target, size, ".")) {
			depth++;
		}
		if (depth < 0) {
			return true;
		}
		target += size + (target[size] == '/');
	}
	return false;
}

unsigned risk_of(const struct change *change)
{
	const uint32_t flags = CHANGE_FLAG_CONTENT | CHANGE_FLAG_TYPE | CHANGE_FLAG_MODE;
	unsigned found;

	if (change->kind == CHANGE_DELETED) {
		return 0;
	}
	found = risk_of_path(change);
	switch (change->new.type) {
	case CHANGE_TYPE_FILE:
		if (change->kind == CHANGE_ADDED || (change->flags & flags) != 0) {
			found |= (change->new.mode & 0111) != 0 ? (unsigned)RISK_EXECUTABLE : 0;
		}
		found |= (change->new.mode & 06000) != 0 ? (unsigned)RISK_SETID : 0;
		break;
	case CHANGE_TYPE_SYMLINK:
		found |= change->new_target[0] == '/' ? (unsigned)RISK_LINK_ABSOLUTE
			 : leads_out(change->path, change->new_target) ? (unsigned)RISK_LINK_OUT
								       : 0;
		break;
	case CHANGE_TYPE_DIRECTORY:
		break;
	default:
		found |= RISK_SPECIAL;
		break;
	}
	return found;
}

const char *risk_text(size_t at)
{
	return risks[at].text;
}

const char *risk_word(size_t at)
{
	return risks[at].word;
}
