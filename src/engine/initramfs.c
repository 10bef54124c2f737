/*
 * Theory of operation
 *
 * In flow the static box-guest and a kernel's modules directory; out flows one cpio archive. Which
 * modules a machine needs is a table; what these depend on is written in the modules themselves
 * (section .modinfo, "depends="), so neither depmod nor its files are needed: kernel packages that
 * were only unpacked do not have them. Modules are found by walking the directory, and loaded in
 * the guest in the order of their names, so dependencies get the lower numbers.
 *
 * What may never happen: an archive that depends on the host (times, inode numbers, the order of
 * directory entries), or one that lacks a module and is written all the same.
 */
#include "engine/initramfs.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

/* Linux's own limit for module names is 64 bytes less the size of a pointer. */
#define MODULE_NAME_SIZE 64
/* A full distribution kernel has about 4,500. */
#define MODULES_FOUND_MAX ((size_t)1 << 16)
/* lib/modules/VERSION/kernel/drivers/... is five or six levels deep. */
#define WALK_DEPTH_MAX 16
/* Two digits number them; a machine needs about ten. */
#define MODULES_LOADED_MAX 100
/* The longest chain in a distribution kernel is below ten. */
#define DEPENDENCY_DEPTH_MAX 32
/* The largest modules (graphics) have some 10 MB; static programs are smaller. */
#define FILE_BYTES_MAX ((size_t)64 << 20)
/* One line for each built-in module; 5 KB to 15 KB in practice. */
#define BUILTIN_BYTES_MAX ((size_t)4 << 20)

struct wanted_module {
	const char *name;
	/* Needed by some kernels only: no error when a kernel has no such module. */
	bool optional;
};

static const struct wanted_module wanted_modules[] = {
	{"virtio_pci", false},
	/* The root and /data. */
	{"virtio_blk", false},
	/* box.ctl and its like. */
	{"virtio_console", false},
	{"virtio_rng", false},
	/* Tells the monitor of memory that is free again. Without it memory once used stays in use.
	 */
	{"virtio_balloon", true},
	/* Where ext4 is a module it asks for crc32c by the algorithm's name, which no dependency
	 * tells and nobody in the guest would load. */
	{"crc32c_generic", true},
	{"ext4", false},
	/* Networks that a guest makes itself; it has no modules that it could load. */
	{"veth", true},
	{"bridge", true},
};

struct found_module {
	/* With _ in the place of -, without suffix. */
	char name[MODULE_NAME_SIZE];
	/* Below modules_dir, owned. */
	char *path;
	bool compressed;
};

struct loaded_module {
	const struct found_module *found;
	char *data;
	size_t size;
};

struct module_set {
	const char *directory;
	int directory_fd;
	struct found_module *found;
	size_t found_count;
	size_t found_capacity;
	/* modules.builtin, names only, each line ended by a newline and with one before the first.
	 */
	char *builtin;
	struct loaded_module loaded[MODULES_LOADED_MAX];
	size_t loaded_count;
};

struct archive {
	int fd;
	uint64_t offset;
	uint32_t inode;
};

static void cleanup_module_set(struct module_set *set)
{
	for (size_t i = 0; i < set->found_count; i++) {
		free(set->found[i].path);
	}
	for (size_t i = 0; i < set->loaded_count; i++) {
		free(set->loaded[i].data);
	}
	free(set->found);
	free(set->builtin);
	close_fd(&set->directory_fd);
}

static void cleanup_directory(DIR **directory)
{
	if (*directory) {
		closedir(*directory);
	}
}

/* A module's name from length bytes of a file name or dependency. False when it is too long. */
static bool copy_module_name(const char *text, size_t length, char *out)
{
	if (length == 0 || length >= MODULE_NAME_SIZE) {
		return false;
	}
	for (size_t i = 0; i < length; i++) {
		out[i] = text[i] == '-' ? '_' : text[i];
	}
	out[length] = '\0';
	return true;
}

