/*
 * box-net from inside: the parts of one process that makes a machine's connections. Everything is
 * in one struct net, of fixed size; who owns what is said at each part.
 *
 *     port.c      the port box.net: frames in, frames out
 *     question.c  what the guest asks for names
 *     stream.c    one connection of the guest, from OPEN to its end; its bytes
 *     dial.c      the attempts to connect to one of a name's addresses
 *     proxy.c     asking an HTTP proxy for a connection
 *     report.c    the keeper: policies in, events out
 *     resolver.c, conf.c, pace.c    stand for themselves
 *
 * A stream's struct may be free again after any call that says so. Nothing that was freed is looked
 * at: each caller returns at once.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/loop.h"
#include "ipc/net.h"
#include "net/conf.h"
#include "net/pace.h"
#include "net/resolver.h"
#include "policy/network.h"
#include "wire/frame.h"
#include "wire/net.h"
#include "wire/tls.h"

/*
 * Connections that the guest has done with, while the server has not yet taken all of its bytes.
 * When there are more the oldest is cut.
 */
#define LINGER_MAX 256
#define SLOTS (NET_STREAMS_MAX + LINGER_MAX)
/* A power of two; streams by their number, which the guest counts up. */
#define BUCKETS 2048
/* Addresses of one name that are tried, of both kinds. */
#define CANDIDATES_MAX 8
/* Attempts at once for one connection. */
#define ATTEMPTS_MAX 4
/* What waits for the keeper: when it is more than a few, nothing is begun. What was begun says at
 * most two things for each stream and one for each question; a limit and a policy some more. */
#define REPORTS_STALL 64
#define REPORTS_MAX (REPORTS_STALL + 2 * SLOTS + NET_QUESTIONS_MAX + 64)
/* Enough to write while the monitor reads, and little to wait behind. */
#define OUT_SIZE (4 * WIRE_FRAME_MAX)

struct net;
struct stream;

enum stream_state {
	STREAM_FREE = 0,
	/* For its turn to begin. */
	STREAM_WAITING,
	STREAM_RESOLVING,
	STREAM_CONNECTING,
	STREAM_OPEN,
	/* The guest has done with it, some bytes are still on their way. It has no number. */
	STREAM_LINGERING,
	/* Over; the guest must be told. */
	STREAM_OVER,
};

/* What the guest must be told of a stream, in the order in which it is said. */
enum say {
	SAY_OPENED = 1,
	SAY_FAILED = 2,
	SAY_CREDIT = 4,
	SAY_EOF = 8,
	SAY_RESET = 16,
};

struct attempt {
	struct stream *stream;
	/* -EBADF: none. */
	int fd;
	struct policy_address address;
};

struct stream {
	struct net *net;
	/* enum stream_state */
	uint8_t state;
	/* enum net_kind; the literal address. A name is in event.host. */
	uint8_t kind;
	struct policy_address literal;
	uint32_t number;
	struct stream *next_of_bucket;

	/* Dialing: dial.c. */
	struct lookup *lookup;
	struct policy_address candidates[CANDIDATES_MAX];
	size_t candidate_count;
	size_t next_candidate;
	struct attempt attempts[ATTEMPTS_MAX];
	uint64_t next_attempt_ns;
	/* The candidates are the proxy's, and it is asked for the host. */
	bool by_proxy;
	/* Of connecting, of lingering. */
	uint64_t deadline_ns;
	/* The errno that tells most so far. */
	int error;

	/* Connected: stream.c. Owned; what the loop watches it for, 0 with watched: for its end. */
	int fd;
	bool watched;
	/* An end that cannot be acted on yet is reported again and again; then it is not watched.
	 */
	bool mute;
	struct policy_address address;
	/* Bytes that the server has not taken: a part of this stream's NET_UP_WINDOW. */
	uint8_t *buffer;
	size_t buffer_start;
	size_t buffer_size;
	size_t buffer_peak;
	/* What the guest may still send, what was passed on and is not granted again yet, and what
	 * we may send. */
	uint32_t guest_credit;
	uint32_t owed;
	uint32_t credit;
	bool guest_eof;
	bool server_eof;
	/* shutdown(2) after guest_eof and the last byte. */
	bool shut;
	bool eof_said;
	/* The errno with which the server took no more; what it had sent before is still read. */
	int broken;

