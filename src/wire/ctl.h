/*
 * The control port `box.ctl`: what the keeper and box-guest say to each other.
 *
 * Which message is legal when (anything else: -EBADMSG, the port is closed):
 *
 *   guest state   from the host                        from the guest
 *   waiting       HELLO, then SETUP                    HELLO (answer), READY or ERROR (answer)
 *   running       EXEC, DATA, EOF, CREDIT, SIGNAL,     STARTED, DATA, EOF, CREDIT, EXIT, LOG
 *                 WINDOW, CLOSE, FREEZE, SHUTDOWN
 *   freezing      nothing                              FROZEN; the guest is then waiting again
 *   going down    nothing                              BYE, always the last frame
 *
 * A machine that was restored from a snapshot is in the state waiting, because FREEZE came before
 * the snapshot. So boot and restore begin alike: the host sends HELLO and SETUP, and nothing runs
 * in the guest before SETUP has made it distinct.
 *
 * A stream is one command. The host chooses its number, never 0 and never one that is in use.
 * Channel 0 carries stdin to the guest, 1 and 2 carry stdout and stderr to the host (with a
 * terminal all output is on 1). A sender may have at most WIRE_WINDOW bytes of one channel under
 * way; the receiver grants more with CREDIT when it has passed bytes on. EXIT may come before the
 * last output; a stream has ended when EXIT and the EOF of channels 1 and 2 have come (EOF of
 * channel 2 also comes with a terminal). For a command that could not be started EXIT and both
 * EOFs come as well, without STARTED.
 *
 * EXEC may need more than one frame: all but the last have channel 1 ("more follows"), the
 * payloads are joined. Input for a stream that has ended is dropped without complaint, since the
 * two sides cross on the way.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_CTL_PORT_NAME "box.ctl"
#define WIRE_MAGIC 0x31786f62u
#define WIRE_VERSION 1

/* One channel's bytes under way. Large enough for full speed, small enough times all streams. */
#define WIRE_WINDOW 262144u
/* Streams at once in one machine. */
#define WIRE_STREAMS_MAX 256
/* A whole EXEC: arguments and environment. Twice what ordinary shells are asked to pass. */
#define WIRE_EXEC_MAX 262144u
#define WIRE_ARGS_MAX 4096
#define WIRE_NONCE_SIZE 32
#define WIRE_SEED_SIZE 64
#define WIRE_MACHINE_ID_SIZE 16
#define WIRE_HOSTNAME_MAX 64

enum wire_ctl_type {
	/* Both ways. struct wire_hello */
	WIRE_HELLO = 1,
	/* To the guest. struct wire_setup */
	WIRE_SETUP = 2,
	/* From the guest, SETUP was carried out. struct wire_ready */
	WIRE_READY = 3,
	/* From the guest, SETUP or FREEZE failed. struct wire_error */
	WIRE_ERROR = 4,
	/* To the guest. struct wire_exec, in one or more frames */
	WIRE_EXEC = 5,
	/* From the guest. u32 process ID inside */
	WIRE_STARTED = 6,
	/* Both ways. Bytes of a channel */
	WIRE_DATA = 7,
	/* Both ways. Empty: the channel has ended */
	WIRE_EOF = 8,
	/* Both ways. u32 bytes that may be sent in addition on that channel */
	WIRE_CREDIT = 9,
	/* To the guest. u32 signal number, for the command's process group */
	WIRE_SIGNAL = 10,
	/* To the guest. u16 rows, u16 columns of the terminal */
	WIRE_WINDOW_SIZE = 11,
	/* To the guest. Empty: kill the command's process group, then end the stream as usual */
	WIRE_CLOSE = 12,
	/* From the guest. struct wire_exit */
	WIRE_EXIT = 13,
	/* From the guest. A line for a person, not NUL-terminated, at most 1,024 bytes. The first
	 * of a stream says why its command could not be tried; all others are dropped */
	WIRE_LOG = 14,
	/* To the guest. Empty: end all commands, sync, unmount /data, be ready for a snapshot */
	WIRE_FREEZE = 15,
	/* From the guest. Empty */
	WIRE_FROZEN = 16,
	/* To the guest. Empty: end all commands, unmount /data, say BYE. On channel 1 the root is
	 * written to its disk and made read-only too; on channel 0 it is not, because most roots
	 * are thrown away with their machine */
	WIRE_SHUTDOWN = 17,
	/* From the guest. Empty: everything is on the disks; the machine may be ended */
	WIRE_BYE = 18,
};

struct wire_hello {
	uint32_t magic;
	uint16_t version;
};

