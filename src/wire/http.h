/*
 * The head of an HTTP response (RFC 9112, 2 to 5), as much of it as a client of a proxy needs: its
 * status and its end. Pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * Looks at the first size bytes of a response (not trusted). *ret_status is the status, 100 to 599,
 * as soon as the status line is there, else 0. Returns the size of the head with the empty line
 * that ends it; 0 when more bytes are needed; or -EBADMSG for what is no response of HTTP/1.0 or
 * 1.1.
 */
int http_response_head(const uint8_t *data, size_t size, unsigned *ret_status);
