/*
 * The lists of system calls themselves, each put on a process that then makes one call: every
 * number that a list does not have kills, and so do other ways to count and calls whose arguments
 * it does not have. Then the whole of what the keeper does to itself, read back.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "jail/allow.h"
#include "jail/jail.h"
#include "jail/tap.h"
#include "sys/caps.h"
#include "sys/filter.h"
#include "sys/process.h"

/* Linux 6.18 ends at 470; what comes next is on no list either. */
#define NUMBERS 512
#define X32_BIT 0x40000000
/* Getpid among the calls of a 32-bit program. */
#define GETPID_32 20
/* An ID that no account of a Debian system has. */
#define USER_ID 1876544

static const struct jail_policy *const policies[] = {
	&jail_policy_copy, &jail_policy_image, &jail_policy_keeper,
	&jail_policy_net,  &jail_policy_qemu,
};

/* What a process makes of a call behind a list: it is killed, or the call returns this. */
#define KILLED (-4096)

static void put_on(const struct jail_policy *policy)
{
	struct rlimit no_core = {0};

	setrlimit(RLIMIT_CORE, &no_core);
	if (sys_no_new_privs() < 0 || sys_filter_load(policy->filter, policy->count, NULL) < 0) {
		_exit(3);
	}
}

/* Returns 0 or a negative errno that the call had, KILLED, or 1 when it came to something else. */
static int result_of(pid_t child)
{
	int status = -1;

	while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
	}
	if (WIFSIGNALED(status)) {
		return WTERMSIG(status) == SIGSYS ? KILLED : 1;
	}
	return -WEXITSTATUS(status);
}

static int call_behind(const struct jail_policy *policy, long number,
		       const unsigned long *arguments)
{
	pid_t child = fork();

	if (child == 0) {
		long rc;

		put_on(policy);
		rc = syscall(number, arguments[0], arguments[1], arguments[2], arguments[3],
			     arguments[4], arguments[5]);
		_exit(rc == -1 ? errno : 0);
	}
	return result_of(child);
}

static int call_behind_32(const struct jail_policy *policy)
{
	pid_t child = fork();

	if (child == 0) {
		long number = GETPID_32;

		put_on(policy);
		__asm__ volatile("int $0x80" : "+a"(number) : : "memory", "r8", "r9", "r10", "r11");
		_exit(0);
	}
	return result_of(child);
}

static bool has_call(const struct jail_policy *policy, int number)
{
	for (size_t i = 0; i < policy->call_count; i++) {
		if (policy->calls[i].number == number) {
			return true;
		}
	}
	return false;
}

/* uretprobe(2) and uprobe(2) are made by the kernel's own trampolines. It lets them past every
 * list, and sends SIGILL to who makes them otherwise. */
static bool is_passed_by(int number)
{
	return number == 335 || number == 336;
}

static void try_unlisted(const struct jail_policy *policy)
{
	static const unsigned long none[6];
	unsigned count = 0, survived = 0;
	int rc;

	for (int number = 0; number < NUMBERS; number++) {
		if (has_call(policy, number) || is_passed_by(number)) {
			continue;
		}
		count++;
		if (call_behind(policy, number, none) != KILLED) {
			survived++;
			tap_note("call %d does not kill", number);
		}
	}
	tap(survived == 0 && count > NUMBERS / 2, "%s: %u calls that are not listed kill",
	    policy->name, count);
	rc = call_behind(policy, X32_BIT | SYS_exit_group, none);
	tap(rc == KILLED, "%s: a listed call kills under its x32 number", policy->name);
	rc = call_behind_32(&allow_everything);
	if (rc != 0) {
		tap_skip(policy->name, "this kernel has no calls of 32-bit programs");
		return;
	}
	tap(call_behind_32(policy) == KILLED, "%s: a call of 32-bit programs kills", policy->name);
}