/* The length of a module's file name without its suffix, or 0 when the file is no module. */
static size_t module_stem(const char *file_name, bool *ret_compressed)
{
	static const char *const suffixes[] = {".ko", ".ko.xz", ".ko.zst", ".ko.gz"};
	size_t length = strlen(file_name);

	for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++) {
		size_t suffix_length = strlen(suffixes[i]);

		if (length > suffix_length &&
		    strcmp(file_name + length - suffix_length, suffixes[i]) == 0) {
			*ret_compressed = i > 0;
			return length - suffix_length;
		}
	}
	return 0;
}

static int add_found(struct module_set *set, const char *file_name, const char *path)
{
	struct found_module module = {0}, *grown;
	size_t stem = module_stem(file_name, &module.compressed);

	if (stem == 0 || !copy_module_name(file_name, stem, module.name)) {
		return 0;
	}
	if (set->found_count >= MODULES_FOUND_MAX) {
		return -E2BIG;
	}
	grown = array_reserve(set->found, set->found_count, &set->found_capacity, sizeof(*grown));
	if (!grown) {
		return -ENOMEM;
	}
	set->found = grown;
	module.path = strdup(path);
	if (!module.path) {
		return -ENOMEM;
	}
	set->found[set->found_count++] = module;
	return 0;
}

/* Finds all modules below path. Links (build and source, to a kernel's sources) are not followed.
 */
static int walk(struct module_set *set, const char *path, unsigned depth)
{
	_cleanup_(cleanup_directory) DIR *directory = NULL;
	struct dirent *entry;
	int fd, rc;

	if (depth > WALK_DEPTH_MAX) {
		return -ELOOP;
	}
	fd = openat(set->directory_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		return -errno;
	}
	directory = fdopendir(fd);
	if (!directory) {
		rc = -errno;
		close(fd);
		return rc;
	}
	for (errno = 0; (entry = readdir(directory)); errno = 0) {
		char child[PATH_MAX];
		struct stat status;

		if (entry->d_name[0] == '.') {
			continue;
		}
		if (snprintf(child, sizeof(child), "%s/%s", path, entry->d_name) >=
		    (int)sizeof(child)) {
			return -ENAMETOOLONG;
		}
		if (fstatat(dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
			return -errno;
		}
		if (S_ISDIR(status.st_mode)) {
			rc = walk(set, child, depth + 1);
		} else {
			rc = S_ISREG(status.st_mode) ? add_found(set, entry->d_name, child) : 0;
		}
		if (rc < 0) {
			return rc;
		}
	}
	return -errno;
}

/* By name; of one name the one in updates/ first, as depmod would choose, then by path. */
static int compare_found(const void *left, const void *right)
{
	const struct found_module *one = left, *two = right;
	bool one_is_update = strncmp(one->path, "./updates/", 10) == 0;
	bool two_is_update = strncmp(two->path, "./updates/", 10) == 0;
	int order = strcmp(one->name, two->name);

	if (order == 0 && one_is_update != two_is_update) {
		order = one_is_update ? -1 : 1;
	}
	return order != 0 ? order : strcmp(one->path, two->path);
}

static const struct found_module *find_module(const struct module_set *set, const char *name)
{
	size_t low = 0, high = set->found_count;

	/* The first of that name. */
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (strcmp(set->found[middle].name, name) < 0) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	if (low < set->found_count && strcmp(set->found[low].name, name) == 0) {
		return &set->found[low];
	}
	return NULL;
}

/* Reads modules.builtin, lines like "kernel/fs/ext4/ext4.ko". Without it nothing is built in. */
static int read_builtin(struct module_set *set)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_free_ char *names = NULL;
	size_t text_size, size = 0;
	int rc = read_file_at(set->directory_fd, "modules.builtin", BUILTIN_BYTES_MAX, &text,
			      &text_size);

	if (rc == -ENOENT) {
		return 0;
	}
	if (rc < 0) {
		return rc;
	}
	/* A line's name is never longer than the line. */
	names = malloc(text_size + 3);
	if (!names) {
		return -ENOMEM;
	}
	names[size++] = '\n';
	for (char *line = text, *next; *line; line = next) {
		size_t length = strcspn(line, "\n");
		const char *slash;
		bool compressed;
		size_t stem;

		next = line + length + (line[length] == '\n');
		line[length] = '\0';
		slash = strrchr(line, '/');
		slash = slash ? slash + 1 : line;
		stem = module_stem(slash, &compressed);
		if (stem > 0 && stem < MODULE_NAME_SIZE) {
			copy_module_name(slash, stem, names + size);
			size += stem;
			names[size++] = '\n';
		}
	}
	names[size] = '\0';
	set->builtin = TAKE_PTR(names);
	return 0;
}

