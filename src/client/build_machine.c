/*
 * Theory of operation. Everything that a Boxfile says about the inside of an image is done inside a
 * machine: the host never runs a line of it and never looks into the result. One machine writes to
 * the staged image: it gets the user `agent`, then the `run` lines, then the blueprint in
 * cloud-init's order (write_files, users, runcmd; a file with an owner waits for the users, as
 * `defer: true` does there). A second machine boots the finished image as every later one will,
 * proves its kernel, runs the `warmup` lines and becomes the snapshot.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/io.h"
#include "base/text.h"
#include "client/build.h"
#include "client/client.h"
#include "client/mirror.h"
#include "client/scripts.h"
#include "engine/fingerprint.h"
#include "engine/proof.h"
#include "policy/network.h"

#define AGENT_NAME "agent"
#define AGENT_UID 1000u
/* How much of a line is repeated in an error. */
#define LINE_SHOWN_MAX 60

/* A thread that carries a command's output into the log while client_run waits. */
struct pump {
	struct build *build;
	int read_fd;
};

static void *pump_output(void *data)
{
	struct pump *pump = data;
	_cleanup_fclose_ FILE *in = fdopen(pump->read_fd, "r");
	_cleanup_free_ char *line = NULL;
	size_t capacity = 0;
	ssize_t length;

	if (!in) {
		close(pump->read_fd);
		return NULL;
	}
	while ((length = getline(&line, &capacity, in)) > 0) {
		_cleanup_free_ char *quoted = NULL;
		size_t size;

		while (length > 0 && strchr("\r\n", line[length - 1])) {
			length--;
		}
		size = (size_t)length * TEXT_QUOTE_GROWTH + 1;
		quoted = malloc(size);
		if (quoted) {
			text_quote(line, (size_t)length, quoted, size);
			build_detail(pump->build, quoted);
		}
	}
	return NULL;
}

/* Signals are for the main thread, which waits for them. */
static int start_pump(struct pump *pump, pthread_t *ret_thread)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(ret_thread, NULL, pump_output, pump);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

static int judge_command(const struct client_result *result, const char *what, struct err *err)
{
	int code = client_exit_code(result);

	if (code == EXIT_SIGNAL_BASE + SIGTERM || code == EXIT_SIGNAL_BASE + SIGHUP) {
		return task_interrupted(code - EXIT_SIGNAL_BASE, err);
	}
	if (result->interrupted || code == EXIT_SIGNAL_BASE + SIGINT) {
		return task_interrupted(SIGINT, err);
	}
	if (result->reason[0]) {
		return err_set(err, -EIO, "line-failed", "%s: %s", what, result->reason);
	}
	if (code == 0) {
		return 0;
	}
	return err_set(err, -EIO, "line-failed", "%s failed with exit code %d", what, code);
}

int build_command(struct build *build, struct client_machine *machine,
		  const struct client_command *command, const char *what, struct err *err)
{
	struct client_command logged = *command;
	struct client_result result = {0};
	_cleanup_close_ int write_end = -EBADF;
	struct pump pump = {.build = build};
	pthread_t thread;
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC) < 0) {
		return err_context(err, -errno, "%s", what);
	}
	pump.read_fd = ends[0];
	write_end = ends[1];
	rc = start_pump(&pump, &thread);
	if (rc < 0) {
		close(ends[0]);
		return err_context(err, rc, "%s", what);
	}
	logged.stdout_fd = write_end;
	logged.stderr_fd = write_end;
	logged.forward_signals = true;
	rc = client_run(machine, &logged, &result, err);
	close_fd(&write_end);
	pthread_join(thread, NULL);
	if (rc < 0) {
		return rc == -EINTR ? rc : err_context(err, rc, "%s", what);
	}
	return judge_command(&result, what, err);
}

/* One of our own scripts with arguments, as root. */
static int run_script(struct build *build, struct client_machine *machine, const char *const *argv,
		      int stdin_fd, const char *what, struct err *err)
{
	size_t argc = 0;

	while (argv[argc]) {
		argc++;
	}
	return build_command(build, machine,
			     &(struct client_command){.argv = argv,
						      .argc = argc,
						      .user = "root",
						      .directory = "/",
						      .stdin_fd = stdin_fd},
			     what, err);
}

