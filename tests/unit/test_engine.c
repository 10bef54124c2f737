/* src/engine: the initramfs that box makes for its guests. */
#include "engine/initramfs.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "engine/disk.h"
#include "json/json.h"

#define ARCHIVE_MAX ((size_t)1 << 20)
#define MEMBERS_MAX 64

struct member {
	const char *name;
	unsigned inode;
	unsigned mode;
	unsigned links;
	unsigned mtime;
	unsigned major;
	unsigned minor;
	const char *data;
	size_t size;
};

/* One test's directory with a guest program and lib/modules/VERSION in it. */
static char top[64];
static char guest[128];
static char modules[128];
static struct err err;

static char *archive_bytes;
static size_t archive_size;
static struct member members[MEMBERS_MAX];
static size_t member_count;

static void put_file(const char *path, const void *data, size_t size)
{
	char full[PATH_MAX];

	snprintf(full, sizeof(full), "%s/%s", modules, path);
	for (char *slash = full + strlen(modules) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
		*slash = '/';
	}
	assert_int_equal(write_file_at(AT_FDCWD, full, data, size, 0600), 0);
}

static void remove_file(const char *path)
{
	char full[PATH_MAX];

	snprintf(full, sizeof(full), "%s/%s", modules, path);
	assert_int_equal(unlink(full), 0);
}

/* An ELF object with the sections .shstrtab and .modinfo, as little as the reader needs. */
static size_t make_module(const char *info, size_t info_size, char *out)
{
	static const char names[] = "\0.shstrtab\0.modinfo";
	Elf64_Ehdr header = {
		.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB},
		.e_type = ET_REL,
		.e_machine = EM_X86_64,
		.e_shentsize = sizeof(Elf64_Shdr),
		.e_shnum = 3,
		.e_shstrndx = 1,
	};
	Elf64_Shdr sections[3] = {
		{0},
		{.sh_name = 1, .sh_type = SHT_STRTAB, .sh_offset = sizeof(header)},
		{.sh_name = 11, .sh_type = SHT_PROGBITS},
	};

	sections[1].sh_size = sizeof(names);
	sections[2].sh_offset = sizeof(header) + sizeof(names);
	sections[2].sh_size = info_size;
	header.e_shoff = sections[2].sh_offset + info_size;
	memcpy(out, &header, sizeof(header));
	memcpy(out + sizeof(header), names, sizeof(names));
	memcpy(out + sections[2].sh_offset, info, info_size);
	memcpy(out + header.e_shoff, sections, sizeof(sections));
	return header.e_shoff + sizeof(sections);
}

static void put_module(const char *path, const char *depends)
{
	char info[1024], bytes[2048];
	int length = snprintf(info, sizeof(info), "license=GPL%cdepends=%s%cname=x", '\0', depends,
			      '\0');

	assert_in_range(length, 1, (int)sizeof(info) - 1);
	put_file(path, bytes, make_module(info, (size_t)length + 1, bytes));
}

static int set_up(void **state)
{
	(void)state;
	snprintf(top, sizeof(top), "/tmp/test-engine-XXXXXX");
	if (!mkdtemp(top)) {
		return -1;
	}
	snprintf(guest, sizeof(guest), "%s/box-guest", top);
	snprintf(modules, sizeof(modules), "%s/6.1.0-test", top);
	memset(&err, 0, sizeof(err));
	archive_bytes = NULL;
	if (mkdir(modules, 0700) < 0) {
		return -1;
	}
	put_module("kernel/drivers/virtio/virtio.ko", "");
	put_module("kernel/drivers/virtio/virtio_ring.ko", "");
	put_module("kernel/drivers/virtio/virtio_pci.ko", "virtio_ring,virtio-pci-modern,virtio");
	put_module("kernel/drivers/virtio/virtio_pci_modern.ko", "");
	put_module("kernel/drivers/block/virtio_blk.ko", "virtio,virtio_ring");
	put_module("kernel/drivers/char/virtio_console.ko", "virtio,virtio_ring");
	put_module("kernel/drivers/char/virtio-rng.ko", "virtio,virtio_ring");
	put_module("kernel/drivers/net/unwanted.ko", "virtio");
	put_file("modules.builtin", "kernel/fs/ext4/ext4.ko\n", 23);
	return write_file_at(AT_FDCWD, guest, "\177ELFguest", 9, 0700);
}

