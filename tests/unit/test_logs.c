/* src/cli/logs.c: what `box logs` makes of a log that anyone may have written. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store_home.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/io.h"
#include "store/log.h"

#define START(id, argv)                                                                            \
	"{\"event\":\"start\",\"id\":\"" id                                                        \
	"\",\"time\":\"2026-01-02T03:04:05.678Z\",\"argv\":" argv "}\n"
#define END(id, rest)                                                                              \
	"{\"event\":\"end\",\"id\":\"" id "\",\"started\":\"2026-01-01T00:00:00.000Z\","           \
	"\"duration_ms\":1005,\"stdout_bytes\":7,\"stderr_bytes\":3," rest "}\n"

static const struct cli_option options[] = {
	{'f', "follow", NULL, NULL},
	{'n', "lines", "N", NULL},
	{'j', "json", NULL, NULL},
	{'r', "raw", NULL, NULL},
};

static void put_file(const char *path, const char *text)
{
	assert_int_equal(write_file_at(store.home_fd, path, text, strlen(text), 0600), 0);
}

/* Runs `box logs` with these options (a list that ends with NULL) for "a" and id. */
static int run_logs(const char *id, const char *lines, unsigned flags)
{
	struct cli_given given[4];
	char name[] = "a", identity[64];
	char *operands[] = {name, identity, NULL};
	struct cli_args args = {.given = given, .operands = operands, .operand_count = id ? 2 : 1};

	snprintf(identity, sizeof(identity), "%s", id ? id : "");
	for (unsigned i = 0; i < ARRAY_SIZE(options); i++) {
		if ((flags & (1u << i)) != 0) {
			given[args.given_count++] =
				(struct cli_given){&options[i], i == 1 ? lines : NULL};
		}
	}
	return cli_logs(&args, &err);
}

#define FOLLOW 1u
#define LINES 2u
#define JSON 4u
#define RAW 8u

/* The same with standard output or error taken into a file; the text is owned by the caller. */
static char *capture(int stream, const char *id, const char *lines, unsigned flags)
{
	_cleanup_close_ int file = memfd_create("out", MFD_CLOEXEC);
	_cleanup_close_ int before = -EBADF;
	char *text = calloc(1, 65536);
	int rc;

	fflush(stdout);
	before = dup(stream);
	assert_true(file >= 0 && before >= 0);
	dup2(file, stream);
	rc = run_logs(id, lines, flags);
	fflush(stdout);
	dup2(before, stream);
	assert_int_equal(rc, EXIT_OK);
	assert_true(pread(file, text, 65535, 0) >= 0);
	return text;
}

static void test_table(void **state)
{
	_cleanup_free_ char *text = NULL;

	(void)state;
	put_file(
		"log/a.jsonl",
		START("aaa111", "[\"sh\",\"-c\",\"a b\\n\\u001b[2J\\u009b\"]") START("bbb222", "[\""
											       "tru"
											       "e\""
											       "],"
											       "\"a"
											       "rgs"
											       "_cu"
											       "t\""
											       ":tr"
											       "ue")
			END("aaa111",
			    "\"exit_code\":7,\"timed_out\":false") "{\"event\":\"up\",\"time\":"
								   "\"x\"}"
								   "\n" END(
									   "ccc333",
									   "\"signal\":9,\"timed_"
									   "out\":false") START("dd"
												"d4"
												"4"
												"4",
												"["
												"\""
												"\""
												"]")
									   END("ddd444",
									       "\"signal\":9,"
									       "\"timed_"
									       "out\":true") START("eee555",
												   "[\"x\"]")
										   END("eee5"
										       "55",
										       "\"er"
										       "ror"
										       "\":"
										       "\"No"
										       "\"") START("bbb222",
												   "[\"again\"]")
											   END("bbb"
											       "22"
											       "2",
											       "\"e"
											       "xit"
											       "_"
											       "cod"
											       "e\""
											       ":"
											       "0"));
	text = capture(STDOUT_FILENO, NULL, NULL, 0);
	assert_string_equal(text, "2026-01-02T03:04:05.678Z\taaa111\t7\t1.005\t10\tsh -c \"a "
				  "b\\n\\e[2J\\xc2\\x9b\"\n"
				  "2026-01-02T03:04:05.678Z\tbbb222\trunning?\t-\t-\ttrue ...\n"
				  "2026-01-01T00:00:00.000Z\tccc333\tSIGKILL\t1.005\t10\t-\n"
				  "2026-01-02T03:04:05.678Z\tddd444\ttimeout\t1.005\t10\t\"\"\n"
				  "2026-01-02T03:04:05.678Z\teee555\tfailed\t1.005\t10\tx\n"
				  "2026-01-02T03:04:05.678Z\tbbb222\t0\t1.005\t10\tagain\n");
}

