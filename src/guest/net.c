#include "guest/net.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "guest/machine.h"
#include "guest/net_agent.h"
#include "guest/net_route.h"
#include "guest/processor.h"

/* Ports that nobody uses. Where these sockets are bound does not matter: the BPF program gives them
 * what they get. */
#define PORT_TCP 1
#define PORT_DNS 2
#define PORT_UDP 1
/* Among thousands of processes the agent must still be heard. */
#define PRECEDENCE -10
/* A killed process is gone in milliseconds. */
#define STOP_MS 5000

static int write_setting(const char *path, const char *value)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -errno : write_full(fd, value, strlen(value));
}

int net_boot(struct net *ret_net, struct err *err)
{
	int rc;

	*ret_net = (struct net)NET_NONE;
	/* Some megabytes, of which most are never touched. */
	ret_net->names = mmap(NULL, sizeof(*ret_net->names), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (ret_net->names == MAP_FAILED) {
		ret_net->names = NULL;
		return err_set(err, -errno, "network", "no memory for the network's names");
	}
	rc = net_bpf_open(&ret_net->bpf, err);
	if (rc == 0) {
		rc = net_route_set_up(err);
	}
	/*
	 * A connection that the host could not make in time gets no answer. This makes connect(2)
	 * give up after 31 s rather than 127; the SYN only goes to the agent, which is near.
	 */
	if (rc == 0) {
		rc = write_setting("/proc/sys/net/ipv4/tcp_syn_retries", "4");
		if (rc < 0) {
			err_set(err, rc, "network", "cannot set tcp_syn_retries: %s",
				strerrordesc_np(-rc));
		}
	}
	return rc;
}

/* ---- What the agent works on ---- */

static int open_socket(int type, uint16_t port, int *ret_fd)
{
	static const int on = 1, off = 0;
	_cleanup_close_ int fd = socket(AF_INET6, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(port)};

	/*
	 * For both families. SO_REUSEADDR is for the connections, which inherit it: each has the
	 * port that its program wanted as its own, and a server inside may want that too.
	 */
	if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof(on)) < 0 ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		return -errno;
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int open_sockets(struct net_agent_config *config)
{
	static const struct {
		int type;
		uint16_t port;
	} kinds[NET_SOCKETS] = {
		[NET_SOCKET_TCP] = {SOCK_STREAM, PORT_TCP},
		[NET_SOCKET_DNS] = {SOCK_STREAM, PORT_DNS},
		[NET_SOCKET_UDP] = {SOCK_DGRAM, PORT_UDP},
	};
	int filter_fd = config->bpf.filter_fd;
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < NET_SOCKETS; i++) {
		rc = open_socket(kinds[i].type, kinds[i].port, &config->sockets[i]);
		/* Before it listens, so that no SYN slips through. */
		if (rc == 0 && i == NET_SOCKET_TCP &&
		    setsockopt(config->sockets[i], SOL_SOCKET, SO_ATTACH_BPF, &filter_fd,
			       sizeof(filter_fd)) < 0) {
			rc = -errno;
		}
		if (rc == 0 && kinds[i].type == SOCK_STREAM &&
		    listen(config->sockets[i], NET_STREAMS_MAX) < 0) {
			rc = -errno;
		}
	}
	return rc;
}

static int open_raw(int family, int *ret_fd)
{
	/* IPPROTO_RAW: what is sent has IP's header already, and nothing is received. */
	*ret_fd = socket(family, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_RAW);
	return *ret_fd < 0 ? -errno : 0;
}

static int open_all(struct net_agent_config *config, struct err *err)
{
	int rc;

	net_bpf_forget(&config->bpf);
	rc = net_ring_open(&config->bpf, &config->ring);
	if (rc == 0) {
		rc = open_raw(AF_INET, &config->raw_v4_fd);
	}
	if (rc == 0) {
		rc = open_raw(AF_INET6, &config->raw_v6_fd);
	}
	if (rc == 0) {
		rc = net_route_watch(&config->bpf, &config->watch_fd);
	}
	if (rc == 0) {
		rc = open_sockets(config);
	}
	/* From here on the kernel hands them what comes. */
	for (unsigned i = 0; rc == 0 && i < NET_SOCKETS; i++) {
		rc = net_bpf_put_socket(&config->bpf, i, config->sockets[i]);
	}
	return rc < 0 ? err_set(err, rc, "network", "cannot open the network's sockets: %s",
				strerrordesc_np(-rc))
		      : 0;
}

