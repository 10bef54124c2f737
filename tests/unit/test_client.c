#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "client/base.h"
#include "client/build.h"
#include "client/mirror.h"
#include "engine/proof.h"
#include "client/scripts.h"
#include "client/state.h"
#include "ipc/ipc.h"
#include "client/task.h"

static void scan(const char *text, bool deb822, const char *suite, struct mirror *mirror)
{
	mirror_scan(text, strlen(text), deb822, suite, mirror);
}

static void mirror_of_one_line_sources(void **state)
{
	struct mirror mirror = {0};

	(void)state;
	scan("# deb http://commented.example/debian bookworm main\n"
	     "deb-src http://source.example/debian bookworm main\n"
	     "deb [signed-by=/k.gpg] http://vendor.example/apt bookworm main\n"
	     "deb http://plain.example/stuff bookworm main\n"
	     "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
	     "http://mirror.example/debian/ bookworm main contrib # ours\n"
	     "deb http://second.example/debian bookworm main\n"
	     "deb http://mirror.example/debian-security bookworm-security main\n",
	     false, "bookworm", &mirror);
	assert_string_equal(mirror.uri, "http://mirror.example/debian/");
	assert_string_equal(mirror.security_uri, "http://mirror.example/debian-security");
}

static void mirror_of_deb822_sources(void **state)
{
	struct mirror mirror = {0};

	(void)state;
	scan("Types: deb\n"
	     "URIs: http://off.example/debian\n"
	     "Suites: bookworm\nComponents: main\nEnabled: no\n"
	     "\n"
	     "# a comment\n"
	     "Types: deb deb-src\n"
	     "URIs:\n http://mirror.example/debian\n http://other.example/debian\n"
	     "Suites: bookworm bookworm-updates\n"
	     "# in between\n"
	     "Components: main non-free\n"
	     "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
	     "   \n"
	     "types: deb\nuris: http://mirror.example/debian-security\n"
	     "suites: bookworm-security\ncomponents: main",
	     true, "bookworm", &mirror);
	assert_string_equal(mirror.uri, "http://mirror.example/debian");
	assert_string_equal(mirror.security_uri, "http://mirror.example/debian-security");
}

static void mirror_for_another_suite(void **state)
{
	struct mirror mirror = {0};

	(void)state;
	scan("deb http://mirror.example/debian bookworm main\n"
	     "deb http://mirror.example/debian-security bookworm-security main\n",
	     false, "trixie", &mirror);
	/* The archive has other suites as well; for their security nothing is known. */
	assert_string_equal(mirror.uri, "http://mirror.example/debian");
	assert_string_equal(mirror.security_uri, "");
	/* One that lists the suite is better, though it comes later. */
	scan("deb http://testing.example/debian trixie main\n", false, "trixie", &mirror);
	assert_string_equal(mirror.uri, "http://testing.example/debian");
}

static void mirrors_that_are_none(void **state)
{
	struct mirror mirror = {0};

	(void)state;
	scan("deb http://mirror.example/debian bookworm contrib\n"
	     "deb cdrom:[Debian]/ bookworm main\n"
	     "deb mirror+file:/etc/mirrors bookworm main\n"
	     "deb [broken http://mirror.example/debian bookworm main\n"
	     "deb http://mirror.example/debian\n"
	     "debx http://mirror.example/debian bookworm main\n"
	     "deb\n"
	     "deb [signed-by=/k] http://vendor.example/linux bookworm main\n"
	     "deb http://vendor.example/linux jammy main\n",
	     false, "bookworm", &mirror);
	assert_int_equal(mirror.score, 0);
	assert_string_equal(mirror.uri, "");
	scan("URIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n", true,
	     "bookworm", &mirror);
	assert_int_equal(mirror.score, 0);
}

