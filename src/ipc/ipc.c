/*
 * Theory of operation
 *
 * In flows: packets of a SOCK_SEQPACKET socket, each with some descriptors. Out flow: whole,
 * checked messages, and descriptors that have exactly one owner. ipc_decode is the one judge of a
 * packet; it does no I/O, so that it can be fuzzed, and both directions ask it: a sender about its
 * own mistakes, a receiver about the peer's.
 *
 * What may never happen: a descriptor of a refused packet stays open, a text without its end
 * reaches the caller, or a dead peer raises SIGPIPE.
 */
#include "ipc/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/exit.h"
#include "base/io.h"

/* Clients that may wait for accept(2): far more than commands that one person starts at once. */
#define IPC_BACKLOG 128
/* A listener takes in who connects at once, unless it was stopped and its backlog is full. */
#define IPC_CONNECT_LIMIT_S 2
/* struct sockaddr_un holds 108 bytes; "/proc/self/fd/N/" takes at most 26 of them. */
#define IPC_NAME_MAX 80
/* The longest table of texts, IPC_READY's. */
#define IPC_TEXTS_MAX 6

union control_buffer {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(sizeof(int) * IPC_FDS_MAX)];
};

/* A text inside struct ipc_message; size 0 ends a list of them. */
struct text_field {
	size_t offset;
	size_t size;
};

struct type_rule {
	uint32_t type;
	size_t fds_max;
	struct text_field texts[IPC_TEXTS_MAX + 1];
};

#define TEXT(member)                                                                               \
	{                                                                                          \
		offsetof(struct ipc_message, member), sizeof(((struct ipc_message *)NULL)->member) \
	}

/* Every type there is, what it may carry, and where its texts are. */
static const struct type_rule type_rules[] = {
	{IPC_START, IPC_FDS_MAX, {TEXT(start.name), TEXT(start.stage)}},
	{IPC_EXEC, 4},
	{IPC_SIGNAL, 0},
	{IPC_WINDOW_SIZE, 0},
	{IPC_CLOSE, 0},
	{IPC_SNAPSHOT, 0},
	{IPC_SHUTDOWN, 0},
	{IPC_COPY_DATA, 0},
	{IPC_DETACH, 0},
	{IPC_ATTACH, 3, {TEXT(command.id)}},
	{IPC_KILL, 0, {TEXT(command.id)}},
	{IPC_LIST, 0},
	{IPC_REPORT, 0},
	{IPC_FREEZE_DATA, 1},
	{IPC_FORK, 1},
	{IPC_TCP, 1},
	{IPC_NET_RULE, 0, {TEXT(rule.text)}},
	{IPC_CLAIM, IPC_FDS_MAX, {TEXT(start.name), TEXT(start.stage)}},
	{IPC_READY,
	 0,
	 {TEXT(ready.engine), TEXT(ready.release), TEXT(ready.version), TEXT(ready.boot_id),
	  TEXT(ready.boot_reason), TEXT(ready.missing)}},
	{IPC_STARTED, 0, {TEXT(command.id)}},
	{IPC_EXITED, 0, {TEXT(exited.id)}},
	{IPC_NOTICE, 0, {TEXT(text)}},
	{IPC_FAILED, 0, {TEXT(failed.code), TEXT(failed.text), TEXT(failed.mend)}},
	{IPC_DOWN, 0},
	{IPC_DATA_COPY, 1},
	{IPC_GREETING, 0, {TEXT(text)}},
	{IPC_REFUSED, 0, {TEXT(failed.code), TEXT(failed.text), TEXT(failed.mend)}},
	{IPC_DONE, 0},
	{IPC_LISTING, 1},
	{IPC_FORKED, IPC_COPY_FDS},
};

static const struct type_rule *find_rule(uint32_t type)
{
	for (size_t i = 0; i < ARRAY_SIZE(type_rules); i++) {
		if (type_rules[i].type == type) {
			return &type_rules[i];
		}
	}
	return NULL;
}

