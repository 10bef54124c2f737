/* The description of a jail, and the filters made from policies/, run in a small interpreter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/process.h"
#include "jail/jail.h"
#include "sys/process.h"

/* Classic BPF as seccomp(2) runs it: only the instructions that policies/compile.c writes. */
static uint32_t run_filter(const struct jail_policy *policy, const struct seccomp_data *data)
{
	const struct sock_filter *code = policy->filter;
	uint32_t accumulator = 0;

	for (size_t at = 0; at < policy->count; at++) {
		switch (code[at].code) {
		case BPF_LD | BPF_W | BPF_ABS:
			assert_true(code[at].k <= sizeof(*data) - 4);
			memcpy(&accumulator, (const char *)data + code[at].k, 4);
			break;
		case BPF_ALU | BPF_AND | BPF_K:
			accumulator &= code[at].k;
			break;
		case BPF_JMP | BPF_JA:
			at += code[at].k;
			break;
		case BPF_JMP | BPF_JEQ | BPF_K:
			at += accumulator == code[at].k ? code[at].jt : code[at].jf;
			break;
		case BPF_JMP | BPF_JGE | BPF_K:
			at += accumulator >= code[at].k ? code[at].jt : code[at].jf;
			break;
		case BPF_RET | BPF_K:
			return code[at].k;
		default:
			fail_msg("instruction %zu is of an unknown kind", at);
		}
	}
	fail_msg("the filter has no end");
	return 0;
}

static uint32_t decide(const struct jail_policy *policy, int number, uint64_t arg0, uint64_t arg1,
		       uint64_t arg2)
{
	struct seccomp_data data = {
		.nr = number,
		.arch = AUDIT_ARCH_X86_64,
		.args = {arg0, arg1, arg2},
	};

	return run_filter(policy, &data);
}

