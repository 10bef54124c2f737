/*
 * Runs the probe in real jails, as root, as a normal user, and as a normal user who gives the jail
 * an ID that is not the user's own.
 *
 * Each forbidden act is tried three times: behind the real list of system calls, where it must be
 * refused; behind a list that allows everything, where the rest of the jail must refuse it alone
 * (unless only the list can); and with the confinement in question taken out of the description or
 * outside of any jail, where it must succeed, so that the check is known to be able to fail.
 *
 * A normal user here is a user ID without an account: the kernel knows no difference. But
 * newuidmap(1) does, so for the last an account is made, and removed at the end.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "jail/act.h"
#include "jail/allow.h"
#include "jail/jail.h"
#include "jail/tap.h"
#include "sys/landlock.h"

/* IDs that no account of a Debian system has. */
#define STRICT_ID 1876543
#define USER_ID 1876544
#define DEVICE_GROUP 1876545
/* Far from anything that the test program opens itself. */
#define LEAKED_FD 77

/* Set up once, inherited by the normal user's run. */
static struct {
	char directory[64];
	char probe[96];
	char file[96];
	/* As /dev/kvm is: for root and its group. */
	char device[96];
	char host_name[65];
	char port[8];
	char pid[16];
	char descriptor[8];
	const char *who;
	/* What the jails get, of users and of groups. */
	uid_t id;
	gid_t group;
} scene;

static int build(struct jail *jail, const struct jail_policy *policy, const char *const *argv)
{
	struct err err = {0};

	memset(jail, 0, sizeof(*jail));
	jail->name = "probe";
	jail->program = "/probe";
	jail->argv = argv;
	jail->host_uid = scene.id;
	jail->host_gid = scene.group;
	jail->policy = policy;
	jail->open_files = 64;
	return jail_add_bind(jail, scene.probe, "/probe", false, &err);
}

/* Runs a built jail to its end. Returns the wait status, or -1 with the reason noted. */
static int run(struct jail *jail)
{
	struct jail_process process;
	struct err err = {0};
	struct pollfd ended = {.events = POLLIN};
	siginfo_t info;
	int status;

	if (jail_spawn(jail, &process, &err) < 0) {
		/* A list may kill as early as the C library's start: that is a refusal too. */
		if (strstr(err.text, "killed it at its start")) {
			return SIGSYS;
		}
		tap_note("%s", err.text);
		return -1;
	}
	ended.fd = process.pidfd;
	if (poll(&ended, 1, 20000) != 1) {
		tap_note("the probe did not end");
	}
	(void)waitid(P_PIDFD, (id_t)process.pidfd, &info, WEXITED | WNOWAIT | WNOHANG);
	status = jail_end(&process);
	close_fd(&process.pidfd);
	close_fd(&process.notify_fd);
	return status;
}

/* Outside of any jail, in a mount namespace of its own so that nothing it does stays. */
static int run_outside(const char *const *argv)
{
	pid_t pid = fork();
	int status = -1;

	if (pid == 0) {
		char *environment[] = {NULL};

		if (unshare(CLONE_NEWNS) < 0 ||
		    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
			_exit(3);
		}
		execve(scene.probe, (char *const *)(uintptr_t)argv, environment);
		_exit(3);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
	}
	return status;
}

/* Who can be shown to do it outside: root can do everything here. */
enum outside { OUTSIDE_NO, OUTSIDE_ROOT };

