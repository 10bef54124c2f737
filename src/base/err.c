#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *err, int rc, const char *code, const char *format, ...)
{
	va_list args;

	if (!err) {
		return rc;
	}
	snprintf(err->code, sizeof(err->code), "%s", code);
	va_start(args, format);
	vsnprintf(err->text, sizeof(err->text), format, args);
	va_end(args);
	err->mend[0] = '\0';
	return rc;
}

void err_mend(struct err *err, const char *format, ...)
{
	va_list args;

	if (!err) {
		return;
	}
	va_start(args, format);
	vsnprintf(err->mend, sizeof(err->mend), format, args);
	va_end(args);
}

int err_context(struct err *err, int rc, const char *format, ...)
{
	char context[sizeof(err->text)];
	char text[sizeof(err->text)];
	va_list args;
	int length;

	if (!err) {
		return rc;
	}
	va_start(args, format);
	vsnprintf(context, sizeof(context), format, args);
	va_end(args);
	if (err->code[0] == '\0') {
		snprintf(err->code, sizeof(err->code), "system");
		snprintf(err->text, sizeof(err->text), "%s", strerror(-rc));
	}
	memcpy(text, err->text, sizeof(text));
	length = snprintf(err->text, sizeof(err->text), "%s: ", context);
	if (length > 0 && (size_t)length < sizeof(err->text)) {
		snprintf(err->text + length, sizeof(err->text) - (size_t)length, "%s", text);
	}
	return rc;
}
