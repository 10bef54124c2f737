/*
 * A jail: described once, entered in one fixed order, read back from /proc.
 *
 * struct jail is the whole description. The same object is handed to jail_spawn, which builds and
 * enters it, to jail_describe, which prints it, and to jail_compare, which holds it against a live
 * process. Nothing about a confinement is written down anywhere else.
 *
 * jail_spawn makes a child in new user, mount, PID, network, IPC, UTS and cgroup namespaces; one
 * that is there to make connections keeps the network of its caller, which the description says.
 * The child gets a root of its own: an empty tmpfs with the listed files bound read-only,
 * everything else gone. Only the listed descriptors stay open. No capability is left in any set,
 * the bounding set is empty, securebits are locked, no_new_privs is set, core dumps are off, limits
 * are set, landlock leaves reading and executing inside the root, and the seccomp list is on before
 * the program's first instruction. Any step that cannot be taken ends the child, and jail_spawn
 * returns the step and the reason; steps in struct jail_missing are the only ones that may be
 * absent.
 *
 * The child dies when the parent thread's process dies (PR_SET_PDEATHSIG, and it is PID 1 of its
 * own PID namespace, so everything below it dies as well).
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define JAIL_BINDS_MAX 160
#define JAIL_FDS_MAX 32
#define JAIL_ARGS_MAX 128

/* A system call by name and number. */
struct jail_call {
	const char *name;
	int number;
};

/* A classic BPF program made from policies/NAME.policy at build time. */
struct jail_policy {
	const char *name;
	/* Array of struct sock_filter, count entries. */
	const void *filter;
	uint16_t count;
	/* The calls that it has a rule for; any other kills. */
	const struct jail_call *calls;
	size_t call_count;
	/* Those of them that jail_narrow has taken away: they kill too. */
	const struct jail_call *without;
	size_t without_count;
};

/* The policies that are compiled in, one for each file in policies/. */
extern const struct jail_policy jail_policy_qemu;
extern const struct jail_policy jail_policy_image;
extern const struct jail_policy jail_policy_copy;
extern const struct jail_policy jail_policy_net;
extern const struct jail_policy jail_policy_keeper;

struct jail_bind {
	/* Absolute host path of a regular file or device node; links are followed by the host. It
	 * is opened as the caller, but host_uid must be allowed to read the file itself. */
	const char *host_path;
	/* Absolute path inside; missing directories are made. NULL: the same as host_path. */
	const char *inside_path;
	/* A device node that may be opened for writing (/dev/kvm). Files are always read-only. */
	bool device;
};

struct jail {
	/* For messages and the UTS name, such as "qemu". */
	const char *name;
	/* Program to execute: a path inside the root (so it is also among the binds). */
	const char *program;
	/* argv, NULL-terminated, argv[0] included. The environment is always empty. */
	const char *const *argv;
	struct jail_bind binds[JAIL_BINDS_MAX];
	size_t bind_count;
	/*
	 * Open descriptors handed over, as (fd in the parent, number in the child). 0, 1 and 2
	 * become /dev/null unless they are listed. The child never has others.
	 */
	struct {
		int fd;
		int number;
	} fds[JAIL_FDS_MAX];
	size_t fd_count;
	/*
	 * One directory that the program may read and change, with all that is in it, at a number;
	 * see jail_add_tree.
	 */
	struct {
		bool wanted;
		int fd;
		int number;
	} tree;
	/*
	 * The ID may be that of the host's root: what the program makes in its tree must belong to
	 * the caller. It has no capability all the same.
	 */
	bool may_be_root;
	/*
	 * It stays in the caller's network namespace, without a capability there. What it may do
	 * with that is for its list of system calls to say: nothing else of a jail knows addresses.
	 */
	bool network;
	/*
	 * The ID that the process has on the host. When a normal user gives it another than the
	 * user's own, newuidmap(1) and newgidmap(1) must allow it (/etc/subuid, /etc/subgid), and
	 * the process keeps no group of the user. Inside it is always 1000.
	 */
	uid_t host_uid;
	gid_t host_gid;
	const struct jail_policy *policy;
	/* Ask for the seccomp user notifications of the policy's "notify" rules. */
	bool notify;
	/*
	 * RLIMIT_AS, RLIMIT_FSIZE (bytes), RLIMIT_NOFILE, RLIMIT_NPROC (threads included). 0: none,
	 * but RLIMIT_NOFILE is never above 4095 (see ENTER_PROGRAM_FD in enter.h).
	 */
	uint64_t address_space_bytes;
	uint64_t file_size_bytes;
	uint64_t open_files;
	uint64_t processes;
	/* cgroup memory and pids limits where a cgroup can be had; 0: none wanted. */
	uint64_t cgroup_memory_bytes;
	uint64_t cgroup_pids;
};

