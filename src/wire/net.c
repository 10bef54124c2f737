#include "wire/net.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "wire/bytes.h"
#include "wire/ctl.h"

#define HAS_V4 1u
#define HAS_V6 2u

/* What a frame of a type looks like from outside. */
struct shape {
	bool from_guest;
	bool from_host;
	bool of_stream;
	bool empty;
};

static const struct shape shapes[] = {
	[NET_HELLO] = {.from_guest = true, .from_host = true},
	[NET_RESOLVE] = {.from_guest = true},
	[NET_RESOLVED] = {.from_host = true},
	[NET_OPEN] = {.from_guest = true, .of_stream = true},
	[NET_OPENED] = {.from_host = true, .of_stream = true, .empty = true},
	[NET_FAILED] = {.from_host = true, .of_stream = true},
	[NET_DATA] = {.from_guest = true, .from_host = true, .of_stream = true},
	[NET_EOF] = {.from_guest = true, .from_host = true, .of_stream = true, .empty = true},
	[NET_CREDIT] = {.from_guest = true, .from_host = true, .of_stream = true},
	[NET_RESET] = {.from_guest = true, .from_host = true, .of_stream = true, .empty = true},
};

int net_frame_check(const struct wire_frame *frame, bool from_guest)
{
	const struct shape *shape;

	/* 0 has no shape: nobody may send it. */
	if (frame->type >= ARRAY_SIZE(shapes) || frame->channel != 0) {
		return -EBADMSG;
	}
	shape = &shapes[frame->type];
	if (!(from_guest ? shape->from_guest : shape->from_host) ||
	    shape->of_stream != (frame->stream != 0) || shape->empty != (frame->length == 0)) {
		return -EBADMSG;
	}
	return 0;
}

static struct wire_writer writer_over(uint8_t *out)
{
	return wire_writer_over(out, WIRE_PAYLOAD_MAX);
}

/* No payload here can be too large for a frame. */
static int written(const struct wire_writer *writer)
{
	ASSERT(!writer->failed);
	return (int)writer->size;
}

static int checked(const struct wire_reader *reader)
{
	return wire_reader_done(reader) ? 0 : -EBADMSG;
}

int net_hello_encode(const struct net_hello *hello, uint8_t *out)
{
	struct wire_writer writer = writer_over(out);

	wire_put_u32(&writer, hello->magic);
	wire_put_u64(&writer, hello->token);
	wire_put_u16(&writer, hello->version);
	return written(&writer);
}

int net_hello_decode(const uint8_t *payload, size_t size, struct net_hello *ret_hello)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	struct net_hello hello = {
		.magic = wire_get_u32(&reader),
		.token = wire_get_u64(&reader),
		.version = wire_get_u16(&reader),
	};

	if (checked(&reader) < 0 || hello.magic != NET_MAGIC) {
		return -EBADMSG;
	}
	*ret_hello = hello;
	return 0;
}

int net_resolve_encode(const struct net_resolve *resolve, uint8_t *out)
{
	struct wire_writer writer = writer_over(out);

	ASSERT(dns_name_valid(resolve->name));
	wire_put_u32(&writer, resolve->token);
	wire_put_string(&writer, resolve->name);
	return written(&writer);
}

int net_resolve_decode(const uint8_t *payload, size_t size, struct net_resolve *ret_resolve)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	struct net_resolve resolve = {.token = wire_get_u32(&reader)};

	resolve.name = wire_get_string(&reader);
	if (checked(&reader) < 0 || !dns_name_valid(resolve.name)) {
		return -EBADMSG;
	}
	*ret_resolve = resolve;
	return 0;
}

