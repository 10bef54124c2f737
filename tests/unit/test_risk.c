/* src/client: which changes deserve a look. */
#include "client/risk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"

static unsigned risk_at(const char *path, uint32_t type, uint32_t mode)
{
	const struct change change = {
		.kind = CHANGE_ADDED,
		.new = {.type = type, .mode = mode},
		.path = path,
		.from = "",
		.old_target = "",
		.new_target = type == CHANGE_TYPE_SYMLINK ? "x" : "",
	};

	return risk_of(&change);
}

static void names(void **state)
{
	static const struct {
		const char *path;
		unsigned risk;
	} cases[] = {
		{"plain", 0},
		{"src/config", 0},
		{"hooks/pre-commit", 0},
		{".git/hooks/pre-commit", RISK_GIT},
		{"deep/er/.git/config", RISK_GIT},
		{".git/modules/m/hooks/x", RISK_GIT},
		{".git/objects/ab/cd", 0},
		{".gitignore", 0},
		{".gitmodules", RISK_GIT},
		{"sub/.git", RISK_GIT},
		{".github/workflows/x.yml", RISK_CI},
		{".github/README", 0},
		{"workflows/x.yml", 0},
		{".gitlab-ci.yml", RISK_CI},
		{"Jenkinsfile", RISK_CI},
		{"Jenkinsfile2", 0},
		{".ci/x/y", RISK_CI},
		{"home/.bashrc", RISK_START_UP},
		{"home/.ssh/authorized_keys", RISK_START_UP},
		{".config/fish/config.fish", RISK_START_UP},
		{".config/other", 0},
		{".envrc", RISK_START_UP},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_int_equal(risk_at(cases[i].path, CHANGE_TYPE_FILE, 0644), cases[i].risk);
	}
}

static void kinds(void **state)
{
	struct change change = {
		.kind = CHANGE_MODIFIED,
		.flags = CHANGE_FLAG_OWNER,
		.old = {.type = CHANGE_TYPE_FILE, .mode = 0755},
		.new = {.type = CHANGE_TYPE_FILE, .mode = 0755},
		.path = "run",
		.from = "",
		.old_target = "",
		.new_target = "",
	};

	(void)state;
	assert_int_equal(risk_of(&change), 0);
	change.flags = CHANGE_FLAG_CONTENT;
	assert_int_equal(risk_of(&change), RISK_EXECUTABLE);
	change.new.mode = 06755;
	assert_int_equal(risk_of(&change), RISK_EXECUTABLE | RISK_SETID);
	change.kind = CHANGE_DELETED;
	assert_int_equal(risk_of(&change), 0);
	assert_int_equal(risk_at("d", CHANGE_TYPE_DIRECTORY, 02755), 0);
	assert_int_equal(risk_at(".git", CHANGE_TYPE_DIRECTORY, 0755), 0);
	assert_int_equal(risk_at("p", CHANGE_TYPE_FIFO, 0644), RISK_SPECIAL);
	/* What is in a renamed directory has no records of its own. */
	change = (struct change){.kind = CHANGE_RENAMED,
				 .old = {.type = CHANGE_TYPE_DIRECTORY},
				 .new = {.type = CHANGE_TYPE_DIRECTORY},
				 .path = "x/.git",
				 .from = "y",
				 .old_target = "",
				 .new_target = ""};
	assert_int_equal(risk_of(&change), RISK_GIT);
}

static void links(void **state)
{
	static const struct {
		const char *path, *target;
		unsigned risk;
	} cases[] = {
		{"l", "a/b", 0},
		{"l", "/etc", RISK_LINK_ABSOLUTE},
		{"l", "..", RISK_LINK_OUT},
		{"d/l", "..", 0},
		{"d/l", "../..", RISK_LINK_OUT},
		{"d/l", "./.././x", 0},
		{"l", "a/../../b", RISK_LINK_OUT},
		{"l", "..a", 0},
		{"a/b/l", "..//../x", 0},
		{"a/b/l", "../../../x", RISK_LINK_OUT},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct change change = {
			.kind = CHANGE_ADDED,
			.new = {.type = CHANGE_TYPE_SYMLINK, .mode = 0777},
			.path = cases[i].path,
			.from = "",
			.old_target = "",
			.new_target = cases[i].target,
		};

		assert_int_equal(risk_of(&change), cases[i].risk);
	}
}

static void every_risk_has_its_words(void **state)
{
	(void)state;
	for (size_t i = 0; i < RISK_COUNT; i++) {
		assert_true(strlen(risk_text(i)) > 0);
		assert_true(strlen(risk_word(i)) > 0);
		for (size_t k = 0; k < i; k++) {
			assert_string_not_equal(risk_word(i), risk_word(k));
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names),
		cmocka_unit_test(kinds),
		cmocka_unit_test(links),
		cmocka_unit_test(every_risk_has_its_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