static int tear_down(void **state)
{
	(void)state;
	free(TAKE_PTR(archive_bytes));
	return remove_tree_at(AT_FDCWD, top);
}

static unsigned hex_field(const char *header, int field)
{
	char digits[9] = {0};

	memcpy(digits, header + 6 + 8 * field, 8);
	return (unsigned)strtoul(digits, NULL, 16);
}

static size_t align4(size_t size)
{
	return (size + 3) & ~(size_t)3;
}

/* Takes the archive apart by the format's own rules. */
static void parse_archive(void)
{
	size_t offset = 0;

	member_count = 0;
	for (;;) {
		const char *header = archive_bytes + offset;
		struct member *member = &members[member_count];
		size_t name_size;

		assert_true(archive_size - offset >= 110);
		assert_memory_equal(header, "070701", 6);
		assert_int_equal(hex_field(header, 12), 0);
		name_size = hex_field(header, 11);
		*member = (struct member){
			.name = header + 110,
			.inode = hex_field(header, 0),
			.mode = hex_field(header, 1),
			.links = hex_field(header, 4),
			.mtime = hex_field(header, 5),
			.major = hex_field(header, 9),
			.minor = hex_field(header, 10),
			.size = hex_field(header, 6),
		};
		assert_int_equal(hex_field(header, 2), 0);
		assert_int_equal(hex_field(header, 3), 0);
		assert_int_equal(strlen(member->name) + 1, name_size);
		offset = align4(offset + 110 + name_size);
		member->data = archive_bytes + offset;
		offset = align4(offset + member->size);
		assert_true(offset <= archive_size);
		if (strcmp(member->name, "TRAILER!!!") == 0) {
			break;
		}
		member_count++;
		assert_true(member_count < MEMBERS_MAX);
	}
	for (; offset < archive_size; offset++) {
		assert_int_equal(archive_bytes[offset], 0);
	}
	assert_int_equal(archive_size % 512, 0);
}

static int write_archive(void)
{
	_cleanup_close_ int fd = memfd_create("initramfs", MFD_CLOEXEC);
	ssize_t size;
	int rc;

	assert_true(fd >= 0);
	memset(&err, 0, sizeof(err));
	rc = initramfs_write(fd, guest, modules, &err);
	if (rc < 0) {
		assert_true(err.text[0] != '\0');
		return rc;
	}
	free(archive_bytes);
	archive_bytes = malloc(ARCHIVE_MAX);
	assert_non_null(archive_bytes);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	size = read_full(fd, archive_bytes, ARCHIVE_MAX);
	assert_in_range(size, 1, ARCHIVE_MAX - 1);
	archive_size = (size_t)size;
	parse_archive();
	return 0;
}

static const struct member *find_member(const char *name)
{
	for (size_t i = 0; i < member_count; i++) {
		if (strcmp(members[i].name, name) == 0) {
			return &members[i];
		}
	}
	return NULL;
}

static void expect_modules(const char *const *names)
{
	size_t found = 0;

	for (size_t i = 0; i < member_count; i++) {
		if (strncmp(members[i].name, "modules/", 8) == 0) {
			assert_non_null(names[found]);
			assert_string_equal(members[i].name + 8, names[found]);
			assert_int_equal(members[i].mode, S_IFREG | 0644);
			found++;
		}
	}
	assert_null(names[found]);
}

static void test_archive_has_what_a_guest_needs(void **state)
{
	static const char *const directories[] = {"dev", "proc", "sys", "root", "modules"};
	const struct member *member;

	(void)state;
	assert_int_equal(write_archive(), 0);
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++) {
		member = find_member(directories[i]);
		assert_non_null(member);
		assert_int_equal(member->mode, S_IFDIR | 0755);
	}
	member = find_member("init");
	assert_non_null(member);
	assert_int_equal(member->mode, S_IFREG | 0755);
	assert_int_equal(member->size, 9);
	assert_memory_equal(member->data, "\177ELFguest", 9);
	member = find_member("dev/console");
	assert_non_null(member);
	assert_int_equal(member->mode, S_IFCHR | 0600);
	assert_int_equal(member->major, 5);
	assert_int_equal(member->minor, 1);
	/* Five directories, console, init, and seven modules; no inode number twice. */
	assert_int_equal(member_count, 14);
	for (size_t i = 0; i < member_count; i++) {
		assert_int_equal(members[i].inode, i + 1);
		assert_int_equal(members[i].mtime, 0);
	}
}