/* What this host could not give, although it was wanted. */
struct jail_missing {
	bool landlock;
	bool cgroup;
	/* Why, one line each, or empty. */
	char landlock_reason[128];
	char cgroup_reason[128];
};

struct jail_process {
	pid_t pid;
	int pidfd;
	/* Seccomp notification descriptor, or -EBADF. */
	int notify_fd;
	/* Absolute paths of the cgroup directories made for it, NUL-separated, or empty. */
	char cgroups[1024];
	struct jail_missing missing;
	/* What the listed descriptors were at the start, and what jail_note_file added, for
	 * jail_compare: a program may duplicate them and close the numbers that it was given. */
	struct {
		uint64_t device;
		uint64_t inode;
	} files[JAIL_FDS_MAX + 1];
	size_t file_count;
};

/*
 * Adds program and every shared library that it needs (as the dynamic loader lists them) to the
 * binds, the loader included. extra files may be added by jail_bind. The lists are kept in the
 * jail's own arena, freed with jail_clear. Returns 0 or a negative errno with err filled.
 */
int jail_add_program(struct jail *jail, const char *host_path, struct err *err);

/*
 * Adds one file. Both strings are copied. The same file at the same place again is no error. All
 * binds are added this way: jail_clear frees them. Returns 0, -ENOSPC, -ENOMEM, or -EEXIST when
 * another file has that place, with err filled.
 */
int jail_add_bind(struct jail *jail, const char *host_path, const char *inside_path, bool device,
		  struct err *err);

/*
 * Makes a policy that is the given one without the named calls. *ret_policy is the caller's, to be
 * freed by free(3), and needs the given one no more than its constant lists. Returns 0, -EINVAL for
 * a name that policy has no rule for or that starting a program needs, -E2BIG or -ENOMEM, with err
 * filled.
 */
int jail_narrow(const struct jail_policy *policy, char *const *names, size_t count,
		struct jail_policy **ret_policy, struct err *err);

/*
 * Adds one descriptor; the jail does not own it. number is below 2048. Returns 0 or -ENOSPC with
 * err filled.
 */
int jail_add_fd(struct jail *jail, int fd, int number, struct err *err);

/*
 * Adds the one directory that the program may change; the jail does not own fd. At number (below
 * 2048) the program gets an O_PATH descriptor for the root of a mount of its own (nosuid, nodev,
 * noexec), so nothing above the directory can be reached from it. The directory is found again by
 * its path, and must be the same. Returns 0 or -ENOSPC with err filled.
 */
int jail_add_tree(struct jail *jail, int fd, int number, struct err *err);

/* Frees what jail_add_* copied. */
void jail_clear(struct jail *jail);

/*
 * Builds the jail and starts the program in it. Returns once the program has been executed. The
 * process dies with the thread that calls this. host_uid and host_gid must not be 0 without
 * may_be_root. The process has no supplementary group but that of a bound device; but a normal
 * user under whose own ID it runs, or whom a group lets open the device, cannot take any away.
 * On success *ret_process is filled; the caller owns pidfd and notify_fd, waits for the process,
 * and calls jail_end afterwards. On failure err names the step, the reason and the mend.
 */
