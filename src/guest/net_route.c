#include "guest/net_route.h"

#include <errno.h>
#include <linux/fib_rules.h>
#include <linux/if_addr.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "guest/net_pool.h"

/* The first interface of every network namespace. */
#define LOOPBACK_INDEX 1
#define PRIORITY_OWN 0u
#define PRIORITY_ICMP 32770u
#define PRIORITY_REST 32771u
/* Any number that the kernel and ordinary tools leave alone. */
#define TABLE_REST_V6 198
/* Ours have some fifty bytes. */
#define REQUEST_MAX 256
/* What the kernel puts into one datagram of a listing, at most. */
#define ANSWER_MAX 32768
/* Changes that may be under way; an overflow is told, and all is read anew. */
#define WATCH_ROUNDS_MAX 64

struct request {
	size_t size;
	_Alignas(struct nlmsghdr) uint8_t data[REQUEST_MAX];
};

static void append(struct request *request, const void *data, size_t size)
{
	ASSERT(NLMSG_ALIGN(size) <= REQUEST_MAX - request->size);
	memcpy(request->data + request->size, data, size);
	request->size += NLMSG_ALIGN(size);
}

static void begin(struct request *request, uint16_t type, uint16_t flags, const void *fixed,
		  size_t size)
{
	const struct nlmsghdr head = {.nlmsg_type = type,
				      .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags)};

	memset(request, 0, sizeof(*request));
	append(request, &head, sizeof(head));
	append(request, fixed, size);
}

static void add(struct request *request, uint16_t type, const void *data, size_t size)
{
	const struct rtattr head = {.rta_type = type, .rta_len = (uint16_t)RTA_LENGTH(size)};

	append(request, &head, sizeof(head));
	append(request, data, size);
}

static void add_u32(struct request *request, uint16_t type, uint32_t value)
{
	add(request, type, &value, sizeof(value));
}

static int submit(int fd, struct request *request)
{
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	struct nlmsghdr *head = (struct nlmsghdr *)(void *)request->data;

	head->nlmsg_len = (uint32_t)request->size;
	return sendto(fd, request->data, request->size, 0, (struct sockaddr *)&kernel,
		      sizeof(kernel)) < 0
		       ? -errno
		       : 0;
}

/* Submits and waits for the kernel's answer, which is there when sendto(2) returns. */
static int carry_out(int fd, struct request *request)
{
	_Alignas(struct nlmsghdr) uint8_t answer[1024];
	const struct nlmsghdr *head = (const struct nlmsghdr *)(const void *)answer;
	struct nlmsgerr error;
	int rc = submit(fd, request);
	ssize_t got;

	if (rc < 0) {
		return rc;
	}
	got = recv(fd, answer, sizeof(answer), 0);
	if (got < (ssize_t)NLMSG_LENGTH(sizeof(error)) || head->nlmsg_type != NLMSG_ERROR) {
		return got < 0 ? -errno : -EPROTO;
	}
	memcpy(&error, answer + NLMSG_LENGTH(0), sizeof(error));
	return error.error;
}

static int open_socket(int flags, uint32_t groups, int *ret_fd)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = groups};
	_cleanup_close_ int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | flags, NETLINK_ROUTE);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		return -errno;
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* An address as this family has it. */
static const uint8_t *bytes_of(const uint8_t *address, uint8_t family, size_t *ret_size)
{
	*ret_size = family == AF_INET ? 4 : 16;
	return address + 16 - *ret_size;
}

static int add_address(int fd, uint8_t family, const uint8_t *address)
{
	const struct ifaddrmsg fixed = {
		.ifa_family = family,
		.ifa_prefixlen = family == AF_INET ? 32 : 128,
		.ifa_flags = IFA_F_PERMANENT | IFA_F_NODAD,
		.ifa_index = LOOPBACK_INDEX,
	};
	struct request request;
	size_t size;
	const uint8_t *bytes = bytes_of(address, family, &size);

	begin(&request, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, &fixed,
	      sizeof(fixed));
	add(&request, IFA_LOCAL, bytes, size);
	add(&request, IFA_ADDRESS, bytes, size);
	return carry_out(fd, &request);
}

static uint8_t table_of(uint8_t family)
{
	return family == AF_INET ? RT_TABLE_LOCAL : TABLE_REST_V6;
}

