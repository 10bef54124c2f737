/*
 * The control port `box.ctl`: what the keeper and box-guest say to each other.
 *
 * Which message is legal when (anything else: -EBADMSG, the port is closed):
 *
 *   guest state   from the host                        from the guest
 *   waiting       HELLO, then SETUP                    HELLO (answer), READY or ERROR (answer)
 *   running       EXEC, TCP, DATA, EOF, CREDIT,        STARTED, DATA, EOF, CREDIT, EXIT, LOG,
 *                 SIGNAL, WINDOW, CLOSE, TIME,         TIME, and the answer to ATTACH or DETACH:
 *                 CLOCK, ATTACH, DETACH, FREEZE,       ATTACHED, DETACHED or ERROR; PAUSED with
 *                 PAUSE, RESUME, SHUTDOWN              an error as the answer to PAUSE
 *   paused        RESUME; or HELLO, then SETUP         PAUSED, and nothing after it; the answers
 *                                                      to HELLO and SETUP
 *   freezing      nothing                              FROZEN; the guest is then waiting again
 *   going down    nothing                              BYE or ERROR, always the last frame
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
 * A stream may also be one TCP connection to a port of the guest's own loopback (TCP instead of
 * EXEC): channel 0 carries bytes to the guest, channel 1 bytes from it, an EOF is a half-close.
 * STARTED says that it is connected, EXIT with WIRE_NOT_STARTED and an errno that it cannot be.
 * When both directions have ended EXIT comes with WIRE_EXITED and 0, after a reset with 1. CLOSE
 * resets the connection. EOF of channel 2 comes as well.
 *
 * TIME asks for the guest's clock: the guest answers at once with the token that it was given. The
 * host works out how far the clock is off and says so with CLOCK. Only when the host has left at
 * least eight answers unread may one stay out.
 *
 * PAUSE makes the guest keep still, so that its disk, or all of it, can be copied: /data's file
 * system is frozen, on channel 1 all commands as well, and what output there is waits. RESUME lets
 * everything go on as if nothing had been; it is legal and means nothing when the guest goes on
 * already. A guest that hears nothing for WIRE_PAUSE_MAX_MS of its own time goes on by itself, as
 * after RESUME: whoever wants to rely on a pause stops the machine before that.
 *
 * A copy of a paused machine gets HELLO and SETUP instead: a new life with another host's end. Only
 * when SETUP has made it distinct /data and the commands go on. Commands keep the numbers of their
 * streams, and what was said about them is said; only the windows begin anew: the guest may send
 * WIRE_WINDOW bytes of each output that has not ended, and the host nothing before it gets CREDIT.
 * TCP connections are reset without a word. The host's end knows what there is from the one that
 * asked for the pause.
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
#define WIRE_VERSION 4

/* One channel's bytes under way: what a pipe holds. That is enough for full speed, and little
 * enough times both outputs of all streams, none of which may be read: 32 MiB. */
#define WIRE_WINDOW 65536u
/* Streams at once in one machine. */
#define WIRE_STREAMS_MAX 256
/* A whole EXEC: arguments and environment. Twice what ordinary shells are asked to pass. */
#define WIRE_EXEC_MAX 262144u
#define WIRE_ARGS_MAX 4096
#define WIRE_NONCE_SIZE 32
#define WIRE_SEED_SIZE 64
#define WIRE_MACHINE_ID_SIZE 16
#define WIRE_HOSTNAME_MAX 64
/* Far longer than the host needs to stop a machine that has answered PAUSE, and short enough that
 * programs inside do not take it for the end. */
#define WIRE_PAUSE_MAX_MS 15000u

enum wire_ctl_type {
	/* Both ways. struct wire_hello */
	WIRE_HELLO = 1,
	/* To the guest. struct wire_setup */
	WIRE_SETUP = 2,
	/* From the guest, SETUP was carried out. struct wire_ready */
	WIRE_READY = 3,
	/* From the guest, SETUP, FREEZE, ATTACH or DETACH failed, or, in place of BYE, not all of
	 * /data could be written. struct wire_error */
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
	/* To the guest: u64 token. From the guest: u64 the same token, u64 CLOCK_REALTIME in ns */
	WIRE_TIME = 19,
	/* To the guest. i64 nanoseconds by which CLOCK_REALTIME is to be stepped */
	WIRE_CLOCK = 20,
	/* To the guest. u16 port, 1 to 65535: open a stream to it on the loopback */
	WIRE_TCP = 21,
	/* To the guest. Empty: mount the disk "data" at /data, which has none mounted now
	 * (otherwise ERROR with EBUSY). Commands go on */
	WIRE_ATTACH = 22,
	/* From the guest. Empty. When it could not be mounted: ERROR, and the guest goes down */
	WIRE_ATTACHED = 23,
	/* To the guest. Empty: end all commands and unmount /data, if it is mounted; the disk may
	 * then be replaced. Streams are gone without EXIT, their numbers are free */
	WIRE_DETACH = 24,
	/* From the guest. Empty. When it could not be unmounted: ERROR, and the guest goes down */
	WIRE_DETACHED = 25,
	/* To the guest. Empty: freeze /data, on channel 1 the commands too, and keep still */
	WIRE_PAUSE = 26,
	/* From the guest. u32 0; or the errno of what kept it from pausing: it then goes on */
	WIRE_PAUSED = 27,
	/* To the guest. Empty: go on as before PAUSE */
	WIRE_RESUME = 28,
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
	/* Run box-guest itself instead of a program of the image; argv says as what (guest/main.c).
	 */
	WIRE_EXEC_SELF = 1u << 2,
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
int wire_time_encode(uint64_t token, uint8_t *out);
int wire_time_decode(const uint8_t *payload, size_t size, uint64_t *ret_token);
int wire_time_answer_encode(uint64_t token, uint64_t realtime_ns, uint8_t *out);
int wire_time_answer_decode(const uint8_t *payload, size_t size, uint64_t *ret_token,
			    uint64_t *ret_realtime_ns);
int wire_clock_encode(int64_t step_ns, uint8_t *out);
int wire_clock_decode(const uint8_t *payload, size_t size, int64_t *ret_step_ns);
int wire_port_encode(uint16_t port, uint8_t *out);
/* A port of 0 is -EBADMSG. */
int wire_port_decode(const uint8_t *payload, size_t size, uint16_t *ret_port);
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