int net_resolved_encode(const struct net_resolved *resolved, uint8_t *out)
{
	struct wire_writer writer = writer_over(out);

	ASSERT(resolved->status <= NET_TEMPORARY);
	ASSERT(resolved->status == NET_OK || (!resolved->has_v4 && !resolved->has_v6));
	wire_put_u32(&writer, resolved->token);
	wire_put_u8(&writer, resolved->status);
	wire_put_u8(&writer, (resolved->has_v4 ? HAS_V4 : 0) | (resolved->has_v6 ? HAS_V6 : 0));
	return written(&writer);
}

int net_resolved_decode(const uint8_t *payload, size_t size, struct net_resolved *ret_resolved)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	struct net_resolved resolved = {
		.token = wire_get_u32(&reader),
		.status = wire_get_u8(&reader),
	};
	uint8_t has = wire_get_u8(&reader);

	if (checked(&reader) < 0 || resolved.status > NET_TEMPORARY || has > (HAS_V4 | HAS_V6) ||
	    (resolved.status != NET_OK && has != 0)) {
		return -EBADMSG;
	}
	resolved.has_v4 = has & HAS_V4;
	resolved.has_v6 = has & HAS_V6;
	*ret_resolved = resolved;
	return 0;
}

static bool is_kind(uint8_t kind)
{
	return kind == NET_KIND_NAME || kind == NET_KIND_V4 || kind == NET_KIND_V6;
}

static size_t address_size(uint8_t kind)
{
	return kind == NET_KIND_V4 ? 4 : 16;
}

int net_open_encode(const struct net_open *open, uint8_t *out)
{
	struct wire_writer writer = writer_over(out);

	ASSERT(is_kind(open->kind) && open->port != 0);
	wire_put_u8(&writer, open->kind);
	wire_put_u16(&writer, open->port);
	if (open->kind == NET_KIND_NAME) {
		ASSERT(dns_name_valid(open->name));
		wire_put_string(&writer, open->name);
	} else {
		wire_put_bytes(&writer, open->address, address_size(open->kind));
	}
	return written(&writer);
}

int net_open_decode(const uint8_t *payload, size_t size, struct net_open *ret_open)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	struct net_open open = {.kind = wire_get_u8(&reader)};
	const uint8_t *address = NULL;

	open.port = wire_get_u16(&reader);
	if (open.kind == NET_KIND_NAME) {
		open.name = wire_get_string(&reader);
	} else {
		address = wire_get_bytes(&reader, address_size(open.kind));
	}
	if (checked(&reader) < 0 || !is_kind(open.kind) || open.port == 0 ||
	    (open.name && !dns_name_valid(open.name))) {
		return -EBADMSG;
	}
	if (address) {
		memcpy(open.address, address, address_size(open.kind));
	}
	*ret_open = open;
	return 0;
}

int net_credit_encode(uint32_t bytes, uint8_t *out)
{
	ASSERT(bytes > 0 && bytes <= NET_WINDOW);
	return wire_u32_encode(bytes, out);
}

int net_credit_decode(const uint8_t *payload, size_t size, uint32_t *ret_bytes)
{
	uint32_t bytes;

	if (wire_u32_decode(payload, size, &bytes) < 0 || bytes == 0 || bytes > NET_WINDOW) {
		return -EBADMSG;
	}
	*ret_bytes = bytes;
	return 0;
}

/* What the guest may be told of an error. */
static int told(int error)
{
	switch (error) {
	case EACCES:
	case EPERM:
		return ECONNREFUSED;
	case ECONNREFUSED:
	case ENETUNREACH:
	case ETIMEDOUT:
	case ECONNRESET:
		return error;
	default:
		return EHOSTUNREACH;
	}
}

int net_failed_encode(int error, uint8_t *out)
{
	ASSERT(error > 0);
	return wire_u32_encode((uint32_t)told(error), out);
}

int net_failed_decode(const uint8_t *payload, size_t size, int *ret_error)
{
	uint32_t error;

	if (wire_u32_decode(payload, size, &error) < 0 || error > INT32_MAX ||
	    told((int)error) != (int)error) {
		return -EBADMSG;
	}
	*ret_error = (int)error;
	return 0;
}
