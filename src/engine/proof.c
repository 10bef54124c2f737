#include "engine/proof.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "engine/engine.h"
#include "json/json.h"
#include "store/store.h"

/* A proof has a dozen short strings. */
#define PROOF_FILE_MAX ((size_t)1 << 16)
/* Reads of this size are bound by the disk; a smaller one makes the list longer. */
#define PIECE_BYTES ((off_t)1 << 20)
#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"

/* The strings of a proof by name, for both directions. */
static const struct {
	const char *key;
	size_t offset;
	size_t size;
} fields[] = {
#define FIELD(name)                                                                                \
	{                                                                                          \
#name, offsetof(struct proof, name), sizeof(((struct proof *)NULL)->name)          \
	}
	FIELD(guest_release), FIELD(guest_version), FIELD(guest_boot_id),  FIELD(host_release),
	FIELD(host_version),  FIELD(host_boot_id),  FIELD(kernel_digest),  FIELD(initramfs_digest),
	FIELD(guest_digest),  FIELD(image_digest),  FIELD(monitor_digest),
#undef FIELD
};

static int read_host(struct proof *proof, struct err *err)
{
	_cleanup_free_ char *text = NULL;
	struct utsname names;
	int rc;

	if (uname(&names) < 0) {
		return err_context(err, -errno, "uname");
	}
	snprintf(proof->host_release, sizeof(proof->host_release), "%s", names.release);
	snprintf(proof->host_version, sizeof(proof->host_version), "%s", names.version);
	rc = read_file_at(AT_FDCWD, BOOT_ID_PATH, 4096, &text, NULL);
	if (rc < 0) {
		return err_context(err, rc, "cannot read " BOOT_ID_PATH);
	}
	snprintf(proof->host_boot_id, sizeof(proof->host_boot_id), "%.*s", (int)strcspn(text, "\n"),
		 text);
	return 0;
}

static int read_files(const struct kernel_paths *paths, struct proof *proof, struct err *err)
{
	int rc = store_digest_path(paths->kernel, proof->kernel_digest, err);

	if (rc == 0) {
		rc = store_digest_path(paths->initramfs, proof->initramfs_digest, err);
	}
	if (rc == 0) {
		rc = store_digest_path(paths->guest, proof->guest_digest, err);
	}
	return rc < 0 ? rc : engine_digest(proof->monitor_digest, err);
}

static int check(const struct proof *proof, const struct kernel_paths *paths, struct err *err)
{
	char inside[512];
	size_t length = strlen(proof->guest_release);
	int rc = kernel_version(paths->kernel, inside, sizeof(inside), err);

	if (rc < 0) {
		return rc;
	}
	if (length == 0 || strcmp(proof->guest_boot_id, proof->host_boot_id) == 0) {
		return err_set(err, -EPROTO, "proof",
			       "the machine has no kernel of its own: its boot ID is the host's");
	}
	if (strncmp(inside, proof->guest_release, length) != 0 || inside[length] != ' ' ||
	    !strstr(inside + length, proof->guest_version)) {
		return err_set(err, -EPROTO, "proof",
			       "the machine runs another kernel than the one started: it says "
			       "\"%s %s\", and %s is \"%s\"",
			       proof->guest_release, proof->guest_version, paths->kernel, inside);
	}
	return 0;
}

int proof_take(const struct ipc_ready *ready, const struct kernel_paths *paths,
	       struct proof *ret_proof, struct err *err)
{
	struct proof proof = {.taken_ns = clock_realtime_ns()};
	int rc;

	snprintf(proof.guest_release, sizeof(proof.guest_release), "%s", ready->release);
	snprintf(proof.guest_version, sizeof(proof.guest_version), "%s", ready->version);
	snprintf(proof.guest_boot_id, sizeof(proof.guest_boot_id), "%s", ready->boot_id);
	rc = read_host(&proof, err);
	if (rc == 0) {
		rc = check(&proof, paths, err);
	}
	if (rc == 0) {
		rc = read_files(paths, &proof, err);
	}
	if (rc == 0) {
		*ret_proof = proof;
	}
	return rc;
}

/* Adds one piece to the list, unless it is all zeros. */
static int digest_piece(FILE *list, const char *bytes, size_t size, off_t offset)
{
	char digest[65];

	/* The first byte is zero, and each equals the one before it. */
	if (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0) {
		return 0;
	}
	store_digest(bytes, size, digest);
	return fprintf(list, "%lld %s\n", (long long)offset, digest) < 0 ? -ENOMEM : 0;
}

static int list_pieces(int fd, FILE *list)
{
	_cleanup_free_ char *piece = malloc(PIECE_BYTES);
	off_t offset = 0;
	int rc = piece ? 0 : -ENOMEM;

	while (rc == 0) {
		ssize_t got;

		offset = lseek(fd, offset, SEEK_DATA);
		if (offset < 0) {
			return errno == ENXIO ? 0 : -errno;
		}
		offset -= offset % PIECE_BYTES;
		if (lseek(fd, offset, SEEK_SET) < 0) {
			return -errno;
		}
		got = read_full(fd, piece, PIECE_BYTES);
		if (got <= 0) {
			return (int)got;
		}
		rc = digest_piece(list, piece, (size_t)got, offset);
		offset += got;
	}
	return rc;
}