/* A torn line, one of another program, one without an end, one that is far too long. */
static void test_hostile_lines_are_left_out(void **state)
{
	_cleanup_free_ char *log = malloc(200000);
	_cleanup_free_ char *text = NULL;
	_cleanup_free_ char *json = NULL;
	size_t length;

	(void)state;
	length = (size_t)snprintf(log, 200000,
				  "{\"event\":\"start\",\"id\":\"aaa\n\n[]\n\"x\"\nnothing\x1b[2J\n"
				  "{\"event\":3,\"id\":[]}\n{\"event\":\"start\",\"id\":\"../x\"}\n"
				  "{\"event\":\"start\",\"id\":\"a\\tb\"}\n"
				  "{\"event\":\"start\"}\n\xff\n%s%s",
				  "{\"event\":\"start\",\"id\":\"odd\",\"time\":\"\\u001b\\t\","
				  "\"argv\":[3,{}]}\n",
				  "{\"event\":\"end\",\"id\":\"odd\",\"duration_ms\":-5,"
				  "\"signal\":9999999999}\n{\"x\":\"");
	memset(log + length, 'x', 100000);
	snprintf(log + length + 100000, 90000, "\"}\n%s{\"event\":\"start\",\"id\":\"torn",
		 START("bbb222", "[\"true\"]"));
	put_file("log/a.jsonl", log);
	text = capture(STDOUT_FILENO, NULL, NULL, 0);
	assert_string_equal(text, "\\e\\t\todd\tsignal 9999999999\t0.000\t0\t\"\" \"\"\n"
				  "2026-01-02T03:04:05.678Z\tbbb222\trunning?\t-\t-\ttrue\n");
	json = capture(STDOUT_FILENO, NULL, "1", LINES | JSON);
	assert_string_equal(json, START("bbb222", "[\"true\"]"));
}

static void test_lines_of_both_files(void **state)
{
	static const struct {
		const char *lines;
		unsigned flags;
		unsigned count;
	} cases[] = {
		{NULL, 0, 20},		{"0", LINES, 0},  {"3", LINES, 3},
		{"1000", LINES, 30},	{NULL, JSON, 30}, {"3", LINES | JSON, 3},
		{"0", LINES | JSON, 0},
	};
	char lines[2][4096] = {"", ""};

	(void)state;
	for (unsigned i = 0; i < 30; i++) {
		char *half = lines[i / 15];
		size_t length = strlen(half);

		snprintf(half + length, sizeof(lines[0]) - length,
			 "{\"event\":\"start\",\"id\":\"id%u\",\"argv\":[]}\n", i);
	}
	put_file("log/a.jsonl.1", lines[0]);
	put_file("log/a.jsonl", lines[1]);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *text =
			capture(STDOUT_FILENO, NULL, cases[i].lines, cases[i].flags);
		const char *first = text;
		unsigned count = 0;
		char id[16];

		for (const char *at = text; *at; at++) {
			count += *at == '\n';
		}
		assert_int_equal(count, cases[i].count);
		snprintf(id, sizeof(id), "id%u", 30 - count);
		first = strstr(text, count > 0 ? id : "");
		assert_non_null(first);
		assert_true(first < text + 40);
	}
}