static void test_modules_come_in_load_order(void **state)
{
	static const char *const names[] = {
		"00-virtio_ring.ko", "01-virtio_pci_modern.ko",
		"02-virtio.ko",	     "03-virtio_pci.ko",
		"04-virtio_blk.ko",  "05-virtio_console.ko",
		"06-virtio_rng.ko",  NULL,
	};
	_cleanup_free_ char *file = NULL;
	char path[PATH_MAX];
	size_t size;

	(void)state;
	assert_int_equal(write_archive(), 0);
	expect_modules(names);
	snprintf(path, sizeof(path), "%s/kernel/drivers/char/virtio-rng.ko", modules);
	assert_int_equal(read_file_at(AT_FDCWD, path, ARCHIVE_MAX, &file, &size), 0);
	assert_int_equal(find_member("modules/06-virtio_rng.ko")->size, size);
	assert_memory_equal(find_member("modules/06-virtio_rng.ko")->data, file, size);
}

static void test_ext4_as_a_module_brings_its_own(void **state)
{
	static const char *const names[] = {
		"00-virtio_ring.ko", "01-virtio_pci_modern.ko",
		"02-virtio.ko",	     "03-virtio_pci.ko",
		"04-virtio_blk.ko",  "05-virtio_console.ko",
		"06-virtio_rng.ko",  "07-crc32c_generic.ko",
		"08-mbcache.ko",     "09-jbd2.ko",
		"10-ext4.ko",	     NULL,
	};

	(void)state;
	remove_file("modules.builtin");
	put_module("kernel/fs/ext4/ext4.ko", "mbcache,jbd2");
	put_module("kernel/fs/mbcache.ko", "");
	put_module("kernel/fs/jbd2/jbd2.ko", "");
	put_module("kernel/crypto/crc32c_generic.ko", "");
	assert_int_equal(write_archive(), 0);
	expect_modules(names);
}

static void test_builtin_names_are_equal_with_dash_and_underscore(void **state)
{
	static const char *const names[] = {NULL};
	/* Built in wins over a file of the name; the last line has no newline. */
	static const char text[] = "kernel/a/virtio-pci.ko\nkernel/a/virtio_blk.ko\n"
				   "kernel/a/virtio-console.ko\nkernel/a/virtio_rng.ko\n"
				   "kernel/fs/ext4/ext4.ko";

	(void)state;
	put_file("modules.builtin", text, strlen(text));
	assert_int_equal(write_archive(), 0);
	expect_modules(names);
	/* A part of a name is not the name. */
	put_file("modules.builtin", "kernel/fs/ext4/ext4_more.ko\nkernel/my_ext4.ko\n", 46);
	assert_int_equal(write_archive(), -ENOENT);
}

static void test_output_is_the_same_every_time(void **state)
{
	static const struct timespec long_ago[2] = {{.tv_sec = 86400}, {.tv_sec = 86400}};
	_cleanup_free_ char *first = NULL;
	char path[PATH_MAX];
	size_t first_size;

	(void)state;
	assert_int_equal(write_archive(), 0);
	first_size = archive_size;
	first = TAKE_PTR(archive_bytes);
	/* Other times and modes, and another order in the directories. */
	remove_file("kernel/drivers/virtio/virtio.ko");
	remove_file("kernel/drivers/block/virtio_blk.ko");
	put_module("kernel/drivers/block/virtio_blk.ko", "virtio,virtio_ring");
	put_module("kernel/drivers/virtio/virtio.ko", "");
	snprintf(path, sizeof(path), "%s/kernel/drivers/virtio/virtio.ko", modules);
	assert_int_equal(chmod(path, 0755), 0);
	assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
	assert_int_equal(chmod(guest, 0711), 0);
	assert_int_equal(utimensat(AT_FDCWD, guest, long_ago, 0), 0);
	assert_int_equal(write_archive(), 0);
	assert_int_equal(archive_size, first_size);
	assert_memory_equal(archive_bytes, first, first_size);
}

static void test_updates_come_before_the_kernels_own(void **state)
{
	(void)state;
	put_module("updates/virtio_blk.ko", "virtio,virtio_ring,virtio_extra");
	put_module("kernel/aaa/virtio_extra.ko", "");
	put_module("kernel/aaa/virtio_blk.ko", "");
	assert_int_equal(write_archive(), 0);
	assert_non_null(find_member("modules/04-virtio_extra.ko"));
	assert_non_null(find_member("modules/05-virtio_blk.ko"));
}

