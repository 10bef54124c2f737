#include "client/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "client/build.h"
#include "client/copy_receive.h"

#define PACK_INPUT 3
#define PACK_OUTPUT 4
/* What an archive may ask for to be unpacked: xz and zstd take up to 2 GiB for their windows. */
#define PACK_ADDRESS_SPACE ((uint64_t)4 << 30)
#define PACK_CGROUP_MEMORY ((uint64_t)3 << 30)
#define PACK_OPEN_FILES 16
#define PACK_PROCESSES 4
/* One whose other side has gone hears of it with its next write. */
#define PACK_GRACE_MS 1000

static int describe(struct jail *jail, int in_fd, int out_fd, struct err *err)
{
	int rc = build_describe_image(jail, err);

	jail->address_space_bytes = PACK_ADDRESS_SPACE;
	jail->cgroup_memory_bytes = PACK_CGROUP_MEMORY;
	jail->cgroup_pids = PACK_PROCESSES;
	jail->open_files = PACK_OPEN_FILES;
	if (rc == 0) {
		rc = jail_add_fd(jail, in_fd, PACK_INPUT, err);
	}
	return rc == 0 ? jail_add_fd(jail, out_fd, PACK_OUTPUT, err) : rc;
}

int packer_start(bool packs, int in_fd, int out_fd, struct packer *ret_packer, struct err *err)
{
	char input[16], output[16];
	const char *const argv[] = {"box-image", packs ? "pack" : "unpack", input, output, NULL};
	struct packer packer = PACKER_NONE;
	struct jail jail = {.argv = argv};
	int rc;

	snprintf(input, sizeof(input), "%d", PACK_INPUT);
	snprintf(output, sizeof(output), "%d", PACK_OUTPUT);
	rc = describe(&jail, in_fd, out_fd, err);
	if (rc < 0) {
		jail_clear(&jail);
		return rc;
	}
	rc = task_spawn_jail(&jail, &packer.process, &packer.messages_fd, err);
	if (rc < 0) {
		return rc;
	}
	packer.running = true;
	*ret_packer = packer;
	return 0;
}

/* Its first line without its name. It may have read what somebody made to hurt. */
static int explain(int status, const char *message, struct err *err)
{
	static const char prefix[] = "box-image: ";
	char plain[COPY_MESSAGE_MAX];

	if (strncmp(message, prefix, strlen(prefix)) == 0) {
		message += strlen(prefix);
	}
	copy_plain_line(message, plain, sizeof(plain));
	if (strstr(plain, strerror(EPIPE))) {
		return err_set(err, -EPIPE, "archive", "%s", plain);
	}
	if (strstr(plain, strerror(ENOSPC)) || strstr(plain, strerror(EDQUOT))) {
		err_set(err, -ENOSPC, "disk-full", "%s", plain);
		err_mend(err, "free some space and try again; nothing was changed");
		return -ENOSPC;
	}
	if (WIFSIGNALED(status)) {
		return err_set(err, -EIO, "archive", "box-image was killed by signal %d",
			       WTERMSIG(status));
	}
	err_set(err, -EBADMSG, "archive", "%s", plain[0] ? plain : "box-image failed");
	err_mend(err, "look at the archive with `tar -t`; nothing was changed");
	return -EBADMSG;
}

int packer_end(struct packer *packer, bool failed, struct err *err)
{
	struct pollfd wait = {.fd = packer->process.pidfd, .events = POLLIN};
	char message[COPY_MESSAGE_MAX] = "";
	ssize_t got;
	int status;

	if (!packer->running) {
		return 0;
	}
	/* Its one message fits into the pipe, so it never waits for us to read. */
	while (poll(&wait, 1, failed ? PACK_GRACE_MS : -1) < 0 && errno == EINTR) {
	}
	status = jail_end(&packer->process);
	got = read_full(packer->messages_fd, message, sizeof(message) - 1);
	message[MAX(got, (ssize_t)0)] = '\0';
	close_fd(&packer->messages_fd);
	close_fd(&packer->process.pidfd);
	packer->running = false;
	return status == 0 ? 0 : explain(status, message, err);
}
