#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/program.h"
#include "client/base.h"
#include "client/build.h"
#include "jail/jail.h"

/* Descriptor numbers inside box-image's jail. */
#define IMAGE_INPUT 3
#define IMAGE_OUTPUT 4
/* libext2fs keeps bitmaps of the whole disk and the tree's names in memory; a 1 TiB disk and ten
 * million names stay below this. */
#define IMAGE_ADDRESS_SPACE ((uint64_t)8 << 30)
#define IMAGE_CGROUP_MEMORY ((uint64_t)4 << 30)
#define IMAGE_OPEN_FILES 16
#define IMAGE_PROCESSES 8

/* What mmdebstrap says while it works, and what a person reads for it. */
static const struct {
	const char *line;
	const char *step;
} debian_steps[] = {
	{"I: running apt-get update...", "image: reading Debian's package lists"},
	{"I: downloading packages with apt...", "image: downloading packages"},
	{"I: extracting archives...", "image: unpacking the base system"},
	{"I: installing essential packages...", "image: setting up the base system"},
	{"I: installing remaining packages inside the chroot...", "image: installing packages"},
	{"I: cleaning package lists and apt cache...", "image: cleaning up"},
	{"I: creating tarball...", "image: writing the disk"},
};

static void on_line(void *data, const struct task *task, const char *line)
{
	struct build *build = data;

	(void)task;
	for (size_t i = 0; i < ARRAY_SIZE(debian_steps); i++) {
		if (strcmp(line, debian_steps[i].line) == 0) {
			build_step(build, "%s", debian_steps[i].step);
			return;
		}
	}
	build_detail(build, line);
}

int build_describe_image(struct jail *jail, struct err *err)
{
	char program[PATH_MAX];
	int rc = program_path("box-image", program, sizeof(program));

	if (rc < 0) {
		return err_context(err, rc, "box-image");
	}
	jail->name = "image";
	jail->policy = &jail_policy_image;
	jail->host_uid = geteuid() == 0 ? BUILD_UNPRIVILEGED_ID : geteuid();
	jail->host_gid = geteuid() == 0 ? BUILD_UNPRIVILEGED_ID : getegid();
	rc = jail_add_program(jail, program, err);
	if (rc < 0) {
		return rc;
	}
	/* The list of files keeps the path as long as the jail. */
	jail->program =
		jail->binds[0].inside_path ? jail->binds[0].inside_path : jail->binds[0].host_path;
	return 0;
}

static int describe_jail(struct jail *jail, int input_fd, int output_fd, struct err *err)
{
	int rc = build_describe_image(jail, err);

	jail->address_space_bytes = IMAGE_ADDRESS_SPACE;
	jail->cgroup_memory_bytes = IMAGE_CGROUP_MEMORY;
	jail->cgroup_pids = IMAGE_PROCESSES;
	jail->open_files = IMAGE_OPEN_FILES;
	jail->processes = IMAGE_PROCESSES;
	if (rc == 0 && input_fd >= 0) {
		rc = jail_add_fd(jail, input_fd, IMAGE_INPUT, err);
	}
	if (rc == 0) {
		rc = jail_add_fd(jail, output_fd, IMAGE_OUTPUT, err);
	}
	return rc;
}

/* Starts box-image; its messages come through ret_task->output_fd. */
static int start_image(const char *const *argv, int input_fd, int output_fd,
		       struct jail_process *process, struct task *ret_task, struct err *err)
{
	struct jail jail = {.argv = argv};
	int messages_fd;
	int rc = describe_jail(&jail, input_fd, output_fd, err);

	if (rc < 0) {
		jail_clear(&jail);
		return rc;
	}
	rc = task_spawn_jail(&jail, process, &messages_fd, err);
	if (rc < 0) {
		return rc;
	}
	*ret_task = (struct task){
		.name = "box-image",
		.pid = process->pid,
		.pidfd = process->pidfd,
		.output_fd = messages_fd,
		.jail = process,
	};
	return 0;
}

int build_run_image(struct build *build, const struct image_job *job, struct err *err)
{
	char size[32], input[16], output[16];
	const char *argv[8] = {"box-image", job->verb};
	struct jail_process process = {.pid = -1, .pidfd = -EBADF, .notify_fd = -EBADF};
	struct task tasks[TASKS_MAX];
	struct task_watch watch = {build->signal_fd, on_line, build};
	size_t count = 0, argc = 2;
	int rc;

	snprintf(size, sizeof(size), "%llu", (unsigned long long)job->size_bytes);
	snprintf(input, sizeof(input), "%d", IMAGE_INPUT);
	snprintf(output, sizeof(output), "%d", IMAGE_OUTPUT);
	if (job->input_fd >= 0) {
		argv[argc++] = input;
	}
	argv[argc++] = output;
	argv[argc++] = size;
	argv[argc] = NULL;
	if (job->producer && job->producer->pid > 0) {
		tasks[count++] = *job->producer;
		*job->producer = (struct task)TASK_NONE;
	}
	rc = start_image(argv, job->input_fd, job->output_fd, &process, &tasks[count], err);
	if (rc < 0) {
		if (count > 0) {
			task_end(&tasks[0]);
		}
		return rc;
	}
	count++;
	return tasks_wait(tasks, count, &watch, err);
}

int build_image(struct build *build, struct err *err)
{
	_cleanup_close_ int output_fd = -EBADF;
	struct base_input input;
	int rc;

	build_step(build, "image: opening the base %s", build->spec->base);
	if (mkdirat(build->stage_fd, "image", 0700) < 0) {
		return err_context(err, -errno, "cannot make a directory for the image");
	}
	output_fd = openat(build->stage_fd, "image/image.ext4",
			   O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (output_fd < 0) {
		return err_context(err, -errno, "cannot make the image's file");
	}
	rc = base_open(build->spec, build->stage_fd, &input, err);
	if (rc < 0) {
		base_close(&input);
		base_sweep_debian(build->stage_fd);
		return rc;
	}
	if (input.producer.pid < 0) {
		build_step(build, "image: writing the disk");
	}
	rc = build_run_image(build,
			     &(struct image_job){.verb = "tar",
						 .input_fd = input.fd,
						 .output_fd = output_fd,
						 .size_bytes = build->spec->disk_size_bytes,
						 .producer = &input.producer},
			     err);
	base_close(&input);
	base_sweep_debian(build->stage_fd);
	if (rc < 0 && rc != -EINTR) {
		base_mend_debian(err);
		return err_context(err, rc, "%s", input.label);
	}
	if (rc == 0 && fsync(output_fd) < 0) {
		rc = err_context(err, -errno, "cannot write the image");
	}
	return rc;
}