static const struct {
	const char *act;
	const char *argument;
	/* Only the list of system calls stands in the way. */
	bool list_only;
	enum outside outside;
} acts[] = {
	{"open-host", "/etc/passwd", false, OUTSIDE_ROOT},
	{"open-host", "/proc/self/status", false, OUTSIDE_ROOT},
	{"open-above", "/etc/passwd", false, OUTSIDE_NO},
	{"write-root", NULL, false, OUTSIDE_ROOT},
	{"write-file", "/probe", false, OUTSIDE_NO},
	{"make-directory", NULL, false, OUTSIDE_ROOT},
	{"list-root", NULL, false, OUTSIDE_ROOT},
	{"mount", NULL, false, OUTSIDE_ROOT},
	{"remount-root", NULL, false, OUTSIDE_ROOT},
	{"new-namespace", NULL, true, OUTSIDE_ROOT},
	{"make-socket", NULL, true, OUTSIDE_ROOT},
	{"connect-host", scene.port, false, OUTSIDE_ROOT},
	{"trace", NULL, true, OUTSIDE_ROOT},
	{"kill-other", scene.pid, false, OUTSIDE_ROOT},
	{"become-root", NULL, false, OUTSIDE_ROOT},
	{"be-root", NULL, false, OUTSIDE_ROOT},
	{"have-capability", NULL, false, OUTSIDE_ROOT},
	{"have-bounding", NULL, false, OUTSIDE_ROOT},
	{"unlocked-securebits", NULL, false, OUTSIDE_ROOT},
	{"new-privileges", NULL, false, OUTSIDE_ROOT},
	{"execute", "/bin/true", false, OUTSIDE_ROOT},
	{"execute", "/probe", true, OUTSIDE_NO},
	{"execute-descriptor", "/probe", false, OUTSIDE_NO},
	{"see-processes", NULL, false, OUTSIDE_ROOT},
	{"see-host-name", scene.host_name, false, OUTSIDE_ROOT},
	{"keep-descriptor", NULL, false, OUTSIDE_ROOT},
	{"read-stdin", NULL, false, OUTSIDE_ROOT},
	{"many-files", NULL, false, OUTSIDE_ROOT},
	{"set-limit", NULL, true, OUTSIDE_ROOT},
	{"core-dumps", NULL, false, OUTSIDE_NO},
};

static void try_acts(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(acts); i++) {
		const char *argv[] = {"/probe", acts[i].act, acts[i].argument, NULL};
		const char *argument = acts[i].argument ? acts[i].argument : "";
		struct jail jail;
		int status;

		/* Nothing but landlock keeps the names in the root from being listed. */
		if (strcmp(acts[i].act, "list-root") == 0 && sys_landlock_abi() < 0) {
			tap_skip(acts[i].act, "this kernel has no landlock");
			continue;
		}
		for (int with_list = 1; with_list >= 0; with_list--) {
			if (build(&jail, with_list ? &jail_policy_qemu : &allow_everything, argv) <
			    0) {
				tap(false, "%s: description", acts[i].act);
				return;
			}
			status = run(&jail);
			jail_clear(&jail);
			if (with_list || !acts[i].list_only) {
				tap(refused(status), "%s: %s %s is refused%s", scene.who,
				    acts[i].act, argument,
				    with_list ? "" : " without the list of system calls too");
			} else {
				tap(succeeded(status), "%s: %s %s succeeds without the list",
				    scene.who, acts[i].act, argument);
			}
		}
		if (acts[i].outside == OUTSIDE_ROOT && geteuid() == 0) {
			tap(succeeded(run_outside(argv)), "%s: %s %s succeeds outside", scene.who,
			    acts[i].act, argument);
		}
	}
}

/* Confinements that are numbers or entries of the description: with them, and without. */
static void try_toggles(void)
{
	static const char *const toggles[] = {
		"open-host",  "keep-descriptor", "many-files", "much-memory",
		"large-file", "many-processes",	 "execute",    "execute-descriptor",
	};

	for (size_t i = 0; i < ARRAY_SIZE(toggles); i++) {
		for (int confined = 1; confined >= 0; confined--) {
			const char *act = toggles[i];
			const char *argument = strcmp(act, "large-file") == 0	 ? scene.descriptor
					       : strncmp(act, "execute", 7) == 0 ? "/other"
										 : scene.file;
			const char *argv[] = {"/probe", act, argument, NULL};
			_cleanup_close_ int file = open(scene.file, O_RDWR | O_CLOEXEC);
			struct err err = {0};
			struct jail jail;
			int status;

			(void)build(&jail, &allow_everything, argv);
			jail.open_files = confined ? 64 : 0;
			jail.address_space_bytes = confined ? 1U << 30 : 0;
			jail.file_size_bytes = confined ? 1U << 20 : 0;
			jail.processes = confined ? 8 : 0;
			if (!confined) {
				(void)jail_add_bind(&jail, scene.file, NULL, false, &err);
				(void)jail_add_bind(&jail, scene.probe, "/other", false, &err);
			}
			if (!confined || strcmp(act, "large-file") == 0) {
				(void)jail_add_fd(&jail, file, LEAKED_FD, &err);
			}
			status = run(&jail);
			jail_clear(&jail);
			/* RLIMIT_NOFILE stays below the number even when no limit is asked for. */
			if (!confined && strcmp(act, "execute-descriptor") == 0) {
				tap(refused(status), "%s: %s is refused always", scene.who, act);
			} else {
				tap(confined ? refused(status) : succeeded(status), "%s: %s is %s",
				    scene.who, act,
				    confined ? "refused" : "possible when described");
			}
		}
	}
}

