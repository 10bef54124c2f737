/*
 * Tries one forbidden act and tells how it went: exit code 0 when it succeeded, 1 when it was
 * refused, 2 when the act is not known. Static, so that a jail needs no library for it.
 *
 * A system call list that forbids the act kills the process instead (SIGSYS).
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SECUREBITS_LOCKED 0xef

/* The test gives small numbers only. */
static int number(const char *argument)
{
	return (int)strtol(argument, NULL, 10);
}

static bool open_host(const char *argument)
{
	return open(argument, O_RDONLY) >= 0;
}

static bool open_above(const char *argument)
{
	char path[4096];

	snprintf(path, sizeof(path), "../../../../..%s", argument);
	return open(path, O_RDONLY) >= 0;
}

static bool write_root(const char *argument)
{
	(void)argument;
	return open("/box-probe-file", O_WRONLY | O_CREAT, 0600) >= 0 &&
	       unlink("/box-probe-file") == 0;
}

static bool write_file(const char *argument)
{
	return open(argument, O_WRONLY | O_APPEND) >= 0;
}

static bool make_directory(const char *argument)
{
	(void)argument;
	return mkdir("/box-probe-dir", 0700) == 0 && rmdir("/box-probe-dir") == 0;
}

static bool list_root(const char *argument)
{
	(void)argument;
	return opendir("/") != NULL;
}

static bool try_mount(const char *argument)
{
	(void)argument;
	return mount("none", "/", "tmpfs", 0, NULL) == 0;
}

static bool remount_root(const char *argument)
{
	(void)argument;
	return mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL) == 0;
}

static bool new_namespace(const char *argument)
{
	(void)argument;
	return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
}

static bool make_socket(const char *argument)
{
	(void)argument;
	return socket(AF_INET, SOCK_STREAM, 0) >= 0;
}

static bool connect_host(const char *argument)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)number(argument)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	return fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
}

static bool trace(const char *argument)
{
	(void)argument;
	return ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0;
}

static bool kill_other(const char *argument)
{
	return kill((pid_t)number(argument), 0) == 0;
}

static bool become_root(const char *argument)
{
	(void)argument;
	return syscall(SYS_setuid, 0) == 0;
}

static bool be_root(const char *argument)
{
	(void)argument;
	return getuid() == 0 || geteuid() == 0 || getgid() == 0 || getegid() == 0;
}

static bool have_capability(const char *argument)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};

	(void)argument;
	if (syscall(SYS_capget, &header, data) < 0) {
		return false;
	}
	return data[0].effective | data[0].permitted | data[0].inheritable | data[1].effective |
	       data[1].permitted | data[1].inheritable;
}

static bool have_bounding(const char *argument)
{
	(void)argument;
	for (unsigned long capability = 0; capability < 64; capability++) {
		if (prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1) {
			return true;
		}
	}
	return false;
}

static bool unlocked_securebits(const char *argument)
{
	int bits = prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);

	(void)argument;
	return bits >= 0 && (bits & SECUREBITS_LOCKED) != SECUREBITS_LOCKED;
}

static bool new_privileges(const char *argument)
{
	(void)argument;
	return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0;
}

static bool execute(const char *argument)
{
	char *argv[] = {strdup(argument), strdup("succeed"), NULL};
	char *environment[] = {NULL};

	execve(argument, argv, environment);
	return false;
}

/* The way that jail_spawn takes, with a descriptor of our own. */
static bool execute_descriptor(const char *argument)
{
	char *argv[] = {strdup(argument), strdup("succeed"), NULL};
	char *environment[] = {NULL};
	int fd = open(argument, O_RDONLY);

	if (fd < 0 || dup2(fd, 4095) < 0) {
		return false;
	}
	syscall(SYS_execveat, 4095, "", argv, environment, AT_EMPTY_PATH);
	return false;
}

static bool see_processes(const char *argument)
{
	DIR *directory = opendir("/proc");
	struct dirent *entry;
	int count = 0;

	(void)argument;
	while (directory && (entry = readdir(directory))) {
		count += entry->d_name[0] >= '1' && entry->d_name[0] <= '9';
	}
	return count > 1;
}

static bool see_host_name(const char *argument)
{
	char name[65];

	return gethostname(name, sizeof(name)) == 0 && strcmp(name, argument) == 0;
}