static void test_missing_modules_are_named(void **state)
{
	(void)state;
	remove_file("kernel/drivers/block/virtio_blk.ko");
	assert_int_equal(write_archive(), -ENOENT);
	assert_string_equal(err.code, "kernel-modules");
	assert_non_null(strstr(err.text, "virtio_blk"));
	assert_non_null(strstr(err.text, modules));
	assert_non_null(strstr(err.mend, "BOX_KERNEL"));
	/* A dependency that is not there. */
	put_module("kernel/drivers/block/virtio_blk.ko", "virtio,scsi-thing");
	assert_int_equal(write_archive(), -ENOENT);
	assert_non_null(strstr(err.text, "scsi_thing"));
	snprintf(modules, sizeof(modules), "%s/none", top);
	assert_int_equal(write_archive(), -ENOENT);
	assert_non_null(strstr(err.text, modules));
	assert_true(err.mend[0] != '\0');
}

static void test_compressed_modules_are_refused(void **state)
{
	static const char *const suffixes[] = {"xz", "zst", "gz"};

	(void)state;
	remove_file("kernel/drivers/block/virtio_blk.ko");
	for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++) {
		char path[64];

		snprintf(path, sizeof(path), "kernel/drivers/block/virtio_blk.ko.%s", suffixes[i]);
		put_file(path, "compressed", 10);
		assert_int_equal(write_archive(), -ENOTSUP);
		assert_non_null(strstr(err.text, path));
		assert_true(err.mend[0] != '\0');
		remove_file(path);
	}
}

static void test_broken_modules_are_refused(void **state)
{
	static const char *const path = "kernel/drivers/block/virtio_blk.ko";
	static const char info[] = "license=GPL\0depends=virtio";
	char bytes[2048], damaged[2048];
	size_t size = make_module(info, sizeof(info), bytes);

	(void)state;
	put_file(path, bytes, size);
	assert_int_equal(write_archive(), 0);
	/* Cut anywhere, the section table at the end is not whole. */
	for (size_t cut = 0; cut < size; cut += 7) {
		put_file(path, bytes, cut);
		assert_int_equal(write_archive(), -EINVAL);
		assert_non_null(strstr(err.text, path));
	}
	/* Any byte may lie; no read may leave the file (ASan looks on). */
	for (size_t i = 0; i < size; i++) {
		memcpy(damaged, bytes, size);
		damaged[i] = (char)0xff;
		put_file(path, damaged, size);
		write_archive();
	}
	/* No list of dependencies, and one without its end. */
	put_file(path, bytes, make_module("license=GPL", 12, bytes));
	assert_int_equal(write_archive(), -EINVAL);
	put_file(path, bytes, make_module("depends=virtio", 14, bytes));
	assert_int_equal(write_archive(), -EINVAL);
}

static void test_memory_goes_back_where_the_kernel_can(void **state)
{
	static const char *const names[] = {
		"00-virtio_ring.ko", "01-virtio_pci_modern.ko", "02-virtio.ko",
		"03-virtio_pci.ko",  "04-virtio_blk.ko",	"05-virtio_console.ko",
		"06-virtio_rng.ko",  "07-virtio_balloon.ko",	NULL,
	};

	(void)state;
	/* Without it, as in the other tests, it is no error. */
	put_module("kernel/drivers/virtio/virtio_balloon.ko", "virtio,virtio_ring");
	assert_int_equal(write_archive(), 0);
	expect_modules(names);
}

/* What stands at a key of a disk's text, layers down from the top. */
static const struct json *disk_layer(const struct json *disk, size_t depth)
{
	while (disk && depth-- > 0) {
		disk = json_get_child(disk, "backing");
	}
	return disk;
}

static struct json *parse_disk(const char *text)
{
	struct json *disk = NULL;

	assert_int_equal(json_parse(text, strlen(text), &disk, NULL), 0);
	return disk;
}