/* Whether a machine is to be started with exactly the descriptors that came. */
static bool fds_fit(const char *bytes, size_t fd_count)
{
	struct ipc_start start;
	size_t wanted;

	memcpy(&start, bytes + offsetof(struct ipc_message, start), sizeof(start));
	if (start.has_data > 1 || start.has_copy > 1 || start.has_live > 1 || start.has_up > 1 ||
	    start.data_layers > IPC_LAYERS_MAX || start.base_layers > IPC_LAYERS_MAX ||
	    (start.data_layers > 0) != (start.has_data > 0)) {
		return false;
	}
	wanted = (size_t)start.has_data + start.data_layers + start.base_layers +
		 IPC_COPY_FDS * (size_t)start.has_copy + start.has_live + start.has_up;
	return fd_count == wanted;
}

static bool is_action(const char *bytes)
{
	uint32_t action;

	memcpy(&action, bytes + offsetof(struct ipc_message, rule.action), sizeof(action));
	return action <= IPC_RULE_REACH;
}

/* Whether bytes, of the size of a message, are a message with fd_count descriptors. */
static bool is_message(const char *bytes, size_t fd_count)
{
	const struct type_rule *rule;
	uint32_t type;

	memcpy(&type, bytes + offsetof(struct ipc_message, type), sizeof(type));
	rule = find_rule(type);
	if (!rule || fd_count > rule->fds_max) {
		return false;
	}
	if ((type == IPC_START || type == IPC_CLAIM) && !fds_fit(bytes, fd_count)) {
		return false;
	}
	if (type == IPC_NET_RULE && !is_action(bytes)) {
		return false;
	}
	for (const struct text_field *text = rule->texts; text->size > 0; text++) {
		if (!memchr(bytes + text->offset, '\0', text->size)) {
			return false;
		}
	}
	return true;
}

int ipc_decode(const void *packet, size_t size, size_t fd_count, struct ipc_message *ret_message)
{
	if (size != sizeof(*ret_message) || !is_message(packet, fd_count)) {
		return -EBADMSG;
	}
	memcpy(ret_message, packet, sizeof(*ret_message));
	return 0;
}

int ipc_send(int socket, const struct ipc_message *message, const int *fds, size_t fd_count)
{
	/* sendmsg(2) only reads, but its struct has no const. */
	union {
		const void *data;
		void *base;
	} packet = {.data = message};
	struct iovec vector = {.iov_base = packet.base, .iov_len = sizeof(*message)};
	struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
	union control_buffer control = {0};
	ssize_t sent;

	ASSERT(fd_count <= IPC_FDS_MAX);
	ASSERT(is_message(packet.data, fd_count));
	if (fd_count > 0) {
		struct cmsghdr *rights;

		header.msg_control = control.bytes;
		header.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
		rights = CMSG_FIRSTHDR(&header);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(rights), fds, sizeof(int) * fd_count);
	}
	do {
		sent = sendmsg(socket, &header, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	if (sent < 0) {
		/* ECONNRESET: the peer closed and had not read everything; it is gone all the same.
		 */
		return errno == ECONNRESET ? -EPIPE : -errno;
	}
	return 0;
}

/* Takes the descriptors out of a received header. Returns how many came; the first IPC_FDS_MAX are
 * in ret_fds, any more are closed. */
static size_t take_fds(struct msghdr *header, int *ret_fds)
{
	size_t count = 0;

	for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
		size_t length;

		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
			continue;
		}
		length = part->cmsg_len - CMSG_LEN(0);
		for (size_t i = 0; i < length / sizeof(int); i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
			if (count < IPC_FDS_MAX) {
				ret_fds[count] = fd;
			} else {
				close(fd);
			}
			count++;
		}
	}
	return count;
}

/*
 * When the peer closed without reading everything, the kernel reports ECONNRESET once, before the
 * messages that the peer had sent. These are still there (the last words of a keeper, for one), so
 * that one error is passed over.
 */
static ssize_t receive_packet(int socket, struct msghdr *header)
{
	bool was_reset = false;

	for (;;) {
		ssize_t size = recvmsg(socket, header, MSG_CMSG_CLOEXEC);

		if (size >= 0) {
			return size;
		}
		if (errno == ECONNRESET && !was_reset) {
			was_reset = true;
		} else if (errno != EINTR) {
			return errno == ECONNRESET ? 0 : -errno;
		}
	}
}