static void mirror_urls(void **state)
{
	char big[MIRROR_URI_MAX + 32];

	(void)state;
	assert_true(mirror_check_uri("http://h/debian"));
	assert_true(mirror_check_uri("https://user:word@h:8080/debian"));
	assert_true(mirror_check_uri("file:/srv/debian"));
	assert_false(mirror_check_uri(""));
	assert_false(mirror_check_uri("http://"));
	assert_false(mirror_check_uri("ftp://h/debian"));
	assert_false(mirror_check_uri("--hook-dir=/x"));
	assert_false(mirror_check_uri("http://h/a b"));
	assert_false(mirror_check_uri("http://h/[x]"));
	assert_false(mirror_check_uri("http://h/\n"));
	assert_false(mirror_check_uri("http://h/\xc3\xa9"));
	snprintf(big, sizeof(big), "http://%0*d", MIRROR_URI_MAX, 0);
	assert_false(mirror_check_uri(big));
}

static void mirror_rules(void **state)
{
	static const struct {
		const char *uri;
		const char *rule;
	} cases[] = {
		{"http://deb.example.org/debian", "deb.example.org:80"},
		{"https://deb.example.org", "deb.example.org:443"},
		{"http://h:3142/deb.example.org/debian", "h:3142"},
		{"https://user:word@h:8443/debian", "h:8443"},
		{"https://a@b@h/x@y:1", "h:443"},
		{"http://10.0.0.5/debian", "10.0.0.5:80"},
		{"file:/srv/debian", NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char rule[MIRROR_RULE_MAX] = "";

		assert_int_equal(mirror_rule(cases[i].uri, rule), cases[i].rule != NULL);
		assert_string_equal(rule, cases[i].rule ? cases[i].rule : "");
	}
}

static void mirror_from_the_environment(void **state)
{
	struct mirror mirror;
	struct err err = {0};

	(void)state;
	setenv("BOX_MIRROR", "http://mine.example/debian", 1);
	assert_int_equal(mirror_find("bookworm", &mirror, NULL), 0);
	assert_string_equal(mirror.uri, "http://mine.example/debian");
	assert_string_equal(mirror.security_uri, "");
	setenv("BOX_MIRROR", "not a url", 1);
	assert_int_equal(mirror_find("bookworm", &mirror, &err), -EINVAL);
	assert_non_null(strstr(err.text, "BOX_MIRROR"));
	unsetenv("BOX_MIRROR");
}

static struct spec *parse_spec(const char *text)
{
	struct spec *spec = NULL;
	struct err err = {0};

	if (spec_parse(text, strlen(text), "Boxfile", &spec, &err) < 0) {
		fail_msg("%s", err.text);
	}
	return spec;
}

static char *key_of(const char *boxfile)
{
	_cleanup_(spec_freep) struct spec *spec = parse_spec(boxfile);
	struct err err = {0};
	char *key = NULL;

	if (build_image_key(spec, &key, &err) < 0) {
		fail_msg("%s", err.text);
	}
	return key;
}

static void make_file(const char *directory, const char *name, const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	assert_int_equal(write_file_at(AT_FDCWD, path, text, strlen(text), 0644), 0);
}

static void image_keys(void **state)
{
	char directory[] = "/tmp/box-test-XXXXXX";
	char boxfile[512];
	_cleanup_free_ char *first = NULL;
	_cleanup_free_ char *same = NULL;
	_cleanup_free_ char *other_run = NULL;
	_cleanup_free_ char *other_cpus = NULL;
	_cleanup_free_ char *other_tree = NULL;

	(void)state;
	assert_non_null(mkdtemp(directory));
	make_file(directory, "a", "one");
	snprintf(boxfile, sizeof(boxfile), "base: dir:%s\nrun: [x]\n", directory);
	first = key_of(boxfile);
	same = key_of(boxfile);
	assert_string_equal(first, same);
	snprintf(boxfile, sizeof(boxfile), "base: dir:%s\nrun: [y]\n", directory);
	other_run = key_of(boxfile);
	assert_string_not_equal(first, other_run);
	snprintf(boxfile, sizeof(boxfile), "base: dir:%s\nrun: [x]\ncpus: 7\n", directory);
	other_cpus = key_of(boxfile);
	assert_string_equal(first, other_cpus);
	make_file(directory, "b", "two");
	snprintf(boxfile, sizeof(boxfile), "base: dir:%s\nrun: [x]\n", directory);
	other_tree = key_of(boxfile);
	assert_string_not_equal(first, other_tree);
	assert_int_equal(remove_tree_at(AT_FDCWD, directory), 0);
}

static void keys_in_files(void **state)
{
	char directory[] = "/tmp/box-test-XXXXXX";
	_cleanup_close_ int fd = -EBADF;

	(void)state;
	assert_non_null(mkdtemp(directory));
	make_file(directory, "key", "text\n");
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(build_key_is(fd, "key", "text\n"));
	assert_false(build_key_is(fd, "key", "text"));
	assert_false(build_key_is(fd, "key", "text\n\n"));
	assert_false(build_key_is(fd, "none", ""));
	assert_int_equal(remove_tree_at(AT_FDCWD, directory), 0);
}

/* The Boxfile's own rules refuse these as well; a build does not rely on it. */
static void bases_that_cannot_be(void **state)
{
	char base[] = "tiny", value[] = "relative/path";
	struct err err = {0};

	(void)state;
	assert_int_equal(base_check(&(struct spec){.base = base,
						   .base_kind = SPEC_BASE_TINY,
						   .base_value = base,
						   .package_count = 1},
				    &err),
			 -EINVAL);
	assert_string_equal(err.code, "no-packages");
	assert_true(err.mend[0] != '\0');
	assert_int_equal(base_check(&(struct spec){.base = value,
						   .base_kind = SPEC_BASE_TAR,
						   .base_value = value},
				    &err),
			 -EINVAL);
	assert_string_equal(err.code, "relative-path");
	assert_int_equal(base_check(&(struct spec){.base = base,
						   .base_kind = SPEC_BASE_DEBIAN,
						   .base_value = base,
						   .package_count = 1},
				    NULL),
			 0);
}

static void a_missing_base_is_named(void **state)
{
	static const char *const boxfiles[] = {"base: tar:/no/such/base.tar\n",
					       "base: dir:/no/such/folder\n", "base: tar:/dev\n",
					       "base: dir:/dev/null\n"};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(boxfiles); i++) {
		_cleanup_(spec_freep) struct spec *spec = parse_spec(boxfiles[i]);
		struct base_input input;
		struct err err = {0};

		assert_true(base_open(spec, -EBADF, &input, &err) < 0);
		base_close(&input);
		assert_string_equal(err.code, "no-base");
		assert_non_null(strstr(err.text, spec->base_value));
		assert_true(err.mend[0] != '\0');
	}
}

