/*
 * Sockets to the machine's own loopback. Nothing here waits.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Begins to connect to a port of 127.0.0.1, or of ::1. The new socket is non-blocking and
 * close-on-exec, sends small pieces at once (TCP_NODELAY), and notices a peer that is gone
 * (SO_KEEPALIVE). Returns 0 when it is connected, -EINPROGRESS when poll(2) will say POLLOUT, both
 * with *ret_fd, or another negative errno without.
 */
int tcp_connect(uint16_t port, bool ipv6, int *ret_fd);

/* After POLLOUT: 0 when the socket is connected, otherwise a negative errno. */
int tcp_connected(int fd);

/* Makes the socket's last close(2) reset the connection instead of ending it in order. */
void tcp_abort(int fd);