int jail_spawn(const struct jail *jail, struct jail_process *ret_process, struct err *err);

/*
 * Stops the process, and returns when none of its threads can make a call any more: nothing is
 * written or sent by it from then on, since its list leaves it no way to have itself continued.
 * Killed it is by jail_end: to give its memory back takes a processor milliseconds, and whoever
 * waits for the machine's end would wait for that processor.
 */
void jail_stop(const struct jail_process *process);

/* Begins the same: who has something else to do does that while the threads stop. */
void jail_begin_stop(const struct jail_process *process);

/*
 * Kills the process if it still lives, reaps it, removes its cgroups. Returns the wait status as
 * of waitpid(2), or -ECHILD when somebody else has reaped it. Leaves pidfd and notify_fd alone.
 */
int jail_end(struct jail_process *process);

/*
 * Answers one pending notification of the process. An openat(2) for writing becomes the descriptor
 * fd (which may be opened read-only; -EBADF: -EACCES). A fallocate(2) is carried out; but where fd
 * may only be read and the call is about the same file, it is said to be done and is not. Anything
 * else gets -EACCES. Returns 0, -EAGAIN, or a negative errno.
 */
int jail_answer(const struct jail_process *process, int fd);

/*
 * Tell jail_compare of a file that the process was given after its start, and of one that it has
 * no more. A file that was given twice must be forgotten twice. What there is no room for counts
 * as a difference.
 */
void jail_note_file(struct jail_process *process, uint64_t device, uint64_t inode);
void jail_forget_file(struct jail_process *process, uint64_t device, uint64_t inode);

/* The description as JSON text for people and programs; owned by the caller. 0 or -ENOMEM. */
int jail_describe(const struct jail *jail, char **ret_text);

/*
 * Reads the live process back from /proc (IDs, capabilities, no_new_privs, seccomp mode,
 * namespaces, root, mounts, descriptors, limits) and compares it with the description. With notify,
 * one regular file that is not listed is taken for the one that jail_answer gave. Each
 * difference is appended to *ret_text as a line, owned by the caller. Returns the number of
 * differences or a negative errno.
 */
int jail_compare(const struct jail *jail, const struct jail_process *process, char **ret_text);

/*
 * Confines the calling process, which is in no jail, for good: no capability in any set (started by
 * root: CAP_DAC_OVERRIDE, to remove control groups, and an empty bounding set), no_new_privs, not
 * dumpable, no core dumps, and the list of system calls policy. It has one thread. Returns 0, or a
 * negative errno with err filled; then it may be confined in part.
 */
int jail_confine_self(const struct jail_policy *policy, struct err *err);

/* What jail_confine_self has done as JSON text, owned by the caller. 0 or -ENOMEM. */
int jail_describe_self(const struct jail_policy *policy, char **ret_text);

/* As jail_compare, for a process that has confined itself and asks about itself. */
int jail_compare_self(char **ret_text);

/* Where the groups of a jail come from. */
enum jail_groups {
	JAIL_GROUPS_NONE,
	/* The caller may make them. */
	JAIL_GROUPS_OWN,
	/* systemd makes them, for the caller's login session. */
	JAIL_GROUPS_OF_SYSTEMD,
};

/*
 * Makes a group as a jail does, and removes it. ret_text is the directory that it was in, or why
 * there was none.
 */
enum jail_groups jail_try_cgroups(char ret_text[static PATH_MAX]);

/* Whether the caller's systemd listens. */
bool jail_has_user_manager(void);

/* Removes cgroups of box whose makers are dead. Always safe; failures are ignored. */
void jail_sweep_cgroups(void);

/* How many there are of them. */
size_t jail_count_leftover_cgroups(void);
