#include "spec/rules.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"
#include "spec/spec.h"

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

/* Debian's longest package names have 80 letters; versions are shorter. */
#define PACKAGE_MAX 256
/* useradd(8). */
#define USER_MAX 32
/* The longest name of a system call has 23 letters. */
#define SYSCALL_MAX 64
/* One variable; all together still fit the message that starts a command. */
#define ENV_MAX 32768

/* True when text is not empty and of these characters only. */
static bool only(const char *text, const char *characters)
{
	return text[0] != '\0' && text[strspn(text, characters)] == '\0';
}

static bool has_control(const char *text, const char *allowed)
{
	for (; *text; text++) {
		unsigned char byte = (unsigned char)*text;

		if ((byte < 0x20 || byte == 0x7f) && !strchr(allowed, byte)) {
			return true;
		}
		/* U+0080 to U+009F; YAML's escapes can write them. */
		if (byte == 0xc2 && (unsigned char)text[1] >= 0x80 &&
		    (unsigned char)text[1] < 0xa0) {
			return true;
		}
	}
	return false;
}

/* Copies length bytes of text into out and terminates them; false when there is no room. */
static bool cut(const char *text, size_t length, char *out, size_t capacity)
{
	if (length >= capacity) {
		return false;
	}
	memcpy(out, text, length);
	out[length] = '\0';
	return true;
}

const char *spec_rule_line(const char *text)
{
	if (text[0] == '\0') {
		return "is empty";
	}
	if (strlen(text) > SPEC_PATH_MAX) {
		return "is too long";
	}
	return has_control(text, "") ? "has a control character in it" : NULL;
}

const char *spec_rule_shell(const char *text)
{
	if (text[strspn(text, " \t\n")] == '\0') {
		return "is empty";
	}
	if (strlen(text) > SPEC_LINE_MAX) {
		return "is longer than 65536 bytes";
	}
	return has_control(text, "\n\t") ? "has a control character in it" : NULL;
}

const char *spec_rule_package(const char *text)
{
	static const char wrong[] =
		"is not a package name (a-z 0-9 + . -, then optionally :ARCH and =VERSION)";
	size_t name = strspn(text, LOWER DIGITS "+.-");
	const char *rest = text + name;

	if (name == 0 || strchr("+.-", text[0]) || strlen(text) > PACKAGE_MAX) {
		return wrong;
	}
	/* apt-get(8) reads a name that ends so as "remove it". */
	if (text[name - 1] == '-') {
		return "ends with -, which would remove the package";
	}
	if (*rest == ':') {
		size_t length = strspn(rest + 1, LOWER DIGITS "-");

		if (length == 0) {
			return wrong;
		}
		rest += 1 + length;
	}
	if (*rest == '=') {
		return only(rest + 1, LOWER UPPER DIGITS "+.~:-") ? NULL : wrong;
	}
	return *rest == '\0' ? NULL : wrong;
}

const char *spec_rule_env(const char *text)
{
	size_t key = strspn(text, LOWER UPPER DIGITS "_");

	if (text[key] != '=') {
		return strchr(text, '=') ? "has a key that is no identifier (A-Z a-z 0-9 _)"
					 : "is not KEY=VALUE";
	}
	if (key == 0 || strchr(DIGITS, text[0])) {
		return "has a key that is no identifier (A-Z a-z 0-9 _)";
	}
	if (strlen(text) > ENV_MAX) {
		return "is longer than 32768 bytes";
	}
	if (strchr(text, '\n')) {
		return "has a newline in its value";
	}
	return has_control(text, "\t") ? "has a control character in its value" : NULL;
}

const char *spec_rule_user(const char *text)
{
	if (!only(text, LOWER DIGITS "_-") || strchr(DIGITS "-", text[0]) ||
	    strlen(text) > USER_MAX) {
		return "is not a user or group name (a-z 0-9 _ -, at most 32, a letter first)";
	}
	return NULL;
}

const char *spec_rule_owner(const char *text)
{
	const char *colon = strchr(text, ':');
	char user[USER_MAX + 1];

	if (!cut(text, colon ? (size_t)(colon - text) : strlen(text), user, sizeof(user)) ||
	    spec_rule_user(user) || (colon && spec_rule_user(colon + 1))) {
		return "is not USER or USER:GROUP";
	}
	return NULL;
}