static void try_answer(void)
{
	const char *argv[] = {"/probe", "open-answered", "/memory", NULL};
	_cleanup_close_ int file = open(scene.file, O_RDONLY | O_CLOEXEC);
	struct jail_process process;
	struct err err = {0};
	struct jail jail;
	struct pollfd asked = {.events = POLLIN};
	int rc, status;

	(void)build(&jail, &jail_policy_qemu, argv);
	jail.notify = true;
	rc = jail_spawn(&jail, &process, &err);
	if (!tap(rc == 0, "%s: a jail with notifications starts %s", scene.who, err.text)) {
		jail_clear(&jail);
		return;
	}
	asked.fd = process.notify_fd;
	(void)poll(&asked, 1, 10000);
	rc = jail_answer(&process, file);
	asked.fd = process.pidfd;
	(void)poll(&asked, 1, 10000);
	status = jail_end(&process);
	tap(rc == 0 && succeeded(status), "%s: an open for writing gets the read-only file",
	    scene.who);
	tap(jail_answer(&process, file) < 0, "%s: nobody is left to answer", scene.who);
	close_fd(&process.pidfd);
	close_fd(&process.notify_fd);
	jail_clear(&jail);
}

/* A file in memory that begins with text; with access O_RDONLY it may only be read. */
static int make_file(const char *text, int access)
{
	_cleanup_close_ int file = memfd_create("file", MFD_CLOEXEC);
	char path[64];

	if (file < 0 || write_full(file, text, strlen(text)) < 0) {
		return -EIO;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	return open(path, access | O_CLOEXEC);
}

/* Answers what is asked until the process has ended. Returns the number of answers. */
static unsigned answer_all(const struct jail_process *process, int file)
{
	struct pollfd waits[] = {{.fd = process->notify_fd, .events = POLLIN},
				 {.fd = process->pidfd, .events = POLLIN}};
	unsigned count = 0;

	while (poll(waits, ARRAY_SIZE(waits), 10000) > 0 && !(waits[1].revents & POLLIN)) {
		count += jail_answer(process, file) == 0;
	}
	return count;
}

/* A hole in the memory's file: not made when the file may only be read, else made. */
static void try_answer_hole(int access)
{
	const char *argv[] = {"/probe", "punch-answered", scene.descriptor, NULL};
	_cleanup_close_ int memory = make_file("memory", access);
	_cleanup_close_ int other = make_file("other", O_RDWR);
	struct jail_process process;
	struct err err = {0};
	struct jail jail;
	unsigned count;
	int status;

	(void)build(&jail, &jail_policy_qemu, argv);
	jail.notify = true;
	(void)jail_add_fd(&jail, other, LEAKED_FD, &err);
	if (!tap(memory >= 0 && other >= 0 && jail_spawn(&jail, &process, &err) == 0,
		 "%s: a jail that punches holes starts %s", scene.who, err.text)) {
		jail_clear(&jail);
		return;
	}
	count = answer_all(&process, memory);
	status = jail_end(&process);
	tap(count == 3 && (access == O_RDONLY ? succeeded(status) : refused(status)),
	    "%s: a hole in a memory that may %s", scene.who,
	    access == O_RDONLY ? "only be read is said to be made and is not" : "change is made");
	close_fd(&process.pidfd);
	close_fd(&process.notify_fd);
	jail_clear(&jail);
}

static int spawn_waiting(struct jail *jail, struct jail_process *process)
{
	static const char *const argv[] = {"/probe", "wait", NULL};
	struct err err = {0};
	int rc;

	(void)build(jail, &jail_policy_qemu, argv);
	jail->processes = 16;
	jail->address_space_bytes = 1U << 30;
	rc = jail_spawn(jail, process, &err);
	tap(rc == 0, "%s: a waiting jail starts %s", scene.who, err.text);
	return rc;
}

static int differences(const struct jail *jail, const struct jail_process *process,
		       const char *wanted)
{
	_cleanup_free_ char *text = NULL;
	int count = jail_compare(jail, process, &text);

	if (wanted && (!text || !strstr(text, wanted))) {
		tap_note("expected \"%s\", got: %s", wanted, text ? text : "");
		return -1;
	}
	if (!wanted && count != 0) {
		tap_note("%s", text ? text : "");
	}
	return count;
}

static void try_compare(void)
{
	struct jail_process process;
	struct err err = {0};
	struct jail jail;

	if (spawn_waiting(&jail, &process) < 0) {
		return;
	}
	tap(differences(&jail, &process, NULL) == 0, "%s: /proc agrees with the description",
	    scene.who);
	jail.host_uid++;
	/* Its line in the status and in the map; and under another ID it would have no groups. */
	tap(differences(&jail, &process, "Uid:") >= 2, "%s: another user ID is seen", scene.who);
	jail.host_uid--;
	jail.open_files = 32;
	tap(differences(&jail, &process, "Max open files") == 1, "%s: a higher limit is seen",
	    scene.who);
	jail.open_files = 64;
	(void)jail_add_bind(&jail, "/etc/hostname", NULL, false, &err);
	tap(differences(&jail, &process, "/etc/hostname is not mounted") == 1,
	    "%s: a missing mount is seen", scene.who);
	jail.bind_count = 0;
	tap(differences(&jail, &process, "/probe is mounted and not described") == 1,
	    "%s: a mount too many is seen", scene.who);
	jail.bind_count = 2;
	(void)jail_end(&process);
	process.pid = 0x7ffffff0;
	tap(differences(&jail, &process, "cannot be read") > 5, "%s: silence is no agreement",
	    scene.who);
	close_fd(&process.pidfd);
	jail_clear(&jail);

	/* A process that is in no jail at all. */
	(void)build(&jail, &jail_policy_qemu, NULL);
	process = (struct jail_process){.pid = getpid(), .notify_fd = -EBADF};
	process.pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	tap(differences(&jail, &process, "it shares the host's net namespace") > 12,
	    "%s: this test itself is far from a jail", scene.who);
	tap(differences(&jail, &process, "it holds descriptor 77") > 12,
	    "%s: a descriptor too many is seen", scene.who);
	close_fd(&process.pidfd);
	tap(differences(&jail, &process, "there is no pidfd") > 12,
	    "%s: descriptors that cannot be seen are a difference", scene.who);
	jail_clear(&jail);
}

/* The process that started the jail is killed: the jail must go with it. */
static void try_parent_death(void)
{
	int ends[2];
	struct pollfd gone = {.events = POLLIN};
	pid_t middle, inside = -1;

	if (pipe(ends) < 0) {
		tap(false, "pipe");
		return;
	}
	middle = fork();
	if (middle == 0) {
		static const char *const argv[] = {"/probe", "wait", NULL};
		struct jail_process process;
		struct jail jail;

		(void)build(&jail, &jail_policy_qemu, argv);
		process.pid = -1;
		(void)jail_spawn(&jail, &process, NULL);
		(void)write_full(ends[1], &process.pid, sizeof(process.pid));
		pause();
		_exit(0);
	}
	close(ends[1]);
	(void)read_full(ends[0], &inside, sizeof(inside));
	close(ends[0]);
	gone.fd = inside > 0 ? (int)syscall(SYS_pidfd_open, inside, 0) : -1;
	tap(gone.fd >= 0 && poll(&gone, 1, 100) == 0, "%s: a jail of another process lives",
	    scene.who);
	kill(middle, SIGKILL);
	(void)waitpid(middle, NULL, 0);
	tap(gone.fd >= 0 && poll(&gone, 1, 5000) == 1, "%s: it dies with its parent", scene.who);
	close_fd(&gone.fd);
}

static void expect_error(struct jail *jail, int wanted, const char *text, const char *what)
{
	struct jail_process process;
	struct err err = {0};
	int rc = jail_spawn(jail, &process, &err);

	if (rc == 0) {
		(void)jail_end(&process);
	}
	if (!tap(rc == wanted && strstr(err.text, text) && strstr(err.text, "jail of probe"),
		 "%s: %s", scene.who, what)) {
		tap_note("%d: %s", rc, err.text);
	}
	jail_clear(jail);
}

static void try_errors(void)
{
	static const char *const argv[] = {"/probe", "succeed", NULL};
	static const struct sock_filter kill_filter[] = {
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS}};
	static const struct jail_policy kill_everything = {"kill", kill_filter, 1};
	struct err err = {0};
	struct jail jail;

	(void)build(&jail, &jail_policy_qemu, argv);
	(void)jail_add_bind(&jail, "/nowhere/at-all", "/nowhere", false, &err);
	expect_error(&jail, -ENOENT, "open the bound files: /nowhere/at-all",
		     "a missing file is named");
	(void)build(&jail, &jail_policy_qemu, argv);
	(void)jail_add_bind(&jail, "/etc", "/etc", false, &err);
	expect_error(&jail, -EMEDIUMTYPE, "/etc: not a regular file", "a directory is no file");
	(void)build(&jail, &jail_policy_qemu, argv);
	(void)jail_add_bind(&jail, "/etc/hostname", "/dev/kvm", true, &err);
	expect_error(&jail, -EMEDIUMTYPE, "not a regular file or device", "a file is no device");
	(void)build(&jail, &jail_policy_qemu, argv);
	jail_clear(&jail);
	(void)jail_add_bind(&jail, scene.file, "/probe", false, &err);
	expect_error(&jail, -EACCES, "execute the program", "a text is no program");
	(void)build(&jail, &kill_everything, argv);
	expect_error(&jail, -EPERM, "killed it at its start", "a list that kills the start");
	(void)build(&jail, &jail_policy_qemu, argv);
	jail.host_uid = 0;
	expect_error(&jail, -EPERM, "root of the host", "root is refused");
	if (geteuid() != 0) {
		(void)build(&jail, &jail_policy_qemu, argv);
		jail.host_uid = STRICT_ID;
		expect_error(&jail, -EPERM, "give it the user ID 1876543: ",
			     "an ID that nobody gave the user is refused");
	}
}

