/*
 * The server name in the first bytes that a TLS client sends (RFC 8446, 4.1.2; RFC 6066, 3). Pure.
 *
 * It is for a note in a log and decides nothing: a client that wants to hide the name can (it can
 * encrypt it, or leave it out). So whatever is not read without doubt counts as no name.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "wire/dns.h"

/* As much of a stream's beginning as is worth waiting for: a hello has 300 to 2,000 bytes. */
#define TLS_HELLO_MAX 4096

/*
 * Looks for the name in the first size bytes of a stream (not trusted). A hello may be cut into
 * records anywhere. Returns 1 with *ret_name, valid as dns_name_valid says, in lower case; 0 when
 * more bytes are needed to tell; -ENOENT when there is a hello without a name; -EBADMSG when this
 * is no hello, or a broken one, or its name is no host's.
 */
int tls_server_name(const uint8_t *data, size_t size, char ret_name[DNS_NAME_MAX + 1]);