static const struct {
	int number;
	uint64_t args[3];
	uint32_t qemu;
	uint32_t image;
} decisions[] = {
#define KILL SECCOMP_RET_KILL_PROCESS
#define ALLOW SECCOMP_RET_ALLOW
#define ERRNO(e) (SECCOMP_RET_ERRNO | (e))
	{SYS_read, {0}, ALLOW, ALLOW},
	{SYS_pwritev, {0}, ALLOW, KILL},
	{SYS_socket, {2, 1}, KILL, KILL},
	{SYS_connect, {3}, KILL, KILL},
	{SYS_bind, {3}, KILL, KILL},
	{SYS_listen, {3}, KILL, KILL},
	{SYS_accept4, {3}, KILL, KILL},
	{SYS_socketpair, {1}, KILL, KILL},
	{SYS_ptrace, {0}, KILL, KILL},
	{SYS_process_vm_readv, {1}, KILL, KILL},
	{SYS_mount, {0}, KILL, KILL},
	{SYS_open_tree, {0}, KILL, KILL},
	{SYS_unshare, {CLONE_NEWUSER}, KILL, KILL},
	{SYS_setns, {3}, KILL, KILL},
	{SYS_bpf, {0}, KILL, KILL},
	{SYS_perf_event_open, {0}, KILL, KILL},
	{SYS_userfaultfd, {0}, KILL, KILL},
	{SYS_keyctl, {0}, KILL, KILL},
	{SYS_setuid, {0}, KILL, KILL},
	{SYS_execve, {0}, KILL, KILL},
	{SYS_execveat, {3}, KILL, KILL},
	{SYS_fork, {0}, KILL, KILL},
	{SYS_vfork, {0}, KILL, KILL},
	{SYS_clone, {17}, KILL, KILL},
	{SYS_clone, {CLONE_THREAD | CLONE_VM}, ALLOW, KILL},
	{SYS_clone, {1ULL << 48}, KILL, KILL},
	{SYS_clone3, {0}, ERRNO(ENOSYS), KILL},
	{SYS_io_uring_setup, {0}, ERRNO(ENOSYS), KILL},
	{SYS_kill, {1}, KILL, KILL},
	{SYS_tgkill, {1, 1, SIGUSR1}, ALLOW, ALLOW},
	{SYS_tgkill, {1, 1, SIGABRT}, ALLOW, ALLOW},
	{SYS_tgkill, {1, 1, SIGCONT}, KILL, ALLOW},
	{SYS_fcntl, {3, F_GETFL}, ALLOW, ALLOW},
	{SYS_fcntl, {3, F_SETSIG}, ERRNO(EINVAL), ALLOW},
	{SYS_tgkill, {2, 2}, KILL, KILL},
	{SYS_tgkill, {0xffffffffffffffff, 2}, KILL, KILL},
	{SYS_prlimit64, {0, 7, 0}, ALLOW, ALLOW},
	{SYS_prlimit64, {0, 7, 0x7f0000000000}, KILL, KILL},
	{SYS_setrlimit, {7}, KILL, KILL},
	{SYS_open, {0}, KILL, KILL},
	{SYS_creat, {0}, KILL, KILL},
	{SYS_fallocate,
	 {7, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE},
	 SECCOMP_RET_USER_NOTIF,
	 ERRNO(EOPNOTSUPP)},
	{SYS_fallocate, {7, FALLOC_FL_ZERO_RANGE}, ERRNO(EOPNOTSUPP), ERRNO(EOPNOTSUPP)},
	{SYS_fallocate, {7, 0}, ERRNO(EOPNOTSUPP), ERRNO(EOPNOTSUPP)},
	{SYS_ftruncate, {7, 0}, ERRNO(EPERM), ALLOW},
	{SYS_prctl, {PR_CAPBSET_READ}, ALLOW, KILL},
	{SYS_prctl, {PR_CAPBSET_DROP}, KILL, KILL},
	{SYS_openat2, {0}, KILL, KILL},
	{SYS_openat, {0xffffff9c, 0, O_RDONLY | O_CLOEXEC}, ALLOW, ALLOW},
	{SYS_openat, {0xffffff9c, 0, O_WRONLY}, SECCOMP_RET_USER_NOTIF, KILL},
	{SYS_openat, {0xffffff9c, 0, O_RDWR}, SECCOMP_RET_USER_NOTIF, KILL},
	{SYS_openat, {0xffffff9c, 0, O_RDWR | O_CLOEXEC}, ALLOW, KILL},
	{SYS_openat, {0xffffff9c, 0, O_RDWR | O_CLOEXEC | O_CREAT}, SECCOMP_RET_USER_NOTIF, KILL},
	{SYS_openat, {0xffffff9c, 0, O_CREAT}, SECCOMP_RET_USER_NOTIF, KILL},
	{SYS_openat, {0xffffff9c, 0, O_TRUNC}, SECCOMP_RET_USER_NOTIF, KILL},
	{SYS_openat, {0xffffff9c, 0, O_TMPFILE | O_RDWR}, SECCOMP_RET_USER_NOTIF, KILL},
	{SYS_ioctl, {3, 0xae01}, ALLOW, ERRNO(ENOTTY)},
	{SYS_ioctl, {3, 0x4020ae46}, ALLOW, ERRNO(ENOTTY)},
	{SYS_ioctl, {3, 0x5412}, ERRNO(ENOTTY), ERRNO(ENOTTY)},
	{SYS_prctl, {PR_SET_NAME}, KILL, KILL},
	{SYS_prctl, {PR_SET_PDEATHSIG}, KILL, KILL},
	{SYS_prctl, {PR_SET_DUMPABLE}, KILL, KILL},
	{SYS_pidfd_getfd, {0}, KILL, KILL},
	{SYS_memfd_create, {0}, ERRNO(ENOSYS), KILL},
	{100000, {0}, KILL, KILL},
	{-1, {0}, KILL, KILL},
};

static void test_decisions(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(decisions); i++) {
		const uint64_t *args = decisions[i].args;
		uint32_t qemu =
			decide(&jail_policy_qemu, decisions[i].number, args[0], args[1], args[2]);
		uint32_t image =
			decide(&jail_policy_image, decisions[i].number, args[0], args[1], args[2]);

		if (qemu != decisions[i].qemu || image != decisions[i].image) {
			fail_msg("decision %zu (call %d): qemu %x image %x", i, decisions[i].number,
				 qemu, image);
		}
	}
}

/* Whatever a list allows, another architecture's numbers and the x32 numbers are not in it. */
static void test_architectures(void **state)
{
	const struct jail_policy *policies[] = {&jail_policy_qemu, &jail_policy_image};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(policies); i++) {
		for (int number = 0; number < 500; number++) {
			struct seccomp_data data = {.nr = number, .arch = AUDIT_ARCH_I386};

			assert_int_equal(run_filter(policies[i], &data), KILL);
			data.arch = AUDIT_ARCH_X86_64;
			data.nr = number | 0x40000000;
			assert_int_equal(run_filter(policies[i], &data), KILL);
		}
	}
}