	/* Bits of enum say; with some it is in the list says. */
	unsigned says;
	/* It has bytes for the guest, and there was no room. */
	bool in_reads;
	TAILQ_ENTRY(stream) say_entry;
	TAILQ_ENTRY(stream) read_entry;
	/* In the list of its state: free, waiting, connecting, lingering. */
	TAILQ_ENTRY(stream) state_entry;
	/* It counts as one of limits.connections. */
	bool counted;

	/* The first bytes from the guest, until they are a hello or known to be none. Before that,
	 * what a proxy answers. */
	bool hello_done;
	size_t hello_size;
	uint8_t *hello;

	/* What the keeper is told, filled in on the way. began_ns: CLOCK_MONOTONIC. */
	struct ipc_net_event event;
	uint64_t began_ns;
};

/* struct stream_list. */
TAILQ_HEAD(stream_list, stream);

enum question_state {
	QUESTION_FREE = 0,
	QUESTION_WAITING,
	QUESTION_RESOLVING,
	/* The answer must be said. */
	QUESTION_ANSWERED,
};

struct question {
	/* enum question_state */
	uint8_t state;
	uint32_t token;
	uint64_t number;
	struct lookup *lookup;
	bool by_proxy;
	struct net_resolved answer;
	struct ipc_net_event event;
	uint64_t began_ns;
};

struct net {
	struct loop *loop;
	struct conf conf;
	/* The text that conf.hosts points to; owned. */
	char *hosts;
	/* When the keeper was last asked to look at both files; 0: never. */
	uint64_t looked_ns;
	struct resolver *resolver;
	/* NULL: there was none yet, and everything is refused. Owned. */
	struct policy_network *policy;
	/* port 0: there is none. direct is owned. */
	struct ipc_net_proxy proxy;
	struct policy_network *proxy_direct;
	uint64_t tick_timer;
	uint64_t last_id;
	uint64_t bytes;
	bool over_bytes;
	bool told_connections;

	/* port.c. port_fd is -EBADF once the port is closed. */
	int port_fd;
	bool greeted;
	bool say_hello;
	/* Of the guest's last HELLO. */
	uint64_t token;
	/* What the guest did wrong, for the keeper. */
	const char *wrong;
	struct wire_decoder decoder;
	uint8_t out[OUT_SIZE];
	size_t out_start;
	size_t out_end;
	/* How much of the frame at out_start is still to be written; 0: none was begun. */
	size_t out_begun;

	/* question.c */
	struct pace question_pace;
	unsigned questions_waiting;
	unsigned questions_answered;
	uint64_t last_question;
	struct question questions[NET_QUESTIONS_MAX];

	/* stream.c */
	struct pace stream_pace;
	uint32_t last_stream;
	/* Those with a number; those that count as connections. */
	unsigned numbered;
	unsigned counted;
	struct stream_list says;
	struct stream_list reads;
	struct stream_list waiting;
	struct stream_list connecting;
	/* The one that has waited longest first. */
	struct stream_list lingering;
	struct stream_list free;
	struct stream *buckets[BUCKETS];
	struct stream streams[SLOTS];

	/* report.c */
	int control_fd;
	bool stalled;
	size_t report_start;
	size_t report_count;
	struct ipc_net_message reports[REPORTS_MAX];
};

/* net.c: the whole. Descriptors as ipc/net.h says. Returns 0 when the keeper is gone, or a negative
 * errno with err. */
int net_run(struct err *err);
/* Reads a memory file that the keeper has handed over, of at most max bytes; the caller frees it.
 * Returns 0, -EBADMSG when it is larger or no file, or another negative errno. */
int net_read_file(int fd, size_t max, uint8_t **ret_data, size_t *ret_size);
/* Takes resolv.conf's or hosts' text out of fd. 0 or a negative errno. */
int net_take_resolver(struct net *net, int fd);
int net_take_hosts(struct net *net, int fd);
/* What resolver_ask does, and has the keeper look whether the way to find names has changed. */
struct lookup *net_look_up(struct net *net, const char *name);
/* Something has begun that time must be counted for. */
void net_need_tick(struct net *net);
/* Whether one more may begin: a policy is there to ask, and the keeper listens. */
bool net_may_begin(const struct net *net);
/* Counts payload; false when that is more than the policy's limit. Nothing is counted then. */
bool net_count_bytes(struct net *net, uint64_t bytes);
/* How many more may be counted. */
uint64_t net_bytes_left(const struct net *net);
/* The limit of bytes is reached: cuts all streams. Frees. */
void net_over_bytes(struct net *net);

