/*
 * What a program needs to start: itself, its dynamic loader and its libraries.
 *
 * The loader is asked (ld.so(8), --list), because only it knows its search rules. It runs as the
 * caller with an empty environment, and maps the program without running it. The program is the
 * host's own, not something a guest wrote.
 */
#include "jail/jail.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"

/* One line of about 100 bytes for each of at most 160 libraries, four times over. */
#define LIST_BYTES_MAX ((size_t)64 << 10)
/* Programs have about a dozen headers. */
#define HEADERS_MAX 64

/* Reads the path in PT_INTERP; "" when the program is static. */
static int read_interpreter(int fd, char *ret_path, size_t size)
{
	Elf64_Phdr headers[HEADERS_MAX];
	Elf64_Ehdr head;
	size_t bytes;

	if (pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
	    memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 ||
	    head.e_phentsize != sizeof(headers[0]) || head.e_phnum > HEADERS_MAX) {
		return -ENOEXEC;
	}
	bytes = head.e_phnum * sizeof(headers[0]);
	if (pread(fd, headers, bytes, (off_t)head.e_phoff) != (ssize_t)bytes) {
		return -ENOEXEC;
	}
	ret_path[0] = '\0';
	for (size_t i = 0; i < head.e_phnum; i++) {
		if (headers[i].p_type != PT_INTERP) {
			continue;
		}
		bytes = headers[i].p_filesz;
		if (bytes < 2 || bytes > size ||
		    pread(fd, ret_path, bytes, (off_t)headers[i].p_offset) != (ssize_t)bytes ||
		    ret_path[bytes - 1] != '\0' || ret_path[0] != '/') {
			return -ENOEXEC;
		}
	}
	return 0;
}

/* Runs "loader --list program" and collects what it prints. -ENOEXEC: it failed, and said why. */
static int run_loader(const char *loader, const char *program, char *ret_list, size_t size)
{
	posix_spawn_file_actions_t actions;
	/* posix_spawn takes the strings as they are; only its type lacks the const. */
	char *argv[] = {(char *)(uintptr_t)loader, (char[]){"--list"}, (char *)(uintptr_t)program,
			NULL};
	char *environment[] = {NULL};
	int ends[2], status, rc;
	ssize_t got;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) < 0) {
		return -errno;
	}
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
	posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
	rc = -posix_spawn(&pid, loader, &actions, NULL, argv, environment);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	if (rc < 0) {
		close(ends[0]);
		return rc;
	}
	got = read_full(ends[0], ret_list, size - 1);
	close(ends[0]);
	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR) {
			return -errno;
		}
	}
	if (got < 0) {
		return (int)got;
	}
	ret_list[got] = '\0';
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		return -ENOEXEC;
	}
	return (size_t)got == size - 1 ? -EFBIG : 0;
}

/*
 * Without /etc/ld.so.cache the loader inside looks only into its built-in directories and where
 * the programs say. A library that the host's cache found elsewhere is also put into one of them.
 */
static int add_library(struct jail *jail, const char *path, struct err *err)
{
	static const char *const built_in[] = {
		"/lib/x86_64-linux-gnu",
		"/usr/lib/x86_64-linux-gnu",
		"/lib",
		"/usr/lib",
	};
	const char *name = strrchr(path, '/');
	char other[PATH_MAX];
	int rc = jail_add_bind(jail, path, NULL, false, err);

	for (size_t i = 0; i < ARRAY_SIZE(built_in); i++) {
		if (strlen(built_in[i]) == (size_t)(name - path) &&
		    strncmp(path, built_in[i], (size_t)(name - path)) == 0) {
			return rc;
		}
	}
	snprintf(other, sizeof(other), "/usr/lib%s", name);
	return rc == 0 ? jail_add_bind(jail, path, other, false, err) : rc;
}

/* Takes the path out of "NAME => PATH (ADDRESS)". The kernel's own library has none. */
static int add_line(struct jail *jail, const char *program, char *line, struct err *err)
{
	char *arrow = strstr(line, " => ");
	char *address;

	if (!arrow) {
		return 0;
	}
	arrow += 4;
	address = strstr(arrow, " (0x");
	if (arrow[0] != '/' || !address) {
		return err_set(err, -ENOENT, "jail", "%s needs a library that is missing:%s",
			       program, line);
	}
	*address = '\0';
	return add_library(jail, arrow, err);
}

int jail_add_program(struct jail *jail, const char *host_path, struct err *err)
{
	_cleanup_close_ int fd = -EBADF;
	_cleanup_free_ char *list = NULL;
	char loader[PATH_MAX];
	char *state = NULL;
	int rc = jail_add_bind(jail, host_path, NULL, false, err);

	if (rc < 0) {
		return rc;
	}
	fd = open(host_path, O_RDONLY | O_CLOEXEC);
	rc = fd < 0 ? -errno : read_interpreter(fd, loader, sizeof(loader));
	if (rc < 0) {
		return err_set(err, rc, "jail", "cannot read the program %s: %s", host_path,
			       strerror(-rc));
	}
	if (!loader[0]) {
		return 0;
	}
	rc = jail_add_bind(jail, loader, NULL, false, err);
	if (rc < 0) {
		return rc;
	}
	list = malloc(LIST_BYTES_MAX);
	rc = list ? run_loader(loader, host_path, list, LIST_BYTES_MAX) : -ENOMEM;
	if (rc == -ENOEXEC && list[0]) {
		list[strcspn(list, "\n")] = '\0';
		err_set(err, rc, "jail", "the loader cannot start %s", list);
		err_mend(err, "install the library that it needs");
		return rc;
	}
	if (rc < 0) {
		return err_set(err, rc, "jail", "cannot list the libraries of %s: %s", host_path,
			       strerror(-rc));
	}
	for (char *line = strtok_r(list, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
		rc = add_line(jail, host_path, line, err);
		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}
