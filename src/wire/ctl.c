#include "wire/ctl.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "wire/bytes.h"
#include "wire/frame.h"

/* The largest errno that Linux passes through a return value. */
#define ERRNO_MAX 4095
#define EXEC_FLAGS (WIRE_EXEC_TERMINAL | WIRE_EXEC_STDIN | WIRE_EXEC_SELF)

static int written(const struct wire_writer *writer)
{
	return writer->failed ? -EMSGSIZE : (int)writer->size;
}

static int checked(const struct wire_reader *reader)
{
	return wire_reader_done(reader) ? 0 : -EBADMSG;
}

static void get_copy(struct wire_reader *reader, uint8_t *out, size_t size)
{
	const uint8_t *bytes = wire_get_bytes(reader, size);

	if (bytes) {
		memcpy(out, bytes, size);
	}
}

int wire_hello_encode(const struct wire_hello *hello, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_PAYLOAD_MAX);

	wire_put_u32(&writer, hello->magic);
	wire_put_u16(&writer, hello->version);
	return written(&writer);
}

int wire_hello_decode(const uint8_t *payload, size_t size, struct wire_hello *ret_hello)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	struct wire_hello hello = {
		.magic = wire_get_u32(&reader),
		.version = wire_get_u16(&reader),
	};

	if (checked(&reader) < 0 || hello.magic != WIRE_MAGIC) {
		return -EBADMSG;
	}
	*ret_hello = hello;
	return 0;
}

int wire_setup_encode(const struct wire_setup *setup, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_PAYLOAD_MAX);

	wire_put_u32(&writer, setup->flags);
	wire_put_u64(&writer, setup->realtime_ns);
	wire_put_bytes(&writer, setup->nonce, sizeof(setup->nonce));
	wire_put_bytes(&writer, setup->seed, sizeof(setup->seed));
	wire_put_bytes(&writer, setup->machine_id, sizeof(setup->machine_id));
	wire_put_string(&writer, setup->hostname);
	return written(&writer);
}

int wire_setup_decode(const uint8_t *payload, size_t size, struct wire_setup *ret_setup)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	struct wire_setup setup;

	setup.flags = wire_get_u32(&reader);
	setup.realtime_ns = wire_get_u64(&reader);
	get_copy(&reader, setup.nonce, sizeof(setup.nonce));
	get_copy(&reader, setup.seed, sizeof(setup.seed));
	get_copy(&reader, setup.machine_id, sizeof(setup.machine_id));
	setup.hostname = wire_get_string(&reader);
	if (checked(&reader) < 0 || strlen(setup.hostname) > WIRE_HOSTNAME_MAX ||
	    (setup.flags & ~(uint32_t)(WIRE_SETUP_DATA | WIRE_SETUP_READONLY)) != 0) {
		return -EBADMSG;
	}
	*ret_setup = setup;
	return 0;
}

int wire_ready_encode(const struct wire_ready *ready, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_PAYLOAD_MAX);

	wire_put_bytes(&writer, ready->nonce, sizeof(ready->nonce));
	wire_put_string(&writer, ready->release);
	wire_put_string(&writer, ready->version);
	wire_put_string(&writer, ready->boot_id);
	return written(&writer);
}

int wire_ready_decode(const uint8_t *payload, size_t size, struct wire_ready *ret_ready)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	struct wire_ready ready;

	get_copy(&reader, ready.nonce, sizeof(ready.nonce));
	ready.release = wire_get_string(&reader);
	ready.version = wire_get_string(&reader);
	ready.boot_id = wire_get_string(&reader);
	if (checked(&reader) < 0) {
		return -EBADMSG;
	}
	*ret_ready = ready;
	return 0;
}

int wire_error_encode(const struct wire_error *error, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_PAYLOAD_MAX);

	wire_put_u32(&writer, error->error);
	wire_put_string(&writer, error->text);
	return written(&writer);
}

int wire_error_decode(const uint8_t *payload, size_t size, struct wire_error *ret_error)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	struct wire_error error = {.error = wire_get_u32(&reader)};

	error.text = wire_get_string(&reader);
	/* An error of 0 would read as success on the way up. */
	if (checked(&reader) < 0 || error.error == 0 || error.error > ERRNO_MAX) {
		return -EBADMSG;
	}
	*ret_error = error;
	return 0;
}

int wire_exit_encode(const struct wire_exit *exit, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_PAYLOAD_MAX);

	wire_put_u32(&writer, exit->kind);
	wire_put_u32(&writer, exit->value);
	return written(&writer);
}

int wire_exit_decode(const uint8_t *payload, size_t size, struct wire_exit *ret_exit)
{
	/* What value may be, by kind: an exit code, a signal of Linux, an errno of Linux. */
	static const uint32_t value_max[] = {
		[WIRE_EXITED] = 255, [WIRE_SIGNALED] = 64, [WIRE_NOT_STARTED] = ERRNO_MAX};
	struct wire_reader reader = wire_reader_over(payload, size);
	struct wire_exit exit = {
		.kind = wire_get_u32(&reader),
		.value = wire_get_u32(&reader),
	};

	if (checked(&reader) < 0 || exit.kind >= ARRAY_SIZE(value_max) ||
	    exit.value > value_max[exit.kind]) {
		return -EBADMSG;
	}
	if (exit.kind != WIRE_EXITED && exit.value == 0) {
		return -EBADMSG;
	}
	*ret_exit = exit;
	return 0;
}

