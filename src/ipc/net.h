/*
 * Messages between the keeper of a machine and its box-net, which makes the machine's connections.
 *
 * One message is one struct ipc_net_message in one packet of a SOCK_SEQPACKET socket. The keeper
 * trusts nothing that comes from box-net, because box-net reads what a guest wrote: ipc_net_decode
 * judges every byte that has a meaning.
 *
 * box-net is started by the keeper, jailed, with these descriptors and no arguments:
 *
 *     3  the machine's port box.net, a SOCK_STREAM socket
 *     4  the control socket, these messages
 *     5  /etc/resolv.conf as the keeper read it, a memory file; may be empty
 *     6  /etc/hosts, the same
 *
 * Both files change when a host comes to another network. box-net asks the keeper to look before it
 * looks for names, at most once a second, and gets the one that has changed.
 *
 * A host whose connections go through an HTTP proxy says so by one IPC_NET_PROXY before the first
 * policy.
 *
 * Until the first IPC_NET_POLICY everything that the guest asks for is refused. Each policy takes
 * the place of the one before, whole; connections that it does not allow are cut. The keeper owns
 * box-net: when the control socket closes, box-net ends with exit code 0.
 *
 * Events are never dropped. When the keeper does not read, box-net stops reading from the guest, so
 * nothing is connected that is not told. What box-net exits with is in EXIT_*; a line on its
 * standard error says why.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IPC_NET_PORT_FD 3
#define IPC_NET_CONTROL_FD 4
#define IPC_NET_RESOLVER_FD 5
#define IPC_NET_HOSTS_FD 6
/* Names of the host's own. A larger file is cut at the last whole line. */
#define IPC_NET_FILE_MAX (256 * 1024)

/* A name of at most 253 bytes and a NUL; an address as text; a rule, with its action. */
#define IPC_NET_NAME_SIZE 256
#define IPC_NET_ADDRESS_SIZE 48
#define IPC_NET_RULE_SIZE 280
#define IPC_NET_WORDS_SIZE 64
#define IPC_NET_TEXT_SIZE 256
#define IPC_NET_SECRET_SIZE 512

enum ipc_net_type {
	/* Keeper to box-net: one sealed memory file with policy_encode's bytes; policy.serial.
	 * Bytes that are no policy end box-net: it never goes on with less than it was told. */
	IPC_NET_POLICY = 1,
	/* Keeper to box-net: struct ipc_net_proxy, and a memory file as above: what its policy
	 * denies is reached without the proxy. */
	IPC_NET_PROXY = 2,
	/* Keeper to box-net: one of the two files as it is now, as its memory file. */
	IPC_NET_RESOLVER = 3,
	IPC_NET_HOSTS = 4,

	/* box-net to keeper: struct ipc_net_event. */
	IPC_NET_EVENT = 32,
	/* box-net to keeper: struct ipc_net_limit. */
	IPC_NET_LIMIT = 33,
	/* box-net to keeper: the policy with policy.serial is in force. Answers each
	 * IPC_NET_POLICY; a command of the machine may start after the first. */
	IPC_NET_READY = 34,
	/* box-net to keeper: have the files changed? They come when they have. */
	IPC_NET_LOOK = 35,
};

/* What an event is about. */
enum ipc_net_kind {
	/* A question for a name was answered. port is 0. */
	IPC_NET_ASKED = 1,
	/* A connection was refused, failed (error) or was made. When it was made, IPC_NET_ENDED
	 * with the same id follows some time. */
	IPC_NET_CONNECTED = 2,
	/* A connection that was made has ended. Everything that was said of it is repeated. */
	IPC_NET_ENDED = 3,
};

/* Why it was decided so, beyond what enum policy_reason (policy/network.h) has: reason has either
 * one of those or one of these. */
enum ipc_net_reason {
	/* There was no policy yet. */
	IPC_NET_NO_POLICY = 64,
	/* limits.connections, or limits.bytes some time before. */
	IPC_NET_NO_CONNECTIONS = 65,
	IPC_NET_NO_BYTES = 66,
};

/* How a connection ended. */
enum ipc_net_end {
	/* Both sides had said that no more bytes come. */
	IPC_NET_END_BOTH = 1,
	/* By a reset of the program inside (or its machine's agent), of the server. */
	IPC_NET_END_GUEST = 2,
	IPC_NET_END_SERVER = 3,
	/* A new policy does not allow it, or a limit was reached. */
	IPC_NET_END_POLICY = 4,
	IPC_NET_END_LIMIT = 5,
	/* The guest's side began anew, or the port was closed. */
	IPC_NET_END_PORT = 6,
};

enum ipc_net_note {
	IPC_NET_NOTE_NONE = 0,
	/* The TLS client inside named another server (sni) than the one it connected to. */
	IPC_NET_NOTE_SNI = 1,
};