/* What on_line has seen. */
struct lines {
	char text[4096];
};

static void on_line(void *data, const struct task *task, const char *line)
{
	struct lines *lines = data;
	size_t length = strlen(lines->text);

	(void)task;
	snprintf(lines->text + length, sizeof(lines->text) - length, "%s|", line);
}

static int start_sh(const char *script, int stdout_fd, struct task *task)
{
	const char *argv[] = {"/bin/sh", "-c", script, NULL};

	return task_start(
		&(struct task_options){.name = "sh", .argv = argv, .stdout_fd = stdout_fd}, task,
		NULL);
}

static int run_sh(const char *script, struct lines *lines, struct err *err)
{
	struct task task;
	struct task_watch watch = {.signal_fd = -EBADF, .line = on_line, .data = lines};

	assert_int_equal(start_sh(script, -EBADF, &task), 0);
	return tasks_wait(&task, 1, &watch, err);
}

static void tasks_tell_what_they_said(void **state)
{
	struct lines lines = {0};
	struct err err = {0};

	(void)state;
	assert_int_equal(
		run_sh("echo one; echo two >&2; printf '\\n\\n three\\033[2J'", &lines, &err), 0);
	assert_string_equal(lines.text, "one|two| three\\e[2J|");
	assert_string_equal(err.text, "");
}

