/*
 * The guest's side of box's network: every address is this machine, so the guest's own kernel ends
 * each connection, and the agent asks the host for the real one. No packet leaves the machine.
 *
 * net_boot is called once, by process 1, before a snapshot; net_start at the beginning of each
 * life. A machine without the port box.net has none of this: no address but loopback's, no route,
 * no listener.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "guest/net_bpf.h"

/* What resolv.conf(5) of a machine with network says. Any other address would do as well. */
#define NET_RESOLVER "nameserver 198.18.0.1\n"
/*
 * And of one without: nobody listens there, so the kernel refuses a question at once. musl takes no
 * notice of that, so it is asked not to wait for longer than it has to.
 */
#define NET_NO_RESOLVER "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"

struct net_names;

/* What process 1 holds. */
struct net {
	struct net_bpf bpf;
	/* Shared with the agents. */
	struct net_names *names;
	/* The agent that was started last, or -EBADF. */
	int agent_pidfd;
};

#define NET_NONE                                                                                   \
	{                                                                                          \
		.bpf = NET_BPF_NONE, .agent_pidfd = -EBADF,                                        \
	}

/*
 * Makes routes, settings and BPF programs in the calling process's network namespace. Returns 0 or
 * a negative errno with err filled; *ret_net then is what a process that ends leaves to the kernel.
 */
int net_boot(struct net *ret_net, struct err *err);

/*
 * Ends the agent if there is one, and waits until its port is closed. The child is the caller's to
 * reap.
 */
void net_stop(struct net *net);

/* Forgets the names and their addresses: for when no program is left that could hold one. */
void net_forget_names(struct net *net);

/*
 * Starts the agent, a child of the caller, on the port (non-blocking; the caller closes its own
 * descriptor). The one before has been stopped. When it returns 0, connections and questions are
 * taken, and wait for the agent where it is not ready yet. *ret_pid may be NULL. Returns 0 or a
 * negative errno with err filled.
 */
int net_start(struct net *net, int port_fd, pid_t *ret_pid, struct err *err);