static void begin_route(struct request *request, uint8_t family, uint8_t table, size_t prefix_bytes)
{
	const struct rtmsg fixed = {
		.rtm_family = family,
		.rtm_dst_len = (uint8_t)(8 * prefix_bytes),
		.rtm_table = table,
		.rtm_protocol = RTPROT_STATIC,
		.rtm_scope = RT_SCOPE_HOST,
		.rtm_type = RTN_LOCAL,
	};

	begin(request, RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, &fixed,
	      sizeof(fixed));
	add_u32(request, RTA_OIF, LOOPBACK_INDEX);
}

/* All other addresses are taken for the machine's own. */
static int add_route_rest(int fd, uint8_t family, const uint8_t *source)
{
	struct request request;
	size_t size;
	const uint8_t *bytes = bytes_of(source, family, &size);

	begin_route(&request, family, table_of(family), 0);
	add(&request, RTA_PREFSRC, bytes, size);
	return carry_out(fd, &request);
}

/* IPv6 adds the route to a new address from a worker, some time later; until then the rule below
 * would keep ICMP's errors from the machine itself. */
static int add_route_own_v6(int fd)
{
	struct request request;

	begin_route(&request, AF_INET6, RT_TABLE_LOCAL, sizeof(net_pool_own_v6));
	add(&request, RTA_DST, net_pool_own_v6, sizeof(net_pool_own_v6));
	return carry_out(fd, &request);
}

static void begin_rule(struct request *request, uint16_t type, uint8_t family, uint8_t action,
		       uint32_t priority)
{
	const struct fib_rule_hdr fixed = {
		.family = family,
		.action = action,
		.table = action == FR_ACT_TO_TBL ? table_of(family) : RT_TABLE_UNSPEC,
	};

	begin(request, type, (uint16_t)(NLM_F_ACK | (type == RTM_NEWRULE ? NLM_F_CREATE : 0)),
	      &fixed, sizeof(fixed));
	add_u32(request, FRA_PRIORITY, priority);
}

static int add_rules(int fd, uint8_t family)
{
	const uint8_t icmp = family == AF_INET ? IPPROTO_ICMP : IPPROTO_ICMPV6;
	struct request request;
	int rc;

	begin_rule(&request, RTM_NEWRULE, family, FR_ACT_UNREACHABLE, PRIORITY_ICMP);
	add(&request, FRA_IP_PROTO, &icmp, sizeof(icmp));
	rc = carry_out(fd, &request);
	if (rc == 0) {
		begin_rule(&request, RTM_NEWRULE, family, FR_ACT_TO_TBL, PRIORITY_REST);
		rc = carry_out(fd, &request);
	}
	if (rc == 0 && family == AF_INET) {
		/* Prefixes of that length or less do not count. It comes behind the kernel's own
		 * rule, which then goes; so own addresses are reached at every moment. */
		begin_rule(&request, RTM_NEWRULE, family, FR_ACT_TO_TBL, PRIORITY_OWN);
		add_u32(&request, FRA_SUPPRESS_PREFIXLEN, 0);
		rc = carry_out(fd, &request);
	}
	if (rc == 0 && family == AF_INET) {
		begin_rule(&request, RTM_DELRULE, family, FR_ACT_TO_TBL, PRIORITY_OWN);
		rc = carry_out(fd, &request);
	}
	return rc;
}

int net_route_set_up(struct err *err)
{
	static const struct {
		uint8_t family;
		const uint8_t *own;
	} kinds[] = {{AF_INET, net_pool_own_v4}, {AF_INET6, net_pool_own_v6}};
	_cleanup_close_ int fd = -EBADF;
	int rc = open_socket(0, 0, &fd);

	for (size_t i = 0; rc == 0 && i < ARRAY_SIZE(kinds); i++) {
		rc = add_address(fd, kinds[i].family, kinds[i].own);
		if (rc == 0 && kinds[i].family == AF_INET6) {
			rc = add_route_own_v6(fd);
		}
		if (rc == 0) {
			rc = add_rules(fd, kinds[i].family);
		}
		if (rc == 0) {
			rc = add_route_rest(fd, kinds[i].family, kinds[i].own);
		}
	}
	return rc < 0 ? err_set(err, rc, "network", "cannot set up the network's routes: %s",
				strerrordesc_np(-rc))
		      : 0;
}

/* ---- Own addresses ---- */