static void a_task_that_fails(void **state)
{
	struct lines lines = {0};
	struct err err = {0};

	(void)state;
	assert_int_equal(run_sh("echo 'sh: the reason'; echo 'the mend'; exit 3", &lines, &err),
			 -EIO);
	assert_string_equal(err.code, "build-failed");
	assert_string_equal(err.text, "sh ended with 3: the reason");
	assert_string_equal(err.mend, "the mend");

	assert_int_equal(run_sh("echo 'E: it broke'; echo 'I: bye'; exit 1", &lines, &err), -EIO);
	assert_string_equal(err.text, "sh ended with 1: E: it broke");
	assert_string_equal(err.mend, "");

	assert_int_equal(run_sh("echo 'E: why'; echo 'E: so this failed'; exit 1", &lines, &err),
			 -EIO);
	assert_string_equal(err.text, "sh ended with 1: E: why");

	assert_int_equal(run_sh("echo 'tar: x: No space left on device'; exit 1", &lines, &err),
			 -ENOSPC);
	assert_string_equal(err.code, "disk-full");
	assert_true(err.mend[0] != '\0');
}

static void one_that_fails_ends_the_other(void **state)
{
	struct task tasks[2];
	struct task_watch watch = {.signal_fd = -EBADF};
	struct err err = {0};
	uint64_t began = clock_monotonic_ns();

	(void)state;
	assert_int_equal(start_sh("sleep 60", -EBADF, &tasks[0]), 0);
	assert_int_equal(start_sh("exit 4", -EBADF, &tasks[1]), 0);
	assert_int_equal(tasks_wait(tasks, 2, &watch, &err), -EIO);
	assert_string_equal(err.text, "sh ended with 4");
	assert_true(clock_monotonic_ns() - began < 5000000000u);
}

static void a_child_that_keeps_the_output_open_is_not_waited_for(void **state)
{
	struct lines lines = {0};
	uint64_t began = clock_monotonic_ns();

	(void)state;
	assert_int_equal(run_sh("(exec sleep 8) & echo done", &lines, NULL), 0);
	assert_string_equal(lines.text, "done|");
	assert_true(clock_monotonic_ns() - began < 5000000000u);
}

static void a_signal_ends_all(void **state)
{
	struct task task;
	struct task_watch watch = {0};
	struct err err = {0};
	sigset_t signals, before;
	char path[64];

	(void)state;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, &before);
	watch.signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	/* Its own child gets the signal too, or sleep would be left. */
	assert_int_equal(start_sh("sleep 61 & wait", -EBADF, &task), 0);
	snprintf(path, sizeof(path), "/proc/%d", (int)task.pid);
	kill(getpid(), SIGTERM);
	assert_int_equal(tasks_wait(&task, 1, &watch, &err), -EINTR);
	assert_string_equal(err.code, "terminated");
	assert_int_equal(access(path, F_OK), -1);
	close(watch.signal_fd);
	sigprocmask(SIG_SETMASK, &before, NULL);
}

static void proofs_survive_a_file(void **state)
{
	struct proof proof = {.guest_release = "6.1.0-1-cloud-amd64",
			      .guest_version = "#1 SMP \"quoted\"",
			      .guest_boot_id = "a",
			      .host_release = "h",
			      .host_version = "v",
			      .host_boot_id = "b",
			      .kernel_digest = "1",
			      .initramfs_digest = "2",
			      .guest_digest = "3",
			      .image_digest = "4",
			      .monitor_digest = "5",
			      .taken_ns = 1234567890123456789u};
	struct proof back;
	char directory[] = "/tmp/box-test-XXXXXX";
	_cleanup_close_ int fd = -EBADF;
	struct err err = {0};

	(void)state;
	assert_non_null(mkdtemp(directory));
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(proof_write(fd, "proof.json", &proof, NULL), 0);
	assert_int_equal(proof_read(fd, "proof.json", &back, NULL), 0);
	assert_memory_equal(&proof, &back, sizeof(proof));
	make_file(directory, "other.json", "{\"taken_ns\": 1}");
	assert_int_equal(proof_read(fd, "other.json", &back, &err), -EBADMSG);
	assert_int_equal(proof_read(fd, "none.json", &back, &err), -ENOENT);
	assert_int_equal(remove_tree_at(AT_FDCWD, directory), 0);
}