int wire_u32_encode(uint32_t value, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_PAYLOAD_MAX);

	wire_put_u32(&writer, value);
	return written(&writer);
}

int wire_u32_decode(const uint8_t *payload, size_t size, uint32_t *ret_value)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	uint32_t value = wire_get_u32(&reader);

	if (checked(&reader) < 0) {
		return -EBADMSG;
	}
	*ret_value = value;
	return 0;
}

int wire_time_encode(uint64_t token, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_PAYLOAD_MAX);

	wire_put_u64(&writer, token);
	return written(&writer);
}

int wire_time_decode(const uint8_t *payload, size_t size, uint64_t *ret_token)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	uint64_t token = wire_get_u64(&reader);

	if (checked(&reader) < 0) {
		return -EBADMSG;
	}
	*ret_token = token;
	return 0;
}

int wire_time_answer_encode(uint64_t token, uint64_t realtime_ns, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_PAYLOAD_MAX);

	wire_put_u64(&writer, token);
	wire_put_u64(&writer, realtime_ns);
	return written(&writer);
}

int wire_time_answer_decode(const uint8_t *payload, size_t size, uint64_t *ret_token,
			    uint64_t *ret_realtime_ns)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	uint64_t token = wire_get_u64(&reader);
	uint64_t realtime_ns = wire_get_u64(&reader);

	if (checked(&reader) < 0) {
		return -EBADMSG;
	}
	*ret_token = token;
	*ret_realtime_ns = realtime_ns;
	return 0;
}

int wire_clock_encode(int64_t step_ns, uint8_t *out)
{
	return wire_time_encode((uint64_t)step_ns, out);
}

int wire_clock_decode(const uint8_t *payload, size_t size, int64_t *ret_step_ns)
{
	uint64_t step;
	int rc = wire_time_decode(payload, size, &step);

	if (rc == 0) {
		*ret_step_ns = (int64_t)step;
	}
	return rc;
}

int wire_port_encode(uint16_t port, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_PAYLOAD_MAX);

	wire_put_u16(&writer, port);
	return written(&writer);
}

int wire_port_decode(const uint8_t *payload, size_t size, uint16_t *ret_port)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	uint16_t port = wire_get_u16(&reader);

	if (checked(&reader) < 0 || port == 0) {
		return -EBADMSG;
	}
	*ret_port = port;
	return 0;
}

int wire_window_size_encode(uint16_t rows, uint16_t columns, uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_PAYLOAD_MAX);

	wire_put_u16(&writer, rows);
	wire_put_u16(&writer, columns);
	return written(&writer);
}

int wire_window_size_decode(const uint8_t *payload, size_t size, uint16_t *ret_rows,
			    uint16_t *ret_columns)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	uint16_t rows = wire_get_u16(&reader);
	uint16_t columns = wire_get_u16(&reader);

	if (checked(&reader) < 0) {
		return -EBADMSG;
	}
	*ret_rows = rows;
	*ret_columns = columns;
	return 0;
}

int wire_exec_encode(const struct wire_exec *exec, const char *const *argv, const char *const *envp,
		     uint8_t *out)
{
	struct wire_writer writer = wire_writer_over(out, WIRE_EXEC_MAX);

	wire_put_u32(&writer, exec->flags);
	wire_put_u16(&writer, exec->rows);
	wire_put_u16(&writer, exec->columns);
	wire_put_string(&writer, exec->user);
	wire_put_string(&writer, exec->directory);
	wire_put_u32(&writer, exec->argc);
	wire_put_u32(&writer, exec->envc);
	for (uint32_t i = 0; i < exec->argc; i++) {
		wire_put_string(&writer, argv[i]);
	}
	for (uint32_t i = 0; i < exec->envc; i++) {
		wire_put_string(&writer, envp[i]);
	}
	return written(&writer);
}

static void get_strings(struct wire_reader *reader, uint32_t count, const char **ret_strings)
{
	for (uint32_t i = 0; i < count; i++) {
		ret_strings[i] = wire_get_string(reader);
	}
	ret_strings[count] = NULL;
}

int wire_exec_decode(const uint8_t *payload, size_t size, struct wire_exec *ret_exec,
		     const char **ret_argv, const char **ret_envp)
{
	struct wire_reader reader = wire_reader_over(payload, size);
	struct wire_exec exec;

	exec.flags = wire_get_u32(&reader);
	exec.rows = wire_get_u16(&reader);
	exec.columns = wire_get_u16(&reader);
	exec.user = wire_get_string(&reader);
	exec.directory = wire_get_string(&reader);
	exec.argc = wire_get_u32(&reader);
	exec.envc = wire_get_u32(&reader);
	if (reader.failed || exec.argc < 1 || exec.argc > WIRE_ARGS_MAX ||
	    exec.envc > WIRE_ARGS_MAX || exec.user[0] == '\0' ||
	    (exec.directory[0] != '\0' && exec.directory[0] != '/') ||
	    (exec.flags & ~(uint32_t)EXEC_FLAGS) != 0) {
		return -EBADMSG;
	}
	get_strings(&reader, exec.argc, ret_argv);
	get_strings(&reader, exec.envc, ret_envp);
	if (checked(&reader) < 0) {
		return -EBADMSG;
	}
	*ret_exec = exec;
	return 0;
}