/* The start is possible with exactly one descriptor number and flag. */
static void test_start(void **state)
{
	struct seccomp_data data = {
		.nr = SYS_execveat,
		.arch = AUDIT_ARCH_X86_64,
		.args = {4095, 0, 0, 0, AT_EMPTY_PATH},
	};

	(void)state;
	assert_int_equal(run_filter(&jail_policy_qemu, &data), ALLOW);
	assert_int_equal(run_filter(&jail_policy_image, &data), ALLOW);
	data.args[4] = 0;
	assert_int_equal(run_filter(&jail_policy_qemu, &data), KILL);
	data.args[4] = AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW;
	assert_int_equal(run_filter(&jail_policy_qemu, &data), KILL);
	data.args[4] = AT_EMPTY_PATH;
	data.args[0] = 4094;
	assert_int_equal(run_filter(&jail_policy_qemu, &data), KILL);
}

static void test_add_bind(void **state)
{
	struct jail jail = {0};
	struct err err = {0};
	char path[32];

	(void)state;
	assert_int_equal(jail_add_bind(&jail, "/a", NULL, false, &err), 0);
	assert_int_equal(jail_add_bind(&jail, "/a", "/a", false, &err), 0);
	assert_int_equal(jail.bind_count, 1);
	assert_string_equal(jail.binds[0].inside_path, "/a");
	assert_int_equal(jail_add_bind(&jail, "/b", "/a", false, &err), -EEXIST);
	assert_non_null(strstr(err.text, "/b"));
	assert_int_equal(jail_add_bind(&jail, "/a", "/a", true, &err), -EEXIST);
	for (size_t i = jail.bind_count; i < JAIL_BINDS_MAX; i++) {
		snprintf(path, sizeof(path), "/file%zu", i);
		assert_int_equal(jail_add_bind(&jail, path, NULL, false, &err), 0);
	}
	assert_int_equal(jail_add_bind(&jail, "/one-more", NULL, false, &err), -ENOSPC);
	assert_int_equal(jail.bind_count, JAIL_BINDS_MAX);
	jail_clear(&jail);
	assert_int_equal(jail.bind_count, 0);
	jail_clear(&jail);
}

static void test_add_fd(void **state)
{
	struct jail jail = {0};
	struct err err = {0};

	(void)state;
	for (int i = 0; i < JAIL_FDS_MAX; i++) {
		assert_int_equal(jail_add_fd(&jail, 0, i, &err), 0);
	}
	assert_int_equal(jail_add_fd(&jail, 0, 99, &err), -ENOSPC);
	assert_int_equal(jail.fds[5].number, 5);
	jail_clear(&jail);
	assert_int_equal(jail.fd_count, 0);
}

static bool has_bind(const struct jail *jail, const char *inside)
{
	for (size_t i = 0; i < jail->bind_count; i++) {
		if (strcmp(jail->binds[i].inside_path, inside) == 0) {
			return true;
		}
	}
	return false;
}

static void test_add_program(void **state)
{
	struct jail jail = {0};
	struct err err = {0};

	(void)state;
	assert_int_equal(jail_add_program(&jail, "/bin/sh", &err), 0);
	assert_true(has_bind(&jail, "/bin/sh"));
	assert_true(has_bind(&jail, "/lib64/ld-linux-x86-64.so.2"));
	assert_true(jail.bind_count >= 3);
	for (size_t i = 0; i < jail.bind_count; i++) {
		assert_int_equal(access(jail.binds[i].host_path, R_OK), 0);
	}
	jail_clear(&jail);
	assert_int_equal(jail_add_program(&jail, "/nowhere/program", &err), -ENOENT);
	assert_non_null(strstr(err.text, "/nowhere/program"));
	jail_clear(&jail);
	assert_int_equal(jail_add_program(&jail, "/etc/passwd", &err), -ENOEXEC);
	jail_clear(&jail);
}

