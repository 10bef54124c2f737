/* What the compiler of system call lists takes, and what ends the build. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "jail/tap.h"

/* What every list must have. */
#define BASE "# a list\n\nexecveat: allow  # start\nwrite: allow # tell\nexit_group: allow # end\n"

static const struct {
	const char *what;
	const char *text;
	/* NULL: it must compile. */
	const char *complaint;
} cases[] = {
	{"a plain list", BASE, NULL},
	{"conditions and actions",
	 BASE "openat: arg2 & 3 == 0 and arg1 == 0x10 # a\nopenat: errno EACCES # b\n", NULL},
	{"notify with sendmsg", BASE "openat: notify # a\nsendmsg: allow # b\n", NULL},
	{"notify without sendmsg", BASE "openat: notify # a\n", "sendmsg must be allowed"},
	{"no execveat", "write: allow # a\nexit_group: allow # b\n", "execveat must be allowed"},
	{"no write", "execveat: allow # a\nexit_group: allow # b\n", "write must be allowed"},
	{"an unknown call", BASE "opennat: allow # a\n", ":6: no such system call: opennat"},
	{"a call of another architecture", BASE "mmap2: allow # a\n", "no such system call"},
	{"no reason", BASE "read: allow\n", ":6: the reason is missing"},
	{"an empty reason", BASE "read: allow # \n", "the reason is missing"},
	{"a duplicate", BASE "read: allow # a\nread: allow # b\n", ":7: line 6 decides this"},
	{"a rule that is never reached", BASE "read: allow # a\nread: arg0 == 1 # b\n",
	 "line 6 decides this"},
	{"the same condition twice", BASE "read: arg0 == 1 # a\nread: arg0 == 1 errno EPERM # b\n",
	 "line 6 decides this"},
	{"a condition that is never true", BASE "read: arg0 & 1 == 2 # a\n", "never or always"},
	{"a condition that is always true", BASE "read: arg0 & 0 == 0 # a\n", "never or always"},
	{"a seventh argument", BASE "read: arg6 == 1 # a\n", "expected arg0 to arg5"},
	{"an unknown action", BASE "read: maybe # a\n", "expected allow"},
	{"an unknown errno", BASE "read: errno EWHAT # a\n", "expected allow"},
	{"words after the action", BASE "read: allow it # a\n", "after the action"},
	{"no colon", BASE "read allow # a\n", "expected a colon"},
	{"nothing after the colon", BASE "read: # a\n", "neither condition nor action"},
	{"two conditions without and", BASE "read: arg0 == 1 arg1 == 2 # a\n", "expected and"},
	{"and without a condition", BASE "read: arg0 == 1 and allow # a\n", "after and"},
	{"no number", BASE "read: arg0 == x # a\n", "a number is missing"},
	{"half a number", BASE "read: arg0 == 1x # a\n", "not a number"},
	{"a last line without an end", BASE "read: allow # a", "without an end"},
};

static bool compile(const char *compiler, const char *text, char *ret_complaint, size_t size)
{
	char source[] = "/tmp/box-policy-XXXXXX";
	_cleanup_close_ int file = mkstemp(source);
	int ends[2], status = -1;
	ssize_t got = 0;
	pid_t pid;

	if (file < 0 || write_full(file, text, strlen(text)) < 0 || pipe(ends) < 0) {
		return false;
	}
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], 2);
		execl(compiler, compiler, "test", source, "/dev/null", (char *)NULL);
		_exit(99);
	}
	close(ends[1]);
	got = read_full(ends[0], ret_complaint, size - 1);
	ret_complaint[got > 0 ? got : 0] = '\0';
	close(ends[0]);
	(void)waitpid(pid, &status, 0);
	(void)unlink(source);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
	char complaint[1024];

	if (argc != 2) {
		fprintf(stderr, "usage: test_policy COMPILER\n");
		return 2;
	}
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		bool compiled = compile(argv[1], cases[i].text, complaint, sizeof(complaint));
		const char *wanted = cases[i].complaint;

		if (!tap(wanted ? !compiled && strstr(complaint, wanted) : compiled, "%s",
			 cases[i].what)) {
			tap_note("%s", complaint);
		}
	}
	return tap_done();
}
