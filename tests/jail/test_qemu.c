/*
 * The real monitor in its jail: it starts, greets on an inherited socket, answers, agrees with its
 * description, and ends. No guest is needed for that. Boots are tests/vm's part.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "jail/jail.h"
#include "jail/tap.h"

#define QEMU "/usr/bin/qemu-system-x86_64"
#define QMP_FD 10
#define STRICT_ID 1876545

static const char *const arguments[] = {
	QEMU,
	"-M",
	"q35,sata=off,smbus=off,i8042=off",
	"-accel",
	"tcg",
	"-cpu",
	"max",
	"-m",
	"64",
	"-display",
	"none",
	"-nodefaults",
	"-S",
	"-no-user-config",
	"-chardev",
	"socket,id=q,fd=10",
	"-mon",
	"chardev=q,mode=control",
	"-L",
	"/usr/share/seabios",
	"-L",
	"/usr/share/qemu",
	NULL,
};

/* Reads until text comes. False when it does not within ten seconds. */
static bool expect(int fd, const char *text)
{
	char got[65536];
	size_t used = 0;

	for (;;) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		ssize_t count;

		if (used == sizeof(got) - 1 || poll(&ready, 1, 10000) != 1) {
			return false;
		}
		count = read(fd, got + used, sizeof(got) - 1 - used);
		if (count <= 0) {
			return false;
		}
		used += (size_t)count;
		got[used] = '\0';
		if (strstr(got, text)) {
			return true;
		}
	}
}

static bool say(int fd, const char *text)
{
	return send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
}

static int describe(struct jail *jail, int qmp_fd, struct err *err)
{
	static const char *const files[] = {
		"/usr/share/seabios/bios-256k.bin",
		"/usr/share/qemu/kvmvapic.bin",
		"/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so",
	};
	int rc = jail_add_program(jail, QEMU, err);

	for (size_t i = 0; i < ARRAY_SIZE(files) && rc == 0; i++) {
		if (access(files[i], R_OK) == 0) {
			rc = jail_add_bind(jail, files[i], NULL, false, err);
		}
	}
	jail->name = "qemu";
	jail->program = QEMU;
	jail->argv = arguments;
	jail->host_uid = geteuid() ? geteuid() : STRICT_ID;
	jail->host_gid = geteuid() ? getegid() : STRICT_ID;
	jail->policy = &jail_policy_qemu;
	jail->notify = true;
	jail->open_files = 256;
	jail->processes = 128;
	return rc == 0 ? jail_add_fd(jail, qmp_fd, QMP_FD, err) : rc;
}

static void converse(const struct jail *jail, struct jail_process *process, int qmp_fd)
{
	_cleanup_free_ char *text = NULL;
	struct pollfd ended = {.fd = process->pidfd, .events = POLLIN};
	int count, status;

	tap(expect(qmp_fd, "{\"QMP\""), "it greets");
	tap(say(qmp_fd, "{\"execute\":\"qmp_capabilities\"}\n") && expect(qmp_fd, "\"return\""),
	    "it takes the greeting's answer");
	tap(say(qmp_fd, "{\"execute\":\"query-status\"}\n") && expect(qmp_fd, "prelaunch"),
	    "it tells its state");
	count = jail_compare(jail, process, &text);
	tap(count == 0, "/proc agrees with its description");
	if (count != 0) {
		tap_note("%s", text ? text : "");
	}
	tap(say(qmp_fd, "{\"execute\":\"quit\"}\n"), "it is asked to end");
	tap(poll(&ended, 1, 10000) == 1, "it ends");
	status = jail_end(process);
	tap(status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0,
	    "without a complaint (%x)", (unsigned)status);
}

int main(void)
{
	static struct jail jail;
	struct jail_process process;
	struct err err = {0};
	int ends[2];
	uint64_t start;

	if (access(QEMU, X_OK) < 0) {
		tap_skip("qemu", "qemu-system-x86 is not installed");
		return tap_done();
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) {
		printf("Bail out! no socket\n");
		return 1;
	}
	if (!tap(describe(&jail, ends[1], &err) == 0, "it is described %s", err.text)) {
		return tap_done();
	}
	start = clock_monotonic_ns();
	if (tap(jail_spawn(&jail, &process, &err) == 0, "it starts %s", err.text)) {
		tap_note("jail_spawn took %llu us",
			 (unsigned long long)((clock_monotonic_ns() - start) / 1000));
		close(ends[1]);
		converse(&jail, &process, ends[0]);
		close_fd(&process.pidfd);
		close_fd(&process.notify_fd);
	}
	close(ends[0]);
	jail_clear(&jail);
	return tap_done();
}
