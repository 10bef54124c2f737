/*
 * Tries one act in the jail of box-net, and exits with 0 when it succeeded and 1 when it was
 * refused. Static, as box-net is. net_probe ACT PORT: the port of a listener on the loopback device
 * of the network that the jail shares.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#define FLAGS (SOCK_NONBLOCK | SOCK_CLOEXEC)

static struct sockaddr_in loopback(uint16_t port)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
}

static int stream(void)
{
	return socket(AF_INET, SOCK_STREAM | FLAGS, 0);
}

static bool act_connect(uint16_t port)
{
	struct sockaddr_in address = loopback(port);
	int fd = stream(), error = 0;
	socklen_t size = sizeof(error);

	if (fd < 0 || (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 &&
		       errno != EINPROGRESS)) {
		return false;
	}
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0 &&
	       getpeername(fd, (struct sockaddr *)&address, &(socklen_t){sizeof(address)}) == 0 &&
	       send(fd, "x", 1, MSG_NOSIGNAL) == 1 && shutdown(fd, SHUT_WR) == 0;
}

static bool act_ask(uint16_t port)
{
	struct sockaddr_in address = loopback(port);
	int fd = socket(AF_INET, SOCK_DGRAM | FLAGS, 0);

	return fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
	       send(fd, "x", 1, MSG_NOSIGNAL) == 1 &&
	       socket(AF_INET6, SOCK_DGRAM | FLAGS, 0) >= 0 &&
	       socket(AF_INET6, SOCK_STREAM | FLAGS, 0) >= 0;
}

static bool act_bind(uint16_t port)
{
	struct sockaddr_in address = loopback(0);

	(void)port;
	return bind(stream(), (struct sockaddr *)&address, sizeof(address)) == 0;
}

static bool act_bind_udp(uint16_t port)
{
	struct sockaddr_in address = loopback(0);

	(void)port;
	return bind(socket(AF_INET, SOCK_DGRAM | FLAGS, 0), (struct sockaddr *)&address,
		    sizeof(address)) == 0;
}

static bool act_listen(uint16_t port)
{
	(void)port;
	return listen(stream(), 1) == 0;
}

static bool act_accept(uint16_t port)
{
	(void)port;
	return accept4(stream(), NULL, NULL, 0) >= 0 || errno == EINVAL || errno == EAGAIN;
}

static bool act_send_to(uint16_t port)
{
	struct sockaddr_in address = loopback(port);

	return sendto(socket(AF_INET, SOCK_DGRAM | FLAGS, 0), "x", 1, 0,
		      (struct sockaddr *)&address, sizeof(address)) == 1;
}

static bool act_send_message(uint16_t port)
{
	struct sockaddr_in address = loopback(port);
	struct iovec part = {.iov_base = (char[]){"x"}, .iov_len = 1};
	struct msghdr message = {.msg_name = &address,
				 .msg_namelen = sizeof(address),
				 .msg_iov = &part,
				 .msg_iovlen = 1};

	return sendmsg(socket(AF_INET, SOCK_DGRAM | FLAGS, 0), &message, 0) == 1;
}

static bool act_unix(uint16_t port)
{
	(void)port;
	return socket(AF_UNIX, SOCK_STREAM | FLAGS, 0) >= 0;
}

static bool act_unix_pair(uint16_t port)
{
	int pair[2];

	(void)port;
	return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0;
}

static bool act_netlink(uint16_t port)
{
	(void)port;
	return socket(AF_NETLINK, SOCK_RAW | FLAGS, NETLINK_ROUTE) >= 0;
}

static bool act_protocol(uint16_t port)
{
	(void)port;
	return socket(AF_INET, SOCK_STREAM | FLAGS, IPPROTO_TCP) >= 0;
}

static bool act_blocking(uint16_t port)
{
	(void)port;
	return socket(AF_INET, SOCK_STREAM, 0) >= 0;
}

static bool act_option(uint16_t port)
{
	(void)port;
	return setsockopt(stream(), SOL_SOCKET, SO_REUSEPORT, &(int){1}, sizeof(int)) == 0;
}

static bool act_open(uint16_t port)
{
	(void)port;
	return open("/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0;
}

static bool act_stat(uint16_t port)
{
	struct stat status;

	(void)port;
	return stat("/", &status) == 0;
}

static bool act_fork(uint16_t port)
{
	(void)port;
	return fork() >= 0;
}

static bool act_execute(uint16_t port)
{
	(void)port;
	execl("/proc/self/exe", "probe", "success", "0", (char *)NULL);
	return false;
}

static bool act_run_memory(uint16_t port)
{
	(void)port;
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		    0) != MAP_FAILED;
}

static bool act_kill(uint16_t port)
{
	(void)port;
	return kill(getppid() ? getppid() : -1, 0) == 0;
}

static bool act_success(uint16_t port)
{
	(void)port;
	return true;
}

static const struct {
	const char *name;
	bool (*run)(uint16_t port);
} acts[] = {
	{"connect", act_connect},
	{"ask", act_ask},
	{"bind", act_bind},
	{"bind-udp", act_bind_udp},
	{"listen", act_listen},
	{"accept", act_accept},
	{"send-to", act_send_to},
	{"send-message", act_send_message},
	{"unix", act_unix},
	{"unix-pair", act_unix_pair},
	{"netlink", act_netlink},
	{"protocol", act_protocol},
	{"blocking", act_blocking},
	{"option", act_option},
	{"open", act_open},
	{"stat", act_stat},
	{"fork", act_fork},
	{"execute", act_execute},
	{"run-memory", act_run_memory},
	{"kill", act_kill},
	{"success", act_success},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == 3 && i < ARRAY_SIZE(acts); i++) {
		if (strcmp(acts[i].name, argv[1]) == 0) {
			return acts[i].run((uint16_t)strtol(argv[2], NULL, 10)) ? 0 : 1;
		}
	}
	return 2;
}
