/* TCP sockets of the host that lead into a machine: for network.ports and `box forward`. */
#pragma once

#include <stdint.h>

#include "base/err.h"

/*
 * Listens on a literal IPv4 or IPv6 address of this host (trusted: the user's own). port 0 is any
 * free one. *ret_port, when not NULL, is the one taken. Returns a non-blocking, close-on-exec
 * descriptor, or a negative errno with err filled (-EADDRINUSE: "port-taken").
 */
int ipc_tcp_listen(const char *address, uint16_t port, uint16_t *ret_port, struct err *err);