static void try_cgroups(void)
{
	static const char *const argv[] = {"/probe", "wait", NULL};
	struct jail_process process;
	struct err err = {0};
	struct jail jail;
	char path[1100], first[sizeof(process.cgroups)];
	int rc;

	(void)build(&jail, &jail_policy_qemu, argv);
	jail.cgroup_memory_bytes = 64U << 20;
	jail.cgroup_pids = 8;
	rc = jail_spawn(&jail, &process, &err);
	if (!tap(rc == 0, "%s: a jail with a control group starts %s", scene.who, err.text)) {
		jail_clear(&jail);
		return;
	}
	tap(process.missing.cgroup == (process.missing.cgroup_reason[0] != '\0'),
	    "%s: a missing control group has a reason", scene.who);
	if (process.missing.cgroup) {
		tap_note("%s", process.missing.cgroup_reason);
		tap_skip("control group", "none can be had here");
	} else {
		tap(differences(&jail, &process, NULL) == 0, "%s: it is in its group", scene.who);
		memcpy(first, process.cgroups, sizeof(first));
	}
	if (!process.missing.cgroup && !strstr(first, ".scope")) {
		/* A group of a dead maker is swept, that of a living one is not. */
		snprintf(path, sizeof(path), "%.*s/box-2147483646-test",
			 (int)(strrchr(first, '/') - first), first);
		tap(mkdir(path, 0755) == 0, "%s: a leftover group", scene.who);
		jail_sweep_cgroups();
		tap(access(path, F_OK) < 0, "%s: it is swept", scene.who);
		tap(access(first, F_OK) == 0, "%s: ours is not", scene.who);
	}
	tap(WTERMSIG(jail_end(&process)) == SIGKILL, "%s: the end kills", scene.who);
	tap(process.cgroups[0] == '\0' && (process.missing.cgroup || access(first, F_OK) < 0),
	    "%s: its group is gone", scene.who);
	close_fd(&process.pidfd);
	jail_clear(&jail);
}