/* port.c */
int port_begin(struct net *net);
/* Works on frames that are here already; the keeper has caught up. */
void port_resume(struct net *net);
/* Says what there is to say, as far as there is room. */
void port_pump(struct net *net);
/* Room for a payload of DATA, at least PORT_ROOM_MIN, or 0. */
size_t port_room(struct net *net, uint8_t **ret_payload);
void port_put_data(struct net *net, uint32_t number, size_t size);
void port_close(struct net *net);

/* question.c. question_ask returns 0 or -EBADMSG with net->wrong. */
int question_ask(struct net *net, const struct net_resolve *resolve);
void question_lookup_done(struct net *net, struct lookup *lookup);
void question_begin_waiting(struct net *net);
void question_drop_all(struct net *net);
/* Writes the next answer's payload; its size, or 0 when there is none. */
size_t question_take_answer(struct net *net, uint8_t *out);

/* stream.c. Those that return int return 0 or -EBADMSG with net->wrong. All may free. */
struct stream *stream_find(struct net *net, uint32_t number);
int stream_open(struct net *net, uint32_t number, const struct net_open *open);
int stream_frame(struct net *net, const struct wire_frame *frame);
void stream_lookup_done(struct net *net, struct lookup *lookup);
void stream_begin_waiting(struct net *net);
void stream_drop_all(struct net *net, enum ipc_net_end end);
void stream_cut_all(struct net *net, enum ipc_net_end end);
/* A new policy: those that it does not allow are cut. */
void stream_decide_again(struct net *net);
void stream_tick(struct net *net, uint64_t now_ns);
bool stream_needs_tick(const struct net *net);
/* dial.c has connected one: fd is the stream's now. address is NULL when a proxy has found it. Or
 * it has failed with an errno. */
void stream_connected(struct stream *stream, int fd, const struct policy_address *address);
void stream_failed(struct stream *stream, int error);
/* Encodes what is to be said of one stream into out (STREAM_SAYS_SIZE bytes); returns the size. May
 * free. */
#define STREAM_SAYS_SIZE 64
size_t stream_take_says(struct stream *stream, uint8_t *out);
/* Reads once from the server, into the port's room. May free. */
void stream_read(struct stream *stream);

/* stream_begin.c: from OPEN to the first attempt. */
void stream_start(struct stream *stream);
/* The end of one that never connected. */
void stream_refuse(struct stream *stream, int error);
/* The verdict about what the stream asked for, as it is in force; for an open one also about its
 * address. Fills in the event. */
bool stream_decide(struct stream *stream, struct ipc_net_event *event);
void stream_look_for_name(struct stream *stream, const uint8_t *data, size_t size);

/* dial.c */
/* Starts on the candidates. Ends in stream_connected or stream_failed, perhaps at once. */
void dial_begin(struct stream *stream);
void dial_stop(struct stream *stream);
void dial_tick(struct stream *stream, uint64_t now_ns);

/* proxy.c */
/* Whether what is allowed is reached through the proxy: host, or address when that is not NULL.
 * With port 0 for its name alone. */
bool proxy_is_for(const struct net *net, const char *host, const struct policy_address *address,
		  uint16_t port);
/* Asks the proxy, to which fd is connected, for the stream's host. fd is the stream's now. Ends in
 * stream_connected or stream_failed. */
void proxy_ask(struct stream *stream, int fd);

/* report.c */
int report_begin(struct net *net);
void report_event(struct net *net, struct ipc_net_event *event, uint64_t began_ns);
/* Has the keeper look at resolv.conf and hosts. */
void report_look(struct net *net);
void report_limit(struct net *net, enum ipc_net_limit_kind kind, uint64_t value, const char *text);
/* Fills in a verdict. */
void report_verdict(struct ipc_net_event *event, const struct policy_verdict *verdict);