/* event.proxy when the proxy has answered nothing yet, or nothing that is HTTP. */
#define IPC_NET_PROXY_SILENT 1
#define IPC_NET_PROXY_STATUS_MAX 599

struct ipc_net_event {
	/* enum ipc_net_kind, policy_reason or ipc_net_reason, ipc_net_end (IPC_NET_ENDED only,
	 * otherwise 0), ipc_net_note. */
	uint8_t kind;
	uint8_t reason;
	uint8_t end;
	uint8_t note;
	/* 0 or 1: whether the policy allowed it. */
	uint8_t allowed;
	/* enum net_status (wire/net.h), IPC_NET_ASKED only, otherwise 0. */
	uint8_t status;
	uint16_t port;
	/* The errno that connecting ended with, as it was on the host, or that cut a connection; 0
	 * otherwise. */
	uint32_t error;
	/* 0: made without a proxy. Else the status with which it has answered, or
	 * IPC_NET_PROXY_SILENT. Then the address is not known: the proxy has found it. */
	uint16_t proxy;
	/* Counts from 1; the same for both events of a connection. */
	uint64_t id;
	/* clock_realtime_ns when it was asked for. */
	uint64_t time_ns;
	/* Since then. */
	uint64_t duration_ns;
	/* Bytes from the guest to the server, and back. */
	uint64_t bytes_up;
	uint64_t bytes_down;
	/* What was asked for: a name, or a literal address in its canonical spelling. Letters,
	 * digits, and "-_.:" only. */
	char host[IPC_NET_NAME_SIZE];
	/* The address that was connected to, or that made the verdict; or "". */
	char address[IPC_NET_ADDRESS_SIZE];
	/* The rule that made the verdict, such as "deny *.example.com", or "". */
	char rule[IPC_NET_RULE_SIZE];
	/* With POLICY_NO_SPECIAL the range that the address is in, such as "loopback"; or "". */
	char special[IPC_NET_WORDS_SIZE];
	/* With IPC_NET_NOTE_SNI: the other name, of the same letters. */
	char sni[IPC_NET_NAME_SIZE];
};

enum ipc_net_limit_kind {
	/* As many connections as limits.connections were open, and another was asked for. Said
	 * once; the machine keeps its network, and each refusal is an event. */
	IPC_NET_LIMIT_CONNECTIONS = 1,
	/* limits.bytes is used up. All connections are cut, nothing is connected any more. */
	IPC_NET_LIMIT_BYTES = 2,
	/* The guest's agent broke the rules of the port: text says which. The port is closed; the
	 * keeper ends the machine. */
	IPC_NET_LIMIT_PROTOCOL = 3,
	/* The other end of the port is gone: the monitor ends. */
	IPC_NET_LIMIT_CLOSED = 4,
};

struct ipc_net_limit {
	/* enum ipc_net_limit_kind */
	uint32_t kind;
	/* The limit that was reached, where it is a number. */
	uint64_t value;
	/* For a person: printable ASCII. */
	char text[IPC_NET_TEXT_SIZE];
};

struct ipc_net_proxy {
	/* A name, or an address in its canonical spelling. */
	char host[IPC_NET_NAME_SIZE];
	/* What goes behind "Proxy-Authorization: Basic", or "". */
	char authorization[IPC_NET_SECRET_SIZE];
	uint16_t port;
};

struct ipc_net_message {
	uint32_t type;
	union {
		struct ipc_net_proxy proxy;
		struct {
			/* The keeper's, so that it knows which one is in force. */
			uint32_t serial;
		} policy;
		struct ipc_net_event event;
		struct ipc_net_limit limit;
	};
};

/*
 * Decodes a received packet of size bytes that came with or without a descriptor: its size is that
 * of the struct, its type is known, what comes with a memory file has a descriptor and nothing else
 * has, every field that has a range is in it, and every text has its NUL and only such characters
 * as are said above, so that it can be printed as it is. Does no I/O. Returns 0 or -EBADMSG with
 * *ret_message untouched.
 */
int ipc_net_decode(const void *packet, size_t size, bool has_fd,
		   struct ipc_net_message *ret_message);

/*
 * Sends one message that ipc_net_decode accepts. fd is its memory file, or -EBADF; the caller keeps
 * it. Returns 0 or a negative errno (-EAGAIN on a non-blocking socket, -EPIPE when the
 * peer is gone; no signal is raised).
 */
int ipc_net_send(int socket, const struct ipc_net_message *message, int fd);

/*
 * Receives one message. *ret_fd is the caller's, close-on-exec, or -EBADF. Returns 1, 0 when the
 * peer has closed, -EAGAIN on a non-blocking socket, -EBADMSG for what ipc_net_decode refuses, or a
 * negative errno.
 */
int ipc_net_receive(int socket, struct ipc_net_message *ret_message, int *ret_fd);