/* A device that only a group may open: the process has it, whosever ID it has. */
static void try_device(void)
{
	const char *argv[] = {"/probe", "write-file", scene.device, NULL};
	struct jail_process process;
	struct err err = {0};
	struct pollfd ended = {.events = POLLIN};
	struct jail jail;
	int status;

	if (access(scene.device, F_OK) < 0) {
		tap_skip("device", "none can be made here");
		return;
	}
	(void)build(&jail, &allow_everything, argv);
	(void)jail_add_bind(&jail, scene.device, NULL, true, &err);
	if (!tap(jail_spawn(&jail, &process, &err) == 0, "%s: a jail with a device starts %s",
		 scene.who, err.text)) {
		jail_clear(&jail);
		return;
	}
	ended.fd = process.pidfd;
	(void)poll(&ended, 1, 20000);
	status = jail_end(&process);
	tap(succeeded(status), "%s: it can open the device", scene.who);
	close_fd(&process.pidfd);
	jail_clear(&jail);
}

static void try_all(void)
{
	try_acts();
	try_toggles();
	try_answer();
	try_answer_hole(O_RDONLY);
	try_answer_hole(O_RDWR);
	try_compare();
	try_device();
	try_parent_death();
	try_errors();
	try_cgroups();
}

/* Who the child of try_as_user becomes, and what its jails get. */
struct user {
	const char *who;
	uid_t uid;
	gid_t gid;
	uid_t id;
	gid_t group;
};