/* A damaged program is refused, whatever its headers say. */
static void test_add_program_damaged(void **state)
{
	char path[] = "/tmp/box-test-jail-XXXXXX";
	_cleanup_close_ int fd = mkstemp(path);
	unsigned char head[120] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
	struct jail jail = {0};
	struct err err = {0};

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(write(fd, head, 20), 20);
	assert_int_equal(jail_add_program(&jail, path, &err), -ENOEXEC);
	/* Program headers of the right size that lie beyond the file. */
	head[54] = 56;
	head[56] = 40;
	head[33] = 0xff;
	assert_int_equal(pwrite(fd, head, sizeof(head), 0), sizeof(head));
	assert_int_equal(jail_add_program(&jail, path, &err), -ENOEXEC);
	/* An interpreter without an end: one header of type PT_INTERP at 64. */
	head[56] = 1;
	head[33] = 0;
	head[32] = 64;
	head[64] = 3;
	head[64 + 32] = 7;
	assert_int_equal(pwrite(fd, head, sizeof(head), 0), sizeof(head));
	assert_int_equal(jail_add_program(&jail, path, &err), -ENOEXEC);
	jail_clear(&jail);
	unlink(path);
}

/* A program whose library there is not: the error names it. */
static void test_add_program_without_library(void **state)
{
	char path[] = "/tmp/box-test-jail-XXXXXX";
	_cleanup_close_ int fd = mkstemp(path);
	_cleanup_free_ char *program = NULL;
	size_t size;
	char *name;
	struct jail jail = {0};
	struct err err = {0};

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(read_file_at(AT_FDCWD, "/bin/true", 1 << 20, &program, &size), 0);
	name = memmem(program, size, "libc.so.6", 9);
	assert_non_null(name);
	name[3] = 'x';
	assert_int_equal(write(fd, program, size), (ssize_t)size);
	assert_int_equal(fchmod(fd, 0755), 0);
	assert_int_equal(jail_add_program(&jail, path, &err), -ENOEXEC);
	assert_non_null(strstr(err.text, "libx.so.6"));
	assert_non_null(strstr(err.mend, "library"));
	jail_clear(&jail);
	unlink(path);
}

static void test_describe(void **state)
{
	static const char *const argv[] = {"/p", "a \"quoted\" \\ word", "line\nbreak\x01", NULL};
	_cleanup_free_ char *text = NULL;
	struct err err = {0};
	struct jail jail = {
		.name = "qemu",
		.program = "/p",
		.argv = argv,
		.host_uid = 4711,
		.host_gid = 4712,
		.policy = &jail_policy_qemu,
		.notify = true,
		.open_files = 256,
		.file_size_bytes = 1ULL << 40,
		.cgroup_pids = 512,
	};

	(void)state;
	assert_int_equal(jail_add_bind(&jail, "/dev/kvm", NULL, true, &err), 0);
	assert_int_equal(jail_add_bind(&jail, "/host/p", "/p", false, &err), 0);
	assert_int_equal(jail_add_fd(&jail, 3, 42, &err), 0);
	assert_int_equal(jail_describe(&jail, &text), 0);
	assert_non_null(strstr(text, "\"a \\\"quoted\\\" \\\\ word\""));
	assert_non_null(strstr(text, "\"line\\u000abreak\\u0001\""));
	assert_non_null(strstr(text, "\"host_uid\": 4711, \"host_gid\": 4712"));
	assert_non_null(strstr(text, "\"policy\": \"qemu\""));
	assert_non_null(strstr(text, "\"notify\": true"));
	assert_non_null(strstr(text, "\"inside\": \"/dev/kvm\", \"access\": \"device\""));
	assert_non_null(strstr(text, "{\"host\": \"/host/p\", \"inside\": \"/p\", \"access\": "
				     "\"read-only\"}"));
	assert_non_null(strstr(text, "\"descriptors\": [42]"));
	assert_non_null(strstr(text, "\"Max open files\": 256"));
	assert_non_null(strstr(text, "\"Max file size\": 1099511627776"));
	assert_null(strstr(text, "Max address space"));
	assert_non_null(strstr(text, "\"pids\": 512"));
	jail_clear(&jail);
}

