/* What the parts of box-keeper share: one machine. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/err.h"
#include "base/loop.h"
#include "engine/engine.h"
#include "ipc/ipc.h"
#include "keeper/control.h"
#include "keeper/files.h"
#include "keeper/record.h"
#include "keeper/stream.h"
#include "policy/network.h"
#include "policy/proxy.h"

/* The end of the kernel's log, where a panic is. */
#define KEEPER_CONSOLE_SIZE 16384

/* Who may be connected at once: a client for every command, and those who only look. */
#define KEEPER_CLIENTS_MAX 320
/* Addresses of network.ports. */
#define KEEPER_PORTS_MAX 64

enum keeper_phase {
	/* HELLO and SETUP are on their way; HELLO or READY is awaited. */
	KEEPER_STARTING,
	/* Of a machine that is kept ready (pool.c): it is being made so; it waits to be taken; its
	 * own /data is being put in. */
	KEEPER_WARMING,
	KEEPER_WARM,
	KEEPER_TAKEN,
	KEEPER_RUNNING,
	KEEPER_FREEZING,
	KEEPER_GOING_DOWN,
	KEEPER_ENDING,
};

struct keeper;

/* Somebody who is connected. fd is -EBADF in a free entry. */
struct client {
	struct keeper *keeper;
	int fd;
	/* Waits for IPC_DOWN. */
	bool wants_down;
	/* Waits for a copy of /data. */
	bool wants_copy;
	/* Messages that its socket has no room for yet, the oldest first; owned. */
	struct ipc_message *waiting;
	size_t waiting_count;
	size_t waiting_capacity;
};

/* A command or a TCP connection. stream is NULL in a free entry. */
struct command {
	struct stream *stream;
	struct record *record;
	/* Whose it is, and that client's number for it; NULL: nobody's, it is detached. */
	struct client *client;
	uint32_t number;
	char id[IPC_ID_SIZE];
	/* Of a command of the keeper's own: called when it has ended, however that was. */
	void (*own_ended)(struct keeper *keeper);
	bool tcp;
	bool terminal;
	/* The guest expects input; without that it takes input for a broken protocol. */
	bool has_stdin;
	bool detach_on_loss;
	/* The machine goes down with it. */
	bool is_last;
	/* It is a part of box (WIRE_EXEC_SELF), of no use without its client. */
	bool own_program;
};

/* How far the guest's clock is off (clock.c). */
struct guest_clock {
	uint64_t token;
	/* CLOCK_MONOTONIC when the question went out, or 0: none is under way. */
	uint64_t asked_ns;
	unsigned tries;
	uint64_t timer;
	/* Told by the kernel when the host's clock jumps, as it does after a sleep. */
	int jump_fd;
};

/* Whether the disks of a guest that is to write them are written to (writing.c). */
struct disk_watch {
	uint64_t timer;
	uint64_t stamp;
	unsigned idle_looks;
};

enum fork_stage {
	FORK_NONE,
	/* What is cached inside is being written; nothing stands still yet. */
	FORK_SYNCING,
	/* PAUSE was sent; the monitor stops the machine; its disk is put on the new chain; its
	 * state is being saved. */
	FORK_PAUSING,
	FORK_STOPPING,
	FORK_SWITCHING,
	FORK_SAVING,
};

/* A fork of this machine that is being made (live.c). */
struct keeper_fork {
	enum fork_stage stage;
	/* Who wants it; NULL when that one is gone. */
	struct client *client;
	/* The machine is copied too, not only /data. */
	bool copies;
	/* An answer to PAUSE that is not waited for any more is still to come. */
	bool late_answer;
	/* As well, the end of what writes what is cached inside. */
	bool late_sync;
	/* The chain lock, as long as it is needed. */
	int lock_fd;
	struct files_copy copy;
	uint64_t timer;
};

/* Which state of a file of the host's box-net has; zeros for one that could not be read. */
struct keeper_host_file {
	dev_t device;
	ino_t inode;
	off_t size;
	struct timespec modified;
	struct timespec changed;
};

