#include "client/copy_receive.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/program.h"
#include "base/text.h"
#include "client/client.h"
#include "client/task.h"

/* Descriptor number of the directory inside the jail. */
#define TARGET_FD 3
/* The names of ten million entries, and what is to become of ten million directories. */
#define ADDRESS_SPACE ((uint64_t)4 << 30)
#define CGROUP_MEMORY ((uint64_t)4 << 30)
/* The stream, messages, the directory, and a few directories and files that are being made. */
#define OPEN_FILES 16
/* One, and the count is that of the user's other processes as well where IDs are shared. */
#define CGROUP_PROCESSES 4
void copy_plain_line(const char *message, char *ret_line, size_t size)
{
	char quoted[COPY_MESSAGE_MAX * TEXT_QUOTE_GROWTH + 1];
	size_t length = 0;

	text_quote(message, MIN(strcspn(message, "\n"), (size_t)COPY_MESSAGE_MAX), quoted,
		   sizeof(quoted));
	for (const char *at = quoted; *at && length + 1 < size; at++) {
		if (at[0] == '\\' && (at[1] == '"' || at[1] == '\\')) {
			at++;
		}
		ret_line[length++] = *at;
	}
	ret_line[length] = '\0';
}

int copy_open_messages(void)
{
	_cleanup_close_ int fd = memfd_create("messages", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, COPY_MESSAGE_MAX) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) < 0) {
		return -errno;
	}
	return TAKE_FD(fd);
}

void copy_read_message(int messages_fd, char *ret_line, size_t size)
{
	char message[COPY_MESSAGE_MAX + 1] = "";

	if (pread(messages_fd, message, COPY_MESSAGE_MAX, 0) < 0) {
		message[0] = '\0';
	}
	copy_plain_line(message, ret_line, size);
}

const char *copy_exit_words(const struct client_result *result)
{
	return result->exit.kind == WIRE_EXITED	    ? "ended with"
	       : result->exit.kind == WIRE_SIGNALED ? "was killed by signal"
						    : "could not be started: errno";
}

static int describe(struct jail *jail, const struct copy_target *target, int stream_fd,
		    struct err *err)
{
	char program[PATH_MAX];
	int rc = program_path("box-copy", program, sizeof(program));

	if (rc < 0) {
		return err_context(err, rc, "box-copy");
	}
	jail->name = "copy";
	jail->policy = &jail_policy_copy;
	jail->host_uid = geteuid();
	jail->host_gid = getegid();
	jail->may_be_root = true;
	jail->address_space_bytes = ADDRESS_SPACE;
	jail->cgroup_memory_bytes = CGROUP_MEMORY;
	jail->cgroup_pids = CGROUP_PROCESSES;
	jail->open_files = OPEN_FILES;
	rc = jail_add_program(jail, program, err);
	if (rc < 0) {
		return rc;
	}
	jail->program = jail->binds[0].inside_path;
	rc = jail_add_fd(jail, stream_fd, STDIN_FILENO, err);
	return rc == 0 ? jail_add_tree(jail, target->dir_fd, TARGET_FD, err) : rc;
}

int copy_receive_start(const struct copy_target *target, int stream_fd,
		       struct copy_receiver *ret_receiver, struct err *err)
{
	const char *verb = !target->name[0] ? "into" : target->contents ? "contents" : "name";
	char number[16];
	const char *const argv[] = {"box-copy", verb, number, target->name[0] ? target->name : NULL,
				    NULL};
	struct copy_receiver receiver = COPY_RECEIVER_NONE;
	struct jail jail = {.argv = argv};
	int rc;

	snprintf(number, sizeof(number), "%d", TARGET_FD);
	rc = describe(&jail, target, stream_fd, err);
	if (rc < 0) {
		jail_clear(&jail);
		return rc;
	}
	rc = task_spawn_jail(&jail, &receiver.process, &receiver.messages_fd, err);
	if (rc < 0) {
		return rc;
	}
	receiver.running = true;
	*ret_receiver = receiver;
	return 0;
}

/* Keeps the beginning of what it says. Returns false at the end. */
static bool read_message(struct copy_receiver *receiver, char *message, size_t *filled)
{
	char bytes[4096];
	ssize_t got = read(receiver->messages_fd, bytes, sizeof(bytes));
	size_t room = COPY_MESSAGE_MAX - 1 - *filled;

	if (got < 0 && errno == EINTR) {
		return true;
	}
	if (got <= 0) {
		return false;
	}
	memcpy(message + *filled, bytes, MIN((size_t)got, room));
	*filled += MIN((size_t)got, room);
	message[*filled] = '\0';
	return true;
}

/* Its first line without its name. It has read what a guest wrote, so nothing in it is trusted. */
static int explain(int status, char *message, struct err *err)
{
	static const char prefix[] = "box-copy: ";
	char plain[COPY_MESSAGE_MAX];
	bool full;

	if (strncmp(message, prefix, strlen(prefix)) == 0) {
		message += strlen(prefix);
	}
	copy_plain_line(message, plain, sizeof(plain));
	if (WIFSIGNALED(status)) {
		return err_set(err, -EIO, "copy-failed", "box-copy was killed by signal %d",
			       WTERMSIG(status));
	}
	if (!plain[0]) {
		return err_set(err, -EIO, "copy-failed", "box-copy ended with %d",
			       WEXITSTATUS(status));
	}
	full = strstr(plain, strerror(ENOSPC)) || strstr(plain, strerror(EDQUOT));
	err_set(err, full ? -ENOSPC : -EIO, full ? "disk-full" : "copy-failed", "%s", plain);
	if (full) {
		err_mend(err, "free some space; what was copied whole by then stays");
	} else if (strncmp(plain, "archive: ", 9) == 0) {
		err_mend(err, "nothing of it can be written here; look at it inside the sandbox");
	} else if (geteuid() == 0 && strstr(plain, strerror(EACCES))) {
		err_mend(err, "what writes it has no rights beyond files of root's own: copy to "
			      "such a directory, or run box as the owner of that one");
	} else {
		err_mend(err, "look at who may write there, and at what is there already");
	}
	return full ? -ENOSPC : -EIO;
}

int copy_receive_end(struct copy_receiver *receiver, int signal_fd, struct err *err)
{
	char message[COPY_MESSAGE_MAX] = "";
	bool ended = false, killed = false;
	size_t filled = 0;
	int status;

	if (!receiver->running) {
		return 0;
	}
	while (receiver->messages_fd >= 0 || !ended) {
		struct pollfd waits[3] = {
			{.fd = receiver->messages_fd, .events = POLLIN},
			{.fd = ended ? -1 : receiver->process.pidfd, .events = POLLIN},
			{.fd = killed ? -1 : signal_fd, .events = POLLIN},
		};

		if (poll(waits, ARRAY_SIZE(waits), -1) < 0 && errno != EINTR) {
			break;
		}
		if (waits[0].revents && !read_message(receiver, message, &filled)) {
			close_fd(&receiver->messages_fd);
		}
		ended = ended || waits[1].revents;
		if (waits[2].revents) {
			killed = true;
			break;
		}
	}
	close_fd(&receiver->messages_fd);
	status = jail_end(&receiver->process);
	close_fd(&receiver->process.pidfd);
	receiver->running = false;
	if (killed) {
		return err_set(err, -EINTR, "interrupted", "interrupted");
	}
	return status == 0 ? 0 : explain(status, message, err);
}