/* A call, what the list makes of it, and without the list it would be another. */
static const struct {
	const struct jail_policy *policy;
	const char *what;
	long number;
	unsigned long arguments[6];
	int wanted;
} calls[] = {
	{&jail_policy_keeper, "an Internet socket", SYS_socket, {AF_INET, SOCK_STREAM, 0}, KILLED},
	{&jail_policy_keeper,
	 "a stream to a program of the user",
	 SYS_socket,
	 {AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0},
	 KILLED},
	{&jail_policy_keeper,
	 "a datagram with an address",
	 SYS_sendto,
	 {0, 0, 0, 0, 0x1000, 16},
	 KILLED},
	{&jail_policy_keeper,
	 "memory to execute",
	 SYS_mmap,
	 {0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1UL, 0},
	 KILLED},
	{&jail_policy_keeper, "memory made to execute", SYS_mprotect, {0, 0, PROT_EXEC}, KILLED},
	{&jail_policy_keeper, "being dumpable again", SYS_prctl, {PR_SET_DUMPABLE, 1}, KILLED},
	{&jail_policy_keeper, "typing into a terminal", SYS_ioctl, {-1UL, 0x5412}, -ENOTTY},
	{&jail_policy_qemu, "a process", SYS_clone, {SIGCHLD}, KILLED},
	{&jail_policy_qemu, "a process by clone3", SYS_clone3, {0, 0}, -ENOSYS},
	{&jail_policy_qemu, "a signal to another process", SYS_tgkill, {2, 2, 0}, KILLED},
	{&jail_policy_qemu, "continuing itself", SYS_tgkill, {1, 1, SIGCONT}, KILLED},
	{&jail_policy_qemu, "a signal of its choice", SYS_fcntl, {0, F_SETSIG, SIGCONT}, -EINVAL},
	{&jail_policy_qemu, "a terminal", SYS_ioctl, {-1UL, 0x5412}, -ENOTTY},
	{&jail_policy_qemu, "its limits", SYS_prlimit64, {0, RLIMIT_NOFILE, 0x1000, 0}, KILLED},
	{&jail_policy_qemu, "being dumpable", SYS_prctl, {PR_SET_DUMPABLE, 1}, KILLED},
	{&jail_policy_image, "writing a file", SYS_openat, {-100UL, 0, O_WRONLY}, KILLED},
	{&jail_policy_image, "a nameless file", SYS_openat, {-100UL, 0, O_TMPFILE}, KILLED},
	{&jail_policy_copy, "writing what is there", SYS_openat, {-100UL, 0, O_WRONLY}, KILLED},
	{&jail_policy_copy, "a setuid file", SYS_fchmod, {-1UL, 04755}, KILLED},
	{&jail_policy_copy,
	 "a link through a link",
	 SYS_linkat,
	 {-100UL, 0, -100UL, 0, AT_SYMLINK_FOLLOW},
	 KILLED},
	{&jail_policy_copy,
	 "removing a directory",
	 SYS_unlinkat,
	 {-100UL, 0, AT_REMOVEDIR},
	 KILLED},
	{&jail_policy_net,
	 "a Unix socket",
	 SYS_socket,
	 {AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0},
	 KILLED},
	{&jail_policy_net, "a raw socket", SYS_socket, {AF_INET, SOCK_RAW, 1}, KILLED},
	{&jail_policy_net,
	 "memory to execute",
	 SYS_mmap,
	 {0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1UL, 0},
	 KILLED},
	{&jail_policy_net, "reading another descriptor", SYS_read, {0, 0, 0}, KILLED},
};

static void try_arguments(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		const struct jail_policy *policy = calls[i].policy;
		int rc = call_behind(policy, calls[i].number, calls[i].arguments);
		int free_rc = call_behind(&allow_everything, calls[i].number, calls[i].arguments);

		if (!tap(rc == calls[i].wanted && free_rc != rc, "%s: %s is refused", policy->name,
			 calls[i].what)) {
			tap_note("%d, and %d without the list", rc, free_rc);
		}
	}
}

/* What `seccomp` in a Boxfile does to a list. */
static void try_narrow(void)
{
	static const unsigned long none[6];
	static char ppid[] = "getppid", pid[] = "getpid", fork_name[] = "fork",
		    start[] = "execveat";
	char *const taken[] = {ppid, pid}, *const unlisted[] = {ppid, fork_name};
	char *const starting[] = {start};
	_cleanup_free_ struct jail_policy *narrow = NULL;
	struct jail_policy *nothing = NULL;
	struct err err = {0};

	tap(jail_narrow(&jail_policy_qemu, taken, 2, &narrow, &err) == 0 &&
		    call_behind(narrow, SYS_getppid, none) == KILLED &&
		    call_behind(narrow, SYS_getpid, none) == KILLED,
	    "qemu: calls that were taken away kill");
	tap(call_behind(&jail_policy_qemu, SYS_getppid, none) == 0 &&
		    call_behind(narrow, SYS_gettid, none) == 0 &&
		    call_behind(narrow, SYS_clone3, none) == -ENOSYS &&
		    call_behind(narrow, SYS_fork, none) == KILLED,
	    "qemu: what is left is as it was");
	tap(jail_narrow(&jail_policy_qemu, unlisted, 2, &nothing, &err) == -EINVAL &&
		    strstr(err.text, "fork is not on the list") && strstr(err.mend, "fork"),
	    "qemu: what is not on the list cannot be taken away");
	tap(jail_narrow(&jail_policy_qemu, starting, 1, &nothing, &err) == -EINVAL &&
		    strstr(err.text, "execveat cannot be taken away") && !nothing,
	    "qemu: what starts it cannot be taken away");
}