/* box-net, which makes the machine's connections (net.c). */
struct keeper_net {
	/* Whether there is one: the machine has a network. What it may reach is owned. */
	bool spawned;
	struct policy_network *policy;
	struct jail jail;
	struct jail_process process;
	/* Its end of the port, until it is started. */
	int port_fd;
	int control_fd;
	int complaint_fd;
	/* /etc/resolv.conf and /etc/hosts. */
	struct keeper_host_file host_files[2];
	/* The last policy that it was sent, and the last one that it has in force; 0: none. */
	uint32_t sent_serial;
	uint32_t ready_serial;
	/* Who waits until what was sent last is in force; or NULL. */
	struct client *asker;
	/* The guest is ready, and waits for the first policy. */
	bool guest_waits;
	/* It has said that nothing comes from the guest any more. */
	bool port_closed;
	/* The host's proxy; direct is NULL without one. */
	struct policy_proxy proxy;
	/* NULL: nothing is logged, for nothing can be reached. */
	struct record_log *log;
	/* Tells the connections of this machine from those of others in the log. */
	uint32_t life;
};

struct keeper {
	enum keeper_phase phase;
	bool hello;
	/* IPC_SHUTDOWN has come: commands are being ended, no new ones begin. */
	bool leaving;
	bool leave_killed;
	/* The monitor stands still for good. */
	bool stopped;
	struct loop *loop;
	struct ipc_start start;
	struct ipc_ready ready;
	struct files files;
	struct engine *engine;
	struct control *control;
	struct client clients[KEEPER_CLIENTS_MAX];
	/* Whose machine it is; NULL when it stays by itself. */
	struct client *starter;
	struct command commands[WIRE_STREAMS_MAX];
	uint32_t last_stream;
	/* NULL: nothing is logged (builds). */
	struct record_log *log;
	struct record_log log_store;
	struct guest_clock clock;
	uint8_t nonce[WIRE_NONCE_SIZE];
	/* Of the pool: the lock of our slot and the socket there, and when to look after it. */
	int slot_fd;
	int warm_listen_fd;
	/* How many rehearsals have begun. */
	size_t rehearsed;
	/* ATTACH was sent and not answered yet. */
	bool attaching;
	uint64_t pool_timer;
	unsigned pool_looks;
	/* Locks of the slots for which machines are about to be made. */
	int reserved_fds[STORE_SLOTS_MAX];
	/* Leads to the process that starts them, or -EBADF. */
	int refill_fd;
	int live_fd;
	int up_fd;
	int signal_fd;
	int snapshot_fd;
	uint64_t timer;
	uint64_t leave_timer;
	struct disk_watch disk_watch;
	/* run/NAME, and the sockets in it: for everybody, and for who wants a copy of /data. */
	int run_fd;
	int listen_fd;
	int data_listen_fd;
	int port_fds[KEEPER_PORTS_MAX];
	uint16_t ports[KEEPER_PORTS_MAX];
	/* Listeners rest until then: there was no descriptor for who wants to come in. */
	uint64_t accept_timer;
	/* A pause was asked for and has not come yet; and how long that may take. */
	bool pausing;
	uint64_t pause_timer;
	struct keeper_fork fork;
	struct keeper_net net;
	int console_fd;
	size_t console_size;
	char console[KEEPER_CONSOLE_SIZE];
};

/* keeper.c */

/*
 * Lives the life of one machine, for the client at the other end of client_fd (taken over) from
 * its IPC_START on. Returns the exit code of the keeper.
 */
int keeper_run(int client_fd);

/* Ends the keeper with a reason for its clients; the first one counts. */
void keeper_fail(struct keeper *keeper, const struct err *err);
void keeper_fail_text(struct keeper *keeper, const char *code, const char *text, const char *mend);
/* Standard streams become /dev/null. */
void keeper_leave_terminal(void);
/* How long the present phase may take; then the machine ends. */
void keeper_set_limit(struct keeper *keeper, uint64_t limit_ms);
/* The machine answers, or is somebody's now: tells the starter. */
void keeper_is_up(struct keeper *keeper);
/* Ends a machine that holds nothing of anybody's. */
void keeper_end(struct keeper *keeper);
/* Ask the guest to get ready for a snapshot, or to write everything and go down. */
int keeper_freeze(struct keeper *keeper);
int keeper_shutdown(struct keeper *keeper);
/* Ends the commands that run, gently first, and then goes down. */
void keeper_leave(struct keeper *keeper);
/* The guest has answered: take the snapshot, or end the machine. */
void keeper_frozen(struct keeper *keeper);
void keeper_gone_down(struct keeper *keeper);
/* Reads what the kernel has said; returns what recv(2) did. */
ssize_t keeper_read_console(struct keeper *keeper);