int ipc_receive(int socket, struct ipc_message *ret_message, int *ret_fds)
{
	struct ipc_message packet;
	struct iovec vector = {.iov_base = &packet, .iov_len = sizeof(packet)};
	union control_buffer control;
	struct msghdr header = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	size_t fd_count;
	ssize_t size;

	for (size_t i = 0; i < IPC_FDS_MAX; i++) {
		ret_fds[i] = -EBADF;
	}
	size = receive_packet(socket, &header);
	if (size < 0) {
		return (int)size;
	}
	fd_count = take_fds(&header, ret_fds);
	if (size == 0) {
		/* The end, or an empty packet, which nobody of ours sends. */
		ipc_close_fds(ret_fds);
		return 0;
	}
	if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
	    ipc_decode(&packet, (size_t)size, fd_count, ret_message) < 0) {
		ipc_close_fds(ret_fds);
		return -EBADMSG;
	}
	return 1;
}

void ipc_close_fds(int *fds)
{
	for (size_t i = 0; i < IPC_FDS_MAX; i++) {
		close_fd(&fds[i]);
	}
}

_Noreturn void ipc_exec_keeper(const char *path, int socket)
{
	char number[16];
	char *const argv[] = {(char[]){"box-keeper"}, number, NULL};
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	snprintf(number, sizeof(number), "%d", socket);
	set_cloexec(socket, false);
	if (socket > STDERR_FILENO + 1) {
		close_range(STDERR_FILENO + 1, (unsigned)socket - 1, 0);
	}
	close_range((unsigned)MAX(socket, STDERR_FILENO) + 1, UINT_MAX, 0);
	execv(path, argv);
	_exit(EXIT_BOX_FAILED);
}

int ipc_pair(int ret_sockets[2])
{
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret_sockets) < 0) {
		return -errno;
	}
	return 0;
}

/* An address of name below dir_fd that always fits, whatever the directory's own path is. */
static int make_address(int dir_fd, const char *name, struct sockaddr_un *ret_address)
{
	if (name[0] == '\0' || strlen(name) > IPC_NAME_MAX) {
		return name[0] == '\0' ? -EINVAL : -ENAMETOOLONG;
	}
	*ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(ret_address->sun_path, sizeof(ret_address->sun_path), "/proc/self/fd/%d/%s",
		 dir_fd, name);
	return 0;
}

/* A socket, and the address that it is to be bound or connected to. */
static int named_socket(int dir_fd, const char *name, struct sockaddr_un *ret_address)
{
	int rc = make_address(dir_fd, name, ret_address);
	int fd;

	if (rc < 0) {
		return rc;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	return fd < 0 ? -errno : fd;
}

int ipc_listen_at(int dir_fd, const char *name)
{
	struct sockaddr_un address;
	_cleanup_close_ int fd = named_socket(dir_fd, name, &address);
	int rc;

	if (fd < 0) {
		return fd;
	}
	/* bind(2) gives the name the mode that the socket has, so it is never open to others. */
	if (fchmod(fd, 0600) < 0 ||
	    bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		return -errno;
	}
	if (listen(fd, IPC_BACKLOG) < 0) {
		rc = -errno;
		unlinkat(dir_fd, name, 0);
		return rc;
	}
	return TAKE_FD(fd);
}

int ipc_connect_at(int dir_fd, const char *name)
{
	const struct timeval limit = {.tv_sec = IPC_CONNECT_LIMIT_S}, none = {0};
	struct sockaddr_un address;
	_cleanup_close_ int fd = named_socket(dir_fd, name, &address);
	int rc;

	if (fd < 0) {
		return fd;
	}
	/* socket(7): connecting counts as sending. */
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	do {
		rc = connect(fd, (const struct sockaddr *)&address, sizeof(address));
	} while (rc < 0 && errno == EINTR);
	if (rc < 0) {
		return -errno;
	}
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
	return TAKE_FD(fd);
}

int ipc_memory_file(const char *label, const void *data, size_t size)
{
	_cleanup_close_ int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int rc;

	if (fd < 0) {
		return -errno;
	}
	rc = write_full(fd, data, size);
	if (rc < 0) {
		return rc;
	}
	if (lseek(fd, 0, SEEK_SET) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0) {
		return -errno;
	}
	return TAKE_FD(fd);
}
