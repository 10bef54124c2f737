#include "client/mirror.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

/* apt's files are written by hand; this is a thousand times the usual size. */
#define SOURCES_FILE_MAX ((size_t)1 << 20)
/* Words of one field or line that are looked at. Real entries have fewer than ten. */
#define WORDS_MAX 64
#define SOURCES_DIRECTORY "/etc/apt/sources.list.d"

enum {
	SCORE_OTHER_SUITE = 1,
	SCORE_PLAIN = 2,
	SCORE_DEBIAN = 3,
};

/* One entry of either format. The words point into a writable copy of the text. */
struct entry {
	bool is_deb;
	bool disabled;
	bool has_key;
	char *uris[WORDS_MAX];
	size_t uri_count;
	char *suites[WORDS_MAX];
	size_t suite_count;
	char *components[WORDS_MAX];
	size_t component_count;
};

bool mirror_check_uri(const char *uri)
{
	const char *path;

	if (strncmp(uri, "http://", 7) == 0) {
		path = uri + 7;
	} else if (strncmp(uri, "https://", 8) == 0) {
		path = uri + 8;
	} else if (strncmp(uri, "file:/", 6) == 0) {
		path = uri + 6;
	} else {
		return false;
	}
	if (*path == '\0' || strlen(uri) >= MIRROR_URI_MAX) {
		return false;
	}
	for (; *path; path++) {
		if (*path <= ' ' || *path >= 0x7f || strchr("[]\"'\\<>", *path)) {
			return false;
		}
	}
	return true;
}

bool mirror_rule(const char *uri, char *out)
{
	static const struct {
		const char *scheme;
		const char *port;
	} known[] = {{"http://", ":80"}, {"https://", ":443"}};

	for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
		size_t length = strlen(known[i].scheme);
		const char *host = uri + length, *end, *at;

		if (strncmp(uri, known[i].scheme, length) != 0) {
			continue;
		}
		end = host + strcspn(host, "/?#");
		at = memrchr(host, '@', (size_t)(end - host));
		host = at ? at + 1 : host;
		snprintf(out, MIRROR_RULE_MAX, "%.*s%s", (int)(end - host), host,
			 memchr(host, ':', (size_t)(end - host)) ? "" : known[i].port);
		return true;
	}
	return false;
}

static bool has_word(char *const *words, size_t count, const char *word)
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(words[i], word) == 0) {
			return true;
		}
	}
	return false;
}

/* True for an archive laid out as Debian's own mirrors are: the last part of the path is "debian",
 * or it is a dated copy below "archive/debian". */
static bool is_debian_archive(const char *uri)
{
	size_t length = strlen(uri);

	while (length > 0 && uri[length - 1] == '/') {
		length--;
	}
	if (length >= 7 && strncmp(uri + length - 7, "/debian", 7) == 0) {
		return true;
	}
	return strstr(uri, "/archive/debian/") != NULL;
}

static unsigned int score_entry(const struct entry *entry, const char *suite)
{
	bool listed = has_word(entry->suites, entry->suite_count, suite);

	if (is_debian_archive(entry->uris[0])) {
		return listed ? SCORE_DEBIAN : SCORE_OTHER_SUITE;
	}
	return listed && !entry->has_key ? SCORE_PLAIN : 0;
}

static void take_entry(const struct entry *entry, const char *suite, struct mirror *mirror)
{
	char security[128];
	unsigned int score;

	if (!entry->is_deb || entry->disabled || entry->uri_count == 0 ||
	    !mirror_check_uri(entry->uris[0]) ||
	    !has_word(entry->components, entry->component_count, "main")) {
		return;
	}
	snprintf(security, sizeof(security), "%s-security", suite);
	if (has_word(entry->suites, entry->suite_count, security) &&
	    mirror->security_uri[0] == '\0') {
		snprintf(mirror->security_uri, sizeof(mirror->security_uri), "%s", entry->uris[0]);
		if (entry->suite_count == 1) {
			return;
		}
	}
	score = score_entry(entry, suite);
	if (score > mirror->score) {
		snprintf(mirror->uri, sizeof(mirror->uri), "%s", entry->uris[0]);
		mirror->score = score;
	}
}

/* Splits text into words in place, appending to words. */
static void split_words(char *text, char **words, size_t *count)
{
	char *state = NULL;

	for (char *word = strtok_r(text, " \t\r", &state); word && *count < WORDS_MAX;
	     word = strtok_r(NULL, " \t\r", &state)) {
		words[(*count)++] = word;
	}
}

/* "deb [options] URI SUITE COMPONENT…" */
static void scan_line(char *line, const char *suite, struct mirror *mirror)
{
	struct entry entry = {0};
	char *comment = strchr(line, '#');
	char *open, *close;

	if (comment) {
		*comment = '\0';
	}
	line += strspn(line, " \t");
	entry.is_deb = strncmp(line, "deb", 3) == 0 && strchr(" \t[", line[3]) && line[3];
	if (!entry.is_deb) {
		return;
	}
	line += 3;
	line += strspn(line, " \t");
	open = *line == '[' ? line : NULL;
	if (open) {
		close = strchr(open, ']');
		if (!close) {
			return;
		}
		*close = '\0';
		entry.has_key = strcasestr(open, "signed-by") != NULL;
		line = close + 1;
	}
	split_words(line, entry.components, &entry.component_count);
	if (entry.component_count < 3) {
		return;
	}
	entry.uris[entry.uri_count++] = entry.components[0];
	entry.suites[entry.suite_count++] = entry.components[1];
	take_entry(&entry, suite, mirror);
}