static bool is_builtin(const struct module_set *set, const char *name)
{
	char line[MODULE_NAME_SIZE + 2];

	snprintf(line, sizeof(line), "\n%s\n", name);
	return set->builtin && strstr(set->builtin, line);
}

/*
 * The section .modinfo of a module: strings with a NUL after each. NULL when data is no 64-bit
 * little-endian ELF object that has one. Every offset is checked before use.
 */
static const char *find_modinfo(const char *data, size_t size, size_t *ret_size)
{
	Elf64_Ehdr header;
	Elf64_Shdr names;

	if (size < sizeof(header)) {
		return NULL;
	}
	memcpy(&header, data, sizeof(header));
	if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
	    header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
	    header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum ||
	    header.e_shoff > size ||
	    (size - header.e_shoff) / sizeof(Elf64_Shdr) < header.e_shnum) {
		return NULL;
	}
	memcpy(&names, data + header.e_shoff + header.e_shstrndx * sizeof(names), sizeof(names));
	if (names.sh_offset > size || names.sh_size > size - names.sh_offset) {
		return NULL;
	}
	for (size_t i = 0; i < header.e_shnum; i++) {
		static const char wanted[] = ".modinfo";
		Elf64_Shdr section;

		memcpy(&section, data + header.e_shoff + i * sizeof(section), sizeof(section));
		if (section.sh_name > names.sh_size ||
		    names.sh_size - section.sh_name < sizeof(wanted) ||
		    memcmp(data + names.sh_offset + section.sh_name, wanted, sizeof(wanted)) != 0) {
			continue;
		}
		if (section.sh_type == SHT_NOBITS || section.sh_offset > size ||
		    section.sh_size > size - section.sh_offset) {
			return NULL;
		}
		*ret_size = section.sh_size;
		return data + section.sh_offset;
	}
	return NULL;
}

/* The list of a module's "depends=", comma-separated, or NULL when the file is no module. */
static const char *find_depends(const char *data, size_t size)
{
	static const char key[] = "depends=";
	size_t info_size;
	const char *info = find_modinfo(data, size, &info_size);

	while (info && info_size > 0) {
		const char *end = memchr(info, '\0', info_size);

		if (!end) {
			return NULL;
		}
		if (strncmp(info, key, strlen(key)) == 0) {
			return info + strlen(key);
		}
		info_size -= (size_t)(end + 1 - info);
		info = end + 1;
	}
	return NULL;
}

static void mend_kernel(struct err *err)
{
	err_mend(err, "use the kernel that was installed with box, or one like Debian's "
		      "linux-image-cloud-amd64 (BOX_KERNEL, BOX_MODULES)");
}

/* Reads a module's file. */
static int read_module(const struct module_set *set, const struct found_module *found,
		       struct loaded_module *ret_module, struct err *err)
{
	_cleanup_free_ char *data = NULL;
	size_t size;
	int rc;