/* True when a part between slashes is empty, "." or "..". text begins with a slash. */
static bool has_odd_part(const char *text)
{
	while (*text == '/') {
		size_t length = strcspn(text + 1, "/");

		if (length == 0 || (length == 1 && text[1] == '.') ||
		    (length == 2 && text[1] == '.' && text[2] == '.')) {
			return true;
		}
		text += 1 + length;
	}
	return false;
}

const char *spec_rule_guest_path(const char *text)
{
	if (text[0] != '/') {
		return "is not an absolute path";
	}
	if (has_odd_part(text)) {
		return "has an empty part, . or .. in it, or a slash at its end";
	}
	if (strlen(text) >= SPEC_PATH_MAX) {
		return "is too long";
	}
	return only(text, LOWER UPPER DIGITS "._+@-/") ? NULL
						       : "has a character other than A-Z a-z 0-9 "
							 ". _ + @ - / in it";
}

const char *spec_rule_host_path(const char *text)
{
	const char *path = text[0] == '~' ? text + 1 : text;

	if (path[0] != '/') {
		return "is neither absolute nor begins with ~/";
	}
	if (has_odd_part(path)) {
		return "has an empty part, . or .. in it, or a slash at its end";
	}
	return spec_rule_line(text);
}

/* The address as inet_ntop(3) writes it, so that equal ones are equal texts. */
static bool read_address(const char *text, char *out)
{
	unsigned char bytes[16];
	char inner[INET6_ADDRSTRLEN];
	size_t length = strlen(text);

	if (strcmp(text, "localhost") == 0) {
		text = SPEC_PORT_ADDRESS;
	}
	if (inet_pton(AF_INET, text, bytes) == 1) {
		return inet_ntop(AF_INET, bytes, out, INET6_ADDRSTRLEN) != NULL;
	}
	return length > 2 && text[0] == '[' && text[length - 1] == ']' &&
	       cut(text + 1, length - 2, inner, sizeof(inner)) &&
	       inet_pton(AF_INET6, inner, bytes) == 1 &&
	       inet_ntop(AF_INET6, bytes, out, INET6_ADDRSTRLEN) != NULL;
}

static int read_port_parts(const char *text, struct spec_port *ret)
{
	struct spec_port port = {.address = SPEC_PORT_ADDRESS};
	const char *guest = strrchr(text, ':');
	char front[INET6_ADDRSTRLEN + 16];
	uint64_t number;
	char *host;

	if (!guest || spec_read_number(guest + 1, 10, 65535, &number) < 0 || number == 0 ||
	    !cut(text, (size_t)(guest - text), front, sizeof(front))) {
		return -EINVAL;
	}
	port.guest = (uint16_t)number;
	host = strrchr(front, ':');
	if (host) {
		*host++ = '\0';
		if (!read_address(front, port.address)) {
			return -EINVAL;
		}
	}
	if (spec_read_number(host ? host : front, 10, 65535, &number) < 0) {
		return -EINVAL;
	}
	port.host = (uint16_t)number;
	*ret = port;
	return 0;
}

int spec_parse_port(const char *text, struct spec_port *ret, struct err *err)
{
	char quoted[128];
	int rc = read_port_parts(text, ret);

	if (rc < 0) {
		text_quote(text, strlen(text), quoted, sizeof(quoted));
		err_set(err, rc, "bad-port", "\"%s\" does not say which port goes where", quoted);
		err_mend(err, "write HOSTPORT:PORT, ADDRESS:HOSTPORT:PORT or "
			      "[IPV6]:HOSTPORT:PORT");
	}
	return rc;
}

const char *spec_rule_ports(const char *text)
{
	struct spec_port port;

	if (spec_parse_port(text, &port, NULL) < 0) {
		return "is not [ADDRESS:]HOSTPORT:PORT";
	}
	return port.host == 0 ? "has 0 as the host's port, which only `box forward` takes" : NULL;
}

