#include "sys/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int sys_filter_load(const void *filter, uint16_t count, int *ret_listener)
{
	struct sock_fprog program = {
		.len = count,
		/* The kernel only reads the instructions; its structure lacks the const. */
		.filter = (struct sock_filter *)(uintptr_t)filter,
	};
	unsigned flags = ret_listener ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0;
	long rc = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);

	if (rc < 0) {
		return -errno;
	}
	if (ret_listener) {
		*ret_listener = (int)rc;
	}
	return 0;
}

int sys_filter_receive(int listener, struct sys_notification *ret_notification)
{
	/* The kernel wants the whole buffer zeroed, and a newer one may write more than this
	 * header's structure: leave it room. */
	union {
		struct seccomp_notif notification;
		char room[512];
	} buffer;
	struct pollfd ready = {.fd = listener, .events = POLLIN};
	int rc = poll(&ready, 1, 0);

	if (rc < 0) {
		return errno == EINTR ? -EAGAIN : -errno;
	}
	if (rc == 0) {
		return -EAGAIN;
	}
	if (!(ready.revents & POLLIN)) {
		return -ENOENT;
	}
	memset(&buffer, 0, sizeof(buffer));
	if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &buffer.notification) < 0) {
		return -errno;
	}
	ret_notification->id = buffer.notification.id;
	ret_notification->number = buffer.notification.data.nr;
	for (size_t i = 0; i < 6; i++) {
		ret_notification->arguments[i] = buffer.notification.data.args[i];
	}
	return 0;
}

int sys_filter_answer_fd(int listener, uint64_t id, int fd)
{
	struct seccomp_notif_addfd addfd = {
		.id = id,
		.flags = SECCOMP_ADDFD_FLAG_SEND,
		.srcfd = (uint32_t)fd,
		.newfd_flags = O_CLOEXEC,
	};

	return ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &addfd) < 0 ? -errno : 0;
}

static int answer(int listener, uint64_t id, int error, uint32_t flags)
{
	union {
		struct seccomp_notif_resp response;
		char room[512];
	} buffer;

	memset(&buffer, 0, sizeof(buffer));
	buffer.response.id = id;
	buffer.response.error = -error;
	buffer.response.flags = flags;
	return ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &buffer.response) < 0 ? -errno : 0;
}

int sys_filter_answer_error(int listener, uint64_t id, int error)
{
	return answer(listener, id, error, 0);
}

int sys_filter_answer_done(int listener, uint64_t id)
{
	return answer(listener, id, 0, 0);
}

int sys_filter_answer_continue(int listener, uint64_t id)
{
	return answer(listener, id, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE);
}