/* The C library finds its heap broken, says so and ends the program. */
static int break_heap(void)
{
	static _Alignas(16) char block[64];
	char *volatile inside = block + 16;

	free(inside);
	return 0;
}

static int grow_block(void)
{
	void *volatile block = malloc(1 << 20);
	void *larger = block ? realloc(block, 8 << 20) : NULL;

	if (!larger) {
		free(block);
		return ENOMEM;
	}
	free(larger);
	return 0;
}

/* What box-net does when it cannot go on. */
static int say_why(void)
{
	fprintf(stderr, "box-net: why\n");
	return 0;
}

/* What a thread does that waits for another one's part of glib's allocator. */
static int give_way(void)
{
	return sched_yield();
}

/* As QEMU wakes a vCPU's thread. Process 1 of a namespace need not even ignore it. */
static int wake_itself(void)
{
	return (int)syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), SIGUSR1);
}

/* Is stopped and continued meanwhile. */
static int sleep_long(void)
{
	const struct timespec time = {.tv_nsec = 300000000};

	return clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static void stop_and_continue(pid_t child)
{
	siginfo_t info;

	usleep(100000);
	kill(child, SIGSTOP);
	waitid(P_PID, (id_t)child, &info, WSTOPPED);
	kill(child, SIGCONT);
}

/* Runs act behind a list, as process 1 of a PID namespace, which every program in a jail is.
 * Returns what waitpid(2) says of it, or -1. ret_said: what it wrote to stderr. */
static int act_behind(const struct jail_policy *policy, int (*act)(void), char *ret_said,
		      size_t size)
{
	int pipe_fds[2], status = -1;
	ssize_t got;
	pid_t child;

	if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
		return -1;
	}
	child = (pid_t)syscall(SYS_clone,
			       CLONE_NEWPID | (geteuid() == 0 ? 0 : CLONE_NEWUSER) | SIGCHLD, NULL,
			       NULL, NULL, NULL);
	if (child == 0) {
		dup2(pipe_fds[1], STDERR_FILENO);
		put_on(policy);
		_exit(act());
	}
	close(pipe_fds[1]);
	if (child > 0 && act == sleep_long) {
		stop_and_continue(child);
	}
	if (child < 0 || waitpid(child, &status, 0) != child) {
		status = -1;
	}
	got = read(pipe_fds[0], ret_said, size - 1);
	ret_said[MAX(got, 0)] = '\0';
	close(pipe_fds[0]);
	return status;
}

/*
 * Lines whose reason says `seldom:`. No machine of the tests makes these calls, so they are made
 * here: the act ends as it should behind the list, and is killed when any one of the names is taken
 * away. Process 1 does not die of its own SIGABRT; abort(3) has a last resort that does it.
 */
static const struct {
	const char *what;
	int (*act)(void);
	int signal;
	const char *said;
	const struct jail_policy *policies[ARRAY_SIZE(policies) + 1];
	const char *names[8];
} seldom[] = {
	{"a broken heap",
	 break_heap,
	 SIGSEGV,
	 "free(): invalid pointer\n",
	 {&jail_policy_copy, &jail_policy_image, &jail_policy_net, &jail_policy_qemu},
	 {"writev", "rt_sigprocmask", "getpid", "gettid", "tgkill"}},
	{"a large block that grows",
	 grow_block,
	 0,
	 "",
	 {&jail_policy_copy, &jail_policy_image, &jail_policy_keeper, &jail_policy_net,
	  &jail_policy_qemu},
	 {"mremap"}},
	{"an end with a reason",
	 say_why,
	 0,
	 "box-net: why\n",
	 {&jail_policy_net},
	 {"write", "exit_group"}},
	{"a thread that is woken", wake_itself, 0, "", {&jail_policy_qemu}, {"tgkill"}},
	{"threads that meet", give_way, 0, "", {&jail_policy_qemu}, {"sched_yield"}},
	{"a sleep in which it was stopped",
	 sleep_long,
	 0,
	 "",
	 {&jail_policy_keeper, &jail_policy_qemu},
	 {"restart_syscall", "clock_nanosleep"}},
};