static void test_output_of_a_command(void **state)
{
	_cleanup_free_ char *out = NULL;
	_cleanup_free_ char *error = NULL;
	_cleanup_free_ char *unknown = NULL;

	(void)state;
	assert_int_equal(mkdirat(store.home_fd, "log/a", 0700), 0);
	put_file("log/a.jsonl", START("aaa111", "[]") END("aaa111", "\"exit_code\":0"));
	put_file("log/a/aaa111.out", "\x1b[2J\n");
	put_file("log/a/aaa111.err", "no\n");
	/* Into a file: bytes as they are. 7 bytes were sent, 5 are there. */
	out = capture(STDOUT_FILENO, "aaa111", NULL, 0);
	assert_string_equal(out, "\x1b[2J\n");
	error = capture(STDERR_FILENO, "aaa111", NULL, 0);
	assert_string_equal(error, "box: the first 2 bytes of standard output were not kept\nno\n");
	/* The log has gone, the output has not. */
	put_file("log/a/old.out", "old");
	unknown = capture(STDOUT_FILENO, "old", NULL, RAW);
	assert_string_equal(unknown, "old");
}

static void test_nothing_kept(void **state)
{
	_cleanup_free_ char *error = NULL;

	(void)state;
	put_file("log/a.jsonl", START("aaa111", "[]") END("aaa111", "\"exit_code\":0"));
	error = capture(STDERR_FILENO, "aaa111", NULL, 0);
	assert_string_equal(error, "box: none of the 7 bytes of standard output are kept\n"
				   "box: none of the 3 bytes of standard error are kept\n");
}

static void test_what_is_refused(void **state)
{
	(void)state;
	assert_int_equal(run_logs(NULL, NULL, 0), -ENOENT);
	assert_string_equal(err.code, "no-sandbox");
	put_file("log/a.jsonl", "");
	assert_int_equal(run_logs("zzz999", NULL, 0), -ENOENT);
	assert_string_equal(err.code, "no-command");
	assert_non_null(strstr(err.mend, "box logs"));
	assert_int_equal(run_logs("../\x1b", NULL, 0), -ENOENT);
	assert_non_null(strstr(err.text, "\"../\\e\""));
	assert_int_equal(run_logs("zzz999", NULL, FOLLOW), -EINVAL);
	assert_int_equal(run_logs("zzz999", "3", LINES), -EINVAL);
	assert_int_equal(run_logs(NULL, "x", LINES), -EINVAL);
	assert_int_equal(run_logs(NULL, "-1", LINES), -EINVAL);
	assert_int_equal(run_logs(NULL, "99999999999999999999", LINES), -EINVAL);
	assert_string_equal(err.code, "usage");
}