/* The digest of a disk is that of its contents, wherever the file has holes. */
static void digests_of_disks(void **state)
{
	char path[] = "/tmp/box-test-XXXXXX";
	_cleanup_close_ int fd = mkstemp(path);
	struct proof first = {0}, second = {0};
	char *zeros = calloc(1, 1 << 20);

	(void)state;
	assert_true(fd >= 0 && zeros);
	assert_int_equal(ftruncate(fd, 8 << 20), 0);
	assert_int_equal(pwrite(fd, "x", 1, 5 << 20), 1);
	assert_int_equal(proof_add_image(AT_FDCWD, path, &first, NULL), 0);
	assert_int_equal(pwrite(fd, zeros, 1 << 20, 1 << 20), 1 << 20);
	assert_int_equal(proof_add_image(AT_FDCWD, path, &second, NULL), 0);
	assert_string_equal(first.image_digest, second.image_digest);
	assert_int_equal(pwrite(fd, "x", 1, (2 << 20) + 7), 1);
	assert_int_equal(proof_add_image(AT_FDCWD, path, &second, NULL), 0);
	assert_string_not_equal(first.image_digest, second.image_digest);
	free(zeros);
	unlink(path);
}

static void scripts_are_shell(void **state)
{
	static const char *const scripts[] = {script_add_user, script_write_file,
					      script_drop_setuid};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(scripts); i++) {
		const char *argv[] = {"/bin/sh", "-n", "-c", scripts[i], NULL};
		struct task task;

		assert_int_equal(task_start(&(struct task_options){.name = "sh",
								   .argv = argv,
								   .stdout_fd = -EBADF},
					    &task, NULL),
				 0);
		assert_int_equal(
			tasks_wait(&task, 1, &(struct task_watch){.signal_fd = -EBADF}, NULL), 0);
	}
}

static void states(void **state)
{
	char directory[] = "/tmp/box-test-XXXXXX";
	_cleanup_(spec_freep) struct spec *spec = parse_spec("base: tiny\n");
	_cleanup_(spec_freep) struct spec *other = parse_spec("base: tiny\nrun: [x]\n");
	_cleanup_free_ char *spec_key = NULL;
	_cleanup_close_ int fd = -EBADF;
	_cleanup_close_ int lock_fd = -EBADF;
	_cleanup_close_ int up_fd = -EBADF;
	char key[4096];

	(void)state;
	assert_non_null(mkdtemp(directory));
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(client_state(fd, spec), CLIENT_STATE_NOT_BUILT);
	assert_int_equal(mkdirat(fd, "image", 0700), 0);
	assert_int_equal(spec_image_key(spec, &spec_key), 0);
	snprintf(key, sizeof(key), "box=%s\nbase.x=y\n%s", BOX_VERSION, spec_key);
	make_file(directory, "image/key", key);
	assert_int_equal(client_state(fd, spec), CLIENT_STATE_BUILT);
	assert_int_equal(client_state(fd, other), CLIENT_STATE_STALE);
	snprintf(key, sizeof(key), "box=0.0.0\nbase.x=y\n%s", spec_key);
	make_file(directory, "image/key", key);
	assert_int_equal(client_state(fd, spec), CLIENT_STATE_STALE);
	lock_fd = store_lock_live(fd, false, false, NULL);
	assert_true(lock_fd >= 0);
	assert_int_equal(client_state(fd, spec), CLIENT_STATE_RUNNING);
	up_fd = store_lock_up(fd, NULL);
	assert_true(up_fd >= 0);
	assert_int_equal(client_state(fd, spec), CLIENT_STATE_UP);
	close_fd(&up_fd);
	assert_int_equal(client_state(fd, spec), CLIENT_STATE_RUNNING);
	assert_int_equal(remove_tree_at(AT_FDCWD, directory), 0);
}