static void test_a_disk_is_its_layers_from_the_top(void **state)
{
	static const int sets[] = {4, 1000, 6};
	struct engine_disk disk = {
		.serial = "data",
		.layers = {{.qcow2 = false}, {.qcow2 = true}, {.qcow2 = true}},
		.layer_count = 3,
	};
	char text[DISK_TEXT_MAX], wanted[64];
	struct json *parsed;

	(void)state;
	disk_describe(&disk, "data-7", sets, text);
	parsed = parse_disk(text);
	assert_string_equal(json_get_string(parsed, "node-name"), "data-7");
	assert_string_equal(json_get_string(parsed, "discard"), "unmap");
	assert_null(json_get_child(parsed, "read-only"));
	for (size_t i = 0; i < 3; i++) {
		const struct json *layer = disk_layer(parsed, i);
		/* A raw layer is its file. */
		const struct json *file = i < 2 ? json_get_child(layer, "file") : layer;

		snprintf(wanted, sizeof(wanted), "/dev/fdset/%d", sets[2 - i]);
		assert_string_equal(json_get_string(layer, "driver"), i < 2 ? "qcow2" : "file");
		assert_string_equal(json_get_string(file, "filename"), wanted);
		assert_string_equal(json_get_string(file, "locking"), "off");
		/* Only the top has a name: what is below goes with it. */
		assert_true(i == 0 || !json_get_child(layer, "node-name"));
	}
	assert_null(disk_layer(parsed, 3));
	json_free(parsed);

	disk.read_only = true;
	disk_describe(&disk, "data", sets, text);
	assert_non_null(strstr(text, "\"read-only\":true"));
	assert_null(strstr(text, "discard"));
}

static void test_a_disk_without_layers_is_zeros(void **state)
{
	const struct engine_disk disk = {.serial = "data", .size_bytes = (uint64_t)5 << 40};
	char text[DISK_TEXT_MAX];

	(void)state;
	disk_describe(&disk, "data-0", NULL, text);
	assert_string_equal(text, "{\"driver\":\"null-co\",\"node-name\":\"data-0\","
				  "\"size\":5497558138880,\"read-zeroes\":true}");
}

static void test_the_longest_disk_has_room(void **state)
{
	struct engine_disk disk = {.serial = "data", .layer_count = ENGINE_LAYERS_MAX};
	int sets[ENGINE_LAYERS_MAX];
	char text[DISK_TEXT_MAX];

	(void)state;
	for (size_t i = 0; i < ENGINE_LAYERS_MAX; i++) {
		sets[i] = INT_MAX;
		disk.layers[i].qcow2 = true;
	}
	disk_describe(&disk, "data-4294967295", sets, text);
	json_free(parse_disk(text));
}

static void test_circular_dependencies_end(void **state)
{
	(void)state;
	put_module("kernel/drivers/virtio/virtio.ko", "virtio_ring");
	put_module("kernel/drivers/virtio/virtio_ring.ko", "virtio");
	assert_int_equal(write_archive(), -EINVAL);
	assert_string_equal(err.code, "kernel-modules");
}

static void test_guest_program_must_be_one(void **state)
{
	(void)state;
	assert_int_equal(write_file_at(AT_FDCWD, guest, "#!/bin/sh\n", 10, 0700), 0);
	assert_int_equal(write_archive(), -ENOEXEC);
	assert_int_equal(unlink(guest), 0);
	assert_int_equal(write_archive(), -ENOENT);
	assert_string_equal(err.code, "no-guest");
	assert_non_null(strstr(err.text, guest));
	assert_true(err.mend[0] != '\0');
}

static void test_full_disk_is_told(void **state)
{
	_cleanup_close_ int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(initramfs_write(fd, guest, modules, &err), -ENOSPC);
	assert_true(err.text[0] != '\0');
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_archive_has_what_a_guest_needs),
		TEST(test_modules_come_in_load_order),
		TEST(test_ext4_as_a_module_brings_its_own),
		TEST(test_builtin_names_are_equal_with_dash_and_underscore),
		TEST(test_output_is_the_same_every_time),
		TEST(test_updates_come_before_the_kernels_own),
		TEST(test_missing_modules_are_named),
		TEST(test_compressed_modules_are_refused),
		TEST(test_broken_modules_are_refused),
		TEST(test_memory_goes_back_where_the_kernel_can),
		TEST(test_a_disk_is_its_layers_from_the_top),
		TEST(test_a_disk_without_layers_is_zeros),
		TEST(test_the_longest_disk_has_room),
		TEST(test_circular_dependencies_end),
		TEST(test_guest_program_must_be_one),
		TEST(test_full_disk_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