enum wire_setup_flags {
	/* Mount the disk with serial "data" at /data. */
	WIRE_SETUP_DATA = 1u << 0,
	/* Keep the root file system read-only; /tmp, /run and /data stay writable. */
	WIRE_SETUP_READONLY = 1u << 1,
};

struct wire_setup {
	uint32_t flags;
	/* CLOCK_REALTIME of the host, nanoseconds since 1970. */
	uint64_t realtime_ns;
	uint8_t nonce[WIRE_NONCE_SIZE];
	uint8_t seed[WIRE_SEED_SIZE];
	uint8_t machine_id[WIRE_MACHINE_ID_SIZE];
	/* Points into the payload when decoded. At most WIRE_HOSTNAME_MAX bytes. */
	const char *hostname;
};

struct wire_ready {
	/* The nonce of SETUP, so that an answer of another machine or another life is noticed. */
	uint8_t nonce[WIRE_NONCE_SIZE];
	/* uname(2) of the guest's kernel. */
	const char *release;
	const char *version;
	/* /proc/sys/kernel/random/boot_id of the kernel itself, as text. */
	const char *boot_id;
};

struct wire_error {
	/* An errno, 1 to 4095. */
	uint32_t error;
	const char *text;
};

enum wire_exec_flags {
	/* A pseudo-terminal instead of three pipes; the command leads a session of its own. */
	WIRE_EXEC_TERMINAL = 1u << 0,
	/* Channel 0 will be used. Without it stdin is /dev/null (a terminal's is silent). */
	WIRE_EXEC_STDIN = 1u << 1,
};

struct wire_exec {
	uint32_t flags;
	uint16_t rows;
	uint16_t columns;
	/* A user name, or a decimal user ID. Never empty. */
	const char *user;
	/* Absolute, or empty for the user's home (and / when that is missing). */
	const char *directory;
	/* argc is 1 to WIRE_ARGS_MAX, envc 0 to WIRE_ARGS_MAX ("KEY=VALUE"). */
	uint32_t argc;
	uint32_t envc;
};

enum wire_exit_kind {
	/* value is the exit code, 0 to 255. */
	WIRE_EXITED = 0,
	/* value is the signal's number. */
	WIRE_SIGNALED = 1,
	/* value is the errno of execve(2). When a LOG of the stream came before, the command could
	 * not even be tried (no such user, no such directory), and value is the errno of that. */
	WIRE_NOT_STARTED = 2,
};

struct wire_exit {
	uint32_t kind;
	uint32_t value;
};

/*
 * Encoders write one payload to out and return its size; out holds at least WIRE_PAYLOAD_MAX
 * bytes (wire_exec: WIRE_EXEC_MAX). Return -EMSGSIZE when it does not fit.
 *
 * Decoders check everything about a payload that can be checked without its surroundings: sizes,
 * ranges, terminated strings, no byte left over. They return 0 or -EBADMSG. Decoded strings point
 * into the payload.
 */
int wire_hello_encode(const struct wire_hello *hello, uint8_t *out);
int wire_hello_decode(const uint8_t *payload, size_t size, struct wire_hello *ret_hello);
int wire_setup_encode(const struct wire_setup *setup, uint8_t *out);
int wire_setup_decode(const uint8_t *payload, size_t size, struct wire_setup *ret_setup);
int wire_ready_encode(const struct wire_ready *ready, uint8_t *out);
int wire_ready_decode(const uint8_t *payload, size_t size, struct wire_ready *ret_ready);
int wire_error_encode(const struct wire_error *error, uint8_t *out);
int wire_error_decode(const uint8_t *payload, size_t size, struct wire_error *ret_error);
int wire_exit_encode(const struct wire_exit *exit, uint8_t *out);
int wire_exit_decode(const uint8_t *payload, size_t size, struct wire_exit *ret_exit);
int wire_u32_encode(uint32_t value, uint8_t *out);
int wire_u32_decode(const uint8_t *payload, size_t size, uint32_t *ret_value);
int wire_window_size_encode(uint16_t rows, uint16_t columns, uint8_t *out);
int wire_window_size_decode(const uint8_t *payload, size_t size, uint16_t *ret_rows,
			    uint16_t *ret_columns);

/* argv and envp are arrays of exec->argc and exec->envc strings. */
int wire_exec_encode(const struct wire_exec *exec, const char *const *argv, const char *const *envp,
		     uint8_t *out);

/*
 * Decodes a joined EXEC. ret_argv and ret_envp hold WIRE_ARGS_MAX + 1 pointers each and are
 * NULL-terminated.
 */
int wire_exec_decode(const uint8_t *payload, size_t size, struct wire_exec *ret_exec,
		     const char **ret_argv, const char **ret_envp);