/* The next attribute of a message at an offset, which then is behind it. False at the end. */
static bool next_attribute(const struct nlmsghdr *message, size_t *offset, struct rtattr *ret_head,
			   const uint8_t **ret_data)
{
	const uint8_t *bytes = (const uint8_t *)message;

	if (*offset + RTA_LENGTH(0) > message->nlmsg_len) {
		return false;
	}
	memcpy(ret_head, bytes + *offset, sizeof(*ret_head));
	if (ret_head->rta_len < RTA_LENGTH(0) || ret_head->rta_len > message->nlmsg_len - *offset) {
		return false;
	}
	*ret_data = bytes + *offset + RTA_LENGTH(0);
	*offset += RTA_ALIGN(ret_head->rta_len);
	return true;
}

static void take_address(const struct net_bpf *bpf, const struct nlmsghdr *message)
{
	size_t offset = NLMSG_LENGTH(sizeof(struct ifaddrmsg));
	struct ifaddrmsg fixed;
	struct rtattr head;
	const uint8_t *data;
	uint8_t address[16];
	bool found = false;

	if (message->nlmsg_len < offset) {
		return;
	}
	memcpy(&fixed, (const uint8_t *)message + NLMSG_LENGTH(0), sizeof(fixed));
	while (next_attribute(message, &offset, &head, &data)) {
		size_t size = fixed.ifa_family == AF_INET ? 4 : 16;
		/* Of a point-to-point link IFA_ADDRESS is the other end. IPv6 has IFA_LOCAL there
		 * only. */
		bool own = head.rta_type == IFA_LOCAL ||
			   (head.rta_type == IFA_ADDRESS && size == 16 && !found);

		if (own && head.rta_len == RTA_LENGTH(size)) {
			net_pool_widen(data, size, address);
			found = true;
		}
	}
	if (found) {
		/* More than the map holds are treated as not the machine's own. */
		net_bpf_own(bpf, address, message->nlmsg_type == RTM_NEWADDR);
	}
}

/* Takes one datagram. Returns 1, 0 at the end of a listing or when nothing is there, or a negative
 * errno. */
static int take_datagram(const struct net_bpf *bpf, int fd, int flags)
{
	_Alignas(struct nlmsghdr) uint8_t answer[ANSWER_MAX];
	ssize_t got = recv(fd, answer, sizeof(answer), flags);
	unsigned left;

	if (got < 0) {
		return errno == EAGAIN ? 0 : -errno;
	}
	left = (unsigned)got;
	for (struct nlmsghdr *head = (struct nlmsghdr *)(void *)answer; NLMSG_OK(head, left);
	     head = NLMSG_NEXT(head, left)) {
		if (head->nlmsg_type == NLMSG_DONE || head->nlmsg_type == NLMSG_ERROR) {
			return 0;
		}
		if (head->nlmsg_type == RTM_NEWADDR || head->nlmsg_type == RTM_DELADDR) {
			take_address(bpf, head);
		}
	}
	return 1;
}

static int list_addresses(const struct net_bpf *bpf)
{
	const struct ifaddrmsg fixed = {.ifa_family = AF_UNSPEC};
	_cleanup_close_ int fd = -EBADF;
	struct request request;
	int rc = open_socket(0, 0, &fd);

	if (rc < 0) {
		return rc;
	}
	begin(&request, RTM_GETADDR, NLM_F_DUMP, &fixed, sizeof(fixed));
	rc = submit(fd, &request);
	while (rc == 0) {
		rc = take_datagram(bpf, fd, 0);
		if (rc != 1) {
			break;
		}
		rc = 0;
	}
	return rc;
}

int net_route_watch(const struct net_bpf *bpf, int *ret_fd)
{
	_cleanup_close_ int fd = -EBADF;
	int rc = open_socket(SOCK_NONBLOCK, RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR, &fd);

	/* First the watch, so that nothing is missed between. */
	if (rc == 0) {
		rc = list_addresses(bpf);
	}
	if (rc == 0) {
		*ret_fd = TAKE_FD(fd);
	}
	return rc;
}

void net_route_changed(const struct net_bpf *bpf, int fd)
{
	for (int i = 0; i < WATCH_ROUNDS_MAX; i++) {
		int rc = take_datagram(bpf, fd, MSG_DONTWAIT);

		if (rc == -ENOBUFS) {
			/* Some were lost. What is gone stays in the map, which refuses less. */
			list_addresses(bpf);
		} else if (rc != 1) {
			return;
		}
	}
}
