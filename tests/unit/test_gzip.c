/* src/archive: the checksum at the end of a gzip file, made by hand byte by byte. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "archive/archive.h"
#include "base/cleanup.h"
#include "base/io.h"

/* RFC 1952, section 8, bit by bit. */
static uint32_t crc_of(const uint8_t *bytes, size_t size)
{
	uint32_t sum = UINT32_MAX;

	for (size_t i = 0; i < size; i++) {
		sum ^= bytes[i];
		for (int bit = 0; bit < 8; bit++) {
			sum = (sum >> 1) ^ (sum & 1 ? 0xedb88320u : 0);
		}
	}
	return ~sum;
}

static void put_u32(uint8_t *out, uint32_t number)
{
	for (int i = 0; i < 4; i++) {
		out[i] = (uint8_t)(number >> (8 * i));
	}
}

/* A gzip member with one stored block (RFC 1951, section 3.2.4): 23 bytes more than the data. */
static size_t put_member(uint8_t *out, const uint8_t *data, size_t size)
{
	static const uint8_t header[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1};

	memcpy(out, header, sizeof(header));
	out[11] = (uint8_t)size;
	out[12] = (uint8_t)(size >> 8);
	out[13] = (uint8_t)~out[11];
	out[14] = (uint8_t)~out[12];
	memcpy(out + 15, data, size);
	put_u32(out + 15 + size, crc_of(data, size));
	put_u32(out + 19 + size, (uint32_t)size);
	return size + 23;
}

static int unpack(const uint8_t *packed, size_t size, struct err *err)
{
	_cleanup_close_ int in_fd = memfd_create("packed", MFD_CLOEXEC);
	_cleanup_close_ int out_fd = memfd_create("data", MFD_CLOEXEC);

	assert_true(in_fd >= 0 && out_fd >= 0);
	assert_int_equal(write_full(in_fd, packed, size), 0);
	assert_int_equal(lseek(in_fd, 0, SEEK_SET), 0);
	return archive_unpack_fd(in_fd, out_fd, err);
}

static void test_the_checksum_of_gzip(void **state)
{
	static const uint8_t data[] = "what was packed, and not a multiple of eight bytes long";
	uint8_t packed[1024] = {0};
	struct err err = {0};
	size_t size = put_member(packed, data, sizeof(data));

	(void)state;
	assert_int_equal(unpack(packed, size, &err), 0);
	/* What follows is ignored, as gzip(1) does. */
	assert_int_equal(unpack(packed, size + 512, &err), 0);
	/* The unpacking itself does not notice it. */
	packed[20] ^= 4;
	assert_int_equal(unpack(packed, size, &err), -EBADMSG);
	assert_string_equal(err.code, "archive-broken");
	assert_non_null(strstr(err.text, "its checksum is wrong"));
	/* Two members, whose sums are of their own. */
	size = put_member(packed, data, 20);
	size += put_member(packed + size, data + 20, sizeof(data) - 20);
	assert_int_equal(unpack(packed, size, &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_checksum_of_gzip),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