/* writing.c: the guest has been told to write its disks, and must go on doing so until it has said
 * that they are written. */
void writing_begin(struct keeper *keeper);

/* clients.c: who is connected, and what they ask for */
void clients_init(struct keeper *keeper);
/* Takes fd over. Returns the client, or NULL when there are too many (fd is then closed). */
struct client *client_add(struct keeper *keeper, int fd);
/* The client wants the machine to go down, and to be told when it is. */
void client_shut_down(struct client *client);
/* The client is gone: its commands are killed or detached. */
void client_drop(struct client *client);
/* Sends to one client. One that cannot be told, because it is gone or has not read for too long,
 * is dropped: the closed socket tells it then. NULL is nobody. */
void client_tell(struct client *client, const struct ipc_message *message);
/* Refuses one request. stream is the client's number, or 0. */
void client_refuse(struct client *client, uint32_t stream, const char *code, const char *text,
		   const char *mend);
/* Sends to everybody who is connected, without dropping anybody. */
void clients_broadcast(struct keeper *keeper, const struct ipc_message *message);
void clients_close(struct keeper *keeper);

/* Opens what others find the machine by. 0 or a negative errno with err filled. */
int keeper_open_doors(struct keeper *keeper, struct err *err);

/* listen.c: sockets in run/NAME */
/* Listens under name (one of store.h). 0 or a negative errno with err filled. */
int listen_open(struct keeper *keeper, const char *name, int *ret_fd, struct err *err);
/* Accepts a connection to a listener of ours (ports.c has some too). The descriptor, or -EBADF. */
int listen_accept(struct keeper *keeper, int listen_fd);
/* Takes a socket away that listen_open has made, and the directory when it was the last. */
void listen_close(struct keeper *keeper, const char *name, int *fd);

/* commands.c: what runs in the machine */
struct command *command_find(struct keeper *keeper, uint32_t stream);
void command_exec(struct client *client, const struct ipc_message *message, int *fds);
void command_attach(struct client *client, const struct ipc_message *message, int *fds);
void command_detach(struct client *client, uint32_t number);
void command_kill(struct client *client, const struct ipc_message *message);
/* Orders for a client's own command: IPC_SIGNAL, IPC_WINDOW_SIZE, IPC_CLOSE. */
void command_order(struct client *client, const struct ipc_message *message);
/*
 * Runs a command of the keeper's own, as what exec and argv say; its output is dropped. ended is
 * called when it has ended, however that was. Returns 0 or a negative errno.
 */
int command_own(struct keeper *keeper, const struct wire_exec *exec, const char *const *argv,
		void (*ended)(struct keeper *keeper));
/*
 * Takes over a command of the machine that this one is a copy of: command says what it is, state
 * how far it has come, request (size 0: unknown) what was asked for. It is detached; a part of box
 * is killed. Returns 0 or a negative errno.
 */
int command_adopt(struct keeper *keeper, const struct command *command,
		  const struct stream_state *state, const uint8_t *request, size_t size);
/* Carries a TCP socket (taken over) to a port of the guest. client may be NULL. */
void command_tcp(struct keeper *keeper, struct client *client, uint32_t number, int fd,
		 uint16_t port);
/* All commands of a client that is gone. */
void commands_lost(struct client *client);
/* A signal to everything that runs; how many that are. 0 only counts. */
size_t commands_signal(struct keeper *keeper, int number);
/* Kills everything that runs. */
void commands_kill(struct keeper *keeper);
/* Ends every stream without a word to anyone. */
void commands_close(struct keeper *keeper);

/* listing.c: answers of JSON text */
void listing_send(struct client *client);
void listing_send_report(struct client *client);

/* report.c */
/* The security report as JSON text owned by the caller. 0, -EAGAIN before there is a monitor, or
 * -ENOMEM. */
int report_make(struct keeper *keeper, char **ret_text);

/* What confinement this host could not give to the monitor, and to box-net (NULL: there is none),
 * in one line; "" when all is there. */
void report_missing(const struct jail_missing *monitor, const struct jail_missing *net, char *out,
		    size_t capacity);

/* session.c: the guest's frames */
/* The guest has said what makes no sense on that port ("control" or "network"): its machine ends.
 */