static bool keep_descriptor(const char *argument)
{
	(void)argument;
	for (int fd = 3; fd < 4096; fd++) {
		if (fcntl(fd, F_GETFD) >= 0) {
			return true;
		}
	}
	return false;
}

static bool read_stdin(const char *argument)
{
	struct stat status;

	(void)argument;
	for (int fd = 0; fd < 3; fd++) {
		if (fstat(fd, &status) < 0 || !S_ISCHR(status.st_mode) || status.st_rdev != 0x103) {
			return true;
		}
	}
	return false;
}

static bool many_files(const char *argument)
{
	(void)argument;
	for (int i = 0; i < 200; i++) {
		if (dup(0) < 0) {
			return false;
		}
	}
	return true;
}

static bool set_limit(const char *argument)
{
	struct rlimit limit = {.rlim_cur = 32, .rlim_max = 32};

	(void)argument;
	return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

static bool core_dumps(const char *argument)
{
	struct rlimit limit = {0};

	(void)argument;
	return getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max > 0;
}

static bool much_memory(const char *argument)
{
	(void)argument;
	return mmap(NULL, (size_t)1 << 31, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
	       MAP_FAILED;
}

static bool large_file(const char *argument)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN};

	return sigaction(SIGXFSZ, &ignore, NULL) == 0 &&
	       pwrite(number(argument), "x", 1, 8 << 20) == 1;
}

static bool many_processes(const char *argument)
{
	(void)argument;
	for (int i = 0; i < 40; i++) {
		pid_t pid = fork();

		if (pid < 0) {
			return false;
		}
		if (pid == 0) {
			sleep(60);
			_exit(0);
		}
	}
	return true;
}

/* What the keeper answers: the file comes, but it cannot be written. */
static bool open_answered(const char *argument)
{
	char byte = 0;
	int fd = open(argument, O_RDWR);

	return fd >= 0 && read(fd, &byte, 1) == 1 && byte == 'm' && write(fd, "x", 1) < 0;
}

static bool punch(int fd)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0;
}

/* The first file is said to have a hole and has none; the second, a descriptor, has one. */
static bool punch_answered(const char *argument)
{
	char first = 0, second = 'x';
	int memory = open("/memory", O_RDWR), other = number(argument);

	return memory >= 0 && punch(memory) && punch(other) && pread(memory, &first, 1, 0) == 1 &&
	       first == 'm' && pread(other, &second, 1, 0) == 1 && second == 0;
}

static bool succeed(const char *argument)
{
	(void)argument;
	return true;
}

static bool wait_forever(const char *argument)
{
	(void)argument;
	while (poll(NULL, 0, -1) < 0) {
	}
	return true;
}

static const struct {
	const char *name;
	bool (*run)(const char *argument);
} acts[] = {
	{"open-host", open_host},
	{"open-above", open_above},
	{"write-root", write_root},
	{"write-file", write_file},
	{"make-directory", make_directory},
	{"list-root", list_root},
	{"mount", try_mount},
	{"remount-root", remount_root},
	{"new-namespace", new_namespace},
	{"make-socket", make_socket},
	{"connect-host", connect_host},
	{"trace", trace},
	{"kill-other", kill_other},
	{"become-root", become_root},
	{"be-root", be_root},
	{"have-capability", have_capability},
	{"have-bounding", have_bounding},
	{"unlocked-securebits", unlocked_securebits},
	{"new-privileges", new_privileges},
	{"execute", execute},
	{"execute-descriptor", execute_descriptor},
	{"see-processes", see_processes},
	{"see-host-name", see_host_name},
	{"keep-descriptor", keep_descriptor},
	{"read-stdin", read_stdin},
	{"many-files", many_files},
	{"set-limit", set_limit},
	{"core-dumps", core_dumps},
	{"much-memory", much_memory},
	{"large-file", large_file},
	{"many-processes", many_processes},
	{"open-answered", open_answered},
	{"punch-answered", punch_answered},
	{"succeed", succeed},
	{"wait", wait_forever},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(acts) / sizeof(acts[0]); i++) {
		if (strcmp(acts[i].name, argv[1]) == 0) {
			return acts[i].run(argc > 2 ? argv[2] : "") ? 0 : 1;
		}
	}
	return 2;
}