/* The Boxfile's own lines: `run`, `runcmd`, `warmup`. */
static int run_lines(struct build *build, struct client_machine *machine, const char *key,
		     char *const *lines, size_t count, struct err *err)
{
	const struct spec *spec = build->spec;
	bool warmup = strcmp(key, "warmup") == 0;

	for (size_t i = 0; i < count; i++) {
		const char *argv[] = {"/bin/sh", "-c", lines[i]};
		char shown[LINE_SHOWN_MAX * TEXT_QUOTE_GROWTH + 1];
		char what[sizeof(shown) + 64];
		size_t length = strlen(lines[i]);
		int rc;

		text_quote(lines[i], MIN(length, (size_t)LINE_SHOWN_MAX), shown, sizeof(shown));
		snprintf(what, sizeof(what), "%s line %zu (\"%s%s\")", key, i + 1, shown,
			 length > LINE_SHOWN_MAX ? "…" : "");
		build_step(build, "machine: %s", what);
		rc = build_command(build, machine,
				   &(struct client_command){
					   .argv = argv,
					   .argc = ARRAY_SIZE(argv),
					   .env = (const char *const *)spec->env,
					   .env_count = spec->env_count,
					   .user = warmup ? spec->user : "root",
					   .directory = warmup ? "" : "/",
					   .stdin_fd = -EBADF,
				   },
				   what, err);
		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

static char *join_groups(const struct spec_user *user)
{
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);

	if (!out) {
		return NULL;
	}
	for (size_t i = 0; i < user->group_count; i++) {
		fprintf(out, "%s ", user->groups[i]);
	}
	return fclose(out) == 0 ? TAKE_PTR(text) : NULL;
}

static int add_user(struct build *build, struct client_machine *machine,
		    const struct spec_user *user, struct err *err)
{
	_cleanup_free_ char *groups = join_groups(user);
	char uid[16], what[SPEC_NAME_MAX + 128];
	const char *argv[] = {"/bin/sh",
			      "-c",
			      script_add_user,
			      "box",
			      user->name,
			      uid,
			      user->shell ? user->shell : "",
			      groups,
			      NULL};

	if (!groups) {
		return err_context(err, -ENOMEM, "users");
	}
	snprintf(uid, sizeof(uid), "%u", user->uid);
	snprintf(what, sizeof(what), "making the user %s", user->name);
	build_step(build, "machine: %s", what);
	return run_script(build, machine, argv, -EBADF, what, err);
}

static bool names_user(const struct spec *spec, const char *name)
{
	for (size_t i = 0; i < spec->user_count; i++) {
		if (strcmp(spec->users[i].name, name) == 0) {
			return true;
		}
	}
	return false;
}

static int write_spec_file(struct build *build, struct client_machine *machine,
			   const struct spec_file *file, struct err *err)
{
	_cleanup_close_ int fd = ipc_memory_file("file", file->content, strlen(file->content));
	char mode[16], what[512];
	const char *argv[] = {"/bin/sh",
			      "-c",
			      script_write_file,
			      "box",
			      file->path,
			      mode,
			      file->owner ? file->owner : "",
			      NULL};

	snprintf(mode, sizeof(mode), "%04o", file->mode & 07777u);
	snprintf(what, sizeof(what), "writing the file %s", file->path);
	if (fd < 0) {
		return err_context(err, fd, "%s", what);
	}
	build_step(build, "machine: %s", what);
	return run_script(build, machine, argv, fd, what, err);
}

/* Files without an owner, or those with one. */
static int write_spec_files(struct build *build, struct client_machine *machine, bool owned,
			    struct err *err)
{
	for (size_t i = 0; i < build->spec->file_count; i++) {
		const struct spec_file *file = &build->spec->files[i];
		int rc = 0;

		if ((file->owner != NULL) == owned) {
			rc = write_spec_file(build, machine, file, err);
		}
		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

static int add_users(struct build *build, struct client_machine *machine, struct err *err)
{
	for (size_t i = 0; i < build->spec->user_count; i++) {
		int rc = add_user(build, machine, &build->spec->users[i], err);

		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

/* The user `agent`, when commands run as it and the blueprint does not make it. */
static int add_agent(struct build *build, struct client_machine *machine, struct err *err)
{
	char name[] = AGENT_NAME;
	struct spec_user agent = {.name = name, .uid = AGENT_UID};

	if (strcmp(build->spec->user, AGENT_NAME) != 0 || names_user(build->spec, AGENT_NAME)) {
		return 0;
	}
	return add_user(build, machine, &agent, err);
}

/* No program in the agent's path may change its user. Last, when everything is installed. */
static int confine_agent(struct build *build, struct client_machine *machine, struct err *err)
{
	const char *argv[] = {"/bin/sh", "-c", script_drop_setuid, NULL};

	if (strcmp(build->spec->user, AGENT_NAME) != 0) {
		return 0;
	}
	build_step(build, "machine: taking setuid programs from the agent's path");
	return run_script(build, machine, argv, -EBADF, "taking setuid programs away", err);
}

static void on_notice(void *data, const char *text)
{
	build_detail(data, text);
}

static int start_machine(struct build *build, enum ipc_start_mode mode,
			 struct client_machine **ret_machine, struct err *err)
{
	struct client_start_options options = {
		.mode = mode,
		.data = CLIENT_DATA_NONE,
		.stage = build->stage,
		.force_boot = true,
		.notice = on_notice,
		.notice_data = build,
	};

	return client_start(build->store, build->name, &options, ret_machine, err);
}

static int customize(struct build *build, struct client_machine *machine, struct err *err)
{
	const struct spec *spec = build->spec;
	int rc = add_agent(build, machine, err);

	if (rc == 0) {
		rc = run_lines(build, machine, "run", spec->run, spec->run_count, err);
	}
	if (rc == 0) {
		rc = write_spec_files(build, machine, false, err);
	}
	if (rc == 0) {
		rc = add_users(build, machine, err);
	}
	if (rc == 0) {
		rc = write_spec_files(build, machine, true, err);
	}
	if (rc == 0) {
		rc = run_lines(build, machine, "runcmd", spec->runcmd, spec->runcmd_count, err);
	}
	if (rc == 0) {
		rc = confine_agent(build, machine, err);
	}
	return rc;
}

/* Opens an address of the mirror that is not public. */
static int reach_mirror(struct client_machine *machine, const struct policy_address *address,
			struct err *err)
{
	const struct policy_special *special = policy_address_special(address);
	char text[POLICY_ADDRESS_TEXT];

	if (!special || !special->reachable) {
		return 0;
	}
	policy_address_format(address, text);
	return client_net_rule(machine, IPC_RULE_REACH, text, err);
}

/* The same for what its name leads to on this host now. One that leads nowhere is told by the line
 * that needs it. */
static int reach_mirror_name(struct client_machine *machine, const char *name, struct err *err)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	int rc = 0;

	if (getaddrinfo(name, NULL, &hints, &found) != 0) {
		return 0;
	}
	for (const struct addrinfo *entry = found; entry && rc == 0; entry = entry->ai_next) {
		struct policy_address address;
		char text[POLICY_ADDRESS_TEXT];

		if (getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof(text), NULL, 0,
				NI_NUMERICHOST) == 0 &&
		    policy_address_parse(text, &address) == 0) {
			rc = reach_mirror(machine, &address, err);
		}
	}
	freeaddrinfo(found);
	return rc;
}

/* A mirror may lie in the network of whoever set it up, and the host has just taken the base from
 * there: its own addresses are reached, and no others that are not public. */
static int allow_mirror(struct client_machine *machine, const char *text, struct err *err)
{
	struct policy_rule rule;
	int rc = policy_rule_parse(POLICY_ALLOW, text, &rule, err);

	if (rc == 0) {
		rc = client_net_rule(machine, IPC_RULE_ALLOW, text, err);
	}
	if (rc < 0) {
		return rc;
	}
	return rule.subject == POLICY_RANGE ? reach_mirror(machine, &rule.range.address, err)
					    : reach_mirror_name(machine, rule.name, err);
}

/* Lines of a build may install what the base has: they reach where it comes from. */
static int allow_source(struct build *build, struct client_machine *machine, struct err *err)
{
	const struct spec *spec = build->spec;
	char rules[2][MIRROR_RULE_MAX] = {"", ""};
	struct mirror mirror;
	int rc;

	if (spec->build_network.kind != SPEC_NETWORK_LIST || spec->base_kind != SPEC_BASE_DEBIAN) {
		return 0;
	}
	rc = mirror_find(spec->base_value, &mirror, err);
	if (rc == 0 && mirror_rule(mirror.uri, rules[0])) {
		rc = allow_mirror(machine, rules[0], err);
	}
	if (rc == 0 && mirror.security_uri[0] && mirror_rule(mirror.security_uri, rules[1]) &&
	    strcmp(rules[0], rules[1]) != 0) {
		rc = allow_mirror(machine, rules[1], err);
	}
	return rc < 0 ? err_context(err, rc, "build_network: the mirror") : 0;
}

int build_customize(struct build *build, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	const struct spec *spec = build->spec;
	int rc;

	/* A root that can never be written must have got its mount points before. */
	if (spec->run_count + spec->runcmd_count + spec->file_count + spec->user_count == 0 &&
	    strcmp(spec->user, AGENT_NAME) != 0 && !spec->readonly) {
		return 0;
	}
	build_step(build, "machine: starting, to run the Boxfile's lines inside");
	rc = start_machine(build, IPC_START_BUILD, &machine, err);
	if (rc == 0) {
		rc = allow_source(build, machine, err);
	}
	if (rc == 0) {
		rc = customize(build, machine, err);
	}
	if (rc < 0) {
		return rc;
	}
	build_step(build, "machine: stopping");
	return client_stop(machine, err);
}

static void report_proof(struct build *build, const struct proof *proof)
{
	struct client_build_result *result = build->result;

	snprintf(result->guest_kernel, sizeof(result->guest_kernel), "%s %s", proof->guest_release,
		 proof->guest_version);
	snprintf(result->host_kernel, sizeof(result->host_kernel), "%s %s", proof->host_release,
		 proof->host_version);
	build_step(build, "proof: the machine runs its own kernel %s", proof->guest_release);
}

/* What the snapshot stands on, beside it: a run that finds another text boots instead. */
static int write_snapshot_key(struct build *build, bool hardware, struct err *err)
{
	_cleanup_free_ char *key = NULL;
	int rc = fingerprint_snapshot(build->spec, build->image_key, hardware, &build->paths, &key,
				      err);

	if (rc < 0) {
		return rc;
	}
	rc = write_file_at(build->stage_fd, "snapshot/key", key, strlen(key), 0600);
	return rc < 0 ? err_context(err, rc, "cannot write the snapshot's key") : 0;
}

static uint64_t used_bytes(int dir_fd, const char *path)
{
	struct stat status;

	return fstatat(dir_fd, path, &status, 0) < 0 ? 0 : (uint64_t)status.st_blocks * 512;
}

/*
 * What every command's start reads, from the user's entry to the shell, is then in the snapshot's
 * page cache: a first command that finds it there begins in two thirds of the time. How it ends
 * does not matter, an image may have no shell.
 */
static int warm_page_cache(const struct build *build, struct client_machine *machine,
			   struct err *err)
{
	static const char *const argv[] = {"sh", "-c", "exec true"};
	struct client_result result;

	return client_run(machine,
			  &(struct client_command){
				  .argv = argv,
				  .argc = ARRAY_SIZE(argv),
				  .user = build->spec->user,
				  .directory = "",
				  .stdin_fd = -EBADF,
				  .stdout_fd = -EBADF,
				  .stderr_fd = -EBADF,
			  },
			  &result, err);
}

int build_snapshot(struct build *build, struct err *err)
{
	_cleanup_(client_machine_freep) struct client_machine *machine = NULL;
	const struct spec *spec = build->spec;
	struct proof proof;
	bool hardware;
	int rc;

	if (mkdirat(build->stage_fd, "snapshot", 0700) < 0) {
		return err_context(err, -errno, "cannot make a directory for the snapshot");
	}
	build_step(build, "machine: first boot");
	rc = start_machine(build, IPC_START_SNAPSHOT, &machine, err);
	if (rc < 0) {
		return rc;
	}
	hardware = client_ready(machine)->hardware != 0;
	rc = proof_take(client_ready(machine), &build->paths, &proof, err);
	if (rc < 0) {
		return rc;
	}
	report_proof(build, &proof);
	rc = warm_page_cache(build, machine, err);
	if (rc < 0) {
		return rc;
	}
	rc = run_lines(build, machine, "warmup", spec->warmup, spec->warmup_count, err);
	if (rc == 0) {
		build_step(build, "snapshot: saving the machine");
		rc = client_snapshot(machine, err);
	}
	if (rc == 0) {
		rc = proof_add_image(build->stage_fd, "image/image.ext4", &proof, err);
	}
	if (rc == 0) {
		rc = proof_write(build->stage_fd, proof_path(hardware), &proof, err);
	}
	if (rc == 0) {
		rc = write_snapshot_key(build, hardware, err);
	}
	if (rc == 0) {
		build->result->snapshot_bytes = used_bytes(build->stage_fd, "snapshot/memory") +
						used_bytes(build->stage_fd, "snapshot/devices") +
						used_bytes(build->stage_fd, "snapshot/root.qcow2");
	}
	return rc;
}
