/* Digests and random bytes: all that box wants of libsodium. */
#include "store/store.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "store/internal.h"

/* BLAKE2b-256: 32 bytes, 64 hexadecimal digits and a NUL. */
#define DIGEST_BYTES 32
#define DIGEST_HEX_SIZE (2 * DIGEST_BYTES + 1)
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

void store_random(void *data, size_t size)
{
	ASSERT(sodium_init() >= 0);
	randombytes_buf(data, size);
}
