/*
 * How the kernel is told that every address is this machine, over rtnetlink(7).
 *
 * A default route of type local makes packets for any address come back in through lo. So that
 * networks which the machine makes itself (a bridge with containers) keep their routes, it is found
 * last, by rules:
 *
 *     0       lookup local, but not its default     own addresses
 *     32766   lookup main                           own networks, a tunnel's default route
 *     32770   ICMP: unreachable                     ping says so, rather than be answered by us
 *     32771   lookup local                          the rest
 *
 * IPv4 has to have that route in the table "local": for a packet that the kernel makes itself (a
 * reset, "port unreachable") it looks there, past all rules, whether it may be sent from that
 * address. IPv6 does not look, and must not have it there: a raw socket's packet would match the
 * first rule after all. So IPv6 has a table of ours in the last rule, and the first as it was.
 */
#pragma once

#include "base/err.h"
#include "guest/net_bpf.h"

/* Own addresses, rules and routes of the calling process's network namespace, once. Returns 0 or a
 * negative errno with err filled. */
int net_route_set_up(struct err *err);

/*
 * Opens a netlink socket on which changes of addresses arrive (*ret_fd, non-blocking, owned by the
 * caller), and puts the addresses that there are into the map. Returns 0 or a negative errno.
 */
int net_route_watch(const struct net_bpf *bpf, int *ret_fd);

/* Takes what has arrived into the map. */
void net_route_changed(const struct net_bpf *bpf, int fd);
