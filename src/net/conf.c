#include "net/conf.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "wire/dns.h"

#define DNS_PORT 53
/* Words of one line that are looked at: an address and its names. */
#define WORDS_MAX 64
/* A name with a dot at its end, or an address with a zone. */
#define WORD_MAX 255

struct words {
	size_t count;
	char word[WORDS_MAX][WORD_MAX + 1];
};

/* Takes the next line out of a text, without its comment, in words. What is too long is left out.
 * Returns false at the end. */
static bool next_line(const char **text, size_t *size, struct words *words)
{
	const char *line = *text;
	const char *end;
	size_t length;

	if (*size == 0) {
		return false;
	}
	end = memchr(line, '\n', *size);
	length = end ? (size_t)(end - line) : *size;
	*text += length + (end != NULL);
	*size -= length + (end != NULL);
	words->count = 0;
	for (size_t i = 0; i < length && words->count < WORDS_MAX;) {
		size_t start = i;

		if (line[i] == '#' || line[i] == ';') {
			break;
		}
		while (i < length && !memchr(" \t\r\0#;", line[i], 6)) {
			i++;
		}
		if (i > start && i - start <= WORD_MAX) {
			memcpy(words->word[words->count], line + start, i - start);
			words->word[words->count++][i - start] = '\0';
		}
		i += i == start || (i < length && line[i] != '#' && line[i] != ';');
	}
	return true;
}

/* Any spelling that means one address without doubt will do here. */
static bool read_address(const char *text, struct policy_address *ret_address)
{
	int rc = policy_address_parse(text, ret_address);

	return rc == 0 || rc == -ENOTUNIQ;
}

void conf_socket_address(const struct policy_address *address, uint16_t port,
			 struct sockaddr_storage *ret_address, socklen_t *ret_size)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};

	memset(ret_address, 0, sizeof(*ret_address));
	if (address->family == 4) {
		memcpy(&v4.sin_addr, address->bytes, sizeof(v4.sin_addr));
		memcpy(ret_address, &v4, sizeof(v4));
		*ret_size = sizeof(v4);
		return;
	}
	ASSERT(address->family == 6);
	memcpy(&v6.sin6_addr, address->bytes, sizeof(v6.sin6_addr));
	memcpy(ret_address, &v6, sizeof(v6));
	*ret_size = sizeof(v6);
}

/* ADDRESS or ADDRESS%NUMBER. */
static void add_server(struct conf *conf, char *text)
{
	struct sockaddr_storage *server = &conf->servers[conf->server_count];
	struct policy_address address;
	char *zone = strchr(text, '%'), *end = NULL;
	unsigned long number = 0;
	socklen_t size;

	if (zone) {
		*zone++ = '\0';
		number = strtoul(zone, &end, 10);
		if (*zone < '0' || *zone > '9' || *end != '\0' || number > UINT32_MAX) {
			return;
		}
	}
	if (conf->server_count == CONF_SERVERS_MAX || !read_address(text, &address)) {
		return;
	}
	conf_socket_address(&address, DNS_PORT, server, &size);
	if (address.family == 6) {
		struct sockaddr_in6 v6;

		memcpy(&v6, server, sizeof(v6));
		v6.sin6_scope_id = (uint32_t)number;
		memcpy(server, &v6, sizeof(v6));
	}
	conf->server_count++;
}

/* The number behind a prefix, at least 1 and at most max, or what it was. */
static unsigned read_option(const char *word, const char *prefix, unsigned max, unsigned before)
{
	unsigned long number;
	char *end;

	if (strncmp(word, prefix, strlen(prefix)) != 0) {
		return before;
	}
	word += strlen(prefix);
	number = strtoul(word, &end, 10);
	if (*word < '0' || *word > '9' || *end != '\0') {
		return before;
	}
	return (unsigned)MIN(MAX(number, 1UL), (unsigned long)max);
}

static void read_options(struct conf *conf, const struct words *words)
{
	for (size_t i = 1; i < words->count; i++) {
		const char *word = words->word[i];

		conf->timeout_s =
			read_option(word, "timeout:", CONF_TIMEOUT_MAX_S, conf->timeout_s);
		conf->attempts = read_option(word, "attempts:", CONF_ATTEMPTS_MAX, conf->attempts);
		conf->rotate |= strcmp(word, "rotate") == 0;
		conf->use_tcp |= strcmp(word, "use-vc") == 0;
	}
}

void conf_read_resolver(struct conf *conf, const char *text, size_t size)
{
	struct words words;

	conf->server_count = 0;
	conf->timeout_s = CONF_TIMEOUT_S;
	conf->attempts = CONF_ATTEMPTS;
	conf->rotate = conf->use_tcp = false;
	while (next_line(&text, &size, &words)) {
		if (words.count >= 2 && strcmp(words.word[0], "nameserver") == 0) {
			add_server(conf, words.word[1]);
		} else if (words.count >= 2 && strcmp(words.word[0], "options") == 0) {
			read_options(conf, &words);
		}
	}
	if (conf->server_count == 0) {
		/* resolv.conf(5): "the name server on the local machine". */
		char local[] = "127.0.0.1";

		add_server(conf, local);
	}
}

static bool has_name(const struct words *words, const char *name)
{
	size_t length = strlen(name);

	for (size_t i = 1; i < words->count; i++) {
		const char *word = words->word[i];

		if (strncasecmp(word, name, length) == 0 &&
		    (word[length] == '\0' || strcmp(word + length, ".") == 0)) {
			return true;
		}
	}
	return false;
}

size_t conf_find_host(const struct conf *conf, const char *name, struct policy_address *addresses,
		      size_t max)
{
	const char *text = conf->hosts;
	size_t size = conf->hosts_size, count = 0;
	struct words words;

	while (count < max && next_line(&text, &size, &words)) {
		if (words.count >= 2 && has_name(&words, name) &&
		    read_address(words.word[0], &addresses[count])) {
			count++;
		}
	}
	return count;
}