/* A terminal gets no byte that drives it, on either path. */
static void test_on_a_terminal(void **state)
{
	_cleanup_close_ int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	_cleanup_close_ int slave = -EBADF;
	_cleanup_close_ int before = -EBADF;
	struct pollfd readable = {.fd = master, .events = POLLIN};
	char seen[16384];
	size_t filled = 0;
	ssize_t got;

	(void)state;
	if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0) {
		skip();
	}
	slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(slave >= 0);
	setenv("NO_COLOR", "1", 1);
	assert_int_equal(mkdirat(store.home_fd, "log/a", 0700), 0);
	put_file("log/a.jsonl",
		 START("aaa111", "[\"0123456789012345678901234567890123456789\xc2\x9b"
				 "2J\"]"));
	put_file("log/a/aaa111.out",
		 "a\x1b]0;x\x07\xc2\x9b\xff\"\\\tb\r\nc\rd\xe2\x80\xae\xe2\x82\xac\xe2");
	fflush(stdout);
	before = dup(STDOUT_FILENO);
	dup2(slave, STDOUT_FILENO);
	run_logs("aaa111", NULL, 0);
	run_logs(NULL, NULL, 0);
	run_logs(NULL, NULL, JSON);
	fflush(stdout);
	dup2(before, STDOUT_FILENO);
	/* It comes a line at a time, from a thread of the kernel. */
	while (filled < sizeof(seen) - 1 && poll(&readable, 1, 300) > 0) {
		got = read(master, seen + filled, sizeof(seen) - 1 - filled);
		assert_true(got > 0);
		filled += (size_t)got;
	}
	seen[filled] = '\0';
	/* The line discipline has put a \r before each newline. */
	assert_non_null(strstr(seen, "a\\e]0;x\\x07\\xc2\\x9b\\xff\"\\\tb\r\r\nc\\rd\\xe2\\x80\\xae"
				     "\xe2\x82\xac\\xe2"));
	assert_non_null(strstr(seen, "TIME"));
	assert_non_null(strstr(seen, "  \"0123456...\r\n"));
	assert_non_null(strstr(seen, "\\u009b2J\"]}"));
	assert_null(strchr(seen, '\x1b'));
	assert_null(strstr(seen, "\xc2\x9b"));
}

/* Reads from the pipe until wanted has come, or for five seconds. */
static bool comes(int fd, const char *wanted)
{
	static char seen[65536];
	static size_t filled;

	for (unsigned i = 0; i < 100; i++) {
		ssize_t got = read(fd, seen + filled, sizeof(seen) - 1 - filled);

		if (got > 0) {
			filled += (size_t)got;
			seen[filled] = '\0';
		}
		if (strstr(seen, wanted)) {
			return true;
		}
		usleep(50000);
	}
	return false;
}

static void append(const char *line)
{
	assert_int_equal(store_log_append(&store, "a", line, strcspn(line, "\n")), 0);
}

static void test_follow(void **state)
{
	_cleanup_close_ int read_fd = -EBADF;
	int ends[2], status = 0;
	pid_t child;

	(void)state;
	append(START("aaa111", "[\"one\"]"));
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	read_fd = ends[0];
	assert_int_equal(set_nonblocking(read_fd, true), 0);
	fflush(stdout);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(ends[0]);
		dup2(ends[1], STDOUT_FILENO);
		close(ends[1]);
		_exit(run_logs(NULL, NULL, FOLLOW) == EXIT_OK ? 0 : 1);
	}
	close(ends[1]);
	assert_true(comes(read_fd, "aaa111\trunning?"));
	append(END("aaa111", "\"exit_code\":5"));
	assert_true(comes(read_fd, "aaa111\t5\t"));
	/* The file is put aside, the last line in it is not lost. */
	append(START("bbb222", "[\"two\"]"));
	append(END("bbb222", "\"exit_code\":6"));
	assert_int_equal(renameat(store.home_fd, "log/a.jsonl", store.home_fd, "log/a.jsonl.1"), 0);
	append(START("ccc333", "[\"three\"]"));
	append(END("ccc333", "\"exit_code\":8"));
	assert_true(comes(read_fd, "bbb222\t6\t"));
	assert_true(comes(read_fd, "ccc333\t8\t"));
	/* Nobody reads any more: it ends without having to write. */
	close_fd(&read_fd);
	for (unsigned i = 0; i < 100 && waitpid(child, &status, WNOHANG) == 0; i++) {
		usleep(50000);
	}
	if (kill(child, 0) == 0) {
		kill(child, SIGKILL);
		fail_msg("it still follows");
	}
	assert_int_equal(status, 0);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, home_set_up, home_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_table),
		TEST(test_hostile_lines_are_left_out),
		TEST(test_lines_of_both_files),
		TEST(test_output_of_a_command),
		TEST(test_nothing_kept),
		TEST(test_what_is_refused),
		TEST(test_on_a_terminal),
		TEST(test_follow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
