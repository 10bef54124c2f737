/* Digests and random bytes: all that box wants of libsodium. */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "store/internal.h"

/* BLAKE2b-256: 32 bytes, 64 hexadecimal digits and a NUL. */
#define DIGEST_BYTES 32
#define DIGEST_HEX_SIZE (2 * DIGEST_BYTES + 1)
_Static_assert(DIGEST_HEX_SIZE == STORE_DIGEST_SIZE, "it is what callers have room for");
/* Bound by the disk at this size, and small enough for the stack. */
#define READ_CHUNK_BYTES ((size_t)1 << 16)

static void start(crypto_generichash_state *state)
{
	/* Picks the fastest code for this processor; costs nothing the second time. */
	ASSERT(sodium_init() >= 0);
	ASSERT(crypto_generichash_init(state, NULL, 0, DIGEST_BYTES) == 0);
}

static void finish(crypto_generichash_state *state, char *ret_hex)
{
	unsigned char digest[DIGEST_BYTES];

	ASSERT(crypto_generichash_final(state, digest, sizeof(digest)) == 0);
	sodium_bin2hex(ret_hex, DIGEST_HEX_SIZE, digest, sizeof(digest));
}

void store_digest(const void *data, size_t size, char *ret_hex)
{
	crypto_generichash_state state;

	start(&state);
	ASSERT(crypto_generichash_update(&state, data, size) == 0);
	finish(&state, ret_hex);
}

int store_digest_file(int fd, char *ret_hex, struct err *err)
{
	unsigned char chunk[READ_CHUNK_BYTES];
	crypto_generichash_state state;
	off_t offset = 0;

	start(&state);
	for (;;) {
		ssize_t got = pread(fd, chunk, sizeof(chunk), offset);

		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got < 0) {
			char path[PATH_MAX];
			int rc = -errno;

			store_fd_path(fd, path);
			return store_fail(err, rc, path, "cannot read %s", path);
		}
		if (got == 0) {
			break;
		}
		ASSERT(crypto_generichash_update(&state, chunk, (size_t)got) == 0);
		offset += got;
	}
	finish(&state, ret_hex);
	return 0;
}

struct store_hasher {
	crypto_generichash_state state;
};

struct store_hasher *store_hasher_new(void)
{
	/* The state wants to begin at a cache line. */
	struct store_hasher *hasher = aligned_alloc(64, (sizeof(*hasher) + 63) / 64 * 64);

	if (hasher) {
		start(&hasher->state);
	}
	return hasher;
}

void store_hasher_add(struct store_hasher *hasher, const void *data, size_t size)
{
	ASSERT(crypto_generichash_update(&hasher->state, data, size) == 0);
}

void store_hasher_end(struct store_hasher *hasher, char *ret_hex)
{
	finish(&hasher->state, ret_hex);
}

void store_hasher_free(struct store_hasher *hasher)
{
	free(hasher);
}

void store_random(void *data, size_t size)
{
	ASSERT(sodium_init() >= 0);
	randombytes_buf(data, size);
}

int store_digest_path(const char *path, char *ret_hex, struct err *err)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		return err_context(err, -errno, "cannot open %s", path);
	}
	return store_digest_file(fd, ret_hex, err);
}