/* Sockets of killed keepers go, those of machines that live do not. */
static void stale_sockets(void **state)
{
	char home[] = "/tmp/box-test-XXXXXX";
	_cleanup_(store_close) struct store store = {.home_fd = -EBADF};
	_cleanup_close_ int sandbox_fd = -EBADF;
	_cleanup_close_ int run_fd = -EBADF;
	_cleanup_close_ int up_fd = -EBADF;
	_cleanup_close_ int listen_fd = -EBADF;

	(void)state;
	assert_non_null(mkdtemp(home));
	setenv("BOX_HOME", home, 1);
	assert_int_equal(store_open(true, &store, NULL), 0);
	assert_int_equal(store_create(&store, "a", "", 0, NULL), 0);
	sandbox_fd = store_open_sandbox(&store, "a", NULL);
	run_fd = store_open_run(&store, "a", true, NULL);
	listen_fd = ipc_listen_at(run_fd, STORE_UP_SOCKET);
	up_fd = store_lock_up(sandbox_fd, NULL);
	assert_true(listen_fd >= 0 && up_fd >= 0);
	assert_int_equal(client_stale_sockets(&store, "a", sandbox_fd, true), 0);
	/* The keeper has the lock and does not listen yet: what is there is its own to replace. */
	close_fd(&listen_fd);
	assert_int_equal(client_stale_sockets(&store, "a", sandbox_fd, true), 0);
	close_fd(&up_fd);
	assert_int_equal(client_stale_sockets(&store, "a", sandbox_fd, false), 1);
	assert_int_equal(faccessat(run_fd, STORE_UP_SOCKET, F_OK, 0), 0);
	assert_int_equal(client_stale_sockets(&store, "a", sandbox_fd, true), 1);
	assert_int_equal(client_stale_sockets(&store, "a", sandbox_fd, true), 0);
	assert_int_equal(faccessat(store.home_fd, "run/a", F_OK, 0), -1);
	assert_int_equal(remove_tree_at(AT_FDCWD, home), 0);
}

/* Looking must not make a start fail, and a machine that is up must. */
static void looks_are_not_in_the_way(void **state)
{
	char directory[] = "/tmp/box-test-XXXXXX";
	_cleanup_close_ int fd = -EBADF;
	_cleanup_close_ int up_fd = -EBADF;
	_cleanup_close_ int look_fd = -EBADF;
	struct err err = {0};
	pid_t looker;

	(void)state;
	assert_non_null(mkdtemp(directory));
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_false(store_is_up(fd));
	look_fd = store_lock_down(fd);
	assert_true(look_fd >= 0);
	assert_false(store_is_up(fd));
	looker = fork();
	if (looker == 0) {
		/* The last to hold it, for a moment. */
		usleep(50000);
		_exit(0);
	}
	close_fd(&look_fd);
	up_fd = store_lock_up(fd, &err);
	assert_true(up_fd >= 0);
	assert_true(store_is_up(fd));
	assert_int_equal(store_lock_down(fd), -EAGAIN);
	assert_int_equal(store_lock_up(fd, &err), -EAGAIN);
	assert_string_equal(err.code, "already-up");
	assert_int_equal(waitpid(looker, NULL, 0), looker);
	assert_int_equal(remove_tree_at(AT_FDCWD, directory), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mirror_of_one_line_sources),
		cmocka_unit_test(mirror_of_deb822_sources),
		cmocka_unit_test(mirror_for_another_suite),
		cmocka_unit_test(mirrors_that_are_none),
		cmocka_unit_test(mirror_urls),
		cmocka_unit_test(mirror_from_the_environment),
		cmocka_unit_test(image_keys),
		cmocka_unit_test(mirror_rules),
		cmocka_unit_test(keys_in_files),
		cmocka_unit_test(bases_that_cannot_be),
		cmocka_unit_test(a_missing_base_is_named),
		cmocka_unit_test(tasks_tell_what_they_said),
		cmocka_unit_test(a_task_that_fails),
		cmocka_unit_test(one_that_fails_ends_the_other),
		cmocka_unit_test(a_child_that_keeps_the_output_open_is_not_waited_for),
		cmocka_unit_test(a_signal_ends_all),
		cmocka_unit_test(proofs_survive_a_file),
		cmocka_unit_test(digests_of_disks),
		cmocka_unit_test(scripts_are_shell),
		cmocka_unit_test(states),
		cmocka_unit_test(stale_sockets),
		cmocka_unit_test(looks_are_not_in_the_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