	if (found->compressed) {
		err_set(err, -ENOTSUP, "kernel-modules",
			"%s/%s is compressed: this kernel cannot be used", set->directory,
			found->path + 2);
		err_mend(err, "use a kernel whose modules are plain .ko files, such as Debian "
			      "12's, or decompress a copy of them and set BOX_MODULES to it");
		return -ENOTSUP;
	}
	rc = read_file_at(set->directory_fd, found->path, FILE_BYTES_MAX, &data, &size);
	if (rc < 0) {
		return err_context(err, rc, "%s/%s", set->directory, found->path + 2);
	}
	if (!find_depends(data, size)) {
		err_set(err, -EINVAL, "kernel-modules", "%s/%s is no kernel module", set->directory,
			found->path + 2);
		mend_kernel(err);
		return -EINVAL;
	}
	*ret_module = (struct loaded_module){.found = found, .data = TAKE_PTR(data), .size = size};
	return 0;
}

static int missing_module(const struct module_set *set, const char *name, struct err *err)
{
	err_set(err, -ENOENT, "kernel-modules",
		"the kernel module %s is neither in %s nor built into that kernel", name,
		set->directory);
	mend_kernel(err);
	return -ENOENT;
}

static bool is_loaded(const struct module_set *set, const struct found_module *found)
{
	for (size_t i = 0; i < set->loaded_count; i++) {
		if (set->loaded[i].found == found) {
			return true;
		}
	}
	return false;
}

/* Appends a module behind everything that it depends on. */
static int load_module(struct module_set *set, const char *name, unsigned depth, struct err *err)
{
	const struct found_module *found;
	struct loaded_module module = {0};
	int rc;

	if (is_builtin(set, name)) {
		return 0;
	}
	found = find_module(set, name);
	if (!found) {
		return missing_module(set, name, err);
	}
	if (is_loaded(set, found)) {
		return 0;
	}
	rc = read_module(set, found, &module, err);
	if (rc < 0) {
		return rc;
	}
	for (const char *next = find_depends(module.data, module.size); *next && rc == 0;) {
		char dependency[MODULE_NAME_SIZE];
		size_t length = strcspn(next, ",");

		if (length > 0 && (!copy_module_name(next, length, dependency) ||
				   depth >= DEPENDENCY_DEPTH_MAX)) {
			rc = err_set(err, -EINVAL, "kernel-modules",
				     "the dependencies of kernel module %s make no sense", name);
		} else if (length > 0) {
			rc = load_module(set, dependency, depth + 1, err);
		}
		next += length + (next[length] == ',');
	}
	if (rc == 0 && set->loaded_count == MODULES_LOADED_MAX) {
		rc = err_set(err, -E2BIG, "kernel-modules",
			     "the guest would need more than %d kernel modules",
			     MODULES_LOADED_MAX);
	}
	if (rc < 0) {
		free(module.data);
		return rc;
	}
	set->loaded[set->loaded_count++] = module;
	return 0;
}

