#include "policy/name.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/text.h"

/* A quoted name in a message; a longer one is cut. */
#define QUOTED_MAX 300

static bool has_other_letters(const char *text)
{
	for (; *text; text++) {
		if ((unsigned char)*text >= 0x80) {
			return true;
		}
	}
	return false;
}

/* name is valid, so it has no upper case. Digits only, or "0x" and hexadecimal digits, also none.
 */
static bool ends_in_number(const char *name)
{
	const char *dot = strrchr(name, '.');
	const char *last = dot ? dot + 1 : name;

	if (last[strspn(last, "0123456789")] == '\0') {
		return true;
	}
	return last[0] == '0' && last[1] == 'x' &&
	       last[2 + strspn(last + 2, "0123456789abcdef")] == '\0';
}

/* Says what is wrong with a text, quoted, when somebody wants to know: names are judged by the
 * thousand, and messages about them are read one at a time. */
static int refuse(const char *text, const char *what, const char *mend, struct err *err)
{
	char quoted[QUOTED_MAX];

	if (err) {
		text_quote(text, strlen(text), quoted, sizeof(quoted));
		err_set(err, -EINVAL, "bad-name", "\"%s\" %s", quoted, what);
		err_mend(err, "%s", mend);
	}
	return -EINVAL;
}

int policy_name_parse(const char *text, char ret_name[DNS_NAME_MAX + 1], struct err *err)
{
	size_t length = strlen(text);
	char name[DNS_NAME_MAX + 1];

	if (has_other_letters(text)) {
		return refuse(text, "has other letters than ASCII",
			      "write it as it goes over the wire, with xn--", err);
	}
	if (length > 0 && text[length - 1] == '.') {
		length--;
	}
	if (length > DNS_NAME_MAX) {
		return refuse(text, "is longer than 253 letters", "write the name of a host", err);
	}
	for (size_t i = 0; i < length; i++) {
		bool upper = text[i] >= 'A' && text[i] <= 'Z';

		name[i] = (char)(upper ? text[i] - 'A' + 'a' : text[i]);
	}
	name[length] = '\0';
	if (!dns_name_valid(name)) {
		return refuse(text, "is not a host name",
			      "a name has labels of 1 to 63 letters, digits, - and _, with dots "
			      "between them",
			      err);
	}
	if (ends_in_number(name)) {
		return refuse(text, "is an address to some and a name to others",
			      "write an address as four decimal numbers, or as IPv6 in brackets",
			      err);
	}
	memcpy(ret_name, name, length + 1);
	return 0;
}