/* Everything again as a user without privileges, in a child whose lines go on counting. */
static void try_as_user(const struct user *user)
{
	/*
	 * That of "users" on Debian, which a jail may have under the user's own ID or with a device
	 * only, and that of the device.
	 */
	const gid_t more[] = {100, DEVICE_GROUP};
	int ends[2], counts[2] = {0, 1}, status;
	pid_t pid;

	if (pipe(ends) < 0) {
		tap(false, "pipe");
		return;
	}
	pid = fork();
	if (pid == 0) {
		if (syscall(SYS_setgroups, ARRAY_SIZE(more), more) < 0 || setgid(user->gid) < 0 ||
		    setuid(user->uid) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0) {
			_exit(1);
		}
		/* Changing the ID made us not dumpable; a login would have ended in execve(2). */
		scene.who = user->who;
		scene.id = user->id;
		scene.group = user->group;
		tap_failures = 0;
		try_all();
		counts[0] = tap_count;
		counts[1] = tap_failures;
		(void)write_full(ends[1], counts, sizeof(counts));
		_exit(0);
	}
	close(ends[1]);
	(void)read_full(ends[0], counts, sizeof(counts));
	close(ends[0]);
	(void)waitpid(pid, &status, 0);
	if (counts[0] > 0) {
		tap_count = counts[0];
	}
	tap_failures += counts[1];
	tap(counts[0] > 0, "%s: all was tried", user->who);
}