/* Not by jail_narrow: that leaves what a program's start needs. */
static bool ends_without(const struct jail_policy *policy, int (*act)(void), const char *name)
{
	_cleanup_free_ struct sock_filter *filter = calloc(policy->count + 3, sizeof(*filter));
	struct jail_policy narrow = *policy;
	char said[256];
	size_t at = 0;
	int status;

	while (at < policy->call_count && strcmp(policy->calls[at].name, name) != 0) {
		at++;
	}
	if (!filter || at == policy->call_count) {
		return false;
	}
	filter[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						 offsetof(struct seccomp_data, nr));
	filter[1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
						 (unsigned)policy->calls[at].number, 0, 1);
	filter[2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	memcpy(filter + 3, policy->filter, policy->count * sizeof(*filter));
	narrow.filter = filter;
	narrow.count += 3;
	status = act_behind(&narrow, act, said, sizeof(said));
	return status != -1 && WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
}

static void try_seldom(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(seldom); i++) {
		for (size_t j = 0; seldom[i].policies[j]; j++) {
			const struct jail_policy *policy = seldom[i].policies[j];
			char said[256];
			int status = act_behind(policy, seldom[i].act, said, sizeof(said));

			if (!tap(status == seldom[i].signal && strcmp(said, seldom[i].said) == 0,
				 "%s: %s ends as it should", policy->name, seldom[i].what)) {
				tap_note("status %x, said %s", (unsigned)status, said);
			}
			for (size_t k = 0; seldom[i].names[k]; k++) {
				tap(ends_without(policy, seldom[i].act, seldom[i].names[k]),
				    "%s: %s needs %s", policy->name, seldom[i].what,
				    seldom[i].names[k]);
			}
		}
	}
}

/* How many differences a confined process sees on itself; with wanted, or -1. */
static int differences(const char *wanted)
{
	_cleanup_free_ char *text = NULL;
	int count = jail_compare_self(&text);

	if (wanted && (!text || !strstr(text, wanted))) {
		return -1;
	}
	if (!wanted && count != 0) {
		fprintf(stderr, "# %s", text ? text : "no text\n");
	}
	return count;
}

static bool confine_all(void)
{
	struct err err = {0};

	return jail_confine_self(&jail_policy_keeper, &err) == 0 && differences(NULL) == 0;
}

static bool confine_nothing(void)
{
	return differences("NoNewPrivs: is 0") >= 4 && differences("Seccomp: is 0") >= 4 &&
	       differences("Max core file size") >= 4 && differences("look into its memory") >= 4 &&
	       differences("its list of system calls is not in force") >= 4;
}

static int drop(void)
{
	return geteuid() == 0 ? sys_caps_keep_dac_override() : sys_caps_drop_held();
}

/* As on a host whose container has a filter of its own. */
static bool confine_with_another_list(void)
{
	return drop() == 0 && prctl(PR_SET_DUMPABLE, 0) == 0 && sys_limit(RLIMIT_CORE, 0) == 0 &&
	       sys_no_new_privs() == 0 &&
	       sys_filter_load(allow_filter, ARRAY_SIZE(allow_filter), NULL) == 0 &&
	       differences("its list of system calls is not in force") == 1;
}

static bool confine_with_capabilities(void)
{
	return prctl(PR_SET_DUMPABLE, 0) == 0 && sys_limit(RLIMIT_CORE, 0) == 0 &&
	       sys_no_new_privs() == 0 &&
	       sys_filter_load(jail_policy_keeper.filter, jail_policy_keeper.count, NULL) == 0 &&
	       differences("CapEff: is") == 3 && differences("CapBnd: is") == 3;
}

static const struct {
	const char *what;
	bool (*confine)(void);
	bool needs_root;
} selves[] = {
	{"a process that has confined itself is as described", confine_all, false},
	{"all that is missing is seen", confine_nothing, false},
	{"the list of somebody else is not taken for its own", confine_with_another_list, false},
	{"capabilities that were kept are seen", confine_with_capabilities, true},
};

static void try_selves(const char *who, uid_t id)
{
	for (size_t i = 0; i < ARRAY_SIZE(selves); i++) {
		pid_t child;

		if (selves[i].needs_root && id != 0) {
			continue;
		}
		fflush(stdout);
		child = fork();
		if (child == 0) {
			if (id != geteuid() && (setgid(id) < 0 || setuid(id) < 0)) {
				_exit(3);
			}
			/* After a change of its ID a process is not dumpable; a login ends in
			 * execve(2). */
			prctl(PR_SET_DUMPABLE, 1);
			_exit(selves[i].confine() ? 0 : 1);
		}
		tap(result_of(child) == 0, "%s: %s", who, selves[i].what);
	}
}

int main(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(policies); i++) {
		try_unlisted(policies[i]);
	}
	try_arguments();
	try_narrow();
	try_seldom();
	try_selves(geteuid() == 0 ? "root" : "user", geteuid());
	if (geteuid() == 0) {
		try_selves("user", USER_ID);
	}
	return tap_done();
}
