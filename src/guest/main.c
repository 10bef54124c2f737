/*
 * box-guest: the first process of every sandbox machine. Boots it (boot.c), then serves the host
 * over the control port (session.c) until the machine is to end. It never returns: when it cannot
 * go on it says why on the console and switches the machine off.
 *
 * It needs no protection from the kernel's memory killer: process 1 is never chosen, and so its
 * oom_score_adj can stay 0, which commands inherit.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "guest/apply.h"
#include "guest/copy.h"
#include "guest/diff.h"
#include "guest/machine.h"
#include "guest/same.h"
#include "guest/session.h"
#include "guest/warm.h"

/* How long the host's end may be away while nothing runs, such as before the host has opened it. */
#define ABSENCE_MS 5000u
/* Three pipes and a control group for every stream, and some; commands inherit it. */
#define FILES_SOFT 4096
/* What ordinary distributions allow programs to raise it to. */
#define FILES_HARD 524288

/* Our own bug: say so and switch off, rather than leave a panicked kernel behind. */
static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)context;
	/* Sent by a program inside; only the kernel and abort(3) are believed. */
	if (info->si_code <= 0 && info->si_pid != getpid()) {
		return;
	}
	machine_say(number == SIGABRT ? "internal error" : "crashed");
	sync();
	reboot(RB_POWER_OFF);
	for (;;) {
		pause();
	}
}

static void set_signals(void)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	sigset_t blocked;

	sigfillset(&blocked);
	for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
		sigaction(faults[i], &action, NULL);
		sigdelset(&blocked, faults[i]);
	}
	sigprocmask(SIG_SETMASK, &blocked, NULL);
}

/* Descriptors 0 to 2 must be taken, or a pipe of a command would get one of their numbers. */
static void hold_standard_descriptors(void)
{
	int fd;

	do {
		fd = open("/dev/console", O_RDWR | O_NOCTTY);
		if (fd < 0) {
			fd = open("/dev/null", O_RDWR);
		}
	} while (fd >= 0 && fd <= STDERR_FILENO);
	close_fd(&fd);
}

/* Among thousands of processes this one must still hear the host; its children are like any. */
static void take_precedence(void)
{
	const struct sched_param none = {0};

	sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none);
	setpriority(PRIO_PROCESS, 0, -20);
}

static int serve(struct machine *machine, struct err *err)
{
	const struct session_hooks hooks = {
		.setup = machine_setup,
		.freeze = machine_freeze,
		.attach = machine_attach,
		.detach = machine_detach,
		.pause = machine_pause,
		.resume = machine_resume,
		.step_clock = machine_step_clock,
		.shutdown = machine_shutdown,
		.data = machine,
	};
	const struct session_config config = {
		.port_fd = machine->port_fd,
		.cgroup_fd = machine->cgroup_fd,
		.passwd_path = "/etc/passwd",
		.group_path = "/etc/group",
		.absence_ms = ABSENCE_MS,
		.pause_max_ms = WIRE_PAUSE_MAX_MS,
		.hooks = &hooks,
	};
	_cleanup_(session_freep) struct session *session = NULL;
	int rc = session_new(&config, &session);

	if (rc < 0) {
		return err_context(err, rc, "cannot start serving");
	}
	return session_run(session, err);
}

/* "box-sync": everything that was written to /data goes to its disk. */
static int sync_main(int argc, char **argv)
{
	_cleanup_close_ int fd = open("/data", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)argc;
	(void)argv;
	return fd >= 0 && syncfs(fd) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* What else this program is, for WIRE_EXEC_SELF: argv[0] says as what it runs. */
static const struct applet {
	const char *name;
	int (*run)(int argc, char **argv);
} applets[] = {
	{"box-apply", apply_main}, {"box-copy-in", copy_in_main}, {"box-copy-out", copy_out_main},
	{"box-diff", diff_main},   {"box-same", same_main},	  {"box-sync", sync_main},
};

/* Not as process 1: runs the applet, if argv names one. Returns the exit code. */
static int run_applet(int argc, char **argv)
{
	for (size_t i = 0; argc > 0 && i < ARRAY_SIZE(applets); i++) {
		if (applets[i].name && strcmp(argv[0], applets[i].name) == 0) {
			/* The kernel has named it after a descriptor's number. */
			prctl(PR_SET_NAME, applets[i].name, 0, 0, 0);
			return applets[i].run(argc, argv);
		}
	}
	if (argc == 2 && strcmp(argv[1], WARM_ARGUMENT) == 0) {
		return EXIT_SUCCESS;
	}
	fputs("box-guest: this is the first process of a sandbox machine; it does nothing "
	      "elsewhere\n",
	      stderr);
	return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
	struct rlimit files = {.rlim_cur = FILES_SOFT, .rlim_max = FILES_HARD};
	static struct machine machine;
	struct err err = {.code = ""};
	int rc;

	if (getpid() != 1) {
		return run_applet(argc, argv);
	}
	umask(022);
	set_signals();
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	/* The kernel calls it init, after the name of its file. */
	prctl(PR_SET_NAME, "box-guest", 0, 0, 0);
	setrlimit(RLIMIT_NOFILE, &files);
	take_precedence();
	rc = machine_boot(&machine, &err);
	hold_standard_descriptors();
	if (rc == 0) {
		rc = serve(&machine, &err);
	}
	if (rc < 0) {
		machine_say(err.text);
	}
	machine_power_off();
}
