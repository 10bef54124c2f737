#include "sys/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

int sys_pidfd_open(pid_t pid)
{
	long fd = syscall(SYS_pidfd_open, pid, 0);

	return fd < 0 ? -errno : (int)fd;
}

int sys_pidfd_signal(int pidfd, int signal_number)
{
	return syscall(SYS_pidfd_send_signal, pidfd, signal_number, NULL, 0) < 0 ? -errno : 0;
}

bool sys_pidfd_ended(int pidfd)
{
	struct pollfd ended = {.fd = pidfd, .events = POLLIN};

	return poll(&ended, 1, 0) > 0;
}

bool sys_pidfd_stopped(int pidfd)
{
	siginfo_t info = {.si_pid = 0};

	return (waitid(P_PIDFD, (id_t)pidfd, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
		info.si_pid != 0) ||
	       sys_pidfd_ended(pidfd);
}

int sys_pidfd_copy_fd(int pidfd, int number)
{
	long fd = syscall(SYS_pidfd_getfd, pidfd, number, 0);

	return fd < 0 ? -errno : (int)fd;
}

int sys_close_range(unsigned first, unsigned last)
{
	if (first > last) {
		return 0;
	}
	return close_range(first, last, 0) < 0 ? -errno : 0;
}

int sys_limit(int resource, uint64_t value)
{
	struct rlimit limit;

	if (getrlimit((__rlimit_resource_t)resource, &limit) < 0) {
		return -errno;
	}
	limit.rlim_max = MIN(limit.rlim_max, (rlim_t)value);
	limit.rlim_cur = limit.rlim_max;
	return setrlimit((__rlimit_resource_t)resource, &limit) < 0 ? -errno : 0;
}

int sys_reset_signals(void)
{
	/* The kernel's own struct: handler SIG_DFL, flags, restorer, mask. */
	static const uint64_t action[4];
	sigset_t none;

	/* Not by sigaction(3): it keeps two signals for the C library, and posix_spawn(3) of our
	 * caller has left just those ignored. */
	for (int number = 1; number < NSIG; number++) {
		if (syscall(SYS_rt_sigaction, number, action, NULL, sizeof(action[3])) < 0 &&
		    number != SIGKILL && number != SIGSTOP) {
			return -errno;
		}
	}
	sigemptyset(&none);
	return sigprocmask(SIG_SETMASK, &none, NULL) < 0 ? -errno : 0;
}

union fd_message {
	struct cmsghdr header;
	char room[CMSG_SPACE(sizeof(int))];
};

int sys_send_fd(int socket_fd, const void *data, size_t size, int fd)
{
	struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
	union fd_message control;
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	ssize_t sent;

	if (fd >= 0) {
		memset(&control, 0, sizeof(control));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	sent = sendmsg(socket_fd, &message, MSG_NOSIGNAL);
	if (sent < 0) {
		return -errno;
	}
	return (size_t)sent == size ? 0 : -EIO;
}

ssize_t sys_receive_fd(int socket_fd, void *data, size_t size, int *ret_fd)
{
	struct iovec part = {.iov_base = data, .iov_len = size};
	union fd_message control;
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *header;
	ssize_t got;

	do {
		got = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
	} while (got < 0 && errno == EINTR);
	if (got < 0) {
		return -errno;
	}
	*ret_fd = -EBADF;
	header = CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
	    header->cmsg_len == CMSG_LEN(sizeof(int))) {
		memcpy(ret_fd, CMSG_DATA(header), sizeof(int));
	}
	return got;
}