const char *spec_rule_syscall(const char *text)
{
	if (!only(text, LOWER DIGITS "_") || strchr(DIGITS, text[0]) ||
	    strlen(text) > SYSCALL_MAX) {
		return "is not the name of a system call";
	}
	return NULL;
}

const char *spec_rule_suite(const char *text)
{
	if (!only(text, LOWER DIGITS "-") || strchr(DIGITS "-", text[0]) ||
	    strlen(text) > USER_MAX) {
		return "is not a suite of Debian (such as debian/bookworm)";
	}
	return NULL;
}

const char *spec_rule_image_reference(const char *text)
{
	size_t registry = strcspn(text, "/");

	/* As everywhere, the part before the first slash is a registry when a dot or a port or
	 * "localhost" says so. */
	if (text[registry] != '/' || !strchr(LOWER DIGITS, text[0]) ||
	    !only(text, LOWER UPPER DIGITS "._-/:@") || strstr(text, "..") || strstr(text, "//") ||
	    text[strlen(text) - 1] == '/' || strlen(text) >= SPEC_PATH_MAX) {
		return "is not a base";
	}
	if (strcspn(text, ".:") < registry || strncmp(text, "localhost/", 10) == 0) {
		return NULL;
	}
	return "is not a base";
}

int spec_read_number(const char *text, unsigned base, uint64_t maximum, uint64_t *ret_number)
{
	uint64_t number = 0;
	bool too_large = false;

	if (text[0] == '\0' || (base == 10 && text[0] == '0' && text[1] != '\0')) {
		return -EINVAL;
	}
	for (; *text; text++) {
		unsigned digit = (unsigned char)*text - (unsigned)'0';

		if (digit >= base) {
			return -EINVAL;
		}
		if (MUL_OVERFLOWS(number, (uint64_t)base, &number) ||
		    ADD_OVERFLOWS(number, (uint64_t)digit, &number)) {
			too_large = true;
		}
	}
	if (too_large || number > maximum) {
		return -ERANGE;
	}
	*ret_number = number;
	return 0;
}

int spec_read_size(const char *text, uint64_t *ret_bytes)
{
	static const char units[] = "KMGTkmgt";
	size_t digits = strspn(text, DIGITS);
	const char *rest = text + digits;
	uint64_t bytes, unit = 1;
	/* 2^64 has 20 digits; more are refused as too large anyway. */
	char number[32];
	int rc;

	if (digits == 0) {
		return -EINVAL;
	}
	if (*rest != '\0') {
		const char *found = strchr(units, *rest);

		if (!found) {
			return -EINVAL;
		}
		unit = UINT64_C(1) << (10 * ((size_t)(found - units) % 4 + 1));
		rest++;
		if (*rest != '\0' && strcmp(rest, "i") != 0 && strcmp(rest, "iB") != 0 &&
		    strcmp(rest, "B") != 0) {
			return -EINVAL;
		}
	}
	if (!cut(text, digits, number, sizeof(number))) {
		return -ERANGE;
	}
	rc = spec_read_number(number, 10, UINT64_MAX, &bytes);
	if (rc < 0) {
		return rc;
	}
	return MUL_OVERFLOWS(bytes, unit, ret_bytes) ? -ERANGE : 0;
}

int spec_read_duration(const char *text, uint64_t *ret_seconds)
{
	static const char units[] = "smh";
	static const uint64_t seconds_of[] = {1, 60, 3600};
	size_t digits = strspn(text, DIGITS);
	uint64_t number, unit = 1;
	/* 2^64 has 20 digits; more are refused as too large anyway. */
	char copy[32];
	int rc;

	if (digits == 0) {
		return -EINVAL;
	}
	if (text[digits] != '\0') {
		const char *found = strchr(units, text[digits]);

		if (!found || text[digits + 1] != '\0') {
			return -EINVAL;
		}
		unit = seconds_of[found - units];
	}
	if (!cut(text, digits, copy, sizeof(copy))) {
		return -ERANGE;
	}
	rc = spec_read_number(copy, 10, UINT64_MAX, &number);
	if (rc < 0) {
		return rc;
	}
	return MUL_OVERFLOWS(number, unit, ret_seconds) ? -ERANGE : 0;
}