void keeper_guest_broken(struct keeper *keeper, const char *port, const char *what);
/* Called by the control port. */
void keeper_frame(void *data, const struct wire_frame *frame);
void keeper_port_broken(void *data);
void keeper_port_writable(void *data);

/* The guest has answered, and whatever else a machine needs has too. */
void keeper_guest_ready(struct keeper *keeper);

/* net.c: box-net */
void net_init(struct keeper *keeper);
/*
 * Makes the port box.net, when the machine has a network, and its policy. *ret_port_fd is the
 * monitor's end, the caller's; -EBADF: there is no network. 0 or a negative errno with err filled.
 */
int net_prepare(struct keeper *keeper, int *ret_port_fd, struct err *err);
/* Then starts box-net, and sends it the policy. The monitor begins meanwhile; what its guest asks
 * for waits in the port. 0 or a negative errno with err filled. */
int net_start(struct keeper *keeper, struct err *err);
/* Whether commands may start: there is no network, or box-net has its first policy. */
bool net_is_ready(const struct keeper *keeper);
/* IPC_NET_RULE. */
void net_add_rule(struct client *client, const struct ipc_message *message);
void net_forget_client(struct client *client);
/* Whether the policy is what the Boxfile says now, and the proxy what start says. */
bool net_is_current(struct keeper *keeper, const struct ipc_start *start);
/* Takes in what box-net has still to say of a monitor that has ended, and ends it. */
void net_close(struct keeper *keeper);

/* net_log.c: the log of the network; see there for its lines */
struct ipc_net_event;
struct ipc_net_limit;
void net_log_event(struct keeper *keeper, const struct ipc_net_event *event);
/* A rule was added while the machine is up, with its action. */
void net_log_rule(struct keeper *keeper, const char *rule);
void net_log_limit(struct keeper *keeper, const struct ipc_net_limit *limit);

/* data.c: copies of /data for others */
void data_copy(struct client *client);
/* What was written to /data goes to its disk; then ended is called. 0 or a negative errno. */
int data_sync_inside(struct keeper *keeper, void (*ended)(struct keeper *keeper));

/* live.c: forks of the machine while it is up */
void live_init(struct keeper *keeper);
void live_close(struct keeper *keeper);
/* IPC_FREEZE_DATA, or with copies IPC_FORK. The lock is taken over. */
void live_fork(struct client *client, bool copies, int lock_fd);
void live_forget_client(struct client *client);
/* Takes the guest's PAUSED. Returns 0, or -EBADMSG when nobody had asked. */
int live_paused(struct keeper *keeper, const struct wire_frame *frame);
/* In the keeper of a copy: takes over what ran in the machine. 0 or a negative errno. */
int live_adopt(struct keeper *keeper);

/* clock.c: the guest's clock follows the host's */
int clock_open(struct keeper *keeper);
void clock_close(struct keeper *keeper);
/* Asks the guest for its time, unless a question is under way. */
void clock_ask(struct keeper *keeper);
/* Takes the answer. Returns 0, or -EBADMSG when nobody had asked. */
int clock_answer(struct keeper *keeper, const struct wire_frame *frame);

/* pool.c: machines that are kept ready */
/* Takes the slot whose lock came with start. Returns 0, -EPROTO when none came, or another errno.
 */
int pool_take_slot(struct keeper *keeper, struct err *err);
void pool_give_slot(struct keeper *keeper);
/* The machine answers; its /data is unmounted, or mounted. */
void pool_started(struct keeper *keeper);
void pool_detached(struct keeper *keeper);
void pool_attached(struct keeper *keeper);
/* IPC_CLAIM. */
void pool_claim(struct client *client, const struct ipc_message *message, int *fds);
/* A machine was used: makes others ready in its stead, in a moment or now. */
void pool_refill_soon(struct keeper *keeper);
/*
 * Makes the process that will start their keepers, if the Boxfile asks for a pool; before the
 * keeper confines itself. 0 or a negative errno.
 */
int pool_prepare(struct keeper *keeper);
/* Locks the free slots, for pool_refill to fill. */
void pool_reserve(struct keeper *keeper);
void pool_refill(struct keeper *keeper);

/* ports.c: network.ports of the Boxfile */
int ports_open(struct keeper *keeper, struct err *err);
void ports_close(struct keeper *keeper);