int proof_add_image(int dir_fd, const char *path, struct proof *proof, struct err *err)
{
	_cleanup_close_ int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	FILE *list;
	int rc;

	if (fd < 0) {
		return err_context(err, -errno, "cannot open the image");
	}
	list = open_memstream(&text, &size);
	if (!list) {
		return err_context(err, -ENOMEM, "image");
	}
	rc = list_pieces(fd, list);
	if (fclose(list) != 0 && rc == 0) {
		rc = -ENOMEM;
	}
	if (rc < 0) {
		return err_context(err, rc, "cannot read the image");
	}
	store_digest(text, size, proof->image_digest);
	return 0;
}

const char *proof_path(bool hardware)
{
	return hardware ? "snapshot/proof-kvm.json" : "snapshot/proof-tcg.json";
}

int proof_write(int dir_fd, const char *path, const struct proof *proof, struct err *err)
{
	_cleanup_(json_freep) struct json *object = json_new_object();
	_cleanup_free_ char *text = NULL;
	int rc = json_set_integer(object, "taken_ns", (int64_t)proof->taken_ns);

	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(fields); i++) {
		rc = json_set_string(object, fields[i].key, (const char *)proof + fields[i].offset);
	}
	if (rc == 0) {
		rc = json_dump(object, JSON_DUMP_INDENT | JSON_DUMP_NEWLINE, &text);
	}
	if (rc == 0) {
		rc = write_file_at(dir_fd, path, text, strlen(text), 0600);
	}
	return rc < 0 ? err_context(err, rc, "cannot write %s", path) : 0;
}

int proof_read(int dir_fd, const char *path, struct proof *ret_proof, struct err *err)
{
	_cleanup_(json_freep) struct json *object = NULL;
	_cleanup_free_ char *text = NULL;
	struct proof proof = {0};
	int64_t taken_ns = 0;
	size_t size = 0;
	int rc = read_file_at(dir_fd, path, PROOF_FILE_MAX, &text, &size);

	if (rc == 0) {
		rc = json_parse(text, size, &object, err);
	}
	if (rc < 0) {
		return err_context(err, rc, "%s", path);
	}
	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		const char *value = json_get_string(object, fields[i].key);

		if (!value) {
			return err_set(err, -EBADMSG, "proof", "%s: %s is missing", path,
				       fields[i].key);
		}
		snprintf((char *)&proof + fields[i].offset, fields[i].size, "%s", value);
	}
	if (json_get_integer(object, "taken_ns", &taken_ns) < 0 || taken_ns < 0) {
		return err_set(err, -EBADMSG, "proof", "%s: taken_ns is missing", path);
	}
	proof.taken_ns = (uint64_t)taken_ns;
	*ret_proof = proof;
	return 0;
}

const char *proof_difference(const struct proof *proof, const struct proof *other)
{
	static const struct {
		size_t digest;
		const char *name;
	} parts[] = {
		{offsetof(struct proof, monitor_digest), "the machine monitor or its firmware"},
		{offsetof(struct proof, kernel_digest), "the kernel's file"},
		{offsetof(struct proof, initramfs_digest), "the initramfs"},
		{offsetof(struct proof, guest_digest), "box-guest"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		if (strcmp((const char *)proof + parts[i].digest,
			   (const char *)other + parts[i].digest) != 0) {
			return parts[i].name;
		}
	}
	return NULL;
}

int proof_check(int sandbox_fd, const char *name, bool hardware, const struct kernel_paths *paths,
		struct err *err)
{
	const char *accelerator = hardware ? "with KVM" : "in software emulation";
	const char *part;
	struct proof proved, now = {0};
	struct err local = {0};
	int rc = proof_read(sandbox_fd, proof_path(hardware), &proved, &local);

	if (rc == -ENOENT) {
		rc = err_set(err, -EPERM, "not-proved",
			     "%s: that its kernel is its own was not proved %s yet", name,
			     accelerator);
		err_mend(err, "`box verify %s` proves it; if it has no snapshot, box build %s",
			 name, name);
		return rc;
	}
	if (rc < 0) {
		*err = local;
		return rc;
	}
	rc = read_files(paths, &now, err);
	if (rc < 0) {
		return rc;
	}
	part = proof_difference(&proved, &now);
	if (!part) {
		return 0;
	}
	err_set(err, -EPERM, "not-proved",
		"%s: %s has changed since it was proved that its kernel is its own", name, part);
	err_mend(err,
		 "`box verify %s` proves it again, `box build %s` makes a new snapshot as well",
		 name, name);
	return -EPERM;
}
