#include "engine/fingerprint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "engine/engine.h"

static void print_identity(FILE *out, const char *label, const char *path)
{
	struct stat status;

	if (stat(path, &status) < 0) {
		fprintf(out, "%s=%s missing\n", label, path);
		return;
	}
	fprintf(out, "%s=%s %llx:%llx %lld %lld.%09ld %lld.%09ld\n", label, path,
		(unsigned long long)status.st_dev, (unsigned long long)status.st_ino,
		(long long)status.st_size, (long long)status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
		(long long)status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
}

int fingerprint_snapshot(const struct spec *spec, const char *image_key, bool hardware,
			 const struct kernel_paths *paths, char **ret_text, struct err *err)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_free_ char *identity = NULL;
	_cleanup_free_ char *snapshot_key = NULL;
	size_t size;
	FILE *out;
	int rc;

	rc = engine_identity(&identity, err);
	if (rc < 0) {
		return rc;
	}
	rc = spec_snapshot_key(spec, &snapshot_key);
	if (rc < 0) {
		return err_context(err, rc, "fingerprint");
	}
	out = open_memstream(&text, &size);
	if (!out) {
		return err_context(err, -ENOMEM, "fingerprint");
	}
	fprintf(out, "box=%s\naccelerator=%s\n%s", BOX_VERSION, hardware ? "kvm" : "tcg", identity);
	print_identity(out, "kernel", paths->kernel);
	print_identity(out, "modules", paths->modules);
	print_identity(out, "guest", paths->guest);
	fprintf(out, "%s\n%s\n", snapshot_key, image_key);
	if (fclose(out) != 0) {
		return err_context(err, -ENOMEM, "fingerprint");
	}
	*ret_text = TAKE_PTR(text);
	return 0;
}