/* Puts the words of one deb822 field line (or its continuation) into the entry. */
static void scan_field(struct entry *entry, const char *field, char *value)
{
	char *words[WORDS_MAX];
	size_t count = 0;

	if (strcasecmp(field, "URIs") == 0) {
		split_words(value, entry->uris, &entry->uri_count);
	} else if (strcasecmp(field, "Suites") == 0) {
		split_words(value, entry->suites, &entry->suite_count);
	} else if (strcasecmp(field, "Components") == 0) {
		split_words(value, entry->components, &entry->component_count);
	} else if (strcasecmp(field, "Types") == 0) {
		split_words(value, words, &count);
		entry->is_deb = entry->is_deb || has_word(words, count, "deb");
	} else if (strcasecmp(field, "Enabled") == 0) {
		split_words(value, words, &count);
		entry->disabled =
			count > 0 && (strcasecmp(words[0], "no") == 0 ||
				      strcasecmp(words[0], "false") == 0 || words[0][0] == '0');
	} else if (strcasecmp(field, "Signed-By") == 0) {
		/* Debian's own keyring says nothing about whose archive it is not. */
		entry->has_key = entry->has_key || !strstr(value, "debian-archive");
	}
}

static void scan_deb822(char *text, const char *suite, struct mirror *mirror)
{
	struct entry entry = {0};
	const char *field = "";
	char *next;

	for (char *line = text; line; line = next) {
		char *colon;

		next = strchr(line, '\n');
		if (next) {
			*next++ = '\0';
		}
		if (line[0] == '#') {
			continue;
		}
		if (line[strspn(line, " \t\r")] == '\0') {
			take_entry(&entry, suite, mirror);
			entry = (struct entry){0};
			field = "";
			continue;
		}
		if (line[0] == ' ' || line[0] == '\t') {
			scan_field(&entry, field, line);
			continue;
		}
		colon = strchr(line, ':');
		if (colon) {
			*colon = '\0';
			field = line;
			scan_field(&entry, field, colon + 1);
		}
	}
	take_entry(&entry, suite, mirror);
}

void mirror_scan(const char *text, size_t size, bool deb822, const char *suite,
		 struct mirror *mirror)
{
	_cleanup_free_ char *copy = strndup(text, size);
	char *next;

	if (!copy) {
		return;
	}
	if (deb822) {
		scan_deb822(copy, suite, mirror);
		return;
	}
	for (char *line = copy; line; line = next) {
		next = strchr(line, '\n');
		if (next) {
			*next++ = '\0';
		}
		scan_line(line, suite, mirror);
	}
}

static void scan_file(const char *path, const char *suite, struct mirror *mirror)
{
	_cleanup_free_ char *text = NULL;
	const char *dot = strrchr(path, '.');
	size_t size = 0;

	/* A file that cannot be read is as good as none: apt itself says so when it is used. */
	if (read_file_at(AT_FDCWD, path, SOURCES_FILE_MAX, &text, &size) == 0) {
		mirror_scan(text, size, dot && strcmp(dot, ".sources") == 0, suite, mirror);
	}
}

static int is_source_file(const struct dirent *file)
{
	const char *dot = strrchr(file->d_name, '.');

	return dot && (strcmp(dot, ".list") == 0 || strcmp(dot, ".sources") == 0);
}

static void scan_directory(const char *suite, struct mirror *mirror)
{
	struct dirent **files = NULL;
	int count = scandir(SOURCES_DIRECTORY, &files, is_source_file, alphasort);

	for (int i = 0; i < count; i++) {
		char path[sizeof(SOURCES_DIRECTORY) + sizeof(files[i]->d_name) + 1];

		snprintf(path, sizeof(path), SOURCES_DIRECTORY "/%s", files[i]->d_name);
		scan_file(path, suite, mirror);
		free(files[i]);
	}
	free(files);
}

int mirror_find(const char *suite, struct mirror *ret_mirror, struct err *err)
{
	const char *wanted = getenv("BOX_MIRROR");
	struct mirror mirror = {0};
	int rc;

	if (wanted && *wanted) {
		if (!mirror_check_uri(wanted)) {
			rc = err_set(err, -EINVAL, "mirror",
				     "BOX_MIRROR is not the URL of a Debian mirror");
			err_mend(err, "set it to something like http://HOST/debian");
			return rc;
		}
		snprintf(mirror.uri, sizeof(mirror.uri), "%s", wanted);
		mirror.score = SCORE_DEBIAN;
		*ret_mirror = mirror;
		return 0;
	}
	scan_file("/etc/apt/sources.list", suite, &mirror);
	scan_directory(suite, &mirror);
	if (mirror.score == 0) {
		rc = err_set(err, -ENOENT, "no-mirror",
			     "no Debian mirror for %s: apt's sources on this host name none",
			     suite);
		err_mend(err, "set BOX_MIRROR to the URL of a Debian mirror, or use base: tiny");
		return rc;
	}
	*ret_mirror = mirror;
	return 0;
}