/* Bad descriptions are refused before anything is started. */
static void test_spawn_refuses(void **state)
{
	static const char *const argv[] = {"/p", NULL};
	static const char *const bad_paths[] = {"relative", "/",    "/a//b", "/a/",
						"/a/../b",  "/./a", "/.."};
	struct jail_process process;
	struct err err = {0};
	struct jail good = {
		.name = "test",
		.program = "/p",
		.argv = argv,
		.host_uid = 4711,
		.host_gid = 4711,
		.policy = &jail_policy_image,
	};
	struct jail bad;

	(void)state;
	if (geteuid() != 0) {
		good.host_uid = geteuid();
		good.host_gid = getegid();
	}
	good.binds[good.bind_count++] = (struct jail_bind){"/bin/true", "/p", false};
	for (size_t i = 0; i < ARRAY_SIZE(bad_paths); i++) {
		bad = good;
		bad.binds[bad.bind_count++] = (struct jail_bind){"/bin/true", bad_paths[i], false};
		assert_int_equal(jail_spawn(&bad, &process, &err), -EINVAL);
		assert_non_null(strstr(err.text, bad_paths[i]));
	}
	bad = good;
	bad.program = "/q";
	assert_int_equal(jail_spawn(&bad, &process, &err), -EINVAL);
	bad = good;
	bad.policy = NULL;
	assert_int_equal(jail_spawn(&bad, &process, &err), -EINVAL);
	bad = good;
	bad.name = "";
	assert_int_equal(jail_spawn(&bad, &process, &err), -EINVAL);
	bad = good;
	bad.open_files = 4096;
	assert_int_equal(jail_spawn(&bad, &process, &err), -EINVAL);
	bad = good;
	bad.host_gid = 0;
	assert_int_equal(jail_spawn(&bad, &process, &err), -EPERM);
	bad = good;
	assert_int_equal(jail_add_fd(&bad, 0, 5, &err), 0);
	assert_int_equal(jail_add_fd(&bad, 1, 5, &err), 0);
	assert_int_equal(jail_spawn(&bad, &process, &err), -EINVAL);
	bad.fds[1].number = 2048;
	assert_int_equal(jail_spawn(&bad, &process, &err), -EINVAL);
	bad.fds[1].number = 6;
	bad.fds[1].fd = -EBADF;
	assert_int_equal(jail_spawn(&bad, &process, &err), -EINVAL);
}

#define WRITERS 4

static void *count_on(void *data)
{
	_Atomic uint64_t *count = data;

	for (;;) {
		(*count)++;
	}
	return NULL;
}

/* Threads that write on and on, with much memory that must be given back when it is killed. */
static _Noreturn void write_on(_Atomic uint64_t *counts)
{
	/* A test that fails leaves nothing behind. */
	int rc = prctl(PR_SET_PDEATHSIG, SIGKILL);
	size_t size = 256u << 20;
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	for (int i = 1; rc == 0 && memory != MAP_FAILED && i < WRITERS; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, count_on, (void *)(uintptr_t)&counts[i]) != 0) {
			_exit(EXIT_FAILURE);
		}
	}
	count_on((void *)(uintptr_t)counts);
	_exit(EXIT_FAILURE);
}

static void test_stop(void **state)
{
	size_t size = WRITERS * sizeof(uint64_t);
	_Atomic uint64_t *counts =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t last[WRITERS];
	cpu_set_t before, one;

	(void)state;
	/* On one processor, so that the threads have to wait for their turn to stop. */
	CPU_ZERO(&one);
	CPU_SET((size_t)sched_getcpu(), &one);
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_ptr_not_equal(counts, MAP_FAILED);
	for (int i = 0; i < 10; i++) {
		struct jail_process process = {.notify_fd = -EBADF};

		memset((void *)(uintptr_t)counts, 0, size);
		process.pid = fork();
		if (process.pid == 0) {
			write_on(counts);
		}
		process.pidfd = sys_pidfd_open(process.pid);
		assert_true(process.pidfd >= 0);
		for (int j = 0; j < WRITERS; j++) {
			while (counts[j] == 0) {
				usleep(1000);
			}
		}
		jail_stop(&process);
		memcpy(last, (const void *)(uintptr_t)counts, size);
		/* Its memory is not given back yet. */
		assert_true(process_has_thread_in(process.pid, 'T'));
		assert_false(process_has_thread_in(process.pid, 'R'));
		usleep(20000);
		assert_memory_equal((const void *)(uintptr_t)counts, last, size);
		assert_int_equal(WTERMSIG(jail_end(&process)), SIGKILL);
		/* Without a process there is nothing to do. */
		jail_stop(&process);
		close_fd(&process.pidfd);
	}
	sched_setaffinity(0, sizeof(before), &before);
	munmap((void *)(uintptr_t)counts, size);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decisions),
		cmocka_unit_test(test_architectures),
		cmocka_unit_test(test_start),
		cmocka_unit_test(test_add_bind),
		cmocka_unit_test(test_add_fd),
		cmocka_unit_test(test_add_program),
		cmocka_unit_test(test_add_program_damaged),
		cmocka_unit_test(test_add_program_without_library),
		cmocka_unit_test(test_describe),
		cmocka_unit_test(test_spawn_refuses),
		cmocka_unit_test(test_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