static int collect_modules(struct module_set *set, struct err *err)
{
	int rc;

	set->directory_fd = open(set->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (set->directory_fd < 0) {
		rc = -errno;
		err_set(err, rc, "kernel-modules", "kernel modules in %s: %s", set->directory,
			strerror(-rc));
		mend_kernel(err);
		return rc;
	}
	rc = walk(set, ".", 0);
	if (rc == 0) {
		rc = read_builtin(set);
	}
	if (rc < 0) {
		return err_context(err, rc, "kernel modules in %s", set->directory);
	}
	if (set->found_count > 0) {
		qsort(set->found, set->found_count, sizeof(set->found[0]), compare_found);
	}
	for (size_t i = 0; i < ARRAY_SIZE(wanted_modules); i++) {
		const struct wanted_module *wanted = &wanted_modules[i];

		if (wanted->optional && !find_module(set, wanted->name)) {
			continue;
		}
		rc = load_module(set, wanted->name, 0, err);
		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

static int put_bytes(struct archive *archive, const void *data, size_t size)
{
	int rc = write_full(archive->fd, data, size);

	archive->offset += size;
	return rc;
}

static int put_padding(struct archive *archive, uint64_t alignment)
{
	static const char zeros[512];
	size_t size = (size_t)((alignment - archive->offset % alignment) % alignment);

	ASSERT(size <= sizeof(zeros));
	return size > 0 ? put_bytes(archive, zeros, size) : 0;
}

/* One member; device is (major << 8 | minor) of a device node. */
static int put_member(struct archive *archive, const char *name, mode_t mode, unsigned device,
		      const struct loaded_module *content)
{
	char header[256];
	size_t size = content ? content->size : 0;
	int length, rc;

	/* magic; inode, mode, uid, gid, links, mtime, size; major and minor of the file system and
	 * of the node; length of the name with its NUL; checksum, unused here. */
	length = snprintf(header, sizeof(header),
			  "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s",
			  archive->inode++, (unsigned)mode, 0u, 0u, S_ISDIR(mode) ? 2u : 1u, 0u,
			  (unsigned)size, 0u, 0u, device >> 8, device & 0xffu,
			  (unsigned)strlen(name) + 1, 0u, name);
	ASSERT(length > 0 && (size_t)length < sizeof(header));
	rc = put_bytes(archive, header, (size_t)length + 1);
	if (rc == 0) {
		rc = put_padding(archive, 4);
	}
	if (rc == 0 && size > 0) {
		rc = put_bytes(archive, content->data, size);
	}
	return rc < 0 ? rc : put_padding(archive, 4);
}

static int put_modules(struct archive *archive, const struct module_set *set)
{
	int rc = put_member(archive, "modules", S_IFDIR | 0755, 0, NULL);

	for (size_t i = 0; i < set->loaded_count && rc == 0; i++) {
		char name[MODULE_NAME_SIZE + 32];

		snprintf(name, sizeof(name), "modules/%02zu-%s.ko", i, set->loaded[i].found->name);
		rc = put_member(archive, name, S_IFREG | 0644, 0, &set->loaded[i]);
	}
	return rc;
}

static int put_archive(struct archive *archive, const struct loaded_module *guest,
		       const struct module_set *set)
{
	static const char *const directories[] = {"dev", "proc", "sys", "root"};
	/* Documentation/admin-guide/devices.txt: 5, 1 is /dev/console. */
	const unsigned console = 5u << 8 | 1u;
	int rc = 0;

	for (size_t i = 0; i < ARRAY_SIZE(directories) && rc == 0; i++) {
		rc = put_member(archive, directories[i], S_IFDIR | 0755, 0, NULL);
	}
	if (rc == 0) {
		rc = put_member(archive, "dev/console", S_IFCHR | 0600, console, NULL);
	}
	if (rc == 0) {
		rc = put_member(archive, "init", S_IFREG | 0755, 0, guest);
	}
	if (rc == 0) {
		rc = put_modules(archive, set);
	}
	if (rc == 0) {
		archive->inode = 0;
		rc = put_member(archive, "TRAILER!!!", 0, 0, NULL);
	}
	return rc < 0 ? rc : put_padding(archive, 512);
}

int initramfs_write(int fd, const char *guest_program_path, const char *modules_dir,
		    struct err *err)
{
	_cleanup_(cleanup_module_set) struct module_set set = {
		.directory = modules_dir,
		.directory_fd = -EBADF,
	};
	_cleanup_free_ char *program = NULL;
	struct archive archive = {.fd = fd, .inode = 1};
	struct loaded_module guest = {0};
	int rc;

	rc = read_file_at(AT_FDCWD, guest_program_path, FILE_BYTES_MAX, &program, &guest.size);
	if (rc == 0 && (guest.size < SELFMAG || memcmp(program, ELFMAG, SELFMAG) != 0)) {
		rc = -ENOEXEC;
	}
	if (rc < 0) {
		err_set(err, rc, "no-guest", "the guest's init program %s: %s", guest_program_path,
			strerror(-rc));
		err_mend(err, "install box again: box-guest is a part of it");
		return rc;
	}
	guest.data = program;
	rc = collect_modules(&set, err);
	if (rc < 0) {
		return rc;
	}
	rc = put_archive(&archive, &guest, &set);
	return rc < 0 ? err_context(err, rc, "cannot write the initramfs") : 0;
}