static void close_all(struct net_agent_config *config)
{
	for (unsigned i = 0; i < NET_SOCKETS; i++) {
		close_fd(&config->sockets[i]);
	}
	close_fd(&config->raw_v4_fd);
	close_fd(&config->raw_v6_fd);
	close_fd(&config->watch_fd);
	net_ring_close(&config->ring);
}

/* ---- The process ---- */

static int compare_numbers(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* Closes all that is process 1's only, its control port above all. */
static void close_others(const struct net_agent_config *config)
{
	const int kept[] = {
		STDERR_FILENO,
		config->port_fd,
		config->bpf.sockets_fd,
		config->bpf.own_fd,
		config->bpf.released_fd,
		config->bpf.held_fd,
		config->sockets[NET_SOCKET_TCP],
		config->sockets[NET_SOCKET_DNS],
		config->sockets[NET_SOCKET_UDP],
		config->raw_v4_fd,
		config->raw_v6_fd,
		config->watch_fd,
	};
	int sorted[ARRAY_SIZE(kept)];

	memcpy(sorted, kept, sizeof(kept));
	qsort(sorted, ARRAY_SIZE(sorted), sizeof(sorted[0]), compare_numbers);
	for (size_t i = 0; i < ARRAY_SIZE(sorted); i++) {
		unsigned first = (unsigned)sorted[i] + 1;
		unsigned last = i + 1 < ARRAY_SIZE(sorted) ? (unsigned)sorted[i + 1] - 1 : ~0u;

		if (first <= last) {
			close_range(first, last, 0);
		}
	}
}

/* Of root's powers only that to change BPF maps is left. */
static int drop_powers(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	memset(data, 0, sizeof(data));
	data[CAP_TO_INDEX(CAP_BPF)].effective = CAP_TO_MASK(CAP_BPF);
	data[CAP_TO_INDEX(CAP_BPF)].permitted = CAP_TO_MASK(CAP_BPF);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_capset, &head, data) < 0) {
		return -errno;
	}
	return 0;
}

static _Noreturn void run_agent(const struct net_agent_config *config)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	struct err err = {.code = ""};
	sigset_t none;
	int rc;

	/* Process 1 switches the machine off when it crashes; that is not for us. */
	for (int number = 1; number < NSIG; number++) {
		sigaction(number, &action, NULL);
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	prctl(PR_SET_NAME, "box-net-agent", 0, 0, 0);
	processor_spread();
	close_others(config);
	setpriority(PRIO_PROCESS, 0, PRECEDENCE);
	/* Killing it would take the network from all others. */
	write_setting("/proc/self/oom_score_adj", "-1000");
	rc = drop_powers();
	if (rc == 0) {
		rc = net_agent_run(config);
	}
	err_set(&err, rc, "network", "the network has ended: %s", strerrordesc_np(-rc));
	machine_say(err.text);
	_exit(EXIT_FAILURE);
}

void net_stop(struct net *net)
{
	if (net->agent_pidfd >= 0) {
		struct pollfd gone = {.fd = net->agent_pidfd, .events = POLLIN};

		syscall(SYS_pidfd_send_signal, net->agent_pidfd, SIGKILL, NULL, 0);
		poll(&gone, 1, STOP_MS);
	}
	close_fd(&net->agent_pidfd);
}

void net_forget_names(struct net *net)
{
	if (net->names) {
		/* Its pages go back, and read as zeros from then on. */
		madvise(net->names, sizeof(*net->names), MADV_REMOVE);
	}
}

int net_start(struct net *net, int port_fd, pid_t *ret_pid, struct err *err)
{
	struct net_agent_config config = {
		.port_fd = port_fd,
		.bpf = net->bpf,
		.names = net->names,
		.sockets = {-EBADF, -EBADF, -EBADF},
		.raw_v4_fd = -EBADF,
		.raw_v6_fd = -EBADF,
		.watch_fd = -EBADF,
	};
	int rc = open_all(&config, err);

	ASSERT(net->agent_pidfd < 0);
	if (rc == 0) {
		pid_t pid = fork();

		if (pid == 0) {
			run_agent(&config);
		}
		if (pid < 0) {
			rc = err_set(err, -errno, "network", "cannot start the network's agent: %s",
				     strerrordesc_np(errno));
		} else {
			net->agent_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
			if (ret_pid) {
				*ret_pid = pid;
			}
		}
	}
	close_all(&config);
	return rc;
}