/* Runs a program of the host to its end. Returns whether it ended well. */
static bool run_program(const char *const *argv)
{
	pid_t pid = fork();
	int status = -1;

	if (pid == 0) {
		int null_fd = open("/dev/null", O_RDWR);

		dup2(null_fd, 1);
		dup2(null_fd, 2);
		execv(argv[0], (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* The first ID that a file of subuid(5) gives a user, or 0. */
static unsigned first_subordinate(const char *path, const char *name)
{
	_cleanup_fclose_ FILE *file = fopen(path, "re");
	char line[256], owner[64];
	unsigned first;

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%63[^:]:%u:", owner, &first) == 2 && strcmp(owner, name) == 0) {
			return first;
		}
	}
	return 0;
}

/* An account with subordinate IDs, whose jails get one of these. */
static void try_as_account(void)
{
	char name[32];
	const char *add[] = {"/usr/sbin/useradd", "-M", name, NULL};
	const char *remove[] = {"/usr/sbin/userdel", name, NULL};
	const struct passwd *account;
	struct user user = {.who = "strict"};

	snprintf(name, sizeof(name), "boxjail%d", (int)getpid());
	if (access("/usr/bin/newuidmap", X_OK) < 0 || !run_program(add)) {
		tap_skip("strict", "no newuidmap, or no account can be made");
		return;
	}
	account = getpwnam(name);
	user.id = first_subordinate("/etc/subuid", name);
	user.group = first_subordinate("/etc/subgid", name);
	if (tap(account && user.id > 0 && user.group > 0, "strict: the account has IDs to give")) {
		user.uid = account->pw_uid;
		user.gid = account->pw_gid;
		user.id += 5;
		user.group += 7;
		try_as_user(&user);
	}
	tap(run_program(remove), "strict: the account is removed");
}

static int listen_on_loopback(void)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t length = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, 8) < 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &length) < 0) {
		return -errno;
	}
	snprintf(scene.port, sizeof(scene.port), "%u", ntohs(address.sin_port));
	return fd;
}

/* Copies the probe where every user can read it, and makes the other props. */
static int set_scene(const char *probe)
{
	_cleanup_close_ int from = open(probe, O_RDONLY | O_CLOEXEC);
	_cleanup_close_ int to = -EBADF;
	_cleanup_close_ int file = -EBADF;

	snprintf(scene.directory, sizeof(scene.directory), "/tmp/box-jail-test-XXXXXX");
	if (from < 0 || !mkdtemp(scene.directory) || chmod(scene.directory, 0755) < 0) {
		return -errno;
	}
	snprintf(scene.probe, sizeof(scene.probe), "%s/probe", scene.directory);
	snprintf(scene.file, sizeof(scene.file), "%s/memory", scene.directory);
	to = open(scene.probe, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	file = open(scene.file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (to < 0 || file < 0 || copy_file_sparse(from, to) < 0 || fchmod(to, 0755) < 0 ||
	    fchmod(file, 0666) < 0 || write_full(file, "memory", 6) < 0) {
		return -EIO;
	}
	snprintf(scene.device, sizeof(scene.device), "%s/device", scene.directory);
	if (mknod(scene.device, S_IFCHR | 0660, makedev(1, 5)) == 0 &&
	    (chown(scene.device, 0, DEVICE_GROUP) < 0 || chmod(scene.device, 0660) < 0)) {
		return -errno;
	}
	snprintf(scene.pid, sizeof(scene.pid), "%d", (int)getpid());
	snprintf(scene.descriptor, sizeof(scene.descriptor), "%d", LEAKED_FD);
	return gethostname(scene.host_name, sizeof(scene.host_name)) < 0 ? -errno : 0;
}

int main(int argc, char **argv)
{
	int listener, rc;

	if (argc != 2) {
		fprintf(stderr, "usage: test_probe PROBE\n");
		return 2;
	}
	rc = set_scene(argv[1]);
	listener = listen_on_loopback();
	if (rc < 0 || listener < 0 || dup2(listener, LEAKED_FD) < 0) {
		printf("Bail out! the scene could not be set: %s\n", strerror(-rc));
		return 1;
	}
	scene.who = geteuid() == 0 ? "root" : "user";
	scene.id = geteuid() == 0 ? STRICT_ID : geteuid();
	scene.group = geteuid() == 0 ? STRICT_ID : getegid();
	try_all();
	if (geteuid() == 0) {
		try_as_user(&(struct user){"user", USER_ID, USER_ID, USER_ID, USER_ID});
		try_as_account();
	} else {
		tap_skip("as root", "needs root");
	}
	(void)remove_tree_at(AT_FDCWD, scene.directory);
	close(listener);
	return tap_done();
}
